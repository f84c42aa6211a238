"""Where an array is to lie, as types for annotations."""

from __future__ import annotations

from typing import Literal

__all__ = ["Device", "Memory"]

Memory = Literal["device", "managed", "pinned", "host"]
Device = int | str | None
