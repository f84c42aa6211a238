"""Parameters of kernels that are mdspans of libcu++: as they are declared, and where the compiler has put their parts.

The latter is measured in what was compiled, of values that differ in one part each: see mdspan_probe.cuh.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from interop._cuda.initial_values import initial_value
from interop._functions.c_types import ELEMENTS, SCALARS
from interop._functions.parameters import Parameter, Refuse, split_at_commas

__all__ = ["Measured", "mdspan_of", "measured", "probe_of"]

#: The bytes of any value; the places in them of the pointer, of each extent and of each stride, or -1.
Measured = tuple[bytes, int, list[int], list[int]]

_PROBE = Path(__file__).parent / "mdspan_probe.cuh"
_VARIABLE = "interop_probe_"
_DYNAMIC = -1
_COUNT = 6  # of the numbers before the static extents


def probe_of(name: str, places: Sequence[int]) -> str:
    """Return what is appended to the source of a kernel, which has mdspans at these places of its parameters."""
    uses = "".join(f"INTEROP_PROBE({place}, {name})\n" for place in places)
    return f"\n{_PROBE.read_text(encoding='utf-8')}{uses}" if places else ""


def measured(cubin: bytes, parameters: Sequence[Parameter], refuse: Refuse) -> list[Measured]:
    """Return what was measured of each mdspan. One that is not as it is declared is the error that `refuse` makes."""
    return [_read(cubin, place, p, refuse) for place, p in enumerate(parameters) if p.kind == "mdspan"]


def _read(cubin: bytes, place: int, parameter: Parameter, refuse: Refuse) -> Measured:
    image, addresses = initial_value(cubin, f"{_VARIABLE}{place}")
    size, layout, index_bytes, signed, is_const, rank = struct.unpack_from(f"<{_COUNT}q", image)
    extents = struct.unpack_from(f"<{rank}q", image, 8 * _COUNT)
    found = (layout, index_bytes, signed, *extents)
    if found != parameter.form or is_const == parameter.written:
        raise refuse(
            f"{parameter.name} is declared with {_text(parameter.form, parameter.written)}, and is compiled with "
            f"{_text(found, not is_const)}; accepted: signature= with the parameters of the kernel itself"
        )
    count = 1 + 2 * rank
    start = len(image) - count * size
    values = [image[start + k * size : start + (k + 1) * size] for k in range(count)]
    (data,) = {(at - start) % size for at in addresses}
    places = [_changed(values[0], value, index_bytes) for value in values[1:]]
    return values[0], data, places[:rank], places[rank:]


def _changed(value: bytes, other: bytes, width: int) -> int:
    """Return where the number stands that is 1 in the one and 2 in the other value; -1 if there is none."""
    places = [at for at in range(len(value)) if value[at] != other[at]]
    if not places:
        return -1
    (at,) = places
    one, two = value[at : at + width], other[at : at + width]
    assert int.from_bytes(one, "little") == 1, "the number of an mdspan's value"
    assert int.from_bytes(two, "little") == 2, "the number of an mdspan's value"
    return at


_LAYOUTS = {"C": "layout_right", "F": "layout_left", "S": "layout_stride"}


def _text(form: Sequence[int], written: bool) -> str:
    layout, index_bytes, signed, *extents = form
    sizes = ", ".join("dynamic" if extent == _DYNAMIC else str(extent) for extent in extents)
    kind = f"{'' if signed else 'u'}int{8 * index_bytes}"
    elements = "elements that are written" if written else "const elements"
    return f"{elements}, extents ({sizes}) of {kind} and {_LAYOUTS.get(chr(layout), 'another layout or accessor')}"


# ---- declarations ----

_MDSPAN = re.compile(
    r"(?:const )?(?:::)?(?P<space>(?:\w+::)*)mdspan ?<(?P<arguments>.*)>(?: const)? (?P<name>[A-Za-z_]\w*)", re.DOTALL
)
_NAMESPACE = re.compile(r"^(?:::)?(?:cuda::)?(?:std::)?")
_TEMPLATE = re.compile(r"(?P<name>\w+) ?<(?P<arguments>.*)>", re.DOTALL)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlLzZ]*")
_MOST_DIMENSIONS = 64  # of an array
_EXTENTS = "extents<int, 3, dynamic_extent>, dextents<int, 2>, dims<2>"
_ORDERS = {layout: ord(order) for order, layout in _LAYOUTS.items()}


def mdspan_of(text: str, refuse: Refuse) -> Parameter | None:
    """Return the parameter that ``cuda::std::mdspan<const float, cuda::std::dextents<int, 2>> x`` declares.

    None for what is no mdspan; what `refuse` makes of one that is not understood is raised.
    """
    found = _MDSPAN.fullmatch(text)
    if found is None:
        return None
    name = found["name"]
    if found["space"] not in ("", "cuda::std::"):
        raise refuse(f"{name!r} is a {found['space']}mdspan; accepted: cuda::std::mdspan")
    arguments = [part for part in split_at_commas(found["arguments"]) if part]
    words = arguments[0].split()
    element = " ".join(word for word in words if word != "const")
    if not ELEMENTS.get(element):
        accepted = ", ".join(name for name, dtype in ELEMENTS.items() if dtype)
        raise refuse(f"the elements of {name!r} are {element!r}; accepted in an mdspan: {accepted}")
    layout = _NAMESPACE.sub("", arguments[2]) if len(arguments) > 2 else "layout_right"
    if not 2 <= len(arguments) <= 3 or layout not in _ORDERS:
        raise refuse(
            f"{name!r} is an mdspan of {', '.join(arguments[1:]) or 'no extents'}; accepted: extents, and "
            f"{', '.join(_ORDERS)}"
        )
    index, extents = _extents_of(name, arguments[1], refuse)
    if not 1 <= len(extents) <= _MOST_DIMENSIONS:
        raise refuse(f"{name!r} is an mdspan of {len(extents)} dimensions; accepted: 1 to {_MOST_DIMENSIONS}")
    dtype = SCALARS.get(index, "")
    if "int" not in dtype:
        raise refuse(f"the indices of {name!r} are {index!r}; accepted in an mdspan: the types of integers")
    form = (_ORDERS[layout], int(re.sub(r"\D", "", dtype)) // 8, int(dtype[0] != "u"), *extents)
    return Parameter("mdspan", name, ELEMENTS[element], "const" not in words, len(extents), form=form)


def _extents_of(name: str, text: str, refuse: Refuse) -> tuple[str, list[int]]:
    """Return the type of the indices, and the extents: -1 for a dynamic one."""

    def refused() -> ValueError:
        return refuse(f"the extents of {name!r} are {text!r}; accepted: {_EXTENTS}")

    found = _TEMPLATE.fullmatch(_NAMESPACE.sub("", text))
    if found is None:
        raise refused()
    arguments = split_at_commas(found["arguments"])
    if found["name"] == "extents":
        return arguments[0], [_extent(argument, refused) for argument in arguments[1:] if argument]
    if found["name"] == "dextents" and len(arguments) == 2:
        index, count = arguments
    elif found["name"] == "dims" and 1 <= len(arguments) <= 2:
        index, count = arguments[1] if len(arguments) == 2 else "size_t", arguments[0]
    else:
        raise refused()
    return index, [_DYNAMIC] * min(_extent(count, refused), _MOST_DIMENSIONS + 1)


def _extent(text: str, refused: Callable[[], ValueError]) -> int:
    if _NAMESPACE.sub("", text) == "dynamic_extent":
        return _DYNAMIC
    number = _INTEGER.fullmatch(text)
    if number is None:
        raise refused()
    extent = int(number[1], 0)
    return extent if extent < 2**63 else _DYNAMIC  # as a symbol has it
