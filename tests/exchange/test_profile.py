"""`interop.profile` on a driver that is played: each call of it that allocates, copies or waits is counted once."""

from __future__ import annotations

import pytest


@pytest.fixture
def play(play):
    def with_sizes(code):
        start = "def sizes(counts):\n    return {kind: (each.count, each.bytes) for kind, each in counts.items()}\n"
        return play(start + code)

    return with_sizes


def test_each_kind_of_memory(play):
    play("""
with interop.profile() as p:
    kept = [interop.empty(1000, "float32", memory=m) for m in ("device", "managed", "pinned", "host")]
    del kept
    interop.empty(1000, "float32", memory="pinned")  # in the block that was kept
made = sizes(p.allocations)
assert made == {"device": (1, 4000), "managed": (1, 4096), "pinned": (2, 8192), "host": (1, 4000)}, made
assert sizes(p.holds)["block, until its work is done"] == (3, 3 * 4096), p.holds
assert p.transfers == {}
""")


def test_a_profile_that_begins_before_the_driver_is_opened(play):
    play("""
with interop.profile() as p:
    interop.empty(1000, "float32")
assert sizes(p.allocations)["device"] == (1, 4000)
""")


def test_a_profile_that_ends_counts_no_more(play):
    play("""
with interop.profile() as p, interop.profile() as q:
    interop.empty(1000, "float32")
interop.empty(1000, "float32")
with interop.profile() as r:
    pass
assert p.allocations["device"].count == q.allocations["device"].count == 1
assert r.allocations == {}
""")


def test_each_direction(play):
    play("""
rows = np.ones((64, 200), "float32")
x = interop.empty(6400, "float32")
y, pinned = interop.empty(6400, "float32"), interop.empty(6400, "float32", memory="pinned")
managed = interop.empty(6400, "float32", memory="managed")
host = np.ones(6400, "float32")
def kinds(dst, src):
    with interop.profile() as p:
        interop.copyto(dst, src)
    return sizes(p.transfers)
assert kinds(x, host) == {"host to device": (1, 25600)}
assert kinds(host, x) == {"device to host": (1, 25600)}
assert kinds(x, pinned) == {"host to device": (1, 25600)}
assert kinds(pinned, x) == {"device to host": (1, 25600)}
assert kinds(x, y) == {"device to device": (1, 25600)}
assert kinds(x, managed) == {"device to device": (1, 25600)}
assert kinds(managed, host) == {"host to device": (1, 25600)}
assert kinds(x.reshape(64, 100), rows[:, 50:150]) == {"host to device": (1, 25600)}
assert kinds(rows[:, 50:150], x.reshape(64, 100)) == {"device to host": (1, 25600)}
with interop.profile() as p:
    managed.prefetch("host")
assert sizes(p.transfers)["prefetch"] == (1, 25600) and p.copies[0].function == "interop.Array.prefetch"
""")


def test_waits_of_the_host(play):
    play("""
x = device_ones(1000)
pinned = x.to(memory="pinned")
with interop.profile() as p:
    x.tolist()
assert p.waits["host for stream"].count == 1 and "host for event" not in p.waits, p.waits
assert sizes(p.transfers)["device to host"] == (1, 4000)
with interop.profile() as p:
    np.asarray(pinned)
assert p.waits["host for event"].count == 1 and "host for stream" not in p.waits, p.waits
""")


def test_waits_of_streams(play):
    play("""
x = device_ones(1000)
with interop.profile() as p:
    x.__dlpack__(stream=2)
log_of_it = log()
with interop.profile() as q:
    x.to(memory="host")
assert p.waits["stream for event"].count == log_of_it.count("cuStreamWaitEvent") > 0, p.waits
assert "host for stream" not in p.waits
""")


def test_what_one_thread_of_interops_waits_for_is_no_wait_of_the_users(play):
    said = play("""
import gc, time
class Foreign:  # of no known library: it is held until the work is done
    def __init__(self):
        self.array = device_ones(8)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)
out = interop.empty(8, "float32")
foreign = Foreign()
with interop.profile() as p:
    interop.copyto(out, foreign, stream=2)
    end = time.monotonic() + 10
    while interop._core.held_count() and time.monotonic() < end:
        time.sleep(0.01)
assert p.holds["until a stream's work is done"].count == 1, p.holds
assert p.waits["interop's own thread for event"].count >= 1, p.waits
assert "host for event" not in p.waits and "host for stream" not in p.waits, p.waits
""")
    assert said == ""


def test_freeing_what_is_kept_waits(play):
    play("""
interop.empty(1000, "float32", memory="pinned")
interop.empty(1000, "float32", memory="managed")
with interop.profile() as p:
    interop.memory_pool("pinned").trim()
    interop.memory_pool("managed").trim()
assert p.waits["host for device, to free memory"].count == 2, p.waits
""")


def test_where_copies_come_from(play):
    said = play("""
x = device_ones(4)
with interop.profile() as p:
    begin = __import__("sys")._getframe().f_lineno
    repr(x)
    x.tolist()
    x.to(memory="host")
    interop.copy(x, memory="host")
    x[1:3] = np.zeros(2, "float32")
print([(c.function, c.kind, c.line - begin, c.count) for c in sorted(p.copies, key=lambda c: c.line)])
assert {c.file for c in p.copies} == {__file__}
""")
    assert eval(said) == [
        ("interop.Array.__repr__", "device to host", 1, 1),
        ("interop.Array.tolist", "device to host", 2, 1),
        ("interop.Array.to", "device to host", 3, 1),
        ("interop.copy", "device to host", 4, 1),
        ("interop.Array.__setitem__", "host to device", 5, 1),
    ]


def test_host_arrays_that_are_computed_on_the_device(play):
    """Two are sent, and the result is fetched; an array with gaps is made compact first."""
    play("""
a, b = np.ones(1000, "float32"), np.ones(2000, "float32")[::2]
with interop.profile() as p:
    add(a, b, n=1000, execution="cuda")
sent = sizes(p.transfers)
assert sent == {"host to host": (1, 4000), "host to device": (2, 8000), "device to host": (1, 4000)}, sent
assert {each.file for each in p.copies} == {__file__}
assert len({each.line for each in p.copies}) == 1
""")


def test_a_call_that_fails_is_not_counted(play):
    play("""
fail("cuMemAllocFromPoolAsync", 2)
with interop.profile() as p:
    try:
        interop.empty(1000, "float32")
    except interop.CudaError:
        pass
assert p.allocations == {}, p.allocations
""")


def test_the_allocator_of_the_users(play):
    play("""
interop.set_allocator(lambda count, device, stream: pool[:count])
interop.set_allocator(None)
pool = interop.empty(1 << 16, "uint8")
interop.set_allocator(lambda count, device, stream: pool[:count])
with interop.profile() as p:
    interop.empty(1000, "float32")
assert sizes(p.allocations) == {"device, by the plugged allocator": (1, 4000)}
""")


def test_threads_without_python_are_counted_beside_those_with_it(play):
    """A thread that holds no lock of Python's, in a copy, asks for it: nobody waits for ever."""
    play("""
import threading
x = device_ones(100)
def work():
    for _ in range(300):
        x.tolist()
with interop.profile() as p:
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    while any(thread.is_alive() for thread in threads):
        with interop.profile():
            p.as_dict()
assert sizes(p.transfers)["device to host"] == (1200, 1200 * 400)
assert len(p.copies) == 1
""")
