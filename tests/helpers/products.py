"""Matrix products to compute: shapes, layouts, random operands, and how exact the answer must be."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

DTYPES = ("float32", "float64")

SHAPES = (
    ((3,), (3,)),
    ((1,), (1,)),
    ((1009,), (1009,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((1, 1), (1, 1)),
    ((1, 5), (5, 1)),
    ((5, 1), (1, 7)),
    ((2, 3), (3, 5)),
    ((64, 64), (64, 64)),
    ((65, 33), (33, 129)),
    ((131, 257), (257, 67)),
    ((4, 2, 3), (4, 3, 5)),
    ((4, 1, 2, 3), (7, 3, 5)),
    ((2, 3), (6, 3, 5)),
    ((6, 2, 3), (3, 5)),
    ((3,), (4, 3, 5)),
    ((4, 2, 3), (3,)),
    ((2, 1, 1, 2, 3), (1, 5, 1, 3, 2)),
    ((1, 1, 2, 3), (3, 4)),
    # nothing to add up: zeros
    ((0,), (0,)),
    ((2, 0), (0, 3)),
    ((4, 2, 0), (0, 3)),
    # nothing at all
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((0, 0), (0, 0)),
    ((0, 2, 3), (3, 2)),
    ((0, 2, 3), (1, 3, 2)),
    ((3, 0, 2, 4), (1, 4, 5)),
)


def shape_id(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return "@".join("x".join(map(str, shape)) for shape in shapes)


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


# ---- layouts: base, compact, and the view of it that is the operand ----

# The elements of the base that the view leaves out are NaN: one that is read by mistake shows in the result.


def _hidden(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def _compact(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw(shape, dtype, seed)
    return base, base


def _transposed(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = np.ascontiguousarray(draw(shape, dtype, seed).swapaxes(-1, -2))
    return base, base.swapaxes(-1, -2)


def _fully_transposed(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = np.ascontiguousarray(draw(shape, dtype, seed).T)
    return base, base.T


def _sliced(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = _hidden((*shape[:-2], shape[-2] * 2, shape[-1] * 3), dtype)
    view = base[..., ::2, ::3]
    view[...] = draw(shape, dtype, seed)
    return base, view


def _padded(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = _hidden((*shape[:-1], shape[-1] + 3), dtype)
    view = base[..., : shape[-1]]
    view[...] = draw(shape, dtype, seed)
    return base, view


def _offset(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = _hidden((math.prod(shape) + 1,), dtype)
    view = base[1:].reshape(shape)
    view[...] = draw(shape, dtype, seed)
    return base, view


def _reversed(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw(shape, dtype, seed)
    return base, base[..., ::-1, ::-1]


def _reversed_batch(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw(shape, dtype, seed)
    return base, base[::-1]


def _repeated_rows(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw((*shape[:-2], 1, shape[-1]), dtype, seed)
    return base, np.broadcast_to(base, shape)


def _repeated_columns(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw((*shape[:-1], 1), dtype, seed)
    return base, np.broadcast_to(base, shape)


def _repeated_matrix(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw(shape[-2:], dtype, seed)
    return base, np.broadcast_to(base, shape)


def _one_value(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    base = draw((1,), dtype, seed)
    return base, np.broadcast_to(base, shape)


def _windows(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that overlap: row i is elements i to i + columns."""
    base = draw((*shape[:-2], shape[-2] + shape[-1] - 1), dtype, seed)
    return base, np.lib.stride_tricks.sliding_window_view(base, shape[-1], axis=-1)


LAYOUTS: dict[str, Callable[[tuple[int, ...], str, int], tuple[np.ndarray, np.ndarray]]] = {
    "compact": _compact,
    "transposed": _transposed,
    "fully transposed": _fully_transposed,
    "sliced": _sliced,
    "padded": _padded,
    "offset": _offset,
    "reversed": _reversed,
    "reversed batch": _reversed_batch,
    "repeated rows": _repeated_rows,
    "repeated columns": _repeated_columns,
    "repeated matrix": _repeated_matrix,
    "one value": _one_value,
    "windows": _windows,
}
NEGATIVE = {"reversed", "reversed batch"}
SELF_OVERLAPPING = {"repeated rows", "repeated columns", "repeated matrix", "one value", "windows"}
OUT_LAYOUTS = tuple(name for name in LAYOUTS if name not in SELF_OVERLAPPING)


