"""Functions of C and C++ in shared libraries, called with the arrays of any library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from interop import _core
from interop._arguments import named
from interop._functions.array_function import ArrayFunction, ShapeRule
from interop._functions.c_types import Names, Resolved, without_std
from interop._functions.cxx_names import CxxNames, address_of
from interop._functions.declarations import functions_in, parameters_in
from interop._functions.identity import Identity
from interop._functions.opaque import Opaque, WithPointers, pointers_of
from interop._functions.parameters import (
    Declaration,
    Header,
    RefusedError,
    Rules,
    Stated,
    declaration_of,
    parameter_of,
    returned_of,
)
from interop._functions.reads import checked, described, names_by_function, names_of, places_of, with_reads
from interop._functions.shared_library import SharedLibrary
from interop._streams import StreamLike
from interop._traced import call_by_operator, traced_by, traced_call

__all__ = ["Function", "Library", "Opaque", "load"]

Memory = Literal["device", "host"]
Streams = Literal["default", "own"]


@named("interop.load")
def load(
    path: str | os.PathLike[str],
    declarations: str | None = None,
    /,
    *,
    header: str | os.PathLike[str] | None = None,
    include_path: Sequence[str | os.PathLike[str]] = (),
    memory: Memory | None = None,
    host: Mapping[str, Sequence[str]] | None = None,
    device: Mapping[str, Sequence[str]] | None = None,
    streams: Streams = "default",
    reads: Mapping[str, Sequence[str]] | None = None,
    status: Mapping[str, int] | None = None,
    needs_gpu: bool = False,
    graph_safe: Sequence[str] = (),
) -> Library:
    """Load a shared library, and make its functions of C and C++ callable with arrays of any library.

    Parameters
    ----------
    path : str or path
        The library's file: a path object, or a string with a slash. A string without one is a name that the system's
        loader looks for.
    declarations : str, optional
        The declarations of the functions that are to be called, as in the library's header, without the
        preprocessor's lines; those of C++ with their namespaces, as in ``int pipcudemo::add(int, int);``. Each pointer
        has a word before it that the header lacks: ``device`` for memory that the GPU uses, ``host`` for memory that
        the CPU uses. A pointer that is not to ``const`` is written to. A parameter without a name is called ``arg0``,
        ``arg1``, ..., by its place. Enums, structs and typedefs may stand before the functions that need them.
    header : str or path, optional
        A header, whose functions are declared as they stand in it; those of the files that it includes are not, but
        their types are known. What cannot be called is in `Library.refused`. It needs the extra ``[headers]``. If
        `declarations` are given, too, they may use the header's types, and go before its functions of the same name
        and parameters.
    include_path : sequence of paths, optional
        Where files that the header includes are looked for, before its own folder. One that is not found is left out.
    memory : "device" or "host", optional
        The memory of all pointers of which neither a word, nor `host` nor `device` says it.
    host : mapping, optional
        By the name of a function, with its namespaces, the names of its pointers to memory of the CPU:
        ``{"scale": ("alpha",)}``.
    device : mapping, optional
        The same for memory of the GPU.
    streams : "default" or "own", optional
        Where functions with ``device`` pointers and no ``cudaStream_t`` put their work on the GPU. "default": on CUDA's
        default streams (legacy or per thread), or on streams of ``cudaStreamCreate``; the call's stream and they wait
        for each other. "own": on streams that do not wait for the default one (``cudaStreamNonBlocking``); the host
        waits for the call's stream before the function runs, and the function's work must be done when it returns.
    reads : mapping, optional
        By the name of a function, the names of its pointers without ``const`` that it only reads, as if they had it:
        ``{"sum": ("a", "b")}``. Read-only arrays and those of JAX are accepted for them, and ``execution="cuda"``
        copies nothing back.
    status : mapping, optional
        By the name of a type, its value of success: ``{"my_status": 0}``. A result of this type is a status: another
        value is raised, and success returns None. ``cublasStatus_t`` is one as it is.
    needs_gpu : bool, optional
        Look for a usable driver and a GPU before the first call of a function, and raise a CudaError where there is
        none: for a library that calls ``exit()`` then, which would end the process.
    graph_safe : tuple or list of str, optional
        The names of functions with a ``cudaStream_t`` that do nothing but queue work on it, the same in each call with
        the same arguments. XLA may record calls of these inside `jax.jit` into a CUDA graph, and replay that.

    Returns
    -------
    Library
        With one `Function` for each declaration that can be called, as an attribute.

    Raises
    ------
    ValueError
        A declaration is not understood: the message quotes it. An option or the path is none. A name in `reads`,
        `host` or `device` is none of the functions or parameters, or no such pointer; one in `status` is no result, and
        one in `graph_safe` no function with a stream.
        The header declares no function, or its preprocessor's lines are not understood: the message has its line.
    TypeError
        An argument is of another type.
    ImportError
        A header is given, and cxxheaderparser or pcpp, which read it, cannot be imported.
    OSError
        The header cannot be read. The library cannot be loaded, in the loader's own words; or its file was
        overwritten after it had been loaded.
    AttributeError
        The library itself has no such function, whatever other libraries have: the message says why, as far as the
        file shows it, and lists the functions of C++ of the same name. Or it is a member of a class. Of a header's
        functions this is no error, but stands in `Library.refused`.
    CudaError
        In a call: the C function returns one, or a ``cublasStatus_t``; or there is no usable GPU, and `needs_gpu` says
        that there must be one.
    RuntimeError
        In a call: the C function returns a status of `status` that is not success.

    Notes
    -----
    Types are the C integers (``int``, ``size_t``, ``int64_t``, ...), ``bool``, ``float`` and ``double``; for elements
    of arrays also ``__half``, ``__nv_bfloat16``, ``cuComplex``, ``cuDoubleComplex`` and ``void``, which is any.
    An enum is an integer of the size that its values need; a ``const char*`` takes and returns str, or bytes that are
    no UTF-8, and is not freed; a pointer to a struct, or to ``void`` of which no memory is said, is an
    `interop.Opaque`. A null pointer is returned as None, and never passed.
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
    for name, x, kinds in (("path", path, str | os.PathLike), ("header", header, str | os.PathLike | None)):
        if not isinstance(x, kinds):
            raise TypeError(f"interop.load: {name} is {type(x).__name__}; accepted: a string, or a path")
    if not isinstance(declarations, str | None):
        raise TypeError(f"interop.load: declarations is {type(declarations).__name__}; accepted: a string")
    _check_option("memory", memory, (None, "device", "host"))
    _check_option("streams", streams, ("default", "own"))
    if not isinstance(needs_gpu, bool):
        raise TypeError(f"interop.load: needs_gpu is {type(needs_gpu).__name__}; accepted: True or False")
    is_sequence = isinstance(include_path, Sequence) and not isinstance(include_path, str)
    if not is_sequence or not all(isinstance(x, str | os.PathLike) for x in include_path):
        raise TypeError("interop.load: include_path is no list of folders; accepted: a list or tuple of paths")
    safe = names_of("interop.load: graph_safe", graph_safe)
    names = Names()
    of_header = Header([], {})
    if header is not None:
        from interop._functions.headers import read_header

        of_header = read_header(header, include_path, names)
    of_text = functions_in(declarations, names) if declarations is not None else []
    if not of_text and header is None:
        raise ValueError("interop.load: declarations has none; accepted: at least one C declaration, or header=")
    stated = [*of_text, *of_header.functions]
    known = [x.name for x in stated] + list(of_header.refused)
    options = {"host": host, "device": device, "reads": reads}
    by_name = {option: names_by_function(x, known, option) for option, x in options.items()}
    results = [names.resolve(x.result, x.scope) for x in stated]
    places = places_of(by_name["host"], by_name["device"], stated)
    rules = Rules(names, memory, places, _statuses(status, results), returned_of(results))
    made_of = _MadeOf(
        os.fspath(path),
        declarations,
        None if header is None else str(Path(header).absolute()),
        tuple(str(Path(folder).absolute()) for folder in include_path),
        memory,
        by_name["host"],
        by_name["device"],
        streams,
        by_name["reads"],
        dict(rules.statuses),
        needs_gpu,
        safe,
    )
    declared, refused = _decided(of_text, of_header, rules, made_of)
    _check_graph_safe(safe, declared)
    library = SharedLibrary(path)
    return Library(library, made_of._replace(path=library.path), rules, declared, refused)


