"""Kernels in CUDA C++ that are compiled at run time, called with the arrays of any library: `interop.kernel`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from interop import _core
from interop._arguments import named, shown, type_name
from interop._core import CudaError
from interop._cuda import images
from interop._functions.array_function import LAUNCH_OPTIONS, ArrayFunction, Launch, ShapeRule, extents_of
from interop._functions.identity import Identity
from interop._functions.image_declaration import check_bytes, signature_of
from interop._functions.kernel_declaration import ARRAYS, NAME, parameters_of
from interop._functions.mdspans import measured, probe_of
from interop._functions.parameters import Parameter, Refuse
from interop._functions.reads import checked, described, names_of, with_reads
from interop._functions.tensor_maps import TensorMap, checked_maps, with_tensor_maps
from interop._program import Program, Source, one_of, program_of, read_source
from interop._streams import StreamLike
from interop._traced import call_by_operator, traced_by, traced_call
from interop._variables import Globals

__all__ = ["Kernel", "kernel"]

Sizes = int | tuple[int, ...]
Extent = Sizes | Callable[..., Sizes]


@named("interop.kernel")
def kernel(
    source: str | bytes | os.PathLike[str],
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
    dependent_launch: bool = False,
    options: Mapping[str, Any] | None = None,
    reads: Sequence[str] = (),
    tensor_maps: Mapping[str, TensorMap] | None = None,
    compiler: Compiler = "nvrtc",
) -> Kernel:
    """Make a function of a kernel in CUDA C++, to be called with arrays of any library.

    Parameters
    ----------
    source : str, path or bytes
        CUDA C++: the text, or a path object of a file that has it. Or a cubin, PTX or a fatbin: a path object or the
        bytes, for PTX the text as well; the content says which it is.
    name : str
        The kernel's, with its namespace if it has one; of a template with its arguments: ``"scale<float>"``.
    signature : str, optional
        The kernel's parameters as in C++, ``"const float* x, float* y, int n"``, where they cannot be read from the
        source: for a kernel that a macro or a header declares, or types that have other names there; or of an
        ``extern "C"`` kernel that is compiled already. The parameters of another one are called ``arg0``, ``arg1``, ...
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
    dependent_launch : bool, optional
        Launch so that it may begin before the work ahead of it on the stream is done, on devices of compute capability
        9.0 and later. The kernel itself waits for that, by ``griddepcontrol.wait`` or
        ``cudaGridDependencySynchronize()``, before it touches what that work reads or writes.
    options : mapping, optional
        How to compile: keywords of `cuda.core.ProgramOptions`, such as ``{"std": "c++20", "use_fast_math": True}``.
        ``arch`` is that of the arrays' device unless it is given here.
    reads : tuple or list of str, optional
        Names of pointers without ``const`` that the kernel only reads, as if they had it: read-only arrays and those of
        JAX are accepted for them, and ``execution="cuda"`` copies nothing back. Views say it in their type.
    tensor_maps : mapping of str to TensorMap, optional
        For each parameter ``const __grid_constant__ CUtensorMap``, by its name, what `interop.tensor_map` says of it.
    compiler : "nvrtc" or "nvcc", optional
        NVRTC compiles device code alone, in this process. "nvcc" compiles whole files, with host code in them, such as
        ``main`` or ``#include <iostream>``; `source` is a path then. It needs a host compiler, and takes seconds.

    Returns
    -------
    Kernel
        To be called with an argument for each parameter. It compiles at its first call on a device. Its ``globals``
        are the variables of its code.

    Raises
    ------
    TypeError
        `source`, `name`, `options`, `reads` or `tensor_maps` is of another type. In a call: an argument is no array or
        no number where it must be one, of another dtype, read-only where it is written, or in host memory.
    ValueError
        The source is a str that names a file, or declares no such kernel; its parameters are not understood, or have
        other sizes than in what is compiled; a cubin, PTX or a fatbin is truncated or not linked, or `options` or
        `compiler` is given with it; a launch option is none; a name in `reads` is no parameter, no pointer, one to
        ``const`` already, or a view; `tensor_maps` has a name that is no such parameter, or lacks one. In a call: the
        array of a pointer is not C-contiguous, that of a view has other dimensions, that of an mdspan another order,
        other static extents or more elements than its indices count, or TMA cannot read that of a tensor map; an array
        for a result of `returning` has another shape than that; the launch is larger than the device or the kernel
        allows.
    IndexError
        In a call, where ``INTEROP_CHECKED=1`` says so: an index of a view is out of bounds.
    OSError
        The file `source` cannot be read.
    OverflowError
        In a call: a number does not fit its parameter, or would become infinite in it.
    CudaError
        In a call: the kernel does not compile, in the compiler's words; `cuda.core` or the compiler is missing, which
        the message says how to install; the file has changed since it was read; the driver does not take the cubin,
        PTX or fatbin; CUDA fails.

    Notes
    -----
    Pointers take C-contiguous arrays of exactly their dtype; those that are not to ``const`` are written to, unless
    `reads` names them. For arrays of any strides a kernel takes ``interop::View<const float, 2>``, of
    ``#include <interop/view.cuh>``, or an mdspan of ``#include <cuda/std/mdspan>``, whose layout says which strides it
    takes. Types are those of `interop.load`, and complex numbers of Thrust and libcu++; 16-bit floats and complex
    numbers are passed by value, too.

    What `reads` says is believed: a kernel that writes to such an array changes what its library takes to be unchanged.
    Where the environment has ``INTEROP_CHECKED=1`` as the kernel is made, each call copies these arrays to the host
    before it and after, waits for that, and is a ValueError where one has changed; a call in a capture is a ValueError
    then, too. So it is for kernels with views, which check their indexes then.

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
    _check_compiler(compiler, source, dict(options or {}))
    found = read_source(source, dict(options or {}), compiler)
    launch = (grid, threads, block, shared, cluster, cooperative, dependent_launch)
    names = names_of("interop.kernel: reads", reads)
    maps = checked_maps("interop.kernel: tensor_maps", tensor_maps)
    return Kernel(found, name, signature, launch, names, maps, {}, program_of(found))


