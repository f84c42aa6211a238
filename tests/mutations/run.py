"""Prove that the tests guard the rules of exchange: take each rule out, and require the test that must notice to fail.

    python tests/mutations/run.py            every mutation that this machine can prove
    python tests/mutations/run.py --host     those that need no GPU, on a build without CUDA
    python tests/mutations/run.py --cuda     on a build with CUDA also without a GPU: some tests play a driver
    python tests/mutations/run.py --only join-after --only join-before
    python tests/mutations/run.py --list

Each `*.mutation` beside this file says which rule it takes out, which tests must fail then, and how:

    @@
     a line before, where the lines alone stand at several places
    -  the lines to be found, one after the other
    +  the lines to put in their place: indented as the first one found, or none

The lines are looked for in all files of src/ and interop/, whatever white space is around each, and must stand at one
place only; so code may move and a mutation still finds it.

The tree is copied and built elsewhere, once for each mutation, and the folder is kept for the next run; the installed
package is not touched. Then each mutation's tests must pass with the rule and fail without it, `--jobs` mutations at a
time. `--build-only` and `--test-only` do one half each: a machine with a GPU can test in the `--folder` that another
machine has built. Building needs what the build needs (cmake, ninja, nanobind, apache-tvm-ffi, jaxlib), testing the
tests' packages.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import filecmp
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = ("src", "interop")  # where the lines of a mutation are looked for
COPIED = ("src", "interop", "tests", "docs", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
TIMEOUT = 600  # seconds for the named tests of one mutation: a hang is a failure, too


class MutationError(Exception):
    """A mutation that is not written as it must be, or that does not fit the sources."""


@dataclass(frozen=True)
class Hunk:
    lines: tuple[tuple[str, str], ...]  # each the mark (" ", "-" or "+") and the text behind it

    @property
    def sought(self) -> list[str]:
        return [text.strip() for mark, text in self.lines if mark != "+"]

    def apply_at(self, place: int, source: list[str]) -> list[str]:
        """Return the source's lines with the change made at this line."""
        added = [text for mark, text in self.lines if mark == "+" and text.strip()]
        own_indent = _indent(added[0]) if added else ""
        changed, indent = source[:place], None
        for mark, text in self.lines:
            if mark == "+":
                changed.append((indent or "") + text.removeprefix(own_indent).rstrip() if text.strip() else "")
                continue
            if mark == "-":
                indent = _indent(source[place]) if indent is None else indent
            else:
                changed.append(source[place])
            place += 1
        return changed + source[place:]


@dataclass(frozen=True)
class Mutation:
    name: str
    rule: str
    tests: tuple[str, ...]
    gpus: int
    hunks: tuple[Hunk, ...]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def read(path: Path) -> Mutation:
    head, *bodies = ("\n" + path.read_text()).split("\n@@\n")
    fields: dict[str, list[str]] = {"Takes out": [], "Then fails": [], "Needs": []}
    for line in filter(str.strip, head.splitlines()):
        key, colon, value = line.partition(": ")
        if not colon or key not in fields:
            raise MutationError(f"{path.name}: {line!r} is none of 'Takes out: ', 'Then fails: ', 'Needs: '")
        fields[key].append(value.strip())
    gpus = {"nothing": 0, "a GPU": 1, "two GPUs": 2}
    if [len(fields["Takes out"]), len(fields["Needs"])] != [1, 1] or not fields["Then fails"]:
        raise MutationError(f"{path.name}: needs one line 'Takes out: ', one 'Needs: ', and a 'Then fails: ' or more")
    if fields["Needs"][0] not in gpus:
        raise MutationError(f"{path.name}: needs {fields['Needs'][0]!r}; known: {', '.join(gpus)}")
    hunks = []
    for number, body in enumerate(bodies, 1):
        lines = tuple((line[0], line[1:]) for line in body.splitlines() if line)
        if strange := [mark + text for mark, text in lines if mark not in " -+"]:
            raise MutationError(f"{path.name}: hunk {number}: {strange[0]!r} begins with none of '-', '+' and a space")
        marks = [mark for mark, _ in lines]
        if "-" not in marks or "+" in marks[: marks.index("-")]:
            raise MutationError(f"{path.name}: hunk {number}: lines to be found ('-') come first")
        hunks.append(Hunk(lines))
    if not hunks:
        raise MutationError(f"{path.name}: no line '@@', so no change")
    return Mutation(
        path.stem, fields["Takes out"][0], tuple(fields["Then fails"]), gpus[fields["Needs"][0]], tuple(hunks)
    )


