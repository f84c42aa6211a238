"""`interop.load(..., needs_gpu=True)`: a library that calls exit() where there is no GPU does not end the process."""

from __future__ import annotations

import pytest
from helpers import alone, c_functions, drivers

import interop

SOURCE = r"""
#include <stdlib.h>

static void require_gpu(void) { if (!getenv("HAS_A_GPU")) exit(42); }
int add(int a, int b) { require_gpu(); return a + b; }
void twice(const float* x, float* y, int n) { require_gpu(); for (int i = 0; i < n; ++i) y[i] = 2 * x[i]; }
"""
DECLARATIONS = "int add(int a, int b); void twice(host const float* x, host float* y, int n);"
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build(SOURCE, tmp_path_factory.mktemp("needs_gpu") / "libexits.so")


def test_the_process_goes_on(path, tmp_path):
    code = f"""
        import pickle
        lib = interop.load({str(path)!r}, {DECLARATIONS!r}, needs_gpu=True)
        x = np.ones(3, "float32")
        twice = lib.twice.returning(y="x")
        calls = [
            lambda: lib.add(2, 3),
            lambda: lib.add(a=2, b=3),
            lambda: twice(x, 3),
            lambda: twice(x, 3, y=x),
            lambda: interop.explain(twice, x, 3),
            lambda: pickle.loads(pickle.dumps(lib)).add(2, 3),
            lambda: pickle.loads(pickle.dumps(twice))(x, 3),
        ]
        for call in calls:
            try:
                call()
            except interop.CudaError as error:
                print(error)
        print(x)
    """
    *said, x = alone.run(code, tmp_path, **NO_GPU).splitlines()
    assert x == "[1. 1. 1.]"
    reasons = ("no NVIDIA driver: ", "no CUDA device: ", "built without CUDA ")
    names = [line.partition(": ")[0] for line in said]
    assert names == [f"libexits.{name}" for name in ("add", "add", "twice", "twice", "twice", "add", "twice")]
    assert all(line.partition(": ")[2].startswith(reasons) for line in said), said


def test_the_library_ends_it_otherwise(path, tmp_path):
    code = f"""
        import os
        lib = interop.load({str(path)!r}, {DECLARATIONS!r})
        child = os.fork()
        if child == 0:
            lib.add(2, 3)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert alone.run(code, tmp_path, **NO_GPU).splitlines()[-1] == "42"


def test_it_looks_once(path, tmp_path):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    drivers.build(tmp_path, count=1, tells=True)
    code = f"""
        lib = interop.load({str(path)!r}, {DECLARATIONS!r}, needs_gpu=True)
        other = interop.load({str(path)!r}, {DECLARATIONS!r})
        print("loaded", other.add(1, 1), flush=True)
        for n in range(3):
            print(lib.add(n, 1), lib.twice.returning(y="x")(np.ones(2, "float32"), 2), flush=True)
    """
    said = alone.run(code, tmp_path, LD_LIBRARY_PATH=str(tmp_path), HAS_A_GPU="1").splitlines()
    assert said == ["loaded 2", "cuInit", "1 [2. 2.]", "2 [2. 2.]", "3 [2. 2.]"]


def test_it_is_true_or_false(path):
    for given in (1, "yes", None):
        with pytest.raises(TypeError, match=f"^interop.load: needs_gpu is {type(given).__name__}; accepted: True or"):
            interop.load(path, DECLARATIONS, needs_gpu=given)
