"""How an operator is cut over several devices: by its leading axes, the letters of `cut=`, and those of sums."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.sharding
from jax.experimental.custom_partitioning import custom_partitioning

from interop._libraries.jax import keeping
from interop._operators.signature import Operand
from interop.jax._operator_forms import Form, sum_dtype
from interop.jax._partition import axes_of, cuts_of, refuse_part_of_mesh, sharding_of

__all__ = ["on_mesh", "partitioned"]

_Shapes = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=1024)
def partitioned(form: Form, operands: _Shapes, results: _Shapes) -> Callable[..., Any]:
    """Return the call for arrays of those shapes, with the rule by which XLA cuts it."""
    parts = _Parts(form, operands, results)
    call = custom_partitioning(form.compute)
    call.def_partition(
        partition=parts.partition,
        infer_sharding_from_operands=parts.infer,
        sharding_rule=parts.rule,
        need_replication_factors=tuple(parts.whole),
        reduction_factors=parts.sums,
    )
    return call


class _Parts:
    """The indices of operands and results: one for each axis that may be cut, and others that are whole."""

    def __init__(self, form: Form, operands: _Shapes, results: _Shapes) -> None:
        self._form = form
        self.whole: list[str] = []
        self._shared: dict[str, str] = {}  # by a letter, or the place of a leading axis from the left
        self._sizes: dict[str, int] = {}
        may_be_cut = form.description.cut | frozenset(form.sums)
        self._count = 0
        self.operands = [self._indices(x, s, may_be_cut) for x, s in zip(form.operands, operands, strict=True)]
        self.results = [self._indices(x, s, may_be_cut) for x, s in zip(form.results, results, strict=True)]
        self.sums = tuple(self._shared[letter] for letter in form.sums if letter in self._shared)
        left, right = (", ".join(" ".join(x) for x in side) for side in (self.operands, self.results))
        self.rule = f"{left} -> {right}"

    def _indices(self, operand: Operand, shape: tuple[int, ...], may_be_cut: frozenset[str]) -> tuple[str, ...]:
        axes = list(operand.axes or ())
        leading = len(shape) - len(axes) + 1 if operand.has_leading else 0
        found = []
        for place, size in enumerate(shape):
            axis = f"...{place}" if place < leading else axes[place - len(shape)]
            shared = self._form.description.maps_leading if place < leading else axis in may_be_cut
            index = self._shared.get(str(axis)) if shared else None
            if index is None:
                index = f"i{self._count}"
                self._count += 1
                if shared:
                    self._shared[str(axis)] = index
                else:
                    self.whole.append(index)
            self._sizes[index] = size
            found.append(index)
        return tuple(found)

    def _cuts(self, mesh: Any, *given: tuple[Sequence[tuple[str, ...]], Any]) -> dict[str, tuple[str, ...]]:
        pairs = [(x, place.sharding) for indices, places in given for x, place in zip(indices, places, strict=True)]
        return cuts_of(mesh, self._sizes, self.whole, *pairs)

    def infer(self, mesh: Any, arguments: Any, results: Any) -> Any:
        cuts = self._cuts(mesh, (self.operands, arguments))
        return tuple(sharding_of(mesh, x, cuts) for x in self.results)

    def partition(self, mesh: Any, arguments: Any, results: Any) -> Any:
        cuts = self._cuts(mesh, (self.results, results), (self.operands, arguments))
        shardings = tuple(sharding_of(mesh, x, cuts) for x in self.operands)
        made = tuple(sharding_of(mesh, x, cuts) for x in self.results)
        return mesh, self._of_parts(cuts), made, shardings

    def _of_parts(self, cuts: dict[str, tuple[str, ...]]) -> Callable[..., Any]:
        """Return the call for parts: a result without an axis that is cut is the sum of those of the parts."""
        missing = [tuple(axis for index in cuts if index not in own for axis in cuts[index]) for own in self.results]

        def call(*operands: Any) -> tuple[Any, ...]:
            made = self._form.compute(*operands)
            return tuple(_sum_over(x, axes) if axes else x for x, axes in zip(made, missing, strict=True))

        return call


def _sum_over(x: Any, axes: tuple[str, ...]) -> Any:
    with keeping(x.dtype):  # XLA calls this, outside of the user's x64 mode
        total = jax.lax.psum(x.astype(sum_dtype(x.dtype)), axes)
        return total != 0 if x.dtype == bool else total.astype(x.dtype)


# ---- meshes whose types say how an array is cut ----


def on_mesh(form: Form, call: Callable[..., Any], *operands: Any) -> Any:
    """Compute results of arrays whose types may say how they are cut.

    JAX cuts inside, and the types of the results say what follows from those of the operands. Raises ValueError where
    one axis of the mesh would cut two dimensions of a result, NotImplementedError inside a `jax.shard_map` over some.
    """
    meshes = [mesh for x in operands if (mesh := jax.typeof(x).sharding.mesh).explicit_axes]
    if not meshes:
        return call(*operands)
    if manual := meshes[0].manual_axes:
        refuse_part_of_mesh(form.label, meshes[0], manual)
    facts = form.facts(operands)
    parts = _Parts(form, tuple(x.shape for x in operands), tuple(shape for shape, _ in facts))
    cuts: dict[str, tuple[str, ...]] = {}
    for indices, x in zip(parts.operands, operands, strict=True):
        for index, axes in zip(indices, axes_of(jax.typeof(x).sharding, x.ndim), strict=True):
            if axes and index not in parts.whole:
                cuts.setdefault(index, axes)
    places = []
    for operand, indices in zip(form.results, parts.results, strict=True):
        used: set[str] = set()
        for index in indices:
            again = used & set(cuts.get(index, ()))
            if again:
                kinds = ", ".join(f"{x.name} is {jax.typeof(y)}" for x, y in zip(form.operands, operands, strict=True))
                raise ValueError(
                    f"{form.label}: {kinds}: the mesh's axis {min(again)!r} would cut two dimensions of "
                    f"{operand.name}; accepted: another sharding of one, by jax.sharding.reshard"
                )
            used.update(cuts.get(index, ()))
        places.append(sharding_of(meshes[0], indices, cuts))
    auto: Any = jax.sharding.auto_axes
    return auto(lambda *given: tuple(call(*given)), axes=meshes[0].explicit_axes, out_sharding=tuple(places))(*operands)
