"""Kernels in CUDA C++ that are compiled at run time, called with the arrays of any library: `interop.kernel`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from interop import _core
from interop._arguments import named, shown, type_name
from interop._cuda import nvcc, nvrtc
from interop._functions.array_function import ArrayFunction, ShapeRule
from interop._functions.declarations import without_comments
from interop._functions.kernel_declaration import NAME, parameters_of
from interop._functions.reads import checked, described, names_of, with_reads
from interop._paths import get_include
from interop._streams import StreamLike

__all__ = ["Kernel", "kernel"]

Sizes = int | tuple[int, ...]
Extent = Sizes | Callable[..., Sizes]


@named("interop.kernel")
def kernel(
    source: str | os.PathLike[str],
    name: str,
    /,
    *,
    signature: str | None = None,
    grid: Extent | None = None,
    threads: str | Extent | None = None,
    block: Sizes = 256,
    shared: int = 0,
    cluster: Sizes | None = None,
    cooperative: bool = False,
    options: Mapping[str, Any] | None = None,
    reads: Sequence[str] = (),
    compiler: Compiler = "nvrtc",
) -> Kernel:
    """Make a function of a kernel in CUDA C++, to be called with arrays of any library.

    Parameters
    ----------
    source : str or path
        The text, or a path object of a file that has it.
    name : str
        The kernel's, with its namespace if it has one; of a template with its arguments: ``"scale<float>"``.
    signature : str, optional
        The kernel's parameters as in C++, ``"const float* x, float* y, int n"``, where they cannot be read from the
        source: for a kernel that a macro or a header declares, or types that have other names there.
    grid : int, tuple of up to three, or callable, optional
        The blocks along x, y, z, of all clusters together. A callable is called with the arguments of the call, in the
        declared order.
    threads : str, int, tuple of up to three, or callable, optional
        In place of `grid`: the number of threads in all, rounded up to whole blocks and clusters. The name of a
        parameter means one thread for each element of its array.
    block : int or tuple of up to three, optional
        The threads of a block along x, y, z.
    shared : int, optional
        Bytes of dynamic shared memory. More than 48 KB are allowed to the kernel where the device has them.
    cluster : int or tuple of up to three, optional
        The blocks of a cluster along x, y, z, on devices that have clusters of thread blocks.
    cooperative : bool, optional
        Launch so that all blocks run at once, and may wait for each other.
    options : mapping, optional
        How to compile: keywords of `cuda.core.ProgramOptions`, such as ``{"std": "c++20", "use_fast_math": True}``.
        ``arch`` is that of the arrays' device unless it is given here.
    reads : tuple or list of str, optional
        Names of pointers without ``const`` that the kernel only reads, as if they had it: read-only arrays and those of
        JAX are accepted for them, and ``execution="cuda"`` copies nothing back. Views say it in their type.
    compiler : "nvrtc" or "nvcc", optional
        NVRTC compiles device code alone, in this process. "nvcc" compiles whole files, with host code in them, such as
        ``main`` or ``#include <iostream>``; `source` is a path then. It needs a host compiler, and takes seconds.

    Returns
    -------
    Kernel
        To be called with an argument for each parameter. It compiles at its first call on a device.

    Raises
    ------
    TypeError
        `source`, `name`, `options` or `reads` is of another type. In a call: an argument is no array or no number where
        it must be one, of another dtype, read-only where it is written, or in host memory.
    ValueError
        The source is a str that names a file, or declares no such kernel; its parameters are not understood; a launch
        option is none; a name in `reads` is no parameter, no pointer, one to ``const`` already, or a view. In a call:
        the array of a pointer is not C-contiguous, or that of a view has other dimensions; an array for a result of
        `returning` has another shape than that; the launch is larger than the device or the kernel allows.
    OSError
        The file `source` cannot be read.
    OverflowError
        In a call: a number does not fit its parameter, or would become infinite in it.
    CudaError
        In a call: the kernel does not compile, in the compiler's words; `cuda.core` or the compiler is missing, which
        the message says how to install; the file has changed since it was read; CUDA fails.

    Notes
    -----
    Pointers take C-contiguous arrays of exactly their dtype; those that are not to ``const`` are written to, unless
    `reads` names them. For arrays of any strides a kernel takes ``interop::View<const float, 2>``, of
    ``#include <interop/view.cuh>``. Types are those of `interop.load`, and complex numbers of Thrust and libcu++;
    16-bit floats and complex numbers are passed by value, too.

    What `reads` says is believed: a kernel that writes to such an array changes what its library takes to be unchanged.
    Where the environment has ``INTEROP_CHECKED=1`` as the kernel is made, each call copies these arrays to the host
    before it and after, waits for that, and is a ValueError where one has changed; a call in a capture is a ValueError
    then, too.

    CUDA's own headers are found where a toolkit or its wheels are installed, and others by the folder of `source` and
    ``options={"include_path": ...}``. Kernels are kept on disk (``INTEROP_CACHE_DIR``, or ``~/.cache/interop``).

    As in C++, a size beyond an array is undefined behaviour. A kernel that faults makes its process's GPU context
    unusable, which the next call reports.

    Examples
    --------
    >>> import interop
    >>> scale = interop.kernel(
    ...     "__global__ void scale(const float* x, float* y, float by, long long n) {"
    ...     "  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
    ...     "  if (i < n) y[i] = by * x[i];"
    ...     "}",
    ...     "scale",
    ...     threads="x",
    ... ).returning(y="x")
    >>> scale
    <kernel scale(const float* x, float* y, float by, long long n)>

    On a GPU, ``scale(x, 2.0, x.size)`` is now an array of the library of ``x``.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"interop.kernel: source is {type(source).__name__}; accepted: a str, or a path object")
    path = None if isinstance(source, str) else os.fspath(source)
    if not isinstance(name, str):
        raise TypeError(f"interop.kernel: name is {type(name).__name__}; accepted: a str")
    if NAME.fullmatch(name) is None:
        raise ValueError(
            f"interop.kernel: name is {name!r}; accepted: a kernel's name, such as 'scale', 'scale<float>'"
        )
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"interop.kernel: options is {type(options).__name__}; accepted: a mapping of str, or None")
    if isinstance(source, str) and _FILE_NAME.fullmatch(source.strip()):
        raise ValueError(
            f"interop.kernel: source is {shown(source)}, the name of a file; accepted: the text of a source, or a path "
            "object, pathlib.Path(...)"
        )
    _check_compiler(compiler, path, dict(options or {}))
    text = Path(path).read_text(encoding="utf-8") if path is not None else str(source)
    launch = (grid, threads, block, shared, cluster, cooperative)
    names = names_of("interop.kernel: reads", reads)
    return Kernel(text, path, name, signature, launch, dict(options or {}), names, compiler, {})


