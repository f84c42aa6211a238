"""Conversions between libraries, and what is where after them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import interop
from helpers.device import synchronize
from helpers.dlpack import read_capsule
from helpers.libraries import on_gpu
from helpers.races import WITH_STREAMS


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Newer versions of numba-cuda deprecate the arrays that these tests are about."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", category=DeprecationWarning, message=".*([dD]evice ?[aA]rray|as_cuda_array).*"
        )
        yield


def convert(x: Any, library: str, **options: Any) -> Any:
    with quiet():
        return interop.convert(x, library, **options)


def pointer_of(x: Any) -> int:
    """Return the pointer, by a way that queues nothing on the legacy default stream."""
    capsule = interop.asarray(x).__dlpack__(stream=-1, max_version=(1, 0))
    return read_capsule(capsule).tensor.data


def own_pointer(x: Any) -> int:
    """Return the pointer as its library says it, which queues nothing."""
    if isinstance(x, interop.Array):
        return pointer_of(x)
    (library,) = (on_gpu(name) for name in WITH_STREAMS if on_gpu(name).is_ours(x))
    return library.pointer(x)


def values(x: Any) -> np.ndarray:
    """Return the values on the host, once all is done."""
    synchronize()
    return np.from_dlpack(interop.asarray(x), device="cpu")  # by our own copy to the host
