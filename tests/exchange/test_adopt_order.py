"""The order of the work of `interop.adopt` on a device that is played: see tests/helpers/played_cupy.py.

The functions are tvm-ffi's own. With kernels of each library: tests/gpu/test_adopt.py.
"""

from __future__ import annotations

import pytest
from helpers import machine


@pytest.fixture
def play_tvm(play):
    machine.need("tvm_ffi")

    def play_it(code):
        return play(
            """
from helpers.played_cupy import *
import tvm_ffi
gpu = tvm_ffi.device("cuda", 0)
def current():
    return tvm_ffi.get_raw_stream(gpu)
def sum_of(a, b, c):
    add(a.data_ptr(), b.data_ptr(), c.data_ptr(), current())
f = tvm_ffi.convert(sum_of)
call = interop.adopt(f, "a, b, c", writes="c")
one, two, home = new_stream(), new_stream(), new_stream()
def values(x):
    return set(x.tolist())
"""
            + code
        )

    return play_it


def test_the_function_works_on_the_stream_of_the_first_array(play_tvm):
    play_tvm("""
x, seen = Field(1, one), []
x.write(2)
def noted(*arrays):
    seen.append(current())
    sum_of(*arrays)
made = interop.adopt(tvm_ffi.convert(noted), "a, b, c", writes="c").returning(c="a")(x, x)
assert type(made) is interop.Array  # as of every library that makes no arrays
assert seen == [one] and current() == 0
assert values(made) == {8}
""")


def test_it_waits_for_the_other_arguments(play_tvm):
    play_tvm("""
x, y, out = Field(1, one), Field(1, two), Field(0, one)
y.write(5)
assert call(x, y, out) is None
assert out.read() == 11
""")


def test_the_other_arguments_wait_for_it(play_tvm):
    play_tvm("""
x, out = Field(1, one), Field(0, two)
call(x, x, out)
assert out.read() == 2
""")


def test_the_arrays_of_a_list_are_ready(play_tvm):
    play_tvm("""
x, kept = Field(1, one), memory(-1)
x.write(3)
def doubled(a):
    add(a.data_ptr(), a.data_ptr(), pointer(kept), current())
    return [tvm_ffi.from_dlpack(kept), 3]
made, number = interop.adopt(tvm_ffi.convert(doubled), "a", writes=())(x)
assert type(made) is interop.Array and number == 3
assert values(made) == {12}
""")


def test_an_interop_array_knows_of_the_work(play_tvm):
    play_tvm("""
x, out = Field(1, one), memory(0)
call(x, x, out)
assert values(out) == {2}
made = call.returning(c="a")(out, out)  # on interop's own stream
assert values(made) == {4}
""")


def test_a_given_stream_alone_has_the_result(play_tvm):
    play_tvm("""
x, out = Field(1, one), Field(0, one)
x.write(2)
ask_early()
call(x, x, out, stream=two)
assert interop._core.held_count() > 0  # the memory is kept, and nobody waits
out.stream = two
assert out.read() == 8
""")


def test_what_the_function_raises_leaves_all_in_order(play_tvm):
    play_tvm("""
x, out = Field(1, one), memory(0)
def fails(a, c):
    sum_of(a, a, c)
    raise KeyError("mine")
try:
    interop.adopt(tvm_ffi.convert(fails), "a, c", writes="c")(x, out)
except KeyError as error:
    assert "mine" in str(error)
else:
    raise AssertionError
assert current() == 0
assert values(out) == {2}  # which knows of the work that was queued
""")


def test_an_array_that_it_returns_knows_of_the_work(play_tvm):
    play_tvm("""
x, zeros = Field(1, one), memory(0)
def returns(a, b):
    sum_of(a, a, b)
    return b
made = interop.adopt(tvm_ffi.convert(returns), "a, b", writes="b")(x, out := memory(0))
assert type(made) is interop.Array
assert values(made) == {2}
""")


def test_arrays_that_it_finds_elsewhere_are_ordered_too(play_tvm):
    play_tvm("""
x, kept = Field(1, one), memory(0)
def with_another(a, c):
    assert current() == one
    f(a, kept, c)     # which reads it
    f(a, a, kept)     # and writes to it
outer = interop.adopt(tvm_ffi.convert(with_another), "a, c", writes="c").returning(c="a")
pending = Field(1, two)
pending.write(5)
call(pending, pending, kept)
made = outer(x)
assert values(kept) == {2}
assert values(made) == {21}
""")


def test_memory_that_it_allocates_is_kept_until_the_work_is_done(play_tvm):
    """By the table of `interop.Array`, as tvm-ffi's environment does."""
    play_tvm("""
api = dlpack.exchange_api_of(interop.Array)
def with_scratch(a, c):
    managed = ctypes.c_void_p()
    like = dlpack.Tensor(None, dlpack.Device(dlpack.CUDA, 0), 1, dlpack.DataType(2, 32, 1), sizes, None, 0)
    assert api.allocator(ctypes.byref(like), ctypes.byref(managed), None, None) == 0
    owned = dlpack.ManagedVersioned.from_address(managed.value)
    scratch = owned.tensor.data
    add(a.data_ptr(), a.data_ptr(), scratch, current())
    add(scratch, scratch, c.data_ptr(), current())
    owned.deleter(managed)
sizes = (ctypes.c_int64 * 1)(N)
x = Field(1, one)
call, out = interop.adopt(tvm_ffi.convert(with_scratch), "a, c", writes="c"), Field(0, one)
ask_early()
log()
call(x, out)
assert "cuMemFreeAsync" not in log()  # as the work is still to be done
assert interop._core.held_count() > 0
assert out.read() == 4
""")


def test_explain_says_the_stream_and_the_waits(play_tvm):
    said = play_tvm("""
x, y = Field(1, one), Field(1, two)
plan = interop.explain(call.returning(c="a"), x, y)
print(plan.stream == one, plan.device, plan.result_library, plan.result_shape, plan.copies)
print(plan.stream_reason)
print(*plan.waits)
""")
    lines = said.splitlines()
    assert lines[0] == "True cuda:0 fields (64,) ()"
    assert lines[1] == "the one that a itself names"
    assert lines[2].startswith("b: the call waits for stream 0x")
    assert lines[2].endswith("which waits for the call in turn")
