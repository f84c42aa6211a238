"""The order of the work of `interop.adapt` on a device that is played, and of CuPy: see tests/helpers/played_cupy.py.

What this driver is asked to do runs as late as CUDA allows. With CuPy itself: tests/gpu/test_adapt.py.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def play_cupy(play):
    def play_it(code):
        return play(
            """
from helpers.played_cupy import *
one, two, home = new_stream(), new_stream(), new_stream()
call = interop.adapt(summed, "cupy")
def values(x):
    return set(x.tolist())
"""
            + code
        )

    return play_it


def test_the_function_works_on_the_stream_of_the_first_array(play_cupy):
    play_cupy("""
x = Field(1, one)
x.write(2)
seen = []
def noted(a, b):
    seen.append(cuda.get_current_stream().ptr)
    return summed(a, b)
made = interop.adapt(noted, "cupy")(x, x)
assert type(made) is interop.Array  # as of every library that makes no arrays
assert seen == [one] and cuda.get_current_stream() is Stream.null
assert values(made) == {8}
""")


def test_it_waits_for_the_other_arguments(play_cupy):
    play_cupy("""
x, y, out = Field(1, one), Field(1, two), Field(0, one)
y.write(5)
made = call(x, y, out=out)
assert made is out
assert out.read() == 11
""")


def test_the_other_arguments_wait_for_it(play_cupy):
    play_cupy("""
x, out = Field(1, one), Field(0, two)
assert call(x, x, out=out) is out
assert out.read() == 2
""")


def test_arrays_of_the_library_itself_are_waited_for(play_cupy):
    play_cupy("""
x, out = Field(1, one), Field(0, one)
with Stream(home):
    y, threes = array(1), memory(3)
    add(pointer(threes), pointer(threes), y.data.ptr, home)
    call(x, y, out=out)
assert out.read() == 7
""")


def test_the_librarys_own_stream_waits_for_work_on_its_arrays(play_cupy):
    play_cupy("""
x, zeros, seen = Field(1, one), memory(0), memory(-1)
with Stream(home):
    out = array(0)
    assert call(x, x, out=out) is out
add(out.data.ptr, pointer(zeros), pointer(seen), home)
driver.cuStreamSynchronize(ctypes.c_void_p(home))
assert ctypes.c_float.from_address(pointer(seen)).value == 2
""")


def test_arrays_that_the_function_is_bound_to_are_waited_for(play_cupy):
    play_cupy("""
x, out = Field(1, one), Field(0, one)
y, fives = array(1), memory(5)
bound = interop.adapt(lambda x, out=None: summed(x, y, out), "cupy")
with Stream(home):
    add(pointer(fives), pointer(fives), y.data.ptr, home)
    assert bound(x, out) is out
assert out.read() == 11
with Stream(home):
    add(pointer(fives), y.data.ptr, y.data.ptr, home)
    bound(x, out, stream=two)
out.stream = two
assert out.read() == 16
""")


def test_writes_after_the_call_to_what_the_function_is_bound_to_wait_for_it(play_cupy):
    play_cupy("""
x, out = Field(1, one), Field(0, one)
y, fives = array(1), memory(5)
x.write(3)
with Stream(home):
    interop.adapt(lambda x, out: summed(x, y, out), "cupy")(x, out)
    add(pointer(fives), pointer(fives), y.data.ptr, home)
driver.cuStreamSynchronize(ctypes.c_void_p(home))
assert out.read() == 7
""")


def test_a_capture_without_the_librarys_own_stream_leaves_that_be(play_cupy):
    """Where no argument is there; this driver has no captures, so their refusal is played."""
    play_cupy("""
x, out, own = Field(1, one), Field(0, one), array(1)
def refused(waiter, stream, device):
    raise ValueError("not part of the same CUDA graph capture")
interop._core.wait_stream = refused
assert call(x, x, out=out) is out
assert out.read() == 2
try:
    call(x, own, out=out)
except ValueError as error:
    assert "capture" in str(error)
else:
    raise AssertionError
""")


def test_an_interop_array_knows_of_the_work(play_cupy):
    play_cupy("""
x, out = Field(1, one), memory(0)
assert call(x, x, out=out) is out
assert values(out) == {2}
with Stream(home):
    assert type(call(out, out)) is interop.Array
    assert values(call(out, out)) == {4}
