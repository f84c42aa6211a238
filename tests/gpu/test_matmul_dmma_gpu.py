"""Products of float64 and complex128 by the `tiled` backend on the tensor cores.

The operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import math
import re

import pytest

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


@pytest.fixture
def torch(torch):
    """A torch on a card whose tensor cores the build has code for."""
    major, minor = interop._core.device_info(0)["compute_capability"]
    if major < 8:
        pytest.skip("the kernel is for compute capability 8.0 and later")
    built = [int(number) for number in re.findall(r"\d+", interop._core.build_info()["architectures"])]
    if not any(80 <= number <= 10 * major + minor for number in built):
        pytest.skip("this build has no code for 80 and later")
    return torch


def poisoned(torch, shape, dtype):
    return torch.full(shape, math.nan, device="cuda", dtype=getattr(torch, dtype))


def integers(torch, shape, dtype, seed, transposed=False, first=0, step=1):
    """Integers from -3 to 3, in rows (columns, if transposed) of every `step`th element from the `first` on of longer
    rows; NaN in between."""
    *batch, rows, columns = shape
    outer, inner = (columns, rows) if transposed else (rows, columns)
    base = poisoned(torch, (*batch, outer, first + step * inner + inner % 2), dtype)
    view = base[..., first : first + step * inner : step]
    generator = torch.Generator("cuda").manual_seed(seed)

    def values():
        return torch.randint(-3, 4, view.shape, device="cuda", generator=generator).double()

    view.copy_(torch.complex(values(), values()) if view.is_complex() else values())
    return view.mT if transposed else view


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
    a = integers(torch, (m, k), dtype, 1, layout[0] == "T", first, step)
    b = integers(torch, (k, n), dtype, 2, layout[1] == "T", first, step)
    out = poisoned(torch, (m, n), dtype)
    tiled(a, b, out=out)
    assert torch.equal(out, a @ b)


@DTYPES
@LAYOUTS
def test_one_operand_alone_is_aligned(torch, layout, dtype):
    for first in ((0, 1), (1, 0)):
        a = integers(torch, (300, 200), dtype, 1, layout[0] == "T", first[0])
        b = integers(torch, (200, 520), dtype, 2, layout[1] == "T", first[1])
        assert torch.equal(tiled(a, b), a @ b)
    rows = b[:1].expand(200, 520)  # the same row again and again
    assert torch.equal(tiled(a, rows), a @ rows)


@DTYPES
def test_reversed_operands(cupy, torch, dtype):
    x = cupy.asarray(integers(torch, (302, 302), dtype, 1))
    y = cupy.asarray(integers(torch, (302, 302), dtype, 2, transposed=True))
    for a, b in ((x[::-1], y), (x, y[:, ::-1]), (x[::-1, ::-1], y[:, ::-1]), (y[:, ::-1], x[::-1])):
        assert bool((tiled_of_cupy(a, b) == a @ b).all())


def tiled_of_cupy(a, b):
    assert algorithm_of(a, b).startswith("tiled dmma")
    return interop.matmul(a, b, backend="tiled")


@pytest.mark.parametrize("conjugated", ["a", "b", "both"])
@LAYOUTS
def test_conjugates(torch, layout, conjugated):
    a = integers(torch, (301, 201), "complex128", 1, layout[0] == "T")
    b = integers(torch, (201, 203), "complex128", 2, layout[1] == "T")
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
    a, b = integers(torch, (300, 201), dtype, 1), integers(torch, (201, 520), dtype, 2)
    a.fill_(1)
    b.fill_(1)
    a[177, 200], b[0, 519] = math.nan, math.inf
    c = tiled(a, b)
    assert bool(c[177].isnan().all())
    assert not bool(c[[i for i in range(300) if i != 177], 519].isfinite().any())
    assert bool((torch.cat((c[:177, :519], c[178:, :519])) == 201).all())


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
    m, n, k = shape
    a, b = integers(torch, (m, k), dtype, 1), integers(torch, (k, n), dtype, 2, transposed=True)
    c = integers(torch, (m, n), dtype, 3)
    bias = integers(torch, (1, n) if bias_shape == "row" else (m, 1), dtype, 4)
    bias = bias[0] if bias_shape == "row" else bias
    out, aux = (
        poisoned(torch, (m, n), dtype) if order == "rows" else poisoned(torch, (n, m), dtype).T for _ in range(2)
    )
    expected = 2 * (a @ b) - 3 * c + bias
    options = {"c": c, "alpha": 2, "beta": -3, "bias": bias, "out": out}
    if dtype == "float64":
        tiled(a, b, epilogue="relu", aux=aux, **options)
        assert torch.equal(aux, expected)
        expected = expected.relu()
    else:
        tiled(a, b, **options)
    assert torch.equal(out, expected)


@DTYPES
def test_nothing_else_is_written(torch, dtype):
    a, b = integers(torch, (301, 136), dtype, 1), integers(torch, (136, 521), dtype, 2)
    expected = a @ b
    for view in (lambda base: base[1:302, 3:524], lambda base: base[:602:2, :521], lambda base: base[:521, :301].T):
        base = poisoned(torch, (700, 700), dtype)
        out = view(base)
        tiled(a, b, out=out)
        assert torch.equal(out, expected)
        out.fill_(math.nan)
        assert bool(base.isnan().all())
