"""Comparisons of device arrays are exact, and none raises for a value out of range: functions and expressions."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings

import numpy as np
import pytest
from helpers import comparisons, elements, libraries, products

import interop

NAMES = elements.COMPARISONS
EXPRESSIONS = {name: interop.elementwise(f"x {symbol} y") for name, symbol in comparisons.SYMBOLS.items()}
BY_NAME = pytest.mark.parametrize("name", NAMES)


def wide(library):
    return library.x64() if library.name == "jax" else contextlib.nullcontext()


def share(library, name, cases):
    """All cases; of JAX, which compiles each, a part: another one for each comparison."""
    step = len(NAMES) if library.name == "jax" else 1
    return itertools.islice(cases, NAMES.index(name) % step, None, step)


def check(library, function, name, a, b, x, y):
    with products.naming(f"{name}: {comparisons.text_of(x)}, {comparisons.text_of(y)}"):
        result = function(a, b)
        assert library.is_ours(result)
        assert np.array_equal(library.to_numpy(result), comparisons.answer(name, x, y))


@BY_NAME
def test_arrays_of_all_pairs_of_dtypes(device_library, name):
    with wide(device_library):
        for x, y in share(device_library, name, comparisons.pairs()):
            a, b = device_library.make(x), device_library.make(y)
            check(device_library, getattr(interop, name), name, a, b, x, y)


@BY_NAME
def test_0d_arrays_are_no_weaker(device_library, name):
    """On the device, and in host memory."""
    function = getattr(interop, name)
    with wide(device_library):
        for dtype, other in share(device_library, name, itertools.product(comparisons.DTYPES, repeat=2)):
            x = comparisons.edges(dtype)
            array = device_library.make(x)
            for y in comparisons.some_edges(other):
                zero_d = np.array(y)
                for scalar in (device_library.make(zero_d), zero_d):
                    check(device_library, function, name, array, scalar, x, y)
                    if scalar is not zero_d:  # a host array that leads has its own library's result
                        check(device_library, function, name, scalar, array, y, x)


@BY_NAME
def test_scalars_of_any_size(device_library, name):
    function = getattr(interop, name)
    with wide(device_library):
        for dtype, scalar in share(device_library, name, itertools.product(comparisons.DTYPES, comparisons.SCALARS)):
            x = comparisons.edges(dtype)
            array = device_library.make(x)
            check(device_library, function, name, array, scalar, x, scalar)
            check(device_library, function, name, scalar, array, scalar, x)


def test_expressions_of_all_pairs_of_dtypes(device_library):
    """All six comparisons at once: one kernel for each pair."""
    bits = [f"where(x {symbol} y, {1 << place}, 0)" for place, symbol in enumerate(comparisons.SYMBOLS.values())]
    f = interop.elementwise(" + ".join(bits))
    with wide(device_library):
        for x, y in comparisons.pairs():
            with products.naming(f"{x.dtype}, {y.dtype}"):
                result = device_library.to_numpy(f(device_library.make(x), device_library.make(y)))
                for place, name in enumerate(comparisons.SYMBOLS):
                    assert np.array_equal(result >> place & 1, comparisons.answer(name, x, y)), name


@pytest.mark.parametrize("name", ["less", "equal"])
def test_expressions_of_scalars_and_0d_host_arrays(torch, name):
    library = libraries.by_name("torch", "cuda")
    scalars = (1, 2, 300, -300, 10**400, -(10**5000), np.int64(300), np.uint64(2**64 - 1), True)
    for dtype in ("bool", "int8", "int64", "uint64"):
        x = comparisons.edges(dtype)
        array = library.make(x)
        for scalar in scalars:
            check(library, EXPRESSIONS[name], name, array, scalar, x, scalar)
            check(library, EXPRESSIONS[name], name, scalar, array, scalar, x)
        for y in (np.array(300), np.array(-1, "int8"), np.array(2**64 - 1, "uint64")):
            check(library, EXPRESSIONS[name], name, array, torch.from_numpy(y), x, y[()])


def test_intermediate_values(torch):
    x, y = (torch.tensor(z, dtype=torch.int8, device="cuda") for z in ([100, 100], [100, 27]))
    z = torch.tensor([300, 127], dtype=torch.int16, device="cuda")
    assert interop.elementwise("(x + y) < z")(x, y, z).tolist() == [True, False]  # -56, as int8 wraps
    assert interop.elementwise("(x < y) == a")(x, y, 2).tolist() == [False, False]
    assert interop.elementwise("where(x == a, 1, 0) + (x > b)")(x, 356, -(10**20)).tolist() == [1, 1]


@pytest.mark.parametrize("layout", ["strided", "transposed", "broadcast", "unaligned"])
def test_uint64_beside_signed_in_every_kernel(torch, layout):
    library = libraries.by_name("torch", "cuda")
    x = elements.draw((130, 131), "uint64", 1)
    y = elements.draw((130, 131), "int64", 2)
    x[::3] = y[::3].view("uint64")
    a, b = library.make(x), library.make(y)
    if layout == "strided":
        x, y, a, b = x[:, ::2], y[:, ::2], a[:, ::2], b[:, ::2]
    elif layout == "transposed":
        x, y, a, b = x[:, :130].T, y[:, :130], a[:, :130].T, b[:, :130]
    elif layout == "broadcast":
        x, y, a, b = x[:, :1], y[:1], a[:, :1], b[:1]
    else:
        x, y, a, b = x[:, 1:], y[:, :-1], a[:, 1:], b[:, :-1]
    for name in NAMES:
        for function in (getattr(interop, name), EXPRESSIONS[name]):
            answer = comparisons.answer(name, x, y)
            assert np.array_equal(library.to_numpy(function(a, b)), answer)
            assert np.array_equal(library.to_numpy(function(b, a)), comparisons.answer(name, y, x))
            out = torch.zeros(answer.shape[::-1], dtype=torch.bool, device="cuda").T
            assert function(a, b, out=out) is out
            assert np.array_equal(library.to_numpy(out), answer)
            assert function(a, 2**64, out=out[:, :1] if layout == "broadcast" else out) is not None
            assert np.array_equal(library.to_numpy(function(a, 2**64)), comparisons.answer(name, x, 2**64))


def test_host_arrays_by_execution():
    x, y = np.array([2**64 - 1, 5], "uint64"), np.array(-1)
    for less in (interop.less, EXPRESSIONS["less"]):
        assert less(x, y, execution="cuda").tolist() == [False, False]
        assert less(y, x, execution="cuda").tolist() == [True, True]
        assert less(x, 10**400, execution="cuda").tolist() == [True, True]


def test_jax_arrays_beside_others(torch, jax):
    jnp = jax.numpy
    x, y = jnp.array([1, 2**32 - 1], "uint32"), torch.tensor([-1, -1], dtype=torch.int32, device="cuda")
    for less in (interop.less, EXPRESSIONS["less"]):
        assert np.asarray(less(x, y)).tolist() == [False, False]
        assert less(y, x).tolist() == [True, True]
        assert np.asarray(less(x, torch.tensor(2**40))).tolist() == [True, True]


@pytest.mark.parametrize("wrap", ["concrete", "jit"])
def test_weakly_typed_jax_arrays_have_a_value_of_their_own(jax, wrap):
    jnp = jax.numpy
    wrapped = jax.jit if wrap == "jit" else lambda f: f
    x = jnp.array([44, 1], "int8")
    for less, equal in ((interop.less, interop.equal), (EXPRESSIONS["less"], EXPRESSIONS["equal"])):
        assert wrapped(less)(x, jnp.asarray(300)).tolist() == [True, True]
        assert wrapped(equal)(jnp.asarray(300), x).tolist() == [False, False]
        assert wrapped(less)(x, 300).tolist() == [True, True]


@pytest.mark.parametrize("dtype", elements.FLOATS)
def test_numbers_beyond_a_float(torch, dtype):
    """They are beyond all finite numbers, short of infinity, and nothing warns of them."""
    library = libraries.by_name("torch", "cuda")
    finite = torch.finfo(getattr(torch, dtype)).max
    x = [-math.inf, -finite, -1.0, 0.0, finite, math.inf, math.nan]
    a = torch.tensor(x, dtype=torch.float64).to(getattr(torch, dtype)).cuda()
    beyond = [10**400, -(10**400)] if dtype == "float64" else [10**400, -(10**400), 10**300, 1e300, -1e300]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, scalar in itertools.product(NAMES, beyond):
            for function in (getattr(interop, name), EXPRESSIONS[name]):
                check(library, function, name, a, scalar, np.array(x), scalar)
                check(library, function, name, scalar, a, scalar, np.array(x))
        zero_d = torch.tensor(1e300, dtype=torch.float64)
        if dtype != "float64":
            check(library, interop.equal, "equal", a, zero_d, np.array(x), 1e300)
    assert interop.equal(a.to(torch.complex64), 10**400).tolist() == [False] * 7


def test_explain_says_what_the_call_does(torch):
    x = torch.tensor([1, 2], dtype=torch.int8, device="cuda")
    assert interop.explain(interop.less, x, 10**400).algorithm == "contiguous, vectors of 16, int8"
    u, s = torch.tensor([1], dtype=torch.uint64, device="cuda"), torch.tensor([-1], device="cuda")
    assert interop.explain(interop.less, u, s).algorithm.endswith(", uint64")
    assert "one kernel" in interop.explain(EXPRESSIONS["less"], x, 300).algorithm
    with pytest.raises(OverflowError, match="b is 300, which int8 cannot hold"):
        interop.add(x, 300)
