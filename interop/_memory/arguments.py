"""Dtypes as their names, whoever's they are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from interop._arguments import shown
from interop._libraries.base import numpy_dtype

__all__ = ["dtype_name"]


def dtype_name(function: str, dtype: Any) -> str:
    """Return the name of a dtype: a name, NumPy's or torch's dtype, or a type such as `float`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, getattr(torch, "dtype", ())):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, str | type | np.dtype):  # NumPy takes None for float64, and a scalar for its dtype
        try:
            found = numpy_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
            if found.isnative:
                return str(found.name)
        except (TypeError, ValueError):  # of lone surrogates
            pass
    raise TypeError(
        f"{function}: dtype is {shown(dtype)}; accepted: a name such as 'float32', a dtype of NumPy's or torch's, or a "
        "type such as float"
    )
