"""Products of float16 and bfloat16, and of float32 as TF32, by the `tiled` backend on the tensor cores of sm_90.

Operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys

import pytest
from helpers import forms, graphs, tensors
from helpers.tensors import poisoned

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# (m, n, k): one tile, ragged in each dimension, few rows, few columns, parts of k, and on 132 SMs each of the tile
# shapes.
SHAPES = (
    (128, 256, 192),
    (129, 257, 136),
    (301, 521, 201),
    (17, 520, 1000),
    (1000, 24, 265),
    (256, 512, 1031),
    (256, 200, 4105),
    (1408, 1408, 512),
    (2048, 2048, 1600),
    (4096, 4104, 64),
)


# At multiples of 16 bytes.
ROWS = {"pitch": lambda length: -(-length // 8) * 8 + 8}
integers, operands = (functools.partial(helper, **ROWS) for helper in (tensors.integers, tensors.operands))


@pytest.fixture
def torch(torch):
    """A torch on a card whose tensor cores the build has code for."""
    if interop._core.machine_info()["devices"][0]["compute_capability"] != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")
    if "90a" not in interop._core.build_info()["architectures"]:
        pytest.skip("this build has no code for 90a")
    return torch


def tiled(a, b, **options):
    """The product, which must be one of those kernels."""
    algorithm = interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm
    dtype = str(a.dtype).removeprefix("torch.")
    assert algorithm.startswith(("tiled wgmma 128x", "tiled wgmma clusters "))
    assert f", {dtype}" in algorithm
    return interop.matmul(a, b, backend="tiled", **options)


# ---- values ----


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(torch, shape, layout, dtype):
    tensors.check_values(torch, tiled, *operands(torch, *shape, dtype, layout), dtype)


@DTYPES
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 3, 2), (2, 1, 2)), ((2, 1, 2, 3), (1, 2, 2, 1))],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(torch, batch_a, batch_b, transposed, dtype):
    tensors.check_batches(torch, tiled, batch_a, batch_b, dtype, transposed, m=72, **ROWS)


@DTYPES
def test_every_product_is_added_once(torch, dtype):
    for k in (129, 1023, 1025, 4097):
        a, b = operands(torch, 130, 70, k, dtype)
        a.fill_(1)
        b.fill_(1)
        assert bool((tiled(a, b, dtype="float32") == k).all()), k


@DTYPES
def test_special_values_stay_in_their_row_and_column(torch, dtype):
    tensors.check_special_values(torch, tiled, *operands(torch, 300, 520, 200, dtype))


@DTYPES
def test_the_same_call_gives_the_same_bits(torch, dtype):
    tensors.check_the_same_bits(torch, tiled, 2048, dtype)


# ---- where the result lies ----


@DTYPES
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 136)], ids=str)
def test_results_of_any_layout(torch, shape, dtype):
    tensors.check_results_of_any_layout(torch, tiled, *operands(torch, *shape, dtype), dtype)


# ---- what follows the sums ----


@DTYPES
@pytest.mark.parametrize("result", ["own", "float32"])
@pytest.mark.parametrize("bias_shape", ["row", "column"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 136), (2048, 1024, 64)], ids=str)
def test_all_terms(torch, shape, order, bias_shape, result, dtype):
    result = dtype if result == "own" else result
    a, b = operands(torch, *shape, dtype, "NT")
    multiply = functools.partial(tiled, dtype=result)
    tensors.check_all_terms(torch, multiply, a, b, result, bias_shape, order, **ROWS)


@DTYPES
def test_one_term_at_a_time(torch, dtype):
    a, b = operands(torch, 200, 328, 136, dtype)
    product = a.double() @ b.double()
    c, row = integers(torch, (200, 328), dtype, 3), integers(torch, (1, 329), dtype, 4)[0, :328]
    column, odd = integers(torch, (200, 1), dtype, 5), integers(torch, (1, 329), dtype, 6)[0, 1:]
    for options, expected in (
        ({"alpha": 0.5}, product / 2),
        ({"c": c}, product + c),
        ({"c": c[:1].expand(200, 328), "beta": 2}, product + 2 * c[:1]),
        ({"c": c.T.contiguous().T}, product + c),
        ({"bias": row}, product + row),
        ({"bias": odd}, product + odd),
        ({"bias": torch.stack([row, row], 1)[:, 0]}, product + row),
        ({"bias": column}, product + column),
        ({"epilogue": "relu"}, product.relu()),
        ({"bias": row, "epilogue": "relu"}, (product + row).relu()),
        ({"bias": column, "epilogue": "relu"}, (product + column).relu()),
    ):
        assert torch.equal(tiled(a, b, **options), expected.to(a.dtype)), options.keys()


@DTYPES
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
def test_gelu(torch, epilogue, dtype):
    x, y, bias = forms.draw((136, 160), dtype, 1), forms.draw((160, 264), dtype, 2), forms.draw((264,), dtype, 3)
    x, y = (x * 0.1).astype(x.dtype), (y * 0.5).astype(y.dtype)
    a, b, added = (torch.from_numpy(z.astype("float32")).cuda().to(getattr(torch, dtype)) for z in (x, y, bias))
    aux = torch.empty(136, 264, device="cuda", dtype=a.dtype)
    got = tiled(a, b, bias=added, epilogue=epilogue, aux=aux)
    without_aux = tiled(a, b, bias=added, epilogue=epilogue)
    for array, applied in ((got, epilogue), (aux, None), (without_aux, epilogue)):
        values = array.float().cpu().numpy().astype(x.dtype)
        forms.check(values, x, y, dtype, bias=bias, epilogue=applied)


@DTYPES
def test_out_may_be_c(torch, dtype):
    a, b = operands(torch, 301, 520, 136, dtype)
    out = integers(torch, (301, 520), dtype, 3)
    expected = a.double() @ b.double() + 2 * out.double()
    tiled(a, b, c=out, out=out, beta=2)
    assert torch.equal(out, expected.to(out.dtype))


# ---- which kernel ----


@DTYPES
def test_explain(torch, dtype):
    kind = getattr(torch, dtype)
    ones = torch.ones(4096, 4096, device="cuda", dtype=kind)
    algorithm = interop.explain(interop.matmul, ones, ones, backend="tiled").algorithm
    tiles = ("128x256x64", "128x128x64 ping-pong")
    assert algorithm in [f"tiled wgmma {tile}, {dtype}" for tile in tiles]

    general = [f"tiled {tile}, {dtype}" for tile in ("64x64x16", "32x32x16")]
    mma = [f"tiled mma {tile}, {dtype}" for tile in ("128x128x32", "64x64x32")]
    small = ones[:128, :128]
    for a, b, kernels in (
        (small, small, general),  # as quick there
        (torch.ones(300, 201, device="cuda", dtype=kind), ones[:201, :300], general),  # rows of 402 bytes
        (torch.ones(300, 202, device="cuda", dtype=kind), ones[:202, :300], mma),  # rows of 404 bytes
        (ones[:300, 1:202], ones[:201, :300], general),  # begins between multiples of 4 bytes
        (ones[:300, 2:203], ones[:201, :300], mma),  # begins between multiples of 16 bytes
        (ones[:300, :402:2], ones[:201, :300], general),  # no unit stride
        (ones[:1].expand(300, 4096)[:, :201], ones[:201, :300], mma),  # one row for all
    ):
        assert interop.explain(interop.matmul, a, b, backend="tiled").algorithm in kernels
        assert bool((interop.matmul(a, b, backend="tiled") == a.shape[1]).all())


# ---- float32 as TF32 ----

PRECISIONS = pytest.mark.parametrize("precision", ["tf32", "tf32x3"])


def rounded(a, b, precision, packed=None, backend="tiled", **options):
    """The product, which must be one of those kernels; `packed` is what is said of the operands."""
    algorithm = interop.explain(interop.matmul, a, b, backend=backend, precision=precision, **options).algorithm
    packed = "; a and b are packed" if precision == "tf32x3" else packed
    assert algorithm.startswith("tiled wgmma 128x")
    assert f", {precision}" in algorithm
    if packed is not None:
        assert algorithm.partition(f", {precision}")[2] == (packed and f"{packed} first, in the workspace")
    return interop.matmul(a, b, backend=backend, precision=precision, **options)


@PRECISIONS
@LAYOUTS
@pytest.mark.parametrize(
    "shape", [(1024, 1024, 1024), (1031, 777, 901), (600, 4100, 1000), (2048, 2048, 2050)], ids=str
)
def test_tf32_values(torch, shape, layout, precision):
    a, b = operands(torch, *shape, "float32", layout)
    out = poisoned(torch, shape[:2], "float32")
    smaller = "a" if shape[0] < shape[1] else "b"
    rounded(a, b, precision, f"; {smaller} is packed" if layout == "TN" else "", out=out)
    assert torch.equal(out, (a.double() @ b.double()).float())


@PRECISIONS
def test_tf32_of_layouts_that_tma_cannot_read(torch, precision):
    b = integers(torch, (1000, 1000), "float32", 2, transposed=True)
    base = integers(torch, (2008, 2008), "float32", 1).contiguous()
    for name, a in (
        ("rows of an odd length", integers(torch, (1000, 1007), "float32", 3).contiguous()[:, :1000]),
        ("begins at any element", base[:1000, 1:1001]),
        ("every second column", base[:1000, :2000:2]),
        ("every second row and column", base[:2000:2, :2000:2]),
        ("one row for all", base[:1, :1000].expand(1000, 1000)),
        ("one column for all", base[:1000, :1].expand(1000, 1000)),
        ("overlapping windows", base.as_strided((1000, 1000), (1, 3))),
    ):
        expected = (a.double() @ b.double()).float()
        assert torch.equal(rounded(a, b, precision, "; a is packed"), expected), name
        transposed = rounded(b.T, a.T, precision, "; b is packed")
        assert torch.equal(transposed, expected.T), name


def test_tf32_of_reversed_arrays(torch, cupy):
    x = cupy.asarray(integers(torch, (1000, 1000), "float32", 1))
    for a in (x[::-1], x[:, ::-1], x[::-1, ::-1].T):
        c = rounded(a, x, "tf32", "; a is packed")
        assert bool((c == a.astype("float64") @ x.astype("float64")).all())


@PRECISIONS
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 3, 2), (2, 1, 2)), ((2, 1, 2, 3), (1, 2, 2, 1))],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_tf32_batches(torch, batch_a, batch_b, transposed, precision):
    a = integers(torch, (*batch_a, 600, 650), "float32", 1, transposed)
    b = integers(torch, (*batch_b, 650, 700), "float32", 2, transposed)
    expected = a.double() @ b.double()
    out = poisoned(torch, expected.shape, "float32")
    rounded(a, b, precision, "", out=out)
    assert torch.equal(out, expected.float())


@PRECISIONS
@LAYOUTS
@pytest.mark.parametrize("draw", ["randn", "rand"])
def test_tf32_is_as_exact_as_promised(torch, draw, layout, precision):
    torch.manual_seed(1)
    a, b = (getattr(torch, draw)(2048, 2048, device="cuda") for _ in range(2))
    a, b = (x.T if transposed == "T" else x for x, transposed in zip((a, b), layout, strict=True))
    expected = a.double() @ b.double()
    got = rounded(a, b, precision)
    error = float((got - expected).norm() / expected.norm())
    assert error < (1e-3 if precision == "tf32" else 1.5e-6)
    worst = float(((got - expected).abs() / (a.double().abs() @ b.double().abs())).max())
    assert worst < (2.0**-9 if precision == "tf32" else 2.0**-19)
    if precision == "tf32":
        assert error > 1e-5  # it is TF32 indeed


def test_tf32x3_is_the_sum_of_all_three(torch):
    """Each operand's low part counts: 1 + 2**-12 is no TF32."""
    one = torch.eye(1024, device="cuda")
    x = torch.full((1024, 1024), 1 + 2.0**-12, device="cuda")
    assert torch.equal(rounded(x, one, "tf32x3"), x)
    assert torch.equal(rounded(one, x, "tf32x3"), x)
    y = torch.full((1024, 1024), -1 - 2.0**-11 - 2.0**-20, device="cuda")
    assert float((rounded(y, one, "tf32x3") - y).abs().max()) <= 2.0**-21
    for precision in ("tf32", "tf32x3"):
        assert torch.equal(rounded(one, one * 3, precision), one * 3)


