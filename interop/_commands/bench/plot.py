"""The bars of `interop bench --plot` for elementwise, matmul and overhead, by matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["elementwise", "matmul", "overhead"]

_COLOURS = {"interop": "#1f6fb4", "torch": "#d9822b", "cupy": "#5a9e4b"}
_BACKENDS = {"interop None": "#1f6fb4", "interop tiled": "#86bde8"}


def elementwise(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the rate of each case and library beside that of a copy, in any format that matplotlib writes.

    Small calls have no rate, and no bar.
    """
    rows = [row for row in rows if "ratio_to_copy" in row]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    ratios = {
        library: {row["case"]: float(row["ratio_to_copy"]) for row in rows if row["backend"] == library}
        for library in _COLOURS
    }
    _draw(cases, ratios, _COLOURS, f"GB/s, as a ratio to those of a copy; {rows[0]['card']}", path)


def matmul(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the rates of square products beside those of torch, or of CuPy where torch has none: means of the layouts.

    Integers are many times as fast as CuPy's, hence the logarithmic axis.
    """
    rates: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["group"] == "square":
            rates.setdefault(row["product"], {})[row["backend"]] = float(row["tflops"])
    ratios: dict[str, dict[str, list[float]]] = {backend: {} for backend in _BACKENDS}
    for product, of in rates.items():
        what, shapes, _ = product.split()
        peer = "torch" if "torch" in of else "cupy"
        if peer not in of:
            continue
        case = f"{what} {shapes.split('x')[0]}" + (" (to CuPy)" if peer == "cupy" else "")
        for backend in _BACKENDS:
            if backend in of:
                ratios[backend].setdefault(case, []).append(of[backend] / of[peer])
    means = {
        backend: {case: statistics.geometric_mean(values) for case, values in of.items()}
        for backend, of in ratios.items()
    }
    cases = list(dict.fromkeys(case for of in means.values() for case in of))
    _draw(cases, means, _BACKENDS, f"TFLOP/s, as a ratio to torch's; {rows[0]['card']}", path, logarithmic=True)


def overhead(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the host time of each call as a ratio to the library's own call that it is measured beside."""
    prefix = "interop."
    ours = [row for row in rows if row["row"].startswith(prefix) and row["ratio"] != ""]
    ratios = {row["row"].removeprefix(prefix): float(row["ratio"]) for row in ours}
    label = f"host time of a call, as a ratio to that of the library's own\n{rows[0]['card']}"
    _draw(list(ratios), {"interop": ratios}, {"interop": _COLOURS["interop"]}, label, path)


def _draw(
    cases: Sequence[str],
    ratios: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    label: str,
    path: str,
    logarithmic: bool = False,
) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.14 * len(colours) * len(cases) + 1), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(colours)
    for place, (name, colour) in enumerate(colours.items()):
        at = [cases.index(case) + (place - (len(colours) - 1) / 2) * height for case in ratios[name]]
        axes.barh(at, list(ratios[name].values()), height, color=colour, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(colours), frameon=False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interop"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
