"""Host arrays of every layout, for what `interop.Array` exports of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

VALUES = np.arange(24, dtype="float32").reshape(4, 6)
LAYOUTS = {
    "compact": VALUES,
    "transposed": VALUES.T,
    "every other": VALUES[::2, 1::3],
    "reversed": VALUES[::-1, ::-2],
    "broadcast": np.broadcast_to(VALUES[0], (3, 6)),
    "no element": VALUES[:0],
    "no dimension": VALUES[1, 1, ...],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def pointer_of(x: Any) -> int:
    return np.asarray(x).__array_interface__["data"][0]
