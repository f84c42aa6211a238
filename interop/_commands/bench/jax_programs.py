"""Programs of JAX's around one kernel: an operator, XLA's call of the same handler by hand, and calls of Python."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import interop
from interop._commands.bench.measure import Candidates, NamedStream
from interop._functions.identity import content_key

__all__ = ["BY_CALL", "BY_CALLBACK", "BY_HAND", "BY_OPERATOR", "by_hand", "calls", "calls_of_python"]

BY_HAND, BY_OPERATOR = "jax.ffi.ffi_call of the handler, jitted", "interop.operator inside jax.jit"
BY_CALLBACK, BY_CALL = "jax buffer_callback of a CuPy function, jitted", "interop.jax.call of it inside jax.jit"
_SOURCE = """
__global__ void scale(const float* x, float by, float* y, long long count) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) y[i] = by * x[i];
}
"""
_BY, _CALLS = 0.5, 10  # so many calls, one after the other, are a program


def calls(jax: Any) -> Candidates:
    """Return calls of two programs that scale 16 x 16 float32 ten times, which compute the same."""
    kernel = interop.kernel(_SOURCE, "scale", threads="x")
    operator = interop.operator(
        "interop_bench::jax_scale", kernel, "x[..., n], by -> [..., n]", sizes={"count": lambda leading, n: leading * n}
    )
    x = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
    programs = {
        BY_HAND: _repeated(jax, by_hand(jax, kernel.returning(y="x"), x, _BY, x.size)),
        BY_OPERATOR: _repeated(jax, lambda x: operator(x, _BY)),
    }
    return {name: functools.partial(program, x) for name, program in programs.items()}


def calls_of_python(jax: Any, cupy: Any) -> Candidates:
    """Return calls of two programs that have CuPy scale 16 x 16 float32 ten times, into XLA's memory."""
    x = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
    by = cupy.float32(_BY)

    def scale(x: Any, out: Any) -> None:
        cupy.multiply(x, by, out=out)

    def callback(context: Any, out: Any, x: Any) -> None:
        with cupy.cuda.Stream.from_external(NamedStream(context.stream)):
            scale(cupy.asarray(x), cupy.asarray(out))

    by_jax = importlib.import_module("jax.experimental.buffer_callback").buffer_callback(callback, x)
    adapted = interop.adapt(scale, "cupy", writes="out")
    programs = {
        BY_CALLBACK: _repeated(jax, by_jax),
        BY_CALL: _repeated(jax, lambda x: interop.jax.call(adapted, x, out=x)),
    }
    return {name: functools.partial(program, x) for name, program in programs.items()}


def _repeated(jax: Any, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        for _ in range(_CALLS):
            x = call(x)
        return x

    jitted: Callable[[Any], Any] = jax.jit(program)
    return jitted


def by_hand(jax: Any, function: Any, *args: Any) -> Callable[[Any], Any]:
    """Return the foreign function call of a kernel or C function with these arguments, the first of them an array."""
    _, *numbers = args
    (step,) = jax.make_jaxpr(lambda x: function(x, *numbers))(args[0]).eqns
    jax.jit(lambda x: function(x, *numbers)).lower(args[0]).compile()  # by which it is known to the handler
    ((_, shape, dtype),) = step.params["results"]
    launch = step.params["launch"]
    attributes: dict[str, Any] = {
        "function": content_key(function),
        "numbers": np.frombuffer(step.params["numbers"], np.uint8),
    }
    if launch:
        attributes["launch"] = np.array(launch, np.int64)
    target = "interop_function_in_graphs" if launch else "interop_function"
    importlib.import_module("jax.ffi")
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype))
    return lambda x: call(x, **attributes)
