"""`interop bench memory`: allocation, copies, managed memory and other processes' arrays, beside CUDA and libraries.

All figures of one table are taken in turn with each other, in one process.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

import interop
from interop import _core
from interop._commands.bench import measure
from interop._commands.bench.compiled import compiled
from interop._commands.bench.driver_copies import DriverCopies
from interop._commands.bench.measure import Candidates, Row, block, try_import, warm_up
from interop._commands.bench.processes import openings

__all__ = ["run"]

# Each gives the seconds of one allocation and its free, of `count` in a row, or a negative CUDA error. The pool keeps
# its memory, as interop's does: else CUDA would give it back at each wait.
_SOURCE = r"""
#include <chrono>
#include <cstdint>

namespace {

template <class Allocate, class Free>
double seconds_of_pairs(int count, Allocate allocate, Free free) {
  cudaError_t status = cudaSuccess;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count && status == cudaSuccess; ++i) {
    void* memory = nullptr;
    status = allocate(&memory);
    if (status == cudaSuccess) status = free(memory);
  }
  const auto end = std::chrono::steady_clock::now();
  if (status != cudaSuccess) return -double(status);
  return std::chrono::duration<double>(end - start).count() / count;
}

cudaError_t start_stream(cudaStream_t* stream) {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  std::uint64_t all = UINT64_MAX;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  if (const cudaError_t status = cudaDeviceGetDefaultMemPool(&pool, device)) return status;
  if (const cudaError_t status = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all)) return status;
  return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
}

}  // namespace

extern "C" {

double seconds_device(size_t bytes, int count) {
  static cudaStream_t stream = nullptr;
  if (!stream) {
    if (const cudaError_t status = start_stream(&stream)) return -double(status);
  }
  return seconds_of_pairs(
      count, [&](void** memory) { return cudaMallocAsync(memory, bytes, stream); },
      [&](void* memory) { return cudaFreeAsync(memory, stream); });
}

double seconds_managed(size_t bytes, int count) {
  return seconds_of_pairs(
      count, [&](void** memory) { return cudaMallocManaged(memory, bytes); },
      [](void* memory) { return cudaFree(memory); });
}

double seconds_pinned(size_t bytes, int count) {
  return seconds_of_pairs(
      count, [&](void** memory) { return cudaMallocHost(memory, bytes); },
      [](void* memory) { return cudaFreeHost(memory); });
}

}  // extern "C"
"""
_Kind = Literal["device", "managed", "pinned"]
_IN_CXX: dict[_Kind, str] = {
    "device": "cudaMallocAsync + cudaFreeAsync, from C++",
    "managed": "cudaMallocManaged + cudaFree, from C++",
    "pinned": "cudaMallocHost + cudaFreeHost, from C++",
}

_CALLS = 500  # of allocations in a row
_SLOW_CALLS = 20  # of those that make and unmake pages each time
_REPEATS = 10  # copies on the device in a row
_BYTES = 1 << 30  # of a copy on the device
_ROWS, _COLUMNS, _PAD = 8192, 4096, 64  # of float32 between host and device, and what lies between two rows
_MANAGED = 1 << 26  # elements, for NumCu

Samplers = dict[str, Callable[[], float]]


def run(torch: Any) -> Iterable[Row]:
    """Time allocation, `copyto`, managed sums, arrays of other processes: each ratio is to its table's first row."""
    warm_up(torch)
    gc.disable()
    yield from _allocations(torch)
    gc.enable()
    copies = DriverCopies(torch.cuda.current_stream().cuda_stream)
    yield from _device_copies(torch, copies)
    yield from _host_copies(torch, copies)
    yield from _managed_sums(torch)
    for title, values in openings(torch):
        yield from _table(title, "us", values)


