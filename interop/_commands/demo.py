"""`interop demo`: the main job, run on whatever array libraries and devices are here."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import interop
from interop import _core
from interop._libraries.known import LIBRARIES, Library

__all__ = ["run"]

_SIZE = 512
_CALLS = 20
_TOLERANCE = 2e-6 + 1e-7 * _SIZE**0.5  # of ||c - reference|| / ||reference||, for float32


def _relative_error(result: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(result - reference) / np.linalg.norm(reference))


def _time_per_call(library: Library, module: Any, a: Any, b: Any) -> float:
    """Return the seconds of one product, averaged over a few that follow each other."""
    library.to_numpy(interop.matmul(a, b))  # first use: modules, plans, compilation
    start = time.perf_counter()
    for _ in range(_CALLS):
        c = interop.matmul(a, b)
    library.to_numpy(c)  # waits for the last of them
    return (time.perf_counter() - start) / _CALLS


def _row(library: Library, module: Any, device: str, a: np.ndarray, b: np.ndarray) -> tuple[list[str], bool]:
    x, y = library.to_device(module, a, device), library.to_device(module, b, device)
    c = interop.matmul(x, y)
    error = _relative_error(library.to_numpy(c).astype(np.float64), a.astype(np.float64) @ b)
    seconds = _time_per_call(library, module, x, y)
    cells = [
        library.name,
        device,
        _core.route(x)[1],
        library.stream(module) if device == "cuda" else "host",
        f"{type(c).__module__.split('.')[0]}.{type(c).__name__}",
        f"{seconds * 1e6:.0f} us",
        f"{error:.1e}",
    ]
    return cells, error <= _TOLERANCE


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def run() -> int:
    """Print one row for each library and device; return 1 if a result is wrong or a library fails, else 0."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (_SIZE, _SIZE)).astype(np.float32)
    b = rng.uniform(-1, 1, (_SIZE, _SIZE)).astype(np.float32)
    print(f"interop {interop.__version__}: c = interop.matmul(a, b), float32, {_SIZE} x {_SIZE}\n")

    rows = [["library", "device", "read by", "stream", "result", "time", "error against float64"]]
    missing, failed = [], []
    for library in LIBRARIES:
        try:
            module = library.load()
        except ImportError as error:
            missing.append(f"{library.name}: {error}")
            continue
        devices = ["cpu"] if library.on_host else []
        if library.has_cuda(module):
            devices.append("cuda")
        elif not library.on_host:
            missing.append(f"{library.name}: it finds no CUDA device")
        for device in devices:
            try:
                cells, right = _row(library, module, device, a, b)
            except Exception as error:  # shown, and the other libraries still run
                failed.append(f"{library.name} on {device}: {type(error).__name__}: {error}")
                continue
            rows.append(cells)
            if not right:
                failed.append(f"{library.name} on {device}: the error is above {_TOLERANCE:.1e}")
    _print_table(rows)
    _print_execution(a, b, failed)
    for title, lines in (("not here", missing), ("FAILED", failed)):
        if lines:
            print(f"\n{title}:")
            print("\n".join(f"  {line}" for line in lines))
    return 1 if failed else 0


def _print_execution(a: np.ndarray, b: np.ndarray, failed: list[str]) -> None:
    """Host arrays on the GPU: the one copy that can be asked for."""
    try:
        c = interop.matmul(a, b, execution="cuda")
    except interop.CudaError as error:
        print(f"\nhost arrays on a GPU (execution='cuda'): not here: {error}")
        return
    off = _relative_error(c.astype(np.float64), a.astype(np.float64) @ b)
    print(f"\nhost arrays on a GPU (execution='cuda'): {type(c).__name__}, error {off:.1e}")
    if not off <= _TOLERANCE:
        failed.append(f"execution='cuda': the error is above {_TOLERANCE:.1e}")
