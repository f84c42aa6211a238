"""Kernels of users' own and C functions inside `jax.jit`: one JAX primitive, which is an XLA FFI call.

The program names the function by a key of what it is made of (`interop._functions.identity.content_key`), which means
the same in every process. XLA calls it on its own stream, in its own memory, without Python.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.ffi
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from interop import _core
from interop._arguments import type_name
from interop._functions.array_function import LAUNCH_OPTIONS, ArrayFunction
from interop._functions.identity import content_key, identities, own_key
from interop._functions.parameters import Parameter
from interop._libraries.jax import jax_has_cuda, keeping
from interop._operations.promotion import numpy_dtype
from interop.jax._partition import vary_alike
from interop.jax._placement import check_operands, device_count, name_of, placed_as, refuse_in_trace
from interop.jax._primitive import require_target, run_primitive

__all__ = ["call", "is_traced"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
_Tracer = jax.core.Tracer

function_p: Any = Primitive("interop_function")
function_p.multiple_results = True

_TARGET, _IN_GRAPHS = "interop_function", "interop_function_in_graphs"


def is_traced(values: Sequence[Any]) -> bool:
    """Is one of these an array or a number that JAX traces?"""
    return any(isinstance(x, _Tracer) for x in values)


# ---- calls, as they are traced ----


def call(function: ArrayFunction, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a kernel or C function of arrays of which one is traced."""
    label = function._label
    options = {name: named.pop(name) for name in (*function._keywords, "stream", "execution") if name in named}
    refuse_in_trace(label, options.pop("stream", None), options.pop("execution", None))
    args, results = function._bind(args, named)
    _check_form(function, results)
    values = dict(zip(function._given, args, strict=True))
    operands, numbers, shapes = {}, [], {}
    for parameter in function._parameters:
        name = parameter.name
        if parameter.kind == "scalar":
            numbers.append(_number(label, parameter, values[name]))
        elif parameter.is_argument and not parameter.written:
            operands[name] = _operand(label, parameter, values[name])
            shapes[name] = operands[name].shape
    check_operands(label, {name: jax.typeof(x) for name, x in operands.items()})
    if not operands:
        raise TypeError(f"{label}: no array is read, so that none says where the call is; accepted: an array to read")
    made = _results(function, args, shapes)
    launch = _launch(function, args, shapes, options)
    dtypes = [numpy_dtype(dtype) for _, _, dtype in made]
    with keeping(*dtypes, *(x.dtype for x in operands.values())):
        arrays = function_p.bind(
            *vary_alike(*map(jax.numpy.asarray, operands.values())),
            function=function,
            operands=tuple(operands),
            results=made,
            numbers=b"".join(numbers),
            launch=launch,
        )
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _check_form(function: ArrayFunction, results: dict[str, Any]) -> None:
    """Raise TypeError for a function that writes to what it is given, or whose result is no array."""
    label = function._label
    if function._value:
        raise TypeError(
            f"{label}: a C function that returns a value cannot be traced by JAX, {function._value!r}; accepted: one "
            "that writes to an array"
        )
    for parameter in function._parameters:
        name = parameter.name
        if name in results:
            raise TypeError(f"{label}: {name}= cannot be used with JAX arrays, which are immutable; use the result")
        if parameter.kind == "opaque":
            raise TypeError(f"{label}: {name} is a handle, {parameter.takes!r}, which no program of XLA's can have")
        if parameter.written and name not in function._shapes:
            raise TypeError(
                f"{label}: {name} is written to, and JAX arrays are immutable; accepted: "
                f"{function.__name__}.returning({name}=...), whose calls make {name}"  # type: ignore[attr-defined]
            )
    if not function._shapes:
        raise TypeError(f"{label}: a function that writes to no array cannot be traced by JAX")


def _number(label: str, parameter: Parameter, x: Any) -> bytes:
    if isinstance(x, _Tracer):
        raise TypeError(
            f"{label}: {parameter.name} is a traced value of JAX, and a number by value is fixed in the program; "
            f"accepted: a number of Python or NumPy, such as a size (static_argnames of jax.jit makes an argument "
            f"one), or a parameter {parameter.name} that is a pointer or a view of no dimension"
        )
    return _core.xla_number(label, parameter.name, x, parameter.dtype)


def _operand(label: str, parameter: Parameter, x: Any) -> Any:
    name = parameter.name
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(
            f"{label}: {name} is {type_name(x)}; accepted with traced arrays of JAX: arrays of JAX, and of NumPy as "
            "constants"
        )
    dtype = name_of(x.dtype)
    if dtype != (parameter.dtype or dtype):
        raise TypeError(f"{label}: {name} is {dtype} of shape {x.shape}; accepted: {parameter.dtype}")
    _check_dimensions(label, parameter, x.shape)
    return x