@PRECISIONS
@LAYOUTS
def test_tf32_special_values_are_where_they_are_in_float32(torch, layout, precision):
    a, b = operands(torch, 1024, 1024, 1024, "float32", layout)  # zeros, and numbers whose low part is zero
    a[500:].add_(torch.rand(524, 1024, device="cuda"))
    b[:, 500:].add_(torch.rand(1024, 524, device="cuda"))
    a[3, 5] = a[700, 9] = b[11, 4] = math.inf
    a[8, 6] = b[700, 900] = -math.inf
    a[900, 1000], b[1000, 17] = math.nan, math.nan
    a[20, 30], b[30, 40] = math.inf, -math.inf
    expected = a.double() @ b.double()
    got = rounded(a, b, precision)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isposinf(), expected.isposinf())
    assert torch.equal(got.isneginf(), expected.isneginf())


@PRECISIONS
def test_tf32_makes_no_infinity_of_the_largest_number(torch, precision):
    most = torch.finfo(torch.float32).max
    a = torch.zeros(1024, 1024, device="cuda")
    a.fill_diagonal_(most)
    small = torch.full((1024, 1024), 0.25, device="cuda")
    for got in (
        rounded(a.T, small, precision),  # through registers, as the first operand
        rounded(small, a, precision),  # and as the second one
        rounded(small.T, a, precision),  # packed
    ):
        assert bool(((got - most / 4).abs() <= most / 4 * 2.0**-10).all())


