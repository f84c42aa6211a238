"""Sums of rows, for the arrays of any library, in torch's and JAX's transforms, too."""

import interop
from row_sum import _core

__all__ = ["row_sum"]

_spread = interop.elementwise("where(x == x, g, g)")  # g, of the shape of x

#: The sum of each row of a float32 matrix `x`, with any strides, which is read in place; the result is made by the
#: library of `x`. `stream` is where the work is queued; the current stream of that library by default.
row_sum = interop.operator(
    "row_sum::row_sum",
    _core.row_sum,
    "x[rows, n] -> sums[rows]",
    gradient=lambda g, x, sums: _spread(x=x, g=g[:, None]),
    tangent=lambda tangents, inputs, outputs: row_sum(tangents[0]),
    cut="rows",
)
