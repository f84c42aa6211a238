"""The arguments of the call of an operator: which input each is."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from interop._arguments import refuse_call
from interop._operators.description import Description
from interop._operators.signature import KEYWORDS

__all__ = ["bound", "refuse_option", "signature_of"]


def bound(description: Description, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return the inputs by position, given by position and by name. Plain Python, which torch's compiler traces."""
    names = [operand.name for operand in description.signature.inputs]
    rest = names[len(inputs) :]
    if len(inputs) > len(names) or len(named) != len(rest) or any(name not in named for name in rest):
        refuse_call(description.label, signature_of(names), inputs, named)
    return (*inputs, *(named[name] for name in rest))


def refuse_option(description: Description, name: str, is_traced: bool) -> NoReturn:
    """Raise for `stream=` or `execution=`, which is given where none can be."""
    why = "in a call that is traced or recorded" if is_traced else "as call takes none"
    raise TypeError(f"{description.label}: {name}= cannot be used {why}; accepted: None")


def signature_of(names: list[str]) -> inspect.Signature:
    kinds = inspect.Parameter
    inputs = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names]
    return inspect.Signature([*inputs, *(kinds(name, kinds.KEYWORD_ONLY, default=None) for name in KEYWORDS)])
