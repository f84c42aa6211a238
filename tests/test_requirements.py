"""What `--require` names must be here and work, whichever tests are chosen to run beside this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import libraries, machine

TESTS = Path(__file__).parent


def test_gpu_is_here(cuda_device):
    assert machine.gpu_names()[cuda_device]


@pytest.mark.parametrize("library", libraries.HOST + libraries.DEVICE, ids=repr)
def test_library_is_here_and_works(library):
    library.load()
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    made = library.make(x)
    assert library.is_ours(made)
    assert library.dtype(made) == "float64"
    assert np.array_equal(library.to_numpy(made), x)


# ---- the option itself, on tests written for it ----

PROBE = """
import sys

import pytest
from helpers import machine

sys.modules["jax"] = None  # a library that is not there


def test_fixture(jax):
    pass


def test_importorskip():
    pytest.importorskip("jax")


def test_other_reason():
    pytest.skip("for want of time")
"""

MODULE_PROBE = """
import sys

import pytest

sys.modules["jax"] = None
pytest.importorskip("jax")


def test_never_collected():
    pass
"""


@pytest.fixture
def run_probe(tmp_path):
    def run(source, *options):
        (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
        (tmp_path / "helpers").symlink_to(TESTS / "helpers")
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -q\n")
        (tmp_path / "test_probe.py").write_text(source)
        command = [sys.executable, "-P", "-m", "pytest", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


def test_require_turns_skips_into_failures(run_probe):
    done = run_probe(PROBE, "--require=jax")
    assert "1 failed, 1 skipped, 1 error" in done.stdout, done.stdout
    assert "--require makes this skip a failure" in done.stdout


def test_without_require_they_stay_skips(run_probe):
    done = run_probe(PROBE, "--require=cuda,torch")
    assert "3 skipped" in done.stdout, done.stdout
    assert "failed" not in done.stdout


def test_require_turns_a_skipped_module_into_a_failure(run_probe):
    done = run_probe(MODULE_PROBE, "--require=jax")
    assert done.returncode != 0
    assert "--require makes this skip a failure" in done.stdout


def test_require_refuses_unknown_names(run_probe):
    done = run_probe(PROBE, "--require=jax,mxnet")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unknown name mxnet; known: torch, jax" in done.stderr
