"""What a call would do, before it is made: `interop.explain`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from interop import _comparisons, _core, _elementwise
from interop._adapt import Adapted
from interop._adopt import Adopted
from interop._arguments import named, refuse_call_of, shown
from interop._bridge import Bridge
from interop._compiled import CompiledFunction
from interop._core import Array
from interop._expression import Expression
from interop._kernel import Kernel
from interop._load import Function
from interop._matmul import matmul
from interop._operations.table import COMPARISONS, FUNCTIONS
from interop._operator import Operator
from interop._operators.arguments import bound
from interop._operators.arrays import facts_of

__all__ = ["ExplainedArgument", "Explanation", "explain"]


@dataclass(frozen=True)
class ExplainedArgument:
    """One array of an explained call: whose it is, how it is read, and what was read."""

    name: str
    library: str  #: "interop" for arrays of no known library
    protocol: str
    pointer: int | None  #: None for a JAX array that is traced, or on several devices
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  #: in elements
    dtype: str
    device: str
    read_only: bool

    def __str__(self) -> str:
        where = "" if self.pointer is None else f", {self.pointer:#x}"
        strides = "" if self.strides is None else f", strides {self.strides}"
        note = ", read-only" if self.read_only else ""
        return f"{self.library} by {self.protocol}: {self.dtype} {self.shape}{strides}, {self.device}{where}{note}"


@dataclass(frozen=True)
class Explanation:
    """What a call would do. `print` shows it line by line."""

    function: str
    arguments: tuple[ExplainedArgument, ...]  #: `out` is the last, if it is given
    result_library: str
    result_shape: tuple[int, ...] | None  #: None where only the call shows it, of what `interop.adapt` makes
    result_dtype: str  #: then ""
    device: str
    stream: int | None  #: None for host arrays, and for JAX, which chooses its own
    stream_reason: str
    waits: tuple[str, ...]  #: which streams wait for each other, and for which array
    held: tuple[str, ...]  #: the arrays that are kept alive until the GPU has done the work
    copies: tuple[str, ...]  #: which data is copied, and why
    allocator: str  #: where the result's memory comes from
    workspace_bytes: int | None  #: None where JAX decides
    algorithm: str

    def __str__(self) -> str:
        stream = "none" if self.stream is None else f"{self.stream:#x}"
        rows = [(argument.name, str(argument)) for argument in self.arguments]
        result = f"{self.result_dtype} {self.result_shape}"
        if self.result_shape is None:
            result = "what the function returns"
        rows += [
            ("result", f"{self.result_library}: {result}"),
            ("device", self.device),
            ("stream", f"{stream}: {self.stream_reason}"),
            ("waits", "; ".join(self.waits) or "none"),
            ("held", ", ".join(self.held) or "none"),
            ("copies", "; ".join(self.copies) or "none"),
            ("allocator", self.allocator),
            ("workspace", "JAX decides" if self.workspace_bytes is None else f"{self.workspace_bytes} bytes"),
            ("algorithm", self.algorithm),
        ]
        return "\n".join([self.function] + [f"  {name:<11}{text}" for name, text in rows])


@named("interop.explain")
def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Say what a call would do: streams, waits, copies, memory, algorithm.

    Nothing is computed, allocated or written, and no stream waits for another. Arrays that show themselves only when
    they are exported (``__dlpack__`` of JAX and of unknown libraries) are exported, for the stream that the call would
    use; a raw capsule is thereby used up. Lazily conjugated or negated tensors are resolved, as in the call.

    Parameters
    ----------
    function : callable
        A function of this package: `interop.matmul`, an elementwise one such as `interop.add`, what
        `interop.elementwise`, `interop.kernel`, `interop.operator`, `interop.adapt`, `interop.adopt` or
        `interop.bridge` makes, or a C function of `interop.load` that takes arrays.
    args : positional arguments
        What it would be called with.
    kwargs : keyword arguments
        The same.

    Returns
    -------
    Explanation
        A record of the call: the route and protocol by which each argument is read, its pointer, shape, strides, dtype
        and device; the stream and why that one; which streams wait for which; which arrays are held; which data is
        copied and why; where the result's memory comes from; the workspace; the algorithm.

    Raises
    ------
    TypeError
        There is no explanation of `function`.
    Exception
        What the call would raise for these arguments.

    Notes
    -----
    Pointers, streams and algorithms are those of this moment: a library's current stream may be another one later.

    Examples
    --------
    >>> import numpy as np, interop
    >>> plan = interop.explain(interop.matmul, np.ones((2, 3)), np.ones((3, 2)))
    >>> plan.algorithm, plan.copies
    ('numpy.matmul, on views of the arrays', ())
    """
    if isinstance(function, Function | CompiledFunction):
        return _explain_c(function, *args, **kwargs)
    if isinstance(function, Kernel):
        return _explain_kernel(function, *args, **kwargs)
    if isinstance(function, Expression):
        return _explain_expression(function, *args, **kwargs)
    if isinstance(function, Operator):
        return _explain_operator(function, *args, **kwargs)
    if isinstance(function, Adopted):
        return _explain_adopted(function, *args, **kwargs)
    if isinstance(function, Bridge):
        return _explain_bridge(function, *args, **kwargs)
    if isinstance(function, Adapted):
        return _explain_adapted(function, *args, **kwargs)
    explainer = _EXPLAINERS.get(function) if inspect.isfunction(function) else None
    if explainer is None:
        accepted = ", ".join(f"interop.{known.__name__}" for known in _EXPLAINERS)
        raise TypeError(
            f"interop.explain: function is {shown(function)}; accepted: {accepted}, and what "
            "interop.elementwise, interop.kernel, interop.load, interop.operator, interop.adapt, interop.adopt and "
            "interop.bridge make"
        )
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        refuse_call_of(f"interop.{function.__name__}", args, kwargs)
    return explainer(*args, **kwargs)


