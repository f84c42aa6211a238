"""Choosing the algorithms of products by measuring, and keeping the choices in a file."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any, Self

from interop import _core

__all__ = ["autotune"]

_FORMAT = 1
_saves = itertools.count()


class autotune:  # noqa: N801 - used as a function is, as numpy.errstate
    """Tune every matrix product inside a ``with`` block, and keep what was chosen.

    By default cuBLAS says which of its algorithms should be the quickest for a product. Tuning asks it for sixteen,
    times each of them and our own kernel on the card, with a cold cache, and takes the quickest for every later
    product of the same dtypes, shapes, strides, alignments and terms, in the whole process. The first such product
    inside the block waits for the GPU, and needs a workspace of 32 MiB and twice the L2 cache beside the usual one;
    later ones cost nothing. Products that are small, that a stream captures, of host arrays or of JAX arrays are not
    tuned. The block holds for all threads.

    Parameters
    ----------
    path : str or path, optional
        A JSON file: what it holds is loaded first, if it exists, and all choices are written to it at the end.

    Raises
    ------
    ValueError
        The file is not one that this class has written.
    OSError
        It cannot be read or written.

    Notes
    -----
    Another algorithm adds up in another order: results are as exact as before, and may differ in their last bits. A
    choice holds for the card and the version of cuBLAS that it was made with; a file keeps those of several.

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

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)

    def __enter__(self) -> Self:
        if self._path is not None and self._path.exists():
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
            _core.tune_products(cls._open > 0)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> int:
        """Take the choices in a file, and return how many hold for the cards and the cuBLAS that are here."""
        kept = 0
        for entry in _read(Path(path)):
            for device, card in enumerate(_cards()):
                if entry["card"] == card and entry["cublas"] == _core.cublas_version():
                    try:
                        _core.keep_matmul_choice(device, entry)
                    except (KeyError, TypeError, ValueError) as error:
                        raise _malformed(path, repr(error)) from error
                    kept += 1
        return kept

    @staticmethod
    def save(path: str | os.PathLike[str]) -> int:
        """Write all choices of this process to a file, and return how many there are.

        Those in the file already, for other cards, another cuBLAS or other products, stay in it.
        """
        path = Path(path)
        entries = {_identity(entry): entry for entry in (_read(path) if path.exists() else [])}
        count = 0
        for device, card in enumerate(_cards()):
            for choice in _core.matmul_choices(device):
                entry = {"card": card, "cublas": _core.cublas_version(), **choice}
                entries[_identity(entry)] = entry
                count += 1
        text = json.dumps({"interop autotune": _FORMAT, "choices": list(entries.values())}, indent=1)
        # Another process may read the file meanwhile, and another thread write it.
        beside = path.with_name(f"{path.name}.{os.getpid()}.{next(_saves)}.tmp")
        beside.write_text(text + "\n")
        beside.replace(path)
        return count


def _cards() -> list[str]:
    """Return the names of the GPUs; none where there is no driver."""
    try:
        return [_core.device_info(device)["name"] for device in range(_core.device_count())]
    except _core.CudaError:
        return []


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["card"], entry["cublas"], entry["key"]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        if found["interop autotune"] != _FORMAT:
            raise _malformed(path, f"format {found['interop autotune']}")
        entries: list[dict[str, Any]] = found["choices"]
        for entry in entries:
            _identity(entry)
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _malformed(path, repr(error)) from error
    return entries


def _malformed(path: Any, what: str) -> ValueError:
    return ValueError(
        f"interop.autotune: {path} is not a file of choices ({what}); accepted: one that interop.autotune has written"
    )
