"""`interop.matmul` of device arrays: values, layouts, `out=`, limits. How exact: test_matmul_precision_gpu.py."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import device, libraries, products
from helpers.backends import BACKENDS, matmul
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interop

LARGE = (
    ((1000, 517), (517, 1003)),
    ((257, 1), (1, 259)),
    ((3, 4099), (4099, 5)),
    ((9, 64, 100), (100, 65)),
    ((2, 129, 130), (2, 130, 127)),
)
BY_SHAPE = pytest.mark.parametrize("shapes", products.SHAPES + LARGE, ids=products.shape_id)

# Stacks whose dimensions cannot be walked as one, which cuBLASLt has no term for.
TWO_BATCH_DIMS = {((4, 1, 2, 3), (7, 3, 5)), ((2, 1, 1, 2, 3), (1, 5, 1, 3, 2))}
# Layouts of a stack of matrices that every BLAS must take.
OF_BLAS = {"compact", "transposed", "padded", "repeated matrix"}


# ---- values ----


@BACKENDS
@BY_SHAPE
def test_values(device_library, dtype, shapes, backend):
    x, y, expected, magnitude = products.listed(shapes, dtype)
    a, b = device_library.make(x), device_library.make(y)
    device_library.poison()
    c = matmul(a, b, backend=backend, may_refuse=shapes in TWO_BATCH_DIMS)
    if c is None:
        return
    assert device_library.is_ours(c)
    assert device_library.dtype(c) == dtype
    values = device_library.to_numpy(c)
    products.check_product(values, x, y, expected, magnitude)
    products.check_norm(values, x, y, expected)


def check_layouts(library, shapes, dtype, layout_a, layouts_b, backend):
    if not library.negative:
        layouts_b = [layout for layout in layouts_b if layout not in products.NEGATIVE]
        if layout_a in products.NEGATIVE:
            return  # this library has no such arrays
    base_a, x = products.LAYOUTS[layout_a](shapes[0], dtype, 1)
    for layout_b in layouts_b:
        with products.naming(layout_b):
            base_b, y = products.LAYOUTS[layout_b](shapes[1], dtype, 2)
            a, b = library.view(base_a, x), library.view(base_b, y)
            c = matmul(a, b, backend=backend, may_refuse=not {layout_a, layout_b} <= OF_BLAS)
            if c is not None:
                values = library.to_numpy(c)
                products.check_product(values, x, y)
                products.check_norm(values, x, y)


@BACKENDS
@pytest.mark.parametrize("layout_a", products.LAYOUTS)
def test_layouts(device_view_library, dtype, layout_a, backend):
    check_layouts(device_view_library, ((3, 37, 19), (3, 19, 29)), dtype, layout_a, products.LAYOUTS, backend)


@BACKENDS
@pytest.mark.parametrize("layout_a", ["compact", "transposed", "padded", "offset", "sliced"])
def test_large_layouts(device_view_library, dtype, layout_a, backend):
    """Large enough for the vectorised kernels and for cuBLASLt; odd sizes, so that every edge is ragged."""
    layouts_b = ["compact", "transposed", "padded", "offset", "sliced"]
    check_layouts(device_view_library, ((259, 135), (135, 261)), dtype, layout_a, layouts_b, backend)


@BACKENDS
@pytest.mark.parametrize("layout", products.OUT_LAYOUTS)
@pytest.mark.parametrize("shapes", [((4, 33, 5), (4, 5, 36)), ((33, 5), (4, 5, 36))], ids=products.shape_id)
def test_out_of_any_layout(device_view_library, dtype, layout, shapes, backend):
    if layout in products.NEGATIVE and not device_view_library.negative:
        return
    library = device_view_library
    x, y, expected, magnitude = products.listed(shapes, dtype)
    base, view = products.LAYOUTS[layout]((4, 33, 36), dtype, 3)
    made = library.make(base)
    out = library.view_of(made, base, view)
    c = matmul(library.make(x), library.make(y), out=out, backend=backend, may_refuse=layout not in OF_BLAS)
    if c is None:
        assert np.array_equal(library.to_numpy(made), base, equal_nan=True)  # refused: nothing was written
        return
    assert c is out
    values = library.to_numpy(out)
    products.check_product(values, x, y, expected, magnitude)
    view[...] = values
    assert np.array_equal(library.to_numpy(made), base, equal_nan=True)  # nor between the elements of `out`


@BACKENDS
@pytest.mark.parametrize("layout_out", ["compact", "transposed", "padded", "sliced"])
def test_out_of_any_order_beside_operands_of_any_order(device_view_library, dtype, layout_out, backend):
    library = device_view_library
    for layout_a in ("compact", "transposed"):
        for layout_b in ("compact", "transposed"):
            with products.naming(f"{layout_a} @ {layout_b}"):
                base_a, x = products.LAYOUTS[layout_a]((130, 70), dtype, 1)
                base_b, y = products.LAYOUTS[layout_b]((70, 90), dtype, 2)
                base, view = products.LAYOUTS[layout_out]((130, 90), dtype, 3)
                a, b, out = library.view(base_a, x), library.view(base_b, y), library.view(base, view)
                if matmul(a, b, out=out, backend=backend, may_refuse=layout_out not in OF_BLAS) is not None:
                    products.check_product(library.to_numpy(out), x, y)


@pytest.mark.sanitize
@BACKENDS
def test_small_products_for_the_sanitizer(device_view_library, dtype, backend):
    library = device_view_library
    for shapes in (((5,), (5,)), ((65, 33), (33, 129)), ((3, 17, 9), (9, 5)), ((2, 0), (0, 3))):
        x, y, expected, magnitude = products.listed(shapes, dtype)
        c = interop.matmul(library.make(x), library.make(y), backend=backend)
        products.check_product(library.to_numpy(c), x, y, expected, magnitude)
    for layout in ("sliced", "offset", "windows", "one value"):
        base, x = products.LAYOUTS[layout]((33, 35), dtype, 1)
        a = library.view(base, x)
        c = matmul(a, library.make(x.T.copy()), backend=backend, may_refuse=True)
        if c is not None:
            products.check_product(library.to_numpy(c), x, x.T)


# ---- nothing to add up, nothing at all ----


@BACKENDS
@pytest.mark.parametrize("shapes", [((3, 0), (0, 5)), ((0,), (0,)), ((4, 300, 0), (0, 500))], ids=products.shape_id)
def test_no_inner_dimension_gives_zeros_in_used_memory(device_library, dtype, shapes, backend):
    a, b, x, y = products.pair(device_library, shapes, dtype)
    expected = np.matmul(x, y)
    junk = device_library.make(np.full(max(expected.size, 1), np.nan, dtype))
    del junk
    c = device_library.to_numpy(interop.matmul(a, b, backend=backend))
    assert c.shape == expected.shape
    assert (c == 0).all()


@BACKENDS
def test_no_inner_dimension_gives_zeros_in_a_strided_out(device_view_library, dtype, backend):
    library = device_view_library
    base = np.full((6, 8), np.nan, dtype)
    made = library.make(base)
    out = library.view_of(made, base, base[::2, 1::2])
    interop.matmul(library.make(np.ones((3, 0), dtype)), library.make(np.ones((0, 4), dtype)), out=out, backend=backend)
    base[::2, 1::2] = 0
    assert np.array_equal(library.to_numpy(made), base, equal_nan=True)


# ---- limits of launches ----


@pytest.mark.parametrize("backend", [None, "tiled"])
@pytest.mark.parametrize("batch", [65535, 65536, 70001])
def test_more_batches_than_a_grid_is_deep(device_library, dtype, batch, backend):
    x = np.arange(batch * 2, dtype=dtype).reshape(batch, 1, 2)
    y = np.ones((2, 1), dtype)
    c = device_library.to_numpy(interop.matmul(device_library.make(x), device_library.make(y), backend=backend))
    assert np.array_equal(c, x.sum(-1, keepdims=True))


@pytest.mark.parametrize("backend", [None, "tiled"])
def test_batches_of_many_dimensions(device_view_library, dtype, backend):
    """Every second matrix along each of several dimensions: nothing collapses."""
    library = device_view_library
    base = products.draw((4, 6, 4, 6, 3, 5), dtype, 1)
    x = base[::2, ::2, ::2, ::2]
    y = products.draw((3, 1, 3, 5, 4), dtype, 2)
    c = interop.matmul(library.view(base, x), library.make(y), backend=backend)
    products.check_product(library.to_numpy(c), x, y)


# ---- out= that must not be written ----


@BACKENDS
def test_refused_calls_write_nothing(device_view_library, backend):
    library = device_view_library
    base = np.arange(48.0).reshape(6, 8)
    made = library.make(base)
    a, other = library.view_of(made, base, base[:, :4]), library.make(np.ones((4, 4)))
    overlapping = library.view_of(made, base, base[:, 2:6])
    one = library.make(np.full(1, 7.0))
    seven = np.full(1, 7.0)
    repeated = library.view_of(one, seven, np.broadcast_to(seven, (6, 4)))
    for out, exception, match in (
        (overlapping, ValueError, "out shares memory with a"),
        (repeated, ValueError, "out .*has elements that share memory"),
        (library.make(np.zeros((6, 5))), ValueError, r"out has shape \(6, 5\); accepted: the result's shape, \(6, 4\)"),
        (library.make(np.zeros((6, 4), "float32")), TypeError, "out is float32; accepted: the result's dtype, float64"),
        (np.zeros((6, 4)), TypeError, "out is in host memory"),
    ):
        with pytest.raises(exception, match=match):
            interop.matmul(a, other, out=out, backend=backend)
    assert np.array_equal(library.to_numpy(made), base)
    assert library.to_numpy(one) == 7


@BACKENDS
def test_interleaved_out_is_no_overlap(device_view_library, dtype, backend):
    library = device_view_library
    base = products.draw((6, 12), dtype)
    made = library.make(base)
    a, out = (library.view_of(made, base, base[:, i::2]) for i in (0, 1))
    x = base[:, ::2].copy()
    if matmul(a, a, out=out, backend=backend, may_refuse=True) is not None:
        products.check_product(library.to_numpy(out), x, x)
        assert np.array_equal(library.to_numpy(a), x)


# ---- without cuBLAS ----

NO_CUBLAS = """
import types
import cuda.pathfinder
import numpy as np
cuda.pathfinder.load_nvidia_dynamic_lib = lambda _: types.SimpleNamespace(abs_path=None)
import interop
a = np.ones((300, 300), "float32")
assert (interop.matmul(a, a, execution="cuda") == 300).all()
assert (interop.matmul(a, a, execution="cuda", precision="tf32") == 300).all()
try:
    interop.matmul(a, a, execution="cuda", backend="cublas")
