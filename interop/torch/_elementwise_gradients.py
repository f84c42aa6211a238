"""Gradients of elementwise functions and expressions of exact tensors: forward and back by our own kernels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop import _core
from interop._expressions.known import typed_for
from interop._expressions.typed import ArrayRef, Reference, Split, Typed, ValueRef
from interop._operations.table import COMPARISONS, OPERATIONS
from interop.torch import _elementwise, _expression
from interop.torch._derivatives import Derivative, NoDerivativeError, Program, Steps, literal
from interop.torch._elementwise import common_dtype, described, element, exponent_of, operands_of, without_autocast
from interop.torch._tensors import name_of, needing_grad, refuse_written, sum_to, watches

__all__ = ["record", "record_expression"]


def record(name: str, a: Any, b: Any, options: dict[str, Any]) -> Any:
    """Compute one of the package's functions of exact tensors, of which some need a gradient, which torch records.

    Raises as the public function does; RuntimeError for `out`, and ValueError for a stream.
    """
    function, parameters = f"interop.{name}", OPERATIONS[name].parameters
    operands = operands_of(function, zip(parameters, (a, b), strict=False))
    first, second = (*operands.values(), None)[:2]
    forward = functools.partial(_core.below_autograd, name, options, first, second)
    if name in COMPARISONS:
        return forward()
    dtype = common_dtype(name, *map(described, operands.values()))
    zero = options.get("where_zero")
    arrays = {parameter: x for parameter, x in operands.items() if isinstance(x, torch.Tensor)}
    program = _program_of(name, dtype, tuple((x, name_of(y.dtype)) for x, y in arrays.items()), zero is not None)
    values = [x for parameter, x in operands.items() if parameter not in arrays] + ([] if zero is None else [zero])
    try:
        return _record(forward, program, arrays, values, options)
    except NoDerivativeError:
        return _elementwise.compute(name, first, second, options)


def record_expression(
    expression: _core.Expression, split: Split, operands: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Compute an expression as `record` does a function; the operands are in the order of its parameters."""
    named = operands_of(split.function, zip(split.parameters, operands, strict=True))
    arrays = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    scalars = split.evaluate(*named.values()) if split.sources else []
    typed = typed_for(split, "torch", tuple((name_of(x.dtype), x.ndim == 0) for x in arrays.values()), scalars)
    values = [scalars[source] for source, _ in typed.values]
    try:
        program = _program_of_expression(split, typed)
        forward = functools.partial(_core.below_autograd, expression, options, *named.values())
        return _record(forward, program, arrays, values, options)
    except NoDerivativeError:
        return _expression.compute(split, operands, options)


# ---- programs ----


@functools.lru_cache(maxsize=1024)
def _program_of(name: str, dtype: str, arrays: tuple[tuple[str, str], ...], has_zero: bool) -> Program:
    """Return one of the package's functions as a program; `arrays` are (parameter, dtype), the rest are scalars."""
    function, steps = f"interop.{name}", Steps()
    labels: list[str] = []

    def value(label: str) -> ValueRef:
        labels.append(label)
        return ValueRef(len(labels) - 1, dtype)

    places = {parameter: ArrayRef(place, of) for place, (parameter, of) in enumerate(arrays)}
    operands: list[Reference] = [places.get(x) or value(x) for x in OPERATIONS[name].parameters]
    if has_zero:  # without a division by zero, whose derivative would be NaN
        zero, divisor = literal(0, dtype), operands[1]
        is_zero = steps.apply("equal", dtype, divisor, zero)
        operands[1] = steps.apply("where", dtype, is_zero, literal(1, dtype), divisor)
        quotient = steps.apply(name, dtype, *operands)
        steps.apply("where", dtype, is_zero, value("where_zero"), quotient)
    else:
        steps.apply(name, dtype, *operands)
    typed = Typed(function, [of for _, of in arrays], lambda: None, steps.steps)
    typed.values = [(place, dtype) for place in range(len(labels))]
    return Program(typed, [parameter for parameter, _ in arrays], labels)


