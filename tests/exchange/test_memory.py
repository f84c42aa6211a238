"""Memory of interop's own on a driver that is played: what it is called for, and when memory is used again.

What this driver is asked to do runs as late as CUDA allows: tests/helpers/working_driver.c. It has no kernels, so what
needs one is in tests/gpu/test_memory.py.
"""

from __future__ import annotations

import pytest
from helpers import machine

# ---- device memory ----


def test_memory_of_one_stream_is_freed_there(play):
    """Of that stream alone: nobody else is waited for."""
    said = play("""
interop.empty(1000, "float32")
log()
x = interop.empty(1000, "float32")
assert (x.memory, x.device) == ("device", "cuda:0")
del x
print(log())
""")
    assert eval(said) == ["cuMemAllocFromPoolAsync 4000", "cuMemFreeAsync"]


def test_memory_that_was_shown_is_freed_behind_all_streams(play):
    said = play("""
x = interop.empty(1000, "float32")
capsule = x.__dlpack__(stream=1)
del x
log()
del capsule
print(log())
""")
    calls = eval(said)
    assert calls[-1] == "cuMemFreeAsync"
    assert "cuStreamWaitEvent" in calls


def test_out_of_memory_is_an_error_that_leaves_all_usable(play):
    said = play("""
kept = device_ones(4)
fail("cuMemAllocFromPoolAsync", 2)
try:
    interop.empty(1000, "float32")
except interop.CudaError as error:
    print(error)
assert kept.tolist() == [1, 1, 1, 1]
assert interop.empty(1000, "float32").shape == (1000,)
""")
    assert said == "interop.empty: allocating 4000 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY\n"


def test_what_uses_new_memory_elsewhere_waits_for_the_allocation(play):
    said = play("""
x = interop.empty(1000, "float32")
log()
x.__dlpack__(stream=2)
print(log())
x = interop.empty(1000, "float32", stream=2)
log()
x.__dlpack__(stream=1)
print(log())
""")
    assert [eval(line) for line in said.splitlines()] == [["cuEventRecord", "cuStreamWaitEvent"], ["cuStreamWaitEvent"]]


def test_events_are_used_again(play):
    play("""
x, out = device_ones(1000), interop.empty(1000, "float32")
def call():
    lib.add(x, x, out, 1000)
    return [interop.empty(1000, "float32", stream=2).__dlpack__(stream=1) for _ in range(3)]
call()
made = driver.stand_in_events()
for _ in range(50):
    call()
    assert out.tolist() == [2] * 1000
assert driver.stand_in_events() == made
""")


def test_the_pool_says_what_it_holds_and_keeps(play):
    play("""
pool = interop.memory_pool()
assert repr(pool) == "interop.MemoryPool('device', device='cuda:0')"
before = pool.used_bytes
x = interop.empty(1000, "float64")
assert pool.used_bytes == before + 8000
assert pool.release_threshold == 2**64 - 1
pool.release_threshold = 1 << 20
assert pool.release_threshold == 1 << 20
log()
pool.trim()
assert log() == ["cuMemPoolTrimTo"]
""")


# ---- managed and pinned memory ----


@pytest.mark.parametrize("memory", ["managed", "pinned"])
def test_a_block_is_kept_for_the_next_array(play, memory):
    said = play(f"""
x = interop.empty(1000, "float32", memory={memory!r})
assert x.memory == {memory!r}
first = np.asarray(x).ctypes.data
assert first % 4096 == 0
del x
log()
y = interop.empty(1000, "float32", memory={memory!r})
assert np.asarray(y).ctypes.data == first
z = interop.empty(1000, "float32", memory={memory!r})
assert np.asarray(z).ctypes.data != first
print([line for line in log() if "Alloc" in line])
pool = interop.memory_pool({memory!r})
assert (pool.used_bytes, pool.reserved_bytes) == (8192, 8192)
del y, z
assert (pool.used_bytes, pool.used_high, pool.reserved_bytes) == (0, 8192, 8192)
pool.trim(4096)
assert pool.reserved_bytes == bytes_of({memory!r}) == 4096
pool.trim()
assert pool.reserved_bytes == bytes_of({memory!r}) == 0
assert pool.reserved_high == 8192
""")
    call = {"managed": "cuMemAllocManaged", "pinned": "cuMemHostAlloc"}[memory]
    assert eval(said) == [f"{call} 4096"]


@pytest.mark.parametrize("memory", ["managed", "pinned"])
def test_a_block_in_use_is_not_taken_again(play, memory):
    """Work that is queued, and not done, may still write to it."""
    play(f"""
x = interop.empty(1000, "float32", memory={memory!r})
first = np.asarray(x).ctypes.data
queue(x)
ask_early()
del x
y = interop.empty(1000, "float32", memory={memory!r})
assert np.asarray(y).ctypes.data != first
np.asarray(y)[:] = 5
ask_early(False)
z = interop.empty(1000, "float32", memory={memory!r})
assert np.asarray(z).ctypes.data == first
assert (np.asarray(y) == 5).all()
""")