def _in_turn(samplers: Samplers, pick: Callable[[list[float]], float]) -> dict[str, float]:
    """Return what `pick` takes of the samples of each, of several rounds after one that does not count."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for sample in samplers.values():
        sample()
    for _ in range(measure.BLOCKS):
        for name, sample in samplers.items():
            samples[name].append(sample())
    return {name: pick(values) for name, values in samples.items()}


def _table(title: str, unit: str, values: dict[str, float]) -> Iterator[Row]:
    """Print and yield the values, and their ratio to the first."""
    print(f"{title:<64}{unit:>10}{'ratio':>8}")
    first = next(iter(values.values()))
    for name, value in values.items():
        print(f"  {name:<62}{value:>10.{3 if unit == 'us' else 1}f}{value / first:>8.2f}")
        yield {"table": title, "row": name, "unit": unit, "value": value, "ratio": value / first}
    print()


# ---- allocation ----


def _allocations(torch: Any) -> Iterable[Row]:
    """Host microseconds of memory that is dropped at once, the best of several blocks."""
    with compiled(_SOURCE) as path:
        c = ctypes.CDLL(str(path)) if path else None
        for bytes_ in (4000, 64 << 20):
            for memory in _IN_CXX if c else ():
                yield from _pairs(torch, c, memory, bytes_)
            calls = _empty_calls(torch, bytes_)
            title = f"allocation and free, {bytes_} bytes, beside {next(iter(calls))}"
            samplers: Samplers = {name: functools.partial(_block, torch, call, _CALLS) for name, call in calls.items()}
            yield from _table(title, "us", _in_turn(samplers, min))


def _empty_calls(torch: Any, bytes_: int) -> Candidates:
    """Return what makes an array of this size, CuPy's first where it is here."""
    shape = bytes_ // 4
    calls: Candidates = {}
    if cupy := try_import("cupy"):
        calls["cupy.empty(n, cupy.float32)"] = functools.partial(cupy.empty, shape, cupy.float32)
        calls['cupy.empty(n, "float32")'] = functools.partial(cupy.empty, shape, "float32")
    calls["torch.empty"] = functools.partial(torch.empty, shape, dtype=torch.float32, device="cuda")
    calls['interop.empty(n, "float32")'] = functools.partial(interop.empty, shape, "float32")
    return calls


def _block(torch: Any, call: Callable[[], Any], calls: int) -> float:
    """Return the microseconds of a call, of many in a row; what they left to be done is done when this returns."""
    microseconds = block(call, calls)
    torch.cuda.synchronize()
    return microseconds


