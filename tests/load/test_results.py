"""`returning` of C functions: results that are made or given, the rules for their shapes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.c_functions import A, B
from helpers.scalars import Choice, Integer

import interop


def test_results_are_made_by_the_callers_library(lib, host_library):
    add = lib.sum.returning(c="a")
    result = add(host_library.make(A), host_library.make(B), 5)
    assert host_library.is_ours(result)
    np.testing.assert_array_equal(host_library.to_numpy(result), A + B)


def test_a_result_may_be_given(lib):
    c = np.zeros(5, "float32")
    assert lib.sum.returning(c="a")(A, B, 5, c=c) is c
    np.testing.assert_array_equal(c, A + B)
    split = lib.split.returning(low="x", high="x")
    given = np.zeros(1, "int64")
    low, high = split(np.array([2.5]), 1, high=given)
    assert high is given
    assert (low[0], high[0]) == (0.5, 2)


def test_several_results_and_a_rule_for_their_shape(lib):
    split = lib.split.returning(high=lambda x, n: (n,), low="x")
    low, high = split(np.array([1.25, -0.5, 7.0]), 3)
    np.testing.assert_array_equal(low, [0.25, 0.5, 0.0])
    np.testing.assert_array_equal(high, [1, -1, 7])
    assert high.dtype == "int64"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"n": "a"}, "returning: n is no pointer to elements that are written; accepted: c"),
        ({"a": "b"}, "returning: a is no pointer"),
        ({"c": "c"}, "returning: the shape of c is 'c'; accepted: a function, or one of a, b"),
        ({"c": 5}, "returning: the shape of c is int; accepted: a function, or one of a, b"),
        ({"c": (5,)}, "returning: the shape of c is tuple; accepted: a function"),
        ({"c": A}, "returning: the shape of c is ndarray; accepted: a function"),
        ({"c": lambda a, n: n}, "too many positional arguments; accepted: one that takes 3 by position .a, b, n.$"),
        ({"c": lambda a, b, n, m: n}, "missing a required argument: 'm'; accepted: one that takes 3"),
        ({"c": lambda *, a, b, n: n}, "the function for the shape of c cannot be called"),
    ],
)
def test_results_that_cannot_be_made(lib, rules, message):
    with pytest.raises((ValueError, TypeError), match=f"^libsum.sum: .*{message}"):
        lib.sum.returning(**rules)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (5.0, TypeError, "the shape of c, as its function returns it, is float; accepted: a tuple of ints, or an int"),
        ((5, 1.5), TypeError, "the shape of c has the size float; accepted: an int"),
        ([5, None], TypeError, "the shape of c has the size NoneType; accepted: an int"),
        (None, TypeError, "is NoneType; accepted"),
        ("5", TypeError, "has the size str; accepted: an int"),
        (-1, ValueError, "the shape of c has the size -1; accepted: 0 to"),
        ((5, 2**64), ValueError, "the shape of c has the size 18446744073709551616; accepted"),
        ((10**5000,), ValueError, "the shape of c has the size an integer of 16610 bits; accepted"),
        ((1,) * 65, ValueError, "the shape of c has 65 sizes; accepted: up to 64"),
        (2**62, ValueError, "more elements than any memory"),
    ],
)
def test_what_is_no_shape(lib, returned, error, message):
    c = np.zeros(5, "float32")
    made = lib.sum.returning(c=lambda a, b, n: returned)
    for results in ({}, {"c": c}):
        with pytest.raises(error, match=f"^libsum.sum: .*{message}") if returned != 2**62 else pytest.raises(error):
            made(A, B, 5, **results)
    assert not c.any()


@pytest.mark.parametrize(
    "returned",
    [5, np.int64(5), (5,), [5], (np.int32(5),), np.array(5), np.array([5]), Integer(5), Choice.three.value + 2],
)
def test_what_is_a_shape(lib, returned):
    made = lib.sum.returning(c=lambda a, b, n: returned)
    assert made(A, B, 5).shape == (5,)
    c = np.zeros(5, "float32")
    assert made(A, B, 5, c=c) is c
    np.testing.assert_array_equal(c, A + B)


def test_an_error_of_a_shape_rule_is_its_own_and_says_where(lib):
    with pytest.raises(ZeroDivisionError) as caught:
        lib.sum.returning(c=lambda a, b, n: n // 0)(A, B, 5)
    assert caught.value.__notes__ == ["libsum.sum: raised by the function for the shape of c, of a, b, n"]


RULES = ["a", lambda a, b, n: a.shape, lambda a, b, n: n]


@pytest.mark.parametrize("rule", RULES, ids=["name", "tuple", "int"])
def test_a_given_result_has_the_shape_of_its_rule(lib, rule):
    add = lib.sum.returning(c=rule)
    whole = np.zeros(10, "float32")
    for c in (whole[:3], whole[:6], whole[:5].reshape(5, 1), whole[:5].reshape(1, 5), whole[:1].reshape(()), whole[:0]):
        for call in (
            add,
            lambda *args, **results: interop.explain(add, *args, **results),
            lambda a, b, n, c: add(n=n, c=c, b=b, a=a),
        ):
            with pytest.raises(ValueError, match=r"^libsum.sum: c has shape .*; accepted: .* returning\(\) .*, \(5,\)"):
                call(A, B, 5, c=c)
    for c, error in (
        (np.zeros(5), TypeError),
        (whole[::2], ValueError),
        (np.broadcast_to(np.float32(0), 5), (TypeError, ValueError)),
        ([0.0] * 5, TypeError),
    ):
        with pytest.raises(error, match=r"^libsum.sum: c "):
            add(A, B, 5, c=c)
    assert not whole.any()
    assert add(A, B, 5, c=whole[5:]).base is whole  # the right shape is written
    np.testing.assert_array_equal(whole, [0] * 5 + [*(A + B)])


def test_a_given_result_beside_one_that_is_made(lib):
    split = lib.split.returning(low="x", high="x")
    x = np.array([2.5, 1.5])
    for given in ({"high": np.zeros(1, "int64")}, {"low": np.zeros(3)}):
        with pytest.raises(ValueError, match=r"libsum.split: (high|low) has shape .*; accepted: .*\(2,\)"):
            split(x, 2, **given)
    low, high = split(x, 2, low=np.zeros(2))
    assert (low.tolist(), high.tolist()) == ([0.5, 0.5], [2, 1])


def test_a_result_needs_an_array_that_says_whose_it_is(path):
    lib = interop.load(path, "void wait_for(host int* flag_pipe, host char* byte);")
    made = lib.wait_for.returning(flag_pipe=lambda: (1,), byte=lambda: (1,))
    with pytest.raises(ValueError, match="libsum.wait_for: flag_pipe is to be made, and no array argument says whose"):
        made()


def test_a_function_with_a_value_makes_no_results(lib):
    with pytest.raises(ValueError, match="libsum.first_byte: returning: the C function returns a value"):
        lib.first_byte.returning(x="x")
