"""Compiled images, told by their content: what a cubin, PTX or a fatbin has in it, as far as that can be read."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from interop import _core

__all__ = ["KINDS", "Image", "demangled", "find_named", "read_cubin", "read_image"]

KINDS = "a cubin, PTX or a fatbin"
Refuse = Callable[[str], ValueError]


class Image(NamedTuple):
    """An image, and what it has by its symbols: None for what only the driver can tell."""

    kind: str  # "cubin", "PTX" or "fatbin"
    data: bytes
    made_for: str  # such as "sm_90"; "" where it is not known
    #: Of each kernel the sizes of its parameters, where they stand in the image.
    kernels: Mapping[str, Sequence[int] | None] | None
    #: Of each variable its size.
    variables: Mapping[str, int] | None


def read_image(data: bytes, refuse: Refuse) -> Image | None:
    """Return the image that `data` is; None for anything else. A broken one is the error that `refuse` makes of it."""
    if data.startswith(b"\x7fELF"):
        return read_cubin(data, refuse)
    if data.startswith(_FATBIN):
        return _read_fatbin(data, refuse)
    if _PTX.match(data):
        return _read_ptx(data, refuse)
    return None


# ---- names ----


def demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Return each symbol with what it is in C++; those of C, and of variables without a namespace, as they are."""
    symbols = list(symbols)
    texts = _core.CFunction.demangled(symbols)
    return {symbol: text or symbol for symbol, text in zip(symbols, texts, strict=True)}


def find_named(name: str, symbols: Iterable[str], is_whole: bool = False) -> list[str]:
    """Return the symbols that are those of `name`, a kernel's or a variable's: one, where the name says enough.

    Its last part may be enough, unless it `is_whole`, as to the compiler.
    """
    texts = demangled(symbols)
    if name in texts:
        return [name]
    base = re.escape(name.partition("<")[0].strip().rpartition("::")[2])
    candidates = [symbol for symbol in texts if re.search(rf"(?:^|[\s:]){base}(?:<.*)?(?:\(|$)", texts[symbol])]
    exact = [symbol for symbol in candidates if f"{_plain(texts[symbol])}(".startswith(f"{_plain(name)}(")]
    return exact if is_whole else exact or candidates


def _plain(text: str) -> str:
    """Return a name, with its parameters, as text that is alike for all ways to write it."""
    return re.sub(r"\s|\(anonymous namespace\)::|^void |^::", "", text.strip())


# ---- cubins: ELF files of NVIDIA's machine ----

_MACHINE = 190  # EM_CUDA
_REL, _SYMTAB, _OBJECT, _NOBITS = 1, 2, 1, 8  # ET_REL, SHT_SYMTAB, STT_OBJECT, SHT_NOBITS
#: e_ident[EI_ABIVERSION], e_type, e_machine, e_phoff, e_shoff, e_flags, e_phentsize, e_phnum, e_shentsize ...
_HEADER = struct.Struct("<8x B 7x HH 12x QQ I 2x HH HHH")
_SECTION = struct.Struct("<II 16x QQ I 20x")  # sh_name, sh_type, sh_offset, sh_size, sh_link
_SYMBOL = struct.Struct("<I B x H 8x Q")  # st_name, st_info, st_shndx, st_size
_HOST = "a library or object file of the host; accepted: {}, or interop.load for a shared library"


def read_cubin(data: bytes, refuse: Refuse) -> Image:
    """Return a cubin's names. `refuse` makes an error of what is none, is truncated, or is not linked."""
    if len(data) < 64:
        raise refuse(f"a truncated ELF file of {len(data)} bytes; accepted: {KINDS}")
    abi, kind, machine, segments_at, start, flags, segment_size, segments, size, count, names = _HEADER.unpack_from(
        data
    )
    if machine != _MACHINE:
        raise refuse(_HOST.format(KINDS))
    end = max(start + size * count, segments_at + segment_size * segments)
    if size != _SECTION.size or end > len(data) or names >= count:
        raise refuse(_truncated("cubin", data, end))
    sections = [_SECTION.unpack_from(data, start + place * size) for place in range(count)]
    end = max([end, *(offset + length for _, what, offset, length, _ in sections if what != _NOBITS)])
    if end > len(data):
        raise refuse(_truncated("cubin", data, end))
    text_at = sections[names][2]
    found = [_text(data, text_at + section[0]) for section in sections]
    # Each kernel has a bank of constants, its arguments, in a section.
    kernels = [name.removeprefix(".nv.constant0.") for name in found if name.startswith(".nv.constant0.")]
    variables, missing = _symbols(data, sections)
    # As LLVM's EF_CUDA_SM has it.
    made_for = f"sm_{(flags >> 8 if abi >= 8 else flags) & 0xFF}"
    if kind == _REL:
        needs = ", ".join(demangled(missing).values())
        raise refuse(
            f"a cubin for {made_for} that is not linked, as by nvcc -dc or -rdc=true"
            f"{f', and needs {needs}' if needs else ''}; accepted: one without that, or as nvlink has linked it"
        )
    return Image("cubin", data, made_for, dict.fromkeys(kernels), variables)


