"""`interop bench`: measure against the array libraries, on the card that is here.

Protocol: everything in one process on one card, random data, results checked before they are timed, the candidates
interleaved so that drift hits all of them alike, medians. Host time is the time until a call returns. Device time is
that of calls captured in a CUDA graph and replayed, cycling through buffers that together exceed the L2 cache.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import interop
from interop import _bench_launches, _core, _nvrtc, _plot, _table

__all__ = ["Candidates", "Row", "host_times", "run", "try_import"]

Row = dict[str, Any]
Candidates = dict[str, Callable[[], Any]]

_L2_BYTES = 128 << 20  # twice the largest L2 cache in use: what the buffers of a cold measurement must exceed


def run(
    what: str, csv_path: str | None, only: str = "", plot_path: str | None = None, table_path: str | None = None
) -> int:
    """Run the benchmark `what`, print its table, and write every row to `csv_path` if that is given.

    `only`: of the products, those whose row has this text. `plot_path`: draw the bars of "elementwise" or "matmul" into
    this file. `table_path`: write the page of "matmul" into this one, in Markdown.
    """
    if plot_path and what not in ("elementwise", "matmul"):
        print("interop bench: --plot is of elementwise and matmul")
        return 1
    if plot_path and not try_import("matplotlib"):
        print("interop bench: --plot needs matplotlib: pip install matplotlib")
        return 1
    if table_path and what != "matmul":
        print("interop bench: --table is of matmul")
        return 1
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
    from interop import _bench_examples  # which uses what is here

    benchmarks: dict[str, Callable[[Any], Iterable[Row]]] = {
        "overhead": _overhead,
        "examples": _bench_examples.run,
        "matmul": functools.partial(_matmul, only=only),
        "elementwise": _elementwise,
    }
    rows = list(benchmarks[what](torch))
    for row in rows:
        row["card"] = card
    if csv_path and rows:
        with Path(csv_path).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if plot_path:
        (_plot.matmul if what == "matmul" else _plot.elementwise)(rows, plot_path)
    if table_path:
        _table.matmul(rows, _header(torch, card), table_path)
    return 0


def _header(torch: Any, card: str) -> str:
    versions = [f"interop {interop.__version__}", f"torch {torch.__version__}"]
    for name in ("cupy", "jax"):
        module = try_import(name)
        if module:
            versions.append(f"{name} {module.__version__}")
    driver = _core.driver_version()
    return f"{card}, driver for CUDA {driver // 1000}.{driver % 1000 // 10}; {', '.join(versions)}\n"


def try_import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


# ---- host time per call ----

_WARM_UP, _BLOCKS, _CALLS, _PAIRS = 200, 7, 500, 3000


def host_times(candidates: Candidates, synchronize: Callable[[], None]) -> dict[str, float]:
    """Return microseconds per call of each candidate: the best of seven blocks, the candidates interleaved."""
    best = dict.fromkeys(candidates, math.inf)
    for function in candidates.values():
        for _ in range(_WARM_UP):
            function()
    synchronize()
    for _ in range(_BLOCKS):
        for name, function in candidates.items():
            best[name] = min(best[name], _block(function, _CALLS))
            synchronize()
    return best


def _block(function: Callable[[], Any], calls: int) -> float:
    """Return the microseconds of one call, of this many in a row."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start) / calls / 1000


def _all_but_launch(call: Callable[[], Any], launch: Callable[[], float], synchronize: Callable[[], None]) -> float:
    """Return the microseconds of a call beside its launch: the median over pairs of one call and one raw launch.

    What the clock itself and an empty call between its readings take is measured in turn with them, and left out.
    """

    def nothing() -> None:
        pass

    differences = []
    for i in range(_PAIRS):
        differences.append(_block(call, 1) - launch() * 1e6 - _block(nothing, 1))
        if i % 100 == 0:
            synchronize()
    return statistics.median(differences)


