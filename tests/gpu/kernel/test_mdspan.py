"""Mdspans of libcu++ as a kernel's parameters: every layout, extents and type of indices, and what they refuse."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers import elements, libraries, machine

import interop

SOURCE = """
#include <cuda/std/mdspan>
#include <cuda_fp16.h>
using cuda::std::dextents;
using cuda::std::dynamic_extent;
using cuda::std::extents;
using cuda::std::mdspan;

template <typename T, typename In, typename Out>
__device__ void put(const In& x, const Out& y) {
  for (int i = threadIdx.x; i < int(x.extent(0)); i += blockDim.x) {
    for (int j = 0; j < int(x.extent(1)); ++j) y(i, j) = x(i, j);
  }
}
template <typename T, typename I>
__global__ void right(mdspan<const T, dextents<I, 2>> x, mdspan<T, dextents<I, 2>> y, int n) {
  if (n == 7) put<T>(x, y);
}
template <typename T, typename I>
__global__ void left(mdspan<const T, dextents<I, 2>, cuda::std::layout_left> x,
                     mdspan<T, dextents<I, 2>, cuda::std::layout_left> y, int n) { if (n == 7) put<T>(x, y); }
template <typename T, typename I>
__global__ void strided(mdspan<const T, dextents<I, 2>, cuda::std::layout_stride> x,
                        mdspan<T, dextents<I, 2>, cuda::std::layout_stride> y, int n) { if (n == 7) put<T>(x, y); }
