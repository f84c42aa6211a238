"""The mutations fit the sources, and name tests that exist. (That those tests notice them: run.py.)"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MUTATIONS = sorted(HERE.glob("*.mutation"))
HEAD = "Takes out: A rule.\nThen fails: tests/test_rule.py::test_rule\nNeeds: nothing\n\n"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("run_mutations", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_mutations"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources(run):
    return run.read_sources(ROOT)


@pytest.mark.parametrize("path", MUTATIONS, ids=lambda path: path.stem)
def test_fits_the_sources_and_names_tests(run, sources, path):
    mutation = run.read(path)
    changed = run.mutate(mutation, sources)
    assert all(text != sources[file] for file, text in changed.items())
    assert re.match(r"\S.*\.$", mutation.rule)
    for test in mutation.tests:
        file, function = test.split("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), f"no {function} in {file}"


# ---- the format ----


@pytest.fixture
def mutate(run, tmp_path):
    """Change the given files by a mutation written as `hunks`; what they say then, by name."""

    def mutate(hunks, **files):
        (tmp_path / "src").mkdir()
        (tmp_path / "interop").mkdir()
        for name, text in files.items():
            (tmp_path / name.replace("__", "/")).write_text(text)
        path = tmp_path / "some.mutation"
        path.write_text(HEAD + hunks)
        changed = run.mutate(run.read(path), run.read_sources(tmp_path))
        return {file.name: text for file, text in changed.items()}

    return mutate


def test_lines_are_found_wherever_they_stand(mutate):
    hunks = "@@\n-wait(stream);\n\n@@\n-   if (busy) {\n+ if (false) {\n"
    files = {"src__a": "f() {\n    wait(stream);  \n}\n", "interop__b": "\tif (busy) {\n\t}\n"}
    assert mutate(hunks, **files) == {"a": "f() {\n}\n", "b": "\tif (false) {\n\t}\n"}


def test_what_is_put_in_is_indented_as_what_was_found(mutate):
    hunks = "@@\n-def f():\n-    check()\n+def f():\n+    if late:\n+        check()\n"
    changed = mutate(hunks, interop__a="class C:\n    def f():\n        check()\n        go()\n")
    assert changed == {"a": "class C:\n    def f():\n        if late:\n            check()\n        go()\n"}


def test_a_line_around_makes_the_place_unique_and_stays(mutate):
    hunks = "@@\n second:\n-go()\n+pass\n end\n"
    changed = mutate(hunks, src__a="first:\n  go()\n  end\nsecond:\n  go()\n end\n")
    assert changed == {"a": "first:\n  go()\n  end\nsecond:\n  pass\n end\n"}


def test_files_that_are_no_text_are_passed_over(run, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "library.so").write_bytes(b"\x7fELF\xff\xfe")
    (tmp_path / "src" / "a.cpp").write_text("go();\n")
    assert list(run.read_sources(tmp_path)) == [tmp_path / "src" / "a.cpp"]


@pytest.mark.parametrize(
    ("hunks", "message"),
    [
        ("@@\n-stop();\n", r"some: hunk 1 is not found in src or interop: 'stop\(\);'$"),
        ("@@\n-stay();\n\n@@\n-go();\n-stop();\n", r"hunk 2 is not found .*; its first line alone stands at .*src/a:1"),
        ("@@\n-go();\n", r"some: hunk 1 is found 3 times: .*src/a:1, .*src/a:3, .*src/b:1; add a line"),
        ("@@\n-g\n", r"hunk 1 is not found"),  # a part of a line
        ("@@\n+stop();\n", r"some.mutation: hunk 1: lines to be found"),
        ("@@\n-stay();\n*stop();\n", r"hunk 1: '\*stop\(\);' begins with none of"),
        ("", r"some.mutation: no line '@@'"),
    ],
)
def test_errors_say_what_does_not_fit(run, mutate, hunks, message):
    with pytest.raises(run.MutationError, match=message):
        mutate(hunks, src__a="go();\nstay();\n  go();\n", src__b="go();\n")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("Takes out: A rule.\nNeeds: nothing\n", "needs one line 'Takes out: '"),
        (HEAD + "Takes out: Another.\n", "needs one line 'Takes out: '"),
        (HEAD.replace("nothing", "a card"), "needs 'a card'; known: nothing, a GPU, two GPUs"),
        (HEAD + "Removes: A rule.\n", "'Removes: A rule.' is none of"),
    ],
)
def test_heads_are_checked(run, tmp_path, head, message):
    path = tmp_path / "some.mutation"
    path.write_text(head + "\n@@\n-go();\n")
    with pytest.raises(run.MutationError, match=message):
        run.read(path)


class Played:
    """A workshop whose tests end as it is told."""

    def __init__(self, run, intact, without):
        self._ends = {run.INTACT: intact, "rule": without}

    def test(self, name, test):
        return self._ends[name]


@pytest.mark.parametrize(
    ("intact", "without", "said"),
    [
        ((0, "2 passed, 1 skipped in 1.00s"), (1, "1 failed"), ""),
        ((0, "2 passed in 1.00s"), (0, "2 passed in 1.00s"), "SURVIVED: "),
        ((0, "3 skipped in 1.00s"), (0, "3 skipped in 1.00s"), "not run: "),
        ((1, "1 failed, 3 passed in 1.00s"), (1, "1 failed"), "ERROR: "),
    ],
)
def test_a_test_that_is_skipped_proves_nothing(run, intact, without, said):
    mutation = run.Mutation("rule", "A rule.", ("tests/test_rule.py::test_rule",), 0, ())
    problem = run.prove(Played(run, intact, without), mutation)
    assert problem.startswith(said)
    assert (problem == "") == (said == "")
