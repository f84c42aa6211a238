"""Arrays between processes, on the host: `interop.share` and `interop.open`."""

from __future__ import annotations

import copy
import os
import pickle
import sys

import numpy as np
import pytest
from helpers import machine
from helpers.processes import Other, OtherError, entries, shared_array

import interop

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such memory")


@pytest.fixture(scope="module")
def _process():
    with Other() as process:
        process.run("import interop, numpy as np, os, pickle, gc")
        yield process


@pytest.fixture
def other(_process):
    """Another process, which has nothing of the test before."""
    yield _process
    _process.run("h = x = y = z = again = None; gc.collect()")


# ---- memory that can be shared ----


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex128", "bfloat16", "float8_e4m3fn"])
def test_memory_to_be_shared_begins_as_0_on_a_page(dtype):
    x = interop.empty((3, 5), dtype, memory="host", shared=True)
    assert (x.shape, x.dtype, x.memory, x.device) == ((3, 5), dtype, "host", "cpu")
    assert np.asarray(x).ctypes.data % 4096 == 0
    assert not np.asarray(x).view("uint8").any()


@pytest.mark.skipif(machine.gpu_count() > 0, reason="this machine has a GPU")
def test_it_is_the_hosts_on_a_machine_with_no_gpu():
    assert interop.empty(3, "int8", shared=True).memory == "host"


@pytest.mark.parametrize("memory", ["pinned", "managed"])
def test_pinned_and_managed_memory_cannot_be(memory):
    match = rf"^interop.empty: memory is '{memory}', and shared is True; accepted: 'device' or 'host'$"
    with pytest.raises(ValueError, match=match):
        interop.empty(3, "int8", memory=memory, shared=True)


def test_it_keeps_its_size():
    x = shared_array([1, 2])
    with pytest.raises(
        ValueError, match=r"^interop.Array.resize: the memory is shared with other processes, or may be"
    ):
        x.resize(1)


def test_it_is_given_back():
    before = entries("/proc/self/fd")
    for _ in range(20):
        interop.empty(1000, "int8", memory="host", shared=True)
    assert entries("/proc/self/fd") == before


# ---- the same memory in two processes ----


def test_both_see_what_the_other_writes(other):
    x = shared_array(np.arange(6, dtype="float32").reshape(2, 3))
    with interop.share(x) as h:
        assert other.run("y = interop.open(h, 'numpy'); y[0, 0] = 7; result = y.tolist()", h=h) == [
            [7, 1, 2],
            [3, 4, 5],
        ]
    assert x.tolist() == [[7, 1, 2], [3, 4, 5]]
    x[1, 2] = 9
    assert other.run("result = y[1, 2]") == 9


LAYOUTS = {
    "transposed": lambda x: x.T,
    "every second, backwards": lambda x: x[::-1, ::2],
    "one row": lambda x: x[1],
    "one element": lambda x: x[1, 2],
    "none": lambda x: x[:0],
    "broadcast": lambda x: interop.asarray(np.broadcast_to(np.asarray(x)[0], (3, 4))),
    "another dimension": lambda x: x[:, None, 1:3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_is_the_same_there(other, layout):
    x = LAYOUTS[layout](shared_array(np.arange(12, dtype="int16").reshape(3, 4)))
    with interop.share(x) as h:
        there = other.run(
            "y = interop.open(h); result = y.shape, y.strides, y.dtype, y.memory, np.asarray(y).tolist()", h=h
        )
    assert there == (x.shape, x.strides, "int16", "host", np.asarray(x).tolist())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "bool", "complex64", "uint64"])
def test_the_dtype_is_the_same_there(other, dtype):
    x = shared_array([1, 0, 1], dtype)
    with interop.share(x) as h:
        assert other.run("y = interop.open(h); result = y.dtype, y.astype('int32').tolist()", h=h) == (dtype, [1, 0, 1])


def test_other_libraries_arrays_on_the_memory_are_shared(other, torch):
    x = shared_array(np.zeros(4, "float32"))
    tensor = torch.from_dlpack(x)[1:3]
    with interop.share(tensor) as h:
        assert interop.open(h, "torch") is tensor
        other.run("y = interop.open(h, 'torch'); y += 2", h=h)
    assert x.tolist() == [0, 2, 2, 0]
    del x
    assert tensor.tolist() == [2, 2]


def test_read_only_arrays_stay_so(other):
    x = shared_array([1, 2, 3])
    view = np.asarray(x)
    view.flags.writeable = False
    with interop.share(view) as h:
        other.run("y = interop.open(h)", h=h)
    with pytest.raises(OtherError, match="read-only"):
        other.run("y[0] = 5")
    with pytest.raises(OtherError, match="assignment destination is read-only"):
        other.run("np.asarray(y)[0] = 5")
    assert " r--s " in other.run("""
address = f"{np.asarray(y).ctypes.data:x}-"
result = next(line for line in open("/proc/self/maps") if line.startswith(address))""")


