"""Run the tests of the host code under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.

    python tests/sanitize_host.py                     the tests of exchange, ops, interop.Array and threads
    python tests/sanitize_host.py tests/ops -k batch  pytest with these arguments instead
    python tests/sanitize_host.py --threads           the tests of threads, under ThreadSanitizer; or as above

Builds src/ without CUDA in a folder that is kept for the next run; the installed package is not touched. Any read or
write out of bounds, use after free or undefined behaviour ends the run, as does a leak of interop's own: memory that no
pointer leads to when the interpreter has exited, and that our code allocated, with no Python code in between. What the
interpreter and the array libraries leave behind at exit is not reported. That one fault of each kind is seen is tried
first.

ThreadSanitizer sees what our code reads and writes; of the interpreter and the array libraries only the locks. The GIL
is one, so what it orders is no race, and what is shared without it is. That it is so is tried first, on a function that
threads run with the GIL and without.

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
    *("tests/exchange", "tests/ops", "tests/test_array.py", "tests/test_array_buffer.py", "tests/test_array_dlpack.py"),
    *("tests/test_array_exchange_api.py", "tests/test_array_exports.py", "tests/test_array_lifetime.py"),
    *("tests/test_asarray.py", "tests/test_cases.py", "tests/test_cases_of_c_functions.py"),
    *("tests/test_cases_of_numbers.py", "tests/test_cases_of_torch.py", "tests/test_conformance.py"),
    *("tests/test_convert.py", "tests/test_errors.py", "tests/test_errors_of_exchange.py"),
    *("tests/test_errors_of_out.py", "tests/test_errors_of_tensors.py", "tests/test_explain.py"),
    *("tests/jax/test_jax_debug.py", "tests/jax/test_jax_devices.py", "tests/jax/test_jax_matmul.py"),
    *("tests/jax/test_jax_matmul_refusals.py", "tests/operator", "tests/test_matmul.py", "tests/test_threads.py"),
    *("tests/test_threads_of_dtypes.py", "tests/test_threads_of_types.py"),
)
THREAD_TESTS = (
    *("tests/test_threads.py", "tests/test_threads_of_dtypes.py", "tests/test_threads_of_types.py"),
    *("tests/test_array_dlpack.py", "tests/test_array_lifetime.py", "tests/test_public.py"),
    *("tests/test_expression.py", "tests/load/test_load.py", "tests/jax/test_jax_matmul.py", "-k", "thread"),
)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(folder: Path, preset: str) -> Path:
    """Build the module by a preset of CMakePresets.json; return the folder that Python finds the package in."""
    python = f"-DPython_EXECUTABLE={sys.executable}"
    run("cmake", "-S", ROOT, "--preset", preset, "-B", folder / "build", python)
    run("cmake", "--build", folder / "build", "--target", "_core")
    package = folder / "site" / "interop"
    package.mkdir(parents=True, exist_ok=True)
    parts = [file for file in (ROOT / "interop").iterdir() if file.suffix == ".py" or (file / "__init__.py").is_file()]
    for file in [*parts, folder / "build" / MODULE]:
        link = package / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    return package.parent


def runtimes(module: Path, sanitizer: str) -> str:
    """Return the libraries to load first: the sanitizer's, and libstdc++, which it looks for when it starts."""
    found = re.findall(rf"(?:{sanitizer}|libstdc\+\+)\.so\S* => (\S+)", run("ldd", module))
    if len(found) != 2:
        raise SystemExit(f"{module} is linked to no {sanitizer}.so: these tests need GCC as the compiler")
    return " ".join(found)


def report_undefined_behaviour_to(reports: Path, module: Path, site: Path) -> None:
    """Let each process that finds `site` tell UBSan where to report.

    Its log_path goes to ASan's function of the same name, loaded first, and its reports to stderr, which pytest keeps.
    """
    found = re.search(r"libubsan\.so\S* => (\S+)", run("ldd", module))
    if not found:
        raise SystemExit(f"{module} is linked to no libubsan.so: these tests need GCC as the compiler")
    lines = ("import ctypes", f"own = ctypes.CDLL({found[1]!r})  # its own, not the one loaded first")
    call = f"own.__sanitizer_set_report_path({os.fsencode(reports / 'report')!r})"
    (site / "sitecustomize.py").write_text("\n".join((*lines, call, "")))


def errors_of(texts: list[str]) -> list[str]:
    """Return the reports of ASan and UBSan; what LeakSanitizer cannot do is one as well."""
    return [text for text in texts if "ERROR: LeakSanitizer: detected memory leaks" not in text]


# What each sanitizer must report; in the module's name, by which our leaks are known.
_FAULTY = r"""
#include <cstdlib>
extern "C" void outside(int n) { volatile char* p = static_cast<char*>(std::malloc(4)); p[n] = 1; }
extern "C" int undefined(int n) { return 1 << n; }
extern "C" void leak(int n) { for (; n > 0; --n) *static_cast<volatile char*>(std::malloc(1)) = 1; }
extern "C" int nothing(int n) { return n; }
"""


