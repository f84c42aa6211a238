"""What this machine has, asked of the driver and of Python's import system: never of interop."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import types
import warnings

import numpy
import pytest

REQUIREMENTS = {  # name -> module
    "torch": "torch",
    "jax": "jax",
    "dask": "dask.array",
    "cupy": "cupy",
    "numba": "numba.cuda",
    "warp": "warp",
    "tvm_ffi": "tvm_ffi",
    "cuda_core": "cuda.core.utils",
    "triton": "triton",
    "paddle": "paddle",
    "tensorflow": "tensorflow",
    "matplotlib": "matplotlib",
    "nvrtc": "cuda.bindings.nvrtc",
    "cuvec": "cuvec",
    "numcu": "numcu",
    "headers": "cxxheaderparser",
    "cuda": None,
}


@functools.cache
def driver() -> ctypes.CDLL | None:
    """Return the initialised NVIDIA driver; None if there is none or it does not start."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if library.cuInit(0) == 0 else None


@functools.cache
def gpu_count() -> int:
    count = ctypes.c_int(0)
    if driver() is None or driver().cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def gpu_names() -> list[str]:
    names = []
    for index in range(gpu_count()):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        driver().cuDeviceGet(ctypes.byref(device), index)
        driver().cuDeviceGetName(name, len(name), device)
        names.append(name.value.decode())
    return names


def current_context() -> int:
    """Return the address of the context that is current for this thread, 0 for none."""
    context = ctypes.c_void_p()
    assert driver().cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value or 0


def make_current(context: int) -> None:
    """Make this context, as `current_context` gave it, current again."""
    assert driver().cuCtxSetCurrent(ctypes.c_void_p(context)) == 0


def skip(names: str, reason: str) -> None:
    """Skip for want of something that `--require` knows ("jax", or "jax+cuda" if only both together are at fault)."""
    pytest.skip(f"needs {names}: {reason}")


def need(name: str) -> types.ModuleType:
    """Import an array library, or skip where it is absent or does not import."""
    module = REQUIREMENTS[name]
    if importlib.util.find_spec(module.split(".")[0]) is None:
        skip(name, "not installed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's remarks on its own environment
            found = importlib.import_module(module)
    except ImportError as error:
        skip(name, f"does not import: {error}")
    if name == "jax" and driver():
        _start_jax(found)
    if name == "numba":
        vars(numpy).setdefault("row_stack", numpy.vstack)  # numba-cuda 0.30 compiles with it; NumPy 2.5 has it no more
    return found


def need_cuvec() -> types.ModuleType:
    """Import the package cuvec. Skip where it is built for CUDA and finds none: its first vector ends the process."""
    cuvec = need("cuvec")
    try:
        cuvec.dev_sync()
    except ValueError as error:
        skip("cuvec", f"finds no GPU: {error}")
    return cuvec


@functools.cache
def _start_jax(jax: types.ModuleType) -> None:
    """Let XLA start with the context as it is: it opens every GPU, and leaves the last one current."""
    context = current_context()
    jax.devices()
    make_current(context)


def need_gpu(count: int = 1) -> None:
    if gpu_count() == 0:
        skip("cuda", "no GPU, or no driver that starts")
    if gpu_count() < count:
        pytest.skip(f"this machine has {gpu_count()} GPU, and the test needs {count}")


def need_capability(least: int) -> None:
    """Skip unless the first GPU has this compute capability, such as 90 for 9.0, or a later one."""
    need_gpu()
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, name in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        assert driver().cuDeviceGetAttribute(ctypes.byref(value), name, 0) == 0
    if 10 * major.value + minor.value < least:
        pytest.skip(f"needs compute capability {least / 10}: the GPU has {major.value}.{minor.value}")


def need_libcu() -> None:
    """Skip unless the headers of libcu++ are installed."""
    need("cuda_core")
    from cuda import pathfinder

    if not pathfinder.find_nvidia_header_directory("cccl"):
        pytest.skip("needs the headers of libcu++: no CUDA toolkit, and no wheel of them, is found")
