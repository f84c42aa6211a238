"""Comparisons are exact, and none raises for a value out of range: host arrays and JAX, functions and expressions."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings

import ml_dtypes
import numpy as np
import pytest
from helpers import comparisons, elements, libraries, products
from helpers.dlpack import Producer
from hypothesis import given
from hypothesis import strategies as st

import interop

NAMES = elements.COMPARISONS
EXPRESSIONS = {name: interop.elementwise(f"x {symbol} y") for name, symbol in comparisons.SYMBOLS.items()}
BOTH = pytest.mark.parametrize("function", [lambda name: getattr(interop, name), EXPRESSIONS.get], ids=["call", "text"])


def wide(library):
    return library.x64() if library.name == "jax" else contextlib.nullcontext()


def share(library, name, cases, parts=1):
    """All cases; of JAX, which compiles each, a part: another one for each comparison, or fewer by `parts`."""
    step = parts * len(NAMES) if library.name == "jax" else 1
    return itertools.islice(cases, NAMES.index(name) % step, None, step)


def check(library, function, name, a, b, x, y):
    with products.naming(f"{name}: {comparisons.text_of(x)}, {comparisons.text_of(y)}"):
        result = function(name)(a, b)
        assert library.is_ours(result)
        assert np.array_equal(library.to_numpy(result), comparisons.answer(name, x, y))


# ---- integers and bool ----


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_all_pairs_of_dtypes(host_library, function, name):
    with wide(host_library):
        for x, y in share(host_library, name, comparisons.pairs()):
            check(host_library, function, name, host_library.make(x), host_library.make(y), x, y)


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_0d_arrays_are_no_weaker(host_library, function, name):
    with wide(host_library):
        for dtype, other in share(host_library, name, itertools.product(comparisons.DTYPES, repeat=2)):
            x = comparisons.edges(dtype)
            array = host_library.make(x)
            for y in comparisons.some_edges(other):
                scalar = host_library.make(np.array(y))
                check(host_library, function, name, array, scalar, x, y)
                check(host_library, function, name, scalar, array, y, x)


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_scalars_of_any_size(host_library, function, name):
    cases = itertools.product(comparisons.DTYPES, comparisons.SCALARS)
    with wide(host_library):
        for dtype, scalar in share(host_library, name, cases, 5):
            x = comparisons.edges(dtype)
            array = host_library.make(x)
            check(host_library, function, name, array, scalar, x, scalar)
            check(host_library, function, name, scalar, array, scalar, x)


@pytest.mark.parametrize("scalar", [300, -129, 10**400, 127, 2.5, -0.5], ids=comparisons.text_of)
@pytest.mark.parametrize("name", NAMES)
def test_literals_of_any_size(host_library, name, scalar):
    x = np.array([-128, -1, 0, 2, 3, 127], "int8")
    symbol = comparisons.SYMBOLS[name]
    for text, answer in (
        (f"x {symbol} {scalar}", comparisons.answer(name, x, scalar)),
        (f"{scalar} {symbol} x", comparisons.answer(name, scalar, x)),
    ):
        result = interop.elementwise(text)(host_library.make(x))
        assert np.array_equal(host_library.to_numpy(result), answer), text


def test_the_library_of_a_0d_array_does_not_matter(torch, host_jax):
    wide_0d = np.array(300)
    x = np.array([44, 1], "int8")
    for array, scalar in itertools.product(
        (x, torch.from_numpy(x), interop.asarray(x), host_jax.numpy.asarray(x)),
        (wide_0d, torch.tensor(300), interop.asarray(wide_0d), host_jax.numpy.asarray(300), np.int64(300), 300),
    ):
        for less, equal in ((interop.less, interop.equal), (EXPRESSIONS["less"], EXPRESSIONS["equal"])):
            assert np.asarray(less(array, scalar)).tolist() == [True, True]
            assert np.asarray(equal(scalar, array)).tolist() == [False, False]


def test_layouts_and_outputs(host_library):
    if host_library.name == "jax":
        pytest.skip("JAX arrays have one layout, and are no outputs")
    base = np.arange(24, dtype="uint64").reshape(4, 6) + np.uint64(2**63)
    view = base[:, ::2].T
    array = host_library.view(base, view) if host_library.name != "interop" else interop.asarray(view)
    row = np.array([-1, 2**62, -(2**63), 5], "int64")
    for name in NAMES:
        out = host_library.make(np.zeros((3, 4), bool))
        for other in (row, 2**70, -1):
            assert getattr(interop, name)(array, other, out=out) is out
            assert np.array_equal(host_library.to_numpy(out), comparisons.answer(name, view, other))
            assert EXPRESSIONS[name](array, other, out=out) is out
            assert np.array_equal(host_library.to_numpy(out), comparisons.answer(name, view, other))
    with pytest.raises(TypeError, match="out"):
        interop.less(array, 2**70, out=np.zeros((3, 4), "int8"))


def test_intermediate_values():
    x, y, z = np.array([100, 100], "int8"), np.array([100, 27], "int8"), np.array([300, 127], "int16")
    assert interop.elementwise("(x + y) < z")(x, y, z).tolist() == [True, False]  # -56, as int8 wraps
    assert interop.elementwise("(x + y) == -56")(x, y).tolist() == [True, False]
    assert interop.elementwise("(x + y) < a")(x, y, 10**30).tolist() == [True, True]
    assert interop.elementwise("(x < y) == a")(x, y, 2).tolist() == [False, False]
    assert interop.elementwise("(x < y) >= z")(x, y, np.array([-(2**63), 1])).tolist() == [True, False]
    assert interop.elementwise("where(x == a, 1, 0) + (x > b)")(x, 356, -(10**20)).tolist() == [1, 1]
    unsigned, signed = np.array([2**64 - 1, 0], "uint64"), np.array([-1, 0])
    assert interop.elementwise("(u + 0) == (s * 1)")(unsigned, signed).tolist() == [False, True]
    with pytest.raises(OverflowError, match="a is 300, which int8 cannot hold"):
        interop.elementwise("where(x < a, x, a)")(x, 300)  # which is no comparison's


def test_one_expression_for_scalars_that_fit_and_that_do_not(host_library):
    """What is found out for one scalar is not taken for another of its kind."""
    x = host_library.make(np.array([1, 2, 3], "int8"))
    f = interop.elementwise("(a < x) == (x < b)")
    for a, b in itertools.product((2, -300, 300, 10**40), (2, 300, -300, np.int64(300), np.int64(2))):
        answer = [(a < k) == (k < b) for k in (1, 2, 3)]
        assert host_library.to_numpy(f(a, x, b)).tolist() == answer, (a, b)


def test_scalars_among_themselves():
    x = np.array([1, 2])
    f = interop.elementwise("where(a < b, x, 0)")
    for a, b in ((10**400, 2), (np.int64(3), 10**400), (np.float64(3), 10**400), (np.uint64(2**63), np.int64(-1))):
        assert f(a, b, x).tolist() == (x * (comparisons.number(a) < comparisons.number(b))).tolist()


def test_torch_s_unsigned_dtypes_are_compared_with_others(torch):
    """torch has no common dtype of them: sums are refused, comparisons need none of torch's."""
    x, y = torch.tensor([1, 2**32 - 1], dtype=torch.uint32), torch.tensor([-1, -1], dtype=torch.int32)
    assert interop.less(y, x).tolist() == [True, True]
    assert interop.elementwise("x == y")(x, y).tolist() == [False, False]
    with pytest.raises(TypeError, match="torch has no common dtype"):
        interop.add(x, y)


