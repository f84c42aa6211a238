"""A kernel of Triton's, which is compiled from its file."""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

__all__ = ["add"]


@triton.jit  # type: ignore[untyped-decorator]
def add(a, b, c, n, BLOCK: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]  # noqa: N803
    """Write a + b to c."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)
