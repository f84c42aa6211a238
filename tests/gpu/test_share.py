"""Device memory between two processes on one card: `interop.share` and `interop.open`."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest
from helpers import device, machine
from helpers.device import DELAY_MS, delay, eventually, is_busy, synchronize
from helpers.libraries import on_gpu
from helpers.processes import Other, OtherError
from helpers.sharing import START, address_of, values_of

import interop
from interop._memory import owner as owners

LIBRARIES = ["torch", "cupy", "jax", "numba", "interop"]
VALUES = np.arange(24, dtype="float32").reshape(4, 6)


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


def make(name, values=VALUES):
    """An array of a library with these values, ready."""
    if name == "interop":
        x = interop.empty(values.shape, values.dtype)
        interop.copyto(x, values)
    else:
        x = on_gpu(name).make(values)
    synchronize()
    return x


# ---- the same memory ----


@pytest.mark.parametrize("name", LIBRARIES)
def test_both_processes_have_the_memory(other, name):
    x = make(name)
    with interop.share(x) as h:
        there = other.run("y = interop.open(h); result = y.shape, y.strides, y.dtype, y.device, values_of(y)", h=h)
    assert there == (VALUES.shape, (6, 1), "float32", "cuda:0", VALUES.tolist())
    synchronize()
    device.fill(address_of(x), 9, VALUES.size, device.LEGACY)
    synchronize()
    assert other.run("result = values_of(y)") == np.full(VALUES.shape, 9).tolist()
    if name != "jax":  # whose memory is immutable
        other.run("y[0, 0] = -1; y.synchronize()")
        assert values_of(x)[0, 0] == -1


@pytest.mark.parametrize("name", LIBRARIES)
def test_it_is_opened_in_any_library(other, name):
    on_gpu("torch" if name == "interop" else name)
    x = make("torch")
    with interop.share(x) as h:
        other.run(f"y = interop.open(h, {name!r}); result = values_of(y)", h=h)
        assert other.run("result = type(y).__module__.partition('.')[0]") in (name, "jaxlib")
        assert other.run("result = values_of(y)") == VALUES.tolist()
        if name == "jax":  # which frees in its own time
            other.run("y.delete()")


def test_layouts_and_offsets_are_kept(other, torch):
    base = make("torch", np.arange(1000, dtype="float32"))
    square = base.view(10, 100)
    for x in (base[7:], square[2:9:3, 5:50:4], square.T, base[3], base[:0], base[5:6].expand(4)):
        with interop.share(x) as h:
            there = other.run("y = interop.open(h); result = y.shape, y.strides, values_of(y)", h=h)
        assert there == (tuple(x.shape), tuple(x.stride()), x.cpu().tolist())


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "complex64", "int8", "float8_e5m2"])
def test_dtypes_are_kept(other, dtype):
    with interop.share(interop.ones(5, dtype)) as h:
        assert other.run("y = interop.open(h); result = y.dtype, values_of(y)", h=h) == (dtype, [1] * 5)


def test_an_allocation_is_mapped_once(other, torch):
    whole = torch.zeros(1 << 20, device="cuda")
    parts = [whole[:1000], whole[5000:6000]]
    handles = [interop.share(x) for x in parts]
    code = "y = [interop.open(h, 'torch') for h in handles]; result = [t.data_ptr() for t in y]"
    first, second = other.run(code, handles=handles)
    assert other.run("result = is_mapped(y[0].data_ptr())")
    assert second - first == parts[1].data_ptr() - parts[0].data_ptr()
    assert other.run("y.append(interop.open(handles[0], 'torch')); result = y[2].data_ptr()") == first
    other.run("del y[0]; gc.collect(); y[0] += 1; torch = None; synchronize()")  # the first goes, and the mapping stays
    assert whole[5000:6000].sum().item() == 1000
    other.run("y = handles = None")


def test_jax_arrays_are_read_only_there(other, jax):
    with interop.share(make("jax")) as h, pytest.raises(OtherError, match="read-only"):
        other.run("y = interop.open(h); y[0, 0] = 1", h=h)


def test_the_same_process_gets_the_array_itself(torch):
    x = torch.ones(3, device="cuda")
    with interop.share(x) as h:
        assert interop.open(h, "torch") is x
        assert address_of(interop.open(h)) == x.data_ptr()


def test_memory_of_interops_own_whatever_the_allocator(other, torch):
    interop.set_allocator("torch")
    try:
        before = interop.memory_pool().used_bytes
        x = interop.empty(1 << 24, "float32", shared=True)
        assert interop.memory_pool().used_bytes >= before + (60 << 20)  # others may have come back meanwhile
    finally:
        interop.set_allocator(None)
    x[...] = 3
    with interop.share(x) as h:
        assert other.run("result = values_of(interop.open(h)[:2])", h=h) == [3, 3]


# ---- the GPU ----


def uuid():
    name = (ctypes.c_ubyte * 16)()
    assert machine.driver().cuDeviceGetUuid_v2(name, 0) == 0
    text = bytes(name).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def test_the_gpu_is_found_by_its_uuid(torch):
    x = torch.ones(3, device="cuda")
    with interop.share(x) as h, Other(CUDA_VISIBLE_DEVICES=uuid()) as process:
        assert process.run(START + "result = values_of(interop.open(h))", h=h) == [1, 1, 1]
        process.run("import gc; gc.collect()")


def test_a_gpu_of_another_index(torch):
    machine.need_gpu(2)
    x = torch.ones(3, device="cuda:1")
    with interop.share(x) as h, Other(CUDA_VISIBLE_DEVICES="1") as process:
        assert process.run(START + "y = interop.open(h); result = y.device, values_of(y)", h=h) == ("cuda:0", [1, 1, 1])
    with (
        interop.share(x) as h,
        Other(CUDA_VISIBLE_DEVICES="0") as process,
        pytest.raises(OtherError, match="on a GPU that this process does not see; accepted: a process whose CUDA_VIS"),
    ):
        process.run(START + "interop.open(h)", h=h)


def test_a_process_without_a_gpu(torch):
    with interop.share(torch.ones(3, device="cuda")) as h, Other(CUDA_VISIBLE_DEVICES="") as process:
        with pytest.raises(OtherError, match="no CUDA device") as caught:
            process.run("import interop; interop.open(h)", h=h)
        assert caught.value.kind == "CudaError"


# ---- order ----


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_the_opener_waits_for_what_was_queued_and_no_host_does(other, name):
    """On the current stream of the library there, as that of the array here."""
    side = device.Side(on_gpu(name))
    x = side.make(VALUES)
    with interop.share(x) as h:  # maps the memory there, ahead of the race
        code = """
