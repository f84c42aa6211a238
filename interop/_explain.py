"""What a call would do, before it is made: `interop.explain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interop import _core
from interop._matmul import matmul

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
    result_shape: tuple[int, ...]
    result_dtype: str
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
        rows += [
            ("result", f"{self.result_library}: {self.result_dtype} {self.result_shape}"),
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


def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Say what a call would do: streams, waits, copies, memory, algorithm.

    Nothing is computed, allocated or written, and no stream waits for another. Arrays that show themselves only when
    they are exported (``__dlpack__`` of JAX and of unknown libraries) are exported, for the stream that the call would
    use; a raw capsule is thereby used up. Lazily conjugated or negated tensors are resolved, as in the call.

    Parameters
    ----------
    function : callable
        A function of this package: `interop.matmul`.
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
    explainer = _EXPLAINERS.get(function)
    if explainer is None:
        accepted = ", ".join(f"interop.{known.__name__}" for known in _EXPLAINERS)
        raise TypeError(f"interop.explain: function is {function!r}; accepted: {accepted}")
    return explainer(*args, **kwargs)


def _explain_matmul(
    a: Any,
    b: Any,
    /,
    *,
    out: Any = None,
    stream: Any = None,
    backend: str | None = None,
    precision: str | None = None,
    execution: str | None = None,
) -> Explanation:
    found = _core.explain_matmul(a, b, out, stream, backend, precision, execution)
    if found is None:
        return _explain_in_jax("interop.matmul", {"a": a, "b": b}, out, backend)
    arguments = tuple(ExplainedArgument(**argument) for argument in found.pop("arguments"))
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in found.items()}
    return Explanation("interop.matmul", arguments, **fields)


# One for each public function, with that function's own signature.
_EXPLAINERS: dict[Callable[..., Any], Callable[..., Explanation]] = {matmul: _explain_matmul}


# ---- calls of JAX arrays alone ----

_ANYWHERE = "the device of jax.jit"


def _explain_in_jax(function: str, arrays: dict[str, Any], out: Any, backend: str | None) -> Explanation:
    if out is not None:
        raise TypeError(f"{function}: out= cannot be used with JAX arrays, which are immutable; use the result")
    a, b = arrays.values()
    shape = _core.matmul_result(a.shape, str(a.dtype), b.shape, str(b.dtype))
    arguments = tuple(_explain_jax_array(name, x) for name, x in arrays.items())
    device = arguments[0].device
    ours = f"the XLA FFI handler interop_matmul, backend {backend or 'automatic'}"
    kernels = {"cpu": "jax.numpy.matmul", _ANYWHERE: f"jax.numpy.matmul on the CPU, {ours} on CUDA"}.get(device, ours)
    return Explanation(
        function=function,
        arguments=arguments,
        result_library="jax",
        result_shape=shape,
        result_dtype=str(a.dtype),
        device=device,
        stream=None,
        stream_reason="XLA chooses its own, and orders JAX arrays itself",
        waits=(),
        held=(),
        copies=(),
        allocator="XLA's",
        workspace_bytes=None,
        algorithm=f"the JAX primitive interop_matmul: {kernels}",
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
