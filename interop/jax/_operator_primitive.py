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
from interop.jax._operator_forms import Form
from interop.jax._operator_partition import partitioned
from interop.jax._partition import is_local, know_devices, vary_alike
from interop.jax._placement import check_memory, placed_as
from interop.jax._primitive import run_primitive

__all__ = ["bind", "new_primitive"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray


def new_primitive(name: str) -> Any:
    """Return a primitive with all rules but those of derivatives."""
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
    mlir.register_lowering(primitive, _lower)
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


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, form: Form) -> Any:
    call = form.compute
    if not is_local(form.label, ctx):
        shapes = tuple(x.shape for x in ctx.avals_in), tuple(x.shape for x in ctx.avals_out)
        call = partitioned(form, *shapes)
    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


# ---- batches ----


def _vmap(primitive: Any, values: Sequence[Any], dims: Sequence[Any], form: Form) -> tuple[Sequence[Any], list[int]]:
    """Map over one more of the leading axes, where each operand that is mapped has them; else call it for each."""
    is_mapped = [dim is not None for dim in dims]
    (size, *_) = (x.shape[dim] for x, dim, mapped in zip(values, dims, is_mapped, strict=True) if mapped)
    first = [
        jax.numpy.moveaxis(x, dim, 0) if mapped else x for x, dim, mapped in zip(values, dims, is_mapped, strict=True)
    ]
    has_leading = [operand.has_leading for operand in form.operands]
    takes = all(leads for leads, mapped in zip(has_leading, is_mapped, strict=True) if mapped)
    if form.description.batching is None and takes and all(result.has_leading for result in form.results):
        whole = [
            jax.numpy.broadcast_to(x, (size, *x.shape)) if leads and not mapped else x
            for x, leads, mapped in zip(first, has_leading, is_mapped, strict=True)
        ]
        made = bind(primitive, form, *whole)
    else:
        mapped_ones = [x for x, mapped in zip(first, is_mapped, strict=True) if mapped]

        def one(mapped_ones: Sequence[Any]) -> Any:
            each = iter(mapped_ones)
            return bind(
                primitive, form, *(next(each) if mapped else x for x, mapped in zip(first, is_mapped, strict=True))
            )

        made = jax.lax.map(one, mapped_ones)
    return made, [0] * len(form.results)