from helpers.libraries import on_gpu
y = interop.open(h, name)
side, taken = device.Side(on_gpu(name)), device.Snapshot((4, 6))
taken.take(address_of(y), side.handle)
synchronize()
"""
        other.run(code, h=h, name=name)
        with side.current():
            delay(side.handle, 12 * DELAY_MS)
            device.fill(address_of(x), 5, VALUES.size, side.handle)
            h = interop.share(x)
        code = """
with side.current():
    z = interop.open(h, name)
taken.take(address_of(z), side.handle)
result = is_busy(side.handle)
"""
        assert other.run(code, h=h)
        assert is_busy(side.handle)  # neither host has waited
        assert other.run("result = taken.values().tolist()") == np.full((4, 6), 5).tolist()


def test_a_given_stream_waits(other, torch):
    stream = device.new_stream()
    x = make("interop")
    pointer = address_of(x)
    with interop.share(x) as h:
        other.run("y = interop.open(h); stream, taken = device.new_stream(), device.Snapshot((4, 6))", h=h)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            tensor = torch.from_dlpack(x)
            delay(stream, 12 * DELAY_MS)
            device.fill(pointer, 6, VALUES.size, stream)
            again = interop.share(tensor)
        assert other.run(
            """
z = interop.open(h, stream=stream)
taken.take(address_of(z), stream)
result = is_busy(stream)
""",
            h=again,
        )
        assert is_busy(stream)
        assert other.run("result = taken.values().tolist()") == np.full((4, 6), 6).tolist()
        again.close()


@pytest.mark.parametrize("is_used", [False, True])
def test_the_opener_waits_for_interops_own_stream(other, is_used):
    """Also of memory that nothing has used yet but what is queued there."""
    stream = interop.ones(1, "int8").stream
    warm = make("interop")
    warm[...] = 7  # the load of a kernel would wait for the delay
    with interop.share(warm) as h:
        other.run(
            "y = interop.open(h); stream, taken = device.new_stream(), device.Snapshot((4, 6)); synchronize()", h=h
        )
    x = interop.empty(VALUES.shape, "float32")
    delay(stream, 12 * DELAY_MS)
    if is_used:
        x[...] = 8
    else:
        device.fill(x.__cuda_array_interface__["data"][0], 8, VALUES.size, stream)
    with interop.share(x) as h:
        code = "z = interop.open(h, stream=stream); taken.take(address_of(z), stream); result = is_busy(stream)"
        assert other.run(code, h=h)
        assert is_busy(stream)
        assert other.run("result = taken.values().tolist()") == np.full((4, 6), 8).tolist()


def test_in_a_block_of_a_graph(other):
    x, out = make("interop"), interop.zeros(VALUES.shape, "float32")
    theirs = other.run("x = interop.full(3, 2.0, 'float32'); x.synchronize(); h = interop.share(x); result = h")
    interop.add(x, x, out=out)
    synchronize()
    with interop.graph() as g:
        interop.add(x, x, out=out)
        with pytest.raises(ValueError, match="^interop.share: x is of work that is being captured into a CUDA graph"):
            interop.share(x)
        y = interop.open(theirs)
    g.replay()
    synchronize()
    assert values_of(out)[1, 1] == 14
    assert values_of(y).tolist() == [2, 2, 2]


def test_what_is_shared_while_a_stream_is_captured(torch):
    """The array's stream is part of the capture: another process could wait for its replays alone."""
    stream = torch.cuda.Stream()
    x = torch.ones(3, device="cuda")
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        x += 1
        with pytest.raises(ValueError, match="captur"):
            interop.share(x)
    graph.replay()
    synchronize()
    assert x.tolist() == [2, 2, 2]


