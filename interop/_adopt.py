"""Kernels and functions in other compilers' hands, called with the arrays of any library: `interop.adopt`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from interop import _core, _handles
from interop._arguments import named, shown, type_name
from interop._convert import convert
from interop._functions import launchers
from interop._functions.array_function import ArrayFunction, ShapeRule
from interop._functions.identity import own_key
from interop._functions.image_declaration import signature_of
from interop._functions.kernel_declaration import parameters_of
from interop._functions.parameters import Parameter
from interop._functions.written import names_in
from interop._kernel import Extent, Kernel, Sizes
from interop._libraries.arrays import is_array
from interop._libraries.known import TARGETS
from interop._streams import StreamLike
from interop._traced import traced_by, traced_outside

__all__ = ["Adopted", "AdoptedKernel", "adopt"]

_FUNCTION = "interop.adopt"
_ACCEPTED = (
    "a tvm_ffi.Function, a cuda.core.Kernel, a cupy.RawKernel, or what numba.cuda.jit, triton.jit, triton.autotune and "
    "triton.heuristics make"
)


@named(_FUNCTION)
def adopt(
    kernel: Any,
    /,
    signature: str | None = None,
    *,
    writes: str | int | Iterable[str | int] | None = None,
    grid: Any = None,
    threads: str | Extent | None = None,
    block: Sizes | None = None,
    shared: int | None = None,
    cluster: Sizes | None = None,
    cooperative: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Adopted | Kernel:
    """Make a kernel or function that another library has compiled take the arrays of any, on the caller's stream.

    Parameters
    ----------
    kernel : tvm_ffi.Function, cuda.core.Kernel, cupy.RawKernel, or kernel of Numba or Triton
        What CuTe DSL, TileLang and others export by tvm-ffi; a kernel that `cuda.core` or CuPy has loaded, such as
        ``module.get_function("scale")`` of a `cupy.RawModule`; what `numba.cuda.jit`, `triton.jit`, `triton.autotune`
        or `triton.heuristics` makes.
    signature : str, optional
        The parameters, where `kernel` does not say them. Of a function of tvm-ffi their names, ``"x, y, n"``; of a
        kernel of `cuda.core`, or of CuPy without a source, as C++ has them: ``"const float* x, float* y, int n"``.
    writes : name or position of a parameter, or several of these, optional
        What `kernel` writes to; ``()`` where it writes to nothing. By default it may be any argument; where the
        parameters are those of C++, any pointer that is not to ``const``.
    grid : int, tuple of up to three, or callable, optional
        The blocks, as `interop.kernel` has it, of a kernel of `cuda.core`, CuPy or Numba. Of Triton it is Triton's own:
        a callable is called with a dict of the arguments.
    threads : str, int, tuple of up to three, or callable, optional
        In place of `grid`: the threads in all, as `interop.kernel` has it. Not of Triton.
    block : int or tuple of up to three, optional
        The threads of a block, 256 by default. Not of Triton.
    shared : int, optional
        Bytes of dynamic shared memory. Not of Triton.
    cluster : int or tuple of up to three, optional
        The blocks of a cluster, of a kernel of `cuda.core` or CuPy.
    cooperative : bool, optional
        Launch so that all blocks run at once, of a kernel of `cuda.core` or CuPy.
    options : mapping, optional
        Constants and options of a Triton kernel, such as ``{"BLOCK": 1024, "num_warps": 8}``.

    Returns
    -------
    Adopted or Kernel
        To be called with an argument for each parameter, by position or by name, and ``stream``; with options of the
        launch, too, for that call alone; with constants of Triton's by name. Of a kernel of `cuda.core` or CuPy it is
        an `interop.Kernel`.

    Raises
    ------
    TypeError
        An argument is of another type. In a call: no argument is an array, or an array is read-only, as all of JAX's
        are, and may be written to; or it is in host memory, and `kernel` is for a GPU.
    ValueError
        `signature` is needed and not given, or given and not needed; it is not understood; `writes` names no parameter;
        an option of the launch is not for this kind of kernel. In a call: the arrays are on two devices, or ``stream``
        is given for host arrays; and what `interop.kernel` says of a launch.
    BufferError
        In a call: a tensor requires grad, or as `interop.asarray`.
    Exception
        In a call: what `kernel` raises, as it is.

    Notes
    -----
    On a GPU the call goes on one stream: ``stream``, else the current one of the library of the first array, else (of
    JAX, or an `interop.Array`) interop's own of the thread. It waits for the streams of all arguments, and they wait
    for it. A kernel of `cuda.core` or CuPy is launched there by its handle. A function of tvm-ffi finds the stream in
    tvm-ffi's environment; Numba is given it; it is torch's current one while Triton launches.

    `returning` has the call make arrays that are written to, as of `interop.kernel`. Where no declaration in C++ says
    their dtype, it is that of the array whose shape they have; of a shape by a function, that of the first array.
    Without it a call returns what `kernel` does, an `interop.Array` as an array of the library of the first one.

    Dtypes and strides are checked where there is a declaration in C++; else `kernel` gets what it is given. What
    `writes` says is believed. No derivative is recorded. It is pickled as `kernel` is.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import tvm_ffi
    >>> import interop
    >>> def double(x, y):
    ...     np.multiply(np.from_dlpack(x), 2, out=np.from_dlpack(y))
    >>> doubled = interop.adopt(tvm_ffi.convert(double), "x, y", writes="y").returning(y="x")
    >>> doubled
    <adopted tvm_ffi.Function(x, y), which writes y>
    >>> doubled(torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    found = _found(kernel)
    if signature is not None and not isinstance(signature, str):
        raise TypeError(f"{_FUNCTION}: signature is {type_name(signature)}; accepted: a str, or None")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"{_FUNCTION}: options is {type_name(options)}; accepted: a mapping of str, or None")
    if isinstance(options, Mapping):
        for key in options:
            if not isinstance(key, str):
                raise TypeError(f"{_FUNCTION}: options has the key {shown(key)}; accepted: names, each a str")
    if writes is not None:
        writes = tuple(names_in(_FUNCTION, writes))
    launch = {
        "grid": grid,
        "threads": threads,
        "block": block,
        "shared": shared,
        "cluster": cluster,
        "cooperative": cooperative,
        "options": options,
    }
    launch = {name: value for name, value in launch.items() if value is not None}
    takes = _OF_KERNELS if isinstance(found, _handles.Handle) else found.takes
    for name in launch:
        if name not in takes:
            raise ValueError(
                f"{_FUNCTION}: {name} is given, which is not for a {found.kind}; accepted: "
                f"{', '.join(takes) or 'no options of a launch'}"
            )
    made_of = (kernel, signature, writes, launch)
    return AdoptedKernel(found, made_of, {}) if isinstance(found, _handles.Handle) else Adopted(found, made_of, {})