def read_sources(root: Path) -> dict[Path, str]:
    """All text files of src/ and interop/, with their contents."""
    texts = {}
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            with contextlib.suppress(UnicodeDecodeError):  # what is no text
                texts[path] = path.read_bytes().decode()
    return texts


def mutate(mutation: Mutation, sources: dict[Path, str]) -> dict[Path, str]:
    """Return the files that the mutation changes, with their new contents."""
    changed: dict[Path, str] = {}
    for number, hunk in enumerate(mutation.hunks, 1):
        path, place = _find(f"{mutation.name}: hunk {number}", hunk.sought, {**sources, **changed})
        changed[path] = "\n".join(hunk.apply_at(place, changed.get(path, sources[path]).split("\n")))
    return changed


def _find(what: str, sought: list[str], sources: dict[Path, str]) -> tuple[Path, int]:
    """Find these lines, one after the other; the file that has them and the index of the first line."""
    found = _places(sought, sources)
    if len(found) == 1:
        return found[0]
    if found:
        raise MutationError(
            f"{what} is found {len(found)} times: {_name(found)}; add a line around it, with a space before"
        )
    alone = _name(_places(sought[:1], sources)[:5]) if len(sought) > 1 else ""
    where = f"; its first line alone stands at {alone}" if alone else ""
    raise MutationError(f"{what} is not found in {' or '.join(SOURCES)}: {sought[0]!r}{where}")


def _places(sought: list[str], sources: dict[Path, str]) -> list[tuple[Path, int]]:
    found = []
    for path, text in sources.items():
        if sought[0] not in text:  # most files
            continue
        lines = [line.strip() for line in text.split("\n")]
        found += [(path, place) for place in range(len(lines)) if lines[place : place + len(sought)] == sought]
    return found


def _name(places: list[tuple[Path, int]]) -> str:
    return ", ".join(f"{'/'.join(path.parts[-3:])}:{place + 1}" for path, place in places)


def gpu_count() -> int:
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


INTACT = "intact"  # the name of the build with every rule in place


