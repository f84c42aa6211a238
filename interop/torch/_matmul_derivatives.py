"""The derivatives of a product, `act(alpha a b + beta c + bias)`, as products, sums and torch's own operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from interop import _core
from interop.torch._tensors import name_of, sum_to

__all__ = [
    "Facts",
    "before_epilogue",
    "check_differentiable",
    "gradients",
    "keeps_input",
    "multiply",
    "products_below",
    "products_recorded",
    "scaled",
    "tangent",
]

_Tensors = Sequence[torch.Tensor | None]


class Facts(NamedTuple):
    """What stands for an operand whose values no gradient needs."""

    shape: torch.Size
    dtype: torch.dtype


_TERMS = ("a", "b", "c", "bias")
_NAMES = (*_TERMS, "scale_a", "scale_b")
_KERNELS = ("precision", "backend", "autotune", "execution")  # the options that its derivatives have, too


def check_differentiable(tensors: _Tensors) -> None:
    """Raise TypeError for a tensor that requires grad, and by which a product has no derivative."""
    for name, x in zip(_NAMES, tensors, strict=False):
        if x is not None and x.requires_grad and (name not in _TERMS or x.dtype.itemsize == 1):
            raise TypeError(
                f"interop.matmul: {name} is {name_of(x.dtype)} and requires grad, and products are not differentiable "
                f"by {'float8 operands' if name in _TERMS else 'scales'}; accepted: {name}.detach()"
            )


def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Multiply by the operator, whose derivatives are again such calls."""
    result: torch.Tensor = torch.ops.interop.matmul(a, b, c, **options)
    return result


def _conjugated(factor: Any) -> Any:
    return factor.conjugate() if isinstance(factor, complex) else factor


def scaled(x: torch.Tensor, factor: Any) -> torch.Tensor:
    """Return a term times its factor; 0 takes what is no number, too."""
    if factor is None:
        return x
    return torch.zeros_like(x) if type(factor) in (int, float) and factor == 0 else x * factor


# ---- the epilogue ----

_FLAT = 40.0  # beyond it, either way, the derivatives of gelu are 1 or 0 in every dtype, and no power of x overflows


def keeps_input(epilogue: str | None) -> bool:
    """Does the derivative of an epilogue need its input? That of relu is found in the result."""
    return epilogue is not None and epilogue != "relu"


def before_epilogue(grad: torch.Tensor, epilogue: str, kept: torch.Tensor) -> torch.Tensor:
    """Return a derivative times that of the epilogue: from a gradient of its result, or a tangent of its input.

    `kept` is the result of relu, or the input of gelu.
    """
    if epilogue == "relu":
        return torch.ops.aten.threshold_backward(grad, kept, 0)
    approximate = "tanh" if epilogue == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(grad, kept.clamp(-_FLAT, _FLAT), approximate=approximate)


# ---- the gradients ----

#: (grad, a, b, facts, options) -> the gradients by a, where there is b, and by b, where there is a: of the products'
#: dtype, and perhaps of more stacks than the operand has.
Products = Callable[..., tuple[torch.Tensor | None, torch.Tensor | None]]


def gradients(
    products: Products,
    grad: torch.Tensor,
    operands: _Tensors,
    facts: Sequence[Facts | None],
    needed: Sequence[bool],
    options: dict[str, Any],
) -> list[torch.Tensor | None]:
    """Return the gradients by a, b, and, if they are spoken of, c and bias, from that of the epilogue's input.

    Of the operands a and b, each is there where the other's gradient is needed. `facts` are of all terms.
    """
    found: list[torch.Tensor | None] = [None] * len(facts)
    if needed[0] or needed[1]:
        a, b = operands
        grad = _readable(grad) if options.get("backend") == "cublas" else grad
        found[:2] = products(grad, a, b, facts, _options_of_gradients(options) if options else options)
    if len(facts) > 2:
        found[2] = scaled(grad, _conjugated(options.get("beta"))) if needed[2] else None
        found[3] = grad if needed[3] else None
    return [None if x is None else _as_term(x, fact) for x, fact in zip(found, facts, strict=True)]


