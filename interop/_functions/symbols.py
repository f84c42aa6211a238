"""What stands in the file of a shared library: its symbols, what keeps the loader from some of them, its build ID."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["Symbol", "build_id_of", "symbols_of"]

_NOTE, _BUILD_ID = 7, b"\3\0\0\0GNU\0"  # SHT_NOTE, and in it NT_GNU_BUILD_ID
_DYNSYM, _SYMTAB = 11, 2  # SHT_DYNSYM, which the loader reads, and SHT_SYMTAB, which `strip` removes
_LOCAL = 0  # STB_LOCAL
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN
_UNDEFINED = 0  # SHN_UNDEF

_HEADER = struct.Struct("<40x Q 12x H 2x")  # Elf64_Ehdr: e_shoff, e_shnum
_SECTION = struct.Struct("<4x I 16x QQ I 20x")  # Elf64_Shdr: sh_type, sh_offset, sh_size, sh_link
_SYMBOL = struct.Struct("<I BBH 16x")  # Elf64_Sym: st_name, st_info, st_other, st_shndx


class Symbol(NamedTuple):
    """A name in a library, and what keeps the loader from it: "" for nothing, else "hidden", "local" or "imported"."""

    name: str
    obstacle: str


def symbols_of(file: Path, of_loader: bool = True) -> list[Symbol]:
    """Return the symbols of a 64-bit ELF file; none of what is no such file.

    `of_loader`: those that the loader looks at, else all of those that `strip` removes. They are what to look for:
    whether the library has one, and where, is the loader's to say.
    """
    try:
        with file.open("rb") as opened:
            return _table(opened, _DYNSYM if of_loader else _SYMTAB)
    except (OSError, struct.error):  # unreadable, or not what its header says
        return []


def build_id_of(file: Path) -> str:
    """Return the build ID that the linker gave to a 64-bit ELF file; "" where there is none."""
    try:
        with file.open("rb") as opened:
            for kind, offset, size, _ in _sections(opened):
                note = _read(opened, offset, size) if kind == _NOTE else b""
                if note[8:16] == _BUILD_ID:
                    return note[16:].hex()
    except (OSError, struct.error):
        pass
    return ""


def _sections(file: BinaryIO) -> list[tuple[int, int, int, int]]:
    """Return the type, offset, size and link of each section; none of what is no such file."""
    header = _read(file, 0, _HEADER.size)
    if header[:6] != b"\x7fELF\x02\x01":  # of 64 bits, in little endian
        return []
    start, count = _HEADER.unpack(header)
    return list(_SECTION.iter_unpack(_read(file, start, _SECTION.size * count)))


def _table(file: BinaryIO, wanted: int) -> list[Symbol]:
    sections = _sections(file)
    found: list[Symbol] = []
    for kind, offset, size, link in sections:
        if kind != wanted or link >= len(sections):
            continue
        names = _read(file, sections[link][1], sections[link][2])
        for name, info, other, section in _SYMBOL.iter_unpack(_read(file, offset, size)):
            end = names.find(b"\0", name)
            if name and end > name:
                found.append(Symbol(names[name:end].decode(errors="replace"), _obstacle(info >> 4, other & 3, section)))
    return found


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    if offset + size > file.seek(0, os.SEEK_END):  # as much as a broken header says may not fit into memory
        raise struct.error
    file.seek(offset)
    return file.read(size)


def _obstacle(binding: int, visibility: int, section: int) -> str:
    if section == _UNDEFINED:
        return "imported"
    if visibility in _HIDDEN:
        return "hidden"
    return "local" if binding == _LOCAL else ""
