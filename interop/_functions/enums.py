"""The values of an enum, and the integer that a compiler keeps them in."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping

from interop._functions.c_types import SCALARS, Enum, spelled

__all__ = ["enum_of"]

_TOKENS = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlL]*(?!\w)|(?P<name>[A-Za-z_]\w*)"
    r"|'(?P<character>[^\\'])'|(?P<operator><<|>>|[-+*()|&^~]))"
)
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_TYPES = (("uint32", 0, 2**32), ("int32", -(2**31), 2**31), ("uint64", 0, 2**64), ("int64", -(2**63), 2**63))


def enum_of(name: str, values: Iterable[tuple[str, str | None]], base: str, known: Mapping[str, int]) -> Enum:
    """Return an enum with its values, each a name and its text, and the type that is given for them, or "".

    `known` has the values of other enums. Without a type it is the one that compilers of Linux choose.
    """
    found: dict[str, int] = {}
    unusable, following = "", 0
    for label, text in values:
        try:
            value = following if text is None else _value(text, {**known, **found})
        except (ValueError, KeyError, SyntaxError, RecursionError, MemoryError):
            unusable = unusable or f"the value {text!r} of {label!r} is not understood"
            continue
        found[label], following = value, value + 1
    names: dict[int, str] = {}
    for label, value in found.items():
        names.setdefault(value, label)
    if base:
        dtype = SCALARS.get(spelled(base), "")
        return Enum(name, dtype, names, "" if dtype else f"its type {base!r} is not known")
    fitting = (dtype for dtype, low, high in _TYPES if all(low <= value < high for value in names))
    return Enum(name, next(fitting, ""), names, unusable)


def _value(text: str, known: Mapping[str, int]) -> int:
    """Return the value of a constant expression of integers; ValueError, SyntaxError or KeyError for another."""
    if re.search(r"\d[uU]", text) and re.search("[-~]", text):
        raise ValueError  # in unsigned arithmetic
    text = text.replace("> >", ">>")  # which are two in C++
    parts, place = [], 0
    while text[place:].strip():
        found = _TOKENS.match(text, place)
        if found is None:
            raise ValueError
        if found["number"]:
            octal = re.fullmatch(r"0\d+", found["number"])
            parts.append(str(int(found["number"], 8 if octal else 0)))
        elif found["name"]:
            parts.append(f"({known[found['name']]})")
        else:
            parts.append(str(ord(found["character"])) if found["character"] else found["operator"])
        place = found.end()
    return _evaluated(ast.parse(" ".join(parts), mode="eval").body)


def _evaluated(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        value = tree.value
    elif isinstance(tree, ast.UnaryOp) and type(tree.op) in _UNARY:
        value = _UNARY[type(tree.op)](_evaluated(tree.operand))
    elif isinstance(tree, ast.BinOp) and type(tree.op) in _BINARY:
        left, right = _evaluated(tree.left), _evaluated(tree.right)
        if isinstance(tree.op, ast.LShift | ast.RShift) and not 0 <= right < 64:
            raise ValueError
        value = _BINARY[type(tree.op)](left, right)
    else:
        raise ValueError
    if not -(2**63) <= value < 2**64:
        raise ValueError
    return value
