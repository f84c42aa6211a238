"""`interop.copyto` on a GPU, between any two memories, layouts and libraries.

On a driver that is played: tests/exchange/test_copies.py. These tests watch the card's time, and want it alone.
"""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from helpers import device
from helpers.device import Side, delay, is_busy, synchronize
from helpers.graphs import captured
from helpers.libraries import on_gpu

import interop

MEMORIES = ["device", "managed", "pinned", "host"]
VISIBLE = ["managed", "pinned"]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64",
          "complex128", "float8_e5m2"]  # fmt: skip
VALUES = np.arange(4 * 6 * 10, dtype="float32").reshape(4, 6, 10)
LAYOUTS = {
    "compact": np.s_[...],
    "rows": np.s_[:, :, :8],
    "planes": np.s_[:, 1:4],
    "strided": np.s_[:, ::2, ::3],
    "reversed": np.s_[::-1, :, ::-1],
    "one column": np.s_[..., 3],
    "empty": np.s_[:, :0],
}


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def values_of(x):
    """By way of a copy to plain memory."""
    return np.asarray(interop.copy(x, memory="host"))


@pytest.mark.parametrize("to", MEMORIES)
@pytest.mark.parametrize("of", MEMORIES)
@pytest.mark.parametrize("to_layout", LAYOUTS)
@pytest.mark.parametrize("of_layout", ["compact", "the same", "transposed", "broadcast"])
def test_copies_between_any_two_memories_and_layouts(to, of, to_layout, of_layout):
    key = LAYOUTS[to_layout]
    base = interop.zeros(VALUES.shape, "float32", memory=to)
    target = base[key]
    values = np.random.default_rng(1).random(target.shape).astype("float32")
    if of_layout == "the same":
        source = interop.empty(VALUES.shape, "float32", memory=of)[key]
        source[...] = values
    elif of_layout == "transposed":
        source = interop.asarray(np.ascontiguousarray(values.T)).to(memory=of).T
    elif of_layout == "broadcast":
        values = np.broadcast_to(values[:1], values.shape)
        source = interop.asarray(np.ascontiguousarray(values[:1])).to(memory=of)
    else:
        source = interop.asarray(values).to(memory=of)
    interop.copyto(target, source)
    expected = np.zeros(VALUES.shape, "float32")
    expected[key] = values
    np.testing.assert_array_equal(values_of(base), expected)


@pytest.mark.parametrize("to", ["device", "host", "pinned"])
@pytest.mark.parametrize("of", ["device", "host", "pinned"])
@pytest.mark.parametrize(("dst", "src"), [("float32", "float64"), ("float16", "int8"), ("complex64", "float32"),
                                          ("bfloat16", "float32"), ("int32", "bool"), ("int8", "int64")])  # fmt: skip
def test_copies_convert(to, of, dst, src):
    values = np.array([[0, 1, 3], [100, 7, 2]]).astype(numpy_dtype(src))
    x = interop.zeros((2, 6), dst, memory=to)
    interop.copyto(x[:, ::2], interop.asarray(values).to(memory=of))
    np.testing.assert_array_equal(values_of(x)[:, ::2], values.astype(numpy_dtype(dst)))
    assert not values_of(x)[:, 1::2].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_size_are_moved_bit_for_bit(dtype):
    wanted = numpy_dtype(dtype)
    bits = np.random.default_rng(2).integers(0, 256 if dtype != "bool" else 2, 16 * 12 * wanted.itemsize, "uint8")
    values = bits.view(wanted).reshape(16, 12)
    x = interop.empty((12, 16), dtype)
    interop.copyto(x.T, values)
    y = interop.empty((8, 12), dtype)
    interop.copyto(y, x.T[::2])
    np.testing.assert_array_equal(values_of(y).view("u1"), np.ascontiguousarray(values[::2]).view("u1"))


