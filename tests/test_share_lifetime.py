"""Arrays between processes, on the host: for how long there is one, who may open it, and processes of all kinds."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import alone
from helpers.device import eventually
from helpers.processes import Other, OtherError, entries, shared_array

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

    def check(self):
        pass

    wait = check

    def set(self, flags, flag):
        raise interop.CudaError("no stream sets it")


def test_what_others_have_open_is_kept_until_they_give_it_back_or_end(monkeypatch):
    owner = owners.started_owner()
    before = owner.counts()
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    token, _ = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connections = [opener._Connection(owner.address) for _ in range(2)]
    for connection in (*connections, connections[0]):
        answer, fd = connection.ask(token)
        assert (answer[:1], fd) == (owners.TAKE, -1)
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
    assert connection.board.announce(slot, token, connection._column) is not None
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


_OWNER = """
import interop
from interop._memory import owner as owners

class Played:
    by, base, size, pool, offset, handle, fd, uuid, read_only = "ipc", 0, 8, 0, 0, b"", -1, b"gpu", False
    def check(self):
        pass
    wait = check
    def set(self, flags, flag):
        raise interop.CudaError("no stream sets it")

owners._core.Shared = lambda array: Played()
owner = owners.started_owner()
token, slot = owner.add("x", interop.zeros(1, "int64", memory="host"))
owner._board._memory[4 * slot] = 0  # what is queued there will never be done
result = owner.address, token, slot
"""


def test_nobody_waits_for_an_owner_that_has_ended():
    with Other() as process:
        address, token, slot = process.run(_OWNER)
        connection = opener._Connection(address)
        connection.look(slot, token)
        opener._watch(connection, slot)
        waiting = threading.Thread(target=connection.wait, args=(slot,))
        waiting.start()
        assert not connection.board.has_passed(slot)
        process.kill()
        waiting.join()
        assert eventually(lambda: connection.board.has_passed(slot))
    assert eventually(lambda: not opener._is_watching)


def test_an_opener_that_ends_between_announcing_and_telling(monkeypatch):
    owner = owners.Owner()
    another = opener._Connection(owner.address)  # which stays
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    token, slot = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connection = opener._Connection(owner.address)
    connection.board.announce(slot, token, connection._column)
    owner.close(token)
    assert owner.counts() == (1, 0)
    del connection
    assert eventually(lambda: owner.counts() == (0, 0))
    assert not another.is_over()


def test_the_board_tells_nothing_without_a_token(monkeypatch):
    owner = owners.Owner()
    monkeypatch.setattr(owners._core, "Shared", lambda array: _PlayedShared())
    tokens = [owner.add("x", interop.zeros(1, "int64", memory="host")) for _ in range(3)]
    connection = opener._Connection(owner.address)
    shown = bytes(connection.board._memory)
    for token, slot in tokens:
        assert token not in shown
        assert b"int64" not in shown
        answer = connection.look(slot, token)
        assert answer == connection.ask(token)[0]
        assert b"int64" in answer
    # Nor does anybody believe what others write there.
    token, slot = tokens[0]
    place = shown.index(board_text := shown[4096 + 1024 * slot + 288 : 4096 + 1024 * slot + 300])
    connection.board._memory[place : place + 1] = bytes([board_text[0] ^ 1])
    assert connection.look(slot, token) is None


def test_a_forked_child_gives_nothing_back_for_its_parent(tmp_path):
    """Not even by a connection that is asked no more."""
    code = """
    import os, warnings
    from interop._memory import opener, owner as owners
    from helpers.device import eventually
    warnings.simplefilter("ignore")

    class Played:
        by, base, size, pool, offset, handle, fd, uuid, read_only = "ipc", 0, 8, 0, 0, b"", -1, b"gpu", False
        def check(self):
            pass
        wait = check
        def set(self, flags, flag):
            raise interop.CudaError("no stream sets it")

    owners._core.Shared = lambda array: Played()
    owner = owners.started_owner()
    token, slot = owner.add("x", interop.zeros(1, "int64", memory="host"))
    connection = opener._Connection(owner.address)
    connection.look(slot, token)
    lease = opener._Lease(connection, token)
    assert eventually(lambda: owner.counts() == (1, 1))
    child = os.fork()
    if child == 0:
        del lease, connection
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    connection.ask(token)  # the owner has come to all that was sent before
    print(owner.counts())
    """
    assert alone.run(code, tmp_path, silent=True) == "(1, 2)\n"


def test_a_full_board_is_done_without(monkeypatch):
    board = Board()
    try:
        slots = [board.place(bytes([i % 256, i // 256]) * 8, b"answer") for i in range(1025)]
        assert sorted(slots) == [-1, *range(1024)]
        assert board.announce(slots[7], bytes([7, 0]) * 8, 3) == b"answer"
        assert not board.has_passed(slots[7])
        assert board.is_announced(slots[7])
        board.settle(slots[7], 3)
        board.announce(slots[7], bytes([7, 0]) * 8, 3)
        board.clear_column(3)
        board.close(slots[7])
        assert not board.is_announced(slots[7])
        board.clear(slots[7])
        assert board.announce(slots[7], bytes([7, 0]) * 8, 3) is None
        assert board.place(bytes(16), b"other") == -1  # before the stream has set the flag, it might set it later
        board.note_passed(slots[7])
        assert board.has_passed(slots[7])
        assert board.place(bytes(16), bytes(1024)) == -1
        assert board.place(bytes(16), b"other") == slots[7]
        assert not board.has_passed(slots[7])
        assert board.has_passed(-1)
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
                assert stranger.recv(100)[:-1] == owners.GREETING
                stranger.send(message)
                assert stranger.recv(100) == b""
        assert other.run("result = interop.open(h).tolist()", h=h) == [3]


def test_what_is_no_memory_of_interops_is_refused(tmp_path):
    facts = ("uint8", [3], [1], 0, False, None, 0, None)
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
    assert alone.run(code, tmp_path, silent=True) == "[2, 4, 6] True 0\n"


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
        own = entries("/proc/self/fd"), mapped.read_text().count("memfd:interop")
        for _ in range(10):
            other.run("for _ in range(100): interop.open(h, 'numpy')", h=h)
            interop.share(x).close()
        assert other.run(f"result = {files}, open('/proc/self/maps').read().count('memfd:interop')") == before
        assert (entries("/proc/self/fd"), mapped.read_text().count("memfd:interop")) == own


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
