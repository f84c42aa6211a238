"""Operators of `interop.operator` as torch's: for its autograd, transforms and compiler, by the operators' own names.

Each is defined when torch first meets it, and those that were made before this module, when that is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop._operators import registry
from interop._operators.description import Description
from interop.torch._operator_batching import batched
from interop.torch._operator_function import Below, Known, apply_recorded, compact
from interop.torch._sharding import is_distributed
from interop.torch._tensors import (
    as_tensor,
    exact,
    has_tangent,
    in_transform,
    modes,
    name_of,
    next_level,
    number_of,
    single_level,
)

__all__ = ["compute", "defined", "operands", "record", "recorder", "traced_in"]


# ---- calls ----


def compute(description: Description, inputs: tuple[Any, ...]) -> Any:
    """Call an operator by torch's dispatcher: tensors that are fake, wrapped, traced, dual, or of a subclass."""
    given = operands(description, inputs)
    facts = [(tuple(given[place].shape), name_of(given[place].dtype)) for place in description.signature.arrays]
    description.results(facts)  # for what it throws, of the shapes that the caller sees
    return defined(description).overload(*given)


def operands(description: Description, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs as torch's operator takes them: arrays as tensors, numbers as those of Python."""
    label = description.label
    return [
        number_of(x) if operand.axes is None else as_tensor(label, operand.name, x)
        for operand, x in zip(description.signature.inputs, description.readable(inputs), strict=True)
    ]


def record(description: Description, inputs: tuple[Any, ...]) -> Any:
    """Call an operator with plain tensors, one or more of which need a gradient, and record the derivative."""
    known, given = _known(description), operands(description, inputs)
    if known.gradient is None:
        known.refuse_gradient(given)
    return apply_recorded(known, *given)


def recorder(description: Description) -> tuple[Callable[..., Any], Known]:
    """Return a function, and its first argument, which the inputs follow, to do the same."""
    return apply_recorded, _known(description)


def _known(description: Description) -> Known:
    found = _defined.get(description.name)
    return found.known if found is not None and found.description is description else Known(description)


# ---- definitions ----


class _Defined:
    """An operator that torch has."""

    def __init__(self, description: Description) -> None:
        self.description = description
        package, _, name = description.name.partition("::")
        self.library = torch.library.Library(package, "FRAGMENT")
        try:
            self.library.define(f"{name}{_schema(description)}", tags=_tags(description))
        except RuntimeError as error:
            raise ValueError(
                f"{description.label}: torch has an operator of this name, which interop.operator has not made; "
                "accepted: another name"
            ) from error
        self.overload = getattr(getattr(torch.ops, package), name).default
        self.library.impl(name, self._run, "CompositeExplicitAutograd")
        self.library.impl(name, self._autograd, "Autograd", with_keyset=True)
        torch.library.register_fake(description.name, self._fake, lib=self.library)
        torch.library.register_vmap(description.name, self._vmap, lib=self.library)
        self.knows_distributed = False

    @functools.cached_property
    def known(self) -> Known:
        """What autograd is told, from the first call on: what functions close over is there by then."""
        return Known(self.description)

    def destroy(self) -> None:
        self.library._destroy()  # as torch.library.custom_op does of one that is defined again

    def _run(self, *inputs: Any, **_: Any) -> Any:
        """Compute, of memory: compact, as are the results, and of their own memory, as torch's operators' are."""
        given = tuple(compact(exact(x)) if isinstance(x, torch.Tensor) else x for x in inputs)
        records = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # autograd has been asked before
        try:
            ran = self.known.run(given)
            made = (self.known.run_slowly(given) if ran is NotImplemented else ran)[0]
            if self.description.is_exact:
                return made
            taken = {_storage(x) for x in self.known.tensors(inputs)}
            results = []
            for x in made if self.known.several else (made,):
                own = x.clone(memory_format=torch.contiguous_format) if _storage(x) in taken else compact(x)
                taken.add(_storage(own))
                results.append(own)
        finally:
            torch._C._set_grad_enabled(records)
        return tuple(results) if self.known.several else results[0]

    def _fake(self, *inputs: Any, **_: Any) -> Any:
        """Return results without memory."""
        tensors = self.known.tensors(inputs)
        first, *others = tensors
        for name, x in zip(self.known.names[1:], others, strict=True):
            if x.device != first.device:
                raise ValueError(
                    f"{self.description.label}: {self.known.names[0]} is on {first.device} and {name} is on "
                    f"{x.device}; accepted: all arrays on one device"
                )
        if first.device.type != "meta":
            self.description.of_device(first.device.type, f"{self.known.names[0]} is on '{first.device}'")
        _assume_alike(self.description, tensors)
        expected = self.description.results([(tuple(x.shape), name_of(x.dtype)) for x in tensors])
        results = tuple(first.new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in expected)
        return results if self.known.several else results[0]

    def _autograd(self, keyset: Any, *inputs: Any, **_: Any) -> Any:
        known, tensors = self.known, self.known.tensors(inputs)
        self._know_distributed(tensors)
        rest = keyset & torch._C._after_autograd_keyset
        records = torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
        has_tangents = in_transform() or any(map(has_tangent, tensors))
        # A mode would see that tangents are asked for.
        if not records and not has_tangents and not modes():
            with torch._C._AutoDispatchBelowAutograd():
                return self.overload.redispatch(rest, *inputs)
        if records and known.gradient is None:
            known.refuse_gradient(inputs)

        def below(inputs: tuple[Any, ...]) -> Any:
            with next_level():
                return self.overload.redispatch(rest, *inputs)

        with single_level():
            return apply_recorded(Below(known.with_tangents if has_tangents else known, below), *inputs)

    def _vmap(self, info: Any, dims: Sequence[int | None], *inputs: Any, **_: Any) -> Any:
        results = batched(self.overload, self.description, info.batch_size, dims, inputs)
        return results, (0,) * len(results) if self.known.several else 0

    def _know_distributed(self, tensors: Sequence[Any]) -> None:
        if not self.knows_distributed and is_distributed(tensors):
            from interop.torch import _operator_sharding

            _operator_sharding.register(self.overload, self.description)
            self.knows_distributed = True


def _assume_alike(description: Description, tensors: Sequence[torch.Tensor]) -> None:
    """Have torch take for equal, and check as the graph runs, the sizes of a letter that depend on data.

    It could not go on where these were compared.
    """
    if all(type(size) is int for x in tensors for size in x.shape):
        return
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    known: dict[Any, Any] = {}
    for place, x in zip(description.signature.arrays, tensors, strict=True):
        operand = description.signature.inputs[place]
        axes: list[Any] = list(operand.axes or ())
        if operand.has_leading:
            lead = len(x.shape) - len(axes) + 1
            axes[:1] = [("...", k) for k in range(lead)]
        for axis, size in zip(axes, x.shape, strict=False):
            first = axis if isinstance(axis, int) else known.setdefault(axis, size)
            if first is not size and (free_unbacked_symbols(size) or free_unbacked_symbols(first)):
                torch._check_value(size == first, lambda: f"{description.label}: the sizes of an axis are not equal")


def _tags(description: Description) -> tuple[Any, ...]:
    tags = ["pt2_compliant_tag"] if description.in_graphs else ["pt2_compliant_tag", "cudagraph_unsafe"]
    return tuple(getattr(torch.Tag, name) for name in tags if hasattr(torch.Tag, name))


def _schema(description: Description) -> str:
    signature = description.signature
    inputs = ", ".join(f"{'Scalar' if x.axes is None else 'Tensor'} {x.name}" for x in signature.inputs)
    inputs += f", *, str? {traced_in(description)}=None"
    count = len(signature.outputs)
    return f"({inputs}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}"


def traced_in(description: Description) -> str:
    """Return the name of the keyword by which a traced call says what it is of, and which nothing reads.

    Torch keeps compiled graphs on disk by what is in the graph that it compiles, not by what the Python functions of an
    operator are: by that name alone, an old gradient would be used on after it has been changed.
    """
    name = "traced_in"
    while any(operand.name == name for operand in description.signature.inputs):
        name += "_"
    return name


def _storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


_defined: dict[str, _Defined] = {}
_lock = threading.Lock()


def defined(description: Description) -> _Defined:
    """Return torch's operator; ValueError where torch has another of this name, or it has been defined again since."""
    found = _defined.get(description.name)
    if found is not None and found.description is description:
        return found
    registry.check_newest(description)
    return _define(description)


def _define(description: Description) -> _Defined:
    with _lock:
        found = _defined.get(description.name)
        if found is None or found.description.key != description.key:
            if found is not None:
                del _defined[description.name]
                found.destroy()
            found = _defined[description.name] = _Defined(description)
        return found


def _define_all() -> None:
    """Define what there is: a program that loads an exported one, which names operators, has called none of them."""
    for description in registry.all_newest():
        with contextlib.suppress(ValueError):  # of a name that torch has: the call says so
            _define(description)
    registry.listen(_define)


_define_all()
