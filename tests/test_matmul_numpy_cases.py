"""What NumPy's own tests require of `numpy.matmul`, required of `interop.matmul` for every library, on host and GPU.

The behaviours are those of TestMatmul and its relatives in numpy/_core/tests/test_multiarray.py. What of them is no
business of `interop.matmul` stands in docs/matmul.md.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import forms, products

import interop

DTYPES = [dtype for dtype in forms.DTYPES if dtype != "bfloat16"]  # NumPy's own

# Operands and their product, in numbers that every dtype holds. Of bool it is whether that is not 0.
VECTOR, OTHER = [2, 3], [4, 1]
MATRIX, SECOND = [[1, 2], [0, 1]], [[3, 0], [1, 2]]
STACK, SWAPPED = [MATRIX, SECOND], [SECOND, MATRIX]
VALUES = {
    "vector @ vector": (VECTOR, OTHER, 11),
    "one element": ([5], [3], 15),
    "vector of one @ row": ([2], [[3, 4]], [6, 8]),
    "column @ vector of one": ([[3], [4]], [2], [6, 8]),
    "vector @ column": (VECTOR, [[4], [1]], [11]),
    "column @ row": ([[4], [1]], [VECTOR], [[8, 12], [2, 3]]),
    "row @ column": ([VECTOR], [[4], [1]], [[11]]),
    "vector @ matrix": (VECTOR, MATRIX, [2, 7]),
    "matrix @ vector": (MATRIX, VECTOR, [8, 3]),
    "vector @ stack": (VECTOR, STACK, [[2, 7], [9, 6]]),
    "stack @ vector": (STACK, VECTOR, [[8, 3], [6, 8]]),
    "matrix @ matrix": (MATRIX, SECOND, [[5, 4], [1, 2]]),
    "matrices the other way round": (SECOND, MATRIX, [[3, 6], [1, 4]]),
    "stack @ matrix": (STACK, MATRIX, [[[1, 4], [0, 1]], [[3, 6], [1, 4]]]),
    "matrix @ stack": (MATRIX, STACK, [[[1, 4], [0, 1]], [[5, 4], [1, 2]]]),
    "stack @ stack": (STACK, SWAPPED, [[[5, 4], [1, 2]], [[3, 6], [1, 4]]]),
    "stack of one @ stack": ([MATRIX], SWAPPED, [[[5, 4], [1, 2]], [[1, 4], [0, 1]]]),
    "zeros and ones": ([[1, 0], [1, 1]], [[0, 0], [0, 1]], [[0, 0], [0, 1]]),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(any_library, dtype):
    for name, (x, y, product) in VALUES.items():
        with products.naming(name):
            c = interop.matmul(any_library.make(np.array(x, dtype)), any_library.make(np.array(y, dtype)))
            assert any_library.is_ours(c)  # an array, also where NumPy gives a scalar
            assert any_library.dtype(c) == dtype
            assert tuple(c.shape) == np.shape(product)
            values = any_library.to_numpy(c)
            assert np.array_equal(values, np.array(product, dtype))
            if dtype == "bool":
                assert values.view(np.uint8).max(initial=0) <= 1  # no other byte is a truth value


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_to_add_up_is_zero(any_library, dtype):
    for shapes in (((2, 0), (0, 3)), ((2, 0), (0,)), ((0,), (0, 3)), ((0,), (0,)), ((4, 2, 0), (0,))):
        with products.naming(str(shapes)):
            any_library.poison()
            c = interop.matmul(*(any_library.make(np.zeros(shape, dtype)) for shape in shapes))
            expected = np.matmul(*(np.zeros(shape) for shape in shapes))
            assert tuple(c.shape) == expected.shape
            assert not any_library.to_numpy(c).any()


# ---- what is refused ----

MISFITS = (
    ((1,), (2,)),
    ((2, 1), (2,)),
    ((2,), (1, 2)),
    ((1, 2), (3, 1)),
    ((2, 2, 1), (3, 1, 2)),
    ((1,), ()),
    ((), (1,)),
    ((1, 1), ()),
    ((), (1, 1)),
    ((), ()),
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_that_do_not_fit_are_refused(any_library, dtype):
    for shapes in MISFITS:
        with products.naming(str(shapes)):
            a, b = (any_library.make(np.ones(shape, dtype)) for shape in shapes)
            with pytest.raises(ValueError, match=r"^interop.matmul: (a|b) (has shape|is 0-d)"):
                interop.matmul(a, b)


NO_OPERANDS = {
    "objects": np.ones((2, 2), object),
    "no objects": np.ones((2, 0), object),
    "structures": np.zeros((2, 2), [("x", "f4"), ("y", "f4")]),
    "a scalar of NumPy": np.int8(5),
    "a void scalar": np.void(b"abc"),
}


@pytest.mark.parametrize("what", NO_OPERANDS)
def test_what_is_no_array_of_numbers_is_refused(any_library, what):
    x = any_library.make(np.ones((2, 2), "float32"))
    with pytest.raises(TypeError, match=r"^interop.matmul: a is .*; accepted: "):
        interop.matmul(NO_OPERANDS[what], x)
    with pytest.raises(TypeError, match=r"^interop.matmul: b is .*; accepted: "):
        interop.matmul(x, NO_OPERANDS[what])


def test_out_does_not_broadcast(any_library):
    """Of nothing, either: an `out` of one element is not one for a result of none."""
    if not any_library.writable:
        return
    nothing, out = any_library.make(np.ones((0, 1, 1))), any_library.make(np.full((1, 1, 1), 7.0))
    assert tuple(interop.matmul(nothing, nothing).shape) == (0, 1, 1)
    with pytest.raises(ValueError, match=r"out has shape \(1, 1, 1\); accepted: the result's shape, \(0, 1, 1\)"):
        interop.matmul(nothing, nothing, out=out)
    assert any_library.to_numpy(out) == 7


def test_out_is_of_the_results_dtype(any_library):
    """A wider one, too, is refused: NumPy would convert the product; `dtype=` says it."""
    if not any_library.writable:
        return
    x = any_library.make(np.ones((2, 2)))
    for dtype in ("float32", "int32", "complex128"):
        with pytest.raises(TypeError, match=f"out is {dtype}; accepted: the result's dtype, float64"):
            interop.matmul(x, x, out=any_library.make(np.zeros((2, 2), dtype)))
    out = any_library.make(np.zeros((2, 2), "complex128"))
    assert interop.matmul(x, x, out=out, dtype="complex128") is out
    assert (any_library.to_numpy(out) == 2).all()


# ---- layouts ----


def counted(layout, shape, dtype, first=0):
    """A base and a view of it in this layout, with the integers from `first` on as its elements."""
    base, view = products.LAYOUTS[layout](shape, "float32", 0)
    kind = np.dtype(dtype)
    wide = np.zeros(base.shape, kind)
    start = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // base.itemsize
    strides = [step // base.itemsize * kind.itemsize for step in view.strides]
    view = np.lib.stride_tricks.as_strided(wide.reshape(-1)[start:], shape, strides)
    view[...] = np.arange(first, first + view.size).reshape(shape) % 11
    return wide, view


ORDERS = ("compact", "transposed", "sliced", "padded", "reversed")


def orders(library):
    return [order for order in ORDERS if library.negative or order not in products.NEGATIVE]


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_a_matrix_beside_its_own_transpose(any_library, dtype):
    """Both on the same memory, which NumPy computes by another function of BLAS: the result is symmetric, and right."""
    for order in orders(any_library):
        with products.naming(order):
            base, view = counted(order, (5, 3), dtype)
            made = any_library.make(base)
            a, a_t = any_library.view_of(made, base, view), any_library.view_of(made, base, view.T)
            for left, right, x in ((a, a_t, view), (a_t, a, view.T)):
                assert np.array_equal(any_library.to_numpy(interop.matmul(left, right)), np.dot(x, x.T))


@pytest.mark.parametrize("dtype", ["float64", "int32"])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_vectors_beside_matrices_of_any_order(any_library, dtype, step):
    if step < 0 and not any_library.negative:
        return
    base_v = np.arange(12).astype(dtype)
    made_v = any_library.make(base_v)
    for order in orders(any_library):
        with products.naming(order):
            base, view = counted(order, (5, 3), dtype)
            made = any_library.make(base)
            for matrix in (view, view.T):
                x, y = base_v[::step][: matrix.shape[0]], base_v[::step][: matrix.shape[1]]
                a = any_library.view_of(made, base, matrix)
                left, right = (any_library.view_of(made_v, base_v, v) for v in (x, y))
                assert np.array_equal(any_library.to_numpy(interop.matmul(left, a)), np.dot(x, matrix))
                assert np.array_equal(any_library.to_numpy(interop.matmul(a, right)), np.dot(matrix, y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_order_of_both_operands_and_out(any_library, dtype):
    """Rows or columns first, each with and without gaps, of three matrices: 64 products."""
    if not any_library.views:
        return

    def placed(shape, order, gaps):
        base = np.zeros([n * (2 if gaps else 1) for n in (shape if order == "C" else shape[::-1])], dtype)
        view = base[::2, ::2] if gaps else base
        return base, view if order == "C" else view.T

    layouts = list(itertools.product("CF", (False, True)))
    x, y = (np.arange(m * n).reshape(m, n) % 5 for m, n in ((5, 3), (3, 7)))
    expected = np.dot(x, y).astype(dtype)
    for layout_a, layout_b, layout_out in itertools.product(layouts, repeat=3):
        with products.naming(f"{layout_a} @ {layout_b} -> {layout_out}"):
            arrays = []
            for values, layout in ((x, layout_a), (y, layout_b), (np.zeros((5, 7)), layout_out)):
                base, view = placed(values.shape, *layout)
                view[...] = values
                arrays.append(any_library.view(base, view))
            a, b, out = arrays
            assert interop.matmul(a, b, out=out) is out
            assert np.array_equal(any_library.to_numpy(out), expected)


PARTS = {  # of an array of shape (6, 4, 2): the part, and operands whose product has its shape
    "every second column": (lambda x: x[:, :, 0], ((6, 3), (3, 4))),
    "every second row": (lambda x: x[::2, :, 1], ((3, 5), (5, 4))),
    "transposed": (lambda x: x[0].T, ((2, 3), (3, 4))),
    "matrix @ vector": (lambda x: x[:, 0, 0], ((6, 3), (3,))),
    "vector @ matrix": (lambda x: x[:, 1, 1], ((3,), (3, 6))),
    "stack @ vector": (lambda x: x[:, :, 1], ((6, 4, 3), (3,))),
    "vector @ vector": (lambda x: x[2, 1, 1:].reshape(()), ((3,), (3,))),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "complex128"])
def test_out_is_a_part_of_an_array(any_library, part, dtype):
    if not any_library.views:
        return
    part_of, shapes = PARTS[part]
    base = np.ones((6, 4, 2), dtype)
    made = any_library.make(base)
    out = any_library.view_of(made, base, part_of(base))
    x, y = (np.arange(np.prod(shape)).reshape(shape).astype(dtype) for shape in shapes)
    assert interop.matmul(any_library.make(x), any_library.make(y), out=out) is out
    part_of(base)[...] = np.matmul(x, y)
    assert np.array_equal(any_library.to_numpy(made), base)  # and nothing else was written


@pytest.mark.parametrize(
    "shapes", [((10**5, 10), (10, 10)), ((10**4, 10, 10), (1, 10, 10)), ((10, 10**5), (10**5, 10))], ids=str
)
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_long_matrices_and_large_stacks(any_library, shapes, dtype):
    x, y = ((np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype) for shape in shapes)
    c = interop.matmul(any_library.make(x), any_library.make(y))
    assert np.array_equal(any_library.to_numpy(c), np.matmul(x, y))
