"""Arrays that speak no protocol: all that is known of them is what a registration says."""

from __future__ import annotations

from typing import Any

import interop


class Box:
    """Holds an array, or anything else. Not registered itself."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


def unpack(box: Box) -> Any:
    """Return what is in the box: an `export` for a registration."""
    return box.inside


def new_box(*, name: str = "boxes", **taught: Any) -> type[Box]:
    """Return a new class of boxes, registered."""
    kind = type("Box", (Box,), {})
    interop.register(kind, name=name, **taught)
    return kind
