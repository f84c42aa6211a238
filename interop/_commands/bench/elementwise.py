"""Device time of elementwise operations and expressions, large and small, beside a copy, torch and CuPy."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import interop
from interop._commands.bench import measure
from interop._commands.bench.measure import (
    Candidates,
    Row,
    bind,
    device_times,
    has_compiler,
    torch_stream_in_cupy,
    try_import,
    warm_up,
)

__all__ = ["run"]

Pair = tuple[Any, Any]
Functions = dict[str, Callable[..., Any]]

_NODES = 500  # small calls in one graph, so that the launch of the graph hardly counts


def _elementwise_cases(torch: Any) -> Iterable[tuple[str, int, Callable[[], Pair]]]:
    """Yield what is added, the bytes that must move (an operand that is read again counts once), and the operands."""
    n = 1 << 28  # 1 GiB of float32

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        if dtype.is_floating_point:
            return (torch.rand(*shape, device="cuda") * 2 - 1).to(dtype)
        return torch.randint(-100, 100, shape, device="cuda", dtype=dtype)

    side = 1 << 14

    def pair(dtype: Any) -> Pair:
        count = n * 4 // dtype.itemsize
        return random(count, dtype=dtype), random(count, dtype=dtype)

    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32):
        yield f"contiguous, {str(dtype).removeprefix('torch.')}", 12 * n, functools.partial(pair, dtype)
    square = 4 * side * side
    yield "row broadcast", 2 * square + 4 * side, lambda: (random(side, side), random(side))
    yield "column broadcast", 2 * square + 4 * side, lambda: (random(side, side), random(side, 1))
    channels = 4 * 256 * 256 * 56 * 56
    yield "(256,256,56,56) + (256,1,1)", 2 * channels, lambda: (random(256, 256, 56, 56), random(256, 1, 1))
    yield "a + b.T", 3 * square, lambda: (random(side, side), random(side, side).T)
    yield "a[:, ::2] + a[:, ::2]", 5 * square // 2, lambda: (random(side, side)[:, ::2], random(side, side)[:, ::2])
    yield "misaligned, a[1:] + b[1:]", 12 * (n - 1), lambda: (random(n)[1:], random(n)[1:])
    yield "misaligned, a[1:] + b[:-1]", 12 * (n - 1), lambda: (random(n)[1:], random(n)[:-1])
    yield "float32 + bfloat16", 10 * n, lambda: (random(n), random(n, dtype=torch.bfloat16))
    yield "float32 + int32", 12 * n, lambda: (random(n), random(n, dtype=torch.int32))
    yield "float32 + scalar", 8 * n, lambda: (random(n), 2.5)


def _copy_rate(torch: Any) -> float:
    """Return the GB/s, read and written, of a copy of 1 GiB: what a kernel can be measured against.

    It is the quicker of two copies: one in a graph and one on a stream, which CUDA does by other means.
    """
    source = torch.rand(1 << 28, device="cuda")
    target = torch.empty_like(source)
    seconds = device_times(torch, {"copy": [lambda: target.copy_(source)] * 4})["copy"]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(measure.BLOCKS):
        start.record()
        for _ in range(4):
            target.copy_(source)
        end.record()
        end.synchronize()
        seconds = min(seconds, start.elapsed_time(end) / 4 / 1000)
    return float(8 * source.numel() / seconds / 1e9)


def run(torch: Any) -> Iterable[Row]:
    """GB/s of large arrays, beside a copy, torch and CuPy; then microseconds of small calls, beside the libraries."""
    cupy = try_import("cupy")
    warm_up(torch)
    ceiling = _copy_rate(torch)
    print(f"copy of 1 GiB: {ceiling:.0f} GB/s, read and written\n")
    names = ["interop", "torch", *(["cupy"] if cupy else [])]
    print(f"{'GB/s of the bytes that must move':<36}" + "".join(f"{name:>9}" for name in names) + "   of the copy's")
    for case, moved, make in _elementwise_cases(torch):
        a, b = make()
        out = torch.empty_like(torch.add(a, b))
        expected = torch.add(a, b)
        interop.add(a, b, out=out)
        if not torch.equal(out, expected):
            raise AssertionError(f"interop bench: {case} is wrong; nothing was timed")
        del expected
        times = device_times(
            torch,
            {
                "interop": [bind(interop.add, a, b, out)] * 4,
                "torch": [bind(torch.add, a, b, out)] * 4,
            },
        )
        if cupy:
            times |= _cupy_time(torch, cupy, a, b, out)
        yield from _rate_rows(case, moved, times, names, ceiling)
        del a, b, out
        torch.cuda.empty_cache()
    expressions = has_compiler()
    if expressions:
        yield from _expressions(torch, cupy, names, ceiling)
    yield from _small_calls(torch, cupy, expressions)


def _line(case: str, values: dict[str, float], names: Sequence[str], digits: int) -> str:
    """Return the line of a table, to which the ratios are added; "-" for a library that did not take part."""
    cells = (f"{values[name]:>9.{digits}f}" if name in values else f"{'-':>9}" for name in names)
    return f"{case:<36}{''.join(cells)}   "


def _rate_rows(case: str, moved: int, times: dict[str, float], names: Sequence[str], ceiling: float) -> Iterable[Row]:
    """Print and yield the rates of the libraries that took part."""
    rates = {name: moved / seconds / 1e9 for name, seconds in times.items()}
    print(_line(case, rates, names, 0) + "  ".join(f"{rate / ceiling:.2f}" for rate in rates.values()))
    for name, rate in rates.items():
        yield {"case": case, "backend": name, "gb_per_s": rate, "ratio_to_copy": rate / ceiling}


def _expressions(torch: Any, cupy: Any, names: Sequence[str], ceiling: float) -> Iterable[Row]:
    """Rates of x * y + a in one kernel, beside torch's two and CuPy's ElementwiseKernel."""
    f = interop.elementwise("x * y + a")
    side = 1 << 14
    square = 4 * side * side

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        return (torch.rand(*shape, device="cuda") * 2 - 1).to(dtype)

    cases: Sequence[tuple[str, int, Callable[[], list[Any]]]] = (
        ("x * y + a", 4 * square, lambda: [random(side, side) for _ in range(3)]),
        ("x * y + a, bfloat16", 2 * square, lambda: [random(side, side, dtype=torch.bfloat16) for _ in range(3)]),
        ("x * y + 2.5", 3 * square, lambda: [random(side, side), random(side, side), 2.5]),
        ("x * y + a, rows", 2 * square + 8 * side, lambda: [random(side, side), random(side), random(side)]),
        ("x * y.T + a", 4 * square, lambda: [random(side, side), random(side, side).T, random(side, side)]),
    )
    for case, moved, make in cases:
        arrays = make()
        out = torch.empty_like(arrays[0])
        f(*arrays, out=out)
        expected = arrays[0] * arrays[1] + arrays[2]
        if not torch.equal(out, expected):
            raise AssertionError(f"interop bench: {case} is wrong; nothing was timed")
        del expected
        between = torch.empty_like(out)

        def by_torch(arrays: Any = arrays, between: Any = between, out: Any = out) -> None:
            torch.add(torch.mul(arrays[0], arrays[1], out=between), arrays[2], out=out)

        calls: dict[str, list[Callable[[], Any]]] = {
            "interop": [functools.partial(f, *arrays, out=out)] * 4,
            "torch": [by_torch] * 4,
        }
        times = device_times(torch, calls)
        if cupy and out.dtype == torch.float32:
            kernel = cupy.ElementwiseKernel("T x, T y, T a", "T z", "z = x * y + a", "x_times_y_plus_a")
            operands = [cupy.from_dlpack(x) if isinstance(x, torch.Tensor) else np.float32(x) for x in (*arrays, out)]
            times |= {"cupy": _cupy_seconds(cupy, functools.partial(kernel, *operands))}
        yield from _rate_rows(case, moved, times, names, ceiling)
        del arrays, out, between, by_torch, calls
        torch.cuda.empty_cache()


def _cupy_time(torch: Any, cupy: Any, a: Any, b: Any, out: Any) -> dict[str, float]:
    """Return the median seconds of CuPy's sum into the same memory; nothing where CuPy has not the dtypes."""
    if any(getattr(x, "dtype", None) == torch.bfloat16 for x in (a, b)) or out.dtype == torch.bfloat16:
        return {}
    x, y, z = (cupy.from_dlpack(t) if isinstance(t, torch.Tensor) else t for t in (a, b, out))
    if cupy.result_type(x, y) != z.dtype:
        return {}
    return {"cupy": _cupy_seconds(cupy, lambda: cupy.add(x, y, out=z))}


