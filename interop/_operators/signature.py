"""What the signature of an operator says: names of inputs, the axes of each, and from the sizes the results' shapes."""

from __future__ import annotations

import functools
import keyword
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from interop._operators.grammar import Axes, Axis, Read, ReadOperand, pointed, read

__all__ = ["KEYWORDS", "LEADING", "Operand", "Shape", "Signature", "SizeRule", "parse", "shown_shape"]

#: Of the call of an operator, so no input's name.
KEYWORDS = ("stream", "execution")
#: How many elements the leading axes have, by this name for the functions of sizes.
LEADING = "leading"
Shape = tuple[Any, ...]  # of ints, or of symbols that stand for them


class SizeRule(NamedTuple):
    """How a size that is in no input is computed: by a function, of the sizes of these letters."""

    function: Callable[..., Any]
    letters: tuple[str, ...]


class Operand(NamedTuple):
    """An input or a result: "" is the name of a result that has none, and a number has no axes."""

    name: str
    axes: Axes | None

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters among its axes, in order."""
        return tuple(axis for axis in self.axes or () if isinstance(axis, str))

    @property
    def has_leading(self) -> bool:
        """Are leading axes among its axes?"""
        return self.axes is not None and self.axes[:1] == (...,)

    def shape(self, sizes: Mapping[str, Any]) -> Shape:
        """Return its shape, by the sizes of its letters."""
        axes = (self.axes or ())[self.has_leading :]
        leading = sizes["..."] if self.has_leading else ()
        return (*leading, *(sizes[axis] if isinstance(axis, str) else axis for axis in axes))

    def __str__(self) -> str:
        return self.name if self.axes is None else f"{self.name}[{', '.join(map(_text_of, self.axes))}]"


def _text_of(axis: Axis) -> str:
    return "..." if axis is ... else str(axis)


@dataclass(frozen=True, eq=False)
class Signature:
    """A signature, read: two of the same canonical text, which is their `str`, are equal."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    sums: tuple[str, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        """The canonical text."""
        sums = f"; sum {', '.join(self.sums)}" if self.sums else ""
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}{sums}"

    @functools.cached_property
    def arrays(self) -> tuple[int, ...]:
        """The places of the inputs that are arrays."""
        return tuple(place for place, operand in enumerate(self.inputs) if operand.axes is not None)

    @functools.cached_property
    def letters(self) -> tuple[str, ...]:
        """The letters of the inputs' axes, in order of appearance."""
        return tuple(dict.fromkeys(letter for operand in self.inputs for letter in operand.letters))

    @functools.cached_property
    def has_leading(self) -> bool:
        """Do inputs, and so all results, have leading axes?"""
        return any(operand.has_leading for operand in self.inputs)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Signature) else NotImplemented

    def __hash__(self) -> int:
        return hash((Signature, self.text))

    # ---- from shapes ----

    def sizes_of(self, label: str, shapes: Sequence[Shape], extra: Mapping[str, SizeRule]) -> dict[str, Any]:
        """Return the size of each letter, and under "..." the shape of the leading axes, if there are any.

        `shapes` are those of the inputs that are arrays. Sizes may be symbols: they are compared and handed on, and
        nothing else. `extra` are the sizes that are in no input. Throws ValueError, which begins with `label` and
        points into the signature, for shapes that do not fit.
        """
        sizes: dict[str, Any] = {}
        of: dict[str, str] = {}  # the name of the input that each is of
        for place, shape in zip(self.arrays, shapes, strict=True):
            operand = self.inputs[place]
            axes = operand.axes or ()
            lead = len(shape) - len(axes) + 1 if operand.has_leading else 0
            if lead < 0 or (not operand.has_leading and len(shape) != len(axes)):
                accepted = f"{len(axes) - 1} or more" if operand.has_leading else len(axes)
                what = f"{operand.name} has {len(shape)} dimensions, shape {shown_shape(shape)}; accepted: {accepted}"
                self._refuse(label, what, place)
            by_axis: list[Any] = list(shape)
            if operand.has_leading:
                by_axis = [tuple(shape[:lead]), *shape[lead:]]
            for k, (axis, size) in enumerate(zip(axes, by_axis, strict=True)):
                letter = "..." if axis is ... else axis
                if isinstance(letter, int):
                    if not _same(size, letter):
                        what = f"{operand.name} has size {size} here, shape {shown_shape(shape)}; accepted: {letter}"
                        self._refuse(label, what, place, k)
                elif letter not in sizes:
                    sizes[letter], of[letter] = size, operand.name
                elif not _same(size, sizes[letter]):
                    where = f"of shape {shown_shape(shape)}, and {_shown(sizes[letter])} in {of[letter]}"
                    accepted = "the same, as nothing is broadcast" if axis is ... else "one size"
                    what = f"{letter} is {_shown(size)} in {operand.name}, {where}; accepted: {accepted}"
                    self._refuse(label, what, place, k)
        if extra and "..." in sizes:
            sizes.setdefault(LEADING, math.prod(sizes["..."]))
        for name, rule in extra.items():
            sizes[name] = self._size_by(label, name, rule, sizes)
        return sizes

    def result_shapes(self, sizes: Mapping[str, Any]) -> tuple[Shape, ...]:
        """Return the shapes of the results, by what `sizes_of` has returned."""
        return tuple(operand.shape(sizes) for operand in self.outputs)

    def _size_by(self, label: str, name: str, rule: SizeRule, sizes: Mapping[str, Any]) -> Any:
        given = {letter: sizes[letter] for letter in rule.letters}
        try:
            size = rule.function(**given)
        except Exception as error:
            error.add_note(f"{label}: raised by the function for the size {name}, of {given}")
            raise
        wrong: type[Exception] | None = None
        if isinstance(size, _NO_SIZES):
            wrong, what, accepted = TypeError, type(size).__name__, "an int"
        elif isinstance(size, int) and size < 0:
            wrong, what, accepted = ValueError, str(size), "0 or more"
        if wrong:
            what = f"{name}, as its function of sizes= returns it for {given}, is {what}; accepted: {accepted}"
            raise wrong(f"{label}: {what}{self._pointed_size(name)}")
        return size

    # ---- what errors show ----

    def _pointed_size(self, letter: str) -> str:
        """Return what `pointed` does of the first axis of a result with this letter; "" if there is none."""
        for place, operand in enumerate(self.outputs):
            if letter in operand.letters:
                return self.pointed(len(self.inputs) + place, (operand.axes or ()).index(letter))
        return ""

    def _refuse(self, label: str, what: str, place: int, axis: int | None = None) -> NoReturn:
        raise ValueError(f"{label}: {what}{self.pointed(place, axis)}")

    def pointed(self, place: int, axis: int | None = None) -> str:
        """Return the canonical text, on a line of its own, with carets below an operand, or below one of its axes.

        The places of the results follow those of the inputs.
        """
        parts: list[str] = []
        operands = (*self.inputs, *self.outputs)
        for k, operand in enumerate(operands[:place]):
            parts += [str(operand), " -> " if k == len(self.inputs) - 1 else ", "]
        operand, text = operands[place], str(operands[place])
        if axis is not None and operand.axes is not None:
            texts = [_text_of(x) for x in operand.axes]
            parts += [operand.name, "[", *(f"{x}, " for x in texts[:axis])]
            text = texts[axis]
        return pointed(self.text, len("".join(parts)), len(text))


