"""Kernels that other libraries have loaded, by their handles, as `interop.adopt` finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from interop import _core
from interop._program import Source

__all__ = ["Handle", "LoadedElsewhere"]


class Handle(NamedTuple):
    """A kernel of another library."""

    kind: str  # what messages call it
    name: str  # "" where it does not say it
    code: str  # that its declaration is in; "" where it is not known
    #: The handle, for the device that is current, and whether it is a CUfunction.
    get: Callable[[], tuple[int, bool]]
    cooperative: bool = False  # is it launched so by its library?


def of_cupy(kernel: Any) -> Handle:
    """Return a `cupy.RawKernel`."""
    name = kernel.name
    return Handle(
        "cupy.RawKernel",
        name,
        kernel.code or "",
        lambda: (kernel.kernel.ptr, True),
        bool(getattr(kernel, "enable_cooperative_groups", False)),
    )


def of_cuda_core(kernel: Any) -> Handle:
    """Return a `cuda.core.Kernel`."""
    return Handle("cuda.core.Kernel", "", "", lambda: (int(kernel.handle), False))


class LoadedElsewhere:
    """What a kernel of `interop.kernel` is loaded from, where another library has loaded it."""

    has_variables = False

    def __init__(self, handle: Handle) -> None:
        self.source = Source(handle.code, None, None, {}, "nvrtc")
        self._handle = handle
        self._loaded: dict[tuple[int, bool], _core.LoadedKernel] = {}

    def kernel(self, label: str, name: str, architecture: str) -> _core.LoadedKernel:
        """Return the kernel, on the current device."""
        handle = self._handle.get()
        if handle not in self._loaded:
            self._loaded[handle] = _core.LoadedKernel.adopt(*handle)
        return self._loaded[handle]

    def variable(self, label: str, kernel: str, variable: str, architecture: str) -> NoReturn:
        """Raise the KeyError of a variable, which the library that has loaded the code knows."""
        self.check_variable(label, variable)

    def check_variable(self, label: str, variable: str) -> NoReturn:
        """Raise the same."""
        raise KeyError(
            f"{label}: {variable!r} is in code that another library has loaded; accepted: variables of interop.kernel's"
        )
