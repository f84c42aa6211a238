"""Writes the CUDA source of a typed expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interop import _core
from interop._cuda import nvrtc
from interop._expressions.typed import ArrayRef, Constant, Reference, Step, Typed, ValueRef, kind_of
from interop._operations.table import COMPARISONS

__all__ = ["KERNEL", "OPTIONS", "load", "source"]

KERNEL = "interop_expression"

#: For `interop._cuda.nvrtc.load`. Each operation rounds by itself, as the same calls one after the other would.
OPTIONS = {"std": "c++17", "fma": False, "diag_suppress": 177}  # 177: not every function is used

_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}


def load(
    typed: Typed, passed: Sequence[bool], walk: str, tile: int, vector: int, unroll: int, architecture: str
) -> _core.LoadedKernel:
    """Return the kernel of `source` for devices of one architecture, compiled if it is not known yet."""
    text = source(typed, passed, walk, tile, vector, unroll)
    (kernel,) = nvrtc.load(typed.function, text, [KERNEL], OPTIONS, architecture)
    return kernel


def source(typed: Typed, passed: Sequence[bool], walk: str, tile: int, vector: int, unroll: int) -> str:
    """Return the source of one kernel, `KERNEL`.

    `passed` says of each array whether it is passed by value; those come after `typed.values`. The kernel takes the
    arguments of `walk` ("Flat", "Rows" or "Tiles") and works by vectors of `vector` elements: by `unroll` of them a
    thread, or by tiles of `tile` elements each way.
    """
    values = len(typed.values)
    read: list[str] = []
    names: dict[int, str] = {}
    prologue: list[str] = []
    for k, (_, dtype) in enumerate(typed.values):
        prologue.append(_value(dtype, k))
    for index, dtype in enumerate(typed.arrays):
        if passed[index]:
            prologue.append(_value(dtype, values))
            names[index] = f"v{values}"
            values += 1
        else:
            names[index] = f"x{len(read)}"
            read.append(_TYPES[dtype])
    body = [f"const {_TYPES[step.out_dtype]} s{j} = {_call(step, names)};" for j, step in enumerate(typed.steps)]
    parameters = "".join(f", {dtype} x{k}" for k, dtype in enumerate(read))
    lines = "\n    ".join([*prologue, *body, f"return s{len(typed.steps) - 1};"])
    run = {
        "Flat": f"run_flat<{vector}",
        "Rows": f"run_vectors<{vector}, {unroll}",
        "Tiles": f"run_tiles<{tile}, {vector}",
    }[walk]
    return f"""{_core.Expression.kernel_source}
namespace interop::cuda::elementwise {{
struct Expression {{
  using Out = {_TYPES[typed.out_dtype]};
  INTEROP_DEVICE static Out compute(const ValueArgs* values{parameters}) {{
    {lines}
  }}
}};
}}
using namespace interop::cuda::elementwise;
extern "C" __global__ void __launch_bounds__(kThreads)
{KERNEL}(const __grid_constant__ {walk}::Loop loop,
{" " * len(KERNEL)} const __grid_constant__ Several<{walk}::Array, {len(read) + 1}> arrays,
{" " * len(KERNEL)} const __grid_constant__ Several<ValueArgs, {max(values, 1)}> values) {{
  const {", ".join(["ByElement<Expression", *read])}> function{{}};
  {", ".join([run, *(f"Of<{dtype}>" for dtype in read)])}>(loop, arrays.at, values.at, function);
}}
"""


def _value(dtype: str, k: int) -> str:
    return f"const {_TYPES[dtype]} v{k} = value_of<{_TYPES[dtype]}>(values[{k}]);"


def _call(step: Step, names: dict[int, str]) -> str:
    args = [_argument(ref, to, names) for ref, to in step.args]
    signs = [kind_of(ref.dtype) == "i" for ref, _ in step.args]
    operation = step.operation
    if operation.is_function and operation.arity == 1:
        args *= 2  # those functors take two operands
    made = f"{operation.functor}{{}}"
    if operation.name in COMPARISONS and step.dtype == "uint64" and any(signs):
        made = f"WithSigns<{operation.functor}>{{{', '.join(str(x).lower() for x in signs)}}}"
    return f"{made}({', '.join(args)})"


def _argument(ref: Reference, to: str, names: dict[int, str]) -> str:
    if isinstance(ref, ArrayRef):
        text = names[ref.index]
    elif isinstance(ref, ValueRef):
        text = f"v{ref.index}"
    elif isinstance(ref, Constant):
        text = _constant(ref.value, ref.dtype)
    else:
        text = f"s{ref.index}"
    return text if ref.dtype == to else f"as<{_TYPES[to]}>({text})"


def _constant(value: Any, dtype: str) -> str:
    """Write an element by its bits, so that it is that element."""
    if dtype == "bool":
        return "true" if value else "false"
    if kind_of(dtype) == "c":
        part = {"complex64": "float32", "complex128": "float64"}[dtype]
        return f"{_TYPES[dtype]}{{{_constant(value.real, part)}, {_constant(value.imag, part)}}}"
    bits = hex(int.from_bytes(np.asarray(value).tobytes(), "little"))
    if dtype in ("float16", "bfloat16"):
        return f"{_TYPES[dtype]}{{{bits}}}"
    if dtype == "float32":
        return f"__uint_as_float({bits}u)"
    if dtype == "float64":
        return f"__longlong_as_double(static_cast<long long>({bits}ull))"
    return f"static_cast<{_TYPES[dtype]}>({bits}ull)"
