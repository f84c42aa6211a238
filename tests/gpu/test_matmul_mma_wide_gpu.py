"""Products of float64, complex128 and, as TF32, float32 by the `tiled` backend on the tensor cores, by mma.sync.

The operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import math
import re

import pytest
from helpers import graphs, tensors
from helpers.tensors import poisoned, product

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# (m, n, k): one tile, ragged in each dimension, long k, few columns, one k tile, an odd k; and each of the tile shapes.
SHAPES = (
    (128, 128, 192),
    (129, 257, 136),
    (301, 521, 201),
    (40, 520, 5000),
    (256, 256, 16384),
    (1000, 30, 1065),
    (2000, 2000, 3),
    (1024, 1024, 33),
    (2048, 2048, 40),
)
TILES = {
    "float64": ["64x128x16", "64x64x16", "32x32x16"],
    "complex128": ["64x64x8", "32x32x8"],
    "float32": ["128x128x32", "64x64x32"],
}

# At multiples of 16 bytes.
ROWS = {"pitch": lambda length: -(-length // 4) * 4 + 8}
integers, operands = (functools.partial(helper, **ROWS) for helper in (tensors.integers, tensors.operands))


@pytest.fixture
def torch(torch_sm80):
    return torch_sm80


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def options_of(a):
    return {"backend": "tiled", "precision": "tf32" if name_of(a.dtype) == "float32" else None}


def algorithm_of(a, b, **options):
    return interop.explain(interop.matmul, a, b, **options_of(a), **options).algorithm


def tiled(a, b, **options):
    """The product, which must be one of those kernels, or for TF32, where it is quicker, one of sm_90's."""
    dtype = name_of(a.dtype)
    name = "tf32" if dtype == "float32" else dtype
    algorithm = algorithm_of(a, b, **options)
    is_ours = re.match(rf"tiled mma ({'|'.join(TILES[dtype])}), {name}\b", algorithm)
    assert is_ours or (name == "tf32" and re.match(r"tiled wgmma 128x\d+x32( ping-pong)?, tf32\b", algorithm))
    return interop.matmul(a, b, **options_of(a), **options)


def exactly(a, b):
    return product(a, b).to(a.dtype)


@DTYPES
def test_every_tile_is_chosen_for_some_shape(torch, dtype):
    chosen = set()
    for m, n, k in SHAPES:
        a, b = poisoned(torch, (m, k), dtype), poisoned(torch, (k, n), dtype)
        chosen.update(re.findall(r"tiled mma (\d+x\d+x\d+)", algorithm_of(a, b)))
    # Which tiles of TF32 are quicker than sm_90's kernels depends on the card. mma_wide_test has each compute all.
    assert chosen == set(TILES[dtype]) or (dtype == "float32" and chosen and chosen <= set(TILES[dtype]))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (3, 2)])
def test_values(torch, shape, layout, dtype, first, step):
    m, n, k = shape
    a = integers(torch, (m, k), dtype, 1, layout[0] == "T", first=first, step=step)
    b = integers(torch, (k, n), dtype, 2, layout[1] == "T", first=first, step=step)
    out = poisoned(torch, (m, n), dtype)
    tiled(a, b, out=out)
    assert torch.equal(out, exactly(a, b))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("aligned", ["a", "b"])
def test_one_operand_alone_is_aligned(torch, aligned, layout, dtype):
    a = integers(torch, (300, 200), dtype, 1, layout[0] == "T", first=int(aligned == "b"))
    b = integers(torch, (200, 520), dtype, 2, layout[1] == "T", first=int(aligned == "a"))
    assert torch.equal(tiled(a, b), exactly(a, b))
    rows = b[:1].expand(200, 520)  # the same row again and again
    assert torch.equal(tiled(a, rows), exactly(a, rows))


@DTYPES
def test_reversed_operands(cupy, torch, dtype):
    x = cupy.asarray(integers(torch, (302, 302), dtype, 1))
    y = cupy.asarray(integers(torch, (302, 302), dtype, 2, transposed=True))
    for a, b in ((x[::-1], y), (x, y[:, ::-1]), (x[::-1, ::-1], y[:, ::-1]), (y[:, ::-1], x[::-1])):
        wide = "complex128" if dtype == "complex128" else "float64"
        expected = a.astype(wide) @ b.astype(wide)
        assert bool((tiled(a, b) == expected).all())


@pytest.mark.parametrize("conjugated", ["a", "b", "both"])
@LAYOUTS
def test_conjugates(torch, layout, conjugated):
    a, b = operands(torch, 301, 203, 201, "complex128", layout)
    a = a.conj() if conjugated in ("a", "both") else a
    b = b.conj() if conjugated in ("b", "both") else b
    assert torch.equal(tiled(a, b), a.resolve_conj() @ b.resolve_conj())


@DTYPES
@tensors.BATCHES
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(torch, batch_a, batch_b, transposed, dtype):
    tensors.check_batches(torch, tiled, batch_a, batch_b, dtype, transposed, **ROWS)


