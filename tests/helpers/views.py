"""Host arrays to look at without a copy, by `interop.convert` and `interop.asarray`."""

from __future__ import annotations

import types

import numpy as np
import pytest

from helpers import machine

VALUES = np.arange(12, dtype="float32").reshape(3, 4)
LAYOUTS = {  # of VALUES
    "compact": lambda x: x,
    "transposed": lambda x: x.T,
    "every other": lambda x: x[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[0], (5, 4)),
    "one row": lambda x: x[1:2],
    "no element": lambda x: x[:, :0],
    "no dimension": lambda x: x[1, 2, ...],
}


def load(name: str) -> types.ModuleType:
    """Import a library, or skip where it is absent."""
    if name in machine.REQUIREMENTS:
        return machine.need(name)
    module = pytest.importorskip(name)
    if name == "warp":
        module.config.quiet = True
    return module