""")


def test_a_given_stream_alone_has_the_result(play_cupy):
    play_cupy("""
x, out = Field(1, one), Field(0, one)
x.write(2)
ask_early()
call(x, x, out=out, stream=two)
assert out.stream == one and interop._core.held_count() > 0  # the memory is kept, and nobody waits
out.stream = two
assert out.read() == 8
with Stream(home):
    y, out = array(2), array(0)
    call(y, y, out=out, stream=two)
    driver.cuStreamSynchronize(ctypes.c_void_p(two))
    assert ctypes.c_float.from_address(out.data.ptr).value == 4
""")


def test_a_given_stream_with_arrays_of_a_library_that_is_not_told_streams(play_cupy):
    """As JAX is, or interop itself: they are on the GPU all the same."""
    play_cupy("""
x = memory(1)
assert interop.adapt(lambda x: x, "interop")(x, stream=one) is x
host = interop.ones(3, "float32", memory="host")
try:
    interop.adapt(lambda x: x, "interop")(host, stream=one)
except ValueError as error:
    assert "x is in host memory" in str(error)
else:
    raise AssertionError
""")


def test_the_device_of_the_arrays_is_numbas_meanwhile(play_cupy):
    play_cupy("""
entered = []
class Device(contextlib.nullcontext):
    def __enter__(self):
        entered.append(0)
numba, driver_of = types.ModuleType("numba.cuda"), types.ModuleType("numba.cuda.cudadrv.driver")
driver_of.config = types.SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=False)
numba.gpus = {0: Device()}
numba.as_cuda_array = lambda shown, sync: shown
numba.get_current_device = lambda: types.SimpleNamespace(id=current)
sys.modules |= {"numba": numba, "numba.cuda": numba, "numba.cuda.cudadrv.driver": driver_of}
seen = interop.adapt(lambda x: len(entered), "numba")
for current, count in ((1, 2), (0, 1)):  # one of them for the conversion of the argument
    entered.clear()
    assert seen(memory(1)) == count
""")


def test_what_the_function_raises_leaves_all_as_it_was(play_cupy):
    play_cupy("""
x, out = Field(1, one), memory(0)
def fails(a, out):
    summed(a, a, out)
    raise KeyError("mine")
try:
    interop.adapt(fails, "cupy")(x, out)
except KeyError as error:
    assert error.args == ("mine",)
else:
    raise AssertionError
assert cuda.get_current_stream() is Stream.null
assert values(out) == {2}  # which knows of the work that was queued
""")


def test_explain_says_the_stream_and_the_waits(play_cupy):
    said = play_cupy("""
x, y = Field(1, one), Field(1, two)
plan = interop.explain(call, x, y)
print(plan.stream == one, plan.device, plan.result_library, plan.result_shape, plan.copies, plan.held)
print(plan.stream_reason)
print(*plan.waits)
print(plan.waits[0].count(f"{two:#x}"))
print(interop.explain(call, x, y, stream=home).held)
""")
    lines = said.splitlines()
    assert lines[0] == "True cuda:0 fields None () ()"
    assert lines[1] == "the current one of fields, the library of a, or the one that it names"
    assert lines[2].startswith("b: the call waits for stream 0x")
    assert lines[3:] == ["1", "('a', 'b')"]


def test_host_arrays_are_copied_to_the_device_and_back_where_that_is_asked_for(play_cupy):
    said = play_cupy("""
ones = np.ones(N, "float32")
try:
    call(ones, ones)
except TypeError as error:
    print(error)
copying = interop.adapt(summed, "cupy", writes="out", copy=None)
made = copying(ones, ones)
assert type(made) is np.ndarray and set(made) == {2}
plan = interop.explain(copying, ones, ones)
print(plan.copies[0])
try:
    copying(ones, ones, out=ones)
except TypeError as error:
    print(error)
""")
    lines = said.splitlines()
    assert "interop.adapt(summed): a: CuPy has arrays on the GPU only; a is float32" in lines[0]
    assert lines[0].endswith("; or let the call copy it, by copy=None, and writes= without it")
    assert lines[1].startswith("a: copied, as CuPy has arrays on the GPU only")
    assert "interop.adapt(summed): out: CuPy has arrays on the GPU only; out is float32" in lines[2]
