"""`interop.kernel` of cubins, PTX and fatbins on the GPU: what they compute, and what the driver refuses of them."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess

import numpy as np
import pytest
from helpers import graphs
from helpers.kernels import A, B, N

import interop
from interop._cuda import nvrtc

SOURCE = """
namespace demo {
template <typename T>
__global__ void add(const T* a, const T* b, T* c, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
}
template __global__ void demo::add<float>(const float*, const float*, float*, long long);
extern "C" __global__ void plain(float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2;
}
"""
#: y[0] = 2 * x[0], for every GPU.
PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry _Z5twicePKfPf(.param .u64 from, .param .u64 to)
{
    .reg .u64 %a, %b;
    .reg .f32 %x;
    ld.param.u64 %a, [from];
    ld.param.u64 %b, [to];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    ld.global.f32 %x, [%a];
    add.f32 %x, %x, %x;
    st.global.f32 [%b], %x;
    ret;
}
"""
#: It calls what is nowhere.
UNRESOLVED = """
.version 7.0
.target sm_75
.address_size 64
.extern .func nowhere_to_be_found;
.visible .entry _Z5twicePKfPf(.param .u64 from, .param .u64 to)
{
    call nowhere_to_be_found;
    ret;
}
"""


def this_architecture():
    major, minor = interop._core.machine_info()["devices"][0]["compute_capability"]
    return f"sm_{major}{minor}"


def other_architecture():
    return "sm_90" if this_architecture().startswith("sm_8") else "sm_80"


def cubin(architecture):
    return nvrtc.compile_source("a test", SOURCE, ["demo::add<float>"], {}, architecture)[0]


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "add.cubin"
    file.write_bytes(cubin(this_architecture()))
    return file


@pytest.fixture
def by_nvcc(tmp_path):
    """The file that nvcc makes of the source."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]))
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc and a host compiler")

    def make(name, *options):
        (tmp_path / "source.cu").write_text(SOURCE)
        subprocess.run([nvcc, *options, "source.cu", "-o", name], cwd=tmp_path, check=True)
        return tmp_path / name

    return make


# ---- what they compute ----


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_cubin(file, device_library, as_bytes):
    source = file.read_bytes() if as_bytes else file
    add = interop.kernel(source, "demo::add<float>", threads="arg0").returning(arg2="arg0")
    result = add(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + B)


def test_a_name_of_c_with_a_signature(file, cupy):
    x = cupy.asarray(A)
    interop.kernel(file, "plain", signature="float* x, int n", grid=1)(x, N)
    np.testing.assert_array_equal(x.get(), 2 * A)


def test_ptx_of_every_form(tmp_path, cupy):
    (tmp_path / "twice.ptx").write_text(PTX)
    for source in (tmp_path / "twice.ptx", PTX, PTX.encode(), PTX.encode() + b"\0"):
        twice = interop.kernel(source, "twice", grid=1, block=1).returning(arg1="arg0")
        assert twice(cupy.full(1, 3, "float32")).tolist() == [6]
        again = pickle.loads(pickle.dumps(twice))
        assert again(cupy.full(1, 4, "float32")).tolist() == [8]


def test_the_first_call_may_be_captured(torch):
    twice = interop.kernel(PTX + "// of this test alone", "twice", grid=1, block=1)
    x, y = torch.full((1,), 3.0, device="cuda"), torch.zeros(1, device="cuda")
    with graphs.captured(torch) as graph:
        twice(x, y)
    assert y.tolist() == [0]
    graph.replay()
    assert y.tolist() == [6]


@pytest.mark.parametrize("options", [("-arch=native",), ("-arch=compute_80",)], ids=["with a cubin", "with PTX alone"])
def test_a_fatbin_whose_kernels_the_driver_lists(by_nvcc, cupy, options):
    file = by_nvcc("add.fatbin", "-fatbin", *options)
    add = interop.kernel(file, "demo::add<float>", threads="arg0").returning(arg2="arg0")
    assert repr(add) == ("<kernel demo::add<float>(float const* arg0, float const* arg1, float* arg2, long long arg3)>")
    np.testing.assert_array_equal(add(cupy.asarray(A), cupy.asarray(B), N).get(), A + B)
    x = cupy.asarray(A)
    interop.kernel(file, "plain", signature="float* x, int n", grid=1)(x, N)
    np.testing.assert_array_equal(x.get(), 2 * A)
    with pytest.raises(ValueError, match=r"add.fatbin \(fatbin\) has no kernel of this name; accepted: .*plain"):
        interop.kernel(file, "absent")


def test_ptx_of_nvcc(by_nvcc, cupy):
    add = interop.kernel(by_nvcc("add.ptx", "-ptx", "-arch=compute_80"), "demo::add<float>", threads="arg0")
    c = cupy.zeros(N, "float32")
    add(cupy.asarray(A), cupy.asarray(B), c, N)
    np.testing.assert_array_equal(c.get(), A + B)


# ---- what is refused: nothing is written, and it is refused again ----


def refuses(kernel, arguments, error, *messages):
    before = [x.get() for x in arguments if hasattr(x, "get")]
    for _ in range(2):
        with pytest.raises(error) as caught:
            kernel(*arguments)
        for message in messages:
            assert message in str(caught.value)
    after = [x.get() for x in arguments if hasattr(x, "get")]
    np.testing.assert_equal(after, before)


@pytest.fixture
def pair(cupy):
    return cupy.full(1, 3, "float32"), cupy.full(1, 4, "float32")


def test_a_cubin_for_another_gpu(tmp_path, cupy):
    file = tmp_path / "other.cubin"
    file.write_bytes(cubin(other_architecture()))
    kernel = interop.kernel(file, "plain", signature="float* x, int n", grid=1)
    said = f"loading {file} (cubin for {other_architecture()}): CUDA_ERROR_NO_BINARY_FOR_GPU"
    accepted = f"accepted: a cubin for {this_architecture()}, or PTX"
    refuses(kernel, (cupy.asarray(A), N), interop.CudaError, "interop.kernel('plain'): ", said, accepted)


def test_ptx_newer_than_the_driver(tmp_path, pair):
    file = tmp_path / "newer.ptx"
    file.write_text(PTX.replace(".version 7.0", ".version 99.9"))
    kernel = interop.kernel(file, "twice", grid=1, block=1)
    said = f"loading {file} (PTX for sm_75, of version 99.9): CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
    refuses(kernel, pair, interop.CudaError, said, "the PTX is newer than this driver, of CUDA", "accepted: PTX by the")


def test_ptx_for_a_newer_gpu(tmp_path, pair):
    file = tmp_path / "newer.ptx"
    file.write_text(PTX.replace(".version 7.0", ".version 8.7").replace("sm_75", "sm_120"))
    if this_architecture() >= "sm_120" and len(this_architecture()) == len("sm_120"):
        pytest.skip("this GPU takes it")
    refuses(interop.kernel(file, "twice", grid=1, block=1), pair, interop.CudaError, f"loading {file}", "accepted: ")


def test_ptx_that_does_not_compile(tmp_path, pair):
    file = tmp_path / "wrong.ptx"
    file.write_text(PTX.replace("add.f32 %x, %x, %x;", "add.f32 %x, %x, %unknown;"))
    kernel = interop.kernel(file, "twice", grid=1, block=1)
    refuses(kernel, pair, interop.CudaError, f"loading {file}", "CUDA_ERROR_INVALID_PTX", "the driver says:", "unknown")


def test_a_name_that_is_not_resolved(tmp_path, pair):
    file = tmp_path / "unresolved.ptx"
    file.write_text(UNRESOLVED)
    kernel = interop.kernel(file, "twice", grid=1, block=1)
    refuses(kernel, pair, interop.CudaError, f"loading {file}", "the driver says:", "nowhere_to_be_found")


def test_a_damaged_fatbin(by_nvcc, cupy):
    file = by_nvcc("add.fatbin", "-fatbin", "-arch=native")
    data = bytearray(file.read_bytes())
    data[16:] = b"\xa5" * (len(data) - 16)  # its own header says the right length still
    file.write_bytes(data)
    with pytest.raises((interop.CudaError, ValueError), match="add.fatbin"):
        interop.kernel(file, "plain", signature="float* x, int n", grid=1)(cupy.asarray(A), N)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_signature_of_other_sizes(file, cupy, as_text):
    source = SOURCE if as_text else file
    kernel = interop.kernel(source, "plain", signature="float* x, long long n", grid=1)
    said = "n is declared with 8 bytes, and is 4 bytes in the compiled kernel; accepted: signature= with the parameters"
    refuses(kernel, (cupy.asarray(A), N), ValueError, "interop.kernel('plain'): ", said)
    kernel = interop.kernel(source, "plain", signature="float* x", grid=1)
    said = "1 parameters are declared, and the compiled kernel has 2"
    refuses(kernel, (cupy.asarray(A),), ValueError, said)
