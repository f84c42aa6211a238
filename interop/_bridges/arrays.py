"""Tensors as JAX's arrays and back, for `interop.bridge`: the same memory, in stream order."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from interop import _core
from interop._libraries.base import FUNCTION
from interop._libraries.jax import is_unaligned, is_wide
from interop._libraries.known import TARGETS
from interop.torch._operator_function import compact
from interop.torch._tensors import exact, name_of

__all__ = ["Setting", "check_width", "has_torch", "keeping_device", "not_compact", "to_jax", "to_torch"]

_JAX, _TORCH = TARGETS["jax"], TARGETS["torch"]


class Setting(NamedTuple):
    """What of JAX's configuration belongs to a thread. Torch computes gradients on threads of its own."""

    x64: bool
    precision: Any

    @classmethod
    def of_now(cls) -> Setting:
        return cls(jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context with this setting."""
        if self == Setting.of_now():
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(jax.enable_x64(self.x64))
        stack.enter_context(jax.default_matmul_precision(self.precision))
        return stack


def keeping_device() -> contextlib.AbstractContextManager[Any]:
    """Return a context after which the current device is what it was: JAX makes that of its arrays current."""
    if torch.cuda.is_initialized() and torch.cuda.device_count() > 1:
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(torch.cuda.current_device())
        return context
    return contextlib.nullcontext()


def to_jax(label: str, name: str, x: torch.Tensor) -> Any:
    """Return JAX's array of a tensor's memory, or of a compact copy on its device where JAX cannot take that."""
    x = _exact(x)
    check_width(label, name, name_of(x.dtype))
    x = compact(x)
    array = _core.asarray(x, label, None, name)
    if is_unaligned(array):
        array = _core.asarray(x.clone(memory_format=torch.contiguous_format), label, None, name)
    try:
        return _JAX.take_within(label, jax, array, None)
    except (TypeError, ValueError) as error:
        raise type(error)(_said(label, name, error)) from error.__cause__


def not_compact(x: torch.Tensor) -> str | None:
    """Say why `to_jax` copies a tensor; None where it does not."""
    if x.is_conj() or x.is_neg():
        return "is lazily conjugated or negated"
    if not x.is_contiguous():
        return "is not contiguous in row-major order"
    x = _exact(x)
    if is_unaligned(_core.asarray(x, "interop.explain")):
        return "is at an address that XLA does not take"
    return None


def to_torch(label: str, name: str, x: Any) -> torch.Tensor:
    """Return the tensor of an array's memory."""
    view = _core.asarray(x, label, None, name)
    try:
        tensor: torch.Tensor = _TORCH.take_within(label, torch, view, None)
    except (TypeError, ValueError) as error:
        raise type(error)(_said(label, name, error)) from error.__cause__
    return tensor


@functools.lru_cache(256)
def has_torch(dtype: Any) -> bool:
    """Has torch a dtype of JAX's? It has none of keys of random numbers, and no arrays of 4 bits."""
    name = str(dtype)
    return isinstance(getattr(torch, name, None), torch.dtype) and not name.endswith(("int2", "int4"))


def check_width(label: str, name: str, dtype: str) -> None:
    """Raise TypeError for a dtype that JAX has in its 64-bit mode alone: it would compute in 32 bits."""
    if dtype in _NARROW and not jax.config.jax_enable_x64:
        raise TypeError(
            f"{label}: {name} is {dtype}, which JAX has in its 64-bit mode alone; accepted: {_NARROW[dtype]}, or "
            'jax.config.update("jax_enable_x64", True)'
        )


_NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32", "uint64": "uint32"}
assert all(is_wide(np.dtype(name)) for name in _NARROW)


def _exact(x: torch.Tensor) -> torch.Tensor:
    exactly: Any = exact(x)
    tensor: torch.Tensor = exactly.detach() if exactly.requires_grad else exactly
    return tensor


def _said(label: str, name: str, error: Exception) -> str:
    said = str(error).removeprefix(f"{FUNCTION}: ").replace("x is ", f"{name} is ", 1)
    return f"{label}: {name}: {said}"
