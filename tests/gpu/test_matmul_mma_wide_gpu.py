"""Products of float64 and complex128 by the `tiled` backend on the tensor cores.

The operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import re

import pytest
from helpers import tensors
from helpers.tensors import operands, poisoned

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float64", "complex128"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# (m, n, k): one tile, ragged in each dimension, long k, few columns, one k tile, an odd k; and each of the tile shapes.
SHAPES = (
    (128, 128, 192),
    (129, 257, 136),
    (301, 521, 201),
    (40, 520, 5000),
    (1000, 30, 1065),
    (2000, 2000, 3),
    (1024, 1024, 33),
    (2048, 2048, 40),
)
TILES = {"float64": ["64x128x16", "64x64x16", "32x32x16"], "complex128": ["64x64x8", "32x32x8"]}

integers = functools.partial(tensors.integers, pitch=lambda length: length + 8 + length % 2)


@pytest.fixture
def torch(torch_sm80):
    return torch_sm80


def algorithm_of(a, b, **options):
    return interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm


def tiled(a, b, **options):
    """The product, which must be one of those kernels."""
    dtype = str(a.dtype).removeprefix("torch.")
    assert re.match(rf"tiled dmma ({'|'.join(TILES[dtype])}), {dtype}", algorithm_of(a, b, **options))
    return interop.matmul(a, b, backend="tiled", **options)


@DTYPES
def test_every_tile_is_chosen_for_some_shape(torch, dtype):
    chosen = set()
    for m, n, k in SHAPES:
        a, b = poisoned(torch, (m, k), dtype), poisoned(torch, (k, n), dtype)
        chosen.update(re.findall(r"\d+x\d+x\d+", algorithm_of(a, b)))
    assert chosen == set(TILES[dtype])


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
    assert torch.equal(out, a @ b)


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("aligned", ["a", "b"])
def test_one_operand_alone_is_aligned(torch, aligned, layout, dtype):
    a = integers(torch, (300, 200), dtype, 1, layout[0] == "T", first=int(aligned == "b"))
    b = integers(torch, (200, 520), dtype, 2, layout[1] == "T", first=int(aligned == "a"))
    assert torch.equal(tiled(a, b), a @ b)
    rows = b[:1].expand(200, 520)  # the same row again and again
    assert torch.equal(tiled(a, rows), a @ rows)


@DTYPES
def test_reversed_operands(cupy, torch, dtype):
    x = cupy.asarray(integers(torch, (302, 302), dtype, 1))
    y = cupy.asarray(integers(torch, (302, 302), dtype, 2, transposed=True))
    for a, b in ((x[::-1], y), (x, y[:, ::-1]), (x[::-1, ::-1], y[:, ::-1]), (y[:, ::-1], x[::-1])):
        assert algorithm_of(a, b).startswith("tiled dmma")
        assert bool((interop.matmul(a, b, backend="tiled") == a @ b).all())


@pytest.mark.parametrize("conjugated", ["a", "b", "both"])
@LAYOUTS
def test_conjugates(torch, layout, conjugated):
    a, b = operands(torch, 301, 203, 201, "complex128", layout)
    a = a.conj() if conjugated in ("a", "both") else a
    b = b.conj() if conjugated in ("b", "both") else b
    assert torch.equal(tiled(a, b), a.resolve_conj() @ b.resolve_conj())


@DTYPES
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 1, 2, 3, 2), (1, 2, 2, 1, 2))],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(torch, batch_a, batch_b, transposed, dtype):
    a = integers(torch, (*batch_a, 172, 136), dtype, 1, transposed)
    b = integers(torch, (*batch_b, 136, 203), dtype, 2, transposed)
    expected = a @ b
    out = poisoned(torch, expected.shape, dtype)
    tiled(a, b, out=out)
    assert torch.equal(out, expected)


@DTYPES
def test_special_values_stay_in_their_row_and_column(torch, dtype):
    tensors.check_special_values(torch, tiled, *operands(torch, 300, 520, 201, dtype))


@DTYPES
def test_error_and_the_same_bits(torch, dtype):
    a = torch.randn(520, 2050, device="cuda", dtype=getattr(torch, dtype))
    first = tiled(a, a.T)
    assert all(torch.equal(tiled(a, a.T), first) for _ in range(5))
    expected = a.cpu() @ a.T.cpu()
    assert float((first.cpu() - expected).norm() / expected.norm()) < 1e-14


@DTYPES
@pytest.mark.parametrize("bias_shape", ["row", "column"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(304, 520, 136), (301, 521, 137), (2048, 1024, 64)], ids=str)
def test_all_terms(torch, shape, order, bias_shape, dtype):
    tensors.check_all_terms(torch, tiled, *operands(torch, *shape, dtype, "NT"), dtype, bias_shape, order)


@DTYPES
def test_results_of_any_layout(torch, dtype):
    tensors.check_results_of_any_layout(torch, tiled, *operands(torch, 301, 521, 136, dtype), dtype)
