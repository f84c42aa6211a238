"""The elementwise operations on JAX arrays.

Concrete arrays are the operands of one primitive: an FFI call into our kernels on CUDA, JAX's own operations on the CPU
and on several devices. Traced ones are computed by JAX's own operations, which XLA fuses with what is around them, and
which have all that JAX can do to them: derivatives, `jax.vmap`, sharding, export.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.ffi
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from interop import _core
from interop._libraries.jax import in_own_mode, keeping
from interop._operations.promotion import (
    as_promoted,
    comparison_of,
    configuration,
    element_of,
    numpy_dtype,
    promote,
    weak_scalar,
)
from interop._operations.table import COMPARISONS, OPERATIONS
from interop.jax._calls import compute
from interop.jax._formulas import computed
from interop.jax._placement import (
    check_operands,
    check_shapes,
    device_count,
    name_of,
    placed_as,
    refuse_in_trace,
    refuse_outputs,
)
from interop.jax._plans import Plan, is_planned, scalar_as_operand
from interop.jax._primitive import require_target, run_primitive

__all__ = ["described", "elementwise", "plan_of", "result_of"]

_TARGET = "interop_elementwise"
_Tracer = jax.core.Tracer


def elementwise(
    operation: str,
    a: Any,
    b: Any = None,
    out: Any = None,
    stream: int | None = None,
    execution: str | None = None,
    where_zero: complex | None = None,
) -> jax.Array:
    """Compute one of the package's functions on JAX arrays, concrete or traced, and scalars.

    `b` is None for the unary ones. Raises as the public function does.
    """
    function = f"interop.{operation}"
    refuse_outputs(function, out=out)
    operands = dict(zip(OPERATIONS[operation].parameters, (a, b), strict=False))
    arrays, inputs = operands, [*operands.values()]
    dtype = _dtype_of_all(operation, inputs)
    zero = None if dtype is None else _bytes_of(where_zero, dtype)
    if dtype is None:  # the long way
        arrays = {name: x for name, x in operands.items() if isinstance(x, jax.Array | _Tracer)}
        dtype = _common_dtype(function, operation, inputs)
        # A scalar becomes an operand, so that another value compiles nothing.
        kind = numpy_dtype(dtype)
        zero = _bytes_of(where_zero, dtype)
        operation, inputs = _with_elements(operation, operands, kind)
        if any(isinstance(x, _Tracer) for x in arrays.values()):
            refuse_in_trace(function, stream, execution)
            check_shapes(function, arrays)
            _abstract(operation, dtype, [])
            traced = _in_jax(operation, dtype, zero)
            return _with_wide(inputs, arrays, lambda: traced(*inputs))

    scalars = [place for place, name in enumerate(operands) if name not in arrays]
    inputs = [*arrays.values(), *(inputs[place] for place in scalars)]
    compiled = _compiled(operation, dtype, zero, *scalars)
    return compute(function, arrays, stream, execution, lambda: _with_wide(inputs, arrays, lambda: compiled(*inputs)))


def plan_of(operation: str, kinds: Sequence[Any]) -> Plan | None:
    """Return what computes concrete arrays of these dtypes, and a scalar of this type, if a plan does."""
    arrays = tuple(place for place, kind in enumerate(kinds) if isinstance(kind, np.dtype))
    scalars = [place for place in range(len(kinds)) if place not in arrays]
    if not all(is_planned(kinds[place]) for place in scalars):
        return None
    function, asked = f"interop.{operation}", configuration("jax")
    described = [(name_of(kind), False) if place in arrays else kind(1) for place, kind in enumerate(kinds)]
    shared = _core.shared_dtype(operation, described)
    dtype = shared or promote(function, "jax", OPERATIONS[operation].in_float, *described)
    _abstract(operation, dtype, [])
    compared = [numpy_dtype(dtype)] * (operation in COMPARISONS)
    found = [scalar_as_operand(place, kinds[place], numpy_dtype(dtype), compared) for place in scalars]
    if None in found or configuration("jax") != asked:
        return None
    compiled = _compiled(operation, dtype, None, *scalars)
    names = OPERATIONS[operation].parameters
    return Plan(function, names, compiled, arrays, tuple(filter(None, found)), None if shared else asked)


def _with_elements(operation: str, operands: dict[str, Any], kind: Any) -> tuple[str, list[Any]]:
    """Return the operands, each scalar as an element, and the operation, which may be another comparison by now."""
    function = f"interop.{operation}"
    inputs = []
    for place, (name, x) in enumerate(operands.items()):
        if isinstance(x, jax.Array | _Tracer):
            element = x
        elif operation in COMPARISONS:
            operation, element = comparison_of(function, operation, name, x, kind, place == 0)
        else:
            element = element_of(function, name, x, kind)
        inputs.append(element)
    return operation, inputs


def result_of(operation: str, a: Any, b: Any, where_zero: complex | None) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of the result, or raise as the call would; for `interop.explain`."""
    operands = dict(zip(OPERATIONS[operation].parameters, (a, b), strict=False))
    common = _common_dtype(f"interop.{operation}", operation, [*operands.values()])
    _bytes_of(where_zero, common)
    _, inputs = _with_elements(operation, operands, numpy_dtype(common))
    return _abstract(operation, common, inputs)


