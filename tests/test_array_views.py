"""Views of an `interop.Array`: the same memory, in other shapes."""

from __future__ import annotations

import contextlib
import gc
import operator
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import interop

BASE = np.arange(120.0).reshape(2, 3, 4, 5)
LAYOUTS = {
    "compact": BASE,
    "transposed": BASE.T,
    "strided": BASE[:, ::2, 1:, ::-1],
    "broadcast": np.broadcast_to(BASE[:1], (3, 3, 4, 5)),
    "0-d": BASE[1, 1, 1, 1, ...],
    "empty": BASE[:, :0],
}


def check(view, expected):
    """They are the same memory."""
    assert type(view) is interop.Array
    got = np.asarray(view)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)
    if expected.size:
        assert got.ctypes.data == expected.ctypes.data
        for step, other, size in zip(got.strides, expected.strides, expected.shape, strict=True):
            assert size == 1 or step == other


# ---- indexing ----

KEYS = [
    0, -1, (1, 2), (..., 0), (0, ...), ..., (), None, (None, ..., None), slice(None), slice(1, None),
    slice(None, None, -1), slice(5, 1, -2), slice(3, 1), (slice(None), 1), (slice(None), slice(None, None, 2), ..., -1),
    (1, None, 2, None), np.int64(1), (slice(None), np.int8(-1)),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(layout, key):
    x = LAYOUTS[layout]
    array = interop.asarray(x)
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(IndexError, match=r"^interop\.Array: "):
            array[key]
        return
    if np.isscalar(expected):
        assert array[key].item() == expected
    else:
        check(array[key], expected)


@given(st.data())
def test_any_basic_index_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    expected = x[key]
    got = np.asarray(interop.asarray(x)[key])
    assert got.shape == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (2, IndexError, "index 2 is out of bounds for axis 0, whose size is 2"),
        ((0, -4), IndexError, "index -4 is out of bounds for axis 1, whose size is 3"),
        ((0,) * 5, IndexError, r"there are 5 indices for 4 dimension\(s\)"),
        ((..., ...), IndexError, "an index has more than one Ellipsis"),
        ([0, 1], TypeError, "an index is list; accepted: ints, slices, Ellipsis and None"),
        (1.0, TypeError, "an index is float"),
        (True, TypeError, "an index is bool"),
        ("x", TypeError, "an index is str"),
        (np.array([True, False]), TypeError, r"an index is numpy\.ndarray"),
        ((None,) * 61, IndexError, "a view has at most 64 dimensions"),
    ],
    ids=str,
)
def test_other_keys_are_refused(key, error, words):
    array = interop.asarray(BASE)
    with pytest.raises(error, match=rf"^interop\.Array: {words}"):
        array[key]
    with pytest.raises(error, match=rf"^interop\.Array: {words}"):
        array[key] = 1


def test_slices_with_steps_that_are_no_ints():
    with pytest.raises(ValueError, match="zero"):
        interop.asarray(BASE)[::0]
    with pytest.raises(TypeError):
        interop.asarray(BASE)["a":]


# ---- writing ----


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_writing_through_a_view(key):
    try:
        BASE[key]
    except IndexError:
        return
    x = BASE.copy()
    expected = BASE.copy()
    expected[key] = -1
    interop.asarray(x)[key] = -1
    np.testing.assert_array_equal(x, expected)
    source = np.arange(BASE[key].size, dtype="float32").reshape(BASE[key].shape)
    expected[key] = source
    interop.asarray(x)[key] = interop.asarray(source)
    np.testing.assert_array_equal(x, expected)


def test_writing_broadcasts_and_converts():
    x = interop.zeros((2, 3), "float32", memory="host")
    x[1] = np.array([1, 2, 3])
    x[:, 0] = 9
    assert x.tolist() == [[9, 0, 0], [9, 2, 3]]
    x[:] = x[::-1]  # they overlap
    assert x.tolist() == [[9, 2, 3], [9, 0, 0]]
    with pytest.raises(ValueError, match=r"__setitem__: value has shape \(2,\), which does not broadcast"):
        x[0] = np.ones(2)
    frozen = interop.asarray(memoryview(b"abc"))
    with pytest.raises(TypeError, match="read-only"):
        frozen[0] = 1


# ---- shapes ----

