"""Expressions on torch's tensors: by torch's own operations, which its compiler fuses, or recorded for gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from interop._expressions.known import type_of
from interop._expressions.parser import parse
from interop._expressions.typed import ArrayRef, Constant, Reference, Split, StepRef, Typed
from interop._operations.table import OPERATIONS
from interop.torch._constants import constant
from interop.torch._elementwise import (
    as_dtype,
    by_torch,
    check_shapes,
    computed,
    described,
    element,
    exponent_of,
    halved,
    kind_of,
    operands_of,
    refuse_options,
    side_of,
    without_autocast,
)
from interop.torch._tensors import fill, name_of, needing_grad, refuse_written

__all__ = ["compute", "decomposed_expression", "evaluate", "plan_of"]


def compute(split: Split, operands: Sequence[Any], options: dict[str, Any]) -> Any:
    """Compute an expression of tensors and scalars, in the order of its parameters, by torch's own operations.

    Raises as the call without torch's transforms does; RuntimeError for `out` where an operand requires grad, and
    ValueError for a stream, or another device, which torch's transforms cannot have.
    """
    function, out = split.function, options.get("out")
    refuse_options(function, options)
    named = operands_of(function, zip(split.parameters, operands, strict=True))
    result = decomposed_expression(split, *named.values())
    if out is None:
        return result
    refuse_written(function, needing_grad({**named, "out": out}), out=out)
    fill(function, "out", out, result)
    return out


def decomposed_expression(split: Split, *operands: Any) -> torch.Tensor:
    """Compute an expression by torch's operations. Plain Python, which Dynamo traces."""
    function = split.function
    tensors = [(name, x) for name, x in zip(split.parameters, operands, strict=True) if isinstance(x, torch.Tensor)]
    check_shapes(function, tensors)
    scalars = sources_of(split, operands)
    dtypes = tuple([described(x) for _, x in tensors])
    kinds = tuple([described(x) for x in scalars])
    key = _key_of(split)
    plan = _plan(key, dtypes, kinds, ())
    sides = tuple([side_of(scalars[source], dtype) for source, dtype in plan.compared])
    if any(sides):
        plan = _plan(key, dtypes, kinds, sides)
    like = tensors[0][1]
    with without_autocast(like):
        values = [element(function, label, scalars[source], dtype, like) for source, label, dtype in plan.values]
        numbers = [exponent_of(scalars[source], dtype) for source, _, dtype in plan.values]
        return evaluate(plan.steps, function, [x for _, x in tensors], values, numbers)


def sources_of(split: Split, operands: Sequence[Any]) -> list[Any]:
    """Return the values of the scalars that the arrays meet."""
    places = _places(_key_of(split))
    if all(place >= 0 for place in places):
        return [operands[place] for place in places]
    return split.evaluate(*operands)


_Key = tuple[str, str, tuple[str, ...]]


def _key_of(split: Split) -> _Key:
    """Return what a split is made of: Dynamo has strings as constants, and no objects."""
    return split.function, split.parsed.text, split.arrays


@functools.lru_cache(maxsize=1024)
def _split_of(key: _Key) -> Split:
    function, text, arrays = key
    parsed = parse(text)
    return Split(function, parsed, frozenset(parsed.parameters) - frozenset(arrays))


@constant
def _places(key: _Key) -> tuple[int, ...]:
    return tuple(_split_of(key).places)


# ---- steps by torch's operations ----


class Plan:
    """A typed expression in numbers and names alone, which Dynamo traces.

    An argument of a step is ("array", "value", "step" or "constant"; its place, or the number; the dtype that it is
    converted to).
    """

    def __init__(self, typed: Typed, labels: Sequence[str]) -> None:
        self.values = tuple((source, labels[source], dtype) for source, dtype in typed.values)
        self.compared = tuple(typed.compared)
        self.steps = tuple(
            (step.operation.name, step.dtype, tuple((*_written(ref), to) for ref, to in step.args))
            for step in typed.steps
        )


def _written(ref: Reference) -> tuple[str, Any]:
    if isinstance(ref, Constant):
        number = ref.value.item() if ref.dtype != "bfloat16" else float(ref.value)
        return "constant", number
    kind = "array" if isinstance(ref, ArrayRef) else "step" if isinstance(ref, StepRef) else "value"
    return kind, ref.index


