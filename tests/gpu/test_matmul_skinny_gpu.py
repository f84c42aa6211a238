"""Products of at most 16 rows or columns, and products with few outputs and a long k, by the `tiled` backend.

Operands are small integers, so that sums are exact in any order and results are compared for equality.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest
from helpers import tensors
from helpers.tensors import integers, operands, poisoned

import interop

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])


@pytest.fixture
def torch(torch):
    """A torch on a card that the kernels are for."""
    if interop._core.machine_info()["devices"][0]["compute_capability"] < (8, 0):
        pytest.skip("the kernels are for compute capability 8.0 and later")
    return torch


def algorithm_of(a, b, **options):
    return interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm


def skinny(a, b, **options):
    """The product, which must be one of those kernels'."""
    algorithm = algorithm_of(a, b, **options)
    is_streamed = algorithm.startswith("tiled wgmma clusters ") and max(a.numel(), b.numel()) * a.element_size() >= 2e6
    assert algorithm.startswith("tiled skinny ") or is_streamed, algorithm
    return interop.matmul(a, b, backend="tiled", **options)


# ---- values ----


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16])
def test_few_rows(torch, m, layout, dtype):
    for n, k in ((1000, 96), (1000, 160), (1000, 512), (2048, 1032), (24, 20008), (392, 1048), (4096, 4104)):
        a, b = operands(torch, m, n, k, dtype, layout)
        expected = a.double() @ b.double()
        out = poisoned(torch, (m, n), dtype)
        skinny(a, b, out=out)
        assert torch.equal(out, expected.to(out.dtype)), (n, k)


@DTYPES
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("m", [2, 4, 5, 8, 11, 16])
def test_a_k_that_ends_within_a_vector(torch, m, layout, dtype):
    for n, k in ((1000, 187), (1000, 509), (392, 1039), (2048, 4101)):
        a, b = operands(torch, m, n, k, dtype, layout, pitch=lambda length: (length + 23) // 8 * 8)
        expected = a.double() @ b.double()
        out = poisoned(torch, (m, n), dtype)
        skinny(a, b, out=out)
        assert torch.equal(out, expected.to(out.dtype)), (n, k)


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("n", [1, 5, 16])
def test_few_columns(torch, n, layout, dtype):
    for m, k in ((1000, 512), (2048, 1032), (70000, 64)):
        a, b = operands(torch, m, n, k, dtype, layout)
        expected = a.double() @ b.double()
        out = poisoned(torch, (m, n), dtype)
        skinny(a, b, out=out)
        assert torch.equal(out, expected.to(out.dtype)), (m, k)


@DTYPES
def test_vectors(torch, dtype):
    matrix = integers(torch, (1000, 1000), dtype, 1)
    x, y = integers(torch, (1, 1000), dtype, 2)[0], integers(torch, (1, 200_001), dtype, 3)[0]
    assert torch.equal(skinny(x, matrix), (x.double() @ matrix.double()).to(x.dtype))
    assert torch.equal(skinny(matrix, x), (matrix.double() @ x.double()).to(x.dtype))
    assert torch.equal(skinny(x, matrix.T), (x.double() @ matrix.T.double()).to(x.dtype))
    assert float(skinny(y, y)) == float((y.double() @ y.double()).to(y.dtype))


@DTYPES
@pytest.mark.parametrize(
    ("batch_a", "batch_b"), [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 1, 2), (1, 3, 2))], ids=str
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "k"), [(1, 96), (1, 192), (2, 192), (4, 256), (1, 1280), (2, 1280), (4, 1280)])
def test_batches(torch, batch_a, batch_b, transposed, m, k, dtype):
    a = integers(torch, (*batch_a, m, k), dtype, 1)
    b = integers(torch, (*batch_b, k, 1000), dtype, 2, transposed)
    expected = a.double() @ b.double()
    out = poisoned(torch, expected.shape, dtype)
    skinny(a, b, out=out)
    assert torch.equal(out, expected.to(out.dtype))


@DTYPES
@LAYOUTS
def test_every_product_is_added_once(torch, layout, dtype):
    wide = "float64" if dtype == "float64" else "float32"
    for m, n in ((1, 24), (9, 24), (24, 40), (136, 72)):  # the last two are no longer skinny
        for k in (4095, 4097, 16383, 65537):
            a, b = operands(torch, m, n, k, dtype, layout)
            a.fill_(1)
            b.fill_(1)
            assert bool((interop.matmul(a, b, dtype=wide, backend="tiled") == k).all()), (m, n, k)


