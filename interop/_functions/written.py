"""Which of its arguments a Python function writes to, and what they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from interop._arguments import shown

__all__ = ["Written", "names_in"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _unknown(*args: Any, **kwargs: Any) -> None:
    """Stand in for a function that has no signature."""


class Written:
    """The parameters of a function, and which of them `writes` names: any, where it is None."""

    def __init__(self, label: str, function: Callable[..., Any], writes: Any) -> None:
        try:
            parameters = [*inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):  # a built-in that has none
            parameters = [*inspect.signature(_unknown).parameters.values()]
        kinds = {p.kind for p in parameters}
        self.names = [p.name for p in parameters if p.kind in _BY_POSITION]
        self._keywords = {p.name for p in parameters if p.kind in _BY_NAME}
        self.is_said = writes is not None
        self._named: set[str | int] = set()
        self._rest = self._others = False  # are those written that `*` and `**` of the signature take?
        if writes is None:
            return
        named = names_in(label, writes)
        for name in named:
            if isinstance(name, int):
                self._add_place(label, name, parameters)
            else:
                self._add_name(label, name, parameters)
        # A name that the signature does not have may be that of any argument that `*` takes, where no position says.
        has_unknown = any(isinstance(name, str) and name not in {p.name for p in parameters} for name in named)
        has_places = any(isinstance(place, int) and place >= len(self.names) for place in named)
        if has_unknown and not has_places and inspect.Parameter.VAR_POSITIONAL in kinds:
            self._rest = True

    def _add_place(self, label: str, place: int, parameters: list[inspect.Parameter]) -> None:
        takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if place < 0 or not (takes_more or place < len(self.names)):
            raise ValueError(
                f"{label}: writes is {shown(place)}; accepted: the position of an argument, from 0"
                + ("" if takes_more else f" to {len(self.names) - 1}")
            )
        self._named.add(place)
        if place < len(self.names):
            self._named.add(self.names[place])

    def _add_name(self, label: str, name: str, parameters: list[inspect.Parameter]) -> None:
        kinds = {p.name: p.kind for p in parameters}
        takes_more = inspect.Parameter.VAR_KEYWORD in kinds.values()
        kind = kinds.get(name)
        if kind is inspect.Parameter.VAR_POSITIONAL:
            self._rest = True
        elif kind is inspect.Parameter.VAR_KEYWORD:
            self._others = True
        elif kind is None and not takes_more:
            raise ValueError(
                f"{label}: writes is {shown(name)}; accepted: the parameters of the function, {', '.join(kinds)}"
            )
        else:
            self._named.add(name)
            if name in self.names:
                self._named.add(self.names.index(name))

    def name_of(self, place: int) -> str:
        """Return what an argument by position is called in messages."""
        return self.names[place] if place < len(self.names) else f"argument {place}"

    def has(self, argument: int | str) -> bool:
        """May the function write to what is passed by this position, or by this name?"""
        if not self.is_said or argument in self._named:
            return True
        if isinstance(argument, int):
            return self._rest and argument >= len(self.names)
        return self._others and argument not in self._keywords


def names_in(label: str, writes: Any) -> list[str | int]:
    """Return the names and positions that `writes` has; TypeError for anything else."""
    accepted = "None, the name of a parameter or its position, or several of these; () where it writes to none"
    if isinstance(writes, str | int) and not isinstance(writes, bool):
        return [writes]
    if not isinstance(writes, Iterable) or isinstance(writes, bytes):
        raise TypeError(f"{label}: writes is {shown(writes)}; accepted: {accepted}")
    names = [*writes]
    for name in names:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise TypeError(f"{label}: writes has {shown(name)}; accepted: {accepted}")
    return names
