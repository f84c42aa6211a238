"""`interop.copyto` and `interop.copy` on the host; on a GPU, real or played: the files called test_copies.py."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.dlpack import Fake

import interop

SOURCES = {
    "numpy": lambda x: x,
    "interop": interop.asarray,
    "memoryview": lambda x: memoryview(np.ascontiguousarray(x)),
    "dlpack": Fake,
}
LAYOUTS = {
    "compact": lambda x: x,
    "transposed": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", ["numpy", "interop", "dlpack", "torch"])
@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("of", LAYOUTS)
def test_any_two_arrays(source, target, to, of, torch):
    values = np.arange(12.0).reshape(3, 4)
    memory = LAYOUTS[to](np.zeros((3, 4)))
    if target == "torch" and any(step < 0 for step in memory.strides):
        pytest.skip("torch has no negative strides")
    dst = {"numpy": lambda x: x, "interop": interop.asarray, "dlpack": Fake, "torch": torch.from_numpy}[target](memory)
    assert interop.copyto(dst, SOURCES[source](LAYOUTS[of](values))) is None
    np.testing.assert_array_equal(memory, values)


def test_it_broadcasts():
    x = np.zeros((2, 3))
    for src in (np.arange(3.0), np.array([[5.0], [6.0]]), np.float32(2), 7, True, np.array(4.0)):
        interop.copyto(x, src)
        np.testing.assert_array_equal(x, np.broadcast_to(src, (2, 3)))


@pytest.mark.parametrize(
    ("dst", "src"),
    [("float32", "float64"), ("int8", "int64"), ("float16", "uint8"), ("complex64", "float64"), ("int64", "bool"),
     ("bfloat16", "float32"), ("float64", "bfloat16"), ("int16", "uint16")],
)  # fmt: skip
def test_dtypes_of_one_kind_or_wider_are_converted(dst, src):
    dst, src = (np.dtype(getattr(ml_dtypes, name, name)) for name in (dst, src))
    x, y = np.zeros(5, dst), np.array([0, 1, 1, 0, 1]).astype(src)
    interop.copyto(x, y)
    np.testing.assert_array_equal(x, y.astype(dst))


@pytest.mark.parametrize(
    ("dst", "src"), [("int32", "float32"), ("float32", "complex64"), ("bool", "int8"), ("uint8", "int8")]
)
def test_other_conversions_are_refused(dst, src):
    x = np.zeros(3, dst)
    with pytest.raises(TypeError, match=rf"^interop\.copyto: src is {src}, and dst is {dst}; accepted: a dtype of the"):
        interop.copyto(x, np.ones(3, src))
    assert not x.any()


def test_overlapping_memory():
    x = np.arange(10)
    interop.copyto(x[1:], x[:-1])
    assert x.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_targets_that_cannot_be_written(host_jax):
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match=r"^interop\.copyto: dst .*is read-only"):
        interop.copyto(frozen, 1)
    with pytest.raises(TypeError, match=r"^interop\.copyto: dst is .*which is immutable; accepted: a writable array"):
        interop.copyto(host_jax.numpy.zeros(3), 1)
    with pytest.raises(ValueError, match="elements that share memory"):
        interop.copyto(np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), np.arange(3.0))
    for dst in (None, 5, [1, 2]):
        with pytest.raises(TypeError, match=r"^interop\.copyto: dst is "):
            interop.copyto(dst, np.ones(2))


def test_other_errors():
    x = np.zeros((2, 3))
    for shape in ((2,), (3, 3), (1, 2, 3), (2, 1, 3)):
        with pytest.raises(ValueError, match=r"^interop\.copyto: src has shape .* does not broadcast to that of dst"):
            interop.copyto(x, np.ones(shape))
    with pytest.raises(TypeError, match=r"^interop\.copyto: src is list"):
        interop.copyto(x, [1, 2, 3])
    with pytest.raises(ValueError, match=r"^interop\.copyto: stream is given, but the arrays are in host memory"):
        interop.copyto(x, x, stream=1)
    with pytest.raises(TypeError, match=r"^interop\.copyto: missing"):
        interop.copyto(x)
    assert not x.any()


def test_writes_are_counted(torch):
    x = torch.zeros(3)
    interop.copyto(x, np.ones(3, "float32"))
    interop.copyto(x, 2)
    assert x._version == 2
    leaf = torch.zeros(3, requires_grad=True)
    with pytest.raises((TypeError, ValueError, BufferError, RuntimeError)):
        interop.copyto(leaf, 1)
    assert leaf.tolist() == [0, 0, 0]


def test_copies_are_compact(torch):
    x = np.arange(12.0).reshape(3, 4)[:, ::-2].T
    for make in (lambda x: x, interop.asarray, Fake):
        made = interop.copy(make(x))
        assert made.strides == (3, 1)
        assert not np.shares_memory(np.asarray(made), x)
        np.testing.assert_array_equal(np.asarray(made), x)
    assert interop.copy(torch.ones(2)).tolist() == [1, 1]