def _explain_matmul(a: Any, b: Any, /, **options: Any) -> Explanation:
    found = _core.explain("matmul", (a, b), options)
    if found is None:
        from interop.jax._matmul import operands_of
        from interop.jax._product import refuse_backend_on_host

        elsewhere = ("autotune", "stream", "execution")
        terms = {name: value for name, value in options.items() if name not in elsewhere}
        answer, _ = operands_of(a, b, **terms)
        kernels = f"the XLA FFI handler interop_matmul, backend {options.get('backend') or 'automatic'}"
        arrays = {"a": a, "b": b, "c": options.get("c"), "bias": options.get("bias")}
        arrays = {name: x for name, x in arrays.items() if x is not None}
        names = ("interop_matmul", kernels, "jax.numpy.matmul")
        stream, execution = options.get("stream"), options.get("execution")
        explained = _explain_in_jax(
            "interop.matmul", arrays, answer["shape"], answer["dtype"], *names, stream, execution
        )
        if explained.device == "cpu":
            refuse_backend_on_host(options.get("backend"))
        return explained
    return _explanation("interop.matmul", found)


def _explanation(function: str, found: dict[str, Any]) -> Explanation:
    arguments = tuple(ExplainedArgument(**argument) for argument in found.pop("arguments"))
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in found.items()}
    return Explanation(function, arguments, **fields)


def _explain_elementwise(name: str, *operands: Any, **options: Any) -> Explanation:
    function = f"interop.{name}"
    a, b = operands if len(operands) > 1 else (*operands, None)
    found = _core.explain(name, (a, b), options)
    if found is not None:
        return _explanation(function, found)
    import jax

    from interop.jax._elementwise import result_of
    from interop.jax._placement import refuse_outputs

    refuse_outputs(function, out=options.get("out"))
    keys = ("a", "b") if len(operands) > 1 else ("x",)
    arrays = {key: x for key, x in zip(keys, operands, strict=True) if isinstance(x, jax.Array | jax.core.Tracer)}
    shape, dtype = result_of(name, a, b, options.get("where_zero"))
    kernels = "the XLA FFI handler interop_elementwise"
    names = ("interop_elementwise", kernels, f"jax.numpy's own {name}")
    explained = _explain_in_jax(function, arrays, shape, dtype, *names, options.get("stream"), options.get("execution"))
    if explained.device == _ANYWHERE or "," in explained.device:
        return replace(explained, algorithm="jax.numpy's operations, which XLA fuses")
    return explained


def _explain_c(
    function: Function | CompiledFunction, /, *args: Any, stream: Any = None, execution: str | None = None, **named: Any
) -> Explanation:
    found = function._call(args, named, stream, execution, True)
    if found is None:
        raise TypeError(f"interop.explain: {function!r} takes no arrays; accepted: C functions that do")
    kind = "C" if isinstance(function, Function) else "compiled"
    found |= {"workspace_bytes": 0, "algorithm": f"the {kind} function {function.__doc__}"}
    return _explanation(function._label, found)