def special_values(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return operands with infinities, NaN, the smallest and the largest numbers, and their product."""
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    x = np.array([[np.inf, 1], [np.nan, 1], [0, 1], [tiny, 0], [huge, 0], [-huge, 0]], dtype)
    y = np.array([[0, 1, np.inf, 2], [1, 1, 1, 0]], dtype)
    with np.errstate(all="ignore"):
        return x, y, (x[:, :, None] * y).sum(1)


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Name one turn of a loop in its failure."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


# ---- the answer, and how near to it a result must be ----

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


@functools.cache
def listed(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> tuple[np.ndarray, ...]:
    """Random operands, their product in higher precision, and that of their absolute values; made once."""
    x, y = draw(shapes[0], dtype, 1), draw(shapes[1], dtype, 2)
    return x, y, exact(x, y), exact(abs(x), abs(y))


def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the product in a higher precision than the operands'."""
    higher = {"float32": np.float64, "float64": np.longdouble}[x.dtype.name]
    return np.matmul(x.astype(higher), y.astype(higher))


def check_product(c: np.ndarray, x: np.ndarray, y: np.ndarray, expected: Any = None, magnitude: Any = None) -> None:
    """Every element within the bound that holds for a sum of k products in any order: k u / (1 - k u) of |x| |y|."""
    expected = exact(x, y) if expected is None else expected
    magnitude = exact(abs(x), abs(y)) if magnitude is None else magnitude
    assert c.shape == expected.shape
    assert c.dtype == x.dtype
    k = x.shape[-1]
    u = UNIT_ROUNDOFF[x.dtype.name]
    bound = (k + 1) * u / (1 - (k + 1) * u) * magnitude
    error = abs(c.astype(expected.dtype) - expected)
    assert np.all(error <= bound), f"off by up to {np.max(error / np.maximum(bound, 1e-300)):.3g} of the bound"


def check_norm(c: np.ndarray, x: np.ndarray, y: np.ndarray, expected: Any = None) -> None:
    """The error as a whole: what float32 and float64 accumulation give on a GPU, and TF32 (1e-4 and more) does not."""
    expected = exact(x, y) if expected is None else expected
    if expected.size < 64:
        return  # so few elements may all be small by cancellation; each has its bound in `check_product`
    k = x.shape[-1]
    bound = 2e-6 + 1e-7 * math.sqrt(k) if x.dtype == np.float32 else 1e-14
    error = np.linalg.norm((c.astype(expected.dtype) - expected).ravel())
    norm = np.linalg.norm(expected.ravel())
    assert error <= bound * norm, f"relative error {error / norm:.3g}, bound {bound:.3g}"


def pair(library: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> tuple[Any, ...]:
    """Return random operands as arrays of the library, then as NumPy's."""
    x, y = draw(shapes[0], dtype, 1), draw(shapes[1], dtype, 2)
    return library.make(x), library.make(y), x, y


# ---- any layout, for property tests ----


@st.composite
def strided(
    draw: Any, shape: tuple[int, ...], dtype: str, negative: bool, repeated: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a compact base of small integers, and a view of it: dimensions in any order, any steps, gaps, an offset."""
    order = draw(st.permutations(range(len(shape))))
    choices = [1, 1, 2, 3, *([0] if repeated else []), *([-1, -2] if negative else [])]
    steps = draw(st.tuples(*[st.sampled_from(choices) for _ in shape]))
    gaps = draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2)) for _ in shape]))
    extents = [g + max(n - 1, 0) * abs(s) + 1 + h for n, s, (g, h) in zip(shape, steps, gaps, strict=True)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = rng.integers(-8, 9, [extents[i] for i in order]).astype(dtype)
    start, strides = 0, [0] * len(shape)
    for place, i in enumerate(order):
        step = base.strides[place]
        strides[i] = step * steps[i]
        first = gaps[i][0] + (-steps[i] * max(shape[i] - 1, 0) if steps[i] < 0 else 0)
        start += step * first
    flat = base.reshape(-1)[start // base.itemsize :]
    return base, np.lib.stride_tricks.as_strided(flat, shape, strides)
