"""Matrix product of the arrays of any library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np

from interop import _core
from interop._arguments import missing, refuse_call_of
from interop._lazy import call_lazily, is_lazy
from interop._streams import StreamLike
from interop._traced import traced_by

__all__ = ["matmul"]

ArrayT = TypeVar("ArrayT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


Epilogue = Literal["relu", "gelu", "gelu_tanh"]


def _with_few_defaults(declared: FunctionT) -> FunctionT:
    """Make `matmul` from its declaration.

    Python looks up the default of each keyword argument that a call leaves out, one by one: so many look-ups take
    longer than all else in Python. So the function itself takes any arguments. They are read in C++, which refuses
    those that do not fit the declaration, with the function's whole name.
    """

    @functools.wraps(declared)
    def matmul(a: Any = missing, b: Any = missing, /, *more: Any, **options: Any) -> Any:
        if more:
            refuse_call_of("interop.matmul", (a, b, *more), options)
        try:
            return _core.matmul(a, b, options)
        except TypeError:
            if not is_lazy((a, b), options):
                raise
        return call_lazily(made, (a, b), options)

    made: Any = traced_by(_traced)(matmul)
    return made  # type: ignore[no-any-return]


def _traced(*args: Any, **options: Any) -> Any:
    from interop.torch import _tracing  # by torch's compiler, as it traces

    return _tracing.matmul(*args, **options)


@_with_few_defaults
def matmul(
    a: ArrayT,
    b: Any,
    /,
    *,
    out: ArrayT | None = None,
    dtype: Any = None,
    c: Any = None,
    alpha: complex | np.number[Any] = 1,
    beta: complex | np.number[Any] | None = None,
    bias: Any = None,
    epilogue: Epilogue | None = None,
    aux: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    precision: Literal["tf32", "tf32x3"] | None = None,
    backend: Literal["tiled", "cublas"] | None = None,
    autotune: bool | None = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Multiply two matrices, or stacks of them, of any array library.

    The result is ``epilogue(alpha * (a @ b) + beta * c + bias)``; a plain call is ``a @ b``. The work goes on the
    stream that the caller's library would use itself, the result is allocated by that library, and the arrays are taken
    as they are: transposed, conjugated, sliced, broadcast or reversed.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,)
        NumPy, torch, JAX, CuPy or Numba array, `interop.Array`, raw DLPack capsule, or any object with ``__dlpack__``,
        ``__cuda_array_interface__``, a buffer or ``__array_interface__``; or a Dask array, for a lazy product. Any
        strides. bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128,
        float8_e4m3fn or float8_e5m2.
    b : array, shape (..., k, n) or (k,)
        Of any library too, on the same device. The leading dimensions broadcast, and 1-D operands are vectors, as in
        `numpy.matmul`. Two dtypes are promoted as the library of `a` does it; float8 goes with float8 alone.
    out : array, shape and dtype of the result, same device, optional
        The array that the result is written to, whatever its strides; the call returns it. It may be `c`, but may share
        no memory with other arguments. Not for JAX, whose arrays are immutable.
    dtype : dtype or its name, optional
        The dtype of the result, to which the operands' common dtype can be promoted, such as int32 for int8. The
        operands are multiplied as if they had this dtype. For float8 operands: bfloat16 (the default), float16 or
        float32.
    c : array that broadcasts to the result, of its dtype, optional
        Added to the product.
    alpha : scalar of Python or NumPy, optional
        The factor of the product; an integer for products of integers. With 0 the operands are not read, so a NaN in
        them does not reach the result.
    beta : scalar of Python or NumPy, optional
        The factor of `c`, likewise; 1 by default.
    bias : array, shape (n,) or (m, 1), dtype of the result, optional
        Added to every row, or to every column.
    epilogue : "relu", "gelu" or "gelu_tanh", optional
        Applied last, to a floating-point result: ``max(x, 0)``, where NaN stays; ``x * Phi(x)``, exact; its
        approximation by tanh.
    aux : array, shape and dtype of the result, optional
        The array that the input of the epilogue is written to, for a backward pass.
    scale_a : scalar, or array of one float32, optional
        The factor of a float8 `a`: the operand is its values times this.
    scale_b : scalar, or array of one float32, optional
        The same for `b`.
    precision : "tf32" or "tf32x3", optional
        Lets a GPU round float32 operands to TF32, of 11 significant bits; or to the sum of two such numbers, which is
        about as exact as float32 and on Hopper about twice as fast. By default float32 is exact: every product is
        rounded to float32 or better. The product is exact where no such kernel serves (host arrays, GPUs before compute
        capability 8.0, another GPU than Hopper for "tf32x3", small products).
    backend : "tiled" or "cublas", optional
        The package's own kernel, or cuBLASLt. By default it is the faster one of those that are installed and take the
        product. For device arrays.
    autotune : bool, optional
        True times cuBLAS's algorithms, and the package's own kernel, for a product that has not been tuned yet, and
        keeps the quickest: see `interop.autotune`. False ignores the choices that were kept. Not for JAX's arrays; of
        host arrays nothing is tuned.
    stream : int handle or stream object, optional
        Where the work is queued and the result is ready; by default the current stream of the library of `a`. Objects
        with ``__cuda_stream__``, ``.cuda_stream`` (torch) or ``.ptr`` (CuPy) are accepted. For device arrays.
    execution : "cuda" or "cuda:<index>", optional
        Computes host arrays on that GPU and gives a host array, ready on return: the only way to have this library
        copy between host and device.

    Returns
    -------
    array of the library of `a`
        On the operands' device, ready in stream order: the host has not waited. 0-d for two vectors, never a scalar.
        An `interop.Array` where the library of `a` is unknown.

    Raises
    ------
    TypeError
        An argument is not an array, or has a dtype that is not served, or that does not go with the others'; a factor
        is not of the product's kind; host and device arrays are mixed; `out` or `aux` is read-only or immutable.
    ValueError
        The shapes do not fit, an operand is 0-d, or the result is beyond all memory; the arrays are on two devices;
        `out` or `aux` has another shape, or overlaps itself or an operand; an option has no such value, or stands
        without the one it goes with; ``backend="cublas"`` has no such product, or not in that precision.
    OverflowError
        An integer factor that the product's dtype cannot hold.
    BufferError
        The producer of an array refuses to export it, in its own words; or a tensor requires grad where torch does not
        lead the call, so that its gradient would be lost.
    CudaError
        CUDA fails, or there is no GPU or no driver, or no cuBLAS for ``backend="cublas"``.

    Notes
    -----
    Products are added up in their own dtype, 16-bit floats and float8 in float32 (and rounded once, after the
    epilogue). Integers wrap around; products of bool are or-of-ands. The same call on the same card gives the same bits
    every time, on any stream. On a GPU, an operand whose dtype is not the product's is converted into a workspace
    first, unless both are 8 or 16 bits wide. An operand that the quickest kernel cannot read directly is packed there;
    `interop.explain` says so. `interop.matmul` of host arrays is computed by NumPy on views of their memory.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.matmul(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    >>> interop.matmul(np.array([[1.0, 2.0], [3.0, -4.0]]), np.eye(2), bias=np.ones(2), epilogue="relu")
    array([[2., 3.],
           [4., 0.]])
    >>> interop.matmul(np.full((1, 2), 100, "int8"), np.full((2, 1), 100, "int8"), dtype="int32")
    array([[20000]], dtype=int32)
    """
    raise NotImplementedError  # a declaration
