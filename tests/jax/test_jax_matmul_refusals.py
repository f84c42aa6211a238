"""What `interop.matmul` of JAX arrays refuses, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

import interop

jax = pytest.importorskip("jax")
jnp = jax.numpy

# ---- arrays and options ----


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 2), r"a has shape \(2, 3\) and b has shape \(4, 2\): the inner dimensions 3 and 4 differ"),
        ((3,), (4,), r"a has shape \(3,\) and b has shape \(4,\): the inner dimensions 3 and 4 differ"),
        ((2, 2, 3), (3, 3, 2), r"a has shape \(2, 2, 3\) and b has shape \(3, 3, 2\): the batch dimensions 2 and 3"),
        ((), (2, 2), r"a is 0-d"),
        ((2, 2), (), r"b is 0-d"),
    ],
)
def test_matmul_refuses_shapes(a, b, message):
    a, b = jnp.ones(a), jnp.ones(b)
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(ValueError, match=f"^interop.matmul: {message}"):
            f(a, b)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2fnuz", "int4"])
def test_matmul_refuses_dtypes(dtype):
    a, good = jnp.zeros((2, 2), dtype), jnp.zeros((2, 2), "float32")
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(TypeError, match=rf"^interop.matmul: a is {dtype}; accepted: bool, int8 to int64, "):
            f(a, good)
        with pytest.raises(TypeError, match=rf"^interop.matmul: b is {dtype}; accepted: bool, int8 to int64, "):
            f(good, a)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("dtype", "factor", "error", "message"),
    [
        ("int8", np.float32(0.5), TypeError, "is an array of float32, and the product is int8; accepted: an integer"),
        ("int8", np.int32(300), TypeError, "is an array of int32, and the product is int8; accepted: an integer"),
        ("float32", np.complex64(1j), TypeError, "is an array of complex64, and the product is float32; accepted: a r"),
        (
            "float32",
            np.ones((5, 1, 1)),
            ValueError,
            r"has the shape \(5, 1, 1\); accepted: a scalar, or an array of no",
        ),
    ],
)
def test_matmul_refuses_factors_that_are_arrays_of_another_kind(wrap, dtype, factor, error, message):
    x = jnp.ones((2, 2), dtype)
    for name in ("alpha", "beta"):
        call = wrap(lambda f, name=name: interop.matmul(x, x, c=x, **{name: f}))
        with pytest.raises(error, match=f"interop.matmul: {name} {message}"):
            call(jnp.asarray(factor))
    for operand, other in ((jnp.ones((2, 2), bool), jnp.asarray(True)), (x, jax.random.key(0))):
        with pytest.raises(TypeError, match="interop.matmul: alpha is an array of "):
            interop.matmul(operand, operand, alpha=other)


def test_matmul_refuses_random_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(TypeError, match=r"^interop.matmul: a is .*; accepted: "):
            f(keys, jnp.ones(3))


def test_matmul_refuses_out():
    a = jnp.ones((2, 2))
    for f in (interop.matmul, jax.jit(lambda a, b, out: interop.matmul(a, b, out=out))):
        with pytest.raises(TypeError, match=r"JAX arrays.*immutable"):
            f(a, a, out=a)


def test_matmul_refuses_stream_and_execution_under_jit():
    a = jnp.ones((2, 2))
    with pytest.raises(ValueError, match=r"stream= cannot be used inside jax.jit"):
        jax.jit(lambda a: interop.matmul(a, a, stream=1))(a)
    with pytest.raises(ValueError, match=r"execution= cannot be used inside jax.jit"):
        jax.jit(lambda a: interop.jax.matmul(a, a, execution="cuda"))(a)


def test_matmul_refuses_deleted_arrays():
    a, b = jnp.ones((2, 2)), jnp.ones((2, 2))
    interop.matmul(a, b)
    b.delete()
    with pytest.raises(BufferError, match=r"b: the JAX array has been deleted or donated; JAX says: .*deleted"):
        interop.matmul(a, b)
    c = jnp.ones((2, 2))
    jax.jit(lambda x: x + 1, donate_argnums=0)(c)
    if c.is_deleted():
        with pytest.raises(BufferError, match="a: the JAX array has been deleted or donated"):
            interop.matmul(c, a)


@pytest.mark.parametrize("name", ["out", "aux"])
def test_matmul_refuses_to_write_to_jax_arrays(name):
    a = jnp.ones((2, 2))
    with pytest.raises(TypeError, match=f"{name}= cannot be used with JAX arrays, which are immutable; use the result"):
        interop.matmul(a, a, epilogue="relu", **{name: np.ones((2, 2), "float32")})


def test_matmul_refuses_terms_that_do_not_fit():
    a = jnp.ones((2, 2))
    for options, exception, match in (
        ({"c": jnp.ones(3)}, ValueError, r"c has shape \(3,\); accepted: one that broadcasts"),
        ({"bias": a}, ValueError, r"bias has shape \(2, 2\); accepted: a row"),
        ({"epilogue": "tanh"}, ValueError, "epilogue is 'tanh'"),
        ({"beta": 2}, ValueError, "beta is given, and there is no c"),
        ({"scale_a": 2.0}, ValueError, "scale_a is given, and the operands are float32"),
        ({"dtype": "int8"}, TypeError, "dtype is int8, and the operands are float32"),
        ({"alpha": 1j}, TypeError, "alpha is 1j .* accepted: a real number"),
    ):
        with pytest.raises(exception, match=match):
            interop.matmul(a, a, **options)
        with pytest.raises(exception, match=match):
            jax.jit(lambda a, options=options: interop.matmul(a, a, **options))(a)


# ---- shapes without numbers ----


def test_matmul_refuses_symbolic_shapes():
    scope = jax.export.symbolic_shape("n, 3")
    with pytest.raises(NotImplementedError, match=r"a has the symbolic shape .*not supported yet"):
        jax.export.export(jax.jit(lambda a, b: interop.matmul(a, b)))(
            jax.ShapeDtypeStruct(scope, jnp.float32), jax.ShapeDtypeStruct((3, 2), jnp.float32)
        )


# ---- interop.jax.matmul with what is not JAX's ----


def test_arrays_of_other_libraries_are_refused_by_name(host_jax, torch):
    x = host_jax.numpy.ones((2, 2))
    for other, kind in (
        (np.ones((2, 2), "float32"), "numpy.ndarray"),
        (torch.ones(2, 2), "torch.Tensor"),
        (1.0, "float"),
    ):
        for arguments, name in (((other, x), "a"), ((x, other), "b"), ((other, other), "a")):
            with pytest.raises(TypeError, match=rf"^interop.jax.matmul: {name} is {kind}; accepted: an array of JAX"):
                interop.jax.matmul(*arguments)
        for name in ("c", "bias"):
            with pytest.raises(TypeError, match=rf"^interop.jax.matmul: {name} is {kind}; accepted: an array of JAX"):
                interop.jax.matmul(x, x, **{name: other})
    for option in ("backend", "precision"):
        with pytest.raises(ValueError, match=rf"^interop.matmul: {option} is 'tf16'; accepted: None"):
            interop.jax.matmul(x, x, **{option: "tf16"})
        with pytest.raises(ValueError, match=rf"^interop.matmul: {option} is \[\]; accepted: None"):
            interop.jax.matmul(x, x, **{option: []})
