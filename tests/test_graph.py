"""`interop.graph` without a GPU: what it refuses, and what a replay waits for on a driver that is played.

On a GPU: tests/gpu/test_graph.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import alone, drivers, machine

import interop

# ---- what it refuses ----


@pytest.mark.skipif(machine.gpu_count() > 0, reason="this machine has a GPU")
def test_without_a_gpu():
    missing = "(no NVIDIA driver|no CUDA device|the NVIDIA driver|starting|built without)"
    for given in ({}, {"stream": 5}, {"device": 0}):
        with pytest.raises(interop.CudaError, match=f"^interop.graph: .*{missing}"):
            interop.graph(**given)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (TypeError, {"pool": 1}, "pool is int; accepted: the pool of another interop.Graph, or None"),
        (TypeError, {"pool": (0, 1)}, "pool is tuple; accepted"),
        (TypeError, {"stream": "x"}, "stream is"),
        (TypeError, {"device": 1.5}, "device is float"),
        (ValueError, {"device": "cpu"}, "device is 'cpu'"),
    ],
)
def test_arguments_are_refused_by_name(kind, given, said):
    with pytest.raises(kind, match=rf"^interop\.graph: {re.escape(said)}"):
        interop.graph(**given)


# ---- on a driver that is played ----

CAPTURES = """
static u64 captured, captures;
int cuStreamGetCaptureInfo_v2(u64 stream, int* status, u64* id, void** graph, void* nodes, void* count) {
  *status = captured && stream == captured ? 1 : 0;
  if (id) *id = captures;
  if (graph) *graph = (void*)1;
  return 0;
}
int cuStreamBeginCapture_v2(u64 stream, int mode) {
  captured = stream;
  ++captures;
  return TELL("capture %llu in mode %d", stream, mode);
}
int cuStreamEndCapture(u64 stream, void** graph) {
  captured = 0;
  *graph = (void*)1;
  return TELL("end the capture of %llu", stream);
}
int cuGraphRetainUserObject(void* graph, void* object, unsigned count, unsigned flags) {
  return TELL("the graph keeps");
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, u64 flags) { *exec = (void*)2; return 0; }
int cuGraphDestroy(void* graph) { return 0; }
int cuGraphLaunch(void* exec, u64 stream) { return TELL("launch the graph on %llu", stream); }
int cuGraphExecDestroy(void* exec) { return TELL("destroy the graph"); }
"""
RELAXED = 2

VIEW = """
import sys

class Numbers:
    __cuda_array_interface__ = {"version": 3, "shape": (4,), "typestr": "<f4", "data": (4096, False)}

def say(text):
    print(text)
    sys.stdout.flush()

x = interop.asarray(Numbers())
"""


@pytest.fixture
def play(tmp_path):
    """Run code, with an array `x`, on the played driver; what that was asked for, and the code said, line by line."""
    if drivers.BUILT_FOR == 0:
        pytest.skip("a build for host arrays only")
    text = (Path(__file__).parent / "helpers/order_driver.c").read_text()
    text = re.sub(r"int cuStreamGetCaptureInfo_v2\(.*?\n}\n", "", text, flags=re.DOTALL)
    text = re.sub(r"int cuGraphRetainUserObject\(.*?}\n", "", text)
    drivers.build(tmp_path, count=1, written=text + CAPTURES)

    def run(code):
        return alone.run(VIEW + code, tmp_path, LD_LIBRARY_PATH=str(tmp_path)).splitlines()

    return run


def after(lines, said):
    return lines[lines.index(said) + 1 :]


def test_the_stream_is_captured_relaxed_and_the_graph_launched(play):
    lines = play("""
with interop.graph(stream=77) as g:
    assert int(g.stream) == 77 and g.stream.__cuda_stream__() == (0, 77)
say("replay")
g.replay(stream=9)
say("dropped")
del g
""")
    assert lines.index(f"capture 77 in mode {RELAXED}") < lines.index("end the capture of 77") < lines.index("replay")
    assert "launch the graph on 9" in after(lines, "replay")


def test_a_replay_waits_for_work_on_an_array_and_later_work_for_the_replay(play):
    lines = play("""
with interop.graph(stream=77) as g:
    interop._core.note_foreign_use(x, 77, False, True)
interop._core.note_foreign_use(x, 5, True, True)  # work that comes before the replay
say("replay")
g.replay(stream=9)
say("use")
interop.convert(x, "interop", stream=13)
say("again")
g.replay(stream=9)
say("end")
""")
    *_, last_use = (line.split()[1] for line in lines if re.fullmatch(r"record \d+ on 5", line))
    replay = after(lines, "replay")
    assert replay.index(f"9 waits for {last_use}") < replay.index("launch the graph on 9")
    behind = after(replay, "launch the graph on 9")
    recorded = re.match(r"record (\d+) on 9$", behind[0])[1]
    assert f"13 waits for {recorded}" in after(lines, "use")
    again = after(lines, "again")
    assert not any(line.startswith("9 waits for ") for line in again[: again.index("launch the graph on 9")])


def test_work_that_another_thread_queues_as_a_replay_is_launched_is_waited_for(play):
    lines = play("""
