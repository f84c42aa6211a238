"""Operators in programs of JAX's: one primitive, computed by tracing `call`, whose kernels are XLA FFI calls there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad

from interop._arguments import type_name
from interop._libraries.jax import keeping
from interop._operations.promotion import numpy_dtype
from interop._operators.arrays import facts_of
from interop._operators.description import Description
from interop.jax._operator_derivatives import jvp, refuse_transpose
from interop.jax._operator_forms import Number, Results
from interop.jax._operator_partition import on_mesh
from interop.jax._operator_primitive import bind, new_primitive
from interop.jax._placement import check_operands

__all__ = ["compute"]

_Tracer = jax.core.Tracer

operator_p: Any = new_primitive("interop_operator", by_platform=True)
ad.primitive_jvps[operator_p] = lambda primals, tangents, form: jvp(operator_p, primals, tangents, form)
ad.primitive_transposes[operator_p] = refuse_transpose


def compute(description: Description, inputs: Sequence[Any]) -> Any:
    """Compute an operator of inputs by position, of which one or more are traced, or numbers in arrays of JAX's.

    Throws TypeError and ValueError for inputs that do not fit the signature.
    """
    pairs = [*zip(description.signature.inputs, inputs, strict=True)]
    of_jax = [operand.axes is None and isinstance(x, jax.Array) for operand, x in pairs]
    read = description.readable([0 if is_of_jax else x for is_of_jax, x in zip(of_jax, inputs, strict=True)])
    numbers: list[Number | None] = []
    operands = []
    for place, (operand, x) in enumerate(pairs):
        if operand.axes is None and not of_jax[place]:
            numbers.append(Number(x))
            continue
        numbers.append(None)
        operands.append((_number if of_jax[place] else _array)(description, place, x))
    form = Results(description, tuple(numbers))
    if description.is_exact:
        check_operands(
            description.label, {x.name: y for x, y in zip(form.operands, map(jax.typeof, operands), strict=True)}
        )
    results = description.results([facts_of(read[place]) for place in description.signature.arrays])
    with keeping(*(numpy_dtype(dtype) for _, dtype in results), *(x.dtype for x in operands)):
        arrays = on_mesh(form, lambda *given: bind(operator_p, form, *given), *map(jax.numpy.asarray, operands))
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _array(description: Description, place: int, x: Any) -> Any:
    name = description.signature.inputs[place].name
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(
            f"{description.label}: {name} is {type_name(x)}; accepted with traced arrays of JAX: arrays of JAX, and of "
            f"NumPy as constants{description.signature.pointed(place)}"
        )
    return x


def _number(description: Description, place: int, x: Any) -> Any:
    """Return a number as JAX has it. Raise TypeError for an array, and where `call` takes numbers by value."""
    name, pointed = description.signature.inputs[place].name, description.signature.pointed(place)
    if x.ndim:
        raise TypeError(
            f"{description.label}: {name} is an array of shape {x.shape}; accepted: a number, or an array where the "
            f"signature has axes, such as {name}[{'n, ' * (x.ndim - 1)}n]{pointed}"
        )
    if description.is_exact:
        what, instead = "an array of JAX's, and call takes it by value", f"a number, as float({name}) makes one"
        if isinstance(x, _Tracer):
            what = "a traced value of JAX, and call takes it by value, which is fixed in the program"
            instead = "a number of Python or NumPy, such as a size (static_argnames of jax.jit makes an argument one)"
        raise TypeError(
            f"{description.label}: {name} is {what}; accepted: {instead}, or {name}[] in the signature, and a pointer "
            f"or a view of no dimension in call{pointed}"
        )
    return x