class Workshop:
    """A copy of the tree, its build, and for each mutation the package laid out for Python to find first."""

    def __init__(self, folder: Path, cuda: bool, cmake_options: list[str]) -> None:
        self.tree, self.build, self.sites = folder / "tree", folder / "build", folder / "sites"
        self.cmake_options = [f"-DINTEROP_CUDA={'ON' if cuda else 'OFF'}", *cmake_options]
        if cuda and not any("ARCHITECTURES" in option for option in cmake_options):
            self.cmake_options.append("-DCMAKE_CUDA_ARCHITECTURES=native")

    def copy_tree(self) -> None:
        """Copy what has changed, so that only that is compiled again."""
        wanted = set()
        for name in COPIED:
            source = ROOT / name
            for file in [source] if source.is_file() else source.rglob("*"):
                if not file.is_file() or "__pycache__" in file.parts:
                    continue
                target = self.tree / file.relative_to(ROOT)
                wanted.add(target)
                if not target.exists() or not filecmp.cmp(file, target, shallow=False):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, target)
        for file in [file for file in self.tree.rglob("*") if file.is_file() and file not in wanted]:
            file.unlink()

    def configure(self) -> None:
        command = ["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
        _run([*command, *self.cmake_options])

    def make(self, name: str) -> None:
        """Build the tree as it is now, and lay the package out under this name."""
        _run(["cmake", "--build", self.build, "--target", "_core"])
        package = self.sites / name / "interop"
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(self.tree / "interop", package)
        shutil.copy(self.build / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}", package)

    @contextlib.contextmanager
    def without_rule(self, mutation: Mutation) -> Iterator[None]:
        """Make the change, then put the files back."""
        sources = read_sources(self.tree)
        changed = mutate(mutation, sources)
        try:
            for path, text in changed.items():
                path.write_bytes(text.encode())
            yield
        finally:
            for path in changed:
                path.write_bytes(sources[path].encode())

    def test(self, name: str, test: str) -> tuple[int, str]:
        """Run a test on this build; pytest's exit status (1: some failed), or the signal, and the last lines."""
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", test]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.sites / name), *_python_path()])}
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return 1, f"no end within {TIMEOUT} s"
        return done.returncode, "\n".join(done.stdout.splitlines()[-15:])


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


def _run(command: list, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


NOT_RUN = "not run: "


def prove(workshop: Workshop, mutation: Mutation) -> str:
    """Return "" if every named test passes with the rule and fails without it, else what went wrong."""
    for test in mutation.tests:
        status, tail = workshop.test(INTACT, test)
        if status == 0 and not re.search(r"\b[1-9]\d* passed", tail):
            return f"{NOT_RUN}{test} is skipped in this build; --cuda builds with CUDA"
        if status != 0:
            return f"ERROR: {test} fails although the rule is in place (pytest exited with {status})\n{tail}"
        status, tail = workshop.test(mutation.name, test)
        if status == 0:
            return f"SURVIVED: {test} passes without the rule"
        if status > 1:  # interrupted, misused, nothing collected: that proves nothing
            return f"ERROR: pytest exited with {status}\n{tail}"
    return ""


def main() -> int:
    try:
        return _main()
    except MutationError as error:
        raise SystemExit(f"{error}") from None


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutations, and do nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutation only; may be given again")
    parser.add_argument("--host", action="store_true", help="only what needs no GPU, on a build without CUDA")
    parser.add_argument("--cuda", action="store_true", help="build with CUDA on a machine without a GPU, too")
    parser.add_argument("--folder", type=Path, help="where to copy and build (default: one in the temporary folder)")
    parser.add_argument(
        "--cmake", action="append", default=[], metavar="OPTION", help="passed to cmake, as -DNAME=VALUE"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutations whose tests run at a time (1)")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--build-only", action="store_true", help="build for every mutation, whatever this machine has")
    half.add_argument("--test-only", action="store_true", help="test what --folder holds already")
    options = parser.parse_args()

    mutations = [read(path) for path in sorted(HERE.glob("*.mutation"))]
    unknown = set(options.only or []) - {mutation.name for mutation in mutations}
    if unknown:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    if options.only:
        mutations = [mutation for mutation in mutations if mutation.name in options.only]
    if options.host:
        mutations = [mutation for mutation in mutations if mutation.gpus == 0]
    if options.list:
        for mutation in mutations:
            print(f"{mutation.name:34}{('host', 'GPU', '2 GPUs')[mutation.gpus]:8}{mutation.rule}")
        return 0

    sources = read_sources(ROOT)
    for mutation in mutations:  # before the first build, which takes minutes
        mutate(mutation, sources)

    gpus = max(mutation.gpus for mutation in mutations) if options.build_only else gpu_count()
    possible = [mutation for mutation in mutations if mutation.gpus <= gpus]
    cuda = options.cuda or any(mutation.gpus for mutation in possible)
    default = Path(tempfile.gettempdir(), f"interop-mutations-{os.getuid()}-{'cuda' if cuda else 'host'}")
    workshop = Workshop((options.folder or default).resolve(), cuda, options.cmake)
    if not options.test_only:
        print(f"building in {workshop.build.parent}", flush=True)
        workshop.copy_tree()
        workshop.configure()
        workshop.make(INTACT)
        for mutation in possible:
            with workshop.without_rule(mutation):
                workshop.make(mutation.name)
    if options.build_only:
        return 0

    noticed = skipped = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        problems = [pool.submit(prove, workshop, mutation) for mutation in possible]
        for mutation, problem in zip(possible, problems, strict=True):
            noticed += not problem.result()
            skipped += problem.result().startswith(NOT_RUN)
            print(f"{mutation.name:40} {problem.result() or 'noticed'}", flush=True)
    for mutation in mutations:
        if mutation not in possible:
            print(f"{mutation.name:40} {NOT_RUN}needs {mutation.gpus} GPU", flush=True)
    run = len(possible) - skipped
    print(f"{noticed} of {run} noticed, {len(mutations) - run} not run")
    return 0 if noticed == run else 1


if __name__ == "__main__":
    sys.exit(main())
