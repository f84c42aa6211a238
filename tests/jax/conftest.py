"""What the tests of JAX's transforms share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, jax):
    """Where new arrays lie: the same tests run on the host and on a GPU."""
    if request.param == "cuda":
        request.getfixturevalue("cuda_device")
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param