def _check_compiler(compiler: object, path: str | None, options: dict[str, Any]) -> None:
    if not isinstance(compiler, str):
        raise TypeError(f"interop.kernel: compiler is {type_name(compiler)}; accepted: 'nvrtc', 'nvcc'")
    if compiler not in ("nvrtc", "nvcc"):
        raise ValueError(f"interop.kernel: compiler is {shown(compiler)}; accepted: 'nvrtc', 'nvcc'")
    if compiler == "nvcc":
        if path is None:
            raise TypeError("interop.kernel: compiler is 'nvcc', and source is a str; accepted with it: a path object")
        nvcc.flags_of("interop.kernel", {key: value for key, value in options.items() if key != "arch"})


Compiler = Literal["nvrtc", "nvcc"]
_FILE_NAME = re.compile(r"[^\n;{}()]*\.(?:cu|cuh|cc|cpp|cxx|h|hpp|hxx|ptx|cubin|fatbin)")
Launch = tuple[Any, Any, Any, Any, Any, Any]  # grid, threads, block, shared, cluster, cooperative


class Kernel(ArrayFunction):
    """A kernel that is called with arrays of any library; `interop.kernel` makes it, and says how it is launched.

    The call takes one argument for each parameter, in the declared order or by name, and the keywords ``stream`` and
    ``execution``, as in `interop.matmul`. The launch options of `interop.kernel` may be given in the call, too, and
    count for that call alone. The arrays are ordered on the call's stream and kept alive as in any call of this
    package; nothing is copied, unless ``execution="cuda"`` has host arrays computed on the GPU.

    It returns None; or, after `returning`, arrays.
    """

    def __init__(
        self,
        text: str,
        path: str | None,
        name: str,
        signature: str | None,
        launch: Launch,
        options: dict[str, Any],
        reads: tuple[str, ...],
        compiler: Compiler,
        shapes: dict[str, ShapeRule],
    ) -> None:
        label = f"interop.kernel({name!r})"

        def refuse(what: str) -> ValueError:
            return ValueError(f"{label}: {what}")

        declared, parameters = parameters_of(text, name, signature, refuse)
        parameters = with_reads(parameters, reads, refuse)
        for parameter in parameters:
            if parameter.name in _KEYWORDS:
                raise refuse(
                    f"the parameter {parameter.name!r} has the name of a keyword of the call; accepted: another "
                    "name, if need be by signature='type name, ...'"
                )
        super().__init__(label, parameters, ("pointer", "view"), _KEYWORDS, shapes, reads=reads)
        self._made_of = (text, path, name, signature, launch, options, reads, compiler)
        self._text = described(f"{name}({declared})", reads)
        self.__name__ = self.__qualname__ = name
        self.__doc__ = self._text
        #: The grid or the threads, where they depend on the arguments; None for the other one, or for both.
        self._extents = tuple(extent if callable(extent) else None for extent in launch[:2])
        self._has_extent = self._extents != (None, None)
        self._is_plain = self._is_direct and not self._has_extent
        fixed = tuple(None if callable(extent) else extent for extent in launch[:2])
        if sum(extent is not None for extent in launch[:2]) > 1:
            raise refuse("grid and threads are given; accepted: one of them")
        load = _load if compiler == "nvrtc" else _load_by_nvcc
        self._load = functools.partial(load, label, text, path, name, options)
        declarations = [(p.kind, p.name, p.dtype, p.written, p.ndim) for p in parameters]
        launched = (*fixed, *launch[2:])
        self._calls = _core.Kernel(label, declarations, self._load, launched, checked(parameters, reads))

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Launch the kernel; see the class."""
        # Python looks up the default of each keyword that a signature has; C++ reads those that are given.
        if self._is_plain and len(args) == self._count:
            made = self._calls.call(args, self._like, named)
            if made is not NotImplemented:
                return made
        return self._call_with(args, **named)

    def _call_with(
        self,
        args: tuple[Any, ...],
        /,
        grid: Extent | None = None,
        threads: str | Extent | None = None,
        block: Sizes | None = None,
        shared: int | None = None,
        cluster: Sizes | None = None,
        cooperative: bool | None = None,
        stream: StreamLike | None = None,
        execution: str | None = None,
        **named: Any,
    ) -> Any:
        results: dict[str, Any] = _NONE
        if named or len(args) != self._count:
            args, results = self._bind(args, named)
        launch = None
        if not (grid is threads is block is shared is cluster is cooperative is None) or self._has_extent:
            launch = (grid, threads, block, shared, cluster, cooperative)
            if self._has_extent or callable(grid) or callable(threads):
                launch = self._launch(args, launch)
        if self._is_direct and not results:
            return self._calls.call_with(args, self._like, _NONE, launch, stream, execution, False)
        return self._call(args, results, launch, stream, execution, False)

    def _launch(self, args: tuple[Any, ...], given: Launch) -> Launch:
        """Return the options of a call with what they are functions of put in."""
        grid, threads = given[:2] if given[0] is not None or given[1] is not None else self._extents
        what = "grid" if callable(grid) else "threads"
        try:
            if callable(grid):
                grid = grid(*args)
            if callable(threads):
                threads = threads(*args)
        except Exception as error:
            self._add_note(error, what)
            raise
        return (grid, threads, *given[2:])

    def _call(
        self,
        args: tuple[Any, ...],
        results: dict[str, Any],
        launch: Launch | None,
        stream: Any,
        execution: Any,
        looks: bool,
    ) -> Any:
        def core(args: tuple[Any, ...], shapes: dict[int, Any], given: dict[int, Any]) -> Any:
            return self._calls.call_with(args, shapes, given, launch, stream, execution, looks)

        return self._run(core, args, results, looks)

    def _with(self, shapes: dict[str, ShapeRule]) -> Kernel:
        return Kernel(*self._made_of, shapes)

    def __repr__(self) -> str:
        return f"<kernel {self._text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (*self._made_of, self._shapes)


_NONE: dict[Any, Any] = {}  # of the results none is given
_KEYWORDS = ("grid", "threads", "block", "shared", "cluster", "cooperative", "stream", "execution")


# ---- compiling ----


def _load(
    label: str, text: str, path: str | None, name: str, options: dict[str, Any], architecture: str
) -> _core.LoadedKernel:
    """Return the kernel, ready to be launched on devices of one architecture."""
    compiler_options = _compiler_options(path, name, options)
    headers = _own_headers(text, compiler_options["include_path"])
    architecture = compiler_options.pop("arch", architecture)
    (loaded,) = nvrtc.load(label, text, [name], compiler_options, architecture, headers)
    return loaded


def _load_by_nvcc(
    label: str, text: str, path: str | None, name: str, options: dict[str, Any], architecture: str
) -> _core.LoadedKernel:
    """Do the same for a whole file."""
    assert path is not None  # which `kernel` has checked
    compiler_options = {**options, "include_path": [*_folders(options), get_include()]}
    architecture = compiler_options.pop("arch", architecture)
    return nvcc.load(label, Path(path).resolve(), text, name, nvcc.flags_of(label, compiler_options), architecture)


def _folders(options: dict[str, Any]) -> list[str]:
    given = options.get("include_path") or ()
    return [str(folder) for folder in ((given,) if isinstance(given, str | os.PathLike) else given)]


def _compiler_options(path: str | None, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the name that messages have for the source, and where headers are looked for."""
    folders = _folders(options)
    if path is not None:
        folders.insert(0, str(Path(path).resolve().parent))
    found = NAME.fullmatch(name)
    file_name = path or f"{found['base'] if found else name}.cu"
    searched = [*folders, get_include(), *_cuda_headers(), str(_STANDARD_HEADERS)]
    first = options.get("pre_include") or ()
    first = [first] if isinstance(first, str) else [*first]
    return {"name": file_name, **options, "include_path": searched, "pre_include": [_STANDARD, *first]}


