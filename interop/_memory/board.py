"""The board of an owner: memory that all who open its arrays map, so that they need not wait for its answers.

A slot has what the owner would answer for one array, masked and signed by the token: nobody reads or forges it who has
not that. Who opens the array announces itself there, in the column of its connection, looks whether the array is open
still, and tells the owner, which makes a lease of that. The owner closes an array there, and looks for announcements
then. So one of the two sees the other, whichever comes first; and of a connection that has ended the owner clears the
column.

The first page has a flag for each slot, which the owner's stream sets when what was queued for the array is done.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os

from interop import _core

__all__ = ["COLUMNS", "Board"]

_SLOTS, _BYTES, COLUMNS = 1024, 1024, 64
_FLAGS = 4 * _SLOTS  # bytes
# Of a slot: whether it is closed; the name of the token; the length of the answer; each connection's announcements;
# the answer.
_STATE, _NAME, _LENGTH, _ANNOUNCED, _ANSWER = 0, 8, 24, 32, 32 + 4 * COLUMNS
_NOBODY = bytes(16)
_SIGNATURE = 16  # bytes


def _name(token: bytes) -> bytes:
    """Return what the board shows of a token, which does not give it away."""
    return hashlib.blake2b(token, digest_size=len(_NOBODY)).digest()


def _masked(token: bytes, text: bytes) -> bytes:
    """Return the text as only those read it who have the token; of that again, the text."""
    mask = hashlib.shake_256(token).digest(len(text))
    return (int.from_bytes(text, "little") ^ int.from_bytes(mask, "little")).to_bytes(len(text), "little")


def _signature(token: bytes, answer: bytes) -> bytes:
    return hashlib.blake2b(answer, key=token, digest_size=_SIGNATURE).digest()


def _place(slot: int) -> int:
    return _FLAGS + slot * _BYTES


class Board:
    """That of this process, or of another, by a file descriptor."""

    def __init__(self, fd: int = -1) -> None:
        if fd < 0:
            fd = os.memfd_create("interop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, _FLAGS + _SLOTS * _BYTES)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.fd = fd
        self._memory = mmap.mmap(fd, _FLAGS + _SLOTS * _BYTES)
        self.flags = _core.Flags(self._memory, _FLAGS)
        self._free = list(range(_SLOTS))
        self._busy: list[int] = []  # which are free once their flags are set

    def _add(self, slot: int, field: int, amount: int) -> int:
        """Add to a number at once, in the order of all processes; return what it was."""
        return _core.fetch_add(self._memory, _place(slot) + field, amount)

    def _is_of(self, slot: int, name: bytes) -> bool:
        start = _place(slot) + _NAME
        return self._memory[start : start + len(name)] == name

    # ---- flags ----

    def has_passed(self, slot: int) -> bool:
        """Is what was queued for the array done?"""
        return slot < 0 or self._memory[4 * slot] != 0

    def note_passed(self, slot: int) -> None:
        self._memory[4 * slot] = 1

    # ---- for the owner, who has a lock ----

    def place(self, token: bytes, answer: bytes) -> int:
        """Return the slot that has the answer now; -1 where there is no room."""
        text = _masked(token, _signature(token, answer) + answer)
        if len(text) > _BYTES - _ANSWER:
            return -1
        if not self._free:
            self._free = [slot for slot in self._busy if self.has_passed(slot)]
            self._busy = [slot for slot in self._busy if slot not in self._free]
        if not self._free:
            return -1
        slot = self._free.pop()
        start = _place(slot)
        self._memory[4 * slot : 4 * slot + 4] = bytes(4)
        self._memory[start + _LENGTH : start + _ANNOUNCED] = len(text).to_bytes(_ANNOUNCED - _LENGTH, "little")
        self._memory[start + _ANSWER : start + _ANSWER + len(text)] = text
        self._add(slot, _STATE, 0)  # all of that is seen before the name
        self._memory[start + _NAME : start + _LENGTH] = _name(token)
        return slot

    def close(self, slot: int) -> None:
        self._add(slot, _STATE, 1)

    def is_announced(self, slot: int) -> bool:
        """Has somebody announced that he opens it, and not told it yet?"""
        start = _place(slot)
        return any(self._memory[start + _ANNOUNCED : start + _ANSWER])

    def is_announced_by(self, slot: int, column: int) -> bool:
        return 0 <= column < COLUMNS and self._add(slot, _ANNOUNCED + 4 * column, 0) != 0

    def settle(self, slot: int, column: int) -> None:
        """He has told it."""
        self._add(slot, _ANNOUNCED + 4 * column, -1)

    def clear_column(self, column: int) -> None:
        """The connection has ended."""
        if column >= 0:
            for slot in range(_SLOTS):
                start = _place(slot) + _ANNOUNCED + 4 * column
                self._memory[start : start + 4] = bytes(4)

    def clear(self, slot: int) -> None:
        """Free the slot, which was closed."""
        start = _place(slot)
        self._memory[start + _NAME : start + _LENGTH] = _NOBODY
        self._add(slot, _STATE, -1)
        (self._free if self.has_passed(slot) else self._busy).append(slot)

    # ---- for others ----

    def announce(self, slot: int, token: bytes, column: int) -> bytes | None:
        """Return the answer; the owner is to be told. None: ask the owner."""
        name = _name(token)
        if not (0 <= slot < _SLOTS and 0 <= column < COLUMNS and self._is_of(slot, name)):
            return None
        self._add(slot, _ANNOUNCED + 4 * column, 1)
        if self._add(slot, _STATE, 0) == 0 and self._is_of(slot, name):
            start = _place(slot)
            length = int.from_bytes(self._memory[start + _LENGTH : start + _ANNOUNCED], "little")
            text = _masked(token, self._memory[start + _ANSWER : start + _ANSWER + length])
            signature, answer = text[:_SIGNATURE], text[_SIGNATURE:]
            if signature == _signature(token, answer):  # else it is not the owner's word
                return answer
        self.settle(slot, column)
        return None
