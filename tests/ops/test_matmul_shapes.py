"""The shape rules of `interop.matmul` alone, on shapes too large for any memory."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import products
from hypothesis import given
from hypothesis import strategies as st

import interop


def reads(a, b, dtype):
    return interop._core.abstract_matmul(((2, 2), a), ((2, 2), b), dtype)["reads"]


def matmul_result(a, a_dtype, b, b_dtype, dtype=None):
    return interop._core.abstract_matmul((a, a_dtype), (b, b_dtype), dtype or a_dtype)["shape"]


sides = st.integers(0, 4)
shapes = st.lists(sides, max_size=5).map(tuple)


def numpys_answer(a, b):
    """The shape that NumPy gives for operands of these shapes, or None if it refuses; no memory is touched."""
    operands = [np.broadcast_to(np.float32(0), shape) for shape in (a, b)]
    try:
        return np.matmul(*operands).shape
    except ValueError:
        return None


@given(shapes, shapes)
def test_any_two_shapes_are_answered_as_by_numpy(a, b):
    expected = numpys_answer(a, b)
    if expected is None:
        with pytest.raises(ValueError, match="^interop.matmul: "):
            matmul_result(a, "float32", b, "float32")
    else:
        assert matmul_result(a, "float32", b, "float32") == expected


@given(hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=5, max_side=5))
def test_shapes_that_fit_are_answered_as_by_numpy(fitting):
    a, b = fitting.input_shapes
    assert matmul_result(a, "float64", b, "float64") == fitting.result_shape


@pytest.mark.parametrize(("a", "b"), products.SHAPES, ids=str)
def test_listed_shapes_are_answered_as_by_numpy(a, b):
    assert matmul_result(a, "float32", b, "float32") == numpys_answer(a, b)


def test_large_shapes_do_not_wrap():
    assert matmul_result((2**31 + 1, 2**33), "float32", (2**33, 3), "float32") == (2**31 + 1, 3)
    with pytest.raises(ValueError, match=f"the inner dimensions {2**32} and 0 differ"):
        matmul_result((1, 2**32), "float32", (0, 1), "float32")


def test_the_most_dimensions():
    ones = (1,) * 62
    assert matmul_result((*ones, 2, 3), "float32", (3, 4), "float32") == (*ones, 2, 4)
    with pytest.raises(ValueError, match="65 dimensions; accepted: up to 64"):
        matmul_result((*ones, 1, 2, 3), "float32", (3, 4), "float32")


def test_dtypes_are_checked_before_shapes():
    served = "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, "
    with pytest.raises(TypeError, match=f"a is float8_e4m3; accepted: {served}float8_e4m3fn, float8_e5m2"):
        matmul_result((2, 3), "float8_e4m3", (9, 9), "float32")
    with pytest.raises(TypeError, match=f"b is float8_e5m2fnuz; accepted: {served}"):
        matmul_result((2, 3), "float32", (9, 9), "float8_e5m2fnuz")
    with pytest.raises(TypeError, match="a is float8_e5m2 and b is float32; accepted: two float8 arrays, or none"):
        matmul_result((2, 3), "float8_e5m2", (9, 9), "float32")
    with pytest.raises(TypeError, match="dtype is float64; accepted for float8: None, bfloat16, float16, float32"):
        matmul_result((2, 3), "float8_e5m2", (9, 9), "float8_e4m3fn", "float64")
    with pytest.raises(TypeError, match="dtype is float8_e5m2; accepted: bool"):
        matmul_result((2, 3), "float32", (9, 9), "float32", "float8_e5m2")
    with pytest.raises(TypeError, match="a is quaternion"):
        matmul_result((2, 3), "quaternion", (3, 9), "float64")


# ---- what the kernels read as it is ----

NARROW = ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
WIDE = ("int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", WIDE + NARROW[:7])
def test_operands_of_the_product_s_dtype_are_read_as_they_are(dtype):
    assert reads(dtype, dtype, dtype)


@pytest.mark.parametrize(
    ("a", "b", "dtype", "read"),
    [
        ("int8", "int8", "int32", True),
        ("int8", "uint8", "int16", True),
        ("bool", "int8", "int8", True),
        ("int16", "uint16", "int32", True),
        ("int8", "int16", "int16", False),
        ("int8", "int8", "int64", False),
        ("int8", "int8", "bool", False),
        ("int8", "int8", "float32", False),
        ("float16", "bfloat16", "float32", True),
        ("bfloat16", "bfloat16", "float32", True),
        ("float16", "float16", "float64", False),
        ("float16", "int16", "float32", False),
        ("float8_e5m2", "float8_e4m3fn", "float16", True),
        ("float32", "float32", "float64", False),
        ("complex64", "float64", "complex128", False),
        ("int32", "uint32", "int32", False),
    ],
)
def test_what_the_kernels_read(a, b, dtype, read):
    assert reads(a, b, dtype) is read
