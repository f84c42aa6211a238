"""`interop.matmul` of device arrays: values, layouts, `out=`, both backends, precision."""

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
BACKENDS = pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
BY_SHAPE = pytest.mark.parametrize("shapes", products.SHAPES + LARGE, ids=products.shape_id)

# Stacks whose dimensions cannot be walked as one, which cuBLASLt has no term for.
TWO_BATCH_DIMS = {((4, 1, 2, 3), (7, 3, 5)), ((2, 1, 1, 2, 3), (1, 5, 1, 3, 2))}
# Layouts of a stack of matrices that every BLAS must take.
OF_BLAS = {"compact", "transposed", "padded", "repeated matrix"}


def matmul(*arrays, backend, may_refuse, **options):
    """The product; None where cuBLASLt was asked for by name and says that it cannot, if it may."""
    if backend != "cublas" or not may_refuse:
        return interop.matmul(*arrays, backend=backend, **options)
    try:
        return interop.matmul(*arrays, backend=backend, **options)
    except ValueError as error:
        words = str(error)
    assert 'backend="cublas" cannot take this product: ' in words
    assert 'use backend="tiled", or leave the choice to interop' in words
    return None


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


@BACKENDS
def test_every_product_is_added_once(device_library, dtype, backend):
    """Of ones, a term that is dropped or added twice at the ragged end of k shows as a whole number."""
    for k in (1, 7, 31, 63, 65, 127, 129, 255, 1023, 1025, 4097):
        with products.naming(f"k = {k}"):
            a = device_library.make(np.ones((67, k), dtype))
            b = device_library.make(np.ones((k, 70), dtype))
            assert (device_library.to_numpy(interop.matmul(a, b, backend=backend)) == k).all()


