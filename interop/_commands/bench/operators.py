"""`interop bench operators`: an operator around a kernel, beside the kernel itself and what is written by hand."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import interop
from interop._commands.bench.measure import Candidates, Row, has_compiler, host_times, warm_up

__all__ = ["run"]

_ROWS, _COLUMNS, _BY = 16, 16, 2.5
_SOURCE = """
__global__ void scale(const float* x, float by, float* y, long long count) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] * by;
}
"""
_KERNEL, _OPERATOR = "the kernel", "interop.operator"
_FUNCTION, _CUSTOM = "torch.autograd.Function", "torch.library.custom_op"


def run(torch: Any) -> Iterable[Row]:
    """Time calls on 16 x 16 float32 on the host: without a gradient, with one, and forward and backward."""
    if not has_compiler():
        return
    kernel = interop.kernel(_SOURCE, "scale", threads="y")
    made = kernel.returning(y="x")

    def scale(x: Any, by: float) -> Any:
        return made(x, by, x.numel())

    operator = interop.operator(
        "interop_bench::scale",
        kernel,
        "x[..., n], by -> [..., n]",
        sizes={"count": lambda leading, n: leading * n},
        gradient=lambda g, x, by, y: (scale(g, by), None),
    )
    by_hand, custom = _by_function(torch, scale), _by_custom_operator(torch, scale)
    recorded: dict[str, Callable[[Any], Any]] = {
        _FUNCTION: lambda x: by_hand(x, _BY),
        _OPERATOR: lambda x: operator(x, _BY),
        _CUSTOM: lambda x: custom(x, _BY),
    }
    warm_up(torch)
    x = torch.rand(_ROWS, _COLUMNS, device="cuda")
    leaf, grad = x.clone().requires_grad_(), torch.rand(_ROWS, _COLUMNS, device="cuda")

    def both(call: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(call(leaf), leaf, grad)

    contests: dict[str, Candidates] = {
        "no gradient": {_KERNEL: lambda: scale(x, _BY), _OPERATOR: lambda: operator(x, _BY)},
        "with a gradient": {name: functools.partial(call, leaf) for name, call in recorded.items()},
        "forward and backward": {name: both(call) for name, call in recorded.items()},
    }
    print(f"Host microseconds per call of a kernel on {_ROWS} x {_COLUMNS} float32, and beside the first of each kind")
    print(f"{'what':<52}{'us':>8}{'ratio':>8}{'more us':>10}")
    gc.disable()
    for what, candidates in contests.items():
        yield from _rows(torch, what, candidates)
    gc.enable()


def _by_function(torch: Any, scale: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """Make what is written by hand around a kernel, with the same kernel as its gradient."""

    def forward(ctx: Any, x: Any, by: float) -> Any:
        ctx.by = by
        return scale(x, by)

    def backward(ctx: Any, grad: Any) -> Any:
        return scale(grad, ctx.by), None

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Scale", (torch.autograd.Function,), methods)
    return made.apply  # type: ignore[no-any-return]


def _by_custom_operator(torch: Any, scale: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """Make what torch has for it: an operator in Python."""

    def by_kernel(x: Any, by: Any) -> Any:
        return scale(x, by)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    # From which torch makes the schema.
    by_kernel.__annotations__ = {"x": torch.Tensor, "by": float, "return": torch.Tensor}
    custom = torch.library.custom_op("interop_bench::custom_scale", by_kernel, mutates_args=())
    custom.register_fake(lambda x, by: torch.empty_like(x))
    custom.register_autograd(lambda ctx, grad: (scale(grad, ctx.by), None), setup_context=keep)
    return custom  # type: ignore[no-any-return]


def _rows(torch: Any, what: str, candidates: Candidates) -> Iterable[Row]:
    results = [call() for call in candidates.values()]
    for result in results:
        got, expected = (x[0] if isinstance(x, tuple) else x for x in (result, results[0]))
        if not torch.equal(got, expected):
            raise RuntimeError(f"interop bench: results differ, {what}")
    times = host_times(candidates, torch.cuda.synchronize)
    first = next(iter(times.values()))
    for name, microseconds in times.items():
        print(f"{f'{name}, {what}':<52}{microseconds:8.2f}{microseconds / first:8.2f}{microseconds - first:10.2f}")
        yield {"what": what, "call": name, "host_us": microseconds, "ratio": microseconds / first}
