"""Functions of other libraries inside `jax.jit`: one JAX primitive, which is an XLA FFI call to Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.ffi
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from interop import _core
from interop._arguments import named, shown, type_name
from interop._functions.callables import check_callable, name_of
from interop._libraries.arrays import is_array
from interop._libraries.jax import keeping
from interop._operations.promotion import numpy_dtype
from interop._streams import StreamLike
from interop.jax import _placement
from interop.jax._callee import ARRAY, Callee, of_thread
from interop.jax._partition import vary_alike
from interop.jax._primitive import CALL_TARGET, require_target, run_primitive
from interop.jax._raised import exception_of

__all__ = ["call"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
_FUNCTION = "interop.jax.call"
_VMAP_METHODS = (None, "sequential", "expand_dims", "broadcast_all")

call_p: Any = Primitive("interop_call")
call_p.multiple_results = True


@named(_FUNCTION)
def call(
    function: Callable[..., Any],
    /,
    *args: Any,
    out: Any,
    vmap_method: Literal["sequential", "expand_dims", "broadcast_all"] | None = None,
    stream: StreamLike | None = None,
    **kwargs: Any,
) -> Any:
    """Call a function of CuPy, torch, Numba or another library, also inside `jax.jit`, in XLA's memory.

    Parameters
    ----------
    function : callable
        Called with an `interop.Array` in place of each array, and the other arguments as they are. With
        `interop.adapt` it gets its own library's arrays. XLA calls it each time that it enqueues the program, on any
        thread, so its values must follow from its arguments alone.
    *args, **kwargs : arrays of JAX or NumPy, other values, and pytrees of these
        Arrays are read-only in `function`. Other values can be hashed, as those of a program do not change.
    out : jax.ShapeDtypeStruct, or a pytree of such
        The results' shapes and dtypes. A `function` with a parameter ``out`` gets the memory of the results by it, and
        writes there. Else what it returns, in the structure of `out`, is copied there on the device.
    vmap_method : "sequential", "expand_dims", "broadcast_all" or None, default None
        What `jax.vmap` does: a call for each element, or one call with an axis in front of each array and result,
        which is 1 long, or repeated, for arrays that are not mapped.
    stream : int handle or stream object, optional
        Of concrete arrays: waits for the results.

    Returns
    -------
    jax.Array, or a pytree of such
        Shapes, dtypes and structure of `out`.

    Raises
    ------
    TypeError
        `function` is no function that does its work in the call; no argument is an array, or one is of another
        library; a value cannot be hashed; a dtype is not served.
    ValueError
        `out` has no results, or the arrays are on two devices; or ``stream`` is given inside `jax.jit`.
    NotImplementedError
        A derivative by an array, `jax.vmap` without `vmap_method`, `jax.export`, or a program for several devices
        outside `jax.shard_map`.
    RuntimeError
        As JAX's JaxRuntimeError: `function` raised, or returned other results than `out` says. It has the traceback;
        `interop.jax.exception_of` finds the exception. A call of concrete arrays raises that one, where `function`
        has run by then.

    Notes
    -----
    On a GPU `function` queues its work on the stream of its arrays, ``x.stream``, which is XLA's. interop's own
    functions do so, and what `interop.adapt` and `interop.adopt` make. The GPU's other streams for which an array was
    exported are waited for. Nothing is copied to the host, and the host does not wait. The memory is XLA's again once
    `function` returns: an `interop.Array` raises BufferError from then on, and another library's array on its memory
    must not be used.

    In `function`, torch records no derivatives, and operations of JAX raise RuntimeError, as they may wait for the
    program that calls it. Programs with such a call are not for the persistent cache, nor in a CUDA graph of XLA's.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> import interop, interop.jax
    >>> convolve = interop.adapt(np.convolve, "numpy", writes=())
    >>> @jax.jit
    ... def smooth(x):
    ...     out = jax.ShapeDtypeStruct((x.size + 1,), x.dtype)
    ...     return interop.jax.call(convolve, x, jnp.array([0.5, 0.5]), out=out) + 1
    >>> smooth(jnp.array([1.0, 2.0, 3.0]))
    Array([1.5, 2.5, 3.5, 2.5], dtype=float32)
    """
    check_callable(_FUNCTION, function)
    label = f"{_FUNCTION}({name_of(function)})"
    if vmap_method not in _VMAP_METHODS:
        raise ValueError(
            f"{label}: vmap_method is {shown(vmap_method)}; accepted: {', '.join(map(repr, _VMAP_METHODS))}"
        )
    results, out_tree = _results(label, out)
    operands, values, in_tree = _arguments(label, args, kwargs)
    callee = Callee(label, function, in_tree, values, out_tree, _takes_out(function))
    is_traced = any(isinstance(x, jax.core.Tracer) for x in operands.values())
    if is_traced:
        _placement.refuse_in_trace(label, stream, None)
    handle = None if stream is None else _core.stream_handle(stream, label)
    concrete = {name: x for name, x in operands.items() if isinstance(x, jax.Array)}
    if concrete and not is_traced:
        _placement.check_concrete(label, concrete, handle, None)
    arrays = _bind(label, operands, callee, results, vmap_method)
    if handle is not None:
        if isinstance(arrays[0], jax.core.Tracer):  # constants of a function that is being traced
            _placement.refuse_in_trace(label, stream, None)
        for x in arrays:
            _placement.make_wait(handle, x)
    return jax.tree_util.tree_unflatten(out_tree, arrays)


def _bind(
    label: str, operands: dict[str, Any], callee: Callee, results: tuple[Any, ...], vmap_method: str | None
) -> list[Any]:
    dtypes = [numpy_dtype(dtype) for _, dtype in results]
    with keeping(*dtypes, *(x.dtype for x in operands.values())):
        arrays = [jax.numpy.asarray(x) for x in operands.values()]
        _placement.check_operands(label, {name: jax.typeof(x) for name, x in zip(operands, arrays, strict=True)})
        made: list[Any] = call_p.bind(*vary_alike(*arrays), callee=callee, results=results, vmap_method=vmap_method)
        return made


def _arguments(label: str, args: Any, kwargs: Any) -> tuple[dict[str, Any], tuple[Any, ...], Any]:
    """Return the arrays by name, all values with `ARRAY` in place of each, and their structure."""
    leaves, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    operands, values = {}, []
    for (first, *path), x in leaves:
        name = ("args" if first.idx == 0 else "kwargs") + jax.tree_util.keystr(tuple(path))
        if isinstance(x, jax.Array) or type(x) is np.ndarray:
            _check_dtype(label, name, x)
            operands[name] = x
            values.append(ARRAY)
        elif is_array(x) and not isinstance(x, np.generic | bytes | str):
            raise TypeError(
                f"{label}: {name} is {type_name(x)}; accepted: arrays of JAX and NumPy, and values that are no arrays; "
                "interop.convert(x, 'jax') makes one"
            )
        else:
            values.append(x)
    if not operands:
        raise TypeError(f"{label}: no argument is an array, so that none says where the call is; accepted: one array")
    return operands, tuple(values), tree


def _results(label: str, out: Any) -> tuple[tuple[tuple[tuple[int, ...], str], ...], Any]:
    """Return the shapes and dtypes of the results, and their structure."""
    leaves, tree = jax.tree_util.tree_flatten(out)
    for x in leaves:
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise TypeError(f"{label}: out is {shown(out)}; accepted: a jax.ShapeDtypeStruct, or a pytree of such")
        _check_dtype(label, "out", x)
    if not leaves:
        raise ValueError(f"{label}: out is {shown(out)}, with no result; accepted: at least one jax.ShapeDtypeStruct")
    results = tuple((_core.xla_shape(label, "out", tuple(x.shape)), _placement.name_of(x.dtype)) for x in leaves)
    return results, tree


def _check_dtype(label: str, name: str, x: Any) -> None:
    dtype = _placement.name_of(x.dtype)
    if dtype not in _DTYPES:
        raise TypeError(f"{label}: {name} is {dtype}; accepted: {', '.join(_DTYPES)}")


_DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


def _takes_out(function: Any) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get("out")
    except (TypeError, ValueError):  # built in
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


# ---- what it is ----


def _type(first: _Aval, *others: _Aval, results: Any, **_: Any) -> list[_Aval]:
    return [
        first.update(
            shape=shape, dtype=numpy_dtype(dtype), weak_type=False, **_placement.placed_as(shape, first, *others)
        )
        for shape, dtype in results
    ]


# ---- how it is computed ----


def _lower(platform: str, ctx: mlir.LoweringRuleContext, *operands: Any, callee: Callee, **_: Any) -> Any:
    label = callee.label
    require_target(label, CALL_TARGET, platform)
    if (count := _placement.device_count(ctx)) != 1:
        raise NotImplementedError(
            f"{label}: the program is for {count} devices, and nothing says how the call is cut over them; accepted: "
            "the call inside jax.shard_map over all axes of the mesh"
        )
    context = ctx.module_context
    if context.lowering_parameters.for_export:
        raise NotImplementedError(
            f"{label}: the program is exported, and a function of this process is no part of it; accepted: "
            "interop.operator, or interop.kernel and interop.load, whose functions another process can make"
        )
    callee.keep()
    # The compiled program keeps it as long as it lives itself, and is not for the persistent cache. Nobody calls it.
    context.add_host_callback(callee)
    return jax.ffi.ffi_lowering(CALL_TARGET)(ctx, *operands, function=callee.key)


@functools.lru_cache(maxsize=256)
def _compiled(**params: Any) -> Callable[..., list[jax.Array]]:
    def interop_call(*operands: jax.Array) -> Any:
        return call_p.bind(*operands, **params)

    return jax.jit(interop_call)


def _run(*operands: jax.Array, callee: Callee, **params: Any) -> Any:
    of_thread.raised = None
    try:
        made = run_primitive(callee.label, _compiled(callee=callee, **params), *operands)
    except jax.errors.JaxRuntimeError as error:
        raised = exception_of(error)
        if raised is None:
            raise
    else:
        raised = of_thread.raised
        if raised is None:
            return made
    of_thread.raised = None
    raise raised  # with its own cause and traceback


# ---- transforms that need another rule ----


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, callee: Callee, results: Any, **params: Any) -> Any:
    """Refuse the derivative, but of integers and by integers, of which there is none."""
    if any(map(_is_nonzero, tangents)) and any(
        jax.numpy.issubdtype(numpy_dtype(dtype), jax.numpy.inexact) for _, dtype in results
    ):
        raise NotImplementedError(
            f"{callee.label}: JAX differentiates the call, and the function has no derivative that JAX knows; "
            "accepted: jax.custom_vjp or jax.custom_jvp around it, or jax.lax.stop_gradient of its arguments"
        )
    made = call_p.bind(*primals, callee=callee, results=results, **params)
    return made, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in made]


def _is_nonzero(tangent: Any) -> bool:
    return not (type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0)


def _vmap(
    values: Sequence[Any],
    dims: Sequence[Any],
    *,
    callee: Callee,
    results: tuple[tuple[tuple[int, ...], str], ...],
    vmap_method: str | None,
) -> Any:
    if vmap_method is None:
        raise NotImplementedError(
            f"{callee.label}: jax.vmap maps an argument, and nothing says how the function is called then; accepted: "
            "vmap_method='sequential', 'expand_dims' or 'broadcast_all'"
        )
    size = next(x.shape[dim] for x, dim in zip(values, dims, strict=True) if dim is not None)
    fronted = [x if dim is None else jax.numpy.moveaxis(x, dim, 0) for x, dim in zip(values, dims, strict=True)]
    bind = functools.partial(call_p.bind, callee=callee, vmap_method=vmap_method)
    if vmap_method == "sequential":
        mapped = [x for x, dim in zip(fronted, dims, strict=True) if dim is not None]

        def one(parts: list[Any]) -> Any:
            rest = iter(parts)
            operands = [x if dim is None else next(rest) for x, dim in zip(fronted, dims, strict=True)]
            return bind(*vary_alike(*operands), results=results)

        made = jax.lax.map(one, mapped)
    else:
        repeats = size if vmap_method == "broadcast_all" else 1
        operands = [
            jax.numpy.broadcast_to(x, (repeats, *x.shape)) if dim is None else x
            for x, dim in zip(fronted, dims, strict=True)
        ]
        made = bind(*vary_alike(*operands), results=tuple(((size, *shape), dtype) for shape, dtype in results))
    return made, [0] * len(made)


call_p.def_impl(_run)
call_p.def_abstract_eval(_type)
mlir.register_lowering(call_p, functools.partial(_lower, "cpu"), platform="cpu")
mlir.register_lowering(call_p, functools.partial(_lower, "CUDA"), platform="cuda")
ad.primitive_jvps[call_p] = _jvp
batching.primitive_batchers[call_p] = _vmap
