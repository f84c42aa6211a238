"""A call of an operator as one step of autograd: of exact tensors, or at one level of a transform."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch.autograd import forward_ad

from interop import _core
from interop._arguments import type_name
from interop._operators.description import Description
from interop._operators.reads import reads_of
from interop.torch._tensors import by_vmap, has_tangent, is_batched, name_of, needing_grad, outer_levels

__all__ = ["Below", "Known", "apply_recorded", "compact"]


class Known:
    """What autograd is told of an operator."""

    def __init__(self, description: Description, keeps_all: bool = False) -> None:
        """Take the operator. `keeps_all`: a call keeps all arrays, as its tangents need, not those of `gradient`."""
        signature = description.signature
        self.description, self.known = description, self
        self.gradient, self.tangent = description.gradient, description.tangent
        self.arrays = signature.arrays
        self.names = [signature.inputs[place].name for place in self.arrays]
        self.numbers = [place for place, operand in enumerate(signature.inputs) if operand.axes is None]
        self.count = len(signature.inputs)
        self.several = len(signature.outputs) > 1
        self.keeps_all = keeps_all
        both = (*signature.inputs, *signature.outputs)
        reads = [True] * len(both) if keeps_all else reads_of(description.gradient, len(both))
        #: The places, among the inputs and the results, of the arrays that a call keeps.
        self.kept = [place for place, operand in enumerate(both) if operand.axes is not None and reads[place]]
        order = {place: k for k, place in enumerate((*self.kept, *self.numbers))}
        sources = [order.get(place, -1) for place in range(len(both))]
        self._values, self.pick_kept = _picker(sources), _picker(self.kept)
        self._calls = description.make_calls()
        #: Compute, of tensors that are memory, where torch records nothing: see `run_slowly`. Or NotImplemented.
        self.run: Callable[[tuple[Any, ...]], Any] = self._calls.run_and_tell
        is_array = [operand.axes is not None for operand in signature.inputs]
        check = functools.partial(_checked, description)
        #: Return None and the gradients by the inputs, of (grads, saved, numbers, facts). Or NotImplemented.
        self.differentiate = _core.OperatorGradient(self.gradient, sources, is_array, check).call

    @functools.cached_property
    def with_tangents(self) -> Known:
        """The same for calls that may have tangents."""
        return Known(self.description, keeps_all=True)

    def run_slowly(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Call `call` at once, and return the results, and what `told` does.

        Raises where `call` has written to an input, as far as torch counts that.
        """
        tensors = self.tensors(inputs)
        versions = [None if x.is_inference() else x._version for x in tensors]
        made = self.description.run(inputs)
        for name, x, version in zip(self.names, tensors, versions, strict=True):
            if version is not None and x._version != version:
                raise TypeError(
                    f"{self.description.label}: call has written to {name}; accepted: a function that only reads its "
                    "inputs, such as one that writes to a copy"
                )
        return made, *self.told(inputs, made)

    def told(self, inputs: Sequence[Any], made: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], list[int]]:
        """Return the shapes and dtypes of the arrays, the numbers, and the places of the results without a gradient."""
        facts = tuple((x.shape, x.dtype) for x in self.tensors(inputs))
        numbers = tuple(inputs[place] for place in self.numbers)
        results = enumerate(made if self.several else (made,))
        return facts, numbers, [place for place, x in results if not x.is_floating_point() and not x.is_complex()]

    def tensors(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs that are arrays."""
        return [inputs[place] for place in self.arrays]

    def refuse_gradient(self, inputs: Sequence[Any]) -> None:
        """Raise for the first input whose gradient would be lost; nothing where there is none."""
        if name := needing_grad(dict(zip(self.names, self.tensors(inputs), strict=True))):
            raise NotImplementedError(
                f"{self.description.label}: {name} requires grad, and the operator has no gradient; accepted: "
                f"interop.operator(gradient=f), {name}.detach(), or a call under torch.no_grad()"
            )

    def values(self, kept: Sequence[torch.Tensor], numbers: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs and the results of a call, None for those that it has not kept."""
        return self._values((*kept, *numbers, None))

    def gradients(self, saved: Any, numbers: Any, facts: Any, *grads: Any) -> Any:
        """Return what `differentiate` does, whatever torch made the gradients of the results of."""
        if any(map(is_batched, grads)):
            return tuple(by_vmap(functools.partial(self.gradients, saved, numbers, facts), grads))
        return self.differentiate(tuple([compact(x) for x in grads]), saved, numbers, facts, True)

    def refuse_tangent(self, has_tangent: Sequence[bool]) -> NoReturn:
        """Raise for the first input that has a tangent."""
        name = next((name for name, its in zip(self.names, has_tangent, strict=False) if its), self.names[0])
        other = "; its gradient serves reverse mode alone" if self.gradient else ""
        raise NotImplementedError(
            f"{self.description.label}: {name} has a tangent, and the operator has no tangent{other}; accepted: "
            "interop.operator(tangent=f)"
        )

    def tangents(self, values: Sequence[Any], *tangents: Any) -> Sequence[Any]:
        """Return the tangents of the results."""
        inputs, outputs = values[: self.count], values[self.count :]
        given = tuple(None if x is None else compact(x) for x in tangents)
        made = self.tangent(given, inputs, outputs)  # type: ignore[misc]
        expected = [(tuple(x.shape), name_of(x.dtype)) for x in outputs]
        checked = self.description.check_tangents(made, expected)
        return checked if self.several else (checked,)


def _checked(description: Description, given: Any, facts: Sequence[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return None and the gradients that `gradient` has given; raise for anything else."""
    checked = description.check_gradients(given, [(tuple(shape), name_of(dtype)) for shape, dtype in facts])
    inputs = description.signature.inputs
    results: list[Any] = [None] * len(inputs)
    for place, x in zip(description.signature.arrays, checked, strict=True):
        if x is not None and not isinstance(x, torch.Tensor):
            raise TypeError(
                f"{description.label}: gradient returned {type_name(x)} for {inputs[place].name}; accepted: "
                "torch.Tensor, as the inputs are"
            )
        results[place] = x
    return (None, *results)


def compact(x: torch.Tensor) -> torch.Tensor:
    """Return an array as kernels take it: of its own order in memory, with no conjugation that is only noted."""
    if x.is_contiguous() and not x.is_conj() and not x.is_neg():
        return x
    return x.resolve_conj().resolve_neg().contiguous()


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that returns what is at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda values: (values[places[0]],)) if places else lambda values: ()


class Below(NamedTuple):
    """An operator at the levels below one of a transform, which computes in the place of `Known`."""

    known: Known
    compute: Callable[[tuple[Any, ...]], Any]

    def run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what `Known.run` does."""
        made = self.compute(inputs)
        return made, *self.known.told(inputs, made)


class Recorded(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """A call that autograd knows: of exact tensors, or at one level of a transform.

    `apply_recorded(step, *inputs)`: `step` is a `Known`, or a `Below` for tensors that are more than their memory.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, step: Known | Below, *inputs: Any) -> Any:
        """Compute, and keep what the derivatives read."""
        known, ran = step.known, step.run(inputs)
        made, facts, numbers, discrete = known.run_slowly(inputs) if ran is NotImplemented else ran
        ctx.recorded = known, numbers, facts
        if known.kept:
            kept = known.pick_kept((*inputs, *made) if known.several else (*inputs, made))
            ctx.save_for_backward(*kept)
            if known.keeps_all:
                ctx.save_for_forward(*kept)
        if discrete:
            ctx.mark_non_differentiable(*[made[place] if known.several else made for place in discrete])
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients, of which torch's record goes on where it is asked for."""
        known, numbers, facts = ctx.recorded
        saved = ctx.saved_tensors if known.kept else ()
        made = known.differentiate(grads, saved, numbers, facts)
        return known.gradients(saved, numbers, facts, *grads) if made is NotImplemented else made

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results."""
        (known, numbers, _), tangents = ctx.recorded, tangents[1:]
        if known.tangent is None:
            with forward_ad._set_fwd_grad_enabled(True):
                known.refuse_tangent([*map(has_tangent, ctx.saved_tensors)])
        with outer_levels():
            kept = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            values = known.values(kept, numbers)
            computed = functools.partial(known.tangents, values)
            is_mapped = any(x is not None and is_batched(x) for x in tangents)
            made = by_vmap(computed, tangents) if is_mapped else computed(*tangents)
        return tuple(made) if known.several else made[0]


apply_recorded: Callable[..., Any] = Recorded.apply