def _explain_kernel(
    function: Kernel,
    /,
    *args: Any,
    grid: Any = None,
    threads: Any = None,
    block: Any = None,
    shared: Any = None,
    cluster: Any = None,
    cooperative: Any = None,
    dependent_launch: Any = None,
    stream: Any = None,
    execution: str | None = None,
    **named: Any,
) -> Explanation:
    args, results = function._bind(args, named)
    launch = function._launch(args, (grid, threads, block, shared, cluster, cooperative, dependent_launch))
    found = function._call(args, results, launch, stream, execution, True)
    found |= {"workspace_bytes": 0, "algorithm": f"{function.__doc__}, {found['algorithm']}"}
    return _explanation(function._label, found)


def _explain_adopted(function: Adopted, /, *args: Any, stream: Any = None, **named: Any) -> Explanation:
    found = function._call(args, named, stream, True)
    return _explanation(function._label, found | {"workspace_bytes": 0, "algorithm": f"the {function.__doc__}"})


def _explain_expression(function: Expression, *arrays: Any, **options: Any) -> Explanation:
    found = _core.explain(function._calls, arrays, options)
    if isinstance(found, dict):
        return _explanation(repr(function), found)
    from interop.jax._expression import result_of
    from interop.jax._placement import refuse_outputs

    refuse_outputs(repr(function), out=options.get("out"))
    jax_arrays, shape, dtype = result_of(*found)
    stream, execution = options.get("stream"), options.get("execution")
    explained = _explain_in_jax(repr(function), jax_arrays, shape, dtype, "", "", "", stream, execution)
    return replace(explained, algorithm="jax.numpy's operations, which XLA fuses")


def _explain_operator(
    operator: Operator, /, *inputs: Any, stream: Any = None, execution: str | None = None, **named: Any
) -> Explanation:
    description = operator._description
    inputs = bound(description, inputs, named)
    where = operator._calls.door(inputs)
    options = operator._options(where, inputs, stream, execution)
    read, results = description.check(inputs)
    chosen = None if where in ("torch", "jax") else description.chosen(read, execution)
    if chosen is not None and chosen.calls is not None:
        called, args = chosen.calls(read)
        return replace(explain(called, *args, **options), function=repr(operator))
    operands = [(description.signature.inputs[place].name, read[place]) for place in description.signature.arrays]
    arguments = tuple(_explain_as_it_is(description.label, name, x, where) for name, x in operands)
    by = {"torch": f"the torch operator {operator.name}: ", "jax": "the JAX primitive of operators: "}.get(where, "")
    return Explanation(
        function=repr(operator),
        arguments=arguments,
        result_library=arguments[0].library,
        result_shape=results[0][0],
        result_dtype=results[0][1],
        device=arguments[0].device,
        stream=None,
        stream_reason="that of each call in the Python function",
        waits=(),
        held=(),
        copies=_MADE_COMPACT.get(where, ()),
        allocator="that of each call in the Python function",
        workspace_bytes=0,
        algorithm=by + _called(operator._made_of[1] if chosen is None else chosen.function),
    )


_MADE_COMPACT = {
    "torch": ("each array that a transform gives expanded or moved, made compact on its device by torch",),
    "jax": ("each array that a transform gives expanded or moved, made compact on its device by XLA",),
}


def _called(call: Any) -> str:
    if isinstance(call, dict):
        return ", ".join(f"for {device!r} {_called(function)}" for device, function in call.items())
    if isinstance(call, Kernel | Function | CompiledFunction | Expression | Adopted):
        return repr(call)
    return f"the Python function {getattr(call, '__qualname__', call)}"


def _explain_as_it_is(label: str, name: str, x: Any, where: str) -> ExplainedArgument:
    library, protocol = _core.route(x)
    shape, dtype = facts_of(x)
    if where in ("torch", "jax"):  # which show no memory
        device = str(x.device) if where == "torch" else _ANYWHERE
        return ExplainedArgument(name, library, protocol, None, shape, None, dtype, device, where == "jax")
    array = _core.asarray(x, label, None, name)
    return ExplainedArgument(name, library, protocol, None, shape, array.strides, dtype, array.device, False)


