"""`interop.matmul` on tensors that are more than their memory: with gradients, under transforms, in traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from interop import _core
from interop.torch import _matmul_operator  # noqa: F401 (for its effect: there is an operator)
from interop.torch._matmul_derivatives import check_differentiable, keeps_input
from interop.torch._matmul_function import (
    SYMBOLS,
    TERMS,
    apply_plain_product,
    apply_product,
    ask,
    multiply_below,
    multiply_below_with_aux,
    operand_needing_grad,
    refuse_stream,
)
from interop.torch._sharding import know_distributed
from interop.torch._tensors import EXACT, as_tensor, fill, needing_grad, number_of, refuse_written

__all__ = ["compute", "record"]

_FUNCTION = "interop.matmul"
_NUMBERS = (bool, int, float, complex, *SYMBOLS)
_TYPES: dict[str, Any] = {"alpha": _NUMBERS, "beta": _NUMBERS, "autotune": bool}  # of the operator's keywords
_TYPES |= dict.fromkeys(("epilogue", "precision", "backend", "execution"), str)


def compute(a: Any, b: Any, options: dict[str, Any]) -> torch.Tensor:
    """Compute `interop.matmul(a, b, **options)` by torch's dispatcher, which knows what the tensors are.

    Raises as the public function does.
    """
    tensors, keywords = _arguments(a, b, options)
    _refuse_nested(tensors)
    keywords = _for_operator(tensors, keywords)
    if know_distributed(tensors):
        ask(tensors, keywords, lambda x: x.shape)  # for what it throws: torch would make other errors of it
    out, aux = options.get("out"), options.get("aux")
    if out is None and aux is None:
        result: torch.Tensor = torch.ops.interop.matmul(*tensors, **keywords)
        return result
    _refuse_written(tensors, out, aux)
    if aux is None:
        result = torch.ops.interop.matmul(*tensors, **keywords)
    else:
        if keywords.get("epilogue") is None:
            one = np.ones((1, 1))
            _core.below_autograd("matmul", {"aux": one.copy()}, one, one)  # for what it throws, of any arrays
        result, before = torch.ops.interop.matmul_with_aux(*tensors, **keywords)
        fill(_FUNCTION, "aux", aux, before)
    if out is None:
        return result
    fill(_FUNCTION, "out", out, result)
    return out


def record(a: Any, b: Any, options: dict[str, Any]) -> torch.Tensor:
    """Compute `interop.matmul(a, b, **options)` of exact tensors, and record it: some of them require grad."""
    if not options and type(a) in EXACT and type(b) in EXACT:
        if a.ndim == 2 == b.ndim and a.dtype is b.dtype and a.dtype.itemsize > 1:
            return apply_plain_product(a, b)
        check_differentiable((a, b))
        return apply_product(multiply_below, options, a, b)
    tensors, keywords = _arguments(a, b, options)
    _refuse_written(tensors, options.get("out"), options.get("aux"))
    if "stream" in keywords:
        refuse_stream(tensors)
    check_differentiable(tensors)
    if keeps_input(keywords.get("epilogue")):
        return apply_product(multiply_below_with_aux, keywords, *tensors)[0]
    return apply_product(multiply_below, keywords, *tensors)


def _arguments(a: Any, b: Any, options: dict[str, Any]) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Return the six tensors of a product, and the operator's keywords."""
    tensors: list[torch.Tensor | None] = [as_tensor(_FUNCTION, name, x) for name, x in (("a", a), ("b", b))]
    keywords = {name: x for name, x in options.items() if x is not None and name not in ("out", "aux", *TERMS)}
    for name in TERMS:
        x = number_of(options.get(name))
        if name.startswith("scale") and isinstance(x, bool | int | float):
            keywords[name.replace("scale", "factor")] = x
            x = None
        tensors.append(None if x is None else as_tensor(_FUNCTION, name, x))
    for name in ("alpha", "beta"):
        if name in keywords:
            keywords[name] = number_of(keywords[name])
    if "dtype" in keywords and not isinstance(keywords["dtype"], torch.dtype):
        keywords["dtype"] = getattr(torch, ask(tensors, {"dtype": keywords["dtype"]})["dtype"])
    if "stream" in keywords:
        keywords["stream"] = _core.stream_handle(keywords["stream"], _FUNCTION)
    return tensors, keywords


def _for_operator(tensors: list[torch.Tensor | None], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords as torch's schema has them; it would name neither the argument nor what is accepted."""
    if all(map(_is_in_schema, keywords, keywords.values())):
        return keywords
    ask(tensors, keywords)  # which raises, but for an integer that a float takes
    return {name: x if _is_in_schema(name, x) else float(x) for name, x in keywords.items()}


def _is_in_schema(name: str, x: Any) -> bool:
    if type(x) is int and name in ("alpha", "beta"):
        return -(2**63) <= x < 2**63
    return isinstance(x, _TYPES.get(name, object))


def _refuse_nested(tensors: list[torch.Tensor | None]) -> None:
    for name, x in zip(("a", "b", *TERMS), tensors, strict=True):
        if x is not None and x.is_nested:
            raise TypeError(
                f"{_FUNCTION}: {name} is a nested tensor; accepted: tensors of one shape, such as {name}.values(), "
                f"{name}.to_padded_tensor(0) or each of {name}.unbind()"
            )


def _refuse_written(tensors: list[torch.Tensor | None], out: Any, aux: Any) -> None:
    needs_grad = operand_needing_grad(tensors) or needing_grad({"out": out, "aux": aux})
    refuse_written(_FUNCTION, needs_grad, out=out, aux=aux)
