"""Operators of traced JAX arrays: what they compute, what programs have of them, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

import interop
from interop import _core
from interop._commands.bench import jax_programs

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed + sum(shape)).standard_normal(shape) * 3)


def host(x):
    return np.asarray(x)


def softmax(x):
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def only_tests(name, call, signature, **options):
    return interop.operator(f"tests_jax_alone::{name}", call, signature, **options)


# ---- values ----

CASES = {
    "row_dot": ([(2, 3, 5), (5,)], lambda x, s: x @ s),
    "outer": ([(2, 3), (5,)], lambda a, s: a[..., None] * s),
    "softmax": ([(4, 7)], softmax),
    "layer": ([(2, 3, 5), (5,), (5,)], lambda x, s, b: np.maximum(x * s + b, 0)),
    "product": ([(2, 3, 4), (4, 5)], lambda x, w: x @ w),
    "split": ([(3, 4)], lambda x: (x - np.trunc(x), np.trunc(x).astype("int64"))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_jitted_call_computes_what_a_plain_one_does(ops, name):
    shapes, reference = CASES[name]
    operands = [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    op = getattr(ops, name)
    expected = jax.tree.leaves(reference(*map(host, operands)))
    for call in (op, jax.jit(op), jax.jit(lambda *operands: jax.jit(op)(*operands))):
        results = jax.tree.leaves(call(*operands))
        assert [type(x) for x in results] == [type(operands[0])] * len(expected)
        for x, y in zip(results, expected, strict=True):
            assert x.dtype == y.dtype
            assert np.allclose(host(x), y, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (0, 5), (1, 1, 5), (2, 0), (3, 1)])
def test_leading_axes_are_any_and_none(ops, shape):
    x, s = draw(*shape), draw(shape[-1])
    y = jax.jit(ops.row_dot)(x, s)
    assert y.shape == shape[:-1]
    assert np.allclose(host(y), host(x) @ host(s))


def test_an_operand_may_be_by_name_and_an_array_of_numpy(ops):
    x, s = draw(3, 5), draw(5)
    f = jax.jit(lambda x: ops.row_dot(s=host(s), x=x))
    assert np.allclose(host(f(x)), host(x) @ host(s))


def test_a_program_has_calls_of_the_function_and_none_of_python(ops, place):
    x, s = draw(3, 5), draw(5)

    def step(x, s):
        return jax.value_and_grad(lambda x, s: ops.softmax(x).sum() + ops.row_dot(x, s).sum(), argnums=(0, 1))(x, s)

    lowered = jax.jit(step).lower(x, s)
    assert set(re.findall(r'function = "(\w+)-\w+"', lowered.as_text())) >= {"softmax", "softmax_back", "outer"}
    for text in (lowered.as_text(), lowered.compile().as_text()):
        assert "interop_function" in text
        assert "callback" not in text


def test_a_program_is_that_of_the_foreign_function_call_by_hand(ops, place):
    x = draw(3, 4)
    function = ops.functions["scaled"].returning(y="x")
    call = jax_programs.by_hand(jax, function, x, 2.0, 3, 4)

    def text(f):
        compiled = jax.jit(f).lower(x).compile().as_text()
        return re.sub(
            r"ENTRY %\S+|%(?:ffi_call|interop_function)[.\d]*|metadata=\{[^}]*\}",
            "",
            compiled[compiled.index("ENTRY") :],
        )

    assert "interop_function" in text(call)
    assert text(lambda x: ops.scaled(x, 2.0)) == text(lambda x: call(x))


def test_what_is_known_without_memory(ops):
    results = jax.eval_shape(ops.split, jax.ShapeDtypeStruct((3, 4), "float64"))
    assert [(x.shape, str(x.dtype)) for x in results] == [((3, 4), "float64"), ((3, 4), "int64")]
    text = str(jax.make_jaxpr(ops.softmax)(draw(2, 3)))
    assert "interop_operator[form=<results of tests_jax_" in text


def test_a_result_that_nobody_uses_is_not_computed(ops):
    f = jax.jit(lambda x: (ops.softmax(x), x)[1])
    assert "interop_function" not in f.lower(draw(2, 3)).compile().as_text()


# ---- control flow ----


def test_inside_loops_and_branches(ops):
    x, s = draw(4, 5), draw(5)
    total, rows = jax.lax.scan(lambda total, row: (total + ops.row_dot(row, s), ops.softmax(row)), 0.0, x)
    assert np.allclose(total, (host(x) @ host(s)).sum())
    assert np.allclose(host(rows), softmax(host(x)))
    assert np.allclose(host(jax.lax.map(ops.softmax, x)), softmax(host(x)))
    again = jax.lax.fori_loop(0, 3, lambda _, x: ops.softmax(x), x)
    assert np.allclose(host(again), softmax(softmax(softmax(host(x)))))
    grown = jax.lax.while_loop(lambda x: ops.row_dot(x, s * s) < 1e3, lambda x: 2 * x, jnp.ones(5))
    assert float(ops.row_dot(grown, s * s)) >= 1e3
    for flag in (True, False):
        y = jax.jit(lambda flag: jax.lax.cond(flag, ops.softmax, lambda x: -x, x))(flag)
        assert np.allclose(host(y), softmax(host(x)) if flag else -host(x))


def test_without_jit_and_where_nans_are_looked_for(ops):
    x = draw(2, 3)
    with jax.disable_jit():
        assert np.allclose(host(jax.jit(ops.softmax)(x)), softmax(host(x)))
        assert np.isfinite(host(jax.grad(lambda x: ops.softmax(x)[0, 0])(x))).all()
    with jax.debug_nans(True):
        jax.jit(ops.softmax)(x)
        with pytest.raises(FloatingPointError):
            jax.jit(ops.softmax)(x.at[0, 0].set(jnp.nan)).block_until_ready()


def test_a_call_is_traced_once_for_its_kinds():
    calls = []

    def call(x):
        calls.append(x.shape)
        return 2 * x

    op = only_tests("traced_once", call, "x[n] -> [n]")
    f = jax.jit(lambda x: op(op(op(x))))
    f(jnp.ones(3)), f(jnp.ones(3))
    assert calls.count((3,)) <= 3
    count = len(calls)
    f(jnp.zeros(3))
    assert len(calls) == count


# ---- numbers ----


def test_a_number_is_fixed_and_may_be_computed_from_shapes(ops):
    x = draw(3, 4)
    assert np.allclose(host(jax.jit(lambda x: ops.scaled(x, x.shape[0] / 2))(x)), 1.5 * host(x))
    assert np.allclose(host(jax.jit(ops.scaled, static_argnames="by")(x, by=np.float64(2))), 2 * host(x))


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (0.0, -0.0), (True, 1)])
def test_numbers_that_are_equal_and_not_the_same_are_told_apart(first, second):
    op = only_tests("kinds", lambda x, by: x + len(repr(by)), "x[..., n], by -> [..., n]")
    for by in (first, second):
        assert jax.vmap(lambda x, by=by: op(x, by))(jnp.zeros((2, 2)))[0, 0] == len(repr(by))


def test_a_traced_number_goes_to_expressions_and_operations():
    expression = only_tests("power", interop.elementwise("x * by + x"), "x[..., n], by -> [..., n]")
    function = only_tests("product_by", lambda x, by: interop.multiply(x, by), "x[..., n], by -> [..., n]")
    x = jnp.arange(6, dtype="float32").reshape(2, 3)
    for op, factor in ((expression, 4), (function, 3)):
        assert jax.jit(op)(x, 3.0).tolist() == (factor * x).tolist()
        assert jax.jit(lambda by, op=op: op(x, by))(3.0).tolist() == (factor * x).tolist()
        each = jax.vmap(op, in_axes=(None, 0))(x, jnp.array([3.0, 0.0]))
        assert each[0].tolist() == (factor * x).tolist()


def test_a_traced_number_by_value_is_refused_by_name(ops):
    message = (
        r"::scaled: by is a traced value of JAX, and call takes it by value, .*or by\[\] in the signature.*\n.*\n.*\^"
    )
    for call in (
        lambda: jax.jit(ops.scaled)(draw(2, 3), 2.0),
        lambda: jax.jit(lambda by: ops.scaled(draw(3), by))(2.0),
    ):
        with pytest.raises(TypeError, match=re.compile(message, re.DOTALL)):
            call()


def test_a_number_that_is_an_array_of_jax_is_taken_as_a_traced_one_is(ops):
    """Outside of jit, and in one that closes over it."""
    x, by = draw(2, 3), jnp.float32(3)
    op = only_tests("by_array", interop.elementwise("x * by"), "x[..., n], by -> [..., n]")
    assert op(x, by).tolist() == jax.jit(op)(x, by).tolist() == jax.jit(lambda x: op(x, by))(x).tolist()
    assert op(x, by).tolist() == (3 * x).tolist()
    message = r"::scaled: by is an array of JAX's, and call takes it by value; accepted: a number, as float"
    for call in (lambda: ops.scaled(x, by), lambda: jax.jit(lambda x: ops.scaled(x, by))(x)):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(TypeError, match=r"::by_array: by is an array of shape \(3,\); accepted: a number, or an array"):
        op(x, x[0])
    with pytest.raises(TypeError, match=r"::by_array: by is jaxlib.*; accepted: a number"):  # NumPy's call
        op(host(x), by)


def test_a_number_is_no_array_and_has_no_derivative():
    op = only_tests("by_number", lambda x, by: x * by, "x[n], by -> [n]", gradient=lambda g, x, by, y: (g * by, None))
    x = jnp.ones(3)
    with pytest.raises(
        TypeError, match=r"::by_number: by is an array of shape \(3,\); accepted: a number, or an array"
    ):
        jax.jit(op)(x, x)
    assert jax.grad(lambda x: op(x, 2.0).sum())(x).tolist() == [2, 2, 2]
    with pytest.raises(
        NotImplementedError, match=r"::by_number: JAX differentiates it by by, which the signature has as"
    ):
        jax.grad(lambda by: op(x, by).sum())(2.0)


# ---- what is refused ----


def test_inputs_that_do_not_fit_are_refused_as_in_a_plain_call(ops):
    with pytest.raises(ValueError, match=r"::row_dot: n is 4 in s, of shape \(4,\), and 5 in x; accepted: one size\n"):
        jax.jit(ops.row_dot)(draw(3, 5), draw(4))
    with pytest.raises(TypeError, match=r"::row_dot: x is float32; accepted: float64\n"):
        jax.jit(ops.row_dot)(draw(3, 5).astype("float32"), draw(5))
    with pytest.raises(TypeError, match=r"::row_dot: s is list; accepted: "):
        jax.jit(lambda x: ops.row_dot(x, [1.0]))(draw(1, 1))
    with pytest.raises(TypeError, match=r"::softmax: stream= cannot be used "):
        jax.jit(lambda x: ops.softmax(x, stream=0))(draw(1, 1))


def test_a_tensor_beside_traced_arrays_is_refused(ops):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"::row_dot: s is torch.Tensor; accepted with traced arrays of JAX: arrays of"):
        jax.jit(lambda x: ops.row_dot(x, torch.ones(5, dtype=torch.float64)))(draw(2, 5))


@pytest.mark.parametrize(
    ("name", "call", "what"),
    [
        ("float", lambda x: x * float(x[0]), "the values of an array"),
        ("bool", lambda x: x if x[0] > 0 else -x, "the values of an array"),
        ("numpy", lambda x: np.asarray(x), "the values of an array"),
        ("index", lambda x: x[: int(x[0])], "the values of an array"),
        ("address", lambda x: x.ptr, "x.ptr"),
        ("interface", lambda x: x.__cuda_array_interface__, "x.__cuda_array_interface__"),
    ],
)
def test_a_call_that_asks_for_values_or_addresses_is_refused(name, call, what):
    op = only_tests(f"asks_{name}", call, "x[n] -> [n]")
    with pytest.raises(TypeError, match=rf"^tests_jax_alone::asks_{name}: call asks for {what}, which JAX traces: "):
        jax.jit(op)(jnp.ones(3))


@pytest.mark.parametrize(
    ("name", "call", "error", "message"),
    [
        (
            "shape",
            lambda x: x[:1],
            ValueError,
            r"call returned an array of shape \(1,\) for the result; accepted: \(3,\)",
        ),
        ("dtype", lambda x: x > 0, TypeError, r"call returned bool for the result; accepted: float32"),
        ("kind", lambda x: 1.0, TypeError, r"call returned float for the result; accepted: an array"),
        ("count", lambda x: (x, x), TypeError, r"call returned tuple for the result; accepted: an array"),
    ],
)
def test_results_that_are_not_those_of_the_signature_are_refused(name, call, error, message):
    op = only_tests(f"wrong_{name}", call, "x[n] -> [n]")
    with pytest.raises(error, match=rf"^tests_jax_alone::wrong_{name}: {message}"):
        jax.jit(op)(jnp.ones(3))


def test_a_tensor_as_a_result_is_refused():
    torch = pytest.importorskip("torch")
    op = only_tests("foreign", lambda x: torch.ones(3), "x[n] -> [n]")
    with pytest.raises(TypeError, match=r"^tests_jax_alone::foreign: call returned torch.Tensor where JAX traces it; "):
        jax.jit(op)(jnp.ones(3))


def test_a_kernel_on_the_cpu_is_refused(host_jax):
    kernel = interop.kernel(
        "__global__ void copy(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x]; }",
        "copy",
        threads="x",
    )
    op = only_tests("kernel", kernel, "x[n] -> [n]")
    with pytest.raises(ValueError, match=r"a kernel runs on a GPU, and JAX computes this program on the CPU"):
        jax.jit(op)(jnp.ones(3, "float32"))
