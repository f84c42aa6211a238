"""What the runner of array-api-tests promises, without the suite: the namespaces call interop, the pin is checked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def namespaces():
    spec = importlib.util.spec_from_file_location("namespaces", HERE / "namespaces.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_namespaces_call_interop(namespaces, monkeypatch):
    for name in namespaces.FUNCTIONS:
        monkeypatch.setattr(namespaces.interop, name, lambda *operands, **options: (operands, options))
    xp = namespaces.namespace("numpy")
    x = np.ones(2)
    for name in namespaces.FUNCTIONS:
        assert getattr(xp, name)(x, out=x) == ((x,), {"out": x})
        assert namespaces.calls[name] == 1
    assert xp.linalg.matmul is xp.matmul
    assert xp.sin is np.sin


def test_own_functions_are_the_library_s(namespaces):
    xp = namespaces.namespace("numpy", own=True)
    assert all(getattr(xp, name).__wrapped__ is getattr(np, name) for name in namespaces.FUNCTIONS)


def test_another_checkout_is_refused(tmp_path):
    command = [sys.executable, str(HERE / "run.py"), "--library", "numpy", "--checkout", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{tmp_path} is no checkout of array-api-tests at" in done.stderr
    assert f"git clone https://github.com/data-apis/array-api-tests {tmp_path}" in done.stderr
