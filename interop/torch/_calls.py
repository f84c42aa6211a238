"""Kernels of users' own and C functions as an operator: for torch's compiler, its export, and tensors without memory.

`interop::call` names the function by a key of what it is made of (`interop._functions.identity`), and writes to tensors
that are arguments. Those that the function makes for itself are made before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from interop._functions.array_function import ArrayFunction
from interop._functions.identity import identities
from interop._functions.kernel_declaration import ARRAYS
from interop._functions.parameters import Parameter
from interop.torch._constants import constant

__all__ = ["call", "is_traced", "leave"]


# ---- the operator ----

# A number of Python's is a tensor on the host, as integers have symbols in torch's graphs, and other numbers do not. So
# a CUDA graph must not be made of the call: it would go on with the numbers that it was made with.
_LIBRARY = torch.library.Library("interop", "FRAGMENT")
_LIBRARY.define(
    "call(str function, str form, Tensor[] read, Tensor(a!)[] written, SymInt[] integers, Tensor[] numbers) -> ()",
    tags=tuple(
        getattr(torch.Tag, name) for name in ("needs_exact_strides", "cudagraph_unsafe") if hasattr(torch.Tag, name)
    ),
)

#: The functions that something was traced of, by their keys: what was compiled may be run as long as the process does.
_kept: dict[str, ArrayFunction] = {}


def _function_of(key: str) -> ArrayFunction:
    function = _kept.get(key) or next(iter(getattr(identities.get(key), "functions", ())), None)
    if function is None:
        name = key.rpartition("-")[0]
        raise RuntimeError(
            f"interop: the graph calls {name!r}, a kernel or C function that this process has not made; accepted: a "
            "process in which interop.kernel or interop.load has made it of the same source or file"
        )
    return function


def _run(
    key: str,
    form: str,
    read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    integers: Sequence[int],
    numbers: Sequence[torch.Tensor],
) -> None:
    values = {"r": iter(read), "w": iter(written), "i": iter(integers), "n": (x.item() for x in numbers)}
    args: list[Any] = []
    named: dict[str, Any] = {}
    for name, kinds, is_tuple in _read_form(form):
        given = tuple(_value(kind, values) for kind in kinds)
        if name:
            named[name] = given if is_tuple else given[0]
        else:
            args.extend(given)
    function: Any = _function_of(key)
    with torch.no_grad():  # autograd has been asked before
        function(*args, **named)


def _value(kind: str, values: dict[str, Iterator[Any]]) -> Any:
    return next(values[kind]) if kind in values else _CONSTANTS.get(kind, kind[1:])


_CONSTANTS = {"t": True, "f": False}


@functools.lru_cache(maxsize=1024)
def _read_form(form: str) -> list[tuple[str, list[str], bool]]:
    """Return the name, or "" for arguments by position, the kinds of the values, and whether they are a tuple."""
    parts = []
    for part in form.split(";"):
        name, _, kinds = part.partition("=")
        if kinds.startswith("'"):  # a string
            parts.append((name, [kinds], False))
        else:
            parts.append((name, list(kinds.removeprefix("(")), kinds.startswith("(")))
    return parts


def _keep(key: str, *_: Any) -> None:
    _kept[key] = _function_of(key)


def _refuse_derivatives(keyset: Any, key: str, form: str, read: Any, written: Any, *numbers: Any) -> None:
    for x in (*read, *written):
        check_differentiable(_function_of(key)._label, "an argument", x)
    torch.ops.interop.call.default.redispatch(
        keyset & torch._C._after_autograd_keyset, key, form, read, written, *numbers
    )


_LIBRARY.impl("call", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("call", _refuse_derivatives, "Autograd", with_keyset=True)
torch.library.register_fake("interop::call", _keep, lib=_LIBRARY)


def check_differentiable(label: str, name: str, x: torch.Tensor) -> None:
    """Raise what an eager call does of a tensor whose gradient would be lost."""
    if x.requires_grad and torch.is_grad_enabled():
        raise BufferError(
            f"{label}: {name} requires grad, and interop has no derivative to record; pass {name}.detach(), or call "
            "under torch.no_grad()"
        )


# ---- calls, as they are traced ----


def is_traced(values: Iterable[Any]) -> bool:
    """Is one of these a tensor of which torch follows what is computed, in place of its memory, or beside it?"""
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    return any(isinstance(x, torch.Tensor) and (_modes() > 0 or isinstance(x, fake)) for x in values)


_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def call(function: ArrayFunction, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a kernel or C function by its operator. This is plain Python, which torch's compiler traces."""
    label, parameters = function._label, function._parameters
    options = {name: named.pop(name) for name in (*function._keywords, "stream", "execution") if name in named}
    for name in ("stream", "execution"):
        if options.get(name) is not None:
            leave(f"{label}: {name}= cannot be used in a traced function; accepted: None")
    if function._value:
        leave(f"{label}: a C function that returns a value cannot be traced, {function._value!r}")
    _check_fit(function._identity.key, len(args), tuple(named))
    args, results = function._bind(args, named)
    operands = _Operands(label)
    for name, x in zip(function._given, args, strict=True):
        operands.add(parameters[function._places[name]], x)
    made = []
    for name, rule in function._shapes.items():
        parameter = parameters[function._places[name]]
        if name in results:
            operands.add(parameter, results[name], name)
            made.append(results[name])
        else:
            if isinstance(rule, str):
                shape = tuple(args[function._given.index(rule)].shape)
            else:
                shape = function._shape_of(name, rule, args)
            result = operands.empty(parameter, shape)
            operands.add(parameter, result, name)
            made.append(result.numpy() if operands.in_numpy else result)
    if not operands.written:
        leave(f"{label}: a function that writes to no array cannot be traced")
    operands.add_launch(options)
    operands.call(function._identity.key)
    return None if not made else made[0] if len(made) == 1 else tuple(made)


