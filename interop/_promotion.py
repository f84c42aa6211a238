"""The dtype in which operands are computed, as their array library says, asked once; and scalars in that dtype."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import ml_dtypes
import numpy as np

from interop._arguments import shown

__all__ = [
    "COMPARISONS",
    "REAL",
    "accepted_factor",
    "configuration",
    "dtype_name",
    "element_of",
    "factor_of",
    "numpy_dtype",
    "promote",
]

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

#: What promotion needs of an operand: (dtype, is it 0-d) of an array; a scalar of Python or NumPy.
Operand = tuple[str, bool] | bool | int | float | complex | np.generic | None

_known: dict[tuple[Any, ...], str] = {}  # bounded: dtypes, flags and a few configurations


def promote(function: str, library: str, divides: bool, a: Operand, b: Operand, compares: bool = False) -> str:
    """Return the name of the dtype in which `function` computes operands `a` and `b` (None: it has one operand).

    Scalars of Python are weak: they count by their kind alone. With `divides`, integers give the library's default
    float; with `compares`, JAX's signed and unsigned ones give int64, where that holds both: what JAX itself takes
    without its x64 mode would wrap. Raises TypeError where the library has no answer, in its own words.
    """
    rules = _RULES.get(library, _numpy)
    key = (library, divides, compares, _key(a), _key(b), configuration(library))
    if key not in _known:
        try:
            is_mixed = compares and library == "jax" and _are_mixed(a, b)
            _known[key] = "int64" if is_mixed else rules(divides, *(x for x in (a, b) if x is not None))
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch's
            names = " and ".join(_describe(x) for x in (a, b) if x is not None)
            raise TypeError(f"{function}: {library} has no common dtype of {names}: {_first_line(error)}") from error
    return _known[key]


def _are_mixed(*operands: Operand) -> bool:
    """Tell whether these are a signed and an unsigned array, both of which int64 holds."""
    dtypes = [numpy_dtype(x[0]) for x in operands if isinstance(x, tuple)]
    return {x.kind for x in dtypes} == {"i", "u"} and all(x.kind == "i" or x.itemsize < 8 for x in dtypes)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _describe(operand: Operand) -> str:
    if isinstance(operand, tuple):
        return operand[0]
    return f"a scalar of {type(operand).__name__}"


def _key(operand: Operand) -> Any:
    return operand if operand is None or isinstance(operand, tuple) else type(operand)


def configuration(library: str) -> Any:
    """Return what a library's promotion depends on beside the operands."""
    if library == "torch":
        return sys.modules["torch"].get_default_dtype()
    if library == "jax":
        config = sys.modules["jax"].config
        return config.jax_enable_x64, config.jax_numpy_dtype_promotion
    return None


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of this name; of bfloat16 and float8, that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def _of_python(scalar: Any) -> Any:
    return scalar.item() if isinstance(scalar, np.generic) else scalar


def _numpy(divides: bool, *operands: Any) -> str:
    dtypes = [numpy_dtype(x[0]) if isinstance(x, tuple) else x for x in operands]
    # Not the scalar's value, which does not count, and might not fit.
    weak = [type(x)(1) if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic) else x
            for x in dtypes]  # fmt: skip
    # ml_dtypes would widen bfloat16 beside a scalar of Python's.
    common = np.result_type(*weak)
    if divides and common.kind in "biu":
        common = np.dtype(np.float64)
    return str(common.name)


def _torch(divides: bool, *operands: Any) -> str:
    torch = sys.modules["torch"]

    def stand_in(x: Any) -> Any:
        if not isinstance(x, tuple):
            return _of_python(x)
        return torch.empty(() if x[1] else (1,), dtype=getattr(torch, x[0]))

    arguments = [stand_in(x) for x in operands]
    common = torch.result_type(*arguments) if len(arguments) == 2 else arguments[0].dtype
    if divides and not (common.is_floating_point or common.is_complex):
        common = torch.get_default_dtype()
    return str(common).removeprefix("torch.")


