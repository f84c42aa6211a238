"""Operators of distributed tensors (DTensor): the cuts that a signature allows. All else is whole on each process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from interop._operators.description import Description
from interop._operators.signature import Operand

__all__ = ["register"]


def register(operator: Any, description: Description) -> None:
    """Tell torch how the tensors of an operator may be cut."""

    def cuts(*inputs: Any) -> list[tuple[list[Any], list[Any]]]:
        return _cuts(description, inputs)

    register_sharding(operator)(cuts)


def _cuts(description: Description, inputs: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Return the ways to cut a call over one dimension of a mesh: its results, and its inputs, None for a number."""
    signature = description.signature
    leads = [
        len(x.shape) - len(operand.axes) + 1
        for operand, x in zip(signature.inputs, inputs, strict=True)
        if operand.axes is not None and operand.has_leading
    ]
    lead = leads[0] if leads else 0
    whole: tuple[list[Any], list[Any]] = (
        [Replicate() for _ in signature.outputs],
        [None if operand.axes is None else Replicate() for operand in signature.inputs],
    )
    indices: list[int | str] = [*range(lead)] if description.maps_leading else []
    ways = [whole]
    for index in (*indices, *sorted(description.cut)):
        of_results = [_along(operand, index, lead) for operand in signature.outputs]
        ways.append((of_results, [_along(operand, index, lead) for operand in signature.inputs]))
    for letter in signature.sums:
        along = [_along(operand, letter, lead) for operand in signature.inputs]
        ways.append(([Partial() for _ in signature.outputs], along))
    return ways


def _along(operand: Operand, index: int | str, lead: int) -> Any:
    """Return the cut of an operand along a leading axis, or a letter: none, where it has no such axis."""
    if operand.axes is None:
        return None
    if isinstance(index, int):
        return Shard(index) if operand.has_leading else Replicate()
    if index not in operand.axes:
        return Replicate()
    place = operand.axes.index(index)
    return Shard(place + lead - 1 if operand.has_leading else place)