def _decided(
    of_text: list[Stated], of_header: Header, rules: Rules, made_of: _MadeOf
) -> tuple[list[Declaration], dict[str, str]]:
    """Return the functions as they are called, and why others of the header are not."""
    in_c = {x.name for x in of_text if x.is_c or [y.name for y in of_text].count(x.name) == 1}
    stated = [*of_text, *(x for x in of_header.functions if not (x.is_c and x.name in in_c))]
    declared: dict[str, Declaration] = {}
    refused = dict(of_header.refused)
    for x in stated:
        try:
            made = declaration_of(x, rules)
        except RefusedError as refusal:
            if not x.place:  # of the text
                raise ValueError(str(refusal)) from None
            _refuse(refused, x.name, str(refusal))
            continue
        declared.setdefault(made.function, made)  # the text goes first, and C and C++ allow to say it again
    for name in {*rules.places, *made_of.reads}:
        if name in refused and name not in [made.name for made in declared.values()]:
            raise ValueError(refused[name])
    for name in [made.name for made in declared.values() if not made.stated.place]:
        refused.pop(name, None)
    return [_with_reads(made, made_of.reads.get(made.name, ())) for made in declared.values()], refused


def _refuse(refused: dict[str, str], name: str, why: str) -> None:
    """Keep the reason, beside that of another function of this name."""
    why = why.removeprefix("interop.load: ")
    refused[name] = f"{refused[name]}; and {why}" if name in refused else why


