"""Arrays of 0 to 66 dimensions by every producer: as many as the library has are computed, more are refused by name."""

from __future__ import annotations

import ctypes
import functools
import math
import sys

import numpy as np
import pytest
from helpers.boxes import new_box, unpack
from helpers.dlpack import ABSENT, Cai, Fake, OldFake
from helpers.exchange_api import Exchange
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import interop

MOST = 64
OF_NUMPY = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
EXCHANGE = Exchange()


Box = new_box(name="boxes of test_dimensions", export=unpack)


def nested(x, shape):
    """A ctypes array of arrays, which has as many dimensions as one likes."""
    kind = functools.reduce(lambda inner, size: inner * size, reversed(shape), ctypes.c_double)
    return kind.from_buffer_copy(x.tobytes()) if shape else memoryview(x.reshape(()))


def lying(x, shape):
    """A Fake of that shape, which NumPy may not have."""
    return Fake(x, shape=shape, strides=None)


def shown(x, shape):
    interface = {**x.__array_interface__, "shape": shape, "strides": None}
    return type("Shows", (), {"__array_interface__": interface, "keep": x})()


PRODUCERS = {
    "ctypes": nested,
    "numpy": lambda x, shape: x.reshape(shape),
    "array interface": shown,
    "dlpack": lying,
    "old dlpack": lambda x, shape: OldFake(x, shape=shape, strides=None),
    "capsule": lambda x, shape: lying(x, shape).capsule(),
    "old capsule": lambda x, shape: lying(x, shape).capsule(versioned=False),
    "exchange api": lambda x, shape: EXCHANGE.array(x, shape=shape, strides=None),
    "registered": lambda x, shape: Box(lying(x, shape)),
    "registered buffer": lambda x, shape: Box(nested(x, shape)),
    "torch": lambda x, shape: sys.modules["torch"].from_numpy(x).reshape(shape),
    "interop": lambda x, shape: interop.asarray(lying(x, shape)),
}


def shape_of(ndim, places):
    """(1, 1, 2, 1, 3, 1, ...): a size above 1 at each of these places."""
    sizes = [1] * ndim
    for k, place in enumerate(places):
        if ndim:
            sizes[place % ndim] = 2 + k
    return tuple(sizes)


def values_of(x):
    """The values in row-major order, of an array that NumPy may have too few dimensions for."""
    return np.frombuffer(interop._core.read(x)["values"])


FUNCTIONS = {
    "asarray": (interop.asarray, lambda x: x),
    "add": (lambda a: interop.add(a, 1), lambda x: x + 1),
    "negative": (interop.negative, lambda x: -x),
    "expression": (interop.elementwise("2 * x + x"), lambda x: 3 * x),
    "convert": (lambda a: interop.convert(a, "interop"), lambda x: x),
}


@pytest.mark.parametrize("name", PRODUCERS)
@given(
    ndim=st.integers(0, 66),
    places=st.lists(st.integers(0, 65), max_size=2, unique=True),
    function=st.sampled_from(sorted(FUNCTIONS)),
)
@example(ndim=64, places=[0, 63], function="expression")
@example(ndim=65, places=[], function="add")
@example(ndim=66, places=[], function="add")
@example(ndim=33, places=[0], function="expression")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_of_dimensions(name, ndim, places, function, torch):
    shape = shape_of(ndim, places)
    if name == "exchange api" and ndim > OF_NUMPY:
        return  # whose results are NumPy's here
    x = np.arange(float(math.prod(shape)))
    call, answer = FUNCTIONS[function]
    try:
        array = PRODUCERS[name](x, shape)
    except ValueError as error:  # NumPy's own, or interop.asarray's
        assert "dimension" in str(error)  # noqa: PT017
        assert ndim > (OF_NUMPY if name == "numpy" else MOST)
        return
    try:
        result = call(array)
    except (ValueError, BufferError) as error:
        text = str(error)
        assert text.startswith("interop.")
        assert "dimension" in text
        assert ndim > (OF_NUMPY if name == "array interface" or function not in ("asarray", "convert") else MOST)
        return
    assert ndim <= MOST
    assert interop._core.read(result)["shape"] == shape
    assert np.array_equal(values_of(result), answer(x))
    EXCHANGE.fakes.clear()


@pytest.mark.parametrize("name", sorted(set(PRODUCERS) - {"numpy", "array interface", "interop"}))
@pytest.mark.parametrize("ndim", [65, 66, 200])
def test_too_many_dimensions_are_refused_everywhere(name, ndim, torch):
    x, other, into = np.ones(1), np.ones(1), np.ones((1,) * 32)
    words = f"has {ndim} dimensions; accepted: up to 64"

    kept = []  # a capsule's destructor is Python here, and must not run while an error is on its way

    def array():
        kept.append(PRODUCERS[name](x, (1,) * ndim))
        return kept[-1]

    calls = {
        "interop.add: a": lambda: interop.add(array(), other),
        "interop.add: b": lambda: interop.add(other, array()),
        "interop.add: out": lambda: interop.add(other, 1, out=array()),
        "interop.less: a": lambda: interop.less(array(), 1),
        "interop.matmul: a": lambda: interop.matmul(array(), other),
        "interop.matmul: b": lambda: interop.matmul(into, array()),
        "interop.matmul: c": lambda: interop.matmul(other, other, c=array()),
        r"interop.elementwise\('x \+ y'\): y": lambda: interop.elementwise("x + y")(other, array()),
        "interop.asarray: x": lambda: interop.asarray(array()),
        "interop.convert: x": lambda: interop.convert(array(), "numpy"),
        "interop.testing: the array": lambda: interop._core.read(array()),
    }
    for label, call in calls.items():
        with pytest.raises(ValueError, match=f"^{label} {words}"):
            call()
    explained = {"interop.add: a": lambda: interop.explain(interop.add, array(), 1)}
    for label, call in explained.items():
        with pytest.raises(ValueError, match=f"^{label} {words}"):
            call()


