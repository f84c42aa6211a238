"""Products by each backend, of which cuBLASLt may refuse what it cannot compute."""

from __future__ import annotations

from typing import Any

import pytest

import interop

BACKENDS = pytest.mark.parametrize("backend", [None, "tiled", "cublas"])


def matmul(*arrays: Any, backend: str | None, may_refuse: bool, **options: Any) -> Any:
    """The product; None where cuBLASLt was asked for by name and says that it cannot, if it may."""
    if backend != "cublas" or not may_refuse:
        return interop.matmul(*arrays, backend=backend, **options)
    try:
        return interop.matmul(*arrays, backend=backend, **options)
    except ValueError as error:
        words = str(error)
    assert 'backend="cublas" cannot take this product: ' in words
    assert 'use backend="tiled", or leave the choice to interop' in words
    return None
