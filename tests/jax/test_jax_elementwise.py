"""The elementwise functions on JAX arrays, on the CPU: one primitive, weak types, 64 bits, what is refused.

Transforms: test_jax_elementwise_transforms.py and test_jax_elementwise_derivatives.py.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import machine

import interop
import interop.jax._elementwise

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(autouse=True)
def _on_the_cpu(host_jax):
    machine.need("jax")


def test_under_jit():
    f = jax.jit(lambda a, b: interop.less(interop.divide(a, b, where_zero=-1), 0))
    x = jnp.array([1.0, 2.0, 3.0])
    assert f(x, jnp.array([0.0, 1.0, -1.0])).tolist() == [True, False, True]


def test_another_scalar_compiles_nothing():
    x = jnp.ones(7)
    interop.multiply(x, 2.0)
    compiled = interop.jax._elementwise._compiled("multiply", "float32", None, 1)
    before = compiled._cache_size()
    for scalar in (3.0, 4.5):
        assert interop.multiply(x, scalar).tolist() == [scalar] * 7
    assert compiled._cache_size() == before


def test_without_jit():
    with jax.disable_jit():
        assert interop.add(jnp.ones(2), 1).tolist() == [2, 2]


def test_weakly_typed_arrays_are_weak():
    weak = jnp.asarray(2.0)
    assert weak.weak_type
    assert interop.multiply(jnp.ones(2, "float16"), weak).dtype == jnp.float16
    assert interop.multiply(weak, jnp.ones(2, "bfloat16")).dtype == jnp.bfloat16
    assert jax.jit(lambda x: interop.add(x * 1, 1))(weak).dtype == jnp.float32


@pytest.mark.parametrize("scalar", [np.float32(2), np.float64(2), np.int64(2), np.bool_(True), np.complex64(2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_scalars_of_numpy_have_a_dtype(dtype, scalar):
    x = jnp.ones(3, dtype)
    expected = x + scalar
    for result in (interop.add(x, scalar), jax.jit(lambda x: interop.add(x, scalar))(x)):
        assert result.dtype == expected.dtype
        assert result.tolist() == expected.tolist()


FLOATS_OF_INTEGERS = {
    "x / y": jnp.divide,
    "sqrt(x)": lambda x, y: jnp.sqrt(x),
    "exp(x)": lambda x, y: jnp.exp(x),
    "hypot(x, y)": jnp.hypot,
    "atan2(x, y)": jnp.arctan2,
    "copysign(x, y)": jnp.copysign,
}


def _called(f, y, x):
    return f(x, y)


@pytest.mark.parametrize("wide", [False, True])
def test_integers_become_the_floats_of_jax_numpy(wide):
    """float32 of up to 32 bits, also in the x64 mode; float64 of 64."""
    narrow = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"]
    with jax.enable_x64(wide):
        dtypes = narrow + ["int64", "uint64", "float64"] * wide
        shapes = [jax.ShapeDtypeStruct((2,), dtype) for dtype in dtypes]
        weak = [jax.ShapeDtypeStruct((2,), jnp.asarray(x).dtype, weak_type=True) for x in (3, 2.5)]
        for x in shapes + weak:
            for y in [*shapes, *weak, True, 3, 2.5]:
                arrays = [z for z in (x, y) if isinstance(z, jax.ShapeDtypeStruct)]

                dtypes = set()
                for f in (jnp.divide, interop.divide, interop.elementwise("x / y")):
                    call = f if len(arrays) == 2 else functools.partial(_called, f, y)
                    dtypes.add(jax.eval_shape(call, *arrays).dtype)
                assert len(dtypes) == 1, (x, y)
        for text, theirs in FLOATS_OF_INTEGERS.items():
            f = interop.elementwise(text)
            for x in shapes + weak:
                arrays = [x] * len(f.parameters)
                result = jax.eval_shape(f, *arrays)
                assert result.dtype == jax.eval_shape(theirs, x, x).dtype, (text, x)


def test_a_scalar_before_a_weakly_typed_array():
    for f in (interop.add, interop.divide, interop.elementwise("x + y")):
        assert f(2, jnp.asarray(4.0)).dtype == f(jnp.asarray(4.0), 2).dtype == "float32"
    assert interop.subtract(True, jnp.asarray(4)) == -3


def test_the_errstate_of_the_caller_is_not_jax_s():
    x = jnp.ones(2)
    with np.errstate(all="raise"):
        assert jnp.isinf(interop.multiply(x, 1e300)).all()
        assert jnp.isinf(interop.divide(x, 0 * x, where_zero=1e300)).all()
        assert jnp.isinf(interop.elementwise("x * a + 1e300")(x, 1e300)).all()
        assert jnp.isinf(interop.matmul(jnp.eye(2), jnp.eye(2), alpha=1e300)[0, 0])


def test_64_bits_stay_with_x64_mode_off():
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        x = jnp.asarray(np.array([1.0, 2.0]))
    result = interop.multiply(x, 0.1)
    assert result.dtype == jnp.float64
    assert np.asarray(result).tolist() == [0.1, 0.2]
    assert interop.add(x, jnp.ones(2, "float32")).dtype == jnp.float64


def test_the_options_that_jax_has_not():
    x = jnp.ones(2)
    with pytest.raises(TypeError, match="interop.add: out= cannot be used with JAX arrays"):
        interop.add(x, x, out=np.ones(2, "float32"))
    with pytest.raises(ValueError, match="interop.abs: stream= is for device arrays, but x is a JAX array on"):
        interop.abs(x, stream=1)
    with pytest.raises(ValueError, match=r"interop.add: execution='cuda', but a and b are JAX arrays on"):
        jax.block_until_ready(interop.jax._elementwise.elementwise("add", x, x, None, None, "cuda", None))
    with pytest.raises(ValueError, match="interop.add: stream= cannot be used inside jax.jit"):
        jax.jit(lambda x: interop.add(x, x, stream=1))(x)


def test_deleted_arrays():
    x = jnp.ones(3) + 1
    x.delete()
    with pytest.raises(BufferError, match="interop.add: b: the JAX array has been deleted or donated"):
        interop.add(jnp.ones(3), x)


def test_tracers_beside_other_libraries_are_refused():
    with pytest.raises(TypeError, match="is a JAX tracer"):
        jax.jit(lambda x: interop.add(np.ones(3), x))(jnp.ones(3))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_signed_and_unsigned_integers_are_compared_exactly(wrap):
    """Without the x64 mode JAX has int32 for them, in which 4294967295 is -1."""
    for signed, unsigned in (("int8", "uint32"), ("int32", "uint32"), ("int32", "uint16")):
        x = np.array([-1, 127, np.iinfo(signed).min, 0], signed)
        y = np.array([np.iinfo(unsigned).max, 127, 1 << 15, 0], unsigned)
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
            symbol = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">"}.get(name, ">=")
            compare, expression = wrap(getattr(interop, name)), wrap(interop.elementwise(f"x {symbol} y"))
            for a, b in ((x, y), (y, x)):
                expected = getattr(np, name)(a.astype("int64"), b.astype("int64"))
                for f in (compare, expression):
                    assert np.array_equal(f(jnp.asarray(a), jnp.asarray(b)), expected), (name, signed, unsigned)


def test_explain():
    plan = interop.explain(interop.less, jnp.ones((2, 3)), 2)
    assert (plan.result_shape, plan.result_dtype, plan.stream) == ((2, 3), "bool", None)
    assert plan.algorithm == "the JAX primitive interop_elementwise: jax.numpy's own less"
    plans = []
    jax.jit(lambda x: plans.append(interop.explain(interop.less, x, 2)) or x)(jnp.ones(3))
    assert plans[0].algorithm == "jax.numpy's operations, which XLA fuses"
    with pytest.raises(TypeError, match="interop.less: out= cannot be used"):
        interop.explain(interop.less, jnp.ones(3), 2, out=np.ones(3))
