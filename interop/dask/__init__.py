"""Calls of Dask arrays, whose results are lazy Dask arrays: the way from `interop`'s functions to Dask's graphs.

Nothing in it needs to be called: `interop.add`, `interop.matmul`, expressions and operators find it by their arrays.
"""

from interop.dask._operators import compute_operator

__all__ = ["compute_operator"]
