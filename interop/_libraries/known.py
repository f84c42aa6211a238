"""The array libraries: those with a file in this package, and those that are read alone."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from interop._core import Array
from interop._libraries import cupy, jax, numba, numpy, torch, warp
from interop._libraries.base import Library, Target

__all__ = ["LIBRARIES", "READ_ALSO", "TARGETS", "Library", "ReadAlso", "library"]

#: What `interop.convert` gives arrays to, by name.
TARGETS: dict[str, Target] = {
    known.name: known
    for known in (
        *(torch.LIBRARY, cupy.LIBRARY, jax.LIBRARY, numpy.LIBRARY, numba.LIBRARY, warp.TARGET),
        Target(
            name="interop",
            module="interop",
            owns=lambda interop, x: isinstance(x, Array),
            take=lambda interop, array, stream: array,
            keeps_read_only=True,
        ),
    )
}
#: What `interop info`, `demo` and `bench` look for.
LIBRARIES = (numpy.LIBRARY, torch.LIBRARY, jax.LIBRARY, cupy.LIBRARY, numba.LIBRARY)


def library(name: str) -> Target:
    """Return what is known of a library; NumPy's rules are those of a library that is not known."""
    return TARGETS.get(name, numpy.LIBRARY)


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
