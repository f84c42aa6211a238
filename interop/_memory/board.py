"""The board of an owner: memory that all who open its arrays map, so that they need not wait for its answers.

A slot has what the owner would answer for one array. Who opens that announces itself there, looks whether the array is
still open, and tells the owner, which makes a lease of the announcement. The owner closes an array there, and looks for
announcements then. So one of the two sees the other, whichever comes first.

The first page has a flag for each slot, which the owner's stream sets when what was queued for the array is done.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from interop import _core

__all__ = ["Board"]

_SLOTS, _BYTES = 1024, 1024
_FLAGS = 4 * _SLOTS  # bytes
# Of a slot: the announcements and, in the last bit, whether it is closed; the token; the length of the answer; the
# answer.
_STATE, _TOKEN, _LENGTH, _ANSWER = 0, 8, 24, 32
_IS_CLOSED = 1 << 31
_NOBODY = bytes(16)


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

    def _add(self, slot: int, amount: int) -> int:
        """Add to the state at once, in the order of all processes; return what it was."""
        return _core.fetch_add(self._memory, _place(slot) + _STATE, amount)

    def _is_of(self, slot: int, token: bytes) -> bool:
        start = _place(slot) + _TOKEN
        return self._memory[start : start + len(token)] == token

    # ---- flags ----

    def has_passed(self, slot: int) -> bool:
        """Is what was queued for the array done?"""
        return slot < 0 or self._memory[4 * slot] != 0

    def note_passed(self, slot: int) -> None:
        self._memory[4 * slot] = 1

    # ---- for the owner, who has a lock ----

    def place(self, token: bytes, answer: bytes) -> int:
        """Return the slot that has the answer now; -1 where there is no room."""
        if len(answer) > _BYTES - _ANSWER:
            return -1
        if not self._free:
            self._free = [slot for slot in self._busy if self.has_passed(slot)]
            self._busy = [slot for slot in self._busy if slot not in self._free]
        if not self._free:
            return -1
        slot = self._free.pop()
        start = _place(slot)
        self._memory[4 * slot : 4 * slot + 4] = bytes(4)
        self._memory[start + _LENGTH : start + _ANSWER] = len(answer).to_bytes(_ANSWER - _LENGTH, "little")
        self._memory[start + _ANSWER : start + _ANSWER + len(answer)] = answer
        self._add(slot, 0)  # all of that is seen before the token
        self._memory[start + _TOKEN : start + _LENGTH] = token
        return slot

    def close(self, slot: int) -> None:
        self._add(slot, _IS_CLOSED)

    def is_announced(self, slot: int) -> bool:
        """Has somebody announced that he opens it, and not told it yet?"""
        return self._add(slot, 0) & ~_IS_CLOSED != 0

    def settle(self, slot: int) -> None:
        """He has told it."""
        self._add(slot, -1)

    def settle_all(self, slot: int) -> None:
        """Who announced it has ended."""
        self._add(slot, -(self._add(slot, 0) & ~_IS_CLOSED))

    def clear(self, slot: int) -> None:
        """Free the slot, which was closed."""
        start = _place(slot)
        self._memory[start + _TOKEN : start + _LENGTH] = _NOBODY
        self._add(slot, -_IS_CLOSED)
        (self._free if self.has_passed(slot) else self._busy).append(slot)

    # ---- for others ----

    def announce(self, slot: int, token: bytes) -> bytes | None:
        """Return the answer; the owner is to be told. None: ask the owner."""
        if not (0 <= slot < _SLOTS and self._is_of(slot, token)):
            return None
        if self._add(slot, 1) & _IS_CLOSED or not self._is_of(slot, token):
            self._add(slot, -1)
            return None
        start = _place(slot)
        length = int.from_bytes(self._memory[start + _LENGTH : start + _ANSWER], "little")
        return self._memory[start + _ANSWER : start + _ANSWER + length]
