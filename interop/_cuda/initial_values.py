"""What a variable of a cubin begins with: its bytes, and where addresses stand in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["initial_value"]


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    info: int


_HEADER = struct.Struct("<40x Q 10x HH 2x")  # e_shoff, e_shentsize, e_shnum
_SECTION = struct.Struct("<4x I 16x QQ II 16x")
_SYMBOL = struct.Struct("<I 2x H QQ")  # st_name, st_shndx, st_value, st_size
_SYMTAB, _RELA, _NOBITS, _REL = 2, 4, 8, 9
_ENTRIES = {_RELA: struct.Struct("<Q 16x"), _REL: struct.Struct("<Q 8x")}  # r_offset


def initial_value(cubin: bytes, name: str) -> tuple[bytes, list[int]]:
    """Return the bytes that a variable begins with, and the places in them of addresses."""
    start, size, count = _HEADER.unpack_from(cubin)
    sections = [_Section(*_SECTION.unpack_from(cubin, start + place * size)) for place in range(count)]
    wanted = name.encode() + b"\0"
    for table in sections:
        if table.kind != _SYMTAB:
            continue
        names = sections[table.link].offset
        for name_at, place, value, length in _SYMBOL.iter_unpack(cubin[table.offset : table.offset + table.size]):
            if cubin.startswith(wanted, names + name_at) and sections[place].kind != _NOBITS:
                at = sections[place].offset + value
                found = [offset - value for offset in _relocated(cubin, sections, place)]
                return cubin[at : at + length], [offset for offset in found if 0 <= offset < length]
    raise AssertionError(f"{name} is not in what was compiled")


def _relocated(cubin: bytes, sections: Sequence[_Section], place: int) -> list[int]:
    """Return where addresses are put into a section as it is loaded."""
    found = []
    for section in sections:
        if section.kind in _ENTRIES and section.info == place:
            table = cubin[section.offset : section.offset + section.size]
            found += [offset for (offset,) in _ENTRIES[section.kind].iter_unpack(table)]
    return found