def test_the_same_process_gets_the_array_itself():
    x = shared_array([1.5])
    with interop.share(x) as h:
        assert interop.open(h) is x
        assert np.shares_memory(interop.open(pickle.loads(pickle.dumps(h)), "numpy"), np.asarray(x))
    with pytest.raises(ValueError, match=r"^interop.open: the handle was closed; accepted: one that is open$"):
        interop.open(h)


def test_a_handle_is_opened_several_times_and_by_several_processes(other):
    x = shared_array([0, 0])
    with interop.share(x) as h, Other() as third:
        other.run("y, z = interop.open(h), interop.open(h)", h=h)
        assert other.run("y[0] = 4; result = z[0].item()") == 4
        third.run("import interop; interop.open(h)[1] = 5", h=h)
    assert x.tolist() == [4, 5]


def test_what_was_opened_is_shared_again(other):
    x = shared_array([1, 2])
    with interop.share(x) as h, Other() as third:
        again = other.run("y = interop.open(h); again = interop.share(y[1:]); result = again", h=h)
        third.run("import interop; interop.open(h)[0] = 8", h=again)
    assert x.tolist() == [1, 8]


# ---- memory that cannot be shared ----


def test_other_memory_of_the_host_is_refused():
    match = r"^interop.share: x is memory of the host that this process alone can map; accepted: an array of "
    for x in (np.ones(3), interop.ones(3, "int8", memory="host"), memoryview(b"interop")):
        with pytest.raises(
            BufferError, match=match + r"interop.empty\(..., shared=True\) or a view of one, or copy=True"
        ):
            interop.share(x)


def test_a_copy_is_shared_instead(other, torch):
    for x in (np.arange(6.0).reshape(2, 3).T, torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T):
        with interop.share(x, copy=True) as h:
            x[0, 0] = -1
            assert other.run("result = interop.open(h, 'numpy').tolist()", h=h) == [[0, 3], [1, 4], [2, 5]]


def test_a_copy_of_what_can_be_shared_is_a_copy(other):
    x = shared_array([1, 2])
    with interop.share(x, copy=True) as h:
        other.run("interop.open(h)[0] = 5", h=h)
        assert interop.open(h).tolist() == [5, 2]
    assert x.tolist() == [1, 2]


# ---- handles ----


def test_a_handle_says_what_it_is_and_is_small():
    with interop.share(shared_array(np.ones((2, 3), "float32"))) as h:
        pid = os.getpid()
        assert repr(h) == f"interop.SharedHandle(shape=(2, 3), dtype=float32, device=cpu, of process {pid})"
        assert (h.shape, h.dtype, h.device) == ((2, 3), "float32", "cpu")
        assert len(pickle.dumps(h)) < 500
        assert repr(pickle.loads(pickle.dumps(h))) == repr(copy.deepcopy(h)) == repr(h)
        assert h._token.hex() not in repr(h)  # it is a secret


def test_handles_are_not_made_directly():
    with pytest.raises(
        TypeError, match=r"^interop.SharedHandle: it is not made directly; accepted: interop.share\(x\)$"
    ):
        interop.SharedHandle(1, x=2)


def test_another_version_of_the_handle_is_refused():
    with interop.share(shared_array([1])) as h:
        restore, facts = h.__reduce__()
        with pytest.raises(
            ValueError, match=r"^interop.SharedHandle: the pickle is of version 0 of the handle; accepted"
        ):
            restore(0, *facts[1:])


def test_no_library_is_looked_for_in_vain():
    with interop.share(shared_array([1])) as h:
        with pytest.raises(ValueError, match=r"^interop.open: library is 'panda'; accepted: 'torch', "):
            interop.open(h, "panda")
        with pytest.raises(TypeError, match=r"^interop.open: h is bytes; accepted: what interop.share returned$"):
            interop.open(pickle.dumps(h))
        with pytest.raises(TypeError, match=r"^interop.share: copy is 1; accepted: True or False$"):
            interop.share(np.ones(1), copy=1)


def test_the_host_has_no_streams(other):
    with interop.share(shared_array([1])) as h:
        for run in (lambda: interop.open(h, stream=1), lambda: other.run("interop.open(h, stream=1)", h=h)):
            with pytest.raises((ValueError, OtherError), match="stream is given, but h is in host memory"):
                run()


def test_other_systems_are_refused(monkeypatch):
    x = shared_array([1])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotImplementedError, match=r"^interop.share: this system is darwin; accepted: Linux$"):
        interop.share(x)
