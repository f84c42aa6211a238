"""JAX's transforms of the elementwise functions and of expressions: JAX's own operations compute traced arrays."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from helpers import elements, machine
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import interop
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

jax = pytest.importorskip("jax")
jnp = jax.numpy

if jax.config.jax_num_cpu_devices < 4:
    jax.config.update("jax_num_cpu_devices", 4)  # before JAX starts: it has one otherwise

DTYPES = ("bool", "int8", "uint32", "float16", "float32", "complex64")
CASES = [(name, dtype) for name in FUNCTIONS for dtype in DTYPES if elements.serves(name, dtype)]
EXPRESSION = interop.elementwise("where(x > y, x * y + a, x // y) ** 2")


@pytest.fixture(autouse=True)
def _where(place):
    machine.need("jax")


def operands_of(name, dtype, *shapes):
    return [jnp.asarray(elements.draw(shape, dtype, k)) for k, shape in enumerate(shapes[: OPERATIONS[name].arity])]


def same(x, y):
    assert x.dtype == y.dtype
    x, y = np.asarray(x), np.asarray(y)
    assert x.shape == y.shape
    assert np.array_equal(x, y, equal_nan=x.dtype.kind in "fVc")


def close(x, y, units=8):
    """Tell floats apart by the last places."""
    assert x.dtype == y.dtype
    eps = float(jnp.finfo(x.dtype).eps)
    x, y = (np.asarray(z).astype("complex64" if z.dtype == "complex64" else "float32") for z in (x, y))
    np.testing.assert_allclose(x, y, rtol=units * eps)


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from primitives(getattr(inner, "jaxpr", inner))


# ---- what is computed ----


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_traced_results_are_those_of_the_call(name, dtype):
    """Integers and comparisons bit for bit; of floats the last places may differ.

    XLA divides by less than IEEE's rule, and its powers and remainders are not our kernels'.
    """
    f, operands = getattr(interop, name), operands_of(name, dtype, (40, 30), (30,))
    concrete, traced = f(*operands), jax.jit(f)(*operands)
    assert not traced.weak_type
    if concrete.dtype.kind not in "fVc":
        same(traced, concrete)
    else:
        # Powers of complex numbers go by logarithms, whose last places the exponent multiplies.
        close(traced, concrete, units=40 if name == "pow" and dtype == "complex64" else 8)


def test_chains_of_traced_functions_round_at_most_as_often():
    """XLA may contract x y + z, and keep a 16-bit float between two operations in float32.

    Then the product is not rounded: the difference is at most its rounding error, and one more of the sum.
    """

    def chain(x, y, z):
        return interop.add(interop.multiply(x, y), z)

    for dtype in ("float16", "bfloat16", "float32"):
        operands = operands_of("add", dtype, (1000,), (1000,)) + operands_of("abs", dtype, (1000,))
        x, y, z = (np.asarray(x).astype("float64") for x in operands)
        bound = (2 * np.abs(x * y) + np.abs(z)) * float(jnp.finfo(dtype).eps)
        expression = interop.elementwise("x * y + z")
        for f in (chain, jax.jit(chain), jax.jit(expression), expression):
            result = np.asarray(f(*operands)).astype("float64")
            assert (np.abs(result - (x * y + z)) <= bound).all()


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_nothing_of_ours_is_in_a_traced_program(name, dtype):
    f, operands = getattr(interop, name), operands_of(name, dtype, (4, 3), (3,))
    calls = [f, jax.vmap(f, (0, None)[: len(operands)])]
    for call in calls + [lambda x, _: f(x, 1)] * (len(operands) == 2):
        found = {*primitives(jax.make_jaxpr(call)(*operands).jaxpr)}
        assert not [primitive for primitive in found if "interop" in primitive], found


def test_constants_of_a_traced_function():
    """Calls of concrete arrays alone are made by our kernel, in the program that they are part of."""
    c = jnp.asarray([1.0, 2.0])

    def f(x):
        return x * interop.add(c, c) + interop.multiply(c, 2) + interop.elementwise("c * c")(c)

    x = jnp.asarray([3.0, 5.0])
    expected = (x * 2 * c + 2 * c + c * c).tolist()
    assert jax.jit(f)(x).tolist() == expected
    assert jax.vmap(jax.jit(f))(jnp.stack([x, x])).tolist() == [expected] * 2
    for transformed in (f, jax.jit(f), jax.checkpoint(f)):
        assert jax.grad(lambda x, g=transformed: g(x).sum())(x).tolist() == (2 * c).tolist()
        assert jax.jvp(transformed, (x,), (x,))[1].tolist() == (2 * c * x).tolist()
    assert jax.lax.scan(lambda k, x: (k, f(x)), 0, jnp.stack([x, x]))[1].tolist() == [expected] * 2


# ---- maps and loops ----


@pytest.mark.parametrize(("name", "dtype"), [case for case in CASES if case[1] in ("int8", "float32", "complex64")])
def test_vmap(name, dtype):
    f = getattr(interop, name)
    same = close if name == "divide" or (dtype == "complex64" and name not in COMPARISONS) else globals()["same"]
    if (name, dtype) == ("pow", "complex64"):  # XLA's and ours differ by up to 9 units on a GPU
        same = functools.partial(close, units=16)
    if OPERATIONS[name].arity == 1:
        (x,) = operands_of(name, dtype, (4, 3))
        same(jax.vmap(f, 1)(x), jnp.stack([f(x[:, k]) for k in range(3)]))
        return
    x, y = operands_of(name, dtype, (3, 5), (5, 3))
    same(jax.vmap(f, (1, 0))(x, y), jnp.stack([f(x[:, k], y[k]) for k in range(5)]))
    same(jax.vmap(f, (None, 1))(x[0], y), jnp.stack([f(x[0], y[:, k]) for k in range(3)]))
    same(jax.vmap(f, (0, None))(x[:, 0], y), jnp.stack([f(z, y) for z in x[:, 0]]))
    same(jax.vmap(f)(x, y[0]), jnp.stack([f(u, v) for u, v in zip(x, y[0], strict=True)]))


def smooth(x, y):
    """All that has a derivative, in one function."""
    total = interop.divide(interop.multiply(x, y), interop.add(interop.abs(x), 1.5), where_zero=0)
    total = interop.subtract(interop.maximum(total, y), interop.minimum(interop.negative(x), 0.25))
    total = interop.add(total, interop.remainder(interop.pow(interop.abs(x), 1.5), 3))
    return EXPRESSION(total, y, 0.5).sum()


def own(x, y):
    """The same of jax.numpy."""
    total = x * y / (jnp.abs(x) + 1.5)
    total = jnp.maximum(total, y) - jnp.minimum(-x, 0.25) + jnp.remainder(jnp.abs(x) ** 1.5, 3)
    return (jnp.where(total > y, total * y + 0.5, jnp.floor_divide(total, y)) ** 2).sum()


@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        functools.partial(jax.grad, argnums=1),
        functools.partial(jax.jacfwd, argnums=(0, 1)),
        functools.partial(jax.jacrev, argnums=(0, 1)),
        functools.partial(jax.hessian, argnums=(0, 1)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: jax.vmap(jax.grad(f, argnums=(0, 1)), (0, None)),
        lambda f: jax.grad(lambda x, y: jax.vmap(f, (0, None))(x, y).sum(), argnums=1),
        lambda f: lambda x, y: jax.linearize(f, x, y)[1](y * 0 + x, y),
        lambda f: jax.grad(lambda x, y: jax.lax.scan(lambda k, x: (k + 0.1 * f(x, y), k), 0.0, x)[0]),
        lambda f: jax.grad(lambda x, y: jax.lax.fori_loop(0, 3, lambda k, s: s + f(x, y) * 0.1 * x, x).sum()),
        lambda f: jax.grad(lambda x, y: jax.lax.cond(x[0, 0] > 0, f, lambda x, y: 2 * f(x, y), x, y)),
        lambda f: jax.grad(lambda x, y: f(x, jax.lax.stop_gradient(y)), argnums=(0, 1)),
    ],
    ids=lambda _: "",
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["bare", "jit"])
def test_transforms_are_those_of_jax_numpy(wrap, transform):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.uniform(0.2, 1, (2, 3)).astype("float32"))
    y = jnp.asarray(rng.uniform(1.2, 2, 3).astype("float32"))
    for ours, theirs in zip(
        jax.tree.leaves(wrap(transform(smooth))(x, y)), jax.tree.leaves(transform(own)(x, y)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_linear_transpose():
    f = interop.elementwise("2 * x - x / 4")
    assert jax.linear_transpose(f, jnp.ones(2))(jnp.ones(2))[0].tolist() == [1.75, 1.75]
    assert jax.linear_transpose(lambda x: interop.subtract(1.5, interop.multiply(x, 3)) - 1.5, 1.0)(1.0) == (-3,)


def test_rules_of_the_caller():
    """`jax.custom_jvp` and `jax.custom_vjp` around the functions, and inside what they compute."""

    @jax.custom_jvp
    def f(x):
        return interop.multiply(x, x)

    f.defjvp(lambda x, t: (f(*x), interop.multiply(*t, 10)))
    assert jax.grad(lambda x: interop.add(f(x), x))(jnp.float32(3)) == 11

    @jax.custom_vjp
    def g(x):
        return interop.remainder(x, 2)

    g.defvjp(lambda x: (g(x), x), lambda x, t: (interop.elementwise("t * x * 10")(t, x),))
    assert jax.jit(jax.grad(lambda x: interop.negative(g(x))))(jnp.float32(3)) == -30


# ---- several devices ----


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(request, place):
    if place == "cuda":
        machine.need_gpu(4)
    devices = jax.devices(place)
    assert len(devices) >= 4
    kind = getattr(jax.sharding.AxisType, request.param)
    return Mesh(np.array(devices[:4]).reshape(2, 2), ("x", "y"), axis_types=(kind, kind))


COLLECTIVE = re.compile("all-gather|all-reduce|all-to-all|collective-permute")


@pytest.mark.parametrize("name", ["multiply", "remainder", "less", "pow"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["bare", "jit"])
def test_arrays_on_several_devices(mesh, wrap, name):
    """Each device computes its own part, also of concrete arrays."""
    spec = P("x", "y")
    x, y = operands_of(name, "float32", (4, 6), (4, 6))
    x, y = jnp.abs(x), y + 0.5
    parts = [jax.device_put(z, NamedSharding(mesh, spec)) for z in (x, y)]
    row = jax.device_put(y[0], NamedSharding(mesh, P("y")))
    f, f_text = getattr(interop, name), interop.elementwise("x * y + a - y // x")
    for call, arrays, whole in (
        (f, parts, (x, y)),
        (f, (parts[0], row), (x, y[0])),
        (functools.partial(lambda g, a: g(a, 0.5), f), parts[:1], (x,)),
        (lambda x, y: f_text(x, y, 0.5), parts, (x, y)),
        (lambda x: interop.negative(interop.divide(x, x, where_zero=2)), parts[:1], (x,)),
    ):
        result, expected = wrap(call)(*arrays), call(*whole)
        assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5)
        assert not COLLECTIVE.search(jax.jit(call).lower(*arrays).compile().as_text())
    if name == "multiply":
        with jax.set_mesh(mesh):  # without which JAX makes the sum's gradient on one device
            gradient = wrap(jax.grad(lambda x, y: f(x, y).sum()))(*parts)
        assert gradient.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)


def test_arrays_on_other_devices(mesh):
    x = jnp.ones((4, 4))
    wide = jax.device_put(x, NamedSharding(mesh, P("x")))
    for f in (interop.add, interop.elementwise("a + b")):
        with pytest.raises(ValueError, match="b is on 4 devices"):
            f(x, wide)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axes", [{"x", "y"}, {"x"}])
def test_inside_shard_map(mesh, axes, check_vma):
    constant = jnp.arange(6.0)

    def f(x, y):
        total = interop.remainder(interop.multiply(x, y), interop.add(constant, 1))
        return interop.elementwise("where(t > a, t, -t) + y")(total, y, 2)

    x, y = operands_of("add", "float32", (4, 6), (6,))
    expected = f(x, y)
    shard = functools.partial(jax.shard_map, mesh=mesh, axis_names=axes, check_vma=check_vma)
    mapped = jax.jit(shard(f, in_specs=(P("x"), P()), out_specs=P("x")))
    slope = jax.grad(lambda y: f(x, y).sum())(y)
    x, y = jax.device_put(x, NamedSharding(mesh, P("x"))), jax.device_put(y, NamedSharding(mesh, P()))
    np.testing.assert_allclose(np.asarray(mapped(x, y)), np.asarray(expected), rtol=1e-5)
    if check_vma:
        with jax.set_mesh(mesh):
            gradient = jax.jit(jax.grad(lambda x, y: mapped(x, y).sum(), argnums=1))(x, y)
        np.testing.assert_allclose(np.asarray(gradient), np.asarray(slope), rtol=1e-5)


# ---- export ----


def test_export():
    """A program to be kept, for both platforms: no call of ours is in it."""

    def f(x, y):
        return EXPRESSION(interop.pow(x, 2), interop.remainder(x, y), 0.5)

    x, y = operands_of("add", "float32", (4, 3), (3,))
    exported = jax.export.export(jax.jit(f), platforms=["cpu", "cuda"])(x, y)
    assert "custom_call" not in exported.mlir_module()
    same(exported.call(x, y), jax.jit(f)(x, y))


def test_export_of_symbolic_shapes(place):
    def f(x, y):
        return interop.elementwise("x * y + abs(x) ** 1.5")(
            interop.divide(x, y, where_zero=1), interop.floor_divide(x, y)
        )

    n, m = jax.export.symbolic_shape("n, m")
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, m), (m,))]
    exported = jax.export.export(jax.jit(f), platforms=(place,))(*shapes)
    for rows, columns in ((2, 3), (1, 5)):
        x, y = operands_of("add", "float32", (rows, columns), (columns,))
        same(exported.call(x, y), jax.jit(f)(x, y))
    with pytest.raises(Exception, match="broadcast"):
        jax.export.export(jax.jit(interop.add))(*[jax.ShapeDtypeStruct((k, 2), jnp.float32) for k in (n, m)])
