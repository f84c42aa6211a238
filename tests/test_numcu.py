"""What docs/cuvec.md says of cuvec and numcu, by the packages themselves, where they are installed and work."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from helpers import alone, machine

import interop

CODES = "bBhHiIqQefd"
OPERATIONS = {  # NumCu's function and options, and interop's
    "add": ("add", {}, interop.add, {}),
    "mul": ("mul", {}, interop.multiply, {}),
    "div": ("div", {}, interop.divide, {}),
    "safe div": ("div", {"default": -1}, interop.divide, {"where_zero": -1}),
}
X = np.array([[1, -2, 0, 0.1], [np.inf, np.nan, 3e38, -0.0]], "float32")
Y = np.array([[0, 0, 0, 3], [np.inf, 2, 1e-38, 5]], "float32")


@pytest.fixture(params=["cuvec", "cuvec.pybind11", "cuvec.swig"])
def cuvec(request):
    """One of the package's three modules, each with a class CuVec of its own."""
    machine.need_cuvec()
    return importlib.import_module(request.param)


@pytest.fixture
def numcu(cuvec):
    return machine.need("numcu")


def vectors(cuvec, *arrays):
    made = [cuvec.zeros(array.shape, array.dtype) for array in arrays]
    for vector, array in zip(made, arrays, strict=True):
        vector[...] = array
    return made


def managed(*arrays):
    return [interop.copy(array, memory="managed") for array in arrays]


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_numcus(name, cuvec, numcu):
    """On a machine with no GPU NumCu built without CUDA computes on the host, and so does interop."""
    of_numcu, options, of_interop, more = OPERATIONS[name]
    expected = getattr(numcu, of_numcu)(*vectors(cuvec, X, Y), **options)
    x, y = managed(X, Y)
    z = interop.empty_like(x)
    assert of_interop(x, y, out=z, **more) is z
    np.testing.assert_array_equal(np.asarray(z), np.asarray(expected))
    assert of_interop(x, y, out=x, **more) is x  # in place
    np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


def test_large_results_are_numcus(cuvec, numcu):
    rng = np.random.default_rng(0)
    a, b = (rng.random((1000, 1001), np.float32) - 0.5 for _ in range(2))
    x, y = managed(a, b)
    z = interop.empty_like(x)
    for of_numcu, options, of_interop, more in OPERATIONS.values():
        output = cuvec.zeros(a.shape)
        getattr(numcu, of_numcu)(*vectors(cuvec, a, b), output=output, **options)
        of_interop(x, y, out=z, **more)
        np.testing.assert_array_equal(np.asarray(z), np.asarray(output))


def test_type_codes(cuvec):
    for code in CODES:
        if code == "e" and "e" not in cuvec.typecodes:
            continue
        vector = cuvec.zeros(3, code)
        assert interop.zeros(3, code, memory="managed").dtype == vector.dtype.name
        vector[:] = [1, 2, 3]
        assert interop.copy(np.asarray(vector), memory="managed").tolist() == [1, 2, 3]
    assert set(cuvec.typecodes) <= {*CODES, "c"}


def test_a_cuvec_that_nothing_was_said_of_is_numpys(cuvec, tmp_path):
    """In a process of its own, as the recipe of docs/libraries.md registers the class for good."""
    said = alone.run(
        f"""
        import {cuvec.__name__} as cuvec
        v = cuvec.zeros((2, 3))
        v[...] = [[1, 2, 3], [4, 5, 6]]
        x = interop.asarray(v)
        assert np.asarray(x).ctypes.data == v.ctypes.data
        assert (x.device, x.tolist()) == ("cpu", v.tolist())
        interop.copyto(v, x + 1)
        assert v.tolist() == [[2, 3, 4], [5, 6, 7]]
        copied = interop.copy(v, memory="managed")
        v[...] = 0
        print(copied.tolist())
        """,
        tmp_path,
    )
    assert said == "[[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]\n"


def test_resize_is_cuvecs_with_more(cuvec):
    """CuVec's own resize is of the same size alone."""
    (v,) = vectors(cuvec, X)
    (x,) = managed(X)
    v.resize((4, 2))
    x.resize((4, 2))
    np.testing.assert_array_equal(np.asarray(x), np.asarray(v))


class OnGpu:
    """Shows the CUDA array interface of a vector, and keeps it."""

    def __init__(self, vector):
        self.vector = vector
        self.__cuda_array_interface__ = vector.__cuda_array_interface__


@pytest.mark.gpu
def test_a_cuvec_is_managed_memory_to_the_gpu(cuvec, cuda_device):
    (v,) = vectors(cuvec, X)
    x = interop.asarray(OnGpu(v))
    assert (x.device, x.memory) == ("cuda:0", "managed")
    assert np.asarray(x).ctypes.data == v.ctypes.data
    x += 1
    x.synchronize()
    np.testing.assert_array_equal(np.asarray(v), X + 1)
    interop.copyto(x, Y)
    x.synchronize()
    np.testing.assert_array_equal(np.asarray(v), Y)
