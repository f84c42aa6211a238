"""A function of JAX as one of tensors: `interop.bridge(f, to="torch")`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from interop._arguments import type_name
from interop._bridges.arrays import check_width, not_compact
from interop._bridges.autograd import Call
from interop._bridges.jax_programs import Program
from interop._bridges.names import Names
from interop._bridges.static import static
from interop.torch._tensors import EXACT, modes, name_of

__all__ = ["FromJax"]

_TENSOR, _ARRAY = object(), object()  # what stands where in a key


class FromJax:
    """What calls a function of JAX with tensors. Each structure of arguments has a program, of which 256 are kept."""

    def __init__(self, label: str, function: Callable[..., Any]) -> None:
        self.label, self.function = label, function
        self._program = functools.lru_cache(256)(self._program_of)
        self._names = Names(function).of

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function: the arrays of its result are tensors."""
        call, tensors = self.prepared(args, kwargs)
        made = call(*tensors)
        return jax.tree.unflatten(call.tree, made)

    def prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, list[torch.Tensor]]:
        """Return the call, and the tensors that it is to be made with."""
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        all_names = self._names(tree)
        tensors: list[torch.Tensor] = []
        names, others, kinds = [], [], []
        for name, x in zip(all_names, leaves, strict=True):
            if isinstance(x, torch.Tensor):
                _check(self.label, name, x)
                names.append(name)
                tensors.append(x)
                kinds.append(_TENSOR)
            elif isinstance(x, jax.Array):
                others.append(x)
                kinds.append(_ARRAY)
            else:
                kinds.append(static(self.label, name, x, "torch.Tensor, jax.Array"))
        _check_devices(self.label, names, tensors)
        if _is_followed():
            raise TypeError(
                f"{self.label}: torch traces what is computed, or computes without memory, and cannot look into JAX; "
                "accepted: a call outside of torch.compile(fullgraph=True), torch.export, torch.jit.trace, fake tensors"
            )
        return Call(self.label, names, self._program(tree, tuple(kinds)), tuple(others)), tensors

    def _program_of(self, tree: Any, kinds: tuple[Any, ...]) -> Program:
        function = self.function

        def called(others: tuple[Any, ...], *arrays: Any) -> Any:
            given, more = iter(arrays), iter(others)
            leaves = [
                next(given) if kind is _TENSOR else next(more) if kind is _ARRAY else kind.value for kind in kinds
            ]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return jax.tree.map(functools.partial(_array, self.label), function(*args, **kwargs))

        return Program(called)

    # ---- for `interop.explain` ----

    def explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[str]]:
        """Return the tensors by name, and which are copied."""
        call, tensors = self.prepared(args, kwargs)
        named = [*zip(call.names, tensors, strict=True)]
        found = [(name, not_compact(x)) for name, x in named]
        return named, [f"{name}: made compact on its device, as it {why}" for name, why in found if why is not None]


def _is_followed() -> bool:
    """Does torch follow what is computed, in place of the memory, or beside it?"""
    if modes() == 0:
        return bool(torch.jit.is_tracing())
    kinds = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(kind) for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL))


def _check(label: str, name: str, x: torch.Tensor) -> None:
    """Raise TypeError for a tensor that JAX cannot be given."""
    if type(x) not in EXACT and type(x).__torch_dispatch__ is not _OWN_DISPATCH:
        raise TypeError(
            f"{label}: {name} is {type_name(x)}, which says itself what operations mean; accepted: torch.Tensor"
        )
    if x.layout is not torch.strided:
        raise TypeError(f"{label}: {name} is {x.layout}; accepted: a dense tensor, as {name}.to_dense()")
    check_width(label, name, name_of(x.dtype))


_OWN_DISPATCH = torch.Tensor.__torch_dispatch__


def _array(label: str, x: Any) -> Any:
    """Return what the function has returned as an array."""
    if not isinstance(x, jax.Array | np.ndarray | np.number | np.bool_ | bool | int | float | complex):
        raise TypeError(f"{label}: the result has {type_name(x)}; accepted: arrays, in tuples, lists and dicts")
    return jax.numpy.asarray(x)


def _check_devices(label: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    for name, x in zip(names, tensors, strict=True):
        if x.device != tensors[0].device:
            raise ValueError(
                f"{label}: {names[0]} is on {tensors[0].device} and {name} is on {x.device}; accepted: all tensors on "
                "one device"
            )
