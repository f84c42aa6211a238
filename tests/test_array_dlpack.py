"""`__dlpack__` of `interop.Array`: its keywords, its consumers, and the capsules that they give back.

Copies, and memory for another device: test_array_exports.py.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.dlpack import CPU, Fake, capsule_name, consume, read_capsule
from helpers.host_arrays import VALUES, make

import interop


@pytest.fixture
def array():
    return make()


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({}, "dltensor"),
        ({"stream": None}, "dltensor"),
        ({"max_version": None}, "dltensor"),
        ({"max_version": (0, 8)}, "dltensor"),
        ({"max_version": (1, 0)}, "dltensor_versioned"),
        ({"max_version": (1, 3)}, "dltensor_versioned"),
        ({"max_version": (2, 0)}, "dltensor_versioned"),  # what we have: the consumer checks
        ({"dl_device": (1, 0), "copy": False}, "dltensor"),
        ({"dl_device": None, "copy": None, "stream": None, "max_version": (1, 1)}, "dltensor_versioned"),
    ],
)
def test_dlpack_keywords(array, keywords, name):
    capsule = array.__dlpack__(**keywords)
    assert capsule_name(capsule) == name
    managed = read_capsule(capsule)
    tensor = managed.tensor
    assert (tensor.device.type, tensor.device.id) == (CPU, 0)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 64, 1)
    assert tensor.ndim == 2
    assert tensor.shape[:2] == [2, 3]
    assert tensor.strides[:2] == [3, 1]
    assert tensor.byte_offset == 0
    assert tensor.data == np.asarray(array).ctypes.data
    assert bool(managed.deleter)
    if name == "dltensor_versioned":
        assert managed.major == 1
        assert managed.flags == 0


@pytest.mark.parametrize(
    ("keywords", "exception", "match"),
    [
        ({"dl_device": (2, 0)}, BufferError, r"dl_device is \(2, 0\); accepted: None, or the array's own device, cpu"),
        ({"dl_device": (1, 1)}, BufferError, r"dl_device is \(1, 1\)"),
        ({"stream": 1}, ValueError, "stream is 1; accepted for host memory: None"),
        ({"stream": -1}, ValueError, "stream is -1; accepted for host memory: None"),
        ({"steam": 1}, TypeError, None),
        ({"stream": 10**5000}, ValueError, "stream is an integer of 16610 bits"),
        ({"stream": 1.0}, ValueError, "stream is 1.0; accepted for host memory: None"),
        ({"max_version": 1}, TypeError, "max_version is 1; accepted: None, or a tuple of two ints"),
        ({"max_version": ("1", 0)}, TypeError, "max_version is .*; accepted: None, or a tuple of two ints"),
        ({"max_version": (1,)}, TypeError, "max_version is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": 1}, TypeError, "dl_device is 1; accepted: None, or a tuple of two ints"),
        ({"dl_device": ("1", 0)}, TypeError, "dl_device is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": (1.0, 0)}, TypeError, "dl_device is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": (2**32 + 1, 0)}, BufferError, "dl_device is "),  # not (1, 0)
        ({"dl_device": (1, -(2**32))}, BufferError, "dl_device is "),
        ({"dl_device": (10**5000, 0)}, BufferError, "dl_device is an object without a repr"),
        ({"copy": 1}, TypeError, "copy is 1; accepted: None, True or False"),
        ({"copy": np.True_}, TypeError, "copy is .*True.*; accepted: None, True or False"),
        ({"copy": "no"}, TypeError, "copy is 'no'; accepted: None, True or False"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_dlpack_refuses(array, keywords, exception, match):
    with pytest.raises(exception, match=match):
        array.__dlpack__(**keywords)
    assert np.array_equal(np.asarray(array), VALUES)


def test_dlpack_takes_keywords_only(array):
    with pytest.raises(TypeError):
        array.__dlpack__(None)


def test_dlpack_consumers(array, torch, jax):
    by_numpy, by_torch, by_jax = np.from_dlpack(array), torch.from_dlpack(array), jax.dlpack.from_dlpack(make())
    for taken in (by_numpy, by_torch, by_jax):
        assert np.array_equal(np.asarray(taken), VALUES)
    by_torch[0, 0] = 9
    assert by_numpy[0, 0] == 9
    assert np.asarray(array)[0, 0] == 9
    assert by_torch.data_ptr() == by_numpy.ctypes.data


def test_dlpack_to_jax_is_no_copy(jax):
    a = make(VALUES.astype("float32"))
    taken = jax.dlpack.from_dlpack(a)
    assert taken.unsafe_buffer_pointer() == np.asarray(a).ctypes.data
    assert bool((jax.jit(lambda x: x + 1)(taken) == VALUES + 1).all())


def test_exports_outlive_the_array(torch):
    a = make()
    taken, tensor, capsule, old = (
        np.from_dlpack(a),
        torch.from_dlpack(a),
        a.__dlpack__(max_version=(1, 0)),
        a.__dlpack__(),
    )
    del a
    gc.collect()
    junk = [make(VALUES * 7) for _ in range(50)]
    assert np.array_equal(taken, VALUES)
    assert np.array_equal(tensor.numpy(), VALUES)
    assert np.array_equal(np.asarray(interop.matmul(capsule, np.eye(3))), VALUES)
    assert np.array_equal(np.asarray(interop.matmul(old, np.eye(3))), VALUES)
    del junk


def memory_of_process():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("version", [{}, {"max_version": (1, 3)}], ids=["unversioned", "versioned"])
def test_no_capsule_leaks(consumed, version):
    values = np.ones((1 << 20, 1))  # 8 MiB

    def once():
        capsule = make(values).__dlpack__(**version)
        if consumed:
            managed = consume(capsule)
            managed.deleter(ctypes.addressof(managed))

    once()
    before = memory_of_process()
    for _ in range(30):
        once()
    assert memory_of_process() - before < 80 << 20


def test_the_deleter_runs_on_any_thread_without_the_gil():
    managed = [consume(make().__dlpack__()) for _ in range(200)]
    managed += [consume(make().__dlpack__(max_version=(1, 0))) for _ in range(200)]

    def free(part):
        for each in part:
            address = ctypes.cast(each.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(each))  # lets the GIL go for the call

    threads = [threading.Thread(target=free, args=(managed[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.asarray(make()), VALUES)


def test_views_of_foreign_memory_keep_its_owner():
    """What NumPy computes on, in a call of other libraries, is a view that must not outlive its owner's memory."""
    fake = Fake(VALUES.copy())
    c = interop.matmul(fake, np.eye(3))
    assert fake.balanced  # the call is over: nothing holds the operand
    assert np.array_equal(np.asarray(c), VALUES)