with interop.graph(stream=77) as g:
    interop._core.note_foreign_use(x, 77, False, True)
g._capture.before(9)
interop._core.note_foreign_use(x, 5, True, True)
g._capture.after(9)
say("use")
interop.convert(x, "interop", stream=13)
""")
    *_, last_use = (line.split()[1] for line in lines if re.fullmatch(r"record \d+ on 5", line))
    assert f"13 waits for {last_use}" in after(lines, "use")


def test_an_array_that_is_given_to_another_library_in_the_block_is_ordered_and_kept(play):
    lines = play("""
say("before")
with interop.graph(stream=77) as g:
    x.__dlpack__(stream=77)
say("after")
interop._core.note_foreign_use(x, 5, True, True)
say("replay")
g.replay(stream=9)
say("use")
interop.convert(x, "interop", stream=13)
""")
    assert "the graph keeps" in lines[lines.index("before") : lines.index("after")]
    *_, last_use = (line.split()[1] for line in lines if re.fullmatch(r"record \d+ on 5", line))
    replay = after(lines, "replay")
    assert replay.index(f"9 waits for {last_use}") < replay.index("launch the graph on 9")
    recorded = re.match(r"record (\d+) on 9$", after(replay, "launch the graph on 9")[0])[1]
    assert f"13 waits for {recorded}" in after(lines, "use")


def test_the_graph_keeps_an_array_of_interop_that_a_call_uses(play):
    lines = play("""
say("before")
with interop.graph(stream=77) as g:
    interop._core.note_foreign_use(x, 77, False, False)
    interop._core.note_foreign_use(x, 77, False, False)
say("after")
""")
    assert "the graph keeps" in lines[lines.index("before") : lines.index("after")]


def test_a_stream_that_is_captured_later_is_refused(play):
    play("""
import ctypes
g = interop.graph(stream=77)
ctypes.CDLL("libcuda.so.1").cuStreamBeginCapture_v2(ctypes.c_uint64(77), 2)
try:
    with g:
        pass
except ValueError as error:
    assert "stream is being captured into a CUDA graph already" in str(error)
else:
    raise AssertionError
""")


def test_a_replay_on_another_stream_waits_for_the_one_before(play):
    lines = play("""
with interop.graph(stream=77) as g:
    pass
g.replay(stream=9)
say("another")
g.replay(stream=11)
""")
    recorded = re.match(r"record (\d+) on 9$", after(lines, "launch the graph on 9")[0])[1]
    another = after(lines, "another")
    assert another.index(f"11 waits for {recorded}") < another.index("launch the graph on 11")


def test_calls_without_a_stream_go_on_the_one_that_is_captured(play):
    lines = play("""
own = interop._core.Capture(0, None)
with interop.graph(stream=77) as g:
    say(f"own {own.own_stream()}")
say(f"own {own.own_stream() != 77}")
""")
    assert "own 77" in lines
    assert "own True" in lines


def test_one_at_a_time_and_once(play):
    play("""
import pytest
import gc

with interop.graph(stream=77) as g:
    assert not gc.isenabled()
    with pytest.raises(ValueError, match="this thread is in the block of another interop.graph"):
        interop.graph(stream=78)
    with pytest.raises(ValueError, match="interop.Graph.replay: nothing was captured"):
        g.replay()
assert gc.isenabled()
with pytest.raises(ValueError, match="this graph was captured before"):
    with g:
        pass
with pytest.raises(ValueError, match="stream is a default stream, which is not captured"):
    interop.graph(stream=1)
g.reset()
with pytest.raises(ValueError, match="interop.Graph.replay: reset.. was called"):
    g.replay()
assert repr(g) == "<interop.Graph, reset, cuda:0>"
""")


def test_an_exception_ends_the_capture(play):
    lines = play("""
import gc

try:
    with interop.graph(stream=77) as g:
        raise KeyError("mine")
except KeyError as error:
    assert not hasattr(error, "__notes__")
assert gc.isenabled()
say("again")
with interop.graph(stream=77) as g:
    pass
g.replay(stream=9)
""")
    assert "end the capture of 77" in lines[: lines.index("again")]
    assert "launch the graph on 9" in after(lines, "again")


# ---- libraries that are played ----

LIBRARIES = """
import contextlib
import types

class Stream:
    def __init__(self, device, cuda_stream=None):
        self.cuda_stream = self.ptr = cuda_stream

warp, cupy = types.ModuleType("warp"), types.ModuleType("cupy")
state = {"warp": Stream(None, 31), "cupy": Stream(None, 41), "allocator": None}

@contextlib.contextmanager
def setting(name, value):
    before, state[name] = state[name], value
    try:
        yield
    finally:
        state[name] = before

