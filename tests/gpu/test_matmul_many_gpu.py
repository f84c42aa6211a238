"""Batches of small products of 16-bit floats, which one warp each computes.

Operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools

import pytest
from helpers import tensors
from helpers.tensors import poisoned

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
ROWS = {"pitch": lambda length: (length + 7) // 4 * 4}  # of whole vectors of 8 bytes
integers = functools.partial(tensors.integers, **ROWS)


@pytest.fixture
def torch(torch):
    """A torch on a card that the kernel is for."""
    if interop._core.machine_info()["devices"][0]["compute_capability"] < (8, 0):
        pytest.skip("the kernel is for compute capability 8.0 and later")
    return torch


def algorithm_of(a, b, backend="tiled", **options):
    return interop.explain(interop.matmul, a, b, backend=backend, **options).algorithm


def many(a, b, **options):
    """The products, which must be that kernel's."""
    algorithm = algorithm_of(a, b, **options)
    assert algorithm.startswith("tiled mma many "), algorithm
    return interop.matmul(a, b, backend="tiled", **options)


def batches(torch, batch_a, batch_b, m, n, k, dtype, layout):
    a = integers(torch, (*batch_a, m, k), dtype, 1, layout[0] == "T")
    return a, integers(torch, (*batch_b, k, n), dtype, 2, layout[1] == "T")


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("n", [4, 8, 12, 16, 20, 28, 32])
@pytest.mark.parametrize("m", [4, 8, 12, 16, 24, 32])
def test_sizes(torch, m, n, layout, dtype):
    for k in (4, 16, 20, 32, 52, 64):
        a, b = batches(torch, (37,), (37,), m, n, k, dtype, layout)
        expected = a.double() @ b.double()
        out = poisoned(torch, (37, m, n), dtype)
        many(a, b, out=out)
        assert torch.equal(out, expected.to(out.dtype)), k


@DTYPES
@pytest.mark.parametrize("m", [1, 3, 5, 15, 17, 31])
def test_any_number_of_rows(torch, m, dtype):
    """Only lengths along a unit stride are multiples of 4."""
    a, b = batches(torch, (50,), (50,), m, 16, 24, dtype, "NN")
    assert torch.equal(many(a, b), (a.double() @ b.double()).to(a.dtype))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((50,), ()), ((), (50,)), ((8, 1), (1, 9)), ((2, 1, 3, 4), (1, 5, 3, 1)), ((20_011,), (20_011,))],
    ids=str,
)
def test_batches(torch, batch_a, batch_b, layout, dtype):
    a, b = batches(torch, batch_a, batch_b, 16, 12, 8, dtype, layout)
    expected = a.double() @ b.double()
    out = poisoned(torch, expected.shape, dtype)
    interop.matmul(a, b, out=out, backend="tiled")  # where b is broadcast, it may be one product of many rows
    assert torch.equal(out, expected.to(out.dtype))


@DTYPES
def test_a_result_in_longer_rows(torch, dtype):
    a, b = batches(torch, (64,), (64,), 16, 16, 16, dtype, "NN")
    out = poisoned(torch, (64, 18, 24), dtype)
    many(a, b, out=out[:, 1:17, 4:20])
    assert torch.equal(out[:, 1:17, 4:20], (a.double() @ b.double()).to(out.dtype))
    for rest in (out[:, :1], out[:, 17:], out[:, :, :4], out[:, :, 20:]):
        assert bool(rest.isnan().all())


@DTYPES
@LAYOUTS
def test_special_values_stay_in_their_row_and_column(torch, layout, dtype):
    """That of one matrix, whose neighbours must stay as they are."""
    a, b = batches(torch, (40,), (40,), 16, 16, 16, dtype, layout)
    expected = many(a, b)
    a[7, 3, 5], b[9, 2, 11] = float("nan"), float("inf")
    result = many(a, b)
    assert bool(result[7, 3].isnan().all())
    changed = torch.zeros_like(result, dtype=torch.bool)
    changed[7, 3], changed[9, :, 11] = True, True
    assert torch.equal(result[~changed], expected[~changed])


@DTYPES
def test_which_products(torch, dtype):
    kind = getattr(torch, dtype)
    ones = torch.ones(4096, 16, 16, device="cuda", dtype=kind)
    assert algorithm_of(ones, ones, None) == f"tiled mma many 16x16, {dtype}"
    wide = torch.ones(4096, 32, 32, device="cuda", dtype=kind)
    assert algorithm_of(wide, wide, None) == f"tiled mma many 32x32, {dtype}"
    bias = torch.ones(16, device="cuda", dtype=kind)
    odd = torch.ones(4096, 16, 18, device="cuda", dtype=kind)
    for a, b, options in (
        (ones[:16], ones[:16], {}),  # few
        (odd, odd.mT, {}),  # rows of 36 bytes
        (odd[:, :, 1:17], ones, {}),  # begin between multiples of 8 bytes
        (ones[:, ::2].mT, ones[:, ::2], {"dtype": "float32"}),
        (ones, ones, {"bias": bias}),
        (torch.ones(64, 40, 16, device="cuda", dtype=kind), ones[:64], {}),
        (ones.float(), ones.float(), {}),
    ):
        assert not algorithm_of(a, b, **options).startswith("tiled mma many ")
        expected = (a.double() @ b.double()) + (1 if "bias" in options else 0)
        assert torch.equal(interop.matmul(a, b, backend="tiled", **options).double(), expected)
