"""Functions and kernels of other libraries by interop, beside the library's own call or what one writes by hand."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import interop
from interop._commands.bench.launches import COUNT, SOURCE
from interop._commands.bench.measure import Candidates, Row, block

__all__ = ["run"]

_ROUNDS, _CALLS, _CALLS_BEFORE = 60, 20, 100

#: A pair: the name and call of the library or by hand, the name and call by interop.
Pair = tuple[str, Callable[[], Any], str, Callable[[], Any]]


def run(torch: Any) -> Iterable[Row]:
    """Time each pair in turn, a few calls of one and of the other; medians, and the median of what interop adds."""
    print(f"{'host time per call':<46}{'us':>9}{'ratio':>8}{'more, us':>10}")
    for make in (_adapted, _raw_kernel, _tvm_ffi, _triton, _numba, _graph, _bridge):
        try:
            pairs = [*make(torch)]
        except Exception as error:  # not here, or not for this machine
            first = (str(error).splitlines() or [""])[0]
            print(f"{make.__name__.strip('_')}: skipped: {type(error).__name__}: {first}")
            continue
        for pair in pairs:
            yield from _rows(torch, pair)


def _rows(torch: Any, pair: Pair) -> Iterable[Row]:
    theirs, their_call, ours, our_call = pair
    samples: dict[str, list[float]] = {theirs: [], ours: []}
    candidates: Candidates = {theirs: their_call, ours: our_call}
    for call in candidates.values():
        block(call, _CALLS_BEFORE)
    torch.cuda.synchronize()
    for _ in range(_ROUNDS):
        for name, call in candidates.items():
            samples[name].append(block(call, _CALLS))
            torch.cuda.synchronize()
    base = statistics.median(samples[theirs])
    more = statistics.median(b - a for a, b in zip(samples[theirs], samples[ours], strict=True))
    for name in candidates:
        microseconds = statistics.median(samples[name])
        ratio = microseconds / base
        print(f"{name:<46}{microseconds:>9.2f}{ratio:>8.2f}" + (f"{more:>10.2f}" if name == ours else ""))
        yield {"row": name, "microseconds": microseconds, "ratio": ratio, "more": more if name == ours else ""}


def _require(is_right: Any, name: str) -> None:
    if not is_right:
        raise AssertionError(f"interop bench: {name} is wrong; nothing was timed")


def _adapted(torch: Any) -> Iterable[Pair]:
    cupy = importlib.import_module("cupy")
    t = torch.rand(16, 16, device="cuda")
    x = cupy.from_dlpack(t)
    of_cupy = interop.adapt(cupy.negative, "cupy", writes="out")
    of_torch = interop.adapt(torch.neg, "torch", writes="out")
    _require(torch.equal(of_cupy(t), -t) and (of_torch(x) == -x).all(), "interop.adapt")

    def by_hand() -> Any:
        return torch.from_dlpack(cupy.negative(cupy.from_dlpack(t)))

    def by_hand_back() -> Any:
        return cupy.from_dlpack(torch.neg(torch.from_dlpack(x)))

    yield "cupy.negative", lambda: cupy.negative(x), "adapt(cupy.negative) on CuPy", lambda: of_cupy(x)
    yield "torch.neg", lambda: torch.neg(t), "adapt(torch.neg) on torch", lambda: of_torch(t)
    yield "cupy.negative on torch by from_dlpack", by_hand, "adapt(cupy.negative) on torch", lambda: of_cupy(t)
    yield "torch.neg on CuPy by from_dlpack", by_hand_back, "adapt(torch.neg) on CuPy", lambda: of_torch(x)
    side = torch.cuda.Stream()
    yield (
        "cupy.negative on torch, by hand, side stream",
        lambda: _on(torch, cupy, side, by_hand),
        "adapt(cupy.negative) on torch, side stream",
        lambda: _on(torch, None, side, lambda: of_cupy(t)),
    )


def _on(torch: Any, cupy: Any, stream: Any, call: Callable[[], Any]) -> Any:
    with torch.cuda.stream(stream):
        if cupy is None:
            return call()
        with cupy.cuda.Stream.from_external(stream):
            return call()


def _raw_kernel(torch: Any) -> Iterable[Pair]:
    cupy = importlib.import_module("cupy")
    t, out = torch.rand(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
    x, y, count = cupy.from_dlpack(t), cupy.from_dlpack(out), np.int64(COUNT)
    kernel = cupy.RawKernel(SOURCE, "add")
    adopted = interop.adopt(kernel, grid=1, block=COUNT)
    adopted(t, t, out, COUNT)
    _require(torch.equal(out, t + t), "interop.adopt of a RawKernel")

    def own() -> None:
        kernel((1,), (COUNT,), (x, x, y, count))

    yield "cupy.RawKernel, its launch", own, "adopt of it on CuPy", lambda: adopted(x, x, y, COUNT)
    yield "cupy.RawKernel, its launch", own, "adopt of it on torch", lambda: adopted(t, t, out, COUNT)


def _tvm_ffi(torch: Any) -> Iterable[Pair]:
    tvm_ffi = importlib.import_module("tvm_ffi")
    t = torch.rand(COUNT, device="cuda")
    function = tvm_ffi.convert(lambda x, y: None)
    adopted = interop.adopt(function, "x, y", writes="y")
    yield "tvm_ffi.Function of Python, no work", lambda: function(t, t), "adopt of that on torch", lambda: adopted(t, t)


def _triton(torch: Any) -> Iterable[Pair]:
    from interop._commands.bench import triton_kernels  # imports Triton, which reads the sources of kernels

    t, out = torch.rand(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
    kernel = triton_kernels.add
    adopted = interop.adopt(kernel, writes="c", grid=1, options={"BLOCK": COUNT})
    adopted(t, t, out, COUNT)
    _require(torch.equal(out, t + t), "interop.adopt of a Triton kernel")

    def own() -> None:
        kernel[(1,)](t, t, out, COUNT, BLOCK=COUNT)

    yield "Triton's launch", own, "adopt of its kernel on torch", lambda: adopted(t, t, out, COUNT)


def _numba(torch: Any) -> Iterable[Pair]:
    cuda = importlib.import_module("numba.cuda")

    @cuda.jit  # type: ignore[untyped-decorator]
    def add(a: Any, b: Any, c: Any) -> None:
        k = cuda.grid(1)
        if k < c.size:
            c[k] = a[k] + b[k]

    t, out = torch.rand(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
    x, y = cuda.as_cuda_array(t), cuda.as_cuda_array(out)
    adopted = interop.adopt(add, writes="c", grid=1, block=COUNT)
    adopted(t, t, out)
    _require(torch.equal(out, t + t), "interop.adopt of a kernel of Numba")

    def by_hand() -> None:
        add[1, COUNT](cuda.as_cuda_array(t), cuda.as_cuda_array(t), cuda.as_cuda_array(out))

    def own() -> None:
        add[1, COUNT](x, x, y)

    yield "Numba's launch", own, "adopt of its kernel on its arrays", lambda: adopted(x, x, y)
    yield "Numba's launch on torch, by hand", by_hand, "adopt of its kernel on torch", lambda: adopted(t, t, out)


def _graph(torch: Any) -> Iterable[Pair]:
    t = torch.rand(16, 16, device="cuda")
    own = torch.cuda.CUDAGraph()
    with torch.cuda.graph(own, capture_error_mode="thread_local"):
        torch.neg(t)
    with interop.graph() as ours:
        torch.neg(t)
    yield "torch.cuda.CUDAGraph, replay", own.replay, "interop.graph of the same, replay", ours.replay


def _bridge(torch: Any) -> Iterable[Pair]:
    jax = importlib.import_module("jax")
    t = torch.rand(16, 16, device="cuda")
    x = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
    function = jax.jit(lambda x: x * x)
    bridged = interop.bridge(function, to="torch")
    _require(torch.equal(bridged(t), t * t), "interop.bridge")

    def by_hand() -> Any:
        return torch.from_dlpack(function(jax.dlpack.from_dlpack(t)))

    yield "a jitted function of JAX", lambda: function(x), "bridge of it on torch", lambda: bridged(t)
    yield "a jitted function on torch by from_dlpack", by_hand, "bridge of it on torch", lambda: bridged(t)
    in_torch = t.clone().requires_grad_()

    def torch_gradient() -> Any:
        return torch.autograd.grad((in_torch * in_torch).sum(), in_torch)

    def bridged_gradient() -> Any:
        return torch.autograd.grad(bridged(in_torch).sum(), in_torch)

    yield "torch, forward and backward", torch_gradient, "bridge, forward and backward", bridged_gradient
