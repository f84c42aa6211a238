"""Matrix product of the arrays of any library."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

from interop import _core

__all__ = ["StreamLike", "matmul"]

ArrayT = TypeVar("ArrayT")


class _HasCudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


StreamLike = int | _HasCudaStream | Any  # Any: objects with `.cuda_stream` (torch) or `.ptr` (CuPy)


def matmul(
    a: ArrayT,
    b: Any,
    /,
    *,
    out: ArrayT | None = None,
    stream: StreamLike | None = None,
    backend: Literal["tiled", "cublas"] | None = None,
    precision: Literal["tf32"] | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Multiply two matrices, or stacks of them, of any array library.

    The work goes on the stream that the caller's library would use itself, the result is allocated by that library,
    and nothing is copied: transposed, sliced, broadcast and reversed operands are read where they are.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,), float32 or float64
        NumPy, torch, JAX, CuPy or Numba array, `interop.Array`, raw DLPack capsule, or any object with ``__dlpack__``,
        ``__cuda_array_interface__``, a buffer or ``__array_interface__``. Any strides.
    b : array, shape (..., k, n) or (k,), the same dtype
        Of any library too, on the same device. The leading dimensions broadcast, and 1-D operands are vectors, as in
        `numpy.matmul`.
    out : array, shape of the result, same dtype and device, optional
        Written in place, whatever its strides, and returned. It shares no memory with `a` or `b`. Not for JAX, whose
        arrays are immutable.
    stream : int handle or stream object, optional
        Where the work is queued and the result is ready; by default the current stream of the library of `a`. Objects
        with ``__cuda_stream__``, ``.cuda_stream`` (torch) or ``.ptr`` (CuPy) are accepted. For device arrays.
    backend : "tiled" or "cublas", optional
        Our own kernel, or cuBLASLt. By default the faster one of those that are installed. For device arrays.
    precision : "tf32", optional
        Lets a GPU round float32 operands to TF32. By default float32 is exact: every product is rounded to float32
        or better. Computed exactly where no TF32 kernel serves (host arrays, no cuBLAS).
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
        An argument is not an array, has a dtype that is not served, or another one than the other; host and device
        arrays are mixed; `out` is read-only or immutable.
    ValueError
        The shapes do not fit, an operand is 0-d, or the result is beyond all memory; the arrays are on two devices;
        `out` has another shape, or overlaps itself or an operand; an option has no such value.
    BufferError
        The producer of an array refuses to export it, in its own words: a tensor that requires grad, say.
    CudaError
        CUDA fails, or there is no GPU or no driver, or no cuBLAS for ``backend="cublas"``.

    Notes
    -----
    float32 and float64 accumulate in their own precision. The same call on the same card gives the same bits every
    time, on any stream. `interop.matmul` of host arrays is computed by NumPy on views of their memory.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.matmul(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    """
    return _core.matmul(a, b, out, stream, backend, precision, execution)  # type: ignore[no-any-return]
