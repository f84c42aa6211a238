"""What a function of torch returns, found by a call with tensors that have no memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch

__all__ = ["results_of"]


def results_of(
    label: str,
    function: Callable[..., Any],
    given: Sequence[Any],
    run: Callable[[Callable[..., Any], list[torch.Tensor]], Any],
) -> Any:
    """Return what `run(function, tensors)` does, for tensors of these shapes and dtypes.

    A module is a copy then, which may count its calls, and keep what it makes in them.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    first: Exception | None = None
    for device in _devices(function):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                kinds = [(x.shape, getattr(torch, str(x.dtype))) for x in given]
                tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds]
                return run(_copy(function, mode, {}) if isinstance(function, torch.nn.Module) else function, tensors)
        except Exception as error:
            first = first or error
    raise NotImplementedError(
        f"{label}: what it returns inside jax.jit is found by a call with tensors that have no memory, and that raised "
        f"{type(first).__name__}: {first}; accepted: operations that torch can trace"
    ) from first


def _devices(function: Callable[..., Any]) -> Iterator[torch.device]:
    """Give the devices that the arrays may be on, of which nothing is known as JAX traces: the likely one first."""
    if isinstance(function, torch.nn.Module):
        for x in itertools.chain(function.parameters(), function.buffers()):
            yield x.device
            return
    default = jax.config.jax_default_device
    platform = getattr(default, "platform", default) or jax.default_backend()
    if platform in ("gpu", "cuda") and torch.cuda.is_available():
        yield torch.device("cuda")
    yield torch.device("cpu")


def _copy(module: torch.nn.Module, mode: Any, made: dict[int, Any]) -> Any:
    """Return a module whose parameters and buffers have no memory, and which shares all else; `made` are copies."""
    if id(module) in made:
        return made[id(module)]
    copy = made[id(module)] = _empty(module)
    if copy is module:
        return module
    own = vars(module)
    vars(copy).update(own)
    for kind in ("_parameters", "_buffers"):
        vars(copy)[kind] = {name: None if x is None else mode.from_tensor(x) for name, x in own[kind].items()}
    vars(copy)["_modules"] = {
        name: None if child is None else _copy(child, mode, made) for name, child in own["_modules"].items()
    }
    return copy


def _empty(module: torch.nn.Module) -> Any:
    with contextlib.suppress(TypeError, AttributeError, RuntimeError):
        if not isinstance(module, torch.jit.ScriptModule):  # which is not of Python
            return object.__new__(type(module))
    return module
