"""Operators of Dask arrays: which axes may have several blocks is what the signature says."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import interop

X = np.arange(1, 121, dtype="float64").reshape(4, 5, 6)
S = np.arange(6, 0, -1, dtype="float64")

scaled = interop.operator(
    "tests_dask::scaled",
    lambda x, s, b, eps: interop.add(interop.multiply(x, s), interop.multiply(b, eps)),
    "x[..., n], s[n], b[n], eps -> [..., n]",
)
softmax = interop.operator("tests_dask::softmax", lambda x: _softmax(x), "x[..., n] -> [..., n]")
outer = interop.operator(
    "tests_dask::outer", lambda a, b: interop.multiply(a[:, None], b[None]), "a[m], b[n] -> [m, n]", cut="m, n"
)
product = interop.operator(
    "tests_dask::product", lambda a, b: interop.matmul(a, b), "a[..., m, k], b[k, n] -> [..., m, n]; sum k", cut="m, n"
)
moments = interop.operator(
    "tests_dask::moments", lambda x: (x.sum(-1), x.max(-1), x[..., :2] + 0), "x[..., n] -> [...], [...], [..., 2]"
)
halves = interop.operator(
    "tests_dask::halves", lambda x: x[..., ::2] + 0, "x[..., n] -> [..., k]", sizes={"k": lambda n: (n + 1) // 2}
)
square = interop.operator("tests_dask::square", lambda x: interop.matmul(x, x), "x[..., n, n] -> [..., n, n]")


def _softmax(x):
    power = interop.elementwise("exp(x - m)")(x, x.max(-1, keepdims=True))
    return interop.divide(power, power.sum(-1, keepdims=True))


def test_leading_axes_have_blocks(blocks):
    x = blocks.make(X, (2, (1, 4), 6))
    lazy = scaled(x, blocks.make(S, 6), blocks.make(S, 6), 2.0)
    blocks.check(lazy, X * S + S * 2)
    assert lazy.chunks == x.chunks
    blocks.check(scaled(x, eps=2.0, b=blocks.make(S, 6), s=blocks.make(S, 6)), X * S + S * 2)


def test_arrays_of_numpy_join(da):
    assert np.array_equal(scaled(X, da.from_array(S, chunks=6), S, 2).compute(), X * S + S * 2)
    assert np.array_equal(scaled(da.from_array(X, chunks=(2, 2, 6)), S, S, 2).compute(), X * S + S * 2)


def test_a_softmax_is_not_cut(blocks):
    lazy = softmax(blocks.make(X, (2, 2, 6)))
    expected = np.exp(X - X.max(-1, keepdims=True))
    blocks.check(lazy, expected / expected.sum(-1, keepdims=True), rtol=1e-14)
    with pytest.raises(ValueError, match=r"axis 2 of x, n, has 2 blocks, .*; accepted: x.rechunk\({2: -1}\)") as raised:
        softmax(blocks.make(X, (2, 2, 3)))
    *_, text, carets = str(raised.value).splitlines()
    assert text[carets.index("^")] == "n"


def test_cut_axes(blocks):
    lazy = outer(blocks.make(S, 4), blocks.make(X[0, 0], 5))
    assert lazy.chunks == ((4, 2), (5, 1))
    blocks.check(lazy, S[:, None] * X[0, 0])


@pytest.mark.parametrize("chunks", [(2, 2, 2), (4, 5, 6), (1, 5, 4), ((1, 3), (2, 3), (1, 5))])
def test_sums(chunks, blocks):
    b = np.arange(18.0).reshape(6, 3)
    blocks.check(product(blocks.make(X, chunks), blocks.make(b, (4, 2))), X @ b)
    blocks.check(product(blocks.make(X, chunks), blocks.make(b, -1)), X @ b)


def test_sums_of_16_bits_are_added_up_in_32(da):
    a, b = np.ones((1, 64), "float16"), np.ones((64, 1), "float16")
    a[0, 0] = b[0, 0] = 64
    lazy = product(da.from_array(a, chunks=(1, 1)), da.from_array(b, chunks=(1, 1)))
    assert lazy.dtype == np.float16
    assert lazy.compute() == np.float16(4096 + 63)


def test_several_results(blocks):
    results = moments(blocks.make(X, (2, 3, 6)))
    for lazy, expected in zip(results, (X.sum(-1), X.max(-1), X[..., :2]), strict=True):
        blocks.check(lazy, expected)
    assert results[2].chunks == ((2, 2), (3, 2), (2,))


def test_several_results_are_computed_by_one_call(da):
    calls = []

    def both(x):
        calls.append(x.shape)
        return x + 1, x + 2

    operator = interop.operator("tests_dask::both", both, "x[..., n] -> [..., n], [..., n]")
    a, b = sys.modules["dask"].compute(*operator(da.from_array(X, chunks=(2, 5, 6))), scheduler="sync")
    assert np.array_equal(a + 1, b)
    assert calls == [(2, 5, 6)] * 2


def test_sizes_and_repeated_letters(blocks):
    blocks.check(halves(blocks.make(X, (2, 2, 6))), X[..., ::2])
    x = X[:, :4, :4]
    blocks.check(square(blocks.make(x, (1, 4, 4))), x @ x)
    with pytest.raises(ValueError, match="axis 1 of x, n, has 2 blocks"):
        square(blocks.make(x, (1, 2, 2)))


def test_sizes_of_the_leading_axes(blocks):
    counted = interop.operator(
        "tests_dask::counted",
        lambda x: x[..., None, 0] * np.ones(x[..., 0].size),
        "x[..., n] -> [..., k]",
        sizes={"k": lambda leading: leading},
    )
    if blocks.library is np:
        blocks.check(counted(blocks.make(X[0], (5, 6))), X[0][:, :1] * np.ones(5))
    with pytest.raises(ValueError, match="the size k of a result depends on the leading axes, of several blocks"):
        counted(blocks.make(X[0], (2, 6)))


def test_sizes_of_zero(blocks):
    blocks.check(scaled(blocks.make(X[:0], (2, 2, 6)), blocks.make(S, 6), blocks.make(S, 6), 2.0), X[:0])
    blocks.check(product(blocks.make(X[..., :0], 2), blocks.make(np.ones((0, 3)), 2)), np.zeros((4, 5, 3)))


def test_unknown_chunks(blocks):
    x, flat = blocks.unknown(X.reshape(20, 6), (6, 6)), X.reshape(20, 6)
    blocks.check(scaled(x, blocks.make(S, 6), blocks.make(S, 6), 2.0), flat * S + S * 2)
    blocks.check(product(x.T, x), flat.T @ flat)
    with pytest.raises(ValueError, match=r"blocks along k are unknown, and their numbers differ \(a has 4, b has 2\)"):
        product(x.T, blocks.make(flat, (10, 6)))
    with pytest.raises(ValueError, match="the size k of a result depends on n, of unknown size"):
        halves(blocks.unknown(X.reshape(20, 6), (20, 6)).T)


def test_what_does_not_fit_is_refused_at_once(da):
    x = da.from_array(X, chunks=(2, 2, 6))
    with pytest.raises(ValueError, match="tests_dask::scaled: n is 5 in s, .* and 6 in x"):
        scaled(x, S[:5], S, 2)
    with pytest.raises(TypeError, match="b is list, beside an array of Dask's; accepted: arrays of Dask, NumPy"):
        scaled(x, S, [1.0], 2)
    with pytest.raises(TypeError, match="eps is an array of Dask's.*; accepted: a number"):
        scaled(x, S, S, da.from_array(S)[0])
    for option in ({"stream": 2}, {"execution": "cuda"}):
        with pytest.raises(TypeError, match=f"{next(iter(option))}= cannot be used"):
            scaled(x, S, S, 2, **option)


def test_calls_of_one_content_have_one_name(da):
    x = da.from_array(X, chunks=(2, 2, 6))
    assert scaled(x, S, S, 2).name == scaled(x, S, S, 2).name != scaled(x, S, S, 3).name


def test_what_a_block_gives_is_checked(da):
    wrong = interop.operator("tests_dask::wrong", lambda x: x[..., :1], "x[..., n] -> [..., n]")
    lazy = wrong(da.from_array(X, chunks=(2, 5, 6)))
    with pytest.raises(ValueError, match=r"tests_dask::wrong: call returned an array of shape \(2, 5, 1\)"):
        lazy.compute(scheduler="sync")