def _explain_adapted(function: Adapted, /, *args: Any, stream: Any = None, **kwargs: Any) -> Explanation:
    call = function._call(args, kwargs, stream)
    if not call.arguments:
        raise TypeError(f"interop.explain: {function!r} is given no arrays; accepted: arrays among its arguments")
    library = function._foreign.target.name
    device = "cpu" if call.device < 0 else f"cuda:{call.device}"
    return Explanation(
        function=repr(function),
        arguments=tuple(_explain_view(found.name, found.x, found.view, device) for found in call.arguments),
        result_library=call.lead_library,
        result_shape=None,
        result_dtype="",
        device=device,
        stream=call.work,
        stream_reason=call.stream_reason(),
        waits=tuple(call.waits()),
        held=tuple(call.held()),
        copies=tuple(call.copies()),
        allocator=f"that of {library}, or the function's own",
        workspace_bytes=0,
        algorithm=f"{_called(function._foreign.function)}, on arrays of {library}",
    )


def _explain_bridge(function: Bridge, /, *args: Any, **kwargs: Any) -> Explanation:
    arrays, copies = function._door.explained(args, kwargs)
    if not arrays:
        raise TypeError(f"interop.explain: {function!r} is given no arrays; accepted: arrays among its arguments")
    to, other = function._to, {"torch": "jax", "jax": "torch"}[function._to]
    if to == "jax":
        arguments = tuple(_explain_jax_array(name, x) for name, x in arrays)
    else:
        arguments = tuple(_explain_as_it_is(function._label, name, x, to) for name, x in arrays)
    return Explanation(
        function=repr(function),
        arguments=arguments,
        result_library=to,
        result_shape=None,
        result_dtype="",
        device=arguments[0].device,
        stream=None,
        stream_reason="XLA's own of the device" if other == "jax" else "torch's current one, or XLA's inside jax.jit",
        waits=("torch's current stream and XLA's, each for what it is given",),
        held=(),
        copies=tuple(copies),
        allocator=f"that of {other}",
        workspace_bytes=None if other == "jax" else 0,
        algorithm=f"{_called(function._function)}, on arrays of {other}",
    )


def _explain_view(name: str, x: Any, view: Array | None, device: str) -> ExplainedArgument:
    library, protocol = _core.route(x)
    if view is None:  # the function gets it as it is
        shape, dtype = facts_of(x)
        return ExplainedArgument(name, library, "nothing", None, shape, None, dtype, device, False)
    return ExplainedArgument(name, library, protocol, None, view.shape, view.strides, view.dtype, view.device, False)


# One for each public function, with that function's own signature.
_EXPLAINERS: dict[Callable[..., Any], Callable[..., Explanation]] = {
    matmul: _explain_matmul,
    **{
        getattr(_comparisons if name in COMPARISONS else _elementwise, name): functools.partial(
            _explain_elementwise, name
        )
        for name in FUNCTIONS
    },
}


# ---- calls of JAX arrays alone ----

_ANYWHERE = "the device of jax.jit"


def _explain_in_jax(
    function: str,
    arrays: dict[str, Any],
    shape: tuple[int, ...],
    dtype: str,
    primitive: str,
    on_cuda: str,
    on_cpu: str,
    stream: Any,
    execution: str | None,
) -> Explanation:
    import jax

    from interop.jax._placement import check_concrete, refuse_in_trace

    if any(isinstance(x, jax.core.Tracer) for x in arrays.values()):
        refuse_in_trace(function, stream, execution)
    else:
        check_concrete(function, arrays, stream, execution)
    arguments = tuple(_explain_jax_array(name, x) for name, x in arrays.items())
    device = arguments[0].device
    kernels = {"cpu": on_cpu, _ANYWHERE: f"{on_cpu} on the CPU, {on_cuda} on CUDA"}.get(device, on_cuda)
    return Explanation(
        function=function,
        arguments=arguments,
        result_library="jax",
        result_shape=shape,
        result_dtype=dtype,
        device=device,
        stream=None,
        stream_reason="XLA chooses its own, and orders JAX arrays itself",
        waits=(),
        held=(),
        copies=(),
        allocator="XLA's",
        workspace_bytes=None,
        algorithm=f"the JAX primitive {primitive}: {kernels}",
    )


def _explain_jax_array(name: str, x: Any) -> ExplainedArgument:
    import jax

    traced = isinstance(x, jax.core.Tracer)
    devices = [] if traced else sorted(x.devices(), key=lambda device: device.id)
    names = [f"cuda:{device.local_hardware_id}" if device.platform == "gpu" else device.platform for device in devices]
    return ExplainedArgument(
        name=name,
        library="jax",
        protocol="a JAX primitive",
        pointer=x.unsafe_buffer_pointer() if len(devices) == 1 else None,
        shape=tuple(x.shape),
        strides=None,
        dtype=str(x.dtype),
        device=", ".join(names) or _ANYWHERE,
        read_only=True,
    )
