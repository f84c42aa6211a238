"""`interop bench`: measure against the array libraries, on the card that is here.

Protocol: everything in one process on one card, random data, results checked before they are timed, the candidates
interleaved so that drift hits all of them alike, medians. Host time is the time until a call returns. Device time is
that of calls captured in a CUDA graph and replayed, cycling through buffers that together exceed the L2 cache, but for
the small calls of `elementwise`, whose operands stay there.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import interop
from interop import _core
from interop._commands.bench import (
    doors,
    elementwise,
    examples,
    functions,
    gradients,
    matmul,
    memory,
    operators,
    overhead,
    plot,
    table,
)
from interop._commands.bench.measure import Row, try_import

__all__ = ["run"]


def run(
    what: str, csv_path: str | None, only: str = "", plot_path: str | None = None, table_path: str | None = None
) -> int:
    """Run the benchmark `what`, print its table, and write every row to `csv_path` if that is given.

    `only`: of the products or the functions, those whose row has this text. `plot_path`: draw the bars of
    "elementwise", "matmul" or "overhead" into this file. `table_path`: write the page of "matmul" into this one, in
    Markdown.
    """
    plots = {"elementwise": plot.elementwise, "matmul": plot.matmul, "overhead": plot.overhead}
    if plot_path and what not in plots:
        print(f"interop bench: --plot is of {', '.join(plots)}")
        return 1
    if plot_path and not try_import("matplotlib"):
        print("interop bench: --plot needs matplotlib: pip install matplotlib")
        return 1
    if table_path and what != "matmul":
        print("interop bench: --table is of matmul")
        return 1
    machine = _core.machine_info()
    if machine["no_gpu"]:
        print(f"interop bench needs a GPU: {machine['no_gpu']}")
        return 1
    card = machine["devices"][0]["name"]
    try:
        import torch
    except ImportError:
        print("interop bench needs torch, for its events, graphs and random data: pip install 'interop-dlpack[bench]'")
        return 1
    print(_header(torch, card))

    benchmarks: dict[str, Callable[[Any], Iterable[Row]]] = {
        "overhead": overhead.run,
        "doors": doors.run,
        "examples": examples.run,
        "gradients": gradients.run,
        "operators": operators.run,
        "matmul": functools.partial(matmul.run, only=only),
        "elementwise": elementwise.run,
        "functions": functools.partial(functions.run, only=only),
        "memory": memory.run,
    }
    rows = list(benchmarks[what](torch))
    for row in rows:
        row["card"] = card
    if csv_path and rows:
        _write(rows, csv_path)
    if plot_path:
        plots[what](rows, plot_path)
    if table_path:
        table.matmul(rows, _header(torch, card), table_path)
    return 0


def _write(rows: list[Row], path: str) -> None:
    """Write a column for each key that a row has; a row without it leaves it empty."""
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def _header(torch: Any, card: str) -> str:
    versions = [f"interop {interop.__version__}", f"torch {torch.__version__}"]
    for name in ("cupy", "jax"):
        module = try_import(name)
        if module:
            versions.append(f"{name} {module.__version__}")
    driver = _core.machine_info()["driver"]
    return f"{card}, driver for CUDA {driver // 1000}.{driver % 1000 // 10}; {', '.join(versions)}\n"
