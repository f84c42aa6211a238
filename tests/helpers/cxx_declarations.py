"""Declarations of C++ that hypothesis makes, and a library of the functions that they declare."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

#: What C++ has for one type, in the spellings of headers.
SPELLINGS = [
    ("bool", "_Bool"),
    ("char",),
    ("signed char", "int8_t", "std::int8_t"),
    ("unsigned char", "uint8_t"),
    ("short", "short int", "signed short", "signed short int", "int16_t"),
    ("unsigned short", "unsigned short int", "uint16_t"),
    ("int", "signed", "signed int", "int32_t", "::std::int32_t"),
    ("unsigned", "unsigned int", "uint32_t"),
    ("long", "long int", "signed long", "signed long int", "int64_t", "ptrdiff_t", "std::ptrdiff_t"),
    ("unsigned long", "unsigned long int", "uint64_t", "size_t", "std::size_t"),
    ("long long", "long long int", "signed long long", "signed long long int"),
    ("unsigned long long", "unsigned long long int"),
    ("float",),
    ("double",),
]
POINTED_TO = [
    *SPELLINGS,
    ("void",),
    ("half", "__half"),
    ("nv_bfloat16", "__nv_bfloat16"),
    ("__nv_fp8_e4m3",),
    ("__nv_fp8_e5m2",),
    ("cuComplex", "cuFloatComplex"),
    ("cuDoubleComplex",),
    ("float _Complex",),
    ("double _Complex",),
]
PREAMBLE = """
#include <cstddef>
#include <cstdint>
using std::size_t; using std::ptrdiff_t;
#define _Bool bool
struct __half; typedef __half half;               // the structs and typedefs of CUDA's headers
struct __nv_bfloat16; typedef __nv_bfloat16 nv_bfloat16;
struct __nv_fp8_e4m3; struct __nv_fp8_e5m2;
struct float2; typedef float2 cuFloatComplex; typedef cuFloatComplex cuComplex;
struct double2; typedef double2 cuDoubleComplex;
typedef struct CUstream_st* cudaStream_t; typedef struct CUstream_st* CUstream;
"""
NAMES = st.sampled_from(["f", "add", "add2", "a", "std_", "cafe", "L", "St", "x1", "n", "E", "Z"])


class Parameter(NamedTuple):
    kind: tuple[tuple[str, ...], bool, bool]  # what tells functions apart: type, pointer, to const
    source: str
    declared: str


@st.composite
def parameters(draw):
    is_pointer = draw(st.booleans())
    spellings = draw(st.sampled_from(POINTED_TO if is_pointer else SPELLINGS))
    is_const = is_pointer and draw(st.booleans())

    def spelled(place):
        text = draw(st.sampled_from(spellings))
        if not is_pointer:  # const, or not: that is no part of the function's type
            return draw(st.sampled_from([text, f"const {text}", f"{text} const"]))
        text = draw(st.sampled_from([f"const {text}", f"{text} const"])) if is_const else text
        return place + text + draw(st.sampled_from(["*", " *", "* const", "* __restrict__", "*__restrict const"]))

    return Parameter((spellings, is_pointer, is_const), spelled(""), spelled("host " if is_pointer else ""))


class Declared(NamedTuple):
    spaces: tuple[str, ...]
    name: str
    parameters: list[Parameter]

    @property
    def whole_name(self):
        return "::".join([*self.spaces, self.name])

    def definition(self, number):
        opened = "".join(f"namespace {space} {{ " for space in self.spaces)
        listed = ", ".join(x.source for x in self.parameters)
        return f"{opened}int {self.name}({listed}) {{ return {number}; }}{' }' * len(self.spaces)}"

    def declaration(self, names):
        listed = ", ".join(x.declared + name for x, name in zip(self.parameters, names, strict=False))
        return f"int {self.whole_name}({listed});"


FUNCTIONS = st.builds(Declared, st.lists(NAMES, max_size=3).map(tuple), NAMES, st.lists(parameters(), max_size=6))


def that_fit_together(functions):
    """Leave out what cannot be in one file: the name of a namespace, and the same function again."""
    scopes = {function.spaces[:i] for function in functions for i in range(1, len(function.spaces) + 1)}
    kept = {
        (function.whole_name, *(x.kind for x in function.parameters)): function
        for function in functions
        if (*function.spaces, function.name) not in scopes
    }
    return list(kept.values())
