"""Inputs that broke other libraries: who owns device memory, how long it lives, of which device and kind it is."""

from __future__ import annotations

import gc

import pytest
from helpers import device
from helpers.dlpack import Cai, Fake

import interop

# ---- lifetime and ownership ----


# NVIDIA/cutile-python#88: inputs were given back while the kernel still read them.
def test_b15_inputs_deleted_while_in_use(jnp, cp):
    x = jnp.ones((4096, 4096))
    y = interop.matmul(x, x)
    del x
    z = [jnp.full((4096, 4096), 7.0) for _ in range(8)]
    assert bool((y == 4096).all())
    x = jnp.ones((4096, 4096))
    y = interop.matmul(cp.ones((4096, 4096), "f4"), x)
    del x
    z += [jnp.full((4096, 4096), 7.0) for _ in range(8)]
    assert bool((y == 4096).all())


# rapidsai/rmm#649: a new stream got a destroyed one's handle, and with it its state.
def test_b17_streams_that_come_and_go(cp):
    for k in range(100):
        with cp.cuda.Stream(non_blocking=True) as s:
            a = cp.full((64, 64), k, "f4")
            c = interop.matmul(a, a)
            s.synchronize()
            assert (c == 64 * k * k).all()
        del s


# dmlc/dlpack#103: the deleter touched Python objects on a thread without the GIL.
def test_b18_deleter_without_the_gil(jax, jnp, cp):
    t = cp.ones((8, 8), "f4")
    y = jnp.from_dlpack(interop.matmul(Cai(t), Cai(t)))
    z = jax.jit(lambda v: v + 1)(y)
    del y
    gc.collect()
    assert float(z.sum()) == 64 * 9


# dmlc/dlpack#51: capsules that nobody consumed leaked device memory, or freed it twice.
def test_b20_capsules_that_nobody_consumes(cp):
    t = cp.ones((1024, 1024), "f4")
    interop.matmul(Cai(t), Cai(t)).__dlpack__()
    cp.cuda.Device().synchronize()
    pool = interop.memory_pool()  # of this process: other processes may be on the card
    used = pool.used_bytes
    for _ in range(200):
        interop.matmul(Cai(t), Cai(t)).__dlpack__()
    cp.cuda.Device().synchronize()
    assert device.eventually(lambda: interop._core.held_count() == 0)
    interop.matmul(Cai(t), Cai(t))  # lets frees that waited go on
    assert device.eventually(lambda: pool.used_bytes - used < 64 << 20)


# cupy/cupy#3611: the same capsule, imported twice, crashed.
def test_b21_a_capsule_used_twice(cp):
    cap = cp.ones((4, 4), "f4").__dlpack__()
    interop.matmul(cap, cp.ones((4, 4), "f4"))
    with pytest.raises(ValueError, match="a is a DLPack capsule that was used before"):
        interop.matmul(cap, cp.ones((4, 4), "f4"))


# pytorch/pytorch#56789: a rejected capsule was freed by both sides.
def test_b22_a_rejected_export_is_released_once(cp):
    f = Fake(cp.ones((4, 4), "f4"), dtype_code=99)
    with pytest.raises((BufferError, TypeError), match="code=99"):
        interop.matmul(f, cp.ones((4, 4), "f4"))
    gc.collect()
    assert f.exported == 1
    assert f.balanced


# wjakob/nanobind#488: device memory was returned without an owner.
def test_b24_views_keep_the_output(torch):
    t = torch.ones(512, 512, device="cuda")
    c = interop.matmul(t, t)
    v = c[5, 5:10]
    del c
    junk = [torch.zeros(512, 512, device="cuda") for _ in range(8)]
    assert v.tolist() == [512] * 5
    del junk


# ---- devices and memory kinds ----


# linkedin/Liger-Kernel#1331: launched on the current device, which was not the arrays'.
@pytest.mark.multi_gpu
def test_b68_arrays_of_another_than_the_current_device(two_cuda_devices, torch):
    a = torch.ones(4, 4, device="cuda:1")
    torch.cuda.set_device(0)
    c = interop.matmul(a, a)
    assert c.device.index == 1
    assert (c == 4).all()
    assert torch.cuda.current_device() == 0


# cupy/cupy#5379: arrays of two GPUs worked on some machines.
@pytest.mark.multi_gpu
def test_b70_arrays_of_two_devices(two_cuda_devices, cp):
    with cp.cuda.Device(0):
        a = cp.ones((4, 4), "f4")
    with cp.cuda.Device(1):
        b = cp.ones((4, 4), "f4")
    with pytest.raises(ValueError, match="a is on cuda:0 and b is on cuda:1"):
        interop.matmul(a, b)


# pytorch/pytorch#96318: managed memory was refused, or taken for host memory.
def test_b71_managed_memory(torch, cp):
    cp.cuda.set_allocator(cp.cuda.malloc_managed)
    try:
        a = cp.ones((4, 4), "f4")
    finally:
        cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)
    c = interop.matmul(torch.ones(4, 4, device="cuda"), a)
    assert type(c) is torch.Tensor
    assert c.tolist() == [[4] * 4] * 4


# wjakob/nanobind#628: a device pointer was tagged as CPU memory.
def test_b73_the_device_of_results(torch, cp):
    t = cp.ones((4, 4), "f4")
    o = interop.matmul(Cai(t), Cai(t))
    assert tuple(map(int, o.__dlpack_device__())) == (2, 0)
    assert o.device == "cuda:0"
    assert torch.from_dlpack(o).is_cuda