@pytest.mark.parametrize("backend", [None, "cublas"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float16", {"dtype": "float32"}),
        ("bfloat16", {"dtype": "float32"}),
        ("float32", {}),
        ("float32", {"precision": "tf32"}),
        ("float64", {}),
        ("complex64", {}),
        ("complex128", {}),
        ("int8", {"dtype": "int32"}),
        ("float8_e4m3fn", {"dtype": "float32"}),
    ],
)
def test_a_divided_k_is_added_whole(torch, dtype, options, backend):
    """Few outputs, so that cuBLASLt divides k; among these k are such as it loses the end of, if left alone."""
    ragged = [64 * tiles + rest for tiles in (16, 45, 60, 90, 135, 180, 420, 900) for rest in (1, 2, 8, 16, 24, 32, 33)]
    for k in (*ragged, 4000, 5001, 10_000, 30_000, 65_530, 100_000):
        for m, n in ((1, 8), (8, 8), (32, 32), (100, 72), (128, 128), (48, 264)):
            a, b = (torch.ones(shape, device="cuda").to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
            for other in (b, b.view(n, k).T):
                c = matmul(a, other, backend=backend, may_refuse=dtype in ("int8", "float8_e4m3fn"), **options)
                assert c is None or bool((c == k).all()), (m, n, k, other.stride())


@pytest.mark.parametrize("backend", [None, "cublas"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_product_is_rounded_once(torch, dtype, order, backend):
    """Each sum is 2**p + 1, which 16 bits do not hold, and -2**p is added: 1, but not if the sum is rounded first.

    Some algorithms of cuBLASLt do that before they add the bias: those that divide k, and some for gelu.
    """
    kind = getattr(torch, dtype)
    most = 256 if dtype == "bfloat16" else 2048

    def addend(rows, columns):
        x = torch.full((rows, columns) if order == "C" else (columns, rows), -most, device="cuda", dtype=kind)
        return x if order == "C" else x.T

    for m, k, n in (
        (65, 33, 130),
        (64, 4096, 64),
        (100, 2048, 104),
        (65, 1033, 130),
        (16, 11520, 16),
        (256, 1000, 264),
    ):
        a, b = torch.ones((m, k), device="cuda", dtype=kind), torch.zeros((k, n), device="cuda", dtype=kind)
        b[0], b[k // 2], b[k - 1] = most - 1, 1, 1
        bias, c = addend(1, n)[0] if order == "C" else addend(m, 1), addend(m, n)
        for terms, added in (
            ({}, 0),
            ({"bias": bias}, -most),
            ({"c": c}, -most),
            ({"bias": bias, "c": torch.zeros_like(c)}, -most),
        ):
            exact = torch.full((m, n), most + 1 + added, device="cuda", dtype=torch.float64)
            activated = {"relu": exact, "gelu_tanh": torch.nn.functional.gelu(exact, approximate="tanh")}
            for epilogue in (None, "relu", "gelu_tanh"):
                for aux in (None, torch.empty_like(c)) if epilogue else (None,):
                    options = {**terms, "epilogue": epilogue, "aux": aux}
                    got = matmul(a, b, out=torch.empty_like(c), backend=backend, may_refuse=True, **options)
                    if got is None:
                        continue
                    near = {"rtol": 2.0**-7, "atol": 0} if epilogue == "gelu_tanh" else {"rtol": 0, "atol": 0}
                    torch.testing.assert_close(got, activated.get(epilogue, exact).to(kind), **near)
                    assert aux is None or torch.equal(aux, exact.to(kind)), (m, k, n, options)


def test_gelu_of_float8_is_cublas_which_rounds_it_once(torch):
    """That rule takes some of cuBLASLt's algorithms, and must leave one; known on Hopper, with cuBLASLt 13."""
    is_known = interop._core.machine_info()["devices"][0]["compute_capability"] == (9, 0)
    version = interop._core.machine_info()["cublas"]
    for m, k, n in ((128, 1024, 1024), (1024, 1024, 4096), (2048, 2048, 2048)):
        a, b = (torch.ones(shape, device="cuda").to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
        b = b.T
        options = {"epilogue": "gelu_tanh", "bias": torch.zeros(n, device="cuda", dtype=torch.bfloat16)}
        options["dtype"] = "bfloat16"
        algorithm = interop.explain(interop.matmul, a, b, **options).algorithm
        assert algorithm.startswith("cuBLASLt ") or not (is_known and version.startswith("13.")), algorithm
        assert bool((interop.matmul(a, b, **options) == k).all())


@BACKENDS
def test_special_values(device_library, dtype, backend):
    x, y, expected = products.special_values(dtype)
    c = interop.matmul(device_library.make(x), device_library.make(y), backend=backend)
    assert np.array_equal(device_library.to_numpy(c), expected, equal_nan=True)


@BACKENDS
def test_special_values_stay_in_their_row_and_column(device_library, dtype, backend):
    x, y = np.ones((130, 140), dtype), np.ones((140, 150), dtype)
    x[77, 139], y[0, 149] = np.nan, np.inf
    c = device_library.to_numpy(interop.matmul(device_library.make(x), device_library.make(y), backend=backend))
    assert np.isnan(c[77]).all()
    assert (np.delete(c[:, 149], 77) == np.inf).all()
    assert (np.delete(np.delete(c, 77, 0), 149, 1) == 140).all()


# ---- precision ----

EXACT = """
import numpy as np, sys
import interop
sys.path.insert(0, sys.argv[1])
from helpers import libraries

x = np.full((512, 512), 1 + 2.0**-12, "float32")  # TF32 has ten bits of fraction
for library in libraries.DEVICE:
    try:
        library.load()
    except BaseException as error:  # pytest's skip
        print(repr(library), error)
        continue
    for backend in (None, "tiled", "cublas"):
        a, one = library.make(x), library.make(np.eye(512, dtype="float32"))
        c = library.to_numpy(interop.matmul(a, one, backend=backend))
        assert np.array_equal(c, x), (repr(library), backend)
    print(repr(library), "exact")
"""


@BACKENDS
def test_float32_is_exact(device_library, backend):
    x = np.full((512, 512), 1 + 2.0**-12, "float32")
    a, one = device_library.make(x), device_library.make(np.eye(512, dtype="float32"))
    assert np.array_equal(device_library.to_numpy(interop.matmul(a, one, backend=backend)), x)


@pytest.mark.parametrize("override", ["0", "1"])
def test_float32_is_exact_whatever_nvidia_tf32_override_says(tmp_path, override, torch):
    (tmp_path / "helpers").symlink_to(libraries.__file__.rpartition("/")[0])
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": override}
    command = [sys.executable, "-c", EXACT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch-cuda exact" in done.stdout


def test_float32_is_exact_whatever_torch_allows(torch):
    library = libraries.by_name("torch", "cuda")
    x = np.full((512, 512), 1 + 2.0**-12, "float32")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        c = interop.matmul(library.make(x), library.make(np.eye(512, dtype="float32")))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert np.array_equal(library.to_numpy(c), x)


@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_tf32_is_as_exact_as_tf32(device_library, backend):
    x = products.draw((1024, 1024), "float32", 1)
    a = device_library.make(x)
    c = device_library.to_numpy(interop.matmul(a, a, precision="tf32", backend=backend))
    expected = products.exact(x, x)
    error = np.linalg.norm(c - expected) / np.linalg.norm(expected)
    assert error < 2e-3  # what TF32 gives is about 3e-4; on cards without it, far less


@pytest.mark.parametrize("backend", [None, "tiled"])
def test_tf32x3_is_as_exact_as_float32(device_library, backend):
    x = products.draw((1024, 1024), "float32", 1)
    a = device_library.make(x)
    c = device_library.to_numpy(interop.matmul(a, a, precision="tf32x3", backend=backend))
    expected = products.exact(x, x)
    assert np.linalg.norm(c - expected) / np.linalg.norm(expected) < 2e-6


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_tf32_of_float64_is_float64(device_library, precision):
    x, y, expected, magnitude = products.listed(((131, 257), (257, 67)), "float64")
    c = interop.matmul(device_library.make(x), device_library.make(y), precision=precision)
    products.check_product(device_library.to_numpy(c), x, y, expected, magnitude)


# ---- the same bits ----


@BACKENDS
def test_the_same_call_gives_the_same_bits(device_library, dtype, backend):
    shapes = ((193, 2048), (2048, 200))
    a, b, _, _ = products.pair(device_library, shapes, dtype)
    first = device_library.to_numpy(interop.matmul(a, b, backend=backend))
    for _ in range(5):
        device_library.poison()
        again = device_library.to_numpy(interop.matmul(a, b, backend=backend))
        assert again.tobytes() == first.tobytes()


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
