"""Elementwise functions and expressions as torch's transforms and its record call them."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers import elements
from interop._expressions.parser import parse
from interop._expressions.typed import Split
from interop._operations.table import OPERATIONS


def tensor(torch: Any, values: Any, dtype: str, place: str) -> Any:
    """Return values of NumPy as a tensor."""
    kind = elements.dtype_of(dtype)
    array = np.ascontiguousarray(np.asarray(values).astype(kind))
    made = torch.from_numpy(array.astype(np.float32)).bfloat16() if dtype == "bfloat16" else torch.from_numpy(array)
    return made.to(place)


def special(torch: Any, dtype: str, place: str) -> Any:
    """Return elements at which operations behave in their own way, and ordinary ones."""
    kind = elements.kind_of(dtype)
    drawn = elements.draw((20,), dtype)
    if kind == "f":
        return tensor(torch, np.concatenate([elements.SPECIAL, drawn.astype(np.float64)]), dtype, place)
    if kind in "iu":
        limits = np.iinfo(dtype)
        least, largest = int(limits.min), int(limits.max)
        numbers = [least, least + 1, 0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, largest // 2, largest - 1, largest]
        numbers += [-1, -2, -3] if kind == "i" else [largest // 2 + 1]
        return tensor(torch, np.concatenate([np.array(numbers, object).astype(dtype), drawn]), dtype, place)
    return tensor(torch, drawn, dtype, place)


def ordinary(torch: Any, shape: tuple[int, ...], dtype: str, place: str, seed: int = 0) -> Any:
    """Return elements at which all is smooth: between 0.3 and 1.3, and complex ones with parts like these."""
    generator = np.random.default_rng([seed, *shape])
    values = 0.3 + generator.random(shape)
    if dtype in elements.COMPLEX:
        values = values + 1j * generator.random(shape)
    return tensor(torch, values, dtype, place)


def function_of_torch(torch: Any, name: str) -> Any:
    """Return torch's own function; `torch.floor_divide` has no second derivative, `torch.div` has."""
    if name == "floor_divide":
        return lambda a, b: torch.div(a, b, rounding_mode="floor")
    return getattr(torch, OPERATIONS[name].torch)


def assert_close(torch: Any, result: Any, expected: Any, units: int = 16) -> None:
    """Compare: integers and bools exactly, floats to `units` of the last place of the largest of a number's parts."""
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.device.type == expected.device.type
    if not (expected.is_floating_point() or expected.is_complex()):
        assert torch.equal(result, expected)
        return
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(result, expected, rtol=units * eps, atol=units * eps, equal_nan=True)


def split_of(text: str, *operands: Any) -> Split:
    """Return the expression as a call with these operands has it."""
    parsed = parse(text)
    pairs = zip(parsed.parameters, operands, strict=True)
    scalars = frozenset(name for name, x in pairs if isinstance(x, bool | int | float | complex | np.generic))
    return Split(f"interop.elementwise({text!r})", parsed, scalars)
