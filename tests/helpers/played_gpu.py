"""C functions on the device of `drivers.build_working`, and what its driver was called for.

For a process of its own, whose LD_LIBRARY_PATH is the folder of both.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import interop

FOLDER = Path(os.environ["LD_LIBRARY_PATH"])

_DECLARATIONS = """
    void add(device const float* a, device const float* b, device float* c, int n, cudaStream_t stream);
    cudaError_t add_and_collect(device const float* a, device const float* b, device float* c, device float* d, int n,
                                int status, cudaStream_t stream);
    void look(device const float* a, int n, cudaStream_t stream);
    void expect(int threads);
    void add_together(device const float* a, device const float* b, device float* c, int n, cudaStream_t stream);
"""

lib = interop.load(FOLDER / "libplayed.so", _DECLARATIONS)
add = lib.add.returning(c="a")
together = lib.add_together.returning(c="a")
driver = ctypes.CDLL("libcuda.so.1")
driver.stand_in_log.restype = ctypes.c_char_p
driver.stand_in_bytes.restype = ctypes.c_size_t


def log() -> list[str]:
    """Return what the driver was called for since the last question."""
    return driver.stand_in_log().decode().splitlines()


def fail(name: str, status: int = 700, after: int = 0) -> None:
    """Let the call of this function after so many more fail."""
    driver.stand_in_fail(name.encode(), status, after)


def pinned_bytes() -> int:
    return driver.stand_in_bytes(1)


def ask_early(early: bool = True) -> None:
    """Let an event be asked for while the work before it is not done."""
    driver.stand_in_ask_early(int(early))


def bytes_of(memory: str) -> int:
    """Return how many bytes of this kind the driver has given out."""
    return driver.stand_in_bytes(("device", "pinned", "managed").index(memory))
