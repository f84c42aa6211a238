"""Array-API namespaces of the array libraries, with interop's functions in the place of the library's own."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import interop

ELEMENTWISE = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "minimum", "maximum", "pow"),
    *("negative", "abs", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
)
FUNCTIONS = (*ELEMENTWISE, "matmul")
LIBRARIES = ("numpy", "torch", "jax", "cupy")

#: How often each function was called through a namespace made here.
calls: Counter[str] = Counter()


def namespace(library: str, device: str = "cpu", own: bool = False) -> ModuleType:
    """Return the library's array-API namespace; with `own`, its own functions, only counted.

    Sets the library's default device, and JAX's 64-bit mode.
    """
    base = _LOADERS[library](device)
    module = _over(base, f"interop_on_{library}" if not own else library)
    for name in FUNCTIONS:
        setattr(module, name, _counted(name, getattr(base, name) if own else _of_interop(name, library, base)))
    module.linalg = _over(base.linalg, f"{module.__name__}.linalg")  # type: ignore[attr-defined]
    module.linalg.matmul = module.matmul
    return module


def _over(base: Any, name: str) -> ModuleType:
    """Return a module that has what `base` has, until it is given something else."""
    module = ModuleType(name)
    module.__getattr__ = functools.partial(getattr, base)  # type: ignore[method-assign]
    return module


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **options)

    return counted


def _of_interop(name: str, library: str, base: Any) -> Callable[..., Any]:
    function = getattr(interop, name)

    @functools.wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        if library == "numpy":
            # What NumPy makes of 0-d arrays in passing: to interop a scalar, to the standard an array.
            operands = tuple(np.asarray(x) if isinstance(x, np.generic) else x for x in operands)
        if library == "torch":
            operands = _with_strong_0d(base, operands)
        return function(*operands, **options)

    return call


def _with_strong_0d(torch: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Promote a 0-d tensor as the standard does: to torch, and so to interop, it is weak beside others.

    array_api_compat does so around torch's own functions.
    """
    if len(operands) < 2 or not all(isinstance(x, torch.Tensor) for x in operands) or all(x.ndim for x in operands):
        return operands
    common = torch.result_type(*operands)
    return tuple(x.to(common) for x in operands)


# ---- the libraries ----


def _numpy(device: str) -> Any:
    return np


def _torch(device: str) -> Any:
    module = importlib.import_module("array_api_compat.torch")
    module.set_default_device(device)
    _let_wide_unsigned_be_compared_with_zero(module)
    return module


def _let_wide_unsigned_be_compared_with_zero(torch: Any) -> None:
    """Answer the suite's `exponents >= 0` and `divisors == 0`, which torch cannot for uint16 to uint64 everywhere."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    ge, eq = torch.Tensor.__ge__, torch.Tensor.__eq__

    def asks_of_wide(x: Any, y: Any) -> bool:
        return x.dtype in signed and isinstance(y, int) and y == 0

    def is_at_least(x: Any, y: Any) -> Any:
        return torch.ones_like(x, dtype=torch.bool) if asks_of_wide(x, y) else ge(x, y)

    def is_equal(x: Any, y: Any) -> Any:
        return eq(x.view(signed[x.dtype]), 0) if asks_of_wide(x, y) else eq(x, y)

    torch.Tensor.__ge__, torch.Tensor.__eq__ = is_at_least, is_equal


def _jax(device: str) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_device", jax.devices(device)[0])
    return jax.numpy


def _cupy(device: str) -> Any:
    compat = importlib.import_module("array_api_compat.cupy")
    module: Any = _over(compat, "cupy")

    def asarray(x: Any, *, dtype: Any = None, **options: Any) -> Any:
        """Make a 0-d array of a scalar by way of NumPy: CuPy fills it, with -0.0 as with 0."""
        if not isinstance(x, float | complex):
            return compat.asarray(x, dtype=dtype, **options)
        return compat.asarray(np.asarray([x], dtype), **options).reshape(())

    module.asarray = asarray
    return module


_LOADERS = {"numpy": _numpy, "torch": _torch, "jax": _jax, "cupy": _cupy}