@dataclasses.dataclass
class _Contest:
    """Calls to be timed beside each other."""

    calls: Candidates = dataclasses.field(default_factory=dict)
    peers: dict[str, str] = dataclasses.field(default_factory=dict)  #: interop's call -> the library's own product
    launches: dict[str, Callable[[], float]] = dataclasses.field(default_factory=dict)  #: interop's call -> its launch

    def add(
        self, peer: str, peer_call: Callable[[], Any], name: str, call: Callable[[], Any], launch: Any = None
    ) -> None:
        self.calls[peer] = peer_call
        self.calls[name] = call
        self.peers[name] = peer
        if launch is not None:
            self.launches[name] = launch


_TORCH, _NVMATH, _TVM_FFI = "interop.matmul on torch", "nvmath's matmul on torch", "tvm-ffi, two tensors, no work"


def _overhead(torch: Any) -> Iterable[Row]:
    """Host time per call of a product and a sum of 16 x 16 float32, for each library beside its own."""
    gc.disable()
    synchronize = torch.cuda.synchronize
    x = torch.rand(16, 16, device="cuda")
    out = torch.empty(16, 16, device="cuda")

    def launch() -> float:
        return _core.time_launch(x, x, out)

    contest = _contest(torch, x, out, launch)
    _add_others(contest, x)
    times = yield from _contest_rows(contest, "one launch of the kernel, from C++", launch, synchronize)
    if _NVMATH in times:
        print(f"{_NVMATH} takes {times[_NVMATH] / times[_TORCH]:.0f} times as long as {_TORCH}")
    yield from _breakdown(x, synchronize)

    def launch_sum() -> float:
        return _core.time_elementwise_launch(x, x, out)

    sums = _contest_of_sums(torch, x, out, launch_sum)
    yield from _contest_rows(sums, "one launch of the kernel of sums, from C++", launch_sum, synchronize)
    kernels = _contest_of_kernels(torch, launch_sum)
    yield from _contest_rows(kernels, "one launch of the kernel of sums, again", launch_sum, synchronize)
    gc.enable()


def _contest_rows(
    contest: _Contest, name_of_launch: str, launch: Callable[[], float], synchronize: Callable[[], None]
) -> Generator[Row, None, dict[str, float]]:
    """Check the calls of a contest, time them, print and yield their rows; return microseconds per call."""
    for name, peer in contest.peers.items():
        if (result := contest.calls[name]()) is not None:
            _check(result, contest.calls[peer]())
    times = host_times(contest.calls, synchronize)
    print(f"{'host time per call, 16 x 16 float32':<42}{'us':>8}{'ratio':>8}   beside the launch, us")
    yield _overhead_row(name_of_launch, statistics.median(launch() for _ in range(1000)) * 1e6)
    for name, microseconds in times.items():
        ratio = microseconds / times[contest.peers[name]] if name in contest.peers else None
        has_launch = name in contest.launches
        beside = _all_but_launch(contest.calls[name], contest.launches[name], synchronize) if has_launch else None
        yield _overhead_row(name, microseconds, ratio, beside)
    return times


def _overhead_row(name: str, microseconds: float, ratio: float | None = None, beside: float | None = None) -> Row:
    print(
        f"{name:<42}{microseconds:>8.2f}"
        + (f"{ratio:>8.2f}" if ratio is not None else " " * 8)
        + (f"{beside:>10.2f}" if beside is not None else "")
    )
    return {
        "row": name,
        "microseconds": microseconds,
        "ratio": "" if ratio is None else ratio,
        "beside_launch": "" if beside is None else beside,
    }