SHAPES = [
    (120,), (-1,), (6, 20), (2, 3, 20), (2, -1, 5), (4, 30), (2, 3, 2, 2, 5), (1, 120, 1), (3, 40), (0, 5), (1,), (),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reshape_is_numpys_where_no_copy_is_needed(layout, shape):
    x = LAYOUTS[layout]
    array = interop.asarray(x)
    try:
        expected = x.reshape(shape)
    except ValueError:
        with pytest.raises(ValueError, match=r"^interop\.Array\.reshape: shape is .*accepted: "):
            array.reshape(shape)
        return
    if x.size and not np.shares_memory(expected, x):
        with pytest.raises(ValueError, match=r"accepted: interop\.copy\(x\)\.reshape\(shape\)$"):
            array.reshape(shape)
        np.testing.assert_array_equal(np.asarray(interop.copy(array).reshape(shape)), expected)
        return
    for view in (array.reshape(shape), array.reshape(*shape), array.reshape(list(shape))):
        check(view, expected)


@given(st.data())
def test_any_reshape_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4))
    x = np.arange(2 ** len(shape) * np.prod(shape, dtype=int)).reshape([2 * size for size in shape])
    x = x[data.draw(hnp.basic_indices(x.shape, allow_ellipsis=False))]
    x = np.transpose(x, data.draw(st.permutations(range(np.ndim(x)))))
    factors = [f for f in range(1, x.size + 1) if x.size % f == 0]
    if not factors:
        return
    first = data.draw(st.sampled_from(factors))
    target = (first, x.size // first)
    expected = x.reshape(target)
    array = interop.asarray(x) if isinstance(x, np.ndarray) and x.ndim else interop.asarray(np.asarray(x))
    if np.shares_memory(expected, x) or x.ndim == 0:
        np.testing.assert_array_equal(np.asarray(array.reshape(target)), expected)
    else:
        with pytest.raises(ValueError, match="accepted: interop.copy"):
            array.reshape(target)


@pytest.mark.parametrize("shape", [(-1, -1), (-2, 60), (7, -1), (2**40, 2**40), "ab", (1.5,), None, 10**30])
def test_shapes_that_are_none(shape):
    with pytest.raises((ValueError, TypeError), match=r"^interop\.Array\.reshape: shape is .*; accepted: "):
        interop.asarray(BASE).reshape(shape)


def test_transposes():
    x = interop.asarray(BASE)
    check(x.T, BASE.T)
    check(x.mT, BASE.swapaxes(-1, -2))
    check(x.transpose(), BASE.T)
    check(x.transpose(None), BASE.T)
    check(x.transpose(1, 0, -1, 2), BASE.transpose(1, 0, -1, 2))
    check(x.transpose((3, 2, 1, 0)), BASE.T)
    for axes in ((0, 1), (0, 1, 2, 2), (0, 1, 2, 4), (0, 1, 2, -5)):
        with pytest.raises(ValueError, match=r"^interop\.Array\.transpose: axes is .*each of the 4 dimension"):
            x.transpose(axes)
    with pytest.raises(ValueError, match=r"^interop\.Array: mT is for two dimensions or more, and the array has 1"):
        _ = x[0, 0, 0].mT


def test_sizes():
    x = interop.asarray(BASE.astype("float32"))[:, ::2]
    assert (x.size, x.nbytes, x.ndim, len(x)) == (80, 320, 4, 2)


# ---- memory ----


def test_a_view_keeps_the_memory():
    x = interop.full((1000,), 7.0, "float64", memory="host")
    view = x[10:20].reshape(2, 5).T
    del x
    gc.collect()
    junk = [interop.full((1000,), 3.0, "float64", memory="host") for _ in range(20)]
    assert np.asarray(view).tolist() == [[7, 7]] * 5
    del junk


def test_writes_through_views_of_views_count(torch):
    x = torch.zeros(4)
    interop.asarray(x)[1:][::2] = 3
    assert x.tolist() == [0, 3, 0, 3]
    assert x._version == 1


def test_a_view_of_torchs_memory_keeps_its_storage(torch):
    x = torch.zeros(4)
    view = interop.asarray(x)[2:]
    x.set_()
    view += 1
    assert view.tolist() == [1, 1]


def test_views_are_operands(torch):
    x = interop.asarray(BASE)
    np.testing.assert_array_equal(np.asarray(operator.add(x[0], x[1, :, ::-1])), BASE[0] + BASE[1, :, ::-1])
    assert torch.from_dlpack(x[0, 1:]).tolist() == BASE[0, 1:].tolist()


# ---- resize ----


def test_resize_is_a_vectors():
    x = interop.arange(6, dtype="int32", memory="host")
    address = np.asarray(x).ctypes.data
    x.resize((2, 2))
    assert x.tolist() == [[0, 1], [2, 3]]
    assert np.asarray(x).ctypes.data == address
    x.resize(6)  # the memory is still there, and what was cut off is not kept
    assert x.tolist() == [0, 1, 2, 3, 0, 0]
    assert np.asarray(x).ctypes.data == address
    x.resize([3, 4])
    assert x.tolist() == [[0, 1, 2, 3], [0] * 4, [0] * 4]
    x.resize(())
    assert x.tolist() == 0
    x.resize(0)
    assert x.tolist() == []
    x.resize(2)
    assert x.tolist() == [0, 0]


@pytest.mark.parametrize(
    "use",
    [np.asarray, memoryview, lambda x: x[1:], lambda x: x.__dlpack__(), np.from_dlpack, lambda x: x.T, interop.asarray],
    ids=["numpy", "memoryview", "view", "capsule", "from_dlpack", "transpose", "itself"],
)
def test_resize_leaves_nobody_with_memory_that_is_gone(use):
    x = interop.arange(6, dtype="float64", memory="host")
    used = use(x)
    if used is not x:
        with pytest.raises(ValueError, match=r"^interop\.Array\.resize: the memory is in use by a view, a buffer"):
            x.resize(1000)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
    del used
    gc.collect()
    x.resize(7)
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 0]


