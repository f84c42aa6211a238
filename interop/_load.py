"""C functions of shared libraries, called with the arrays of any library."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from interop import _core
from interop._arguments import named
from interop._array_function import ArrayFunction, ShapeRule
from interop._declarations import ELEMENTS, QUALIFIERS, SCALARS, Parameter, parts_of, without_comments
from interop._matmul import StreamLike

__all__ = ["Function", "Library", "load"]

Memory = Literal["device", "host"]


@named("interop.load")
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
    for name, x, kinds in (("path", path, str | os.PathLike), ("declarations", declarations, str)):
        if not isinstance(x, kinds):
            accepted = "a string" if kinds is str else "a string, or a path"
            raise TypeError(f"interop.load: {name} is {x!r} ({type(x).__name__}); accepted: {accepted}")
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


class Function(ArrayFunction):
    """A C function of a `Library`, called with arrays of any library.

    The call takes one argument for each parameter but the stream, in the declared order, and the keywords ``stream``
    and ``execution``, as in `interop.matmul`. Pointers take C-contiguous arrays of exactly the declared dtype, on a GPU
    or on the host as declared; nothing is copied, unless ``execution="cuda"`` has host arrays computed on the GPU. The
    arrays are ordered on the call's stream and kept alive as in any call of this package. The GIL is released.

    It returns what the C function does, None for ``void``; or, after `returning`, arrays.
    """

    def __init__(self, library: Library, declaration: _Declaration, symbol: Any, shapes: dict[str, ShapeRule]) -> None:
        label = f"{Path(library._path).name.split('.')[0]}.{declaration.name}"
        value = "" if declaration.result in ("", "status") else declaration.text
        super().__init__(label, declaration.parameters, ("device", "host"), ("stream", "execution"), shapes, value)
        self._library, self._declaration, self._symbol = library, declaration, symbol
        self.__name__ = self.__qualname__ = declaration.name
        self.__doc__ = declaration.text
        address = ctypes.cast(symbol, ctypes.c_void_p).value or 0
        declared = [(p.kind, p.name, p.dtype, p.written) for p in declaration.parameters]
        self._core = _core.CFunction(label, address, declared, declaration.result)

    def __call__(
        self, *args: Any, stream: StreamLike | None = None, execution: str | None = None, **results: Any
    ) -> Any:
        """Call the C function; see the class."""
        if self._is_direct and not results and len(args) == self._count:
            return self._core(args, self._like, stream, execution, False)
        return self._call(args, results, stream, execution, False)

    def _call(self, args: tuple[Any, ...], results: dict[str, Any], stream: Any, execution: Any, looks: bool) -> Any:
        return self._run(
            lambda given, shapes: self._core(given, shapes, stream, execution, looks), args, results, looks
        )

    def _with(self, shapes: dict[str, ShapeRule]) -> Function:
        return Function(self._library, self._declaration, self._symbol, shapes)

    def __repr__(self) -> str:
        return f"<C function {self._label}: {self._declaration.text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (self._library, self.__name__, self._shapes)


def _function_again(library: Library, name: str, shapes: dict[str, ShapeRule]) -> Function:
    function: Function = getattr(library, name)
    return function.returning(**shapes) if shapes else function


# ---- declarations ----


class _Declaration(NamedTuple):
    text: str
    name: str
    result: str  # "" for void, "status" for cudaError_t, else a dtype
    parameters: list[Parameter]


_STREAMS = ("cudaStream_t", "CUstream")
_STATUSES = ("cudaError_t", "cudaError", "CUresult")


def _statements(declarations: str) -> list[str]:
    text = without_comments(declarations)
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
    elif result in SCALARS:
        returned = SCALARS[result]
    else:
        raise refuse(f"the result is {result}; accepted: void, cudaError_t, {', '.join(SCALARS)}")

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


def _parameter(part: str, memory: Memory | None, refuse: Callable[[str], ValueError]) -> Parameter:
    words, is_pointer, qualifiers, name = parts_of(part, refuse)
    places = [word for word in words if word in ("device", "host")]
    type_name = " ".join(word for word in words if word not in ("const", "device", "host"))
    if not is_pointer:
        if type_name in _STREAMS and not places:
            return Parameter("stream", name, "uint64", False)
        if type_name not in SCALARS or places:
            accepted = ", ".join([*SCALARS, *_STREAMS])
            raise refuse(f"the type of {name!r} is {' '.join(words)!r}; accepted: {accepted}, or a pointer")
        return Parameter("scalar", name, SCALARS[type_name], False)
    if type_name not in ELEMENTS or set(qualifiers) - QUALIFIERS:
        raise refuse(f"the elements of {name!r} are {' '.join(words + qualifiers)!r}; accepted: {', '.join(ELEMENTS)}")
    kind = places[0] if places else memory
    if kind is None or len(places) > 1:
        raise refuse(f"the pointer {name!r} says not once 'device' or 'host' before its type, nor does memory=")
    return Parameter(kind, name, ELEMENTS[type_name], "const" not in words)
