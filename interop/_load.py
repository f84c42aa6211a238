"""C functions of shared libraries, called with the arrays of any library."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from interop import _core
from interop._matmul import StreamLike

__all__ = ["Function", "Library", "load"]

Memory = Literal["device", "host"]
ShapeRule = str | Callable[..., tuple[int, ...]]


def load(path: str | os.PathLike[str], declarations: str, /, *, memory: Memory | None = None) -> Library:
    """Load a shared library, and make its C functions callable with arrays of any library.

    Parameters
    ----------
    path : str or path
        The library, as for `ctypes.CDLL`: with a slash a file, without one a name that the system's loader looks for.
    declarations : str
        The C declarations of the functions that are to be called, as in the library's header, without the
        preprocessor's lines. What a header does not say stands before each pointer: ``device`` for memory that the GPU
        uses, ``host`` for memory that the CPU does. A pointer that is not to ``const`` is written to.
    memory : "device" or "host", optional
        What all pointers without either word are.

    Returns
    -------
    Library
        With one `Function` for each declaration, as an attribute.

    Raises
    ------
    ValueError
        A declaration is not understood: the message quotes it.
    OSError
        The library cannot be loaded, in the loader's own words.
    AttributeError
        The library has no such function. In C++, functions need ``extern "C"``.

    Notes
    -----
    Types are the C integers (``int``, ``size_t``, ``int64_t``, ...), ``bool``, ``float`` and ``double``; for elements
    of arrays also ``__half``, ``__nv_bfloat16``, ``cuComplex``, ``cuDoubleComplex`` and ``void``, which is any.
    A parameter of type ``cudaStream_t`` is given the call's stream, and stands nowhere in the call from Python. A
    returned ``cudaError_t`` that is not 0 is raised as `interop.CudaError`.

    As with `ctypes`, a declaration that is not that of the library, or a size beyond an array, is undefined behaviour.

    Examples
    --------
    >>> import ctypes.util, numpy as np, interop
    >>> lib = interop.load(ctypes.util.find_library("m"), "double hypot(double x, double y);")
    >>> lib.hypot(3, 4)
    5.0
    """
    if memory not in (None, "device", "host"):
        raise ValueError(f"interop.load: memory is {memory!r}; accepted: None, 'device', 'host'")
    parsed = [_parse(text, memory) for text in _statements(declarations)]
    if not parsed:
        raise ValueError("interop.load: declarations has none; accepted: at least one C declaration")
    try:
        library = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise OSError(f"interop.load: {os.fspath(path)!r} cannot be loaded: {error}") from None
    return Library(library, os.fspath(path), declarations, memory, parsed)


class Library:
    """The declared functions of a shared library: attributes, each a `Function`. `interop.load` makes it."""

    def __init__(
        self, library: ctypes.CDLL, path: str, declarations: str, memory: Memory | None, parsed: list[_Declaration]
    ) -> None:
        self._path, self._declarations, self._memory = path, declarations, memory
        self._functions: dict[str, Function] = {}
        for declaration in parsed:
            try:
                symbol = getattr(library, declaration.name)
            except AttributeError:
                raise AttributeError(
                    f"interop.load: {path!r} has no function {declaration.name!r}; functions of C++ need "
                    'extern "C", and a library may hide what it does not export'
                ) from None
            self._functions[declaration.name] = Function(self, declaration, symbol, {})

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(f"{self!r} has no declared function {name!r}; declared: {', '.join(functions)}")
        found: Function = functions[name]
        return found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]

    def __repr__(self) -> str:
        return f"interop.load({self._path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, (self._path, self._declarations, self._memory)


def _load_again(path: str, declarations: str, memory: Memory | None) -> Library:
    return load(path, declarations, memory=memory)


class Function:
    """A C function of a `Library`, called with arrays of any library.

    The call takes one argument for each parameter but the stream, in the declared order, and the keywords ``stream``
    and ``execution``, as in `interop.matmul`. Pointers take C-contiguous arrays of exactly the declared dtype, on a GPU
    or on the host as declared; nothing is copied, unless ``execution="cuda"`` has host arrays computed on the GPU. The
    arrays are ordered on the call's stream and kept alive as in any call of this package. The GIL is released.

    It returns what the C function does, None for ``void``; or, after `returning`, arrays.
    """

    def __init__(self, library: Library, declaration: _Declaration, symbol: Any, shapes: dict[str, ShapeRule]) -> None:
        self._library, self._declaration, self._symbol, self._shapes = library, declaration, symbol, shapes
        self.__name__ = self.__qualname__ = declaration.name
        self.__doc__ = declaration.text
        address = ctypes.cast(symbol, ctypes.c_void_p).value or 0
        label = f"{Path(library._path).name.split('.')[0]}.{declaration.name}"
        declared = [(p.kind, p.name, p.dtype, p.written) for p in declaration.parameters]
        self._core = _core.CFunction(label, address, declared, declaration.result)
        self._label = label
        self._places = {p.name: place for place, p in enumerate(declaration.parameters) if p.kind != "stream"}
        self._given = [name for name in self._places if name not in shapes]

    def __call__(
        self, *args: Any, stream: StreamLike | None = None, execution: str | None = None, **results: Any
    ) -> Any:
        """Call the C function; see the class."""
        return self._call(args, results, stream, execution, False)

    def _call(self, args: tuple[Any, ...], results: dict[str, Any], stream: Any, execution: Any, looks: bool) -> Any:
        if len(args) != len(self._given):
            raise TypeError(
                f"{self._label} takes {len(self._given)} arguments ({', '.join(self._given) or 'none'}), "
                f"{len(args)} were given"
            )
        if not self._shapes and not results:
            return self._core(args, {}, stream, execution, looks)
        unknown = results.keys() - self._shapes.keys()
        if unknown:
            raise TypeError(
                f"{self._label} has no keyword {', '.join(sorted(unknown))}; accepted: "
                f"{', '.join(['stream', 'execution', *self._shapes])}"
            )
        given = dict(zip(self._given, args, strict=True))
        shapes = {}
        for name, rule in self._shapes.items():
            given[name] = results.get(name)
            if given[name] is None:
                shapes[self._places[name]] = tuple(given[rule].shape) if isinstance(rule, str) else tuple(rule(*args))
        made = self._core(tuple(given[name] for name in self._places), shapes, stream, execution, looks)
        if looks or len(shapes) == len(self._shapes):
            return made
        new = iter((made,) if len(shapes) == 1 else made or ())
        both = tuple(next(new) if results.get(name) is None else results[name] for name in self._shapes)
        return both if len(both) > 1 else both[0]

    def returning(self, **shapes: ShapeRule) -> Function:
        """Return the same function with some of its arrays made by the call, and returned.

        Parameters
        ----------
        shapes : name of a parameter, or callable
            For each array to be made, by the name of its parameter: the parameter whose array has the same shape, or
            a function that is called with the arguments of the call and returns a shape. The parameters named here
            are no longer arguments, but optional keywords, for an array to write to instead.

        Returns
        -------
        Function
            It returns the array, or a tuple of several in the order of the parameters: of the library of the first
            array argument, allocated by that library.

        Raises
        ------
        ValueError
            There is no such parameter, it is no pointer that is written to, or one to ``void``; or the C function
            returns a value of its own.
        """
        if self._declaration.result not in ("", "status"):
            raise ValueError(f"{self._label}: returning: the C function returns a value, {self._declaration.text!r}")
        parameters = {p.name: p for p in self._declaration.parameters}
        written = [name for name, p in parameters.items() if p.written and p.dtype]
        arrays = [name for name, p in parameters.items() if p.kind in ("device", "host") and name not in shapes]
        for name, rule in shapes.items():
            if name not in written:
                raise ValueError(
                    f"{self._label}: returning: {name} is no pointer to elements that are written; "
                    f"accepted: {', '.join(written) or 'none'}"
                )
            if not callable(rule) and rule not in arrays:
                raise ValueError(
                    f"{self._label}: returning: the shape of {name} is {rule!r}; accepted: a function, "
                    f"or one of {', '.join(arrays) or 'no arrays'}"
                )
        ordered = {name: shapes[name] for name in parameters if name in shapes}
        return Function(self._library, self._declaration, self._symbol, ordered)

    @property
    def __signature__(self) -> inspect.Signature:
        kinds = inspect.Parameter
        parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in self._given]
        keywords = [*self._shapes, "stream", "execution"]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in keywords]
        return inspect.Signature(parameters)

    def __repr__(self) -> str:
        return f"<C function {self._label}: {self._declaration.text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (self._library, self.__name__, self._shapes)


def _function_again(library: Library, name: str, shapes: dict[str, ShapeRule]) -> Function:
    function: Function = getattr(library, name)
    return function.returning(**shapes) if shapes else function


# ---- declarations ----


class _Parameter(NamedTuple):
    kind: str  # "device", "host", "scalar", "stream"
    name: str
    dtype: str  # "" for void
    written: bool


class _Declaration(NamedTuple):
    text: str
    name: str
    result: str  # "" for void, "status" for cudaError_t, else a dtype
    parameters: list[_Parameter]


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
_SCALARS = {**_INTEGERS, "float": "float32", "double": "float64"}
_ELEMENTS = {
    **_SCALARS,
    "void": "",
    **dict.fromkeys(("half", "__half"), "float16"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), "bfloat16"),
    **dict.fromkeys(("cuComplex", "cuFloatComplex", "float _Complex"), "complex64"),
    **dict.fromkeys(("cuDoubleComplex", "double _Complex"), "complex128"),
}
_STREAMS = ("cudaStream_t", "CUstream")
_STATUSES = ("cudaError_t", "cudaError", "CUresult")
_QUALIFIERS = {"const", "restrict", "__restrict", "__restrict__"}


def _statements(declarations: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", declarations, flags=re.DOTALL)
    if found := re.search(r"^\s*#.*", text, re.MULTILINE):
        raise ValueError(
            f"interop.load: {found[0].strip()!r} is for the preprocessor; accepted: C declarations of functions"
        )
    *statements, rest = (" ".join(part.split()) for part in text.split(";"))
    if rest:
        raise ValueError(f"interop.load: {rest!r} has no ';' behind it")
    return [statement for statement in statements if statement]


def _parse(text: str, memory: Memory | None) -> _Declaration:
    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.load: {what}, in {text!r}")

    found = re.fullmatch(r'(?:extern (?:"C" ?)?)?(?P<result>[\w ]+) (?P<name>[A-Za-z_]\w*) ?\((?P<rest>[^()]*)\)', text)
    if found is None:
        raise refuse("a declaration is not understood; accepted: type name(type name, ...)")
    result = found["result"]
    if result == "void":
        returned = ""
    elif result in _STATUSES:
        returned = "status"
    elif result in _SCALARS:
        returned = _SCALARS[result]
    else:
        raise refuse(f"the result is {result}; accepted: void, cudaError_t, {', '.join(_SCALARS)}")

    rest = found["rest"].strip()
    parameters = [_parameter(part, memory, refuse) for part in rest.split(",") if rest not in ("", "void")]
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1 or (
            name in ("stream", "execution") and parameters[names.index(name)].kind != "stream"
        ):
            raise refuse(f"the parameter {name!r} has the name of another, or of a keyword of the call")
    if "stream" in [p.kind for p in parameters] and "device" not in [p.kind for p in parameters]:
        raise refuse("there is a stream, and no device pointer that would say which")
    return _Declaration(text, found["name"], returned, parameters)


def _parameter(part: str, memory: Memory | None, refuse: Callable[[str], ValueError]) -> _Parameter:
    left, star, right = part.partition("*")
    words, after = (left.split(), right.split()) if star else (left.split()[:-1], left.split()[-1:])
    if not words or not after or not all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in words + after):
        raise refuse(f"the parameter {part.strip()!r} is not understood; accepted: type name, or type* name")
    *qualifiers, name = after
    places = [word for word in words if word in ("device", "host")]
    type_name = " ".join(word for word in words if word not in ("const", "device", "host"))
    if not star:
        if type_name in _STREAMS and not places:
            return _Parameter("stream", name, "uint64", False)
        if type_name not in _SCALARS or places:
            accepted = ", ".join([*_SCALARS, *_STREAMS])
            raise refuse(f"the type of {name!r} is {' '.join(words)!r}; accepted: {accepted}, or a pointer")
        return _Parameter("scalar", name, _SCALARS[type_name], False)
    if type_name not in _ELEMENTS or set(qualifiers) - _QUALIFIERS:
        raise refuse(f"the elements of {name!r} are {' '.join(words + qualifiers)!r}; accepted: {', '.join(_ELEMENTS)}")
    kind = places[0] if places else memory
    if kind is None or len(places) > 1:
        raise refuse(f"the pointer {name!r} says not once 'device' or 'host' before its type, nor does memory=")
    return _Parameter(kind, name, _ELEMENTS[type_name], "const" not in words)