@constant
def _plan(key: _Key, arrays: tuple[Any, ...], scalars: tuple[Any, ...], sides: tuple[int, ...]) -> Plan:
    split = _split_of(key)
    named = tuple((name_of(dtype), is_0d) for dtype, is_0d in arrays)
    return plan_of(type_of(split, "torch", named, scalars, sides), split.labels)


def plan_of(typed: Typed, labels: Sequence[str]) -> Plan:
    """Return what `evaluate` takes of a typed expression; of each source, `labels` is the name in messages."""
    return Plan(typed, labels)


def evaluate(
    steps: Sequence[Any],
    function: str,
    arrays: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    numbers: Sequence[float | None],
) -> torch.Tensor:
    """Compute the steps of a plan of tensors, and of its values as 0-d tensors; `numbers` are these as exponents."""
    found = {"array": arrays, "value": values, "step": []}
    results: Any = found["step"]
    for name, dtype, args in steps:
        operands = []
        for kind, place, to in args:
            x = element(function, "the literal", place, to, arrays[0]) if kind == "constant" else found[kind][place]
            # The functions convert by themselves: comparisons see what was signed.
            operands.append(x if OPERATIONS[name].is_function else as_dtype(x, to))
        if name == "pow":
            kind, place, _ = args[1]
            exponent = place if kind == "constant" else numbers[place] if kind == "value" else None
            results.append(computed(name, dtype, *operands, exponent=exponent))
        else:
            results.append(apply(name, dtype, operands))
    result: torch.Tensor = results[-1]
    return result


def apply(name: str, dtype: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute one operation of operands that have been converted."""
    operation, kind = OPERATIONS[name], kind_of(dtype)
    first = operands[0]
    if operation.is_function:
        return computed(name, dtype, *operands)
    if operation.keeps(kind) or (name in ("real", "conj") and kind != "c"):
        return first.clone()
    if name == "square":
        return computed("multiply", dtype, first, first)
    if name in ("isnan", "isinf", "isfinite") and kind in "biu":
        return torch.full_like(first, name == "isfinite", dtype=torch.bool)
    if name == "signbit" and kind == "u":
        return torch.zeros_like(first, dtype=torch.bool)
    if name == "sign" and kind == "f":
        return torch.where(first != first, float("nan"), torch.sign(first))
    if kind == "u":  # torch has few operations on them
        wide = [x if x.dtype == torch.bool else x.to(torch.int64) for x in operands]
        return as_dtype(_of_unsigned(name, dtype, wide), dtype)
    if name in ("bitwise_left_shift", "bitwise_right_shift"):
        return _shift(name, 8 * first.dtype.itemsize, *operands)
    if name == "conj":
        return torch.conj_physical(first)
    if first.dtype.itemsize == 2 and operation.in_float:  # rounded once
        return as_dtype(by_torch(name, *[x.float() for x in operands]), dtype)
    return by_torch(name, *operands)


def _of_unsigned(name: str, dtype: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute one operation of unsigned integers by their bits, as int64."""
    if name == "sign":
        return (operands[0] != 0).to(torch.int64)
    if name not in ("bitwise_left_shift", "bitwise_right_shift"):
        return by_torch(name, *operands)
    x, count = operands
    bits = 8 * getattr(torch, dtype).itemsize
    is_outside = (count < 0) | (count >= bits)
    inside = torch.where(is_outside, 0, count)
    if name == "bitwise_left_shift":
        return torch.where(is_outside, 0, x << inside)
    # Of 64 bits the first is no sign.
    shifted = torch.where(inside == 0, x, halved(x) >> (inside - 1).clamp(min=0))
    return torch.where(is_outside, 0, shifted)


def _shift(name: str, bits: int, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Shift as NumPy does: a shift by all bits or more, or by a negative count, leaves only the sign."""
    is_outside = (count < 0) | (count >= bits)
    inside = torch.where(is_outside, 0, count)
    if name == "bitwise_left_shift":
        return torch.where(is_outside, 0, x << inside)
    return torch.where(is_outside, torch.where(x < 0, -1, 0).to(x.dtype), x >> inside)
