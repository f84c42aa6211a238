"""The C types of functions and kernels that `interop` calls, and their parameters as text."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["ELEMENTS", "QUALIFIERS", "SCALARS", "Parameter", "parts_of", "without_comments"]


class Parameter(NamedTuple):
    """One parameter; the module that parses it defines the kinds."""

    kind: str
    name: str
    dtype: str  # "" for void
    written: bool
    ndim: int = 0  # of a view


def _bits(c_type: Any) -> int:
    return 8 * ctypes.sizeof(c_type)


_INTEGERS = {
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "size_t": f"uint{_bits(ctypes.c_size_t)}",
    "ptrdiff_t": f"int{_bits(ctypes.c_ssize_t)}",
    "bool": "bool",
    "_Bool": "bool",
    **{f"{sign}int": f"{name}32" for sign, name in (("", "int"), ("signed ", "int"), ("unsigned ", "uint"))},
    "signed": "int32",
    "unsigned": "uint32",
}
for _words, _type in (("short", ctypes.c_short), ("long", ctypes.c_long), ("long long", ctypes.c_longlong)):
    for _sign, _name in (("", "int"), ("signed ", "int"), ("unsigned ", "uint")):
        for _end in ("", " int"):
            _INTEGERS[f"{_sign}{_words}{_end}"] = f"{_name}{_bits(_type)}"

#: The dtype of each type of a number.
SCALARS = {**_INTEGERS, "float": "float32", "double": "float64"}
#: The dtype of each type that an array's elements may have; "" for void, which is any.
ELEMENTS = {
    **SCALARS,
    "void": "",
    **dict.fromkeys(("half", "__half"), "float16"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), "bfloat16"),
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    **dict.fromkeys(("cuComplex", "cuFloatComplex", "float _Complex"), "complex64"),
    **dict.fromkeys(("cuDoubleComplex", "double _Complex"), "complex128"),
}
#: What may stand behind the star of a pointer.
QUALIFIERS = {"const", "restrict", "__restrict", "__restrict__"}


class Parts(NamedTuple):
    """The parts of a parameter: the words of its type, whether it is a pointer, what follows the star, its name."""

    words: list[str]
    is_pointer: bool
    qualifiers: list[str]
    name: str


def parts_of(text: str, refuse: Callable[[str], ValueError]) -> Parts:
    """Take "type name" or "type* qualifiers name" apart; anything else raises the error that `refuse` returns."""
    left, star, right = text.partition("*")
    words, after = (left.split(), right.split()) if star else (left.split()[:-1], left.split()[-1:])
    if not words or not after or not all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in words + after):
        raise refuse(f"the parameter {text.strip()!r} is not understood; accepted: type name, or type* name")
    return Parts(words, bool(star), after[:-1], after[-1])


def without_comments(text: str) -> str:
    """Return C or C++ with a space for each comment."""

    def replace(found: re.Match[str]) -> str:
        return " " if found[0].startswith("/") else found[0]

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', replace, text, flags=re.DOTALL)