def check_that_errors_are_seen(folder: Path, environment: dict[str, str], reports: Path) -> None:
    """Run one fault of each kind, with stderr kept from us, and a call without any."""
    source, library = folder / "planted.cpp", folder / "planted" / MODULE
    library.parent.mkdir(exist_ok=True)
    source.write_text(_FAULTY)
    flags = ("-g", "-O0", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run("g++", *flags, source, "-o", library)
    for name, expected in (("outside", (1, 0)), ("undefined", (1, 0)), ("leak", (0, 1)), ("nothing", (0, 0))):
        code = f"import ctypes, sys; ctypes.CDLL(sys.argv[1]).{name}(40)"
        subprocess.run([sys.executable, "-P", "-c", code, library], env=environment, stderr=subprocess.DEVNULL)
        texts = [file.read_text(errors="replace") for file in reports.iterdir()]
        seen = len(errors_of(texts)), sum(len(our_leaks(text)) for text in texts)
        if seen != expected:
            raise SystemExit(f"{name}: {seen} errors and leaks, not {expected}, were reported:\n{''.join(texts)}")
        for file in reports.iterdir():
            file.unlink()


def our_leaks(report: str) -> list[str]:
    """Return the leaks of LeakSanitizer's report that our code allocated."""
    leaks = re.findall(r"^Direct leak of .*?(?=^\S|\Z)", report, re.MULTILINE | re.DOTALL)
    return [leak for leak in leaks if MODULE in leak.split("_PyEval_EvalFrameDefault")[0]]


# ---- threads ----

# Two threads change one number in the same moment: both are there before either does.
_PLANTED = r"""
#include <atomic>
static std::atomic<int> here{0};
static int number = 0;
extern "C" int change(void) {
  here.fetch_add(1, std::memory_order_relaxed);
  while (here.load(std::memory_order_relaxed) < 2) {}
  return ++number;
}
extern "C" int change_alone(void) { return ++number; }
"""
_TRY = """
import ctypes, sys, threading, interop
path, holds_the_gil = sys.argv[1], sys.argv[2] == "held"
call = ctypes.PyDLL(path).change_alone if holds_the_gil else interop.load(path, "int change(void);").change
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=lambda: [call() for _ in range(10000 if holds_the_gil else 1)]) for _ in range(2)]
[x.start() for x in threads], [x.join() for x in threads]
"""


def check_that_races_are_seen(folder: Path, environment: dict[str, str], reports: Path) -> None:
    """Run a race that must be reported, and the same with the GIL held, which must not."""
    source, library = folder / "planted.cpp", folder / "planted.so"
    source.write_text(_PLANTED)
    run("g++", "-g", "-O1", "-fPIC", "-shared", "-fsanitize=thread", source, "-o", library)
    for how, expected in (("held", False), ("released", True)):
        subprocess.run([sys.executable, "-P", "-c", _TRY, library, how], env=environment, check=True)
        texts = [file.read_text(errors="replace") for file in reports.iterdir()]
        if (any(map(our_races, texts)) if expected else any(texts)) != expected:
            raise SystemExit(f"a race with the GIL {how} was {'not ' if expected else ''}reported:\n{''.join(texts)}")
        for file in reports.iterdir():
            file.unlink()


def our_races(report: str) -> list[str]:
    """Return the races of ThreadSanitizer's report that our code has a part in."""
    return [text for text in report.split("==================") if MODULE in text]


# ---- the command ----


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to build (default: one in the temporary folder)")
    parser.add_argument("--threads", action="store_true", help="ThreadSanitizer in the place of the others")
    options, arguments = parser.parse_known_args()
    kind = "threads" if options.threads else "memory"
    folder = (options.folder or Path(tempfile.gettempdir(), f"interop-sanitize-{os.getuid()}")) / kind
    print(f"building in {folder}", flush=True)
    site = build(folder, "tsan" if options.threads else "asan")

    with tempfile.TemporaryDirectory() as reports:
        environment = {
            **os.environ,
            "PYTHONPATH": str(site),
            "LD_PRELOAD": runtimes(folder / "build" / MODULE, "libtsan" if options.threads else "libasan"),
        }
        # Reports of tests' own processes, too.
        if options.threads:
            environment |= {
                "TSAN_OPTIONS": f"log_path={reports}/report:exitcode=0:die_after_fork=0:history_size=7:"
                "ignore_noninstrumented_modules=1",
            }
            check_that_races_are_seen(folder, environment, Path(reports))
        else:
            environment |= {
                "PYTHONMALLOC": "malloc",  # each object a block of its own, in whose bounds to stay
                # A line of a stack names its module, by which our leaks are known. A small quarantine of what was
                # freed, as tests measure memory. An allocation may fail, as tests ask for one.
                "ASAN_OPTIONS": f"log_path={reports}/report:detect_leaks=1:quarantine_size_mb=16:"
                "allocator_may_return_null=1:stack_trace_format='    #%n %f %S (%m)'",
                "LSAN_OPTIONS": "exitcode=0:print_suppressions=0",  # whose leaks they are is for us to say
                "UBSAN_OPTIONS": "print_stacktrace=1",
            }
            report_undefined_behaviour_to(Path(reports), folder / "build" / MODULE, site)
            check_that_errors_are_seen(folder, environment, Path(reports))
        tests = arguments or [*(THREAD_TESTS if options.threads else TESTS), "-m", "not gpu"]
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        texts = [file.read_text(errors="replace") for file in sorted(Path(reports).iterdir())]
    if options.threads:
        errors, leaks = [race for text in texts for race in our_races(text)], []
    else:
        errors = errors_of(texts)
        leaks = [leak for text in texts for leak in our_leaks(text)]
    for text in [*errors, *leaks]:
        print(text)
    print(f"pytest exited with {status}; {len(errors)} errors, {len(leaks)} leaks")
    return 1 if status or errors or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
