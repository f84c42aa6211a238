"""Functions of C and C++ in shared libraries, called with the arrays of any library."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from interop import _core
from interop._arguments import named
from interop._functions.array_function import ArrayFunction, ShapeRule
from interop._functions.cxx_names import CxxNames
from interop._functions.declarations import (
    ELEMENTS,
    QUALIFIERS,
    SCALARS,
    Parameter,
    in_symbols,
    parts_of,
    without_comments,
    without_std,
)
from interop._functions.reads import checked, described, names_by_function, with_reads
from interop._functions.shared_library import SharedLibrary
from interop._streams import StreamLike

__all__ = ["Function", "Library", "load"]

Memory = Literal["device", "host"]
Streams = Literal["default", "own"]


@named("interop.load")
def load(
    path: str | os.PathLike[str],
    declarations: str,
    /,
    *,
    memory: Memory | None = None,
    streams: Streams = "default",
    reads: Mapping[str, Sequence[str]] | None = None,
    needs_gpu: bool = False,
) -> Library:
    """Load a shared library, and make its functions of C and C++ callable with arrays of any library.

    Parameters
    ----------
    path : str or path
        The library's file: a path object, or a string with a slash. A string without one is a name that the system's
        loader looks for.
    declarations : str
        The declarations of the functions that are to be called, as in the library's header, without the
        preprocessor's lines; those of C++ with their namespaces, as in ``int pipcudemo::add(int, int);``. Each pointer
        has a word before it that the header lacks: ``device`` for memory that the GPU uses, ``host`` for memory that
        the CPU uses. A pointer that is not to ``const`` is written to. A parameter without a name is called ``arg0``,
        ``arg1``, ..., by its place.
    memory : "device" or "host", optional
        The memory of all pointers without either word.
    streams : "default" or "own", optional
        Where functions with ``device`` pointers and no ``cudaStream_t`` put their work on the GPU. "default": on CUDA's
        default streams (legacy or per thread), or on streams of ``cudaStreamCreate``; the call's stream and they wait
        for each other. "own": on streams that do not wait for the default one (``cudaStreamNonBlocking``); the host
        waits for the call's stream before the function runs, and the function's work must be done when it returns.
    reads : mapping, optional
        By the name of a function, the names of its pointers without ``const`` that it only reads, as if they had it:
        ``{"sum": ("a", "b")}``. Read-only arrays and those of JAX are accepted for them, and ``execution="cuda"``
        copies nothing back.
    needs_gpu : bool, optional
        Look for a usable driver and a GPU before the first call of a function, and raise a CudaError where there is
        none: for a library that calls ``exit()`` then, which would end the process.

    Returns
    -------
    Library
        With one `Function` for each declaration, as an attribute.

    Raises
    ------
    ValueError
        A declaration is not understood: the message quotes it. An option or the path is none. A name in `reads` is
        none of the functions or parameters, no pointer, or one to ``const`` already.
    TypeError
        An argument is of another type.
    OSError
        The library cannot be loaded, in the loader's own words; or its file was overwritten after it had been loaded.
    AttributeError
        The library itself has no such function, whatever other libraries have: the message says why, as far as the
        file shows it, and lists the functions of C++ of the same name. Or it is a member of a class.
    CudaError
        In a call: the C function returns one; or there is no usable GPU, and `needs_gpu` says that there must be one.

    Notes
    -----
    Types are the C integers (``int``, ``size_t``, ``int64_t``, ...), ``bool``, ``float`` and ``double``; for elements
    of arrays also ``__half``, ``__nv_bfloat16``, ``cuComplex``, ``cuDoubleComplex`` and ``void``, which is any.
    A parameter of type ``cudaStream_t`` is given the call's stream, and stands nowhere in the call from Python. A
    returned ``cudaError_t`` that is not 0 is raised as `interop.CudaError`.

    What `reads` says is believed: a function that writes to such an array changes what its library takes to be
    unchanged. Where the environment has ``INTEROP_CHECKED=1`` as the library is loaded, each call copies these arrays
    before it and after, those of a GPU to the host, for which it waits, and is a ValueError where one has changed; a
    call in a capture is a ValueError then, too.

    A function of C++ is found by its namespaces and the types of its parameters, without their typedefs; its result is
    believed, and so is that it is no member of a class, where no symbol shows it. A C function of the same name goes
    first. `Library` says how overloads are told apart.

    A function without a ``cudaStream_t`` cannot be captured into a CUDA graph: that is a ValueError. A library stays
    loaded until the process ends. One that was built anew at its path, as a new file, is loaded beside the old one.

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
            raise TypeError(f"interop.load: {name} is {type(x).__name__}; accepted: {accepted}")
    _check_option("memory", memory, (None, "device", "host"))
    _check_option("streams", streams, ("default", "own"))
    if not isinstance(needs_gpu, bool):
        raise TypeError(f"interop.load: needs_gpu is {type(needs_gpu).__name__}; accepted: True or False")
    parsed = [_parse(text, memory) for text in _statements(declarations)]
    if not parsed:
        raise ValueError("interop.load: declarations has none; accepted: at least one C declaration")
    names = names_by_function(reads, [declaration.name for declaration in parsed])
    parsed = [_with_reads(declaration, names.get(declaration.name, ())) for declaration in parsed]
    library = SharedLibrary(path)
    return Library(library, (library.path, declarations, memory, streams, names, needs_gpu), parsed)


