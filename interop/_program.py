"""The sources of kernels, and what is loaded of them: `interop.kernel` makes its kernels of these."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from interop import _core
from interop._arguments import type_name
from interop._core import CudaError
from interop._cuda import images, includes, kept, nvrtc
from interop._functions.kernel_declaration import NAME
from interop._functions.reads import is_checked
from interop._paths import get_include

__all__ = ["Program", "Source", "program_of", "read_source"]

_COMPILED_FILES = (".cubin", ".ptx", ".fatbin")
_IMAGE = images.KINDS.removeprefix("a ")


class Source(NamedTuple):
    """What `interop.kernel` is given: CUDA C++ and how it is compiled, or a compiled image."""

    text: str  # "" for an image
    image: images.Image | None
    path: str | None  # of the file that it was read from
    options: dict[str, Any]
    compiler: str
    checks_indexes: bool = False  # of views, as INTEROP_CHECKED=1 says: of CUDA C++ alone

    @property
    def origin(self) -> str:
        """What messages call an image."""
        assert self.image is not None
        made_for = f" for {self.image.made_for}" if self.image.made_for else ""
        return f"{self.path or 'source'} ({self.image.kind}{made_for})"


def read_source(source: str | bytes | os.PathLike[str], options: dict[str, Any], compiler: str) -> Source:
    """Return the source that a user gives: its content says what it is.

    TypeError for another type; ValueError for a broken image, bytes that are none, and what an image does not take;
    OSError for a file that cannot be read.
    """
    path = None
    if isinstance(source, os.PathLike):
        path = os.fspath(source)
        data = Path(path).read_bytes()
    elif isinstance(source, str | bytes | bytearray | memoryview):
        data = source.encode(errors="surrogatepass") if isinstance(source, str) else bytes(source)
    else:
        raise TypeError(
            f"interop.kernel: source is {type_name(source)}; accepted: a str, a path object, or the bytes of "
            f"{images.KINDS}"
        )
    where = path or "source"

    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.kernel: {where} is {what}")

    image = images.read_image(data, refuse)
    if image is not None:
        _check_image(image, where, options, compiler)
        return Source("", image, path, options, compiler)
    if path is None and not isinstance(source, str):
        raise refuse(f"{len(data)} bytes that are no {_IMAGE}; accepted: one of these, or a text as str")
    if path is not None and Path(path).suffix in _COMPILED_FILES:
        raise refuse(f"{len(data)} bytes that are no {_IMAGE}; accepted: one of these")
    checks = is_checked()
    return Source(source if isinstance(source, str) else _text_of(data, refuse), None, path, options, compiler, checks)


def _text_of(data: bytes, refuse: images.Refuse) -> str:
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")  # as Path.read_text does
    except UnicodeDecodeError as error:
        raise refuse(f"no text in UTF-8 ({error}); accepted: CUDA C++ in UTF-8, {images.KINDS}") from None


def _check_image(image: images.Image, where: str, options: Mapping[str, Any], compiler: str) -> None:
    given = "compiler is 'nvcc'" if compiler == "nvcc" else f"options has {next(iter(options))!r}" if options else ""
    if given:
        raise ValueError(
            f"interop.kernel: {given}, and {where} is compiled already ({image.kind}); accepted: neither options nor "
            "compiler with it"
        )


# ---- programs ----


class _Module:
    """What one compilation has given, loaded."""

    def __init__(self, library: _core.LoadedLibrary, image: images.Image, asked: str, symbols: Sequence[str]) -> None:
        """`asked` is the name that the image was compiled for, if it was, and `symbols` has its symbol."""
        self.library = library
        self.image = image
        self._asked = dict(zip([asked], symbols, strict=False))
        self._kernels: dict[str, _core.LoadedKernel] = {}

    def find(self, name: str) -> list[str]:
        """Return the symbols of the kernels of that name, as far as the image or the driver says."""
        if name in self._asked:
            return [self._asked[name]]
        if self.image.kernels is not None:
            return images.find_named(name, self.image.kernels)
        with contextlib.suppress(CudaError):  # there is none of just this name, or what `kernels` raises, too
            self.kernel(name)
            return [name]
        return images.find_named(name, self.library.kernels())

    def kernel(self, symbol: str) -> _core.LoadedKernel:
        if symbol not in self._kernels:
            self._kernels[symbol] = self.library.kernel(symbol)
        return self._kernels[symbol]


class Program:
    """A source, and what is loaded of it. Its kernels share the variables of the module that they are in.

    All kernels of an image are in one module. Of a file in CUDA C++ all kernels are that the compiler makes without
    being asked for one: those that are no templates, and have no text appended. Any other kernel has a module of its
    own.
    """

    def __init__(self, source: Source, modules: dict[str, _Module] | None = None) -> None:
        """`modules` are those that it shares with other programs; without them, it has its own."""
        self.source = source
        self._modules = {} if modules is None else modules  # by all that they depend on
        #: By name and architecture. They stay as they were found, although the file, or a header, may change.
        self._found: dict[tuple[str, str], tuple[_Module, str]] = {}
        self._appended: dict[str, str] = {}

    def append(self, name: str, text: str) -> None:
        """Compile the kernel with a text behind the source: in a module of its own, then."""
        self._appended[name] = text

    def image(self, label: str, name: str, architecture: str) -> bytes:
        """Return what the kernel was compiled to."""
        with kept.LOCK:
            return self._find(label, name, architecture)[0].image.data

    def kernel(self, label: str, name: str, architecture: str) -> _core.LoadedKernel:
        """Return the kernel, ready to be launched on devices of one architecture, such as "sm_90"."""
        with kept.LOCK:
            module, symbol = self._find(label, name, architecture)
            return module.kernel(symbol)

    def symbols(self, label: str) -> Sequence[str]:
        """Return the symbols of an image's kernels. CudaError where the driver is needed for it and cannot say."""
        image = self.source.image
        assert image is not None  # as the caller knows
        if image.kernels is not None:
            return [*image.kernels]
        with kept.LOCK:
            return self._module(label, "", "").library.kernels()

    @property
    def has_variables(self) -> bool:
        """Has the code that is loaded variables, or may it have some?"""
        return any(module.image.variables is None or module.image.variables for module in [*self._modules.values()])

    def variable(self, label: str, kernel: str, variable: str, architecture: str) -> tuple[_core.LoadedLibrary, str]:
        """Return the library that a kernel is in, and the symbol of its variable. KeyError if there is none."""
        with kept.LOCK:
            module, _ = self._find(label, kernel, architecture)
            return module.library, _variable_of(module.image, label, variable)

    def check_variable(self, label: str, variable: str) -> None:
        """Raise the same KeyError where it is known without compiling."""
        if self.source.image is not None:
            _variable_of(self.source.image, label, variable)

    def _find(self, label: str, name: str, architecture: str) -> tuple[_Module, str]:
        if (name, architecture) not in self._found:
            self._found[name, architecture] = self._look_for(label, name, architecture)
        return self._found[name, architecture]

    def _look_for(self, label: str, name: str, architecture: str) -> tuple[_Module, str]:
        source = self.source
        if source.image is not None:
            module = self._module(label, "", "")
            return module, one_of(name, module.find(name), source.origin, lambda said: CudaError(f"{label}: {said}"))
        architecture = source.options.get("arch") or architecture
        whole = None
        if source.path is not None and "<" not in name and name not in self._appended:
            whole = self._module(label, architecture, "")
            if len(found := images.find_named(name, whole.image.kernels or (), is_whole=True)) == 1:
                return whole, found[0]
        try:
            module = self._module(label, architecture, name)
        except CudaError as error:
            near = [] if whole is None else images.find_named(name, whole.image.kernels or ())
            if not near:
                raise
            listed = "; ".join(images.demangled(near).values())
            raise CudaError(f"{error}\nOf other whole names there are: {listed}") from None
        (symbol,) = module.find(name)
        if whole is not None and symbol in (whole.image.kernels or ()):  # by a using-declaration
            return whole, symbol
        return module, symbol

    def _module(self, label: str, architecture: str, asked: str) -> _Module:
        source = self.source
        if source.image is not None:
            key = hashlib.sha256(source.image.data).hexdigest()
        else:
            compile_it = _by_nvcc if source.compiler == "nvcc" else _by_nvrtc
            key, compiled = compile_it(label, source, asked, architecture, self._appended.get(asked, ""))
        if key not in self._modules:
            if source.image is not None:
                may_have = source.image.variables is None or bool(source.image.variables)
                library = _core.LoadedLibrary.load(source.image.data, source.origin, may_have)
                module = _Module(library, source.image, "", ())
            else:
                key, (data, symbols) = compiled()
                image = images.read_cubin(data, lambda said: ValueError(f"{label}: the compiler has made {said}"))
                # What has no variables is alike for all; else these are this program's.
                library = kept.load(data, True) if image.variables else kept.library(key, data)
                module = _Module(library, image, asked, symbols)
            self._modules.setdefault(key, module)
        return self._modules[key]


