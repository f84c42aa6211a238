"""Operators such as users define, each on the host and on a GPU: of C functions and of kernels."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import interop
from helpers import c_functions

#: Each row times a vector, softmax of each row, each number times one, and the parts before and behind the point.
HOST = """
#include <math.h>
void row_dot(const double* x, const double* w, double* y, long long rows, long long n) {
  for (long long r = 0; r < rows; ++r) {
    y[r] = 0;
    for (long long i = 0; i < n; ++i) y[r] += x[r * n + i] * w[i];
  }
}
void softmax(const double* x, double* y, long long rows, long long n) {
  for (long long r = 0; r < rows; ++r) {
    double sum = 0;
    for (long long i = 0; i < n; ++i) sum += y[r * n + i] = exp(x[r * n + i]);
    for (long long i = 0; i < n; ++i) y[r * n + i] /= sum;
  }
}
void times(const double* x, double by, double* y, long long rows, long long n) {
  for (long long i = 0; i < rows * n; ++i) y[i] = x[i] * by;
}
void parts(const double* x, double* low, long long* high, long long rows, long long n) {
  for (long long i = 0; i < rows * n; ++i) { high[i] = (long long)floor(x[i]); low[i] = x[i] - high[i]; }
}
"""
DECLARATIONS = """
void row_dot(const double* x, const double* w, double* y, long long rows, long long n);
void softmax(const double* x, double* y, long long rows, long long n);
void times(const double* x, double by, double* y, long long rows, long long n);
void parts(const double* x, double* low, int64_t* high, long long rows, long long n);
"""
_ROW = "const long long r = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (r >= rows) return;"
_ALL = "const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (i >= rows * n) return;"
KERNELS = {
    "row_dot": f"""__global__ void row_dot(const double* x, const double* w, double* y, long long rows, long long n) {{
        {_ROW} double sum = 0; for (long long i = 0; i < n; ++i) sum += x[r * n + i] * w[i]; y[r] = sum; }}""",
    "softmax": f"""__global__ void softmax(const double* x, double* y, long long rows, long long n) {{
        {_ROW} double sum = 0; for (long long i = 0; i < n; ++i) sum += y[r * n + i] = exp(x[r * n + i]);
        for (long long i = 0; i < n; ++i) y[r * n + i] /= sum; }}""",
    "times": f"""__global__ void times(const double* x, double by, double* y, long long rows, long long n) {{
        {_ALL} y[i] = x[i] * by; }}""",
    "parts": f"""__global__ void parts(const double* x, double* low, long long* high, long long rows, long long n) {{
        {_ALL} high[i] = (long long)floor(x[i]); low[i] = x[i] - high[i]; }}""",
}
ROWS = {"rows": lambda leading: leading}


def functions(place: str, folder: Path) -> dict[str, Any]:
    """Return the functions by name: those of C on "cpu", kernels on "cuda"."""
    if place == "cuda":
        threads = {"row_dot": lambda x, w, rows, n: rows, "softmax": lambda x, rows, n: rows}
        threads |= {"times": lambda x, by, rows, n: rows * n, "parts": lambda x, rows, n: rows * n}
        return {name: interop.kernel(text, name, threads=threads[name]) for name, text in KERNELS.items()}
    lib = _library(folder)
    return {name: getattr(lib, name) for name in KERNELS}


@functools.cache
def _library(folder: Path) -> Any:
    return interop.load(c_functions.build(HOST, folder / "liboperators.so"), DECLARATIONS, memory="host")


@functools.cache
def defined(place: str, folder: Path, package: str) -> dict[str, Any]:
    """Return operators with all their derivatives, of the functions on a place, by name."""
    of = functions(place, folder)
    made: dict[str, Any] = {}

    def operator(name: str, signature: str, **options: Any) -> None:
        made[name] = interop.operator(f"{package}::{name}", of[name], signature, sizes=ROWS, **options)

    def rows(g: Any, x: Any) -> Any:
        return g[..., None] * x

    def over_rows(x: Any) -> Any:
        for _ in range(x.ndim - 1):
            x = x.sum(0)
        return x

    operator(
        "row_dot",
        "x[..., n], w[n] -> [...]",
        gradient=lambda g, x, w, y: (rows(g, w), over_rows(rows(g, x))),
        tangent=lambda t, inputs, outputs: made["row_dot"](t[0], inputs[1]) + made["row_dot"](inputs[0], t[1]),
    )
    operator(
        "softmax",
        "x[..., n] -> [..., n]",
        gradient=lambda g, x, y: y * (g - (g * y).sum(-1)[..., None]),
        tangent=lambda t, inputs, outputs: outputs[0] * (t[0] - (t[0] * outputs[0]).sum(-1)[..., None]),
    )
    operator(
        "times",
        "x[..., n], by -> [..., n]",
        gradient=lambda g, x, by, y: (made["times"](g, by), None),
        tangent=lambda t, inputs, outputs: made["times"](t[0], inputs[1]),
    )
    operator(
        "parts",
        "x[..., n] -> low[..., n], high[..., n]",
        gradient=lambda g, x, low, high: g[0] * 1,
        tangent=lambda t, inputs, outputs: (t[0] * 1, None),
    )
    return made
