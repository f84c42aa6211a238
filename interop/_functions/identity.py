"""Names of functions by what they are made of, for what a compiler of an array library keeps of a call."""

from __future__ import annotations

import hashlib
import itertools
import uuid
import weakref
from typing import Any

__all__ = ["Identity", "identities"]


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
        key = f"{name}-{hashlib.blake2b(content.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
        identity = identities.setdefault(key, Identity(key))
        identity.functions.add(function)
        return identity


_PROCESS = uuid.uuid4()
_count = itertools.count()

#: By their keys, those of which a function is alive.
identities: weakref.WeakValueDictionary[str, Identity] = weakref.WeakValueDictionary()
