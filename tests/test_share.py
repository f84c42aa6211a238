"""Arrays between processes, on the host: `interop.share` and `interop.open`."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import alone, machine
from helpers.processes import Other, OtherError

import interop
from interop._memory import opener
from interop._memory import owner as owners
from interop._memory.board import Board

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


def shared_array(values, dtype=None):
    """An array of interop's that can be shared, with these values."""
    values = np.asarray(values)
    array = interop.empty(values.shape, dtype or values.dtype, memory="host", shared=True)
    array[...] = interop.asarray(values).astype(array.dtype)
    return array


def count(folder):
    return len(list(Path(folder).iterdir()))


def eventually(holds):
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.01)
    return False


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
    before = count("/proc/self/fd")
    for _ in range(20):
        interop.empty(1000, "int8", memory="host", shared=True)
    assert count("/proc/self/fd") == before


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


# ---- for how long ----


def test_nobody_opens_a_handle_that_was_closed_or_dropped(other):
    h = interop.share(shared_array([1]))
    sent = pickle.dumps(h)
    other.run("y = interop.open(pickle.loads(sent))", sent=sent)
    h.close()
    h.close()
    match = rf"^interop.open: the process that shared the array \(pid {os.getpid()}\) does not share it any more: "
    with pytest.raises(OtherError, match=match) as caught:
        other.run("interop.open(pickle.loads(sent))")
    assert caught.value.kind == "ValueError"
    assert other.run("y[0] = 2; result = y.tolist()") == [2]  # what is open stays
    sent = pickle.dumps(interop.share(shared_array([1])))
    with pytest.raises(OtherError, match=match):
        other.run("interop.open(pickle.loads(sent))", sent=sent)


def test_a_handle_keeps_the_array_and_nothing_else_does():
    before = owners.started_owner().counts()
    h = interop.share(np.arange(3), copy=True)
    copies = [pickle.loads(pickle.dumps(h)), copy.copy(h)]
    assert interop.open(copies[0]).tolist() == [0, 1, 2]
    del copies
    assert owners.owner().counts() == (before[0] + 1, before[1])
    del h
    assert owners.owner().counts() == before


def test_the_owners_end_leaves_what_is_open():
    with Other() as first, Other() as second:
        code = "import interop, numpy as np; h = interop.share(np.arange(3), copy=True); result = h"
        h = first.run(code)
        second.run("import interop; y = interop.open(h)", h=h)
        first.kill()
        assert second.run("y[0] = 5; result = y.tolist()") == [5, 1, 2]
        match = (
            rf"^interop.open: the process that shared the array \(pid {first.pid}\) has ended, and its memory with it;"
        )
        for process in (second, Other()):  # with a connection that was made before, and without
            process.run("import interop")
            with pytest.raises(OtherError, match=match) as caught:
                process.run("interop.open(h)", h=h)
            assert caught.value.kind == "ConnectionError"
        process.__exit__(None)


def test_the_openers_end_leaves_the_owner():
    x = shared_array([1, 2])
    with interop.share(x) as h:
        for _ in range(2):
            with Other() as process:
                process.run("import interop; y = interop.open(h); y[0] += 1", h=h)
                process.kill()
    assert x.tolist() == [3, 2]


def test_an_owner_that_does_not_answer():
    with Other() as process:
        h = process.run("import interop, numpy as np; h = interop.share(np.arange(3), copy=True); result = h")
        assert interop.open(h).tolist() == [0, 1, 2]
        os.kill(process.pid, signal.SIGSTOP)
        code = "import interop._memory.opener as o; o.TIMEOUT = 0.2\nimport interop; interop.open(h)"
        with (
            Other() as third,
            pytest.raises(OtherError, match=rf"\(pid {process.pid}\) has not answered in 0.2 s") as caught,
        ):
            third.run(code, h=h)
        assert caught.value.kind == "TimeoutError"
        os.kill(process.pid, signal.SIGCONT)
        assert interop.open(h).tolist() == [0, 1, 2]


def test_an_owner_that_cannot_be_reached_is_not_called_dead(monkeypatch):
    """As from another container: the process is there, and its socket is not."""
    with Other() as process:
        h = process.run("import interop, numpy as np; h = interop.share(np.arange(3), copy=True); result = h")
        monkeypatch.setattr(h, "_address", "interop-elsewhere")
        with pytest.raises(
            ConnectionError, match=rf"\(pid {process.pid}\) runs, and cannot be reached from here; accepted:"
        ):
            interop.open(h)


class _PlayedShared:
    """Device memory, as the owner's thread knows it: others keep it by their connection."""

    by, base, size, pool, offset, handle, fd, uuid, read_only = "ipc", 0, 8, 0, 0, b"", -1, b"gpu", False

    def event(self):
        return None


