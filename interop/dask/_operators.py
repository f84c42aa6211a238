"""Operators on Dask arrays: by their signature, the blocks that one call of an operator takes, and sums of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import dask.array as da
import numpy as np

from interop._libraries.dask import is_dask_array
from interop._operations.finish import finish_dtype
from interop._operations.promotion import numpy_dtype
from interop._operators.arrays import Facts
from interop._operators.description import Description
from interop._operators.signature import LEADING, Operand
from interop.dask._arrays import as_dask, check_blocks, check_libraries, is_known, meta_of, refuse, unified
from interop.dask._sums import sum_over

__all__ = ["compute_operator"]


def compute_operator(description: Description, args: Sequence[Any]) -> Any:
    """Make the lazy results of an operator, an input of which is an array of Dask's: an array, or a tuple of several.

    Leading axes, and axes that may be cut or are summed over, may have several blocks. TypeError for an input that is
    no array of Dask, NumPy or CuPy where the signature has one; ValueError for shapes that do not fit, and where any
    other axis has several blocks.
    """
    label, signature = description.label, description.signature
    arrays = {}
    numbers: list[Any] = []
    for operand, x in zip(signature.inputs, args, strict=True):
        if operand.axes is not None:
            arrays[operand.name] = as_dask(label, operand.name, x)
        elif is_dask_array(x):
            refuse(label, operand.name, x, f"a number, as {operand.name}.compute() of one is")
        numbers.append(x if operand.axes is None else None)
    check_libraries(label, arrays)
    metas = [None if x.axes is None else arrays[x.name]._meta for x in signature.inputs]
    description.chosen(metas)  # for what it throws: there may be nothing to call where the blocks are
    sizes = _sizes(description, arrays)
    expected = description.results(_facts(description, arrays, sizes))

    sums = [letter for letter in signature.sums if _is_cut(description, arrays, letter)]
    index = _index(description, arrays, sums)
    check_blocks(label, index, arrays)
    dtypes = [numpy_dtype(dtype) for _, dtype in expected]
    work = [finish_dtype(dtype) if sums else dtype for dtype in dtypes]
    call = _Call(description, tuple(numbers), len(sums), tuple(dtype.name for dtype in work))
    parts = _parts(call, index, arrays)
    results = []
    for place, (operand, (shape, _)) in enumerate(zip(signature.outputs, expected, strict=True)):
        keys, whole = _index_of_result(operand, shape, sizes, {key for keys in index.values() for key in keys})
        part = da.blockwise(
            call if len(expected) == 1 else _Pick(place),
            (*keys, *sums),
            *parts,
            new_axes=whole,
            adjust_chunks=dict.fromkeys(sums, 1),
            meta=meta_of(next(iter(arrays.values())), len(keys) + len(sums), work[place]),
            token=_token(description),
        )
        results.append(sum_over(part, len(sums), dtypes[place]) if sums else part)
    return tuple(results) if len(results) > 1 else results[0]


def _parts(call: _Call, index: Mapping[str, tuple[str, ...]], arrays: Mapping[str, Any]) -> list[Any]:
    """Return what the blocks of results are made of, each with its index.

    That is the inputs; where there are several results, tuples of all of them, which are computed once.
    """
    pairs = unified((x, index[name]) for name, x in arrays.items())
    if len(call.dtypes) == 1:
        return pairs
    cut = tuple(dict.fromkeys(key for keys in index.values() for key in keys if not _is_whole(key)))
    meta = np.empty((0,) * len(cut), object)
    return [da.blockwise(call, cut, *pairs, meta=meta, token=f"{_token(call.description)}-all"), cut]


def _token(description: Description) -> str:
    return description.name.replace("::", "-")


# ---- axes: what may have several blocks is called by its letter, or "...0" and so on; what is whole, as "x[0]" ----


def _is_whole(key: str) -> bool:
    return key.endswith("]")


def _keys(operand: Operand, ndim: int) -> list[str | int]:
    """Return what the signature calls each axis of an array: a letter, a size, or "...0" and so on."""
    axes = [axis for axis in operand.axes or () if axis is not ...]
    return [*(f"...{k}" for k in range(ndim - len(axes))), *axes]


def _sizes(description: Description, arrays: Mapping[str, Any]) -> dict[str | int, Any]:
    """Return the size of each letter and leading axis of the inputs: NaN where it is unknown in all of them.

    ValueError where the size of a result depends on one that is unknown, or of which a block has only a part.
    """
    sizes: dict[str | int, Any] = {}
    for name, x in arrays.items():
        for key, size in zip(_keys(_operand(description, name), x.ndim), x.shape, strict=False):
            if key not in sizes or not is_known([sizes[key]]):
                sizes[key] = size
    of_results = {letter for operand in description.signature.outputs for letter in operand.letters}
    for name, rule in description.sizes.items():
        if name not in of_results:  # a parameter of a kernel, of each block
            continue
        for letter in rule.letters:
            _check_rule(description, name, letter, arrays, sizes)
    return sizes


def _check_rule(
    description: Description, name: str, letter: str, arrays: Mapping[str, Any], sizes: Mapping[str | int, Any]
) -> None:
    keys = [key for key in sizes if isinstance(key, str) and key.startswith("...")] if letter == LEADING else [letter]
    what = "the leading axes" if letter == LEADING else letter
    if any(not is_known([sizes[key]]) for key in keys):
        why = f"{what}, of unknown size; accepted: known sizes (x.compute_chunk_sizes())"
    elif any(_is_cut(description, arrays, key) for key in keys):
        why = f"{what}, of several blocks; accepted: one block (x.rechunk(-1))"
    else:
        return
    raise ValueError(f"{description.label}: the size {name} of a result depends on {why}")


def _operand(description: Description, name: str) -> Operand:
    return next(operand for operand in description.signature.inputs if operand.name == name)


def _facts(description: Description, arrays: Mapping[str, Any], sizes: Mapping[str | int, Any]) -> list[Facts]:
    """Return shapes and dtypes for the rules of the signature, to which a size that is unknown is the one it must be.

    It is 1 where no input knows it.
    """

    def known(key: str | int, size: Any) -> Any:
        if is_known([size]):
            return size
        size = key if isinstance(key, int) else sizes.get(key, 1)
        return size if is_known([size]) else 1

    facts = []
    for name, x in arrays.items():
        keys = _keys(_operand(description, name), x.ndim)
        shape = x.shape if len(keys) != x.ndim else tuple(map(known, keys, x.shape))
        facts.append((shape, x.dtype.name))
    return facts


def _is_cut(description: Description, arrays: Mapping[str, Any], letter: str) -> bool:
    """Has an axis of this letter several blocks?"""
    return any(
        key == letter and len(blocks) > 1
        for name, x in arrays.items()
        for key, blocks in zip(_keys(_operand(description, name), x.ndim), x.chunks, strict=True)
    )


def _index(description: Description, arrays: Mapping[str, Any], sums: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the index of each input; ValueError for an axis that is whole, and has several blocks."""
    index: dict[str, tuple[str, ...]] = {}
    for name, x in arrays.items():
        keys: list[str] = []
        for axis, key in enumerate(_keys(_operand(description, name), x.ndim)):
            if isinstance(key, str) and (key.startswith("...") or key in description.cut or key in sums):
                keys.append(key)
                continue
            keys.append(f"{name}[{axis}]")
            if len(x.chunks[axis]) > 1:
                _refuse_blocks(description, name, axis, x, key)
        index[name] = tuple(keys)
    return index


