"""The text of `interop.elementwise`: what is refused and where, how deep it may be, and the work of reading it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop

REFUSED = [  # text, where the caret stands, what the message says
    ("x.T + y", 1, "an attribute; accepted: arrays by their names"),
    ("é.T", 1, "an attribute"),
    ("x[0]", 1, "a subscript; accepted: whole arrays"),
    ("foo(x)", 0, "no function is called foo; accepted: abs acos"),
    ("1 + foo(x)", 4, "no function is called foo"),
    ("x(y)", 0, "no function is called x"),
    ("sqrt(x)(y)", 7, "a call of what is no function"),
    ("x.sum()", 1, "an attribute"),
    ("a < b < c", 6, "a chained comparison; accepted: one at a time"),
    ("(a < b) == c != d", 13, "a chained comparison"),
    ("x is y", 2, "this comparison has no meaning for elements; accepted: == != < <= > >="),
    ("x in y", 2, "this comparison"),
    ("x @ y", 2, "this operator has no meaning for elements; accepted: + - "),
    ("(x) @ y", 4, "this operator"),
    ("x and y", 2, "`and` asks an array for one truth; accepted: logical_and"),
    ("x or y", 2, "`or` asks an array for one truth; accepted: logical_or"),
    ("not x", 0, "`not` asks an array for one truth; accepted: logical_not"),
    ("x if c else y", 2, "`if` asks an array for one truth; accepted: where"),
    ("sqrt(x, y)", 0, "sqrt has 2 arguments here; accepted: sqrt(x)"),
    ("x + where(x, y)", 4, "where has 2 arguments here; accepted: where(condition, x, y)"),
    ("where(c, x=1)", 9, "an argument by keyword"),
    ("where(c, **x)", 9, "an argument by keyword"),
    ("minimum(*x)", 8, "an argument with a star"),
    ("'a' + x", 0, "a str is no number; accepted: int, float"),
    ("x + None", 4, "None is no number"),
    ("x + ...", 4, "a ellipsis is no number"),
    ("f'{x}'", 0, "a str"),
    ("x, y", 0, "a tuple"),
    ("[x]", 0, "a list"),
    ("{x}", 0, "a set"),
    ("lambda: x", 0, "a lambda"),
    ("[x for x in y]", 0, "a comprehension"),
    ("(x := y)", 1, "an assignment"),
    ("abs + 1", 0, "abs is a function; accepted: a call of it, abs(x)"),
    ("x + out", 4, "out is an option of the call"),
    ("x + stream", 4, "stream is an option"),
    ("", 0, "the expression is empty"),
    (" \n ", 0, "the expression is empty"),
    ("1 + 2", 0, "there is no parameter"),
    ("x +", 3, "not an expression of Python: invalid syntax"),
    ("x + * y", 4, "not an expression of Python: invalid syntax"),
    ("x = y", 2, "not an expression of Python"),
    ("x; y", 1, "not an expression of Python"),
    ("import os", 0, "not an expression of Python"),
    ("x\n y", 3, "not an expression of Python"),
    ("x + 1 # y", 6, "a comment, or a str; accepted: one expression, over any number of lines"),
    ("x + 0b2", 6, "not an expression of Python"),
    ("x + \0", 0, "not an expression of Python"),
    ("(" * 300 + "x" + ")" * 300, 0, "not an expression of Python: too many nested parentheses"),
    ("-" * 300 + "x", 201, "nested too deeply here"),
    ("+".join(f"x{k}" for k in range(17)), 54, "one parameter too many; accepted: 16 parameters"),
]


@pytest.mark.parametrize(("text", "at", "words"), REFUSED, ids=[repr(text[:20]) for text, _, _ in REFUSED])
def test_what_is_not_accepted_is_pointed_at(text, at, words):
    with pytest.raises(ValueError) as caught:
        interop.elementwise(text)
    first, *lines = str(caught.value).split("\n    ")
    assert first.startswith(f"interop.elementwise: {words}")
    if "\0" in text or "((" in text:  # Python says where
        return
    carets = [k for k, line in enumerate(lines) if line.strip() == "^"]
    assert len(carets) == 1
    before = lines[: carets[0]]
    assert sum(len(line) + 1 for line in before[:-1]) + lines[carets[0]].index("^") == at
    assert "\n".join([*before, *lines[carets[0] + 1 :]]) == text.strip()


def test_the_caret_of_a_long_text_is_under_its_line():
    with pytest.raises(ValueError) as caught:
        interop.elementwise("(x\n + y\n  + z.T\n)")
    assert str(caught.value).split("\n    ")[1:] == ["(x", " + y", "  + z.T", "     ^", ")"]


@pytest.mark.parametrize("text", [None, 3, b"x"])
def test_the_text_is_a_str(text):
    with pytest.raises(TypeError, match="interop.elementwise: the expression is .*; accepted: a str"):
        interop.elementwise(text)


def test_no_text_is_run():
    for text in ("__import__('os')", "x.__class__", "exec('1')", "open('x')", "x if (y := 1) else 2"):
        with pytest.raises(ValueError, match="accepted"):
            interop.elementwise(text)


@pytest.mark.parametrize("text", ["x + 9 ** 9 ** 9 ** 9", "x + (1 << 10 ** 12)", "x << 10 ** 9 ** 9"])
def test_no_literal_keeps_the_process_busy(text):
    with pytest.raises(OverflowError):
        interop.elementwise(text)(np.arange(3))


@pytest.mark.parametrize("text", ["x +\n\ty", "\n x\r\n+ y\n", "x \\\n + y", "x\f+\vy", "(x\n+ y)"])
def test_an_expression_may_be_on_several_lines(text):
    assert interop.elementwise(text)(np.ones(2), 2).tolist() == [3, 3]


def calls_of(function):
    """How many calls and returns of functions there are."""
    counted = 0

    def count(*_):
        nonlocal counted
        counted += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def joined(terms):
    """Their sum, no deeper than it must be."""
    while len(terms) > 1:
        terms = [f"({' + '.join(terms[k : k + 2])})" for k in range(0, len(terms), 2)]
    return terms[0]


@pytest.mark.parametrize(
    "term",
    ["(x * {k} - y / (x + {k}.5))", "(x * y) ** 2", "(a * {k} - b)", "x * (a + 1)", "where(x > {k}, sqrt(x), -y)"],
)
def test_the_work_is_linear_in_the_length(term):
    """Twice the terms are at most about twice the calls, of reading the text and of the first call of the function."""
    calls = {}
    for count in (256, 512):
        text = "x * y + " + joined([term.format(k=k) for k in range(count)])
        made = []
        calls[count] = [calls_of(lambda text=text, made=made: made.append(interop.elementwise(text)))]
        given = {"x": np.ones(3), "y": np.ones(3), "a": 2.0, "b": 3}
        given = {name: given[name] for name in made[0].parameters}
        calls[count].append(calls_of(lambda made=made, given=given: made[0](**given)))
    for short, long in zip(calls[256], calls[512], strict=True):
        assert long <= 2.2 * short


DEEP = {
    "brackets": "(" * 10_000 + "x" + ")" * 10_000,
    "calls": "abs(" * 10_000 + "x" + ")" * 10_000,
    "signs": "-" * 10_000 + "x",
    "powers": "**".join(["x"] * 10_000),
    "a sum": "+".join(["x"] * 10_000),
    "comparisons": "<".join(["x"] * 10_000),
    "choices": "x if x else " * 10_000 + "x",
    "functions": "lambda: " * 10_000 + "x",
}


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_a_value_error(text, in_thread):
    found = []

    def read():
        try:
            interop.elementwise(text)
        except ValueError as error:
            found.append(str(error))

    if in_thread:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    else:
        read()
    assert len(found) == 1
    assert found[0].startswith("interop.elementwise: ")


def test_as_deep_as_is_said():
    for text, answer in (("-" * 200 + "x", 1), ("x" + " + x" * 200, 201), ("(" * 150 + "x" + ")" * 150, 1)):
        assert interop.elementwise(text)(np.ones(1)).tolist() == [answer]
    with pytest.raises(ValueError, match="nested too deeply here; accepted: 200 operations within one another"):
        interop.elementwise("x" + " + x" * 201)


@given(st.text(alphabet="xy+-*/%()<>=!&|^~., 0123456789eE\n'[]:abswher", max_size=30))
def test_any_text_is_an_expression_or_a_value_error(text):
    try:
        function = interop.elementwise(text)
    except ValueError as error:
        found = str(error).count("; accepted: ")
    else:
        found = len(function.parameters)
    assert found >= 1
