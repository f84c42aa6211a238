"""The shape and layout rules of the elementwise operations alone, on shapes too large for any memory."""

from __future__ import annotations

import itertools
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop


def plan(out, *inputs):
    """(dims, first elements, class, tiled dimension) for NumPy arrays of bytes."""
    return interop._core.elementwise_layout(
        out.shape, out.strides, [x.shape for x in inputs], [x.strides for x in inputs]
    )


def array(shape, strides=None):
    """An array of bytes that is never touched."""
    if strides is None:
        return np.broadcast_to(np.int8(0), shape) if math.prod(shape) > 1 << 20 else np.empty(shape, np.int8)
    return np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides)


def compact(shape):
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return array(shape, strides)


def visited(dims, first):
    """The offsets of every operand, element by element, as a loop over the plan visits them."""
    sizes = [dim[0] for dim in dims]
    count = len(first)
    return sorted(
        tuple(first[k] + sum(i * dim[k + 1] for i, dim in zip(index, dims, strict=True)) for k in range(count))
        for index in itertools.product(*map(range, sizes))
    )


def offsets(*arrays):
    """The same, by NumPy's own broadcasting."""
    arrays = np.broadcast_arrays(*arrays)
    shape = arrays[0].shape
    return sorted(
        tuple(sum(i * step for i, step in zip(index, x.strides, strict=True)) for x in arrays)
        for index in itertools.product(*map(range, shape))
    )


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=5, min_side=0, max_side=4), st.data())
def test_every_element_is_visited_once(shapes, data):
    def operand(shape):
        steps = [data.draw(st.integers(-40, 40)) for _ in shape]
        return array(shape, steps)

    a, b = map(operand, shapes.input_shapes)
    order = data.draw(st.permutations(range(len(shapes.result_shape))))
    sizes = [shapes.result_shape[i] for i in order]
    strides = np.empty(len(order), int)
    step = 1
    for place, size in zip(reversed(order), reversed(sizes), strict=True):
        strides[place] = step * data.draw(st.sampled_from([1, -1]))
        step *= max(size, 1) * data.draw(st.sampled_from([1, 1, 2]))
    out = array(shapes.result_shape, tuple(strides))
    dims, first, name, _ = plan(out, a, b)
    assert visited(dims, first) == offsets(out, a, b)
    assert (name == "empty") == (math.prod(shapes.result_shape) == 0)
    steps = [dim[1] for dim in dims]
    assert all(dim[0] != 1 for dim in dims)
    if name != "empty":
        assert all(step > 0 for step in steps)
        assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7,), (2, 3), (1, 5, 1, 4), (2, 3, 4, 5)])
def test_compact_arrays_have_one_dimension_at_most(shape):
    x = compact(shape)
    dims, _, name, _ = plan(x, x, x)
    count = math.prod(shape)
    assert dims == ([(count, 1, 1, 1)] if count > 1 else [])
    assert name == "contiguous"


def test_dimensions_merge_where_every_operand_agrees():
    out = compact((4, 5, 6))
    assert plan(out, out, compact((6,)))[0] == [(20, 6, 6, 0), (6, 1, 1, 1)]
    assert plan(out, out, compact((5, 6)))[0] == [(4, 30, 30, 0), (30, 1, 1, 1)]
    assert plan(compact((16, 256, 56, 56)), compact((16, 256, 56, 56)), compact((256, 1, 1)))[0] == [
        (16, 802816, 802816, 0),
        (256, 3136, 3136, 1),
        (3136, 1, 1, 0),
    ]
    assert plan(out.T, out.T, out.T)[0] == [(120, 1, 1, 1)]
    assert plan(out[::-1], out[::-1], out[::-1])[0] == [(120, 1, 1, 1)]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("contiguous", lambda x: (x, x, x)),
        ("contiguous", lambda x: (x, x, compact(()))),
        ("contiguous", lambda x: (x.T, x.T, x.T)),
        ("rows", lambda x: (x, x, x[:1])),
        ("rows", lambda x: (x, x, x[:, :1])),
        ("rows", lambda x: (x[:, 1:], x[:, 1:], x[:, :-1])),
        ("transposed", lambda x: (x, x, x.T)),
        ("transposed", lambda x: (x.T, x, x)),
        ("transposed", lambda x: (x, x[::-1].T, x)),
        ("strided", lambda x: (x[:, ::2], x[:, ::2], x[:, ::2])),
        ("strided", lambda x: (x[:, :32], x[:, ::2], x[:, :32])),
        ("strided", lambda x: (x[:4, :4], x[:4, :4], x[:4, :4].T)),  # too small to be worth a tile
    ],
)
def test_classes(name, make):
    assert plan(*make(compact((64, 64))))[2] == name


def test_the_tiled_dimension_is_the_transposed_inputs():
    out = compact((9, 64, 10, 128))
    x = compact((9, 128, 10, 64)).transpose(0, 3, 2, 1)
    dims, _, name, cross = plan(out, out, x)
    assert name == "transposed"
    assert dims[cross] == (64, 1280, 1280, 1)


def test_large_shapes_do_not_wrap():
    big = compact((2**31 + 1, 2**31))
    assert plan(big, big, big)[0] == [((2**31 + 1) * 2**31, 1, 1, 1)]


# ---- broadcasting ----

shapes = st.lists(st.integers(0, 4), max_size=5).map(tuple)


def broadcast(a, b):
    return interop._core.abstract_operands("interop.add", [("a", a, None), ("b", b, None)])


@given(shapes, shapes)
def test_any_two_shapes_are_answered_as_by_numpy(a, b):
    try:
        answer = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ValueError, match=r"^interop.add: a has shape .* and b has shape .* do not broadcast"):
            broadcast(a, b)
    else:
        assert broadcast(a, b) == answer