_OF_KERNELS = ("grid", "threads", "block", "shared", "cluster", "cooperative")
#: (kernel, signature, writes, launch): what `adopt` is given.
_MadeOf = tuple[Any, str | None, tuple[str | int, ...] | None, dict[str, Any]]
_FINDERS: dict[tuple[str, str], Any] = {
    ("tvm_ffi", "Function"): launchers.TvmFunction,
    ("numba", "CUDADispatcher"): launchers.NumbaKernel,
    ("triton", "KernelInterface"): launchers.TritonKernel,
    ("cupy", "RawKernel"): _handles.of_cupy,
    ("cuda", "Kernel"): _handles.of_cuda_core,
}


def _found(kernel: Any) -> launchers.Launcher | _handles.Handle:
    """Return what `kernel` is, by the names of its type, as none of the libraries is imported for it."""
    for base in type(kernel).__mro__:
        package = str(base.__module__).partition(".")[0]
        finder = _FINDERS.get((package, base.__name__))
        if finder is not None:
            found: launchers.Launcher | _handles.Handle = finder(kernel)
            return found
    raise TypeError(f"{_FUNCTION}: kernel is {shown(kernel)}; accepted: {_ACCEPTED}")


def _places_of(label: str, writes: tuple[str | int, ...], names: list[str]) -> set[int]:
    """Return the places of the parameters that `writes` names; ValueError for one that there is not."""
    places = set()
    for name in writes:
        place = name if isinstance(name, int) else names.index(name) if name in names else -1
        if not 0 <= place < len(names):
            raise ValueError(
                f"{label}: writes has {shown(name)}; accepted: the parameters, {', '.join(names)}, or their positions"
            )
        places.add(place)
    return places


