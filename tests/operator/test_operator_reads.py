"""Which arguments a gradient reads: what it may read by any way is kept."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types

import pytest

from interop._operators import reads
from interop._operators.reads import reads_of

Y = 3
evaluated = locals
stack_of_calls = inspect.stack


def wrapped(f):
    @functools.wraps(f)
    def call(*args):
        return f(*args)

    return call


def handed_on(f):
    @functools.wraps(f)
    def call(g, a, b):
        return f(g, a, b)

    return call


def other(*args):
    return args


def closes_over(value):
    return lambda g, x, y: value(g)


class Gradient:
    def method(self, g, x, y):
        return x

    @staticmethod
    def static(g, x, y):
        return x

    @classmethod
    def of_class(cls, g, x, y):
        return x

    def __call__(self, g, x, y):
        return x


def plain(g, x, y):
    return g * x


def positional(g, x, /, y, *, scale=1):
    return g * y * scale


def of_attributes(g, x, y):
    return g * Gradient.y if g.x else g  # of the names of other things: more is kept, never less


def two_at_once(g, x, y):
    return other(x, y)  # which Python 3.13 loads by one instruction


def exchanged(g, x, y):
    x, y = y, x
    return y


def nested(g, x, y):
    def of_x():
        return [x for _ in range(2)]

    return of_x()


def listed(g, x, y):
    return [x * k for k in range(3)]  # in Python 3.11 a function of its own


def of_class_body(g, x, y):
    class Scope:
        z = y

    return Scope.z


def in_handlers(g, x, y):
    with contextlib.suppress(ValueError):
        try:
            return g
        finally:
            x.flush()


def matched(g, x, y):
    match g:
        case 1:
            return y
    return g


def assigned(g, x, y):
    if (z := x) is not g:
        return z
    return g


def deleted(g, x, y):
    del y
    return g


def yielded(g, x, y):
    yield x


def of_defaults(g, x, y, extra=2):
    return lambda by=x: by * extra


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, [True, False]),
        (positional, [False, True]),
        (of_attributes, [True, True]),
        (two_at_once, [True, True]),
        (exchanged, [True, True]),
        (nested, [True, False]),
        (listed, [True, False]),
        (of_class_body, [False, True]),
        (in_handlers, [True, False]),
        (matched, [False, True]),
        (assigned, [True, False]),
        (yielded, [True, False]),
        (of_defaults, [True, False]),
        (closes_over(len), [False, False]),
        (lambda g, x, y: (lambda: y)(), [False, True]),
        (lambda g, x, y: g, [False, False]),
        (lambda g, x, y: Y, [False, False]),
        (Gradient.static, [True, False]),
        (handed_on(plain), [True, True]),  # whatever that reads
    ],
)
def test_what_the_code_mentions_is_read(function, expected):
    assert reads_of(function, 2) == expected


def test_what_is_deleted_is_kept():
    assert reads_of(deleted, 2)[1]


def by_locals(g, x, y):
    return locals()["x"]


def by_another_name(g, x, y):
    return evaluated()["x"]


def by_vars(g, x, y):
    return vars()["x"]


def by_eval(g, x, y):
    return eval("x")


def by_exec(g, x, y):
    exec("x")


def by_frame(g, x, y):
    return sys._getframe().f_locals


def by_inspect(g, x, y):
    return inspect.currentframe()


def by_stack(g, x, y):
    return stack_of_calls()


def by_text(g, x, y):
    import numexpr

    return numexpr.evaluate("g * x")


def of_any(g, *rest):
    return rest


def too_few(g, x):
    return g


def before_a_name_is_set():
    yield lambda g, x, y: late(g)
    late = locals


@pytest.mark.parametrize(
    "function",
    [
        by_locals,
        by_another_name,
        by_vars,
        by_eval,
        by_exec,
        by_frame,
        by_inspect,
        by_stack,
        by_text,
        of_any,
        too_few,
        closes_over(locals),
        next(before_a_name_is_set()),
        wrapped(plain),
        functools.partial(plain),
        functools.cache(plain),
        Gradient().method,
        Gradient.of_class,
        Gradient(),
        types.MethodType(plain, 1),
        max,
        print,
        "".join,
        Gradient,
    ],
)
def test_where_that_is_not_known_all_is_read(function):
    assert reads_of(function, 2) == [True, True]


def test_no_function_reads_nothing():
    assert reads_of(None, 2) == [False, False]


def test_instructions_of_a_python_to_come(monkeypatch):
    """Two variables in one: by their names, as Python 3.13 has it, or as a number, which says nothing."""
    steps = [types.SimpleNamespace(opname="LOAD_FAST_LOAD_FAST", argval=("g", "y"))]
    monkeypatch.setattr(reads, "dis", types.SimpleNamespace(get_instructions=lambda code: steps))
    assert reads_of(plain, 2) == [False, True]
    steps[0].argval = 18
    assert reads_of(plain, 2) == [True, True]