@pytest.mark.skipif(OF_NUMPY < 64, reason="this NumPy has 32 dimensions")
@pytest.mark.parametrize(
    "expression",
    ["x + y", "where(x > y, x, y)", "sqrt(x) + y ** 2", "round(x) // y", "x % y", "maximum(x, y)", "tanh(x * y)"],
)
def test_expressions_on_the_host_have_64_dimensions(expression):
    x = np.arange(1.0, 7.0).reshape((2,) + (1,) * 62 + (3,))
    y = np.arange(2.0, 4.0).reshape((2,) + (1,) * 30)
    result = interop.elementwise(expression)(x, y)
    flat = interop.elementwise(expression)(x.reshape(2, 1, 3), y.reshape(2, 1))  # of dimensions that NumPy always had
    assert result.shape == (2,) + (1,) * 32 + (2,) + (1,) * 29 + (3,)
    assert np.array_equal(result.ravel(), flat.ravel())


@pytest.mark.skipif(OF_NUMPY < 64, reason="this NumPy has 32 dimensions")
def test_products_of_64_dimensions(torch):
    a = np.arange(12.0).reshape((2,) + (1,) * 61 + (2, 3))
    b = np.arange(24.0).reshape((2,) + (1,) * 61 + (3, 4))
    answer = a.reshape(2, 2, 3) @ b.reshape(2, 3, 4)
    for x, y in ((lying(a, a.shape), b), (torch.from_numpy(a), torch.from_numpy(b))):
        c = interop.matmul(x, y)
        assert tuple(c.shape) == (2,) + (1,) * 61 + (2, 4)
        assert np.array_equal(np.asarray(c).reshape(2, 2, 4), answer)
    row = interop.matmul(np.ones(3), b)
    assert row.ndim == 63


def test_cuda_array_interfaces_of_too_many_dimensions():
    """The pointer is asked about last, so this needs no GPU."""
    good = {"typestr": "<f8", "data": (4096, False), "version": 3, "strides": ABSENT}
    with pytest.raises(ValueError, match=r"^interop.add: a has 65 dimensions; accepted: up to 64"):
        interop.add(Cai(None, shape=(1,) * 65, **good), 1)
    with pytest.raises(ValueError, match=r"^interop.add: a has 66 dimensions; accepted: up to 64"):
        interop.add(Cai(None, **{**good, "shape": (2, 2), "strides": (8,) * 66}), 1)


def test_jax_arrays_of_too_many_dimensions(host_jax):
    jnp = host_jax.numpy
    many, few = jnp.ones((1,) * 65), jnp.ones((2,) + (1,) * 63)
    assert interop.add(few, few).shape == few.shape
    assert interop.elementwise("x + y")(few, few).shape == few.shape
    for label, call in {
        "interop.add: a": lambda: interop.add(many, 1),
        "interop.add: b": lambda: interop.add(few, many),
        "interop.abs: x": lambda: interop.abs(many),
        "interop.matmul: a": lambda: interop.matmul(many, few),
        r"interop.elementwise\('x \+ y'\): y": lambda: interop.elementwise("x + y")(few, many),
        "interop.asarray: x": lambda: interop.asarray(many),
    }.items():
        with pytest.raises(ValueError, match=f"^{label} has 65 dimensions; accepted: up to 64"):
            call()
        with pytest.raises(ValueError, match="65 dimensions"):
            host_jax.jit(call)() if "asarray" not in label else call()


def test_the_doors_of_the_compiled_half_count_dimensions():
    core = interop._core
    many = (1,) * 65
    with pytest.raises(ValueError, match="65 dimensions"):
        core.abstract_operands("f", [("x", many, None)])
    with pytest.raises(ValueError, match="65 dimensions"):
        core.elementwise_layout(many, many, [], [])
    with pytest.raises(ValueError, match="65 dimensions"):
        core.abstract_matmul((many, "float32"), ((1, 1), "float32"), "float32")
    with pytest.raises(ValueError, match="no such loop"):
        core.elementwise_layout((1,), (1,), [(1,)] * 17, [(1,)] * 17)
    assert core.abstract_operands("f", [("a", (1,) * 64, None), ("b", (3,), None)]) == (1,) * 63 + (3,)


@pytest.mark.skipif(OF_NUMPY < 64, reason="this NumPy has 32 dimensions")
def test_an_out_of_many_dimensions_that_overlaps(torch):
    """The check of overlaps goes through NumPy, which may have fewer dimensions than torch."""
    x = torch.arange(6.0).reshape((2,) + (1,) * 62 + (3,))
    y = torch.zeros_like(x)
    assert interop.add(x, 1, out=y) is y
    assert torch.equal(y, x + 1)
    assert interop.add(x, 1, out=x) is x
    assert torch.equal(x, y)