def _jax(divides: bool, *operands: Any) -> str:
    jax = sys.modules["jax"]
    dtypes = [numpy_dtype(x[0]) if isinstance(x, tuple) else x for x in operands]
    # 64-bit arrays stay so in JAX's 32-bit mode, in which it would narrow the answer.
    is_wide = any(isinstance(x, np.dtype) and x.itemsize >= 8 and x != np.complex64 for x in dtypes)
    with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
        common = jax.numpy.result_type(*dtypes)
        if divides and common.kind in "biu":
            common = jax.numpy.result_type(float)
    return str(common.name)


_RULES = {"torch": _torch, "jax": _jax}


_SCALARS = ("alpha", "beta", "scale_a", "scale_b", "where_zero")  # which no array of another dtype may be


def element_of(function: str, name: str, scalar: Any, dtype: Any) -> Any:
    """Return a scalar as a 0-d NumPy array.

    OverflowError, naming the parameter, if the dtype cannot hold the integer; TypeError for a complex number in a real
    dtype.
    """
    is_integer = isinstance(scalar, int | np.integer)
    fits = True
    if dtype.kind in "iu" and is_integer:
        limits = np.iinfo(dtype)
        fits = limits.min <= int(scalar) <= limits.max
    elif is_integer:
        fits = abs(int(scalar)) <= sys.float_info.max
    elif dtype.kind != "c" and isinstance(scalar, complex | np.complexfloating):
        raise TypeError(f"{function}: {name} is {shown(scalar)}, and the result is {dtype}; accepted: a real number")
    if not fits:
        raise OverflowError(
            f"{function}: {name} is {shown(scalar)}, which {dtype} cannot hold; accepted: a value in its range"
            + ("" if name in _SCALARS else ", or an array")
        )
    return np.asarray(scalar).astype(dtype)


def factor_of(function: str, name: str, factor: Any, dtype: Any, kind: Any) -> Any:
    """Return a factor of a product of `dtype` as a 0-d NumPy array of `kind`, the dtype it is added up in.

    Raises TypeError for what is no scalar, and for one that is not of the product's kind: a fraction beside integers, a
    complex number beside reals, anything but 1 beside bool.
    """
    if dtype.kind == "b" and isinstance(factor, bool | int | np.bool_ | np.integer) and factor == 1:
        return np.ones((), kind)
    kinds = {"i": _INTEGRAL, "u": _INTEGRAL, "c": REAL | complex | np.complexfloating}.get(dtype.kind, REAL)
    if dtype.kind == "b" or not isinstance(factor, kinds):
        raise TypeError(
            f"{function}: {name} is {shown(factor)} ({type(factor).__name__}), and the product is {dtype}; "
            f"accepted: {accepted_factor(dtype)}"
        )
    return element_of(function, name, factor, dtype if dtype.kind in "iu" else kind).astype(kind)


_INTEGRAL = bool | int | np.bool_ | np.integer
REAL = _INTEGRAL | float | np.floating


def accepted_factor(dtype: Any) -> str:
    """Say what scalars are factors of a product of that dtype."""
    return {"b": "1", "i": "an integer", "u": "an integer", "c": "a number"}.get(dtype.kind, "a real number")


def dtype_name(function: str, dtype: Any) -> str:
    """Return the name of a dtype of any library, or of the name itself; TypeError for what is none."""
    if (type(dtype).__module__, type(dtype).__name__) == ("torch", "dtype"):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, str) and hasattr(ml_dtypes, dtype):
        return dtype
    try:
        return str(np.dtype(dtype).name)
    except Exception as error:  # NumPy's, of whatever kind
        raise TypeError(
            f"{function}: dtype is {shown(dtype)}; accepted: None, a name, a dtype of NumPy, torch or JAX"
        ) from error
