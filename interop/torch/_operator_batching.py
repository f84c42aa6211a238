"""`torch.vmap` of an operator: one call with the batch before the leading axes, else one call for each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop._operators.description import Description
from interop.torch._tensors import name_of

__all__ = ["batched"]


def batched(
    operator: Callable[..., Any], description: Description, size: Any, dims: Sequence[int | None], inputs: Sequence[Any]
) -> Any:
    """Return the results with the batch as their dimension 0.

    `dims`: of each input, the dimension that is the batch; None where it is in no batch. `size`: of the batch.
    """
    operands = description.signature.inputs
    leads = [operand.has_leading for operand in operands]
    is_batched = all(has_leading or dim is None for dim, has_leading in zip(dims, leads, strict=True))
    if not is_batched or not description.maps_leading or description.batching == "loop":
        return _one_by_one(operator, description, size, dims, inputs)
    given = []
    for x, dim, has_leading in zip(inputs, dims, leads, strict=True):
        if dim is not None:
            given.append(x.movedim(dim, 0))
        else:
            given.append(x.expand(size, *x.shape) if has_leading else x)
    return operator(*given)


def _one_by_one(
    operator: Callable[..., Any], description: Description, size: int, dims: Sequence[int | None], inputs: Sequence[Any]
) -> Any:
    def each(i: int) -> Any:
        return operator(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, dims, strict=True)))

    if size == 0:
        return _of_none(description, dims, inputs)
    results = [each(i) for i in range(size)]
    if isinstance(results[0], tuple):
        return tuple(map(torch.stack, zip(*results, strict=True)))
    return torch.stack(results)


def _of_none(description: Description, dims: Sequence[int | None], inputs: Sequence[Any]) -> Any:
    """Return the results for a batch of no elements."""
    facts = []
    for place in description.signature.arrays:
        x, dim = inputs[place], dims[place]
        shape = tuple(size for k, size in enumerate(x.shape) if k != dim)
        facts.append((shape, name_of(x.dtype)))
    first = inputs[description.signature.arrays[0]]
    expected = description.results(facts)
    results = tuple(first.new_empty((0, *shape), dtype=getattr(torch, dtype)) for shape, dtype in expected)
    return results if len(results) > 1 else results[0]
