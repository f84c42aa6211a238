"""One CUDA graph of what several libraries do: `interop.graph`."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from interop import _core
from interop._arguments import named, shown, type_name
from interop._core import CudaError
from interop._memory.places import Device
from interop._streams import StreamLike

if TYPE_CHECKING:
    from interop._libraries.base import Captures, Recording, Streams, Target

__all__ = ["Graph", "GraphPool", "graph"]

_FUNCTION = "interop.graph"
_CAUSES = (
    "What waits for the GPU cannot be captured: item(), cpu(), numpy(), get(), print or an if of a value; nor can "
    "copies of pageable host memory, or a fork to a stream that does not join again"
)
#: The graph that this thread captures.
_here = threading.local()


class GraphPool:
    """The memory that graphs share: `Graph.pool`, for ``interop.graph(pool=...)``.

    Attributes
    ----------
    device : str
        ``"cuda:<index>"``.
    """

    def __init__(self, device: int) -> None:
        self.device = f"cuda:{device}"
        self._of: dict[str, Any] = {}  # by library
        self._graphs = 0  # that use it

    def _given_back(self) -> dict[str, Any]:
        """Return what a graph that uses it no more has had of it; with the last one, the pool has it no more."""
        self._graphs -= 1
        had = self._of
        self._of = {} if self._graphs == 0 else had.copy()
        return had

    def __repr__(self) -> str:
        return f"<interop.GraphPool, {self.device}>"


class _Stream:
    """The stream of a capture, as libraries take one."""

    def __init__(self, handle: int, given: Any) -> None:
        self.cuda_stream = self.ptr = handle
        self._given = given  # which the stream may be gone with

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __int__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<the stream {self.ptr:#x} of an interop.Graph>"


class _Driver:
    """A capture by the driver alone, where torch is not loaded."""

    def __init__(self, capture: _core.Capture) -> None:
        self.begin, self.end, self.drop = capture.begin, capture.end, capture.drop
        self._launch = capture.launch

    def replay(self, stream: int, is_current: bool) -> None:
        self._launch(stream)


class _NoCollection:
    """Garbage collection is off while any thread is within; it would free memory, and end other graphs."""

    _lock = threading.Lock()
    _threads: ClassVar[int] = 0
    _was_on: ClassVar[bool] = False

    def __enter__(self) -> None:
        kind = _NoCollection
        with kind._lock:
            if kind._threads == 0:
                kind._was_on = gc.isenabled()
                gc.disable()
            kind._threads += 1

    def __exit__(self, *error: object) -> None:
        kind = _NoCollection
        with kind._lock:
            kind._threads -= 1
            if kind._threads == 0 and kind._was_on:
                gc.enable()


def _refuse_nested() -> None:
    if getattr(_here, "graph", None) is not None:
        raise ValueError(f"{_FUNCTION}: this thread is in the block of another interop.graph; accepted: one at a time")


@dataclass(frozen=True)
class _Library:
    """A library that takes part in a capture."""

    name: str
    module: Any
    streams: Streams
    captures: Captures


def _loaded() -> list[_Library]:
    """Return the libraries that take part; those with a current stream come first, and torch, which captures itself."""
    from interop._libraries.known import TARGETS

    found = [
        _Library(target.name, sys.modules[target.module], target.streams, target.captures)
        for target in TARGETS.values()
        if target.captures is not None and target.streams is not None and target.module in sys.modules
    ]
    taking_part = [library for library in found if library.captures.takes_part(library.module)]
    return sorted(taking_part, key=lambda each: (each.captures.recording is None, each.streams.on is None))


def _not_loaded() -> list[Target]:
    from interop._libraries.known import TARGETS

    return [target for target in TARGETS.values() if target.captures is not None and target.module not in sys.modules]


class Graph:
    """A CUDA graph of what the libraries do in a ``with`` block; `interop.graph` makes it, and says what it takes in.

    Attributes
    ----------
    stream : object
        What is captured. Every library takes it as a stream: kernels of Numba are launched on it, ``kernel[grid, block,
        g.stream]``.
    pool : GraphPool
        The memory of the graph, for graphs that share it.
    device : str
        ``"cuda:<index>"``.
    """

    def __init__(self, capture: _core.Capture, pool: GraphPool, stream: Any) -> None:
        self._capture = capture
        self.pool = pool
        self.stream: Any = _Stream(capture.stream, stream)
        self.device = pool.device
        self._kept: list[Any] = []
        self._recording: Recording | None = None
        self._currents: list[Callable[[], int]] = []  # the current streams of the libraries, torch's first
        self._is_used = self._is_captured = False
        self._replaying = threading.Lock()
        self._absent: list[Target] = []  # what was not imported before the block

    # ---- the capture ----

    def __enter__(self) -> Self:
        if self._is_used:
            raise ValueError(f"{_FUNCTION}: this graph was captured before; accepted: a new one for each with block")
        _refuse_nested()
        self._within, self._outside = contextlib.ExitStack(), contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._outside.close)
            self._begin(_loaded())
            undo.pop_all()
        return self

    def _begin(self, libraries: list[_Library]) -> None:
        from interop._libraries.base import Capturing

        capture = self._capture
        if capture.state() != "none":
            raise ValueError(
                f"{_FUNCTION}: stream is being captured into a CUDA graph already; accepted: one that is not, or None "
                "for one of interop's own"
            )
        self._absent = _not_loaded()
        self._currents = []
        for library in libraries:
            current = functools.partial(library.streams.current, library.module, capture.device)
            if _core.is_capturing(current(), capture.device):
                raise ValueError(
                    f"{_FUNCTION}: the current stream of {library.name} is being captured into a CUDA graph; accepted: "
                    "a block outside that capture"
                )
            self._currents.append(current)
            if library.captures.stream is not None:
                self.stream = library.captures.stream(library.module, capture.device, self.stream)
        capturing = Capturing(capture=capture, stream=self.stream, pool=self.pool._of, kept=self._kept)
        self._outside.enter_context(_NoCollection())
        recording: Recording = _Driver(capture)
        for library in libraries:
            if library.captures.recording is not None:
                self._outside.enter_context(library.captures.within(library.module, capturing))
                recording = library.captures.recording(library.module, capturing)
        recording.begin()
        self._is_used = True
        self.pool._graphs += 1
        with contextlib.ExitStack() as undo:
            undo.callback(self.pool._given_back)
            undo.callback(recording.drop)
            undo.callback(self._within.close)
            self._within.callback(capture.leave)
            capture.enter()
            for library in libraries:
                if library.captures.recording is None:
                    self._within.enter_context(library.captures.within(library.module, capturing))
            undo.pop_all()
        self._began = recording
        _here.graph = self
        self._outside.callback(setattr, _here, "graph", None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recording, state = self._began, "failed"
        del self._began
        with self._outside, contextlib.ExitStack() as ending:
            ending.callback(self.pool._given_back)
            with contextlib.ExitStack() as dropping:
                dropping.callback(recording.drop)
                try:
                    state = self._capture.state()
                finally:
                    self._within.__exit__(kind, error, traceback)
                if error is None:
                    self._refuse_ended(state)
                    dropping.pop_all()
                    recording.end()
            if error is None:
                ending.pop_all()
                self._recording, self._is_captured = recording, True
        if error is not None and state == "failed":
            error.add_note(f"{_FUNCTION}: the capture failed with this call, and there is no graph. {_CAUSES}.")
        elif error is not None and "captur" in str(error):  # as CuPy refuses it, before the capture fails
            error.add_note(f"{_FUNCTION}: the call is not captured, and there is no graph. {_CAUSES}.")

    def _refuse_ended(self, state: str) -> None:
        """Raise the error of a block that has raised none."""
        if state == "failed":
            raise CudaError(
                f"{_FUNCTION}: the capture failed in the block, which caught the error and went on. {_CAUSES}"
            )
        if state == "none":
            raise CudaError(f"{_FUNCTION}: the block itself ended the capture of {self.stream!r}")
        late = [target.name for target in self._absent if target.module in sys.modules]
        if late:
            raise ValueError(
                f"{_FUNCTION}: the block has imported {', '.join(late)}, whose work was not captured; accepted: an "
                "import before it"
            )

    # ---- replays ----

    def replay(self, *, stream: StreamLike | None = None) -> None:
        """Queue all that was captured, once more.

        Parameters
        ----------
        stream : int handle or stream object, optional
            Where it is queued; by default the current stream of torch, else of CuPy, Warp or Numba, if that took part,
            else interop's own of this thread.

        Raises
        ------
        ValueError
            Nothing was captured, or `reset` was called; the stream is being captured.
        CudaError
            CUDA fails.

        Notes
        -----
        The replay waits for the current streams of all libraries that took part, and these wait for it; with `stream`
        they do not wait. It waits, too, for the replay before it, and for all work on an `interop.Array` that the graph
        uses; who uses that array next waits for the replay. The host waits for nothing.
        """
        recording = self._recording
        if recording is None:
            why = "reset() was called" if self._is_captured else "nothing was captured"
            raise ValueError(f"interop.Graph.replay: {why}; accepted: a graph after its with block")
        capture = self._capture
        currents = [current() for current in self._currents]
        if stream is not None:
            on = _core.stream_handle(stream, "interop.Graph.replay")
        else:
            on = currents[0] if currents else capture.own_stream()
        others = [other for other in currents if other != on]
        with self._replaying:
            capture.before(on)  # which refuses a stream that is being captured
            for other in others:
                _core.wait_stream(on, other, capture.device)
            recording.replay(on, bool(currents) and on == currents[0])
            capture.after(on)
            if stream is None:
                for other in others:
                    _core.wait_stream(other, on, capture.device)

    def reset(self) -> None:
        """Drop the graph, and the memory of arrays that are gone, once its replays are done; the host does not wait."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        held = [recording, self._kept, self.pool._given_back(), self.stream]
        self._kept, capture = [], self._capture
        del self._capture  # with which the graph goes
        capture.hold(held)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # as the process ends, or where `__init__` was never run
            self.reset()

    def __repr__(self) -> str:
        state = "captured" if self._recording else "reset" if self._is_captured else "not captured"
        return f"<interop.Graph, {state}, {self.device}>"


