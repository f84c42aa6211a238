"""Mdspans as a kernel's parameters, without a GPU: declarations, and what is measured. On the GPU: tests/gpu/kernel."""

from __future__ import annotations

import gc
import shutil
import struct
import weakref
from pathlib import Path

import pytest
from helpers import machine

import interop
from interop import _program
from interop._cuda import images, nvcc, nvrtc
from interop._functions.mdspans import measured, probe_of

RIGHT, LEFT, STRIDE = map(ord, "CFS")


def parameters(declared, name="f", template="", **options):
    made = interop.kernel(f"{template}__global__ void f({declared}) {{}}", name, **options)
    return made._parameters


@pytest.mark.parametrize(
    ("declared", "dtype", "written", "form"),
    [
        ("cuda::std::mdspan<const float, cuda::std::dextents<int, 2>> x", "float32", False, (RIGHT, 4, 1, -1, -1)),
        ("const mdspan<float const, dextents<int, 2> > x", "float32", False, (RIGHT, 4, 1, -1, -1)),
        ("::cuda::std::mdspan<double, cuda::std::extents<size_t, 3>> x", "float64", True, (RIGHT, 8, 0, 3)),
        (
            "mdspan<__half, extents<short, 0x10, cuda::std::dynamic_extent, 7u>, cuda::std::layout_left> x",
            "float16",
            True,
            (LEFT, 2, 1, 16, -1, 7),
        ),
        (
            "__grid_constant__ const mdspan<const cuda::std::complex<float>, cuda::std::dims<3>, layout_stride> x",
            "complex64",
            False,
            (STRIDE, 8, 0, -1, -1, -1),
        ),
        (
            "mdspan<int, cuda::std::dims<1, unsigned char>, cuda::std::layout_right> x",
            "int32",
            True,
            (RIGHT, 1, 0, -1),
        ),
        ("mdspan<int, extents<cuda::std::int64_t, dynamic_extent>> x", "int32", True, (RIGHT, 8, 1, -1)),
    ],
)
def test_mdspans_are_declared(declared, dtype, written, form):
    (x,) = parameters(declared)
    assert tuple(x) == ("mdspan", "x", dtype, written, len(form) - 3, "", form)


def test_the_arguments_of_templates_stand_in_them():
    template = "template <typename T, int N, typename L = cuda::std::layout_right>\n"
    (x,) = parameters("cuda::std::mdspan<const T, cuda::std::extents<int, N, 4>, L> x", "f<double, 3>", template)
    assert (x.dtype, x.form) == ("float64", (RIGHT, 4, 1, 3, 4))
    (x,) = parameters(
        "cuda::std::mdspan<const T, cuda::std::extents<int, N, 4>, L> x", "f<int, 2, layout_left>", template
    )
    assert (x.dtype, x.form) == ("int32", (LEFT, 4, 1, 2, 4))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("mdspan<thing, dextents<int, 2>> x", "the elements of 'x' are 'thing'; accepted in an mdspan: "),
        ("mdspan<float, dextents<float, 2>> x", "the indices of 'x' are 'float'; accepted in an mdspan: the types of"),
        ("mdspan<float, dextents<bool, 2>> x", "the indices of 'x' are 'bool'"),
        (
            "mdspan<float, extents<int, N>> x",
            r"the extents of 'x' are 'extents<int, N>'; accepted: extents<int, 3",
        ),
        ("mdspan<float, shape_t> x", "the extents of 'x' are 'shape_t'"),
        ("mdspan<float, dextents<int, 2>, layout_odd> x", "'x' is an mdspan of dextents.*, layout_odd; accepted: "),
        (
            "mdspan<float, dextents<int, 2>, layout_right, accessor> x",
            "accepted: extents, and layout_right",
        ),
        ("mdspan<float> x", "'x' is an mdspan of no extents"),
        ("mdspan<float, extents<int>> x", "'x' is an mdspan of 0 dimensions; accepted: 1 to 64"),
        ("mdspan<float, dextents<int, 65>> x", "'x' is an mdspan of 65 dimensions"),
        ("std::mdspan<float, std::dextents<int, 2>> x", "'x' is a std::mdspan; accepted: cuda::std::mdspan"),
    ],
)
def test_what_is_not_understood(declared, message):
    with pytest.raises(ValueError, match=rf"interop.kernel\('f'\): .*{message}"):
        parameters(declared)


def test_reads_is_not_for_mdspans():
    with pytest.raises(ValueError, match=r"'x' is an mdspan, whose type says it.*accepted: .* \(y\)"):
        parameters("mdspan<float, dextents<int, 2>> x, float* y", reads=("x",))


def test_code_that_is_compiled_already():
    ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.entry f(.param .align 8 .b8 f_param_0[16]) { ret; }"
    with pytest.raises(ValueError, match="x is a cuda::std::mdspan, and the code is compiled already, .*interop::View"):
        interop.kernel(ptx, "f", signature="cuda::std::mdspan<float, cuda::std::dextents<int, 2>> x")


def test_a_kernel_that_nobody_has_goes():
    made = interop.kernel("__global__ void f(mdspan<float, dextents<int, 2>> x) {}", "f")
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


# ---- what is measured ----

