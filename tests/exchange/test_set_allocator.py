"""Another allocator than interop's own, on a driver that is played; of libraries' pools: tests/gpu/test_memory.py."""

from __future__ import annotations

import pytest


def test_a_function_gives_the_memory(play):
    """And what it gave is dropped once the work that used it is done."""
    said = play("""
import gc, time

class Memory:
    dropped = 0
    def __init__(self, count):
        self.array = interop.empty(count, "uint8", memory="managed")
        self.__cuda_array_interface__ = self.array.__cuda_array_interface__
    def __del__(self):
        Memory.dropped += 1

asked = []
def allocate(count, device, stream):
    asked.append((count, device, stream))
    return Memory(count)

interop.set_allocator(allocate)
x = interop.empty((10, 100), "float32")
assert (x.memory, x.device, x.shape, x.dtype) == ("managed", "cuda:0", (10, 100), "float32")
assert asked == [(4000, 0, x.stream)]
interop.copyto(x, np.full((10, 100), 3, "float32"))
assert (np.asarray(x) == 3).all()
capsule = memoryview(interop.asarray(np.ones(3)))
class Led:
    __cuda_array_interface__ = x.__cuda_array_interface__
c = lib.add.returning(c="a")(Led(), Led(), n=1000)
assert [count for count, _, _ in asked] == [4000, 4000]
assert (np.asarray(c) == 6).all()
del c
x[3:].synchronize()
view = x[5]
del x
gc.collect()
assert Memory.dropped <= 1
del view
end = time.monotonic() + 30
while Memory.dropped < 2 and time.monotonic() < end:
    time.sleep(0.01)
assert Memory.dropped == 2
interop.set_allocator(None)
assert interop.empty(3, "float32").memory == "device"
assert len(asked) == 2
""")
    assert said == ""


def test_rmm_is_asked_for_memory_on_the_stream(play):
    """RMM's own buffers need a driver that is whole, so they are played, too; its streams are its own."""
    pytest.importorskip("rmm")
    play("""
import rmm
from rmm.pylibrmm.stream import Stream

asked = []
class DeviceBuffer:
    def __init__(self, *, size, stream):
        assert type(stream) is Stream
        asked.append((size, stream.__cuda_stream__()))
        self.memory = interop.empty(size, "uint8", memory="managed")
        self.ptr = np.asarray(self.memory).ctypes.data

rmm.DeviceBuffer = DeviceBuffer
interop.set_allocator("rmm")
log()
x = interop.empty(1000, "float32")
assert asked == [(4000, (0, x.stream))]
assert "cuStreamWaitEvent" not in log()
y = interop.empty(10, "uint8", stream=2)
assert asked[1:] == [(10, (0, 2))]
np.asarray(x)[:] = 0
queue(x)
assert (np.asarray(x) == 2).all()
""")


def test_what_an_allocator_gives_is_checked(play):
    said = play("""
def give(made):
    interop.set_allocator(lambda count, device, stream: made(count))
    try:
        interop.empty(1000, "float32")
    except Exception as error:
        print(type(error).__name__, error)

def managed(count):
    return interop.empty(count, "uint8", memory="managed")

give(lambda count: managed(count - 1))
give(lambda count: managed(2 * count)[::2])
give(lambda count: managed(count + 1)[1:])
give(lambda count: np.empty(count, "uint8"))
give(lambda count: None)
give(lambda count: 1 / 0)
interop.set_allocator(None)
interop.empty(1000, "float32")
""")
    start = "ValueError interop.set_allocator: the allocator was asked for 4000 bytes on cuda:0, and gives "
    end = "; accepted: a compact, writable array of as many bytes there, at a multiple of 64"
    lines = said.splitlines()
    given = ("an array of shape (3999,)", "an array of shape (4000,)", "another address")
    assert lines[:3] == [start + what + end for what in given]
    assert "the memory is in host memory" in lines[3]
    assert lines[4].startswith("TypeError interop.set_allocator: the memory is NoneType")
    assert lines[5] == "ZeroDivisionError division by zero"
