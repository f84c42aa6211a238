"""Runs the code blocks of README.md and of these pages: all of them with `pytest`, one page with `pytest docs/page.md`.

* A ```python block is executed, a ```pycon block is a doctest. The blocks of a page run in order and share their names;
  one that is chosen alone runs those before it, too, if it needs all that they need. So does one of a run in several
  processes, of which each has some of the blocks.
* Words after the language are what a block needs, as in ```python cuda cupy. Where that is absent the block is skipped,
  or fails under `--require` (an option of tests/conftest.py, so it takes a run that includes tests/).
* A page that includes a file (README.md in index.md) runs the file's blocks too. Other languages are not run.
* The blocks run in a folder of their own, which has the files of the folder beside the page that has the page's name.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load_machine() -> ModuleType:
    path = Path(__file__).parents[1] / "tests" / "helpers" / "machine.py"
    spec = importlib.util.spec_from_file_location("docs_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


machine = _load_machine()
collect_ignore = [
    "template",  # tests of its own, which tests/build/test_template.py runs
    "coming-from",  # files that its page uses
]

FENCE = re.compile(r"^```(?P<info>python|pycon|\{include\})(?P<words>.*)\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)
PYTHON_FENCE = re.compile(r"^[ \t>]*(?:```+|~~~+)[ \t]*\{?py", re.MULTILINE)  # in whatever form Markdown allows


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Page.from_parent(parent, path=file_path) if file_path.suffix == ".md" else None


def _need(names: list[str]) -> None:
    """Skip where one of these is absent, or torch sees no GPU."""
    for name in names:
        if name == "cuda":
            machine.need_gpu()
        elif name == "cccl":
            machine.need_libcu()
        elif name == "sm90":
            machine.need_capability(90)
        else:
            module = machine.need(name)
            if name == "torch" and "cuda" in names and not module.cuda.is_available():
                machine.skip("torch+cuda", "this torch sees no GPU")


class Page(pytest.File):
    """A Markdown file; its items are its blocks."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.blocks: list[Block] = []
        text = self.path.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            if fence["info"] == "{include}":
                yield Page.from_parent(self, path=(self.path.parent / fence["words"].strip()).resolve())
                continue
            line = text.count("\n", 0, fence.start("code"))  # before the code
            block = Block.from_parent(self, name=f"line {line + 1}")
            block.code, block.line, block.is_session = fence["code"], line, fence["info"] == "pycon"
            block.needs = fence["words"].split()
            if "cuda" in block.needs:
                block.add_marker("gpu")
            self.blocks.append(block)
            yield block
        if len(self.blocks) != len(PYTHON_FENCE.findall(text)):
            raise self.CollectError(f"{self.path}: a Python block is no plain, unindented ```python or ```pycon fence")

    def setup(self) -> None:
        self.folder = tempfile.mkdtemp()  # where the blocks run, and leave what they write
        if (files := self.path.with_suffix("")).is_dir():
            shutil.copytree(files, self.folder, dirs_exist_ok=True)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


class Block(pytest.Item):
    """One block of code."""

    parent: Page
    code: str
    line: int
    is_session: bool
    needs: list[str]
    was_run = False

    def setup(self) -> None:
        try:
            _need(self.needs)
        except pytest.skip.Exception as skip:
            names = re.match(r"needs ([\w+]+):", str(skip))
            required = self.config.getoption("--require", "").split(",")
            if names and set(names[1].split("+")) <= set(required):
                pytest.fail(f"{skip}\n--require makes this skip a failure", pytrace=False)
            raise

    def runtest(self) -> None:
        blocks = self.parent.blocks[: self.parent.blocks.index(self) + 1]
        needed = [block for block in blocks if set(block.needs) <= set(self.needs)]
        missing = [block for block in needed if not block.was_run]
        if missing and any(block.was_run for block in needed[needed.index(missing[0]) :]):
            # One that needs less was chosen before, alone: the names are not those that the blocks left in order.
            self.parent.names.clear()
            self.parent.names["__name__"] = "__main__"
            missing = needed
        for block in missing:
            block.run()

    def run(self) -> None:
        self.was_run = True
        with contextlib.chdir(self.parent.folder):
            self._run()

    def _run(self) -> None:
        names = self.parent.names
        if not self.is_session:
            exec(compile("\n" * self.line + self.code, self.path, "exec", dont_inherit=True), names)
            return
        session = doctest.DocTestParser().get_doctest(self.code, {}, self.name, str(self.path), self.line)
        session.globs = names
        try:
            doctest.DebugRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(session, clear_globs=False)
        except doctest.UnexpectedException as error:
            raise error.exc_info[1] from None

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, doctest.DocTestFailure):
            difference = doctest.OutputChecker().output_difference(error.example, error.got, doctest.REPORT_NDIFF)
            return f"{self.path}:{self.line + error.example.lineno + 1}: {error.example.source}{difference}"
        excinfo.traceback = excinfo.traceback.cut(path=self.path)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, f"{self.path.name}, {self.name}"
