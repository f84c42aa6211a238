"""Run array-api-tests over interop's functions: `python tests/array_api/run.py --library numpy`.

Needs a checkout of the suite at the commit below, the library, and what the suite needs:
`pip install pytest pytest-json-report hypothesis ndindex array-api-compat`. With pytest-xdist, `-n 8` runs eight
processes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1] / "build" / "array-api-tests"  # /build is ignored

#: The suite's commit, and the digest of its files there: see `digest`.
COMMIT = "55fcc60179efa2680ddd6cd926ddf17b83530e2b"
DIGEST = "134b0dedc750ae7f"
VERSION = "2025.12"  # of the standard
TESTS = (
    "test_operators_and_elementwise_functions.py",
    "test_special_cases.py",
    "test_linalg.py",
    "test_signatures.py",
)


def digest(checkout: Path) -> str:
    """Return the digest of the files that decide what is tested; needs no git, which a copied folder may lack."""
    stubs = checkout / "array-api" / "src" / "array_api_stubs" / f"_{VERSION.replace('.', '_')}"
    tests = (checkout / "array_api_tests").glob("*.py")
    files = sorted([checkout / "conftest.py", checkout / "pytest.ini", *tests, *stubs.glob("*.py")])
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            total.update(f"{file.relative_to(checkout).as_posix()}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def check(checkout: Path) -> None:
    """Exit unless the checkout is the pinned one."""
    found = digest(checkout)
    if found != DIGEST:
        sys.exit(
            f"run.py: {checkout} is no checkout of array-api-tests at {COMMIT} (the digest of its files is {found}, "
            f"not {DIGEST}). Get it:\n"
            f"  git clone https://github.com/data-apis/array-api-tests {checkout}\n"
            f"  git -C {checkout} checkout {COMMIT}\n"
            f"  git -C {checkout} submodule update --init"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("numpy", "torch", "jax", "cupy"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda for cupy, else cpu")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="of array-api-tests; default: %(default)s")
    parser.add_argument("--max-examples", type=int, default=100, help="of each test; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the examples; default: %(default)s")
    parser.add_argument("--own", action="store_true", help="test the library's own functions: what fails is not ours")
    parser.add_argument("-n", default="0", help="processes, with pytest-xdist; default: %(default)s, in this one")
    parser.add_argument("more", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()
    device = options.device or ("cuda" if options.library == "cupy" else "cpu")
    if (options.library, device) in {("numpy", "cuda"), ("cupy", "cpu")}:
        parser.error(f"{options.library} has no arrays on {device}")
    checkout = options.checkout.resolve()
    check(checkout)

    make = f"import namespaces; xp = namespaces.namespace({options.library!r}, {device!r}, {options.own})"
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": f"exec('{make}')",
        "ARRAY_API_TESTS_VERSION": VERSION,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "ARRAY_API_TESTS_MAX_ARRAY_SIZE": "128",  # values are compared in Python, element by element
        "OMP_NUM_THREADS": "1",  # the arrays are small
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX would take most of the GPU, in each process
    }
    command = [
        *(sys.executable, "-m", "pytest", "-c", "pytest.ini", "--rootdir=.", "-p", "plugin", "-p", "no:cacheprovider"),
        *("-q", "-rfExX", "--tb=short"),
        *("-o", "xfail_strict=true", "--max-examples", str(options.max_examples), "--disable-deadline"),
        *(f"--hypothesis-seed={options.seed}", "--interop-library", options.library),
        *(() if options.own else (f"--xfails-file={HERE / 'xfails.txt'}",)),
        *(("-n", options.n, "--dist", "worksteal") if options.n != "0" else ()),
        *options.more,
        *(f"array_api_tests/{name}" for name in TESTS),
    ]
    return subprocess.run(command, cwd=checkout, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