def _with_reads(declaration: _Declaration, reads: Sequence[str]) -> _Declaration:
    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.load: {what}, in {declaration.text!r}")

    return declaration._replace(parameters=with_reads(declaration.parameters, reads, refuse))


def _check_option(name: str, x: object, known: tuple[str | None, ...]) -> None:
    accepted = ", ".join(map(repr, known))
    if not (x is None or isinstance(x, str)):
        raise TypeError(f"interop.load: {name} is {type(x).__name__}; accepted: {accepted}")
    if x not in known:
        raise ValueError(f"interop.load: {name} is {x!r}; accepted: {accepted}")


class Library:
    """The declared functions of a shared library, each a `Function`. `interop.load` makes it.

    They are attributes, by their names without namespaces: ``lib.add``. Where several were declared by one name,
    ``lib["pipcudemo::add"]`` or ``lib["add(int, const float*)"]`` says which, by its namespaces, or the types of its
    parameters, or both.
    """

    def __init__(self, library: SharedLibrary, made_of: _MadeOf, parsed: list[_Declaration]) -> None:
        self._library, self._made_of = library, made_of
        self._functions: dict[str, Function] = {}  # by their names and types
        self._by_name: dict[str, list[str]] = {}  # those, by their names without namespaces
        names = CxxNames(library.file)
        different = {declaration.function for declaration in parsed}
        for declaration in parsed:
            if declaration.function in self._functions:
                continue  # declared again, as C and C++ allow
            is_overloaded = len({x for x in different if x.partition("(")[0] == declaration.name}) > 1
            address = _address_of(library, names, declaration, is_overloaded)
            self._functions[declaration.function] = Function(self, declaration, address, {})
            self._by_name.setdefault(declaration.plain_name, []).append(declaration.function)

    def __getattr__(self, name: str) -> Function:
        found = self.__dict__.get("_by_name", {}).get(name, ())
        if len(found) != 1:
            raise AttributeError(self._refuse_name(name, found))
        return self._functions[found[0]]

    def __getitem__(self, name: str) -> Function:
        if not isinstance(name, str):
            raise TypeError(f"{self!r}: the name of a function is {type(name).__name__}; accepted: a string")
        plain, parenthesis, rest = name.partition("(")
        plain = plain.strip().removeprefix("::")
        types = self._types_of(name, rest.strip().removesuffix(")")) if parenthesis else ""
        found = [
            function
            for function in self._functions
            if f"::{function.partition('(')[0]}".endswith(f"::{plain}") and function.endswith(types)
        ]
        if plain in (exact := [function.partition("(")[0] for function in found]):  # f, beside n::f
            found = [function for function, its_name in zip(found, exact, strict=True) if its_name == plain]
        if len(found) != 1:
            raise KeyError(self._refuse_name(name, found))
        return self._functions[found[0]]

    def _types_of(self, name: str, parameters: str) -> str:
        def refuse(what: str) -> ValueError:
            return ValueError(f"{self!r}[{name!r}]: {what}")

        _, types = _parameters(without_std(parameters), "host", refuse)
        return f"({', '.join(types)})"

    def _refuse_name(self, name: str, found: Sequence[str]) -> str:
        if found:
            choices = ", ".join(f'lib["{function}"]' for function in found)
            return f"{self!r} has {len(found)} declared functions {name!r}; accepted: {choices}"
        functions = self.__dict__.get("_functions", {})
        declared = ", ".join(dict.fromkeys(function._declaration.name for function in functions.values()))
        return f"{self!r} has no declared function {name!r}; declared: {declared}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._by_name]

    def __repr__(self) -> str:
        return f"interop.load({self._library.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, self._made_of


