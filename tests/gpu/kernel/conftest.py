"""What the tests of kernels need: compilers, and a kernel that adds."""

from __future__ import annotations

import pytest
from helpers import machine
from helpers.kernels import ADD

import interop
from interop import _program


@pytest.fixture(autouse=True)
def _compiler():
    machine.need("nvrtc")
    machine.need("cuda_core")


@pytest.fixture
def _cuda_headers():
    if not _program.cuda_headers():
        pytest.skip("CUDA's own headers are not installed")


@pytest.fixture
def add():
    return interop.kernel(ADD, "add", threads="a")
