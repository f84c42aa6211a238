"""Elementwise functions and expressions of Dask arrays: lazy, of the dtypes and values that NumPy's arrays have."""

from __future__ import annotations

import numpy as np
import pytest

import interop
from interop._operations.table import FUNCTIONS, OPERATIONS

X = np.arange(1, 31, dtype="float32").reshape(5, 6)
Y = np.arange(6, 0, -1, dtype="float32")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, blocks):
    function = getattr(interop, name)
    if OPERATIONS[name].arity == 1:
        blocks.check(function(blocks.make(X, (2, 4))), function(X))
        return
    blocks.check(function(blocks.make(X, (2, 4)), blocks.make(Y, 5)), function(X, Y), rtol=1e-6)


@pytest.mark.parametrize("scalar", [2, 2.5, True, np.float32(2), np.float64(2), np.int64(3), np.array(2.0)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_scalars_promote_as_beside_numpy_arrays(scalar, dtype, blocks):
    x = X.astype(dtype)
    blocks.check(interop.multiply(blocks.make(x, 3), scalar), interop.multiply(x, scalar))
    blocks.check(interop.multiply(scalar, blocks.make(x, 3)), interop.multiply(scalar, x))


def test_arrays_of_no_dimension_promote_as_arrays(blocks):
    zero = np.array(2.0)
    blocks.check(interop.add(blocks.make(X, 3), blocks.make(zero, ())), interop.add(X, zero))
    blocks.check(interop.negative(blocks.make(zero, ())), interop.negative(zero))


@pytest.mark.parametrize(
    "shapes", [((4, 1), (1, 5)), ((3, 4, 5), (5,)), ((3, 1, 5), (4, 1)), ((0, 4), (4,)), ((2, 0), (1, 1))]
)
def test_broadcasting(shapes, blocks):
    a, b = (np.arange(np.prod(shape), dtype="float64").reshape(shape) for shape in shapes)
    blocks.check(interop.add(blocks.make(a, 2), blocks.make(b, 3)), a + b)


def test_unequal_chunks(blocks):
    a, b = blocks.make(X, ((2, 3), (1, 5))), blocks.make(X, ((4, 1), (3, 3)))
    blocks.check(interop.subtract(a, b), X - X)
    assert interop.subtract(a, b).chunks == ((2, 2, 1), (1, 2, 3))


def test_unknown_chunks(blocks):
    a = blocks.unknown(X, (2, 6))
    blocks.check(interop.add(a, a), X + X)
    blocks.check(interop.add(a, Y if blocks.library is np else blocks.make(Y, 6)), X + Y)
    with pytest.raises(ValueError, match=r"interop.add: sizes of blocks along axis -2 .* \(a has 3, b has 2\)"):
        interop.add(a, blocks.make(X, (4, 6)))


def test_arrays_of_numpy_join(da):
    lazy = interop.add(X, da.from_array(Y, chunks=4))
    assert np.array_equal(lazy.compute(), X + Y)
    lazy = interop.add(da.from_array(X, chunks=4), Y)
    assert np.array_equal(lazy.compute(), X + Y)


def test_where_zero(blocks):
    divisor = np.array([0, 2, 0, 4], "float32")
    expected = np.array([9, 1, 9, 0.5], "float32")
    blocks.check(
        interop.divide(blocks.make(np.full(4, 2, "float32"), 3), blocks.make(divisor, 2), where_zero=9), expected
    )


def test_expressions(blocks):
    f = interop.elementwise("where(x > 10, x * y + a, where_zero)")
    expected = f(X, Y, a=0.5, where_zero=2)
    blocks.check(f(blocks.make(X, (2, 4)), y=blocks.make(Y, 5), a=0.5, where_zero=2), expected)
    blocks.check(f(blocks.make(X, (2, 4)), Y[0], 0.5, blocks.make(Y, 6)), f(X, Y[0], 0.5, Y))


def test_calls_of_one_content_have_one_name(da):
    x = da.from_array(X, chunks=2)
    assert interop.add(x, 2).name == interop.add(x, 2).name
    assert (
        len({interop.add(x, 2).name, interop.add(x, 2.0).name, interop.add(2, x).name, interop.multiply(x, 2).name})
        == 4
    )
    f, g = interop.elementwise("a * 2"), interop.elementwise("a * 3")
    assert f(x).name == interop.elementwise("a * 2")(x).name != g(x).name


@pytest.mark.parametrize("option", ["stream", "execution", "out"])
def test_options_are_refused_by_name(option, da):
    x = da.from_array(X, chunks=2)
    value = {"stream": 2, "execution": "cuda", "out": x}[option]
    for function in (interop.add, interop.elementwise("x + y")):
        with pytest.raises(TypeError, match=rf"^interop.*: {option} is .*, and the call is Dask's, which is lazy"):
            function(x, 1, **{option: value})
    with pytest.raises(TypeError, match=r"^interop.add: out is an array of Dask's"):
        interop.add(X, X, out=x)


def test_what_does_not_fit_is_refused_at_once(da):
    x = da.from_array(X, chunks=2)
    with pytest.raises(ValueError, match=r"interop.add: .*\(5, 6\).*\(4,\).*broadcast"):
        interop.add(x, np.ones(4, "float32"))
    with pytest.raises(TypeError, match="interop.add: a is object"):
        interop.add(x.astype(object), 1)
    with pytest.raises(OverflowError, match="interop.add: b is 1000, which int8 cannot hold"):
        interop.add(x.astype("int8"), 1000)
    with pytest.raises(TypeError, match="where_zero is an array of Dask.*; accepted: None, or a scalar"):
        interop.divide(x, x, where_zero=x)
    with pytest.raises(TypeError, match=r"interop.add: got an unexpected keyword argument 'ouf'; did you mean 'out'\?"):
        interop.add(x, x, ouf=x)
    with pytest.raises(TypeError, match="interop.add: missing 1 required positional argument: 'b'"):
        interop.add(x)
    with pytest.raises(TypeError, match="missing"):
        interop.elementwise("a + b")(x)
    with pytest.raises(TypeError, match=r"interop.add: a is numpy\.ma.*MaskedArray"):
        interop.add(da.from_array(np.ma.masked_array(X, mask=False), chunks=2), 1)


class Mine(np.ndarray):
    """An array of a library whose blocks Dask replaces with NumPy's where they are empty, as it does CuPy's."""


def test_empty_blocks_are_of_their_own_library(da):
    a = da.from_array(np.zeros((0, 4)).view(Mine), chunks=(1, 2), asarray=False)
    b = da.from_array(np.zeros(4), chunks=1)
    from interop.dask._arrays import unified  # which imports Dask

    alone = da.core.unify_chunks(a, "ij", b, "j")[1][0]
    assert type(alone.blocks[0, 0].compute(scheduler="sync")) is np.ndarray  # what Dask does by itself
    mine, index, other, _ = unified([(a, "ij"), (b, "j")])
    assert index == "ij"
    assert mine.chunks[1] == other.chunks[0] == (1, 1, 1, 1)
    assert type(mine._meta) is Mine
    assert type(mine.blocks[0, 0].compute(scheduler="sync")) is Mine
    assert type(other._meta) is np.ndarray
