"""Functions over memory that XLA has lent: what `interop.adapt` makes, in fewer steps, and their results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from interop import _core
from interop._core import Array
from interop._functions.adapted import Foreign
from interop._functions.nested import leaves
from interop._libraries.arrays import is_array

__all__ = ["Lent", "Result", "lent_to"]


def lent_to(label: str, function: Any) -> Lent | None:
    """Return how arrays are lent to what `interop.adapt` has made; None for another function."""
    foreign = getattr(function, "_foreign", None)
    return Lent(label, foreign) if isinstance(foreign, Foreign) else None


class Lent:
    """An adapted function: all its arrays are ready on the stream on which it is to work, and none is the caller's."""

    def __init__(self, label: str, foreign: Foreign) -> None:
        target = foreign.target
        self._label, self._foreign = label, foreign
        self.function = foreign.function
        if target.name == "jax":
            raise TypeError(f"{label}: the function is JAX's; accepted: the function itself, without interop.jax.call")
        self._module = module = target.load_for(label)
        borrow = target.borrow
        #: The library's array on the same memory.
        self.take: Callable[[Array], Any] = (
            functools.partial(borrow, module)
            if borrow is not None
            else lambda array: target.take(module, array, None if array.device == "cpu" else -1)
        )

    def check(self, args: Any, kwargs: Any, array: Any) -> None:
        """Refuse arguments with an array in them, which `array` stands for, that the function may write to."""
        written, target = self._foreign.written, self._foreign.target
        if target.name == "interop" or (target.keeps_read_only and not written.is_said):
            return
        for key, value in [*enumerate(args), *kwargs.items()]:
            if written.has(key) and any(x is array for x in leaves(value)):
                name = written.name_of(key) if isinstance(key, int) else key
                raise TypeError(
                    f"{self._label}: {name} is read-only, and the function may write to it; accepted: "
                    "interop.adapt(..., writes=) with the names or positions of the parameters that it writes to, () "
                    "where it writes to none"
                )

    def serves(self, gpu: int) -> bool:
        """Does it take arrays on that GPU, or with -1 on the host? Else `interop.adapt` orders, copies, or refuses."""
        target = self._foreign.target
        if self._foreign.copies or target.name == "interop":
            return False
        return target.on_host if gpu < 0 else target.streams is not None and target.streams.on is not None

    def on(self, gpu: int, stream: int, work: Callable[[], bool]) -> bool:
        """Do the work with the stream as the library's current one.

        It is joined with the one that was: arrays that the function is bound to are ready there.
        """
        streams = self._foreign.target.streams
        if gpu < 0 or streams is None or streams.on is None:
            return work()
        home = streams.current(self._module, gpu)
        _join(stream, home, gpu)
        try:
            with streams.on(self._module, gpu, stream, None):
                return work()
        finally:
            _join(home, stream, gpu)


def _join(waiter: int, stream: int, gpu: int) -> None:
    """Make a stream wait for another, but where one is captured into a CUDA graph, in which the other has no part."""
    if waiter != stream:
        try:  # noqa: SIM105 - with less to do than `contextlib.suppress` has
            _core.wait_stream(waiter, stream, gpu)
        except ValueError:
            pass


class Result:
    """What a function is to return, or to write to."""

    def __init__(self, label: str, tree: Any, takes_out: bool) -> None:
        self._label, self._tree, self._takes_out = label, tree, takes_out
        self._is_one = jax.tree_util.treedef_is_leaf(tree)

    def of(self, function: Any, args: Any, kwargs: Any, outs: list[Any], outputs: list[Array]) -> None:
        """Call the function, and leave its results in `outputs`. `outs`: the same, as the function takes them."""
        if not self._takes_out:
            self._store(function(*args, **kwargs), outs, outputs)
            return
        out = outs[0] if self._is_one else jax.tree_util.tree_unflatten(self._tree, outs)
        result = function(*args, **kwargs, out=out)
        if result is not None and result is not out:
            self._store(result, outs, outputs)

    def _store(self, result: Any, outs: list[Any], outputs: list[Array]) -> None:
        if self._is_one:
            self._store_one("the result", result, outs[0], outputs[0])
            return
        try:
            parts = self._tree.flatten_up_to(result)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"{self._label}: the result is {_core.shown(result)}; accepted: arrays in the structure of out, "
                f"{self._tree}"
            ) from error
        for k, (y, out, output) in enumerate(zip(parts, outs, outputs, strict=True)):
            self._store_one(f"result {k}", y, out, output)

    def _store_one(self, name: str, y: Any, out: Any, output: Array) -> None:
        """Copy a result to the memory that XLA has for it, in stream order."""
        if y is out:
            return
        if isinstance(y, np.generic):
            y = np.asarray(y)  # which NumPy returns in place of an array with no dimensions
        if not is_array(y):
            raise TypeError(f"{self._label}: {name} is {_core.type_name(y)}; accepted: an array")
        view = _core.asarray(y, self._label, None, name)
        if view.dtype != output.dtype:
            raise TypeError(self._refusal(name, view, output))
        if view.shape != output.shape or view.device != output.device:
            raise ValueError(self._refusal(name, view, output))
        _core.copyto(output, view, None, self._label, "out", name)

    def _refusal(self, name: str, view: Array, output: Array) -> str:
        given, accepted = (f"{x.dtype} of shape {x.shape} on {x.device}" for x in (view, output))
        return f"{self._label}: {name} is {given}; accepted: what out says, {accepted}"
