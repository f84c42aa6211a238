"""Inputs that broke other libraries: numbers, and the modes of JAX for them. The list: tests/gpu/cases."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import interop

# ---- numbers ----

COMPARISONS = {
    "equal": ("==", operator.eq),
    "not_equal": ("!=", operator.ne),
    "less": ("<", operator.lt),
    "less_equal": ("<=", operator.le),
    "greater": (">", operator.gt),
    "greater_equal": (">=", operator.ge),
}


# pytorch/pytorch#178723, a cousin of it: a wide 0-d integer was cast to the dtype of the array, and wrapped.
@pytest.mark.parametrize("wide", [300, -300, 2**40])
def test_b105_a_wide_integer_of_no_dimensions_beside_a_narrow_array(torch, wide):
    values = [44, 1, -128, 127]
    a, s = torch.tensor(values, dtype=torch.int8), torch.tensor(wide)
    for name, (sign, compare) in COMPARISONS.items():
        want = [compare(value, wide) for value in values]
        assert getattr(interop, name)(a, s).tolist() == want
        assert getattr(interop, name)(s, a).tolist() == [compare(wide, value) for value in values]
        assert interop.elementwise(f"x {sign} y")(a, s).tolist() == want
    assert interop.equal(a, torch.tensor(44)).tolist() == [True, False, False, False]


# cupy/cupy#9753: uint64 beside a number above int64 was an OverflowError; beside signed integers it was wrong.
def test_b107_uint64_is_compared_exactly():
    a = np.array([0, 2**63, 2**64 - 1], "u8")
    assert interop.equal(a, 2**64 - 1).tolist() == [False, False, True]
    assert interop.greater_equal(2**63, a).tolist() == [True, True, False]
    assert interop.less(a, np.array([-1, -1, -1])).tolist() == [False] * 3


# jax-ml/jax#27021: uint32 beside int32 became int32 in 32-bit mode, and wrapped.
def test_b108_uint32_beside_int32_in_jax(host_jax):
    jnp = host_jax.numpy
    u, z = jnp.array([2147483647, 2147483648], jnp.uint32), jnp.array([0, 0], jnp.int32)
    for less in (interop.less, host_jax.jit(interop.less), interop.elementwise("x < y")):
        assert less(u, z).tolist() == [False, False]


# tinygrad/tinygrad#3186: float16 beside a Python number became float32.
def test_b110_maximum_of_a_narrow_float_and_a_number(torch):
    assert interop.maximum(np.array([1, 2], "f2"), 3.1).dtype == np.float16
    assert interop.maximum(torch.ones(2, dtype=torch.bfloat16), 3.1).dtype is torch.bfloat16
    assert np.isnan(interop.minimum(np.array([np.nan, 1.0]), np.array([0.0, np.nan]))).all()


# pydata/numexpr#428: the exponent -2.0 of an integer became an integer: zeros.
def test_b111_float_literals_stay_floats():
    result = interop.elementwise("x ** -2.0")(np.array([2, 4], "i4"))
    assert result.dtype == np.float64
    assert result.tolist() == [0.25, 0.0625]
    assert interop.elementwise("x ** -2")(np.array([2, 1, -1], "i4")).tolist() == [0, 1, 1]
    assert interop.elementwise("x ** 2.0")(np.array([3], "i2")).dtype == np.float64


# pydata/numexpr#415: constants of one value and two types were merged. Here `a * 1` is an integer and `a * 1.0` is not.
def test_b112_equal_constants_of_two_types_are_not_merged():
    x, y, a = np.array([1], "i1"), np.array([100], "i1"), 3
    want = interop.add(interop.multiply(x, a * 1), interop.multiply(y, a * 1.0))
    got = interop.elementwise("x * (a * 1) + y * (a * 1.0)")(x, a, y)
    assert got.dtype == want.dtype == np.float64
    assert got.tolist() == want.tolist() == [303.0]


# numpy/numpy#21506: the least integer by -1 trapped, or gave anything.
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_b114_the_least_integer_by_minus_one(host_jax, torch, name):
    least = np.array([-(2**31)], "i4")
    x = {"numpy": lambda: least, "torch": lambda: torch.from_numpy(least), "jax": lambda: host_jax.numpy.array(least)}
    x = x[name]()
    with np.errstate(over="ignore"):  # NumPy warns of it
        assert interop.floor_divide(x, -1).tolist() == [-(2**31)]
    assert interop.remainder(x, -1).tolist() == [0]
    assert interop.abs(x).tolist() == [-(2**31)]


# IntelPython/dpctl#1652: x // x was 0 on a GPU. The same on the device is in tests/gpu/cases.
def test_b116_x_floor_divided_by_x():
    x = np.arange(1, 4097, dtype="f4")
    assert (interop.floor_divide(x, x) == 1).all()
    assert (interop.remainder(x * 3, x) == 0).all()
    assert (interop.elementwise("x // y")(x, x) == 1).all()


# ---- modes of JAX ----


# jax-ml/jax#25299: the second run of a computation, which looks for the NaN, broke.
@pytest.mark.parametrize("name", ["divide", "multiply", "remainder", "matmul", "expression"])
def test_b118_debug_nans(host_jax, name):
    jnp = host_jax.numpy
    infinite, zero = jnp.full((2, 2), jnp.inf), jnp.zeros((2, 2))
    call = {
        "divide": lambda: interop.divide(zero, zero),
        "multiply": lambda: interop.multiply(infinite, zero),
        "remainder": lambda: interop.remainder(infinite, zero),
        "matmul": lambda: interop.matmul(infinite, zero),
        "expression": lambda: interop.elementwise("x / y")(zero, zero),
    }[name]
    with host_jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        call()


def test_b118_debug_infs(host_jax):
    jnp = host_jax.numpy
    with host_jax.debug_infs(True):
        with pytest.raises(FloatingPointError, match="inf"):
            interop.divide(jnp.ones(2), jnp.zeros(2))
        with pytest.raises(FloatingPointError, match="inf"):
            interop.matmul(jnp.full((2, 2), 2e38), jnp.full((2, 2), 2.0))
        assert interop.divide(jnp.ones(2), jnp.ones(2)).tolist() == [1, 1]


# jax-ml/jax#5532: what was compiled in one mode ran in the other. (The case divides an int32 array in 64-bit mode, of
# which jax.numpy makes float32: here the integers are those of the mode.)
def test_b119_64_bit_mode_on_and_off(host_jax):
    f = interop.elementwise("x / 3 + sqrt(x)")
    narrow = host_jax.numpy.arange(4, dtype="int32")
    for wide in (False, True, False, True):
        with host_jax.enable_x64(wide):
            want = "float64" if wide else "float32"
            x = host_jax.numpy.arange(4)
            assert interop.divide(x, 2).dtype == want
            assert f(x).dtype == want
            assert interop.add(narrow, 0.5).dtype == want
