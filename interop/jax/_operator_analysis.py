"""What a function of the user's reads and calls, found by tracing it without memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from interop._libraries.jax import keeping
from interop._operations.promotion import numpy_dtype
from interop._operators.arrays import Facts
from interop.jax._functions import function_p
from interop.jax._operator_forms import Form
from interop.jax._placement import name_of

__all__ = ["Found", "look_at"]


class Found(NamedTuple):
    """`reads`: which of the operands its results depend on. `calls`: does it call kernels or C functions itself?"""

    reads: tuple[bool, ...]
    calls: bool


def look_at(form: Form, operands: Sequence[Any]) -> Found:
    """Return what a form does with operands of these shapes and dtypes."""
    return _look(form, tuple((x.shape, name_of(x.dtype)) for x in operands))


@functools.lru_cache(maxsize=1024)
def _look(form: Form, facts: tuple[Facts, ...]) -> Found:
    dtypes = [numpy_dtype(dtype) for _, dtype in facts]
    with keeping(*dtypes):
        kinds = [jax.ShapeDtypeStruct(shape, dtype) for (shape, _), dtype in zip(facts, dtypes, strict=True)]
        try:
            jaxpr = jax.make_jaxpr(form.compute)(*kinds).jaxpr
        except Exception:  # which it raises again where it is called, if it is
            return Found((True,) * len(facts), calls=True)
    # Backwards, from the results: what a step reads is read if the step is.
    wanted = {id(x) for x in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(id(x) in wanted for x in eqn.outvars):
            wanted |= {id(x) for x in eqn.invars}
    calls = any(eqn.primitive is function_p for eqn in _steps(jaxpr))
    return Found(tuple(id(x) in wanted for x in jaxpr.invars), calls)


def _steps(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for x in jax.tree.leaves([*eqn.params.values()], is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
            if isinstance(x, Jaxpr | ClosedJaxpr):
                yield from _steps(x.jaxpr if isinstance(x, ClosedJaxpr) else x)