warp.Stream, warp.is_cuda_available = Stream, lambda: True
warp.get_stream = lambda device: state["warp"]
warp.ScopedStream = lambda stream, sync_enter: setting("warp", stream)
warp.capture_begin = lambda stream, external: say(f"warp begins on {stream.cuda_stream}, external {external}")
warp.capture_end = lambda stream: say(f"warp ends on {stream.cuda_stream}")

def from_external(named):
    return setting("cupy", Stream(None, named.__cuda_stream__()[1]))

def using_allocator(allocator):
    return setting("allocator", allocator)

class MemoryPool:
    def __init__(self, allocate):
        self.malloc = allocate

class Plans(list):
    sizes = {"size": 16, "memsize": 1 << 20}
    get_size, get_memsize = (lambda self: self.sizes["size"]), (lambda self: self.sizes["memsize"])

    def set_size(self, size):
        self.sizes["size"] = size

    def set_memsize(self, size):
        self.sizes["memsize"] = size

plans = Plans([(None, types.SimpleNamespace(plan=object()))])
cupy.fft = types.SimpleNamespace(config=types.SimpleNamespace(get_plan_cache=lambda: plans))
cupy.cuda = types.SimpleNamespace(
    Device=lambda index: contextlib.nullcontext(), is_available=lambda: True, using_allocator=using_allocator,
    Stream=types.SimpleNamespace(from_external=from_external), get_current_stream=lambda device: state["cupy"],
    runtime=types.SimpleNamespace(getDevice=lambda: 0), MemoryPool=MemoryPool, Memory=lambda size: size,
    MemoryPointer=lambda memory, offset: (memory, offset),
)
sys.modules.update(warp=warp, cupy=cupy)
before = dict(state)
"""


@pytest.fixture
def play_libraries(play):
    return lambda code: play(LIBRARIES + code)


def test_libraries_work_on_the_stream_that_is_captured(play_libraries):
    lines = play_libraries("""
with interop.graph(stream=77) as g:
    assert warp.get_stream("cuda:0").cuda_stream == cupy.cuda.get_current_stream(0).ptr == 77
    assert state["allocator"](8) == (8, 0)
    assert plans.sizes == {"size": -1, "memsize": -1}  # none is dropped
    say("block")
assert state == before
with interop.graph(stream=77, pool=g.pool) as h:
    state["allocator"](16)
assert g.pool._of["cupy"][1] == [8, 16]  # what the pool has had of CUDA, it keeps
assert plans[0][1].plan in g._kept and plans[0][1].plan in h._kept
assert plans.sizes == {"size": 16, "memsize": 1 << 20}
g.reset()
assert g.pool._of["cupy"][1] == [8, 16]  # of the other graph, too
h.reset()
assert not h.pool._of
""")
    order = ["capture 77 in mode 2", "warp begins on 77, external True", "block", "warp ends on 77"]
    places = [lines.index(line) for line in [*order, "end the capture of 77"]]
    assert places == sorted(places)


def test_libraries_are_as_before_after_an_exception(play_libraries):
    lines = play_libraries("""
def failing(stream):
    say("warp ends")
    raise RuntimeError("warp's own")

warp.capture_end = failing
try:
    with interop.graph(stream=77):
        raise KeyError("mine")
except KeyError:
    assert state == before
try:
    with interop.graph(stream=77):
        pass
except RuntimeError:
    assert state == before
try:
    with interop.graph(stream=77):
        sys.modules["numba.cuda"] = warp
except RuntimeError:
    pass
warp.capture_end = lambda stream: None
del sys.modules["numba.cuda"]
try:
    with interop.graph(stream=77):
        sys.modules["numba.cuda"] = warp
except ValueError as error:
    assert "the block has imported numba, whose work was not captured" in str(error)
    assert state == before
""")
    assert lines.count("end the capture of 77") == lines.count("capture 77 in mode 2") == 4


def test_a_replay_and_the_current_streams_wait_for_each_other(play_libraries):
    lines = play_libraries("""
with interop.graph(stream=77) as g:
    pass
say("replay")
g.replay()
say("given")
g.replay(stream=9)
say("end")
""")
    replay, given = lines[lines.index("replay") : lines.index("given")], lines[lines.index("given") :]

    def joined(lines, waiter, stream):
        events = [line.split()[1] for line in lines if re.fullmatch(rf"record \d+ on {stream}", line)]
        return any(f"{waiter} waits for {event}" in lines for event in events)

    launch = replay.index("launch the graph on 41")  # CuPy's current stream
    assert joined(replay[:launch], 41, 31)
    assert joined(replay[launch:], 31, 41)
    launch = given.index("launch the graph on 9")
    assert joined(given[:launch], 9, 31)
    assert joined(given[:launch], 9, 41)
    assert not any(line.startswith(("31 waits", "41 waits")) for line in given[launch:])
