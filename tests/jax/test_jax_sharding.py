"""Products of JAX arrays that are cut over several devices: their values, and what is sent between the devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

import interop

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.sharding import AxisType, NamedSharding  # noqa: E402 - after the check that there is JAX
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)  # before JAX starts: it has one otherwise

_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(request):
    devices = jax.devices("cpu")
    assert len(devices) >= 8
    kind = getattr(AxisType, request.param)
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind), devices=devices[:8])


def put(mesh, spec, *shape, dtype="float32"):
    x = np.random.default_rng(sum(shape)).standard_normal(shape)
    x = (x * 4).astype(dtype) if dtype != "bool" else x > 0
    return jax.device_put(x, NamedSharding(mesh, spec))


def sent(f, *operands):
    """Count what the compiled program sends between the devices."""
    text = jax.jit(f).lower(*operands).compile().as_text()
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in _COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def axes_of(x):
    spec = [*x.sharding.spec, *(None,) * (x.ndim - len(x.sharding.spec))]
    return tuple(axes[0] if isinstance(axes, tuple) and len(axes) == 1 else axes for axes in spec)


def host(x):
    return np.asarray(x).astype("float64")


def assert_close(x, expected, rtol=1e-5):
    assert np.allclose(host(x), expected, rtol=rtol, atol=rtol * abs(expected).max(initial=0))


# ---- cuts ----


@pytest.mark.parametrize(
    ("a_cut", "b_cut", "cut", "collectives"),
    [
        (P("x", None), P(None, None), ("x", None), {}),
        (P(None, None), P(None, "x"), (None, "x"), {}),
        (P("x", None), P(None, "y"), ("x", "y"), {}),
        (P(("x", "y"), None), P(None, None), (("x", "y"), None), {}),
        (P(None, "x"), P("x", None), (None, None), {"all-reduce": 1}),
        (P("y", "x"), P("x", None), ("y", None), {"all-reduce": 1}),
        (P(None, ("x", "y")), P(("x", "y"), None), (None, None), {"all-reduce": 1}),
        (P(None, None), P(None, None), (None, None), {}),
    ],
)
def test_cuts_of_rows_and_columns_send_nothing_and_one_of_sums_is_one_reduction(mesh, a_cut, b_cut, cut, collectives):
    a, b = put(mesh, a_cut, 16, 32), put(mesh, b_cut, 32, 8)
    expected = host(a) @ host(b)
    assert sent(interop.matmul, a, b) == collectives
    for call in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        c = call(a, b)
        assert axes_of(c) == cut
        assert_close(c, expected)


def test_stacks_and_vectors_are_cut(mesh):
    a, b = put(mesh, P("x"), 8, 1, 4, 6), put(mesh, P("y"), 4, 6, 8)
    assert sent(interop.matmul, a, b) == {}
    c = interop.matmul(a, b)
    assert axes_of(c) == ("x", "y", None, None)
    assert_close(c, host(a) @ host(b))
    v, w = put(mesh, P("x"), 16), put(mesh, P("x", "y"), 16, 8)
    assert sent(interop.matmul, v, w) == {"all-reduce": 1}
    assert_close(interop.matmul(v, w), host(v) @ host(w))
    assert_close(interop.matmul(v, v), host(v) @ host(v))


def test_terms_are_cut_with_the_product(mesh):
    a, b = put(mesh, P("x"), 8, 16), put(mesh, P(None, "y"), 16, 8)
    c, bias = put(mesh, P("x", "y"), 8, 8), put(mesh, P("y"), 8)

    def layer(a, b, c, bias):
        return interop.matmul(a, b, c=c, bias=bias, alpha=2.0, beta=0.5, epilogue="relu")

    assert sent(layer, a, b, c, bias) == {}
    expected = np.maximum(2 * (host(a) @ host(b)) + 0.5 * host(c) + host(bias), 0)
    assert_close(jax.jit(layer)(a, b, c, bias), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32", "bool", "complex64"])
def test_sums_over_devices_are_of_the_dtype_of_sums(mesh, dtype):
    a, b = put(mesh, P(None, "y"), 4, 64, dtype=dtype), put(mesh, P("y", None), 64, 4, dtype=dtype)
    c = interop.matmul(a, b)
    assert c.dtype == a.dtype
    one = interop.matmul(*(jax.device_put(np.asarray(x), jax.devices("cpu")[0]) for x in (a, b)))
    if dtype in ("bfloat16", "float16"):  # the order of sums in float32 differs, which rounding may show in one bit
        assert abs(host(c) - host(one)).max() <= float(jnp.finfo(dtype).eps) * abs(host(one)).max()
        exact = host(a) @ host(b)
        assert abs(host(c) - exact).max() <= 0.6 * float(jnp.finfo(dtype).eps) * abs(exact).max()
    elif dtype == "complex64":
        assert np.allclose(np.asarray(c), np.asarray(one), rtol=1e-4, atol=1e-4)
    else:
        assert np.array_equal(np.asarray(c), np.asarray(one))


def test_a_dimension_that_the_axes_do_not_divide_is_whole():
    """XLA would fill up the last block with anything, which a sum over blocks would add."""
    from interop.jax._partition import cuts_of

    kind = AxisType.Auto
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind), devices=jax.devices("cpu")[:8])
    whole = NamedSharding(mesh, P())
    sizes = {"m": 6, "k": 7, "n": 9}
    cuts = cuts_of(mesh, sizes, (), (("m", "k"), NamedSharding(mesh, P("x", "y"))), (("k", "n"), whole))
    assert cuts == {"m": ("x",)}
    a = jax.device_put(np.ones((8, 8), "float32"), NamedSharding(mesh, P(None, "y")))
    c = jax.jit(lambda a: interop.matmul(a[:, :7], a[:7]))(a)  # 7 of 8 in four blocks
    assert np.array_equal(np.asarray(c), np.full((8, 8), 7))


def test_an_axis_that_would_cut_twice_is_refused_where_types_say_cuts():
    kind = AxisType.Explicit
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind), devices=jax.devices("cpu")[:8])
    a, b = put(mesh, P("x", None), 8, 16), put(mesh, P(None, "x"), 16, 8)
    for call in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(ValueError, match=r"^interop.matmul: a is float32\[8@x,16\] and b is .*'x' would cut two"):
            call(a, b)


# ---- gradients, and a network ----


def loss(weights, x, matmul):
    hidden = jnp.maximum(matmul(x, weights[0]), 0)
    return (matmul(hidden, weights[1]) ** 2).mean()


def test_the_gradient_of_a_parallel_network_is_two_reductions(mesh):
    weights = put(mesh, P(None, "y"), 32, 64), put(mesh, P("y", None), 64, 32)
    x = put(mesh, P(), 16, 32)

    def gradients(weights, x):
        return jax.grad(loss, argnums=(0, 1))(weights, x, interop.matmul)

    assert sent(gradients, weights, x) == {"all-reduce": 2}
    found = jax.tree.leaves(jax.jit(gradients)(weights, x))
    assert axes_of(found[0]) == (None, "y")
    with jax.default_device(jax.devices("cpu")[0]):  # where nothing is rounded to TF32
        plain = jax.grad(loss, argnums=(0, 1))(tuple(map(np.asarray, weights)), np.asarray(x), jnp.matmul)
    for got, expected in zip(found, jax.tree.leaves(plain), strict=True):
        assert_close(got, host(expected), rtol=1e-4)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_network_trains_to_the_loss_of_jax(devices):
    kind = AxisType.Auto
    cpus = jax.devices("cpu")[:devices]
    mesh = jax.make_mesh((devices,), ("y",), axis_types=(kind,), devices=cpus)
    rng = np.random.default_rng(0)
    x = jax.device_put(rng.standard_normal((16, 32)).astype("float32"), NamedSharding(mesh, P()))
    start = [rng.standard_normal(shape).astype("float32") / 8 for shape in ((32, 64), (64, 32))]
    cuts = P(None, "y"), P("y", None)

    def train(matmul):
        weights = tuple(jax.device_put(w, NamedSharding(mesh, cut)) for w, cut in zip(start, cuts, strict=True))

        @jax.jit
        def step(weights):
            value, slopes = jax.value_and_grad(lambda w: loss(w, x, matmul))(weights)
            return value, jax.tree.map(lambda w, slope: w - 0.05 * slope, weights, slopes)

        values = []
        for _ in range(20):
            value, weights = step(weights)
            values.append(float(value))
        return values

    ours, theirs = train(interop.matmul), train(jnp.matmul)
    assert ours[-1] < 0.9 * ours[0]
    assert np.allclose(ours, theirs, rtol=1e-4)


# ---- shard_map ----


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_inside_shard_map(check_vma):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    a, b = (np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in ((16, 4), (4, 3)))

    def total(a, b):
        return jax.lax.psum((interop.matmul(a, b) ** 2).sum(), "x")

    f = jax.shard_map(total, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), check_vma=check_vma)
    found = jax.jit(jax.grad(f, argnums=(0, 1)))(a, b)  # b is whole on each device: its gradients are added up
    with jax.default_device(jax.devices("cpu")[0]):
        expected = jax.grad(lambda a, b: (jnp.matmul(a, b) ** 2).sum(), argnums=(0, 1))(a, b)
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got, host(wanted))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_over_some_axes_alone_is_refused(kind, check_vma):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind), devices=jax.devices("cpu")[:8])
    a, b = put(mesh, P("x"), 8, 4), put(mesh, P(), 4, 4)
    in_specs = (P("x"), P())
    f = jax.shard_map(
        interop.matmul, mesh=mesh, in_specs=in_specs, out_specs=P("x"), axis_names={"x"}, check_vma=check_vma
    )
    with (
        jax.set_mesh(mesh),
        pytest.raises(NotImplementedError, match=r"^interop.matmul: inside a jax.shard_map over x alone, of a mesh "),
    ):
        jax.jit(f)(a, b)


# ---- what JAX does not say ----


def test_without_the_devices_of_a_program_the_error_says_so(monkeypatch):
    dispatch = pytest.importorskip("jax._src.dispatch")
    from interop.jax import _product

    others = dispatch.prim_requires_devices_during_lowering - {_product.matmul_p}
    monkeypatch.setattr(dispatch, "prim_requires_devices_during_lowering", others)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    a, b = put(mesh, P("x"), 24, 5), put(mesh, P(), 5, 4)
    with pytest.raises(NotImplementedError, match=r"does not say for which devices .*accepted: .*jax.shard_map"):
        jax.jit(lambda a, b: interop.matmul(a, b))(a, b)
    alone = jax.device_put(np.ones((3, 3), "float32"), jax.devices("cpu")[0])
    assert jax.jit(lambda a: interop.matmul(a, a))(alone)[0, 0] == 3


def test_a_program_over_several_devices_is_not_exported_but_in_shard_map(mesh):
    a, b = put(mesh, P("x"), 8, 4), put(mesh, P(), 4, 4)
    with pytest.raises(NotImplementedError, match=r"^interop.matmul: a program over several devices cannot be "):
        jax.export.export(jax.jit(lambda a, b: interop.matmul(a, b)), platforms=("cpu",))(a, b)
    f = jax.shard_map(interop.matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    assert jax.export.export(jax.jit(f), platforms=("cpu",))(a, b).nr_devices == 8
