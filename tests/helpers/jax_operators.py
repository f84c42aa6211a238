"""Operators for the tests of JAX: over C functions on the CPU, and over kernels of the same text on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import interop
from helpers import c_functions

#: The body of each is for one row, `r`, of `rows`; `n` is the length of a row.
_BODIES = {
    "row_dot": ("const double* x, const double* s, double* y", "y[r] = 0; EACH y[r] += x[r * n + i] * s[i];"),
    "outer": ("const double* a, const double* s, double* y", "EACH y[r * n + i] = a[r] * s[i];"),
    "pair_dot": ("const double* a, const double* b, double* y", "y[r] = 0; EACH y[r] += a[r * n + i] * b[r * n + i];"),
    "softmax": (
        "const double* x, double* y",
        "double most = -1e300, sum = 0;"
        " EACH most = x[r * n + i] > most ? x[r * n + i] : most;"
        " EACH sum += y[r * n + i] = exp(x[r * n + i] - most);"
        " EACH y[r * n + i] /= sum;",
    ),
    "softmax_back": (
        "const double* g, const double* y, double* dx",
        "double sum = 0; EACH sum += g[r * n + i] * y[r * n + i];"
        " EACH dx[r * n + i] = y[r * n + i] * (g[r * n + i] - sum);",
    ),
    "split": (
        "const double* x, double* low, long long* high",
        "EACH { high[r * n + i] = (long long)x[r * n + i]; low[r * n + i] = x[r * n + i] - high[r * n + i]; }",
    ),
    "scaled": ("const double* x, double* y, double by", "EACH y[r * n + i] = by * x[r * n + i];"),
    "gram": (  # of each row, which is a column of n elements, with the others: a sum over n
        "const double* x, const double* w, double* y, long long m",
        "for (long long j = 0; j < m; ++j) { y[r * m + j] = 0; EACH y[r * m + j] += x[r * n + i] * w[i * m + j]; }",
    ),
}
_HOST = """
#include <math.h>
#define EACH for (long long i = 0; i < n; ++i)
"""
_CUDA = "#define EACH for (long long i = 0; i < n; ++i)\n"


def functions(place: str, folder: Path) -> dict[str, Any]:
    """Return the C functions, or the kernels, by name: each takes its arrays, `rows` and `n`."""
    if place == "cuda":
        return {
            name: interop.kernel(
                f'{_CUDA}extern "C" __global__ void {name}({parameters}, long long rows, long long n) {{\n'
                "  const long long r = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
                f"  if (r < rows) {{ {body} }}\n}}",
                name,
                threads=_ROWS[parameters.count("const") + parameters.count("double by") + parameters.count("long m")],
            )
            for name, (parameters, body) in _BODIES.items()
        }
    source = _HOST + "\n".join(
        f"void {name}({parameters}, long long rows, long long n) {{\n"
        f"  for (long long r = 0; r < rows; ++r) {{ {body} }}\n}}"
        for name, (parameters, body) in _BODIES.items()
    )
    arrays = re.compile(r"(const )?(double|long long)\*")
    declarations = "\n".join(
        f"void {name}({arrays.sub(lambda found: f'host {found[0]}', parameters)}, long long rows, long long n);"
        for name, (parameters, _) in _BODIES.items()
    )
    lib = interop.load(c_functions.build(source, folder / "liboperators.so", "-lm"), declarations)
    return {name: getattr(lib, name) for name in _BODIES}


#: The threads of a launch, one for each row, by the number of arguments before the rows.
_ROWS = {1: lambda x, rows, n: rows, 2: lambda x, y, rows, n: rows, 3: lambda x, y, z, rows, n: rows}
_SIZES = {"rows": lambda leading: leading}


def make(place: str, folder: Path) -> SimpleNamespace:
    """Return operators with derivatives of all orders, each by others of them and this package's operations."""
    by = functions(place, folder)
    ops = SimpleNamespace(functions=by)

    def operator(name: str, signature: str, **options: Any) -> None:
        function = options.pop("call", by.get(name))
        options.setdefault("sizes", _SIZES)
        setattr(ops, name, interop.operator(f"tests_jax_{place}::{name}", function, signature, **options))

    def by_rows(a: Any, x: Any) -> Any:  # the sum of rows, each times a number
        return interop.matmul(a.reshape(1, -1), x.reshape(-1, x.shape[-1]))[0]

    operator(
        "row_dot",
        "x[..., n], s[n] -> [...]",
        gradient=lambda g, x, s, y: (ops.outer(g, s), by_rows(g, x)),
        tangent=lambda t, inputs, y: ops.row_dot(t[0], inputs[1]) + ops.row_dot(inputs[0], t[1]),
    )
    operator(
        "outer",
        "a[...], s[n] -> [..., n]",
        gradient=lambda g, a, s, y: (ops.row_dot(g, s), by_rows(a, g)),
        tangent=lambda t, inputs, y: ops.outer(t[0], inputs[1]) + ops.outer(inputs[0], t[1]),
    )
    operator(
        "pair_dot",
        "a[..., n], b[..., n] -> [...]",
        gradient=lambda g, a, b, y: (g[..., None] * b, g[..., None] * a),
        tangent=lambda t, inputs, y: ops.pair_dot(t[0], inputs[1]) + ops.pair_dot(inputs[0], t[1]),
    )
    operator(
        "softmax",
        "x[..., n] -> y[..., n]",
        gradient=lambda g, x, y: ops.softmax_back(g, y),
        tangent=lambda t, inputs, outputs: ops.softmax_back(t[0], outputs[0]),  # it is its own transpose
    )
    operator(
        "softmax_back",
        "g[..., n], y[..., n] -> [..., n]",
        gradient=lambda c, g, y, dx: (
            ops.softmax_back(c, y),
            interop.subtract(c * (g - ops.pair_dot(g, y)[..., None]), g * ops.pair_dot(c, y)[..., None]),
        ),
        tangent=lambda t, inputs, outputs: (
            ops.softmax_back(t[0], inputs[1])
            + t[1] * (inputs[0] - ops.pair_dot(*inputs)[..., None])
            - inputs[1] * ops.pair_dot(inputs[0], t[1])[..., None]
        ),
    )
    operator(
        "split",
        "x[..., n] -> low[..., n], high[..., n]",
        gradient=lambda g, x, low, high: g[0],
        tangent=lambda t, inputs, outputs: (t[0], None),
    )
    operator(
        "scaled",
        "x[..., n], by -> [..., n]",
        gradient=lambda g, x, by, y: (ops.scaled(g, by), None),
        tangent=lambda t, inputs, y: ops.scaled(t[0], inputs[1]),
    )
    operator(
        "layer",
        "x[..., n], s[n], b[n] -> [..., n]",
        call=interop.elementwise("maximum(x * s + b, 0)"),
        cut="n",
        sizes=None,
        gradient=lambda g, x, s, b, y: _layer_gradient(g, x, s, y),
        tangent=lambda t, inputs, outputs: (t[0] * inputs[1] + inputs[0] * t[1] + t[2]) * (outputs[0] > 0),
    )
    operator("product", "x[..., n], w[n, m] -> [..., m]; sum n", call=by["gram"], cut="m")
    return ops


def _layer_gradient(g: Any, x: Any, s: Any, y: Any) -> tuple[Any, Any, Any]:
    masked = g * (y > 0)
    rows = tuple(range(x.ndim - 1))
    return masked * s, (masked * x).sum(rows), masked.sum(rows)
