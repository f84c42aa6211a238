"""Products of the `tiled` backend on Hopper whose operands are packed first: of integers, and of unaligned floats.

Sums are exact in any order, so that results are compared for equality.
"""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest
from helpers import graphs, tensors

import interop

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# (m, n, k): each tile, ragged in each dimension, one row, few columns, a short and a long k.
SHAPES = [(128, 256, 256), (300, 333, 257), (1000, 1100, 530), (2300, 2100, 165), (1, 1500, 3000), (2000, 3, 999)]
SHAPES += [(533, 501, 4097)]


@pytest.fixture(autouse=True)
def _hopper():
    if interop._core.machine_info()["devices"][0]["compute_capability"] != (9, 0):
        pytest.skip("the kernels are for compute capability 9.0")
    if "90a" not in interop._core.build_info()["architectures"]:
        pytest.skip("this build has no code for 90a")


def draw(cupy, shape, dtype, seed, transposed=False):
    rng = np.random.default_rng(seed)
    *batch, rows, columns = shape
    outer = (*batch, columns, rows) if transposed else tuple(shape)
    if dtype == "bool":
        x = rng.random(outer) < 0.02
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, outer, dtype=dtype, endpoint=True)
    return cupy.asarray(x).swapaxes(-1, -2) if transposed else cupy.asarray(x)


def expected(a, b, dtype):
    """The product modulo 2^64, by CuPy's own kernel, as that dtype."""
    if a.dtype == bool:
        return (a.astype("int64") @ b.astype("int64")) != 0
    return (a.astype("int64") @ b.astype("int64")).astype(dtype)


def tiled(a, b, packs=None, **options):
    """The product, which must be one by tensor cores."""
    algorithm = interop.explain(interop.matmul, a, b, backend="tiled", **options).algorithm
    assert algorithm.startswith("tiled wgmma"), algorithm
    if packs is not None:
        assert re.findall(r"; (.*) (?:is|are) packed first", algorithm) == packs, algorithm
    return interop.matmul(a, b, backend="tiled", **options)


@LAYOUTS
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_every_dtype_and_layout(cupy, dtype, layout):
    for i, (m, n, k) in enumerate(SHAPES):
        a = draw(cupy, (m, k), dtype, i, layout[0] == "T")
        b = draw(cupy, (k, n), dtype, i + 100, layout[1] == "T")
        got = interop.matmul(a, b, backend="tiled")
        assert cupy.array_equal(got, expected(a, b, dtype)), (m, n, k)


@pytest.mark.parametrize("dtype", ["int32", "uint64", "int8"])
def test_which_shapes_go_to_tensor_cores(cupy, dtype):
    names = set()
    for m, n, k in [(1000, 1000, 1000), (1200, 1100, 800), (2300, 2300, 512), (4000, 3000, 256)]:
        a, b = draw(cupy, (m, k), dtype, 1), draw(cupy, (k, n), dtype, 2)
        result = "int32" if dtype == "int8" else None
        algorithm = interop.explain(interop.matmul, a, b, backend="tiled", dtype=result).algorithm
        assert algorithm.startswith("tiled wgmma 128x"), algorithm
        names.add(algorithm.split()[2])
        assert cupy.array_equal(interop.matmul(a, b, backend="tiled", dtype=result), expected(a, b, result or dtype))
    assert len(names) > 1


@pytest.mark.parametrize(
    ("operands", "result", "passes"),
    [
        (("int8", "int8"), "int32", 1),
        (("uint8", "uint8"), "int32", 1),
        (("int8", "uint8"), "int16", 1),
        (("uint8", "int8"), "int32", 1),
        (("int8", "int8"), "int8", 1),
        (("int16", "int16"), "int32", 4),
        (("uint16", "int16"), "int32", 4),
        (("int16", "int16"), "int16", 3),
        (("int32", "int32"), "int32", 10),
        (("uint64", "uint64"), "uint64", 36),
    ],
)
def test_widening(cupy, operands, result, passes):
    a, b = draw(cupy, (1100, 1000), operands[0], 1), draw(cupy, (1000, 1203), operands[1], 2)
    assert f", {passes} pass" in interop.explain(interop.matmul, a, b, backend="tiled", dtype=result).algorithm
    got = tiled(a, b, dtype=result)
    assert got.dtype == result
    assert cupy.array_equal(got, expected(a, b, result))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("ends", ["min", "max", "both"])
