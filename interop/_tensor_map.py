"""What a kernel's tensor map says of an array: `interop.tensor_map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from interop._arguments import named
from interop._functions.tensor_maps import TensorMap, made_map

__all__ = ["TensorMap", "tensor_map"]


@named("interop.tensor_map")
def tensor_map(
    array: str,
    /,
    *,
    box: int | Sequence[int],
    swizzle: Literal[0, 32, 64, 128] = 0,
    written: bool = False,
    dtype: str | None = None,
    l2_promotion: Literal[0, 64, 128, 256] = 128,
    oob_fill: Literal["zeros", "nan"] = "zeros",
) -> TensorMap:
    """Say how a kernel's TMA instructions find the boxes of an array, for a parameter of the type ``CUtensorMap``.

    Parameters
    ----------
    array : str
        The argument that is the array, by its name in the call. Where the kernel has a pointer or a view of that name,
        or another map of it, the map describes the array of that one; else the array is given in the map's place.
    box : int, or tuple or list of one to five ints, each from 1 to 256
        The elements that one instruction moves, along each dimension of the array, in the array's own order: the last
        dimension is the fastest. A row, along the last one, has a multiple of 16 bytes.
    swizzle : 0, 32, 64 or 128, optional
        Bytes of a row in shared memory within which its chunks of 16 bytes are exchanged, against bank conflicts. A row
        of the box has at most so many bytes; 0: they are not exchanged.
    written : bool, optional
        Whether the kernel stores to the array by this map: then it is one that is written to, as of a pointer without
        ``const``.
    dtype : str, optional
        That of the array: bool, an integer, float8, or a float, such as ``"float16"``. By default any of these, or that
        of the pointer or the view. A result of `returning` needs it.
    l2_promotion : 0, 64, 128 or 256, optional
        The bytes that L2 fetches at least.
    oob_fill : "zeros" or "nan", optional
        What a box has beyond the array's end as it is loaded.

    Returns
    -------
    TensorMap
        For ``tensor_maps=`` of `interop.kernel`.

    Raises
    ------
    TypeError
        A value is of another type.
    ValueError
        A value is none of these; with `dtype`, a row of `box` has no multiple of 16 bytes, or more than `swizzle`.

    Notes
    -----
    What TMA needs of an array is checked in the call of the kernel: an address and strides that are multiples of 16
    bytes, a last dimension without gaps, at least one element, and a GPU of compute capability 9.0 or later. Nothing is
    copied to make an array fit.

    In the kernel the coordinates of a box are those of TMA, the fastest dimension first.

    Examples
    --------
    >>> import interop
    >>> interop.tensor_map("x", box=(64, 64), swizzle=128, dtype="float16")
    interop.tensor_map('x', box=(64, 64), swizzle=128, written=False, dtype='float16', l2_promotion=128)
    """
    return made_map(array, box, swizzle, written, dtype, l2_promotion, oob_fill)