template <typename T, typename I>
__global__ void fixed(mdspan<const T, extents<I, 3, dynamic_extent>> x, mdspan<T, extents<I, 3, 4>> y, int n) {
  if (n == 7) put<T>(x, y);
}
"""


@pytest.fixture(autouse=True)
def _headers():
    machine.need_libcu()


def kernel_of(name, c_type="float", index="int", **options):
    return interop.kernel(SOURCE, f"{name}<{c_type}, {index}>", grid=1, block=64, **options)


@pytest.mark.parametrize("index", ["int", "long long", "unsigned", "short", "size_t", "signed char"])
@pytest.mark.parametrize(("c_type", "dtype"), [("float", "float32"), ("__half", "float16"), ("double", "float64")])
def test_layout_right(index, c_type, dtype):
    library = libraries.by_name("cupy", "cuda")
    right = kernel_of("right", c_type, index)
    x = elements.draw((11, 7), dtype, 0)
    y = library.make(np.zeros_like(x))
    right(library.make(x), y, 7)
    np.testing.assert_array_equal(library.to_numpy(y), x)


@pytest.mark.parametrize("index", ["int", "unsigned char", "unsigned long long"])
def test_layout_left(cupy, index):
    left = kernel_of("left", "float", index)
    x = cupy.arange(35, dtype="float32").reshape(5, 7, order="F")
    y = cupy.zeros((5, 7), "float32", order="F")
    left(x, y, 7)
    assert (y == x).all()
    with pytest.raises(ValueError, match=r"x is .*; accepted: a Fortran-contiguous float32 array of shape \(\*, \*\)"):
        left(x.copy(order="C"), y, 7)
    with pytest.raises(ValueError, match=r"accepted: a C-contiguous float32 array of shape \(\*, \*\)"):
        kernel_of("right", "float", index)(x, y, 7)


@pytest.mark.parametrize("index", ["int", "short", "long long"])
def test_layout_stride_takes_any(device_view_library, index):
    strided = kernel_of("strided", "float", index)
    base = elements.draw((40, 30), "float32", 0)
    for view in (base, base.T, base[::2, 3:], base[1:, ::3].T, np.broadcast_to(base[5], (7, 30)), base[::-1, ::-2]):
        if not device_view_library.negative and min(view.strides) < 0:
            continue
        x = device_view_library.view(base, view)
        target = np.zeros((view.shape[0], 2 * view.shape[1]), "float32")
        y = device_view_library.view(target, target[:, ::2])
        strided(x, y, 7)
        np.testing.assert_array_equal(device_view_library.to_numpy(y), view)


def test_static_extents(cupy, jax):
    fixed = kernel_of("fixed")
    x, y = cupy.arange(12, dtype="float32").reshape(3, 4), cupy.zeros((3, 4), "float32")
    fixed(x, y, 7)
    assert (y == x).all()
    with pytest.raises(ValueError, match=r"x is float32 of shape \(2, 4\).*; accepted: .* of shape \(3, \*\)"):
        fixed(x[:2], y, 7)
    with pytest.raises(ValueError, match=r"y is .*; accepted: .* of shape \(3, 4\)"):
        fixed(x, cupy.zeros((3, 5), "float32"), 7)
    made = fixed.returning(y="x")
    assert (made(x, 7) == x).all()
    with pytest.raises(ValueError, match=r"y has shape \(3, 5\); accepted: \(3, 4\), the extents of its mdspan"):
        made(cupy.zeros((3, 5), "float32"), 7)
    inside = jax.jit(lambda x: made(x, 7) + 1)
    np.testing.assert_array_equal(np.asarray(inside(jax.numpy.asarray(x.get()))), x.get() + 1)


def test_indices_count_the_array(cupy):
    """By value: what fits is taken."""
    short, char = kernel_of("right", index="short"), kernel_of("strided", index="signed char")
    x = cupy.ones((181, 181), "float32")  # 32761
    y = cupy.zeros_like(x)
    short(x, y, 7)
    assert (y == 1).all()
    x = cupy.ones((182, 182), "float32")
    with pytest.raises(
        ValueError, match=r"x has shape \(182, 182\).*signed integers of 16 bits; accepted: .* to 32767"
    ):
        short(x, x.copy(), 7)
    x = cupy.ones((4, 130), "float32")[:, ::100]
    with pytest.raises(
        ValueError, match=r"x has shape \(4, 2\) and strides \(130, 100\).* of 8 bits; accepted: .* 127"
    ):
        char(x, x.copy(), 7)
    x = cupy.ones((4, 4), "float32")[::-1]
    with pytest.raises(ValueError, match=r"strides \(-4, 1\).* unsigned integers of 32 bits; accepted: .*from 0 to"):
        kernel_of("strided", index="unsigned")(x, x.copy(), 7)
    x = cupy.ones((3, 20000), "float32")[::-1, :5]  # -2 * 20000
    with pytest.raises(ValueError, match=r"strides \(-20000, 1\).*signed integers of 16 bits"):
        kernel_of("strided", index="short")(x, x.copy(), 7)
    empty = cupy.zeros((0, 3), "float32")
    short(empty, empty.copy(), 7)


def test_results_in_fortran_order_are_not_made(cupy):
    made = kernel_of("left").returning(y="x")
    x = cupy.ones((3, 4), "float32", order="F")
    with pytest.raises(
        ValueError, match=r"y has shape \(3, 4\) and strides \(4, 1\); .* as its mdspan has layout_left"
    ):
        made(x, 7)
    made(x, 7, y=cupy.zeros((3, 4), "float32", order="F"))


def test_const_elements_are_only_read(cupy, jax):
    right = kernel_of("right")
    x, y = jax.numpy.ones((3, 4), "float32"), cupy.zeros((3, 4), "float32")
    right(x, y, 7)
    assert (y == 1).all()
    with pytest.raises(TypeError, match="y is .*, which is immutable"):
        right(y, x, 7)
    with pytest.raises(TypeError, match="x is float64 .*; accepted: .* float32"):
        right(y.astype("float64"), y, 7)


def test_of_another_type_than_is_declared(cupy):
    source = SOURCE + "__global__ void f(MATRIX x) {}"
    options = {"options": {"define_macro": "MATRIX=mdspan<float,dextents<int,2>>"}}
    x = cupy.zeros((3, 4), "float32")
    right = interop.kernel(source, "f", signature="mdspan<float, dextents<int, 2>> x", grid=1, **options)
    right(x)
    for said in ("mdspan<float, dextents<long, 2>> x", "mdspan<const float, dextents<int, 2>> x"):
        with pytest.raises(
            ValueError, match=r"x is declared with .*, and is compiled with elements .*int32.*signature="
        ):
            interop.kernel(source, "f", signature=said, grid=1, **options)(x)


def test_of_a_file_that_nvcc_compiles(cupy, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc: it is not on PATH")
    path = tmp_path / "fixed.cu"
    path.write_text("#include <cstdio>\n" + SOURCE + 'int main() { std::puts(""); }')
    fixed = interop.kernel(path, "fixed<float, int>", grid=1, block=64, compiler="nvcc")
    x, y = cupy.arange(12, dtype="float32").reshape(3, 4), cupy.zeros((3, 4), "float32")
    fixed(x, y, 7)
    assert (y == x).all()
    of_file = interop.kernel(path, "right<float, int>", grid=1, block=64, compiler="nvcc")
    of_file(x, y * 0, 7)


def test_the_variables_of_a_kernel_with_mdspans(cupy):
    source = (
        SOURCE
        + """
__device__ float by = 2;
__global__ void scaled(mdspan<float, dextents<int, 1>> x) { x(threadIdx.x) *= by; }
"""
    )
    scaled = interop.kernel(source, "scaled", grid=1, block=4)
    x = cupy.ones(4, "float32")
    scaled(x)
    scaled.globals["by"].set(np.float32(5))
    scaled(x)
    assert (x == 10).all()
    assert not kernel_of("right")._program.has_variables
