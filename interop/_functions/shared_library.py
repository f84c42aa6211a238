"""Shared libraries as they are on disk now, and the addresses of the functions that they themselves hold."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from interop._functions.symbols import build_id_of

__all__ = ["SharedLibrary", "build_at"]


class _LinkMap(ctypes.Structure):  # <link.h>: what the loader knows of a library
    _fields_ = (("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p))


class _Info(ctypes.Structure):  # Dl_info of <dlfcn.h>
    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


class _Symbol(ctypes.Structure):  # ElfW(Sym) of <elf.h>, as far as its type, with 64 bits
    _fields_ = (("st_name", ctypes.c_uint32), ("st_info", ctypes.c_ubyte))


_LINK_MAP = 2  # RTLD_DI_LINKMAP
_SYMBOL = 1  # RTLD_DL_SYMENT
_DATA = (1, 5, 6)  # STT_OBJECT, STT_COMMON, STT_TLS


class _Version(NamedTuple):
    """A file at one time. While it is loaded, no other file can have its number."""

    device: int
    inode: int
    size: int
    modified: int

    @property
    def file(self) -> tuple[int, int]:
        return self.device, self.inode


#: What this process has loaded: by the name that the loader was given, and by the file's number.
_by_name: dict[str, tuple[int, int]] = {}
_by_file: dict[tuple[int, int], _Version] = {}


class SharedLibrary:
    """A library that stays loaded until the process ends."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Load the file of a path object, or of a string with a slash; for another string the loader looks itself."""
        if sys.platform != "linux":
            raise RuntimeError("interop.load: C functions are called on Linux, on x86-64 and 64-bit ARM")
        given = os.fspath(path)
        if isinstance(given, str) and not given:
            raise ValueError("interop.load: path is ''; accepted: a file, or a name that the system's loader looks for")
        if not isinstance(given, str) or "\0" in given:
            raise ValueError(f"interop.load: path is {given!r}; accepted: a string without null characters")
        if not isinstance(path, str) or "/" in given:
            #: What was loaded: absolute for a file, so that it is the same one in another folder.
            self.path = str(Path(given).absolute())
            self._library = _load(given, self.path)
        else:
            self.path = given
            found = _file_of(_open(given, given))
            # By the loader's name for it this may be a file that has been replaced since.
            self._library = _load(given, found) if Path(found).is_file() else _open(given, given)
        self._loaded = self.version

    @property
    def file(self) -> Path:
        """The file that the loader has found."""
        return Path(_file_of(self._library))

    @property
    def version(self) -> tuple[object, ...]:
        """Which file it is, as far as it can be told without reading all of it."""
        try:
            status = self.file.stat()
        except OSError:
            return (self.file, uuid.uuid4())  # another one in each process
        return (self.file, status.st_size, status.st_mtime_ns)

    @functools.cached_property
    def build(self) -> str:
        """What its code is, in every process: the build ID that the linker gave it, or else a hash of the file."""
        if self.version != self._loaded:  # of what is loaded, nothing says it any more
            return str(uuid.uuid4())
        return _build_of(self.file)

    def address_of(self, function: str) -> int | None:
        """Return the address of the function with this symbol; None if there is no such symbol.

        AttributeError if another library has it, or if it is that of data.
        """
        label = f"interop.load: {self.path!r} has no function {function!r}"
        try:
            address = ctypes.cast(self._library[function], ctypes.c_void_p).value or 0
        except AttributeError:
            return None
        info, symbol, loader = _Info(), ctypes.POINTER(_Symbol)(), _loader()
        if hasattr(loader, "dladdr1"):
            found = loader.dladdr1(ctypes.c_void_p(address), ctypes.byref(info), ctypes.byref(symbol), _SYMBOL)
        else:  # musl
            found = loader.dladdr(ctypes.c_void_p(address), ctypes.byref(info))
        is_data = symbol and info.dli_saddr == address and symbol.contents.st_info & 15 in _DATA
        if not found or is_data:
            raise AttributeError(f"{label}: what has this name is data")
        holder = os.fsdecode(info.dli_fname)
        if holder != _file_of(self._library):
            raise AttributeError(f"{label} of its own, but finds one in {holder!r}; accepted: to load that library")
        return address


@functools.cache
def build_at(address: int) -> str:
    """Return the same of the library that a function is in, which has just been loaded."""
    info = _Info()
    if not _loader().dladdr(ctypes.c_void_p(address), ctypes.byref(info)):
        return str(uuid.uuid4())
    return _build_of(Path(os.fsdecode(info.dli_fname)))


def _build_of(file: Path) -> str:
    if number := build_id_of(file):
        return number
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()


def _load(given: str, file: str) -> ctypes.CDLL:
    """Load what is in the file now."""
    try:
        status = Path(file).stat()
    except OSError as error:
        raise OSError(f"interop.load: {given!r} cannot be loaded: {error.strerror}") from None
    version = _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if _by_file.get(version.file, version) != version:
        raise OSError(
            f"interop.load: {given!r} has been changed in place since this process loaded it, and what is loaded "
            "may be neither the old code nor the new; accepted: a new file, moved to this path, or a new process"
        )
    # The loader goes by names before it looks at files: by "./" it is made to look.
    folder, _, base = file.rpartition("/")
    name = f"{folder}/./{base}"
    while _by_name.get(name, version.file) != version.file:
        folder += "/."
        name = f"{folder}/./{base}"
    library = _open(given, name)
    _by_name[name], _by_file[version.file] = version.file, version
    return library


def _open(given: str, name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        hint = ""
        if "/" not in name and Path(name).is_file():
            hint = f"; a name without a slash is looked for by the system's loader: the file here is './{name}'"
        raise OSError(f"interop.load: {given!r} cannot be loaded: {error}{hint}") from None


def _loader() -> Any:
    return ctypes.CDLL(None)


def _file_of(library: ctypes.CDLL) -> str:
    """Return the loader's name of a library: the path by which it was found."""
    link_map = ctypes.POINTER(_LinkMap)()
    _loader().dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(link_map))
    return os.fsdecode(link_map.contents.l_name)
