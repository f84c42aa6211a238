"""Kernels that another library has loaded, launched by their handles on a driver that stands in for CUDA's.

On a GPU, with the libraries themselves: tests/gpu/test_adopt.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import alone, drivers

START = """
from helpers import kernels

class Device:
    def __init__(self, values):
        self.values = np.array(values, "float32")
        self.__cuda_array_interface__ = {**self.values.__array_interface__, "version": 3, "stream": None}

class Function:
    asked = 0
    ptr = 4096
    def __get__(self, kernel, kind):
        Function.asked += 1
        return self

Core = kernels.played("cuda.core._module", "Kernel", handle=8192)
class Raw(kernels.PlayedRawKernel):
    code = 'extern "C" __global__ void scale(const float* x, float* y) {}'
    kernel = Function()
x = Device(np.arange(9))
"""


@pytest.fixture
def launched(tmp_path):
    """What a stand-in driver is asked to launch by these lines; its kernels have two pointers."""
    if drivers.BUILT_FOR == 0:
        pytest.skip("a build for host arrays only")
    drivers.build(tmp_path, count=2, written=(Path(__file__).parent / "helpers/order_driver.c").read_text())

    def run(lines):
        said = alone.run(START + lines, tmp_path, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
        return [line for line in said if line.startswith(("launch", "load", "said"))]

    return run


def test_a_kernel_of_cuda_core(launched):
    assert launched("""
call = interop.adopt(Core(), "const float* x, float* y", grid=1)
call(x, x, stream=3)
call(x, x, grid=4, stream=5)
""") == ["launch on 3", "launch on 5"]


def test_a_raw_kernel_of_cupy(launched):
    assert launched("""
call = interop.adopt(Raw(), threads="x")
call(x, x, stream=3)
call(x, x, grid=2, stream=4)
print("said", Function.asked)
""") == ["launch on 3", "launch on 4", "said 1"]


def test_other_parameters_than_the_kernel_has(launched):
    (said,) = launched("""
try:
    interop.adopt(Core(), "const float* x, float* y, int n", grid=1)(x, x, 9, stream=3)
except ValueError as error:
    print("said", error)
""")
    assert "3 parameters are declared, and the compiled kernel has 2" in said


def test_a_handle_that_the_library_does_not_give(launched):
    (said,) = launched("""
class Broken(kernels.PlayedRawKernel):
    @property
    def kernel(self):
        raise RuntimeError("it does not compile")
try:
    interop.adopt(Broken(), threads="x")(x, x, x, 9, stream=3)
except RuntimeError as error:
    print("said", error)
""")
    assert said == "said it does not compile"


def test_a_program_of_xla_has_the_handle_of_each_device(launched):
    """A CUfunction is of one context: CuPy gives that of the device that is current."""
    (said,) = launched("""
import ctypes
seen = []
class OfDevice(Raw):
    @property
    def kernel(self):
        device = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device))
        seen.append(device.value)
        return type("Function", (), {"ptr": 4096 * (1 + device.value)})
call = interop.adopt(OfDevice(), threads="x")
call._calls.keep_for_xla("key")
interop._core.prepare_for_xla("key")
interop._core.prepare_for_xla("key")  # which has all by then
print("said", seen)
""")
    assert said == "said [0, 0, 0, 1]"