def _address_of(library: SharedLibrary, names: CxxNames, declaration: _Declaration, is_overloaded: bool) -> int:
    """Return the address of a function of C, else of C++.

    `is_overloaded`: there are others of its name, so that it is of C only if it says so.
    """
    name, types, not_of_c = declaration.name, declaration.types, None
    label = f"interop.load: {library.path!r} has no function"
    if declaration.is_c or not (is_overloaded or "::" in name):
        try:
            if address := library.address_of(name):
                return address
        except AttributeError as error:
            not_of_c = error
    if not declaration.is_c:
        try:
            symbol = names.symbol_of(name, types)
        except AttributeError as error:
            raise AttributeError(f"interop.load: {library.path!r}: {error}, in {declaration.text!r}") from None
        if symbol and (address := library.address_of(symbol)):
            return address
    if not_of_c:
        raise not_of_c
    shown = name if declaration.is_c else declaration.function
    why = names.why_not(name, types, declaration.is_c)
    raise AttributeError(f"{label} {shown!r}: {why}, in {declaration.text!r}")


#: What `load` was given: the path, the declarations, memory, streams, reads and needs_gpu.
_MadeOf = tuple[str, str, Memory | None, Streams, dict[str, tuple[str, ...]], bool]


def _load_again(
    path: str,
    declarations: str,
    memory: Memory | None,
    streams: Streams,
    reads: dict[str, tuple[str, ...]],
    needs_gpu: bool,
) -> Library:
    return load(path, declarations, memory=memory, streams=streams, reads=reads, needs_gpu=needs_gpu)


class Function(ArrayFunction):
    """A function of C or C++ in a `Library`, called with arrays of any library.

    The call takes one argument for each parameter but the stream, in the declared order or by name; and, if there is a
    ``device`` pointer, the keywords ``stream`` and ``execution``, as in `interop.matmul`. Pointers take C-contiguous
    arrays of exactly the declared dtype, on a GPU or on the host as declared; nothing is copied, unless
    ``execution="cuda"`` has host arrays computed on the GPU. The
    arrays are ordered on the call's stream and kept alive as in any call of this package; a C function that is given no
    stream is ordered with it, as `interop.load` says. Host memory is the C function's until it returns. The GIL is
    released.

    It returns what the C function does, None for ``void``; or, after `returning`, arrays.
    """

    def __init__(self, library: Library, declaration: _Declaration, address: int, shapes: dict[str, ShapeRule]) -> None:
        path, _, _, streams, all_reads, needs_gpu = library._made_of
        reads = all_reads.get(declaration.name, ())
        label = f"{Path(path).name.split('.')[0]}.{declaration.name}"
        value = "" if declaration.result in ("", "status") else declaration.text
        keywords = ("stream", "execution") if any(p.kind == "device" for p in declaration.parameters) else ()
        super().__init__(label, declaration.parameters, ("device", "host"), keywords, shapes, value, reads)
        self._library, self._declaration, self._address = library, declaration, address
        self.__name__ = self.__qualname__ = declaration.plain_name
        self.__doc__ = described(declaration.text, reads)
        declared = [(p.kind, p.name, p.dtype, p.written) for p in declaration.parameters]
        compared = checked(declaration.parameters, reads)
        self._calls = _core.CFunction(
            label, address, declared, declaration.result, streams == "own", compared, needs_gpu
        )

    def __call__(
        self, /, *args: Any, stream: StreamLike | None = None, execution: str | None = None, **named: Any
    ) -> Any:
        """Call the C function; see the class."""
        if self._is_direct and not named and len(args) == self._count:
            return self._calls.call(args, self._like, _NONE, stream, execution, False)
        return self._call(args, named, stream, execution, False)

    def _call(self, args: tuple[Any, ...], named: dict[str, Any], stream: Any, execution: Any, looks: bool) -> Any:
        def core(args: tuple[Any, ...], shapes: dict[int, Any], given: dict[int, Any]) -> Any:
            return self._calls.call(args, shapes, given, stream, execution, looks)

        return self._run(core, *self._bind(args, named), looks)

    def _with(self, shapes: dict[str, ShapeRule]) -> Function:
        return Function(self._library, self._declaration, self._address, shapes)

    def __repr__(self) -> str:
        return f"<C function {self._label}: {self.__doc__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (self._library, self._declaration.function, self._shapes)


def _function_again(library: Library, name: str, shapes: dict[str, ShapeRule]) -> Function:
    function = library[name]
    return function.returning(**shapes) if shapes else function


_NONE: dict[int, Any] = {}  # of the results none is given


# ---- declarations ----


