"""Derivatives of operators: tangents by `tangent`, and their transpose by `gradient`.

The tangents of a call are a primitive that is linear in those of the inputs. Reverse mode transposes it, so that
`tangent` is called where tangents are asked for, and `gradient` where gradients are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.interpreters import ad

from interop._operators.signature import Operand
from interop.jax._operator_analysis import look_at
from interop.jax._operator_forms import Form, Gradient, Results, Tangent, is_differentiable
from interop.jax._operator_primitive import bind, new_primitive
from interop.jax._placement import name_of

__all__ = ["jvp", "refuse_transpose"]


def jvp(primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], form: Results) -> tuple[Any, Any]:
    """Return the results of an operator, and their tangents."""
    outputs = bind(primitive, form, *primals)
    by = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero and is_differentiable(primals[k])]
    of = tuple(place for place, x in enumerate(outputs) if is_differentiable(x))
    made: list[Any] = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outputs]
    if by and of:
        places = form.places()
        names = tuple(places[k] for k in by)
        _check_differentiable(form, names)
        known = [*primals, *outputs]
        tangent = _slim(form, names, of, known)
        given = bind(tangent_p, tangent, *tangent.kept_of(known), *(tangents[k] for k in by))
        for place, x in zip(of, given, strict=True):
            made[place] = x
    return outputs, made


def _slim(form: Results, by: tuple[int, ...], of: tuple[int, ...], known: Sequence[Any]) -> Tangent:
    """Return the tangents of a call, which keep what `gradient` or `tangent` reads, and what says all sizes."""
    description = form.description
    dtypes = tuple(name_of(x.dtype) for x in known)
    whole = description, form.numbers, by, of, (True,) * len(known), dtypes
    gradient, tangent = Gradient(*whole), Tangent(*whole)
    inputs, outputs = form.given(known[: len(form.inputs)]), known[len(form.inputs) :]
    kept = [False] * len(known)
    if description.gradient is not None:
        reads = look_at(gradient, [*(outputs[place] for place in of), *known]).reads[len(of) :]
        kept = [a or b for a, b in zip(kept, reads, strict=True)]
    if description.tangent is not None:
        reads = look_at(tangent, [*known, *(inputs[place] for place in by)]).reads[: len(known)]
        kept = [a or b for a, b in zip(kept, reads, strict=True)]
    # Tangents and gradients say sizes; what both say need not be kept for that.
    said = set().union(*(_axes(description.signature.outputs[place]) for place in of))
    said &= set().union(*(_axes(description.signature.inputs[place]) for place in by))
    said = said.union(*map(_axes, itertools.compress(tangent.known, kept)))
    for place, operand in enumerate(tangent.known):
        if not _axes(operand) <= said:
            kept[place] = True
            said |= _axes(operand)
    return Tangent(description, form.numbers, by, of, tuple(kept), dtypes)


def _axes(operand: Operand) -> set[Any]:
    return {axis for axis in operand.axes or () if not isinstance(axis, int)}


def _check_differentiable(form: Form, by: Sequence[int]) -> None:
    description = form.description
    inputs = description.signature.inputs
    for place in by:
        if inputs[place].axes is None:
            name = inputs[place].name
            raise NotImplementedError(
                f"{form.label}: JAX differentiates it by {name}, which the signature has as a number, without a "
                f"derivative; accepted: jax.lax.stop_gradient({name}), or {name}[] in the signature"
                f"{description.signature.pointed(place)}"
            )
    if description.gradient is None and description.tangent is None:
        name = inputs[by[0]].name
        raise NotImplementedError(
            f"{form.label}: JAX differentiates it by {name}, and it has no derivative; accepted: gradient= of "
            f"interop.operator, and tangent= for forward mode, or jax.lax.stop_gradient({name})"
            f"{description.signature.pointed(by[0])}"
        )


# ---- tangents: linear in those of the inputs ----


def _tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], form: Tangent) -> tuple[Any, Any]:
    count = len(primals) - len(form.by)
    if all(type(t) is ad.Zero for t in tangents[:count]):
        made = bind(tangent_p, form, *primals)
        return made, bind(tangent_p, form, *primals[:count], *map(ad.instantiate_zeros, tangents[count:]))
    if form.description.tangent is None:
        raise form.missing()
    return _inlined_jvp(form, primals, tangents)


def _inlined_jvp(form: Form, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return what a function of the user's gives, and its tangents: those of what it is written over."""
    moved = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero and is_differentiable(primals[k])]

    def call(*some: Any) -> tuple[Any, ...]:
        given = dict(zip(moved, some, strict=True))
        return form.compute(*(given.get(k, x) for k, x in enumerate(primals)))

    return jax.jvp(call, tuple(primals[k] for k in moved), tuple(tangents[k] for k in moved))


