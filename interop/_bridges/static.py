"""Arguments of bridged functions that are no arrays, as keys: where one of them is another, so is the program."""

from __future__ import annotations

from typing import Any

import torch

from interop._arguments import shown, type_name
from interop._libraries.arrays import is_array, is_buffer

__all__ = ["Static", "static"]


def static(label: str, name: str, x: Any, accepted: str) -> Static:
    """Return the key of an argument. TypeError for an array that is none of those `accepted`, and what holds some."""
    if isinstance(x, torch.nn.Module):
        raise TypeError(
            f"{label}: {name} is {type_name(x)}, whose parameters JAX cannot see; accepted: its tensors, as "
            "dict(module.named_parameters())"
        )
    if is_array(x) and not is_buffer(x):
        raise TypeError(
            f"{label}: {name} is {type_name(x)}; accepted: {accepted}, and values that are no arrays. "
            "interop.convert makes one of an array of another library"
        )
    return Static(label, name, x)


class Static:
    """A value that is part of a key: equal to those of its type that it equals, so that 1, 1.0 and True are three."""

    __slots__ = ("_key", "value")

    def __init__(self, label: str, name: str, value: Any) -> None:
        """Take the value; TypeError for one without a hash."""
        self.value = value
        # 0.0 and -0.0 are equal, and NaN is not so to itself: their texts are.
        self._key = type(value), repr(value) if isinstance(value, float | complex) else value
        try:
            hash(self._key)
        except TypeError as error:
            raise TypeError(
                f"{label}: {name} is {shown(value)}, which is no array and has no hash, by which what is compiled for "
                "it is found; accepted: arrays, and values with a hash, in tuples, lists and dicts"
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)