def test_of_many_blocks_in_use_the_first_is_waited_for(play):
    """Else memory would grow as fast as the host can free."""
    play("""
blocks = [interop.empty(1000, "float32", memory="pinned") for _ in range(4)]
first = np.asarray(blocks[0]).ctypes.data
for x in blocks:
    queue(x)
ask_early()
while blocks:
    del blocks[0], x
    x = None
log()
y = interop.empty(1000, "float32", memory="pinned")
assert "cuStreamWaitEvent" in log()
values = np.asarray(y)  # waits, and then nothing else writes to it
assert values.ctypes.data == first
values[:] = 7
interop.memory_pool("pinned").trim()
assert (values == 7).all()
""")


def test_a_numpy_view_waits_when_it_is_taken(play):
    play("""
for memory in ("managed", "pinned"):
    x = interop.empty(1000, "float32", memory=memory)
    early = np.asarray(x)
    early[:] = 0
    queue(x)
    assert (early == 0).all()  # taken before: it shows what is there now
    assert (np.asarray(x) == 2).all()
    assert (early == 2).all()
    early[:] = 0
    queue(x)
    x.synchronize()
    assert (early == 2).all()
    early[:] = 0
    queue(x)
    assert memoryview(x)[0] == 2
    early[:] = 0
    queue(x)
    assert x[5].item() == 2.0 and float(x[5:6]) == 2.0 and x[:2].tolist() == [2, 2]
""")


def test_a_numpy_view_waits_for_work_that_reads(play):
    """Else what the host writes would be read by work that was queued before."""
    play("""
one = device_ones(1000)
for memory in ("managed", "pinned"):
    x, z = (interop.empty(1000, "float32", memory=memory) for _ in range(2))
    np.asarray(x)[:] = 1
    lib.add(one, x, z, 1000)
    np.asarray(x)[:] = 5
    assert (np.asarray(z) == 2).all()
""")


def test_numpys_from_dlpack_waits_for_what_it_takes(play):
    said = play("""
for memory, given in (("managed", {"device": "cpu"}), ("pinned", {}), ("pinned", {"device": "cpu"})):
    x = interop.empty(1000, "float32", memory=memory)
    address = np.asarray(x).ctypes.data
    np.asarray(x)[:] = 0
    queue(x)
    taken = np.from_dlpack(x, **given)
    assert (taken == 2).all()
    assert taken.ctypes.data == address
try:
    np.from_dlpack(interop.empty(3, "float32", memory="managed"))
except (RuntimeError, BufferError) as error:
    print(error)
""")
    assert "evice" in said  # NumPy's words


def test_work_on_a_view_is_work_on_the_array(play):
    """They are one memory: who reads the one waits for the other."""
    play("""
x = interop.empty(1000, "float32", memory="managed")
np.asarray(x)[:] = 0
queue(x[10:20])
assert np.asarray(x).sum() == 20
part = x.reshape(10, 100)[3]
queue(x)
assert (np.asarray(part) == 2).all()
queue(part)
assert part.stream == x.stream
assert (np.asarray(x) == 2).all()
""")


def test_device_memory_has_no_view_on_the_host(play):
    said = play("""
x = device_ones(3)
for read in (np.asarray, memoryview, lambda x: np.array(x, copy=False)):
    try:
        read(x)
    except (TypeError, BufferError) as error:
        print(error)
print(x.tolist(), repr(x))
""")
    first, second, third, values = said.splitlines()
    assert first.endswith("cannot read memory on cuda:0; accepted: x.to(memory='host'), which copies it")
    assert "device memory has no buffer" in second
    assert first == third
    assert values == "[1.0, 1.0, 1.0] interop.Array([1., 1., 1.], dtype=float32, device=cuda:0)"


def test_managed_memory_is_limited_to_what_the_device_has(play):
    said = play("""
x = interop.empty(40 << 20, "uint8", memory="managed")
try:
    interop.empty(40 << 20, "uint8", memory="managed")
except interop.CudaError as error:
    print(error)
np.asarray(x)[:] = 1
del x
x = interop.empty(40 << 20, "uint8", memory="managed")
del x
x = interop.empty(48 << 20, "uint8", memory="managed")  # what was kept for another 40 MiB is given back
assert bytes_of("managed") == 48 << 20
del x
pool = interop.memory_pool("managed")
pool.trim()
pool.limit(1 << 20)
try:
    interop.empty(2 << 20, "uint8", memory="managed")
except interop.CudaError as error:
    assert "may have 1048576 bytes of it, and 0 are taken" in str(error)
else:
    raise AssertionError
interop.empty(1 << 20, "uint8", memory="managed")
pool.limit(2**64 - 1)
x = interop.empty(40 << 20, "uint8", memory="managed")
try:
    interop.memory_pool("pinned").limit(5)
except ValueError as error:
    assert str(error).endswith("accepted: managed memory")
else:
    raise AssertionError
""")
    assert said == (
        "interop.empty: allocating 41943040 bytes of managed memory: cuda:0 may have 67108864 bytes of it, and "
        "41943040 are taken; accepted: less, or memory='pinned'\n"
    )


