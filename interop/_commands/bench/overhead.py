"""Host time per call, beside each library's own."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import statistics
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

import interop
from interop import _core
from interop._commands.bench import first_calls, jax_programs, launches, measure, sums, threads
from interop._commands.bench.measure import Candidates, Row, block, has_compiler, host_times, try_import
from interop._libraries.jax import jax_has_cuda

__all__ = ["run"]


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


_PAIRS = 3000
_TORCH, _NVMATH, _TVM_FFI = "interop.matmul on torch", "nvmath's matmul on torch", "tvm-ffi, two tensors, no work"


def run(torch: Any) -> Iterable[Row]:
    """Host time per call of a product and a sum of 16 x 16 float32, for each library beside its own."""
    gc.disable()
    synchronize = torch.cuda.synchronize
    x = torch.rand(16, 16, device="cuda")
    out = torch.empty(16, 16, device="cuda")

    def launch() -> float:
        return _core.Timing.launch("matmul", x, x, out)

    contest = _contest(torch, x, out, launch)
    _add_others(contest, x)
    times = yield from _contest_rows(contest, "one launch of the kernel, from C++", launch, synchronize)
    if _NVMATH in times:
        print(f"{_NVMATH} takes {times[_NVMATH] / times[_TORCH]:.0f} times as long as {_TORCH}")
    yield from _breakdown(x, synchronize)

    def launch_sum() -> float:
        return _core.Timing.launch("add", x, x, out)

    contest = _contest_of_sums(torch, x, out, launch_sum)
    yield from _contest_rows(contest, "one launch of the kernel of sums, from C++", launch_sum, synchronize)
    contest = _contest_of_unlike_sums(torch)
    yield from _contest_rows(contest, "one launch of the kernel of sums, beside these", launch_sum, synchronize)
    kernels = _contest_of_kernels(torch, launch_sum)
    yield from _contest_rows(kernels, "one launch of the kernel of sums, again", launch_sum, synchronize)
    programs = _contest_of_programs()
    if programs and programs.calls:
        yield from _contest_rows(programs, "one launch of the kernel of sums, once more", launch_sum, synchronize)
    yield from _contest_rows(_contest_on_the_host())
    yield from first_calls.run(torch)
    gc.enable()
    yield from threads.run(torch)


def _contest_rows(
    contest: _Contest,
    name_of_launch: str = "",
    launch: Callable[[], float] | None = None,
    synchronize: Callable[[], None] = lambda: None,
) -> Generator[Row, None, dict[str, float]]:
    """Check the calls of a contest, time them, print and yield their rows; return microseconds per call.

    There is neither a launch nor a GPU to wait for where the calls are of host arrays.
    """
    for name, peer in contest.peers.items():
        if (result := contest.calls[name]()) is not None:
            synchronize()  # it may be on a stream of its own
            _check(result, contest.calls[peer]())
    times = host_times(contest.calls, synchronize)
    print(f"{'host time per call, 16 x 16 float32':<42}{'us':>8}{'ratio':>8}   beside the launch, us")
    if launch is not None:
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
    if _core.machine_info()["cublas"]:
        name = "interop.matmul on torch, cublas"
        contest.calls[name] = lambda: interop.matmul(x, x, backend="cublas")
        contest.peers[name] = "torch.matmul"
    if cupy := try_import("cupy"):
        c = cupy.random.rand(16, 16, dtype=cupy.float32)
        own = "interop.matmul on CuPy"
        contest.add("cupy.matmul", lambda: cupy.matmul(c, c), own, lambda: interop.matmul(c, c), launch)
    if (jax := try_import("jax")) and jax_has_cuda(jax):
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
    if has_compiler():
        f = interop.elementwise("x * y + a")
        own = "interop.elementwise('x * y + a') on torch"
        contest.add("torch.mul, then torch.add", lambda: torch.add(torch.mul(x, x), x), own, lambda: f(x, x, x))
    if cupy := try_import("cupy"):
        c = cupy.random.rand(16, 16, dtype=cupy.float32)
        contest.add("cupy.add", lambda: cupy.add(c, c), "interop.add on CuPy", lambda: interop.add(c, c), launch)
    if (jax := try_import("jax")) and jax_has_cuda(jax):
        j = jax.numpy.asarray(np.random.default_rng(0).random((16, 16), np.float32))
        jitted = jax.jit(jax.numpy.add)
        contest.add("jitted jnp.add", lambda: jitted(j, j), "interop.add on JAX", lambda: interop.add(j, j))
        chain, g = jax.jit(lambda x, y, a: x * y + a), interop.elementwise("x * y + a")
        own = "interop.elementwise('x * y + a') on JAX"
        contest.add("jitted x * y + a of jnp", lambda: chain(j, j, j), own, lambda: g(j, j, j))
        own = "interop.elementwise('x * y + a') on JAX, a: 0.5"
        contest.add("jitted x * y + a of jnp, a: 0.5", lambda: chain(j, j, 0.5), own, lambda: g(j, j, 0.5))
    return contest


def _contest_of_unlike_sums(torch: Any) -> _Contest:
    """Return sums of other dtypes, dimensions and layouts."""
    contest = _Contest()
    for pair in sums.calls(torch):
        contest.add(*pair)
    return contest


def _contest_on_the_host() -> _Contest:
    """Return interop's sums, expressions and products of NumPy arrays, and NumPy's own."""
    contest = _Contest()
    generator = np.random.default_rng(0)
    x, y, a = (generator.random((16, 16), np.float32) for _ in range(3))
    wide = x.astype(np.float64)
    out = np.empty_like(x)
    f = interop.elementwise("x * y + a")
    contest.add("numpy.add", lambda: np.add(x, y), "interop.add on NumPy", lambda: interop.add(x, y))
    contest.add(
        "numpy.add(out=)",
        lambda: np.add(x, y, out=out),
        "interop.add(out=) on NumPy",
        lambda: interop.add(x, y, out=out),
    )
    own = "interop.add on NumPy, float32 + float64"
    contest.add("numpy.add, float32 + float64", lambda: np.add(x, wide), own, lambda: interop.add(x, wide))
    own = "interop.multiply(x, 2.5) on NumPy"
    contest.add("numpy.multiply(x, 2.5)", lambda: np.multiply(x, 2.5), own, lambda: interop.multiply(x, 2.5))
    own = "interop.elementwise('x * y + a') on NumPy"
    contest.add("x * y + a of NumPy", lambda: x * y + a, own, lambda: f(x, y, a))
    contest.add("numpy.matmul", lambda: np.matmul(x, y), "interop.matmul on NumPy", lambda: interop.matmul(x, y))
    return contest


def _contest_of_kernels(torch: Any, launch: Callable[[], float]) -> _Contest:
    """Return launches of one small kernel of a user's, by all that can make them here, beside CuPy's RawKernel."""
    x = torch.rand(launches.COUNT, device="cuda")
    calls = launches.launches(torch, x, torch.empty_like(x))
    ours = [name for name in calls if name in launches.PEERS]
    peers = {name: peer for name in ours if (peer := launches.PEERS[name]) in calls}
    return _Contest(calls, peers, dict.fromkeys(ours, launch))


def _contest_of_programs() -> _Contest | None:
    """Return calls inside `jax.jit`, beside the same by JAX's own means; None without JAX's CUDA."""
    jax = try_import("jax")
    if not (jax and jax_has_cuda(jax)):
        return None
    contest = _Contest()
    if has_compiler():
        contest.calls.update(jax_programs.calls(jax))
        contest.peers[jax_programs.BY_OPERATOR] = jax_programs.BY_HAND
    if cupy := try_import("cupy"):
        contest.calls.update(jax_programs.calls_of_python(jax, cupy))
        contest.peers[jax_programs.BY_CALL] = jax_programs.BY_CALLBACK
    return contest


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
        for _ in range(measure.BLOCKS * 4):
            stages = {name: seconds * 1e6 for name, seconds in _core.Timing.stages(x, x, 100).items()}
            synchronize()
            whole = block(lambda: interop.matmul(x, x), 100)
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


def _all_but_launch(call: Callable[[], Any], launch: Callable[[], float], synchronize: Callable[[], None]) -> float:
    """Return the microseconds of a call beside its launch: the median over pairs of one call and one raw launch.

    The time of the clock itself, and of an empty call between its readings, is measured in turn with them and
    subtracted.
    """

    def nothing() -> None:
        pass

    differences = []
    for i in range(_PAIRS):
        differences.append(block(call, 1) - launch() * 1e6 - block(nothing, 1))
        if i % 100 == 0:
            synchronize()
    return statistics.median(differences)


def _check(result: Any, expected: Any) -> None:
    """Raise if two small results, of one library, differ by more than rounding."""
    if not float(abs(result * 1.0 - expected * 1.0).max()) <= 1e-5:  # which bools are subtracted as, too
        raise AssertionError("interop bench: a result is wrong; nothing was timed")
