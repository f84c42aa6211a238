"""How a call is cut over several devices: which axes of a mesh may cut which dimension, and what is added up."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import jax.sharding
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir

from interop._libraries.jax import keeping
from interop._operations.finish import finish_dtype
from interop._operations.promotion import numpy_dtype
from interop.jax._placement import device_count, varying_axes

__all__ = [
    "axes_of",
    "cuts_of",
    "is_local",
    "know_devices",
    "partitioned",
    "refuse_part_of_mesh",
    "sharding_of",
    "vary_alike",
    "with_types",
]

_PartitionSpec: Any = jax.sharding.PartitionSpec
_Spec = tuple[tuple[str, ...], ...]  # the axes of the mesh that cut each dimension


# ---- shard_map ----


def vary_alike(*operands: Any) -> tuple[Any, ...]:
    """Make all operands vary over every axis of a `jax.shard_map` over which one does."""
    axes = [varying_axes(jax.typeof(x)) for x in operands]
    union = frozenset().union(*axes)
    return tuple(_cast(x, union - own) if union - own else x for x, own in zip(operands, axes, strict=True))


def _cast(x: Any, axes: frozenset[str]) -> Any:
    lax: Any = jax.lax
    if hasattr(lax, "pcast"):
        return lax.pcast(x, tuple(axes), to="varying")
    return lax.pvary(x, tuple(axes))  # JAX 0.8


# ---- jit over several devices ----


def know_devices(primitive: Any) -> None:
    """Have JAX say to the lowering of a primitive which devices it is for, as that of `custom_partitioning` needs."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as primitives  # there is no public way
    except ImportError:
        return  # `is_local` raises where it is needed
    primitives.add(primitive)


def is_local(function: str, ctx: mlir.LoweringRuleContext) -> bool:
    """Is a program for one device, or inside a `jax.shard_map` over all axes of its mesh?

    Raises NotImplementedError where it is inside one over some of them, and where the program is exported.
    """
    if device_count(ctx) == 1:
        return True
    context: Any = ctx.module_context.axis_context
    if manual := getattr(context, "manual_axes", ()):
        refuse_part_of_mesh(function, context.mesh, manual)
    if getattr(context, "device_assignment", True) is None:
        raise NotImplementedError(
            f"{function}: JAX {jax.__version__} does not say for which devices a program is, so the call cannot be "
            "cut; accepted: the call inside jax.shard_map"
        )
    if ctx.module_context.lowering_parameters.for_export:
        raise NotImplementedError(
            f"{function}: a program over several devices cannot be exported where JAX cuts the call: the rule for "
            "that is Python; accepted: the call inside jax.shard_map"
        )
    return False


def refuse_part_of_mesh(function: str, mesh: Any, manual: Any) -> NoReturn:
    """Raise for a call inside a `jax.shard_map` over these axes of a mesh that has others."""
    rest = [axis for axis in mesh.axis_names if axis not in manual]
    raise NotImplementedError(
        f"{function}: inside a jax.shard_map over {', '.join(manual)} alone, of a mesh that has {', '.join(rest)}, "
        "too; accepted: a jax.shard_map over all axes, or none"
    )


def cuts_of(
    mesh: Any, sizes: Mapping[str, int], whole: Collection[str], *given: tuple[tuple[str, ...], Any]
) -> dict[str, tuple[str, ...]]:
    """Return the axes of a mesh that cut each index: those given first, each once, where they divide its size.

    `given` are indices of arrays, each with the array's sharding; those that are `whole` are not cut.
    """
    cuts: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for indices, sharding in given:
        for index, axes in zip(indices, axes_of(sharding, len(indices)), strict=True):
            if not axes or index in cuts or index in whole or used & set(axes):
                continue
            # XLA fills a block that is not whole with anything.
            if sizes[index] % math.prod(mesh.shape[axis] for axis in axes) == 0:
                cuts[index] = axes
                used.update(axes)
    return cuts


def sharding_of(mesh: Any, indices: tuple[str, ...], cuts: Mapping[str, tuple[str, ...]]) -> Any:
    """Return the sharding of an array with those indices."""
    return jax.sharding.NamedSharding(mesh, _PartitionSpec(*(cuts.get(index) or None for index in indices)))


def axes_of(sharding: Any, ndim: int) -> _Spec:
    """Return the axes of a mesh that cut each dimension of an array with this sharding."""
    if not isinstance(sharding, jax.sharding.NamedSharding):  # of JAX's older kinds, which name no axes
        return ((),) * ndim
    spec: list[Any] = [*sharding.spec, *(None,) * (ndim - len(sharding.spec))]
    return tuple(() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in spec)


