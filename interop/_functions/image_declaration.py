"""The parameters of a kernel in a compiled image, from its symbol."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interop._cuda import images
from interop._functions.c_types import ELEMENTS
from interop._functions.parameters import Parameter, Refuse, split_at_commas

__all__ = ["check_bytes", "signature_of"]

_IN_SYMBOLS = re.compile(r"\b__\d+::")  # the inline namespaces of libcu++
_MAP = "const __grid_constant__ CUtensorMap"
_SIGNATURE = "accepted: signature='const float* x, float* y, int n', of its own parameters"


def signature_of(symbol: str, origin: str, sizes: Sequence[int] | None, refuse: Refuse) -> str:
    """Return the parameters that a symbol of C++ says, called arg0, arg1, ...; a symbol of C says none."""
    (text,) = images.demangled([symbol]).values()
    known = "" if sizes is None else f" (their sizes are {', '.join(map(str, sizes))} bytes)"
    if not text.endswith(")"):
        raise refuse(
            f"{symbol!r} in {origin} is a name of C, which does not say the kernel's parameters{known}; {_SIGNATURE}"
        )
    depth = 0
    start = len(text) - 1
    while start > 0:
        depth += (text[start] == ")") - (text[start] == "(")
        if depth == 0:
            break
        start -= 1
    types = split_at_commas(_IN_SYMBOLS.sub("", text[start + 1 : -1]).replace("CUtensorMap_st", _MAP))
    return ", ".join(f"{type_name} arg{place}" for place, type_name in enumerate(types) if type_name)


def check_bytes(parameters: Sequence[Parameter], sizes: Sequence[int] | None, origin: str, refuse: Refuse) -> None:
    """Refuse parameters that have other sizes than those which the image says."""
    if sizes is None:
        return
    if len(sizes) != len(parameters):
        raise refuse(
            f"{len(parameters)} parameters are declared, and the kernel in {origin} has {len(sizes)}; {_SIGNATURE}"
        )
    for parameter, size in zip(parameters, sizes, strict=True):
        if parameter.kind == "mdspan":  # which a compiled kernel does not take: its caller refuses it
            continue
        declared = _bytes(parameter)
        if declared != size:
            raise refuse(
                f"{parameter.name} is declared with {declared} bytes, and is {size} bytes in {origin}; {_SIGNATURE}"
            )


def _bytes(parameter: Parameter) -> int:
    if parameter.kind == "pointer":
        return 8
    if parameter.kind == "view":
        return 8 + 16 * parameter.ndim
    if parameter.kind in ("tensor_map", "shared_map"):
        return 128
    return _SIZES[parameter.dtype]


_SIZES = {
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
    "bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
assert {dtype for dtype in ELEMENTS.values() if dtype} <= _SIZES.keys()
