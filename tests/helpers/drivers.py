"""Drivers that this machine has not: a libcuda.so.1 in a folder, which the loader is to look in first.

One that says what is wrong with the machine; and one that works, on memory of the host, for the order of calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import interop

BUILT_FOR = interop._core.build_info()["cuda"]  # such as 13000; 0 for a host-only build

_DRIVER = """
#include <unistd.h>

int cuInit(unsigned flags) {
  (void)flags;
#ifdef TELLS
  (void)!write(1, "cuInit\\n", 7);
#endif
  return INIT;
}
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
#ifndef TOO_OLD
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuGetErrorName(int status, const char** name) {
  *name = status == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "?";
  return 0;
}
int cuGetErrorString(int status, const char** text) { (void)status; *text = "driver and display mismatch"; return 0; }
REST
#endif
"""


def build(
    folder: Path,
    *,
    version: int = BUILT_FOR,
    init: int = 0,
    count: int = 0,
    too_old: bool = False,
    tells: bool = False,
    written: str = "",
) -> None:
    """Build one of this version, status of cuInit and number of devices; skip where there is no compiler.

    `too_old`: without the other functions; with them, each fails, but for those that are `written` in C. `tells`:
    cuInit prints its name.
    """
    options = [f"-DVERSION={version}", f"-DINIT={init}", f"-DCOUNT={count}"]
    options += ["-DTOO_OLD"] * too_old + ["-DTELLS"] * tells
    _compile(folder, _DRIVER.replace("REST", _failing(_DRIVER + written) + written), options)


def build_working(folder: Path, *, written: str = "") -> None:
    """Build one with a device, whose memory is the host's: see working_driver.c. Skip where there is no compiler.

    In a process that finds it first, `helpers.played_gpu` is for its use. `written` has more of its functions, in C.
    """
    parts = ("working_driver.c", "sharing_driver.c")
    text = "".join(Path(__file__).with_name(part).read_text() for part in parts) + written
    _compile(folder, text + _failing(text), [f"-DVERSION={BUILT_FOR}"])


def _failing(text: str) -> str:
    """Write the functions of the driver that interop asks for and this text has not: each fails."""
    binary = Path(interop._core.__file__).read_bytes()
    functions = {name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", binary)}
    functions -= set(re.findall(r"\bint (cu[A-Z]\w+)\(", text))
    return " ".join(f"int {name}(void) {{ return 999; }}" for name in sorted(functions))


def _compile(folder: Path, text: str, options: list[str]) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    source = folder / "driver.c"
    source.write_text(text)
    options += ["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *options, "-o", folder / "libcuda.so.1", source], check=True)