#: What Python computes by mistake where it computes a size. Symbols of other packages are of none of these.
_NO_SIZES = (bool, float, complex, str, bytes, tuple, list, dict, set, type(None))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _shown(size: Any) -> str:
    return shown_shape(size) if isinstance(size, tuple) else str(size)


def shown_shape(shape: Sequence[Any]) -> str:
    """Return a shape as messages have it."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


# ---- from a text ----


def parse(label: str, text: object, extra: Collection[str] = ()) -> Signature:
    """Return the signature that a text says; `extra` are the letters whose sizes are said elsewhere.

    Throws TypeError for what is no str, and ValueError, which points at the character, for what is no signature.
    """
    found = read(label, text)
    assert isinstance(text, str)
    _Checks(label, text, found, extra).run()
    inputs = tuple(Operand(x.name, x.axes) for x in found.inputs)
    outputs = tuple(Operand(x.name, x.axes) for x in found.outputs)
    return Signature(inputs, outputs, tuple(name for name, _ in found.sums))


class _Checks:
    """What a text must say, beyond its grammar."""

    def __init__(self, label: str, text: str, found: Read, extra: Collection[str]) -> None:
        self.label, self.text, self.found, self.extra = label, text, found, extra
        self.letters = {axis for x in found.inputs for axis in x.axes or () if isinstance(axis, str)}

    def refuse(self, what: str, at: int, length: int) -> NoReturn:
        raise ValueError(f"{self.label}: {what}{pointed(self.text, at, length)}")

    def run(self) -> None:
        names: set[str] = set()
        for operand in (*self.found.inputs, *self.found.outputs):
            self.check_name(operand, names)
            for axis, at in zip(operand.axes or (), operand.axes_at, strict=True):
                if isinstance(axis, str) and keyword.iskeyword(axis):
                    self.refuse(f"{axis} is a word of Python's; accepted: another letter", at, len(axis))
        if all(x.axes is None for x in self.found.inputs):
            first = self.found.inputs[0]
            self.refuse("no input is an array; accepted: at least one, such as x[n]", first.at, len(first.name))
        leading = next((x.name for x in self.found.inputs if x.axes and x.axes[0] is ...), None)
        for output in self.found.outputs:
            self.check_output(output, leading)
        self.check_sums()

    def check_name(self, operand: ReadOperand, names: set[str]) -> None:
        name, length = operand.name, len(operand.name)
        if name in names:
            self.refuse(f"{name} stands here again; accepted: another name", operand.at, length)
        if name in KEYWORDS:
            self.refuse(f"{name} is a keyword of the call; accepted: another name", operand.at, length)
        if keyword.iskeyword(name):
            self.refuse(f"{name} is a word of Python's; accepted: another name", operand.at, length)
        if name in self.letters or name in self.extra:
            self.refuse(f"{name} is the size of an axis, too; accepted: another name", operand.at, length)
        names |= {name} - {""}

    def check_output(self, output: ReadOperand, leading: str | None) -> None:
        for axis, at in zip(output.axes or (), output.axes_at, strict=True):
            if axis is ... and leading is None:
                self.refuse("no input has leading axes; accepted: '...' in an input, too", at, 3)
            if isinstance(axis, str) and axis not in self.letters and axis not in self.extra:
                known = ", ".join(sorted(self.letters)) or "none"
                what = f"{axis} is in no input; accepted: a letter of the inputs ({known}), or sizes={{{axis!r}: f}}"
                self.refuse(f"{what}, where f is a function of some of these", at, len(axis))
        if leading is not None and (output.axes or (None,))[0] is not ...:
            what = f"{leading} has leading axes, and this result has none; accepted: '...' in each result"
            self.refuse(what, output.at, 1)

    def check_sums(self) -> None:
        of_outputs = {axis for x in self.found.outputs for axis in x.axes or ()}
        seen = set()
        for name, at in self.found.sums:
            if name not in self.letters:
                known = ", ".join(sorted(self.letters - of_outputs)) or "none"
                self.refuse(f"{name} is in no input; accepted: a letter of the inputs ({known})", at, len(name))
            if name in of_outputs:
                what = f"{name} is an axis of a result, which is no sum over it; accepted: another letter"
                self.refuse(what, at, len(name))
            if name in seen:
                self.refuse(f"{name} stands here again; accepted: once", at, len(name))
            seen.add(name)