def _abstract(operation: str, dtype: str, operands: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of what an operation computed in `dtype` gives, or raise what such a call does."""
    return _core.abstract_elementwise(operation, dtype, [(x.shape, name_of(x.dtype)) for x in operands])


def _bytes_of(where_zero: complex | None, dtype: str) -> bytes | None:
    """Return the element as a parameter that equals itself, which a NaN does not."""
    if where_zero is None:
        return None
    element: bytes = element_of("interop.divide", "where_zero", where_zero, numpy_dtype(dtype)).tobytes()
    return element


def _dtype_of_all(operation: str, operands: list[Any]) -> str | None:
    """Return the dtype of concrete arrays that share one; None for all else, and where it is not the operation's."""
    first, last = operands[0], operands[-1]
    if type(first) is not type(last) or isinstance(first, _Tracer) or first.dtype != last.dtype:
        return None
    if OPERATIONS[operation].in_float and first.dtype.kind in "biu":
        return None
    return name_of(first.dtype)


def _common_dtype(function: str, operation: str, operands: Sequence[Any]) -> str:
    """Do what `promote` does, without asking where the operands have a dtype of their own."""
    kinds = [described(x) if isinstance(x, jax.Array | _Tracer) else x for x in operands]
    dtype = _core.shared_dtype(operation, kinds)
    if dtype is not None:
        return dtype
    try:
        return promote(function, "jax", OPERATIONS[operation].in_float, *as_promoted(kinds))
    except TypeError:
        named = zip(OPERATIONS[operation].parameters, operands, strict=True)
        # It says whose dtype it is.
        _core.abstract_operands(
            function, [(name, (), str(x.dtype)) for name, x in named if isinstance(x, jax.Array | _Tracer)]
        )
        raise


def described(x: Any) -> tuple[Any, ...]:
    """Return an array as promotion takes it; of a weakly typed one also the scalar that it stands for."""
    return (name_of(x.dtype), x.ndim == 0, *((weak_scalar(x.dtype),) if x.weak_type else ()))


def _with_wide(inputs: list[Any], arrays: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Compute; outside JAX's x64 mode, a scalar beside a 64-bit array would be narrowed on its way in."""
    if len(inputs) == len(arrays):
        return call()
    with keeping(*(x.dtype for x in inputs)):
        return call()


@functools.lru_cache(maxsize=1024)
def _in_jax(operation: str, dtype: str, where_zero: bytes | None) -> Callable[..., jax.Array]:
    """Return what computes traced operands: JAX's operations, which become those of the caller's program."""
    made = functools.partial(computed, operation=operation, dtype=dtype, where_zero=where_zero)
    compiled: Callable[..., jax.Array] = jax.jit(made, inline=True)
    return compiled


# ---- the primitive, of concrete arrays alone: nothing differentiates or maps it ----

elementwise_p: Any = Primitive("interop_elementwise")


@functools.lru_cache(maxsize=1024)
def _compiled(
    operation: str, dtype: str, where_zero: bytes | None, scalar: int | None = None
) -> Callable[..., jax.Array]:
    """Put the primitive under `jax.jit`: what calls with concrete arrays run, compiled once for each shape.

    The last operand is the scalar whose place among the operands is given.
    """
    params: dict[str, Any] = {"operation": operation, "dtype": dtype, "where_zero": where_zero}

    def interop_elementwise(*operands: Any) -> Any:
        if scalar is not None:
            array, given = operands
            with in_own_mode(numpy_dtype(dtype)):
                element = jax.lax.convert_element_type(given, numpy_dtype(dtype))
            operands = (element, array) if scalar == 0 else (array, element)
        if any(not jax.typeof(x).sharding.mesh.empty for x in operands):  # on an explicit mesh
            return computed(*operands, **params)
        return elementwise_p.bind(*operands, **params)

    compiled: Callable[..., jax.Array] = jax.jit(interop_elementwise)
    return compiled


def _run_alone(*operands: jax.Array, **params: Any) -> jax.Array:
    return run_primitive(f"interop.{params['operation']}", _compiled(**params), *operands)


def _type(*operands: Any, operation: str, dtype: str, where_zero: bytes | None) -> Any:
    check_operands(f"interop.{operation}", dict(zip(OPERATIONS[operation].parameters, operands, strict=True)))
    shape, result = _abstract(operation, dtype, operands)
    place = placed_as(shape, *operands)
    return operands[0].update(shape=shape, dtype=numpy_dtype(result), weak_type=False, **place)


_lower_jax: Any = mlir.lower_fun(computed, multiple_results=False)


def _lower_cuda(
    ctx: mlir.LoweringRuleContext, *operands: Any, operation: str, dtype: str, where_zero: bytes | None
) -> Any:
    if device_count(ctx) != 1:
        return _lower_jax(ctx, *operands, operation=operation, dtype=dtype, where_zero=where_zero)
    require_target(f"interop.{operation}", _TARGET)
    low, high = _bits(where_zero or b"")
    rule = jax.ffi.ffi_lowering(_TARGET)
    return rule(
        ctx,
        *operands,
        operation=operation,
        dtype=dtype,
        replaces_zero=where_zero is not None,
        where_zero_low=np.int64(low),
        where_zero_high=np.int64(high),
    )


def _bits(element: bytes) -> tuple[int, int]:
    """Return the bytes of one element as two integers."""
    data = element.ljust(16, b"\0")
    return int.from_bytes(data[:8], "little", signed=True), int.from_bytes(data[8:], "little", signed=True)


elementwise_p.def_impl(_run_alone)
elementwise_p.def_abstract_eval(_type)
mlir.register_lowering(elementwise_p, _lower_jax, platform="cpu")
mlir.register_lowering(elementwise_p, _lower_cuda, platform="cuda")