@given(st.data())
def test_property(data):
    """Any integers, of any dtypes and sizes."""

    def operand(dtype, shape):
        limits = np.iinfo(dtype) if dtype != "bool" else None
        number = st.integers(int(limits.min), int(limits.max)) if limits else st.booleans()
        count = math.prod(shape)
        return np.array(data.draw(st.lists(number, min_size=count, max_size=count)), dtype).reshape(shape)

    name = data.draw(st.sampled_from(NAMES))
    shapes = data.draw(st.sampled_from([((3,), (3,)), ((2, 1), (3,)), ((3,), ()), ((), ())]))
    x, y = (operand(data.draw(st.sampled_from(comparisons.DTYPES)), shape) for shape in shapes)
    if data.draw(st.booleans()):
        y = data.draw(st.integers(-(2**70), 2**70))
    if data.draw(st.booleans()):
        x, y = y, x
    for library in map(libraries.by_name, ("numpy", "torch")):
        a, b = (z if isinstance(z, int) else library.make(z) for z in (x, y))
        for function in (getattr(interop, name), EXPRESSIONS[name]):
            assert np.array_equal(library.to_numpy(function(a, b)), comparisons.answer(name, x, y))


# ---- floats ----


@BOTH
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", elements.FLOATS)
def test_numbers_beyond_a_float(host_library, function, name, dtype):
    """They are beyond all finite numbers, short of infinity, and nothing warns of them."""
    finite = float(ml_dtypes.finfo(elements.dtype_of(dtype)).max)
    x = np.array([-math.inf, -finite, -1, 0, finite, math.inf, math.nan]).astype(elements.dtype_of(dtype))
    if dtype == "bfloat16":
        x = x[:-1]  # of which ml_dtypes warns, whatever it is compared with
    beyond = [10**400, -(10**400), 10**5000]
    if dtype != "float64":
        beyond += [10**300, -(10**300), -1e300, 1e300]
    with wide(host_library), warnings.catch_warnings():
        warnings.simplefilter("error")
        array = host_library.make(x)
        for scalar in share(host_library, name, itertools.chain(beyond, beyond)):
            check(host_library, function, name, array, scalar, x.astype(float), scalar)
            check(host_library, function, name, scalar, array, scalar, x.astype(float))