def _check_compiler(compiler: object, source: object, options: dict[str, Any]) -> None:
    if not isinstance(compiler, str):
        raise TypeError(f"interop.kernel: compiler is {type_name(compiler)}; accepted: 'nvrtc', 'nvcc'")
    if compiler not in ("nvrtc", "nvcc"):
        raise ValueError(f"interop.kernel: compiler is {shown(compiler)}; accepted: 'nvrtc', 'nvcc'")
    if compiler == "nvcc":
        if not isinstance(source, os.PathLike):
            raise TypeError(
                f"interop.kernel: compiler is 'nvcc', and source is {'a str' if isinstance(source, str) else 'bytes'}; "
                "accepted with it: a path object"
            )
        from interop._cuda import nvcc

        nvcc.flags_of("interop.kernel", {key: value for key, value in options.items() if key != "arch"})


Compiler = Literal["nvrtc", "nvcc"]
_FILE_NAME = re.compile(r"[^\n;{}()]*\.(?:cu|cuh|cc|cpp|cxx|h|hpp|hxx|ptx|cubin|fatbin)")


def _declared(
    program: Program, label: str, name: str, signature: str | None, refuse: Callable[[str], ValueError]
) -> tuple[str, list[Parameter]]:
    """Return the parameters of the kernel, as text and parsed: of its source, of its symbol, or as `signature` says."""
    source = program.source
    if source.image is None:
        return parameters_of(source.text, name, signature, refuse)
    sizes = None
    if source.image.kernels is not None or signature is None:
        try:
            symbols = program.symbols(label)
        except CudaError as error:
            raise refuse(
                f"only the driver can list the kernels of {source.origin}, and it does not: {error}; accepted: "
                "signature='const float* x, float* y, int n'"
            ) from error
        found = images.find_named(name, symbols)
        if not found:
            listed = ", ".join(images.demangled(symbols).values())
            raise refuse(f"{source.origin} has no kernel of this name; accepted: {listed or 'there is none'}")
        symbol = one_of(name, found, source.origin, refuse)
        sizes = source.image.kernels[symbol] if source.image.kernels is not None else None
        if signature is None:
            signature = signature_of(symbol, source.origin, sizes, refuse)
    declared, parameters = parameters_of("", name, signature, refuse)
    check_bytes(parameters, sizes, source.origin, refuse)
    return declared, parameters


