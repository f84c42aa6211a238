"""Small sums on torch, each unlike the plain one in one way: dtypes, dimensions, layouts, where the work is queued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interop

__all__ = ["calls"]

_SHAPES = ((256,), (16, 16), (4, 4, 16), (4, 4, 4, 4), (2, 2, 4, 4, 4), (2, 2, 2, 2, 4, 4))

#: The library's call and interop's, by what the row calls them.
Pair = tuple[str, Callable[[], Any], str, Callable[[], Any]]


def calls(torch: Any, device: str = "cuda") -> list[Pair]:
    """Return torch's calls and interop's, of 256 elements each."""
    x = torch.rand(16, 16, device=device)
    pairs = [_pair(torch, f"{len(shape)}-D", torch.rand(shape, device=device)) for shape in _SHAPES]
    pairs.append(_pair(torch, "permuted", torch.rand(4, 8, 8, device=device).permute(2, 0, 1)))
    pairs.append(_pair(torch, "broadcast", x, torch.rand(16, device=device)))
    pairs.append(_pair(torch, "float32 + bfloat16", x, x.bfloat16()))
    pairs.append(_pair(torch, "a 0-d host tensor", x, torch.tensor(2.5)))
    pairs.append(("torch.less", lambda: torch.less(x, x), "interop.less on torch", lambda: interop.less(x, x)))
    if device == "cuda":
        pairs.append(_on_another_stream(torch, x))
    return pairs


def _pair(torch: Any, what: str, x: Any, y: Any = None) -> Pair:
    y = x if y is None else y
    return (
        f"torch.add, {what}",
        lambda: torch.add(x, y),
        f"interop.add on torch, {what}",
        lambda: interop.add(x, y),
    )


def _on_another_stream(torch: Any, x: Any) -> Pair:
    """Return a sum that waits for torch's current stream and is queued on another one; torch has no such call."""
    out, stream = torch.empty_like(x), torch.cuda.Stream().cuda_stream
    return (
        "torch.add(out=), on its own stream",
        lambda: torch.add(x, x, out=out),
        "interop.add(out=, stream=) on torch",
        lambda: interop.add(x, x, out=out, stream=stream),
    )
