"""What other processes share: connections to them, one for each, and what is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
import weakref
from typing import Any

from interop import _core
from interop._core import Array
from interop._memory.board import Board
from interop._memory.owner import FAILED, GIVE_BACK, GREETING, LEASE, OPEN, TAKE, TIMEOUT, started_at, user_of

__all__ = ["take"]

_FUNCTION = "interop.open"
_MOST = 1 << 16  # bytes of an answer
_WATCH = 0.01  # seconds between two looks at the owners that are waited for


class _Connection:
    """To one owner."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        _all.add(self)
        try:
            self._socket.settimeout(TIMEOUT)
            self._socket.connect("\0" + address)
            if user_of(self._socket) != os.geteuid():
                raise PermissionError(f"{_FUNCTION}: the array is another user's; accepted: the same user's")
            greeting, files, *_ = socket.recv_fds(self._socket, _MOST, 1, socket.MSG_CMSG_CLOEXEC)
            try:
                if greeting[:-1] != GREETING:
                    raise EOFError
                self.board = Board(files[0])
                self._column = greeting[-1]
            except BaseException:
                for fd in files:
                    os.close(fd)
                raise
        except BaseException:
            self._socket.close()
            raise

    def ask(self, token: bytes) -> tuple[bytes, int]:
        """Return the answer, and a file descriptor that came with it, or -1; EOFError where the owner is gone."""
        with self._lock:
            self._socket.send(OPEN + token)
            answer, files, *_ = socket.recv_fds(self._socket, _MOST, 1, socket.MSG_CMSG_CLOEXEC)
        if not answer:
            raise EOFError
        return answer, files[0] if files else -1

    def look(self, slot: int, token: bytes) -> bytes | None:
        """Return the answer as the board has it, without waiting; None where it has none."""
        answer = self.board.announce(slot, token, self._column)
        if answer is not None:
            try:
                self._socket.send(LEASE + token)
            except BaseException:
                self.board.settle(slot, self._column)
                raise
        return answer

    def tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the owner has ended, or this is a forked child
            self._socket.send(message)

    def wait(self, slot: int) -> None:
        """Let the host wait until what was queued for the array is done, or the owner has ended."""
        while not self.board.has_passed(slot) and not self.is_over():
            time.sleep(_WATCH / 100)

    def is_over(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, 0)  # for the other side's end alone
        return bool(poll.poll(0))

    def __del__(self) -> None:  # with the last lease
        self._socket.close()
        if hasattr(self, "board"):
            os.close(self.board.fd)

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        os.close(self._socket.detach())


class _Lease:
    """The owner keeps an array as long as this lives."""

    def __init__(self, connection: _Connection, token: bytes) -> None:
        self._connection = connection
        self._message = GIVE_BACK + token

    def __del__(self) -> None:
        self._connection.tell(self._message)


_connections: dict[str, _Connection] = {}  # by address; those that are asked
_all: weakref.WeakSet[_Connection] = weakref.WeakSet()  # with those that only have leases
_lock = threading.Lock()


def _connect(address: str) -> _Connection:
    """Return the connection; a new one, if need be, and then without those whose owners have ended."""
    with _lock:
        if (known := _connections.get(address)) is not None:
            return known
        for each in [each for each, connection in _connections.items() if connection.is_over()]:
            del _connections[each]
        connection = _connections[address] = _Connection(address)
        return connection


def _take(connection: _Connection, address: str, slot: int, token: bytes) -> Array | bytes:
    """Return the array, or what the owner says instead."""
    answer, fd = connection.look(slot, token), -1
    if answer is not None and (array := _opened(connection, address, slot, token, answer, fd)) is not None:
        return array
    answer, fd = connection.ask(token)
    if answer[:1] != TAKE:
        return answer
    array = _opened(connection, address, slot, token, answer, fd)
    if array is None:
        raise EOFError  # no file came, without which there is no memory
    return array


