"""The array libraries that the tests run over: how each makes an array of any layout, and what its arrays are."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from helpers import machine
from helpers.dlpack import CudaStream


class Library:
    """One library on one kind of device. `load` imports it, or skips where the machine has none."""

    name = ""
    device = "cpu"
    views = True  # can it have arrays of any non-negative strides?
    negative = True  # and of negative ones?
    writable = True
    module: Any = None

    def __repr__(self) -> str:
        return f"{self.name}-{self.device}"

    def load(self) -> None:
        """Import the module; skip if it, or its device, is absent."""

    def make(self, x: np.ndarray) -> Any:
        """Return a compact array of the library with the values of `x`."""
        raise NotImplementedError

    def view(self, base: np.ndarray, view: np.ndarray) -> Any:
        """Return what `view` is to the compact `base`, for a new array of the library with the values of `base`."""
        return self.view_of(self.make(base), base, view)

    def view_of(self, made: Any, base: np.ndarray, view: np.ndarray) -> Any:
        """Do the same on `made`, which the library has made of `base`."""
        raise NotImplementedError

    def to_numpy(self, x: Any) -> np.ndarray:
        """Return the values on the host, once they are there."""
        raise NotImplementedError

    def poison(self) -> None:
        """Leave NaN in the memory that the library's allocator gives out next, so that what is not written shows."""
        junk = [self.make(np.full(size, np.nan, np.float32)) for size in (16, 256, 4096, 1 << 16, 1 << 20)]
        del junk

    def is_ours(self, x: Any) -> bool:
        """Is this an array of exactly this library, on this device?"""
        raise NotImplementedError

    def dtype(self, x: Any) -> str:
        return str(x.dtype)

    def pointer(self, x: Any) -> int:
        raise NotImplementedError


def offset_of(base: np.ndarray, view: np.ndarray) -> int:
    """Bytes from the first element of `base` to that of `view`."""
    assert base.flags.c_contiguous
    return view.__array_interface__["data"][0] - base.__array_interface__["data"][0] if view.size else 0