def _contest(torch: Any, x: Any, out: Any, launch: Callable[[], float]) -> _Contest:
    """Return interop's products and the libraries' own, of the libraries that are here."""
    contest = _Contest()
    contest.add("torch.matmul", lambda: torch.matmul(x, x), _TORCH, lambda: interop.matmul(x, x), launch)
    contest.add(
        "torch.mm(out=)",
        lambda: torch.mm(x, x, out=out),
        "interop.matmul(out=) on torch",
        lambda: interop.matmul(x, x, out=out),
        launch,
    )
    bias = x[0].clone()
    contest.add(
        "torch.addmm, then torch.relu",
        lambda: torch.relu(torch.addmm(bias, x, x)),
        "interop.matmul(bias=, epilogue=) on torch",
        lambda: interop.matmul(x, x, bias=bias, epilogue="relu"),
    )
    if not _core.cublas_status().startswith("not found"):
        name = "interop.matmul on torch, cublas"
        contest.calls[name] = lambda: interop.matmul(x, x, backend="cublas")
        contest.peers[name] = "torch.matmul"
    if cupy := try_import("cupy"):
        c = cupy.random.rand(16, 16, dtype=cupy.float32)
        own = "interop.matmul on CuPy"
        contest.add("cupy.matmul", lambda: cupy.matmul(c, c), own, lambda: interop.matmul(c, c), launch)
    if (jax := try_import("jax")) and _has_cuda(jax):
        j = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
        # "highest", as JAX's default for float32 on such cards is TF32.
        jitted = jax.jit(functools.partial(jax.numpy.matmul, precision="highest"))
        own = "interop.matmul on JAX"
        contest.add("jitted jnp.matmul", lambda: jitted(j, j), own, lambda: interop.matmul(j, j))
    return contest


def _contest_of_sums(torch: Any, x: Any, out: Any, launch: Callable[[], float]) -> _Contest:
    """Return interop's sums and the libraries' own, of the libraries that are here."""
    contest = _Contest()
    contest.add("torch.add", lambda: torch.add(x, x), "interop.add on torch", lambda: interop.add(x, x), launch)
    contest.add(
        "torch.add(out=)",
        lambda: torch.add(x, x, out=out),
        "interop.add(out=) on torch",
        lambda: interop.add(x, x, out=out),
        launch,
    )
    own = "interop.multiply(x, 2.5) on torch"
    contest.add("torch.mul(x, 2.5)", lambda: torch.mul(x, 2.5), own, lambda: interop.multiply(x, 2.5))
    if _has_compiler():
        f = interop.elementwise("x * y + a")
        own = "interop.elementwise('x * y + a') on torch"
        contest.add("torch.mul, then torch.add", lambda: torch.add(torch.mul(x, x), x), own, lambda: f(x, x, x))
    if cupy := try_import("cupy"):
        c = cupy.random.rand(16, 16, dtype=cupy.float32)
        contest.add("cupy.add", lambda: cupy.add(c, c), "interop.add on CuPy", lambda: interop.add(c, c), launch)
    if (jax := try_import("jax")) and _has_cuda(jax):
        j = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
        jitted = jax.jit(jax.numpy.add)
        contest.add("jitted jnp.add", lambda: jitted(j, j), "interop.add on JAX", lambda: interop.add(j, j))
    return contest


def _contest_of_kernels(torch: Any, launch: Callable[[], float]) -> _Contest:
    """Return launches of one small kernel of a user's, by all that can make them here, beside CuPy's RawKernel."""
    x = torch.rand(_bench_launches.COUNT, device="cuda")
    calls = _bench_launches.launches(torch, x, torch.empty_like(x))
    ours = [name for name in calls if name.startswith("interop")]
    peer = _bench_launches.RAW_KERNEL
    return _Contest(calls, dict.fromkeys(ours, peer) if peer in calls else {}, dict.fromkeys(ours, launch))


def _has_compiler() -> bool:
    """Is there what expressions are compiled by? Says so where not."""
    try:
        _nvrtc.versions()
    except interop.CudaError as error:
        print(f"interop.elementwise: skipped: {error}")
        return False
    return True


