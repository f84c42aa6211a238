"""A call of a function of one library with arrays of any."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from interop import _core
from interop._arguments import type_name
from interop._core import Array
from interop._functions.nested import holds_nothing, is_plain, leaves, mapped
from interop._functions.written import Written
from interop._libraries.arrays import is_array, is_buffer
from interop._libraries.base import CPU, CUDA, FUNCTION, MANAGED, Target
from interop._libraries.known import TARGETS
from interop._memory.moving import beside

__all__ = ["Argument", "Call", "Foreign"]

#: Functions of JAX write to nothing, and calls of interop check, and count, what they write to themselves.
_CAREFUL = ("jax", "interop")


@dataclass(frozen=True)
class Foreign:
    """A function, the library whose arrays it takes, and what the caller says of it."""

    label: str  # of messages
    function: Callable[..., Any]
    target: Target
    written: Written
    copies: bool  #: may an array be copied that the library cannot take?

    def call(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], stream: Any) -> Call:
        """Return a call of it; `module` is the library's."""
        return Call(self, module, args, kwargs, stream)


@dataclass(slots=True)
class Argument:
    """An array among the arguments."""

    x: Any
    name: str
    view: Array | None  #: None: the function's library has it already
    is_written: bool
    kind: int = CPU  #: where `view` is, as DLPack says it
    index: int = 0
    converted: Any = None

    @property
    def is_on_gpu(self) -> bool:
        return self.kind in (CUDA, MANAGED)


