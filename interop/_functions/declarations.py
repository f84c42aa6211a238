"""The C types of functions and kernels that `interop` calls, and their parameters as text."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = [
    "ELEMENTS",
    "QUALIFIERS",
    "SCALARS",
    "Parameter",
    "in_symbols",
    "parts_of",
    "without_comments",
    "without_std",
]


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
_WORDS_OF_TYPES = {word for name in SCALARS for word in name.split() if not word.endswith("_t")} | {"void", "const"}

#: The types that the symbols of C++ on 64-bit Linux know by other names.
_IN_SYMBOLS = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    **dict.fromkeys(("int64_t", "ptrdiff_t"), "long"),
    **dict.fromkeys(("uint64_t", "size_t"), "unsigned long"),
    "_Bool": "bool",
    **dict.fromkeys(("signed", "signed int"), "int"),
    "unsigned": "unsigned int",
    **{
        f"{sign}{width}{end}": f"{sign if sign == 'unsigned ' else ''}{width}"
        for width in ("short", "long", "long long")
        for sign in ("", "signed ", "unsigned ")
        for end in ("", " int")
    },
    "half": "__half",
    "nv_bfloat16": "__nv_bfloat16",
    **dict.fromkeys(("cuComplex", "cuFloatComplex"), "float2"),
    "cuDoubleComplex": "double2",
    **dict.fromkeys(("cudaStream_t", "CUstream"), "CUstream_st*"),
}


def in_symbols(type_name: str) -> str:
    """Return a type as the symbols of C++ have it: without its typedefs."""
    return _IN_SYMBOLS.get(type_name, type_name)


class Parts(NamedTuple):
    """The parts of a parameter: the words of its type, whether it is a pointer, what follows the star, its name."""

    words: list[str]
    is_pointer: bool
    qualifiers: list[str]
    name: str


def parts_of(text: str, refuse: Callable[[str], ValueError], unnamed: str = "") -> Parts:
    """Take "type name" or "type* qualifiers name" apart; anything else raises the error that `refuse` returns.

    `unnamed`: the name of a parameter that has none. Without it, each needs one.
    """
    left, star, right = text.partition("*")
    words, after = left.split(), right.split()
    is_named = after[-1:] and after[-1] not in QUALIFIERS
    if not star:
        is_named = len(words) > 1 and words[-1] not in _WORDS_OF_TYPES and words[:-1] != ["const"]
        words, after = (words[:-1], words[-1:]) if is_named else (words, [])
    if not is_named and unnamed:
        after.append(unnamed)
    if not words or not (is_named or unnamed) or not all(re.fullmatch(r"[A-Za-z_]\w*", x) for x in words + after):
        raise refuse(f"the parameter {text.strip()!r} is not understood; accepted: type name, or type* name")
    return Parts(words, bool(star), after[:-1], after[-1])


def without_std(text: str) -> str:
    """Return C++ with the integers of namespaces as C has them."""
    return re.sub(r"(?:(?<![\w:])::)?\b(?:cuda::)?std::(u?int\d+_t|size_t|ptrdiff_t)\b", r"\1", text)


def without_comments(text: str) -> str:
    """Return C or C++ with a space for each comment."""

    def replace(found: re.Match[str]) -> str:
        return " " if found[0].startswith("/") else found[0]

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', replace, text, flags=re.DOTALL)