def one_of(name: str, found: Sequence[str], origin: str, refuse: Any) -> str:
    """Return the one symbol that was found of a kernel; else raise what `refuse` makes of it."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise refuse(f"{origin} has no kernel {name!r}")
    listed = ", ".join(f"{symbol!r}, {text}" for symbol, text in images.demangled(found).items())
    raise refuse(f"{origin} has {len(found)} kernels {name!r}; accepted: the symbol of one ({listed})")


def _variable_of(image: images.Image, label: str, variable: str) -> str:
    """Return the symbol of a variable, as far as the image says it; KeyError, with those that there are, for none."""
    if image.variables is None:
        return variable
    found = images.find_named(variable, image.variables)
    if len(found) == 1:
        return found[0]
    texts = images.demangled(found or image.variables)
    listed = ", ".join(
        f"{texts[symbol]} ({image.variables[symbol]} bytes)" if not found else f"{symbol!r}, {texts[symbol]}"
        for symbol in texts
    )
    raise KeyError(
        f"{label}: there is no such variable; accepted: {listed or 'none, as the code has none'}"
        if not found
        else f"{label}: there are {len(found)} of this name; accepted: the symbol of one ({listed})"
    )


_modules_of_files: dict[str, dict[str, _Module]] = {}  # bounded by the files of one process, as all that is loaded


def program_of(source: Source) -> Program:
    """Return the program of a source, which shares its modules with those of the same file."""
    if source.path is None:
        return Program(source)
    return Program(source, _modules_of_files.setdefault(os.path.realpath(source.path), {}))


# ---- compiling ----

#: A key of all that an image depends on, and what gets it, with the key that it has by then.
_Compiled = tuple[str, Callable[[], tuple[str, kept.Image]]]


def _by_nvrtc(label: str, source: Source, asked: str, architecture: str, appended: str) -> _Compiled:
    text = source.text + appended
    options = compiler_options(source.path, asked, _options_of(source))
    names = [asked] if asked else []
    return nvrtc.compiled(label, text, names, options, architecture, lambda: _own_headers(text, options))


def _by_nvcc(label: str, source: Source, asked: str, architecture: str, appended: str) -> _Compiled:
    from interop._cuda import nvcc

    assert source.path is not None  # which `interop.kernel` has checked
    options = {**_options_of(source), "include_path": [*_folders(source.options), get_include()]}
    flags = nvcc.flags_of(label, options)
    key, image = nvcc.compiled(label, Path(source.path).resolve(), source.text, asked, flags, architecture, appended)
    return key, lambda: (key, image)


def _options_of(source: Source) -> dict[str, Any]:
    """Return the options of a source, but the architecture, with the macro that has views check their indexes."""
    options = {key: value for key, value in source.options.items() if key != "arch"}
    if source.checks_indexes:
        given = options.get("define_macro") or []
        options["define_macro"] = [*(given if isinstance(given, list) else [given]), "INTEROP_CHECKED"]
    return options


def _folders(options: dict[str, Any]) -> list[str]:
    given = options.get("include_path") or ()
    return [str(folder) for folder in ((given,) if isinstance(given, str | os.PathLike) else given)]


def compiler_options(path: str | None, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the name that messages have for the source, and where headers are looked for."""
    folders = _folders(options)
    if path is not None:
        folders.insert(0, str(Path(path).resolve().parent))
    found = NAME.fullmatch(name)
    file_name = path or f"{found['base'] if found else name}.cu"
    before = str(_STANDARD_HEADERS / "before")  # what stands in for one of CUDA's own
    searched = [*folders, get_include(), before, *cuda_headers(), str(_STANDARD_HEADERS)]
    first = options.get("pre_include") or ()
    first = [first] if isinstance(first, str) else [*first]
    return {"name": file_name, **options, "include_path": searched, "pre_include": [_STANDARD, *first]}


