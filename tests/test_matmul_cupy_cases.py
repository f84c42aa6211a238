"""CuPy's own cases of `cupy.matmul`, with NumPy as the oracle: its shapes in all pairs of its dtypes, and the rest.

The cases are those of tests/cupy_tests/math_tests/test_matmul.py in CuPy; for CuPy, and for the two libraries that run
on the host. What of them is no business of `interop.matmul` stands in docs/matmul.md.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers import forms, libraries, products

import interop

DTYPES = [dtype for dtype in forms.DTYPES if dtype != "bfloat16"]
PAIRS = list(itertools.product(DTYPES, repeat=2))
SHAPES = (
    ((3, 2), (2, 4)),
    ((3, 0), (0, 4)),
    ((0, 2), (2, 4)),
    ((3, 2), (2, 0)),
    ((2,), (2, 4)),
    ((0,), (0, 4)),
    ((3, 2), (2,)),
    ((3, 0), (0,)),
    ((2,), (2,)),
    ((0,), (0,)),
    ((5, 3, 2), (5, 2, 4)),
    ((0, 3, 2), (0, 2, 4)),
    ((5, 3, 2), (2, 4)),
    ((0, 3, 2), (2, 4)),
    ((3, 2), (5, 2, 4)),
    ((3, 2), (0, 2, 4)),
    ((5, 3, 2), (1, 2, 4)),
    ((0, 3, 2), (1, 2, 4)),
    ((1, 3, 2), (5, 2, 4)),
    ((1, 3, 2), (0, 2, 4)),
    ((5, 3, 2), (2,)),
    ((5, 3, 0), (0,)),
    ((2,), (5, 2, 4)),
    ((0,), (5, 0, 4)),
    ((2, 2, 3, 2), (2, 2, 2, 4)),
    ((5, 0, 3, 2), (5, 0, 2, 4)),
    ((6, 5, 3, 2), (2, 4)),
    ((5, 0, 3, 2), (2, 4)),
    ((3, 2), (6, 5, 2, 4)),
    ((3, 2), (5, 0, 2, 4)),
    ((1, 5, 3, 2), (6, 1, 2, 4)),
    ((1, 0, 3, 2), (6, 1, 2, 4)),
    ((6, 1, 3, 2), (1, 5, 2, 4)),
    ((6, 1, 3, 2), (1, 0, 2, 4)),
    ((6, 5, 3, 2), (2,)),
    ((6, 5, 3, 0), (0,)),
    ((2,), (6, 5, 2, 4)),
    ((0,), (6, 5, 0, 4)),
    ((1, 3, 3), (10, 1, 3, 1)),
    ((6, 5, 3, 2), (6, 5, 2, 4)),
    ((6, 5, 3, 2), (6, 1, 2, 4)),
    ((6, 5, 3, 2), (1, 5, 2, 4)),
    ((6, 5, 3, 2), (1, 1, 2, 4)),
    ((6, 1, 3, 2), (6, 5, 2, 4)),
    ((1, 5, 3, 2), (6, 5, 2, 4)),
    ((1, 1, 3, 2), (6, 5, 2, 4)),
)
LIBRARIES = [library for library in libraries.HOST if library.name in ("numpy", "torch")]
LIBRARIES += [
    pytest.param(library, marks=pytest.mark.gpu) for library in libraries.DEVICE if library.name in ("cupy", "torch")
]


@pytest.fixture(params=LIBRARIES, ids=repr)
def library(request):
    request.param.load()
    return request.param


def promoted(library, first, second):
    """The dtype that the library itself computes two dtypes in; None where it has none."""
    if library.name != "torch":
        return np.promote_types(first, second).name
    torch = library.module
    try:
        return str(torch.promote_types(getattr(torch, first), getattr(torch, second))).removeprefix("torch.")
    except RuntimeError:
        return None


def counted(shape, dtype):
    """1, 2, 3, ... as CuPy's tests have it: an integer that is too large for its dtype wraps."""
    x = np.arange(1, math.prod(shape) + 1).reshape(shape)
    return (x + 1j * x if dtype in forms.COMPLEX else x).astype(dtype)


def oracle(x, y, dtype):
    """NumPy's product in this dtype; of float16 in float32, rounded once."""
    work = "float32" if dtype == "float16" else dtype
    with np.errstate(all="ignore"):  # float16 overflows, and is infinite
        return np.asarray(np.matmul(x.astype(work), y.astype(work))).astype(dtype)


@pytest.mark.parametrize("shapes", SHAPES, ids=products.shape_id)
def test_all_pairs_of_dtypes(library, shapes):
    """Of integers of up to 8 bits, so that each dtype has the exact product, wrapped or rounded once."""
    operands = {dtype: [counted(shape, dtype) for shape in shapes] for dtype in DTYPES}
    arrays = {dtype: [library.make(x) for x in pair] for dtype, pair in operands.items()}
    for first, second in PAIRS:
        with products.naming(f"{first} @ {second}"):
            a, b = arrays[first][0], arrays[second][1]
            dtype = promoted(library, first, second)
            if dtype is None:
                with pytest.raises(TypeError, match=f"torch has no common dtype of {first} and {second}"):
                    interop.matmul(a, b)
                continue
            with np.errstate(over="ignore"):  # of float16, which is NumPy's own to warn of
                c = interop.matmul(a, b)
            assert library.is_ours(c)
            assert library.dtype(c) == dtype
            expected = oracle(operands[first][0], operands[second][1], dtype)
            assert tuple(c.shape) == expected.shape
            assert np.array_equal(library.to_numpy(c), expected)


