"""A product of torch tensors as one step of autograd: of exact tensors, or at one level of a transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from interop import _core
from interop.torch._matmul_derivatives import (
    Facts,
    before_epilogue,
    gradients,
    keeps_input,
    products_below,
    products_recorded,
    tangent,
)
from interop.torch._tensors import EXACT, name_of, needing_grad, outer_levels, watches

__all__ = [
    "SCALES",
    "SYMBOLS",
    "TERMS",
    "Product",
    "apply_plain_product",
    "apply_product",
    "ask",
    "multiply_below",
    "multiply_below_with_aux",
]

TERMS = ("c", "bias", "scale_a", "scale_b")  #: tensors behind a and b, by their names in `interop.matmul`
SYMBOLS = (torch.SymBool, torch.SymInt, torch.SymFloat)
SCALES = {"factor_a": "scale_a", "factor_b": "scale_b"}  #: numbers have names of their own in the operator


def ask(
    tensors: Sequence[Any],
    options: dict[str, Any],
    shape_of: Callable[[torch.Tensor], Sequence[int]] = lambda x: (1,) * x.ndim,
) -> dict[str, Any]:
    """Ask what a product is, or raise what `interop.matmul` does; of the shapes, only where `shape_of` says them."""
    described = [None if x is None else (tuple(shape_of(x)), name_of(x.dtype)) for x in tensors]
    a, b, *terms = described
    assert a is not None
    assert b is not None
    given = {SCALES.get(name, name): x for name, x in options.items() if not isinstance(x, SYMBOLS)}
    given.update((name, x) for name, x in zip(TERMS, terms, strict=False) if x is not None)
    answer: dict[str, Any] = _core.abstract_matmul(a, b, given.pop("dtype", None), library="torch", **given)
    return answer


def multiply_below(options: dict[str, Any], a: Any, b: Any, *more: torch.Tensor | None) -> torch.Tensor:
    """Compute a product of exact tensors, without a record of it."""
    given = options
    if options or any(x is not None for x in more):
        given = {SCALES.get(name, name): x for name, x in options.items() if x is not None}
        given.update((name, x) for name, x in zip(TERMS, more, strict=False) if x is not None)
    result: torch.Tensor = _core.below_autograd("matmul", given, a, b)
    return result


def multiply_below_with_aux(
    options: dict[str, Any], a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a product with an epilogue, and what the epilogue was given."""
    answer = ask((a, b, *more), options, lambda x: x.shape)
    aux = torch.empty(answer["shape"], dtype=getattr(torch, answer["dtype"]), device=a.device)
    return multiply_below({**options, "aux": aux}, a, b, *more), aux


def operand_needing_grad(tensors: Sequence[torch.Tensor | None]) -> str | None:
    """Return the name of the first operand that requires grad, where torch records it."""
    return needing_grad(dict(zip(("a", "b", *TERMS), tensors, strict=False)))


def refuse_stream(tensors: Sequence[torch.Tensor | None]) -> None:
    """Raise ValueError where a product on a stream of the caller's would have a gradient."""
    if name := operand_needing_grad(tensors):
        raise ValueError(
            f"interop.matmul: stream is given, and {name} requires grad, whose gradient torch computes on the stream "
            "that was current; accepted: None (make the stream current, with torch.cuda.stream)"
        )


def _any_watched(grad: torch.Tensor, a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Has the gradient to be torch's own work? A hook may have put a subclass in the place of what was kept."""
    return watches(grad) or not (a is None or type(a) in EXACT) or not (b is None or type(b) in EXACT)


class _OneLevel(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """A Function at the level where it is called: torch's own is for all levels of a transform, and slower."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


class Product(_OneLevel):
    """A product that autograd knows: of exact tensors, or at one level of a transform.

    `apply_product(multiply, options, a, b, c, bias, scale_a, scale_b)`: those at the end may be left out. Where
    `multiply(options, a, b, ...)` gives the epilogue's input, too, that is a second result, for the derivative of the
    derivative goes through it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        multiply: Callable[..., Any],
        options: dict[str, Any],
        a: torch.Tensor,
        b: torch.Tensor,
        *more: torch.Tensor | None,
    ) -> Any:
        """Compute it, and keep what its derivatives need."""
        results = multiply(options, a, b, *more)
        is_pair = type(results) is tuple
        kept = None
        if options and (epilogue := options.get("epilogue")):
            kept = results[keeps_input(epilogue)] if is_pair else results
        needed = ctx.needs_input_grad
        ctx.save_for_backward(a if needed[3] else None, b if needed[2] else None, kept)
        ctx.options = options
        ctx.facts = [None if x is None else Facts(x.shape, x.dtype) for x in (a, b, *more[:2])]
        if is_pair:
            ctx.set_materialize_grads(False)
        in_operator = multiply not in (multiply_below, multiply_below_with_aux)
        if in_operator or getattr(forward_ad, "_current_level", 0) >= 0:  # there may be tangents
            ctx.set_materialize_grads(False)
            ctx.save_for_forward(a, b, kept)
            ctx.made = is_pair, (results[0] if is_pair else results).shape
        return results

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, grad_before: torch.Tensor | None = None) -> Any:
        """Return the gradients, of which torch's record goes on where it is asked for."""
        a, b, kept = ctx.saved_tensors
        if grad is not None and kept is not None:
            grad = before_epilogue(grad, ctx.options["epilogue"], kept)
        if grad_before is not None:
            grad = grad_before if grad is None else grad + grad_before
        if grad is None:
            return (None,) * 8
        products = products_recorded if _any_watched(grad, a, b) else products_below
        found = gradients(products, grad, (a, b), ctx.facts, ctx.needs_input_grad[2:6], ctx.options)
        return None, None, *found, None, None  # torch allows more of these than there are arguments

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """Return the tangents of the results."""
        is_pair, shape = ctx.made
        with outer_levels():
            a, b, kept = (None if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors)
            before = tangent((a, b), tangents[2:6], shape, ctx.options)
            after = before if kept is None else before_epilogue(before, ctx.options["epilogue"], kept)
        return (after, before) if is_pair else after


class PlainProduct(_OneLevel):
    """A product of two exact matrices of one dtype, and nothing else: most recorded calls, in fewer steps."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Compute it, and keep what its derivatives need."""
        by_a, by_b = ctx.needs_input_grad
        ctx.save_for_backward(a if by_b else None, b if by_a else None)
        result: torch.Tensor = _core.below_autograd("matmul", _NOTHING, a, b)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients, of which torch's record goes on where it is asked for."""
        a, b = ctx.saved_tensors
        if _any_watched(grad, a, b):
            return products_recorded(grad, a, b, _MATRICES, _NOTHING)
        return _core.matmul_backward(grad, a, b, _MATRIX.shape, _MATRIX.shape, _NOTHING)


_NOTHING: dict[str, Any] = {}
_MATRIX = Facts(torch.Size((1, 1)), torch.float32)  # as far as products of gradients ask for it
_MATRICES = (_MATRIX, _MATRIX)

apply_plain_product: Callable[..., Any] = PlainProduct.apply
apply_product: Callable[..., Any] = Product.apply