#: The standard headers that NVRTC lacks, of which `std::size_t` is known without an #include, as to nvcc.
_STANDARD_HEADERS = Path(nvrtc.__file__).parent / "headers"
_STANDARD = str(_STANDARD_HEADERS / "cstddef")


@functools.cache
def cuda_headers() -> tuple[str, ...]:
    """Return the folders of CUDA's own headers, of those that are installed."""
    from cuda import pathfinder

    found = []
    for library in ("cudart", "cccl", "nvcc"):  # the last: of CUDA 12, where <mma.h> has a half of its own
        with contextlib.suppress(Exception):  # a search, which may fail in ways of its own
            if folder := pathfinder.find_nvidia_header_directory(library):
                found.append(folder)
    return tuple(dict.fromkeys(found))


def _own_headers(text: str, options: Mapping[str, Any]) -> list[str] | None:
    """Return what a source includes, and what that includes, with paths; None where a macro says what that is.

    These are all files that a name may mean, whichever the compiler takes: one more, or one less, is a change. Not
    CUDA's own, for which the compiler's version stands.
    """
    searched = ["", *(folder for folder in options["include_path"] if folder not in cuda_headers())]
    texts: dict[Path, str] = {}
    first = "".join(f'#include "{file}"\n' for file in options["pre_include"])
    pending = [(first + text, Path())]
    while pending:
        text, folder = pending.pop()
        names = includes.names_in(text)
        if names is None:
            return None
        for file in (Path(place, name) for name in names for place in (folder, *searched)):
            if file not in texts and file.is_file():
                texts[file] = file.read_text(encoding="utf-8", errors="replace")
                pending.append((texts[file], file.parent))
    return [f"{file}\n{text}" for file, text in texts.items()]
