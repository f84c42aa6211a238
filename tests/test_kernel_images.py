"""`interop.kernel` of cubins, PTX and fatbins, without a GPU: what they are, what is in them, which are refused.

On the GPU: tests/gpu/kernel/test_modules.py.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import drivers, machine

import interop
from interop import _program
from interop._cuda import images, nvrtc

SOURCE = """
namespace demo {
__constant__ float filter[9];
__device__ int counter = 3;
template <typename T, int N>
__global__ void scale(const T* x, T* y, unsigned long n) { if (n) y[0] = N * x[0] * (T)filter[n % 9]; }
}
__global__ void add(const float* a, const float* b, float* c, long long n) { if (n) c[0] = a[0] + b[0]; }
__global__ void add(const double* a, double* c) { c[0] = a[0]; }
extern "C" __global__ void plain(float* y, int n) { y[0] = n + demo::counter; }
template __global__ void demo::scale<double, 2>(const double*, double*, unsigned long);
"""
PTX = """//
// Written by hand
//
.version 7.0
.target sm_75
.address_size 64
.visible .const .align 4 .b8 _ZN4demo6filterE[36];
.global .align 8 .v2 .f32 pair;
.extern .global .align 4 .u32 elsewhere;
.global .align 1 .b8 $str[3] = {104, 105, 0};
.visible .entry _Z3addPKfPfx(
	.param .u64 .ptr .global .align 4 _Z3addPKfPfx_param_0,
	.param .u64 _Z3addPKfPfx_param_1,
	.param .u64 _Z3addPKfPfx_param_2
)
{
	ret; // }
}
.visible .entry of_struct(.param .align 8 .b8 of_struct_param_0[24], .param .f32 of_struct_param_1)
{
	ret;
}
"""


def refused(what):
    return ValueError(f"it is {what}")


@pytest.fixture(scope="module")
def cubin():
    machine.need("nvrtc")
    machine.need("cuda_core")
    return nvrtc.compile_source("a test", SOURCE, ["demo::scale<float, 3>"], {}, "sm_90")[0]


@pytest.fixture(scope="module")
def by_nvcc(tmp_path_factory):
    """The files that nvcc makes of the source, each by its options."""
    usual = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    nvcc = shutil.which("nvcc", path=usual)
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc and a host compiler")
    folder = tmp_path_factory.mktemp("images")
    (folder / "source.cu").write_text(SOURCE)

    def make(name, *options):
        subprocess.run([nvcc, *options, "source.cu", "-o", name], cwd=folder, check=True, capture_output=True)
        return folder / name

    return make


# ---- what is in them ----


def test_kernels_and_variables_of_a_cubin(cubin):
    found = images.read_image(cubin, refused)
    assert (found.kind, found.made_for) == ("cubin", "sm_90")
    texts = set(images.demangled(found.kernels).values())
    assert {
        "void demo::scale<float, 3>(float const*, float*, unsigned long)",
        "void demo::scale<double, 2>(double const*, double*, unsigned long)",
        "add(float const*, float const*, float*, long long)",
        "add(double const*, double*)",
        "plain",
    } == texts
    assert found.variables == {"_ZN4demo6filterE": 36, "_ZN4demo7counterE": 4}


def test_kernels_and_variables_of_ptx():
    found = images.read_image(PTX.encode(), refused)
    assert (found.kind, found.made_for) == ("PTX", "sm_75, of version 7.0")
    assert found.kernels == {"_Z3addPKfPfx": [8, 8, 8], "of_struct": [24, 4]}
    assert found.variables == {"_ZN4demo6filterE": 36, "pair": 8}
    assert found.data.endswith(b"}\n\0")  # as the driver wants it


@pytest.mark.parametrize("architecture", ["80", "90a", "100", "120"])
def test_files_of_nvcc(by_nvcc, architecture):
    names = ["_ZN4demo5scaleIdLi2EEEvPKT_PS1_m", "_Z3addPKfS0_Pfx", "_Z3addPKdPd", "plain"]
    variables = {"_ZN4demo6filterE": 36, "_ZN4demo7counterE": 4}
    found = images.read_image(by_nvcc("a.cubin", "-cubin", f"-arch=sm_{architecture}").read_bytes(), refused)
    assert found.made_for == f"sm_{architecture.rstrip('a')}"
    assert {*found.kernels} == {*names}
    assert found.variables == variables
    found = images.read_image(by_nvcc("a.ptx", "-ptx", f"-arch=compute_{architecture}").read_bytes(), refused)
    assert found.made_for.startswith(f"sm_{architecture}, of version ")
    assert found.kernels == {names[0]: [8, 8, 8], names[1]: [8, 8, 8, 8], names[2]: [8, 8], names[3]: [8, 4]}
    assert found.variables == variables
    found = images.read_image(by_nvcc("a.fatbin", "-fatbin", f"-arch=sm_{architecture}").read_bytes(), refused)
    assert (found.kind, found.kernels, found.variables) == ("fatbin", None, None)


@pytest.mark.parametrize(
    ("name", "symbols"),
    [
        ("plain", ["plain"]),
        ("demo::scale<float,3>", ["_ZN4demo5scaleIfLi3EEEvPKT_PS1_m"]),
        ("::demo::scale<double, 2>", ["_ZN4demo5scaleIdLi2EEEvPKT_PS1_m"]),
        ("_Z3addPKdPd", ["_Z3addPKdPd"]),
        ("add", ["_Z3addPKfS0_Pfx", "_Z3addPKdPd"]),
        ("lain", []),
        ("scale", ["_ZN4demo5scaleIfLi3EEEvPKT_PS1_m", "_ZN4demo5scaleIdLi2EEEvPKT_PS1_m"]),
    ],
)
def test_symbols_by_name(cubin, name, symbols):
    assert sorted(images.find_named(name, images.read_image(cubin, refused).kernels)) == sorted(symbols)


# ---- kernels of them ----


@pytest.mark.parametrize("as_what", ["path", "bytes", "bytearray"])
def test_parameters_are_those_of_the_symbol(cubin, tmp_path, as_what):
    file = tmp_path / "it is the content that counts.cu"
    file.write_bytes(cubin)
    source = {"path": file, "bytes": cubin, "bytearray": bytearray(cubin)}[as_what]
    made = interop.kernel(source, "demo::scale<float, 3>", threads="arg0").returning(arg1="arg0")
    assert repr(made) == "<kernel demo::scale<float, 3>(float const* arg0, float* arg1, unsigned long arg2)>"
    again = pickle.loads(pickle.dumps(made))
    assert repr(again) == repr(made)
    assert again.__reduce__() == made.__reduce__()
    named = interop.kernel(source, "plain", signature="float* y, int n", reads=("y",))
    assert repr(named) == "<kernel plain(float* y, int n), which only reads y>"


@pytest.mark.parametrize("kind", [str, str.encode])
def test_ptx_may_be_text(kind):
    made = interop.kernel(kind(PTX), "add")
    assert repr(made) == "<kernel add(float const* arg0, float* arg1, long long arg2)>"


def test_a_view_in_a_symbol(nvrtc):
    source = (
        "#include <interop/view.cuh>\n__global__ void f(interop::View<const float, 2> x, interop::View<int, 1> y) {}"
    )
    options = _program.compiler_options(None, "f", {})
    image, _ = compile_source(source, options)
    made = interop.kernel(image, "f")
    assert [parameter[:5] for parameter in made._parameters] == [
        ("view", "arg0", "float32", False, 2),
        ("view", "arg1", "int32", True, 1),
    ]


def compile_source(source, options):
    machine.need("cuda_core")
    return nvrtc.compile_source("a test", source, ["f"], options, "sm_80")


@pytest.mark.parametrize(
    ("name", "signature", "message"),
    [
        ("absent", None, r"has no kernel of this name; accepted: .*add\(double const\*, double\*\)"),
        ("add", None, r"has 2 kernels 'add'; accepted: the symbol of one \(.*'_Z3addPKfS0_Pfx', add\(float const"),
        ("plain", None, "'plain' in .*x.cubin .*is a name of C, which does not say .*; accepted: signature='const"),
        ("demo::scale<int, 3>", None, r"has 2 kernels 'demo::scale<int, 3>'; accepted: the symbol of one"),
    ],
)
def test_a_kernel_that_is_not_there(cubin, tmp_path, name, signature, message):
    file = tmp_path / "x.cubin"
    file.write_bytes(cubin)
    with pytest.raises(ValueError, match=message) as caught:
        interop.kernel(file, name, signature=signature)
    assert str(caught.value).startswith(f"interop.kernel({name!r}): ")
    assert f"{file} (cubin for sm_90)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "signature", "message"),
    [
        ("add", "float* x, float* y", "2 parameters are declared, and the kernel in source .* has 3"),
        ("add", "float* x, float* y, int n", "n is declared with 4 bytes, and is 8 bytes in source"),
        ("of_struct", "interop::View<float, 2> x, float y", "x is declared with 40 bytes, and is 24 bytes"),
        ("of_struct", None, r"a name of C, which does not say the kernel's parameters \(their sizes are 24, 4 bytes\)"),
    ],
)
def test_sizes_that_ptx_says(name, signature, message):
    with pytest.raises(ValueError, match=message):
        interop.kernel(PTX, name, signature=signature)
    interop.kernel(PTX, "of_struct", signature="interop::View<float, 1> x, int y")


# ---- what is refused ----


@pytest.mark.parametrize("kind", ["cubin", "PTX", "fatbin"])
def test_a_truncated_file(cubin, by_nvcc, tmp_path, kind):
    whole = {"cubin": cubin, "PTX": PTX.encode(), "fatbin": by_nvcc("t.fatbin", "-fatbin", "-arch=sm_80").read_bytes()}
    data = whole[kind]
    file = tmp_path / "x.bin"
    for size in (80 if kind != "fatbin" else 12, len(data) // 2, len(data) - 8):
        file.write_bytes(data[:size])
        with pytest.raises(ValueError, match=f"^interop.kernel: {file} is .*truncated .*; accepted: a whole"):
            interop.kernel(file, "plain")


def test_a_broken_cubin_is_an_error_and_no_crash(cubin):
    said = []
    for place in range(64):
        broken = bytearray(cubin)
        broken[place] ^= 0xFF
        with contextlib.suppress(ValueError):
            images.read_image(bytes(broken), lambda what: said.append(what) or ValueError(what))
    assert len(said) > 20


def test_a_cubin_that_is_not_linked(by_nvcc):
    file = by_nvcc("r.cubin", "-cubin", "-dc", "-arch=sm_80")
    with pytest.raises(ValueError, match=r"is a cubin for sm_80 that is not linked, as by nvcc -dc .*; accepted: one"):
        interop.kernel(file, "plain", signature="float* y, int n")


def test_files_of_the_host():
    with pytest.raises(ValueError, match="is a library or object file of the host; accepted: .*, or interop.load for"):
        interop.kernel(Path(interop._core.__file__), "plain")


@pytest.mark.parametrize("suffix", [".cubin", ".ptx", ".fatbin"])
def test_a_suffix_that_promises_too_much(tmp_path, suffix):
    for content in (b"", b"__global__ void f(float* x) {}", b"\x00\x01"):
        (tmp_path / f"x{suffix}").write_bytes(content)
        with pytest.raises(ValueError, match=f"x{suffix} is {len(content)} bytes that are no cubin, PTX or a fatbin"):
            interop.kernel(tmp_path / f"x{suffix}", "f")


def test_bytes_that_are_no_image(tmp_path):
    with pytest.raises(ValueError, match=r"source is 3 bytes that are no cubin, PTX or a fatbin; accepted: .*as str"):
        interop.kernel(b"abc", "f")
    (tmp_path / "x.cu").write_bytes(b"\xff\xfe__global__")
    with pytest.raises(ValueError, match=r"x.cu is no text in UTF-8 \(.*\); accepted: CUDA C\+\+ in UTF-8, a cubin"):
        interop.kernel(tmp_path / "x.cu", "f")


def test_what_is_compiled_takes_no_options(tmp_path):
    (tmp_path / "x.ptx").write_text(PTX)
    with pytest.raises(
        ValueError, match=r"options has 'std', and .*x.ptx is compiled already \(PTX\); accepted: neither"
    ):
        interop.kernel(tmp_path / "x.ptx", "add", options={"std": "c++20"})
    with pytest.raises(ValueError, match=r"compiler is 'nvcc', and .*x.ptx is compiled already"):
        interop.kernel(tmp_path / "x.ptx", "add", compiler="nvcc")
    with pytest.raises(TypeError, match="compiler is 'nvcc', and source is bytes; accepted with it: a path object"):
        interop.kernel(PTX.encode(), "add", compiler="nvcc")


def test_a_fatbin_without_a_driver(by_nvcc):
    file = by_nvcc("a.fatbin", "-fatbin", "-arch=sm_80")
    made = interop.kernel(file, "plain", signature="float* y, int n")
    assert repr(made) == "<kernel plain(float* y, int n)>"
    code = f"""
