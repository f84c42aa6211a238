"""The command of long runs, run shortly, and that it notices what it is there for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import dlpack, libraries

import interop

SOAK = Path(__file__).with_name("soak.py")


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def run(*arguments):
    return subprocess.run([sys.executable, SOAK, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_calls_of_every_library_here():
    done = run("calls", "--count", "1500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "numpy-cpu" in done.stdout
    for line in done.stdout.splitlines():
        assert line.endswith(": ok") or "skipped: " in line or line.startswith("no GPU")


def test_threads_over_every_library_here():
    done = run("threads", "--seconds", "1", "--threads", "4", "--streams", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong, 0 threads hung" in done.stdout


def test_streams_over_every_function_here():
    done = run("streams", "--count", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("add", "matmul", "expression", "view"):
        assert re.search(rf"^numpy-cpu +{name} ", done.stdout, re.MULTILINE)
    for line in done.stdout.splitlines():
        assert line.endswith(": ok") or "skipped: " in line or line.startswith("no GPU")


# ---- it notices ----


def kept(function):
    """What `function` returns stays for good: a leak of one array for each call."""
    results = []

    def leaking(*arguments, **options):
        results.append(function(*arguments, **options))
        return results[-1]

    return leaking


def test_calls_notice_a_leak(soak, monkeypatch, capsys):
    monkeypatch.setattr(interop, "matmul", kept(interop.matmul))
    assert soak.main(["calls", "--library", "numpy-cpu", "--count", "2000"]) == 1
    assert capsys.readouterr().out.count("blocks more") == 2  # in both variants


def test_calls_notice_memory_that_python_does_not_count(soak, monkeypatch, capsys):
    big = kept(lambda: np.ones(1 << 10))
    matmul = interop.matmul
    monkeypatch.setattr(interop, "matmul", lambda a, b: (matmul(a, b), big())[0])
    assert soak.main(["calls", "--library", "numpy-cpu", "--count", "2000", "--variant", "dropped"]) == 1
    assert "the process has grown by " in capsys.readouterr().out


@pytest.mark.parametrize("variant", ["dropped", "deleted"])
def test_calls_notice_a_wrong_value(soak, monkeypatch, capsys, variant):
    monkeypatch.setattr(interop, "matmul", lambda a, b: a + b)
    assert soak.main(["calls", "--library", "numpy-cpu", "--count", "500", "--variant", variant]) == 1
    assert "instead of" in capsys.readouterr().out


def test_calls_notice_an_export_that_is_kept(soak, monkeypatch, capsys):
    capsules = []
    before = dlpack.exports_out()
    matmul = interop.matmul

    def keeping(a, b):
        if len(capsules) < 3:
            capsules.append(a.__dlpack__())
        return matmul(a, b)

    monkeypatch.setattr(interop, "matmul", keeping)
    assert soak.main(["calls", "--library", "dlpack-cpu", "--count", "300", "--variant", "dropped"]) == 1
    assert "3 exports were not given back" in capsys.readouterr().out
    capsules.clear()
    assert dlpack.exports_out() == before


@pytest.mark.parametrize("fault", ["value", "exception"])
def test_threads_notice(soak, monkeypatch, capsys, fault):
    def wrong(a, b):
        if fault == "exception":
            raise ZeroDivisionError("made up")
        return a @ b + 1

    monkeypatch.setattr(interop, "matmul", wrong)
    places = {0: [soak.Place(libraries.by_name("numpy"), 0, 1)]}
    assert soak.soak_threads(places, 0.2, 2) == 1
    out = capsys.readouterr().out
    assert "made up" in out if fault == "exception" else " is wrong in " in out


STREAMS_OF_ADD = ["streams", "--library", "numpy-cpu", "--function", "add", "--count", "100"]


def test_streams_notice_a_wrong_value(soak, monkeypatch, capsys):
    monkeypatch.setattr(interop, "add", lambda a, b: a - b)
    assert soak.main(STREAMS_OF_ADD) == 1
    assert "after 0 results values from " in capsys.readouterr().out


def test_streams_notice_a_single_wrong_element(soak, monkeypatch, capsys):
    def add(a, b):
        c = a + b
        c[0, 3] += 1
        return c

    monkeypatch.setattr(interop, "add", add)
    assert soak.main(STREAMS_OF_ADD) == 1
    assert " instead of " in capsys.readouterr().out


def test_streams_notice_memory_that_is_given_out_again(soak, monkeypatch, capsys):
    memory = np.empty(1 << 20, "f4")
    monkeypatch.setattr(interop, "add", lambda a, b: np.add(a, b, out=memory[: a.size].reshape(a.shape)))
    assert soak.main(STREAMS_OF_ADD) == 1
    assert " instead of " in capsys.readouterr().out


def test_streams_notice_an_exception(soak, monkeypatch, capsys):
    monkeypatch.setattr(interop, "add", lambda a, b: 1 / 0)
    assert soak.main(STREAMS_OF_ADD) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_streams_of_no_function(soak, capsys):
    assert soak.main(["streams", "--library", "numpy-cpu", "--function", "none"]) == 1
    assert "no such function" in capsys.readouterr().out


@pytest.mark.gpu
def test_streams_notice_a_result_that_is_not_recorded(soak, monkeypatch, capsys):
    """Without `record_stream` a block is given out again while the side stream still reads it."""
    torch = libraries.by_name("torch", "cuda").module
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    assert soak.main(["streams", "--library", "torch-cuda", "--function", "add", "--count", "2000"]) == 1
    assert " instead of " in capsys.readouterr().out