def _statuses(status: object, results: Sequence[Resolved]) -> dict[str, int]:
    if status is None:
        return {}
    example = "a mapping of types to their values of success, such as {'my_status': 0}"
    if not isinstance(status, Mapping):
        raise TypeError(f"interop.load: status is {type(status).__name__}; accepted: {example}")
    known = dict.fromkeys(alias for result in results for alias in result.aliases)
    for name, success in status.items():
        if not isinstance(success, int) or isinstance(success, bool):
            raise TypeError(
                f"interop.load: status[{name!r}] is {type(success).__name__}; accepted: an int, as in {example}"
            )
        if name not in known:
            raise ValueError(
                f"interop.load: status: no declared function returns {name!r}; accepted: {', '.join(known) or 'none'}"
            )
    return dict(status)


def _with_reads(declaration: Declaration, reads: Sequence[str]) -> Declaration:
    def refuse(what: str) -> ValueError:
        return ValueError(str(declaration.stated.refuse(what)))

    return declaration._replace(parameters=with_reads(declaration.parameters, reads, refuse))


def _check_graph_safe(names: Sequence[str], declared: Sequence[Declaration]) -> None:
    """Raise ValueError unless these functions queue work on a stream that is given to them."""
    accepted = dict.fromkeys(x.name for x in declared if any(p.kind == "stream" for p in x.parameters))
    for name in names:
        if name not in accepted:
            raise ValueError(
                f"interop.load: graph_safe: {name!r} is no function with a cudaStream_t; accepted: "
                f"{', '.join(accepted) or 'none'}"
            )


