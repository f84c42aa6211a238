"""What this process shares with others, and the thread that gives it to them over a local socket.

The socket has no name in a file system, so that nothing is left of it when the process has ended, however it ends. Who
connects must be the same user, and names an array by a random token. What they have opened is noted of their
connection: its end, which the kernel sees to, gives all of it back.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

from interop import _core
from interop._core import Array
from interop._memory.board import COLUMNS, Board

__all__ = [
    "CLOSED",
    "FAILED",
    "GIVE_BACK",
    "GREETING",
    "LEASE",
    "OPEN",
    "TAKE",
    "TIMEOUT",
    "Owner",
    "owner",
    "started_at",
    "started_owner",
    "user_of",
]

# What comes first, with the board and a column in it. A request is one of the next three and the token: to open an
# array, that it has been opened by the board, and that it is given back. The answer to the first of them is one of the
# others; the description follows `TAKE`.
GREETING = b"interop"
OPEN, LEASE, GIVE_BACK = b"o", b"l", b"b"
TAKE, CLOSED, FAILED = b"t", b"c", b"f"

TIMEOUT = 60  # seconds, for the other side to answer
_CREDENTIALS = struct.Struct("3i")  # of Linux: process, user, group


def user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end, as the kernel knows it."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(said)[1]
    return user


def started_at(pid: int) -> str | None:
    """Return when a process was started, in the kernel's own measure; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]  # Z, X: it has ended


class _Entry:
    """An array that is shared."""

    def __init__(self, x: Any, array: Array, shared: _core.Shared) -> None:
        self.x = x
        self.array = array
        self.shared = shared
        self.is_leased = shared.by not in ("host", "empty")  # of the others a mapping needs nobody
        self.description = json.dumps(
            {
                "by": shared.by, "base": shared.base, "bytes": shared.size, "pool": shared.pool,
                "handle": shared.handle.hex(),
                "uuid": shared.uuid.hex(), "dtype": array.dtype, "shape": array.shape, "strides": array.strides,
                "offset": shared.offset, "read_only": shared.read_only,
            }
        ).encode()  # fmt: skip
        self.is_open = True  # may others open it?
        self.leases = 0  # that others have
        self.slot = -1  # of the board

    def answer(self) -> bytes:
        """Return what is said of it; BufferError where its memory is no more."""
        self.shared.check()
        return TAKE + self.description


