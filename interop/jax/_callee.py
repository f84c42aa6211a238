"""Functions that XLA calls on its own threads, and what they must not do there."""

from __future__ import annotations

import itertools
import secrets
import sys
import weakref
from typing import Any, NoReturn

import jax
import jax.core
import jax.extend.core
import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.arrays import is_array
from interop.jax import _raised

__all__ = ["Callee", "run"]

_set_current_trace: Any = getattr(jax.extend.core, "set_current_trace", None)
if _set_current_trace is None:  # JAX 0.8 and 0.9
    _set_current_trace = jax.core.set_current_trace

#: By the name that a program has for it, which means nothing in another process. Programs keep it, and the table does
#: not.
_callees: weakref.WeakValueDictionary[str, Callee] = weakref.WeakValueDictionary()
_PROCESS = secrets.token_hex(8)
_numbers = itertools.count()


class Callee:
    """A function, how it takes its arguments, and what of them is no array. Two are equal that do the same."""

    def __init__(
        self, label: str, function: Any, in_tree: Any, values: tuple[Any, ...], out_tree: Any, takes_out: bool
    ):
        self.label, self.function, self.takes_out = label, function, takes_out
        self._in_tree, self._values, self._out_tree = in_tree, values, out_tree
        self._has_one_result = jax.tree_util.treedef_is_leaf(out_tree)
        self._made_of = (function, in_tree, tuple(map(_identity, values)), out_tree)
        try:
            self._hash = hash(self._made_of)
        except TypeError as error:
            raise TypeError(
                f"{label}: {error}; accepted: a function, and arguments that are no arrays, that can be hashed, as "
                "JAX keeps what it compiles by them"
            ) from None
        self.key = f"{_PROCESS}-{next(_numbers)}"

    def keep(self) -> None:
        """Have programs find it by its key, as long as somebody else has it."""
        _callees[self.key] = self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Callee) and self._hash == other._hash and self._made_of == other._made_of

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.label

    def __call__(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Call the function, and leave its results in `outputs`."""
        arrays = iter(inputs)
        values = [next(arrays) if x is ARRAY else x for x in self._values]
        args, kwargs = jax.tree_util.tree_unflatten(self._in_tree, values)
        if not self.takes_out:
            self._store(self.function(*args, **kwargs), outputs)
            return
        out = outputs[0] if self._has_one_result else jax.tree_util.tree_unflatten(self._out_tree, outputs)
        result = self.function(*args, **kwargs, out=out)
        if result is not None and result is not out:
            self._store(result, outputs)

    def _store(self, result: Any, outputs: list[Array]) -> None:
        if self._has_one_result:
            self._store_one("the result", result, outputs[0])
            return
        try:
            leaves = self._out_tree.flatten_up_to(result)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"{self.label}: the result is {_core.shown(result)}; accepted: arrays in the structure of out, "
                f"{self._out_tree}"
            ) from error
        for k, (leaf, out) in enumerate(zip(leaves, outputs, strict=True)):
            self._store_one(f"result {k}", leaf, out)

    def _store_one(self, name: str, y: Any, out: Array) -> None:
        """Copy a result to the memory that XLA has for it, in stream order."""
        if y is out:
            return
        if isinstance(y, np.generic):
            y = np.asarray(y)  # which NumPy returns in place of an array with no dimensions
        if not is_array(y):
            raise TypeError(f"{self.label}: {name} is {_core.type_name(y)}; accepted: an array")
        view = _core.asarray(y, self.label, None, name)
        given = f"{view.dtype} of shape {view.shape} on {view.device}"
        accepted = f"{out.dtype} of shape {out.shape} on {out.device}"
        if view.dtype != out.dtype:
            raise TypeError(f"{self.label}: {name} is {given}; accepted: what out says, {accepted}")
        if view.shape != out.shape or view.device != out.device:
            raise ValueError(f"{self.label}: {name} is {given}; accepted: what out says, {accepted}")
        _core.copyto(out, view, None, self.label, "out", name)


#: Stands for an array among the arguments.
ARRAY: Any = type("ARRAY", (), {"__repr__": lambda self: "array"})()


def _identity(x: Any) -> Any:
    """Return what is equal for equal values alone: 1, 1.0 and True are three, and so are 0.0 and -0.0."""
    return (type(x), repr(x), x) if isinstance(x, float | complex | np.generic) else (type(x), x)


# ---- what must not be done there: an operation, or a copy to the host, which waits ----


class _NoJax(jax.core.Trace):
    """The trace of JAX's that meets each operation of JAX's in the function, and refuses it."""

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> NoReturn:
        _refuse(str(params.get("name", primitive)))

    def stage_value(self, val: Any) -> NoReturn:
        _refuse("an array of JAX's")

    def process_call(self, primitive: Any, *_: Any, **__: Any) -> NoReturn:
        _refuse(str(primitive))

    process_custom_jvp_call = process_custom_vjp_call = process_call


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"interop.jax.call: the function calls JAX ({what}), which may wait for the program that calls the function; "
        "accepted: the operation before or after interop.jax.call, with the array as an argument"
    )


_NO_JAX = _NoJax()


def _named(error: BaseException) -> BaseException:
    """Return the error of a copy that JAX was forbidden, as one that says so; others as they are."""
    if not isinstance(error, jax.errors.JaxRuntimeError) or "Disallowed" not in str(error):
        return error
    named = RuntimeError(
        f"interop.jax.call: the function has JAX copy an array to the host: {error}; accepted: the copy before "
        "interop.jax.call, or after it"
    )
    named.__cause__ = error
    return named


# ---- what XLA calls ----


def run(key: str, inputs: list[Array], outputs: list[Array]) -> str | None:
    """Call the function of that key. Return the text of its exception, None where there is none."""
    callee = _callees.get(key)
    if callee is None:
        return (
            "interop.jax.call: the program calls a function of another process, or one that is gone; accepted: a "
            "program that this process has compiled"
        )
    torch = sys.modules.get("torch")
    is_recorded = getattr(torch, "is_grad_enabled", None)  # a module that is being imported may lack it
    records = is_recorded is not None and is_recorded()
    if records:
        torch.set_grad_enabled(False)  # type: ignore[union-attr]
    try:
        with _set_current_trace(_NO_JAX), jax.transfer_guard_device_to_host("disallow_explicit"):
            callee(inputs, outputs)
    except BaseException as error:  # XLA's thread has nobody else to tell
        return _raised.keep(callee.label, _named(error))
    finally:
        if records:
            torch.set_grad_enabled(True)  # type: ignore[union-attr]
    return None
