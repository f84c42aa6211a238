"""Run the tests of the host code under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.

    python tests/sanitize_host.py                     the tests of exchange, ops and interop.Array
    python tests/sanitize_host.py tests/ops -k batch  pytest with these arguments instead

Builds src/ without CUDA in a folder that is kept for the next run; the installed package is not touched. Any read or
write out of bounds, use after free or undefined behaviour ends the run, as does a leak of interop's own: memory that no
pointer leads to when the interpreter has exited, and that our code allocated, with no Python code in between. What the
interpreter and the array libraries leave behind at exit is not reported.

Needs GCC, what the build needs (cmake, ninja, nanobind, apache-tvm-ffi), and the tests' packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
TESTS = (
    *("tests/exchange", "tests/ops", "tests/test_array.py", "tests/test_array_exports.py", "tests/test_cases.py"),
    *("tests/test_conformance.py", "tests/test_convert.py", "tests/test_errors.py", "tests/test_explain.py"),
    *("tests/test_jax.py", "tests/test_matmul.py"),
)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build the module with the sanitizers; return the folder that Python finds the package in."""
    options = ("-DINTEROP_CUDA=OFF", "-DINTEROP_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=RelWithDebInfo")
    run("cmake", "-S", ROOT, "-B", folder / "build", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options)
    run("cmake", "--build", folder / "build", "--target", "_core")
    package = folder / "site" / "interop"
    package.mkdir(parents=True, exist_ok=True)
    for file in [*(ROOT / "interop").glob("*.py"), folder / "build" / MODULE]:
        link = package / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    return package.parent


def runtimes(module: Path) -> str:
    """Return the libraries to load first: the sanitizer's, and libstdc++, which it looks for when it starts."""
    found = re.findall(r"(?:libasan|libstdc\+\+)\.so\S* => (\S+)", run("ldd", module))
    if len(found) != 2:
        raise SystemExit(f"{module} is linked to no libasan.so: these tests need GCC as the compiler")
    return " ".join(found)


def our_leaks(report: str) -> list[str]:
    """Return the leaks of LeakSanitizer's report that our code allocated."""
    leaks = re.findall(r"^Direct leak of .*?(?=^\S|\Z)", report, re.MULTILINE | re.DOTALL)
    return [leak for leak in leaks if MODULE in leak.split("_PyEval_EvalFrameDefault")[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to build (default: one in the temporary folder)")
    options, arguments = parser.parse_known_args()
    folder = options.folder or Path(tempfile.gettempdir(), f"interop-sanitize-{os.getuid()}")
    print(f"building in {folder}", flush=True)
    site = build(folder)

    with tempfile.TemporaryDirectory() as reports:
        environment = {
            **os.environ,
            "PYTHONPATH": str(site),
            "PYTHONMALLOC": "malloc",  # each object a block of its own, in whose bounds to stay
            "LD_PRELOAD": runtimes(folder / "build" / MODULE),
            # Reports of tests' own processes, too. A line of a stack names its module, by which our leaks are known. A
            # small quarantine of what was freed, as tests measure memory. An allocation may fail, as tests ask for one.
            "ASAN_OPTIONS": f"log_path={reports}/report:detect_leaks=1:quarantine_size_mb=16:"
            "allocator_may_return_null=1:stack_trace_format='    #%n %f %S (%m)'",
            "LSAN_OPTIONS": "exitcode=0:print_suppressions=0",  # whose leaks they are is for us to say
            "UBSAN_OPTIONS": f"log_path={reports}/report:print_stacktrace=1",
        }
        tests = arguments or [*TESTS, "-m", "not gpu"]
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        texts = [file.read_text(errors="replace") for file in sorted(Path(reports).iterdir())]
    errors = [text for text in texts if "LeakSanitizer" not in text]
    leaks = [leak for text in texts for leak in our_leaks(text)]
    for text in [*errors, *leaks]:
        print(text)
    print(f"pytest exited with {status}; {len(errors)} errors, {len(leaks)} leaks")
    return 1 if status or errors or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
