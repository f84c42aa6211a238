"""`interop bench`: measure against the array libraries, on the card that is here.

Protocol: everything in one process on one card, random data, results checked before they are timed, the candidates
interleaved so that drift hits all of them alike, medians. Host time is the time until a call returns. Device time is
that of calls captured in a CUDA graph and replayed, cycling through buffers that together exceed the L2 cache.
"""

from __future__ import annotations

import csv
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import interop
from interop import _core

__all__ = ["run"]

Row = dict[str, Any]
Candidates = dict[str, Callable[[], Any]]

_L2_BYTES = 128 << 20  # twice the largest L2 cache in use: what the buffers of a cold measurement must exceed


def run(what: str, csv_path: str | None) -> int:
    """Run the benchmark `what`, print its table, and write every row to `csv_path` if that is given."""
    try:
        card = _core.device_info(0)["name"]
    except interop.CudaError as error:
        print(f"interop bench needs a GPU: {error}")
        return 1
    try:
        import torch
    except ImportError:
        print("interop bench needs torch, for its events, graphs and random data: pip install 'interop-dlpack[bench]'")
        return 1
    print(_header(torch, card))
    rows = list(_overhead(torch) if what == "overhead" else _matmul(torch))
    for row in rows:
        row["card"] = card
    if csv_path:
        with Path(csv_path).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _header(torch: Any, card: str) -> str:
    versions = [f"interop {interop.__version__}", f"torch {torch.__version__}"]
    for name in ("cupy", "jax"):
        module = _import(name)
        if module:
            versions.append(f"{name} {module.__version__}")
    driver = _core.driver_version()
    return f"{card}, driver for CUDA {driver // 1000}.{driver % 1000 // 10}; {', '.join(versions)}\n"


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


# ---- host time per call ----


def _host_times(candidates: Candidates, synchronize: Callable[[], None]) -> dict[str, float]:
    """Return microseconds per call of each candidate: the best of seven blocks, the candidates interleaved."""
    best = dict.fromkeys(candidates, math.inf)
    for function in candidates.values():
        for _ in range(200):
            function()
    synchronize()
    for _ in range(7):
        for name, function in candidates.items():
            start = time.perf_counter_ns()
            for _ in range(500):
                function()
            elapsed = time.perf_counter_ns() - start
            synchronize()
            best[name] = min(best[name], elapsed / 500 / 1000)
    return best


def _all_but_launch(call: Callable[[], Any], launch: Callable[[], float], synchronize: Callable[[], None]) -> float:
    """Return the microseconds of a call beside its launch: the median of pairs of one call and one raw launch."""
    differences = []
    for i in range(3000):
        start = time.perf_counter_ns()
        call()
        whole = (time.perf_counter_ns() - start) / 1000
        differences.append(whole - launch() * 1e6)
        if i % 100 == 0:
            synchronize()
    return statistics.median(differences)


def _overhead(torch: Any) -> Iterable[Row]:
    """Host time per call of a 16 x 16 float32 product, for each library beside its own product."""
    gc.disable()
    synchronize = torch.cuda.synchronize
    x = torch.rand(16, 16, device="cuda")
    out = torch.empty(16, 16, device="cuda")
    candidates: Candidates = {
        "torch.matmul": lambda: torch.matmul(x, x),
        "interop.matmul on torch": lambda: interop.matmul(x, x),
        "torch.mm(out=)": lambda: torch.mm(x, x, out=out),
        "interop.matmul(out=) on torch": lambda: interop.matmul(x, x, out=out),
        "interop.matmul on torch, cublas": lambda: interop.matmul(x, x, backend="cublas"),
    }
    peers = {
        "interop.matmul on torch": "torch.matmul",
        "interop.matmul(out=) on torch": "torch.mm(out=)",
        "interop.matmul on torch, cublas": "torch.matmul",
    }
    raw: dict[str, Callable[[], float]] = {
        "interop.matmul on torch": lambda: _core.time_launch(x, x, out),
        "interop.matmul(out=) on torch": lambda: _core.time_launch(x, x, out),
    }
    if cupy := _import("cupy"):
        c = cupy.random.rand(16, 16, dtype=cupy.float32)
        candidates["cupy.matmul"] = lambda: cupy.matmul(c, c)
        candidates["interop.matmul on CuPy"] = lambda: interop.matmul(c, c)
        peers["interop.matmul on CuPy"] = "cupy.matmul"
        raw["interop.matmul on CuPy"] = lambda: _core.time_launch(x, x, out)
    if (jax := _import("jax")) and _has_cuda(jax):
        j = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
        # "highest", as JAX's default for float32 on such cards is TF32.
        jitted = jax.jit(functools.partial(jax.numpy.matmul, precision="highest"))
        candidates["jitted jnp.matmul"] = lambda: jitted(j, j)
        candidates["interop.matmul on JAX"] = lambda: interop.matmul(j, j)
        peers["interop.matmul on JAX"] = "jitted jnp.matmul"
    for name, function in candidates.items():
        if name.startswith("interop"):
            _check(function(), candidates[peers[name]]())
    times = _host_times(candidates, synchronize)
    launch = statistics.median(_core.time_launch(x, x, out) for _ in range(1000)) * 1e6
    print(f"{'host time per call, 16 x 16 float32':<40}{'us':>8}{'ratio':>8}   beside the launch, us")
    print(f"{'one launch of the kernel, from C++':<40}{launch:>8.2f}")
    yield {"row": "launch", "microseconds": launch, "ratio": "", "beside_launch": ""}
    for name, microseconds in times.items():
        ratio = microseconds / times[peers[name]] if name in peers else None
        beside = _all_but_launch(candidates[name], raw[name], synchronize) if name in raw else None
        print(
            f"{name:<40}{microseconds:>8.2f}"
            + (f"{ratio:>8.2f}" if ratio else " " * 8)
            + (f"{beside:>10.2f}" if beside else "")
        )
        yield {"row": name, "microseconds": microseconds, "ratio": ratio or "", "beside_launch": beside or ""}


