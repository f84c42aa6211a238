"""NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.base import CPU, FUNCTION, Library, describe

__all__ = ["LIBRARY"]


def _take(module: Any, array: Array, stream: int | None) -> Any:
    if _core.readable_by(array, CPU) is None:
        raise TypeError(
            f"{FUNCTION}: NumPy has arrays in host memory only; {describe(array)}; copy it to the host with its own "
            "library (x.cpu(), cupy.asnumpy(x), numpy.asarray(x) of a JAX array, x.copy_to_host() of Numba)"
        )
    return array.__array__()


LIBRARY = Library(
    name="numpy",
    module="numpy",
    owns=lambda numpy, x: isinstance(x, numpy.ndarray),
    take=_take,
    keeps_read_only=True,
    install="pip install numpy",
    to_device=lambda numpy, array, device: array,
    to_numpy=np.asarray,
    has_cuda=lambda numpy: False,
    stream=lambda numpy: "none",
)
