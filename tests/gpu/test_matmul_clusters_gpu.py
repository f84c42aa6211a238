"""Products of few rows or few tiles of 16-bit floats on Hopper's tensor cores, whose k the blocks of a cluster share.

Operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import re

import pytest
from helpers import graphs, tensors
from helpers.tensors import poisoned

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT"])  # k is a's unit stride
ROWS = {"pitch": lambda length: (length + 15) // 8 * 8}  # of whole vectors of 16 bytes
integers, operands = (functools.partial(helper, **ROWS) for helper in (tensors.integers, tensors.operands))


@pytest.fixture
def torch(torch):
    """A torch on a card whose tensor cores the build has code for."""
    if interop._core.machine_info()["devices"][0]["compute_capability"] != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")
    if "90a" not in interop._core.build_info()["architectures"]:
        pytest.skip("this build has no code for 90a")
    return torch


def algorithm_of(a, b, backend="tiled", **options):
    return interop.explain(interop.matmul, a, b, backend=backend, **options).algorithm


def clusters(a, b, **options):
    """The product, which must be one of those kernels'."""
    algorithm = algorithm_of(a, b, **options)
    assert re.match(r"tiled wgmma clusters \d+x\d+x\d+, b?float16, [1248] blocks?$", algorithm), algorithm
    return interop.matmul(a, b, backend="tiled", **options)


#: (m, n, k), and what is chosen on 132 multiprocessors where b is (n, k) in memory. Every tile, and every cluster.
CHOSEN = [
    ((16, 4096, 4096), "16x64x128", 2),
    ((3, 11_008, 4096), "16x64x128", 1),
    ((8, 256, 7168), "16x64x128", 8),
    ((32, 4096, 4096), "32x64x128", 2),
    ((17, 11_008, 4096), "32x64x128", 1),
    ((256, 256, 256), "64x32x128", 1),
    ((64, 4096, 4096), "64x64x64", 2),
    ((384, 1000, 640), "64x64x64", 1),
    ((64, 11_008, 4096), "64x64x64", 2),
    ((200, 300, 1000), "64x64x64", 4),
    ((128, 4096, 4096), "128x64x64", 2),
    ((512, 512, 4096), "128x64x64", 4),
    ((128, 3072, 2048), "128x64x64", 8),  # more than two blocks for each multiprocessor, and so two stages
]


@DTYPES
@pytest.mark.parametrize(("shape", "tile", "blocks"), CHOSEN, ids=str)
def test_every_tile(torch, shape, tile, blocks, dtype):
    m, n, k = shape
    a, b = operands(torch, m, n, k, dtype, "NT")
    if interop._core.machine_info()["devices"][0]["multiprocessors"] == 132:
        many = "" if blocks == 1 else "s"
        assert algorithm_of(a, b) == f"tiled wgmma clusters {tile}, {dtype}, {blocks} block{many}"
    expected = a.double() @ b.double()
    for out_dtype in (dtype, "float32"):
        out = poisoned(torch, (m, n), out_dtype)
        clusters(a, b, out=out, dtype=out_dtype)
        assert torch.equal(out, expected.to(out.dtype))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("m", [1, 5, 16, 17, 31, 33, 63, 65, 100, 129, 200])
def test_edges(torch, m, layout, dtype):
    """Rows, columns and k that end within a tile, an instruction, and a vector."""
    for n, k in ((1032, 1032), (2050, 519), (4099, 264), (1100, 2049)):
        if m == 1 and layout == "NT":  # a dot product
            continue
        a, b = operands(torch, m, n, k, dtype, layout)
        expected = a.double() @ b.double()
        out = poisoned(torch, (m, n), dtype)
        clusters(a, b, out=out)
        assert torch.equal(out, expected.to(out.dtype)), (n, k)


@DTYPES
def test_few_columns(torch, dtype):
    for n in (1, 9, 24, 60):
        a, b = operands(torch, 1200, n, 1016, dtype, "NT")
        expected = a.double() @ b.double()
        out = poisoned(torch, (1200, n), dtype)
        interop.matmul(a, b, out=out, backend="tiled")
        assert torch.equal(out, expected.to(out.dtype)), n


