"""The bars of `interop bench elementwise --plot`, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["elementwise"]

_COLOURS = {"interop": "#1f6fb4", "torch": "#d9822b", "cupy": "#5a9e4b"}


def elementwise(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the rate of each case and library beside that of a copy, in any format that matplotlib writes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(8, 0.42 * len(cases) + 1), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(_COLOURS)
    for place, (library, colour) in enumerate(_COLOURS.items()):
        ratios = {row["case"]: float(row["ratio_to_copy"]) for row in rows if row["backend"] == library}
        at = [cases.index(case) + (place - 1) * height for case in ratios]
        axes.barh(at, list(ratios.values()), height, color=colour, label=library)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xlabel(f"GB/s, as a ratio to those of a copy; {rows[0]['card']}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(_COLOURS), frameon=False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interop"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
