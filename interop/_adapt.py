"""Functions of one array library for the arrays of all: `interop.adapt`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from interop._arguments import named, shown
from interop._convert import target_of
from interop._functions.callables import check_callable, inner, name_of
from interop._functions.nested import PLAIN
from interop._streams import StreamLike
from interop._traced import traced_by, traced_outside

__all__ = ["Adapted", "adapt", "qualified_name"]

_FUNCTION = "interop.adapt"


@named("interop.adapt")
def adapt(
    function: Callable[..., Any],
    library: Literal["torch", "cupy", "jax", "numpy", "numba", "warp", "interop"],
    /,
    *,
    writes: str | int | Iterable[str | int] | None = None,
    copy: Literal[False] | None = False,
) -> Adapted:
    """Make a function that takes one library's arrays take those of any, in stream order, without a copy.

    Parameters
    ----------
    function : callable
        A function of `library`, such as ``cupyx.scipy.fft.fft``, or one over its arrays.
    library : "torch", "cupy", "jax", "numpy", "numba", "warp" or "interop"
        Whose arrays `function` takes. It is imported by the first call.
    writes : name or position of a parameter, or several of these, optional
        What `function` writes to; ``()`` where it writes to nothing. By default it may be any argument. A name that
        `inspect.signature` does not find is that of a keyword, and of any argument that ``*`` takes, unless a position
        says which: ``("out", 2)``.
    copy : False or None, default False
        None: an array that `library` cannot take as it is, and that is only read, is copied: to the device, to the
        host, or into another layout. So are results that the library of the first array cannot take.

    Returns
    -------
    Adapted
        A function with the arguments of `function`, and ``stream``, which is the call's also where `function` has a
        parameter of that name. It returns what `function` returns.

    Raises
    ------
    TypeError
        An argument is of another type, or `function` is a generator or async function. In a call: an array is not for
        `library`, as device memory is not for NumPy; or it is read-only, as all of JAX's are, and `function` may write
        to it; or the result is a generator or a coroutine.
    ValueError
        `library` or `copy` has no such value, or `function` has no parameter that `writes` names. In a call: the arrays
        are on two devices, their layout is not for `library`, ``stream`` is given for host arrays, or a list with
        arrays in it holds itself.
    BufferError
        In a call: a tensor requires grad, or as `interop.asarray`.
    ImportError
        In a call: `library` is not installed.
    Exception
        In a call: what `function` raises, as it is.

    Notes
    -----
    Arrays are found in positional and keyword arguments and, however deep, in tuples, lists, dicts, named tuples and
    dataclasses within; all else is passed on. An array of another library is passed as that of `library` on the same
    memory, so writes to it land in the caller's; what holds one is copied. In the result, in the same places, arrays of
    `library` become those of the library of the first array among the arguments, and an array that was an argument is
    the caller's own. Where the first array is of `library`, results stay as they are.

    On a GPU the call goes on one stream: ``stream``, else the current one of the library of the first array, else (of
    JAX, or an `interop.Array`) that of `library`. It is the current one of `library` meanwhile, as is the device of the
    arrays. It waits for the streams of all arguments, and for the one that was current, for arrays that `function` is
    bound to; and they wait for it, but of these arrays not with ``stream``. Numba and JAX have no current stream to be
    told: Numba's functions work on its default stream, JAX's on XLA's own. What `function` queues on other streams is
    its own to join with the current one.

    No derivative is recorded, unless the first array is of `library`.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import interop
    >>> convolve = interop.adapt(np.convolve, "numpy", writes=())
    >>> convolve(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.5]))
    tensor([0.5000, 1.5000, 2.5000, 1.5000])
    """
    from interop._functions.adapted import Foreign
    from interop._functions.written import Written

    check_callable(_FUNCTION, function)
    target = target_of(_FUNCTION, library)
    if copy is not None and copy is not False:
        raise ValueError(f"{_FUNCTION}: copy is {shown(copy)}; accepted: False, or None for copies where one is needed")
    label = f"{_FUNCTION}({name_of(function)})"
    if writes is not None and not isinstance(writes, str | int):
        writes = tuple(writes) if isinstance(writes, Iterable) else writes
    return Adapted(Foreign(label, function, target, Written(_FUNCTION, function, writes), copy is None), writes)


class Adapted:
    """A function of one library that takes the arrays of any; `interop.adapt` makes it, and says what it takes."""

    def __init__(self, foreign: Any, writes: Any) -> None:
        functools.update_wrapper(self, foreign.function, updated=())
        self._foreign, self._writes = foreign, writes
        self._owns, self._module = foreign.target.owns, None
        signature = _with_stream(foreign.function)
        if signature is not None:
            self.__signature__ = signature

    @traced_by(traced_outside, is_method=True)
    def __call__(self, /, *args: Any, stream: StreamLike | None = None, **kwargs: Any) -> Any:
        """Call the function."""
        module = self._module
        if module is None:
            module = self._module = self._foreign.target.load_for(self._foreign.label)
        if stream is None:
            owns = self._owns
            for x in args:
                if type(x) not in PLAIN and not owns(module, x):
                    break
            else:
                for x in kwargs.values():
                    if type(x) not in PLAIN and not owns(module, x):
                        break
                else:
                    return self._foreign.function(*args, **kwargs)
        return self._call(args, kwargs, stream).run()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: StreamLike | None) -> Any:
        module = self._module or self._foreign.target.load_for(self._foreign.label)
        return self._foreign.call(module, args, kwargs, stream)

    def __repr__(self) -> str:
        foreign = self._foreign
        given = [f"writes={self._writes!r}"] * (self._writes is not None) + ["copy=None"] * foreign.copies
        module = getattr(inner(foreign.function), "__module__", None)
        name = f"{module}.{name_of(foreign.function)}" if module else name_of(foreign.function)
        return f"{_FUNCTION}({', '.join([name, repr(foreign.target.name), *given])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adapted) and self._made_of() == other._made_of()

    def __hash__(self) -> int:
        return hash((Adapted, self._foreign.function, self._foreign.target.name))

    def _made_of(self) -> tuple[Any, ...]:
        foreign = self._foreign
        return foreign.function, foreign.target.name, self._writes, None if foreign.copies else False

    def __reduce__(self) -> str | tuple[Any, ...]:
        return qualified_name(self) or (_again, self._made_of())


def qualified_name(x: Any) -> str | None:
    """Return the name under which a module has this object, in the place of the function that it wraps, if one has."""
    found: Any = sys.modules.get(getattr(x, "__module__", ""))
    name: str = getattr(x, "__qualname__", "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is x else None


def _again(function: Any, library: Any, writes: Any, copy: Any) -> Adapted:
    return adapt(function, library, writes=writes, copy=copy)


def _with_stream(function: Any) -> inspect.Signature | None:
    """Return the signature of the call; None where that of the function is not known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [p for p in signature.parameters.values() if p.name != "stream"]
    place = next((k for k, p in enumerate(parameters) if p.kind is p.VAR_KEYWORD), len(parameters))
    parameters.insert(place, inspect.Parameter("stream", inspect.Parameter.KEYWORD_ONLY, default=None))
    return signature.replace(parameters=parameters)
