"""What each parameter and result of a declaration is in a call: one decision for text, headers and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from interop._functions.c_types import (
    CUDA_STATUSES,
    ELEMENTS,
    SCALARS,
    STATUSES,
    STREAMS,
    CType,
    Enum,
    Names,
    Resolved,
    Struct,
)

__all__ = [
    "Declaration",
    "Declared",
    "Header",
    "Parameter",
    "Refuse",
    "RefusedError",
    "Result",
    "Rules",
    "Stated",
    "array_of",
    "declaration_of",
    "number_of",
    "parameter_of",
    "returned_of",
    "split_at_commas",
]


class RefusedError(ValueError):
    """A function that cannot be called."""


#: Makes the error of what is wrong.
Refuse = Callable[[str], ValueError]
#: (type, value of success, names of values, is CUDA's): of a status that is no cudaError_t. A uint64 is as an int64.
Status = tuple[str, int, dict[int, str], bool]


class Parameter(NamedTuple):
    """One parameter: "device", "host" or "pointer" for arrays, "view", "scalar", "stream", "opaque" for handles.

    Of kernels also "mdspan", and "tensor_map" for an array that is described to the kernel by one; a "shared_map" is
    one of an array that another parameter takes.
    """

    kind: str
    name: str
    dtype: str  # "" for void
    written: bool
    ndim: int = 0  # of a view, and what is alike; of a pointer: 0 for any
    takes: str = ""  # beside arrays, or alone: "text", or the handles of this type, of which "void*" is any
    form: tuple[int, ...] = ()  # of an mdspan or a tensor map: see src/bindings/functions/kernel_declaration.h

    @property
    def is_argument(self) -> bool:
        """Does a call give something for it?"""
        return self.kind not in ("stream", "shared_map")


class Declared(NamedTuple):
    """A parameter as it is declared."""

    name: str
    type: CType
    text: str  # of the type
    place: str = ""  # "device" or "host", where the declaration says it


class Stated(NamedTuple):
    """A function as it is declared."""

    text: str
    name: str  # with its namespaces
    result: CType
    parameters: list[Declared]
    is_c: bool = False  # extern "C"
    place: str = ""  # in a header: "elemwise.h:12"
    spaces: tuple[str, ...] = ()  # of a function of C, whose name has none

    @property
    def scope(self) -> Sequence[str]:
        """The namespaces that its types are looked up in."""
        return self.spaces or self.name.split("::")[:-1]

    @property
    def where(self) -> str:
        """What a message ends with."""
        return f"in {self.text!r}" + (f" ({self.place})" if self.place else "")

    def refuse(self, what: str) -> ValueError:
        """Return the error of a function that cannot be called."""
        return RefusedError(f"interop.load: {what}, {self.where}")


class Header(NamedTuple):
    """What a header declares: functions, and why others are none that could be called, by their names."""

    functions: list[Stated]
    refused: dict[str, str]


class Result(NamedTuple):
    """What a function returns."""

    dtype: str  # "" for void, "status" for cudaError_t
    is_text: bool = False
    handle: str = ""
    status: Status | None = None


class Declaration(NamedTuple):
    """A function as it is called."""

    stated: Stated
    result: Result
    parameters: list[Parameter]
    types: list[str]  # of the parameters, as the symbols of C++ have them

    @property
    def name(self) -> str:
        return self.stated.name

    @property
    def text(self) -> str:
        return self.stated.text

    @property
    def has_pointers(self) -> bool:
        """Are there handles or strings?"""
        return self.result.is_text or bool(self.result.handle) or any(p.takes for p in self.parameters)

    @property
    def plain_name(self) -> str:
        return self.name.rpartition("::")[2]

    @property
    def function(self) -> str:
        """The name and the types: what C++ tells functions apart by."""
        return f"{self.name}({', '.join(self.types)})"


class Rules(NamedTuple):
    """What is said of the functions beside their declarations."""

    names: Names
    memory: str | None
    #: Of each function, the place that was said of its parameters.
    places: Mapping[str, Mapping[str, str]]
    statuses: Mapping[str, int]
    #: What functions return pointers to: the names of structs, and of typedefs of void*, which are handles then.
    returned: frozenset[str] = frozenset()


def array_of(kind: str, declared: Declared, found: Resolved, refuse: Refuse) -> Parameter:
    """Return a pointer to the elements of an array."""
    dtype = found.definition.dtype if isinstance(found.definition, Enum) else ELEMENTS.get(found.name)
    if dtype is None or (isinstance(found.definition, Enum) and found.definition.unusable):
        accepted = ", ".join(["void", *(name for name, its_dtype in ELEMENTS.items() if its_dtype)])
        raise refuse(f"the elements of {declared.name!r} are {declared.text!r}; accepted: {accepted}{_why(found)}")
    return Parameter(kind, declared.name, dtype, not found.is_const)


def number_of(declared: Declared, found: Resolved, known: Mapping[str, str], others: str, refuse: Refuse) -> Parameter:
    """Return a parameter that is a number of one of the `known` types, or an enum; `others` are what it may be, too."""
    dtype = known.get(found.name)
    if isinstance(found.definition, Enum) and not found.definition.unusable:
        dtype = found.definition.dtype
    elif found.definition is None and _is_status(found.name):
        dtype = "int32"
    if not dtype:
        accepted = f"{', '.join(name for name, its_dtype in known.items() if its_dtype)}, {others}"
        raise refuse(f"the type of {declared.name!r} is {declared.text!r}; accepted: {accepted}{_why(found)}")
    return Parameter("scalar", declared.name, dtype, False)


def returned_of(results: Sequence[Resolved]) -> frozenset[str]:
    """Return what functions with these results return pointers to."""
    return frozenset(x.handle if x.name == "void" else x.name for x in results if x.stars)


def parameter_of(declared: Declared, found: Resolved, function: str, rules: Rules, refuse: Refuse) -> Parameter:
    """Return a parameter of a function that runs on the host."""
    name = declared.name
    said = rules.places.get(function, {}).get(name, "")  # by host= or device=
    place = declared.place or said
    if said and place != said:
        raise refuse(f"the pointer {name!r} is said to be {said!r} and {place!r}; accepted: one of both")
    if found.unusable:
        raise refuse(f"{name!r} is {found.unusable}; accepted: a number, or a pointer to numbers or to a struct")
    if found.is_stream and not place:
        return Parameter("stream", name, "uint64", False)
    if not found.stars:
        if place:
            raise refuse(
                f"the type of {name!r} is {declared.text!r}, and {place!r} is said of it; accepted: that of pointers"
            )
        return number_of(declared, found, SCALARS, f"{', '.join(STREAMS)}, or a pointer", refuse)
    if found.stars > 1:
        raise refuse(f"{name!r} is a pointer to pointers, {declared.text!r}; accepted: pointers to numbers")
    if isinstance(found.definition, Struct):
        if place:
            raise refuse(f"{name!r} is a handle, {found.handle!r}, and no array, but {place!r} is said of it")
        if found.definition.is_complete and found.name not in rules.returned:
            raise refuse(
                f"{name!r} points to a struct, {found.name!r}, and no function that is declared returns one; accepted: "
                "numbers, pointers to numbers, and handles that a function returns"
            )
        return Parameter("opaque", name, "uint64", False, takes=found.handle)
    handle = found.handle if found.handle in rules.returned else "void*"
    if found.name == "void" and not place and (rules.memory is None or handle != "void*"):
        return Parameter("opaque", name, "uint64", False, takes=handle)
    is_text = found.name == "char" and found.is_const
    kind = place or rules.memory or ("host" if is_text else "")
    array = array_of(kind, declared, found, refuse)
    if not kind:
        raise refuse(
            f"the pointer {name!r} says not once 'device' or 'host' before its type, nor does memory=, nor do "
            f"host= or device= name it; accepted: one of these, such as host={{{function!r}: ({name!r},)}}"
        )
    if kind == "host" and (is_text or found.name == "void"):
        return array._replace(takes="text" if is_text else handle)
    return array


def declaration_of(stated: Stated, rules: Rules) -> Declaration:
    """Return a function as it is called; RefusedError, if it cannot be."""
    refuse = stated.refuse
    found = [rules.names.resolve(declared.type, stated.scope) for declared in stated.parameters]
    parameters = [
        parameter_of(declared, type_, stated.name, rules, refuse)
        for declared, type_ in zip(stated.parameters, found, strict=True)
    ]
    result = _result_of(stated.result, stated.scope, rules, refuse)
    names = [parameter.name for parameter in parameters]
    for name, parameter in zip(names, parameters, strict=True):
        if names.count(name) > 1 or (name in ("stream", "execution") and parameter.kind != "stream"):
            raise refuse(f"the parameter {name!r} has the name of another, or of a keyword of the call")
    kinds = [parameter.kind for parameter in parameters]
    if "stream" in kinds and "device" not in kinds:
        raise refuse("there is a stream, and no device pointer that would say which")
    return Declaration(stated, result, parameters, [type_.symbol for type_ in found])


def _result_of(result: CType, scope: Sequence[str], rules: Rules, refuse: Refuse) -> Result:
    found = rules.names.resolve(result, scope)

    def refused(_: str = "") -> ValueError:
        what = f"the result is {found.unusable or result}"
        if found.stars and found.name in ELEMENTS:
            what += ", of which nothing says how long it is, and whose"
        accepted = f"void, cudaError_t, const char*, void*, a pointer to a struct, {', '.join(SCALARS)}"
        return refuse(f"{what}; accepted: {accepted}{'' if found.unusable else _why(found)}")

    if found.unusable or found.stars > 1:
        raise refused()
    if found.stars:
        if isinstance(found.definition, Struct) or found.name == "void":
            return Result("uint64", handle=found.handle)
        if found.name == "char" and found.is_const:
            return Result("uint64", is_text=True)
        raise refused()
    status = next((alias for alias in found.aliases if alias in {**STATUSES, **rules.statuses}), None)
    if status is None and any(alias in CUDA_STATUSES for alias in found.aliases):
        return Result("status")
    if found.name == "void":
        return Result("")
    dtype = number_of(Declared("the result", result, ""), found, SCALARS, "", refused).dtype
    if status is None:
        return Result(dtype)
    if dtype in ("float32", "float64", "bool"):
        raise refuse(f"the result {status!r} is {dtype}; accepted: as a status, an integer or an enum")
    names = found.definition.values if isinstance(found.definition, Enum) else {}
    success = {**STATUSES, **rules.statuses}[status]
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low = 0 if dtype[0] == "u" else -(2 ** (bits - 1))
    if not low <= success < low + 2**bits:
        raise refuse(f"the success of {status!r} is {success}; accepted: a value of {dtype}, which it is")
    by_word = {_as_int64(value): name for value, name in names.items()}
    return Result(dtype, status=(status, _as_int64(success), by_word, status in STATUSES))


def _as_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _is_status(name: str) -> bool:
    return name in CUDA_STATUSES or name in STATUSES


def _why(found: Resolved) -> str:
    """Say what a type is that is neither a number nor an element."""
    if isinstance(found.definition, Struct):
        return f"; {found.name!r} is a struct" + ("" if found.stars else ", which is not passed by value")
    if isinstance(found.definition, Enum):
        return f"; {found.name!r} is an enum of which {found.definition.unusable}"
    if found.name and found.name not in ELEMENTS and found.name not in STREAMS:
        return f"; nothing that was read defines {found.name!r}{found.hint}"
    return ""


def split_at_commas(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "<([":
            depth += 1
        elif character in ">)]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]
