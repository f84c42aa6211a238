"""The array libraries that `interop info`, `demo` and `bench` look for, and how they make arrays or are read."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LIBRARIES", "READ_ALSO", "Library", "ReadAlso", "jax_has_cuda"]


@dataclass(frozen=True)
class Library:
    """One array library: its module, the devices it can use, and its ways to and from NumPy."""

    name: str
    module: str
    install: str
    on_host: bool
    to_device: Callable[[Any, np.ndarray, str], Any]  # (module, array, "cpu" or "cuda") -> its array
    to_numpy: Callable[[Any], np.ndarray]
    has_cuda: Callable[[Any], bool]
    stream: Callable[[Any], str]  # what its work on CUDA is queued on now

    def load(self) -> Any:
        """Import the module; ImportError with the reason if it is absent or broken."""
        if importlib.util.find_spec(self.module.split(".")[0]) is None:
            raise ImportError(f"not installed; {self.install}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's remarks on its own environment are no concern of ours
            return importlib.import_module(self.module)

    def version(self) -> str:
        """Return the version of the imported library."""
        return str(importlib.import_module(self.module.split(".")[0]).__version__)


def _jax_device(jax: Any, array: np.ndarray, device: str) -> Any:
    with jax.enable_x64(array.dtype.itemsize == 8):
        return jax.device_put(array, jax.devices(device)[0])


def jax_has_cuda(jax: Any) -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


LIBRARIES = (
    Library(
        name="numpy",
        module="numpy",
        install="pip install numpy",
        on_host=True,
        to_device=lambda np, array, device: array,
        to_numpy=np.asarray,
        has_cuda=lambda np: False,
        stream=lambda np: "none",
    ),
    Library(
        name="torch",
        module="torch",
        install="pip install 'interop-dlpack[torch]'",
        on_host=True,
        to_device=lambda torch, array, device: torch.from_numpy(array).to(device),
        to_numpy=lambda x: x.cpu().numpy(),
        has_cuda=lambda torch: torch.cuda.is_available(),
        stream=lambda torch: f"torch's current stream, {torch.cuda.current_stream().cuda_stream:#x}",
    ),
    Library(
        name="jax",
        module="jax",
        install="pip install 'interop-dlpack[jax]', with jax[cuda13] for a GPU",
        on_host=True,
        to_device=_jax_device,
        to_numpy=np.asarray,
        has_cuda=jax_has_cuda,
        stream=lambda jax: "XLA's own",
    ),
    Library(
        name="cupy",
        module="cupy",
        install="pip install 'interop-dlpack[cu13]' (or [cu12])",
        on_host=False,
        to_device=lambda cupy, array, device: cupy.asarray(array),
        to_numpy=lambda x: x.get(),
        has_cuda=lambda cupy: cupy.cuda.is_available(),
        stream=lambda cupy: f"CuPy's current stream, {cupy.cuda.get_current_stream().ptr:#x}",
    ),
    Library(
        name="numba",
        module="numba.cuda",
        install="pip install 'numba-cuda[cu13]' (or [cu12])",
        on_host=False,
        to_device=lambda cuda, array, device: cuda.to_device(array),
        to_numpy=lambda x: x.copy_to_host(),
        has_cuda=lambda cuda: cuda.is_available(),
        stream=lambda cuda: "the default stream",
    ),
)


@dataclass(frozen=True)
class ReadAlso:
    """A library with a route of its own of which only the presence is reported: importing it takes seconds."""

    name: str
    module: str
    protocol: str  # as its route says it
    distributions: tuple[str, ...]  # any of these has the module

    def version(self) -> str | None:
        """Return the installed version, without an import; None if there is none."""
        for name in self.distributions:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None


READ_ALSO = (
    ReadAlso("warp", "warp", "__dlpack__", ("warp-lang",)),
    ReadAlso("tvm-ffi", "tvm_ffi", "__dlpack__", ("apache-tvm-ffi",)),
    ReadAlso("cuda.core", "cuda.core.utils", "__dlpack_c_exchange_api__", ("cuda-core",)),
    ReadAlso("paddle", "paddle", "__dlpack_c_exchange_api__", ("paddlepaddle", "paddlepaddle-gpu")),
    ReadAlso("tensorflow", "tensorflow", "tf.experimental.dlpack", ("tensorflow", "tensorflow-cpu", "tf-nightly")),
)
