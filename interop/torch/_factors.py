"""Products by factors that a graph has as its inputs: torch's operations follow the product.

Torch's graphs have symbols for the products of tensors and Python's floats. A float that is an operator's argument is a
constant of the graph, of which there is one for each value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from interop.torch._tensors import fill, needing_grad, refuse_written

__all__ = ["finished"]

Multiply = Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], torch.Tensor]


def _factor(x: Any, like: torch.Tensor) -> torch.Tensor | None:
    """Return a factor that may be an input of the graph as a tensor, where `like` is; None for any other."""
    if isinstance(x, np.ndarray) and x.ndim == 0:  # as Dynamo has scalars of NumPy
        return torch.as_tensor(x).to(like.device)
    return torch.ones((), dtype=torch.float64, device=like.device) * x if isinstance(x, float) else None


def finished(multiply: Multiply, a: torch.Tensor, b: torch.Tensor, given: dict[str, Any], dtype: torch.dtype) -> Any:
    """Compute `interop.matmul(a, b, **given)`, of `dtype`, where a factor may be an input of the graph.

    None where no factor is, or the call is refused: the operator says so.
    """
    c, bias, epilogue = given.get("c"), given.get("bias"), given.get("epilogue")
    alpha, beta = _factor(given.get("alpha"), a), _factor(given.get("beta"), a)
    if alpha is None and beta is None:
        return None
    if not _fits(dtype, c, bias, given):
        return None
    # What follows is done in what a product is added up in.
    kind = torch.float32 if dtype.itemsize < 4 else dtype
    total = multiply(a, b, {**{name: x for name, x in given.items() if name not in _LATER}, "dtype": kind})
    shape, matrix = total.shape, (a.dim() > 1) + (b.dim() > 1)
    if alpha is not None:
        total = _times(alpha, total)
    if c is not None:
        total = total + (_times(beta, c.to(kind)) if beta is not None else c.to(kind))
    if bias is not None:
        longer = [place for place, size in enumerate(bias.shape) if size != 1]
        if len(longer) > 1 or any(place < bias.dim() - matrix for place in longer):
            return None
        total = total + bias.to(kind)
    if total.shape != shape:
        return None
    result = (_after(multiply, epilogue, total) if epilogue is not None else total).to(dtype)
    name = needing_grad({"a": a, "b": b, **{name: given.get(name) for name in ("c", "bias", "out", "aux")}})
    refuse_written("interop.matmul", name, out=given.get("out"), aux=given.get("aux"))
    if given.get("aux") is not None:
        fill("interop.matmul", "aux", given["aux"], total.to(dtype))
    if given.get("out") is not None:
        fill("interop.matmul", "out", given["out"], result)
    return result


_LATER = ("c", "bias", "alpha", "beta", "epilogue", "out", "aux")


def _fits(dtype: torch.dtype, c: Any, bias: Any, given: dict[str, Any]) -> bool:
    """Is it a call that the operator would not refuse, but for its shapes?"""
    epilogue, beta = given.get("epilogue"), given.get("beta")
    is_floating = dtype.is_floating_point or (dtype.is_complex and epilogue is None)
    are_terms = all(x is None or (isinstance(x, torch.Tensor) and x.dtype == dtype) for x in (c, bias))
    is_after = (epilogue is None and given.get("aux") is None) or epilogue in ("relu", "gelu", "gelu_tanh")
    # An integer is a constant, or has a symbol.
    are_numbers = all(x is None or isinstance(x, float | np.ndarray) for x in (given.get("alpha"), beta))
    return is_floating and are_terms and is_after and are_numbers and (beta is None or c is not None)


def _times(factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a term times its factor; 0 takes what is no number, too."""
    return torch.where(factor == 0, 0, factor.to(x.dtype) * x)


def _after(multiply: Multiply, epilogue: str, total: torch.Tensor) -> torch.Tensor:
    """Apply an epilogue. That of a product by 1 is as right as any, where torch's gelu loses small results."""
    if epilogue == "relu":
        return torch.relu(total)
    one = total.new_ones((1, 1))
    return multiply(one, total.reshape(1, -1), {"epilogue": epilogue}).reshape(total.shape)
