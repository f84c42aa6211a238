"""The C types of functions and kernels that `interop` calls, and those that a text defines by names of its own."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

__all__ = [
    "CUDA_STATUSES",
    "ELEMENTS",
    "QUALIFIERS",
    "SCALARS",
    "STATUSES",
    "STREAMS",
    "WORDS_OF_TYPES",
    "Alias",
    "CType",
    "Enum",
    "Names",
    "Resolved",
    "Struct",
    "candidates",
    "ends_type",
    "in_symbols",
    "spelled",
    "without_std",
]


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
    "std::complex<float>": "complex64",
    "std::complex<double>": "complex128",
}
STREAMS = ("cudaStream_t", "CUstream")
#: Statuses that CUDA's runtime and driver return, by their names.
CUDA_STATUSES = ("cudaError_t", "cudaError", "CUresult")
#: Other statuses of CUDA's: their values of success.
STATUSES = {"cublasStatus_t": 0}
#: What may stand behind the star of a pointer.
QUALIFIERS = {"const", "restrict", "__restrict", "__restrict__"}
WORDS_OF_TYPES = {word for name in SCALARS for word in name.split() if not word.endswith("_t")} | {
    *("void", "const", "_Complex", "_Imaginary", "_Atomic", "__int128"),
}
#: Words that may be names in C++, and are not behind numbers in C.
_WORDS_OF_C = {"complex", "imaginary", "_Complex", "_Imaginary", "_Atomic"}

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
    "cudaError_t": "cudaError",
    "CUresult": "cudaError_enum",
}


def in_symbols(type_name: str) -> str:
    """Return a type as the symbols of C++ have it: without its typedefs."""
    return _IN_SYMBOLS.get(type_name, type_name)


class CType(NamedTuple):
    """A type, as it is declared."""

    name: str  # without the stars: "float", "n::Color"
    stars: int = 0
    is_const: bool = False  # of what is behind all stars
    unusable: str = ""  # what no parameter may be: "a reference", "a function pointer"

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.name}{'*' * self.stars}"


class Alias(NamedTuple):
    """What a typedef names."""

    type: CType
    scope: Sequence[str]  # in which the names of `type` are looked up


class Enum(NamedTuple):
    """An enum: the dtype of its values, and their names; or why it has none that is known."""

    name: str
    dtype: str
    values: dict[int, str]
    unusable: str = ""


class Struct(NamedTuple):
    """A struct, class or union."""

    name: str
    is_complete: bool


class Resolved(NamedTuple):
    """A type without its typedefs."""

    name: str
    stars: int
    is_const: bool
    unusable: str
    definition: Enum | Struct | None  # None for a type of C, or what nothing defines
    aliases: tuple[str, ...]  # the typedefs that stood for it, and its own name
    handle: str  # its name as that of a handle: "struct_name*", or the typedef of a void*
    hint: str = ""  # where a name that nothing defines may be defined

    @property
    def is_stream(self) -> bool:
        return self.name in STREAMS and not self.stars

    @property
    def symbol(self) -> str:
        """The type as the symbols of C++ have it."""
        return f"{in_symbols(self.name)}{' const' if self.is_const and self.stars else ''}{'*' * self.stars}"


Definition = Alias | Enum | Struct
_ORDER = {"unsigned": 0, "signed": 0, "short": 1, "long": 1, "char": 2, "int": 2, "double": 2}
_CLASS_KEY = re.compile("(?:(struct|class|union|enum) )?(.*)")
_MOST_ALIASES = 100  # of one another, against those that go round


def spelled(words: str) -> str:
    """Return the words of a number's type in the order of the tables: "unsigned long int" for "long int unsigned"."""
    parts = words.split()
    return " ".join(sorted(parts, key=_ORDER.__getitem__)) if set(parts) <= _ORDER.keys() else words


def ends_type(word: str, before: str) -> bool:
    """Is a word a part of the type that the words before it begin, as in "double complex", and no name?"""
    return word in _WORDS_OF_C and set(before.split()) <= WORDS_OF_TYPES


def without_std(text: str) -> str:
    """Return C++ with the integers of namespaces as C has them."""
    return re.sub(r"(?:(?<![\w:])::)?\b(?:cuda::)?std::(u?int\d+_t|size_t|ptrdiff_t)\b", r"\1", text)


class Names:
    """The types that a text defines, beside those of C and CUDA."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Definition, bool]] = {}
        #: The files that were to be included, and were not found.
        self.missing: list[str] = []

    def define(self, name: str, definition: Definition, *, is_own: bool = True) -> None:
        """Take what a name stands for, with its namespaces.

        `is_own`: a file that is only included says otherwise, whose structs and pointers are not taken for names that
        CUDA has.
        """
        known = self._known.get(name)
        if known and isinstance(definition, Struct) and (not definition.is_complete or isinstance(known[0], Alias)):
            return  # declared again; or "typedef struct a a;"
        if isinstance(definition, Alias) and definition.type[1:] == CType("")[1:]:
            plain = _CLASS_KEY.fullmatch(definition.type.name)[2]  # type: ignore[index]
            if name in candidates(plain, definition.scope):
                return  # "typedef struct a a;" before or behind the struct, or of one outside
        self._known[name] = definition, is_own

    def find(self, name: str, scope: Sequence[str]) -> tuple[Definition, bool] | None:
        """Return what a name stands for in a namespace, and whether the text itself says so."""
        return next((self._known[x] for x in candidates(name, scope) if x in self._known), None)

    def resolve(self, declared: CType, scope: Sequence[str] = ()) -> Resolved:
        """Return a type without its typedefs."""
        name, stars, is_const, unusable = declared
        aliases: list[str] = []
        handle = ""
        for _ in range(_MOST_ALIASES):
            key, name = _CLASS_KEY.fullmatch(spelled(without_std(name))).groups()  # type: ignore[union-attr]
            if key and key != "enum" and self.find(name, scope) is None:  # which this declares
                self.define("::".join([*scope, name]), Struct("::".join([*scope, name]), False))
            aliases.append(name.removeprefix("::"))
            found = self.find(name, scope)
            if found is None or (not found[1] and (name in ELEMENTS or name in STREAMS) and not _is_number(found[0])):
                break
            definition = found[0]
            if not isinstance(definition, Alias):
                if definition.name == "CUstream_st" and stars:
                    return Resolved("CUstream", stars - 1, is_const, unusable, None, tuple(aliases), "")
                handle = f"{definition.name}*"
                return Resolved(definition.name, stars, is_const, unusable, definition, tuple(aliases), handle)
            if definition.type.stars and not handle:
                handle = name.removeprefix("::")
            is_const = definition.type.is_const or (is_const and not definition.type.stars)
            stars, unusable = stars + definition.type.stars, unusable or definition.type.unusable
            name, scope = definition.type.name, definition.scope
        name = name.removeprefix("::")
        files = ", ".join(self.missing)
        hint = f" ({files}: not found beside the header, nor in include_path=)" if files else ""
        return Resolved(name, stars, is_const, unusable, None, tuple(aliases), handle or f"{name}*", hint)


def _is_number(definition: Definition) -> bool:
    return isinstance(definition, Alias) and not definition.type.stars and spelled(definition.type.name) in SCALARS


def candidates(name: str, scope: Sequence[str]) -> Iterator[str]:
    """Give the names that C++ looks for, from the inside out."""
    if name.startswith("::"):
        yield name[2:]
        return
    for end in range(len(scope), -1, -1):
        yield "::".join([*scope[:end], name])