def _check_dimensions(label: str, parameter: Parameter, shape: tuple[int, ...]) -> None:
    if parameter.ndim and len(shape) != parameter.ndim:
        raise ValueError(
            f"{label}: {parameter.name} has shape {shape}; accepted: {parameter.ndim} dimensions, as it is "
            f"{_OF_DIMENSIONS[parameter.kind]} of so many"
        )


_OF_DIMENSIONS = {
    "view": "a view", "mdspan": "an mdspan", "tensor_map": "an array with a box", "pointer": "an array with a box"
}  # fmt: skip


def _results(
    function: ArrayFunction, args: tuple[Any, ...], shapes: dict[str, tuple[int, ...]]
) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Return the names, shapes and dtypes of the results; their shapes are put to the others."""
    label, made = function._label, []
    for name, rule in function._shapes.items():
        parameter = function._parameters[function._places[name]]
        if isinstance(rule, str):
            shape = shapes[rule]
        else:
            with _values_refused(function, f"shape of {name}"):
                shape = _core.xla_shape(label, name, _untraced(function._shape_of(name, rule, args)))
        _check_dimensions(label, parameter, shape)
        made.append((name, shape, parameter.dtype))
    shapes |= {name: shape for name, shape, _ in made}
    return tuple(made)


class _TracedValueError(TypeError):
    """The value of an array that is traced is asked for."""


@contextlib.contextmanager
def _values_refused(function: ArrayFunction, what: str) -> Iterator[None]:
    """Raise TypeError where a function of the arguments looks at the values of an array."""
    try:
        yield
    except (
        _TracedValueError,
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise TypeError(
            f"{function._label}: the {what} depends on the values of an array, which JAX traces; accepted: a function "
            "of shapes, dtypes and numbers"
        ) from error


def _untraced(values: Any) -> Any:
    for x in values if isinstance(values, tuple) else (values,):
        if isinstance(x, _Tracer):
            raise _TracedValueError
    return values


def _launch(
    function: ArrayFunction, args: tuple[Any, ...], shapes: dict[str, tuple[int, ...]], options: dict[str, Any]
) -> tuple[int, ...]:
    """Return the sizes of a kernel's launch; none of a C function."""
    kernel: Any = function
    if not _is_kernel(function):
        return ()
    given = tuple(options.get(name) for name in LAUNCH_OPTIONS)
    with _values_refused(function, "launch"):
        launch = kernel._launch(args, given)
        for option in launch:
            _untraced(option)
    by_place = tuple(shapes.get(p.name, ()) for p in function._parameters)
    sizes: tuple[int, ...] = kernel._calls.launch_for(by_place, launch)
    return sizes


def _is_kernel(function: ArrayFunction) -> bool:
    return "grid" in function._keywords


# ---- the functions of programs ----


def _keep(function: ArrayFunction, key: str) -> str:
    """Keep a function for the programs that call it by this key, as long as the process runs."""
    function._calls.keep_for_xla(key)
    return key


def _find(key: str) -> None:
    """Keep the function of a key that another process has put into a program, if this one has made it."""
    name = key.rpartition("-")[0]
    made = [function for identity in [*identities.values()] for function in [*identity.functions]]
    for function in made:
        if function.__name__ == name and content_key(function) == key:
            _keep(function, key)
            return


_core.find_for_xla(_find)


# ---- what it is ----


def _type(*operands: _Aval, results: Any, **_: Any) -> list[_Aval]:
    first, *others = operands
    return [
        first.update(shape=shape, dtype=numpy_dtype(dtype), weak_type=False, **placed_as(shape, first, *others))
        for _, shape, dtype in results
    ]


# ---- how it is computed ----


def _check_local(ctx: mlir.LoweringRuleContext, label: str) -> None:
    if (count := device_count(ctx)) != 1:
        raise NotImplementedError(
            f"{label}: the program is for {count} devices, and nothing says how the call is cut over them; accepted: "
            "the call inside jax.shard_map over all axes of the mesh, or interop.operator(..., cut=...) of the function"
        )