@PRECISIONS
def test_tf32_makes_no_infinity_of_a_nan(torch, precision):
    """Of which no bit is set that TF32 has."""
    one = torch.ones(1024, 1024, device="cuda")
    x = one.clone()
    x.view(torch.int32)[5, 7] = 0x7F800001
    for got in (rounded(one, x, precision).T, rounded(x.T, one, precision), rounded(one.T, x, precision).T):
        assert bool(got[7].isnan().all())
        assert int(got.isnan().sum()) == 1024


@PRECISIONS
def test_tf32_gives_the_same_bits_every_time(torch, precision):
    a = torch.randn(1000, 2000, device="cuda")
    first = rounded(a, a.T, precision, "")
    assert all(torch.equal(rounded(a, a.T, precision), first) for _ in range(5))


@PRECISIONS
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("bias_shape", ["row", "column"])
def test_tf32_all_terms(torch, bias_shape, order, precision):
    a, b = operands(torch, 1001, 1030, 1000, "float32", "TT")
    multiply = functools.partial(rounded, precision=precision, packed="")
    tensors.check_all_terms(torch, multiply, a, b, "float32", bias_shape, order, **ROWS)


def test_tf32_explained(torch):
    def explained(a, b, precision, backend="tiled"):
        return interop.explain(interop.matmul, a, b, backend=backend, precision=precision)

    ones = torch.ones(4096, 4096, device="cuda")
    assert explained(ones, ones.T, "tf32").workspace_bytes == 0
    assert explained(ones, ones, "tf32").workspace_bytes == 0
    assert explained(ones.T, ones.T, "tf32").workspace_bytes == 0
    assert explained(ones.T, ones, "tf32").workspace_bytes == 4096 * 4096 * 4
    assert explained(ones, ones, "tf32x3").workspace_bytes == 4 * 4096 * 4096 * 4
    chosen = explained(ones, ones, "tf32x3", backend=None)
    assert chosen.algorithm.startswith("tiled wgmma")
    few = explained(ones[:128], ones[:, :128], "tf32").algorithm  # tiles: k is divided, by other kernels of TF32
    assert re.fullmatch(r"tiled mma \d+x\d+x32, tf32, split-k \d+", few)
    for a, b, precision in (
        (ones, ones, None),
        (ones[:128, :128], ones[:128, :128], "tf32"),  # as quick there
        (ones[:2], ones, "tf32"),  # few rows
        (ones[:128], ones[:, :128], "tf32"),
        (ones[:256, :256], ones[:256, :256], "tf32x3"),
        (ones[:1024, :1024].double(), ones[:1024, :1024].double(), "tf32x3"),
    ):
        algorithm = explained(a, b, precision).algorithm
        assert "wgmma" not in algorithm
        assert bool((interop.matmul(a, b, backend="tiled", precision=precision) == a.shape[1]).all())