@pytest.mark.parametrize("names", [("torch", "cupy"), ("cupy", "torch"), ("numba", "torch"), ("torch", "numba")])
def test_copies_are_in_the_order_of_both_libraries(names):
    one, two = Side(on_gpu(names[0])), Side(on_gpu(names[1]))
    ones = np.ones((1 << 20,), "float32")
    x, y = one.make(ones), two.make(ones)
    snapshot = device.Snapshot((1 << 20,))
    with one.current(), two.current():
        interop.copyto(x, y)
        synchronize()
        delay(two.handle)
        device.fill(two.library.pointer(y), 2, 1 << 20, two.handle)
        interop.copyto(x, y)
        snapshot.take(one.library.pointer(x), one.handle)
        device.fill(two.library.pointer(y), 3, 1 << 20, two.handle)
        assert is_busy(two.handle)
    assert (snapshot.values() == 2).all()


def test_overlapping_copies():
    x = interop.arange(1 << 20, dtype="int32")
    interop.copyto(x[1:], x[:-1])
    expected = np.arange(1 << 20, dtype="int32")
    expected[1:] = expected[:-1].copy()
    np.testing.assert_array_equal(values_of(x), expected)


def test_pinned_copies_do_not_wait(torch):
    side = torch.cuda.Stream()
    x, y = interop.ones(1 << 20, "float32", memory="pinned"), interop.zeros(1 << 20, "float32")
    z = interop.zeros(1 << 20, "float32", memory="pinned")
    synchronize()
    delay(side.cuda_stream)
    interop.copyto(y, x, stream=side)
    interop.copyto(z, y, stream=side)
    assert is_busy(side.cuda_stream)
    assert (np.asarray(z) == 1).all()
    assert not is_busy(side.cuda_stream)


def test_host_memory_is_ready_on_return(torch):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(1 << 20, device="cuda")
        pinned, plain = torch.zeros(1 << 20, pin_memory=True), np.zeros(1 << 20, "float32")
        for target in (pinned, plain):
            synchronize()
            delay(side.cuda_stream)
            x += 1
            interop.copyto(target, x)
            assert float(target[-1]) == float(target[0]) == float(x[0])


def test_a_source_is_kept_until_it_is_read(torch):
    side = torch.cuda.Stream()
    y = interop.zeros(1 << 20, "float32")
    x = interop.full(1 << 20, 5, "float32", memory="pinned")
    synchronize()
    delay(side.cuda_stream)
    interop.copyto(y, x, stream=side)
    del x
    gc.collect()
    again = interop.full(1 << 20, 9, "float32", memory="pinned")
    assert (values_of(y) == 5).all()
    del again


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # the copy that is refused is not in it
def test_copies_are_captured(torch):
    x, y = torch.zeros(1 << 16, device="cuda"), torch.ones(1 << 16, device="cuda")
    with captured(torch) as graph:
        interop.copyto(x, y)
        interop.copyto(x[::2], 7)
    y.fill_(3)
    graph.replay()
    assert x[:4].tolist() == [7, 3, 7, 3]
    with pytest.raises(ValueError, match="pageable host memory, and the stream is being captured"), captured(torch):
        interop.copyto(x, np.ones(1 << 16, "float32"))


def test_jax_arrays_are_copied(jax):
    y = interop.zeros(4, "float32")
    interop.copyto(y, jax.numpy.arange(4, dtype="float32"))
    assert y.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="which is immutable"):
        interop.copyto(jax.numpy.zeros(4), y)


def test_between_two_devices(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for key in LAYOUTS.values():
        x = interop.zeros(VALUES.shape, "float32", device=1)
        assert x.device == "cuda:1"
        source = interop.asarray(VALUES).to(memory="device", device=0)
        interop.copyto(x[key], source[key])
        expected = np.zeros_like(VALUES)
        expected[key] = VALUES[key]
        np.testing.assert_array_equal(values_of(x), expected)
    y = torch.ones(1 << 20, device="cuda:0")
    delay(torch.cuda.current_stream(0).cuda_stream)
    y += 1
    moved = interop.copy(y, device=1)
    assert (values_of(moved) == 2).all()