@DTYPES
@LAYOUTS
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 2)), ((2, 1, 2, 2), (1, 2, 1, 2))],
    ids=str,
)
def test_batches(torch, batch_a, batch_b, layout, dtype):
    a = integers(torch, (*batch_a, 40, 1032), dtype, 1)
    b = integers(torch, (*batch_b, 1032, 200), dtype, 2, layout == "NT")
    expected = a.double() @ b.double()
    out = poisoned(torch, expected.shape, dtype)
    interop.matmul(a, b, out=out, backend="tiled")
    assert torch.equal(out, expected.to(out.dtype))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", [(8, 1024, 2048), (64, 256, 4096), (256, 256, 256)], ids=str)
def test_what_follows_the_sums(torch, shape, layout, dtype):
    m, n, k = shape
    a, b = operands(torch, m, n, k, dtype, layout)
    product = a.double() @ b.double()
    bias, addend = integers(torch, (1, n), dtype, 3)[0], integers(torch, (m, n), dtype, 4)
    assert torch.equal(clusters(a, b, bias=bias, epilogue="relu"), (product + bias.double()).relu().to(a.dtype))
    expected = (2 * product + 3 * addend.double()).to(a.dtype)
    assert torch.equal(clusters(a, b, c=addend, alpha=2, beta=3), expected)
    gelu = torch.nn.functional.gelu(product)
    assert torch.allclose(clusters(a, b, epilogue="gelu").double(), gelu, rtol=1e-2, atol=1e-2)
    by_columns = poisoned(torch, (n, m), dtype).T
    interop.matmul(a, b, out=by_columns, backend="tiled")
    assert torch.equal(by_columns, product.to(a.dtype))
    apart = poisoned(torch, (m, 2 * n + 1), dtype)
    clusters(a, b, out=apart[:, : 2 * n : 2])
    assert torch.equal(apart[:, : 2 * n : 2], product.to(a.dtype))
    assert bool(apart[:, 1::2].isnan().all())
    assert bool(apart[:, 2 * n].isnan().all())


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("m", [2, 20, 70, 130])
def test_special_values_stay_in_their_row_and_column(torch, m, layout, dtype):
    tensors.check_special_values(torch, clusters, *operands(torch, m, 1032, 1500, dtype, layout))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", [(16, 4096, 4096), (64, 4096, 4096), (256, 512, 2048)], ids=str)
def test_the_same_call_gives_the_same_bits(torch, shape, layout, dtype):
    m, n, k = shape
    a, b = operands(torch, m, n, k, dtype, layout)
    for array in (a, b):
        array.copy_(torch.randn(array.shape, device="cuda", dtype=torch.float32))
    first = clusters(a, b)
    assert all(torch.equal(clusters(a, b), first) for _ in range(5))
    expected = a.double() @ b.double()
    bound = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert float((first - expected).norm() / expected.norm()) < bound


@DTYPES
def test_a_product_in_a_graph(torch, dtype):
    a, b = operands(torch, 16, 4096, 4096, dtype, "NT")
    out = poisoned(torch, (16, 4096), dtype)
    clusters(a, b, out=out)
    with graphs.captured(torch) as graph:
        interop.matmul(a, b, out=out, backend="tiled")
    out.fill_(0)
    a.copy_(a + 1)
    graph.replay()
    assert torch.equal(out, (a.double() @ b.double()).to(out.dtype))


def test_which_products(torch):
    weights = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for m in (2, 16, 32):
        assert algorithm_of(weights[:m], weights.T, None).startswith("tiled wgmma clusters"), m
    for m in (1, 16, 32):
        assert algorithm_of(weights[:m], weights, None).startswith("tiled wgmma clusters"), m
    assert algorithm_of(weights[:1], weights.T, None) == "tiled skinny dots 1 row, bfloat16"
    if interop._core.machine_info()["cublas"]:
        wide = torch.ones(4096, 8192, device="cuda", dtype=torch.bfloat16)  # of more bytes
        assert algorithm_of(weights[:64], weights.T, None).startswith("cuBLASLt")
        assert algorithm_of(weights[:16], wide, None).startswith("cuBLASLt")
        assert algorithm_of(weights[:512], weights, None).startswith("cuBLASLt")
