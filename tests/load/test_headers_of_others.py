"""`interop.load(header=)` on headers after the pattern of others, and on those that this machine has."""

from __future__ import annotations

import ctypes.util
import re
import zlib

import numpy as np
import pytest
from helpers import c_functions, headers_of_others

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")

MATRIX = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    for name, text in (
        ("tiledMultiply.h", headers_of_others.TILED_MULTIPLY),
        ("cuBLASMultiply.h", headers_of_others.CUBLAS_MULTIPLY),
        ("myCuda.cuh", headers_of_others.MY_CUDA),
        ("elemwise.h", headers_of_others.ELEMWISE),
    ):
        (folder / name).write_text(text)
    c_functions.build(headers_of_others.SOURCE, folder / "libothers.so", language="c++")
    return folder


def test_a_product_by_tiles(folder):
    lib = interop.load(
        folder / "libothers.so", header=folder / "tiledMultiply.h", memory="host", reads={"tiledMultiply": ("A", "B")}
    )
    multiply = lib.tiledMultiply.returning(C=lambda a, b, m, n, k: (m, n))
    assert (multiply(MATRIX, MATRIX.T.copy(), 2, 2, 3) == MATRIX @ MATRIX.T).all()
    assert lib.refused.keys() == {"tiledMultiplyKernel", "launchTiled"}
    assert "it is a kernel" in lib.refused["tiledMultiplyKernel"]
    assert "it is a template" in lib.refused["launchTiled"]


def test_a_product_by_cublas(folder):
    lib = interop.load(folder / "libothers.so", header=folder / "cuBLASMultiply.h", memory="host")
    multiply = lib.cuBLASMultiply.returning(C="A")
    assert (multiply(MATRIX, MATRIX, np.array([2], "float32"), 2, 3, 1) == 2 * MATRIX * MATRIX).all()
    with pytest.raises(
        interop.CudaError, match="libothers.cuBLASMultiply returned 7, a cublasStatus_t, of which success"
    ):
        multiply(MATRIX, MATRIX, np.array([2], "float32"), -1, 3, 1)
    assert lib.refused.keys() == {"Handle::Handle", "Handle::~Handle", "Handle::get", "multiplyAll", "multiplyWith"}
    assert "'A' is a reference" in lib.refused["multiplyAll"]
    assert re.search(r"defines 'cublasHandle_t' \(cublas_v2.h, vector: not found", lib.refused["multiplyWith"])


def test_a_calculator_and_its_kernels(folder):
    lib = interop.load(folder / "libothers.so", header=folder / "myCuda.cuh", memory="host")
    assert (lib.add(2, 3), lib.subtract(2, 3)) == (5, -1)
    assert (lib.sum.returning(c="a")(MATRIX, MATRIX, 6) == 2 * MATRIX).all()
    assert lib.refused.keys() == {"gpuAssert", "add_on_gpu", "clamp", "add_kernel"}
    assert "it is a function of the GPU" in lib.refused["add_on_gpu"]
    assert "nothing in it has this name" in lib.refused["clamp"]


def test_elementwise_operations(folder):
    lib = interop.load(folder / "libothers.so", header=folder / "elemwise.h", memory="host", status={"nc_status": 0})
    assert (lib.add.returning(dst="src_x")(MATRIX, MATRIX, 6, True) == 2 * MATRIX).all()
    assert lib.div.returning(dst="src_x")(MATRIX, MATRIX, 6, 9, False)[0].tolist() == [9, 1, 1]
    with pytest.raises(RuntimeError, match=r"libothers.numcu::add returned 2 \(NC_MEMORY\), a nc_status"):
        lib.add(MATRIX.copy(), MATRIX, MATRIX, 0, True)
    assert lib.version() == "1.2"
    assert lib.refused.keys() == {"numcu::elem_add", "numcu::operator+"}
    assert "the result is float*, of which nothing says" in lib.refused["numcu::elem_add"]


# ---- those of others ----


def load(header, library, **options):
    found = headers_of_others.find(header)
    path = ctypes.util.find_library(library)
    if found is None or path is None:
        pytest.skip(f"this machine has no {header}, or no library {library}")
    return interop.load(path, header=found, **options)


def check_refused(lib, names):
    """Each function of the header is there, or refused with a reason that has its place."""
    assert not set(lib._by_name) & set(lib.refused)
    assert all(re.search(r".{20}, in '.*' \(.+:\d+\)$", why) for why in lib.refused.values())
    for name, why in names.items():
        assert re.search(why, lib.refused[name])