def _symbols(data: bytes, sections: Sequence[tuple[int, ...]]) -> tuple[dict[str, int], list[str]]:
    """Return the variables with their sizes, and the names that are in no section."""
    variables: dict[str, int] = {}
    missing: list[str] = []
    for _, what, offset, length, link in sections:
        if what != _SYMTAB or link >= len(sections):
            continue
        for name_at, info, section, size in _SYMBOL.iter_unpack(data[offset : offset + length // 24 * 24]):
            name = _text(data, sections[link][2] + name_at)
            if section == 0 and name:
                missing.append(name)
            elif info & 15 == _OBJECT and not _is_compilers(name):
                variables[name] = size
    return variables, missing


def _text(data: bytes, start: int) -> str:
    return data[start : max(start, data.find(b"\0", start))].decode(errors="replace")


def _is_compilers(name: str) -> bool:
    """Is it a name that the compiler has given, such as that of a string, or one of no user's?"""
    return "$" in name or name.startswith((".", "__func", "__PRETTY_FUNCTION")) or bool(_OF_HEADERS.match(name))


#: Constants of CUDA's own headers, which a kernel that includes them has by the hundred; and of interop's own probe.
_OF_HEADERS = re.compile(
    r"_ZN(?:\d+_INTERNAL_\w*?)?"
    r"(?:4cuda\w*?3__\d|15__cccl_internal|6thrust|3cub|18cooperative_groups4__v\d|13interop_probe)"
    r"|interop_probe_\d"
)


def _truncated(kind: str, data: bytes, end: int) -> str:
    return f"a truncated {kind}, of {len(data)} bytes where its header says {end}; accepted: a whole one"


# ---- fatbins, which hold cubins and PTX, mostly compressed ----

_FATBIN = b"\x50\xed\x55\xba"
_ENTRY_OF_FATBIN = struct.Struct("<4x IQ")  # behind its kind: bytes of the entry's header, and of what is behind that
_LEAST_HEADER = 64


def _read_fatbin(data: bytes, refuse: Refuse) -> Image:
    end = 16
    if len(data) >= end:
        header, length = struct.unpack_from("<6xHQ", data)
        end = header + length
    if end > len(data):
        raise refuse(_truncated("fatbin", data, end))
    # The driver believes these sizes, and reads beyond the image where they are wrong.
    place = header
    while place < end:
        sizes = _ENTRY_OF_FATBIN.unpack_from(data, place) if end - place >= _LEAST_HEADER else (0, 0)
        if sizes[0] < _LEAST_HEADER or sum(sizes) > end - place:
            raise refuse(f"a damaged fatbin, whose entry at byte {place} does not fit in it; accepted: a whole one")
        place += sum(sizes)
    return Image("fatbin", data, "", None, None)


# ---- PTX ----

_PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+\d", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^()]*)\))?")
_VARIABLE = re.compile(r"^\s*(?:\.(?:visible|weak|common)\s+)?\.(?:const|global)\s([^;={]+)", re.MULTILINE)
_BYTES = {"pred": 1, **{f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64, 128)}}


def _read_ptx(data: bytes, refuse: Refuse) -> Image:
    text = data.rstrip(b"\0").decode(errors="replace")
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"[^"\n]*"', " ", text, flags=re.DOTALL)
    version = re.search(r"\.version\s+([\d.]+)", text)
    target = re.search(r"\.target\s+(\w+)", text)
    is_whole = text.rstrip().endswith(("}", ";")) and all(text.count(a) == text.count(b) for a, b in ("{}", "()"))
    if version is None or target is None or not is_whole:
        raise refuse("truncated PTX, which ends within a declaration or a function; accepted: a whole file")
    kernels = {found[1]: [_size(part)[1] for part in _parts(found[2])] for found in _ENTRY.finditer(text)}
    variables = dict(_size(found[1]) for found in _VARIABLE.finditer(text))
    variables = {name: size for name, size in variables.items() if not _is_compilers(name)}
    made_for = f"{target[1]}, of version {version[1]}"
    return Image("PTX", data.rstrip(b"\0") + b"\0", made_for, kernels, variables)


def _parts(parameters: str | None) -> list[str]:
    return [part for part in (parameters or "").split(",") if part.strip()]


def _size(declared: str) -> tuple[str, int]:
    """Return the name and the size of ".param .align 4 .b8 name[12]", or of a variable."""
    types = [_BYTES[word] for word in re.findall(r"\.(\w+)", declared) if word in _BYTES]
    vector = re.search(r"\.v([24])\b", declared)
    sizes = [int(size) for size in re.findall(r"\[(\d+)\]", declared)]
    name = re.findall(r"[\w$%]+", declared.partition("[")[0])[-1]
    return name, (types[-1] if types else 0) * (int(vector[1]) if vector else 1) * math.prod(sizes)