def _check_option(name: str, x: object, known: tuple[str | None, ...]) -> None:
    accepted = ", ".join(map(repr, known))
    if not (x is None or isinstance(x, str)):
        raise TypeError(f"interop.load: {name} is {type(x).__name__}; accepted: {accepted}")
    if x not in known:
        raise ValueError(f"interop.load: {name} is {x!r}; accepted: {accepted}")


class Library:
    """The declared functions of a shared library, each a `Function`. `interop.load` makes it.

    They are attributes, by their names without namespaces: ``lib.add``. One that is called ``refused``, as an attribute
    of this class, is ``lib["refused"]``. Where several were declared by one name,
    ``lib["pipcudemo::add"]`` or ``lib["add(int, const float*)"]`` says which, by its namespaces, or the types of its
    parameters, or both.
    """

    def __init__(
        self,
        library: SharedLibrary,
        made_of: _MadeOf,
        rules: Rules,
        declared: list[Declaration],
        refused: dict[str, str],
    ) -> None:
        self._library, self._made_of, self._rules = library, made_of, rules
        self._functions: dict[str, Function] = {}  # by their names and types
        self._by_name: dict[str, list[str]] = {}  # those, by their names without namespaces
        self._refused = dict(refused)
        names = CxxNames(library.file)
        self._version = library.version
        different = [declaration.name for declaration in declared]
        of_text = [declaration.name for declaration in declared if not declaration.stated.place]
        for declaration in declared:
            others = different if declaration.stated.place else of_text
            try:
                address = address_of(library, names, declaration, others.count(declaration.name) > 1)
                function = Function(self, declaration, address, {})
            except (AttributeError, ValueError) as error:  # the latter, of more parameters than are passed
                if declaration.stated.place and declaration.name in of_text:
                    continue  # it is called as the text has it
                is_of_option = isinstance(error, ValueError) and declaration.name in made_of.reads
                if not declaration.stated.place or is_of_option:
                    raise
                where = "" if isinstance(error, AttributeError) else f", {declaration.stated.where}"
                why = str(error).replace(f"interop.load: {library.path!r}", "the library", 1)  # whose path users know
                _refuse(self._refused, declaration.name, f"{why.removeprefix('the library: ')}{where}")
                continue
            self._functions[declaration.function] = function
            self._by_name.setdefault(declaration.plain_name, []).append(declaration.function)

    @property
    def refused(self) -> Mapping[str, str]:
        """Why functions that the header declares cannot be called, by their names with namespaces."""
        return MappingProxyType(self._refused)

    def __getattr__(self, name: str) -> Function:
        found = self.__dict__.get("_by_name", {}).get(name, ())
        if len(found) != 1:
            raise AttributeError(self._refuse_name(name, found))
        return self._functions[found[0]]

    def __getitem__(self, name: str) -> Function:
        if not isinstance(name, str):
            raise TypeError(f"{self!r}: the name of a function is {type(name).__name__}; accepted: a string")
        if name in self._functions:  # as messages and pickles have it, with the names of types in symbols
            return self._functions[name]
        plain, parenthesis, rest = name.partition("(")
        plain = plain.strip().removeprefix("::")
        types = self._types_of(name, plain, rest.strip().removesuffix(")")) if parenthesis else ""
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

    def _types_of(self, name: str, plain: str, parameters: str) -> str:
        def refuse(what: str) -> ValueError:
            return ValueError(f"{self!r}[{name!r}]: {what}")

        rules, types = self._rules._replace(memory="host", places={}), []
        for declared in parameters_in(without_std(parameters), refuse):
            found = rules.names.resolve(declared.type, plain.split("::")[:-1])
            parameter_of(declared, found, plain, rules, refuse)
            types.append(found.symbol)
        return f"({', '.join(types)})"

    def _refuse_name(self, name: str, found: Sequence[str]) -> str:
        if found:
            choices = ", ".join(f'lib["{function}"]' for function in found)
            return f"{self!r} has {len(found)} declared functions {name!r}; accepted: {choices}"
        refused = self.__dict__.get("_refused", {})
        if why := next((why for its, why in refused.items() if f"::{its}".endswith(f"::{name}")), None):
            return f"{self!r} has no function {name!r} that can be called: {why}"
        functions = self.__dict__.get("_functions", {})
        declared = ", ".join(dict.fromkeys(function._declaration.name for function in functions.values()))
        return f"{self!r} has no declared function {name!r}; declared: {declared}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._by_name]

    def __repr__(self) -> str:
        return f"interop.load({self._library.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, tuple(self._made_of)


