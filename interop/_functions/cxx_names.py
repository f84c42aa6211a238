"""The symbol of a function that is declared in C or C++, and why a library has none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from interop import _core
from interop._functions.parameters import Declaration
from interop._functions.shared_library import SharedLibrary
from interop._functions.symbols import Symbol, symbols_of

__all__ = ["CxxNames", "address_of"]

_UNNAMED = "(anonymous namespace)::"
_EXPORTED = 'accepted: a function that the library exports, as by __attribute__((visibility("default")))'
_KERNEL = (
    "it is a kernel, and what has its name on the host only launches it; accepted: a function that launches it as it "
    "should be, or its source in interop.kernel"
)
_WHY = {
    "hidden": f"it is hidden (-fvisibility=hidden, or a linker's version script); {_EXPORTED}",
    "static": "it is static, or in an unnamed namespace; accepted: a function that the library exports",
    "local": f"it is static or hidden; {_EXPORTED}",
    "imported": "it is of another library, which this one uses; accepted: to load that library",
    "data": "what has this name is data; accepted: a function",
}
_NOTHING = (
    "nothing in it has this name: a function that is only declared has no symbol, nor has an inline one that nothing "
    "in the library needs, nor, in a library that was stripped, a static or a hidden one; accepted: a function that "
    "the library exports"
)
_UNREADABLE = (
    "its file shows no symbols: it exports nothing, or has no section headers; accepted: a function that the library "
    'exports, or extern "C" before a declaration of its symbol'
)


class _Name(NamedTuple):
    symbol: Symbol
    text: str  # as the demangler writes it

    @property
    def function(self) -> str:
        """What stands before the parameters."""
        return self.text.replace(_UNNAMED, "").partition("(")[0]

    @property
    def qualifiers(self) -> str | None:
        """What stands behind the parameters, as " const" for a member; None for no function, or for what is in one."""
        rest, depth = self.text.replace(_UNNAMED, "").removeprefix(self.function), 0
        for place, character in enumerate(rest, 1):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return rest[place:] if re.fullmatch("(?: const| volatile| &&?)*", rest[place:]) else None
        return None


class CxxNames:
    """The names of C++ in a library's file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @cached_property
    def _symbols(self) -> list[Symbol]:
        return symbols_of(self._file)

    @cached_property
    def _all_symbols(self) -> list[Symbol]:
        return [*self._symbols, *symbols_of(self._file, of_loader=False)]

    def symbol_of(self, name: str, types: Sequence[str]) -> str | None:
        """Return the symbol of the function; None if there is none, AttributeError for members, or if there are two."""
        for scope in _scopes(name):
            if because := self._evidence_of_class(scope):
                raise AttributeError(
                    f"{name!r} is a member of a class, as the library has {because!r}: it is called with an object; "
                    "accepted: a function that is no member"
                )
        wanted = _function(name, types)
        parts = [_mangled(part) for part in name.split("::") if part != "std"]  # which has a letter of its own
        named = _demangled(x for x in self._symbols if all(part in x.name for part in parts))
        found = {x.symbol.name for x in named if x.text == wanted and not x.symbol.obstacle}
        if len(found) > 1:
            raise AttributeError(
                f'{wanted!r} is the name of {len(found)} functions; accepted: extern "C" before a declaration of '
                f"{_listed(found)}"
            )
        if found and self._is_kernel(*found):
            raise AttributeError(f"{wanted!r}: {_KERNEL}")
        return found.pop() if found else None

    def why_not(self, name: str, types: Sequence[str], is_c: bool) -> str:
        """Say why the library has no function that is declared so, and what to write."""
        if not self._symbols:
            return _UNREADABLE
        plain, wanted = name.rpartition("::")[2], _function(name, types)
        known = {x.obstacle for x in self._all_symbols if x.name == name}
        named = _demangled(x for x in self._all_symbols if _mangled(name) in x.name)
        if any(self._is_kernel(x.symbol.name) for x in named if x.text == wanted):
            return _KERNEL
        if not is_c:
            known |= {_obstacle(x) for x in named if x.text.replace(_UNNAMED, "") == wanted}
            known |= {"data" for x in named if x.text == name}
        for obstacle, why in _WHY.items():
            if obstacle in known:
                return why
        exported = [x for x in named if not x.symbol.obstacle and x.qualifiers is not None]
        if others := {x.text for x in exported if x.function.rpartition("::")[2] == plain}:
            accepted = "a declaration of one of these" + (', without extern "C"' if is_c else "")
            return f"it has, in C++, {_listed(others)}; accepted: {accepted}"
        if any(x.name == plain and not x.obstacle for x in self._symbols):
            return f'it has {plain!r}, as a function of C; accepted: extern "C" before the declaration, of {plain!r}'
        if templates := {x.text for x in exported if f"{plain}<" in x.function}:
            return f"it has {_listed(templates)}; accepted: a function that is no template"
        return _NOTHING

    def _is_kernel(self, symbol: str) -> bool:
        """Is there the function that CUDA's compiler makes for a kernel of this name?"""
        return any(f"__device_stub_{symbol}" in x.name for x in self._all_symbols)

    def _evidence_of_class(self, scope: str) -> str | None:
        """Return a name that a class has, and a namespace has not."""
        own, part = scope.rpartition("::")[2], _mangled(scope)
        # The constructor of C looks like a function C of a namespace C, but for its symbol.
        likely = re.compile(f"_ZT[VI].*{part}|_ZN[KVRO].*{part}|_Z.*{part}(?:[CD][0-9]|aS)")
        for x in _demangled(x for x in self._symbols if likely.match(x.name)):
            is_made = x.text.startswith(f"{scope}::{own}(")
            is_member = x.function.rpartition("::")[0] == scope and x.qualifiers
            is_special = x.text.startswith((f"{scope}::~", f"{scope}::operator=("))
            if is_made or is_member or is_special or x.text in (f"vtable for {scope}", f"typeinfo for {scope}"):
                return x.text
        return None


