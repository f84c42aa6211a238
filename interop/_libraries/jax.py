"""JAX."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.base import CPU, CUDA, Library, host_or_gpu, import_into, numpy_dtype, refuse_layout

__all__ = ["LIBRARY", "check_special", "in_own_mode", "is_unaligned", "is_wide", "jax_array", "jax_has_cuda", "keeping"]

_ALIGNMENTS = {CPU: 64, CUDA: 16}  # of what XLA takes


def is_unaligned(array: Array) -> bool:
    """Does the memory begin at an address that XLA does not take?"""
    return 0 not in array.shape and _core.address_of(array) % _ALIGNMENTS[host_or_gpu(array)[0]] != 0


def _take(jax: Any, array: Array, stream: int | None) -> Any:
    if not _is_compact(array):
        remedy = "copy it first, with interop.copy(x)"
        refuse_layout("JAX", "has compact arrays only", array, remedy)
    device = host_or_gpu(array)
    if device[0] == CUDA and is_unaligned(array):  # JAX would take it, and each of its programs refuse it
        remedy = "copy it first, with interop.copy(x)"
        refuse_layout("JAX", f"has device memory at multiples of {_ALIGNMENTS[CUDA]} bytes only", array, remedy)
    # JAX's own stream: it orders its arrays itself.
    export = _core.Export(array, device, to_immutable=True)

    def importer() -> Any:
        with _x64(jax):
            return jax.dlpack.from_dlpack(export, copy=False)

    try:
        return import_into("JAX", array, importer)
    except ValueError as error:
        refuse_layout("JAX", f"cannot share the memory ({error})", array, "let jax.numpy.asarray(x) copy it")


def jax_array(array: Array, is_result: bool) -> Any:
    """Return the JAX array of an `Array`: of a result of a call, or what `jax.numpy.asarray` makes of it.

    That one asks for it, as it does not know the protocols.
    """
    if is_result:
        return _result(importlib.import_module("jax"), array)
    if _core.readable_by(array, CPU) is not None:
        return importlib.import_module("jax.numpy").asarray(array.__array__())
    return _take(importlib.import_module("jax"), array, None)


def _result(jax: Any, array: Array) -> Any:
    with keeping(numpy_dtype(array.dtype)):  # as wide as the caller's operands
        result = jax.dlpack.from_dlpack(array)
        check_special("interop", result)
    return result


def check_special(function: str, result: Any) -> None:
    """Raise FloatingPointError for a value that `jax.debug_nans` or `jax.debug_infs` forbids."""
    jax = sys.modules["jax"]
    looks_for = {"nan": jax.numpy.isnan} if jax.config.jax_debug_nans else {}
    if jax.config.jax_debug_infs:
        looks_for["inf"] = jax.numpy.isinf
    if not looks_for or not jax.numpy.issubdtype(result.dtype, jax.numpy.inexact):
        return
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        for name, is_special in looks_for.items():
            if is_special(result).any():
                raise FloatingPointError(f"{function}: invalid value ({name}) encountered in the result")


def _is_compact(array: Array) -> bool:
    """Do the elements fill their memory without gaps, in some order of the dimensions?"""
    expected = 1
    for step, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size == 0:
            return True
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


# ---- 64-bit dtypes ----


def is_wide(dtype: Any) -> bool:
    """Is it a dtype that JAX's 32-bit mode has not, and would narrow?"""
    return bool(dtype.itemsize >= 8 and dtype != np.complex64)


def keeping(*dtypes: Any) -> Any:
    """Return a context in which JAX narrows none of these dtypes: the user's own mode where it would not."""
    return _x64(sys.modules["jax"]) if any(map(is_wide, dtypes)) else contextlib.nullcontext()


def in_own_mode(*dtypes: Any) -> Any:
    """Return a context not of the user's x64 mode, which would narrow what is wide, or widen what is weakly typed."""
    return sys.modules["jax"].enable_x64(any(map(is_wide, dtypes)))


def _x64(jax: Any) -> Any:
    """Return a context in which JAX narrows nothing, in whichever way this version spells it."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()


# ---- promotion ----


def _promoted(in_float: bool, *operands: Any) -> str:
    jax = sys.modules["jax"]
    dtypes = [numpy_dtype(x[0]) if isinstance(x, tuple) else x for x in operands]
    with keeping(*(dtype for x, dtype in zip(operands, dtypes, strict=True) if isinstance(x, tuple))):
        common = jax.numpy.result_type(*dtypes)
        if in_float:  # which makes float32 of up to 32 bits
            common = jax.eval_shape(jax.numpy.sqrt, jax.ShapeDtypeStruct((), common)).dtype
    return str(common.name)


def _configuration() -> tuple[Any, Any]:
    config = sys.modules["jax"].config
    return config.jax_enable_x64, config.jax_numpy_dtype_promotion


# ---- for `interop info`, demo and bench ----


def _to_device(jax: Any, array: np.ndarray, device: str) -> Any:
    with keeping(array.dtype):
        return jax.device_put(array, jax.devices(device)[0])


def jax_has_cuda(jax: Any) -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


LIBRARY = Library(
    name="jax",
    module="jax",
    owns=lambda jax, x: isinstance(x, jax.Array),
    take=_take,
    keeps_read_only=True,
    install="pip install 'interop-dlpack[jax]', with jax[cuda13] for a GPU",
    to_device=_to_device,
    to_numpy=np.asarray,
    has_cuda=jax_has_cuda,
    stream=lambda jax: "XLA's own",
    promoted=_promoted,
    configuration=_configuration,
)
