"""A foreign function as a step of JAX's programs: two primitives with the rules of their derivatives and batches.

The function is a `Foreign`, whose derivatives are such functions again: the first primitive calls one, the second is
linear in the tangents, so that reverse mode transposes it into a call of the function's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from interop.jax._partition import vary_alike
from interop.jax._placement import placed_as

__all__ = ["Foreign", "Recording", "call"]


class Foreign(Protocol):
    """A function of arrays by position, in another library; it is part of JAX's keys, by its identity."""

    label: str
    #: The places of arrays that are all mapped where any is.
    whole: frozenset[int]

    def compute(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results for concrete arrays."""

    def record(self, arrays: Sequence[Any], wanted: tuple[int, ...]) -> tuple[list[Any], Any]:
        """Return the results, and a tape: a function of cotangents, None where there is none, and of places.

        It returns the cotangents of the inputs at these places.
        """

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """Return the shapes and dtypes of the results for those of the arrays, of `jax.ShapeDtypeStruct`."""

    def traced(self, arrays: Sequence[Any], kinds: Sequence[Any]) -> Sequence[Any]:
        """Return the results in a program that XLA compiles."""

    def gradients(self, count: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> Foreign:
        """Return the function of the inputs, and of the cotangents of the results that are `given`."""

    def tangents(self, count: int, moved: tuple[int, ...], given: tuple[int, ...]) -> Foreign:
        """Return the function of the inputs, and of the tangents of those that are `moved`."""

    def mapped(self, flags: tuple[bool, ...], size: int) -> Foreign:
        """Return the function that is mapped over dimension 0 of these arrays, and of all results."""


class Recording:
    """Where a call that is made at once leaves its tape; one that is traced leaves none."""

    def __init__(self, wanted: tuple[int, ...]) -> None:
        self.wanted = wanted
        self.tape: Any = None


def call(foreign: Foreign, *arrays: Any) -> list[Any]:
    """Call a function with arrays of JAX's, concrete or traced."""
    made: list[Any] = bridge_p.bind(*vary_alike(*arrays), foreign=foreign, recording=None)
    return made


# ---- the call ----


def _compute(*arrays: Any, foreign: Foreign, recording: Recording | None) -> list[Any]:
    concrete = [*map(jax.numpy.asarray, arrays)]
    if recording is None:
        return foreign.compute(concrete)
    made, recording.tape = foreign.record(concrete, recording.wanted)
    return made


def _type(*arrays: Any, foreign: Foreign, recording: Recording | None) -> list[Any]:
    return _placed(foreign.kinds([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]), arrays)


def _placed(kinds: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Return the types of results that are where the arrays are."""
    if not arrays:
        return [jax.core.ShapedArray(kind.shape, kind.dtype) for kind in kinds]
    return [
        arrays[0].update(shape=kind.shape, dtype=kind.dtype, weak_type=False, **placed_as(kind.shape, *arrays))
        for kind in kinds
    ]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], foreign: Foreign, recording: Recording | None
) -> tuple[Any, Any]:
    moved = tuple(place for place, t in enumerate(tangents) if type(t) is not ad.Zero and _is_inexact(primals[place]))
    # Reverse mode of concrete arrays, where the tangents are traced and the arrays are not, keeps torch's own record.
    is_reverse = any(isinstance(tangents[place], _Tracer) for place in moved)
    if is_reverse and not any(isinstance(x, _Tracer) for x in primals):
        recording = Recording(moved)
    results = bridge_p.bind(*primals, foreign=foreign, recording=recording if moved else None)
    given = tuple(place for place, x in enumerate(results) if _is_inexact(x))
    made: list[Any] = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    if moved and given:
        kinds = tuple(jax.ShapeDtypeStruct(results[place].shape, results[place].dtype) for place in given)
        tape = None if recording is None else recording.tape
        words = {"foreign": foreign, "moved": moved, "given": given, "kinds": kinds, "tape": tape}
        out = tangents_p.bind(*primals, *(tangents[place] for place in moved), **words)
        for place, t in zip(given, out, strict=True):
            made[place] = t
    return results, made


def _vmap(
    arrays: Sequence[Any], dims: Sequence[Any], foreign: Foreign, recording: Recording | None
) -> tuple[list[Any], list[int]]:
    flags = [dim is not None or place in foreign.whole for place, dim in enumerate(dims)]
    size, given = _batched(arrays, dims, flags)
    made = call(foreign.mapped(tuple(flags), size), *given)
    return made, [0] * len(made)


def _batched(arrays: Sequence[Any], dims: Sequence[Any], flags: Sequence[bool]) -> tuple[int, list[Any]]:
    """Return the size of the batch, and the arrays with it as dimension 0 of those that `flags` names."""
    size = next(x.shape[dim] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
    made = []
    for x, dim, flag in zip(arrays, dims, flags, strict=True):
        if dim is not None:
            made.append(jax.numpy.moveaxis(x, dim, 0))
        else:
            made.append(jax.numpy.broadcast_to(x, (size, *x.shape)) if flag else x)
    return size, made


def _lower(ctx: Any, *operands: Any, foreign: Foreign, recording: Recording | None) -> Any:
    kinds = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_out]
    return mlir.lower_fun(lambda *arrays: foreign.traced(arrays, kinds), multiple_results=True)(ctx, *operands)


def _refuse_transpose(_: Any, *arrays: Any, foreign: Foreign, recording: Recording | None) -> Any:
    raise NotImplementedError(
        f"{foreign.label}: JAX transposes a call of it, as if it was linear; accepted: jax.grad, jax.vjp and jax.jvp "
        "of it, and a transpose of what jax.linearize returns"
    )


_Tracer = jax.core.Tracer
bridge_p: Any = Primitive("interop_bridge")
bridge_p.multiple_results = True
bridge_p.def_impl(_compute)
bridge_p.def_abstract_eval(_type)
ad.primitive_jvps[bridge_p] = _jvp
ad.primitive_transposes[bridge_p] = _refuse_transpose
batching.primitive_batchers[bridge_p] = _vmap
mlir.register_lowering(bridge_p, _lower)


# ---- its tangents: linear in those of the inputs ----

_Kinds = tuple[Any, ...]


def _tangents(*arrays: Any, foreign: Foreign, moved: Any, given: Any, kinds: _Kinds, tape: Any) -> list[Any]:
    return call(foreign.tangents(len(arrays) - len(moved), moved, given), *arrays)


def _tangents_type(*arrays: Any, foreign: Foreign, moved: Any, given: Any, kinds: _Kinds, tape: Any) -> list[Any]:
    return _placed(kinds, arrays)


def _tangents_jvp(primals: Sequence[Any], tangents: Sequence[Any], **words: Any) -> tuple[Any, Any]:
    count = len(primals) - len(words["moved"])
    if all(type(t) is ad.Zero for t in tangents[:count]):
        made = tangents_p.bind(*primals, **words)
        return made, tangents_p.bind(*primals[:count], *map(ad.instantiate_zeros, tangents[count:]), **words)
    return _jvp(primals, tangents, words["foreign"].tangents(count, words["moved"], words["given"]), None)


def _tangents_transpose(
    cotangents: Sequence[Any], *operands: Any, foreign: Foreign, moved: Any, given: Any, kinds: _Kinds, tape: Any
) -> list[Any]:
    count = len(operands) - len(moved)
    known = operands[:count]
    if any(ad.is_undefined_primal(x) for x in known):
        _refuse_transpose(cotangents, foreign=foreign, recording=None)
    wanted = [k for k, x in enumerate(operands[count:]) if ad.is_undefined_primal(x)]
    made: list[Any] = [None] * len(operands)
    for k in wanted:
        made[count + k] = ad.Zero(operands[count + k].aval)
    arrays = {place: x for place, x in zip(given, cotangents, strict=True) if type(x) is not ad.Zero}
    if not arrays or not wanted:
        return made
    places = tuple(moved[k] for k in wanted)
    if tape is not None and not any(isinstance(x, _Tracer) for x in arrays.values()):
        out = tape(arrays, places)
    else:
        out = call(foreign.gradients(count, places, tuple(arrays)), *known, *arrays.values())
    for k, x in zip(wanted, out, strict=True):
        made[count + k] = x
    return made


def _tangents_vmap(
    operands: Sequence[Any],
    dims: Sequence[Any],
    foreign: Foreign,
    moved: Any,
    given: Any,
    kinds: _Kinds,
    tape: Any,
) -> tuple[list[Any], list[int]]:
    count = len(operands) - len(moved)
    # An input that is moved is mapped together with its tangent.
    flags = [dim is not None or place in foreign.whole for place, dim in enumerate(dims)]
    for k, place in enumerate(moved):
        flags[place] = flags[count + k] = flags[place] or flags[count + k]
    size, arrays = _batched(operands, dims, flags)
    mapped = foreign.mapped(tuple(flags[:count]), size)
    kinds = tuple(jax.ShapeDtypeStruct((size, *kind.shape), kind.dtype) for kind in kinds)
    words = {"foreign": mapped, "moved": moved, "given": given, "kinds": kinds, "tape": None}
    made = tangents_p.bind(*arrays, **words)
    return made, [0] * len(made)


def _tangents_lower(ctx: Any, *operands: Any, **words: Any) -> Any:
    return mlir.lower_fun(lambda *arrays: _tangents(*arrays, **words), multiple_results=True)(ctx, *operands)


def _is_inexact(x: Any) -> bool:
    return bool(jax.numpy.issubdtype(x.dtype, np.inexact))


tangents_p: Any = Primitive("interop_bridge_tangents")
tangents_p.multiple_results = True
tangents_p.def_impl(_tangents)
tangents_p.def_abstract_eval(_tangents_type)
ad.primitive_jvps[tangents_p] = _tangents_jvp
ad.primitive_transposes[tangents_p] = _tangents_transpose
batching.primitive_batchers[tangents_p] = _tangents_vmap
mlir.register_lowering(tangents_p, _tangents_lower)
