"""What torch's compiler traces in place of the public functions: the same calls in plain Python, by operators.

Errors are those of the functions. Where a graph cannot have a call, it is made outside of it; under `fullgraph=True`
the compiler says why. Called by anyone else, as after too many graphs, they are the functions themselves.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import torch

from interop import _core
from interop._arguments import refuse_call
from interop._expressions.parser import OPTIONS
from interop._expressions.typed import Split
from interop._operations.table import FUNCTIONS, OPERATIONS
from interop.torch import _calls, _elementwise, _expression, _matmul
from interop.torch._calls import leave
from interop.torch._constants import constant
from interop.torch._factors import finished
from interop.torch._tensors import name_of

__all__ = ["call", "elementwise", "expression", "matmul", "outside", "skip_body"]


def matmul(*args: Any, **options: Any) -> Any:
    """Trace `interop.matmul`: a product is the operator's."""
    if not torch.compiler.is_dynamo_compiling():
        return _public("matmul")(*args, **options)
    if len(args) == 2 and not options and isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor):
        a, b = args
        _dtype_of(a.dim() > 0, a.dtype, b.dim() > 0, b.dtype, None)  # for what it throws
        # The compiler checks at each call of the graph that all it has traced is still as it was: this is not much.
        return torch.ops.interop.matmul(a, b)
    _check_fit("matmul", "", len(args), tuple(options))
    _refuse_places("interop.matmul", options)
    a, b = (_operand("interop.matmul", name, x) for name, x in zip("ab", args, strict=True))
    given = {}
    for name, x in options.items():
        given[name] = torch.as_tensor(x) if isinstance(x, np.ndarray) and name not in _FACTORS else x
    dtype = getattr(torch, _dtype_of(a.dim() > 0, a.dtype, b.dim() > 0, b.dtype, given.get("dtype")))
    if given.get("dtype") is not None:
        given["dtype"] = dtype
    result = finished(_matmul.compute, a, b, given, dtype)
    if result is None:
        result = _matmul.compute(a, b, given)
    return _returned(args[:1], options, result)


_FACTORS = ("alpha", "beta")


@constant
def _dtype_of(a_is_array: bool, a: torch.dtype, b_is_array: bool, b: torch.dtype, asked: Any) -> str:
    """Return the dtype of a product's result."""
    sides = ((1,) * a_is_array, name_of(a)), ((1,) * b_is_array, name_of(b))
    return str(_core.abstract_matmul(sides[0], sides[1], asked, library="torch")["dtype"])


def elementwise(name: str, /, *args: Any, **options: Any) -> Any:
    """Trace one of the elementwise functions: it is made of torch's own operations."""
    if not torch.compiler.is_dynamo_compiling():
        return _public(name)(*args, **options)
    function = f"interop.{name}"
    _check_fit(name, "", len(args), tuple(options))
    _refuse_places(function, options)
    operands = [
        _operand(function, parameter, x) for parameter, x in zip(OPERATIONS[name].parameters, args, strict=True)
    ]
    _require_array(function, operands)
    if isinstance(options.get("out"), np.ndarray):
        options = {**options, "out": torch.as_tensor(options["out"])}
    result = _elementwise.compute(name, operands[0], operands[1] if len(operands) > 1 else None, options)
    return _returned(args, options, result)


def expression(made: Any, /, *args: Any, **named: Any) -> Any:
    """Trace the call of an `interop.Expression`: it is made of torch's own operations, which the compiler fuses."""
    if not torch.compiler.is_dynamo_compiling():
        return made(*args, **named)
    text, function = made.expression, repr(made)
    _check_fit("elementwise", text, len(args), tuple(named))
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    _refuse_places(function, options)
    parameters = _parameters(text)
    given = [*args, *[named[name] for name in parameters[len(args) :]]]
    operands = [_operand(function, name, x) for name, x in zip(parameters, given, strict=True)]
    _require_array(function, operands)
    split = _split_of(text, tuple([not isinstance(x, torch.Tensor) for x in operands]))
    if isinstance(options.get("out"), np.ndarray):
        options["out"] = torch.as_tensor(options["out"])
    result = _expression.compute(split, operands, options)
    return _returned(given, options, result)


@constant
def _parameters(text: str) -> tuple[str, ...]:
    return tuple(_public("elementwise")(text).parameters)


@constant
def _split_of(text: str, is_scalar: tuple[bool, ...]) -> Split:
    """Return an expression for calls in which some parameters are scalars."""
    made = _public("elementwise")(text)
    names = zip(made.parameters, is_scalar, strict=True)
    split: Split = made._make_split(frozenset(name for name, its_scalar in names if its_scalar))
    return split


def call(function: Any, /, *args: Any, **named: Any) -> Any:
    """Trace the call of a kernel or C function: it is an operator, which names it."""
    if not torch.compiler.is_dynamo_compiling():
        return function(*args, **named)
    return _calls.call(function, args, named)


def outside(function: Any, /, *args: Any, **named: Any) -> Any:
    """Trace the call of a function of another library: it is in no graph, as nothing is known of what it does."""
    if not torch.compiler.is_dynamo_compiling():
        return function(*args, **named)
    return leave(f"{function!r} is called outside of graphs; accepted in one: an interop.operator of it")


# ---- arguments ----


def _public(name: str) -> Any:
    return getattr(sys.modules["interop"], name)


@constant
def _check_fit(name: str, text: str, count: int, keywords: tuple[str, ...]) -> None:
    """Raise the TypeError of a call that does not fit a function of this package, or the expression of a text."""
    function = _public(name)(text) if text else _public(name)
    label = repr(function) if text else f"interop.{name}"
    signature = inspect.signature(function)
    args, named = [None] * count, dict.fromkeys(keywords)
    try:
        signature.bind(*args, **named)
    except TypeError:
        refuse_call(label, signature, args, named)


def _refuse_places(function: str, options: dict[str, Any]) -> None:
    for name in ("stream", "execution"):
        if options.get(name) is not None:
            leave(f"{function}: {name}= cannot be used in a traced function: what runs the graph chooses it")


def _operand(function: str, name: str, x: Any) -> Any:
    """Return an operand as a tensor, or a scalar as it is."""
    if isinstance(x, torch.Tensor | bool | int | float | complex):
        return x
    if isinstance(x, np.ndarray):
        return torch.as_tensor(x)
    return leave(f"{function}: {name} is {type(x).__name__}, with which no call can be traced; accepted: a tensor")


def _require_array(function: str, operands: list[Any]) -> None:
    if not any(isinstance(x, torch.Tensor) for x in operands):
        leave(f"{function}: there is no array among the operands")


def _returned(operands: Any, options: dict[str, Any], result: Any) -> Any:
    """Return the result as an array of the library of the first array, or the one of the caller's."""
    if options.get("out") is not None:
        return options["out"]
    first = next(x for x in operands if isinstance(x, np.ndarray | torch.Tensor))
    return result.numpy() if isinstance(first, np.ndarray) else result


# ---- calls outside of graphs ----


def skip_body(function: Any) -> None:
    """Have Dynamo run a function as it is where a graph cannot have a call: it would look for parts to trace."""
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):  # private, as its types are
        return
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


_CLASSES = (*map(_public, ("CompiledFunction", "Expression", "Function", "Kernel")),)
_CLASSES += (sys.modules["interop._adapt"].Adapted, sys.modules["interop._adopt"].Adopted)
for _skipped in (*map(_public, ("matmul", *FUNCTIONS)), *(one.__call__ for one in _CLASSES)):
    skip_body(_skipped)