class Owner:
    """The arrays that are shared, by token, and the thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.started = started_at(self.pid)
        self.address = f"interop-{self.pid}-{secrets.token_hex(16)}"
        self._entries: dict[bytes, _Entry] = {}
        self._closed: set[bytes] = set()  # of these, those that others have open
        self._board = Board()
        self._lock = threading.RLock()  # a collection may close a handle in the middle
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.address)
        self._listener.listen(128)
        self._leases: dict[socket.socket, collections.Counter[bytes]] = {}
        self._columns: dict[socket.socket, int] = {}  # of the board; -1 where there was none left
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="interop.share", daemon=True).start()

    # ---- for the process itself ----

    def add(self, x: Any, array: Array) -> tuple[bytes, int]:
        """Share an array; return its token and slot. BufferError where its memory is this process's alone."""
        entry = _Entry(x, array, _core.Shared(array))
        token = secrets.token_bytes(16)
        answer = entry.answer()
        with self._lock:
            self._entries[token] = entry
            if entry.is_leased:  # of host memory the pages are to be sent, each time
                entry.slot = self._board.place(token, answer)
        try:
            if entry.is_leased:
                self._order(entry)
        except BaseException:
            self.close(token)
            raise
        return token, entry.slot

    def _order(self, entry: _Entry) -> None:
        """Let others wait for what is queued for the array. Where that cannot be, the host waits now."""
        flags = self._board.flags
        if entry.slot >= 0 and flags.prepare(entry.shared.uuid):
            with contextlib.suppress(_core.CudaError):  # no such GPU; of an earlier error the wait tells
                entry.shared.set(flags, entry.slot)
                return
        entry.shared.wait()
        if entry.slot >= 0:
            self._board.note_passed(entry.slot)

    def find(self, token: bytes) -> Any:
        """Return what was shared; None if it is not open."""
        with self._lock:
            entry = self._entries.get(token)
            return entry.x if entry and entry.is_open else None

    def close(self, token: bytes) -> None:
        """Let nobody open it any more, and forget it once nobody has it open."""
        with self._lock:
            entry = self._entries.get(token)
            if entry is None or not entry.is_open:
                return
            entry.is_open = False
            entry.x = None
            if entry.slot >= 0:
                self._board.close(entry.slot)
            self._closed.add(token)
            self._drop_unused(token)

    def counts(self) -> tuple[int, int]:
        """Return how many arrays are kept, and how often others have them open. For tests."""
        with self._lock:
            return len(self._entries), sum(entry.leases for entry in self._entries.values())

    def close_all(self) -> None:
        """Close all. What others have open stays to the end of the process, which takes nothing from them."""
        with self._lock:
            for token in [*self._entries]:
                self.close(token)

    def forget(self) -> None:
        """Leave all to the process that this one was forked from."""
        _left.append(self._entries)
        self._entries = {}
        self._lock = threading.RLock()
        os.close(self._board.fd)
        self._selector.close()
        for each in (self._listener, *self._leases):
            os.close(each.detach())  # not shut down: the connection goes on

    def _drop_unused(self, token: bytes) -> None:
        entry = self._entries.get(token)
        if entry is None or entry.is_open or entry.leases > 0:
            return
        if entry.slot >= 0:
            if self._board.is_announced(entry.slot):
                return
            self._board.clear(entry.slot)
        self._closed.discard(token)
        del self._entries[token]

    # ---- the thread ----

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready: Any = key.fileobj
                if ready is self._listener:
                    self._accept()
                elif not self._answer(ready):
                    self._end(ready)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone again, or there are too many files: not at once again
            time.sleep(0.01)
            return
        if user_of(connection) != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)  # who asks has room for the answer
        column = min(set(range(COLUMNS)) - set(self._columns.values()), default=-1)
        try:
            socket.send_fds(connection, [GREETING, bytes([column & 255])], [self._board.fd])
        except OSError:
            connection.close()
            return
        self._leases[connection] = collections.Counter()
        self._columns[connection] = column
        self._selector.register(connection, selectors.EVENT_READ)

    def _answer(self, connection: socket.socket) -> bool:
        """Do what is asked for; False where the other side is gone, or talks nonsense."""
        try:
            message = connection.recv(64)
            request, token = message[:1], message[1:]
            if request == OPEN:
                self._give(connection, token)
            elif request == LEASE:
                self._lease(connection, token)
            elif request == GIVE_BACK:
                self._give_back(connection, token)
            else:
                return False
            self._sweep()
        except BlockingIOError:  # it has room no more, as it does not read: what it has is kept
            return True
        except OSError:
            return False
        return True

    def _give(self, connection: socket.socket, token: bytes) -> None:
        with self._lock:
            entry = self._entries.get(token)
            if entry is None or not entry.is_open:
                connection.send(CLOSED)
                return
            if entry.is_leased:
                entry.leases += 1
                self._leases[connection][token] += 1
        try:
            answer = entry.answer()
        except (_core.CudaError, BufferError) as error:  # CUDA fails, or the memory is no more
            self._give_back(connection, token)
            connection.send(FAILED + str(error).encode())
            return
        socket.send_fds(connection, [answer], [entry.shared.fd] if entry.shared.fd >= 0 else [])

    def _lease(self, connection: socket.socket, token: bytes) -> None:
        """Make a lease of what was announced on the board."""
        with self._lock:
            entry, column = self._entries.get(token), self._columns[connection]
            if entry is None or entry.slot < 0 or not self._board.is_announced_by(entry.slot, column):
                return
            entry.leases += 1
            self._leases[connection][token] += 1
            self._board.settle(entry.slot, column)

    def _sweep(self) -> None:
        """Forget what was closed, and was not forgotten as somebody had announced that he would open it."""
        with self._lock:
            for token in [*self._closed]:
                self._drop_unused(token)

    def _give_back(self, connection: socket.socket, token: bytes, count: int = 1) -> None:
        with self._lock:
            leases = self._leases[connection]
            entry = self._entries.get(token)
            if entry is None or leases[token] < count:
                return
            leases[token] -= count
            entry.leases -= count
            self._drop_unused(token)

    def _end(self, connection: socket.socket) -> None:
        for token, count in self._leases[connection].items():
            self._give_back(connection, token, count)
        del self._leases[connection]
        with self._lock:
            self._board.clear_column(self._columns.pop(connection))
        self._sweep()
        self._selector.unregister(connection)
        connection.close()


_owner: Owner | None = None
_lock = threading.RLock()
_left: list[Any] = []  # what a forked child has of its parent, and is never to free


def owner() -> Owner | None:
    """Return that of this process; None where it has shared nothing."""
    return _owner


def started_owner() -> Owner:
    """Return that of this process, which is made by the first call."""
    global _owner
    with _lock:
        if _owner is None:
            _owner = Owner()
            atexit.register(_owner.close_all)
        return _owner


def _forked() -> None:
    global _owner, _lock
    _lock = threading.RLock()
    if _owner is not None:
        _owner.forget()
        _owner = None


os.register_at_fork(after_in_child=_forked)