def test_resize_of_what_is_not_an_array_alone(torch):
    for x in (interop.asarray(np.ones(3)), interop.asarray(torch.ones(3))):
        with pytest.raises(ValueError, match=r"^interop\.Array\.resize: the memory is another library's; accepted: "):
            x.resize(5)
    whole = interop.arange(6, memory="host")
    for part in (lambda x: x[1:], lambda x: x[::2], lambda x: x[:0]):
        x = part(whole)
        with pytest.raises(ValueError, match="in use by a view"):
            x.resize(2)
    x = interop.arange(6, memory="host")[1:]  # the whole is gone
    with pytest.raises(ValueError, match="a part of its memory"):
        x.resize(2)
    x = interop.arange(6, memory="host")
    for shape, error in ((-1, ValueError), ("ab", TypeError), (2**70, ValueError), (None, TypeError)):
        with pytest.raises(error, match=r"^interop\.Array\.resize: shape is "):
            x.resize(shape)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


class Resizing:
    """An array that resizes another one as it is exported."""

    def __init__(self, other, shape):
        self.other, self.shape = other, shape

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        self.other.resize(self.shape)
        return np.ones(1000).__dlpack__(**options)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, source: interop.copyto(x, source),
        lambda x, source: interop.add(x, source),
        lambda x, source: x @ source,
        lambda x, source: interop.add(source, 1, out=x),
    ],
    ids=["copyto", "add", "matmul", "out"],
)
def test_an_array_is_not_resized_in_a_call(call):
    x = interop.zeros(1000, "float64", memory="host")
    with pytest.raises(BufferError, match=r"interop\.Array\.resize: the memory is in use by .* or a call; accepted: "):
        call(x, Resizing(x, 1_000_000))
    assert x.shape == (1000,)
    assert x.tolist() == [0] * 1000
    x.resize(2000)  # the call is over


def test_resize_beside_other_threads():
    """Each of two threads that meet has a result, or an error that says why; no memory is used that is gone."""
    x = interop.zeros(1 << 18, "float64", memory="host")
    stop = threading.Event()
    resized, refused = [], []

    def resize():
        while not stop.is_set():
            for count in (1 << 20, 10, 1 << 18):
                try:
                    x.resize(count)
                    resized.append(count)
                except ValueError as error:
                    refused.append(str(error))

    uses = (lambda: np.asarray(x).sum(), lambda: x + 1, lambda: interop.copyto(x, 0), lambda: interop.copy(x))
    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for _ in range(300):
            for use in uses:
                with contextlib.suppress(BufferError, ValueError):
                    use()
    finally:
        stop.set()
        thread.join()
    assert resized
    assert all(error.startswith("interop.Array.resize: the memory is in use") for error in refused)


def test_products_in_place():
    x = y = interop.arange(9, dtype="float64", memory="host").reshape(3, 3)
    expected = np.arange(9.0).reshape(3, 3) @ np.eye(3)[::-1]
    x @= np.eye(3)[::-1]
    assert x is y
    assert np.array_equal(np.asarray(y), expected)
    with pytest.raises(ValueError, match=r"^interop\.Array\.__imatmul__: the product has shape \(3,\); accepted: "):
        x @= np.ones(3)
    z = interop.ones((2, 2), "int32", memory="host")
    with pytest.raises(TypeError, match="the product is float64, and the array is int32"):
        z @= np.ones((2, 2))


def test_in_place_operators_do_not_go_on_to_the_other_operand():
    x = y = interop.ones(3, "float64", memory="host")
    with pytest.raises(TypeError, match=r"^interop\.Array\.__iadd__: the operand is \S*MaskedArray; accepted: "):
        x += np.ma.array([1.0, 2, 3], mask=[1, 0, 0])
    assert x is y


def test_an_index_is_of_no_dimension():
    x = interop.full(1, 5, memory="host")
    assert bytes(x) == np.full(1, 5).tobytes()
    assert bytearray(interop.full((1, 1), 3, "uint8", memory="host")) == b"\x03"
    with pytest.raises(TypeError, match=r"^interop\.Array: an index is a 0-d array, and this array has 1 dimension"):
        [1, 2, 3][x]
    assert [1, 2, 3][interop.full((), 2, memory="host")] == 3