class Kernel(ArrayFunction):
    """A kernel that is called with arrays of any library; `interop.kernel` makes it, and says how it is launched.

    The call takes one argument for each parameter, in the declared order or by name, and the keywords ``stream`` and
    ``execution``, as in `interop.matmul`. The launch options of `interop.kernel` may be given in the call, too, and
    count for that call alone. The arrays are ordered on the call's stream and kept alive as in any call of this
    package; nothing is copied, unless ``execution="cuda"`` has host arrays computed on the GPU.

    It returns None; or, after `returning`, arrays. `globals` has the variables of the code that the kernel is in.
    """

    _maker = "interop.kernel"

    def __init__(
        self,
        source: Source,
        name: str,
        signature: str | None,
        launch: Launch,
        reads: tuple[str, ...],
        maps: dict[str, TensorMap],
        shapes: dict[str, ShapeRule],
        program: Program | None = None,
    ) -> None:
        """Take what `kernel` is given, and the program that it shares; without one, it has its own."""
        label = f"{self._maker}({name!r})"

        def refuse(what: str) -> ValueError:
            return ValueError(f"{label}: {what}")

        self._program = program or Program(source)
        declared, parameters = _declared(self._program, label, name, signature, refuse)
        parameters = with_tensor_maps(with_reads(parameters, reads, refuse), maps, reads, refuse)
        for parameter in parameters:
            if parameter.name in _KEYWORDS:
                raise refuse(
                    f"the parameter {parameter.name!r} has the name of a keyword of the call; accepted: another "
                    "name, if need be by signature='type name, ...'"
                )
        super().__init__(label, parameters, ARRAYS, _KEYWORDS, shapes, reads=reads)
        self._made_of, self._tail = (source, name, signature, launch, reads, maps), (_NONE,)
        self._text = described(f"{name}({declared})", reads)
        self.__name__ = self.__qualname__ = name
        self.__doc__ = self._text
        self._extents = extents_of(launch)
        self._has_extent = self._extents != (None, None)
        self._is_plain = self._is_direct and not self._has_extent
        fixed = tuple(None if callable(extent) else extent for extent in launch[:2])
        if sum(extent is not None for extent in launch[:2]) > 1:
            raise refuse("grid and threads are given; accepted: one of them")
        self._load = self._loader(label, name, parameters, refuse)
        declarations = [(p.kind, p.name, p.dtype, p.written, p.ndim, [*p.form]) for p in parameters]
        launched = (*fixed, *launch[2:])
        compared, checks_indexes = checked(parameters, reads), self._program.source.checks_indexes
        self._calls = _core.Kernel(label, declarations, self._load, launched, compared, checks_indexes)
        made_of = (*self._made_of_content(), *launch)
        self._identity = Identity.of(self, name, *made_of, *self._shapes.items(), *self._shapes.values())

    def _loader(
        self, label: str, name: str, parameters: Sequence[Parameter], refuse: Refuse
    ) -> Callable[[str], _core.LoadedKernel]:
        """Return what loads the kernel for an architecture, and finds what its compiler has made of mdspans."""
        program = self._program  # the compiled half keeps what this returns, and must not keep the kernel by it
        places = [place for place, p in enumerate(parameters) if p.kind == "mdspan"]
        if not places:
            return functools.partial(program.kernel, label, name)
        if not program.source.text or not isinstance(program, Program):
            raise refuse(
                f"{parameters[places[0]].name} is a cuda::std::mdspan, and the code is compiled already, by a compiler "
                "that alone knows what is where in it; accepted: the source, or a kernel of pointers or interop::View"
            )
        program.append(name, probe_of(name, places))

        def load(architecture: str) -> _core.LoadedKernel:
            loaded = program.kernel(label, name, architecture)
            return loaded.with_mdspans(measured(program.image(label, name, architecture), parameters, refuse))

        return load

    @traced_by(traced_call, is_method=True)
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Launch the kernel; see the class."""
        # Python looks up the default of each keyword that a signature has; C++ reads those that are given.
        try:
            if self._is_plain and len(args) == self._count:
                made = self._calls.call(args, self._like, named)
                if made is not NotImplemented:
                    return made
            return self._call_with(args, **named)
        except TypeError:
            if (made := call_by_operator(self, args, named)) is NotImplemented:
                raise
            return made

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
        dependent_launch: bool | None = None,
        stream: StreamLike | None = None,
        execution: str | None = None,
        **named: Any,
    ) -> Any:
        results: dict[str, Any] = _NONE
        if named or len(args) != self._count:
            args, results = self._bind(args, named)
        launch = None
        if (
            not (grid is threads is block is shared is cluster is cooperative is dependent_launch is None)
            or self._has_extent
        ):
            launch = (grid, threads, block, shared, cluster, cooperative, dependent_launch)
            if self._has_extent or callable(grid) or callable(threads):
                launch = self._launch(args, launch)
        if self._is_direct and not results:
            return self._calls.call_with(args, self._like, _NONE, launch, stream, execution, False)
        return self._call(args, results, launch, stream, execution, False)

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

    @property
    def globals(self) -> Globals:
        """The variables of the code that the kernel is in, by their names."""
        return Globals(self._program, self._label, self.__name__)

    def _made_of_content(self) -> tuple[object, ...]:
        source, _, signature, _, reads, maps = self._made_of
        image = source.image.data if source.image else b""
        compiled_as = (sorted(source.options.items()), source.compiler, source.checks_indexes)
        return (source.text, image, source.path, *compiled_as, signature, reads, sorted(maps.items()))

    def _with(self, shapes: dict[str, ShapeRule]) -> Kernel:
        return Kernel(*self._made_of, shapes, self._program)

    def _prepared(self, shapes: dict[int, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if not self._has_extent:
            return super()._prepared(shapes)

        def launched(args: tuple[Any, ...]) -> Any:
            launch = self._launch(args, _NOT_GIVEN)
            return self._calls.call_with(args, shapes, _NONE, launch, None, None, False)

        return launched, ()

    def __repr__(self) -> str:
        return f"<kernel {self._text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (*self._made_of, self._shapes)


_NONE: dict[Any, Any] = {}  # of the results none is given
_KEYWORDS = (*LAUNCH_OPTIONS, "stream", "execution")
_NOT_GIVEN = (None,) * len(LAUNCH_OPTIONS)