@DTYPES
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("m", [1, 2, 3, 6, 9])
def test_special_values_stay_in_their_row_and_column(torch, m, layout, dtype):
    for k in (200, 1024):
        tensors.check_special_values(torch, skinny, *operands(torch, m, 520, k, dtype, layout))


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("shape", [(1, 4096, 4096), (16, 4096, 1000), (3, 40, 60_000), (100, 120, 30_000)], ids=str)
def test_the_same_call_gives_the_same_bits(torch, shape, layout, dtype):
    m, n, k = shape
    a, b = operands(torch, m, n, k, dtype, layout)
    for array in (a, b):
        array.copy_(torch.randn(array.shape, device="cuda", dtype=torch.float32))
    first = interop.matmul(a, b, backend="tiled")
    assert all(torch.equal(interop.matmul(a, b, backend="tiled"), first) for _ in range(5))
    expected = a.double() @ b.double()
    bound = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-5, "float64": 1e-14}[dtype]
    assert float((first - expected).norm() / expected.norm()) < bound


# ---- layouts and what follows the sums ----


@DTYPES
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k", [400, 1200])
def test_any_layout_of_the_few_rows(torch, k, transposed, dtype):
    b = integers(torch, (k, 1000), dtype, 2, transposed)
    base = integers(torch, (32, 2 * k + 3), dtype, 1, pitch=lambda length: length)
    for m in (1, 2, 5):
        for a in (
            base[:m, :k],
            base[:m, 1 : k + 1],
            base[: 2 * m : 2, 2 : 2 * k + 2 : 2],
            base[:m, :k].flip(1),
            base[:1, :k].expand(m, -1),
        ):
            assert torch.equal(skinny(a, b), (a.double() @ b.double()).to(a.dtype))


@DTYPES
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("m", [1, 2, 5, 16])
def test_results_of_any_layout(torch, m, layout, dtype):
    for k in (200, 1200):
        tensors.check_results_of_any_layout(torch, skinny, *operands(torch, m, 1000, k, dtype, layout), dtype)


@DTYPES
@pytest.mark.parametrize("bias_shape", ["row", "column"])
@pytest.mark.parametrize(
    "shape",
    [(5, 1000, 200), (1000, 5, 200), (2, 1000, 1201), (1000, 1, 1201), (3, 24, 40_000), (40, 24, 20_001)],
    ids=str,
)
def test_all_terms(torch, shape, bias_shape, dtype):
    a, b = operands(torch, *shape, dtype, "NT")
    multiply = functools.partial(interop.matmul, backend="tiled")
    tensors.check_all_terms(torch, multiply, a, b, dtype, bias_shape, "rows", aux_order="columns")


# ---- parts of k ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("k", [16_384, 16_389])
def test_a_long_k_is_divided(torch, k, dtype):
    kind = getattr(torch, dtype)
    x = torch.randint(-3, 4, (100, k), device="cuda")
    a, b = x.to(kind), (x[:70] - 1).T.contiguous().to(kind)
    planned = interop.explain(interop.matmul, a, b, backend="tiled").workspace_bytes
    if not re.search(r" clusters .* [248] blocks", algorithm_of(a, b)):  # those need no workspace
        assert ", split-k " in algorithm_of(a, b) or " packed first" in algorithm_of(a, b)
        assert 0 < planned <= 32 << 20
    expected = x.double() @ (x[:70] - 1).T.double()
    assert torch.equal(interop.matmul(a, b, backend="tiled"), expected.to(kind))


def test_a_batch_of_few_rows_is_cublas_where_it_is_the_quicker(torch):
    for dtype, is_float32 in ((torch.float32, True), (torch.bfloat16, False)):
        ones = torch.ones(1 << 26, device="cuda", dtype=dtype)
        matrices, vectors = ones.view(256, 128, 2048), ones[: 1 << 15].view(256, 1, 128)
        for a, b, is_ours in (
            (vectors, matrices, False),
            (vectors, ones.view(256, 2048, 128).mT, is_float32),
            (ones[: 1 << 17].view(256, 4, 128), matrices, is_float32),
            (ones.view(-1, 16, 16), ones.view(-1, 16, 16), not is_float32),
        ):
            algorithm = interop.explain(interop.matmul, a, b).algorithm
            assert algorithm.startswith("tiled") == (is_ours or not interop._core.machine_info()["cublas"]), algorithm


