"""What torch's compiler traces in place of the call of an operator: torch's operator of the same name."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import numpy as np
import torch

from interop._operators import registry
from interop._operators.arguments import bound
from interop._operators.signature import KEYWORDS
from interop.torch import _operators
from interop.torch._calls import leave
from interop.torch._constants import constant
from interop.torch._tracing import skip_body

__all__ = ["call"]


def call(operator: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Trace the call of an `interop.Operator`. Called by anyone else, it is the operator itself."""
    if not torch.compiler.is_dynamo_compiling():
        return operator(*inputs, **named)
    description = operator._description
    name = description.name
    for option in KEYWORDS:
        if named.pop(option, None) is not None:
            leave(f"{name}: {option}= cannot be used in a traced function: what runs the graph chooses it")
    keyword, content, known = _define(name, description.key)
    given = [*inputs, *[named[by_name] for by_name in _rest(name, len(inputs), tuple(named))]]
    operands, in_numpy = [], None
    for x, (operand, takes_array) in zip(given, known, strict=True):
        if takes_array and isinstance(x, np.ndarray | torch.Tensor):
            in_numpy = isinstance(x, np.ndarray) if in_numpy is None else in_numpy
            operands.append(torch.as_tensor(x) if isinstance(x, np.ndarray) else x)
        elif not takes_array and isinstance(x, _NUMBERS):
            operands.append(x)
        else:
            leave(f"{name}: {operand} is {type(x).__name__}, with which no call can be traced")
    package, _, function = name.partition("::")
    overload = getattr(getattr(torch.ops, package), function).default
    made = overload(*operands, **({} if _is_exporting() else {keyword: content}))
    if not in_numpy:
        return made
    return tuple([x.numpy() for x in made]) if isinstance(made, tuple) else made.numpy()


@constant
def _is_exporting() -> bool:
    return bool(torch.compiler.is_exporting())  # in torch 2.11 always true, where the compiler itself asks


_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


@constant
def _define(name: str, key: str) -> tuple[str, str, tuple[tuple[str, bool], ...]]:
    """See to it that torch has the operator.

    Returns a keyword of torch's operator, its value, and the names of the inputs, and which of these are arrays.
    """
    description = registry.find(name)
    if description is None or description.key != key:
        raise ValueError(
            f"{name}: it has been defined again, of other content; accepted: the newest operator of this name, or two "
            "names"
        )
    _operators.defined(description)
    inputs = tuple((operand.name, operand.axes is not None) for operand in description.signature.inputs)
    return _operators.traced_in(description), f"{key}, {_PROCESS}", inputs


_PROCESS = uuid.uuid4().hex  # the key does not say what functions read of their modules


@constant
def _rest(name: str, count: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the inputs that are given by name, in order; the TypeError of a call that does not fit."""
    description = registry.find(name)
    assert description is not None
    bound(description, (None,) * count, dict.fromkeys(names))
    return tuple(operand.name for operand in description.signature.inputs[count:])


skip_body(sys.modules["interop"].Operator.__call__)