def _check(result: Any, expected: Any) -> None:
    """Raise if two small products, of one library, differ by more than rounding."""
    if not float(abs(result - expected).max()) <= 1e-5:
        raise AssertionError("interop bench: a product is wrong; nothing was timed")


def _has_cuda(jax: Any) -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


# ---- device time ----


def _graph_timer(torch: Any, calls: list[Callable[[], Any]]) -> Callable[[], float]:
    """Capture the calls in a CUDA graph; the function returned replays it and gives the seconds of one call."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / len(calls)

    return replay


def _device_times(torch: Any, candidates: dict[str, list[Callable[[], Any]]]) -> dict[str, float]:
    """Return the median seconds per call of each candidate, the candidates interleaved."""
    timers = {name: _graph_timer(torch, calls) for name, calls in candidates.items()}
    for timer in timers.values():
        timer()
    samples: dict[str, list[float]] = {name: [] for name in timers}
    started = time.perf_counter()
    names = list(timers)
    while len(samples[names[0]]) < 6 or (time.perf_counter() - started < 0.6 and len(samples[names[0]]) < 60):
        for name in names + names[::-1]:
            samples[name].append(timers[name]())
    return {name: statistics.median(values) for name, values in samples.items()}


_LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}


def _operands(torch: Any, size: int, dtype: Any, layout: str, count: int) -> list[tuple[Any, Any, Any]]:
    def matrix(transposed: bool) -> Any:
        x = torch.rand(size, size, device="cuda", dtype=dtype) * 2 - 1
        return x.t() if transposed else x

    left, right = _LAYOUTS[layout]
    return [
        (matrix(left), matrix(right), torch.empty(size, size, device="cuda", dtype=dtype)) for _ in range(count)
    ]


def _relative_error(torch: Any, result: Any, a: Any, b: Any) -> float:
    reference = a.double() @ b.double()
    return float((result.double() - reference).norm() / reference.norm())


def _warm_up(torch: Any) -> None:
    """Bring the clocks up: three seconds of products."""
    x = torch.rand(4096, 4096, device="cuda")
    started = time.perf_counter()
    while time.perf_counter() - started < 3:
        x @ x
        torch.cuda.synchronize()


def _matmul(torch: Any) -> Iterable[Row]:
    """TFLOP/s of square products, for each backend beside torch."""
    torch.backends.cuda.matmul.allow_tf32 = False
    _warm_up(torch)
    cases = [(torch.float32, n, layout) for n in (512, 1024, 2048, 4096, 8192) for layout in _LAYOUTS]
    cases += [(torch.float64, n, layout) for n in (1024, 2048, 4096) for layout in _LAYOUTS]
    backends = [None, "tiled"] if _core.cublas_status().startswith("not found") else [None, "cublas", "tiled"]
    print(f"{'square products, TFLOP/s':<28}{'torch':>9}" + "".join(f"{str(b):>9}" for b in backends) + "   ratios to torch")
    ratios: dict[tuple[Any, Any], list[float]] = {}
    for dtype, size, layout in cases:
        item = dtype.itemsize
        buffers = max(1, min(16, math.ceil(_L2_BYTES / (2 * size * size * item))))
        operands = _operands(torch, size, dtype, layout, buffers)
        repeats = 100 if size <= 1024 else 20 if size <= 2048 else 4
        candidates: dict[str, list[Callable[[], Any]]] = {
            "torch": [_bind(torch.mm, *operands[i % buffers]) for i in range(repeats)]
        }
        bound = 2e-6 + 1e-7 * size**0.5 if item == 4 else 1e-14
        for backend in backends:
            a, b, c = operands[0]
            error = _relative_error(torch, interop.matmul(a, b, out=c.fill_(math.nan), backend=backend), a, b)
            if not error <= bound:
                raise AssertionError(f"{dtype} {size} {layout} {backend}: error {error:.1e} is above {bound:.1e}")
            candidates[str(backend)] = [
                _bind(interop.matmul, *operands[i % buffers], backend=backend) for i in range(repeats)
            ]
        times = _device_times(torch, candidates)
        flops = {name: 2 * size**3 / seconds / 1e12 for name, seconds in times.items()}
        relative = [flops[str(backend)] / flops["torch"] for backend in backends]
        name = f"{str(dtype).removeprefix('torch.')} {size} {layout}"
        print(f"{name:<28}" + "".join(f"{value:>9.1f}" for value in flops.values())
              + "   " + "  ".join(f"{value:.2f}" for value in relative))
        for backend, ratio in zip(backends, relative, strict=True):
            ratios.setdefault((dtype, backend), []).append(ratio)
        for candidate, value in flops.items():
            yield {"dtype": str(dtype), "size": size, "layout": layout, "backend": candidate, "tflops": value,
                   "ratio_to_torch": value / flops["torch"]}
        del operands, candidates
    for (dtype, backend), values in ratios.items():
        mean = statistics.geometric_mean(values)
        print(f"{str(dtype).removeprefix('torch.')}, backend {backend}: geometric mean {mean:.3f} of torch")


def _bind(function: Callable[..., Any], a: Any, b: Any, out: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(a, b, out=out, **options)