def _refuse_blocks(description: Description, name: str, axis: int, x: Any, key: str | int) -> NoReturn:
    signature, count = description.signature, len(x.chunks[axis])
    place = signature.inputs.index(_operand(description, name))
    pointed = signature.pointed(place, axis - x.ndim + len(signature.inputs[place].axes or ()))
    raise ValueError(
        f"{description.label}: axis {axis} of {name}, {key}, has {count} blocks, and the operator takes it whole; "
        f"accepted: {name}.rechunk({{{axis}: -1}}), or an operator with cut= or '; sum' of this letter{pointed}"
    )


def _index_of_result(
    operand: Operand, shape: Sequence[Any], sizes: Mapping[str | int, Any], cut: set[str]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the index of a result, and the sizes of its axes that are whole."""
    keys: list[str] = []
    whole: dict[str, Any] = {}
    for axis, (key, size) in enumerate(zip(_keys(operand, len(shape)), shape, strict=True)):
        if key in cut:
            keys.append(str(key))
            continue
        keys.append(f"[{axis}]")
        whole[keys[-1]] = sizes.get(key, size)
    return tuple(keys), whole


# ---- on blocks ----


@dataclass(frozen=True)
class _Call:
    """The call of an operator on blocks: of the numbers given, with None where an array stands.

    Each result gets that many last axes of size 1, which sums are over, and the dtype in which it is added up.
    """

    description: Description
    numbers: tuple[Any, ...]
    axes: int
    dtypes: tuple[str, ...]

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.description.name, self.description.key, self.numbers, self.axes, self.dtypes

    def __call__(self, *blocks: Any) -> Any:
        inputs = list(self.numbers)
        for place, block in zip(self.description.signature.arrays, blocks, strict=True):
            inputs[place] = _whole(block)
        made = self.description.run(inputs)
        results = made if isinstance(made, tuple) else (made,)
        results = tuple(map(self._as_part, results, self.dtypes))
        return results if len(results) > 1 else results[0]

    def _as_part(self, x: Any, dtype: str) -> Any:
        return x.astype(numpy_dtype(dtype), copy=False)[(..., *[None] * self.axes)] if self.axes else x


@dataclass(frozen=True)
class _Pick:
    """One of the results of an operator that has several."""

    place: int

    def __call__(self, results: tuple[Any, ...]) -> Any:
        return results[self.place]


def _whole(block: Any) -> Any:
    """Return the block, which is in a list for each axis that is in no result: of one block."""
    while isinstance(block, list):
        (block,) = block
    return block
