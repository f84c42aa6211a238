"""C++ and CUDA of a benchmark, compiled by nvcc."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["compiled"]


@contextlib.contextmanager
def compiled(source: str) -> Iterator[Path | None]:
    """Give the shared library that nvcc makes of the source; None, and why, where there is no nvcc."""
    in_wheels = (Path(folder, "nvidia/cu13/bin/nvcc") for folder in sys.path)
    nvcc = shutil.which("nvcc") or next((path for path in in_wheels if path.is_file()), None)
    if nvcc is None:
        print("no nvcc: what needs a shared library is left out\n")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "benchmark.cu"), Path(folder, "libbenchmark.so")
        file.write_text(source)
        flags = ["-shared", "-O3", "-Xcompiler", "-fPIC", "-arch=native", "-cudart", "static"]
        subprocess.run([nvcc, *flags, f"-L{Path(nvcc).resolve().parents[1] / 'lib'}", file, "-o", library], check=True)
        yield library
