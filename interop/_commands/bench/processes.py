"""What an array of another process takes to open, beside torch's own way: part of `interop bench memory`."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import interop
from interop import _core

__all__ = ["openings"]

_ROUNDS = 10
_COUNT = 20  # tensors of a round, for each way
_OWN_BLOCK = 32 << 20  # bytes: torch gives such a tensor an allocation of its own
_TORCH, _OWN = "torch.multiprocessing", "interop.share and interop.open"


def openings(torch: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield tables: their title, and the host's microseconds of each way, the medians of rounds in turn."""
    importlib.import_module("torch.multiprocessing")  # which makes pickles of tensors

    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    reader = context.Process(target=_read, args=(theirs,), daemon=True)
    reader.start()
    ours.recv()
    first = torch.zeros(1000, device="cuda")  # the block of small tensors stays mapped in the reader
    handle = interop.share(first)
    ours.send_bytes(pickle.dumps(("keep", [pickle.dumps(handle)])))
    ours.recv()
    yield from _tables(torch, ours, 4000, _COUNT, "in an allocation that is mapped already")
    yield from _tables(torch, ours, _OWN_BLOCK, 2, "the first of its allocation")
    ours.send_bytes(pickle.dumps(("end", [])))
    reader.join()


def _tables(
    torch: Any, pipe: Connection, bytes_: int, count: int, where: str
) -> Iterator[tuple[str, dict[str, float]]]:
    sharing: dict[str, list[float]] = {_TORCH: [], _OWN: []}
    opening: dict[str, list[float]] = {_TORCH: [], _OWN: []}
    for number in range(_ROUNDS + 1):
        for way in (_TORCH, _OWN):
            tensors = [torch.full((bytes_ // 4,), float(number), device="cuda") for _ in range(count)]
            torch.cuda.synchronize()
            handles = []  # to be kept
            pickles = []
            start = time.perf_counter_ns()
            for x in tensors:
                if way == _TORCH:
                    pickles.append(bytes(ForkingPickler.dumps(x)))
                else:
                    handles.append(interop.share(x))
                    pickles.append(pickle.dumps(handles[-1]))
            microseconds = (time.perf_counter_ns() - start) / 1000 / count
            pipe.send_bytes(pickle.dumps((way, pickles)))
            seen, values = pipe.recv()
            if values != [float(number)] * count:
                raise AssertionError(f"interop bench: what {way} opens is wrong")
            if number > 0:  # the first one does not count
                sharing[way].append(microseconds)
                opening[way].append(seen)
            for each in handles:
                each.close()
    yield f"share a tensor, {bytes_} bytes", {way: statistics.median(each) for way, each in sharing.items()}
    yield f"open a tensor, {bytes_} bytes, {where}", {way: statistics.median(each) for way, each in opening.items()}


def _read(pipe: Connection) -> None:
    """Open what comes, and answer how long that took and what was in it. Runs in the other process."""
    import torch

    importlib.import_module("torch.multiprocessing")
    torch.zeros(1, device="cuda")
    kept = []
    pipe.send("ready")
    while True:
        way, pickles = pickle.loads(pipe.recv_bytes())
        if way == "end":
            return
        gc.disable()
        start = time.perf_counter_ns()
        if way == _TORCH:
            tensors = [pickle.loads(each) for each in pickles]
        else:
            tensors = [interop.open(pickle.loads(each), "torch") for each in pickles]
        microseconds = (time.perf_counter_ns() - start) / 1000 / len(pickles)
        gc.enable()
        values = [float(x[-1]) for x in tensors]
        if way == "keep":
            kept += tensors
        del tensors
        torch.cuda.synchronize()
        while _core.held_count():  # of the other ways of this round
            time.sleep(0.001)
        pipe.send((microseconds, values))
