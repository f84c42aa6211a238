"""What the tests of JAX's transforms share."""

from __future__ import annotations

import functools

import pytest
from helpers import jax_operators

import interop


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, jax):
    """Where new arrays lie: the same tests run on the host and on a GPU."""
    if request.param == "cuda":
        request.getfixturevalue("cuda_device")
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


@pytest.fixture(scope="session")
def operators_at(tmp_path_factory):
    """Return the operators of `jax_operators` at a place, made once."""
    return functools.cache(lambda place: jax_operators.make(place, tmp_path_factory.mktemp(f"operators_{place}")))


@pytest.fixture
def ops(operators_at, place, jax):
    """Operators over C functions on the host, and over kernels on a GPU, of float64."""
    operators = operators_at(place)
    with jax.enable_x64(True):
        yield operators


@pytest.fixture
def call(jax):
    return interop.jax.call


@pytest.fixture
def like(jax):
    """Return the description of an array of that shape and dtype."""
    return lambda shape, dtype="float32": jax.ShapeDtypeStruct(shape, dtype)
