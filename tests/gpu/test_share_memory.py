"""Which device memory can be given to another process, and what is said of that which cannot."""

from __future__ import annotations

import ctypes
import gc
import types

import pytest
from helpers import device
from helpers.device import eventually, synchronize
from helpers.libraries import on_gpu
from helpers.processes import Other, OtherError
from helpers.sharing import START, values_of

import interop
from interop._memory import owner as owners


@pytest.fixture(scope="module")
def _process(cuda_device):
    with Other() as process:
        process.run(START)
        yield process


@pytest.fixture
def other(_process):
    """Another process on this card. After each test nothing of this one's is open there, or kept here for it."""
    yield _process
    _process.run("x = y = z = h = None; gc.collect(); synchronize()")
    gc.collect()
    owner = owners.owner()
    assert owner is None or eventually(lambda: owner.counts() == (0, 0)), owner.counts()


# ---- what cannot be shared ----


def refuses(x, match):
    with pytest.raises(BufferError, match=match + ".*; accepted: .*copy=True"):
        interop.share(x)


def test_pinned_and_managed_memory(other):
    refuses(
        interop.ones(3, "float32", memory="pinned"), "^interop.share: x is pinned memory, which its own process alone"
    )
    x = interop.ones(3, "float32", memory="managed")
    refuses(x, "^interop.share: x is managed memory, which its own process alone can map")
    for memory, there in (("managed", "device"), ("pinned", "host")):
        with interop.share(interop.ones(3, "float32", memory=memory), copy=True) as h:
            assert other.run("y = interop.open(h); result = y.memory, values_of(y)", h=h) == (there, [1, 1, 1])


def test_memory_of_cuda_malloc_async(other):
    cupy = on_gpu("cupy").module
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        x = cupy.ones(3, "float32")
    refuses(x, r"^interop.share: x is memory of a pool that was not made to be shared \(cudaMallocAsync")
    with interop.share(x, copy=True) as h:
        assert other.run("result = values_of(interop.open(h))", h=h) == [1, 1, 1]


def test_torchs_expandable_segments(other):
    on_gpu("torch")
    environment = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True")
    with Other(**environment) as process:
        process.run(START + "import torch; x = torch.ones(3, device='cuda')")
        match = r"^interop.share: x is memory of addresses that .* expandable segments.*; accepted: .*copy=True"
        with pytest.raises(OtherError, match=match):
            process.run("interop.share(x)")
        h = process.run("h = interop.share(x, copy=True); result = h")
        assert other.run("result = values_of(interop.open(h))", h=h) == [1, 1, 1]


def test_another_processs_memory(other, torch):
    x = torch.ones(3, device="cuda")
    with interop.share(x) as h:
        with pytest.raises(OtherError, match=r"^interop.share: x is .*; accepted: "):
            other.run("y = interop.open(h); interop.share(y)", h=h)
        again = other.run("again = interop.share(y, copy=True); result = again")
        assert values_of(interop.open(again)).tolist() == [1, 1, 1]
        other.run("again = None")


# ---- memory of cuMemCreate ----


class Pages:
    """Two mebibytes of it, or more: `count` allocations in a row. Never given back."""

    def __init__(self, count=1, is_shareable=True):
        class Property(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int * 2),
                        ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]  # fmt: skip

        call, size = device._call, ctypes.c_size_t
        self.bytes = 2 << 20
        pointer, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
        pinned, on_device, read_write = 1, 1, 3
        wanted = Property(pinned, int(is_shareable), (ctypes.c_int * 2)(on_device, 0))
        access = (ctypes.c_int * 3)(on_device, 0, read_write)
        with device.primary_context():
            call("cuMemAddressReserve", ctypes.byref(pointer), size(count * self.bytes), size(0), zero, zero)
            for i in range(count):
                handle = ctypes.c_uint64()
                call("cuMemCreate", ctypes.byref(handle), size(self.bytes), ctypes.byref(wanted), zero)
                place = ctypes.c_uint64(pointer.value + i * self.bytes)
                call("cuMemMap", place, size(self.bytes), size(0), handle, zero)
            call("cuMemSetAccess", pointer, size(count * self.bytes), access, size(1))
        self.pointer = pointer.value

    def array(self, start, stop):
        """Show the float32 elements of a slice of it."""
        device.fill(self.pointer, 6, stop, device.LEGACY)
        synchronize()

        interface = {
            "version": 3,
            "shape": (stop - start,),
            "typestr": "<f4",
            "data": (self.pointer + 4 * start, False),
        }
        return types.SimpleNamespace(__cuda_array_interface__=interface)


def test_pages_that_were_made_to_be_shared(other):
    x = Pages().array(100, 200)
    with interop.share(x) as h:
        assert other.run("y = interop.open(h); y += 1; y.synchronize(); result = values_of(y)", h=h) == [7] * 100
        assert other.run("z = interop.open(h); result = values_of(z[:1])", h=h) == [7]
    assert values_of(x).tolist() == [7] * 100


def test_pages_that_were_not():
    x = Pages(is_shareable=False).array(0, 10)
    refuses(x, "^interop.share: x is memory of cuMemCreate that was not made to be shared")


def test_addresses_of_several_allocations(other):
    pages = Pages(count=2)
    middle = pages.bytes // 4
    refuses(pages.array(middle, middle + 5), "^interop.share: x is memory of addresses that allocations of cuMemCreate")
