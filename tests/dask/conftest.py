"""What the tests of Dask arrays share."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import machine


@pytest.fixture(scope="session")
def da():
    return machine.need("dask")


class Blocks:
    """Makes arrays of blocks, on the host or on a GPU, and compares results with NumPy's."""

    def __init__(self, da, library):
        self.da, self.library = da, library

    def make(self, x, chunks):
        return self.da.from_array(self.library.asarray(x), chunks=chunks, asarray=False)

    def unknown(self, x, chunks):
        """The same, of which no size of the first axis is known: every row is chosen by a mask."""
        lazy = self.make(x, chunks)
        return lazy[self.make(np.ones(len(x), bool), lazy.chunks[:1])]

    def check(self, lazy, expected, rtol=0):
        assert type(lazy) is self.da.Array
        assert lazy.dtype == expected.dtype
        assert all(np.isnan(a) or a == b for a, b in zip(lazy.shape, expected.shape, strict=True))
        assert type(lazy._meta) is self.library.ndarray
        computed = lazy.compute(scheduler="sync")
        assert type(computed) is self.library.ndarray
        assert computed.dtype == expected.dtype
        assert computed.shape == expected.shape
        computed = computed if self.library is np else computed.get()
        np.testing.assert_allclose(computed, expected, rtol=rtol, atol=rtol)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def blocks(request, da):
    """The library of the blocks: NumPy, or CuPy."""
    if request.param == "cuda":
        request.getfixturevalue("cuda_device")
        return Blocks(da, machine.need("cupy"))
    return Blocks(da, np)
