"""The functions and types that a header declares."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop._functions.c_types import Alias, CType, Enum, Names, Struct, candidates, ends_type, without_std
from interop._functions.enums import Constants, enum_of
from interop._functions.parameters import Declared, Header, Stated
from interop._functions.preprocessed import Piece, import_reader, pieces_of, without_attributes

__all__ = ["read_header"]

_TYPES = re.compile(r"(?:typedef|struct|class|union|enum|using)\b")
#: Attributes that change what a type is, or how a function is called.
_CHANGING = re.compile(
    r"vector_size|vector_type|\b(?:__)?mode(?:__)?\b|packed|ms_abi|regparm|sysv_abi|vectorcall|regcall|swiftcall|preserve_"
    r"|\b(?:__)?(?:aarch64_vector_)?pcs(?:__)?\b|\basm\b|\b__asm(?:__)?\b"
)
_OF_CUDA = re.compile(r"\b(?:__host__|__device__|__forceinline__|__noinline__)\b")
_CLASS_KEYS = ("struct", "class", "union")
_CALLED = re.compile(r"(?P<name>(?:~|\boperator\b[^\w(]*|[A-Za-z_:])[\w:]*)\s*\(")


#: Name, stars, const, why it is unusable, the name of a handle, dtype of an enum.
Meaning = tuple[str, int, bool, str, str, str | None]


def read_header(path: str | os.PathLike[str], include_path: Sequence[str | os.PathLike[str]], names: Names) -> Header:
    """Read a header; into `names` go the types that it and the files that it includes define."""
    header = Path(path).absolute()
    source = pieces_of(header, [Path(folder).absolute() for folder in include_path])
    own = {str(header), *_repeated(source.pieces)}
    names.missing += source.missing
    reader = _Reader(names)
    for piece in source.pieces:
        if piece.file in own or _TYPES.match(piece.text):
            reader.read(piece, piece.file in own)
    reader.refuse_defined_later()
    if not reader.header.functions and not reader.header.refused:
        others = dict.fromkeys(Path(x.file).name for x in source.pieces if x.file not in own and x.text.endswith(");"))
        what = f"; those of what it includes do not count: {', '.join(others)}" if others else ""
        raise ValueError(f"interop.load: header is {str(header)!r}, which declares no function{what}")
    return reader.header


def _repeated(pieces: Sequence[Piece]) -> set[str]:
    """Return the files that are parts of the header, as their text is included again and again, each time as another.

    Those of math.h are so.
    """
    last: Counter[str] = Counter()
    found = set()
    for piece in pieces:
        if piece.line < last[piece.file]:
            found.add(piece.file)
        last[piece.file] = piece.line
    return found


class _Reader:
    def __init__(self, names: Names) -> None:
        self.header = Header([], {})
        self._names = names
        self._constants = Constants()
        self._opened: list[Sequence[str]] = []  # the namespaces with a using directive
        #: What the types of functions and typedefs meant where they stand.
        self._meant: list[tuple[Stated, list[Meaning]]] = []
        self._aliases: list[tuple[str, Alias, Meaning]] = []
        self._parse = import_reader()[1].parse_string

    def read(self, piece: Piece, is_own: bool) -> None:
        """Take what one declaration declares; `is_own`: functions, too."""
        text = _OF_CUDA.sub("", piece.text) if is_own else piece.text
        plain, attributes = without_attributes(text)
        stated = Stated(" ".join(plain.split()).removesuffix(" ;").removesuffix(";"), _name_in(plain), CType(""), [])
        stated = stated._replace(place=piece.place, spaces=piece.scope, name="::".join([*piece.scope, stated.name]))
        if is_own and not _TYPES.match(piece.text) and (why := _not_of_host(piece.text)):
            self._refuse(stated, why)
            return
        try:
            found = self._parse(plain).namespace
        except Exception as error:  # cxxheaderparser's own, and what it raises of text that it does not expect
            if is_own and "(" in plain and not plain.startswith("typedef"):
                why = f"the declaration is not understood ({str(error).partition('error ')[2] or error})"
                if "::" in _name_in(plain):
                    why = "it is a member of a class, or of a namespace that is not opened around it"
                self._refuse(stated, why)
            return
        is_changed = bool(_CHANGING.search(attributes))
        self._define(found, piece, is_own, is_changed)
        if is_own:
            for function in found.functions:
                self._take(function, stated, piece, is_changed)
            for scope in found.classes:
                self._refuse_members(scope, stated, piece)
            for variable in found.variables:
                self._refuse_variable(variable, stated, piece)

    # ---- functions ----

    def _take(self, function: Any, stated: Stated, piece: Piece, is_changed: bool) -> None:
        name = "::".join([*piece.scope, _name_of(function.name)])
        stated = stated._replace(name=name)
        why = _why_not(function, is_changed)
        if piece.is_hidden:
            why = "it is in a namespace without a name, and has no symbol outside its file; accepted: one that is not"
        if why:
            self._refuse(stated, why)
            return
        parameters = []
        for place, parameter in enumerate(function.parameters):
            label = parameter.name or f"arg{place}"
            label += "_" * (label in ("stream", "execution"))  # which are keywords of the call
            type_ = _type_of(parameter.type, decays=True)
            if type(parameter.type).__name__ != "Pointer" and ends_type(label, type_.name):
                label, type_ = f"arg{place}", type_._replace(name=f"{type_.name} {label}")
            type_ = self._unhidden(type_, piece.scope)
            parameters.append(Declared(label, type_, str(type_)))
        is_c = piece.is_c or function.extern == '"C"' or function.extern == "C"
        stated = stated._replace(
            name=_name_of(function.name) if is_c else name,
            result=self._unhidden(_type_of(function.return_type), piece.scope),
            parameters=parameters,
            is_c=is_c,
        )
        self.header.functions.append(stated)
        self._meant.append((stated, self._meanings(stated)))

    def refuse_defined_later(self) -> None:
        """Refuse functions with types that mean something else at the end of the header than where they stand."""
        for name, alias, meaning in self._aliases:
            if self._meaning(alias.type, alias.scope) != meaning:
                later = alias.type._replace(unusable="a type of which a name is defined again behind it")
                self._names.define(name, alias._replace(type=later))
        for stated, meanings in self._meant:
            if self._meanings(stated) != meanings:
                self.header.functions.remove(stated)
                self._refuse(stated, "a type's name is defined behind it, or again; accepted: types defined before")

    def _meanings(self, stated: Stated) -> list[Meaning]:
        types = (stated.result, *(parameter.type for parameter in stated.parameters))
        return [self._meaning(type_, stated.scope) for type_ in types]

    def _meaning(self, type_: CType, scope: Sequence[str]) -> Meaning:
        found = self._names.resolve(type_, scope)
        dtype = found.definition.dtype if isinstance(found.definition, Enum) else None
        return found.name, found.stars, found.is_const, found.unusable, found.handle, dtype

    def _unhidden(self, type_: CType, scope: Sequence[str]) -> CType:
        """Return a type, which is unusable where a using directive may hide what its name is found to be."""
        name = type_.name.rpartition(" ")[2]
        found = next((x for x in candidates(name, scope) if self._names.find(f"::{x}", ()) is not None), None)
        if found is None or not self._opened:
            return type_
        depth = found.count("::") - name.removeprefix("::").count("::")
        if any(len(x) > depth and x == tuple(scope[: len(x)]) for x in self._opened):
            return type_._replace(unusable=type_.unusable or "a type whose name a using directive may hide")
        return type_

    def _refuse_members(self, scope: Any, stated: Stated, piece: Piece) -> None:
        owner = "::".join([*piece.scope, _name_of(scope.class_decl.typename)])
        for method in scope.methods:
            why = "it is a member of a class, which is called with an object; accepted: a function that is no member"
            self._refuse(stated._replace(name=f"{owner}::{_name_of(method.name)}", text=f"class {owner}"), why)

    def _refuse_variable(self, variable: Any, stated: Stated, piece: Piece) -> None:
        """Refuse what may be a function, or is one of the type of a typedef."""
        if _may_be_a_function(variable, stated.text + ";"):
            self._refuse(stated, "the declaration is not understood: it may be one of a variable")
            return
        found = self._names.resolve(_type_of(variable.type), piece.scope)
        if found.unusable == "a function" and not found.stars:
            name = "::".join([*piece.scope, _name_of(variable.name)])
            why = "its parameters are those of a typedef; accepted: a declaration with its parameters"
            self._refuse(stated._replace(name=name), why)

    def _refuse(self, stated: Stated, why: str) -> None:
        if stated.name:
            self.header.refused.setdefault(stated.name, str(stated.refuse(why)).removeprefix("interop.load: "))

    # ---- types ----

    def _define(self, found: Any, piece: Piece, is_own: bool, is_changed: bool) -> None:
        def define(name: str, definition: Any) -> None:
            self._names.define("::".join([*piece.scope, name]), definition, is_own=is_own)

        unnamed: dict[int, Any] = {}
        for scope in found.classes:
            self._take_struct(scope.class_decl, define, piece, unnamed)
        for declared in found.forward_decls:
            if declared.enum_base is None and declared.template is None:
                name = _name_of(declared.typename)
                define(name, Struct("::".join([*piece.scope, name]), False))
            elif declared.enum_base is not None:
                self._take_enum(declared.typename, (), declared.enum_base, define, piece, unnamed, is_changed)
        for enum in found.enums:
            self._take_enum(enum.typename, enum.values, enum.base, define, piece, unnamed, is_changed)
        for typedef in found.typedefs:
            self._take_alias(typedef.name, typedef.type, define, piece, unnamed, is_changed)
        for variable in found.variables:  # which may hide an enumerator
            self._constants.define("::".join([*piece.scope, _name_of(variable.name)]), None)
        for using in found.using:
            self._use(_name_of(using.typename), define, piece.scope)
        if found.using_ns:
            self._opened.append(piece.scope)
            self._constants.open(piece.scope)
        for alias in found.using_alias:
            if alias.template is None:
                self._take_alias(alias.alias, alias.type, define, piece, unnamed, is_changed)

    def _use(self, used: str, define: Any, scope: Sequence[str]) -> None:
        """Take a using declaration, of a type or an enumerator."""
        name = used.rpartition("::")[2]
        whole = "::".join([*scope, name])
        try:
            constant = self._constants.find(used, scope)
        except KeyError:
            constant = None
        self._constants.define(whole, constant)
        if whole != used.removeprefix("::") and without_std(used) == used:
            define(name, Alias(CType(used), scope))

    def _take_struct(self, declared: Any, define: Any, piece: Piece, unnamed: dict[int, Any]) -> None:
        segment = declared.typename.segments[-1]
        if declared.template is not None:
            return
        if hasattr(segment, "id"):
            unnamed[segment.id] = Struct("", True)
            return
        name = _name_of(declared.typename)
        define(name, Struct("::".join([*piece.scope, name]), True))

    def _take_enum(
        self,
        typename: Any,
        values: Sequence[Any],
        base: Any,
        define: Any,
        piece: Piece,
        unnamed: dict[int, Any],
        is_changed: bool,
    ) -> None:
        segment = typename.segments[-1]
        pairs = [(x.name, x.value and " ".join(token.value for token in x.value.tokens)) for x in values]
        type_name = self._names.resolve(CType(_name_of(base)), piece.scope).name if base is not None else ""
        is_class = " " in (typename.classkey or "")
        name = "" if hasattr(segment, "id") else _name_of(typename)
        enum = enum_of("::".join([*piece.scope, name]), pairs, type_name, self._constants, is_class)
        if is_changed:
            enum = enum._replace(unusable="an attribute changes the type")
        if name:
            define(name, enum)
        else:
            unnamed[segment.id] = enum

    def _take_alias(
        self, name: str, type_: Any, define: Any, piece: Piece, unnamed: dict[int, Any], is_changed: bool
    ) -> None:
        declared = self._unhidden(_type_of(type_), piece.scope)
        base = type_
        while hasattr(base, "ptr_to"):
            base = base.ptr_to
        typename = getattr(base, "typename", None)
        segment: Any = typename.segments[-1] if typename is not None else None
        if hasattr(segment, "id"):
            whole = "::".join([*piece.scope, name])
            definition = unnamed.get(segment.id)
            if definition is not None and not declared.stars and not declared.unusable:
                unnamed[segment.id] = definition._replace(name=whole)  # its name to the linker, too
                define(name, unnamed[segment.id])
            else:
                define(name, Alias(declared._replace(unusable="a type without a name"), piece.scope))
            return
        self._names.resolve(declared, piece.scope)  # a struct is declared by this, too
        if is_changed:
            declared = declared._replace(unusable="a type that an attribute changes")
        define(name, alias := Alias(declared, piece.scope))
        self._aliases.append(("::".join([*piece.scope, name]), alias, self._meaning(declared, piece.scope)))


def _why_not(function: Any, is_changed: bool) -> str:
    """Say why a function cannot be called, whatever its types are; "" if nothing is known."""
    reasons = (
        (
            function.template is not None,
            "it is a template, which has no function of its own; accepted: one that calls it",
        ),
        (function.operator is not None, "it is an operator; accepted: a function with a name"),
        (function.static, "it is static, and has no symbol outside its file; accepted: one that is not static"),
        (function.deleted, "it is deleted"),
        (function.vararg, "it takes any number of arguments (...); accepted: a function with all its parameters"),
        (is_changed, "an attribute or asm changes how it is called"),
        (function.return_type is None, "it has no result; accepted: a function"),
        (any(x.param_pack for x in function.parameters), "it takes a pack of parameters; accepted: one for each"),
    )
    return next((why for is_so, why in reasons if is_so), "")


def _not_of_host(text: str) -> str:
    if re.search(r"\b__global__\b", text):
        return "it is a kernel; accepted: a function that launches it, or its source in interop.kernel"
    if re.search(r"\b__device__\b", text) and not re.search(r"\b__host__\b", text) and "(" in text:
        return "it is a function of the GPU (__device__); accepted: a function of the host"
    return ""


def _may_be_a_function(variable: Any, text: str) -> bool:
    """Is there something in parentheses behind the name, or is it alone behind what may be a macro?"""
    name = re.escape(_name_of(variable.name))
    return bool(re.search(rf"\b{name}\s*\(", text) or re.fullmatch(rf"\w+\s*\(\s*{name}\s*\)\s*;", text))


def _name_in(text: str) -> str:
    """Return what is likely the name of a function whose declaration is not understood."""
    found = [x["name"] for x in _CALLED.finditer(text) if x["name"] not in ("decltype", "noexcept", "alignas", "throw")]
    return found[0] if found else ""


def _name_of(name: Any) -> str:
    return "::".join(segment.format() for segment in name.segments)


def _type_of(type_: Any, decays: bool = False) -> CType:
    """Return a type of cxxheaderparser; `decays`: that of a parameter, where an array is a pointer."""
    kind = type(type_).__name__
    if kind == "Array" and decays:
        return _pointer_to(type_.array_of)
    if kind == "Pointer":
        return _pointer_to(type_.ptr_to)
    if kind == "Type":
        key = f"{type_.typename.classkey} " if type_.typename.classkey in _CLASS_KEYS else ""
        return CType(key + _name_of(type_.typename), 0, type_.const)
    unusable = {
        "Array": "an array",
        "FunctionType": "a function",
        "Reference": "a reference",
        "MoveReference": "a reference",
        "MemberPointer": "a pointer to a member",
    }
    return CType("", unusable=unusable.get(kind, f"a type that is not understood ({kind})"))


def _pointer_to(type_: Any) -> CType:
    target = _type_of(type_)
    if target.unusable == "a function":
        return target._replace(unusable="a function pointer")
    if target.unusable == "an array":
        return target._replace(unusable="an array of arrays")
    if getattr(type_, "volatile", False):
        return target._replace(unusable="a pointer to what is volatile")
    return target._replace(stars=target.stars + 1)