except interop.CudaError as error:
    print(error)
"""


def test_without_cublas_the_tiled_kernel_computes(tmp_path):
    for name in ("libcublasLt.so", "libcublasLt.so.12", "libcublasLt.so.13"):
        (tmp_path / name).write_bytes(b"")
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [sys.executable, "-c", NO_CUBLAS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'backend="cublas", but cuBLASLt does not load' in done.stdout
    assert "install nvidia-cublas (pip) or the CUDA toolkit, or use backend=" in done.stdout


# ---- any shape, layout, library and dtype ----


@st.composite
def strided(draw, shape, dtype, negative):
    """Small integers in a compact base, and a view of it: dimensions in any order, any steps, an offset."""
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, 0, *([-1] if negative else [])]) for _ in shape]))
    extents = [max(n - 1, 0) * abs(s) + 1 for n, s in zip(shape, steps, strict=True)]
    offset = draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = rng.integers(-8, 9, offset + math.prod(extents)).astype(dtype)
    block = np.empty([extents[i] for i in order], dtype).strides
    start, strides = offset * base.itemsize, [0] * len(shape)
    for place, i in enumerate(order):
        strides[i] = block[place] * steps[i]
        start -= min(strides[i] * max(shape[i] - 1, 0), 0)
    return base, np.lib.stride_tricks.as_strided(base[start // base.itemsize :], shape, strides)


@functools.cache
def streams():
    return device.new_stream(), device.new_stream()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])  # conftest's, which only waits
@given(st.data())
def test_property(data):
    dtype = data.draw(st.sampled_from(products.DTYPES))
    names = ["cupy", "torch", "numba"]
    first, second, third = (libraries.by_name(data.draw(st.sampled_from(names)), "cuda") for _ in range(3))
    side, batch_dims = data.draw(st.sampled_from([(4, 3), (40, 1), (150, 0)]))
    shapes = data.draw(
        hnp.mutually_broadcastable_shapes(
            signature="(m?,n),(n,p?)->(m?,p?)", min_side=0, max_side=side, max_dims=batch_dims
        )
    )
    (base_a, x), (base_b, y) = (
        data.draw(strided(shape, dtype, library.negative))
        for shape, library in zip(shapes.input_shapes, (first, second), strict=True)
    )
    expected = np.matmul(x, y)  # small integers: exact in any order
    a, b = first.view(base_a, x), second.view(base_b, y)
    stream = data.draw(st.sampled_from([None, device.LEGACY, *streams()]))
    c = interop.matmul(a, b, stream=stream)
    assert first.is_ours(c)
    device.synchronize()
    assert np.array_equal(first.to_numpy(c), expected)

    base_out, view = data.draw(strided(shapes.result_shape, dtype, third.negative))
    made = third.make(base_out)
    out = third.view_of(made, base_out, view)
    if view.size and any(n > 1 and s == 0 for n, s in zip(view.shape, view.strides, strict=True)):
        with pytest.raises(ValueError, match="out .* has elements that share memory"):
            interop.matmul(a, b, out=out)
    else:
        assert interop.matmul(a, b, out=out, stream=stream) is out
        view[...] = expected
    device.synchronize()
    assert np.array_equal(third.to_numpy(made), base_out)
