"""One small launch, made by everything that can make it: for `interop bench overhead`."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import interop
from interop import _core
from interop._commands.bench.measure import NamedStream
from interop._cuda import nvrtc

__all__ = ["COUNT", "PEERS", "RAW_KERNEL", "WAYS", "launches"]

#: c = a + b for `COUNT` elements, in one block.
SOURCE = """
extern "C" __global__ void add(const float* a, const float* b, float* c, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
COUNT = 256
RAW_KERNEL = "cupy.RawKernel"
_NO_LAUNCH = "tvm-ffi, the same arguments, no launch"

#: Of the kernels of many arrays: how many each has. All are written to, as far as anybody knows.
_ARRAYS = (4, 8, 16)

Call = Callable[[], Any]
Way = Callable[[Any, Any, Any], Call]


def launches(torch: Any, x: Any, out: Any) -> dict[str, Call]:
    """Return the calls of `WAYS` that this machine can make, each right; print why not of the others.

    They write x + x to `out`: tensors of torch with `COUNT` elements of float32.
    """
    found = {}
    for name, make in WAYS.items():
        try:
            call = make(torch, x, out)
            out.zero_()
            call()
            if name != _NO_LAUNCH and not torch.equal(out, x + x):
                raise AssertionError("the result is wrong")
        except Exception as error:  # not here, or not for this machine: no reason to time nothing at all
            first = (str(error).splitlines() or [""])[0]
            print(f"{name}: skipped: {type(error).__name__}: {first}")
        else:
            found[name] = call
    return found


# ---- each makes a call that writes x + x to `out`, both of torch ----


def _by_raw_kernel(torch: Any, x: Any, out: Any) -> Call:
    cupy = importlib.import_module("cupy")
    a, c = cupy.from_dlpack(x), cupy.from_dlpack(out)
    kernel = cupy.RawKernel(SOURCE, "add")
    return lambda: kernel((1,), (COUNT,), (a, a, c, COUNT))


def _source_of_many(arrays: int) -> str:
    """Return a kernel that writes the sum of the first two of so many arrays to the last."""
    parameters = ", ".join(f"float* x{i}" for i in range(arrays))
    return f"""
extern "C" __global__ void add({parameters}, long long n) {{
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) x{arrays - 1}[i] = x0[i] + x1[i];
}}
"""


def _many_by_raw_kernel(arrays: int) -> Way:
    def make(torch: Any, x: Any, out: Any) -> Call:
        cupy = importlib.import_module("cupy")
        a = [cupy.from_dlpack(t) for t in (*[x] * (arrays - 1), out)]
        kernel = cupy.RawKernel(_source_of_many(arrays), "add")
        return lambda: kernel((1,), (COUNT,), (*a, COUNT))

    return make


def _many_on_torch(arrays: int) -> Way:
    def make(torch: Any, x: Any, out: Any) -> Call:
        a = [*[x] * (arrays - 1), out]
        kernel = interop.kernel(_source_of_many(arrays), "add", grid=1, block=COUNT)
        return lambda: kernel(*a, COUNT)

    return make


def _on_torch(torch: Any, x: Any, out: Any) -> Call:
    kernel = interop.kernel(SOURCE, "add", grid=1, block=COUNT)
    return lambda: kernel(x, x, out, COUNT)


def _on_cupy(torch: Any, x: Any, out: Any) -> Call:
    cupy = importlib.import_module("cupy")
    a, c = cupy.from_dlpack(x), cupy.from_dlpack(out)
    kernel = interop.kernel(SOURCE, "add", grid=1, block=COUNT)
    return lambda: kernel(a, a, c, COUNT)


def _on_cupy_with_options(torch: Any, x: Any, out: Any) -> Call:
    cupy = importlib.import_module("cupy")
    a, c = cupy.from_dlpack(x), cupy.from_dlpack(out)
    kernel = interop.kernel(SOURCE, "add")
    return lambda: kernel(a, a, c, COUNT, grid=(1,), block=(COUNT,))


def _by_cuda_core(torch: Any, x: Any, out: Any) -> Call:
    core = importlib.import_module("cuda.core")
    device = core.Device(x.device.index)
    device.set_current()
    options = core.ProgramOptions(arch=f"sm_{device.arch}")
    kernel = core.Program(SOURCE, "c++", options).compile("cubin").get_kernel("add")
    stream = device.create_stream(NamedStream(torch.cuda.current_stream().cuda_stream))
    config = core.LaunchConfig(grid=1, block=COUNT)
    return lambda: core.launch(stream, config, kernel, x.data_ptr(), x.data_ptr(), out.data_ptr(), COUNT)


def _by_ctypes(torch: Any, x: Any, out: Any) -> Call:
    driver = ctypes.CDLL("libcuda.so.1")
    major, minor = _core.machine_info()["devices"][x.device.index]["compute_capability"]
    image, (name,) = nvrtc.compile_source("interop bench", SOURCE, ["add"], {}, f"sm_{major}{minor}")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    for status in (
        driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(image)),
        driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
    ):
        if status != 0:
            raise RuntimeError(f"CUDA error {status}")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def call() -> None:
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, x, out))
        values = (*pointers, ctypes.c_longlong(COUNT))
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        if status := driver.cuLaunchKernel(function, 1, 1, 1, COUNT, 1, 1, 0, stream, parameters, None):
            raise RuntimeError(f"CUDA error {status}")

    return call


def _by_warp(torch: Any, x: Any, out: Any) -> Call:
    wp = importlib.import_module("warp")
    wp.init()

    def add(a, b, c):  # type: ignore[no-untyped-def]
        i = wp.tid()
        c[i] = a[i] + b[i]

    # Types, not their names, which Warp would look up in this module.
    add.__annotations__ = dict.fromkeys(("a", "b", "c"), wp.array(dtype=wp.float32))
    kernel = wp.kernel(add)
    a, c = wp.from_torch(x), wp.from_torch(out)
    stream = wp.stream_from_torch(torch.cuda.current_stream())
    return lambda: wp.launch(kernel, dim=COUNT, inputs=[a, a], outputs=[c], stream=stream)


def _by_tvm_ffi(torch: Any, x: Any, out: Any) -> Call:
    importlib.import_module("tvm_ffi.testing")  # its own functions in C++, which need no compiling
    nop = importlib.import_module("tvm_ffi").get_global_func("testing.nop")

    return lambda: nop(x, x, out, COUNT)


WAYS: dict[str, Way] = {
    RAW_KERNEL: _by_raw_kernel,
    "interop.kernel on CuPy": _on_cupy,
    "interop.kernel on CuPy, grid in the call": _on_cupy_with_options,
    "interop.kernel on torch": _on_torch,
    "cuda.core.launch": _by_cuda_core,
    "warp.launch": _by_warp,
    "cuLaunchKernel by ctypes": _by_ctypes,
    _NO_LAUNCH: _by_tvm_ffi,
}
for _count in _ARRAYS:
    WAYS[f"{RAW_KERNEL}, {_count} arrays"] = _many_by_raw_kernel(_count)
    WAYS[f"interop.kernel on torch, {_count} arrays"] = _many_on_torch(_count)

#: A launch of interop's -> that by RawKernel with as many arrays.
PEERS = {name: RAW_KERNEL for name in WAYS if name.startswith("interop")}
PEERS |= {f"interop.kernel on torch, {count} arrays": f"{RAW_KERNEL}, {count} arrays" for count in _ARRAYS}
