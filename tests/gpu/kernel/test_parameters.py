"""What a kernel's parameters take and refuse on the GPU: numbers, pointers, views, and results of a given shape."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import elements, libraries
from helpers.kernels import TRANSPOSE, A, B, N

import interop

NUMBERS = {
    "bool": ("bool", True),
    "int8_t": ("int8", -128),
    "uint8_t": ("uint8", 255),
    "short": ("int16", -3),
    "unsigned short": ("uint16", 65535),
    "int": ("int32", -(2**31)),
    "unsigned": ("uint32", 2**32 - 1),
    "long long": ("int64", -(2**63)),
    "size_t": ("uint64", 2**64 - 1),
    "float": ("float32", 2.5),
    "double": ("float64", np.float64(0.1)),
    "__half": ("float16", -1.5),
    "__nv_bfloat16": ("bfloat16", np.float32(3)),
    "cuComplex": ("complex64", 1 - 2j),
    "cuDoubleComplex": ("complex128", np.complex128(0.5j)),
}
NUMBERS_SOURCE = """
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using int8_t = signed char;
using uint8_t = unsigned char;
template <typename T>
__global__ void put(char first, T value, T* y, char last) { if (first == 1 && last == 2) *y = value; }
"""


@pytest.mark.usefixtures("_cuda_headers")
@pytest.mark.parametrize("c_type", NUMBERS)
def test_numbers_arrive(torch, c_type):
    dtype, value = NUMBERS[c_type]
    library = libraries.by_name("torch", "cuda")
    y = library.make(np.zeros(1, elements.dtype_of(dtype)))
    put = interop.kernel(NUMBERS_SOURCE, f"put<{c_type}>", grid=1, block=1)
    put(1, value, y, 2)
    assert library.to_numpy(y)[0] == np.asarray(value).astype(elements.dtype_of(dtype))


def test_many_parameters(cupy):
    declared = ", ".join(f"const double* x{i}, double a{i}" for i in range(40))
    terms = " + ".join(f"*x{i} * a{i}" for i in range(40))
    made = interop.kernel(f"__global__ void f({declared}, double* y) {{ *y = {terms}; }}", "f", grid=1, block=1)
    y = cupy.zeros(1)
    given = [value for i in range(40) for value in (cupy.full(1, float(i)), i + 1)]
    made(*given, y)
    assert y.item() == sum(i * (i + 1) for i in range(40))


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
def test_views_have_any_strides(device_view_library, dtype):
    c_type = {"float32": "float", "int8": "signed char", "complex128": "double2"}[dtype]
    signature = {"signature": "interop::View<const double _Complex, 2> x, interop::View<double _Complex, 2> y"}
    options = signature if dtype == "complex128" else {}
    transpose = interop.kernel(
        TRANSPOSE, f"transpose<{c_type}>", threads=lambda x, y: x.shape, block=(16, 8), **options
    )
    base = elements.draw((40, 30), dtype, 0)
    for view in (base, base.T, base[::2, 3:], base[1:, ::3].T, np.broadcast_to(base[5], (7, 30)), base[::-1, ::-2]):
        if not device_view_library.negative and min(view.strides) < 0:
            continue
        x = device_view_library.view(base, view)
        target = np.zeros((view.shape[1], 2 * view.shape[0]), dtype)
        y = device_view_library.view(target, target[:, ::2])
        transpose(x, y)
        np.testing.assert_array_equal(device_view_library.to_numpy(y), view.T)


def test_views_of_jax_arrays(jax):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    made = transpose.returning(y=lambda x: x.shape[::-1])
    x = jax.numpy.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(np.asarray(made(x)), np.asarray(x).T)


def test_a_pointer_takes_no_view(add, cupy):
    x, y = cupy.asarray(A), cupy.zeros(2 * N, "float32")[::2]
    with pytest.raises(ValueError, match=r"interop.kernel\('add'\): b is .*strides \(2,\).*accepted: a C-contiguous"):
        add(x, y, x.copy(), N)
    with pytest.raises(ValueError, match=r"c is .*strides \(2,\)"):
        add(x, x, y, N)
    assert not y.any()


def test_a_view_has_the_declared_dimensions(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", grid=1)
    with pytest.raises(
        ValueError, match=r"x is float32 of shape \(5,\).*accepted: a float32 array of shape \(\*, \*\)"
    ):
        transpose(cupy.zeros(5, "float32"), cupy.zeros((5, 1), "float32"))


def test_what_is_refused(add, cupy, jax):
    x = cupy.asarray(A)
    with pytest.raises(TypeError, match="b is float64 .*; accepted: a C-contiguous float32 array on a CUDA device"):
        add(x, cupy.zeros(N), x, N)
    with pytest.raises(TypeError, match="b is in host memory"):
        add(x, A, x, N)
    with pytest.raises(TypeError, match="c is .*, which is immutable"):
        add(x, x, jax.numpy.zeros(N, "float32"), N)
    np.testing.assert_array_equal(x.get(), A)


def test_host_arrays_are_computed_on_the_gpu_when_asked(add):
    result = add.returning(c="a")(A, B, N, execution="cuda")
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, A + B)
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x, y: x.shape, block=(16, 8))
    x, y = A.reshape(40, 25), np.zeros((25, 80), "float32")[:, ::2]
    transpose(x[:, ::2], y[:13], execution="cuda")
    np.testing.assert_array_equal(y[:13], x[:, ::2].T)
    assert not y[13:].any()


def test_a_given_result_has_the_shape_of_its_rule(add, device_view_library):
    whole = np.zeros(2 * N, "float32")
    a, b = device_view_library.make(A), device_view_library.make(B)
    for rule in ("a", lambda a, b, n: n, lambda a, b, n: (np.int64(n),)):
        made = add.returning(c=rule)
        for view in (whole[: N // 2], whole[: N + 1], whole[:N].reshape(N, 1), whole[:1]):
            c = device_view_library.view(whole, view)
            for call in (made, lambda *args, **results: interop.explain(made, *args, **results)):  # noqa: B023
                with pytest.raises(
                    ValueError, match=r"^interop.kernel\('add'\): c has shape .*; accepted: .*\(1000,\)"
                ):
                    call(a, b, N, c=c)
            assert not device_view_library.to_numpy(c).any()
        with pytest.raises(ValueError, match=r"c is .*strides \(2,\).*accepted: a C-contiguous"):
            made(a, b, N, c=device_view_library.view(whole, whole[::2]))
        with pytest.raises(TypeError, match="c is float64 .*accepted: a C-contiguous float32"):
            made(a, b, N, c=device_view_library.make(np.zeros(N)))
        c = device_view_library.view(whole, whole[N:])
        assert made(a, n=N, c=c, b=b) is c
        np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)


def test_a_given_result_has_the_shape_of_its_rule_on_the_host(add):
    made = add.returning(c="a")
    whole = np.zeros(2 * N, "float32")
    for c in (whole[: N // 2], whole, whole[:N].reshape(1, N)):
        with pytest.raises(ValueError, match=r"c has shape .*; accepted: .*\(1000,\)"):
            made(A, B, N, c=c, execution="cuda")
    assert not whole.any()
    made(A, B, N, c=whole[N:], execution="cuda")
    np.testing.assert_array_equal(whole, [0] * N + [*(A + B)])


def test_a_given_view_has_the_shape_of_its_rule(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    made = transpose.returning(y=lambda x: x.shape[::-1])
    x = cupy.arange(12, dtype="float32").reshape(3, 4)
    whole = cupy.zeros((8, 8), "float32")
    for y in (whole[:3, :4], whole[:4, :2], whole):
        with pytest.raises(ValueError, match=r"y has shape .*; accepted: the shape that returning\(\) says, \(4, 3\)"):
            made(x, y=y)
    assert not whole.any()
    y = whole[::2, 1:7:2]  # any strides
    assert made(x, y=y) is y
    assert (y == x.T).all()
    assert whole.sum() == x.sum()


def test_a_view_that_is_made_has_the_declared_dimensions(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    x = cupy.arange(12, dtype="float32").reshape(3, 4)
    for shape, text in ((12, r"\(12,\)"), ((), r"\(\)"), ((4, 3, 1), r"\(4, 3, 1\)")):
        made = transpose.returning(y=lambda x: shape)  # noqa: B023
        for call in (made, lambda x: interop.explain(made, x)):  # noqa: B023
            with pytest.raises(ValueError, match=f"the shape of y is {text}; accepted: 2 dimensions"):
                call(x)
    source = "#include <interop/view.cuh>\n__global__ void f(const float* x, interop::View<float, 2> y) {}"
    with pytest.raises(ValueError, match=r"the shape of y is \(3,\); accepted: 2 dimensions"):
        interop.kernel(source, "f", grid=1).returning(y="x")(cupy.zeros(3, "float32"))


def test_host_arrays_are_told_of_execution(add):
    with pytest.raises(TypeError, match=r'a is float32 .* on cpu; accepted: .* or execution="cuda"'):
        add(A, B, A.copy(), N)
