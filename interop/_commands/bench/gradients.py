"""`interop bench gradients`: products that torch differentiates and compiles, each beside torch's own."""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import interop
from interop._commands.bench.measure import Candidates, Row, host_times, warm_up

__all__ = ["run"]

_SIZES = (16, 256, 1024, 4096)
_TORCH, _CUSTOM = "torch.matmul", "torch.library.custom_op"
_SAMPLES = 15  # of the wall time


def run(torch: Any) -> Iterable[Row]:
    """Time products of n x n float32 that need gradients: on the host, from call to result, and compiled."""
    if torch.backends.cuda.matmul.allow_tf32:
        raise RuntimeError("interop bench: torch is allowed TF32, and interop.matmul is exact without being asked")
    products = {_TORCH: torch.matmul, "interop.matmul": interop.matmul, _CUSTOM: _custom_operator(torch)}
    warm_up(torch)
    print("Microseconds per call of a product of n x n float32, both operands requiring grad, and its ratio to torch's")
    print(f"{'n':>5}  {'what':<42}{'host us':>10}{'ratio':>8}{'wall us':>12}{'ratio':>8}")
    with warnings.catch_warnings():  # torch's own: that TF32 would be faster, and what its compiler and autograd say
        warnings.simplefilter("ignore")
        for n in _SIZES:
            for what, candidates in _candidates(torch, products, n):
                yield from _rows(torch, n, what, candidates)


def _custom_operator(torch: Any) -> Callable[[Any, Any], Any]:
    """Make what people write around a kernel today: torch's operator in Python, with its gradient."""

    def by_torch(a: Any, b: Any) -> Any:
        return torch.mm(a, b)

    by_torch.__annotations__ = dict.fromkeys(("a", "b", "return"), torch.Tensor)  # from which torch makes the schema
    product = torch.library.custom_op("interop_bench::matmul", by_torch, mutates_args=())
    product.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mT @ grad

    product.register_autograd(backward, setup_context=keep)
    return product  # type: ignore[no-any-return]


def _candidates(torch: Any, products: dict[str, Any], n: int) -> Iterable[tuple[str, Candidates]]:
    a, b = (torch.randn(n, n, device="cuda", requires_grad=True) for _ in range(2))
    grad = torch.randn(n, n, device="cuda")
    plain_a, plain_b = a.detach(), b.detach()

    def both(product: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(product(a, b), (a, b), grad)

    def forward(product: Any, *operands: Any) -> Callable[[], Any]:
        return lambda: product(*operands)

    _check(torch, {name: both(product) for name, product in products.items()})
    yield "forward, no gradient", {name: forward(product, plain_a, plain_b) for name, product in products.items()}
    yield "forward", {name: forward(product, a, b) for name, product in products.items()}
    yield "forward and backward", {name: both(product) for name, product in products.items()}
    torch._dynamo.reset()
    compiled = {name: torch.compile(product) for name, product in map(_as_function, products.items())}
    yield "compiled, no gradient", {name: forward(product, plain_a, plain_b) for name, product in compiled.items()}
    yield "compiled, forward and backward", {name: both(product) for name, product in compiled.items()}
    torch._dynamo.reset()
    graphs = {
        name: torch.compile(product, mode="reduce-overhead") for name, product in map(_as_function, products.items())
    }
    yield "in CUDA graphs, no gradient", {name: forward(product, plain_a, plain_b) for name, product in graphs.items()}


def _as_function(named: tuple[str, Any]) -> tuple[str, Callable[[Any, Any], Any]]:
    """Return a function of its own for each product: graphs are kept by the code of what was compiled."""
    name, product = named
    scope: dict[str, Any] = {"product": product}
    exec("def call(x, y): return product(x, y)", scope)
    return name, scope["call"]


def _check(torch: Any, calls: Candidates) -> None:
    results = {name: call() for name, call in calls.items()}
    for name, got in results.items():
        for x, expected in zip(got, results[_TORCH], strict=True):
            if not torch.allclose(x, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
                raise RuntimeError(f"interop bench: the gradients of {name} are not torch's")


def _rows(torch: Any, n: int, what: str, candidates: Candidates) -> Iterable[Row]:
    gc.disable()
    host = host_times(candidates, torch.cuda.synchronize) if n == _SIZES[0] else {}
    wall = _wall_times(torch, candidates, n)
    gc.enable()
    for name in candidates:
        on_host = f"{host[name]:10.2f}{host[name] / host[_TORCH]:8.2f}" if host else " " * 18
        print(f"{n:5}  {f'{name}, {what}':<42}{on_host}{wall[name]:12.2f}{wall[name] / wall[_TORCH]:8.2f}")
        yield {"n": n, "what": what, "product": name, "host_us": host.get(name), "wall_us": wall[name]}


def _wall_times(torch: Any, candidates: Candidates, n: int) -> dict[str, float]:
    """Return the median microseconds per call, until the GPU has done calls in a row; the candidates interleaved."""
    calls = max(5, min(200, 40 * 1024 // n))
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        for _ in range(5):
            call()
    for _ in range(_SAMPLES):
        for name, call in candidates.items():
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter_ns() - start) / calls / 1000)
    return {name: statistics.median(times) for name, times in samples.items()}
