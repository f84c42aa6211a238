"""Functions of JAX as programs of arrays by position: compiled, differentiated and mapped, for `interop.bridge`.

Cotangents have the sign that torch gives the imaginary part of a gradient, which is not JAX's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

__all__ = ["Program"]

_Arrays = tuple[Any, ...]
_T = TypeVar("_T")


class Program:
    """A function of arrays. Its derivatives and its batches are programs, too.

    `function(others, *arrays)` returns a pytree of arrays. By `others`, arrays in a tuple, nothing is differentiated or
    mapped. JAX traces it once for each set of shapes and dtypes; so it does each derivative.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        #: Compute: `run(others, *arrays)` returns what the function does.
        self.run = jax.jit(function)
        #: Return the gradients of what `recording` has kept; see `_pull`.
        self.pull = jax.jit(_pull, static_argnums=(0, 1))
        self._derived: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def _once(self, key: Any, make: Callable[[], _T]) -> _T:
        found: Any = self._derived.get(key)
        if found is None:
            with self._lock:  # else two threads would trace it
                found = self._derived.get(key)
                if found is None:
                    found = self._derived[key] = make()
        made: _T = found
        return made

    def _by(self, others: _Arrays, inputs: _Arrays, places: Sequence[int]) -> Callable[..., Any]:
        """Return the function of the inputs at these places alone."""

        def moved(*some: Any) -> Any:
            return self.function(others, *_with(inputs, places, some))

        return moved

    # ---- derivatives ----

    def gradients(self, count: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> Program:
        """Return the program of `count` inputs, and the cotangents of the results that are `given`.

        Its results are the cotangents of the inputs that are `wanted`.
        """

        def gradients(others: _Arrays, *arrays: Any) -> _Arrays:
            inputs, cotangents = arrays[:count], arrays[count:]
            moved = self._by(others, inputs, wanted)

            def some(*values: Any) -> list[Any]:
                leaves = jax.tree.leaves(moved(*values))
                return [leaves[place] for place in given]

            _, pullback = jax.vjp(some, *(inputs[place] for place in wanted))
            return tuple(map(_conj, pullback([*map(_conj, cotangents)])))

        return self._once((gradients.__name__, count, wanted, given), lambda: Program(gradients))

    def tangents(self, count: int, moved: tuple[int, ...]) -> Program:
        """Return the program of `count` inputs, and the tangents of those that are `moved`.

        Its results are the tangents of the results that are floating-point or complex.
        """

        def tangents(others: _Arrays, *arrays: Any) -> _Arrays:
            inputs = arrays[:count]
            function = self._by(others, inputs, moved)
            given = tuple(inputs[place] for place in moved)

            def inexact(*some: Any) -> list[Any]:
                return [x for x in jax.tree.leaves(function(*some)) if _is_inexact(x)]

            return tuple(jax.jvp(inexact, given, arrays[count:])[1])

        return self._once((tangents.__name__, count, moved), lambda: Program(tangents))

    def mapped(self, dims: tuple[int | None, ...]) -> Program:
        """Return the program that is mapped over these dimensions of the inputs, and dimension 0 of the results."""

        def mapped(others: _Arrays, *arrays: Any) -> Any:
            return jax.vmap(lambda *some: self.function(others, *some), in_axes=dims)(*arrays)

        return self._once((mapped.__name__, dims), lambda: Program(mapped))

    def recording(self, wanted: tuple[int, ...]) -> Callable[..., tuple[Any, Any]]:
        """Return a function that runs the program, and keeps what the gradients of the `wanted` inputs need.

        It returns the result, and a `jax.tree_util.Partial` of a `Kept` and the arrays that are kept beside the inputs
        and the results.
        """

        def recording(others: _Arrays, *inputs: Any) -> tuple[Any, Any]:
            function = self._by(others, inputs, wanted)
            tree: Any = None

            def moved(*some: Any) -> tuple[list[Any], list[Any]]:
                nonlocal tree
                leaves, tree = jax.tree.flatten(function(*some))
                return [x for x in leaves if _is_inexact(x)], leaves

            floats, pullback, leaves = jax.vjp(moved, *(inputs[place] for place in wanted), has_aux=True)
            left = iter(floats)
            results = [next(left) if _is_inexact(x) else x for x in leaves]
            residuals, structure = jax.tree.flatten(pullback)
            # What is an input or a result is not kept twice.
            known = {id(x): ("input", place) for place, x in enumerate(inputs)}
            known |= {id(x): ("result", place) for place, x in enumerate(results)}
            arrays: list[Any] = []
            constants: list[Any] = []  # such as an array that the function closes over
            sources = []
            for x in residuals:
                if id(x) not in known:
                    where, these = ("kept", arrays) if isinstance(x, jax.core.Tracer) else ("constant", constants)
                    known[id(x)] = (where, len(these))
                    these.append(x)
                sources.append(known[id(x)])
            kinds = [(tuple(x.shape), x.dtype) for x in floats]
            places = [place for place, x in enumerate(results) if _is_inexact(x)]
            kept = Kept(structure, tuple(sources), constants, dict(zip(places, kinds, strict=True)))
            return jax.tree.unflatten(tree, results), jax.tree_util.Partial(kept, *arrays)

        compiled: Callable[..., tuple[Any, Any]] = self._once((recording.__name__, wanted), lambda: jax.jit(recording))
        return compiled


class Kept:
    """How the gradients of one traced call are computed: it is the same object for each call of these shapes."""

    def __init__(
        self, structure: Any, sources: tuple[tuple[str, int], ...], constants: list[Any], kinds: dict[int, Any]
    ) -> None:
        #: `sources`: of each residual, whether it is an "input", a "result", "constant" or "kept", and its place there.
        self.structure, self.sources, self.constants, self.kinds = structure, sources, constants, kinds
        self.used = frozenset(sources)

    def __call__(self) -> None:
        """Nothing: a `Partial` wants a callable."""


def _pull(kept: Kept, wanted: tuple[int, ...], residuals: Sequence[Any], cotangents: dict[int, Any]) -> tuple[Any, ...]:
    """Return the gradients at the `wanted` places among those that were recorded.

    `cotangents`: of the results by their places; those that are absent are 0.
    """
    pullback = jax.tree.unflatten(kept.structure, residuals)
    given = [
        _conj(cotangents[place]) if place in cotangents else jax.numpy.zeros(shape, dtype)
        for place, (shape, dtype) in kept.kinds.items()
    ]
    made = pullback(given)
    return tuple(_conj(made[place]) for place in wanted)


def _conj(x: Any) -> Any:
    return jax.numpy.conj(x) if jax.numpy.issubdtype(x.dtype, np.complexfloating) else x


def _is_inexact(x: Any) -> bool:
    return bool(jax.numpy.issubdtype(x.dtype, np.inexact))


def _with(values: _Arrays, places: Sequence[int], some: Sequence[Any]) -> _Arrays:
    """Return the values with others at these places."""
    made = list(values)
    for place, x in zip(places, some, strict=True):
        made[place] = x
    return tuple(made)