class _Declaration(NamedTuple):
    text: str
    name: str  # with its namespaces
    result: str  # "" for void, "status" for cudaError_t, else a dtype
    parameters: list[Parameter]
    types: list[str]  # of the parameters, as the symbols of C++ have them
    is_c: bool  # extern "C"

    @property
    def plain_name(self) -> str:
        return self.name.rpartition("::")[2]

    @property
    def function(self) -> str:
        """The name and the types: what C++ tells functions apart by."""
        return f"{self.name}({', '.join(self.types)})"


_STREAMS = ("cudaStream_t", "CUstream")
_STATUSES = ("cudaError_t", "cudaError", "CUresult")


def _statements(declarations: str) -> list[str]:
    text = without_comments(declarations)
    if found := re.search(r"^\s*#.*", text, re.MULTILINE):
        raise ValueError(
            f"interop.load: {found[0].strip()!r} is for the preprocessor; accepted: C declarations of functions"
        )
    if re.search(r'extern\s*"C"\s*\{', text):
        raise ValueError(
            'interop.load: declarations has a block extern "C" { ... }, which is not read; accepted: the declarations '
            'in it, each as it is or with extern "C" before it'
        )
    *statements, rest = (" ".join(part.split()) for part in text.split(";"))
    if rest:
        raise ValueError(f"interop.load: {rest!r} has no ';' behind it; accepted: C declarations, each with one")
    return [statement for statement in statements if statement]


_DECLARATION = re.compile(
    r'(?P<extern>extern (?:"C" ?)?)?(?:inline )?(?P<result>[\w ]+) (?:::)?'
    r"(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*) ?\((?P<rest>[^()]*)\)(?: ?noexcept)?"
)


def _parse(text: str, memory: Memory | None) -> _Declaration:
    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.load: {what}, in {text!r}")

    if text.startswith("static "):
        raise refuse("a static function has no symbol outside its file; accepted: one that is not static")
    found = _DECLARATION.fullmatch(without_std(text))
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

    parameters, types = _parameters(found["rest"], memory, refuse)
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1 or (
            name in ("stream", "execution") and parameters[names.index(name)].kind != "stream"
        ):
            raise refuse(f"the parameter {name!r} has the name of another, or of a keyword of the call")
    if "stream" in [p.kind for p in parameters] and "device" not in [p.kind for p in parameters]:
        raise refuse("there is a stream, and no device pointer that would say which")
    is_c = '"C"' in (found["extern"] or "")
    if is_c and "::" in found["name"]:
        raise refuse(f'{found["name"]!r} is extern "C": its symbol has no namespace; accepted: its name without it')
    return _Declaration(text, found["name"], returned, parameters, types, is_c)


def _parameters(
    text: str, memory: Memory | None, refuse: Callable[[str], ValueError]
) -> tuple[list[Parameter], list[str]]:
    """Return the parameters, and their types as the symbols of C++ have them."""
    parts = [] if text.strip() in ("", "void") else text.split(",")
    both = [_parameter(part, f"arg{place}", memory, refuse) for place, part in enumerate(parts)]
    return [parameter for parameter, _ in both], [type_name for _, type_name in both]


def _parameter(
    part: str, unnamed: str, memory: Memory | None, refuse: Callable[[str], ValueError]
) -> tuple[Parameter, str]:
    words, is_pointer, qualifiers, name = parts_of(part, refuse, unnamed)
    places = [word for word in words if word in ("device", "host")]
    type_name = " ".join(word for word in words if word not in ("const", "device", "host"))
    if not is_pointer:
        if type_name in _STREAMS and not places:
            return Parameter("stream", name, "uint64", False), in_symbols(type_name)
        if type_name not in SCALARS or places:
            accepted = ", ".join([*SCALARS, *_STREAMS])
            raise refuse(f"the type of {name!r} is {' '.join(words)!r}; accepted: {accepted}, or a pointer")
        return Parameter("scalar", name, SCALARS[type_name], False), in_symbols(type_name)
    if type_name not in ELEMENTS or set(qualifiers) - QUALIFIERS:
        raise refuse(f"the elements of {name!r} are {' '.join(words + qualifiers)!r}; accepted: {', '.join(ELEMENTS)}")
    kind = places[0] if places else memory
    if kind is None or len(places) > 1:
        raise refuse(f"the pointer {name!r} says not once 'device' or 'host' before its type, nor does memory=")
    pointer = f"{in_symbols(type_name)}{' const' if 'const' in words else ''}*"
    return Parameter(kind, name, ELEMENTS[type_name], "const" not in words), pointer