def test_a_vector_by_a_matrix_along_which_k_runs_is_taken_from_cublas(torch):
    clusters = interop._core.machine_info()["devices"][0]["compute_capability"] == (9, 0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        ones = torch.ones(4096, 4096, device="cuda", dtype=dtype)
        for a, b, is_ours in (
            (ones[0], ones.T, True),
            (ones, ones[0], True),
            (ones[:2], ones.T, dtype == torch.float32 or clusters),
            (ones[0], ones, dtype != torch.float32 and clusters),
        ):
            algorithm = interop.explain(interop.matmul, a, b).algorithm
            assert algorithm.startswith("tiled ") == (is_ours or not interop._core.machine_info()["cublas"]), algorithm


def test_explain(torch):
    ones = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    few = ones[:512, :1600]  # of fewer bytes than stream through clusters
    assert algorithm_of(ones[:1, :512], few) == "tiled skinny 8 rows, bfloat16"
    assert algorithm_of(few.T, ones[:512, :9]) == "tiled skinny 16 rows, bfloat16"
    streamed = "streamed " if interop._core.machine_info()["devices"][0]["compute_capability"] == (9, 0) else ""
    rows = "streamed 4 rows" if streamed else "1 row"
    assert algorithm_of(ones[:1].float(), ones.float()) == f"tiled skinny {rows}, float32"
    assert algorithm_of(ones[:1, :512].float(), ones[:512].float()) == "tiled skinny 1 row, float32"
    assert algorithm_of(ones[:5].float(), ones.float()) == f"tiled skinny {streamed}8 rows, float32"
    assert algorithm_of(ones[:12].float(), ones.float().T) == f"tiled skinny {streamed}16 rows, float32"
    assert algorithm_of(ones[:5].float(), ones.float().T) == f"tiled skinny {streamed}8 rows, float32"
    assert algorithm_of(ones[:4].float(), ones.float().T) == "tiled skinny dots 4 rows, float32"
    assert algorithm_of(ones[:1], ones.T) == "tiled skinny dots 1 row, bfloat16"
    assert algorithm_of(ones[:3, :512], ones[:1600, :512].T) == "tiled skinny 8 rows, bfloat16"
    assert algorithm_of(ones[:1, :200], ones[:, :200].T) == "tiled skinny 8 rows, bfloat16"
    assert algorithm_of(ones[:1, :200].float(), ones[:, :200].float().T) == "tiled skinny dots 1 row, float32"
    assert algorithm_of(ones[:3, :200].float(), ones[:, :200].float().T) == "tiled skinny 4 rows, float32"
    assert algorithm_of(ones[:5, :512], few) == "tiled skinny 8 rows, bfloat16"
    assert algorithm_of(ones[:5].float(), ones[:, :24].float()).startswith("tiled skinny 8 rows, float32")
    for a, b in (
        (ones[:17], ones),
        (ones[:1, :8], ones[:8]),  # as quick by the others
        (ones.view(-1, 16, 16), ones.view(-1, 16, 16)),  # many, and each is small
        (ones[:1], torch.ones(4096, 4097, device="cuda", dtype=torch.bfloat16)),  # rows that are not aligned
        (ones[:1].int(), ones.int()),
    ):
        assert not algorithm_of(a, b).startswith("tiled skinny ")
        assert bool((interop.matmul(a, b, backend="tiled") == a.shape[1]).all())


# ---- capture, other libraries ----


@DTYPES
def test_torch_captures_calls(torch, dtype):
    tensors.check_captured(torch, *operands(torch, 3, 40, 65_536, dtype), dtype)


FIRST_CALL = """
import torch, interop
a = torch.ones(4, 65536, device="cuda")
b = torch.ones(1024, 1024, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g, capture_error_mode="global"):
    c = interop.matmul(a, a.T, backend="tiled")
    d = interop.matmul(a[:, :1024], b, backend="tiled")
a.fill_(2)
g.replay()
assert bool((c == 4 * 65536).all())
assert bool((d == 2 * 1024).all())
"""


def test_the_first_call_of_a_process_may_be_captured(torch, tmp_path):
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@DTYPES
def test_every_library_gets_there(device_library, torch, dtype):
    tensors.check_library(device_library, (2, 4096), (4096, 64), dtype)