def _lower_host(
    ctx: mlir.LoweringRuleContext, *operands: Any, function: ArrayFunction, numbers: bytes, **_: Any
) -> Any:
    require_target(function._label, _TARGET, "cpu")
    _check_local(ctx, function._label)
    if _is_kernel(function):
        raise ValueError(
            f"{function._label}: a kernel runs on a GPU, and JAX computes this program on the CPU; accepted: arrays on "
            "a GPU, as jax.device_put(x, jax.devices('cuda')[0]) makes one"
        )
    _check_kinds(function, "device", "computes this program on the CPU", "jax.device_put(x, jax.devices('cuda')[0])")
    key = _keep(function, content_key(function))
    return jax.ffi.ffi_lowering(_TARGET)(ctx, *operands, function=key, numbers=_array(numbers))


def _lower_cuda(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    function: ArrayFunction,
    numbers: bytes,
    launch: tuple[int, ...],
    **_: Any,
) -> Any:
    require_target(function._label, _TARGET, "CUDA")
    _check_local(ctx, function._label)
    _check_kinds(function, "host", "computes this program on a GPU", "jax.device_put(x, jax.devices('cpu')[0])")
    key, in_graphs = _prepared(function, ctx.module_context.lowering_parameters.for_export)
    rule = jax.ffi.ffi_lowering(_IN_GRAPHS if in_graphs else _TARGET)
    return rule(ctx, *operands, function=key, numbers=_array(numbers), launch=np.array(launch, np.int64))


def _array(numbers: bytes) -> Any:
    return np.frombuffer(numbers, np.uint8)


def _prepared(function: Any, for_export: bool) -> tuple[str, bool]:
    """Return the key of a function that the GPU runs, and whether a CUDA graph may replay what a call queues."""
    if _is_kernel(function) and not for_export and jax_has_cuda(jax):
        return _prepared_kernel(function)
    key = _keep(function, content_key(function))
    return key, not _is_kernel(function) and function._in_graphs  # kernels are compiled where the program is loaded


@functools.cache
def _prepared_kernel(kernel: Any) -> tuple[str, bool]:
    """Do the same for a kernel, which is compiled."""
    key = _keep(kernel, own_key(kernel.__name__))
    _core.prepare_for_xla(key)  # this one, where another one of the same content is kept, too
    if kernel._program.has_variables:  # they are this kernel's own, and a replay would not wait for writes to them
        kernel._content = key
        return key, False
    key = _keep(kernel, content_key(kernel))
    _core.prepare_for_xla(key)
    return key, True


def _check_kinds(function: ArrayFunction, other: str, where: str, remedy: str) -> None:
    """Refuse pointers to the memory in which this program has no arrays."""
    for parameter in function._parameters:
        if parameter.kind == other:
            raise ValueError(
                f"{function._label}: {parameter.name} is a pointer to {other} memory, and JAX {where}; accepted: "
                f"arrays in {other} memory, as {remedy} makes one"
            )


@functools.lru_cache(maxsize=1024)
def _compiled(**params: Any) -> Callable[..., list[jax.Array]]:
    def interop_function(*operands: jax.Array) -> Any:
        return function_p.bind(*operands, **params)

    return jax.jit(interop_function)


def _run(*operands: jax.Array, function: ArrayFunction, **params: Any) -> Any:
    return run_primitive(function._label, _compiled(function=function, **params), *operands)


# ---- transforms that need another rule ----


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, operands: Any, results: Any, **params: Any) -> Any:
    """Refuse the derivative, but of integers and by integers, of which there is none."""
    by = [name for name, tangent in zip(operands, tangents, strict=True) if not _is_zero(tangent)]
    if by and any(jax.numpy.issubdtype(numpy_dtype(dtype), jax.numpy.inexact) for _, _, dtype in results):
        raise NotImplementedError(
            f"{params['function']._label}: JAX differentiates the call by {by[0]}, and a kernel or C function has no "
            f"derivative; accepted: jax.lax.stop_gradient({by[0]}), or interop.operator(..., gradient=...) of the "
            "function"
        )
    made = function_p.bind(*primals, operands=operands, results=results, **params)
    return made, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in made]


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _refuse_vmap(values: Sequence[Any], dims: Sequence[Any], *, function: Any, operands: Any, **_: Any) -> NoReturn:
    name = next(name for name, dim in zip(operands, dims, strict=True) if dim is not None)
    raise NotImplementedError(
        f"{function._label}: jax.vmap maps {name}, and nothing says which axes the function takes; accepted: "
        "jax.lax.map, which calls it for each, or interop.operator(...) of the function, whose signature says it"
    )


function_p.def_impl(_run)
function_p.def_abstract_eval(_type)
mlir.register_lowering(function_p, _lower_host, platform="cpu")
mlir.register_lowering(function_p, _lower_cuda, platform="cuda")
ad.primitive_jvps[function_p] = _jvp
batching.primitive_batchers[function_p] = _refuse_vmap
