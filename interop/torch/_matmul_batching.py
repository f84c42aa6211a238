"""`torch.vmap` of a product: one product of stacks, with the batch as the first dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["batched"]


def batched(
    operator: Callable[..., Any], size: Any, dims: Sequence[int | None], tensors: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Return the product (and what the epilogue was given), with the batch as dimension 0.

    `dims`: of each tensor, the dimension that is the batch; None where it is in no batch.
    """
    dims = [*dims, *(None,) * (len(tensors) - len(dims))]
    if any(dim is not None for dim in dims[4:]):  # a kernel takes one scale
        return _one_by_one(operator, size, dims, tensors, options)
    a, b, c, bias = (
        x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors[:4], dims, strict=False)
    )
    in_a, in_b, in_c, in_bias = (dim is not None for dim in dims[:4])
    a_is_vector, b_is_vector = a.ndim - in_a == 1, b.ndim - in_b == 1
    if a_is_vector:
        a = a.unsqueeze(-2)
    if b_is_vector:
        b = b.unsqueeze(-1)
    stacks = max(a.ndim - in_a, b.ndim - in_b)

    def aligned(x: torch.Tensor, is_batch: bool) -> torch.Tensor:
        """Put the batch before all stacks of either operand, so that it meets no other dimension."""
        missing = stacks - (x.ndim - is_batch)
        return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]) if is_batch and missing else x

    def as_matrices(term: torch.Tensor, is_batch: bool) -> torch.Tensor:
        """Give a term the dimensions of length 1 that vectors have got, and its batch its place."""
        own = stacks - a_is_vector - b_is_vector
        missing = own - (term.ndim - is_batch)
        head = term.shape[:1] if is_batch else ()
        term = term.reshape(*head, *(1,) * missing, *term.shape[is_batch:])
        if b_is_vector:
            term = term.unsqueeze(-1)
        return term.unsqueeze(-2) if a_is_vector else term

    if c is not None:
        c = as_matrices(c, in_c)
    if bias is not None:
        if in_bias or a_is_vector or b_is_vector:  # no longer one row or one column
            c, options = _with_bias(c, as_matrices(bias, in_bias), options)
            bias = None
    results = operator(aligned(a, in_a), aligned(b, in_b), c, bias, *tensors[4:], **options)
    if not in_a and not in_b:  # the batch is that of the terms alone
        raise AssertionError
    def as_asked(x: torch.Tensor) -> torch.Tensor:
        x = x.squeeze(-1) if b_is_vector else x
        return x.squeeze(-1 if b_is_vector else -2) if a_is_vector else x

    return tuple(map(as_asked, results)) if isinstance(results, tuple) else as_asked(results)
