"""A library of the kind of PyPI's cuvec, which needs a CUDA toolkit to be installed: NumPy over managed memory.

What tests take for the module `cuvec` has what that shows to the outside, written anew: `CuVec`, a subclass of
`numpy.ndarray`, of which only whole vectors have a member `cuvec` and, with it, `__cuda_array_interface__`; views and
NumPy's results are of the class and have neither.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from helpers import device, machine

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class _Vector:
    """The memory of a vector: managed where there is a GPU to read it, else the host's."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self._typestr = dtype.str
        size = max(math.prod(shape), 1) * dtype.itemsize
        self._memory = device.ManagedMemory(size) if machine.gpu_count() else np.empty(size, np.uint8)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address = self._memory.ctypes.data if isinstance(self._memory, np.ndarray) else self._memory.pointer
        return {"shape": self.shape, "typestr": self._typestr, "data": (address, False), "version": 3}


class CuVec(np.ndarray):
    """An array of NumPy that may be the whole of a vector."""

    cuvec: _Vector

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not hasattr(self, "cuvec"):
            raise AttributeError("this array is not a whole vector")
        return {key: self.__array_interface__[key] for key in ("shape", "typestr", "data", "version")}

    def resize(self, shape: Any) -> None:
        """Give the vector itself another shape of the same size."""
        self.cuvec.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        super().resize(shape, refcheck=False)


def zeros(shape: Any, dtype: Any = "float32") -> CuVec:
    """Return a new vector; a KeyError for a dtype that cuvec has not."""
    if np.dtype(dtype).name not in DTYPES:
        raise KeyError(np.dtype(dtype))
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    assert shape, "cuvec's own writes outside of its memory for a vector of no dimension"
    vector = _Vector(shape, np.dtype(dtype))
    whole = np.asarray(vector).view(CuVec)
    whole[...] = 0
    whole.cuvec = vector
    return whole


def asarray(array: Any) -> CuVec:
    """Return a whole vector: the array itself, or a copy."""
    if isinstance(array, CuVec) and hasattr(array, "cuvec"):
        return array
    whole = zeros(np.shape(array), np.asarray(array).dtype)
    whole[...] = array
    return whole


def dev_sync() -> None:
    """Wait for the GPU."""
    if machine.gpu_count():
        device.synchronize()
