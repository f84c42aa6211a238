"""`interop.copyto` and `Array.to` on a driver that is played: what it is called for, and what waits.

It has no kernels: what needs one is in tests/gpu/test_copies.py.
"""

from __future__ import annotations


def test_pinned_memory_is_copied_without_waiting(play):
    said = play("""
x = interop.empty(1000, "float32", memory="pinned")
np.asarray(x)[:] = 3
y = interop.empty(1000, "float32")
z = interop.empty(1000, "float32", memory="pinned")
log()
interop.copyto(y, x)
interop.copyto(z, y)
print([line for line in log() if "Synchronize" in line or "Memcpy" in line])
assert (np.asarray(z) == 3).all()
""")
    assert eval(said) == ["cuMemcpyAsync 4000"] * 2


def test_other_host_memory_is_ready_on_return(play):
    said = play("""
x = device_ones(1000)
y = np.zeros(1000, "float32")
log()
interop.copyto(y, x)
print([line for line in log() if "StreamSynchronize" in line or "Memcpy" in line])
assert (y == 1).all()
pinned = interop.empty(1000, "float32", memory="pinned")
view = np.asarray(pinned)  # of which NumPy knows nothing
view[:] = 0
log()
interop.copyto(view, x)
print([line for line in log() if "StreamSynchronize" in line or "Memcpy" in line])
assert (view == 1).all()
log()
interop.copyto(x, view)  # which may be written to at once
print([line for line in log() if "StreamSynchronize" in line or "Memcpy" in line])
log()
interop.copyto(x, interop.asarray(view))
print([line for line in log() if "StreamSynchronize" in line or "Memcpy" in line])
log()
interop.copyto(x, view, stream=2)
print([line for line in log() if "StreamSynchronize" in line or "Memcpy" in line])
""")
    first, second, third, again, fourth = said.splitlines()
    assert eval(first) == eval(second) == eval(third) == eval(again) == ["cuMemcpyAsync 4000", "cuStreamSynchronize"]
    assert eval(fourth) == ["cuMemcpyAsync 4000"]


def test_rows_are_copied_by_the_engines(play):
    said = play("""
values = np.arange(64 * 100, dtype="float32").reshape(64, 100)
x = interop.empty((64, 50), "float32")
log()
interop.copyto(x, values[:, 25:75])
back = np.zeros((64, 200), "float32")
interop.copyto(back[:, 100:150], x)
print([line for line in log() if "Memcpy" in line])
assert (back[:, 100:150] == values[:, 25:75]).all() and (back[:, :100] == 0).all()
""")
    assert eval(said) == ["cuMemcpy2DAsync 200 64"] * 2


def test_to_another_memory(play):
    play("""
x = interop.asarray(np.arange(6, dtype="float32").reshape(2, 3))
assert x.to(memory="host") is x and x.to() is x
d = x.to(memory="device")
assert (d.memory, d.device, d.shape, d.tolist()) == ("device", "cuda:0", (2, 3), x.tolist())
assert d.to(device=0) is d and d.to(memory="device", device="cuda:0") is d
assert x.to(device="cuda").memory == "device"
for memory in ("managed", "pinned", "host"):
    y = d.to(memory=memory)
    assert y.memory == memory and y.device == ("cuda:0" if memory == "managed" else "cpu")
    assert np.asarray(y).tolist() == x.tolist()
    assert y.to(memory="device").tolist() == x.tolist()
""")