@pytest.mark.parametrize("shapes", [SHAPES[0], SHAPES[10], SHAPES[11]], ids=products.shape_id)
def test_strided_out_beside_all_pairs_of_dtypes(library, shapes):
    shape = np.matmul(*(np.zeros(x) for x in shapes)).shape
    for first, second in PAIRS:
        with products.naming(f"{first} @ {second}"):
            x, y = counted(shapes[0], first), counted(shapes[1], second)
            base = np.ones((2 * shape[0], *shape[1:]), first)
            part = base[shape[0] :][::-1] if library.negative else base[::2]
            made = library.make(base)
            out = library.view_of(made, base, part)
            if promoted(library, first, second) == first:
                assert interop.matmul(library.make(x), library.make(y), out=out) is out
                part[...] = oracle(x, y, first)
            else:
                with pytest.raises(TypeError, match=r"^interop.matmul: (out is|torch has no common dtype)"):
                    interop.matmul(library.make(x), library.make(y), out=out)
            assert np.array_equal(library.to_numpy(made), base)


@pytest.mark.parametrize("shape", [(90, 90), (2, 60, 60)], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_out_that_is_both_operands_is_refused(library, shape, dtype):
    """CuPy computes it in a temporary; here that would be a hidden copy."""
    a = library.make(np.ones(shape, dtype))
    with pytest.raises(ValueError, match="out shares memory with a"):
        interop.matmul(a, a, out=a)
    assert (library.to_numpy(a) == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_new_dimension_of_size_one(library, dtype):
    """Its step is 0 in NumPy, and does not count."""
    base, y = counted((2, 2, 3), dtype), counted((2, 1, 3, 1), dtype)
    x = base[:, None]
    c = interop.matmul(library.view(base, x), library.make(y))
    assert np.array_equal(library.to_numpy(c), oracle(x, y, dtype))


@pytest.mark.parametrize(
    "shapes",
    [((256, 256, 3, 2), (256, 256, 2, 4)), ((256, 256, 3, 2), (2, 4)), ((3, 2), (256, 256, 2, 4))],
    ids=products.shape_id,
)
@pytest.mark.parametrize("dtype", ["bool", *forms.INTEGERS])
def test_large_batches_of_integers(library, shapes, dtype):
    x, y = forms.draw(shapes[0], dtype, 1), forms.draw(shapes[1], dtype, 2)
    c = interop.matmul(library.make(x), library.make(y))
    assert np.array_equal(library.to_numpy(c), np.matmul(x, y))


@pytest.mark.parametrize("dtype", forms.INTEGERS)
def test_integers_that_wrap(library, dtype):
    value = np.iinfo(dtype).max - 10
    a = library.make(np.array([value], dtype))
    c = library.to_numpy(interop.matmul(a, a))
    assert int(c) % 2 ** (8 * c.itemsize) == value**2 % 2 ** (8 * c.itemsize)


FLOATING = [("float16", "float16"), ("float16", "float32"), ("float32", "float32"), ("float16", "complex64"),
            ("float32", "complex64"), ("complex64", "complex64"), ("float32", "float64"), ("float64", "float64"),
            ("float32", "complex128"), ("float64", "complex128"), ("complex64", "complex128"),
            ("complex128", "complex128")]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), FLOATING)
def test_pairs_of_floating_dtypes_are_computed_in_the_wider(library, first, second):
    """Within the bound of sums in that dtype (of float16, in float32), which the narrower one would not keep."""
    sides = (32, 64, 96) if first == second == "float16" else (100, 200, 300)
    dtype = np.promote_types(first, second).name
    for m, k, n in (sides, sides[1:] + sides[:1], sides[2:] + sides[:2]):
        with products.naming(f"{m} x {k} x {n}"):
            x, y = forms.draw((m, k), first, 1), forms.draw((k, n), second, 2)
            c = interop.matmul(library.make(x), library.make(y))
            forms.check(library.to_numpy(c), x.astype(dtype), y.astype(dtype), dtype)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 3, 1), (3, 1, 4)),
        ((3, 2, 3), (3, 2, 4)),
        ((3, 2), ()),
        ((), (3, 2)),
        ((), ()),
        ((3, 2), (1,)),
        ((0, 2), (3, 0)),
        ((0, 1, 1), (2, 1, 1)),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(library, shapes):
    x, y = (np.ones(shape, "float32") for shape in shapes)
    with pytest.raises(ValueError):
        np.matmul(x, y)
    with pytest.raises(ValueError, match=r"^interop.matmul: (a|b) (has shape|is 0-d)"):
        interop.matmul(library.make(x), library.make(y))