def _opened(connection: _Connection, address: str, slot: int, token: bytes, answer: bytes, fd: int) -> Array | None:
    """Return the array of an answer. None: the allocation is yet to be mapped, and the file descriptor is wanting."""
    facts: dict[str, Any] = json.loads(answer[1:])
    uuid = bytes.fromhex(facts["uuid"])
    is_leased = facts["by"] not in ("host", "empty")
    lease = _Lease(connection, token) if is_leased else None
    flags = None
    if is_leased and not connection.board.has_passed(slot):
        if connection.board.flags.prepare(uuid):
            flags = connection.board.flags
            _watch(connection, slot)
        else:
            connection.wait(slot)
    return _core.open_shared(
        address,
        facts["by"],
        facts["base"],
        facts["bytes"],
        facts["pool"],
        bytes.fromhex(facts["handle"]),
        fd,
        uuid,
        facts["dtype"],
        facts["shape"],
        facts["strides"],
        facts["offset"],
        facts["read_only"],
        flags,
        max(slot, 0),
        lease,
    )


# ---- owners that end before their work is done ----

_awaited: dict[_Connection, set[int]] = {}  # the slots whose flags streams wait for
_is_watching = False
_watch_lock = threading.Lock()


def _watch(connection: _Connection, slot: int) -> None:
    """Have the flag set when the owner ends: else a stream would wait for it for ever."""
    global _is_watching
    with _watch_lock:
        _awaited.setdefault(connection, set()).add(slot)
        if not _is_watching:
            _is_watching = True
            threading.Thread(target=_keep_watch, name="interop.open", daemon=True).start()


def _keep_watch() -> None:
    global _is_watching
    while True:
        with _watch_lock:
            for connection, slots in [*_awaited.items()]:
                if connection.is_over():
                    for slot in slots:
                        connection.board.note_passed(slot)
                slots -= {slot for slot in slots if connection.board.has_passed(slot)}
                if not slots:
                    del _awaited[connection]
            if not _awaited:
                _is_watching = False
                return
        time.sleep(_WATCH)


def take(address: str, slot: int, token: bytes, pid: int, started: str | None) -> Array:
    """Open an array of another process."""
    who = f"the process that shared the array (pid {pid})"
    try:
        connection = _connect(address)
        try:
            taken = _take(connection, address, slot, token)
        except (OSError, EOFError, KeyboardInterrupt):  # it may answer later: it is used no more, but for what is open
            with _lock:
                if _connections.get(address) is connection:
                    del _connections[address]
            raise
    except PermissionError:
        raise
    except TimeoutError:
        raise TimeoutError(f"{_FUNCTION}: {who} has not answered in {TIMEOUT} s; accepted: one that runs") from None
    except (OSError, EOFError) as error:
        if isinstance(error, ConnectionRefusedError) and started is not None and started_at(pid) == started:
            raise ConnectionError(
                f"{_FUNCTION}: {who} runs, and cannot be reached from here; accepted: a process of the same network "
                "namespace, so of the same container or one that shares its network"
            ) from None
        raise ConnectionError(
            f"{_FUNCTION}: {who} has ended, and its memory with it; accepted: a handle of a process that runs"
        ) from None
    if isinstance(taken, Array):
        return taken
    if taken[:1] == FAILED:
        raise BufferError(f"{_FUNCTION}: {who} cannot give it: {taken[1:].decode()}")
    raise ValueError(
        f"{_FUNCTION}: {who} does not share it any more: the handle was closed, or nobody had kept it; accepted: a "
        "handle that the process keeps until this one has opened it"
    )


def _forked() -> None:
    global _lock, _watch_lock, _is_watching
    _lock, _watch_lock = threading.Lock(), threading.Lock()
    _awaited.clear()
    _is_watching = False
    for connection in [*_all]:
        connection.forget()
    _connections.clear()


os.register_at_fork(after_in_child=_forked)