@pytest.mark.parametrize("dtype", elements.COMPLEX)
def test_numbers_beyond_a_complex_number(host_library, dtype):
    x = host_library.make(np.array([1, complex(math.inf, 0), complex(math.nan, 1)], dtype))
    for equal, not_equal in ((interop.equal, interop.not_equal), (EXPRESSIONS["equal"], EXPRESSIONS["not_equal"])):
        assert host_library.to_numpy(equal(x, 10**400)).tolist() == [False] * 3
        assert host_library.to_numpy(not_equal(-(10**400), x)).tolist() == [True] * 3
        assert host_library.to_numpy(equal(x, 1)).tolist() == [True, False, False]
    for less in (interop.less, EXPRESSIONS["less"]):
        with pytest.raises(TypeError, match="accepted: bool, integers and floats"):
            less(x, 10**400)


def test_integers_beside_floats_are_promoted(torch):
    """By the library, as in arithmetic: to float64 by NumPy, to float32 by torch."""
    x = np.array([2**24 + 1])
    y = np.array([2**24], "float32")
    assert interop.equal(x, y).tolist() == [False]
    assert interop.equal(torch.from_numpy(x), torch.from_numpy(y)).tolist() == [True]
    assert interop.equal(y, 2**24 + 1).tolist() == [True]  # weak: float32's
    assert interop.equal(np.array([2**53 + 1]), 2.0**53).tolist() == [True]
    assert interop.less(np.array([1], "int8"), math.inf).tolist() == [True]
    assert interop.less(np.array([1], "int8"), -1e300).tolist() == [False]


# ---- other spellings ----


def test_explain_says_what_the_call_does(jax):
    for x in (np.array([1, 2], "int8"), jax.numpy.array([1, 2], "int8")):
        for scalar in (300, -(10**5000), np.int64(300)):
            assert interop.explain(interop.less, x, scalar).result_dtype == "bool"
            assert interop.explain(EXPRESSIONS["less"], x, scalar).result_dtype == "bool"
        with pytest.raises(OverflowError):
            interop.explain(interop.add, x, 300)


def test_weakly_typed_jax_arrays_have_a_value_of_their_own(jax):
    jnp = jax.numpy
    x = jnp.array([44, 1], "int8")
    for wrap in (lambda f: f, jax.jit):
        for less, equal in ((interop.less, interop.equal), (EXPRESSIONS["less"], EXPRESSIONS["equal"])):
            assert wrap(less)(x, jnp.asarray(300)).tolist() == [True, True]
            assert wrap(equal)(jnp.asarray(300), x).tolist() == [False, False]
            assert wrap(equal)(x, 44).tolist() == [True, False]
            assert wrap(less)(x, 300).tolist() == [True, True]
    assert interop.elementwise("(w + 0) < x")(jnp.asarray(300), x).tolist() == [False, False]


def test_jax_transforms(jax):
    jnp = jax.numpy
    with libraries.by_name("jax").x64():
        x, y = jnp.array([[2**64 - 1, 0], [2**63, 7]], "uint64"), jnp.array([[-1, 0], [-(2**63), 7]])
        for function in (interop.equal, EXPRESSIONS["equal"]):
            assert jax.jit(jax.vmap(function))(x, y).tolist() == [[False, True], [False, True]]
            assert jax.vmap(function, in_axes=(0, None))(x, y[0]).tolist() == [[False, True], [False, False]]
            assert jax.jit(lambda z, f=function: f(z, 10**400))(x).tolist() == [[False] * 2] * 2
        assert interop.less(y, x).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("function", [interop.less, EXPRESSIONS["less"]], ids=["call", "text"])
def test_jax_without_its_x64_mode(jax, function):
    jnp = jax.numpy
    for signed, unsigned in itertools.product(("int8", "int16", "int32"), ("uint8", "uint16", "uint32")):
        x, y = comparisons.edges(signed)[:, None], comparisons.edges(unsigned)
        for wrap in (lambda f: f, jax.jit):
            result = wrap(function)(jnp.asarray(x), jnp.asarray(y))
            assert np.array_equal(result, comparisons.answer("less", x, y)), (signed, unsigned)
    assert function(jnp.array([1], "int32"), 2**40).tolist() == [True]


def test_unknown_producers():
    x, y = Producer(np.array([2**64 - 1, 5], "uint64")), Producer(np.array(-1))
    assert np.asarray(interop.less(x, y)).tolist() == [False, False]
    assert np.asarray(interop.greater(x, 2**64)).tolist() == [False, False]
