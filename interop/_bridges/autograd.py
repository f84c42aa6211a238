"""A program of JAX's as one step of autograd, for `interop.bridge(f, to="torch")`.

Its derivatives are programs again, so that all orders and transforms come from three rules: gradients, tangents and
batches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from interop._bridges.arrays import Setting, has_torch, keeping_device, to_jax, to_torch
from interop._bridges.jax_programs import Program
from interop.torch._tensors import by_vmap, has_tangent, in_transform, is_batched, outer_levels

__all__ = ["Call"]


class Call:
    """One call of a program: with which arrays of JAX's, under which setting, and the structure of its result."""

    def __init__(self, label: str, names: Sequence[str], program: Program, others: tuple[Any, ...]) -> None:
        self.label, self.names, self.program, self.others = label, names, program, others
        self.setting = Setting.of_now()
        self.tree: Any = None  # of the result, once it has run

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run it, with what records its derivatives if anybody asks for these."""
        if in_transform():
            return Transformed.apply(self, *tensors)  # type: ignore[no-any-return]
        if (torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)) or any(map(has_tangent, tensors)):
            return Recorded.apply(self, *tensors)  # type: ignore[no-any-return]
        return self.run(tensors)

    def derived(self, program: Program, names: Sequence[str]) -> Call:
        """Return the call of another program, in the same setting."""
        call = Call(self.label, names, program, self.others)
        call.setting = self.setting
        return call

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Compute."""
        with keeping_device():
            arrays = self.arrays(tensors)
            with self.setting.again():
                result = self.program.run(self.others, *arrays)
            return self.results(result)

    def record(
        self, tensors: Sequence[torch.Tensor], wanted: tuple[int, ...]
    ) -> tuple[tuple[torch.Tensor, ...], Any, list[Any]]:
        """Compute: the results, how the gradients are computed, and what is kept for these."""
        with keeping_device():
            arrays = self.arrays(tensors)
            with self.setting.again():
                result, kept = self.program.recording(wanted)(self.others, *arrays)
            return self.results(result), kept.func, list(kept.args)

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        with self.setting.again():
            return [to_jax(self.label, name, x) for name, x in zip(self.names, tensors, strict=True)]

    def results(self, result: Any) -> tuple[torch.Tensor, ...]:
        leaves, self.tree = jax.tree.flatten(result)
        return tuple(to_torch(self.label, "the result", x) for x in leaves)

    def gradients(
        self, inputs: Sequence[torch.Tensor], wanted: Sequence[int], grads: Sequence[torch.Tensor | None]
    ) -> list[Any]:
        """Return the gradients of the `wanted` inputs, None for others, by a program of which torch's record goes on.

        It computes anew what the gradients need.
        """
        given = tuple(place for place, x in enumerate(grads) if x is not None)
        program = self.program.gradients(len(inputs), tuple(wanted), given)
        names = [*self.names, *(f"the gradient of result {place}" for place in given)]
        made = self.derived(program, names)(*inputs, *(grads[place] for place in given))
        return _at(len(inputs), wanted, made)

    def tangents(self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> list[Any]:
        """Return the tangents of the floating-point and complex results."""
        moved = tuple(place for place, x in enumerate(tangents) if x is not None)
        program = self.program.tangents(len(inputs), moved)
        names = [*self.names, *(f"the tangent of {self.names[place]}" for place in moved)]
        return [*self.derived(program, names)(*inputs, *(tangents[place] for place in moved))]


def _at(count: int, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    made: list[Any] = [None] * count
    for place, x in zip(places, values, strict=True):
        made[place] = x
    return made


def _tangents(ctx: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Do the work of `jvp`, of both Functions."""
    call: Call = ctx.call
    with outer_levels():
        inputs = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors[: ctx.count]]
        if any(x is not None and is_batched(x) for x in tangents):
            made = [*by_vmap(functools.partial(_of_tangents, call, inputs), tangents)]
        else:
            made = call.tangents(inputs, tangents)
    return tuple(_at(len(ctx.inexact), [k for k, moves in enumerate(ctx.inexact) if moves], made))


def _of_tangents(call: Call, inputs: Any, *tangents: Any) -> list[Any]:
    return call.tangents(inputs, tangents)


def _of_grads(call: Call, inputs: Any, wanted: Any, *grads: Any) -> list[Any]:
    return call.gradients(inputs, wanted, grads)


def _wanted(ctx: Any) -> tuple[int, ...]:
    return tuple(place for place, needs in enumerate(ctx.needs_input_grad[1:]) if needs)


def _note(ctx: Any, call: Call, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    ctx.call, ctx.count = call, len(inputs)
    ctx.inexact = [x.is_floating_point() or x.is_complex() for x in results]
    ctx.mark_non_differentiable(*(x for x, moves in zip(results, ctx.inexact, strict=True) if not moves))
    ctx.set_materialize_grads(False)


class Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A call with tensors that are memory: what its first derivative needs is kept."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: torch.Tensor) -> Any:
        """Compute. Results and residuals that JAX keeps are saved as tensors, so that torch frees and offloads them."""
        wanted = _wanted(ctx)
        if not wanted:  # there are tangents alone
            results = call.run(inputs)
            ctx.save_for_forward(*inputs)
        else:
            results, ctx.kept, residuals = call.record(inputs, wanted)
            saved = [to_torch(call.label, "a residual", x) for x in residuals if has_torch(x.dtype)]
            ctx.others = [None if has_torch(x.dtype) else x for x in residuals]
            read = [place for where, place in sorted(ctx.kept.used) if where == "result"]
            ctx.recorded, ctx.read = wanted, read
            ctx.save_for_backward(*inputs, *(results[place] for place in read), *saved)
            ctx.save_for_forward(*inputs)
        _note(ctx, call, inputs, results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Return the gradients: by what was kept, or, where they are differentiated or mapped, by a program."""
        call: Call = ctx.call
        saved = ctx.saved_tensors
        inputs, wanted = saved[: ctx.count], _wanted(ctx)
        given = [x for x in grads if x is not None]
        if not given or not wanted:
            return (None, *[None] * ctx.count)
        if any(map(is_batched, given)):
            return (None, *by_vmap(functools.partial(_of_grads, call, inputs, wanted), grads))
        if torch.is_grad_enabled() or in_transform() or any(map(has_tangent, (*inputs, *given))):
            return (None, *call.gradients(inputs, wanted, grads))
        kept = ctx.kept
        read = dict(zip(ctx.read, saved[ctx.count :], strict=False))
        with keeping_device(), call.setting.again():
            left = iter(saved[ctx.count + len(read) :])
            own = [to_jax(call.label, "a residual", next(left)) if x is None else x for x in ctx.others]
            known: dict[tuple[str, int], Any] = {("kept", k): x for k, x in enumerate(own)}
            known |= {("constant", k): x for k, x in enumerate(kept.constants)}
            for where, place in kept.used:
                if where == "input":
                    known[where, place] = to_jax(call.label, call.names[place], inputs[place])
                elif where == "result":
                    known[where, place] = to_jax(call.label, "a result", read[place])
            cotangents = {
                place: to_jax(call.label, f"the gradient of result {place}", x)
                for place, x in enumerate(grads)
                if x is not None and place in kept.kinds
            }
            places = tuple(ctx.recorded.index(place) for place in wanted)
            made = call.program.pull(kept, places, [known[source] for source in kept.sources], cotangents)
            tensors = [to_torch(call.label, "a gradient", x) for x in made]
        return (None, *_at(ctx.count, wanted, tensors))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: torch.Tensor | None) -> Any:
        """Return the tangents of the results."""
        return _tangents(ctx, tangents)


class Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A call under a transform of `torch.func`: its derivative is a program of the inputs."""

    @staticmethod
    def forward(call: Call, *inputs: torch.Tensor) -> Any:
        """Compute."""
        return call.run(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs."""
        call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        _note(ctx, call, tensors, output)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Return the gradients."""
        wanted = _wanted(ctx)
        if not wanted or all(x is None for x in grads):
            return (None, *[None] * ctx.count)
        return (None, *ctx.call.gradients(ctx.saved_tensors, wanted, grads))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: torch.Tensor | None) -> Any:
        """Return the tangents of the results."""
        return _tangents(ctx, tangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: Call, *inputs: torch.Tensor) -> Any:
        """Map the program by JAX's own rules."""
        mapped = call.derived(call.program.mapped(tuple(dims[1:])), call.names)
        made = mapped(*inputs)
        call.tree = mapped.tree
        return made, (0,) * len(made)
