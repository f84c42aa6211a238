"""`interop.load(header=)`: the statuses that functions return, by the types that a header defines, or CUDA's."""

from __future__ import annotations

import numpy as np
import pytest

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")


def test_a_status_is_raised(load):
    text = """
    typedef enum { MY_OK = 2, MY_BAD = -3 } my_status; my_status f(int x); int g(int x);
    my_status h(const int*, int* y);
    """
    source = """
    typedef enum { MY_OK = 2, MY_BAD = -3 } my_status; my_status f(int x) { return (my_status)x; }
    int g(int x) { return x; }
    my_status h(const int* x, int* y) { *y = *x + 1; return MY_OK; }
    """
    lib = load(source, text, status={"my_status": 2}, memory="host")
    assert lib.f(2) is None
    with pytest.raises(
        RuntimeError, match=r"^libown.f returned -3 \(MY_BAD\), a my_status, of which success is 2$"
    ) as caught:
        lib.f(-3)
    assert not isinstance(caught.value, interop.CudaError)
    with pytest.raises(RuntimeError, match="^libown.f returned 9, a my_status"):
        lib.f(9)
    assert lib.h.returning(y="arg0")(np.array([4], "int32")).tolist() == [5]
    assert lib.g(1) == 1
    assert load(source, text).f(-3) == -3  # nothing says that it is a status
    of_numbers = load(source, text, status={"int": 0})
    assert of_numbers.g(0) is None
    with pytest.raises(RuntimeError, match="returned 1, a int"):
        of_numbers.g(1)


def test_statuses_of_cuda_are_known(load):
    text = "cudaError_t f(int);\ncublasStatus_t g(int);\nCUresult h(int);\nint i(cudaError_t);"
    source = "".join(f'extern "C" int {name}(int x) {{ return x; }}\n' for name in "fghi")
    lib = load(source, text)
    assert (lib.f(0), lib.g(0), lib.h(0)) == (None, None, None)
    for name in "fgh":
        with pytest.raises(interop.CudaError):
            getattr(lib, name)(13)
    with pytest.raises(interop.CudaError, match="libown.g returned 13, a cublasStatus_t, of which success is 0"):
        lib.g(13)
    assert lib.i(3) == 3
    lib = load(
        source, '#include "blas.h"\n' + text, {"blas.h": "typedef enum { CUBLAS_STATUS_FAILED = 13 } cublasStatus_t;"}
    )
    with pytest.raises(interop.CudaError, match=r"returned 13 \(CUBLAS_STATUS_FAILED\), a cublasStatus_t"):
        lib.g(13)


def test_a_status_of_any_size(load):
    text = "enum class S : unsigned char { ok, bad = 200 };\nenum U { OK, BAD = 0x80000001 };\nS f(int);\nU g(int);"
    lib = load(
        text.replace("S f(int);\nU g(int);", "") + "S f(int x) { return (S)x; } U g(int x) { return x ? BAD : OK; }",
        text,
        status={"S": 0, "U": 0},
    )
    with pytest.raises(RuntimeError, match=r"returned 200 \(bad\)"):
        lib.f(200)
    with pytest.raises(RuntimeError, match=r"returned 2147483649 \(BAD\)"):
        lib.g(1)


@pytest.mark.parametrize("success", [2**64 - 1, 0])
def test_a_status_beyond_int64(load, success):
    text = "enum S { NO = 0, OK = ~0ull, BAD = 0x8000000000000000 };\nS f(S);"
    lib = load(text.replace("S f(S);", "S f(S x) { return x; }"), text, status={"S": success})
    assert lib.f(success) is None
    with pytest.raises(RuntimeError, match=r"\(BAD\), a S, of which success is "):
        lib.f(2**63)


@pytest.mark.parametrize(("type_", "success"), [("int", 2**31), ("unsigned char", -1), ("long", 2**63), ("int", 2**70)])
def test_a_success_that_no_status_is(load, type_, success):
    lib = load("int f() { return 0; }", f"typedef {type_} S;\nS f();", status={"S": success})
    assert f"the success of 'S' is {success}; accepted: a value of " in lib.refused["f"]