def _cupy_seconds(cupy: Any, call: Callable[[], Any]) -> float:
    """Return the median seconds of a call on CuPy's stream."""
    stream = cupy.cuda.get_current_stream()
    samples = []
    for _ in range(12):
        start, end = (cupy.cuda.Event() for _ in range(2))
        start.record(stream)
        call()
        end.record(stream)
        end.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return float(statistics.median(samples[2:]))


# ---- small calls ----


def _small_cases(torch: Any, cupy: Any, expressions: bool, device: str) -> Iterable[tuple[str, Functions, list[Any]]]:
    """Yield what is called, by library, and the operands: small whole numbers, so that all results are equal."""

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randint(-8, 9, shape, device=device).to(dtype)

    def by_name(name: str) -> Functions:
        libraries = {"interop": interop, "torch": torch} | ({"cupy": cupy} if cupy else {})
        return {library: getattr(module, name) for library, module in libraries.items()}

    add = by_name("add")
    for dtype in (torch.float32, torch.float16, torch.int32):
        for n in (1, 1 << 14, 1 << 20):
            yield f"add, {str(dtype).removeprefix('torch.')}, {n}", add, [random(n, dtype=dtype) for _ in range(2)]
    n = 1 << 14
    yield f"less, {n}", by_name("less"), [random(n), random(n)]
    yield f"x * 2.5, {n}", by_name("multiply"), [random(n), 2.5]
    if expressions:
        functions: Functions = {
            "interop": interop.elementwise("x * 2.5 + y"),
            "torch": lambda x, y, out: torch.add(y, x, alpha=2.5, out=out),  # one kernel, as the others
        }
        if cupy:
            kernel = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * T(2.5) + y", "x_times_a_number_plus_y")
            functions["cupy"] = lambda x, y, out: kernel(x, y, out)
        yield f"x * 2.5 + y, {n}", functions, [random(n), random(n)]
    yield "row broadcast, 128^2", add, [random(128, 128), random(128)]
    for side in (128, 1024):
        yield f"a.T + b, {side}^2", add, [random(side, side).T, random(side, side)]
    yield "float32 + int32, 128^2", add, [random(128, 128), random(128, 128, dtype=torch.int32)]