def steps_of(view: np.ndarray) -> tuple[int, ...]:
    return tuple(step // view.itemsize for step in view.strides)


class NumPy(Library):
    name = "numpy"

    def make(self, x: np.ndarray) -> np.ndarray:
        return x.copy()

    def view_of(self, made: np.ndarray, base: np.ndarray, view: np.ndarray) -> np.ndarray:
        buffer = made.reshape(-1).view(np.uint8) if made.size else made
        return np.ndarray(view.shape, view.dtype, buffer.data, offset_of(base, view), view.strides)

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        return x.copy()

    def is_ours(self, x: Any) -> bool:
        return type(x) is np.ndarray

    def pointer(self, x: np.ndarray) -> int:
        return x.__array_interface__["data"][0]


class Torch(Library):
    name = "torch"
    negative = False

    def __init__(self, device: str) -> None:
        self.device = device

    def load(self) -> None:
        self.module = machine.need("torch")
        if self.device == "cuda":
            machine.need_gpu()
            if not self.module.cuda.is_available():
                machine.skip("torch+cuda", "this torch sees no GPU")

    def make(self, x: np.ndarray) -> Any:
        if x.dtype.kind == "V" or x.dtype.name.startswith("float8"):  # which torch does not know from NumPy
            bits = x.copy().view(f"u{x.dtype.itemsize}")
            return self.module.from_numpy(bits).view(getattr(self.module, x.dtype.name)).to(self.device)
        return self.module.from_numpy(x.copy()).to(self.device)

    def view_of(self, made: Any, base: np.ndarray, view: np.ndarray) -> Any:
        return made.as_strided(view.shape, steps_of(view), offset_of(base, view) // view.itemsize)

    def to_numpy(self, x: Any) -> np.ndarray:
        x = x.detach().cpu()
        if x.dtype == self.module.bfloat16:
            return x.contiguous().view(self.module.uint16).numpy().view(ml_dtypes.bfloat16).copy()
        return x.numpy().copy()

    def is_ours(self, x: Any) -> bool:
        return type(x) is self.module.Tensor and x.device.type == self.device

    def dtype(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def pointer(self, x: Any) -> int:
        return x.data_ptr()


class Jax(Library):
    name = "jax"
    views = False
    negative = False
    writable = False

    def __init__(self, device: str) -> None:
        self.device = device

    def load(self) -> None:
        self.module = machine.need("jax")
        if self.device == "cuda":
            machine.need_gpu()
            try:
                self.module.devices("cuda")
            except RuntimeError as error:
                machine.skip("jax+cuda", f"this JAX sees no GPU: {error}")

    def x64(self) -> Any:
        """Return a context in which JAX keeps 64-bit types, in whichever way this version spells it."""
        if hasattr(self.module, "enable_x64"):
            return self.module.enable_x64(True)
        from jax.experimental import enable_x64

        return enable_x64()

    def make(self, x: np.ndarray) -> Any:
        with self.x64():
            return self.module.device_put(x.copy(), self.module.devices(self.device)[0])

    def view_of(self, made: Any, base: np.ndarray, view: np.ndarray) -> Any:
        return self.make(view)  # JAX has no strided arrays

    def to_numpy(self, x: Any) -> np.ndarray:
        return np.array(x)

    def is_ours(self, x: Any) -> bool:
        platform = {"cpu": "cpu", "cuda": "gpu"}[self.device]
        return isinstance(x, self.module.Array) and {device.platform for device in x.devices()} == {platform}

    def pointer(self, x: Any) -> int:
        return x.unsafe_buffer_pointer()


class CuPy(Library):
    name = "cupy"
    device = "cuda"

    def load(self) -> None:
        machine.need_gpu()
        self.module = machine.need("cupy")

    def make(self, x: np.ndarray) -> Any:
        return self.module.asarray(x.copy())

    def view_of(self, made: Any, base: np.ndarray, view: np.ndarray) -> Any:
        return self.module.ndarray(view.shape, view.dtype, made.data + offset_of(base, view), view.strides)

    def to_numpy(self, x: Any) -> np.ndarray:
        return x.get()

    def stream(self, handle: int) -> Any:
        """Return the library's stream object of a handle; as a context, it makes the stream current."""
        if hasattr(self.module.cuda.Stream, "from_external"):  # CuPy 14, which deprecates the other
            return self.module.cuda.Stream.from_external(CudaStream(handle))
        return self.module.cuda.ExternalStream(handle)

    def is_ours(self, x: Any) -> bool:
        return type(x) is self.module.ndarray

    def pointer(self, x: Any) -> int:
        return x.data.ptr


class Numba(Library):
    name = "numba"
    device = "cuda"

    def load(self) -> None:
        machine.need_gpu()
        self.module = machine.need("numba")

    def make(self, x: np.ndarray) -> Any:
        with quiet():
            return self.module.to_device(x.copy())

    def bind(self, x: np.ndarray, stream: Any) -> Any:
        """Return an array that is bound to a stream of Numba's."""
        with quiet():
            return self.module.to_device(x.copy(), stream=stream)

    def view_of(self, made: Any, base: np.ndarray, view: np.ndarray) -> Any:
        with quiet():
            if view.size == 0:
                return self.module.device_array(view.shape, view.dtype)
            interface = dict(made.__cuda_array_interface__)
            pointer = interface["data"][0] + offset_of(base, view)
            interface.update(shape=view.shape, strides=view.strides, data=(pointer, False))
            return self.module.as_cuda_array(_Shown(made, interface))

    def to_numpy(self, x: Any) -> np.ndarray:
        # Through a compact copy, as Numba copies compact arrays only.
        self.module.synchronize()
        interface = x.__cuda_array_interface__
        if x.size == 0:
            return np.empty(x.shape, x.dtype)
        return _download(interface, x.dtype)

    def is_ours(self, x: Any) -> bool:
        return type(x).__name__ == "DeviceNDArray"

    def pointer(self, x: Any) -> int:
        return x.__cuda_array_interface__["data"][0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let the test itself use Numba's device arrays, whose interface newer versions of numba-cuda deprecate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"numba|helpers")
        warnings.filterwarnings("ignore", message=".*[dD]evice ?[aA]rray.*deprecat.*")
        yield


class _Shown:
    """An object with this interface, which keeps `owner` alive."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = interface


def _download(interface: dict[str, Any], dtype: np.dtype) -> np.ndarray:
    """Copy a device array of any strides to the host, by the driver alone."""
    import ctypes

    shape = interface["shape"]
    strides = interface["strides"]
    if strides is None:
        strides = np.empty(shape, np.void(dtype.itemsize).dtype).strides
    low = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if step < 0)
    high = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if step > 0) + dtype.itemsize
    raw = np.empty(high - low, np.uint8)
    source = ctypes.c_uint64(interface["data"][0] + low)
    status = machine.driver().cuMemcpyDtoH_v2(ctypes.c_void_p(raw.ctypes.data), source, ctypes.c_size_t(raw.nbytes))
    assert status == 0, f"cuMemcpyDtoH: CUDA error {status}"
    return np.ndarray(shape, dtype, raw.data, -low, strides).copy()


HOST = (NumPy(), Torch("cpu"), Jax("cpu"))
DEVICE = (CuPy(), Torch("cuda"), Jax("cuda"), Numba())


def by_name(name: str, device: str = "cpu") -> Library:
    (found,) = (library for library in HOST + DEVICE if (library.name, library.device) == (name, device))
    found.load()
    return found


def on_gpu(name: str) -> Library:
    """Return the library on the GPU; skips where there is none."""
    return by_name(name, "cuda")


def versions() -> list[str]:
    """Return "name version" of every library that is imported or installed, without importing any."""
    import importlib.metadata

    found = []
    for name in ("numpy", "torch", "jax", "cupy", "numba-cuda", "nanobind", "hypothesis"):
        candidates = [name] if name != "cupy" else ["cupy-cuda13x", "cupy-cuda12x", "cupy"]
        for candidate in candidates:
            try:
                found.append(f"{candidate} {importlib.metadata.version(candidate)}")
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    found.insert(0, f"Python {sys.version.split()[0]}")
    return found
