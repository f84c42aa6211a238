"""Handles and strings of C, in the calls of `interop.load`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from interop._arguments import type_name
from interop._functions.parameters import Parameter, Result

__all__ = ["Opaque", "WithPointers", "pointers_of"]


class Opaque:
    """A pointer to something that only its library knows, as a function of `interop.load` has returned it.

    It is an argument for a parameter of the same type, by its name in the declarations, and for one of ``void*``; no
    integer is. Two are equal if type and address are. It is nobody's: nothing is freed when it goes, and after the
    library's own function has freed it, it must not be used.

    Examples
    --------
    >>> import ctypes.util, interop
    >>> lib = interop.load(ctypes.util.find_library("c"), "struct lconv* localeconv(void); void free(void* p);")
    >>> lib.localeconv() == lib.localeconv()
    True
    >>> lib.free(0)
    Traceback (most recent call last):
      ...
    TypeError: libc.free: p is int; accepted: an interop.Opaque, as functions of a library return it
    """

    __slots__ = ("_address", "_type")
    _address: int
    _type: str

    def __init__(self) -> None:
        raise TypeError("interop.Opaque: none is made in Python; accepted: what a function of interop.load returns")

    @property
    def type(self) -> str:
        """The name of its type in the declarations, such as "gzFile", "struct_name*", or "void*"."""
        return self._type

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Opaque):
            return NotImplemented
        return (self._address, self._type) == (other._address, other._type)

    def __hash__(self) -> int:
        return hash((self._address, self._type))

    def __repr__(self) -> str:
        return f"<interop.Opaque {self._type} at {self._address:#x}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"interop.Opaque: {self!r} is a pointer of this process, which means nothing in another")


Opaque.__module__ = "interop"


def _made_opaque(address: int, type_: str) -> Opaque | None:
    """Return a pointer that a function has returned; None for a null pointer."""
    if not address:
        return None
    made = object.__new__(Opaque)
    made._address, made._type = address, type_
    return made


class WithPointers:
    """A `_core.CFunction` with parameters or a result that are handles or strings.

    For it they are integers: the addresses. An array is an array.
    """

    def __init__(
        self, label: str, parameters: Sequence[Parameter], result: Result, make: Callable[[frozenset[int]], Any]
    ) -> None:
        """`make` returns the `_core.CFunction` of which the parameters at these places are addresses."""
        self._label, self._parameters, self._result, self._make = label, parameters, result, make
        self._made = {frozenset[int](): make(frozenset())}

    def call(
        self,
        args: tuple[Any, ...],
        shapes: dict[int, Any],
        given: dict[int, Any],
        stream: Any,
        execution: Any,
        looks: bool,
    ) -> Any:
        """Call it, as `_core.CFunction.call` does."""
        places = [i for i, p in enumerate(self._parameters) if p.kind != "stream" and i not in shapes]
        words: dict[int, int] = {}
        kept = []  # strings, until the call is over
        for place, x in zip(places, args, strict=True):
            parameter = self._parameters[place]
            if parameter.takes == "text" and isinstance(x, str | bytes):
                kept.append(ctypes.c_char_p(self._encoded(parameter, x)))
                words[place] = ctypes.cast(kept[-1], ctypes.c_void_p).value or 0
            elif parameter.kind == "opaque" or (parameter.takes and isinstance(x, Opaque)):
                words[place] = self._address(parameter, x)
        for rule in (*shapes.values(), *given.values()):
            if isinstance(rule, int) and rule in words:
                name, x = self._parameters[rule].name, args[places.index(rule)]
                raise TypeError(
                    f"{self._label}: {name} is {type_name(x)}; accepted: an array, whose shape a result has"
                )
        passed = tuple(words.get(place, x) for place, x in zip(places, args, strict=True))
        returned = self._with(frozenset(words)).call(passed, shapes, given, stream, execution, looks)
        if looks or shapes or given:
            return returned
        if self._result.handle:
            return _made_opaque(returned, self._result.handle)
        return _text_at(returned) if self._result.is_text else returned

    def keep_for_xla(self, key: str) -> None:
        """Keep it for XLA's programs, as `_core.CFunction.keep_for_xla` does: with arrays alone."""
        self._with(frozenset()).keep_for_xla(key)

    def _with(self, addresses: frozenset[int]) -> Any:
        if addresses not in self._made:
            self._made[addresses] = self._make(addresses)
        return self._made[addresses]

    def _encoded(self, parameter: Parameter, text: str | bytes) -> bytes:
        try:
            data = text.encode() if isinstance(text, str) else text
        except UnicodeEncodeError as error:
            why = f"{error.reason}, for {parameter.name} of {self._label}; accepted: other text, or bytes"
            raise UnicodeEncodeError(error.encoding, error.object, error.start, error.end, why) from None
        if b"\0" in data:
            raise ValueError(f"{self._label}: {parameter.name} has a null character, where C ends it; accepted: none")
        return data

    def _address(self, parameter: Parameter, x: object) -> int:
        wanted = parameter.takes
        if isinstance(x, Opaque) and wanted in (x.type, "void*"):
            return x._address
        given = f"an interop.Opaque of {x.type!r}" if isinstance(x, Opaque) else type_name(x)
        of_type = "" if wanted == "void*" else f" of {wanted!r}"
        arrays = ""
        if wanted == "void*" and not isinstance(x, int):
            arrays = f"; or an array, where memory= says which, or host= or device= names {parameter.name!r}"
        raise TypeError(
            f"{self._label}: {parameter.name} is {given}; accepted: an interop.Opaque{of_type}, as functions of a "
            f"library return it{arrays}"
        )


def _text_at(address: int) -> str | bytes | None:
    if not address:
        return None
    data = ctypes.string_at(address)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def pointers_of(parameters: Sequence[Parameter], addresses: frozenset[int]) -> list[tuple[str, str, str, bool]]:
    """Return the parameters as `_core.CFunction` takes them, those of `addresses` as integers."""
    return [
        ("scalar", p.name, "uint64", False)
        if place in addresses or p.kind == "opaque"
        else (p.kind, p.name, p.dtype, p.written)
        for place, p in enumerate(parameters)
    ]