def _nvmath_matmul() -> Any:
    return importlib.import_module("nvmath.linalg.advanced").matmul


def _tvm_ffi_nop() -> Any:
    importlib.import_module("tvm_ffi.testing")  # its own functions in C++, which need no compiling
    return importlib.import_module("tvm_ffi").get_global_func("testing.nop")


def _add_others(contest: _Contest, x: Any) -> None:
    """Add calls of other libraries with torch tensors, or say why not."""
    for name, load in {_NVMATH: _nvmath_matmul, _TVM_FFI: _tvm_ffi_nop}.items():
        try:
            call = functools.partial(load(), x, x)
            result = call()
            if result is not None:
                _check(result, x @ x)
        except Exception as error:  # not here, or not for this machine: no reason to time nothing at all
            print(f"{name}: skipped: {type(error).__name__}: {error}")
        else:
            contest.calls[name] = call


def _breakdown(x: Any, synchronize: Callable[[], None]) -> Iterable[Row]:
    """Where the time of a call on torch goes: each stage by itself, in turn with whole calls; medians."""
    samples: dict[str, list[float]] = {}
    try:
        for _ in range(_BLOCKS * 4):
            stages = {name: seconds * 1e6 for name, seconds in _core.time_stages(x, x, 100).items()}
            synchronize()
            whole = _block(lambda: interop.matmul(x, x), 100)
            synchronize()
            for name, microseconds in {**stages, "rest": whole - sum(stages.values()), "whole": whole}.items():
                samples.setdefault(name, []).append(microseconds)
    except TypeError as error:  # a torch without the C exchange API
        print(f"no breakdown: {error}")
        return
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print("of which, us: " + ", ".join(f"{name} {microseconds:.2f}" for name, microseconds in medians.items()))
    for name, microseconds in medians.items():
        yield {"row": f"{_TORCH}: {name}", "microseconds": microseconds, "ratio": "", "beside_launch": ""}


def _check(result: Any, expected: Any) -> None:
    """Raise if two small results, of one library, differ by more than rounding."""
    if not float(abs(result - expected).max()) <= 1e-5:
        raise AssertionError("interop bench: a result is wrong; nothing was timed")


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
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # JAX's threads would break a global capture
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


@dataclasses.dataclass(frozen=True)
class _Product:
    """One product to be timed: shapes as in a @ b, dtypes by torch's names."""

    group: str
    dtype: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    layout: str = "NN"
    precision: Literal["tf32", "tf32x3"] | None = None
    result: str | None = None  #: another dtype than the operands'

    @property
    def operations(self) -> float:
        """Multiplications and additions; of complex numbers, those of their parts."""
        count = 2.0 * math.prod(self.a) * self.b[-1]
        return count * 4 if self.dtype.startswith("complex") else count

    @property
    def name(self) -> str:
        shapes = "@".join("x".join(map(str, shape)) for shape in (self.a, self.b))
        return f"{self.precision or self.dtype} {shapes} {self.layout}"