import interop, pathlib
try:
    interop.kernel(pathlib.Path({str(file)!r}), "demo::scale<double, 2>")
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "only the driver can list the kernels of " in done.stdout
    assert "accepted: signature='const float* x, float* y, int n'" in done.stdout


def test_a_fatbin_whose_parts_do_not_fit_in_it(by_nvcc):
    """The driver would read beyond it."""
    file = by_nvcc("a.fatbin", "-fatbin", "-gencode=arch=compute_80,code=[sm_80,compute_80]")
    whole = file.read_bytes()
    interop.kernel(whole, "plain", signature="float* y, int n")
    sizes = struct.unpack_from("<4x IQ", whole, 16)
    second = 16 + sum(sizes)
    for place, value in ((20, 16), (24, len(whole)), (second + 8, 1 << 62), (second + 8, 0), (second + 4, 1 << 31)):
        damaged = bytearray(whole)
        struct.pack_into("<Q" if value != 16 and value != 1 << 31 else "<I", damaged, place, value)
        with pytest.raises(ValueError, match=r"a damaged fatbin, whose entry at byte \d+ does not fit in it"):
            interop.kernel(bytes(damaged), "plain", signature="float* y, int n")


# ---- what a driver refuses, as one that is not there ----

_REFUSES = """
int cuDeviceGetAttribute(int* value, int name, int device) { *value = name == 75 ? 9 : 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return 0; }
int cuLibraryLoadData(void** library, const void* code, int* names, void** values, unsigned count, void* a, void* b,
                      unsigned c) {
  *library = (void*)1;
  if (LOG[0]) __builtin_strcpy(values[0], LOG);
  return STATUS;
}
int cuLibraryGetKernelCount(unsigned* count, void* library) { *count = 2; return 0; }
int cuLibraryEnumerateKernels(void** kernels, unsigned count, void* library) {
  kernels[0] = "_Z5firstPf"; kernels[1] = "second"; return 0;
}
int cuKernelGetName(const char** name, const void* kernel) { *name = kernel; return 0; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { return 500; }
"""


