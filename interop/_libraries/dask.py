"""Dask: the one file that looks for it. It is never imported by this, and looked for by the name of a type alone."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_dask_array"]


def is_dask_array(x: Any) -> bool:
    """Is it an array of Dask's, which has no values yet?"""
    if not any(base.__name__ == "Array" and base.__module__.partition(".")[0] == "dask" for base in type(x).__mro__):
        return False
    arrays = sys.modules.get("dask.array")
    return arrays is not None and isinstance(x, arrays.Array)  # nothing else that is called so
