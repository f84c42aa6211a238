"""Device memory that tests account for: operands of 64 MiB in any layout, and what allocators give back."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import interop
from helpers.device import synchronize

BIG = 4096
RESULT = BIG * BIG * 4
WORKSPACE = 32 << 20  # the most that a plan may ask for
VIEWS = ("compact", "transposed", "sliced", "padded", "offset", "repeated rows", "one value", "windows", "reversed")


def big_operand(library: Any, layout: str) -> Any:
    """An operand of 64 MiB (as a copy would be) in this layout; the values are zeros, quickly made."""
    rows = columns = BIG
    item = 4
    steps = {
        "compact": (columns, 1),
        "transposed": (1, rows),
        "sliced": (2 * 3 * columns, 3),
        "padded": (columns + 3, 1),
        "offset": (columns, 1),
        "repeated rows": (0, 1),
        "one value": (0, 0),
        "windows": (1, 1),
        "reversed": (-columns, -1),
    }[layout]
    reach = sum((BIG - 1) * abs(step) for step in steps) + 2
    base = np.zeros(reach, "float32")
    start = 1 if layout == "offset" else (reach - 2 if layout == "reversed" else 0)
    view = np.lib.stride_tricks.as_strided(base[start:], (rows, columns), tuple(step * item for step in steps))
    return library.view(base, view)


def release_pools(library: Any) -> None:
    synchronize()
    gc.collect()
    if library.name == "torch":
        library.module.cuda.empty_cache()
    elif library.name == "cupy":
        library.module.get_default_memory_pool().free_all_blocks()
    elif library.name == "numba":
        library.module.current_context().memory_manager.deallocations.clear()
    interop.memory_pool().trim()
    synchronize()