@DTYPES
def test_special_values_stay_in_their_row_and_column(torch, dtype):
    tensors.check_special_values(torch, tiled, *operands(torch, 300, 520, 201, dtype))


@DTYPES
def test_error_and_the_same_bits(torch, dtype):
    a = torch.randn(520, 2050, device="cuda", dtype=getattr(torch, dtype))
    first = tiled(a, a.T)
    assert all(torch.equal(tiled(a, a.T), first) for _ in range(5))
    expected = product(a.cpu(), a.T.cpu())
    error = float((first.cpu() - expected).norm() / expected.norm())
    if dtype == "float32":
        assert 1e-5 < error < 1e-3  # it is TF32 indeed
    else:
        assert error < 1e-14


@DTYPES
@pytest.mark.parametrize("bias_shape", ["row", "column"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 137), (2048, 1024, 64)], ids=str)
def test_all_terms(torch, shape, order, bias_shape, dtype):
    tensors.check_all_terms(torch, tiled, *operands(torch, *shape, dtype, "NT"), dtype, bias_shape, order, **ROWS)


@DTYPES
def test_results_of_any_layout(torch, dtype):
    tensors.check_results_of_any_layout(torch, tiled, *operands(torch, 301, 521, 136, dtype), dtype)


# ---- TF32 ----


def unaligned(x):
    """A copy that is rounded by us: packed, or read here. What sm_90's tensor cores read as it lies they round."""
    copy = x.new_empty(len(x), x.shape[1] + 1)[:, 1:]
    copy.copy_(x)
    return copy


@LAYOUTS
def test_tf32_makes_no_infinity_of_the_largest_number(torch, layout):
    most = torch.finfo(torch.float32).max
    a = unaligned(torch.zeros(256, 256, device="cuda").fill_diagonal_(most))
    quarters = unaligned(torch.full((256, 256), 0.25, device="cuda"))
    for x, y in ((a, quarters), (quarters, a)):
        x, y = (z.T if transposed == "T" else z for z, transposed in zip((x, y), layout, strict=True))
        assert bool(((tiled(x, y) - most / 4).abs() <= most / 4 * 2.0**-10).all())


@LAYOUTS
def test_tf32_makes_no_infinity_of_a_nan(torch, layout):
    """Of which no bit is set that TF32 has."""
    ones = unaligned(torch.ones(256, 256, device="cuda"))
    nan = unaligned(ones)
    nan.view(torch.int32)[5, 5] = 0x7F800001
    for x, y in ((nan, ones), (ones, nan)):
        x, y = (z.T if transposed == "T" else z for z, transposed in zip((x, y), layout, strict=True))
        c = tiled(x, y) if x.data_ptr() == nan.data_ptr() else tiled(x, y).T
        assert bool(c[5].isnan().all())
        assert int(c.isnan().sum()) == 256


@LAYOUTS
def test_tf32_rounds_to_the_nearest(torch, layout):
    one = unaligned(torch.eye(256, device="cuda"))
    for value, nearest in (
        (1 + 2.0**-10, 1 + 2.0**-10),
        (1 + 2.0**-11, 1 + 2.0**-10),
        (1 + 2.0**-11 - 2.0**-20, 1),
        (-1 - 2.0**-12, -1),
    ):
        x = unaligned(torch.full((256, 256), value, device="cuda"))
        for a, b in ((x, one), (one, x)):
            a, b = (z.T if transposed == "T" else z for z, transposed in zip((a, b), layout, strict=True))
            assert bool((tiled(a, b) == nearest).all())


def test_tf32_only_where_it_is_asked_for(torch):
    a, b = operands(torch, 256, 256, 65536, "float32")
    for options, kernel in (({"precision": "tf32"}, r"mma \d+x\d+x32, tf32"), ({}, r"\d+x\d+x\d+, float32")):
        explained = interop.explain(interop.matmul, a, b, backend="tiled", **options)
        assert re.fullmatch(rf"tiled {kernel}, split-k \d+", explained.algorithm)
        assert explained.workspace_bytes > 0
        assert torch.equal(interop.matmul(a, b, backend="tiled", **options), exactly(a, b))
    a, b = (x.double() for x in operands(torch, 256, 256, 256, "float32"))
    explained = interop.explain(interop.matmul, a, b, backend="tiled", precision="tf32")
    assert re.match(r"tiled mma \d+x\d+x16, float64", explained.algorithm)


def test_tf32_is_captured_with_the_sums_of_parts(torch):
    a, b = operands(torch, 256, 256, 16384, "float32")
    tiled(a, b)
    with graphs.captured(torch) as graph:
        c = interop.matmul(a, b, **options_of(a))
    for value in (1, -2):
        a.fill_(value)
        b.fill_(1)
        c.fill_(math.nan)
        graph.replay()
        assert bool((c == value * 16384).all())
