"""The derivatives of a product, `act(alpha a b + beta c + bias)`, as products, sums and torch's own operations.

Each function takes `multiply(x, y, **keywords)`, which is `interop.matmul` or its operator: the operator's derivatives
are again such calls, so they have derivatives themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from interop.torch._tensors import name_of, sum_to

__all__ = [
    "Facts",
    "Multiply",
    "before_epilogue",
    "check_differentiable",
    "gradients",
    "keeps_input",
    "scaled",
    "tangent",
]

Multiply = Callable[..., torch.Tensor]
_Tensors = Sequence[torch.Tensor | None]


class Facts(NamedTuple):
    """What stands for an operand whose values no gradient needs."""

    shape: torch.Size
    dtype: torch.dtype


_NAMES = ("a", "b", "c", "bias", "scale_a", "scale_b")
_KERNELS = ("precision", "backend", "autotune", "execution")  # the options that its derivatives have, too


def check_differentiable(tensors: _Tensors) -> None:
    """Raise TypeError for a tensor that requires grad, and by which a product has no derivative."""
    for name, x in zip(_NAMES, tensors, strict=False):
        if x is not None and x.requires_grad and (name.startswith("scale") or x.dtype.itemsize == 1):
            raise TypeError(
                f"interop.matmul: {name} is {name_of(x.dtype)} and requires grad, and products are not differentiable "
                f"by {'scales' if name.startswith('scale') else 'float8 operands'}; accepted: {name}.detach()"
            )


def _kernels(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _KERNELS if options.get(name) is not None}


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


def before_epilogue(grad: torch.Tensor, epilogue: str | None, kept: torch.Tensor | None) -> torch.Tensor:
    """Return a derivative times that of the epilogue: from a gradient of its result, or a tangent of its input.

    `kept` is the result of relu, or the input of gelu.
    """
    if epilogue is None or kept is None:
        return grad
    if epilogue == "relu":
        return torch.ops.aten.threshold_backward(grad, kept, 0)
    approximate = "tanh" if epilogue == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(grad, kept.clamp(-_FLAT, _FLAT), approximate=approximate)


# ---- the gradients ----


def gradients(
    multiply: Multiply, grad: torch.Tensor, operands: Sequence[Any], needed: Sequence[bool], options: dict[str, Any]
) -> list[torch.Tensor | None]:
    """Return the gradients by a, b, c and bias, where they are needed, from that of the epilogue's input.

    Of the operands, a is the tensor where b's gradient is needed, and b where a's is; the others may be `Facts`.
    """
    a, b, c, bias = operands
    found: list[torch.Tensor | None] = [None] * 4
    if needed[0] or needed[1]:
        found[:2] = _operand_gradients(multiply, grad, a, b, needed, options)
    if c is not None and needed[2]:
        found[2] = scaled(sum_to(grad, c.shape), _conjugated(options.get("beta"))).to(c.dtype)
    if bias is not None and needed[3]:
        found[3] = sum_to(grad, bias.shape).to(bias.dtype)
    return found


def _operand_gradients(
    multiply: Multiply,
    grad: torch.Tensor,
    a: Any,
    b: Any,
    needed: Sequence[bool],
    options: dict[str, Any],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    keywords = _kernels(options)
    if options.get("alpha") is not None:
        keywords["alpha"] = _conjugated(options["alpha"])
    a_is_vector, b_is_vector = len(a.shape) == 1, len(b.shape) == 1
    if b_is_vector:
        grad = grad.unsqueeze(-1)
    if a_is_vector:
        grad = grad.unsqueeze(-2)
    by_a = by_b = None
    if needed[0]:
        right = b.unsqueeze(1) if b_is_vector else b
        by_a = _as_operand(_product_to(multiply, grad, right.mH, a.shape[:-2], keywords), a)
    if needed[1]:
        left = a.unsqueeze(0) if a_is_vector else a
        by_b = _as_operand(_product_to(multiply, left.mH, grad, b.shape[:-2], keywords), b)
    return by_a, by_b


def _as_operand(grad: torch.Tensor, operand: Any) -> torch.Tensor:
    """Give a gradient the shape and dtype of what it is by; a real operand of a complex product has a real one."""
    if grad.is_complex() and not operand.dtype.is_complex:
        grad = grad.real
    return grad.reshape(operand.shape).to(operand.dtype)


def _product_to(
    multiply: Multiply, x: torch.Tensor, y: torch.Tensor, batch: torch.Size, keywords: dict[str, Any]
) -> torch.Tensor:
    """Multiply, and sum over the stacks that an operand with that batch was broadcast over."""
    if x.ndim > 2 and all(size == 1 for size in batch) and x.shape[:-2] == y.shape[:-2]:
        folded = _folded(x, y)
        if folded is not None:
            return multiply(*folded, **keywords)
    product = multiply(x, y, **keywords)
    return sum_to(product, (*batch, *product.shape[-2:]))


def _folded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return two stacks as two matrices, whose product is the sum of theirs; None if that took a copy."""
    try:
        return x.movedim(-2, 0).view(x.shape[-2], -1), y.view(-1, y.shape[-1])
    except RuntimeError:  # no such view
        return None


# ---- the tangent ----


def tangent(
    multiply: Multiply, tensors: _Tensors, tangents: _Tensors, shape: torch.Size, options: dict[str, Any]
) -> torch.Tensor:
    """Return the tangent of the epilogue's input, which has that shape, from those of a, b, c and bias."""
    a, b = tensors[:2]
    by_a, by_b, by_c, by_bias = tangents[:4]
    keywords = _kernels(options)
    for name in ("alpha", "dtype"):
        if options.get(name) is not None:
            keywords[name] = options[name]
    rest = None if by_c is None else scaled(by_c, options.get("beta"))
    if by_bias is not None:
        rest = by_bias if rest is None else rest + by_bias
    for x, y in ((by_a, b), (a, by_b)):
        if x is not None and y is not None:
            rest = multiply(x, y, rest, **keywords)
    assert rest is not None
    return rest.expand(shape)
