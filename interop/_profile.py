"""What a part of a program allocates, copies and waits for: `interop.profile`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from interop import _core
from interop._arguments import named

__all__ = ["Count", "Profile", "Transfer", "profile"]

_WHATS = ("allocations", "transfers", "waits", "launches", "holds")
_NOT_SEEN = "not seen: what other libraries allocate, copy, wait for and launch by themselves"


@dataclass(frozen=True)
class Count:
    """How often something was done, with how many bytes in all, and how long the host took for it."""

    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Transfer:
    """The copies of one kind that one line of the program has made, or asked for."""

    kind: str  #: a key of `Profile.transfers`
    function: str  #: the public function, such as "interop.copyto"; "" for none
    file: str  #: of the line outside interop that called it; "" for a thread that runs no Python, such as XLA's
    line: int  #: 0 with no file
    count: int
    bytes: int
    seconds: float


class Profile:
    """What interop does in the whole process while a ``with`` block runs: `interop.profile` gives it.

    `print` shows it as a table. Reading it while the block runs shows what was counted so far.

    Attributes
    ----------
    allocations : ``dict[str, Count]``
        New memory of interop's own, by its kind: "device", "managed", "pinned", "host", or "device, by the plugged
        allocator" (`interop.set_allocator`). Managed and pinned memory comes in blocks, with the bytes of the block,
        and also counts where the block was kept before.
    transfers : ``dict[str, Count]``
        Copies: "host to host", "host to device", "device to host", "device to device", "peer" (from one device to
        another) and "prefetch". Pinned memory is the host's, and managed memory a device's. A copy that a kernel makes
        is a launch, too.
    waits : ``dict[str, Count]``
        "host for stream", "host for event", "stream for event", "host for device, to free memory", and
        "interop's own thread for event", for which no thread of yours waits.
    launches : ``dict[str, Count]``
        "kernel", and "cuBLASLt" for what that launches.
    holds : ``dict[str, Count]``
        What was kept from its owner or its next user: arrays "until a stream's work is done", "until all streams' work
        is done" or "until a graph is gone", and "block, until its work is done", of managed and pinned memory.
    copies : ``list[Transfer]``
        The transfers by the line of the program that they come from, those of the most bytes first.
    seconds : float
        How long the block took, or has taken so far.

    Notes
    -----
    The seconds of a `Count` are the host's, from the call of CUDA until it returns: work that was only queued may still
    run. A kind that did not occur is no key. What fails is not counted.
    """

    def __init__(self) -> None:
        self._profile = _core.Profile()
        self._begin: float | None = None
        self._end: float | None = None

    def __enter__(self) -> Self:
        if self._begin is not None:
            raise ValueError("interop.profile: this profile was used before; accepted: a new one for each with block")
        self._begin = time.perf_counter()
        self._profile.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.stop()
        self._end = time.perf_counter()

    def _of(self, what: str) -> dict[str, Count]:
        return {kind: Count(count, size, s) for of, kind, count, size, s in self._profile.counts() if of == what}

    @property
    def allocations(self) -> dict[str, Count]:
        return self._of("allocations")

    @property
    def transfers(self) -> dict[str, Count]:
        return self._of("transfers")

    @property
    def waits(self) -> dict[str, Count]:
        return self._of("waits")

    @property
    def launches(self) -> dict[str, Count]:
        return self._of("launches")

    @property
    def holds(self) -> dict[str, Count]:
        return self._of("holds")

    @property
    def copies(self) -> list[Transfer]:
        return sorted((Transfer(*each) for each in self._profile.transfers()), key=lambda each: -each.bytes)

    @property
    def seconds(self) -> float:
        if self._begin is None:
            return 0.0
        return (time.perf_counter() if self._end is None else self._end) - self._begin

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as dicts, lists, strings and numbers, as `json.dumps` takes them."""
        return {
            "seconds": self.seconds,
            **{what: {kind: asdict(count) for kind, count in self._of(what).items()} for what in _WHATS},
            "copies": [asdict(each) for each in self.copies],
        }

    def __repr__(self) -> str:
        state = "not yet begun" if self._begin is None else "running" if self._end is None else "ended"
        return f"<interop.Profile, {state}, {self.seconds:.6f} s>"

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("interop.profile", "count", "bytes", "seconds")]
        for what in _WHATS:
            kinds = self._of(what)
            rows.append((what if kinds else f"{what}: none",))
            rows += [(f"  {kind}", *_numbers(count)) for kind, count in kinds.items()]
        copies = self.copies
        rows += [("where the transfers come from",)] if copies else []
        for each in copies:
            where = f"{each.file}:{each.line}" if each.file else "a thread without Python"
            count = Count(each.count, each.bytes, each.seconds)
            rows.append((f"  {where}, {each.function or 'unknown'}, {each.kind}", *_numbers(count)))
        width = max(len(row[0]) for row in rows)
        lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows]
        end = f"{self.seconds:.6f} s in all; seconds are the host's, in the calls; {_NOT_SEEN}"
        return "\n".join([*(line.rstrip() for line in lines), end])


def _numbers(count: Count) -> tuple[str, str, str]:
    return str(count.count), str(count.bytes), f"{count.seconds:.6f}"


@named("interop.profile")
def profile() -> Profile:
    """Count and time what interop allocates, copies, waits for and launches in a ``with`` block.

    Returns
    -------
    Profile
        For one ``with`` block; `print` shows it as a table.

    Raises
    ------
    ValueError
        By ``with``: the profile was used before.

    Notes
    -----
    All threads of the process are counted, whichever opened the block. Profiles may be nested and may overlap in
    several threads; each counts for itself. In a forked child those of its parent count nothing. While none runs,
    calls cost what they would cost without profiles.

    What other libraries do by themselves is not seen: that ``torch.Tensor.cpu`` copies, say, or that a result was
    allocated by torch.

    Examples
    --------
    >>> import interop, numpy as np
    >>> with interop.profile() as p:
    ...     x = interop.copy(np.ones(3), memory="host")
    >>> p.transfers["host to host"].bytes, p.copies[0].function
    (24, 'interop.copy')
    """
    return Profile()