def _readable(grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient in a layout that cuBLAS reads, which that of a sum is not: one number, repeated."""
    has_unit_stride = grad.is_contiguous() or (grad.ndim > 1 and grad.mT.is_contiguous())
    return grad if has_unit_stride else grad.contiguous()


def _options_of_gradients(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in _KERNELS if options.get(name) is not None}
    if options.get("alpha") is not None:
        given["alpha"] = _conjugated(options["alpha"])
    return given


def _as_term(grad: torch.Tensor, term: Any) -> torch.Tensor:
    """Give a gradient the shape and dtype of what it is by; a real operand of a complex product has a real one."""
    if grad.shape != term.shape:
        while grad.ndim < len(term.shape):
            grad = grad.unsqueeze(0)
        grad = sum_to(grad, term.shape)
    if grad.dtype != term.dtype:
        grad = (grad.real if grad.is_complex() and not term.dtype.is_complex else grad).to(term.dtype)
    return grad


def products_below(
    grad: torch.Tensor, a: torch.Tensor | None, b: torch.Tensor | None, facts: Sequence[Any], options: dict[str, Any]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return them from the compiled half: of exact tensors, without a record."""
    return _core.matmul_backward(grad, a, b, facts[0].shape, facts[1].shape, options)


def products_recorded(
    grad: torch.Tensor, a: torch.Tensor | None, b: torch.Tensor | None, facts: Sequence[Any], options: dict[str, Any]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return them from the operator, so that they have derivatives, and can be traced."""
    a_shape, b_shape = facts[0].shape, facts[1].shape
    a_is_vector, b_is_vector = len(a_shape) == 1, len(b_shape) == 1
    if b_is_vector:
        grad = grad.unsqueeze(-1)
    if a_is_vector:
        grad = grad.unsqueeze(-2)
    by_a = by_b = None
    if b is not None:
        right = b.unsqueeze(1) if b_is_vector else b
        by_a = _sum_of_products(grad, right.mH, a_shape[:-2], options)
        by_a = by_a.squeeze(-2) if a_is_vector else by_a
    if a is not None:
        left = a.unsqueeze(0) if a_is_vector else a
        by_b = _sum_of_products(left.mH, grad, b_shape[:-2], options)
        by_b = by_b.squeeze(-1) if b_is_vector else by_b
    return by_a, by_b


def _sum_of_products(x: torch.Tensor, y: torch.Tensor, batch: torch.Size, options: dict[str, Any]) -> torch.Tensor:
    """Multiply; one product is the sum over all stacks, where an operand was broadcast over them, and memory allows."""
    if x.ndim > 2 and all(size == 1 for size in batch) and x.shape[:-2] == y.shape[:-2]:
        with contextlib.suppress(RuntimeError, ValueError):  # there is no such view; the latter of fake tensors
            x, y = x.movedim(-2, 0).view(x.shape[-2], -1), y.view(-1, y.shape[-1])
    return multiply(x, y, **options)


# ---- the tangent ----


def tangent(operands: _Tensors, tangents: _Tensors, shape: torch.Size, options: dict[str, Any]) -> torch.Tensor:
    """Return the tangent of the epilogue's input, which has that shape, from those of a, b, c and bias."""
    a, b = operands
    by_a, by_b, by_c, by_bias = tangents
    keywords = {name: options[name] for name in (*_KERNELS, "alpha", "dtype") if options.get(name) is not None}
    rest = None if by_c is None else scaled(by_c, options.get("beta"))
    if by_bias is not None:
        rest = by_bias if rest is None else rest + by_bias
    for x, y in ((by_a, b), (a, by_b)):
        if x is not None and y is not None:
            rest = multiply(x, y, rest, **keywords)
    assert rest is not None
    return rest.expand(shape)