def test_what_others_have_open_is_kept_until_they_give_it_back_or_end(monkeypatch):
    owner = owners.started_owner()
    before = owner.counts()
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    token, _ = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connections = [opener._Connection(owner.address) for _ in range(2)]
    for connection in (*connections, connections[0]):
        answer, fd = connection.ask(token)
        assert (answer[:2], fd) == (owners.TAKE + b"\0", -1)
    assert owner.counts() == (before[0] + 1, before[1] + 3)
    owner.close(token)
    assert owner.counts() == (before[0] + 1, before[1] + 3)
    assert connections[1].ask(token) == (owners.CLOSED, -1)
    lease = opener._Lease(connections[0], token)
    del lease
    connections[1].tell(owners.GIVE_BACK + b"another token...")  # of what it has not, it gives nothing back
    assert eventually(lambda: owner.counts() == (before[0] + 1, before[1] + 2))
    del connection, connections[1]
    assert eventually(lambda: owner.counts() == (before[0] + 1, before[1] + 1))
    connections.clear()
    assert eventually(lambda: owner.counts() == before)


def test_openers_look_at_the_board_and_do_not_wait(monkeypatch):
    owner = owners.started_owner()
    before = owner.counts()
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    token, slot = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connection = opener._Connection(owner.address)
    assert connection.look(slot, token) == connection.ask(token)[0]
    assert eventually(lambda: owner.counts() == (before[0] + 1, before[1] + 2))
    assert connection.look(slot, bytes(16)) is connection.look(-1, token) is connection.look(5000, token) is None
    # What is announced is not dropped until that is told, or nobody is left who could.
    assert connection._board.announce(slot, token) is not None
    owner.close(token)
    assert connection.look(slot, token) is None
    for _ in range(2):
        connection.tell(owners.GIVE_BACK + token)
    assert eventually(lambda: owner.counts() == (before[0] + 1, before[1]))
    connection.tell(owners.LEASE + token)
    assert eventually(lambda: owner.counts() == (before[0] + 1, before[1] + 1))
    del connection
    assert eventually(lambda: owner.counts() == before)
    assert slot == owner.add("y", interop.zeros(1, "int64", memory="host"))[1]


def test_an_opener_that_ends_between_announcing_and_telling(monkeypatch):
    owner = owners.Owner()  # to which nobody else is connected
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    token, slot = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connection = opener._Connection(owner.address)
    connection._board.announce(slot, token)
    owner.close(token)
    assert owner.counts() == (1, 0)
    del connection
    assert eventually(lambda: owner.counts() == (0, 0))


