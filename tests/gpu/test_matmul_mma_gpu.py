"""Products of float16 and bfloat16 by the `tiled` backend with `mma.sync`.

It serves compute capability 8.x, and on later cards what TMA cannot read: so the operands here are at odd multiples of
4 bytes. They are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import re

import pytest
from helpers import tensors

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# (m, n, k): one tile, ragged in each dimension, one row, few columns, one k tile, and each of the tile shapes.
SHAPES = (
    (128, 128, 192),
    (129, 257, 136),
    (301, 521, 201),
    (1, 520, 5000),
    (1000, 3, 1065),
    (2000, 2000, 24),
    (1408, 1408, 512),
    (4096, 2050, 96),
)


# At odd multiples of 4 bytes.
ROWS = {"first": 2, "pitch": lambda length: -(-length // 8) * 8 + 10}
integers, operands = (functools.partial(helper, **ROWS) for helper in (tensors.integers, tensors.operands))


@pytest.fixture
def torch(torch_sm80):
    return torch_sm80


def tiled(a, b, **options):
    """The product, which must be one of those kernels, or on Hopper, where it is quicker, one of packed operands."""
    algorithm = interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm
    dtype = str(a.dtype).removeprefix("torch.")
    is_packed = algorithm.startswith("tiled wgmma") and "packed first" in algorithm
    assert is_packed or re.match(rf"tiled mma (128x128|64x64)x32, {dtype}", algorithm)
    return interop.matmul(a, b, backend="tiled", **options)


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(torch, shape, layout, dtype):
    tensors.check_values(torch, tiled, *operands(torch, *shape, dtype, layout), dtype)


@DTYPES
@LAYOUTS
def test_values_of_aligned_rows(torch, layout, dtype):
    """Vectors of 16 bytes: one operand alone is what TMA cannot read."""
    a, b = operands(torch, 300, 520, 200, dtype, layout)
    expected = (a.double() @ b.double()).to(a.dtype)
    b = b.mT.contiguous().mT if layout[1] == "T" else b.contiguous()
    assert torch.equal(tiled(a, b), expected)
    rows = b.contiguous()[:1].expand(200, 520)  # the same row again and again
    assert torch.equal(tiled(a, rows), (a.double() @ rows.double()).to(a.dtype))


@DTYPES
def test_reversed_operands(cupy, torch, dtype):
    if dtype == "bfloat16":
        pytest.skip("CuPy has no bfloat16")
    x = cupy.asarray(integers(torch, (302, 302), dtype, 1))
    y = cupy.asarray(integers(torch, (302, 302), dtype, 2, transposed=True))
    for a, b in ((x[::-1], y), (x, y[:, ::-1]), (x[::-1], y[:, ::-1]), (y[:, ::-1], x[::-1])):
        algorithm = interop.explain(interop.matmul, a, b, backend="tiled").algorithm
        assert algorithm.startswith("tiled mma")
        expected = (a.astype("float64") @ b.astype("float64")).astype(dtype)
        assert bool((interop.matmul(a, b, backend="tiled") == expected).all())


@DTYPES
@tensors.BATCHES
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(torch, batch_a, batch_b, transposed, dtype):
    tensors.check_batches(torch, tiled, batch_a, batch_b, dtype, transposed, **ROWS)


@DTYPES
def test_special_values_stay_in_their_row_and_column(torch, dtype):
    tensors.check_special_values(torch, tiled, *operands(torch, 300, 520, 200, dtype))


@DTYPES
def test_the_same_call_gives_the_same_bits(torch, dtype):
    tensors.check_the_same_bits(torch, tiled, 2050, dtype)


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
def test_results_of_any_layout(torch, dtype):
    tensors.check_results_of_any_layout(torch, tiled, *operands(torch, 301, 521, 136, dtype), dtype)