def _products() -> Iterable[_Product]:
    """Yield the products of the protocol, dtype by dtype."""

    def squares(
        dtype: str, sizes: Iterable[int], layouts: Iterable[str] = _LAYOUTS, **options: Any
    ) -> Iterable[_Product]:
        for n in sizes:
            for layout in layouts:
                yield _Product("square", dtype, (n, n), (n, n), layout, **options)

    yield from squares("float32", (512, 1024, 2048, 4096, 8192))
    for precision in ("tf32", "tf32x3"):
        yield from squares("float32", (1024, 2048, 4096, 8192), precision=precision)
    for dtype in ("float16", "bfloat16"):
        yield from squares(dtype, (512, 1024, 2048, 4096, 8192))
    yield from squares("float64", (1024, 2048, 4096))
    for dtype in ("int32", "int64", "complex64", "complex128"):
        yield from squares(dtype, (1024, 2048, 4096))
    yield from squares("int8", (2048, 4096), result="int32")
    for dtype in ("float32", "bfloat16"):
        for m in (1, 16, 128, 4096):
            for n, k in ((4096, 4096), (11008, 4096)):
                yield _Product("language model", dtype, (m, k), (k, n), "NT")
        yield _Product("language model", dtype, (4096, 14336), (14336, 4096), "NT")
        for m, n, k in ((8192, 8192, 128), (65536, 64, 64), (256, 256, 65536)):
            yield _Product("long", dtype, (m, k), (k, n))
        for m, n, k in ((1023, 1023, 1023), (4095, 4095, 4095), (1000, 1003, 1001)):
            yield _Product("odd", dtype, (m, k), (k, n))
    for dtype in ("float32", "float16", "bfloat16"):
        yield _Product("batched", dtype, (64, 512, 512), (64, 512, 512))
        yield _Product("batched", dtype, (1024, 64, 64), (1024, 64, 64))
        yield _Product("batched", dtype, (32, 1024, 512), (512, 1024))
        yield _Product("batched", dtype, (4096, 16, 16), (4096, 16, 16))
        yield _Product("batched", dtype, (256, 1, 128), (256, 128, 2048), "NT")  # attention: one token's scores,
        yield _Product("batched", dtype, (256, 1, 2048), (256, 2048, 128))  # and what it takes from the values


Operands = tuple[Any, Any, Any]


def _random(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        x = torch.rand(shape, device="cuda", dtype=torch.complex64 if dtype.is_complex else torch.float32)
        return (x * 2 - 1).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, device="cuda", dtype=dtype)


def _operands(torch: Any, product: _Product, count: int) -> list[Operands]:
    dtype = getattr(torch, product.dtype)

    def matrix(shape: tuple[int, ...], transposed: bool) -> Any:
        if not transposed:
            return _random(torch, shape, dtype)
        return _random(torch, (*shape[:-2], shape[-1], shape[-2]), dtype).mT

    left, right = _LAYOUTS[product.layout]
    shape = (*product.a[:-1], product.b[-1])
    result = getattr(torch, product.result or product.dtype)
    return [
        (matrix(product.a, left), matrix(product.b, right), torch.empty(shape, device="cuda", dtype=result))
        for _ in range(count)
    ]


_BOUNDS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 5e-3, "float64": 1e-14, "complex64": 2e-6, "complex128": 1e-14}


def _check_rows(torch: Any, product: _Product, backend: str, operands: Operands) -> None:
    """Raise if the first rows of a product differ from it in higher precision; integers must be exact."""
    a, b, out = operands
    rows = a[..., :8, :]
    if product.dtype.startswith("int"):
        expected = (rows.cpu().long() @ b.cpu().long()).to(out.dtype)
        if torch.equal(out[..., :8, :].cpu(), expected):
            return
        error, bound = math.inf, 0.0
    else:
        wide = torch.complex128 if a.dtype.is_complex else torch.float64
        expected = rows.to(wide) @ b.to(wide)
        error = float((out[..., :8, :].to(wide) - expected).norm() / expected.norm())
        bound = _BOUNDS[product.dtype] + 1e-7 * product.a[-1] ** 0.5 * (out.element_size() == 4)
        bound = 1e-3 if product.precision == "tf32" else bound
    if not error <= bound:
        raise AssertionError(f"interop bench: {product.name}, {backend}: error {error:.1e} is above {bound:.1e}")


def _warm_up(torch: Any) -> None:
    """Bring the clocks up: three seconds of products."""
    x = torch.rand(4096, 4096, device="cuda")
    started = time.perf_counter()
    while time.perf_counter() - started < 3:
        x @ x
        torch.cuda.synchronize()