class Call:
    """One call: its arrays, the device that they are on, and the stream of the work."""

    def __init__(
        self, foreign: Foreign, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], stream: Any
    ) -> None:
        self.foreign, self.module, self.args, self.kwargs = foreign, module, args, kwargs
        self.given = None if stream is None else _core.stream_handle(stream, foreign.label)
        self._named_by = stream
        self.is_flat = True  # no argument holds arrays
        self.arguments: list[Argument] = []
        self._find(enumerate(args))
        self._find(kwargs.items())
        self.others = [argument for argument in self.arguments if argument.view is not None]
        if not self.arguments:
            if stream is not None:
                raise ValueError(f"{foreign.label}: stream is given, but no argument is an array; accepted: None")
            return
        self.lead = self.arguments[0]
        self.device = self._device()
        if self.given is not None and self.device < 0:
            raise ValueError(
                f"{foreign.label}: stream is given, but {self.lead.name} is in host memory, which has none; "
                "accepted: None"
            )
        if self.given is not None and foreign.target.name == "numpy":
            raise ValueError(f"{foreign.label}: stream is given, but NumPy has no streams; accepted: None")
        streams = foreign.target.streams
        #: The current stream of the function's library, and the one on which the function works; None: it has none.
        self.home = self.work = None if streams is None or self.device < 0 else streams.current(module, self.device)
        if self.home is not None and streams is not None and streams.on is not None:
            self.work = self._choose()

    def _find(self, passed: Iterable[tuple[int | str, Any]]) -> None:
        owns, module = self.foreign.target.owns, self.module
        for key, value in passed:
            if is_plain(value):
                continue
            if owns(module, value):
                self.arguments.append(self._argument(value, key, is_own=True))
                continue
            is_leaf = holds_nothing(value)
            self.is_flat = self.is_flat and is_leaf
            for x in (value,) if is_leaf else leaves(value):
                is_own = not is_leaf and owns(module, x)
                if is_own or (is_array(x) and not is_buffer(x)):
                    self.arguments.append(self._argument(x, key, is_own))

    def _argument(self, x: Any, key: int | str, is_own: bool) -> Argument:
        foreign = self.foreign
        target, written, label = foreign.target, foreign.written, foreign.label
        name = written.name_of(key) if isinstance(key, int) else key
        if is_own:
            return Argument(x, name, None, False)
        is_written = target.name not in _CAREFUL and written.has(key)
        view = _core.asarray(x, label, None, name)
        if is_written and (written.is_said or not target.keeps_read_only):
            _core.check_foreign_write(view, label, name, _WRITABLE)
        return Argument(x, name, view, is_written, *view.__dlpack_device__())

    def _device(self) -> int:
        """Return the index of the device that the arrays are on, -1 for host memory."""
        target, found = self.foreign.target, None
        for argument in self.arguments:
            device = self._device_of(argument)
            if device < 0:
                continue
            if found is not None and device != found[1]:
                raise ValueError(
                    f"{self.foreign.label}: {found[0]} is on cuda:{found[1]} and {argument.name} is on cuda:{device}; "
                    "accepted: all arrays on one device"
                )
            found = (argument.name, device)
        if found is not None:
            return found[1]
        goes_there = self.foreign.copies and not target.on_host
        return target.streams.device(self.module) if goes_there and target.streams else -1

    def _device_of(self, argument: Argument) -> int:
        target = self.foreign.target
        if argument.view is None:
            if target.streams is not None:
                return target.streams.device_of(argument.x)
            # JAX's need no order among themselves; but the call must know whether there is a device with a stream.
            kind, index = argument.x.__dlpack_device__() if self.given is not None else (CPU, 0)
            return index if kind == CUDA else -1
        if not target.on_host:  # which takes pinned memory as its GPU's
            readable = _core.readable_by(argument.view, CUDA)
            return -1 if readable is None else readable
        return argument.index if argument.is_on_gpu else -1

    def _choose(self) -> int:
        """Return the stream on which the function is to work."""
        if self.given is not None:
            return self.given
        named = None if self.lead.view is None else _core.producer_stream(self.lead.view)
        return self.home if named is None else named  # type: ignore[return-value]

    @property
    def lead_library(self) -> str:
        """The library of the first array."""
        return self.foreign.target.name if self.lead.view is None else _core.route(self.lead.x)[0]

    def run(self) -> Any:
        """Call the function, and return what it returns, its arrays in the library of the first array."""
        if not self.arguments or (not self.others and self.given is None):
            return self.foreign.function(*self.args, **self.kwargs)
        self._order()
        try:
            within = self._within()
            if within is None:
                return self._called()
            with within:
                return self._called()
        finally:
            self._order_back()

    def _called(self) -> Any:
        """Call the function with its library's arrays, and return what it returns in the caller's."""
        for argument in self.others:
            argument.converted = self._taken(argument)
        by_id = {id(argument.x): argument.converted for argument in self.others}

        def converted(x: Any) -> Any:
            return by_id.get(id(x), x)

        if self.is_flat:
            args = [converted(x) for x in self.args]
            kwargs = {name: converted(x) for name, x in self.kwargs.items()}
        else:
            args = [mapped(x, converted, self.foreign.label) for x in self.args]
            kwargs = {name: mapped(x, converted, self.foreign.label) for name, x in self.kwargs.items()}
        return self._handed_over(self.foreign.function(*args, **kwargs))

    def _check_done(self, result: Any) -> None:
        """Raise TypeError for a result whose work is still to come, outside the call."""
        if not isinstance(result, Generator | Coroutine | AsyncGenerator):
            return
        if isinstance(result, Coroutine):
            result.close()  # else Python warns that nobody has awaited it
        raise TypeError(
            f"{self.foreign.label}: {_RESULT} is {type_name(result)}, which runs after the call; accepted: a function "
            "that does its work in the call"
        )

    def _order(self) -> None:
        """Make the stream of the work wait for what is queued on those of the arguments."""
        if self.work is None and self.given is None:
            return
        for argument in self.others:
            view = argument.view
            assert view is not None
            if self.work is None:  # of which the library asks itself: so of what comes before on the given stream
                _core.asarray(view, self.foreign.label, self.given)
                _core.note_foreign_use(view, self.given, True, False)
                continue
            # A view of this moment is ready on its producer's stream; who has an `interop.Array` may be waiting still.
            if (view is argument.x or view.stream != self.work) and argument.is_on_gpu:
                _core.asarray(view, self.foreign.label, self.work)
        if self.work is None:
            return
        if self.work != self.home:
            with self._unless_captured():
                _core.wait_stream(self.work, self.home, self.device)  # type: ignore[arg-type]
        if self.given is not None:
            _core.wait_stream(self.work, self.given, self.device)

    @property
    def _has_own(self) -> bool:
        return len(self.others) < len(self.arguments)

    def _unless_captured(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for a wait on the library's own stream that may be for arrays bound in the function alone.

        Of these it is not known whether there are any: a stream that a CUDA graph's capture has no part in is let be.
        """
        return contextlib.nullcontext() if self._has_own else contextlib.suppress(ValueError)

    def _within(self) -> contextlib.AbstractContextManager[Any] | None:
        """Return a context in which the library's current stream and device are those of the work; None: they are."""
        streams = self.foreign.target.streams
        if self.work is None or streams is None:
            return None
        if self.work == self.home and (not self.others or streams.device(self.module) == self.device):
            return None
        if streams.on is not None:
            return streams.on(self.module, self.device, self.work, self._named_by)
        return None if streams.within is None else streams.within(self.module, self.device)

    def _taken(self, argument: Argument) -> Any:
        """Return the argument as an array of the function's library."""
        target, view = self.foreign.target, argument.view
        assert view is not None
        # The stream of the work, which will be the current one, has been made to wait.
        is_ordered = target.streams is not None and target.streams.on is not None and argument.is_on_gpu
        stream = -1 if is_ordered else None
        return self._converted(target, self.module, view, stream, argument.name, argument.is_written)

    def _converted(
        self, target: Target, module: Any, array: Array, stream: int | None, name: str, is_written: bool = False
    ) -> Any:
        """Return an array of `target` on the same memory, or of a copy where one is needed and may be made."""
        label = self.foreign.label
        try:
            return target.take_within(label, module, array, stream)
        except (TypeError, ValueError) as error:
            if not self.foreign.copies or is_written:
                raise type(error)(self._refusal(str(error), name, is_written)) from error.__cause__
        memory = "host" if target.name == "numpy" else None if target.on_host else "device"
        copied = self._copied(array, memory, name)
        try:
            return target.take_within(label, module, copied, None if stream == -1 else stream)
        except (TypeError, ValueError) as error:  # it has no such dtype
            raise type(error)(self._named(str(error), name)) from error.__cause__

    def _copied(self, array: Array, memory: str | None, name: str) -> Array:
        """Return a compact copy, in the same memory by default, made on the stream of the work."""
        label = self.foreign.label
        on_gpu = memory == "device" or (memory is None and _is_on_gpu(array))
        stream, device = (self.work if on_gpu else None), (self.device if memory == "device" else None)
        copied = beside(array, array.dtype, label, memory, device, stream)
        _core.copyto(copied, array, stream, label, "the copy", name)
        return copied

    def _named(self, said: str, name: str) -> str:
        """Say it of this argument, and of this call."""
        said = said.removeprefix(f"{FUNCTION}: ").replace("x is ", f"{name} is ", 1)
        return f"{self.foreign.label}: {name}: {said}"

    def _refusal(self, said: str, name: str, is_written: bool) -> str:
        allowed = "copy=None, and writes= without it" if is_written else "copy=None"
        return f"{self._named(said, name)}; or let the call copy it, by {allowed}"

    def _handed_over(self, result: Any) -> Any:
        """Return the result with its arrays in the library of the first array; arguments are the caller's own."""
        if not self.foreign.target.owns(self.module, result):
            self._check_done(result)
        arguments = {id(a.x if a.view is None else a.converted): a for a in self.arguments}
        if self.lead.view is None:

            def as_it_is(y: Any) -> Any:
                return self._original(arguments[id(y)]) if id(y) in arguments else self._on_given(y)

            return mapped(result, as_it_is, self.foreign.label)
        to = TARGETS.get(self.lead_library, TARGETS["interop"])
        module = sys.modules.get(to.module) or importlib.import_module(to.module)

        def hand_over(y: Any) -> Any:
            return self._original(arguments[id(y)]) if id(y) in arguments else self._as_callers(y, to, module)

        return mapped(result, hand_over, self.foreign.label)

    def _original(self, argument: Argument) -> Any:
        """Return the caller's own array. The function may have resized its view of it, as torch does with ``out=``."""
        view = argument.view
        shape = None if view is None else tuple(getattr(argument.converted, "shape", view.shape))
        if view is not None and shape != view.shape:
            raise ValueError(
                f"{self.foreign.label}: the function has resized {argument.name}, of shape {view.shape}, to {shape}; "
                "accepted: an array of the result's shape"
            )
        return argument.x

    def _as_callers(self, y: Any, to: Target, module: Any) -> Any:
        """Return an array of the function's library as one of `to`, anything else as it is."""
        target = self.foreign.target
        if target.name == "numpy" and isinstance(y, np.generic) and y.dtype.kind in "biufc":
            y = np.asarray(y)  # which NumPy returns in place of an array with no dimensions
        if not target.owns(self.module, y) or (target.name == "numpy" and _has_no_numbers(y.dtype)):
            return y
        if self.foreign.copies and hasattr(y, "resolve_conj"):  # of torch: it may be lazily conjugated
            y = y.resolve_conj().resolve_neg()
        array = _core.asarray(y, self.foreign.label, self.given, _RESULT)
        if self.foreign.copies and _is_on_gpu(array) != self._is_led_on_gpu:
            array = self._copied(array, "device" if self._is_led_on_gpu else "host", _RESULT)
        stream = self.given
        if to.name == "numba":  # whose arrays are bound to a stream, as there is no current one to be ready on
            stream = self.work
        elif stream is None and self._is_on_callers(array):
            stream = -1
        return self._converted(to, module, array, stream, _RESULT)

    def _is_on_callers(self, array: Array) -> bool:
        """Is the array ready on what is the current stream of the caller's library, too?"""
        view = self.lead.view
        assert view is not None
        return self.work is not None and array.stream == self.work == _core.producer_stream(view)

    @property
    def _is_led_on_gpu(self) -> bool:
        return self.lead.view is not None and self.lead.is_on_gpu

    def _on_given(self, y: Any) -> Any:
        """Make `stream` wait for what the function has queued on a stream that its library chose, as JAX does."""
        if self.given is not None and self.work is None and self.foreign.target.owns(self.module, y):
            _core.asarray(y, self.foreign.label, self.given, _RESULT)
        return y

    def _order_back(self) -> None:
        """Make the streams of the arguments wait for the work, or keep their memory until it is done."""
        is_given = self.given is not None
        for argument in self.others:
            view = argument.view
            assert view is not None
            # Whoever made an array on the stream of the work is in order; who has an `interop.Array` must be told.
            is_known = view is not argument.x and view.stream == self.work and not is_given
            if argument.is_written or not is_known:
                _core.note_foreign_use(view, None if is_known else self.work, is_given, argument.is_written)
        if self.work is None:
            return
        if self.work != self.home:
            if is_given:
                if self._has_own:
                    _core.hold_for([a.x for a in self.arguments if a.view is None], self.work, self.device)
            else:
                with self._unless_captured():
                    _core.wait_stream(self.home, self.work, self.device)  # type: ignore[arg-type]
        if is_given:
            _core.wait_stream(self.given, self.work, self.device)  # type: ignore[arg-type]

    # ---- for `interop.explain` ----

    def stream_reason(self) -> str:
        if self.work is None:
            return "host arrays have no stream" if self.device < 0 else "that of the function's library"
        if self.given is not None:
            return (
                "given by stream=" if self.work == self.given else "that of the function's library, joined with stream="
            )
        if self.lead.view is not None and _core.producer_stream(self.lead.view) is None:
            return f"the current one of {self.foreign.target.name}, the library of the function"
        return f"the current one of {self.lead_library}, the library of {self.lead.name}, or the one that it names"

    def waits(self) -> Iterator[str]:
        if self.work is None:
            return
        in_turn = "" if self.given is not None else ", which waits for the call in turn"
        for argument in self.arguments:
            theirs = self.home if argument.view is None else _core.producer_stream(argument.view)
            if theirs is not None and theirs != self.work:
                yield f"{argument.name}: the call waits for stream {theirs:#x}{in_turn}"
        if self.home != self.work and not self._has_own:
            yield f"what the function is bound to: the call waits for stream {self.home:#x}{in_turn}"

    def held(self) -> Iterator[str]:
        if self.work is None:
            return
        for argument in self.arguments:
            view = argument.view
            is_unordered = view is not None and view is not argument.x and _core.producer_stream(view) is None
            if self.given is not None or is_unordered:
                yield argument.name

    def copies(self) -> Iterator[str]:
        if not self.foreign.copies:
            return
        target = self.foreign.target
        for argument in self.others:
            assert argument.view is not None
            try:
                target.take_within(self.foreign.label, self.module, argument.view, -1 if argument.is_on_gpu else None)
            except (TypeError, ValueError) as error:
                if argument.is_written:
                    raise type(error)(self._refusal(str(error), argument.name, True)) from error.__cause__
                yield f"{argument.name}: copied, as {str(error).removeprefix(f'{FUNCTION}: ').partition(';')[0]}"
        goes_home = not target.on_host if not self._is_led_on_gpu else target.name == "numpy"
        if self.lead.view is not None and goes_home:
            where = f"cuda:{self.device}" if self._is_led_on_gpu else "the host"
            yield f"results: copied to {where}, where {self.lead.name} is"


_RESULT = "the result"
_WRITABLE = (
    "an array that may be written to, or writes= with the names or positions of the parameters that the function "
    "writes to, () where it writes to none"
)


def _has_no_numbers(dtype: Any) -> bool:
    """Are its elements text, dates, records or objects, which NumPy alone has?"""
    return bool(dtype.kind in "OSUTMm" or dtype.type is np.void)  # "V" is the kind of bfloat16, too


def _is_on_gpu(array: Array) -> bool:
    return array.__dlpack_device__()[0] in (CUDA, MANAGED)