@functools.lru_cache(maxsize=1024)
def _program_of_expression(split: Split, typed: Typed) -> Program:
    own = Typed(typed.function, typed.arrays, typed.current_configuration, typed.steps)
    own.values = [(place, dtype) for place, (_, dtype) in enumerate(typed.values)]
    return Program(own, split.arrays, [split.labels[source] for source, _ in typed.values])


# ---- torch's record ----


def _record(
    forward: Callable[[], Any],
    program: Program,
    arrays: dict[str, torch.Tensor],
    values: Sequence[Any],
    options: dict[str, Any],
) -> torch.Tensor:
    """Compute by `forward`, and let torch record the derivatives; raises NoDerivativeError for want of one."""
    function, out = program.typed.function, options.get("out")
    needing = needing_grad({**arrays, "out": out})
    derivatives = [program.derivative(place) if x.requires_grad else None for place, x in enumerate(arrays.values())]
    refuse_written(function, needing, out=out)
    if needing is None or not any(derivatives):
        return forward()
    if options.get("stream") is not None:
        raise ValueError(
            f"{function}: stream= is given, and {needing} requires grad: torch chooses the stream of the gradients; "
            f"accepted: None, or a call under torch.no_grad()"
        )
    return _apply(forward, derivatives, values, options.get("execution"), *arrays.values())


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A call with the derivative by each operand, if it needs one; it keeps the operands that they need."""

    @staticmethod
    def forward(ctx: Any, forward: Any, derivatives: Any, values: Any, execution: Any, *arrays: torch.Tensor) -> Any:
        """Compute."""
        ctx.derivatives = derivatives
        ctx.kept = sorted({place for derivative in ctx.derivatives if derivative for place in derivative.arrays})
        ctx.save_for_backward(*(arrays[place] for place in ctx.kept))
        ctx.values, ctx.execution = values, execution
        ctx.shapes = [x.shape for x in arrays]
        ctx.dtypes = [x.dtype for x in arrays]
        return forward()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient of each operand that needs one; itself recorded, where torch asks for that."""
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        gradient = gradient.resolve_conj().resolve_neg()  # memory that our kernels read
        results: list[torch.Tensor | None] = [None] * 4
        for derivative, shape, dtype in zip(ctx.derivatives, ctx.shapes, ctx.dtypes, strict=True):
            if derivative is None:
                results.append(None)
            elif derivative.is_zero:
                results.append(gradient.new_zeros(shape, dtype=dtype))
            else:
                results.append(sum_to(_gradient(derivative, kept, gradient, ctx.values, ctx.execution), shape))
        return tuple(results)


_apply: Callable[..., torch.Tensor] = _Recorded.apply


def _gradient(
    derivative: Derivative, kept: dict[int, torch.Tensor], gradient: torch.Tensor, values: Sequence[Any], execution: Any
) -> torch.Tensor:
    program = derivative.program
    if program is None:
        return gradient
    arrays = [*(kept[place] for place in derivative.arrays), gradient]
    values = [values[place] for place in derivative.values]
    options = {"execution": execution}
    if not any(map(watches, arrays)):
        return program(arrays, values, options)
    if all(map(_is_exact, arrays)):
        with contextlib.suppress(NoDerivativeError):
            names = dict(zip(program.names, arrays, strict=True))
            return _record(functools.partial(program, arrays, values, options), program, names, values, options)
    plan = _expression.plan_of(program.typed, program.labels)
    with without_autocast(gradient):
        elements = [
            element(program.typed.function, label, values[place], dtype, gradient)
            for place, label, dtype in plan.values
        ]
        numbers = [exponent_of(values[place], dtype) for place, _, dtype in plan.values]
        return _expression.evaluate(plan.steps, program.typed.function, arrays, elements, numbers)


def _is_exact(x: torch.Tensor) -> bool:
    """Is it plain memory, to all but autograd?"""
    with torch.no_grad():
        return not watches(x)
