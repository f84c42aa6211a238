"""The tensor maps of a kernel's parameters: what `interop.tensor_map` says of each, and which argument it describes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from interop._arguments import shown, type_name
from interop._functions.parameters import Parameter, Refuse

__all__ = ["TensorMap", "checked_maps", "made_map", "with_tensor_maps"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
#: The dtypes of arrays that TMA moves.
_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", *_FLOATS),
)


class TensorMap(NamedTuple):
    """How a kernel's TMA instructions find the boxes of an array; `interop.tensor_map` makes it."""

    array: str
    box: tuple[int, ...]
    swizzle: int
    written: bool
    dtype: str  # "" for any
    l2_promotion: int
    oob_fill: str

    def __repr__(self) -> str:
        box = self.box[0] if len(self.box) == 1 else self.box
        dtype = f", dtype={self.dtype!r}" if self.dtype else ""
        fill = f", oob_fill={self.oob_fill!r}" if self.oob_fill != "zeros" else ""
        return (
            f"interop.tensor_map({self.array!r}, box={box}, swizzle={self.swizzle}, written={self.written}{dtype}, "
            f"l2_promotion={self.l2_promotion}{fill})"
        )

    def form(self, place: int) -> tuple[int, ...]:
        """Return it as C++ has it; `place` is that of the parameter which takes the array."""
        return (place, self.swizzle, self.l2_promotion, int(self.oob_fill == "nan"), *self.box)


