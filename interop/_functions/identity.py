"""Names of functions by what they are made of, for what a compiler of an array library keeps of a call."""

from __future__ import annotations

import hashlib
import itertools
import uuid
import weakref
from typing import Any

__all__ = ["Identity", "content_key", "identities", "own_key"]


class Identity:
    """What functions made of the same have in common. `functions` are those that are alive."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()

    @staticmethod
    def of(function: Any, name: str, *made_of: object) -> Identity:
        """Return the identity of a function that is made of this, and add the function to it.

        Its key means the same in every process. Where a callable is among `made_of`, no other function has the key.
        """
        content = repr(made_of)
        if any(callable(x) for x in made_of):
            content = f"{_PROCESS}, {next(_count)}"
        key = _key(name, content)
        identity = identities.setdefault(key, Identity(key))
        identity.functions.add(function)
        return identity


def content_key(function: Any) -> str:
    """Return what a kernel or C function is called by in a program that says itself how it is launched, and of what.

    It means the same in every process: it is made of the source, or of the library's build and the declaration.
    """
    if function._content is None:
        function._content = _key(function.__name__, repr(function._made_of_content()))
    return str(function._content)


def own_key(name: str) -> str:
    """Return a key that no other function has."""
    return _key(name, f"{_PROCESS}, {next(_count)}")


def _key(name: str, content: str) -> str:
    return f"{name}-{hashlib.blake2b(content.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


_PROCESS = uuid.uuid4()
_count = itertools.count()

#: By their keys, those of which a function is alive.
identities: weakref.WeakValueDictionary[str, Identity] = weakref.WeakValueDictionary()
