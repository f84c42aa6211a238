"""Error messages about the arguments of a call: their number, their names, and their values, cut short."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from interop._core import missing, shown, type_name

__all__ = [
    "known_keywords",
    "missing",
    "named",
    "refuse_call",
    "refuse_call_by_position",
    "refuse_call_of",
    "refuse_keyword",
    "shown",
    "type_name",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def named(name: str, *, method: bool = False) -> Callable[[FunctionT], FunctionT]:
    """Make errors of calls that do not fit a signature name the function in full, and the keyword that was meant.

    This adds a call, so it is for functions that are called seldom. The others are declared, and read their arguments
    in C++.
    """

    def name_it(function: FunctionT) -> FunctionT:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # from within
            signature = inspect.signature(function)
            if method:  # neither `self` nor the object is counted
                signature = signature.replace(parameters=[*signature.parameters.values()][1:])
            refuse_call(name, signature, args[method:], kwargs)

        return call  # type: ignore[return-value]

    return name_it


def refuse_call(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
    """Raise the TypeError that says how a call does not fit."""
    parameters = [*signature.parameters.values()]
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    positional_only = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for keyword in kwargs:
        if keyword in positional_only:
            raise TypeError(
                f"{name}: got the positional-only argument {keyword!r} as a keyword argument; accepted: by position"
            )
        if keyword not in by_name:
            refuse_keyword(name, keyword, by_name)
    if len(args) > len(by_position):
        were = "was" if len(args) == 1 else "were"
        accepted = f"{', '.join(by_position) or 'none'}" + (f"; by name: {', '.join(keywords)}" if keywords else "")
        raise TypeError(
            f"{name}: takes {_count(len(by_position), 'positional argument')} but {len(args)} {were} given; "
            f"accepted: {accepted}"
        )
    given = {*by_position[: len(args)], *kwargs}
    twice = [keyword for keyword in kwargs if keyword in by_position[: len(args)]]
    if twice:
        raise TypeError(f"{name}: got multiple values for argument {twice[0]!r}; accepted: one")
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in given and p.name in by_position]
    if not lacking:
        lacking = [p.name for p in parameters if p.default is p.empty and p.name not in given]
    raise TypeError(
        f"{name}: missing {_count(len(lacking), 'required positional argument')}: {' and '.join(map(repr, lacking))}"
    )


def refuse_call_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], accepted: Sequence[str] | None = None
) -> NoReturn:
    """Raise it for a function of this package, by its name, such as "interop.add".

    Of what has no name there, `accepted` are the keywords, and `kwargs` begins with one that it does not have.
    """
    if accepted is not None:
        refuse_keyword(name, next(iter(kwargs)), accepted)
    function = getattr(sys.modules["interop"], name.removeprefix("interop."))
    refuse_call(name, inspect.signature(function), args, kwargs)


def refuse_call_by_position(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], accepted: Sequence[str]
) -> NoReturn:
    """Raise it for a method of a class in C++ that takes these arguments, by position alone."""
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in accepted]
    refuse_call(name, inspect.Signature(parameters), args, kwargs)


def refuse_keyword(name: str, keyword: str, accepted: Iterable[str]) -> NoReturn:
    """Raise the TypeError of a keyword that a call does not have, with the one that was meant, if any is like it."""
    raise TypeError(
        f"{name}: got an unexpected keyword argument {shown(keyword)}; {known_keywords(keyword, [*accepted])}"
    )


def known_keywords(keyword: str, known: Sequence[str]) -> str:
    """List the keywords of a call for an error about an unknown one; the one that was meant comes first, if any."""
    import difflib  # not before there is an error

    close = difflib.get_close_matches(keyword, known, 1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"accepted: {', '.join(known) or 'none'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
