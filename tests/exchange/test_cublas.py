"""Products by a cuBLASLt that is played, on a driver that is played: what it is asked, when, and that the GIL is free.

Its algorithms compute nothing. The values of products by cuBLASLt are tested in tests/gpu.
"""

from __future__ import annotations

import pytest
from helpers import alone, c_functions

from interop import _core

_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct { uint64_t data[8]; } Algorithm; /* data[i]: the value of attribute i */
typedef struct { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
int PyGILState_Check(void);

static char said[1 << 12];
static void say(const char* what, int count) {
  const size_t length = strlen(said);
  snprintf(said + length, sizeof said - length, "%s %d%s\n", what, count, PyGILState_Check() ? " with the GIL" : "");
}
/* For the test: what was asked since the last question, a line for each. */
const char* played_log(void) {
  static char copy[sizeof said];
  strcpy(copy, said);
  said[0] = 0;
  return copy;
}
static int parts = 1; /* into which the first algorithm splits k */
void played_parts(int count) { parts = count; }

size_t cublasLtGetVersion(void) { return 130000; }
const char* cublasLtGetStatusName(int status) { (void)status; return "PLAYED"; }
#define MAKES(name) int name(void** made) { *made = said; return 0; }
#define DOES(name) int name(void) { return 0; }
MAKES(cublasLtCreate) MAKES(cublasLtMatmulDescCreate) MAKES(cublasLtMatrixLayoutCreate)
MAKES(cublasLtMatmulPreferenceCreate)
DOES(cublasLtMatmulDescDestroy) DOES(cublasLtMatmulDescSetAttribute) DOES(cublasLtMatrixLayoutDestroy)
DOES(cublasLtMatrixLayoutSetAttribute) DOES(cublasLtMatmulPreferenceDestroy)
DOES(cublasLtMatmulPreferenceSetAttribute)

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c, void* d, void* preference,
                                   int requested, Heuristic* found, int* count) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  say("asked for", requested);
  for (int i = 0; i < requested; ++i) {
    memset(&found[i], 0, sizeof found[i]);
    found[i].algorithm.data[0] = 100 + i;
    found[i].algorithm.data[2] = i == 0 ? parts : 1;
  }
  *count = requested;
  return 0;
}
int cublasLtMatmulAlgoCheck(void) { return 15; }
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* of, int name, void* value, size_t bytes, size_t* written) {
  memcpy(value, &of->data[name], bytes);
  *written = bytes;
  return 0;
}
int cublasLtMatmul(void) {
  say("launched", 1);
  return 0;
}
"""

_START = """
import types
import cuda.pathfinder
from helpers.played_gpu import *
cuda.pathfinder.load_nvidia_dynamic_lib = lambda _: types.SimpleNamespace(abs_path=None)  # the loader finds ours
cublas = ctypes.CDLL(str(FOLDER / "libcublasLt.so.13"))
cublas.played_log.restype = ctypes.c_char_p
def asked():
    return cublas.played_log().decode().splitlines()
def operands(m, n, k, dtype="float32"):
    return interop.empty((m, k), dtype), interop.empty((k, n), dtype)
def algorithm(x, y, **options):
    return interop.explain(interop.matmul, x, y, **options).algorithm
"""


@pytest.fixture(scope="module")
def folder(folder):
    c_functions.build(_SOURCE, folder / "libcublasLt.so.13")
    return folder


@pytest.fixture
def play(folder, tmp_path):
    return lambda code: alone.run(_START + code, tmp_path, LD_LIBRARY_PATH=str(folder))


def test_the_first_call_of_a_shape_asks_for_one_algorithm(play):
    play("""
x, y = operands(1024, 1024, 1024)
interop.matmul(x, y)
assert asked() == ["asked for 1", "launched 1"]
interop.matmul(x, y)
assert asked() == ["launched 1"]
assert "algorithm 100" in algorithm(x, y)
""")


def test_others_are_asked_for_where_the_first_one_is_wrong(play):
    play("""
cublas.played_parts(3)
x, y = operands(1024, 1024, 1009)  # of which three parts leave out the last one
assert "algorithm 101" in algorithm(x, y)
assert asked() == ["asked for 1", "asked for 8"]
x, y = operands(1024, 1024, 1024)
assert "algorithm 100" in algorithm(x, y) and "split-k 3" in algorithm(x, y)
assert asked() == ["asked for 1"]
""")


@pytest.mark.skipif("90a" not in _core.build_info()["architectures"], reason="this build has no kernels for 90a")
def test_products_of_ours_are_not_asked_about(play):
    play("""
x, y = operands(1024, 1023, 1023, "float16")  # rows at odd addresses
assert "wgmma" in algorithm(x, y), algorithm(x, y)
assert asked() == []
assert "algorithm 100" in algorithm(x, y, backend="cublas")
assert asked() == ["asked for 1"]
""")