def _again(made_of: _MadeOf, shapes: dict[str, ShapeRule]) -> Any:
    kernel, signature, writes, launch = made_of
    made = adopt(kernel, signature, writes=writes, **launch)
    return made.returning(**shapes) if shapes else made


class Adopted(ArrayFunction):
    """A function or kernel of another library that launches itself; `interop.adopt` makes it, and says how.

    The call takes one argument for each parameter, in order or by name, and the keyword ``stream``; of Numba and Triton
    the options of a launch, too. The arrays are ordered on the call's stream and kept alive as in any call of this
    package; nothing is copied. It returns what the function does; or, after `returning`, arrays.
    """

    _is_declared = False

    def __init__(self, launcher: launchers.Launcher, made_of: _MadeOf, shapes: dict[str, ShapeRule]) -> None:
        """Take what `adopt` found and is given."""
        _, signature, writes, launch = made_of
        label = f"{_FUNCTION}({launcher.name})"
        names = _names_of(label, launcher, signature)
        written = range(len(names)) if writes is None else _places_of(label, writes, names)
        keywords = ("stream", *launcher.takes) if "options" not in launcher.takes else ("stream", "grid")
        for name in names:
            if name in keywords:
                raise ValueError(
                    f"{label}: the parameter {name!r} has the name of a keyword of the call; accepted: another name"
                )
        parameters = [Parameter("array", name, "any", place in written) for place, name in enumerate(names)]
        super().__init__(label, parameters, ("array",), keywords, shapes)
        self._launcher, self._made_of = launcher, made_of
        self.__name__ = self.__qualname__ = launcher.name
        self._text = f"{launcher.title}({', '.join(names)})"
        if writes is not None:
            self._text += f", which writes {', '.join(p.name for p in parameters if p.written) or 'none'}"
        self.__doc__ = self._text
        function = launcher.function(label, names, launch)
        declared = [(p.name, p.written) for p in parameters]
        self._calls = _core.AdoptedFunction(
            label,
            declared,
            function,
            launcher.launches,
            launcher.own,
            launcher.takes_tensors,
            launcher.unpacked,
        )
        self._at_once = self._calls.call  # found once
        self._extents = launcher.extents
        self._is_plain = self._is_direct and launcher.is_plain

    @traced_by(traced_outside, is_method=True)
    def __call__(self, /, *args: Any, stream: StreamLike | None = None, **named: Any) -> Any:
        """Call the function; see the class."""
        if self._is_plain and not named and len(args) == self._count:
            made = self._at_once(args, self._like, _NONE, None, stream, False)
        else:
            made = self._call(args, named, stream, False)
        if made is None or self._shapes:
            return made
        by_name = [named[name] for name in self._given if name in named]  # in the order of the parameters
        return self._handed_over(made, (*args, *by_name), stream)

    def _call(self, args: tuple[Any, ...], named: dict[str, Any], stream: Any, looks: bool) -> Any:
        options = self._launcher.options(self._places, named)
        args, results = self._bind(args, named)
        if self._launcher.has_extents:
            options = self._launch(args, options)

        def core(args: tuple[Any, ...], shapes: dict[int, Any], given: dict[int, Any]) -> Any:
            return self._at_once(args, shapes, given, options, stream, looks)

        return self._run(core, args, results, looks)

    def _handed_over(self, made: Any, args: tuple[Any, ...], stream: Any) -> Any:
        """Return what the function has returned; an array in the library of the first one."""
        if type(made) is tuple:
            return tuple(self._handed_over(x, args, stream) for x in made)
        if type(made) is not _core.Array or any(made is x for x in args):
            return made
        library = next(_core.route(x)[0] for x in args if is_array(x))
        target: Any = library  # one of the names of TARGETS
        return convert(made, target, stream=stream) if library in TARGETS else made

    def _with(self, shapes: dict[str, ShapeRule]) -> Adopted:
        return Adopted(self._launcher, self._made_of, shapes)

    def __repr__(self) -> str:
        return f"<adopted {self._text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._made_of, self._shapes)


