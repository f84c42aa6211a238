"""Products of distributed tensors (DTensor): the cuts of the operands that a product takes as they are.

Each process multiplies its own shards, and knows how the result is cut: no process waits for another. Of operands that
are cut otherwise, torch first moves the least that makes them fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

__all__: list[str] = []  # what is imported for its effect

_Index = int | str  # "m", "k", "n"; of a stack: its dimension, counted from the last of the stack, -1
_Shard = Callable[[int], Any]  # from a dimension to a cut along it


def _cuts(
    a: Any, b: Any, c: Any = None, bias: Any = None, *factors: Any, **options: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Return the ways to cut a product over one dimension of a mesh: of its result, and of its tensors."""
    indices_of = [_indices(a, "mk"), _indices(b, "kn")]
    stacks = range(2 - max(len(a.shape), len(b.shape)), 0)
    indices_of.append([*stacks, *(x for side in indices_of for x in side[-2:] if x in ("m", "n"))])
    terms = [None if x is None else Replicate() for x in (c, bias)]
    ways = [[Replicate()] * 3 + terms, *_along_result(a, b, c, bias, indices_of)]
    # The sum of what an epilogue makes of terms is not what it makes of their sum. A product of bool is no sum.
    if options.get("epilogue") is None and not (_is_bool(a) and _is_bool(b) and options.get("dtype") is None):
        ways += _as_sums(a, b, c, bias, indices_of)
    numbers = [None if x is None else Replicate() for x in factors]
    return [([result], [*operands, *numbers]) for result, *operands in ways]


def _cuts_of_pair(*tensors: Any, **options: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the same for a product that gives its epilogue's input, too."""
    return [(result * 2, operands) for result, operands in _cuts(*tensors, **options)]


def _along_result(a: Any, b: Any, c: Any, bias: Any, indices_of: Sequence[Sequence[_Index]]) -> Iterator[list[Any]]:
    """Yield the cuts of the result, a, b, c and bias along each index of the result."""
    of_a, of_b, of_result = indices_of
    operands = [(a, of_a), (b, of_b)]
    operands += [(x, of_result[len(of_result) - len(x.shape) :]) for x in (c, bias) if x is not None]
    for dim, index in enumerate(of_result):
        for shard in _shards(operands, index):
            along = [_along(x, indices, index, shard) for x, indices in operands]
            terms = iter(along[2:])
            if any(x != Replicate() for x in along[:2]):
                yield [shard(dim), *along[:2], *(None if x is None else next(terms) for x in (c, bias))]


def _as_sums(a: Any, b: Any, c: Any, bias: Any, indices_of: Sequence[Sequence[_Index]]) -> Iterator[list[Any]]:
    """Yield the cuts that make the result a sum over the processes: along k, and of an operand that is such a sum."""
    terms = [None if x is None else Partial() for x in (c, bias)]  # of a whole one, all but one process take zeros
    operands = [(a, indices_of[0]), (b, indices_of[1])]
    for shard in _shards(operands, "k"):
        yield [Partial(), *(shard(indices.index("k")) for _, indices in operands), *terms]
    if _is_inexact(a):  # a sum of narrow integers wraps earlier than that of their products
        yield [Partial(), Partial(), Replicate(), *terms]
    if _is_inexact(b):
        yield [Partial(), Replicate(), Partial(), *terms]


def _indices(x: Any, matrix: str) -> list[_Index]:
    """Name the indices of an operand, a vector's with "k"."""
    rank = len(x.shape)
    return ["k"] if rank == 1 else [*range(2 - rank, 0), *matrix]


def _along(x: Any, indices: Sequence[_Index], index: _Index, shard: _Shard) -> Any:
    """Return the cut of a tensor along an index: none, where it has no such index, or is broadcast along it."""
    if index not in indices:
        return Replicate()
    dim = indices.index(index)
    return Replicate() if x.shape[dim] == 1 else shard(dim)


def _shards(operands: Sequence[tuple[Any, Sequence[_Index]]], index: _Index) -> list[_Shard]:
    """Return the kinds of cuts along an index: torch's common one, and the strided ones that operands have there.

    Flattening stacks of rows that are cut gives a strided one: the gradient of a weight by such rows needs it.
    """
    strided = (
        (x, indices[x.dim]) for operand, indices in operands for x in operand.placements if hasattr(x, "split_factor")
    )
    kinds: dict[tuple[Any, Any], None] = dict.fromkeys(
        (type(cut), cut.split_factor) for cut, at in strided if at == index
    )
    return [Shard, *(functools.partial(kind, split_factor=factor) for kind, factor in kinds)]


def _is_bool(x: Any) -> bool:
    is_bool: bool = x.tensor_meta.dtype == torch.bool
    return is_bool


def _is_inexact(x: Any) -> bool:
    dtype = x.tensor_meta.dtype
    is_inexact: bool = dtype.is_floating_point or dtype.is_complex
    return is_inexact


def _register(name: str, cuts: Any) -> None:
    operator = getattr(torch.ops.interop, name).default
    register_sharding(operator)(cuts)
    # torch uses the cut of a call again where the tensors and integers are alike. With an epilogue, a string, a product
    # would be taken for the sum that it is without.
    facts = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[operator]
    facts.static_kwargkey = [*(facts.static_kwargkey or ()), "epilogue"]


_register("matmul", _cuts)
_register("matmul_with_aux", _cuts_of_pair)
