"""Functions that XLA calls on its own threads, and what they must not do there."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
import threading
import weakref
from typing import Any, NoReturn

import jax
import jax.core
import jax.extend.core
import numpy as np

from interop._core import Array
from interop.jax import _raised
from interop.jax._lent import Result, lent_to

__all__ = ["ARRAY", "Callee", "of_thread", "run"]

_set_current_trace: Any = getattr(jax.extend.core, "set_current_trace", None)
if _set_current_trace is None:  # JAX 0.8 and 0.9
    _set_current_trace = jax.core.set_current_trace

#: By the name that a program has for it, which means nothing in another process. Programs keep it, and the table does
#: not.
_callees: weakref.WeakValueDictionary[str, Callee] = weakref.WeakValueDictionary()
_PROCESS = secrets.token_hex(8)
_numbers = itertools.count()


class Callee:
    """A function, how it takes its arguments, and what of them is no array. Two are equal that do surely the same."""

    def __init__(
        self, label: str, function: Any, in_tree: Any, values: tuple[Any, ...], out_tree: Any, takes_out: bool
    ) -> None:
        self.label, self.function = label, function
        self._in_tree, self._values = in_tree, values
        self._result = Result(label, out_tree, takes_out)
        self._lent = lent_to(label, function)
        self._made_of = (_identity(function), in_tree, tuple(map(_identity, values)), out_tree)
        try:
            self._hash = hash((self._made_of, function, values))
        except TypeError as error:
            raise TypeError(
                f"{label}: {error}; accepted: a function, and arguments that are no arrays, that can be hashed, as "
                "JAX keeps what it compiles by them"
            ) from None
        if self._lent is not None:
            self._lent.check(*self._arguments([ARRAY] * values.count(ARRAY)), ARRAY)
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

    def __call__(self, gpu: int, stream: int, inputs: list[Array], outputs: list[Array]) -> None:
        """Call the function on this stream of a GPU (-1: the host), and leave its results in `outputs`."""
        lent = self._lent

        def in_its_library() -> bool:
            try:
                converted, outs = [*map(lent.take, inputs)], [*map(lent.take, outputs)]  # type: ignore[union-attr]
            except Exception:
                return False  # `interop.adapt` says in its words what the library does not take
            self._result.of(lent.function, *self._arguments(converted), outs, outputs)  # type: ignore[union-attr]
            return True

        if lent is None or not lent.serves(gpu) or not lent.on(gpu, stream, in_its_library):
            self._result.of(self.function, *self._arguments(inputs), outputs, outputs)

    def _arguments(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = iter(arrays)
        values = [next(rest) if x is ARRAY else x for x in self._values]
        args, kwargs = jax.tree_util.tree_unflatten(self._in_tree, values)
        return args, kwargs


#: Stands for an array among the arguments.
ARRAY: Any = type("ARRAY", (), {"__repr__": lambda self: "array"})()


def _identity(x: Any) -> Any:
    """Return what is equal for the same values alone. 1, 1.0 and True are three, and so are 0.0 and -0.0."""
    kind = type(x)
    if kind in _BY_VALUE:
        return kind, x
    if kind in (float, complex) or isinstance(x, np.generic):
        return kind, np.asarray(x).dtype, np.asarray(x).tobytes()
    return kind, id(x)  # whoever has the identity keeps the object


_BY_VALUE = frozenset((str, bytes, int, bool, type(None)))


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


_NOTHING = contextlib.nullcontext()  # on the host JAX shows its own memory, and no guard sees that


class _OfThread(threading.local):
    """What a thread needs for such calls, of which it runs one at a time: none can have JAX run another in it."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None  #: what was raised in it last; who runs a program in it may ask
        self.no_jax = _set_current_trace(_NO_JAX)
        self.no_copies = jax.transfer_guard_device_to_host("disallow_explicit")


of_thread = _OfThread()


def run(key: str, gpu: int, stream: int, inputs: list[Array], outputs: list[Array]) -> tuple[str, bool] | None:
    """Call the function of that key. Return the text of its exception, and whether that is a KeyboardInterrupt."""
    callee = _callees.get(key)
    if callee is None:
        return (
            "interop.jax.call: the program calls a function of another process, or one that is gone; accepted: a "
            "program that this process has compiled"
        ), False
    torch = sys.modules.get("torch")
    is_recorded = getattr(torch, "is_grad_enabled", None)  # a module that is being imported may lack it
    records = is_recorded is not None and is_recorded()
    if records:
        torch._C._set_grad_enabled(False)  # type: ignore[union-attr]
    try:
        with of_thread.no_jax, of_thread.no_copies if gpu >= 0 else _NOTHING:
            callee(gpu, stream, inputs, outputs)
    except BaseException as error:  # XLA's thread has nobody else to tell
        of_thread.raised = _named(error)
        return _raised.keep(callee.label, of_thread.raised), isinstance(error, KeyboardInterrupt)
    finally:
        if records:
            torch._C._set_grad_enabled(True)  # type: ignore[union-attr]
    return None
