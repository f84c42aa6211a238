"""Products of float16 and bfloat16 by the `tiled` backend on the tensor cores of sm_90.

Operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from helpers import forms

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


@pytest.fixture
def torch(torch):
    """A torch on a card whose tensor cores the build has code for."""
    if interop._core.device_info(0)["compute_capability"] != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")
    if "90a" not in interop._core.build_info()["architectures"]:
        pytest.skip("this build has no code for 90a")
    return torch


def integers(torch, shape, dtype, seed, transposed=False):
    """Integers from -3 to 3, in rows (columns, if transposed) that start at multiples of 16 bytes; NaN in between."""
    *batch, rows, columns = shape
    outer, inner = (columns, rows) if transposed else (rows, columns)
    base = torch.full((*batch, outer, -(-inner // 8) * 8 + 8), math.nan, device="cuda", dtype=getattr(torch, dtype))
    view = base[..., :inner]
    generator = torch.Generator("cuda").manual_seed(seed)
    view.copy_(torch.randint(-3, 4, view.shape, device="cuda", generator=generator))
    return view.mT if transposed else view


def operands(torch, m, n, k, dtype, layout="NN"):
    return (
        integers(torch, (m, k), dtype, 1, layout[0] == "T"),
        integers(torch, (k, n), dtype, 2, layout[1] == "T"),
    )


def tiled(a, b, **options):
    """The product, which must be one of those kernels."""
    algorithm = interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm
    dtype = str(a.dtype).removeprefix("torch.")
    assert algorithm.startswith("tiled wgmma 128x")
    assert f", {dtype}" in algorithm
    return interop.matmul(a, b, backend="tiled", **options)


def poisoned(torch, shape, dtype):
    return torch.full(shape, math.nan, device="cuda", dtype=getattr(torch, dtype))


# ---- values ----


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(torch, shape, layout, dtype):
    a, b = operands(torch, *shape, dtype, layout)
    expected = a.double() @ b.double()
    out = poisoned(torch, shape[:2], dtype)
    tiled(a, b, out=out)
    assert torch.equal(out, expected.to(out.dtype))
    assert torch.equal(tiled(a, b, dtype="float32"), expected.float())


@DTYPES
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 3, 2), (2, 1, 2)), ((2, 1, 2, 3), (1, 2, 2, 1))],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(torch, batch_a, batch_b, transposed, dtype):
    a = integers(torch, (*batch_a, 72, 136), dtype, 1, transposed)
    b = integers(torch, (*batch_b, 136, 203), dtype, 2, transposed)
    expected = a.double() @ b.double()
    out = poisoned(torch, expected.shape, dtype)
    tiled(a, b, out=out)
    assert torch.equal(out, expected.to(out.dtype))


@DTYPES
def test_every_product_is_added_once(torch, dtype):
    for k in (129, 1023, 1025, 4097):
        a, b = operands(torch, 130, 70, k, dtype)
        a.fill_(1)
        b.fill_(1)
        assert bool((tiled(a, b, dtype="float32") == k).all()), k


@DTYPES
def test_special_values_stay_in_their_row_and_column(torch, dtype):
    a, b = operands(torch, 300, 520, 200, dtype)
    a.fill_(1)
    b.fill_(1)
    a[177, 199], b[0, 519] = math.nan, math.inf
    c = tiled(a, b)
    assert bool(c[177].isnan().all())
    assert bool((c[[i for i in range(300) if i != 177], 519] == math.inf).all())
    assert bool((torch.cat((c[:177, :519], c[178:, :519])) == 200).all())


@DTYPES
def test_the_same_call_gives_the_same_bits(torch, dtype):
    a = torch.randn(520, 2048, device="cuda").to(getattr(torch, dtype))
    first = tiled(a, a.T)
    assert all(torch.equal(tiled(a, a.T), first) for _ in range(5))
    expected = a.double() @ a.T.double()
    assert float((first - expected).norm() / expected.norm()) < 2.0 ** (-10 if dtype == "float16" else -8)


# ---- where the result lies ----


@DTYPES
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 136)], ids=str)
def test_results_of_any_layout(torch, shape, dtype):
    m, n, k = shape
    a, b = operands(torch, m, n, k, dtype)
    expected = (a.double() @ b.double()).to(a.dtype)
    for name, base_shape, view in (
        ("padded", (m, n + 8), lambda base: base[:, :n]),
        ("padded by one", (m, n + 1), lambda base: base[:, :n]),
        ("begins at any element", (m, n + 3), lambda base: base[:, 1 : n + 1]),
        ("transposed", (n, m), lambda base: base.T),
        ("transposed and padded", (n, m + 5), lambda base: base[:, :m].T),
        ("every second column", (m, 2 * n), lambda base: base[:, ::2]),
        ("every second row", (2 * m, n), lambda base: base[::2]),
    ):
        base = poisoned(torch, base_shape, dtype)
        out = view(base)
        tiled(a, b, out=out)
        assert torch.equal(out, expected), name
        out.fill_(math.nan)
        assert bool(base.isnan().all()), name  # nor anything else was written


# ---- what follows the sums ----


@DTYPES
@pytest.mark.parametrize("result", ["own", "float32"])
@pytest.mark.parametrize("bias_shape", ["row", "column"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 136), (2048, 1024, 64)], ids=str)
def test_all_terms(torch, shape, order, bias_shape, result, dtype):
    m, n, k = shape
    result = dtype if result == "own" else result
    a, b = operands(torch, m, n, k, dtype, "NT")
    c = integers(torch, (m, n), result, 3)
    bias = integers(torch, (1, n) if bias_shape == "row" else (m, 1), result, 4)
    bias = bias[0] if bias_shape == "row" else bias
    out, aux = (
        poisoned(torch, (m, n), result) if order == "rows" else poisoned(torch, (n, m), result).T for _ in range(2)
    )
    expected = 2 * (a.double() @ b.double()) - 3 * c.double() + bias.double()
    options = {"c": c, "alpha": 2, "beta": -3, "bias": bias, "epilogue": "relu", "aux": aux, "out": out}
    tiled(a, b, dtype=result, **options)
    assert torch.equal(aux, expected.to(aux.dtype))
    assert torch.equal(out, expected.relu().to(out.dtype))


@DTYPES
def test_one_term_at_a_time(torch, dtype):
    a, b = operands(torch, 200, 328, 136, dtype)
    product = a.double() @ b.double()
    c, row = integers(torch, (200, 328), dtype, 3), integers(torch, (1, 328), dtype, 4)[0]
    for options, expected in (
        ({"alpha": 0.5}, product / 2),
        ({"c": c}, product + c),
        ({"c": c[:1].expand(200, 328), "beta": 2}, product + 2 * c[:1]),
        ({"c": c.T.contiguous().T}, product + c),
        ({"bias": row}, product + row),
        ({"epilogue": "relu"}, product.relu()),
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
    for array, applied in ((got, epilogue), (aux, None)):
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

    def general(a, b, **options):
        """The product, which is one of the other kernels."""
        algorithm = interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm
        assert algorithm in [f"tiled {tile}, {dtype}" for tile in ("64x64x16", "32x32x16")]
        return interop.matmul(a, b, backend="tiled", **options)

    small = ones[:128, :128]
    for a, b in (
        (small, small),  # as quick there
        (torch.ones(300, 201, device="cuda", dtype=kind), ones[:201, :300]),  # rows of 402 bytes
        (ones[:300, 1:202], ones[:201, :300]),  # begins between multiples of 16 bytes
        (ones[:300, :402:2], ones[:201, :300]),  # no unit stride
        (ones[:1].expand(300, 4096)[:, :201], ones[:201, :300]),  # one row for all
    ):
        assert bool((general(a, b) == a.shape[1]).all())


# ---- capture ----


@DTYPES
def test_torch_captures_calls(torch, dtype):
    a, b = operands(torch, 301, 520, 136, dtype)
    out = poisoned(torch, (301, 520), dtype)
    tiled(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        c = interop.matmul(a, b, backend="tiled")
        interop.matmul(a, b, out=out, epilogue="relu", backend="tiled")
    for value in (1, -2):
        a.fill_(value)
        b.fill_(1)
        c.fill_(math.nan)
        out.fill_(math.nan)
        graph.replay()
        assert bool((c == value * 136).all())
        assert bool((out == max(value, 0) * 136).all())


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
    x, y = (np.random.default_rng(seed).integers(-3, 4, (256, 256)) for seed in (1, 2))
    kind = forms.numpy_dtype(dtype)
    try:
        a, b = device_library.make(x.astype(kind)), device_library.make(y.astype(kind))
    except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError) as error:
        pytest.skip(f"{device_library!r} has no {dtype}: {error}")
    c = interop.matmul(a, b, backend="tiled")
    assert device_library.is_ours(c)
    assert np.array_equal(device_library.to_numpy(c), (x @ y).astype(kind))