def test_tf32_memory_has_a_bound(torch):
    large = torch.empty(1, device="cuda").expand(1 << 15, 1 << 15)
    explained = interop.explain(interop.matmul, large, large, backend="tiled", precision="tf32x3")
    assert explained.workspace_bytes == 0  # of 16 GiB
    assert "wgmma" not in explained.algorithm


@PRECISIONS
def test_tf32_is_captured_with_what_it_packs(torch, precision):
    a, b = operands(torch, 1024, 1024, 1024, "float32", "TN")
    rounded(a, b, precision)
    with graphs.captured(torch) as graph:
        c = interop.matmul(a, b, backend="tiled", precision=precision)
    for value in (1, -2):
        a.fill_(value)
        b.fill_(1)
        c.fill_(math.nan)
        graph.replay()
        assert bool((c == value * 1024).all())


# ---- capture ----


@DTYPES
def test_torch_captures_calls(torch, dtype):
    a, b = operands(torch, 301, 520, 136, dtype)
    tiled(a, b)
    tensors.check_captured(torch, a, b, dtype)


FIRST_CALL = """
import torch, interop
a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g, capture_error_mode="global"):
    c = interop.matmul(a, a, backend="tiled")
a.fill_(2)
g.replay()
assert bool((c == 2048).all())
"""


def test_the_first_call_of_a_process_may_be_captured(torch, tmp_path):
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# ---- other libraries ----


@DTYPES
def test_every_library_gets_there(device_library, torch, dtype):
    tensors.check_library(device_library, (256, 256), (256, 256), dtype)