# ---- for how long ----


def test_the_owner_keeps_what_the_openers_work_still_reads(other, torch):
    x = torch.full((1 << 20,), 7.0, device="cuda")
    synchronize()
    h = interop.share(x)
    other.run("y = interop.open(h)", h=h)
    h.close()
    del x, h
    assert owners.owner().counts() == (1, 1)
    assert other.run("""
delay(device.LEGACY, 1000)
y = None  # while the legacy stream, on which it may be used, is busy
result = is_busy(device.LEGACY)
""")
    assert owners.owner().counts() == (1, 1)
    junk = torch.zeros(1 << 20, device="cuda")  # would have got the memory
    other.run("synchronize()")
    assert eventually(lambda: owners.owner().counts() == (0, 0))
    del junk


def test_a_tensor_whose_storage_is_gone(other, torch):
    x = torch.ones(3, device="cuda")
    with interop.share(x) as h:
        x.untyped_storage().resize_(0)
        with pytest.raises(OtherError, match="cannot give it: interop") as caught:
            other.run("h._slot = -1; interop.open(h)", h=h)  # by the owner's answer
        assert caught.value.kind == "BufferError"


@pytest.mark.parametrize("name", ["torch", "interop"])
def test_an_openers_end_leaves_the_owner_and_gives_back(name):
    x = make(name)
    h = interop.share(x)
    with Other() as process:
        process.run(START + "y = interop.open(h); y[0, 0] = 5; y.synchronize(); delay(device.LEGACY, 5000)", h=h)
        h.close()
        assert owners.owner().counts() == (1, 1)
        process.kill()
    assert eventually(lambda: owners.owner().counts() == (0, 0))
    assert values_of(x)[0, 0] == 5
    assert values_of(interop.add(x, x))[0, 0] == 10


@pytest.mark.parametrize("name", ["torch", "interop"])
def test_an_owners_end_leaves_the_opener(other, name):
    made = "torch.full((1000,), 4.0, device='cuda')" if name == "torch" else "interop.full(1000, 4.0, 'float32')"
    with Other() as process:
        h = process.run(START + f"import torch\nx = {made}; synchronize(); h = interop.share(x); result = h")
        other.run("y = interop.open(h); y += 1; result = values_of(y[:2])", h=h)
        process.kill()
        with pytest.raises(OtherError, match="has ended, and its memory with it") as caught:
            other.run("interop.open(h)", h=h)
        assert caught.value.kind == "ConnectionError"
    assert other.run("result = values_of(y) == [5.0] * 1000") is True
    assert other.run("z = interop.full(1000, 2.0, 'float32'); z += y; result = values_of(z[:2])") == [7, 7]


def test_an_owner_that_ends_before_its_work_is_done(other):
    """Whoever waits for it goes on: with what is there."""
    with Other() as process:
        code = "x = interop.zeros(1000, 'float32'); x += 1; x.synchronize(); h = interop.share(x); result = h"
        h = process.run(START + code)
        other.run("y = interop.open(h); stream = device.new_stream(); result = values_of(y)", h=h)
        code = "delay(x.stream, 5000); x += 1; h = interop.share(x); result = h"
        h = process.run(code)
        other.run("z = interop.open(h, stream=stream); assert is_busy(stream)", h=h)
        process.kill()
        assert other.run("result = eventually(lambda: not is_busy(stream))")
    assert other.run("z = interop.full(1000, 2.0, 'float32'); z += 1; result = values_of(z[:2])") == [3, 3]


def test_nothing_is_left_of_a_thousand_openings(other, torch):
    arrays = [torch.ones(1000, device="cuda"), make("interop", np.ones(1000, "float32"))]
    handles = [interop.share(x) for x in arrays]
    code = """
addresses = set()
for _ in range({0}):
    for h in handles:
        x = interop.open(h)
        addresses.add(address_of(x))
x = None
gc.collect(); synchronize()
assert eventually(lambda: interop._core.held_count() == 0)
result = count("/proc/self/fd"), [is_mapped(each) for each in addresses]
"""
    other.run(code.format(5), handles=handles)
    own = len(list(Path("/proc/self/fd").iterdir()))
    files, *_ = other.run(code.format(5))
    after, mapped = other.run(code.format(500))
    other.run("handles = None")
    assert after == files
    assert not any(mapped)
    assert len(list(Path("/proc/self/fd").iterdir())) <= own
    assert eventually(lambda: owners.owner().counts()[1] == 0)
    for h in handles:
        h.close()
