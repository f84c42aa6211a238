"""What is said of pointers by name: `reads=` of `interop.kernel` and `interop.load`, and `host=` and `device=`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence

from interop._arguments import known_keywords
from interop._functions.parameters import Parameter, Stated

__all__ = ["checked", "described", "is_checked", "names_by_function", "names_of", "places_of", "with_reads"]

_SWITCH = "INTEROP_CHECKED"


def names_of(where: str, given: object) -> tuple[str, ...]:
    """Return the names in a tuple or list; `where` is what messages call it. Throws TypeError for anything else."""
    if not isinstance(given, tuple | list):
        hint = f"({given!r},)" if isinstance(given, str) else "('a', 'b')"
        raise TypeError(f"{where} is {type(given).__name__}; accepted: a tuple of names, such as {hint}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{where} has an element of {type(name).__name__}; accepted: names, each a str")
    return tuple(given)


def names_by_function(given: object, declared: Sequence[str], option: str = "reads") -> dict[str, tuple[str, ...]]:
    """Return what `option` of `interop.load` is given, with the names of each `declared` function as a tuple."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"interop.load: {option} is {type(given).__name__}; accepted: a mapping of the names of functions to those "
            "of their parameters, such as {'f': ('a', 'b')}"
        )
    for function in given:
        if function not in declared:
            known = known_keywords(str(function), [*dict.fromkeys(declared)])
            raise ValueError(f"interop.load: {option}: {function!r} is no declared function; {known}")
    return {function: names_of(f"interop.load: {option}[{function!r}]", names) for function, names in given.items()}


def places_of(
    host: Mapping[str, tuple[str, ...]], device: Mapping[str, tuple[str, ...]], stated: Sequence[Stated]
) -> dict[str, dict[str, str]]:
    """Return where `host=` and `device=` say that the parameters of each function point.

    ValueError for a name that is no parameter of one of the functions of that name, or that has two places.
    """
    places: dict[str, dict[str, str]] = {}
    for place, by_function in (("host", host), ("device", device)):
        for function, names in by_function.items():
            label = f"interop.load: {place}[{function!r}]"
            known = [declared.name for x in stated if x.name == function for declared in x.parameters]
            for name in names:
                if name not in known:
                    accepted = ", ".join(dict.fromkeys(known)) or "none"
                    raise ValueError(f"{label}: {name!r} is no parameter; accepted: {accepted}")
                if places.setdefault(function, {}).setdefault(name, place) != place:
                    raise ValueError(f"{label}: {name!r} stands in host, too; accepted: one of both")
    return places


def with_reads(
    parameters: Sequence[Parameter], reads: Collection[str], refuse: Callable[[str], ValueError]
) -> list[Parameter]:
    """Return the parameters with the pointers that `reads` names as those to ``const``.

    A name that is not that of a pointer without ``const`` raises the error that `refuse` returns.
    """
    known = {parameter.name: parameter for parameter in parameters}
    pointers = [p.name for p in parameters if p.written and p.kind in ("pointer", "device", "host")]
    accepted = ", ".join(pointers) or "there is none"
    for name in reads:
        parameter = known.get(name)
        if parameter is None:
            what = "no parameter"
        elif parameter.kind == "view":
            what = "a view, whose type says it: interop::View<const T, n> is only read"
        elif parameter.kind == "mdspan":
            what = "an mdspan, whose type says it: one of const elements is only read"
        elif parameter.kind == "tensor_map":
            what = "a tensor map, of which interop.tensor_map(..., written=) says it"
        elif parameter.kind in ("scalar", "stream", "opaque"):
            what = "no pointer"
        elif not parameter.written:
            what = "a pointer to const, which is only read as it is"
        else:
            continue
        raise refuse(f"reads: {name!r} is {what}; accepted: pointers that are not to const ({accepted})")
    return [p._replace(written=False) if p.name in reads else p for p in parameters]


def described(text: str, reads: Sequence[str]) -> str:
    """Return the text of a declaration with what `reads` says of it."""
    return f"{text}, which only reads {', '.join(reads)}" if reads else text


def checked(parameters: Sequence[Parameter], reads: Collection[str]) -> list[int]:
    """Return the places of the parameters that calls compare before and after: all of `reads`, if the process says so.

    Throws ValueError for another value of INTEROP_CHECKED than those that say so, or that do not.
    """
    if not reads or not is_checked():
        return []
    return [place for place, p in enumerate(parameters) if p.name in reads]


def is_checked() -> bool:
    """Does the process say so? Throws ValueError for another value of INTEROP_CHECKED than those that say yes or no."""
    said = os.environ.get(_SWITCH, "")
    if said not in ("", "0", "1"):
        raise ValueError(f"{_SWITCH} is {said!r}; accepted: '1', '0', or nothing")
    return said == "1"