def _tangent_transpose(grads: Sequence[Any], *operands: Any, form: Tangent) -> list[Any]:
    """Return the gradients by the inputs, of those of the results, where tangents were the other way round."""
    count = len(operands) - len(form.by)
    known = operands[:count]
    if any(ad.is_undefined_primal(x) for x in known):
        refuse_transpose(grads, *operands, form=form)
    wanted = [k for k, x in enumerate(operands[count:]) if ad.is_undefined_primal(x)]
    avals = [operands[count + k].aval for k in wanted]
    made: list[Any] = [None] * len(operands)
    if all(type(g) is ad.Zero for g in grads):
        for k, aval in zip(wanted, avals, strict=True):
            made[count + k] = ad.Zero(aval)
        return made
    grads = [ad.instantiate_zeros(g) for g in grads]
    if form.description.gradient is not None:
        by = tuple(form.by[k] for k in wanted)
        gradient = Gradient(form.description, form.numbers, by, form.of, form.kept, form.dtypes)
        given = bind(gradient_p, gradient, *grads, *known)
    else:
        given = _transposed_tangent(form, grads, operands, [count + k for k in wanted])
    for k, x in zip(wanted, given, strict=True):
        made[count + k] = x
    return made


def _transposed_tangent(
    form: Tangent, grads: Sequence[Any], operands: Sequence[Any], wanted: Sequence[int]
) -> Sequence[Any]:
    """Transpose what `tangent` is written over."""

    def call(*some: Any) -> tuple[Any, ...]:
        given = dict(zip(wanted, some, strict=True))
        return form.compute(*(given.get(k, x) for k, x in enumerate(operands)))

    kinds = [jax.ShapeDtypeStruct(operands[k].aval.shape, operands[k].aval.dtype) for k in wanted]
    try:
        return jax.linear_transpose(call, *kinds)(tuple(grads))
    except NotImplementedError as error:
        names = ", ".join(form.description.signature.inputs[place].name for place in form.by)
        raise NotImplementedError(
            f"{form.label}: JAX transposes its tangent by {names} for reverse mode, and tangent is written over what "
            "has no transpose; accepted: gradient= of interop.operator, or forward mode (jax.jvp, jax.jacfwd)"
        ) from error


def refuse_transpose(grads: Sequence[Any], *operands: Any, form: Form) -> NoReturn:
    """Raise where JAX takes what is called for linear."""
    names = [operand.name for operand, x in zip(form.operands, operands, strict=True) if ad.is_undefined_primal(x)]
    raise NotImplementedError(
        f"{form.label}: JAX transposes a call of it by {', '.join(names)}, as if it was linear, and an operator says "
        "nothing of that; accepted: a transpose of what jax.linearize returns, and jax.jvp of it in a rule of your own"
    )


tangent_p: Any = new_primitive("interop_operator_tangent")
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose

gradient_p: Any = new_primitive("interop_operator_gradient")
ad.primitive_transposes[gradient_p] = refuse_transpose
ad.primitive_jvps[gradient_p] = lambda primals, tangents, form: _inlined_jvp(form, primals, tangents)