def test_extreme_values(cupy, dtype, ends):
    limits = np.iinfo(dtype)
    choices = {"min": [limits.min], "max": [limits.max], "both": [limits.min, limits.max, -1 % (limits.max + 1)]}[ends]
    rng = np.random.default_rng(3)
    a, b = (cupy.asarray(rng.choice(np.array(choices, dtype), shape)) for shape in ((1100, 1015), (1015, 1203)))
    wide = "int32" if dtype in ("int8", "int16") else dtype
    assert cupy.array_equal(tiled(a, b, dtype=wide), expected(a, b, wide))


def test_a_long_k_of_the_largest_bytes(cupy):
    """In 64 bits, sums of bytes are moved on before they reach 2^32."""
    a, b = cupy.full((128, 70001), -1, "int64"), cupy.full((70001, 130), -1, "int64")
    assert cupy.array_equal(interop.matmul(a, b, backend="tiled"), cupy.full((128, 130), 70001, "int64"))
    a = cupy.full((128, 70001), 255, "uint8")
    got = interop.matmul(a, a.T, backend="tiled", dtype="uint32")
    assert cupy.array_equal(got, cupy.full((128, 128), 70001 * 255 * 255 % 2**32, "uint32"))
    true = cupy.ones((300, 70001), bool)
    assert bool(interop.matmul(true, true.T, backend="tiled").all())


def test_a_bool_of_another_byte_is_true(cupy):
    x = cupy.full((1024, 1024), 2, "uint8").view(bool)
    assert bool(tiled(x, x).all())


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_views_and_batches(cupy, dtype):
    wide = "int32" if dtype == "int8" else dtype
    base = draw(cupy, (3, 2, 601, 1300), dtype, 5)
    other = draw(cupy, (2, 640, 1130), dtype, 6)
    a, b = base[:, :, ::-1, 3:1283:2], other[:, :, ::-2]
    got = tiled(a, b, ["a and b"], dtype=wide)
    assert cupy.array_equal(got, expected(a, b, wide))
    broadcast = cupy.broadcast_to(base[0, 0, :, :640], (4, 601, 640))
    assert cupy.array_equal(tiled(broadcast, other[0], dtype=wide), expected(broadcast, other[0], wide))
    row = cupy.broadcast_to(other[0, :1], (640, 1130))
    assert cupy.array_equal(interop.matmul(a[0, 0], row, backend="tiled", dtype=wide), expected(a[0, 0], row, wide))
    deep = draw(cupy, (2, 1, 2, 1, 2, 64, 340), dtype, 7)
    right = draw(cupy, (1, 2, 1, 2, 1, 340, 72), dtype, 8)
    got = interop.matmul(deep, right, backend="tiled", dtype=wide)
    assert cupy.array_equal(got, expected(deep, right, wide))


def test_bytes_along_k_are_not_packed(cupy):
    a, b = draw(cupy, (1024, 1040), "int8", 1), draw(cupy, (1040, 1024), "int8", 2, transposed=True)
    assert cupy.array_equal(tiled(a, b, [], dtype="int32"), expected(a, b, "int32"))
    assert cupy.array_equal(tiled(a, b.copy(), ["b"], dtype="int32"), expected(a, b, "int32"))
    assert cupy.array_equal(tiled(a[:, 1:], b[1:], ["a and b"], dtype="int32"), expected(a[:, 1:], b[1:], "int32"))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint64"])
def test_terms_and_outputs(cupy, dtype):
    m, n, k = 1100, 1214, 1015
    a, b = draw(cupy, (m, k), dtype, 1), draw(cupy, (k, n), dtype, 2)
    c, bias = draw(cupy, (m, n), dtype, 3), draw(cupy, (1, n), dtype, 4)[0]
    product = expected(a, b, dtype)
    got = tiled(a, b, c=c.T.copy().T, alpha=3, beta=5, bias=bias)
    assert cupy.array_equal(got, product * cupy.asarray(3, dtype) + c * cupy.asarray(5, dtype) + bias)
    column = draw(cupy, (m, 1), dtype, 5)
    assert cupy.array_equal(tiled(a, b, bias=column), product + column)
    for out in (
        cupy.empty((n, m), dtype).T,
        cupy.empty((m, 2 * n), dtype)[:, ::2],
        cupy.empty((m, n + 1), dtype)[:, 1:],
    ):
        out[...] = 77
        assert tiled(a, b, out=out) is out
        assert cupy.array_equal(out, product)
    assert tiled(a, b, c=c, out=c) is c
    assert cupy.array_equal(c, product + draw(cupy, (m, n), dtype, 3))