@constant
def _check_fit(key: str, count: int, names: tuple[str, ...]) -> None:
    """Raise the TypeError of a call that does not fit the declaration."""
    _function_of(key)._bind((None,) * count, dict.fromkeys(names))


_NUMBER = (bool, int, float, complex, torch.SymInt, torch.SymFloat)


class _Operands:
    """What the operator takes."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.form: list[str] = []
        self.read: list[torch.Tensor] = []
        self.written: list[torch.Tensor] = []
        self.integers: list[int] = []
        self.numbers: list[torch.Tensor] = []
        self.in_numpy: bool | None = None  # are results NumPy's? None before the first array

    def add(self, parameter: Parameter, x: Any, by_name: str = "") -> None:
        """Take the value of a parameter."""
        is_array = parameter.kind in ("device", "host", *ARRAYS)
        if is_array and isinstance(x, np.ndarray | torch.Tensor):
            self.in_numpy = isinstance(x, np.ndarray) if self.in_numpy is None else self.in_numpy
            tensor = torch.as_tensor(x) if isinstance(x, np.ndarray) else x
            check_differentiable(self.label, parameter.name, tensor)
            (self.written if parameter.written else self.read).append(tensor)
            kind = "w" if parameter.written else "r"
        elif not is_array and parameter.kind == "scalar" and isinstance(x, _NUMBER):
            kind = self._number(parameter.name, x)
        else:
            leave(f"{self.label}: {parameter.name} is {type(x).__name__}, with which no call can be traced")
        self.form.append(f"{by_name}={kind}")

    def _number(self, name: str, x: Any) -> str:
        if isinstance(x, bool):
            return "t" if x else "f"
        if isinstance(x, int | torch.SymInt):
            if _is_surely(x < -(2**63)) or _is_surely(x >= 2**63):
                leave(f"{self.label}: {name} is {x}, with which no call can be traced; accepted: an int64")
            self.integers.append(x)
            return "i"
        # A product, as torch's graphs have symbols for products of tensors and numbers, and no other graph for each.
        dtype = torch.complex128 if isinstance(x, complex) else torch.float64
        self.numbers.append(torch.ones((), dtype=dtype, device="cpu") * x)
        return "n"

    def add_launch(self, options: dict[str, Any]) -> None:
        """Take the launch options of a kernel's call."""
        for name, x in options.items():
            if x is None:
                continue
            if isinstance(x, str):
                self.form.append(f"{name}='{x}")
            elif isinstance(x, bool | int | torch.SymInt):
                self.form.append(f"{name}={self._number(name, x)}")
            elif isinstance(x, tuple) and all(isinstance(size, int | torch.SymInt) for size in x):
                self.form.append(f"{name}=({''.join([self._number(name, size) for size in x])}")
            else:
                leave(f"{self.label}: {name} is {type(x).__name__}, with which no call can be traced")

    def empty(self, parameter: Parameter, shape: tuple[int, ...]) -> torch.Tensor:
        """Make a tensor for a result, where the other arrays are."""
        places = [x.device for x in (*self.read, *self.written)]
        device = torch.device("cpu") if parameter.kind == "host" or not places else places[0]
        return torch.empty(shape, dtype=getattr(torch, parameter.dtype), device=device)

    def call(self, key: str) -> None:
        """Call the function that is the key's."""
        # Of one line: torch writes what a graph has into comments of the code that it makes.
        torch.ops.interop.call(key, ";".join(self.form), self.read, self.written, self.integers, self.numbers)


def _is_surely(condition: Any) -> bool:
    """Is it true whatever the sizes are? A graph of all sizes shall not be one of those for which it is false."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def leave(words: str) -> NoReturn:
    """Make the compiler call the function as it is, outside its graphs; raise TypeError where there is none."""
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=words)
    raise TypeError(words)