def test_math():
    lib = load("math.h", "m", memory="host")
    assert (lib.cos(0), lib.hypotf(3, 4), lib.ldexp(1, 4)) == (1, 5, 16)
    exponent = np.zeros(1, "int32")
    assert lib.frexp(8, exponent) == 0.5
    assert exponent[0] == 4
    check_refused(lib, {"cosl": "'long double'", "nanl": "the result is long double"})


def test_zlib():
    lib = load("zlib.h", "z", memory="host")
    data = np.frombuffer(b"the same bytes", "uint8")
    assert lib.crc32(0, data, data.size) == zlib.crc32(data)
    assert lib.zlibVersion() == zlib.ZLIB_RUNTIME_VERSION
    assert lib.zError(-5) == "buffer error"


def test_zlib_with_its_statuses():
    lib = load("zlib.h", "z", memory="host", status={"int": 0})
    data = np.frombuffer(b"the same bytes " * 9, "uint8")
    size = np.array([100], "uint64")
    packed = lib.compress.returning(dest=lambda *_: 100)(size, data, data.size)
    assert zlib.decompress(packed[: size[0]].tobytes()) == data.tobytes()
    with pytest.raises(RuntimeError, match="libz.compress returned -5, a int, of which success is 0"):
        lib.compress(packed, np.array([1], "uint64"), data, data.size)
    check_refused(
        lib,
        {
            "gzprintf": "any number of arguments",
            "gzgets": r"the result is char\*",
            "deflate": "'strm' points to a struct, 'z_stream_s', and no function",
            "inflateBack": "is a function pointer|points to a struct",
        },
    )


def test_files_of_zlib(tmp_path):
    """A handle, made, used and closed."""
    lib = load("zlib.h", "z", memory="host")
    file = lib.gzopen(str(tmp_path / "file.gz"), "wb")
    assert lib.gzputs(file, "some text") == 9
    assert lib.gzwrite(file, np.frombuffer(b" more", "uint8"), 5) == 5
    assert lib.gzclose(file) == 0
    assert zlib.decompress((tmp_path / "file.gz").read_bytes(), 31) == b"some text more"
    assert lib.gzopen(str(tmp_path / "absent"), "rb") is None
    with pytest.raises(TypeError, match=r"libz.gzputs: file is NoneType; accepted: an interop.Opaque of 'gzFile_s\*'"):
        lib.gzputs(None, "x")


def test_cblas():
    lib = load("cblas.h", "blas", memory="host")
    if "cblas_sdot" not in dir(lib):
        pytest.skip("this library of BLAS has none of its C functions")
    x = np.arange(4, dtype="float32")
    assert lib.cblas_sdot(4, x, 1, x, 1) == 14
    c = np.zeros((2, 2), "float32")
    lib.cblas_sgemm(101, 111, 112, 2, 2, 3, 1.0, MATRIX, 3, MATRIX, 3, 0.0, c, 2)
    assert (c == MATRIX @ MATRIX.T).all()
    check_refused(lib, {"cblas_xerbla": "any number of arguments"})


@pytest.mark.parametrize(
    ("header", "called", "refused", "options"),
    [
        ("cufft.h", {"cufftPlan1d", "cufftExecC2C"}, {"cufftSetStream"}, {"status": {"cufftResult": 0}}),
        ("nccl.h", {"ncclGetVersion", "ncclGetErrorString"}, {"ncclCommInitRank"}, {"status": {"ncclResult_t": 0}}),
        ("cublas_api.h", {"cublasGetStatusName"}, {"cublasCreate_v2"}, {}),
        ("cuda_runtime_api.h", {"cudaGetErrorName"}, {"cudaMalloc"}, {}),
    ],
)
def test_headers_of_cuda_are_read(header, called, refused, options, tmp_path):
    """Without their libraries: of all that can be called it is said that they are not in this one."""
    found = headers_of_others.find(header)
    if found is None:
        pytest.skip(f"this machine has no {header}")
    path = c_functions.build("int nothing;", tmp_path / "libnothing.so")
    with pytest.raises(AttributeError, match="has no function"):
        interop.load(path, "int f(int);", header=found, memory="host", **options)
    lib = interop.load(path, header=found, memory="host", **options)
    assert not lib._functions
    assert all("has no function" in lib.refused[name] for name in called)
    assert all("has no function" not in lib.refused[name] for name in refused)
    check_refused(lib, {})
