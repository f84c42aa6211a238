"""What was compiled is kept: kernels in this process, cubins on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from interop import _core

__all__ = [
    "LOCK",
    "Image",
    "cache_folder",
    "kernels",
    "key_of_none",
    "library",
    "load",
    "open_cache",
    "read_image",
    "write_image",
]

#: A cubin, and the names that the kernels have in it.
Image = tuple[bytes, list[str]]

_MOST_BYTES = 256 << 20  # of the cache on disk: the least recently read go first

# Both are bounded by the sources of one process; nothing is unloaded, as a graph may still launch it.
_loaded: dict[str, tuple[_core.LoadedKernel, ...]] = {}
_libraries: dict[str, _core.LoadedLibrary] = {}
#: Of all that compiles or loads. That runs Python, and so `__del__` of any object, which may call a kernel in turn.
LOCK = threading.RLock()

_ORIGIN = "a kernel that was compiled at run time"


def kernels(key: str, compile_it: Callable[[], Image]) -> tuple[_core.LoadedKernel, ...]:
    """Return the kernels of that key, ready to be launched. Compiles those of none. Threads wait for each other."""
    with LOCK:
        if key not in _loaded:
            image, names = compile_it()
            loaded = library(key, image)
            _loaded.setdefault(key, tuple(loaded.kernel(name) for name in names))
        return _loaded[key]


def library(key: str, image: bytes) -> _core.LoadedLibrary:
    """Return the one library of that key, without variables, loaded."""
    with LOCK:
        if key not in _libraries:
            _libraries.setdefault(key, load(image, False))
        return _libraries[key]


def load(image: bytes, has_variables: bool) -> _core.LoadedLibrary:
    """Return a library of its own, loaded."""
    return _core.LoadedLibrary.load(image, _ORIGIN, has_variables)


def key_of_none() -> str:
    """Return a key that nothing else has, of what must not be found again."""
    return secrets.token_hex()


def cache_folder() -> Path:
    """Return where compiled kernels are kept: INTEROP_CACHE_DIR, or `interop` in the user's folder of caches."""
    if given := os.environ.get("INTEROP_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "interop"


def open_cache() -> Any:
    """Return the cache on disk, a mapping of str to bytes; None where there is none that can be used.

    What another user may have written there is not run: such a folder is none.
    """
    from cuda.core.utils import FileStreamProgramCache

    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home
        folder = cache_folder()
        folder.parent.mkdir(parents=True, exist_ok=True)
        if _make_ours(folder, 0o755) and _make_ours(folder / "entries", 0o700):  # where that cache has its files
            return FileStreamProgramCache(folder, max_size_bytes=_MOST_BYTES)
    return None


def _make_ours(folder: Path, allowed: int) -> bool:
    """Make a folder that this user alone may write to; return False where another may have written to it.

    An older one may have the mode that a umask of 002 gives, and loses it if all in it is this user's.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.name != "posix":
        return True
    found, user = folder.stat(), os.getuid()
    if found.st_uid != user or found.st_mode & stat.S_IWOTH:
        return False
    if stat.S_IMODE(found.st_mode) & ~allowed:
        if any(file.lstat().st_uid != user for file in folder.rglob("*")):
            return False
        folder.chmod(found.st_mode & allowed)
    return True


def read_image(cache: Any, key: str) -> Image | None:
    """Return what is kept under that key; None for nothing, or for a broken file."""
    found = None
    with contextlib.suppress(OSError):
        found = None if cache is None else cache.get(key)
    if found is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # a broken file is written anew
            header, _, image = found.partition(b"\n")
            entry = json.loads(header)
            if entry["sha256"] == hashlib.sha256(image).hexdigest():
                return image, entry["names"]
    return None


def write_image(cache: Any, key: str, image: bytes, names: Sequence[str]) -> None:
    """Keep it. A folder that cannot be written is no error."""
    if cache is not None:
        with contextlib.suppress(OSError):
            header = {"names": [*names], "sha256": hashlib.sha256(image).hexdigest()}
            cache[key] = json.dumps(header).encode() + b"\n" + image
