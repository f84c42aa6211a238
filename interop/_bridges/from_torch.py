"""A function of torch as one of JAX's arrays: `interop.bridge(f, to="jax")`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from interop._bridges.arrays import check_width
from interop._bridges.names import Names
from interop._bridges.primitive import call
from interop._bridges.static import static
from interop._bridges.torch_programs import Function

__all__ = ["FromTorch"]

_ARRAY = object()  # what stands where in a key


class FromTorch:
    """What calls a function of torch with JAX's arrays. Each structure and shapes of arguments have a program."""

    def __init__(self, label: str, function: Callable[..., Any], by_xla: Callable[..., Any]) -> None:
        self.label, self.function, self._by_xla = label, function, by_xla
        self._program = functools.lru_cache(1024)(self._program_of)
        self._names = Names(function).of

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function: the tensors of its result are arrays."""
        program, arrays = self.prepared(args, kwargs)
        made = call(program, *arrays)
        return jax.tree.unflatten(program.tree, made)

    def prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Function, list[Any]]:
        """Return the program, and the arrays that it is to be called with."""
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        names, arrays = [], []
        kinds: list[Any] = []
        for name, x in zip(self._names(tree), leaves, strict=True):
            if isinstance(x, jax.Array | np.ndarray):
                check_width(self.label, name, str(x.dtype))
                names.append(name)
                arrays.append(x if isinstance(x, jax.Array) else jax.numpy.asarray(x))
                kinds.append(_ARRAY)
            else:
                kinds.append(static(self.label, name, x, "jax.Array, numpy.ndarray"))
        # Of other shapes the result may have another structure.
        shapes = tuple((tuple(x.shape), str(x.dtype)) for x in arrays)
        return self._program(tree, tuple(kinds), tuple(names), shapes), arrays

    def _program_of(self, tree: Any, kinds: tuple[Any, ...], names: tuple[str, ...], _: Any) -> Function:
        def call(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            leaves = [next(given) if kind is _ARRAY else kind.value for kind in kinds]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return function(*args, **kwargs)

        return Function(self.label, names, self._by_xla, self.function, call)

    # ---- for `interop.explain` ----

    def explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[str]]:
        """Return the arrays by name, and which are copied."""
        program, arrays = self.prepared(args, kwargs)
        return [*zip(program.names, arrays, strict=True)], []
