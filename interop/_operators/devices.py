"""`call=` of an operator as a mapping: a function for each kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interop._arguments import shown, type_name
from interop._functions.array_function import ArrayFunction
from interop._operators.calls import ACCEPTED, Call, is_kernel
from interop._operators.signature import Signature

__all__ = ["DEVICES", "check_devices", "joined"]

#: By the names that torch and JAX have for them.
DEVICES = ("cpu", "cuda")
_ACCEPTED = "{'cpu': f, 'cuda': g}, or one of these"


def check_devices(label: str, call: Mapping[Any, Any]) -> None:
    """Raise for a mapping that is empty, has other keys than `DEVICES`, or what cannot be called there."""
    if not call:
        raise ValueError(f"{label}: call is an empty mapping; accepted: {_ACCEPTED}")
    for key, function in call.items():
        if not isinstance(key, str):
            raise TypeError(f"{label}: call has a key that is {type_name(key)}; accepted: {_ACCEPTED}")
        if key not in DEVICES:
            raise ValueError(f"{label}: call has {shown(key)}; accepted: {_ACCEPTED}")
        if not callable(function):
            raise TypeError(f"{label}: call[{key!r}] is {type_name(function)}; accepted: {ACCEPTED}")
        if isinstance(function, ArrayFunction) and function._is_declared:
            _check_memory(label, key, function)


def _check_memory(label: str, key: str, function: ArrayFunction) -> None:
    if key == "cpu" and is_kernel(function):
        raise ValueError(
            f"{label}: call[{key!r}] is {function!r}, which runs on a GPU; accepted: a function for the host"
        )
    for p in function._parameters:
        if p.kind == ("host" if key == "cuda" else "device"):
            raise ValueError(
                f"{label}: call[{key!r}] is {function!r}, of which {p.name} is {p.kind} memory; accepted: a function "
                f"of arrays on {key!r}"
            )


def joined(label: str, calls: Mapping[str, Call], signature: Signature) -> Call:
    """Return what all of these say of the arrays of a call, wherever these are.

    The dtypes that one accepts, or makes, are those of the operator. ValueError where two say different ones.
    """
    each = calls.values()
    inputs = [signature.inputs[place].name for place in signature.arrays]
    results = [operand.name or f"result {place}" for place, operand in enumerate(signature.outputs)]
    return next(iter(each))._replace(
        keywords=tuple(dict.fromkeys(name for call in each for name in call.keywords)),
        accepted=_one_of_each(label, "accepts", inputs, calls, [call.accepted for call in each]),
        made=_one_of_each(label, "makes", results, calls, [call.made for call in each]),
        letters=tuple(dict.fromkeys(letter for call in each for letter in call.letters)),
        is_exact=all(call.is_exact for call in each),
        # Of CUDA's, to which a function for the host says nothing.
        in_graphs=calls.get("cuda", next(iter(each))).in_graphs,
    )


def _one_of_each(
    label: str, verb: str, names: Sequence[str], calls: Mapping[str, Call], dtypes: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    found = []
    for name, of_name in zip(names, zip(*dtypes, strict=True), strict=True):
        known = {dtype: device for device, dtype in zip(calls, of_name, strict=True) if dtype}
        if len(known) > 1:
            said = " and ".join(f"{dtype} for {device!r}" for dtype, device in known.items())
            raise ValueError(f"{label}: call {verb} {said} as {name}; accepted: the same dtype for each device")
        found.append(next(iter(known), ""))
    return tuple(found)