def test_a_full_board_is_done_without(monkeypatch):
    board = Board()
    try:
        slots = [board.place(bytes([i % 256, i // 256]) * 8, b"answer") for i in range(1025)]
        assert sorted(slots) == [-1, *range(1024)]
        assert board.announce(slots[7], bytes([7, 0]) * 8) == (b"answer", False)
        assert board.is_announced(slots[7])
        board.settle(slots[7])
        board.note_passed(slots[7])
        assert board.announce(slots[7], bytes([7, 0]) * 8) == (b"answer", True)
        board.settle_all(slots[7])
        board.close(slots[7])
        assert not board.is_announced(slots[7])
        board.clear(slots[7])
        assert board.announce(slots[7], bytes([7, 0]) * 8) is None
        assert board.place(bytes(16), bytes(1024)) == -1
        assert board.place(bytes(16), b"other") == slots[7]
    finally:
        os.close(board.fd)


def test_integers_are_added_to_where_they_are():
    memory = bytearray(8)
    assert interop._core.fetch_add(memory, 4, -1) == 0
    assert memory == bytes(4) + b"\xff" * 4
    for offset in (1, 6, 8):
        with pytest.raises(BufferError, match=r"^interop: no integer of 32 bits is at that place of the buffer$"):
            interop._core.fetch_add(memory, offset, 1)
    with pytest.raises(BufferError):
        interop._core.fetch_add(b"read-only", 0, 1)


# ---- who may open ----


def test_a_wrong_token_opens_nothing(other):
    with interop.share(shared_array([1])) as h:
        restore, (version, address, slot, token, *facts) = h.__reduce__()
        forged = restore(version, address, slot, bytes([token[0] ^ 1]) + token[1:], *facts)
        with pytest.raises(OtherError, match="does not share it any more"):
            other.run("interop.open(h)", h=forged)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_opens_nothing():
    with interop.share(shared_array([1])) as h, Other() as other:
        other.run("import interop, os, socket, interop._memory.opener; os.setuid(65534)")
        with pytest.raises(
            OtherError, match=r"^interop.open: the array is another user's; accepted: the same user's"
        ) as caught:
            other.run("interop.open(h)", h=h)
        assert caught.value.kind == "PermissionError"
        # Nor does the owner answer one who asks all the same.
        code = "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('\\0' + h._address)\n"
        code += "try: s.send(b'o' + h._token); result = s.recv(100)\nexcept OSError: result = b''\ns.close()"
        assert other.run(code) == b""


def test_nonsense_ends_a_connection_and_nothing_else(other):
    with interop.share(shared_array([3])) as h:
        for message in (b"?", b"x" * 1000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.settimeout(20)
                stranger.connect("\0" + h._address)
                assert stranger.recv(100) == owners.GREETING
                stranger.send(message)
                assert stranger.recv(100) == b""
        assert other.run("result = interop.open(h).tolist()", h=h) == [3]


def test_what_is_no_memory_of_interops_is_refused(tmp_path):
    facts = ("uint8", [3], [1], 0, False, None, None)
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(100))
        file.flush()
        with pytest.raises(ValueError, match=r"^interop.open: what the owner sent is no memory of interop.share$"):
            interop._core.open_shared("", "host", 0, 100, 0, b"", os.dup(file.fileno()), b"", *facts)
    with pytest.raises(ValueError, match=r"^interop.open: what the owner sent is no memory"):
        interop._core.open_shared("", "host", 0, 100, 0, b"", -1, b"", *facts)


# ---- processes of all kinds ----


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing(tmp_path, method):
    code = f"""
    import multiprocessing, os

    def work(queue, answers):
        h = queue.get()
        y = interop.open(h, "numpy")
        y *= 2
        answers.put(interop.share(y[1:], copy=True))
        queue.get()

    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        queue, answers = context.Queue(), context.Queue()
        process = context.Process(target=work, args=(queue, answers))
        process.start()
        x = interop.empty(3, "int64", memory="host", shared=True)
        x[...] = np.array([1, 2, 3])
        h = interop.share(x)
        queue.put(h)
        try:
            back = interop.open(answers.get()).tolist()
        except ValueError as error:  # nobody had kept that handle: the other process dropped it at once
            back = "does not share it any more" in str(error)
        queue.put(None)
        process.join()
        print(x.tolist(), back in (True, [4, 6]), process.exitcode)
    """
    before = count("/dev/shm")
    printed = alone.run(code, tmp_path, silent=True)
    assert printed.startswith("[2, 4, 6] True 0")
    assert eventually(lambda: count("/dev/shm") <= before)


def test_a_forked_child_leaves_the_owner_alone(tmp_path):
    code = """
    import os, warnings
    from interop._memory import owner
    warnings.simplefilter("ignore")

    x = interop.empty(2, "int64", memory="host", shared=True)
    h = interop.share(x)
    interop.open(h)
    before = len(os.listdir("/proc/self/fd"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            y = interop.open(h)  # by the socket: it is another process
            assert y is not x
            y[0] = 5
            h.close()
            del h
            own = interop.share(x)
            assert interop.open(own) is x
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert interop.open(h) is x
    assert len(os.listdir("/proc/self/fd")) == before, os.listdir("/proc/self/fd")
    print(x.tolist(), owner.owner().counts())
    """
    assert alone.run(code, tmp_path, silent=True) == "[5, 0] (1, 0)\n"


def test_a_process_ends_quietly_with_all_of_it_open(tmp_path):
    code = """
    h = interop.share(np.ones(3), copy=True)
    from helpers.processes import Other
    with Other() as other:
        theirs = other.run("import interop, numpy as np; h = interop.share(np.ones(3), copy=True); result = h")
        y = interop.open(theirs)
        other.run("z = interop.open(h)", h=h)
    print(y.tolist())
    """
    assert alone.run(code, tmp_path, silent=True) == "[1.0, 1.0, 1.0]\n"


def test_nothing_is_left_of_many_openings(other):
    files = "len(os.listdir('/proc/self/fd'))"
    x = shared_array([1])
    mapped = Path(f"/proc/{os.getpid()}/maps")
    with interop.share(x) as h:
        other.run("interop.open(h)", h=h)
        before = other.run(f"result = {files}, open('/proc/self/maps').read().count('memfd:interop')")
        own = count("/proc/self/fd"), mapped.read_text().count("memfd:interop")
        for _ in range(10):
            other.run("for _ in range(100): interop.open(h, 'numpy')", h=h)
            interop.share(x).close()
        assert other.run(f"result = {files}, open('/proc/self/maps').read().count('memfd:interop')") == before
        assert (count("/proc/self/fd"), mapped.read_text().count("memfd:interop")) == own


def test_threads_open_and_share_at_once(other):
    code = """
def work(number):
    for _ in range(50):
        interop.open(h)[number] += 1
import threading
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    x = shared_array(np.zeros(8, "int64"))
    with interop.share(x) as h:
        sharing = threading.Thread(target=lambda: [interop.share(x).close() for _ in range(200)])
        sharing.start()
        other.run(code, h=h)
        sharing.join()
    assert x.tolist() == [50] * 8


def test_the_start_of_a_process_is_known():
    assert owners.started_at(os.getpid()) == owners.started_at(os.getpid())
    assert owners.started_at(os.getpid()) is not None
    assert owners.started_at(2**22 + 1) is None
