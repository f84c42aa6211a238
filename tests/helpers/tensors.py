"""Products of torch tensors on the GPU whose kernel a test names: their operands, and checks that go for every kernel.

Operands are small integers, so that sums are exact in any order and results are compared for equality. `multiply` is
the test's own function, which sees to it that the kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import interop

from . import forms, graphs

#: Of kernels with one block a tile: alike, broadcast either way, and in more dimensions than a kernel takes.
BATCHES = pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((5,), (5,)), ((5,), ()), ((), (5,)), ((3, 1), (1, 4)), ((2, 1, 2, 3, 2), (1, 2, 2, 1, 2))],
    ids=str,
)


def poisoned(torch: ModuleType, shape: tuple[int, ...], dtype: str) -> Any:
    return torch.full(shape, math.nan, device="cuda", dtype=getattr(torch, dtype))


def integers(
    torch: ModuleType,
    shape: tuple[int, ...],
    dtype: str,
    seed: int,
    transposed: bool = False,
    *,
    first: int = 0,
    step: int = 1,
    pitch: Callable[[int], int] = lambda length: length + 8,
) -> Any:
    """Integers from -3 to 3, complex ones of two of them, and NaN in between.

    In rows (columns, if transposed) of every `step`th element from `first` on, `pitch(step * length)` apart.
    """
    *batch, rows, columns = shape
    outer, inner = (columns, rows) if transposed else (rows, columns)
    view = poisoned(torch, (*batch, outer, pitch(step * inner)), dtype)[..., first : first + step * inner : step]
    generator = torch.Generator("cuda").manual_seed(seed)

    def values() -> Any:
        return torch.randint(-3, 4, view.shape, device="cuda", generator=generator).double()

    view.copy_(torch.complex(values(), values()) if view.is_complex() else values())
    return view.mT if transposed else view


def product(a: Any, b: Any) -> Any:
    """By torch, in float64 or complex128."""
    return a @ b if a.is_complex() else a.double() @ b.double()


def operands(torch: ModuleType, m: int, n: int, k: int, dtype: str, layout: str = "NN", **rows: Any) -> tuple[Any, Any]:
    return (
        integers(torch, (m, k), dtype, 1, layout[0] == "T", **rows),
        integers(torch, (k, n), dtype, 2, layout[1] == "T", **rows),
    )


def check_batches(
    torch: ModuleType,
    multiply: Callable[..., Any],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
    dtype: str,
    transposed: bool,
    *,
    m: int = 172,
    **rows: Any,
) -> None:
    a = integers(torch, (*batch_a, m, 136), dtype, 1, transposed, **rows)
    b = integers(torch, (*batch_b, 136, 203), dtype, 2, transposed, **rows)
    expected = product(a, b)
    out = poisoned(torch, expected.shape, dtype)
    multiply(a, b, out=out)
    assert torch.equal(out, expected.to(out.dtype))


def check_library(library: Any, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    """The arrays of any library that has the dtype get there."""
    x, y = (np.random.default_rng(seed).integers(-3, 4, shape) for seed, shape in ((1, a_shape), (2, b_shape)))
    kind = forms.numpy_dtype(dtype)
    try:
        a, b = library.make(x.astype(kind)), library.make(y.astype(kind))
    except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError) as error:
        pytest.skip(f"{library!r} has no {dtype}: {error}")
    c = interop.matmul(a, b, backend="tiled")
    assert library.is_ours(c)
    assert np.array_equal(library.to_numpy(c), (x @ y).astype(kind))


def check_values(torch: ModuleType, multiply: Callable[..., Any], a: Any, b: Any, dtype: str) -> None:
    """Also with a wider result."""
    expected = product(a, b)
    out = poisoned(torch, expected.shape, dtype)
    multiply(a, b, out=out)
    assert torch.equal(out, expected.to(out.dtype))
    assert torch.equal(multiply(a, b, dtype="float32"), expected.float())


def check_the_same_bits(torch: ModuleType, multiply: Callable[..., Any], k: int, dtype: str) -> None:
    """Each time, of a product of 16-bit floats; and that it is right."""
    a = torch.randn(520, k, device="cuda").to(getattr(torch, dtype))
    first = multiply(a, a.T)
    assert all(torch.equal(multiply(a, a.T), first) for _ in range(5))
    expected = product(a, a.T)
    assert float((first - expected).norm() / expected.norm()) < 2.0 ** (-10 if dtype == "float16" else -8)


def check_special_values(torch: ModuleType, multiply: Callable[..., Any], a: Any, b: Any) -> None:
    """They stay in their row and column."""
    m, k = a.shape
    row = 177 % m
    a.fill_(1)
    b.fill_(1)
    a[row, -1], b[0, -1] = math.nan, math.inf
    c = multiply(a, b)
    others = [i for i in range(m) if i != row]
    assert bool(c[row].isnan().all())
    assert bool((c[others, -1] == math.inf).all()) or (c.is_complex() and not bool(c[others, -1].isfinite().any()))
    assert bool((c[others, :-1] == k).all())


def check_results_of_any_layout(torch: ModuleType, multiply: Callable[..., Any], a: Any, b: Any, dtype: str) -> None:
    m, n = len(a), b.shape[1]
    expected = product(a, b).to(a.dtype)
    for name, base_shape, view in (
        ("padded", (m, n + 8), lambda base: base[:, :n]),
        ("padded by one", (m, n + 1), lambda base: base[:, :n]),
        ("begins at any element", (m, n + 3), lambda base: base[:, 1 : n + 1]),
        ("transposed", (n, m), lambda base: base.T),
        ("transposed and padded", (n, m + 5), lambda base: base[:, :m].T),
        ("every second column", (m, 2 * n), lambda base: base[:, ::2]),
        ("every second row", (2 * m, n), lambda base: base[::2]),
    ):
        base = poisoned(torch, base_shape, dtype)
        out = view(base)
        multiply(a, b, out=out)
        assert torch.equal(out, expected), name
        out.fill_(math.nan)
        assert bool(base.isnan().all()), name  # nor anything else was written


def check_all_terms(
    torch: ModuleType,
    multiply: Callable[..., Any],
    a: Any,
    b: Any,
    dtype: str,
    bias_shape: str,
    order: str,
    aux_order: str | None = None,
    **rows: Any,
) -> None:
    """With a result of `dtype`, a bias for its "row" or "column", and `out` (and `aux`) in "rows" or "columns".

    Complex numbers have no epilogue, and so no `aux`.
    """
    m, n = len(a), b.shape[1]
    c = integers(torch, (m, n), dtype, 3, **rows)
    bias = integers(torch, (1, n) if bias_shape == "row" else (m, 1), dtype, 4, **rows)
    bias = bias[0] if bias_shape == "row" else bias
    made = {"rows": lambda: poisoned(torch, (m, n), dtype), "columns": lambda: poisoned(torch, (n, m), dtype).T}
    out, aux = made[order](), made[aux_order or order]()
    expected = 2 * product(a, b) - 3 * c + bias
    if out.is_complex():
        multiply(a, b, c=c, alpha=2, beta=-3, bias=bias, out=out)
        assert torch.equal(out, expected)
        return
    multiply(a, b, c=c, alpha=2, beta=-3, bias=bias, epilogue="relu", aux=aux, out=out)
    assert torch.equal(aux, expected.to(aux.dtype))
    assert torch.equal(out, expected.relu().to(out.dtype))


def check_captured(torch: ModuleType, a: Any, b: Any, dtype: str) -> None:
    """Calls of the `tiled` backend in a graph of torch's, replayed with other values."""
    k = len(b)
    out = poisoned(torch, (len(a), b.shape[1]), dtype)
    with graphs.captured(torch) as graph:
        c = interop.matmul(a, b, backend="tiled")
        interop.matmul(a, b, out=out, epilogue="relu", backend="tiled")
    for value in (0.25, -0.25):
        a.fill_(value)
        b.fill_(0.5)
        c.fill_(math.nan)
        out.fill_(math.nan)
        graph.replay()
        assert bool((c == value * k / 2).all())
        assert bool((out == max(value, 0) * k / 2).all())
