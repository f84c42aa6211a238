"""The elementwise functions by torch's own operations, with this package's rules: differentiated, mapped and fused.

Dynamo traces all of it, but for what depends on dtypes alone, which is computed once, while it traces.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from interop import _core
from interop._operations.promotion import as_promoted, beside, element_of, numpy_dtype, promote
from interop._operations.table import COMPARISONS, OPERATIONS
from interop.torch._constants import constant
from interop.torch._tensors import as_tensor, fill, name_of, needing_grad, refuse_written

__all__ = [
    "as_dtype",
    "by_torch",
    "check_shapes",
    "common_dtype",
    "compute",
    "computed",
    "decomposed",
    "described",
    "element",
    "exponent_of",
    "halved",
    "is_scalar",
    "kind_of",
    "operands_of",
    "refuse_options",
    "side_of",
    "without_autocast",
]


# ---- a call ----


def compute(name: str, a: Any, b: Any, options: dict[str, Any]) -> Any:
    """Compute one of the package's functions by torch's own operations; `b` is None for the unary ones.

    Raises as the public function does; RuntimeError for `out` where an operand requires grad, and ValueError for a
    stream, or another device, which torch's transforms cannot have.
    """
    function = f"interop.{name}"
    out = options.get("out")
    refuse_options(function, options)
    operands = operands_of(function, zip(OPERATIONS[name].parameters, (a, b), strict=False))
    first, second = (*operands.values(), None)[:2]
    result = decomposed(name, first, second, where_zero=options.get("where_zero"))
    if out is None:
        return result
    refuse_written(function, needing_grad({**operands, "out": out}), out=out)
    fill(function, "out", out, result)
    return out


def operands_of(function: str, operands: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return operands by name: scalars, and arrays of any library as tensors."""
    return {name: x if is_scalar(x) else as_tensor(function, name, x) for name, x in operands}


def refuse_options(function: str, options: dict[str, Any]) -> None:
    """Refuse what a call inside a transform cannot have."""
    if options.get("stream") is not None:
        raise ValueError(f"{function}: stream= cannot be used inside torch's transforms: torch chooses the stream")
    if options.get("execution") is not None:
        raise ValueError(f"{function}: execution= cannot be used inside torch's transforms: move the operands first")


def decomposed(name: str, a: Any, b: Any = None, where_zero: Any = None) -> torch.Tensor:
    """Compute a function of tensors and scalars by torch's operations. Plain Python, which Dynamo traces."""
    function = f"interop.{name}"
    parameters = OPERATIONS[name].parameters
    operands = [a, b][: len(parameters)]
    tensors = [(parameter, x) for parameter, x in zip(parameters, operands, strict=True) if isinstance(x, torch.Tensor)]
    check_shapes(function, tensors)
    dtype = common_dtype(name, *map(described, operands))
    like = tensors[0][1]
    if name in COMPARISONS and len(tensors) == 1:
        place = 1 if operands[0] is like else 0
        side = side_of(operands[place], dtype)
        if side:
            name, operands[place] = _beside(name, side, dtype, place == 0)
    with without_autocast(like):
        elements = [
            x if isinstance(x, torch.Tensor) else element(function, parameter, x, dtype, like)
            for parameter, x in zip(parameters, operands, strict=True)
        ]
        zero = None if where_zero is None else element(function, "where_zero", where_zero, dtype, like)
        exponent = exponent_of(b, dtype) if name == "pow" else None
        return computed(name, dtype, *elements, where_zero=zero, exponent=exponent)


