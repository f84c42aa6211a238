"""What `interop.Array` gives besides its memory as it is: copies, memory for another device, its length and stream."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import dlpack
from helpers.dlpack import CPU, CUDA, MANAGED, PINNED, Fake, read_capsule
from helpers.layouts import LAYOUTS, VALUES, layouts, pointer_of

import interop

IS_COPIED = 2


# ---- copies ----


@layouts
@pytest.mark.parametrize("device", [None, (1, 0)])
def test_a_copy_is_a_copy(layout, device):
    x = LAYOUTS[layout]
    array = interop.asarray(x)
    capsule = array.__dlpack__(copy=True, dl_device=device, max_version=(1, 0))
    managed = read_capsule(capsule)
    assert managed.flags == IS_COPIED
    assert managed.tensor.device.type == CPU
    copied = interop.asarray(capsule)
    assert np.array_equal(np.asarray(copied), x)
    assert x.size == 0 or not np.shares_memory(np.asarray(copied), x)
    assert copied.shape == x.shape


def test_a_copy_is_writable_and_its_own():
    frozen = VALUES.copy()
    frozen.flags.writeable = False
    array = interop.asarray(frozen)
    copied = np.from_dlpack(array, copy=True)
    copied[0, 0] = 99
    assert frozen[0, 0] == 0
    legacy = array.__dlpack__(copy=True)  # an unversioned capsule cannot say read-only, and need not
    assert dlpack.capsule_name(legacy) == "dltensor"


def test_a_copy_outlives_the_array():
    x = VALUES.copy()
    capsule = interop.asarray(x).__dlpack__(copy=True)
    x[...] = -1
    del x
    gc.collect()
    assert np.array_equal(np.asarray(interop.asarray(capsule)), VALUES)


@pytest.mark.parametrize("copy", [None, False])
def test_no_copy_where_none_is_needed(copy):
    x = VALUES.copy()
    capsule = interop.asarray(x).__dlpack__(copy=copy, dl_device=(1, 0), max_version=(1, 0))
    managed = read_capsule(capsule)
    assert managed.flags == 0
    assert managed.tensor.data == pointer_of(x)


# ---- devices ----


def test_pinned_memory_is_host_memory_to_who_asks_for_that():
    x = VALUES.copy()
    array = interop.asarray(Fake(x, device_type=PINNED))
    assert array.__dlpack_device__() == (PINNED, 0)
    assert (array.device, array.memory) == ("cpu", "pinned")
    for keywords, device in (({}, PINNED), ({"dl_device": (PINNED, 0)}, PINNED), ({"dl_device": (CPU, 0)}, CPU)):
        capsule = array.__dlpack__(**keywords)
        tensor = read_capsule(capsule).tensor
        assert (tensor.device.type, tensor.device.id, tensor.data) == (device, 0, pointer_of(x))
    assert np.shares_memory(np.from_dlpack(array), x)
    assert memoryview(array).tolist() == x.tolist()


@pytest.mark.parametrize("device", [(CUDA, 0), (MANAGED, 0), (PINNED, 0), (CPU, 1), (4, 0)])
def test_host_memory_is_not_brought_to_a_device(device):
    array = interop.asarray(VALUES)
    for copy in (None, True, False):
        with pytest.raises(BufferError, match=r"dl_device is .*; accepted: None, or the array's own device, cpu"):
            array.__dlpack__(dl_device=device, copy=copy)


def test_device_types_may_be_enums():
    import enum

    class Device(enum.IntEnum):
        CPU = 1

    assert interop.asarray(VALUES).__dlpack__(dl_device=(Device.CPU, 0))


# ---- attributes ----


def test_len_and_stream():
    array = interop.asarray(VALUES)
    assert len(array) == 4
    assert array.stream is None
    with pytest.raises(TypeError, match="a 0-d array has no len"):
        len(interop.asarray(np.array(1.0)))
