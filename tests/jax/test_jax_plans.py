"""What repeated calls of concrete JAX arrays run: the same as the first call, in fewer steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import elements, machine

import interop
from interop._expressions.parser import parse
from interop._expressions.typed import Split
from interop.jax import _door, _elementwise, _expression

jax = pytest.importorskip("jax")
jnp = jax.numpy

if jax.config.jax_num_cpu_devices < 4:
    jax.config.update("jax_num_cpu_devices", 4)  # before JAX starts: it has one otherwise

SCALARS = [
    *(0, 1, -1, 3, 255, 300, 2**24 + 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, True),
    *(0.0, -0.0, 0.1, -2.5, 1 + 2**-11 + 2**-40, 1e-320, 65510.0, 1e39, float("inf"), float("nan"), 1 - 2j),
    *(np.float16(0.1), np.float32(0.1), np.float64(0.1), np.int8(-3), np.uint32(2**32 - 1), np.complex64(1j), np.True_),
]
TEXTS = {"multiply": "x * a", "subtract": "a - x", "less": "x < a", "equal": "a == x", "remainder": "x % a"}


@pytest.fixture(autouse=True)
def _where(place):
    machine.need("jax")


def outcome(call, *operands):
    """What a call gives, bit for bit, or what it raises."""
    try:
        result = call(*operands)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)
    values = np.array(result)
    if values.dtype.kind in "fVc":
        values[values != values] = np.nan  # one of them: which it is differs between two kernels
    return result.dtype, result.weak_type, values.tobytes()


def split_of(text, scalars):
    """The expression as the compiled half splits it, where these parameters are scalars."""
    return Split(repr(interop.elementwise(text)), parse(text), frozenset(scalars))


DTYPES = ["bool", "int8", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TEXTS)
def test_scalars(name, dtype, wide):
    """Each becomes the same element whichever way it takes, and raises the same: rounded once, and never wrapped."""
    with jax.enable_x64(True):
        x = jnp.asarray(elements.draw((5,), dtype, 1))
    f, g, split = getattr(interop, name), interop.elementwise(TEXTS[name]), split_of(TEXTS[name], "a")
    with jax.enable_x64(wide):
        for scalar in SCALARS:
            operands = (scalar, x) if name == "subtract" else (x, scalar)
            expected = outcome(_elementwise.elementwise, name, *operands)
            assert outcome(f, *operands) == outcome(f, *operands) == expected, scalar
            operands = tuple(x if parameter == "x" else scalar for parameter in g.parameters)
            expected = outcome(_expression.compute, split, operands)
            assert outcome(g, *operands) == outcome(g, *operands) == expected, scalar


OF_ARRAYS = {"add": "x + y", "divide": "x / y", "less": "x < y", "pow": "x ** y"}


@pytest.mark.parametrize(("name", "text"), OF_ARRAYS.items())
def test_arrays(name, text):
    dtypes = ["bool", "int16", "uint8", "float16", "bfloat16", "float32", "complex64"]
    f, g, split = getattr(interop, name), interop.elementwise(text), split_of(text, "")
    for left, right in itertools.product(dtypes, dtypes):
        x, y = jnp.asarray(elements.draw((3, 1), left, 1)), jnp.asarray(elements.draw((2,), right, 2))
        assert outcome(f, x, y) == outcome(f, x, y) == outcome(_elementwise.elementwise, name, x, y), (left, right)
        assert outcome(g, x, y) == outcome(g, x, y) == outcome(_expression.compute, split, (x, y)), (left, right)


CALLS = {
    "function": (interop.add, "interop.add"),
    "expression": (interop.elementwise("a + b"), r"interop.elementwise\('a \+ b'\)"),
    "product": (interop.matmul, "interop.matmul"),
}


@pytest.mark.parametrize("call", CALLS)
def test_errors_are_said_in_our_words_again(call):
    """By the first call, and once there is a plan."""
    f, name = CALLS[call]
    x = jnp.ones((2, 2))
    for _ in range(3):
        f(x, x)
        with pytest.raises(ValueError, match=rf"^{name}: .*\(2, 2\).*\(3, 3\)"):
            f(x, jnp.ones((3, 3)))
        gone = jnp.ones((2, 2)) + 0
        gone.delete()
        with pytest.raises(BufferError, match=rf"^{name}: b: the JAX array has been deleted"):
            f(x, gone)
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            f(x, x * float("nan"))


@pytest.mark.parametrize("call", CALLS)
def test_arrays_on_two_devices(call, place):
    if place == "cuda":
        machine.need_gpu(2)
    devices = jax.devices(place)
    assert len(devices) >= 2
    f, name = CALLS[call]
    x = jnp.ones((2, 2))
    for _ in range(2):
        assert f(x, jnp.ones((2, 2)))[0, 0] == 2
        with pytest.raises(ValueError, match=f"^{name}: a is on .*0 and b is on .*1; put both on one device"):
            f(x, jax.device_put(x, devices[1]))
        with jax.default_device(devices[1]):
            other = jnp.ones((2, 2))  # which jnp would copy silently
        with pytest.raises(ValueError, match=f"^{name}: a is on .*1 and b is on .*0; "):
            f(other, x)
        there = jax.device_put(x, devices[1])
        assert f(there, there).devices() == {devices[1]}


def test_weakly_typed_arrays_have_no_plan():
    weak, x = jnp.asarray(300), jnp.asarray([44, 1], "int8")
    for f in (interop.less, interop.elementwise("x < y")):
        for _ in range(2):
            assert f(x, jnp.asarray([1, 2], "int8")).tolist() == [False, True]
            assert f(x, weak).tolist() == [True, True]


@pytest.mark.parametrize("f", [interop.add, interop.elementwise("x + y")], ids=["function", "expression"])
def test_a_plan_is_for_the_configuration_in_which_it_was_made(f):
    """How dtypes are promoted is JAX's setting."""
    x, n = jnp.ones(3, "float32"), jnp.ones(3, "int32")
    for _ in range(2):
        assert f(x, n).dtype == f(n, x).dtype == "float32"
        with jax.numpy_dtype_promotion("strict"):
            assert f(x, x).dtype == "float32"
            with pytest.raises(TypeError, match="jax has no common dtype of"):
                f(x, n)