SOURCE = """
#include <cuda/std/mdspan>
#include <cuda_fp16.h>
using namespace cuda::std;
namespace ours {
template <typename T, int N>
__global__ void f(mdspan<const T, dextents<int, 2>> a, int n, mdspan<T, extents<long long, N, dynamic_extent>> b,
                  mdspan<__half, dextents<short, 3>, layout_left> c, mdspan<int, extents<unsigned, 7, 8>> d,
                  mdspan<double, extents<signed char, 3, dynamic_extent>, layout_stride> e) {}
}
"""
#: Of each mdspan: the bytes, the places of the extents, and of the strides, as libcu++ has them now.
EXPECTED = [
    (16, [8, 12], [-1, -1]),
    (16, [-1, 8], [-1, -1]),
    (16, [8, 10, 12], [-1, -1, -1]),
    (8, [-1, -1], [-1, -1]),
    (16, [-1, 8], [9, 10]),
]


@pytest.fixture
def compiled():
    """What NVRTC makes of a kernel of `SOURCE`, with the parameters."""
    machine.need("nvrtc")
    machine.need("cuda_core")
    machine.need_libcu()

    def compile_it(name, source=SOURCE, std="c++17", **more):
        found = interop.kernel(source, name, **more)._parameters
        text = source + probe_of(name, [place for place, p in enumerate(found) if p.kind == "mdspan"])
        options = _program.compiler_options(None, name, {"std": std})
        return nvrtc.compile_source("a test", text, [name], options, "sm_90")[0], found

    return compile_it


@pytest.mark.parametrize("std", ["c++17", "c++20"])
def test_what_is_measured(compiled, std):
    cubin, found = compiled("ours::f<float, 5>", std=std)
    made = measured(cubin, found, ValueError)
    assert [(len(value), extents, strides) for value, _, extents, strides in made] == EXPECTED
    for value, data, extents, strides in made:
        assert value[data : data + 8] == bytes(8)
        assert data % 8 == 0
        used = {data, *extents, *strides} - {-1}
        assert len(used) == 1 + len([at for at in (*extents, *strides) if at >= 0])
    assert struct.unpack("<qii", made[0][0]) == (0, 1, 1)


def test_the_probe_is_no_variable_of_the_kernel(compiled):
    cubin, _ = compiled("ours::f<float, 5>")
    assert images.read_cubin(cubin, ValueError).variables == {}


def test_of_a_whole_file_by_nvcc(tmp_path):
    machine.need_libcu()
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc: it is not on PATH")
    path, name = tmp_path / "whole.cu", "ours::f<float, 5>"
    path.write_text(f'#include <cstdio>{SOURCE}int main() {{ std::puts(""); }}')
    found = interop.kernel(path, name, compiler="nvcc")._parameters
    probe = probe_of(name, [place for place, p in enumerate(found) if p.kind == "mdspan"])
    (cubin, _), files = nvcc.compile_file("a test", path, name, [], "sm_90", probe)
    made = measured(cubin, found, ValueError)
    assert [(len(value), extents, strides) for value, _, extents, strides in made] == EXPECTED
    assert all(Path(file).is_file() for file in files)


@pytest.mark.parametrize("header", ["cuda/std/complex", "cuda/barrier", "cuda/ptx", "cooperative_groups.h"])
def test_constants_of_headers_are_no_variables(compiled, header):
    """Launches of kernels that have variables are ordered with these, by events."""
    source = f"#include <{header}>\n__global__ void f(int* x) {{}}\n"
    own = "namespace cuda_std { __device__ int x; }\n__constant__ float interop_own;"
    assert images.read_cubin(compiled("f", source)[0], ValueError).variables == {}
    variables = images.read_cubin(compiled("f", source + own)[0], ValueError).variables
    assert sorted(variables) == ["_ZN8cuda_std1xE", "interop_own"]


def test_another_type_than_is_declared(compiled):
    source = "#include <cuda/std/mdspan>\n__global__ void f(MATRIX x) {}"
    real = "cuda::std::mdspan<float, cuda::std::dextents<int, 2>>"
    for said, wrong in (
        ("cuda::std::mdspan<float, cuda::std::dextents<long, 2>> x", r"extents \(dynamic, dynamic\) of int64"),
        ("cuda::std::mdspan<const float, cuda::std::dextents<int, 2>> x", "const elements, .* compiled with elements"),
        (
            "cuda::std::mdspan<float, cuda::std::dextents<int, 2>, cuda::std::layout_left> x",
            "layout_left, .*right",
        ),
        ("cuda::std::mdspan<float, cuda::std::extents<int, 2, 3>> x", r"extents \(2, 3\) of int32"),
    ):
        cubin, found = compiled("f", source.replace("MATRIX", real), signature=said)
        with pytest.raises(ValueError, match=f"x is declared with .*{wrong}.*accepted: signature="):
            measured(cubin, found, ValueError)


def test_where_libcu_is_not_installed(monkeypatch):
    machine.need("nvrtc")
    machine.need("cuda_core")
    monkeypatch.setattr(_program, "cuda_headers", lambda: ())
    options = _program.compiler_options(None, "f", {})
    with pytest.raises(interop.CudaError, match=r"cuda/std/mdspan(.|\n)*pip install 'cuda-toolkit\[cccl\]'"):
        nvrtc.compile_source("a test", SOURCE, ["ours::f<float, 5>"], options, "sm_90")