def _names_of(label: str, launcher: launchers.Launcher, signature: str | None) -> list[str]:
    names = launcher.parameters()
    if names is None and signature is None:
        raise ValueError(
            f"{label}: a {launcher.kind} does not say its parameters; accepted: signature= with their names, 'x, y, n'"
        )
    if names is not None and signature is not None:
        raise ValueError(
            f"{label}: signature is given, and the {launcher.kind} has its parameters, {', '.join(names)}; "
            "accepted: None"
        )
    return launchers.names_in_signature(label, signature) if names is None else names  # type: ignore[arg-type]


class AdoptedKernel(Kernel):
    """A kernel that another library has loaded, launched by its handle: as any `interop.Kernel`."""

    _maker = _FUNCTION

    def __init__(
        self,
        handle: _handles.Handle,
        made_of: _MadeOf,
        shapes: dict[str, ShapeRule],
        shared: tuple[_handles.LoadedElsewhere, str] | None = None,
    ) -> None:
        """Take what `adopt` found and is given; `shared` is what all those of one adoption have."""
        _, signature, writes, given = made_of
        label = f"{_FUNCTION}({handle.name or handle.kind})"

        def refuse(what: str) -> ValueError:
            return ValueError(f"{label}: {what}")

        if signature is None:
            if handle.name.startswith("_Z"):  # a template, or of a file
                signature = signature_of(handle.name, f"the {handle.kind}", None, refuse)
            elif not handle.code:
                raise refuse(
                    f"a {handle.kind} without a source does not say its parameters; accepted: signature='const float* "
                    "x, float* y, int n', of its own"
                )
        self._handle, self._adopted = handle, made_of
        self._shared = shared or (_handles.LoadedElsewhere(handle), own_key(handle.name or "kernel"))
        launch = (
            given.get("grid"),
            given.get("threads"),
            given.get("block", 256),
            given.get("shared", 0),
            given.get("cluster"),
            given.get("cooperative", handle.cooperative),
            None,
        )
        reads = _reads_of(label, handle, signature, writes, refuse)
        program: Any = self._shared[0]  # which stands in for one of ours
        super().__init__(program.source, handle.name or "kernel", signature, launch, reads, {}, shapes, program)

    def _made_of_content(self) -> tuple[object, ...]:
        return (self._shared[1],)

    def _with(self, shapes: dict[str, ShapeRule]) -> AdoptedKernel:
        return AdoptedKernel(self._handle, self._adopted, shapes, self._shared)

    def __repr__(self) -> str:
        return f"<adopted {self._handle.kind} {self._text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._adopted, self._shapes)


def _reads_of(
    label: str,
    handle: _handles.Handle,
    signature: str | None,
    writes: tuple[str | int, ...] | None,
    refuse: Callable[[str], ValueError],
) -> tuple[str, ...]:
    """Return the pointers without ``const`` that `writes` does not name."""
    if writes is None:
        return ()
    _, parameters = parameters_of(handle.code, handle.name, signature, refuse)
    places = _places_of(label, writes, [p.name for p in parameters])
    for place in places:
        if not parameters[place].written:
            accepted = ", ".join(p.name for p in parameters if p.written) or "()"
            name = parameters[place].name
            raise refuse(f"writes has {name!r}, which is only read as it is declared; accepted: {accepted}")
    return tuple(p.name for place, p in enumerate(parameters) if p.written and place not in places)


_NONE: dict[Any, Any] = {}  # of the results none is given
