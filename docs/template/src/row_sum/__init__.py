"""Sums of rows, for the arrays of any library."""

from row_sum import _core

__all__ = ["row_sum"]


def row_sum(x, /, *, out=None, stream=None):
    """Sum each row of a matrix.

    Parameters
    ----------
    x : array, shape (rows, columns), float32
        Of any library, with any strides; read in place.
    out : array, shape (rows,), float32, optional
        Written in place; allocated by the library of `x` if omitted.
    stream : int handle or stream object, optional
        Where the work is queued; the current stream of the library of `x` by default.

    Returns
    -------
    array of the library of `x`, shape (rows,)
    """
    return _core.row_sum(x, out, stream)
