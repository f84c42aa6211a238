"""The shape rules of `interop.matmul` alone, on shapes too large for any memory."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import products
from hypothesis import given
from hypothesis import strategies as st

import interop

matmul_result = interop._core.matmul_result
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
    with pytest.raises(TypeError, match="a is int32; accepted: float32, float64"):
        matmul_result((2, 3), "int32", (9, 9), "float32")
    with pytest.raises(TypeError, match="b is bfloat16; accepted: float32, float64"):
        matmul_result((2, 3), "float32", (9, 9), "bfloat16")
    with pytest.raises(TypeError, match="a is float32 and b is float64"):
        matmul_result((2, 3), "float32", (9, 9), "float64")
    with pytest.raises(TypeError, match="a is quaternion"):
        matmul_result((2, 3), "quaternion", (3, 9), "float64")
