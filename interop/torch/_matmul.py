"""`interop.matmul` on tensors that are more than their memory: with gradients, under transforms, in traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from interop import _core
from interop.torch._matmul_derivatives import (
    Facts,
    before_epilogue,
    check_differentiable,
    gradients,
    keeps_input,
    products_below,
    products_recorded,
    tangent,
)
from interop.torch._sharding import know_distributed
from interop.torch._tensors import as_tensor, fill, name_of, number_of, refuse_written, watches

__all__ = ["Product", "compute", "multiply_below", "multiply_below_with_aux", "record"]

_FUNCTION = "interop.matmul"
_TENSORS = ("c", "bias", "scale_a", "scale_b")
_SCALES = {"factor_a": "scale_a", "factor_b": "scale_b"}  # numbers have names of their own in the operator
_Level: Any = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)


def compute(a: Any, b: Any, options: dict[str, Any]) -> torch.Tensor:
    """Compute `interop.matmul(a, b, **options)` by torch's dispatcher, which knows what the tensors are.

    Raises as the public function does.
    """
    tensors, keywords = _arguments(a, b, options)
    know_distributed(tensors)
    out, aux = options.get("out"), options.get("aux")
    if out is None and aux is None:
        result: torch.Tensor = torch.ops.interop.matmul(*tensors, **keywords)
        return result
    _refuse_written(tensors, out, aux)
    if aux is None:
        result = torch.ops.interop.matmul(*tensors, **keywords)
    else:
        if keywords.get("epilogue") is None:
            _core.matmul(tensors[0], tensors[1], {"aux": aux})  # for what it throws
        result, before = torch.ops.interop.matmul_with_aux(*tensors, **keywords)
        fill(_FUNCTION, "aux", aux, before)
    if out is None:
        return result
    fill(_FUNCTION, "out", out, result)
    return out


def record(a: Any, b: Any, options: dict[str, Any]) -> torch.Tensor:
    """Compute `interop.matmul(a, b, **options)` of exact tensors, and record it: some of them require grad."""
    if not options:
        if a.dtype.itemsize == 1 or b.dtype.itemsize == 1:
            check_differentiable((a, b))
        return Product.apply(multiply_below, options, a, b, None, None, None, None)  # type: ignore[no-any-return]
    tensors, keywords = _arguments(a, b, options)
    _refuse_written(tensors, options.get("out"), options.get("aux"))
    _refuse_stream(tensors, keywords)
    check_differentiable(tensors)
    if keeps_input(keywords.get("epilogue")):
        return Product.apply(multiply_below_with_aux, keywords, *tensors)[0]  # type: ignore[no-any-return]
    return Product.apply(multiply_below, keywords, *tensors)  # type: ignore[no-any-return]


def _arguments(a: Any, b: Any, options: dict[str, Any]) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Return the six tensors of a product, and the operator's keywords."""
    tensors: list[torch.Tensor | None] = [as_tensor(_FUNCTION, x) for x in (a, b)]
    keywords = {name: x for name, x in options.items() if x is not None and name not in ("out", "aux", *_TENSORS)}
    for name in _TENSORS:
        x = number_of(options.get(name))
        if name.startswith("scale") and isinstance(x, bool | int | float):
            keywords[name.replace("scale", "factor")] = x
            x = None
        tensors.append(None if x is None else as_tensor(_FUNCTION, x))
    for name in ("alpha", "beta"):
        if name in keywords:
            keywords[name] = number_of(keywords[name])
    if keywords.get("alpha") is not None and type(keywords["alpha"]) is int and keywords["alpha"] == 1:
        del keywords["alpha"]
    if "dtype" in keywords:
        keywords["dtype"] = _dtype(tensors, keywords["dtype"])
    if "stream" in keywords:
        keywords["stream"] = _core.stream_handle(keywords["stream"], _FUNCTION)
    return tensors, keywords


def _dtype(tensors: list[torch.Tensor | None], asked: Any) -> torch.dtype:
    """Return a dtype of any library as torch's."""
    if isinstance(asked, torch.dtype):
        return asked
    a, b = (((1,) * x.ndim, name_of(x.dtype)) for x in tensors[:2] if x is not None)
    dtype: torch.dtype = getattr(torch, _core.abstract_matmul(a, b, asked, library="torch")["dtype"])
    return dtype


def _needs_grad(tensors: list[torch.Tensor | None]) -> str | None:
    """Return the name of the first operand that requires grad, where torch records it."""
    if not torch.is_grad_enabled():
        return None
    names = ("a", "b", *_TENSORS)
    return next((name for name, x in zip(names, tensors, strict=True) if x is not None and x.requires_grad), None)


def _refuse_written(tensors: list[torch.Tensor | None], out: Any, aux: Any) -> None:
    refuse_written(_FUNCTION, _needs_grad(tensors), out=out, aux=aux)


def _refuse_stream(tensors: list[torch.Tensor | None], keywords: dict[str, Any]) -> None:
    if "stream" in keywords and (name := _needs_grad(tensors)):
        raise ValueError(
            f"{_FUNCTION}: stream is given, and {name} requires grad, whose gradient torch computes on the stream that "
            "was current; accepted: None (make the stream current, with torch.cuda.stream)"
        )


# ---- the product itself, and its record ----


def multiply_below(options: dict[str, Any], a: Any, b: Any, *more: torch.Tensor | None) -> torch.Tensor:
    """Compute a product of exact tensors, without a record of it."""
    given = options
    if options or any(x is not None for x in more):
        given = {_SCALES.get(name, name): x for name, x in options.items() if x is not None}
        given.update((name, x) for name, x in zip(_TENSORS, more, strict=False) if x is not None)
    result: torch.Tensor = _core.below_autograd("matmul", given, a, b)
    return result


def multiply_below_with_aux(
    options: dict[str, Any], a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a product with an epilogue, and what the epilogue was given."""
    sides = ((tuple(x.shape), name_of(x.dtype)) for x in (a, b))
    answer = _core.abstract_matmul(*sides, options.get("dtype"), library="torch")
    aux = torch.empty(answer["shape"], dtype=getattr(torch, answer["dtype"]), device=a.device)
    return multiply_below({**options, "aux": aux}, a, b, *more), aux


class Product(_Level):  # type: ignore[misc]
    """A product that autograd knows: of exact tensors, or at one level of a transform.

    `apply(multiply, options, a, b, c, bias, scale_a, scale_b)`; where `multiply(options, a, b, ...)` gives the
    epilogue's input, too, that is a second result, for the derivative of the derivative goes through it.
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
        kept = None
        if epilogue := options.get("epilogue"):
            kept = results[keeps_input(epilogue)] if type(results) is tuple else results
        needed = ctx.needs_input_grad
        ctx.save_for_backward(a if needed[3] else None, b if needed[2] else None, kept)
        if getattr(forward_ad, "_current_level", 0) >= 0:
            ctx.save_for_forward(a, b, kept)
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.facts = [None if x is None else Facts(x.shape, x.dtype) for x in (a, b, *more[:2])]
        ctx.is_pair = type(results) is tuple
        ctx.shape = (results[0] if ctx.is_pair else results).shape
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
        products = products_recorded if watches(grad) else products_below
        found = gradients(products, grad, (a, b), ctx.facts, ctx.needs_input_grad[2:6], ctx.options)
        return None, None, *found, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """Return the tangents of the results."""
        a, b, kept = ctx.saved_tensors
        before = tangent((a, b), tangents[2:6], ctx.shape, ctx.options)
        after = before if kept is None else before_epilogue(before, ctx.options["epilogue"], kept)
        return (after, before) if ctx.is_pair else after
