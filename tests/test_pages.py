"""Blocks of the pages, without running them: docs/conftest.py runs them."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def load_runner():
    spec = importlib.util.spec_from_file_location("runner_of_pages", ROOT / "docs" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FENCE = load_runner().FENCE


def blocks(page):
    """The line, the needs and the code of each."""
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        language, words, code = fence.groups()
        if language == "{include}":
            continue
        if language == "pycon":
            code = "".join(example.source for example in doctest.DocTestParser().get_examples(code))
        yield text.count("\n", 0, fence.start()) + 1, set(words.split()), code


def unknown_names(before, code):
    """The names that `code` reads, and neither it nor the code before it defines."""
    known = {*dir(builtins), "__name__"}
    for node in ast.walk(ast.parse(before + code)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            known.add(node.id)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    read = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return sorted({node.id for node in read} - known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_alone_has_its_names(page):
    """Those before it that need no more than it does are run, too: in another process they may be all there is."""
    all_blocks = list(blocks(page))
    for place, (line, needs, code) in enumerate(all_blocks):
        before = "".join(text for _, needed, text in all_blocks[:place] if needed <= needs)
        assert unknown_names(before, code) == [], f"{page.name}, line {line}"


def test_blocks_that_are_chosen_run_in_the_order_of_the_page(tmp_path):
    """Also where one that needs less was chosen before: its names are not kept for one that needs more."""
    pytest.importorskip("torch")
    fences = ("python", "x = 0"), ("python torch", "x = 1"), ("python", "x = 2"), ("python torch", "assert x == 2")
    (tmp_path / "page.md").write_text("".join(f"```{info}\n{code}\n```\n" for info, code in fences))
    (tmp_path / "conftest.py").write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('runner', {str(ROOT / 'docs' / 'conftest.py')!r})\n"
        "runner = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(runner)\n"
        "pytest_collect_file = runner.pytest_collect_file\n"
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--require', default='')\n"
    )
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    for chosen in (["line 8", "line 11"], ["line 11"], ["line 2", "line 5", "line 8", "line 11"]):
        nodes = [f"page.md::{line}" for line in chosen]
        done = subprocess.run([*command, *nodes], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert f"{len(chosen)} passed" in done.stdout


def test_an_unknown_name_is_found():
    assert unknown_names("import numpy as np\n", "np.ones(n)\n") == ["n"]