#: The standard headers that NVRTC lacks, of which `std::size_t` is known without an #include, as to nvcc.
_STANDARD_HEADERS = Path(nvrtc.__file__).parent / "headers"
_STANDARD = str(_STANDARD_HEADERS / "cstddef")


@functools.cache
def _cuda_headers() -> tuple[str, ...]:
    """Return the folders of CUDA's own headers, of those that are installed."""
    from cuda import pathfinder

    found = []
    for library in ("cudart", "cccl"):
        with contextlib.suppress(Exception):  # a search, which may fail in ways of its own
            if folder := pathfinder.find_nvidia_header_directory(library):
                found.append(folder)
    return tuple(found)


def _own_headers(text: str, folders: Sequence[str]) -> list[str]:
    """Return the texts of the headers that a source includes, and those include: what is compiled depends on them.

    Not of CUDA's own, for which the compiler's version stands.
    """
    searched = [folder for folder in folders if folder not in _cuda_headers()]
    texts: dict[Path, str] = {}
    pending = [text]
    while pending:
        for header in re.findall(
            r'^\s*#\s*include\s*[<"]([^>"\n]+)[>"]', without_comments(pending.pop()), re.MULTILINE
        ):
            file = next((file for folder in searched if (file := Path(folder, header)).is_file()), None)
            if file is not None and file not in texts:
                texts[file] = file.read_text(encoding="utf-8", errors="replace")
                pending.append(texts[file])
    return list(texts.values())