def test_scalars_do_not_heed_the_callers_errstate():
    x = jnp.ones(2, "float32")
    for _ in range(2):
        assert interop.multiply(x, 2.0).tolist() == [2, 2]
        with np.errstate(all="raise"):
            assert np.isinf(interop.multiply(x, 1e300)).all()
            assert interop.multiply(x, 1e-320).tolist() == [0, 0]
            assert interop.multiply(x.astype("float16"), 1e-7).tolist() == np.full(2, 1e-7, "float16").tolist()


def test_another_scalar_compiles_nothing():
    x = jnp.ones((3, 2), "bfloat16")
    f = interop.elementwise("where(x > t, x * a, b)")
    f(x, 0.5, 2.0, 3.0)
    for scalar in (2.5, 0.1, -7.0, 0.0):
        compiled = _door._plan_of(split_of_three(f), x.dtype, float, float, float).compiled
        before = compiled._cache_size()
        f(x, scalar, scalar, scalar)
        assert compiled._cache_size() == before


def split_of_three(f):
    """The split of the expression's own calls."""
    return interop._core.explain(f._calls, (jnp.ones(2, "bfloat16"), 1.0, 1.0, 1.0), {})[0]


def test_constants_inside_a_trace_are_traced():
    x = jnp.ones(3)
    interop.add(x, x)
    seen = []
    jax.jit(lambda y: seen.append(interop.add(x, x)) or y)(x)
    assert isinstance(seen[0], jax.core.Tracer)