@functools.lru_cache(maxsize=1024)
def partitioned(
    multiply: Callable[..., Any],
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    shape: tuple[int, ...],
    params: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:
    """Return the product of arrays of those shapes, with the rule by which XLA cuts it."""
    product = _Product(multiply, a_shape, b_shape, shape, dict(params))
    call = custom_partitioning(product.whole)
    call.def_partition(
        partition=product.partition,
        infer_sharding_from_operands=product.infer,
        sharding_rule=product.rule,
        need_replication_factors=product.replicated,
        reduction_factors=("k",),
    )
    return call


class _Product:
    """One product: its indices, and how they are cut."""

    def __init__(
        self,
        multiply: Callable[..., Any],
        a_shape: tuple[int, ...],
        b_shape: tuple[int, ...],
        shape: tuple[int, ...],
        params: dict[str, Any],
    ) -> None:
        self._multiply, self._params = multiply, params
        stacks = len(shape) - 2
        batch = [f"b{i}" for i in range(stacks)]
        self.replicated: tuple[str, ...] = ()  # the dimensions of length 1 that are broadcast

        def indices(name: str, own: tuple[int, ...], matrix: tuple[str, str], transposed: bool) -> tuple[str, ...]:
            missing = len(shape) - len(own)
            found = []
            for i, size in enumerate(own[:-2]):
                if size == shape[missing + i]:
                    found.append(batch[missing + i])
                else:
                    found.append(f"{name}{i}")
                    self.replicated += (found[-1],)
            return (*found, *(reversed(matrix) if transposed else matrix))

        self._a = indices("x", a_shape, ("m", "k"), params["transpose_a"])
        self._b = indices("y", b_shape, ("k", "n"), params["transpose_b"])
        self._result = (*batch, "m", "n")
        self._sizes = {**dict(zip(self._a, a_shape, strict=True)), **dict(zip(self._b, b_shape, strict=True))}
        self.rule = f"{' '.join(self._a)}, {' '.join(self._b)} -> {' '.join(self._result)}"

    def whole(self, a: Any, b: Any) -> Any:
        return self._multiply(a, b, **self._params)

    def _cuts(self, mesh: Any, *given: tuple[tuple[str, ...], Any]) -> dict[str, tuple[str, ...]]:
        return cuts_of(mesh, self._sizes, self.replicated, *given)

    def infer(self, mesh: Any, arguments: Any, result: Any) -> Any:
        a, b = (x.sharding for x in arguments)
        return sharding_of(mesh, self._result, self._cuts(mesh, (self._a, a), (self._b, b)))

    def partition(self, mesh: Any, arguments: Any, result: Any) -> Any:
        a, b = (x.sharding for x in arguments)
        cuts = self._cuts(mesh, (self._result, result.sharding), (self._a, a), (self._b, b))
        shardings = sharding_of(mesh, self._a, cuts), sharding_of(mesh, self._b, cuts)
        call = self._sum_over(cuts["k"]) if "k" in cuts else self.whole
        return mesh, call, sharding_of(mesh, self._result, cuts), shardings

    def _sum_over(self, axes: tuple[str, ...]) -> Callable[[Any, Any], Any]:
        """Return the product of blocks, which is added up over those axes: in the dtype of sums, and rounded once."""
        dtype = numpy_dtype(self._params["dtype"])
        total = finish_dtype(dtype)

        def call(a: Any, b: Any) -> Any:
            with keeping(dtype):
                part = self._multiply(a, b, **{**self._params, "dtype": total.name})
                if dtype.kind == "b":
                    return jax.lax.psum(part.astype(jnp.int32), axes) != 0
                return jax.lax.psum(part, axes).astype(dtype)

        return call


# ---- meshes whose types say how an array is cut ----


def with_types(function: str, call: Callable[..., Any], a: Any, b: Any, *rest: Any) -> Any:
    """Compute a product of arrays whose types may say how they are cut.

    JAX cuts inside, and the type of the result says what follows from those of the operands. Raises ValueError where
    one axis would cut two dimensions of the result.
    """
    meshes = [mesh for x in (a, b, *rest) if (mesh := jax.typeof(x).sharding.mesh).explicit_axes]
    if not meshes:
        return call(a, b, *rest)
    place = jax.sharding.NamedSharding(meshes[0], _PartitionSpec(*_result_spec(function, a, b)))
    auto: Any = jax.sharding.auto_axes
    return auto(call, axes=meshes[0].explicit_axes, out_sharding=place)(a, b, *rest)


def _result_spec(function: str, a: Any, b: Any) -> list[tuple[str, ...] | None]:
    *a_stacks, rows = _matrix_cuts(a, -2)
    *b_stacks, columns = _matrix_cuts(b, -1)
    stacks: list[tuple[str, ...]] = []
    for place in range(-max(len(a_stacks), len(b_stacks)), 0):
        cuts = [side[place] for side in (a_stacks, b_stacks) if -place <= len(side)]
        stacks.append(next((axes for axes in cuts if axes), ()))
    found = [*stacks, *([rows] if a.ndim > 1 else []), *([columns] if b.ndim > 1 else [])]
    used: set[str] = set()
    for axes in found:
        if used & set(axes):
            raise ValueError(
                f"{function}: a is {jax.typeof(a)} and b is {jax.typeof(b)}: the mesh's axis "
                f"{min(used & set(axes))!r} would cut two dimensions of the result; accepted: another sharding of one, "
                "by jax.sharding.reshard"
            )
        used.update(axes)
    return [axes or None for axes in found]


def _matrix_cuts(x: Any, kept: int) -> list[tuple[str, ...]]:
    """Return the axes that cut the stacks, and the dimension that the result has, too."""
    axes = axes_of(jax.typeof(x).sharding, x.ndim)
    return [*axes[:-2], axes[kept] if x.ndim > 1 else ()]
