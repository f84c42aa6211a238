"""Inputs that broke other libraries (`B..`: the ids of the project's list), each with the right value.

The entries are threads of other projects; the comment over a test says what went wrong there. Those of B01 to B89 that
were found with an elementwise operation are put as a matrix product here, on the same kind of memory. Where each is:

    B01 to B89                            in this folder, but for those below
    B46, B48, B54                         in host memory: tests/test_cases.py, where B50 and B53 are, too
    B82 host time of a call               `interop bench overhead`: no timing decides a test
    B91 to B140                           in host memory: tests/test_cases.py, tests/test_cases_of_*.py
    B91, B92, B98, B100, B105, B112, B116 on the device: in this folder, too
    B142 to B157                          in this folder
"""

from __future__ import annotations

import pytest
from helpers import machine
from helpers.kernels import TWICE

import interop


@pytest.fixture
def cp(cupy):
    return cupy


@pytest.fixture
def jnp(jax):
    return jax.numpy


@pytest.fixture
def compiler(nvrtc):
    """What compiles kernels and expressions at run time."""
    return machine.need("cuda_core")


@pytest.fixture
def twice(compiler):
    """A user's kernel: c = 2 * a."""
    return interop.kernel(TWICE, "twice", threads="a").returning(c="a")
