"""The page of `interop bench matmul --table`, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["matmul"]

_PEERS = {"torch": "torch", "cupy": "CuPy"}
_COLUMNS = {**_PEERS, "interop None": "`None`", "interop cublas": '`"cublas"`', "interop tiled": '`"tiled"`'}

Rates = Mapping[str, Mapping[str, float]]  # of a product's "shapes layout", of a backend or library


def matmul(rows: Sequence[dict[str, Any]], header: str, path: str) -> None:
    """Write the rate of every product by every backend, and the means of each dtype, into a file.

    `header` names the card and the versions.
    """
    sections: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        dtype, product = row["product"].split(" ", 1)
        sections.setdefault(dtype, {}).setdefault(product, {})[row["backend"]] = float(row["tflops"])
    lines = [
        "# How fast is each product?",
        "",
        f"Every row of `interop bench matmul` on one {header.strip()}.",
        "TFLOP/s on the device, TOP/s of integers. [How to measure](performance-figures.md#how-to-measure) says what",
        "the columns are.",
        "",
        "Geometric means of each dtype's ratios to its peer, and the worst:",
        "",
        '| dtype | rows | peer | `None` | worst | `"tiled"` | worst | `"tiled"` to `"cublas"` | worst |',
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dtype, rates in sections.items():
        lines += [_means(dtype, rates, peer) for peer in _PEERS if _ratios(rates, "interop None", peer)]
    for dtype, rates in sections.items():
        lines += ["", f"## {dtype}", "", *_section(rates)]
    Path(path).write_text("\n".join(lines) + "\n")


def _ratios(rates: Rates, backend: str, peer: str) -> list[float]:
    return [of[backend] / of[peer] for of in rates.values() if backend in of and peer in of]


def _means(dtype: str, rates: Rates, peer: str) -> str:
    cells = [dtype, str(len(_ratios(rates, "interop None", peer))), _PEERS[peer]]
    for backend, other in (("interop None", peer), ("interop tiled", peer), ("interop tiled", "interop cublas")):
        ratios = _ratios(rates, backend, other)
        cells += [f"{statistics.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"] if ratios else ["-", "-"]
    return f"| {' | '.join(cells)} |"


def _section(rates: Rates) -> list[str]:
    peer = "torch" if any("torch" in of for of in rates.values()) else "cupy"
    titles = ["product", "layout", *_COLUMNS.values(), f"`None` to {_PEERS[peer]}"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for product, of in rates.items():
        shapes, layout = product.rsplit(" ", 1)
        cells = [shapes.replace("@", " @ "), layout]
        cells += [f"{of[name]:.1f}" if name in of else "-" for name in _COLUMNS]
        cells.append(f"{of['interop None'] / of[peer]:.2f}" if peer in of else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
