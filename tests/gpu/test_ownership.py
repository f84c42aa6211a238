"""Who owns device memory: every export is given back, and results outlive operands, their arrays and their threads.

What is held while the GPU works: test_lifetime.py.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from helpers.device import eventually, synchronize
from helpers.dlpack import Cai, Fake, consume
from helpers.races import ONES, N

import interop


def test_every_export_is_given_back(cupy, torch):
    fake, other = Fake(cupy.ones((N, N), "float32")), Fake(torch.ones(N, N, device="cuda"), versioned=False)
    out = Fake(cupy.zeros((N, N), "float32"))
    for _ in range(50):
        interop.matmul(fake, other)
        interop.matmul(cupy.ones((N, N), "float32"), fake)
        assert interop.matmul(fake, fake, out=out) is out
        with pytest.raises(ValueError, match="inner dimensions"):
            interop.matmul(fake, cupy.ones((3, 3), "float32"))
        with pytest.raises(TypeError, match="out is float64"):
            interop.matmul(fake, other, out=cupy.zeros((N, N)))
    synchronize()
    assert eventually(lambda: interop._core.held_count() == 0)
    for array in (fake, other, out):
        assert array.exported >= 50
        assert eventually(lambda array=array: array.balanced)
    assert (out.array == N).all()


def test_a_cycle_through_a_view_of_a_tensor(torch):
    owner = torch.ones(4, device="cuda")
    owner.kept = interop.asarray(owner)
    alive = weakref.ref(owner)
    del owner
    for _ in range(2):
        gc.collect()
        synchronize()
        assert eventually(lambda: interop._core.held_count() == 0)
    gc.collect()
    assert alive() is None


def test_results_outlive_operands_and_views_outlive_results(device_library):
    c = interop.matmul(device_library.make(ONES), device_library.make(ONES))
    row = c[5]
    del c
    gc.collect()
    device_library.poison()
    junk = [device_library.make(np.full((N, N), 7, "float32")) for _ in range(8)]
    assert (device_library.to_numpy(row) == N).all()
    del junk


def test_exports_outlive_the_array(cupy, torch):
    x = cupy.ones((N, N), "float32")
    c = interop.matmul(Cai(x), Cai(x))
    capsule, old = c.__dlpack__(max_version=(1, 0)), c.__dlpack__()
    tensor, array = torch.from_dlpack(c), cupy.from_dlpack(c)
    shown = cupy.asarray(c)
    del c
    gc.collect()
    junk = [interop.matmul(Cai(x * 7), Cai(x)) for _ in range(8)]
    assert (tensor == N).all()
    assert (array == N).all()
    assert (shown == N).all()
    again = interop.matmul(capsule, old)
    assert (cupy.asarray(again) == N * N * N).all()
    del junk


def test_the_deleter_runs_on_any_thread_without_the_gil(cupy):
    """A consumer in C++ frees where it likes; ctypes lets the GIL go for the call."""
    x = cupy.ones((N, N), "float32")
    managed = [consume(interop.matmul(Cai(x), Cai(x)).__dlpack__()) for _ in range(64)]
    from ctypes import CFUNCTYPE, addressof, c_void_p, cast

    def free(part):
        for each in part:
            without_gil = CFUNCTYPE(None, c_void_p)(cast(each.deleter, c_void_p).value)
            without_gil(addressof(each))

    threads = [threading.Thread(target=free, args=(managed[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    synchronize()
    assert (cupy.asarray(interop.matmul(Cai(x), Cai(x))) == N).all()