def _own_products(product: _Product, operands: list[Operands], repeats: int) -> dict[str, list[Callable[[], Any]]]:
    """Return interop's calls of each backend that has the product: each makes `repeats` of them, over the buffers."""
    candidates: dict[str, list[Callable[[], Any]]] = {}
    backends: list[Literal["tiled", "cublas"] | None] = [None, "tiled"]
    if not _core.cublas_status().startswith("not found"):
        backends.insert(1, "cublas")
    options: dict[str, Any] = {"precision": product.precision, "dtype": product.result}
    for backend in backends:
        a, b, out = operands[0]
        try:
            interop.matmul(a, b, out=out.fill_(77), backend=backend, **options)
        except ValueError:
            if backend != "cublas":
                raise
            continue  # which has no such product
        candidates[f"interop {backend}"] = [
            _bind(interop.matmul, *operands[i % len(operands)], backend=backend, **options) for i in range(repeats)
        ]
    return candidates


def _peers(torch: Any, product: _Product, operands: list[Operands], repeats: int) -> dict[str, float]:
    """Return the seconds of a product by the libraries whose calls no graph of torch's captures: CuPy, JAX, nvmath."""
    a, b, _ = operands[0]
    seconds: dict[str, float] = {}
    calls: dict[str, Callable[[], Any]] = {}
    if (
        (cupy := try_import("cupy"))
        and product.dtype != "bfloat16"
        and not product.precision
        and product.result is None
    ):
        x, y = cupy.from_dlpack(a), cupy.from_dlpack(b)
        calls["cupy"] = lambda: cupy.matmul(x, y)
    if product.dtype in ("float32", "float16", "bfloat16", "float64") and not product.precision and len(product.a) == 2:
        try:
            plan = importlib.import_module("nvmath.linalg.advanced").Matmul(a, b)
            plan.plan()
            calls["nvmath"] = plan.execute
        except Exception as error:  # not here, or not for this product: no reason to time nothing at all
            print(f"  nvmath: skipped: {type(error).__name__}: {str(error).splitlines()[0]}")
    for name, call in calls.items():
        try:
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream) if name == "cupy" else None
            with stream or contextlib.nullcontext():
                seconds[name] = _event_time(torch, call, repeats)
        except Exception as error:
            print(f"  {name}: skipped: {type(error).__name__}: {str(error).splitlines()[0]}")
    if (jax := try_import("jax")) and _has_cuda(jax) and product.result is None and product.operations > 2e9:
        with jax.enable_x64(True):
            x, y = jax.dlpack.from_dlpack(a.contiguous()), jax.dlpack.from_dlpack(b.contiguous())
            jitted = jax.jit(
                functools.partial(
                    jax.numpy.matmul, precision="tensorfloat32" if product.precision == "tf32" else "highest"
                )
            )
            jitted(x, y).block_until_ready()
            started = time.perf_counter()
            for _ in range(repeats):
                last = jitted(x, y)
            last.block_until_ready()
            seconds["jax"] = (time.perf_counter() - started) / repeats
    return seconds


def _event_time(torch: Any, call: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call on torch's current stream, of calls in a row: bound by the host if short."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(6):
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / repeats)
    return float(statistics.median(samples[1:]))


_NAMES = ("torch", "interop None", "interop cublas", "interop tiled", "cupy", "jax", "nvmath")


def _matmul(torch: Any, only: str = "") -> Iterable[Row]:
    """TFLOP/s (TOP/s of integers) of products, by each backend beside torch, CuPy, JAX and nvmath."""
    _warm_up(torch)
    print(f"{'TFLOP/s':<44}" + "".join(f"{name.removeprefix('interop '):>9}" for name in _NAMES) + "   None / torch")
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for product in _products():
        if only and only not in f"{product.group} {product.name}":
            continue
        rates = _rates(torch, product)
        best = rates.get("torch")
        print(
            f"{product.name:<44}"
            + "".join(f"{rates[name]:>9.1f}" if name in rates else f"{'-':>9}" for name in _NAMES)
            + (f"{rates['interop None'] / best:>12.2f}" if best else "")
        )
        for name, rate in rates.items():
            for peer in ("torch", "cupy"):
                if name.startswith("interop") and peer in rates:
                    key = (product.precision or product.dtype, name, peer)
                    ratios.setdefault(key, []).append(rate / rates[peer])
            yield {
                "group": product.group,
                "product": product.name,
                "dtype": product.dtype,
                "backend": name,
                "tflops": rate,
                "ratio_to_torch": rate / best if best else "",
            }
    for (dtype, name, peer), values in ratios.items():
        mean = statistics.geometric_mean(values)
        print(f"{dtype}, {name}: geometric mean {mean:.3f} of {peer}, worst {min(values):.3f}")


