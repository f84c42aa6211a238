"""Products of Dask arrays: lazy, and for all shapes, dtypes and terms those of NumPy's arrays."""

from __future__ import annotations

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from helpers import machine
from hypothesis import strategies as st

import interop

RNG = np.random.default_rng(7)


def integers(shape, dtype="float64"):
    """Small whole numbers, whose sums are exact in any order."""
    return RNG.integers(-4, 5, shape).astype(dtype)


SHAPES = [
    ((5, 7), (7, 4)),
    ((7,), (7,)),
    ((5, 7), (7,)),
    ((7,), (7, 4)),
    ((3, 5, 7), (7, 4)),
    ((5, 7), (3, 7, 4)),
    ((3, 1, 5, 7), (2, 7, 4)),
    ((3, 5, 7), (7,)),
    ((7,), (3, 7, 4)),
    ((0, 7), (7, 4)),
    ((5, 0), (0, 4)),
    ((0,), (0,)),
    ((2, 0, 7), (7, 0)),
]


@pytest.mark.parametrize("chunks", [(-1, -1), (2, 2), (3, 4), (2, -1), (1, 1)])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
def test_shapes(shapes, chunks, blocks):
    a, b = map(integers, shapes)
    lazy = interop.matmul(blocks.make(a, chunks[0]), blocks.make(b, chunks[1]))
    blocks.check(lazy, np.asarray(a @ b))


@st.composite
def products(draw):
    """Two shapes that multiply, and the chunks of each."""
    sizes = st.integers(1, 4)
    m, n, k = draw(sizes), draw(sizes), draw(st.integers(0, 5))
    batch = draw(st.lists(sizes, max_size=2))
    shapes = []
    for matrix in ((m, k), (k, n)):
        kept = batch[draw(st.integers(0, len(batch))) :]
        shapes.append((*(draw(st.sampled_from([1, size])) for size in kept), *matrix))
    if draw(st.booleans()):
        shapes[0] = (k,)
    if draw(st.booleans()):
        shapes[1] = (k,)
    return [(shape, tuple(draw(st.integers(1, max(size, 1))) for size in shape)) for shape in shapes]


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
@hypothesis.given(products())
@hypothesis.settings(max_examples=60)
def test_any_shapes_and_chunks(da, given):
    (a, b) = (integers(shape) for shape, _ in given)
    lazy = interop.matmul(*(da.from_array(x, chunks=chunks) for x, (_, chunks) in zip((a, b), given, strict=True)))
    expected = np.asarray(a @ b)
    assert lazy.shape == expected.shape
    assert np.array_equal(lazy.compute(scheduler="sync"), expected)


def test_each_block_of_the_result_is_of_the_pair_of_blocks(blocks):
    lazy = interop.matmul(blocks.make(integers((6, 8)), (4, 3)), blocks.make(integers((8, 5)), (5, 2)))
    assert lazy.chunks == ((4, 2), (2, 2, 1))


def test_no_block_is_joined_with_another(da):
    """Nothing larger than a block of an operand, or of the result, is ever made: k is not contracted."""
    sizes = []

    def seen(x):
        sizes.append(x.size)
        return x

    a = da.from_array(integers((8, 64)), chunks=(4, 4)).map_blocks(seen, dtype="float64", meta=np.empty((0, 0)))
    b = da.from_array(integers((64, 8)), chunks=(4, 4)).map_blocks(seen, dtype="float64", meta=np.empty((0, 0)))
    keys = dict(interop.matmul(a, b).dask)
    assert not any("concatenate" in repr(task) for task in keys.values())
    interop.matmul(a, b).compute(scheduler="sync")
    assert set(sizes) == {16}


DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [-1, 3])
def test_dtypes(dtype, chunk, blocks):
    if dtype == "bfloat16" and blocks.library is not np:
        pytest.skip("CuPy has no bfloat16")
    kind = getattr(ml_dtypes, dtype, dtype)
    a, b = (integers(shape).astype(kind) for shape in ((5, 40), (40, 3)))
    blocks.check(interop.matmul(blocks.make(a, chunk), blocks.make(b, chunk)), interop.matmul(a, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_sums_are_rounded_once(dtype, da):
    """4096 + 1 + ... + 1 is 4096 again in 16 bits, where each of the parts is added by itself."""
    kind = getattr(ml_dtypes, dtype, dtype)
    a, b = np.ones((1, 64), kind), np.ones((64, 1), kind)
    a[0, 0], b[0, 0] = 64, 64
    lazy = interop.matmul(da.from_array(a, chunks=(1, 1)), da.from_array(b, chunks=(1, 1)))
    expected = interop.matmul(a, b)
    assert lazy.dtype == expected.dtype
    assert lazy.compute() == expected == np.float32(4096 + 63).astype(kind)


def test_dtype(blocks):
    a, b = np.full((2, 6), 100, "int8"), np.full((6, 3), 100, "int8")
    lazy = interop.matmul(blocks.make(a, 2), blocks.make(b, 2), dtype="int32")
    blocks.check(lazy, np.full((2, 3), 60000, "int32"))
    wide = interop.matmul(blocks.make(a.astype("float32"), 2), blocks.make(b.astype("float32"), -1), dtype=np.float64)
    blocks.check(wide, np.full((2, 3), 60000, "float64"))
    with pytest.raises(TypeError, match="interop.matmul: dtype is int8, and the operands are float32"):
        interop.matmul(blocks.make(a.astype("float32"), 2), blocks.make(b.astype("float32"), 2), dtype="int8")


@pytest.mark.parametrize("k_chunk", [-1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "terms",
    [
        {"alpha": 0.5},
        {"alpha": 0},
        {"c": (5, 4)},
        {"c": (4,), "beta": -2},
        {"c": (5, 1), "beta": np.float64(0.5), "alpha": 3},
        {"c": (5, 4), "beta": 0},
        {"bias": (4,)},
        {"bias": (5, 1)},
        {"bias": (4,), "epilogue": "relu"},
        {"epilogue": "gelu"},
        {"c": (5, 4), "beta": 2, "bias": (5, 1), "epilogue": "gelu_tanh", "alpha": -1},
    ],
    ids=str,
)
def test_terms(terms, dtype, k_chunk, blocks):
    a, b = integers((5, 7), dtype), integers((7, 4), dtype)
    plain = {name: integers(x, dtype) if name in ("c", "bias") else x for name, x in terms.items()}
    lazy = {name: blocks.make(x, 2) if name in ("c", "bias") else x for name, x in plain.items()}
    found = interop.matmul(blocks.make(a, (2, k_chunk)), blocks.make(b, (k_chunk, 3)), **lazy)
    blocks.check(found, interop.matmul(a, b, **plain), rtol=1e-6 if dtype != "float16" else 1e-3)


@pytest.mark.parametrize(
    "shapes", [((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 5)), ((2, 5, 7), (7,)), ((2, 5, 7), (7, 5))]
)
def test_terms_of_vectors_and_batches(shapes, blocks):
    a, b = (integers(shape, "float32") for shape in shapes)
    result = np.asarray(a @ b)
    c, bias = integers(result.shape, "float32"), integers(result.shape[-1:], "float32")
    expected = interop.matmul(a, b, c=c, bias=bias, epilogue="relu")
    lazy = interop.matmul(
        blocks.make(a, 3), blocks.make(b, 3), c=blocks.make(c, 2), bias=blocks.make(bias, 2), epilogue="relu"
    )
    blocks.check(lazy, expected)


@pytest.mark.parametrize("k_chunk", [-1, 16])
def test_a_factor_of_zero_reads_no_operand(k_chunk, da):
    a = da.from_array(np.full((2, 32), np.nan, "float32"), chunks=(2, k_chunk))
    b = da.from_array(np.ones((32, 2), "float32"), chunks=(k_chunk, 2))
    c = np.ones((2, 2), "float32")
    assert np.array_equal(interop.matmul(a, b, alpha=0, c=c).compute(), c)
    nothing = np.full((2, 2), np.nan, "float32")
    assert np.array_equal(interop.matmul(da.ones_like(a), b, c=nothing, beta=0).compute(), np.full((2, 2), 32))


@pytest.mark.parametrize("k_chunk", [-1, 16])
def test_float8_with_scales(k_chunk, da):
    a, b = (integers(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((4, 32), (32, 4)))
    scale = np.array([0.5], "float32")
    expected = interop.matmul(a, b, scale_a=scale, scale_b=2.0)
    lazy = interop.matmul(
        da.from_array(a, chunks=(2, k_chunk)), da.from_array(b, chunks=(k_chunk, 2)), scale_a=scale, scale_b=2.0
    )
    assert lazy.dtype == expected.dtype == ml_dtypes.bfloat16
    assert np.array_equal(lazy.compute(), expected)
    with pytest.raises(TypeError, match="scale_a is an array of Dask's.*; accepted: a scalar, or an array of NumPy"):
        interop.matmul(da.from_array(a), b, scale_a=da.from_array(scale))


def test_unknown_chunks(blocks):
    a, b = integers((6, 4)), integers((4, 3))
    lazy = blocks.unknown(a, (2, 2))
    blocks.check(interop.matmul(lazy, blocks.make(b, 2)), a @ b)
    blocks.check(interop.matmul(lazy.T, lazy), a.T @ a)
    blocks.check(
        interop.matmul(lazy, blocks.make(b, 2), bias=blocks.make(b[0], 2), epilogue="relu"), np.maximum(a @ b + b[0], 0)
    )
    with pytest.raises(ValueError, match=r"blocks along k are unknown, and their numbers differ \(a has 3, b has 2\)"):
        interop.matmul(lazy.T, blocks.make(a, 4))
    with pytest.raises(ValueError, match="inner dimensions 4 and 3 differ"):
        interop.matmul(lazy, blocks.make(b.T, 2))


def test_what_does_not_fit_is_refused_at_once(da):
    a, b = da.ones((4, 6), chunks=3), da.ones((6, 4), chunks=3)
    with pytest.raises(ValueError, match="interop.matmul: .* inner dimensions 6 and 4 differ"):
        interop.matmul(a, a)
    with pytest.raises(ValueError, match="bias has shape"):
        interop.matmul(a, b, bias=da.ones((4, 4)))
    with pytest.raises(TypeError, match="c is float32; accepted: the result's dtype, float64"):
        interop.matmul(a, b, c=da.ones((4, 4), dtype="float32"))
    with pytest.raises(TypeError, match="epilogue is given, and the result is int64"):
        interop.matmul(a.astype(int), b.astype(int), epilogue="relu")
    with pytest.raises(ValueError, match="epilogue is 'sigmoid'"):
        interop.matmul(a, b, epilogue="sigmoid")
    with pytest.raises(ValueError, match="backend is given, but the arrays are in host memory"):
        interop.matmul(a, b, backend="tiled")
    with pytest.raises(ValueError, match="beta is given, and there is no c"):
        interop.matmul(a, b, beta=2)


@pytest.mark.parametrize("option", ["out", "aux", "stream", "execution", "autotune"])
def test_options_are_refused_by_name(option, da):
    a = da.ones((4, 4), chunks=2)
    value = {"stream": 2, "execution": "cuda", "autotune": False}.get(option, a)
    with pytest.raises(TypeError, match=rf"^interop.matmul: {option} is .*, and the call is Dask's, which is lazy; "):
        interop.matmul(a, a, **{option: value}, **({"epilogue": "relu"} if option == "aux" else {}))


def test_blocks_that_are_not_read_are_refused(da):
    masked = da.from_array(np.ma.masked_array(np.ones((4, 4)), mask=False), chunks=2)
    with pytest.raises(TypeError, match=r"interop.matmul: b is numpy\.ma.*MaskedArray"):
        interop.matmul(da.ones((4, 4), chunks=2), masked)


@pytest.mark.gpu
def test_blocks_of_two_libraries_are_refused(da, cuda_device):
    cupy = machine.need("cupy")
    a, b = da.ones((4, 4), chunks=2), da.from_array(cupy.ones((4, 4)), chunks=2, asarray=False)
    with pytest.raises(TypeError, match=r"the blocks of a are numpy.ndarray, and those of b cupy.ndarray"):
        interop.matmul(a, b)
    with pytest.raises(TypeError, match="host memory"):
        interop.add(a, b)


def test_calls_of_one_content_have_one_name(da):
    a = da.ones((4, 4), chunks=2)
    assert interop.matmul(a, a, alpha=2).name == interop.matmul(a, a, alpha=2).name
    assert len({interop.matmul(a, a, alpha=x).name for x in (1, 2, 2.5)}) == 3