class _MadeOf(NamedTuple):
    """What `load` was given."""

    path: str
    declarations: str | None
    header: str | None
    include_path: tuple[str, ...]
    memory: Memory | None
    host: dict[str, tuple[str, ...]]
    device: dict[str, tuple[str, ...]]
    streams: Streams
    reads: dict[str, tuple[str, ...]]
    status: dict[str, int]
    needs_gpu: bool
    graph_safe: tuple[str, ...]


def _load_again(path: str, declarations: str | None, *options: Any) -> Library:
    return load(path, declarations, **dict(zip(_MadeOf._fields[2:], options, strict=True)))


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

    def __init__(self, library: Library, declaration: Declaration, address: int, shapes: dict[str, ShapeRule]) -> None:
        made_of = library._made_of
        reads = made_of.reads.get(declaration.name, ())
        label = f"{Path(made_of.path).name.split('.')[0]}.{declaration.name}"
        parameters, result = declaration.parameters, declaration.result
        value = "" if result.dtype in ("", "status") or result.status else declaration.text
        keywords = ("stream", "execution") if any(p.kind == "device" for p in parameters) else ()
        super().__init__(label, parameters, ("device", "host"), keywords, shapes, value, reads)
        self._library, self._declaration, self._address = library, declaration, address
        self._in_graphs = declaration.name in made_of.graph_safe
        self.__name__ = self.__qualname__ = declaration.plain_name
        self.__doc__ = described(declaration.text, reads)
        compared = checked(parameters, reads)
        made = (library._version, declaration.text, declaration.parameters, *made_of[2:])
        self._identity = Identity.of(self, self.__name__, *made, *self._shapes.items(), *self._shapes.values())

        def make(addresses: frozenset[int]) -> _core.CFunction:
            declared = pointers_of(parameters, addresses)
            own = made_of.streams == "own"
            arrays = [place for place in compared if place not in addresses]
            return _core.CFunction(
                label, address, declared, result.dtype, own, arrays, made_of.needs_gpu, result.status
            )

        of_pointers = declaration.has_pointers
        self._calls = WithPointers(label, parameters, result, make) if of_pointers else make(frozenset())
        self._tail = (_NONE, None, None, False)

    @traced_by(traced_call, is_method=True)
    def __call__(
        self, /, *args: Any, stream: StreamLike | None = None, execution: str | None = None, **named: Any
    ) -> Any:
        """Call the C function; see the class."""
        try:
            if self._is_direct and not named and len(args) == self._count:
                return self._calls.call(args, self._like, _NONE, stream, execution, False)
            return self._call(args, named, stream, execution, False)
        except TypeError:
            named |= {"stream": stream, "execution": execution}
            if (made := call_by_operator(self, args, named)) is NotImplemented:
                raise
            return made

    def _call(self, args: tuple[Any, ...], named: dict[str, Any], stream: Any, execution: Any, looks: bool) -> Any:
        def core(args: tuple[Any, ...], shapes: dict[int, Any], given: dict[int, Any]) -> Any:
            return self._calls.call(args, shapes, given, stream, execution, looks)

        return self._run(core, *self._bind(args, named), looks)

    def _made_of_content(self) -> tuple[object, ...]:
        made, options = self._declaration, self._library._made_of
        build = self._library._library.build
        return (build, made.function, made.parameters, made.result, options.streams, options.needs_gpu)

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
