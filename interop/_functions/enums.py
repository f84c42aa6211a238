"""The values of an enum, and the integer that a compiler keeps them in."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from interop._functions.c_types import SCALARS, Enum, candidates, spelled

__all__ = ["Constants", "enum_of"]

_TOKENS = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)(?P<suffix>[uU]?(?:ll?|LL?)?|(?:ll?|LL?)[uU])(?!\w)"
    r"|(?P<name>(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)"
    r"|'(?P<character>[ -&(-\[\]-~])'|(?P<operator><<|>>|[-+*()|&^~]))"
)
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


class _Integer(NamedTuple):
    """A value, and its type."""

    value: int
    bits: int = 32
    is_signed: bool = True

    def fits(self) -> bool:
        low = -(1 << self.bits - 1) if self.is_signed else 0
        return low <= self.value < low + (1 << self.bits)


_INT, _UNSIGNED, _LONG, _UNSIGNED_LONG = _TYPES = ((32, True), (32, False), (64, True), (64, False))
#: Of an enumerator, as C++ has it, and as C has it: there, what an int can be is one.
_Constant = tuple[_Integer, _Integer]


class Constants:
    """The enumerators that are known, by their names with namespaces; None for one that is not understood."""

    def __init__(self) -> None:
        self._known: dict[str, _Constant | None] = {}
        self._opened: list[tuple[str, ...]] = []

    def define(self, name: str, constant: _Constant | None) -> None:
        """Take what a name stands for, with its namespaces."""
        self._known[name] = constant

    def open(self, scope: Sequence[str]) -> None:
        """Take a using directive in a namespace: its names may hide those of the namespaces around it."""
        self._opened.append(tuple(scope))

    def find(self, name: str, scope: Sequence[str]) -> _Constant:
        """Return what a name stands for in a namespace; a KeyError, if that is not known."""
        found = next(x for x in (*candidates(name, scope), "") if not x or x in self._known)
        depth = found.count("::") - name.count("::")
        constant = self._known.get(found)
        if constant is None or any(len(x) > depth and x == tuple(scope[: len(x)]) for x in self._opened):
            raise KeyError(name)
        return constant


def enum_of(
    name: str, values: Iterable[tuple[str, str | None]], base: str, known: Constants, is_class: bool = False
) -> Enum:
    """Return an enum with its values, each a name and its text, and the type that is given for them, or "".

    `name` has its namespaces. `known` has the values of other enums, and gets these. Without a type it is the one that
    compilers of Linux choose; a value that C and C++ make another of is not understood.
    """
    *scope, own = name.split("::")
    prefix = "::".join([*scope, ""])
    base = base or "int" * is_class
    dtype = SCALARS.get(spelled(base), "") if base else ""
    found: dict[str, _Constant | None] = {}
    unusable = ""
    following: _Constant | None = (_Integer(0), _Integer(0))
    for label, text in values:
        try:
            constant = _value(text, scope, own, found, known) if text is not None else following
            constant = _typed(constant, dtype)
            following = _next(constant)
        except (ValueError, KeyError, SyntaxError, RecursionError, MemoryError):
            unusable = unusable or f"the value {text!r} of {label!r} is not understood"
            constant = following = None
        found[label] = constant
    integers = [constant[0] for constant in found.values() if constant]
    names: dict[int, str] = {}
    for label, constant in found.items():
        if constant:
            names.setdefault(constant[0].value, label)
    for label, constant in _after(found, bool(base)).items():
        if own:
            known.define(f"{prefix}{own}::{label}", None if is_class else constant)
        if not is_class:
            known.define(f"{prefix}{label}", constant)
    if base:
        return Enum(name, dtype, names, "" if dtype else f"its type {base!r} is not known")
    fitting = [
        f"{'' if signed else 'u'}int{bits}"
        for bits, signed in (_UNSIGNED, _INT, _UNSIGNED_LONG, _LONG)
        if all(_Integer(x.value, bits, signed).fits() for x in integers)
    ]
    if not fitting:
        unusable = unusable or "the values fit into no integer"
    return Enum(name, fitting[0] if fitting else "", names, unusable)


def _typed(constant: _Constant | None, dtype: str) -> _Constant:
    """Return an enumerator of an enum whose type is given, or "", as it is until the enum ends."""
    if constant is None or constant[0].value != constant[1].value:  # C and C++ differ
        raise ValueError
    value = constant[0].value
    if not dtype:
        in_c = _Integer(value)
        return constant[0], in_c if in_c.fits() else constant[1]
    bits = 1 if dtype == "bool" else int(dtype.removeprefix("u").removeprefix("int"))
    integer = _Integer(value, bits, dtype[0] == "i")
    if not integer.fits():
        raise ValueError
    return integer, integer


def _next(constant: _Constant) -> _Constant | None:
    """Return the enumerator behind one, without a value of its own; None where there is none."""
    in_cxx, in_c = map(_following, constant)
    return (in_cxx, in_c) if in_cxx and in_c else None


def _following(x: _Integer) -> _Integer | None:
    larger = x._replace(value=x.value + 1)
    return larger if larger.fits() else _first(larger.value, _TYPES)


def _first(value: int, types: Iterable[tuple[int, bool]]) -> _Integer | None:
    """Return a value with the first of the types that has it."""
    return next((x for x in (_Integer(value, *type_) for type_ in types) if x.fits()), None)


def _after(found: Mapping[str, _Constant | None], has_type: bool) -> dict[str, _Constant | None]:
    """Return the enumerators as they are behind the end of their enum, when they have its type."""
    if has_type:
        return dict(found)
    integers = [constant[0] for constant in found.values() if constant]
    if len(integers) < len(found):
        return dict.fromkeys(found)
    types = [type_ for type_ in _TYPES if all(_Integer(x.value, *type_).fits() for x in integers)]
    if not types:
        return dict.fromkeys(found)
    return {
        label: (_Integer(constant[0].value, *types[0]), _first(constant[0].value, (_INT, types[0])) or constant[1])
        for label, constant in found.items()
        if constant
    }


def _value(
    text: str, scope: Sequence[str], own: str, found: Mapping[str, _Constant | None], known: Constants
) -> _Constant:
    """Return the value of a constant expression of integers; ValueError, SyntaxError or KeyError for another."""
    text = re.sub(r"\s*::\s*(?=\w)", "::", text.replace("> >", ">>"))  # which are two in C++
    text = re.sub(r"(?<=[-+*(|&^~<>])::", " ::", text)
    parts: list[str] = []
    operands: list[_Constant] = []
    place = 0
    while text[place:].strip():
        token = _TOKENS.match(text, place)
        if token is None:
            raise ValueError
        place = token.end()
        if token["operator"]:
            parts.append(token["operator"])
            continue
        if token["name"]:
            label = token["name"].removeprefix(f"{own}::") if own else token["name"]
            constant = found[label] if label in found else known.find(token["name"], scope)
            if constant is None:
                raise KeyError(label)
        elif token["number"]:
            constant = (_literal(token["number"], token["suffix"].lower()),) * 2
        else:
            constant = (_Integer(ord(token["character"])),) * 2
        parts.append(f"x{len(operands)}")
        operands.append(constant)
    tree = ast.parse(" ".join(parts), mode="eval").body
    return _evaluated(tree, [x for x, _ in operands]), _evaluated(tree, [x for _, x in operands])


def _literal(digits: str, suffix: str) -> _Integer:
    octal = re.fullmatch(r"0\d+", digits)
    is_decimal = digits[0] != "0"
    types = [
        (bits, is_signed)
        for bits, is_signed in _TYPES
        if bits >= (64 if "l" in suffix else 32) and (not is_signed if "u" in suffix else is_signed or not is_decimal)
    ]
    if (made := _first(int(digits, 8 if octal else 0), types)) is None:
        raise ValueError
    return made


def _evaluated(tree: ast.expr, operands: Sequence[_Integer]) -> _Integer:
    """Return a value with its type, as C has it."""
    if isinstance(tree, ast.Name):
        x = operands[int(tree.id[1:])]
        return x if x.bits >= 32 else _Integer(x.value)
    if isinstance(tree, ast.UnaryOp) and type(tree.op) in _UNARY:
        x = _evaluated(tree.operand, operands)
        return _wrapped(x._replace(value=_UNARY[type(tree.op)](x.value)))
    if not isinstance(tree, ast.BinOp):
        raise ValueError
    left, right = _evaluated(tree.left, operands), _evaluated(tree.right, operands)
    if isinstance(tree.op, ast.LShift | ast.RShift):
        return _shifted(left, right.value, isinstance(tree.op, ast.LShift))
    bits = max(left.bits, right.bits)
    is_signed = all(x.is_signed for x in (left, right) if x.bits == bits)
    x, y = (_wrapped(_Integer(x.value, bits, is_signed)) for x in (left, right))
    return _wrapped(x._replace(value=_BINARY[type(tree.op)](x.value, y.value)))


def _wrapped(x: _Integer) -> _Integer:
    if not x.is_signed:
        return x._replace(value=x.value % 2**x.bits)
    if not x.fits():
        raise ValueError  # an overflow, which no constant has
    return x


def _shifted(x: _Integer, places: int, is_left: bool) -> _Integer:
    if not 0 <= places < x.bits:
        raise ValueError
    if not is_left:
        return x._replace(value=x.value >> places)
    value = x.value << places
    if x.is_signed and 0 <= value < 2**x.bits:  # 1 << 31 has the bit of the sign
        value -= 2**x.bits * (value >= 2 ** (x.bits - 1))
    return _wrapped(x._replace(value=value))