def _pairs(torch: Any, c: Any, memory: _Kind, bytes_: int) -> Iterable[Row]:
    """Time `interop.empty` beside CUDA's own calls, which a loop of C++ makes: no call of Python is in their time."""
    function = getattr(c, f"seconds_{memory}")
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_size_t, ctypes.c_int]
    count = _CALLS if memory == "device" else _SLOW_CALLS

    def in_cxx() -> float:
        seconds = float(function(bytes_, count))
        if seconds < 0:
            raise RuntimeError(f"interop bench: CUDA error {-seconds:.0f}")
        torch.cuda.synchronize()
        return seconds * 1e6

    def own_in_cxx() -> float:
        seconds = _core.Timing.allocations(bytes_, count)
        torch.cuda.synchronize()
        return seconds * 1e6

    samplers: Samplers = {_IN_CXX[memory]: in_cxx}
    if memory == "device":
        samplers["interop's, from C++"] = own_in_cxx
    for own in (memory, "host"):  # of the host's memory, for what the call of Python costs without CUDA
        call = functools.partial(interop.empty, bytes_ // 4, "float32", memory=own)
        samplers[f'interop.empty(memory="{own}"), from Python'] = functools.partial(_block, torch, call, _CALLS)
    title = f"allocation and free, {bytes_} bytes, {memory} memory"
    yield from _table(title, "us", _in_turn(samplers, min))


# ---- copies on a device ----


def _device_copies(torch: Any, copies: DriverCopies) -> Iterable[Row]:
    """Rates of `interop.copyto` by the bytes that must move, in whole sectors, beside the rate of a compact copy."""
    source = torch.randint(0, 256, (_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    peer = functools.partial(copies.on_device, target.data_ptr(), source.data_ptr(), _BYTES)
    for dtype in (torch.float32, torch.float64, torch.complex128, torch.float16, torch.uint8):
        for layout, dst, src, moved in _layouts(torch, _random(torch, dtype)):
            own = functools.partial(interop.copyto, dst, src)
            name = f"copy on the device, {dtype.itemsize} bytes an element, {layout}"
            _check_tensors(torch, name, own, dst, src)
            samplers: Samplers = {
                "cudaMemcpyAsync, compact": functools.partial(_device_rate, torch, peer, 2 * _BYTES),
                "interop.copyto": functools.partial(_device_rate, torch, own, moved),
            }
            yield from _table(name, "GB/s", _in_turn(samplers, statistics.median))


def _random(torch: Any, dtype: Any) -> Any:
    """Return a matrix of `_BYTES` bytes on the device, nearly square."""
    count = _BYTES // dtype.itemsize
    rows = 1 << (count.bit_length() // 2)
    if dtype == torch.uint8:
        return torch.randint(0, 256, (rows, count // rows), dtype=dtype, device="cuda")
    return torch.rand(rows, count // rows, dtype=dtype, device="cuda")


def _layouts(torch: Any, a: Any) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield what is copied and how: the target, the source, and the bytes that must move.

    Of every second element the others move, too: a sector of 32 bytes has both.
    """
    pad = 64 // a.itemsize
    rows, columns = a.shape
    sources = {
        "compact": a,
        "transposed": a.T,
        "every second column": a[:, ::2],
        "out of padded rows": a[:, :-pad],
        "last axis first": a.view(8, rows // 8, columns).permute(2, 0, 1),
    }
    for layout, src in sources.items():
        dst = torch.empty(src.shape, dtype=a.dtype, device=a.device)
        times = 2 if "second" in layout else 1
        yield layout, dst, src, (1 + times) * dst.nbytes
        del dst
    dst, src = torch.empty_like(a)[:, :-pad], a[:, :-pad].contiguous()
    yield "into padded rows", dst, src, 2 * src.nbytes


def _check_tensors(torch: Any, name: str, call: Callable[[], Any], dst: Any, src: Any) -> None:
    dst.zero_()
    call()
    if not torch.equal(dst, src):
        raise AssertionError(f"interop bench: {name} is wrong; nothing was timed")


def _device_rate(torch: Any, call: Callable[[], Any], moved: int) -> float:
    """Return the GB/s of calls in a row on torch's current stream, which are long enough to hide the host's time."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_REPEATS):
        call()
    end.record()
    end.synchronize()
    return float(moved * _REPEATS / start.elapsed_time(end) / 1e6)


# ---- between the host and a device ----


def _host_copies(torch: Any, copies: DriverCopies) -> Iterable[Row]:
    """Rates of one copy and the wait for it, of memory that is pinned and that is not, compact and of padded rows."""
    rng = np.random.default_rng(0)
    pitch = _COLUMNS + _PAD
    pinned = interop.empty((_ROWS, pitch), "float32", memory="pinned")
    np.asarray(pinned)[...] = rng.random((_ROWS, pitch), np.float32)
    hosts: dict[str, Any] = {"pinned": pinned, "pageable": np.asarray(pinned).copy()}
    for kind, whole in hosts.items():
        for layout, host in (("compact", whole.reshape(-1)[: _ROWS * _COLUMNS]), ("rows", whole[:, :_COLUMNS])):
            device = torch.empty(host.shape, device="cuda")
            for direction in ("to the device", "to the host"):
                name = f"copy {direction}, {kind} memory, {layout}"
                peer, own = _host_calls(copies, device, host, layout == "rows", direction == "to the device")
                _check_host(torch, name, own, device, host, direction == "to the device")
                peer_name = "cudaMemcpy2DAsync" if layout == "rows" else "cudaMemcpyAsync"
                samplers: Samplers = {
                    row: functools.partial(_host_rate, torch, call, device.nbytes)
                    for row, call in ((peer_name, peer), ("interop.copyto", own))
                }
                yield from _table(name, "GB/s", _in_turn(samplers, statistics.median))


def _host_calls(
    copies: DriverCopies, device: Any, host: Any, rows: bool, upwards: bool
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return CUDA's copy and interop's of the same memory."""
    address = np.asarray(host).ctypes.data
    dst, src = (device, host) if upwards else (host, device)
    ends = (device.data_ptr(), address) if upwards else (address, device.data_ptr())
    own = functools.partial(interop.copyto, dst, src)
    if not rows:
        copy = copies.to_device if upwards else copies.to_host
        return functools.partial(copy, ends[0], ends[1], device.nbytes), own
    width = 4 * _COLUMNS
    pitches = (width, width + 4 * _PAD) if upwards else (width + 4 * _PAD, width)
    copy_rows = copies.rows_to_device if upwards else copies.rows_to_host
    return functools.partial(copy_rows, ends[0], pitches[0], ends[1], pitches[1], width, _ROWS), own


def _check_host(torch: Any, name: str, call: Callable[[], Any], device: Any, host: Any, upwards: bool) -> None:
    """Let the target have other values first; the host's are its own again in the end."""
    expected = np.asarray(host).copy()
    device.copy_(torch.from_numpy(expected))
    torch.cuda.synchronize()
    if upwards:
        device.zero_()
    else:
        np.asarray(host)[...] = 0
    call()
    torch.cuda.synchronize()
    if not np.array_equal(device.cpu().numpy() if upwards else np.asarray(host), expected):
        raise AssertionError(f"interop bench: {name} is wrong; nothing was timed")


def _host_rate(torch: Any, call: Callable[[], Any], moved: int) -> float:
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return moved / (time.perf_counter() - start) / 1e9


# ---- sums in managed memory ----

# What is computed, by which function of NumCu, with which options of interop's, and by NumPy.
_SUMS: tuple[tuple[str, str, dict[str, Any], Callable[[Any, Any], Any]], ...] = (
    ("add", "add", {}, np.add),
    ("multiply", "mul", {}, np.multiply),
    ("divide", "div", {}, np.divide),
    ("divide, 0 where the divisor is", "div", {"where_zero": 0.0}, lambda x, y: np.where(y == 0, np.float32(0), x / y)),
)


def _managed_sums(torch: Any) -> Iterable[Row]:
    """Microseconds of sums, products and quotients of managed float32 until they are done, beside NumCu's and torch's.

    The pages are on the device by then: each call is made once before.
    """
    cuvec, numcu = try_import("cuvec"), try_import("numcu")
    if not numcu:
        print("numcu: skipped: not installed")
    rng = np.random.default_rng(0)
    values = [rng.random(_MANAGED, np.float32) + 1 for _ in range(2)]
    values[1][::7] = 0  # divisors
    x, y, z = (interop.zeros(_MANAGED, "float32", memory="managed") for _ in range(3))
    vectors = [cuvec.zeros(_MANAGED, "float32") for _ in range(3)] if numcu else []
    for target, one in zip((x, y), values, strict=True):
        np.asarray(target)[...] = one
    for target, one in zip(vectors, values, strict=False):
        target[...] = one
    tensors = [torch.from_dlpack(one) for one in (x, y, z)]
    for name, of_numcu, options, expected in _SUMS:
        of_interop, _, remark = name.partition(",")
        candidates: dict[str, tuple[Callable[[], Any], Any]] = {}  # and where the call writes to
        if numcu:
            default = {"default": options["where_zero"]} if options else {}
            function = functools.partial(getattr(numcu, of_numcu), *vectors[:2], output=vectors[2], **default)
            candidates[f"numcu.{of_numcu}"] = (function, vectors[2])
        if not remark:
            candidates[f"torch.{name}"] = functools.partial(getattr(torch, name), *tensors[:2], out=tensors[2]), z
        candidates[f"interop.{of_interop}"] = functools.partial(getattr(interop, of_interop), x, y, out=z, **options), z
        with np.errstate(divide="ignore"):
            right = expected(*values)
        for row, (call, target) in candidates.items():
            target[...] = 0
            torch.cuda.synchronize()  # torch's tensor of the memory knows nothing of it
            call()
            torch.cuda.synchronize()
            if not np.array_equal(np.asarray(target), right):
                raise AssertionError(f"interop bench: {name} by {row} is wrong; nothing was timed")
        samplers: Samplers = {row: functools.partial(_wall, torch, call) for row, (call, _) in candidates.items()}
        yield from _table(f"{name}, {_MANAGED} managed float32", "us", _in_turn(samplers, statistics.median))
    if numcu:
        yield from _managed_zeros(torch, cuvec)


def _managed_zeros(torch: Any, cuvec: Any) -> Iterable[Row]:
    n = 1 << 20
    candidates: Candidates = {
        "cuvec.zeros": functools.partial(cuvec.zeros, n, "float32"),
        'interop.zeros(memory="managed")': functools.partial(interop.zeros, n, "float32", memory="managed"),
    }
    samplers: Samplers = {name: functools.partial(_wall, torch, call) for name, call in candidates.items()}
    yield from _table(f"zeros, {n} managed float32, and their end", "us", _in_turn(samplers, statistics.median))


def _wall(torch: Any, call: Callable[[], Any]) -> float:
    """Return the microseconds until a call's work is done."""
    start = time.perf_counter_ns()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1000
