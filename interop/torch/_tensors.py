"""What torch's operators share: operands as tensors, dtypes by name, calls below autograd, sums to a shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from interop import _core
from interop._libraries import known

__all__ = [
    "EXACT",
    "as_tensor",
    "by_vmap",
    "exact",
    "fill",
    "has_tangent",
    "in_transform",
    "is_batched",
    "modes",
    "name_of",
    "needing_grad",
    "next_level",
    "number_of",
    "outer_levels",
    "refuse_written",
    "single_level",
    "sum_to",
    "watches",
]

#: Types that are their memory, where torch notes nothing else.
EXACT = (torch.Tensor, torch.nn.Parameter)


def as_tensor(function: str, name: str, x: Any) -> torch.Tensor:
    """Return a tensor as it is, and an array of another library as a tensor of the same memory."""
    if isinstance(x, torch.Tensor):
        return x
    array = _core.asarray(x, function, name=name)
    try:
        tensor: torch.Tensor = known.library("torch").take(torch, array, None)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}: {name} cannot be a tensor: {error}") from error
    return tensor


def exact(x: torch.Tensor | None) -> torch.Tensor | None:
    """Return the tensor itself of a subclass that has memory: torch has already asked the subclass what it means."""
    if x is None or type(x) in EXACT:
        return x
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


def watches(x: torch.Tensor) -> bool:
    """Would a gradient be lost if the operations on a tensor, an exact one, were not torch's own?

    So it is where torch records operations, and under transforms, modes and forward-mode differentiation.
    """
    return (
        torch.compiler.is_compiling()  # first: what traces this need not know the others
        or torch.is_grad_enabled()
        or type(x) not in EXACT
        or in_transform()
        or is_batched(x)
        or modes() > 0
        or getattr(forward_ad, "_current_level", 0) >= 0
    )


#: Is a transform of torch.func active?
in_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
#: Is it a gradient of `torch.autograd.grad(is_grads_batched=True)`? That is under no transform that torch tells of.
is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
#: How many dispatch modes are active?
modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def by_vmap(function: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
    """Return what a function of tensors does, tensors or None, where some are those of `is_grads_batched=True`.

    That is torch's older vmap, to which no operator is known. The function is mapped by the newer one instead.
    """
    dims = tuple(0 if x is not None and is_batched(x) else None for x in tensors)
    level = torch._C._vmapmode_increment_nesting() - 1  # there is no other way to ask
    torch._C._vmapmode_decrement_nesting()
    whole = [
        x if dim is None else torch._remove_batch_dim(x, level, 1, 0) for x, dim in zip(tensors, dims, strict=True)
    ]
    places: list[int] = []
    count = 0

    def mapped(*tensors: Any) -> tuple[Any, ...]:
        nonlocal count
        results = function(*tensors)
        count = len(results)
        places[:] = [place for place, x in enumerate(results) if x is not None]
        return tuple(results[place] for place in places)

    made = torch.func.vmap(mapped, dims)(*whole)
    results: list[Any] = [None] * count
    for place, x in zip(places, made, strict=True):
        results[place] = torch._add_batch_dim(x, 0, level)
    return results


@contextlib.contextmanager
def single_level() -> Iterator[None]:
    """Allow a Function at one level of a transform: torch's own are for all of its levels."""
    before = torch._C._functorch.get_single_level_autograd_function_allowed()
    torch._C._functorch.set_single_level_autograd_function_allowed(True)
    try:
        yield
    finally:
        torch._C._functorch.set_single_level_autograd_function_allowed(before)


@contextlib.contextmanager
def next_level() -> Iterator[None]:
    """Call what is below one level of autograd: nothing is recorded twice, and outer transforms record, too.

    A Function turns both modes off for all levels. Derivatives of derivatives would be wrong, and nobody told.
    """
    if not in_transform():
        with torch._C._AutoDispatchBelowAutograd():
            yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


@contextlib.contextmanager
def outer_levels() -> Iterator[None]:
    """Compute a tangent, whose own tangents are of outer transforms."""
    with forward_ad._set_fwd_grad_enabled(True) if in_transform() else contextlib.nullcontext():
        yield


def has_tangent(x: torch.Tensor | None) -> bool:
    """Has a tensor a tangent? Python's count of levels does not say: a compiled graph enters them past it."""
    return x is not None and torch._unpack_dual(x, 0)[1] is not None


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def number_of(x: Any) -> Any:
    """Return a scalar of NumPy as one of Python, and any other as it is."""
    return x.item() if isinstance(x, np.generic) else x


def sum_to(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Sum over the dimensions that broadcasting `shape` to the tensor's has added or repeated."""
    return x if x.shape == torch.Size(shape) else x.sum_to_size(shape)


def needing_grad(operands: dict[str, Any]) -> str | None:
    """Return the name of the first tensor of which torch records what is computed."""
    if not torch.is_grad_enabled():
        return None
    return next((name for name, x in operands.items() if isinstance(x, torch.Tensor) and x.requires_grad), None)


def refuse_written(function: str, needs_grad: str | None, **written: object) -> None:
    """Raise for arrays to write to in a call whose operand `needs_grad` requires grad; None: no operand does."""
    for name, x in written.items():
        if needs_grad is not None and x is not None:
            raise RuntimeError(
                f"{function}: {name} is given, and {needs_grad} requires grad: what is written to has no derivative; "
                f"accepted: None, or a call under torch.no_grad()"
            )


def fill(function: str, name: str, written: Any, result: torch.Tensor) -> None:
    """Write a result to an array of the caller's, of the result's shape and dtype."""
    if not isinstance(written, torch.Tensor):
        written = as_tensor(function, name, written)
    if written.shape != result.shape:
        raise ValueError(
            f"{function}: {name} has shape {tuple(written.shape)}; accepted: the result's shape, {tuple(result.shape)}"
        )
    if written.dtype != result.dtype:
        raise TypeError(
            f"{function}: {name} is {name_of(written.dtype)}; accepted: the result's dtype, {name_of(result.dtype)}"
        )
    written.copy_(result)
