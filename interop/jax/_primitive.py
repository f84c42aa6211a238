"""What all primitives share: their calls on CUDA, and how JAX runs one by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.ffi

from interop import _core
from interop._core import CudaError
from interop._libraries.jax import check_special

__all__ = ["CALL_TARGET", "disabled_checks", "require_target", "run_primitive"]

_targets = _core.build_info()["jax_ffi"]
for _name, _handler in _targets.items():
    jax.ffi.register_ffi_target(_name, _handler, platform="CUDA", api_version=1)

#: Of kernels and C functions of users: by platform, by name, the handlers by XLA's stage.
_function_targets: dict[str, dict[str, Any]] = _core.build_info()["jax_functions"]
for _platform, _of_platform in _function_targets.items():
    for _name, _stages in _of_platform.items():
        jax.ffi.register_ffi_target(_name, _stages, platform=_platform, api_version=1)

#: What calls functions of Python's, by platform. Its programs are no others' to load: `disabled_checks` has it not.
CALL_TARGET = "interop_call"
_call_targets: dict[str, Any] = _core.build_info()["jax_call"]
for _platform, _handler in _call_targets.items():
    jax.ffi.register_ffi_target(CALL_TARGET, _handler, platform=_platform, api_version=1)


def disabled_checks() -> list[Any]:
    """Return what `jax.export` must not check of this package's custom calls, for its `disabled_checks`.

    Returns
    -------
    list of jax.export.DisabledSafetyCheck
        One for each kind of call. A build without kernels for JAX makes none, and has none.

    Examples
    --------
    >>> import jax, interop.jax
    >>> f = jax.jit(lambda a: interop.matmul(a, a))
    >>> a = jax.ShapeDtypeStruct((2, 2), "float32")
    >>> exported = jax.export.export(f, disabled_checks=interop.jax.disabled_checks())(a)
    """
    names = dict.fromkeys([*_targets, *(name for targets in _function_targets.values() for name in targets)])
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def require_target(function: str, target: str, platform: str = "CUDA") -> None:
    """Raise if this build has no handler of that name."""
    if target == CALL_TARGET and platform in _call_targets:
        return
    if platform == "CUDA" and target not in _targets and target not in _function_targets.get("CUDA", ()):
        raise CudaError(
            f"{function}: this build of interop has no CUDA kernels for JAX: it was built without CUDA or without "
            "XLA's headers (jaxlib==0.8.0); `interop info` says which"
        )
    if platform == "cpu" and target not in _function_targets.get("cpu", ()):
        raise RuntimeError(
            f"{function}: this build of interop has no handlers for JAX: it was built without XLA's headers "
            "(jaxlib==0.8.0); accepted: the call outside jax.jit, or another build"
        )


@functools.lru_cache(maxsize=1024)
def _apart(compiled: Any) -> Callable[..., jax.Array]:
    """Compile the same again: JAX refuses a function that runs itself, as it would where it looks for a NaN in it."""
    alone: Callable[..., jax.Array] = jax.jit(lambda *operands: compiled.__wrapped__(*operands))
    return alone


def run_primitive(function: str, compiled: Callable[..., Any], *operands: jax.Array) -> Any:
    """Run one primitive by itself, as JAX does under `jax.disable_jit`, and to find which operation made a NaN."""
    # Each would have the compiled function call the primitive, and that this, without an end.
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        result = _apart(compiled)(*operands)
    for x in jax.tree.leaves(result):
        check_special(function, x)
    return result
