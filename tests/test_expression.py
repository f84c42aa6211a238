"""`interop.elementwise` on the host: the text, promotion, values, scalars, calls."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from helpers import elements, expressions, products, scalars
from hypothesis import given
from hypothesis import strategies as st

import interop
import interop._expressions.parser

SHAPES = ((4, 1, 5), (3, 1), (5,))


def operands(dtype, shapes=SHAPES):
    return [elements.draw(shape, dtype, place) for place, shape in enumerate(shapes)]


def expect_same(result, answer):
    assert result.dtype == answer.dtype
    assert result.shape == answer.shape
    if result.dtype.kind in "biu":
        assert np.array_equal(result, answer)
    else:  # bit by bit, but for the bits of NaN
        assert np.array_equal(result.astype("complex128"), answer.astype("complex128"), equal_nan=True)


# ---- the text ----

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


def test_no_more_is_kept_than_is_needed():
    """Of a chain of steps, one result at a time: 150 of them would be 1.2 GB."""
    x = np.ones(1_000_000)
    text = "x" + "".join(f" + {k}.5" for k in range(150))
    f = interop.elementwise(text)
    tracemalloc.start()
    try:
        f(x)
        assert tracemalloc.get_traced_memory()[1] < 10 * x.nbytes
    finally:
        tracemalloc.stop()


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


# ---- the function ----


def test_parameters_are_the_names_in_order():
    f = interop.elementwise("b * where(a > c, b, a)")
    assert f.parameters == ("b", "a", "c")
    assert str(inspect.signature(f)) == "(b, a, c, *, out=None, stream=None, execution=None)"
    b, a, c = np.array([2.0, 3.0]), np.array([5.0, 6.0]), np.array([5.0, 5.0])
    answer = [10.0, 9.0]
    assert f(b, a, c).tolist() == f(b, c=c, a=a).tolist() == f(a=a, b=b, c=c).tolist() == answer


def test_it_is_what_tools_expect():
    f = interop.elementwise("x + 1")
    assert repr(f) == "interop.elementwise('x + 1')"
    assert eval(repr(f), {"interop": interop}) == f
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f), copy.copy(f)):
        assert other == f
        assert hash(other) == hash(f)
        assert other(np.arange(2)).tolist() == [1, 2]
    assert f != interop.elementwise("x+1")
    assert f.expression == "x + 1"


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((1,), {}, "y is missing; accepted: x, y"),
        ((1, 2, 3), {}, "3 arguments by position, of 2"),
        ((1, 2), {"x": 1}, "x is given twice"),
        ((1, 2), {"z": 1}, "got an unexpected keyword argument 'z'; accepted: x, y, out"),
        ((1, 2), {}, "x is int; accepted: arrays"),
        (([1], np.ones(1)), {}, "x is list; accepted: arrays"),
    ],
)
def test_wrong_arguments(args, named, words):
    with pytest.raises(TypeError, match=rf"^interop.elementwise\('x \* y'\): {words}"):
        interop.elementwise("x * y")(*args, **named)


def test_shapes_that_do_not_broadcast():
    f = interop.elementwise("x + y * z")
    with pytest.raises(
        ValueError, match=r"elementwise\('x \+ y \* z'\): x has shape \(3,\) and y has shape \(1,\) and z"
    ):
        f(np.ones(3), np.ones(1), np.ones(4))


def test_more_arrays_than_a_named_operation_has(host_library):
    names = [f"x{k}" for k in range(16)]
    arrays = [np.full((2, 3), k, "float32") for k in range(16)]
    result = interop.elementwise(" + ".join(names))(*map(host_library.make, arrays))
    assert host_library.is_ours(result)
    assert (host_library.to_numpy(result) == 120).all()


def test_threads_share_one(host_library):
    f, failures = interop.elementwise("x * 2 + y"), []

    def run(dtype):
        x = np.arange(9).astype(dtype)
        failures.extend(dtype for _ in range(20) if not np.array_equal(f(x, x), x * 3))

    threads = [threading.Thread(target=run, args=(dtype,)) for dtype in elements.INTEGERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- values ----


@pytest.mark.parametrize(("text", "dtype"), expressions.CASES)
def test_chains(host_library, text, dtype):
    x, y, z = (host_library.make(a) for a in operands(dtype))
    try:
        answer = expressions.chain(text, x, y, z)
    except TypeError as error:  # torch has no common dtype of bool and some
        with pytest.raises(TypeError, match=str(error).partition(": ")[2].partition(":")[0]):
            expressions.call(text, x, y, z)
        return
    result = expressions.call(text, x, y, z)
    assert host_library.is_ours(result)
    result, answer = map(host_library.to_numpy, (result, answer))
    if host_library.name == "jax" and result.dtype.kind not in "biu":  # XLA may contract and reorder
        scale = float(np.max(np.abs(answer.astype("complex128")), initial=1, where=np.isfinite(answer)))
        slack = 64 * float(ml_dtypes.finfo(answer.dtype).eps) * scale
        assert np.allclose(result.astype("complex128"), answer.astype("complex128"), atol=slack, equal_nan=True)
        return
    expect_same(result, answer)


@pytest.mark.parametrize("dtype", elements.FLOATS)
@pytest.mark.parametrize("text", expressions.FUNCTIONS)
def test_functions(host_library, text, dtype):
    x = (np.concatenate([np.linspace(-0.99, 0.99, 41), [0.0, -0.0]])).astype(elements.dtype_of(dtype))
    with np.errstate(all="ignore"):
        answer = expressions.FUNCTIONS[text](x.astype("float64"))
        result = host_library.to_numpy(interop.elementwise(text)(host_library.make(x)))
    assert result.dtype == x.dtype
    eps = float(ml_dtypes.finfo(x.dtype).eps)
    rtol = (128 if host_library.name == "jax" else 8) * eps  # XLA's atanh on the CPU
    assert np.allclose(result.astype("float64"), answer, rtol=rtol, atol=4 * eps, equal_nan=True)


@pytest.mark.parametrize(("text", "dtype"), expressions.TEST_CASES)
def test_exact_functions(host_library, text, dtype):
    x, y = operands(dtype, ((4, 1), (1, 7)))
    if x.dtype.kind in "fc":
        x.flat[:2] = np.inf, np.nan
    answer = expressions.TESTS[text][1](x, y)
    result = expressions.call(text, host_library.make(x), host_library.make(y), None)
    expect_same(host_library.to_numpy(result), np.asarray(answer))


@pytest.mark.parametrize("dtype", elements.INTEGERS)
def test_shifts_by_too_much(host_library, dtype):
    x = elements.draw((40,), dtype)
    bits = 8 * x.dtype.itemsize
    counts = np.resize(np.array([0, 1, bits - 1, bits, bits + 1, 100, *([-1] if x.dtype.kind == "i" else [])]), 40)
    counts = counts.astype(dtype)
    for text, function in (("x << n", np.left_shift), ("x >> n", np.right_shift)):
        result = interop.elementwise(text)(host_library.make(x), host_library.make(counts))
        assert np.array_equal(host_library.to_numpy(result), function(x, counts))


@given(data=st.data())
def test_any_expression_is_its_chain(data):
    """Random trees of the named operations, against the same calls one after the other."""
    dtypes = st.sampled_from(["int8", "uint8", "int32", "float16", "float32", "float64"])
    arrays = {name: elements.draw((3, 4), data.draw(dtypes), place) for place, name in enumerate("xyz")}

    def draw(depth):
        kind = data.draw(st.sampled_from(["name", "literal", "binary", "unary"] if depth < 4 else ["name", "literal"]))
        if kind == "name":
            name = data.draw(st.sampled_from("xyz"))
            return name, arrays[name]
        if kind == "literal":
            value = data.draw(st.sampled_from([1, 3, 0.5]))
            return repr(value), value
        if kind == "unary":
            text, value = draw(depth + 1)
            return f"-({text})", interop.negative(value) if isinstance(value, np.ndarray) else -value
        (first, a), (second, b) = draw(depth + 1), draw(depth + 1)
        symbol, name = data.draw(
            st.sampled_from([("+", "add"), ("*", "multiply"), ("-", "subtract"), ("%", "remainder")])
        )
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            value = getattr(interop, name)(a, b)
        else:
            value = {"+": a + b, "*": a * b, "-": a - b, "%": a % b if b else 0}[symbol]
            if symbol == "%" and not b:
                return "1", 1
        return f"({first}) {symbol} ({second})", value

    with np.errstate(all="ignore"):
        text, answer = None, None
        try:
            text, answer = draw(0)
        except OverflowError:
            return
        if not isinstance(answer, np.ndarray):
            return
        f = interop.elementwise(text)
        with products.naming(text):
            expect_same(f(**{name: arrays[name] for name in f.parameters}), answer)


# ---- promotion ----


def test_each_step_promotes_by_itself():
    x, y = np.array([200, 100], "uint8"), np.array([1.5, 2.5], "float16")
    assert interop.elementwise("x * 2 + y")(x, y).tolist() == [145.5, 202.5]  # 400 wraps to 144 before the sum
    assert interop.elementwise("x + y")(x, y).dtype == "float16"
    assert interop.elementwise("x / x")(x).dtype == "float64"
    assert interop.elementwise("sqrt(x)")(x).dtype == "float64"
    assert interop.elementwise("where(x > 150, 1, 0)")(x).dtype == "int64"


def test_torch_promotes_as_torch_does(torch):
    x, zero_d = torch.ones(2, dtype=torch.int32), torch.tensor(2.5, dtype=torch.float64)
    f = interop.elementwise("x * a")
    assert f(x, zero_d).dtype == (x * zero_d).dtype
    assert f(x, 2.5).dtype == torch.float32
    torch.set_default_dtype(torch.float64)  # which a call made before must not have fixed
    try:
        assert f(x, 2.5).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert f(x, 2.5).dtype == torch.float32


def test_16_bit_floats_are_rounded_after_each_step():
    x = np.array([1.0], "float16")
    assert interop.elementwise("x + a - x")(x, 0.0004).tolist() == [0.0]
    assert interop.elementwise("x * 3 + a - x * 3")(x.astype(elements.BFLOAT16), 0.001).astype(float).tolist() == [0.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 + (x - y)", r"in 'x - y': interop.subtract: the operands are bool; accepted: integers"),
        ("~sqrt(x)", r"in '~sqrt\(x\)': the operands of bitwise_invert are float64; accepted: bool and integers"),
        ("x << y", "the operands of bitwise_left_shift are bool; accepted: integers"),
        ("imag(x)", "the operands of imag are bool; accepted: complex numbers"),
        ("+x", "the operands of positive are bool; accepted: integers, floats and complex numbers"),
    ],
)
def test_operations_without_a_meaning_say_where(text, words):
    x = np.ones(2, bool)
    with pytest.raises(TypeError, match=words):
        expressions.call(text, x, x, x)


# ---- scalars ----


def test_scalars_are_weak():
    x = np.ones(2, "float16")
    f = interop.elementwise("x * a + 1")
    for scalar in (2, 2.0, True):
        assert f(x, scalar).dtype == "float16"
    assert f(x, 2j).dtype == "complex64"
    assert f(x, np.float32(2)).dtype == "float32"  # NumPy's have a dtype
    assert f(x, np.float64(2)).dtype == "float64"
    assert f(x, np.ones(2, "float32")).dtype == "float32"


def test_scalars_among_themselves_are_pythons():
    f = interop.elementwise("x * (a / b) + 2 ** -1")
    assert f(np.array([8, 16], "float32"), 1, 4).tolist() == [2.5, 4.5]
    assert interop.elementwise("x * (7 // 2 + ~0)")(np.arange(3)).tolist() == [0, 2, 4]
    assert interop.elementwise("x + sqrt(a)")(np.zeros(1, "float32"), 4).tolist() == [2.0]
    with pytest.raises(ZeroDivisionError):
        f(np.ones(1), 1, 0)


def test_scalars_that_do_not_fit():
    x, out = np.ones(2, "int8"), np.full(2, 7, "int8")
    for text, words in (
        ("x + 300", "the literal is 300"),
        ("x + a", "a is 300"),
        ("x + a * 1", "a scalar of the expr"),
    ):
        f = interop.elementwise(text)
        with pytest.raises(OverflowError, match=f"{words}.*which int8 cannot hold"):
            f(x, *(300 for _ in f.parameters[1:]), out=out)
    assert (out == 7).all()


def test_conditions_may_be_scalars():
    f = interop.elementwise("where(c, x, 0)")
    assert f(True, np.array([1, 2])).tolist() == [1, 2]
    assert f(0.0, np.array([1, 2])).tolist() == [0, 0]


NUMBERS = (True, 1, 1.0, 1 + 0j)


@pytest.mark.parametrize("first", NUMBERS, ids=repr)
@pytest.mark.parametrize("second", NUMBERS, ids=repr)
def test_literals_of_another_type_are_other_literals(host_library, first, second):
    """The scalar a * 1.0 is a float, and a * 1 is none; and each is what it is when called alone."""
    x, y = (host_library.make(np.array([value], "int8")) for value in (1, 100))
    f = interop.elementwise(f"x * (a * {first}) + y * (a * {second})")
    answer = interop.add(interop.multiply(x, 3 * first), interop.multiply(y, 3 * second))
    result = f(x, 3, y)
    assert host_library.dtype(result) == host_library.dtype(answer)
    assert host_library.to_numpy(result).tolist() == host_library.to_numpy(answer).tolist()


def test_zeros_of_another_sign_are_other_literals():
    assert np.signbit(interop.elementwise("copysign(x, a * 0.0) + 4 * copysign(x, a * -0.0)")(np.ones(1), 1)).all()
    assert interop.elementwise("copysign(x, a * -0.0) + 4 * copysign(x, a * 0.0)")(np.ones(1), 1).tolist() == [3.0]
    assert interop.elementwise("copysign(x, -0.0) + 4 * copysign(x, 0.0)")(np.ones(1)).tolist() == [3.0]


def test_texts_with_other_literals_are_not_equal():
    texts = ["x * 1", "x * 1.0", "x * True", "x * 1j", "x * 0.0", "x * -0.0"]
    functions = [interop.elementwise(text) for text in texts]
    assert len(set(functions)) == len(texts)
    for f in functions:
        other = pickle.loads(pickle.dumps(f))
        assert other == f
        assert other(np.ones(1, "int8")).dtype == f(np.ones(1, "int8")).dtype


def test_what_stands_twice_is_computed_once():
    parsed = interop._expressions.parser.parse("(x * y + 1) / (x * y + 1.0) + x * y")
    assert len(parsed.nodes) == 9  # x, y, x * y, 1, + 1, 1.0, + 1.0, /, +


@pytest.mark.parametrize("scalar", [*scalars.OF_A_KIND, np.bool_(True)], ids=repr)
def test_scalars_count_by_their_kind(host_library, scalar):
    plain = scalars.plain(scalar)
    for dtype in ("int8", "float16", "complex64"):
        x = host_library.make(np.full(2, 3, dtype))
        for text in ("x * a", "x * (a + 1)", "where(x != 0, a, x)", "x * (a * 2 - a)"):
            f = interop.elementwise(text)
            if host_library.name == "torch" and dtype == "float16" and isinstance(plain, complex):
                continue  # complex32, which is not served
            given = {name: {"x": x, "a": scalar}[name] for name in f.parameters}
            result, answer = f(**given), f(**{**given, "a": plain})
            assert host_library.dtype(result) == host_library.dtype(answer)
            assert np.array_equal(*map(host_library.to_numpy, (result, answer)))


# ---- out= ----


def test_out_may_overlap(host_view_library):
    buffer = np.arange(12.0)
    x = host_view_library.make(buffer)
    interop.elementwise("x + 2 * y")(x[1:], x[:-1], out=x[1:])
    assert np.array_equal(host_view_library.to_numpy(x)[1:], buffer[1:] + 2 * buffer[:-1])


def test_out_is_checked():
    f = interop.elementwise("x > 0")
    with pytest.raises(ValueError, match=r"out has shape \(3,\); accepted: the result's shape, \(2,\)"):
        f(np.ones(2), out=np.ones(3, bool))
    with pytest.raises(TypeError, match="out is float64; accepted: the result's dtype, bool"):
        f(np.ones(2), out=np.ones(2))


def test_numpy_warns_where_the_arrays_are_its_own(torch):
    f = interop.elementwise("x / (x - x)")
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        f(np.ones(2))
    assert torch.isinf(f(torch.ones(2))).all()


def test_the_errstate_of_the_caller_is_no_other_library_s(torch):
    x = torch.ones(2)
    with np.errstate(all="raise"):
        assert torch.isinf(interop.elementwise("x * a + 1e300")(x, 1e300)).all()
        assert torch.isinf(interop.elementwise("x / (x - x)")(x)).all()
        assert torch.isinf(interop.elementwise("x * (a / b)")(x, np.float64(1), np.float64(0))).all()
        with pytest.raises(FloatingPointError):  # as NumPy itself
            interop.elementwise("x / (x - x)")(np.ones(2))


# ---- libraries ----


def test_torch_tensors_that_need_grad_are_refused(torch):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match="x requires grad"):
        interop.elementwise("x + 1")(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's own, while it loads the compiler
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_a_compiled_function_may_call_it(torch):
    f = interop.elementwise("x * y + 1")
    compiled = torch.compile(lambda x, y: f(x * 2, y) + 1, backend="eager")
    for _ in range(2):
        assert (compiled(torch.ones(3), torch.ones(3)) == 4).all()


def test_jax_transformations(host_jax):
    jax, jnp = host_jax, host_jax.numpy
    f = interop.elementwise("x * y + a")
    x = jnp.arange(4.0)
    assert jax.jit(f)(x, x, 2.0).tolist() == [2, 3, 6, 11]
    assert jax.jit(f)(x.astype("float16"), x.astype("float16"), 2.0).dtype == "float16"  # a traced scalar is weak
    assert jax.vmap(f, (0, None, None))(jnp.ones((3, 4)), x, 1.0).shape == (3, 4)
    assert jax.grad(lambda x: f(x, x, 1.0).sum())(x).tolist() == [0, 2, 4, 6]
    assert "custom_call" not in jax.jit(f).lower(x, x, 2.0).as_text()  # XLA's own operations, which it fuses
    with pytest.raises(TypeError, match="out= cannot be used with JAX arrays"):
        f(x, x, 1, out=x)
    with pytest.raises(ValueError, match="stream= cannot be used inside jax.jit"):
        jax.jit(lambda x: f(x, x, 1, stream=1))(x)


def test_jax_compiles_nothing_for_another_scalar(host_jax):
    f, x = interop.elementwise("x * a"), host_jax.numpy.ones(3)
    f(x, 2.0)
    with host_jax.log_compiles(True), host_jax.checking_leaks():
        messages = []
        host_jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: messages.append(event))
        assert f(x, 3.0).tolist() == [3, 3, 3]
    assert not [event for event in messages if "backend_compile" in event]


# ---- explain ----


def test_explain(host_library):
    f = interop.elementwise("x * y > a")
    plan = interop.explain(
        f, host_library.make(np.ones((2, 3), "float32")), y=host_library.make(np.ones(3, "float32")), a=1
    )
    assert plan.function == "interop.elementwise('x * y > a')"
    assert [argument.name for argument in plan.arguments] == ["x", "y"]
    assert (plan.result_shape, plan.result_dtype) == ((2, 3), "bool")
    assert plan.algorithm == {
        "jax": "jax.numpy's operations, which XLA fuses",
    }.get(host_library.name, "NumPy's, operation by operation, on views of the arrays")
