"""`torch.vmap` of a product: one product of stacks, with the batch as their first dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop.torch._matmul_derivatives import scaled

__all__ = ["batched"]


def batched(
    operator: Callable[..., Any], size: Any, dims: Sequence[int | None], tensors: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Return the product, or the product and what its epilogue was given, with the batch as dimension 0.

    `dims`: of each of the six tensors, the dimension that is the batch; None where it is in no batch. `size`: of the
    batch.
    """
    if any(dim is not None for dim in dims[4:]):
        return _one_by_one(operator, size, dims, tensors, options)  # a kernel takes one scale
    a, b, c, bias = (x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors[:4], dims[:4], strict=True))
    in_a, in_b, in_c, in_bias = (dim is not None for dim in dims[:4])
    if not in_a and not in_b:
        a, in_a = a.expand(size, *a.shape), True
    a_is_vector, b_is_vector = a.ndim - in_a == 1, b.ndim - in_b == 1
    if a_is_vector:
        a = a.unsqueeze(-2)
    if b_is_vector:
        b = b.unsqueeze(-1)
    rank = max(a.ndim - in_a, b.ndim - in_b)

    def as_term(x: torch.Tensor, is_batched: bool) -> torch.Tensor:
        """Give a term what the result has: the dimensions that vectors were given, and its batch before all others."""
        x = _aligned(x, is_batched, rank - a_is_vector - b_is_vector)
        x = x.unsqueeze(-1) if b_is_vector else x
        return x.unsqueeze(-2) if a_is_vector and x.ndim else x

    if c is not None:
        c = as_term(c, in_c)
    if bias is not None and (in_bias or a_is_vector or b_is_vector):  # it may be no row and no column of the stack
        bias = as_term(bias, in_bias)
        c = bias if c is None else scaled(c, options.get("beta")) + bias
        options = {**options, "beta": None}
        bias = None
    results = operator(_aligned(a, in_a, rank), _aligned(b, in_b, rank), c, bias, *tensors[4:], **options)

    def as_asked(x: torch.Tensor) -> torch.Tensor:
        x = x.squeeze(-2) if a_is_vector else x
        return x.squeeze(-1) if b_is_vector else x

    return tuple(map(as_asked, results)) if isinstance(results, tuple) else as_asked(results)


def _aligned(x: torch.Tensor, is_batched: bool, rank: int) -> torch.Tensor:
    """Insert dimensions of length 1 behind the batch, to have `rank` beside it."""
    missing = rank + is_batched - x.ndim
    return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]) if is_batched and missing else x


def _one_by_one(
    operator: Callable[..., Any], size: int, dims: Sequence[int | None], tensors: Sequence[Any], options: dict[str, Any]
) -> Any:
    def each(i: int) -> Any:
        return operator(
            *(x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=True)), **options
        )

    results = [each(i) for i in range(size)]
    if isinstance(results[0], tuple):
        return tuple(map(torch.stack, zip(*results, strict=True)))
    return torch.stack(results)