def _small_calls(torch: Any, cupy: Any, expressions: bool) -> Iterable[Row]:
    """Microseconds of small calls on the GPU, where what counts is how soon a kernel starts and ends."""
    names = ["interop", "torch", *(["cupy"] if cupy else [])]
    print(f"\nsmall calls, replayed in CUDA graphs of {_NODES}: their operands stay in the L2 cache")
    print(f"{'us of a call, on the GPU':<36}" + "".join(f"{name:>9}" for name in names) + "   interop to torch")
    for case, functions, operands in _small_cases(torch, cupy, expressions, "cuda"):
        calls = _checked_calls(torch, cupy, case, functions, operands)
        times = device_times(torch, {name: [call] * _NODES for name, call in calls.items()})
        yield from _time_rows(case, times, names)


def _checked_calls(torch: Any, cupy: Any, case: str, functions: Functions, operands: list[Any]) -> Candidates:
    """Return the call of each library that has the dtypes, all into the same memory, once the results are right."""
    expected = functions["torch"](*operands, out=None)
    out = torch.empty_like(expected, memory_format=torch.contiguous_format)
    calls: Candidates = {name: functools.partial(functions[name], *operands, out=out) for name in ("interop", "torch")}
    if cupy:
        calls |= _on_torchs_stream(torch, cupy, functions["cupy"], operands, out)
    for name, call in calls.items():
        out.zero_()
        call()
        if not torch.equal(out, expected):
            raise AssertionError(f"interop bench: {case} by {name} is wrong; nothing was timed")
    return calls


def _on_torchs_stream(torch: Any, cupy: Any, function: Callable[..., Any], operands: list[Any], out: Any) -> Candidates:
    """Return CuPy's call, which torch's graphs capture; nothing where CuPy gives another dtype than torch."""
    *arrays, result = (cupy.from_dlpack(x) if isinstance(x, torch.Tensor) else x for x in (*operands, out))
    if result.dtype.kind != "b" and cupy.result_type(*arrays) != result.dtype:
        return {}

    def call() -> None:
        with torch_stream_in_cupy(torch, cupy):
            function(*arrays, out=result)

    return {"cupy": call}


def _time_rows(case: str, times: dict[str, float], names: Sequence[str]) -> Iterable[Row]:
    """Print and yield the microseconds of the libraries that took part."""
    microseconds = {name: seconds * 1e6 for name, seconds in times.items()}
    print(_line(case, microseconds, names, 2) + f"{times['interop'] / times['torch']:.2f}")
    for name, each in microseconds.items():
        yield {"case": case, "backend": name, "microseconds": each, "ratio_to_torch": times[name] / times["torch"]}
