"""`torch.ops.interop.matmul`: what torch's dispatcher, its transforms and its compiler know a product by."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from interop.torch._matmul_batching import batched
from interop.torch._matmul_derivatives import check_differentiable, keeps_input
from interop.torch._matmul_function import (
    TERMS,
    apply_product,
    ask,
    multiply_below,
    multiply_below_with_aux,
    refuse_stream,
)
from interop.torch._sharding import know_distributed
from interop.torch._tensors import exact, has_tangent, in_transform, modes, next_level, single_level

__all__: list[str] = []  # what is imported for its effect

_FUNCTION = "interop.matmul"
_ARGUMENTS = (
    "(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, "
    "*, Scalar? alpha=None, Scalar? beta=None, Scalar? factor_a=None, Scalar? factor_b=None, ScalarType? dtype=None, "
    "str? epilogue=None, str? precision=None, str? backend=None, bool? autotune=None, int? stream=None, "
    "str? execution=None)"
)

# Tensors stand by position: vmap and autograd take no others.
_library = torch.library.Library("interop", "FRAGMENT")
_library.define(f"matmul{_ARGUMENTS} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(f"matmul_with_aux{_ARGUMENTS} -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
_matmul = torch.ops.interop.matmul.default
_matmul_with_aux = torch.ops.interop.matmul_with_aux.default


def _filled(given: Sequence[Any]) -> list[Any]:
    """Return what there is of all six tensors: torch leaves out those at the end that are None."""
    return [*given, *(None,) * (6 - len(given))]


# ---- memory ----


def _kernel(*tensors: Any, **options: Any) -> torch.Tensor:
    return multiply_below(options, *(x if type(x) is torch.Tensor else exact(x) for x in tensors))


def _kernel_with_aux(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return multiply_below_with_aux(options, *map(exact, tensors))


for _key in ("CPU", "CUDA"):
    _library.impl("matmul", _kernel, _key)
    _library.impl("matmul_with_aux", _kernel_with_aux, _key)
for _key in ("Conjugate", "Negative"):  # views that the kernels read as they are
    _library.impl("matmul", torch.library.fallthrough_kernel, _key)
    _library.impl("matmul_with_aux", torch.library.fallthrough_kernel, _key)


# ---- no memory ----


def _result(tensors: Sequence[Any], options: dict[str, Any]) -> tuple[Sequence[Any], torch.dtype]:
    """Return the shape and dtype of a product."""
    a, *others = tensors
    for name, x in zip(("b", *TERMS), others, strict=True):
        if x is not None and x.device != a.device:
            raise ValueError(
                f"{_FUNCTION}: a is on {a.device} and {name} is on {x.device}; accepted: all arrays on one device"
            )
    if all(type(size) is int for x in tensors if x is not None for size in x.shape):
        answer = ask(tensors, options, lambda x: x.shape)
        return answer["shape"], getattr(torch, answer["dtype"])
    answer = ask(tensors, options)
    return _symbolic_shape(tensors, options), getattr(torch, answer["dtype"])


def _symbolic_shape(tensors: Sequence[Any], options: dict[str, Any]) -> Sequence[Any]:
    a, b, c, bias = tensors[:4]

    def message() -> str:
        try:
            ask(tensors, options, lambda x: [int(size) for size in x.shape])
        except ValueError as error:
            return str(error)
        return f"{_FUNCTION}: the shapes do not fit"

    torch._check_value(a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0], message)
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.ndim > 1 else ()
    try:
        shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns)
        for x in (c, bias):
            if x is not None:
                torch._check_value(x.ndim <= len(shape), message)
                torch.broadcast_shapes(x.shape, shape)
    except RuntimeError as error:
        raise ValueError(message()) from error
    return shape


def _fake(*tensors: Any, **options: Any) -> torch.Tensor:
    if "torch._inductor.codegen.custom_extern_kernel_codegen" in sys.modules:  # Inductor is about to write the call
        with contextlib.suppress(ImportError):  # another torch may have other parts: then the call is the operator's
            from interop.torch import _inductor  # noqa: F401 - for its effect
    shape, dtype = _result(_filled(tensors), options)
    return tensors[0].new_empty(shape, dtype=dtype)


def _fake_with_aux(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(*tensors, **options), _fake(*tensors, **options)


torch.library.register_fake("interop::matmul", _fake, lib=_library)
torch.library.register_fake("interop::matmul_with_aux", _fake_with_aux, lib=_library)


# ---- derivatives ----


def _autograd_of(operator: Any, with_aux: bool) -> Callable[..., Any]:
    def autograd(keyset: Any, *tensors: Any, **options: Any) -> Any:
        know_distributed(tensors)
        rest = keyset & torch._C._after_autograd_keyset
        records = torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
        # A mode would see that tangents are asked for.
        if not records and not in_transform() and not modes() and not any(map(has_tangent, tensors)):
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(rest, *tensors, **options)
        if records:
            check_differentiable(tensors)
            if options.get("stream") is not None:
                refuse_stream(tensors)
        both = with_aux or keeps_input(options.get("epilogue"))
        below = _matmul_with_aux if both else _matmul

        def multiply(options: dict[str, Any], *tensors: Any) -> Any:
            with next_level():
                return below.redispatch(rest, *tensors, **options)

        with single_level():
            results = apply_product(multiply, options, *_filled(tensors))
        return results[0] if both and not with_aux else results

    return autograd


_library.impl("matmul", _autograd_of(_matmul, False), "Autograd", with_keyset=True)
_library.impl("matmul_with_aux", _autograd_of(_matmul_with_aux, True), "Autograd", with_keyset=True)


# ---- batches, and costs ----


def _vmap_of(operator: Any) -> Callable[..., Any]:
    def vmap(info: Any, dims: Sequence[int | None], *tensors: Any, **options: Any) -> Any:
        results = batched(operator, info.batch_size, _filled(dims), _filled(tensors), options)
        return results, (0, 0) if isinstance(results, tuple) else 0

    return vmap


torch.library.register_vmap("interop::matmul", _vmap_of(_matmul), lib=_library)
torch.library.register_vmap("interop::matmul_with_aux", _vmap_of(_matmul_with_aux), lib=_library)


@register_flop_formula([torch.ops.interop.matmul, torch.ops.interop.matmul_with_aux], get_raw=True)  # type: ignore[untyped-decorator]
def _flops(a: torch.Tensor, *_: Any, out_val: Any, **__: Any) -> int:
    """Count two for each pair of numbers that is multiplied, as torch does."""
    result = out_val[0] if isinstance(out_val, tuple) else out_val
    return 2 * int(result.numel()) * int(a.shape[-1])
