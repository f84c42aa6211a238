"""A device that is played, for memory of interop's own: see tests/helpers/working_driver.c."""

from __future__ import annotations

import pytest
from helpers import alone, c_functions, drivers

_SOURCE = r"""
#include <stddef.h>

void stand_in_queue(void*, void (*)(void*), const void*, size_t);

struct Sum { const float *a, *b; float *c; int n; };
static void run_sum(void* arguments) {
  struct Sum* sum = arguments;
  for (int i = 0; i < sum->n; ++i) sum->c[i] = sum->a[i] + sum->b[i];
}
void add(const float* a, const float* b, float* c, int n, void* stream) {
  struct Sum sum = {a, b, c, n};
  stand_in_queue(stream, run_sum, &sum, sizeof sum);
}
int add_and_collect(const float* a, const float* b, float* c, float* d, int n, int status, void* stream) {
  (void)a, (void)b, (void)c, (void)d, (void)n, (void)stream;
  return status;
}
void look(const float* a, int n, void* stream) { (void)a, (void)n, (void)stream; }
void expect(int threads) { (void)threads; }
void add_together(const float* a, const float* b, float* c, int n, void* stream) { add(a, b, c, n, stream); }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    folder = tmp_path_factory.mktemp("driver")
    drivers.build_working(folder)
    c_functions.build(_SOURCE, folder / "libplayed.so", f"-L{folder}", "-l:libcuda.so.1")
    return folder


@pytest.fixture
def play(folder, tmp_path):
    """Run this code where the driver is played; `queue(x)` lets a kernel of the stream of `x` write 2 to it, late."""

    def play(code):
        start = """
from helpers.played_gpu import *
ones = interop.asarray(np.ones(1 << 16, "float32"))
def address(x):
    return x.__dlpack__(max_version=(1, 0)) and np.asarray(x).ctypes.data
def device_ones(n):
    x = interop.empty(n, "float32")
    interop.copyto(x, np.ones(n, "float32"))
    return x
def queue(x):
    y = device_ones(x.shape[0])
    lib.add(y, y, x, x.shape[0])
"""
        return alone.run(start + code, tmp_path, LD_LIBRARY_PATH=str(folder))

    return play