def checked_maps(where: str, given: object) -> dict[str, TensorMap]:
    """Return what `tensor_maps` is given; TypeError for anything but tensor maps by names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} is {type_name(given)}; accepted: a mapping of names to interop.tensor_map(...)")
    for name, made in given.items():
        if not isinstance(name, str) or not isinstance(made, TensorMap):
            raise TypeError(
                f"{where} has {shown(name)}: {type_name(made)}; accepted: the name of a parameter, with "
                "interop.tensor_map(...)"
            )
    return dict(given)


def with_tensor_maps(
    parameters: Sequence[Parameter], maps: Mapping[str, TensorMap], reads: Collection[str], refuse: Refuse
) -> list[Parameter]:
    """Return the parameters with each CUtensorMap as an argument that is an array, or as one of an array that is.

    What does not fit is what `refuse` makes of it.
    """
    declared = [p.name for p in parameters if p.kind == "tensor_map"]
    for name in maps:
        if name not in declared:
            accepted = ", ".join(declared) or "there is none"
            raise refuse(f"tensor_maps: {name!r} is no parameter of the type CUtensorMap; accepted: {accepted}")
    made = list(parameters)
    places = {p.name: place for place, p in enumerate(parameters) if p.kind != "tensor_map"}
    for place, parameter in enumerate(parameters):
        if parameter.kind != "tensor_map":
            continue
        if parameter.name not in maps:
            raise refuse(
                f"{parameter.name!r} is a CUtensorMap, and nothing says of which array; accepted: interop.kernel(..., "
                f"tensor_maps={{{parameter.name!r}: interop.tensor_map('x', box=...)}})"
            )
        of = maps[parameter.name]
        ndim = len(of.box)
        if of.array not in places:
            places[of.array] = place
            made[place] = Parameter("tensor_map", of.array, of.dtype, of.written, ndim, form=of.form(place))
            continue
        at = places[of.array]
        made[place] = Parameter("shared_map", parameter.name, "", False, ndim, form=of.form(at))
        made[at] = _described(made[at], parameter.name, of, reads, refuse)
    names = [p.name for p in made]
    for name in names:
        if names.count(name) > 1:
            raise refuse(f"tensor_maps: two parameters are called {name!r} then; accepted: another name of the array")
    return made


def _described(array: Parameter, name: str, of: TensorMap, reads: Collection[str], refuse: Refuse) -> Parameter:
    """Return the parameter that takes the array of the map `name`, as both say it."""
    label = f"tensor_maps[{name!r}]"
    if array.kind == "scalar":
        raise refuse(f"{label}: {array.name!r} is a number; accepted: the name of an array")
    if of.written and array.name in reads:
        raise refuse(f"{label}: written is True, and reads= says that {array.name} is only read; accepted: one of both")
    if of.dtype and array.dtype and of.dtype != array.dtype:
        raise refuse(f"{label}: dtype is {of.dtype!r}, and {array.name} is {array.dtype}; accepted: that, or None")
    if array.ndim not in (0, len(of.box)):
        raise refuse(
            f"{label}: the box has {len(of.box)} sizes, and {array.name} has {array.ndim} dimensions; accepted: as many"
        )
    return array._replace(
        dtype=array.dtype or of.dtype, written=array.written or of.written, ndim=array.ndim or len(of.box)
    )


# ---- what `interop.tensor_map` is given ----

_WHERE = "interop.tensor_map"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MOST_DIMENSIONS, _MOST_BOX, _UNIT = 5, 256, 16


def made_map(
    array: Any, box: Any, swizzle: Any, written: Any, dtype: Any, l2_promotion: Any, oob_fill: Any
) -> TensorMap:
    """Return the map, or raise TypeError or ValueError for what is not as the driver has it."""
    if not isinstance(array, str):
        raise TypeError(f"{_WHERE}: array is {type_name(array)}; accepted: a name, such as 'x'")
    if not _NAME.fullmatch(array):
        raise ValueError(f"{_WHERE}: array is {shown(array)}; accepted: a name, such as 'x'")
    sizes = _box_of(box)
    _check_one_of("swizzle", swizzle, (0, 32, 64, 128))
    _check_one_of("l2_promotion", l2_promotion, (0, 64, 128, 256))
    if not isinstance(written, bool):
        raise TypeError(f"{_WHERE}: written is {type_name(written)}; accepted: True, False")
    if dtype is not None and not isinstance(dtype, str):
        raise TypeError(f"{_WHERE}: dtype is {type_name(dtype)}; accepted: the name of one, or None")
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"{_WHERE}: dtype is {shown(dtype)}; accepted: None, {', '.join(_DTYPES)}")
    if not isinstance(oob_fill, str):
        raise TypeError(f"{_WHERE}: oob_fill is {type_name(oob_fill)}; accepted: 'zeros', 'nan'")
    if oob_fill not in ("zeros", "nan"):
        raise ValueError(f"{_WHERE}: oob_fill is {shown(oob_fill)}; accepted: 'zeros', 'nan'")
    if oob_fill == "nan" and dtype is not None and dtype not in _FLOATS:
        raise ValueError(f"{_WHERE}: oob_fill is 'nan', and dtype is {dtype!r}; accepted with it: {', '.join(_FLOATS)}")
    if dtype is not None:
        _check_rows(sizes, swizzle, dtype)
    return TensorMap(array, sizes, int(swizzle), written, dtype or "", int(l2_promotion), oob_fill)


def _check_one_of(name: str, value: Any, known: tuple[int, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{_WHERE}: {name} is {type_name(value)}; accepted: {', '.join(map(str, known))}")
    if value not in known:
        raise ValueError(f"{_WHERE}: {name} is {shown(value)}; accepted: {', '.join(map(str, known))}")


def _box_of(box: Any) -> tuple[int, ...]:
    sizes = box if isinstance(box, tuple | list) else (box,)
    accepted = f"1 to {_MOST_DIMENSIONS} ints, each from 1 to {_MOST_BOX}"
    if any(isinstance(size, bool) or not isinstance(size, Integral) for size in sizes):
        raise TypeError(f"{_WHERE}: box is {shown(box)}; accepted: {accepted}, in the order of the array's dimensions")
    if not 1 <= len(sizes) <= _MOST_DIMENSIONS or not all(1 <= size <= _MOST_BOX for size in sizes):
        raise ValueError(f"{_WHERE}: box is {shown(box)}; accepted: {accepted}, in the order of the array's dimensions")
    return tuple(int(size) for size in sizes)


def _check_rows(box: tuple[int, ...], swizzle: int, dtype: str) -> None:
    item = 1 if dtype.startswith(("bool", "float8")) else int(re.sub(r"\D", "", dtype)) // 8
    row = box[-1] * item
    most = f", and up to {swizzle} with swizzle={swizzle}" if swizzle else ""
    if row % _UNIT or (swizzle and row > swizzle):
        raise ValueError(
            f"{_WHERE}: box is {box} of {dtype}, whose rows have {row} bytes; accepted: rows of a multiple of {_UNIT} "
            f"bytes{most}"
        )
