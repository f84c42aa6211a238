"""What the options of an operator are given as: sizes, dtypes, names of axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from interop._arguments import shown, type_name
from interop._libraries.base import numpy_dtype
from interop._operators.signature import LEADING, Signature, SizeRule

__all__ = ["DtypeRule", "check_parts", "check_sizes", "cut_of", "dtypes_of", "sizes_of"]

#: (label, dtypes of the inputs that are arrays) -> the dtype of a result; or None, for what is the rule without one.
DtypeRule = Callable[[str, Sequence[str]], str] | None


def sizes_of(label: str, given: object) -> dict[str, SizeRule]:
    """Return what `sizes=` says; the letters that the functions name are checked with the signature."""
    if given is None:
        return {}
    example = "a mapping of letters to functions of sizes, such as {'k': lambda n: n // 2}"
    if not isinstance(given, Mapping):
        raise TypeError(f"{label}: sizes is {type_name(given)}; accepted: {example}")
    rules = {}
    for letter, function in given.items():
        if not isinstance(letter, str) or not callable(function):
            raise TypeError(f"{label}: sizes[{letter!r}] is {type_name(function)}; accepted: {example}")
        try:
            names = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise TypeError(f"{label}: sizes[{letter!r}] does not say what it takes; accepted: {example}") from None
        if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in names):
            raise TypeError(f"{label}: sizes[{letter!r}] takes arguments without names; accepted: {example}")
        rules[letter] = SizeRule(function, tuple(p.name for p in names if p.default is p.empty))
    return rules


def check_sizes(label: str, sizes: Mapping[str, SizeRule], signature: Signature, taken: Collection[str]) -> None:
    """Raise ValueError where a letter of `sizes=` is an input's, or for nothing, or its function takes what is none.

    `taken` are the letters that `call` takes.
    """
    of_results = {letter for operand in signature.outputs for letter in operand.letters}
    for letter, rule in sizes.items():
        if letter in signature.letters:
            place, operand = next((k, x) for k, x in enumerate(signature.inputs) if letter in x.letters)
            raise ValueError(
                f"{label}: sizes: {letter} is a size of {operand.name}; accepted: letters that are in no input"
                f"{signature.pointed(place, (operand.axes or ()).index(letter))}"
            )
        if letter not in of_results and letter not in taken:
            raise ValueError(
                f"{label}: sizes: {letter} is in no result of {signature}, and no parameter of call; accepted: letters "
                "of results, and parameters of a kernel, C function or expression"
            )
        for name in rule.letters:
            if name not in signature.letters and not (name == LEADING and signature.has_leading):
                known = ", ".join([*signature.letters, *[LEADING] * signature.has_leading]) or "none"
                raise ValueError(
                    f"{label}: sizes[{letter!r}] takes {name}, which is in no input of {signature}; accepted: {known}"
                )


def dtypes_of(
    label: str, given: Any, signature: Signature, accepted: Sequence[str], made: Sequence[str]
) -> tuple[DtypeRule, ...]:
    """Return the rule of each result. `call` accepts, and makes, these dtypes, as far as it is known, else ""."""
    count = len(signature.outputs)
    if isinstance(given, tuple | list):
        if len(given) != count:
            raise ValueError(f"{label}: dtype has {len(given)} elements; accepted: {count}, one for each result")
        each = tuple(given)
    else:
        each = (given,) * count
    rules = tuple(_dtype_rule(label, x, signature) for x in each)
    for rule, known in zip(rules, made, strict=True):
        if rule and known and all(accepted) and (said := rule(label, accepted)) != known:
            raise ValueError(f"{label}: dtype is {said}, and call writes {known}; accepted: {known}, or None")
    return rules


def _dtype_rule(label: str, given: Any, signature: Signature) -> DtypeRule:
    arrays = [signature.inputs[place].name for place in signature.arrays]
    accepted = f"the name of a dtype, of an input ({', '.join(arrays)}), or a function of the inputs' dtypes"
    if given is None:
        return None
    if isinstance(given, str):
        if given in arrays:
            place = arrays.index(given)
            return lambda label, dtypes: dtypes[place]
        name = _known(given)
        if name is None:
            raise ValueError(f"{label}: dtype is {shown(given)}; accepted: {accepted}")
        return lambda label, dtypes: name
    if not callable(given) or isinstance(given, type):
        raise TypeError(f"{label}: dtype is {type_name(given)}; accepted: {accepted}")

    def computed(label: str, dtypes: Sequence[str]) -> str:
        try:
            returned = given(*dtypes)
        except Exception as error:
            error.add_note(f"{label}: raised by the function for dtype, of {', '.join(dtypes)}")
            raise
        name = _known(returned) if isinstance(returned, str) else None
        if name is None:
            raise TypeError(
                f"{label}: dtype, as its function returns it for {', '.join(dtypes)}, is {shown(returned)}; accepted: "
                "the name of a dtype"
            )
        return name

    return computed


def _known(name: str) -> str | None:
    """Return the name of a dtype as arrays have it; None if there is none of numbers."""
    try:
        dtype = numpy_dtype(name)
    except (TypeError, ValueError, AttributeError):
        return None
    is_number = dtype.kind in "biufc" or (dtype.kind == "V" and dtype.fields is None and dtype.name == name)
    return str(dtype.name) if is_number else None


def cut_of(label: str, given: object, signature: Signature, sizes: Mapping[str, SizeRule]) -> frozenset[str]:
    """Return the letters of `cut=`. ValueError for one along which the work cannot be cut."""
    if given is None:
        return frozenset()
    if not isinstance(given, str):
        raise TypeError(f"{label}: cut is {type_name(given)}; accepted: a str of letters, such as 'm, n'")
    letters = [letter.strip() for letter in given.split(",")]
    known = ", ".join(signature.letters) or "none"
    for letter in letters:
        if letter not in signature.letters:
            raise ValueError(f"{label}: cut: {shown(letter)} is no letter of the inputs; accepted: {known}")
        for operand in signature.outputs:
            if letter not in operand.letters:
                raise ValueError(
                    f"{label}: cut: {letter} is not in each result; accepted: letters that are, or '; sum {letter}' in "
                    f"the signature{signature.pointed(len(signature.inputs) + signature.outputs.index(operand))}"
                )
    check_parts(label, letters, signature, sizes)
    return frozenset(letters)


def check_parts(label: str, letters: Sequence[str], signature: Signature, sizes: Mapping[str, SizeRule]) -> None:
    """Raise ValueError where a part along one of these letters is no part of each operand."""
    for letter in letters:
        for place, operand in enumerate((*signature.inputs, *signature.outputs)):
            if operand.letters.count(letter) > 1:
                raise ValueError(
                    f"{label}: {letter} stands twice in one operand, so that no part is cut along it; accepted: "
                    f"letters that stand once{signature.pointed(place)}"
                )
        of_results = {name for operand in signature.outputs for name in operand.letters}
        for name, rule in sizes.items():
            if letter in rule.letters and name in of_results:  # a parameter of a kernel has that of the part
                raise ValueError(
                    f"{label}: the size {name} depends on {letter}, so that no part is cut along it; accepted: "
                    "letters of which no size of a result is made"
                )
