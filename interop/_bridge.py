"""Functions of JAX in torch, and of torch in JAX, with their derivatives: `interop.bridge`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

from interop._adapt import adapt, qualified_name
from interop._arguments import named, shown
from interop._functions.callables import check_callable, name_of
from interop._traced import traced_by

__all__ = ["Bridge", "bridge"]

_FUNCTION = "interop.bridge"
_FROM = {"torch": "jax", "jax": "torch"}


@named("interop.bridge")
def bridge(function: Callable[..., Any], /, *, to: Literal["torch", "jax"]) -> Bridge:
    """Make a function of JAX one of torch, or the other way round, which the other library differentiates.

    Parameters
    ----------
    function : callable
        With ``to="torch"`` a function of JAX, as `jax.jit` takes it: it is compiled. With ``to="jax"`` a function of
        torch, or a module. Its arguments and results are arrays, in tuples, lists, dicts and other pytrees of JAX.
    to : "torch" or "jax"
        Whose arrays it is to take, and to return.

    Returns
    -------
    Bridge
        The function of the other library's arrays.

    Raises
    ------
    TypeError
        `function` is not callable. In a call: an array is of a library that is neither of the two, or is float64 or of
        another dtype that JAX has in its 64-bit mode alone, which is off; or a value that is no array has no hash; or
        the function of torch has written to an argument.
    ValueError
        `to` has no such value. In a call: the arrays are on two devices.
    NotImplementedError
        In a call: torch or JAX has no such derivative.
    ImportError
        In a call: JAX or torch is not installed.
    Exception
        In a call: what `function` raises, as it is.

    Notes
    -----
    Arrays are passed in stream order, without a copy, and the host does not wait. What is no array is static: a number,
    a string or a function is fixed in what is compiled, and another value is another program.

    Values, gradients and tangents are those of `function`, by the library that it is of, in every order: under
    `torch.autograd`, with ``create_graph`` and forward-mode dual tensors, under `torch.func`, and under `jax.grad`,
    `jax.vjp`, `jax.jvp` and `jax.vmap`.

    Examples
    --------
    >>> import jax
    >>> import torch
    >>> import interop
    >>> norm = interop.bridge(lambda x: jax.numpy.sqrt((x**2).sum()), to="torch")
    >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> norm(x).backward()
    >>> x.grad
    tensor([0.6000, 0.8000])
    """
    check_callable(_FUNCTION, function)
    if not isinstance(to, str) or to not in _FROM:
        raise ValueError(f"{_FUNCTION}: to is {shown(to)}; accepted: {', '.join(map(repr, _FROM))}")
    return Bridge(function, to)


def _traced(bridge: Bridge, /, *args: Any, **kwargs: Any) -> Any:
    from interop._bridges import tracing  # by torch's compiler, as it traces

    return tracing.call(bridge, args, kwargs)


class Bridge:
    """A function of JAX for tensors, or of torch for JAX's arrays; `interop.bridge` makes it."""

    def __init__(self, function: Callable[..., Any], to: str) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function, self._to = function, to
        self._label = f"{_FUNCTION}({name_of(function)})"
        with contextlib.suppress(TypeError, ValueError):  # some built-in functions have none
            self.__signature__ = inspect.signature(function)

    @traced_by(_traced, is_method=True)
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._door(args, kwargs)

    @functools.cached_property
    def _door(self) -> Any:
        """What calls the function: it is made by the first call, which loads both libraries."""
        from interop._libraries.known import TARGETS

        for library in _FROM:
            TARGETS[library].load_for(self._label)
        if self._to == "torch":
            from interop._bridges.from_jax import FromJax

            return FromJax(self._label, self._function)
        from interop._bridges.from_torch import FromTorch

        return FromTorch(self._label, self._function, _by_xla)

    def __repr__(self) -> str:
        module = getattr(self._function, "__module__", None)
        name = name_of(self._function)
        return f"{_FUNCTION}({f'{module}.{name}' if module else name}, to={self._to!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bridge) and (self._function, self._to) == (other._function, other._to)

    def __hash__(self) -> int:
        return hash((Bridge, self._function, self._to))

    def __reduce__(self) -> str | tuple[Any, ...]:
        return qualified_name(self) or (_again, (self._function, self._to))


def _by_xla(function: Callable[..., Any], arrays: Any, kinds: Any) -> Any:
    """Call a function of tensors in what XLA compiles."""
    from interop.jax._call import call

    return call(adapt(function, "torch", writes=()), *arrays, out=kinds)


def _again(function: Any, to: Any) -> Bridge:
    return bridge(function, to=to)