@pytest.mark.parametrize(("memory", "call"), [("managed", "cuMemAllocManaged"), ("pinned", "cuMemHostAlloc")])
def test_without_memory_what_is_kept_is_given_back_first(play, memory, call):
    said = play(f"""
x = interop.empty(1000, "float32", memory={memory!r})
del x
fail({call!r}, 2)
x = interop.empty(100_000, "float32", memory={memory!r})
assert bytes_of({memory!r}) == 425984
""")
    assert said == ""


def test_many_threads_allocate_and_free(play):
    """The memory is flat, and no array has that of another."""
    play("""
import threading

def work(number):
    for i in range(200):
        memory = ("device", "managed", "pinned")[i % 3]
        x = interop.empty(50 * (1 + i % 4), "float32", memory=memory)
        if memory != "device":
            values = np.asarray(x)
            values[:] = number
            assert (values == number).all()

threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for memory in ("managed", "pinned"):
    pool = interop.memory_pool(memory)
    assert pool.used_bytes == 0
    assert pool.reserved_bytes <= 8 * 8 * 4096
""")


# ---- other dtypes ----


def test_astype_on_a_gpu_has_what_kernels_convert(play):
    """And says so of the rest. Pinned memory is the host's, and NumPy's."""
    said = play("""
for dtype, other in (("float32", "int32"), ("bfloat16", "uint8"), ("complex64", "float32"), ("float32", "float8_e5m2")):
    x = interop.empty(3, dtype)
    try:
        x.astype(other)
    except TypeError as error:
        print(error)
x = interop.empty(3, "float32", memory="pinned")
np.asarray(x)[:] = [1.5, -2.5, 3]
y = x.astype("int8")
assert (y.memory, y.tolist()) == ("pinned", [1, -2, 3])
""")
    lines = said.splitlines()
    rest = "x.to(memory='host').astype(dtype) for all others"
    for line, (dtype, other) in zip(
        lines[:3], (("float32", "int32"), ("bfloat16", "uint8"), ("complex64", "float32")), strict=True
    ):
        start = (
            f"interop.Array.astype: the array is {dtype} and the copy is {other}, which no kernel converts; accepted: "
        )
        assert line.startswith(start)
        assert line.endswith(rest)
    assert "accepted: one dtype for both, or two of bool" in lines[3]


# ---- hints ----


def test_managed_memory_is_prefetched_and_advised(play):
    said = play("""
x = interop.empty(1000, "float32", memory="managed")
log()
x.prefetch()
x.prefetch("host")
x[:10].prefetch(0, stream=1)
x.advise("read_mostly")
x.advise("preferred_location", "host")
x.advise("accessed_by", 0, value=False)
print(log())
for bad in (lambda: interop.empty(3, "int8").prefetch(), lambda: x.advise("often"), lambda: x.prefetch(1)):
    try:
        bad()
    except (TypeError, ValueError) as error:
        print(error)
""")
    calls, first, second, third = said.splitlines()
    assert eval(calls) == [
        "cuMemPrefetchAsync 4000 0",
        "cuMemPrefetchAsync 4000 -1",
        "cuMemPrefetchAsync 40 0",
        "cuMemAdvise 4000 1 0",
        "cuMemAdvise 4000 3 -1",
        "cuMemAdvise 4000 6 0",
    ]
    assert first == "interop.Array.prefetch: the array lies in device memory; accepted: managed memory"
    assert second == (
        "interop.Array.advise: advice is 'often'; accepted: 'read_mostly', 'preferred_location', 'accessed_by'"
    )
    assert third == (
        "interop.Array.prefetch: device is 1; this machine has 1 CUDA device(s); accepted: None, 'host', an index, "
        "'cuda' or 'cuda:<index>'"
    )


# ---- arguments ----


def test_devices_and_streams_that_are_not_there(play):
    said = play("""
for given in ({"device": 1}, {"device": "cuda:7"}, {"device": "gpu"}, {"device": 1.5}, {"memory": "host", "device": 0},
              {"memory": "host", "stream": 1}, {"stream": "fast"}):
    try:
        interop.empty(3, "float32", **given)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
""")
    lines = said.splitlines()
    here, accepted = "; this machine has 1 CUDA device(s)", "; accepted: None, an index, 'cuda' or 'cuda:<index>'"
    for line, device in zip(lines[:3], (f"1{here}", f"'cuda:7'{here}", "'gpu'"), strict=True):
        assert line == f"ValueError interop.empty: device is {device}{accepted}"
    assert lines[3] == "TypeError interop.empty: device is float; accepted: None, an index, 'cuda' or 'cuda:<index>'"
    assert lines[4] == "ValueError interop.empty: device is 0, and memory is 'host'; accepted: None"
    assert lines[5] == "ValueError interop.empty: stream is 1, and memory is 'host', which has none; accepted: None"
    assert lines[6].startswith("TypeError interop.empty: stream is")


def test_a_torch_without_cuda_is_not_asked_for_its_stream(play):
    """It raises AssertionError where it is."""
    machine.need("torch")
    said = play("""
import torch
assert not torch.cuda.is_initialized()
x = device_ones(8)
print(x.__cuda_array_interface__["shape"])
""")
    assert said == "(8,)\n"