def _rates(torch: Any, product: _Product) -> dict[str, float]:
    """Return the 10^12 operations a second of a product by each library and backend."""
    torch.backends.cuda.matmul.allow_tf32 = product.precision == "tf32"
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        setattr(torch.backends.cuda.matmul, name, False)
    item = getattr(torch, product.dtype).itemsize
    inputs = (math.prod(product.a) + math.prod(product.b)) * item
    buffers = max(1, min(16, math.ceil(_L2_BYTES / inputs)))
    repeats = 100 if product.operations < 5e9 else 20 if product.operations < 5e10 else 4
    operands = _operands(torch, product, buffers)
    candidates = _own_products(product, operands, repeats)
    for name, calls in candidates.items():
        operands[0][2].fill_(77)
        calls[0]()
        _check_rows(torch, product, name, operands[0])
    if not product.dtype.startswith("int"):
        candidates["torch"] = [_bind(torch.matmul, *operands[i % buffers]) for i in range(repeats)]
    seconds = _device_times(torch, candidates) | _peers(torch, product, operands, repeats)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {name: product.operations / seconds[name] / 1e12 for name in _NAMES if name in seconds}


def _bind(function: Callable[..., Any], a: Any, b: Any, out: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(a, b, out=out, **options)


# ---- device time of elementwise operations ----

Pair = tuple[Any, Any]


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

    Of two ways the quicker: a graph's copy is done by other means than that of a stream.
    """
    source = torch.rand(1 << 28, device="cuda")
    target = torch.empty_like(source)
    seconds = _device_times(torch, {"copy": [lambda: target.copy_(source)] * 4})["copy"]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_BLOCKS):
        start.record()
        for _ in range(4):
            target.copy_(source)
        end.record()
        end.synchronize()
        seconds = min(seconds, start.elapsed_time(end) / 4 / 1000)
    return float(8 * source.numel() / seconds / 1e9)


def _elementwise(torch: Any) -> Iterable[Row]:
    """GB/s of sums and of an expression of large arrays, beside a copy, torch and CuPy."""
    cupy = try_import("cupy")
    _warm_up(torch)
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
        times = _device_times(
            torch,
            {
                "interop": [_bind(interop.add, a, b, out)] * 4,
                "torch": [_bind(torch.add, a, b, out)] * 4,
            },
        )
        if cupy:
            times |= _cupy_time(torch, cupy, a, b, out)
        yield from _rate_rows(case, moved, times, names, ceiling)
        del a, b, out
        torch.cuda.empty_cache()
    if _has_compiler():
        yield from _expressions(torch, cupy, names, ceiling)


def _rate_rows(case: str, moved: int, times: dict[str, float], names: Sequence[str], ceiling: float) -> Iterable[Row]:
    """Print and yield the rates of the libraries that took part."""
    rates = {name: moved / seconds / 1e9 for name, seconds in times.items()}
    print(
        f"{case:<36}"
        + "".join(f"{rates[name]:>9.0f}" if name in rates else f"{'-':>9}" for name in names)
        + "   "
        + "  ".join(f"{rate / ceiling:.2f}" for rate in rates.values())
    )
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
        times = _device_times(torch, calls)
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
