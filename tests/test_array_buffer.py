"""The buffer protocol of `interop.Array`, and what NumPy reads where it has no buffer."""

from __future__ import annotations

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
from helpers import dlpack
from helpers.dlpack import Buffer, Fake
from helpers.host_arrays import VALUES, make
from helpers.layouts import pointer_of

import interop


@pytest.fixture
def array():
    return make()


def test_buffer_is_the_memory_itself(array):
    view = memoryview(array)
    assert (view.format, view.shape, view.strides, view.itemsize) == ("d", (2, 3), (24, 8), 8)
    assert not view.readonly
    assert view.c_contiguous
    assert view.tolist() == VALUES.tolist()
    first, second = np.asarray(array), np.asarray(array)
    first[0, 0] = 9
    assert second[0, 0] == 9
    assert np.shares_memory(first, second)


def test_buffer_outlives_the_array():
    a = make()
    view, array = memoryview(a), np.asarray(a)
    del a
    gc.collect()
    junk = [make(VALUES * 7) for _ in range(50)]
    assert view.tolist() == VALUES.tolist()
    assert np.array_equal(array, VALUES)
    del junk


SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 0x1, 0x4, 0x8, 0x18


@pytest.mark.parametrize("flags", [SIMPLE, WRITABLE, FORMAT, ND, STRIDES, STRIDES | FORMAT | WRITABLE])
def test_buffer_gives_what_is_asked_for(array, flags):
    view = Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    assert get(ctypes.py_object(array), ctypes.byref(view), ctypes.c_int(flags)) == 0
    try:
        assert (view.len, view.itemsize, view.ndim) == (48, 8, 2 if flags & ND else 0)  # as NumPy has it
        assert (view.format == b"d") == bool(flags & FORMAT)
        assert bool(view.shape) == bool(flags & ND)
        assert bool(view.strides) == (flags & STRIDES == STRIDES)
        assert not view.suboffsets
    finally:
        release(ctypes.byref(view))


def test_read_only_arrays_have_read_only_buffers():
    view = memoryview(interop.asarray(memoryview(b"abc")))
    assert view.readonly
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_char.from_buffer(interop.asarray(memoryview(b"abc")))


get_buffer = dlpack._python("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int)
release_buffer = dlpack._python("PyBuffer_Release", None, ctypes.POINTER(Buffer))

C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT = 0x38, 0x58, 0x98, 0x118
FLAGS = sorted(
    {
        layout | other | more
        for layout in (0, ND, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT)
        for other in (0, C_CONTIGUOUS, F_CONTIGUOUS)
        for more in (0, WRITABLE, FORMAT, WRITABLE | FORMAT)
    }
)


def buffer_of(exporter, flags):
    """All that a consumer is told, or that it is refused."""
    view = Buffer()
    try:
        if get_buffer(exporter, view, flags) != 0:
            return None
    except (BufferError, ValueError) as error:
        assert type(error) is BufferError or not isinstance(exporter, interop.Array)  # noqa: PT017
        return None
    shape = view.shape[: view.ndim] if view.shape else None
    strides = view.strides[: view.ndim] if view.strides else None
    assert not view.suboffsets
    told = view.buf, view.len, view.itemsize, bool(view.readonly), view.ndim, view.format, shape, strides
    release_buffer(view)
    return told


BASE = np.arange(48.0).reshape(2, 4, 6)
BUFFERS = {
    "C": BASE,
    "Fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "neither": BASE.transpose(1, 0, 2),
    "steps": BASE[:, ::2],
    "negative": BASE[::-1],
    "broadcast": np.broadcast_to(BASE[0], (3, 4, 6)),
    "vector": BASE[0, 0],
    "column": BASE[0, :, :1],
    "row": BASE[0, :1, ::2],
    "size 1": BASE[:1, :, :].transpose(1, 0, 2),
    "one element": BASE[:1, 2:3, 4:5],
    "0-d": BASE[0, 0, 0, ...],
    "empty": BASE[:, :0],
    "empty steps": BASE[:0, ::2],
    "read-only": np.frombuffer(bytes(48), "f8").reshape(2, 3),
}


@pytest.mark.parametrize("layout", BUFFERS)
def test_buffers_are_what_the_flags_ask_for(layout):
    """Every combination of flags, against what NumPy says of the same memory."""
    x = BUFFERS[layout]
    array = interop.asarray(x)
    answers = set()
    for flags in FLAGS:
        expected, got = buffer_of(x, flags), buffer_of(array, flags)
        if x.size == 0 and expected and got:  # of nothing, only the layout counts
            expected, got = expected[1:-1], got[1:-1]
        elif expected and got and not x.flags.c_contiguous and not x.flags.f_contiguous:
            # Steps along a dimension of size 1 say nothing.
            steps = [
                tuple(s for s, size in zip(told[-1], x.shape, strict=True) if size > 1) for told in (expected, got)
            ]
            assert steps[0] == steps[1]
            expected, got = expected[:-1], got[:-1]
        assert got == expected, f"flags {flags:#x}"
        answers.add(got is None)
    writable_contiguous = x.flags.c_contiguous and x.flags.f_contiguous and x.flags.writeable
    assert answers == ({False} if writable_contiguous else {False, True})


def test_numpy_reads_what_has_no_buffer(torch):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    array = interop.asarray(x.T)
    with pytest.raises(BufferError, match="the buffer protocol has no bfloat16"):
        memoryview(array)
    y = np.asarray(array)
    assert y.dtype == ml_dtypes.bfloat16
    assert pointer_of(y) == x.data_ptr()
    y[0, 1] = 7
    assert x.tolist() == [[1, 2], [7, 4]]
    assert np.asarray(array, dtype="float32").tolist() == [[1, 7], [2, 4]]
    assert pointer_of(np.array(array)) != x.data_ptr()
    frozen = np.ones(3, ml_dtypes.float8_e5m2)
    frozen.flags.writeable = False
    assert not np.asarray(interop.asarray(frozen)).flags.writeable


def test_numpy_is_told_which_dtype_it_has_not():
    array = interop.asarray(Fake(np.ones(3, "float32"), dtype_code=5))  # complex, of 32 bits
    for read in (np.asarray, lambda x: interop.convert(x, "numpy")):
        with pytest.raises(TypeError, match="NumPy has no dtype for complex32"):
            read(array)