@named("interop.graph")
def graph(*, stream: StreamLike | None = None, device: Device = None, pool: GraphPool | None = None) -> Graph:
    """Capture what torch, CuPy, Warp, Numba and interop do in a ``with`` block into one CUDA graph.

    Parameters
    ----------
    stream : int handle or stream object, optional
        The stream that is captured, no default one; by default one of interop's own.
    device : int, "cuda" or "cuda:<index>", optional
        The GPU; that of `pool`, or of the current context by default, or the first.
    pool : GraphPool, optional
        `Graph.pool` of another graph, whose memory this one uses, too. The two are then replayed in the order in which
        they were captured, and never at once.

    Returns
    -------
    Graph
        For one ``with`` block; `Graph.replay` runs what it has captured.

    Raises
    ------
    TypeError
        An argument is of another type.
    ValueError
        `stream` is a default one, or is being captured; `device` has no such value, or `pool` is another one's. By
        ``with``: the graph was captured before; the block is in that of another graph, or a library's current stream is
        being captured; the block imports a library.
    CudaError
        There is no GPU. By ``with``: the capture failed, and the block caught the error.
    Exception
        By ``with``: what the block raises, as it is; where the capture failed, with a note of what may have caused it.

    Notes
    -----
    Nothing runs in the block: arrays that it makes have no values before the first replay. Run the same once before, so
    that what libraries do on first use, as they compile and choose algorithms, is done by then.

    In the block the current stream of torch, CuPy, Warp and interop in this thread is that of the graph; libraries take
    part that are imported by then. Memory that torch, CuPy, Numba and interop allocate is the graph's as long as the
    graph lives, and an array's as long as that lives. What was made before, and is not given to interop, is to be kept
    by the caller. Garbage collection is off. After an exception all is as it was before.

    Numba has no current stream: give its kernels `Graph.stream`; a kernel that is not given it runs at once, and in no
    replay. JAX takes no part: what it computes is computed at once, and its arrays in a call of interop are an error.

    Examples
    --------
    >>> with interop.graph() as g:  # doctest: +SKIP
    ...     y = model(x)  # of torch
    ...     z = interop.convert(y, "cupy") ** 2
    >>> x.copy_(batch)  # doctest: +SKIP
    >>> g.replay()  # doctest: +SKIP
    """
    if pool is not None and not isinstance(pool, GraphPool):
        raise TypeError(f"{_FUNCTION}: pool is {type_name(pool)}; accepted: the pool of another interop.Graph, or None")
    _refuse_nested()
    if stream is not None:
        stream_handle = _core.stream_handle(stream, _FUNCTION)
    index = _core.Pool("device", pool.device if pool is not None and device is None else device, _FUNCTION).device
    if pool is not None and pool.device != f"cuda:{index}":
        raise ValueError(f"{_FUNCTION}: device is {shown(device)}, and pool is of {pool.device}; accepted: one device")
    capture = _core.Capture(index, None if stream is None else stream_handle)
    return Graph(capture, GraphPool(index) if pool is None else pool, stream)
