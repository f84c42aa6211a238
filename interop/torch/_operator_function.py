"""A call of an operator as one step of autograd: of exact tensors, or at one level of a transform."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from interop import _core
from interop._operators.description import Description
from interop.torch._tensors import by_vmap, name_of, needing_grad, outer_levels

__all__ = ["Known", "apply", "compact"]


class Known:
    """What autograd is told of an operator."""

    def __init__(self, description: Description) -> None:
        signature = description.signature
        self.description = description
        self.gradient, self.tangent = description.gradient, description.tangent
        self.arrays = signature.arrays
        self.names = [signature.inputs[place].name for place in self.arrays]
        self.numbers = [place for place, operand in enumerate(signature.inputs) if operand.axes is None]
        self.count = len(signature.inputs)
        self.several = len(signature.outputs) > 1
        #: Of the inputs and the results: is it an array that `gradient` reads?
        self.is_read = [
            reads and (place >= self.count or place in self.arrays)
            for place, reads in enumerate(_reads(description.gradient, self.count + len(signature.outputs)))
        ]
        self.reads_all = all(self.is_read)
        names = [operand.name for operand in signature.inputs]
        self._calls = _core.OperatorCalls(
            description.label,
            names,
            self.arrays,
            not description.is_exact,
            description.prepare,
            description.check_results,
        )

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Call `call` at once, of tensors that are memory, where torch records nothing."""
        try:
            made = self._calls.call(inputs)
        except TypeError:
            self.description.check(inputs)  # which says what is wrong in terms of the signature
            raise
        return self.description.run(inputs) if made is NotImplemented else made

    def run_unwritten(self, inputs: tuple[Any, ...]) -> Any:
        """Do the same, and raise where `call` has written to an input, as far as torch counts that."""
        if self.description.is_exact or any(x.is_inference() for x in self.tensors(inputs)):
            return self.run(inputs)
        versions = [x._version for x in self.tensors(inputs)]
        made = self.run(inputs)
        for name, x, version in zip(self.names, self.tensors(inputs), versions, strict=True):
            if x._version != version:
                raise TypeError(
                    f"{self.description.label}: call has written to {name}; accepted: a function that only reads its "
                    f"inputs, such as one that writes to a copy"
                )
        return made

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

    def gradients(
        self, given: Any, facts: Sequence[tuple[torch.Size, torch.dtype]], needed: Sequence[bool]
    ) -> Sequence[Any]:
        """Return what `gradient` has returned, for each input, where it is needed; raise for anything else."""
        if type(given) is not tuple and self.count == 1:
            given = (given,)
        if type(given) is not tuple or len(given) != self.count or not self._fit(given, facts):
            checked = self.description.check_gradients(given, [(tuple(shape), name_of(dtype)) for shape, dtype in facts])
            results: list[Any] = [None] * self.count
            for place, name, x in zip(self.arrays, self.names, checked, strict=True):
                if x is not None and not isinstance(x, torch.Tensor):
                    raise TypeError(
                        f"{self.description.label}: gradient returned {type(x).__module__}.{type(x).__name__} for "
                        f"{name}; accepted: torch.Tensor, as the inputs are"
                    )
                results[place] = x
            given = results
        return [x if needs else None for x, needs in zip(given, needed, strict=True)]

    def _fit(self, given: Sequence[Any], facts: Sequence[tuple[torch.Size, torch.dtype]]) -> bool:
        for place, (shape, dtype) in zip(self.arrays, facts, strict=True):
            x = given[place]
            if x is not None and not (isinstance(x, torch.Tensor) and x.dtype is dtype and x.shape == shape):
                return False
        return all(given[place] is None for place in self.numbers)

    def tangents(self, tangents: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the tangents of the results; NotImplementedError where nothing says them."""
        label = self.description.label
        if self.tangent is None:
            names = (self.names[k] for k, place in enumerate(self.arrays) if tangents[place] is not None)
            other = "; its gradient serves reverse mode alone" if self.gradient else ""
            raise NotImplementedError(
                f"{label}: {next(names, self.names[0])} has a tangent, and the operator has no tangent{other}; "
                "accepted: interop.operator(tangent=f)"
            )
        made = self.tangent(tuple(tangents), tuple(inputs), tuple(outputs))
        expected = [(tuple(x.shape), name_of(x.dtype)) for x in outputs]
        return self.description.check_tangents(made, expected)


def _reads(function: Callable[..., Any] | None, count: int) -> list[bool]:
    """Tell which of the arguments behind the first a function reads, of `count`; all, where that is not known.

    Autograd keeps the others for nothing.
    """
    if not isinstance(function, types.FunctionType):
        return [function is not None] * count
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount]
    if len(names) < count or code.co_flags & inspect.CO_VARARGS or {"locals", "eval", "exec"} & {*code.co_names}:
        return [True] * count
    read = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        read |= {step.argval} if isinstance(step.argval, str) else set()
        read |= {*step.argval} if isinstance(step.argval, tuple) and "FAST" in step.opname else set()
    return [name in read for name in names[:count]]


def compact(x: torch.Tensor) -> torch.Tensor:
    """Return an array as kernels take it: of its own order in memory, with no conjugation that is only noted."""
    if x.is_contiguous() and not x.is_conj() and not x.is_neg():
        return x
    return x.resolve_conj().resolve_neg().contiguous()


class Recorded(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """A call that autograd knows: of exact tensors, or at one level of a transform.

    `apply(known, run, has_tangents, *inputs)`; `run` computes the results.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, known: Known, run: Callable[..., Any], has_tangents: bool, *inputs: Any) -> Any:
        """Compute, and keep what the derivatives read."""
        made = run(inputs)
        outputs = made if known.several else (made,)
        ctx.known = known
        ctx.facts = [(inputs[place].shape, inputs[place].dtype) for place in known.arrays]
        both = (*inputs, *outputs)
        kept = both if known.reads_all else [x if reads else None for x, reads in zip(both, known.is_read, strict=True)]
        ctx.save_for_backward(*kept)
        if known.numbers:
            ctx.numbers = [inputs[place] for place in known.numbers]
        if has_tangents:
            ctx.save_for_forward(*(x if isinstance(x, torch.Tensor) else None for x in both))
        discrete = [x for x in outputs if not (x.dtype.is_floating_point or x.dtype.is_complex)]
        if discrete:
            ctx.mark_non_differentiable(*discrete)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients, of which torch's record goes on where it is asked for."""
        known, values = ctx.known, ctx.saved_tensors
        if known.numbers:
            values = _with_numbers(values, known, ctx.numbers)

        def gradients(*grads: Any) -> Sequence[Any]:
            g = tuple(map(compact, grads))
            given = known.gradient(g if known.several else g[0], *values)
            return known.gradients(given, ctx.facts, ctx.needs_input_grad[3:])  # type: ignore[no-any-return]

        return None, None, None, *by_vmap(gradients, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results."""
        known = ctx.known
        with outer_levels():
            values = [None if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            if known.numbers:
                values = _with_numbers(values, known, ctx.numbers)
            inputs, outputs = values[: known.count], values[known.count :]

            def computed(*tangents: Any) -> Sequence[Any]:
                made = known.tangents([None if x is None else compact(x) for x in tangents], inputs, outputs)
                return made if known.several else (made,)

            made = by_vmap(computed, tangents[3:])
        return tuple(made) if known.several else made[0]


def _with_numbers(values: Sequence[Any], known: Known, numbers: Sequence[Any]) -> list[Any]:
    values = list(values)
    for place, number in zip(known.numbers, numbers, strict=True):
        values[place] = number
    return values


apply: Callable[..., Any] = Recorded.apply