@pytest.fixture
def on_driver(tmp_path):
    """Runs a line on a driver whose loading of images ends with this status, and these words."""
    if drivers.BUILT_FOR == 0:
        pytest.skip("a build for host arrays only")

    def run(line, status=0, log="", written=_REFUSES):
        text = written.replace("LOG", '"' + log + '"').replace("STATUS", str(status))
        drivers.build(tmp_path, count=1, written=text)
        code = f"import interop, pathlib\nfrom interop._core import LoadedLibrary\nPTX = {PTX!r}\n"
        code += f"try: print({line})\nexcept Exception as error: print(type(error).__name__, error)"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("status", "log", "message"),
    [
        (209, "", "it has no code for this GPU, sm_90; accepted: a cubin for sm_90, or PTX for it or for an earlier"),
        (
            222,
            "",
            "the PTX is newer than this driver, of CUDA {version}; accepted: PTX by the compiler of CUDA {version}",
        ),
        (200, "", "it is truncated or damaged, or needs a newer driver than this one, of CUDA {version}; accepted: a"),
        (218, "ptxas fatal : Unresolved extern function 'f'", "accepted: PTX without unresolved names, as nvcc -ptx"),
        (221, "", "this driver has no compiler for PTX; accepted: a cubin for sm_90"),
        (999, "", "accepted: a cubin for sm_90, or PTX or a fatbin that this driver takes, of CUDA {version}"),
    ],
)
def test_what_the_driver_refuses(on_driver, status, log, message):
    version = f"{drivers.BUILT_FOR // 1000}.{drivers.BUILT_FOR % 1000 // 10}"
    said = on_driver("LoadedLibrary.load(PTX.encode(), 'x.ptx (PTX for sm_80)', True)", status, log)
    assert said.startswith("CudaError interop: loading x.ptx (PTX for sm_80): ")
    assert message.format(version=version) in said
    assert said.endswith(f"; the driver says:\n{log}\n") == bool(log)


def test_kernels_that_the_driver_lists(on_driver, by_nvcc):
    file = by_nvcc("a.fatbin", "-fatbin", "-arch=sm_80")
    said = on_driver(f"interop.kernel(pathlib.Path({str(file)!r}), 'first')")
    assert said == "<kernel first(float* arg0)>\n"
    said = on_driver(f"interop.kernel(pathlib.Path({str(file)!r}), 'third')")
    assert "a.fatbin (fatbin) has no kernel of this name; accepted: first(float*), second" in said


def test_a_driver_that_lists_none(on_driver):
    counts = "int cuLibraryGetKernelCount"
    old = _REFUSES.replace(counts, f'__attribute__((visibility("hidden"))) {counts}')
    said = on_driver("LoadedLibrary.load(PTX.encode(), 'x.ptx', True).kernels()", written=old)
    assert "cannot list the kernels of x.ptx, which needs CUDA 12.4; accepted: the symbol of a kernel, with" in said
