"""Operators of JAX arrays that are cut over several devices: their values, and what is sent between the devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

import interop
from interop import _core

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.sharding import AxisType, NamedSharding  # noqa: E402 - after the check that there is JAX
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)  # before JAX starts: it has one otherwise

pytestmark = [
    pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX"),
    pytest.mark.usefixtures("host_jax"),
]
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


@pytest.fixture
def ops(operators_at):
    return operators_at("cpu")


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(request):
    kind = getattr(AxisType, request.param)
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind), devices=jax.devices("cpu")[:8])


def put(mesh, spec, *shape, dtype="float64"):
    x = np.random.default_rng(sum(shape)).standard_normal(shape) * 4
    return jax.device_put(x.astype(dtype), NamedSharding(mesh, spec))


def sent(f, *operands):
    """Count what the compiled program sends between the devices."""
    text = jax.jit(f).lower(*operands).compile().as_text()
    assert "callback" not in text
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in _COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def axes_of(x):
    spec = [*x.sharding.spec, *(None,) * (x.ndim - len(x.sharding.spec))]
    return tuple(axes[0] if isinstance(axes, tuple) and len(axes) == 1 else axes for axes in spec)


def assert_close(x, expected):
    assert np.allclose(np.asarray(x), expected, rtol=1e-9, atol=1e-9)


def softmax(x):
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


# ---- cuts ----


@pytest.mark.parametrize(
    ("x_cut", "cut", "collectives"),
    [
        (P("x", None, None), ("x", None, None), {}),
        (P("x", "y", None), ("x", "y", None), {}),
        (P(("x", "y"), None, None), (("x", "y"), None, None), {}),
        (P(None, None, None), (None, None, None), {}),
        (P(None, "x", "y"), (None, "x", None), {"all-gather": 1}),  # what is no leading axis is whole
    ],
)
def test_leading_axes_are_cut_and_all_others_whole(ops, mesh, x_cut, cut, collectives):
    x = put(mesh, x_cut, 8, 4, 8)
    assert sent(ops.softmax, x) == collectives
    y = jax.jit(ops.softmax)(x)
    assert axes_of(y) == cut
    assert_close(y, softmax(np.asarray(x)))


def test_letters_of_cut_are_cut_and_others_are_not(ops, mesh):
    x, s, b = put(mesh, P("x", "y"), 8, 8), put(mesh, P("y"), 8), put(mesh, P(None), 8)
    assert "all-gather" not in sent(ops.layer, x, s, b)
    y = jax.jit(ops.layer)(x, s, b)
    assert axes_of(y) == ("x", "y")
    assert_close(y, np.maximum(np.asarray(x) * np.asarray(s) + np.asarray(b), 0))


def test_a_parameter_of_a_kernel_has_the_size_of_the_part(mesh):
    op = interop.operator(
        "tests_jax::of_part", interop.elementwise("x + rows"), "x[m] -> [m]", sizes={"rows": lambda m: m}, cut="m"
    )
    x = put(mesh, P("x"), 8)
    assert sent(op, x) == {}
    assert_close(jax.jit(op)(x), np.asarray(x) + 4)


@pytest.mark.parametrize(
    ("x_cut", "w_cut", "cut", "collectives"),
    [
        (P("x", None), P(None, "y"), ("x", "y"), {}),
        (P(None, "x"), P("x", None), (None, None), {"all-reduce": 1}),
        (P("y", "x"), P("x", None), ("y", None), {"all-reduce": 1}),
        (P(None, ("x", "y")), P(("x", "y"), None), (None, None), {"all-reduce": 1}),
    ],
)
def test_sums_are_cut_and_added_up(ops, mesh, x_cut, w_cut, cut, collectives):
    x, w = put(mesh, x_cut, 8, 16), put(mesh, w_cut, 16, 8)
    assert sent(ops.product, x, w) == collectives
    y = jax.jit(ops.product)(x, w)
    assert axes_of(y) == cut
    assert_close(y, np.asarray(x) @ np.asarray(w))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "int8"])
def test_parts_are_added_up_in_the_dtype_of_sums(mesh, dtype):
    op = interop.operator("tests_jax_sharding::sums", lambda x: x.sum(-1).astype(x.dtype), "x[k] -> []; sum k")
    host = np.ones(4096, "float32") / 3 if dtype != "bool" else np.arange(4096) == 7
    x = jax.device_put(jnp.asarray(host).astype(dtype), NamedSharding(mesh, P(("x", "y"))))
    y = jax.jit(op)(x)
    assert y.dtype == x.dtype
    if dtype == "bool":
        assert bool(y)
    elif dtype != "int8":
        assert abs(float(y) - np.asarray(x).astype("float64").sum()) <= 2 * float(jnp.finfo(dtype).eps) * 4096 / 3


def test_an_axis_that_does_not_divide_is_not_cut(ops):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices("cpu")[:8])
    x = jax.device_put(np.random.default_rng(0).standard_normal((6, 5)), NamedSharding(mesh, P("x")))

    def f(x):
        return ops.softmax(jax.lax.with_sharding_constraint(x[:3], NamedSharding(mesh, P())))

    assert_close(jax.jit(f)(x), softmax(np.asarray(x)[:3]))


# ---- derivatives ----


def test_gradients_are_cut_and_those_of_what_is_whole_added_up(ops, mesh):
    x, s = put(mesh, P("x", "y", None), 4, 8, 5), put(mesh, P(None), 5)

    def grads(x, s):
        return jax.grad(lambda x, s: (ops.row_dot(x, s) ** 2).sum(), argnums=(0, 1))(x, s)

    by_x, by_s = jax.jit(grads)(x, s)
    y = np.asarray(x) @ np.asarray(s)
    assert_close(by_x, 2 * y[..., None] * np.asarray(s))
    assert_close(by_s, 2 * np.einsum("ab,abc->c", y, np.asarray(x)))
    assert axes_of(by_x) == ("x", "y", None)
    assert set(sent(grads, x, s)) == {"all-reduce"}


def test_tangents_are_cut(ops, mesh):
    x, s = put(mesh, P("x", None), 8, 5), put(mesh, P(None), 5)
    _, dot = jax.jit(lambda x, s: jax.jvp(ops.row_dot, (x, s), (x, s)))(x, s)
    assert_close(dot, 2 * np.asarray(x) @ np.asarray(s))
    assert axes_of(dot) == ("x",)


# ---- shard_map, vmap, loops ----


@pytest.mark.parametrize("checks", [True, False])
def test_inside_shard_map_over_all_axes(ops, checks):
    mesh = jax.make_mesh((8,), ("d",), devices=jax.devices("cpu")[:8])
    x, s = put(mesh, P("d"), 16, 5), put(mesh, P(), 5)

    def local(x, s):
        return ops.row_dot(ops.softmax(x), s)

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=checks)
    expected = softmax(np.asarray(x)) @ np.asarray(s)
    assert_close(f(x, s), expected)
    assert_close(jax.jit(f)(x, s), expected)
    by_x, by_s = jax.jit(jax.grad(lambda x, s: (f(x, s) ** 2).sum(), argnums=(0, 1)))(x, s)
    reference = jax.grad(lambda x, s: ((jax.nn.softmax(x) @ s) ** 2).sum(), argnums=(0, 1))
    wanted_x, wanted_s = reference(*(jnp.asarray(np.asarray(y)) for y in (x, s)))
    assert_close(by_x, np.asarray(wanted_x))
    assert_close(by_s, np.asarray(wanted_s))


def test_mapped_and_in_loops(ops, mesh):
    x, s = put(mesh, P("x", None, None), 4, 8, 5), put(mesh, P(None), 5)
    expected = np.asarray(x) @ np.asarray(s)
    assert_close(jax.jit(jax.vmap(ops.row_dot, in_axes=(0, None)))(x, s), expected)
    _, rows = jax.jit(lambda x: jax.lax.scan(lambda c, row: (c, ops.row_dot(row, s)), 0, jnp.moveaxis(x, 1, 0)))(x)
    assert_close(rows, expected.T)


def test_a_named_axis_of_vmap_cuts_the_mapped_axis(ops):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    x, s = put(mesh, P("d"), 8, 4, 5), put(mesh, P(), 5)
    f = jax.vmap(ops.row_dot, in_axes=(0, None), spmd_axis_name="d")
    assert sent(f, x, s) == {}
    assert_close(jax.jit(f)(x, s), np.asarray(x) @ np.asarray(s))


# ---- what is refused ----


def test_one_axis_that_would_cut_two_dimensions_is_refused(ops):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:8])
    x, w = put(mesh, P("x", None), 8, 16), put(mesh, P(None, "x"), 16, 8)
    message = (
        r"::product: x is f.*, w is f.*: the mesh's axis 'x' would cut two dimensions of the result; accepted: anoth"
    )
    with pytest.raises(ValueError, match=message):
        jax.jit(ops.product)(x, w)


def test_a_shard_map_over_some_axes_is_refused(ops, mesh):
    x = put(mesh, P("x", None), 8, 4)

    def f(x):
        return jax.shard_map(ops.softmax, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)

    with pytest.raises(
        NotImplementedError, match=r"::softmax: inside a jax.shard_map over x alone, of a mesh that has y"
    ):
        jax.jit(f)(x)


def test_an_export_of_a_program_that_jax_cuts_is_refused(ops):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    with pytest.raises(
        NotImplementedError, match=r"::softmax: a program over several devices cannot be exported where"
    ):
        jax.export.export(jax.jit(ops.softmax))(put(mesh, P("d"), 8, 4))
