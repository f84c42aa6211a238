"""What the primitives of operators share: their types, how they are computed, and how they are mapped.

Each has one parameter, the `Form`, which says what is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from interop._libraries.jax import keeping
from interop._operations.promotion import numpy_dtype
from interop._operators.devices import DEVICES
from interop.jax._operator_analysis import Found, look_at
from interop.jax._operator_forms import Form
from interop.jax._operator_partition import partitioned
from interop.jax._partition import is_local, know_devices, vary_alike
from interop.jax._placement import check_memory, placed_as
from interop.jax._primitive import run_primitive

__all__ = ["bind", "new_primitive"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray


def new_primitive(name: str, by_platform: bool = False) -> Any:
    """Return a primitive with all rules but those of derivatives. `by_platform`: a form may differ by platform."""
    primitive: Any = Primitive(name)
    primitive.multiple_results = True

    @functools.lru_cache(maxsize=1024)
    def compiled(form: Form) -> Callable[..., Any]:
        def interop_operator(*operands: Any) -> Any:
            return primitive.bind(*operands, form=form)

        interop_operator.__name__ = name
        return jax.jit(interop_operator)

    primitive.def_impl(lambda *operands, form: run_primitive(form.label, compiled(form), *operands))
    primitive.def_abstract_eval(_type)
    mlir.register_lowering(primitive, _lower_elsewhere)
    for platform in DEVICES if by_platform else ():  # so that a program for several has both
        mlir.register_lowering(primitive, functools.partial(_lower_on, platform), platform)
    batching.primitive_batchers[primitive] = lambda values, dims, form: _vmap(primitive, values, dims, form)
    know_devices(primitive)
    return primitive


def bind(primitive: Any, form: Form, *operands: Any) -> Any:
    """Bind one of these primitives."""
    with keeping(*(x.dtype for x in operands)):
        return primitive.bind(*vary_alike(*operands), form=form)


def _type(*operands: _Aval, form: Form) -> list[_Aval]:
    for operand, x in zip(form.operands, operands, strict=True):
        check_memory(form.label, operand.name, x)
    first = operands[0]
    return [
        first.update(shape=shape, dtype=numpy_dtype(dtype), weak_type=False, **placed_as(shape, *operands))
        for shape, dtype in form.facts(operands)
    ]


def _lower_elsewhere(ctx: mlir.LoweringRuleContext, *operands: Any, form: Form) -> Any:
    platforms: Any = ctx.platforms or ctx.module_context.platforms
    return _lower_on(platforms[0], ctx, *operands, form=form)


def _lower_on(platform: str, ctx: mlir.LoweringRuleContext, *operands: Any, form: Form) -> Any:
    form = form.on(platform)
    call = form.compute
    if not is_local(form.label, ctx):
        shapes = tuple(x.shape for x in ctx.avals_in), tuple(x.shape for x in ctx.avals_out)
        call = partitioned(form, *shapes)
    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


# ---- batches ----


def _vmap(primitive: Any, values: Sequence[Any], dims: Sequence[Any], form: Form) -> tuple[Sequence[Any], list[int]]:
    """Map over one more of the leading axes, where each operand that is mapped has them; else call it for each."""
    mapped = [dim is not None for dim in dims]
    first = [x if dim is None else jax.numpy.moveaxis(x, dim, 0) for x, dim in zip(values, dims, strict=True)]
    size = first[mapped.index(True)].shape[0]
    leads = [operand.has_leading for operand in form.operands]
    takes = all(has for has, is_mapped in zip(leads, mapped, strict=True) if is_mapped)
    takes = takes and all(result.has_leading for result in form.results)
    if takes and form.description.maps_leading and form.description.batching is None:
        whole = [
            jax.numpy.broadcast_to(x, (size, *x.shape)) if has and not is_mapped else x
            for x, has, is_mapped in zip(first, leads, mapped, strict=True)
        ]
        made = bind(primitive, form, *whole)
    elif form.is_inlined and not _look_at_one(form, first, mapped).calls:
        made = jax.vmap(form.compute, [0 if is_mapped else None for is_mapped in mapped])(*first)
    else:
        made = _one_by_one(primitive, form, first, mapped)
    return made, [0] * len(form.results)


def _look_at_one(form: Form, values: Sequence[Any], mapped: Sequence[bool]) -> Found:
    kinds = [
        jax.ShapeDtypeStruct(x.shape[1:] if is_mapped else x.shape, x.dtype)
        for x, is_mapped in zip(values, mapped, strict=True)
    ]
    return look_at(form, kinds)


def _one_by_one(primitive: Any, form: Form, values: Sequence[Any], mapped: Sequence[bool]) -> Sequence[Any]:
    def one(elements: Sequence[Any]) -> Any:
        left = iter(elements)
        given = [next(left) if is_mapped else x for x, is_mapped in zip(values, mapped, strict=True)]
        return bind(primitive, form, *given)

    made: Sequence[Any] = jax.lax.map(one, [x for x, is_mapped in zip(values, mapped, strict=True) if is_mapped])
    return made
