"""compute-sanitizer would see it if a kernel of ours read or wrote beyond an array."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest

# The array says that it has more rows than its memory.
OVERRUN = """
    import sys
    import cupy, numpy as np, interop

    class Shown:
        def __init__(self, array, rows):
            self.array = array
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "shape": (rows, 16)}

    cupy.cuda.set_allocator(None)  # a pool's blocks are larger than the arrays
    rows = 64 if sys.argv[1] == "none" else 80
    a = cupy.ones((64 if sys.argv[1] == "a" else rows, 16), "float32")
    holes = [cupy.empty(1 << 14, "uint8")]  # between the arrays, so that what is beyond one is nobody's
    out = cupy.ones((64 if sys.argv[1] == "out" else rows, 16), "float32")
    holes += [cupy.empty(1 << 14, "uint8")]
    b = cupy.ones((16, 16), "float32")
    del holes
    interop.matmul(Shown(a, rows), b, out=Shown(out, rows), backend="tiled")
    cupy.cuda.Device().synchronize()
"""


@pytest.mark.parametrize(
    ("beyond", "found"), [("none", None), ("a", "Invalid __global__ read"), ("out", "Invalid __global__ write")]
)
def test_a_planted_overrun_is_found(cupy, tmp_path, beyond, found):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer, of the CUDA toolkit, is not on PATH")
    command = [sanitizer, "--report-api-errors", "no", "--error-exitcode", "9", sys.executable, "-c"]
    done = subprocess.run(
        [*command, textwrap.dedent(OVERRUN), beyond], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    said = done.stdout + done.stderr
    if found is None:
        assert done.returncode == 0, said
        assert "ERROR SUMMARY: 0 errors" in said
    else:
        assert done.returncode != 0
        assert found in said
        assert "matmul" in said  # in our kernel
