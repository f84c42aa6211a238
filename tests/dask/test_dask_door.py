"""Which calls are Dask's, and that nothing is read, imported or computed for them before it must be."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import machine

import interop

X = np.arange(24, dtype="float64").reshape(4, 6)

CALLS = {
    "add": lambda a, b: interop.add(a, b),
    "matmul": lambda a, b: interop.matmul(a, b.T),
    "expression": lambda a, b: interop.elementwise("a * b + 1")(a, b),
    "epilogue": lambda a, b: interop.matmul(a, b.T, c=np.ones((4, 4)), epilogue="relu"),
    "operator": interop.operator("tests_dask::sum", lambda a, b: interop.add(a, b), "a[..., n], b[..., n] -> [..., n]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_computed_before_compute(name, da):
    """Each block counts that it is made."""
    made = []

    def block(x):
        made.append(x.shape)
        return x

    a = da.from_array(X, chunks=(2, 6)).map_blocks(block, dtype="float64", meta=np.empty((0, 0)))
    b = da.from_array(2 * X, chunks=(2, 6)).map_blocks(block, dtype="float64", meta=np.empty((0, 0)))
    lazy = CALLS[name](a, b)
    assert type(lazy) is da.Array
    assert made == []
    assert np.array_equal(lazy.compute(scheduler="sync"), CALLS[name](X, 2 * X))
    assert made == [(2, 6)] * 4


class Read:
    """An array that counts how often it is exported."""

    def __init__(self):
        self.count = 0

    def __dlpack__(self, **options):
        self.count += 1
        return X.__dlpack__(**options)

    def __dlpack_device__(self):
        self.count += 1
        return X.__dlpack_device__()


@pytest.mark.parametrize("name", ["add", "matmul", "out", "execution"])
def test_no_array_is_read_before_it_is_known_whose_call_it_is(name, da):
    lazy, other = da.from_array(X, chunks=2), Read()
    calls = {
        "add": lambda: interop.add(other, lazy),
        "matmul": lambda: interop.matmul(other, lazy.T),
        "out": lambda: interop.add(other, X, out=lazy),
        "execution": lambda: interop.add(other, lazy, execution="cuda"),
    }
    with pytest.raises(TypeError, match="an array of Dask's|call is Dask's"):
        calls[name]()
    assert other.count == 0


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries_are_refused_by_name(library, da):
    module = machine.need(library)
    other = module.ones((4, 6)) if library == "torch" else module.numpy.ones((4, 6))
    lazy = da.from_array(X, chunks=2)
    for a, b in ((lazy, other), (other, lazy)):
        kind = "b" if b is other else "a"
        accepted = "beside an array of Dask's; accepted: arrays of Dask, NumPy and CuPy$"
        with pytest.raises(TypeError, match=rf"^interop.add: {kind} is {library}.*, {accepted}"):
            interop.add(a, b)
        with pytest.raises(TypeError, match=rf"^interop.matmul: {kind} is {library}.*, {accepted}"):
            interop.matmul(a, b)
        with pytest.raises(TypeError, match=rf": {kind} is {library}.*, {accepted}"):
            interop.elementwise("a + b")(a, b)


def test_errors_have_no_other_error_above_them(da):
    with pytest.raises(ValueError, match="broadcast") as raised:
        interop.add(da.from_array(X, chunks=2), np.ones(5))
    assert raised.value.__context__ is None


def test_kernels_and_conversions_name_the_way(da):
    lazy = da.from_array(X, chunks=2)
    kernel = interop.kernel('extern "C" __global__ void twice(const double* x, double* y) {}', "twice", threads="y")
    for call in (
        lambda: kernel(lazy, X),
        lambda: interop.asarray(lazy),
        lambda: interop.convert(lazy, "numpy"),
        lambda: interop.explain(interop.add, lazy, lazy),
    ):
        with pytest.raises(TypeError, match=r"pass \w+.compute\(\), or call an interop.operator made of the kernel"):
            call()


def run(code, **environment):
    where = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_dask_is_never_loaded_by_itself():
    code = """
import sys, numpy, interop
x = numpy.ones((2, 2))
interop.matmul(x, interop.add(x, 1))
for call in (lambda: interop.add([1], x), lambda: interop.elementwise("a + b")(x, "2")):
    try:
        call()
    except TypeError:
        pass
print({"dask", "distributed", "interop.dask"} & sys.modules.keys())
"""
    assert run(code) == "set()"


def test_what_is_only_called_so_is_not_dasks(da):
    impostor = type("Array", (), {"__module__": "dask.array.core"})()
    with pytest.raises(TypeError, match="^interop.add: a is dask.array.core.Array; accepted: arrays with DLPack"):
        interop.add(impostor, X)


def test_query_planning_is_refused_by_name(da):
    code = """
import numpy, interop, dask.array as da
x = da.from_array(numpy.ones((4, 4)), chunks=2)
for call in (lambda: interop.add(x, 1), lambda: interop.matmul(x, x), interop.elementwise("x * 2")):
    try:
        call(x) if isinstance(call, interop.Expression) else call()
    except TypeError as error:
        print("is an array of Dask's query planning; accepted: dask.array without it" in str(error))
"""
    assert run(code, DASK_ARRAY__QUERY_PLANNING="true") == "True\nTrue\nTrue"
