"""Reads the text of a signature, such as "x[..., n], s[n], eps -> [..., n]".

    signature = inputs, "->", outputs, [ ";", "sum", name, { ",", name } ] ;
    inputs    = input, { ",", input } ;
    input     = name, [ axes ] ;                       (* without axes: a number *)
    outputs   = output, { ",", output } ;
    output    = [ name ], axes ;
    axes      = "[", [ axis, { ",", axis } ], "]" ;
    axis      = "..." | name | size ;
    name      = ( letter | "_" ), { letter | digit | "_" } ;
    size      = digit, { digit } ;

Letters and digits are those of ASCII. White space may stand between any two of these.
"""

from __future__ import annotations

import re
from types import EllipsisType
from typing import NamedTuple, NoReturn

__all__ = ["Axes", "Axis", "Read", "ReadOperand", "pointed", "read"]

#: The size of an axis: by a letter, as a number, or all leading axes.
Axis = str | int | EllipsisType
Axes = tuple[Axis, ...]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<size>[0-9]+)|(?P<mark>->|\.\.\.|[\[\],;]))")
_END = "the end"
_LARGEST = 2**63 - 1
_LONGEST = 200  # characters of a text that an error shows
_EXAMPLE = "a signature such as 'x[..., n], s[n] -> [..., n]'"


class ReadOperand(NamedTuple):
    """An operand as it was read: where in the text it stands, and each of its axes."""

    name: str  # "" of an output without one
    axes: Axes | None  # None for a number
    at: int
    axes_at: tuple[int, ...] = ()


class Read(NamedTuple):
    """The three parts of a signature, and where in the text the names of sums stand."""

    inputs: list[ReadOperand]
    outputs: list[ReadOperand]
    sums: list[tuple[str, int]]


def pointed(text: str, at: int, length: int = 1) -> str:
    """Return two lines: the text, cut where it is long, and carets under the characters from `at` on."""
    line = "".join(c if c.isprintable() else " " for c in text)
    start = 0
    if len(line) > _LONGEST:
        start = max(0, min(at - _LONGEST // 2, len(line) - _LONGEST))
        end = start + _LONGEST
        line = ("..." if start else "") + line[start:end] + ("..." if end < len(line) else "")
    column = at - start + (3 if start else 0)
    return f"\n    {line}\n    {' ' * column}{'^' * length}"


def read(label: str, text: object) -> Read:
    """Return the parts of a signature; `label` is what errors begin with.

    Throws TypeError for what is no str, and ValueError, which points at the character, for what is no signature.
    """
    if not isinstance(text, str):
        raise TypeError(f"{label} is {type(text).__name__}; accepted: {_EXAMPLE}")
    return _Reader(label, text).run()


class _Reader:
    def __init__(self, label: str, text: str) -> None:
        self.label, self.text = label, text
        self.at = 0  # of the token
        self.end = 0  # behind it
        self.kind = self.token = ""
        self.step()

    def step(self) -> str:
        """Return the token, and go on to the next one."""
        token = self.token
        found = _TOKEN.match(self.text, self.end)
        if found:
            self.kind = found.lastgroup or ""
            self.token, self.at, self.end = found[self.kind], found.start(self.kind), found.end()
            return token
        self.at = len(self.text) - len(self.text[self.end :].lstrip())
        self.kind, self.token = "", ""
        if self.at < len(self.text):
            self.refuse(f"{self.text[self.at]!r} has no meaning here", _EXAMPLE)
        return token

    def refuse(self, found: str, accepted: str) -> NoReturn:
        raise ValueError(f"{self.label}: {found}; accepted: {accepted}{pointed(self.text, self.at)}") from None

    def expect(self, token: str, accepted: str) -> None:
        if self.token != token:
            self.refuse(f"{self.found()} stands here", accepted)
        self.step()

    def found(self) -> str:
        return repr(self.token) if self.kind else _END

    def run(self) -> Read:
        if not self.kind:
            self.refuse("the text is empty", _EXAMPLE)
        inputs = [self.input()]
        while self.token == ",":
            self.step()
            inputs.append(self.input())
        self.expect("->", "',' and another input, or '->' and the results")
        outputs = [self.output()]
        while self.token == ",":
            self.step()
            outputs.append(self.output())
        sums = []
        if self.token == ";":
            self.step()
            self.expect("sum", "sum, and the letters over which the results are sums")
            sums.append(self.letter())
            while self.token == ",":
                self.step()
                sums.append(self.letter())
        if self.kind:
            self.refuse(f"{self.found()} stands here", "',', or '; sum k', or the end")
        return Read(inputs, outputs, sums)

    def input(self) -> ReadOperand:
        if self.kind != "name":
            self.refuse(f"{self.found()} stands here", "the name of an input")
        at = self.at
        name = self.step()
        return ReadOperand(name, *self.axes(at)) if self.token == "[" else ReadOperand(name, None, at)

    def output(self) -> ReadOperand:
        at = self.at
        name = self.step() if self.kind == "name" else ""
        if self.token != "[":
            self.refuse(f"{self.found()} stands here", "the axes of a result in brackets, such as [..., n]")
        return ReadOperand(name, *self.axes(at))

    def axes(self, at: int) -> tuple[Axes, int, tuple[int, ...]]:
        """Return the axes, what it was given, and where the axes stand."""
        self.step()
        axes: list[Axis] = []
        places = []
        while self.token != "]" or axes:
            places.append(self.at)
            axes.append(self.axis(is_first=not axes))
            if self.token != ",":
                break
            self.step()
        self.expect("]", "',' and another axis, or ']'")
        return tuple(axes), at, tuple(places)

    def axis(self, *, is_first: bool) -> Axis:
        if self.token == "...":
            if not is_first:
                self.refuse("'...' stands behind another axis", "'...' as the first of the axes, once")
            self.step()
            return ...
        if self.kind == "size":
            if len(self.token) > len(str(_LARGEST)) or int(self.token) > _LARGEST:
                self.refuse("no array has this size", f"up to {_LARGEST}")
            return int(self.step())
        if self.kind != "name":
            self.refuse(f"{self.found()} stands here", "a letter, a number, or '...' for leading axes")
        return self.step()

    def letter(self) -> tuple[str, int]:
        if self.kind != "name":
            self.refuse(f"{self.found()} stands here", "a letter of an input's axes")
        at = self.at
        return self.step(), at
