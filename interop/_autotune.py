"""Measure which algorithms are the quickest for products, and keep the choices in a file."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from interop import _core
from interop._arguments import named, shown, type_name

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["autotune"]

_FORMAT = 1


class autotune:  # noqa: N801 - used as a function is, as numpy.errstate
    """Tune every matrix product inside a ``with`` block, and keep what was chosen.

    By default cuBLAS says which of its algorithms should be the quickest for a product. Tuning asks it for sixteen,
    times each of them and our own kernel on the card, with a cold cache, and takes the quickest for every later product
    of the same dtypes, shapes, strides, alignments and terms, in the whole process. The first such product inside the
    block waits for the GPU, and needs a workspace of 32 MiB and twice the L2 cache beside the usual one; later ones
    cost nothing. Not tuned are small products, products in a captured stream, and those of host arrays or of JAX
    arrays. The block holds for all threads.

    Parameters
    ----------
    path : str or path, optional
        A JSON file. If it exists, its choices are loaded first. All choices are written to it at the end.

    Raises
    ------
    TypeError
        `path` is no path.
    ValueError
        The file is not one that this class has written.
    OSError
        It cannot be read or written.

    Notes
    -----
    Another algorithm adds up in another order: results are as exact as before, but may differ in their last bits. A
    choice holds for the card and the version of cuBLAS that it was made with; a file keeps those of several.

    Threads and processes may use one file at once: each adds its choices to what the others have written, and whoever
    reads it finds a whole file. A symbolic link stays one: the file that it leads to is replaced, with its permissions.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> with interop.autotune():
    ...     interop.matmul(np.eye(2), np.eye(2))  # of host arrays: nothing to tune
    array([[1., 0.],
           [0., 1.]])
    """

    _lock = threading.Lock()
    _open = 0

    @named("interop.autotune", method=True)
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else _path(path)

    def __enter__(self) -> Self:
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.load(self._path)
        self._count(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._count(-1)
        if self._path is not None:
            self.save(self._path)

    @classmethod
    def _count(cls, by: int) -> None:
        with cls._lock:
            cls._open += by
            _core.Tuning.tune_all(cls._open > 0)

    @staticmethod
    @named("interop.autotune.load")
    def load(path: str | os.PathLike[str]) -> int:
        """Take the choices in a file, and return how many hold for the cards and the cuBLAS that are here."""
        kept = 0
        cards, cublas = _machine()
        for entry in _read(_path(path)):
            for device, card in enumerate(cards):
                if entry["card"] == card and entry["cublas"] == cublas:
                    try:
                        _core.Tuning.keep(device, entry)
                    except (KeyError, TypeError, ValueError) as error:
                        raise _malformed(path, shown(error)) from error
                    kept += 1
        return kept

    @staticmethod
    @named("interop.autotune.save")
    def save(path: str | os.PathLike[str]) -> int:
        """Write all choices of this process to a file, and return how many there are.

        Choices that are in the file already, for other cards, another cuBLAS or other products, stay in it.
        """
        file = Path(os.path.realpath(_path(path)))
        cards, cublas = _machine()
        mine = [
            {"card": card, "cublas": cublas, **choice}
            for device, card in enumerate(cards)
            for choice in _core.Tuning.choices(device)
        ]
        with _alone(file.parent):
            try:
                found = _read(file)
            except FileNotFoundError:
                found = []
            entries = {_identity(entry): entry for entry in (*found, *mine)}
            text = json.dumps({"interop autotune": _FORMAT, "choices": list(entries.values())}, indent=1)
            _replace(file, text.encode() + b"\n")
        return len(mine)


# ---- the file ----

_writing = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may have been writing, which the child has not
    os.register_at_fork(after_in_child=lambda: globals().update(_writing=threading.Lock()))


def _path(path: Any) -> Path:
    """Return a path; TypeError or ValueError for what is none."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise TypeError(f"interop.autotune: path is {type_name(path)}; accepted: a str, or a path such as pathlib.Path")
    try:
        is_name = "\0" not in text and bool(os.fsencode(text))
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise ValueError(f"interop.autotune: path is {shown(text)}; accepted: the path of a file")
    return Path(text)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other threads and processes from writing in this folder meanwhile."""
    with _writing:
        if fcntl is None:
            yield
            return
        try:
            handle = os.open(folder, os.O_RDONLY)
        except PermissionError:  # one may write into it all the same
            yield
            return
        try:
            # Some network file systems have no such locks: then two processes may drop each other's choices.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle, too
            os.close(handle)


def _replace(file: Path, data: bytes) -> None:
    """Replace the content of a file in one step; it keeps its permissions, or gets those of a new file."""
    beside = file.with_name(f"{file.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as opened:
            with contextlib.suppress(FileNotFoundError):
                beside.chmod(stat.S_IMODE(file.stat().st_mode))
            opened.write(data)
        beside.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _machine() -> tuple[list[str], str]:
    """Return the names of the GPUs, none where there is no driver, and the version of cuBLAS."""
    machine = _core.machine_info()
    return [card["name"] for card in machine["devices"]], machine["cublas"]


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["card"], entry["cublas"], entry["key"]


def _read(path: Path) -> list[dict[str, Any]]:
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _malformed(path, "a device or a pipe")
    text = path.read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, shown(error)) from error
    try:
        version, entries = found["interop autotune"], found["choices"]
        is_listed = all(isinstance(part, str) for entry in entries for part in _identity(entry))
    except (KeyError, TypeError) as error:
        raise _malformed(path, shown(error)) from error
    if version != _FORMAT:
        raise _malformed(path, f"format {shown(version)}")
    if not is_listed:
        raise _malformed(path, "a name that is no text")
    return [*entries]


def _malformed(path: Any, what: str) -> ValueError:
    return ValueError(
        f"interop.autotune: {path} is not a file of choices ({what}); accepted: one that interop.autotune has written"
    )