def without_autocast(like: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Leave the dtypes of torch's operations as they are, also under `torch.autocast`."""
    place = like.device.type
    if place in ("cpu", "cuda") and torch.is_autocast_enabled(place):
        return torch.autocast(place, enabled=False)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def check_shapes(function: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise as the call without torch's transforms does for shapes that do not broadcast.

    Torch itself does where sizes are not known yet: to compare them would be to decide on them.
    """
    if torch.compiler.is_compiling() or not all(type(size) is int for _, x in tensors for size in x.shape):
        return
    sizes: list[Any] = []  # from the last dimension on
    for _, x in tensors:
        for place, size in enumerate(reversed(x.shape)):
            if place == len(sizes):
                sizes.append(size)
            elif size != 1:
                if sizes[place] != 1 and sizes[place] != size:
                    _core.abstract_operands(function, [(name, tuple(y.shape), None) for name, y in tensors])
                sizes[place] = size


# ---- dtypes, which depend on the operands' dtypes and kinds alone ----


def is_scalar(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex | np.generic | torch.SymInt | torch.SymFloat)


def described(x: Any) -> Any:
    """Return what counts of an operand in promotion: dtype, and is it 0-d; of a scalar one of its kind."""
    if isinstance(x, torch.Tensor):
        return (x.dtype, x.dim() == 0)
    if isinstance(x, bool):
        return True
    if isinstance(x, int | torch.SymInt):
        return 1
    if isinstance(x, float | torch.SymFloat) and not isinstance(x, np.generic):
        return 1.0
    return x


@constant
def common_dtype(name: str, *operands: Any) -> str:
    """Return the dtype in which a function is computed, or raise as the function does."""
    function = f"interop.{name}"
    kinds = [(name_of(x[0]), x[1]) if isinstance(x, tuple) else x for x in operands]
    dtype = _core.shared_dtype(name, kinds)
    if dtype is None:
        named = zip(OPERATIONS[name].parameters, kinds, strict=True)
        _core.abstract_operands(function, [(x, (), kind[0]) for x, kind in named if isinstance(kind, tuple)])
        dtype = promote(function, "torch", OPERATIONS[name].in_float, *as_promoted(kinds))
        if dtype in ("complex32", "bcomplex32"):  # the second one since torch 2.14
            raise TypeError(f"{function}: the operands promote to {dtype}; accepted: {_PROMOTED}")
    _core.abstract_elementwise(name, dtype, [])
    return dtype


_PROMOTED = (
    "what promotes to bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64 "
    "or complex128"
)


@constant
def kind_of(dtype: str) -> str:
    """Return NumPy's letter for the kind of a dtype; "f" for bfloat16."""
    return str(numpy_dtype(dtype).kind).replace("V", "f")


@constant
def _beside(name: str, side: int, dtype: str, is_left: bool) -> tuple[str, Any]:
    return beside(name, side, numpy_dtype(dtype), is_left)


@constant
def _largest(dtype: str) -> float:
    """Return the least number that a float dtype, or that of a complex one's parts, makes an infinity."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    bits, exponent = {"float16": (11, 16), "bfloat16": (8, 128), "float32": (24, 128)}.get(part, (0, 0))
    return 2.0**exponent * (1 - 2.0 ** -(bits + 1)) if bits else sys.float_info.max


@constant
def _range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def side_of(scalar: Any, dtype: str) -> int:
    """Tell where a finite real scalar lies beside all that a dtype holds: -1 below, 1 above, 0 among it."""
    if isinstance(scalar, complex | np.complexfloating):
        return 0
    if isinstance(scalar, np.generic):
        scalar = scalar.item()
    if isinstance(scalar, torch.SymInt) and dtype in ("int64", "uint64"):
        return 0  # a size, which is of any value to a graph
    if kind_of(dtype) in "biu":
        if not isinstance(scalar, int | torch.SymInt):
            return 0
        least, largest = _range(dtype)
        return -1 if scalar < least else 1 if scalar > largest else 0
    least_infinite = _largest(dtype)
    if dtype in ("float64", "complex128"):
        is_among = not isinstance(scalar, int) or -least_infinite <= scalar <= least_infinite
        return 0 if is_among else 1 if scalar > 0 else -1
    if -least_infinite < scalar < least_infinite or scalar != scalar or scalar in (float("inf"), float("-inf")):
        return 0
    return 1 if scalar > 0 else -1


def element(function: str, name: str, scalar: Any, dtype: str, like: torch.Tensor) -> torch.Tensor:
    """Return a scalar as a 0-d tensor, where `like` is; raises as the call without torch's transforms does."""
    kind = kind_of(dtype)
    if isinstance(scalar, np.generic):
        scalar = scalar.item()
    if kind in "iu":
        least, largest = _range(dtype)
        is_size = isinstance(scalar, torch.SymInt) and dtype in ("int64", "uint64")
        if not is_size and not least <= scalar <= largest:
            _refuse_scalar(function, name, scalar, dtype)
        if not is_size and scalar > _INT64_MAX:
            scalar = scalar - 2**64  # the same bits
        return as_dtype(like.new_full((), scalar, dtype=torch.int64), dtype)
    if kind == "b":
        return like.new_full((), bool(scalar), dtype=torch.bool)
    if (kind != "c" and isinstance(scalar, complex)) or (
        isinstance(scalar, int) and not -_largest("float64") <= scalar <= _largest("float64")
    ):
        _refuse_scalar(function, name, scalar, dtype)
    number = scalar if isinstance(scalar, complex) else torch.sym_float(scalar)
    wide = torch.complex128 if isinstance(scalar, complex) else torch.float64
    # Not new_full, for each value of which torch would compile anew.
    return (like.new_ones((), dtype=wide) * number).to(getattr(torch, dtype))


def exponent_of(scalar: Any, dtype: str) -> float | None:
    """Return a scalar as an exponent of `dtype`; None where it is a tensor, or may be an input of a graph.

    Torch's power by a tensor has a derivative by that, too, with a logarithm: at 0 and below, what goes backward
    through a tangent is NaN.
    """
    if torch.compiler.is_dynamo_compiling() or isinstance(scalar, torch.Tensor | torch.SymInt | torch.SymFloat):
        return None
    return float(np.asarray(scalar).astype(numpy_dtype(dtype))) if kind_of(dtype) == "f" else None


def _refuse_scalar(function: str, name: str, scalar: Any, dtype: str) -> None:
    element_of(function, name, scalar, numpy_dtype(dtype))


# ---- the operations ----

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def as_dtype(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Convert to a dtype; "bool" asks whether an element is nonzero."""
    return x.to(getattr(torch, dtype))


def computed(
    name: str,
    dtype: str,
    *operands: torch.Tensor,
    where_zero: torch.Tensor | None = None,
    exponent: float | None = None,
) -> torch.Tensor:
    """Compute a function of tensors in `dtype`, to which they are converted; `where_zero` is of it.

    `exponent` is the second operand of a power, where that is a number.
    """
    kind = kind_of(dtype)
    if name in COMPARISONS and kind in "biu":
        return _compare_integers(name, *operands)
    if dtype == "uint64":
        return _of_uint64(name, *(x.to(torch.int64) for x in operands)).to(torch.uint64)
    if kind == "u":  # torch has few operations on them; the low bits are those of int64
        return as_dtype(_of_integers(name, *(x.to(torch.int64) for x in operands)), dtype)
    x = [as_dtype(x, dtype) for x in operands]
    if where_zero is not None:
        dividend, divisor = x
        is_zero = divisor == 0
        # No division by zero, whose derivative would be NaN.
        return torch.where(is_zero, where_zero, dividend / torch.where(is_zero, 1, divisor))
    if kind == "i":
        return _of_integers(name, *x)
    if name in ("floor_divide", "remainder"):
        return _divide_floats(name, *x)
    if kind == "b" and name == "abs":
        return x[0].clone()
    if kind == "f" and exponent is not None and abs(exponent) != 0.5:  # torch takes roots, and that of -inf is NaN
        return torch.pow(x[0], exponent)
    # torch multiplies by 1 + 0j before it adds, which makes an infinity NaN, and subtracts from 0 to negate.
    if kind == "c" and name in ("add", "subtract", "negative"):
        parts = [by_torch(name, *[part(y) for y in x]) for part in (torch.real, torch.imag)]
        return torch.complex(*parts)
    if kind == "c" and name == "pow":
        return torch.where(x[1] == 0, 1, by_torch(name, *x))
    return by_torch(name, *x)


def by_torch(name: str, *operands: torch.Tensor) -> torch.Tensor:
    """Compute by torch's own function."""
    result: torch.Tensor = getattr(torch, OPERATIONS[name].torch or name)(*operands)
    return result


def _divide_floats(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divide as NumPy does; a compiler's own quotients and remainders are others at infinities.

    16-bit floats are computed in float32, and rounded once, at the end.
    """
    dtype = a.dtype
    if dtype.itemsize == 2:
        a, b = a.float(), b.float()
    if name == "remainder":
        of_infinity = torch.where(_is_beside(a, b), a + b, a)
        return torch.where(torch.isinf(b) & torch.isfinite(a), of_infinity, torch.remainder(a, b)).to(dtype)
    x, y = a.detach(), b.detach()  # whose quotient is flat
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y - _is_beside(rest, y).to(rest.dtype)
    floor = torch.floor(quotient)
    floor = floor + (quotient - floor > 0.5).to(rest.dtype)
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(quotient), x / y), floor)
    floor = torch.where(y == 0, x / y, floor)
    return torch.where(torch.zeros_like(floor, dtype=torch.bool), a + b, floor).to(
        dtype
    )  # of which torch knows a slope


def _is_beside(rest: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Has the remainder, which has the sign of the dividend, to get that of the divisor?"""
    return (rest != 0) & ((rest < 0) != (b < 0))


def _of_integers(name: str, *x: torch.Tensor) -> torch.Tensor:
    """Compute a function of signed integers, which torch may refuse to divide by 0 and, some, by -1."""
    if name not in ("floor_divide", "remainder"):
        return by_torch(name, *x)
    a, b = x
    is_special = (b == 0) | (b == -1)
    quotient = torch.div(a, torch.where(is_special, 1, b), rounding_mode="floor")
    quotient = torch.where(is_special, -a * (b == -1), quotient)
    return quotient if name == "floor_divide" else torch.where(is_special, 0, a - quotient * b)


def _of_uint64(name: str, *x: torch.Tensor) -> torch.Tensor:
    """Compute a function of unsigned integers by their bits, as int64."""
    if name in ("add", "subtract", "multiply", "negative"):
        return _of_integers(name, *x)
    if name == "abs":
        return x[0].clone()
    a, b = x
    if name in ("minimum", "maximum"):
        return torch.where(_at_least(a, b) == (name == "minimum"), b, a)
    if name == "pow":  # in two steps, the exponent of each of which is positive
        return torch.pow(a * a, halved(b)) * torch.where(b & 1 == 1, a, 1)
    quotient = _divide_uint64(a, b)
    return quotient if name == "floor_divide" else torch.where(b == 0, 0, a - quotient * b)


def halved(x: torch.Tensor) -> torch.Tensor:
    return (x >> 1) & _INT64_MAX


def _at_least(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a ^ _INT64_MIN) >= (b ^ _INT64_MIN)


def _divide_uint64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divide the half of `a`, which has a sign bit to spare, and see what is left; by 2**63 or more, 0 or 1."""
    divisor = torch.where(b > 0, b, 1)
    quotient = torch.div(halved(a), divisor, rounding_mode="floor") << 1
    quotient = quotient + _at_least(a - quotient * divisor, divisor)
    large = torch.where(b < 0, _at_least(a, b).to(torch.int64), 0)
    return torch.where(b > 0, quotient, large)


def _compare_integers(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compare exactly, whatever the two dtypes."""
    compare = getattr(torch, OPERATIONS[name].torch or name)
    if torch.uint64 not in (a.dtype, b.dtype):
        result: torch.Tensor = compare(a.to(torch.int64), b.to(torch.int64))
        return result
    (a_side, a), (b_side, b) = (_beside_int64(x) for x in (a, b))
    return torch.where(a_side == b_side, compare(a, b), compare(a_side, b_side))


def _beside_int64(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what orders integers of any dtype first, and second: their bits as int64."""
    bits = x.to(torch.int64)
    side = (bits < 0).to(torch.int8)
    return (side if x.dtype == torch.uint64 else -side), bits
