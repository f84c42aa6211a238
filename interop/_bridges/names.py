"""The arguments of bridged functions as pytrees: what each array in them is called in messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from interop._functions.written import Written

__all__ = ["Names"]


class Names:
    """What the leaves of the arguments of a function are called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._written = Written("", function, None)
        self.of = functools.lru_cache(256)(self._of)

    def _of(self, tree: Any) -> tuple[str, ...]:
        """Return the names for a tree of `(args, kwargs)`."""
        try:
            leaves = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))
        except Exception:  # of a node of the user's, which may take nothing but arrays
            return tuple(f"array {place} of the arguments" for place in range(tree.num_leaves))
        return tuple(self._name(*path) for path, _ in leaves)

    def _name(self, which: Any, argument: Any, *rest: Any) -> str:
        name: str = self._written.name_of(argument.idx) if which.idx == 0 else str(argument.key)
        return f"{name}{jax.tree_util.keystr(rest)}"
