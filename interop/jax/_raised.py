"""What functions that XLA calls have raised. XLA carries a text to the caller; the exceptions are kept here."""

from __future__ import annotations

import itertools
import re
import threading
import traceback
from collections import OrderedDict

__all__ = ["exception_of", "keep"]

_MOST_KEPT = 64
_MOST_TEXT = 1 << 14  # characters of a traceback
_kept: OrderedDict[int, BaseException] = OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()
_MARK = "[interop.jax.exception_of finds the exception: "
_FIND = re.compile(re.escape(_MARK) + r"(\d+)\]")


def keep(label: str, error: BaseException) -> str:
    """Keep an exception, and return the text by which `exception_of` finds it: its traceback."""
    text = "".join(traceback.format_exception(error))
    if len(text) > _MOST_TEXT:
        text = f"{text[: _MOST_TEXT // 2]}\n...\n{text[-_MOST_TEXT // 2 :]}"
    with _lock:
        number = next(_numbers)
        _kept[number] = error
        if len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return f"{label}: the function raised {type(error).__name__}\n{text}{_MARK}{number}]"


def exception_of(error: BaseException) -> BaseException | None:
    """Return the exception of a function of `interop.jax.call`, with its traceback, for the error that JAX raised.

    Parameters
    ----------
    error : BaseException
        What a program of `jax.jit` raised, or waiting for its results.

    Returns
    -------
    BaseException or None
        None where no such function raised it, or more than 64 others have since.

    Examples
    --------
    >>> import jax, interop.jax
    >>> def f(x):
    ...     raise KeyError("a name")
    >>> g = jax.jit(lambda x: interop.jax.call(f, x, out=jax.ShapeDtypeStruct((2,), "float32")))
    >>> try:
    ...     g(jax.numpy.ones(2)).block_until_ready()
    ... except jax.errors.JaxRuntimeError as error:
    ...     interop.jax.exception_of(error)
    KeyError('a name')
    """
    found = _FIND.search(str(error))
    if found is None:
        return None
    with _lock:
        return _kept.get(int(found[1]))