def test_what_lies_around_the_result_stays(cupy):
    a, b = draw(cupy, (1033, 1001), "int32", 1), draw(cupy, (1001, 977), "int32", 2)
    around = cupy.full((1040, 1000), 123, "int32")
    part = around[3:1036, 7:984]
    tiled(a, b, out=part)
    assert cupy.array_equal(part, expected(a, b, "int32"))
    part[...] = 123
    assert bool((around == 123).all())


def test_the_workspace_is_the_callers(torch):
    a = torch.randint(-9, 9, (1024, 1024), device="cuda", dtype=torch.int32)
    out = torch.empty_like(a)
    interop.matmul(a, a, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    interop.matmul(a, a, out=out)
    plan = interop.explain(interop.matmul, a, a, out=out)
    assert plan.workspace_bytes == 2 * 1024 * 1024 * 4
    assert torch.cuda.max_memory_allocated() - before == plan.workspace_bytes
    assert torch.cuda.memory_allocated() == before


def test_in_a_graph_and_of_jax(torch, jax):
    a, b = (torch.randint(-(2**31), 2**31, (700, 700), device="cuda").int() for _ in range(2))
    want = interop.matmul(a, b, backend="tiled")
    with graphs.captured(torch) as graph:
        got = interop.matmul(a, b, backend="tiled")
    got.zero_()
    graph.replay()
    assert torch.equal(got, want)
    x, y = jax.dlpack.from_dlpack(a), jax.dlpack.from_dlpack(b)
    np.testing.assert_array_equal(np.asarray(interop.matmul(x, y)), want.cpu().numpy())
    product = jax.jit(lambda x, y: interop.matmul(x, y) + 1)
    np.testing.assert_array_equal(np.asarray(product(x, y)), (want + 1).cpu().numpy())


# ---- 16-bit floats that TMA cannot read ----


# In rows of an odd length.
floats = functools.partial(tensors.integers, first=1, pitch=lambda length: length + 3 + length % 2)


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_unaligned_floats(torch, dtype, layout):
    for i, (m, n, k) in enumerate([(1023, 1023, 1023), (301, 2000, 513), (2047, 1, 999), (4095, 3001, 65)]):
        a = floats(torch, (m, k), dtype, i, layout[0] == "T")
        b = floats(torch, (k, n), dtype, i + 9, layout[1] == "T")
        want = (a.float() @ b.float()).to(a.dtype)
        assert torch.equal(interop.matmul(a, b, backend="tiled"), want), (m, n, k)
    a, b = floats(torch, (1023, 1001), dtype, 1), floats(torch, (1001, 1003), dtype, 2)
    assert torch.equal(tiled(a, b, ["a and b"]), (a.float() @ b.float()).to(a.dtype))
    wide = tiled(a, b, dtype="float32")
    assert torch.equal(wide, a.float() @ b.float())
    aligned = b[:, :1000].contiguous()
    assert torch.equal(tiled(a, aligned, ["a"]), (a.float() @ aligned.float()).to(a.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_unaligned_floats_in_batches_with_terms(torch, dtype):
    a, b = floats(torch, (3, 2, 333, 401), dtype, 1), floats(torch, (2, 401, 277), dtype, 2)
    bias = floats(torch, (1, 277), dtype, 3)[0]
    got = tiled(a, b, ["a and b"], bias=bias, epilogue="relu")
    assert torch.equal(got, torch.relu(a.float() @ b.float() + bias.float()).to(a.dtype))
    assert not bool(torch.isnan(got).any())


def test_special_values_of_unaligned_floats(torch):
    a, b = floats(torch, (601, 601), "bfloat16", 1), floats(torch, (601, 601), "bfloat16", 2)
    a[3, 5], a[7, 9], b[11, 13] = math.inf, math.nan, -math.inf
    want = (a.float() @ b.float()).bfloat16()
    got = tiled(a, b)
    assert torch.equal(torch.isnan(got), torch.isnan(want))
    assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(want))
