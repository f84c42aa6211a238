"""The arrays of a call of Dask's: which are taken, what is known of their shapes, and the library of their blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import dask.array as da
import numpy as np
from dask.array.core import unify_chunks
from dask.array.utils import meta_from_array

from interop import _core
from interop._arguments import shown, type_name
from interop._libraries.dask import is_dask_array

__all__ = [
    "as_dask",
    "check_blocks",
    "check_libraries",
    "is_known",
    "is_number",
    "meta_of",
    "refuse",
    "refuse_options",
    "unified",
]

_NUMBERS = (bool, int, float, complex, np.generic)


def is_number(x: Any) -> bool:
    """Is it a scalar of Python or NumPy?"""
    return isinstance(x, _NUMBERS)


def as_dask(label: str, name: str, x: Any) -> Any:
    """Return an argument as an array of Dask's; one of NumPy or CuPy becomes one of one block.

    TypeError, which names the argument, for anything else, and for an array of Dask's query planning.
    """
    if is_dask_array(x):
        if not isinstance(x, da.core.Array):
            raise TypeError(
                f"{label}: {name} is an array of Dask's query planning; accepted: dask.array without it, which "
                "dask.config.set({'array.query-planning': False}) says before dask.array is imported"
            )
        return x
    if isinstance(x, np.ndarray) or type_name(x) == "cupy.ndarray":
        return da.asanyarray(x)
    raise TypeError(
        f"{label}: {name} is {type_name(x)}, beside an array of Dask's; accepted: arrays of Dask, NumPy and CuPy"
    )


def meta_of(x: Any, ndim: int, dtype: Any) -> Any:
    """Return an empty array like the blocks of `x`: of their library, of that many dimensions and that dtype."""
    return meta_from_array(x._meta, ndim=ndim, dtype=dtype)


def unified(pairs: Iterable[tuple[Any, Sequence[Any]]]) -> list[Any]:
    """Return arrays and their indices by turns, as `blockwise` takes them, the blocks along one index alike.

    `blockwise` does it too, but Dask has NumPy's blocks for an empty array of another library whose blocks it changes.
    """
    pairs = list(pairs)
    _, arrays = unify_chunks(*(part for pair in pairs for part in pair))
    made: list[Any] = []
    for x, (given, index) in zip(arrays, pairs, strict=True):
        meta = given._meta
        same = type(x._meta) is type(meta)
        made += [x if same else x.map_blocks(functools.partial(_empty_like, meta), dtype=x.dtype, meta=meta), index]
    return made


def _empty_like(meta: Any, block: Any) -> Any:
    return np.empty_like(meta, shape=block.shape)  # which NumPy has the array's own library do


def is_known(shape: Iterable[Any]) -> bool:
    """Are all the sizes known? NaN stands for those that are not."""
    return not any(math.isnan(size) for size in shape)


# ---- what is refused ----


def refuse(label: str, name: str, value: Any, accepted: str) -> NoReturn:
    """Raise the TypeError of an argument that lazy calls do not take."""
    what = "an array of Dask's" if is_dask_array(value) else shown(value)
    raise TypeError(f"{label}: {name} is {what}, and the call is Dask's, which is lazy; accepted: {accepted}")


#: Arguments that say how one call is carried out, and what to do instead.
_REFUSED = {
    "out": "None (a lazy array has no memory)",
    "aux": "None (a lazy array has no memory)",
    "stream": "None (each block is computed on the current stream of its own library)",
    "autotune": "None (interop.autotune chooses with arrays that have values)",
    "execution": "None (each block is computed where it is: x.map_blocks(cupy.asarray) puts them on a GPU)",
}


def refuse_options(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with a name but those that are None; TypeError for one that a lazy call has no use for."""
    given = {name: x for name, x in options.items() if x is not None}
    for name, accepted in _REFUSED.items():
        if name in given:
            refuse(label, name, given[name], accepted)
    return given


def check_libraries(label: str, arrays: Mapping[str, Any]) -> None:
    """Raise TypeError for blocks that `interop` does not read, and where those of two arrays are of two libraries."""
    kinds = {}
    for name, x in arrays.items():
        _core.asarray(x._meta, label, None, name)  # which says so
        kinds[name] = type_name(x._meta)
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise TypeError(
                f"{label}: the blocks of {first} are {kind}, and those of {name} {other}; accepted: one library "
                f"({name}.map_blocks with a function that copies them)"
            )


def check_blocks(label: str, index: Mapping[str, Sequence[str]], arrays: Mapping[str, Any]) -> None:
    """Raise ValueError where blocks cannot be matched, as the sizes of some are unknown.

    `index` has what the message calls each axis of each array. Where the blocks along an axis are as many, their sizes
    are compared as they are computed; an array of size 1 is broadcast.
    """
    chunks: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, x in arrays.items():
        for key, along in zip(index[name], x.chunks, strict=True):
            if along != (1,):
                chunks.setdefault(key, {})[name] = along
    for key, of in chunks.items():
        if all(map(is_known, of.values())) or len({len(along) for along in of.values()}) == 1:
            continue
        blocks = ", ".join(f"{name} has {len(along)}" for name, along in of.items())
        raise ValueError(
            f"{label}: sizes of blocks along {key} are unknown, and their numbers differ ({blocks}); accepted: as "
            "many blocks, or known sizes (x.compute_chunk_sizes())"
        )