def address_of(library: SharedLibrary, names: CxxNames, declaration: Declaration, is_overloaded: bool) -> int:
    """Return the address of a function of C, else of C++.

    `is_overloaded`: there are others of its name, so that it is of C only if it says so.
    """
    name, types, not_of_c = declaration.name, declaration.types, None
    label = f"interop.load: {library.path!r} has no function"
    if declaration.stated.is_c or not (is_overloaded or "::" in name):
        try:
            if address := library.address_of(name):
                return address
        except AttributeError as error:
            not_of_c = error
    if not declaration.stated.is_c:
        try:
            symbol = names.symbol_of(name, types)
        except AttributeError as error:
            raise AttributeError(f"interop.load: {library.path!r}: {error}, {declaration.stated.where}") from None
        if symbol and (address := library.address_of(symbol)):
            return address
    if not_of_c:
        raise AttributeError(f"{not_of_c}, {declaration.stated.where}") from None
    shown = name if declaration.stated.is_c else declaration.function
    why = names.why_not(name, types, declaration.stated.is_c)
    raise AttributeError(f"{label} {shown!r}: {why}, {declaration.stated.where}")


def _demangled(symbols: Iterable[Symbol]) -> list[_Name]:
    """Return those that are names of C++."""
    found = [x for x in symbols if x.name.startswith("_Z")]
    texts = _core.CFunction.demangled([x.name for x in found])
    return [_Name(symbol, text) for symbol, text in zip(found, texts, strict=True) if text is not None]


def _function(name: str, types: Sequence[str]) -> str:
    return f"{name}({', '.join(types)})"


def _scopes(name: str) -> Iterator[str]:
    """Give "a" and "a::b" for "a::b::c"."""
    scope = name.rpartition("::")[0]
    while scope:
        yield scope
        scope = scope.rpartition("::")[0]


def _mangled(name: str) -> str:
    """Return the last part of a name with its length, as it stands in each symbol that has it."""
    part = name.rpartition("::")[2]
    return f"{len(part.encode())}{part}"


def _obstacle(x: _Name) -> str:
    """Tell hidden names from static ones, of which linkers make the same: the compiler does not."""
    is_static = f"L{_mangled(x.function)}" in x.symbol.name or _UNNAMED in x.text
    if x.symbol.obstacle == "local":
        return "static" if is_static else "hidden"
    return x.symbol.obstacle


def _listed(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
