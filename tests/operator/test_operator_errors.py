"""What `interop.operator` and the calls of operators refuse, in which words, and where in the signature they point."""

from __future__ import annotations

import re

import numpy as np
import pytest

import interop

X = np.ones((3, 4), "float32")
S = np.ones(4, "float32")


def refused(error, message, call, signature, *, above=None, **options):
    """The definition raises it; `above` is the text over the carets."""
    with pytest.raises(error) as caught:
        interop.operator("tests::refused", call, signature, **options)
    lines = str(caught.value).split("\n")
    assert message in lines[0]
    assert lines[0].startswith("interop.operator('tests::refused'): ")
    if above is None:
        assert len(lines) == 1
    else:
        assert lines[1][lines[2].index("^") : len(lines[2])] == above


def first(x, *rest):
    return x


# ---- the definition ----


@pytest.mark.parametrize(
    "name",
    [
        "row_sum",
        "a::",
        "::a",
        "a::b::c",
        "a::b-c",
        "a b::c",
        "1::2",
        "",
        "interop::add",
        "aten::add",
        "a::class",
        "a::name",
        "a::__init__",
    ],
)
def test_names_have_a_package(name):
    with pytest.raises(ValueError, match=f"^interop.operator: name is {name!r}; accepted: 'package::row_sum', of"):
        interop.operator(name, first, "x[n] -> [n]")


def test_arguments_of_other_types():
    with pytest.raises(TypeError, match="^interop.operator: name is int; accepted: a str such as"):
        interop.operator(3, first, "x[n] -> [n]")
    refused(TypeError, "call is int; accepted: what interop.kernel", 3, "x[n] -> [n]")
    refused(TypeError, "signature is NoneType; accepted: a signature such as", first, None)
    refused(TypeError, "gradient is int; accepted: a function, or None", first, "x[n] -> [n]", gradient=3)
    refused(TypeError, "tangent is str; accepted: a function, or None", first, "x[n] -> [n]", tangent="x")
    refused(ValueError, "batching is 'map'; accepted: None, 'loop'", first, "x[n] -> [n]", batching="map")
    with pytest.raises(TypeError, match=r"^interop.operator: got an unexpected keyword argument 'grad'; did you mean"):
        interop.operator("tests::refused", first, "x[n] -> [n]", grad=first)
    with pytest.raises(TypeError, match="^interop.operator: missing 1 required positional argument: 'signature'"):
        interop.operator("tests::refused", first)


def test_sizes_that_do_not_fit():
    def wrong(error, message, sizes, above=None):
        refused(error, message, first, "x[n] -> [k]", sizes=sizes, above=above)

    wrong(ValueError, "signature: k is in no input; accepted: a letter of the inputs (n), or sizes={'k': f}", None, "k")
    wrong(TypeError, "sizes is str; accepted: a mapping of letters to functions of sizes", "k")
    wrong(TypeError, "sizes['k'] is int; accepted: a mapping", {"k": 3})
    wrong(TypeError, "sizes['k'] takes arguments without names; accepted: a mapping", {"k": lambda *sizes: 3})
    wrong(ValueError, "sizes: n is a size of x; accepted: letters that are in no input",
          {"k": lambda n: n, "n": lambda: 3}, "n")  # fmt: skip
    wrong(ValueError, "sizes['k'] takes m, which is in no input of x[n] -> [k]; accepted: n", {"k": lambda m: m})
    wrong(ValueError, "sizes['k'] takes leading, which is in no input", {"k": lambda leading: leading})
    wrong(ValueError, "sizes: j is in no result of x[n] -> [k], and no parameter of call",
          {"k": lambda n: n, "j": lambda n: n})  # fmt: skip


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            lambda n: n / 2,
            TypeError,
            r"k, as its function of sizes= returns it for {'n': 4}, is float; acc",
        ),
        (lambda n: n > 2, TypeError, r"is bool; accepted: an int"),
        (lambda n: None, TypeError, r"is NoneType; accepted: an int"),
        (lambda n: n - 9, ValueError, r"returns it for {'n': 4}, is -5; accepted: 0 or more"),
    ],
)
def test_sizes_that_are_none(function, error, message):
    op = interop.operator("tests::refused", first, "x[n] -> [2, k]", sizes={"k": function})
    with pytest.raises(error, match=f"^tests::refused: .*{message}") as caught:
        op(S)
    said, line, caret = str(caught.value).split("\n")
    assert said.count("accepted: ") == 1
    assert line[caret.index("^")] == "k"


def test_an_error_of_a_users_function_says_whose_it_is():
    def raises(*_, **__):
        raise KeyError("mine")

    for options in ({"sizes": {"k": lambda n: raises()}}, {"sizes": {"k": lambda n: n}, "dtype": raises}):
        op = interop.operator("tests::refused", first, "x[n] -> [k]", **options)
        with pytest.raises(KeyError, match="mine") as caught:
            op(S)
        assert caught.value.__notes__[0].startswith("tests::refused: raised by the function for ")


def test_dtypes_that_do_not_fit(lib):
    for dtype in ("float31", "y", "object", "V4", "i4,f4", ""):
        refused(ValueError, f"dtype is {dtype!r}; accepted: the name of a dtype, of an input (x), or a function",
                first, "x[n] -> [n]", dtype=dtype)  # fmt: skip
    refused(TypeError, "dtype is int; accepted: the name", first, "x[n] -> [n]", dtype=3)
    refused(TypeError, "dtype is type; accepted: the name", first, "x[n] -> [n]", dtype=np.float32)
    refused(ValueError, "dtype has 1 elements; accepted: 2, one for each", first, "x[n] -> [n], [n]", dtype=("x",))
    refused(ValueError, "dtype is float32, and call writes int32; accepted: int32, or None",
            lib.split, "x[n] -> [n], [n]", dtype="x")  # fmt: skip
    op = interop.operator("tests::refused", first, "x[n] -> [n]", dtype=lambda x: "float31")
    with pytest.raises(TypeError, match=r"^tests::refused: dtype, as its function returns it for float32, is 'floa"):
        op(S)


def test_cuts_that_do_not_fit():
    refused(TypeError, "cut is tuple; accepted: a str of letters, such as 'm, n'", first, "x[n] -> [n]", cut=("n",))
    refused(ValueError, "cut: 'm' is no letter of the inputs; accepted: n", first, "x[n] -> [n]", cut="m")
    refused(ValueError, "cut: '' is no letter", first, "x[n] -> [n]", cut="n,")
    refused(ValueError, "cut: n is not in each result; accepted: letters that are, or '; sum n'",
            first, "x[m, n] -> [m, n], [m]", cut="m, n", above="[m]")  # fmt: skip
    refused(ValueError, "n stands twice in one operand, so that no part is cut along it",
            first, "x[n, n] -> [n]", cut="n", above="x[n, n]")  # fmt: skip
    refused(ValueError, "k stands twice in one operand", first, "x[k, k] -> []; sum k", above="x[k, k]")
    refused(ValueError, "the size m depends on n, so that no part is cut along it",
            first, "x[n] -> [n, m]", cut="n", sizes={"m": lambda n: n})  # fmt: skip
    refused(ValueError, "the size m depends on k, so that no part is cut along it",
            first, "x[n, k] -> [n, m]; sum k", sizes={"m": lambda k: k})  # fmt: skip
    for letters in ("m, n", " n,m "):
        op = interop.operator("tests::cut", first, "x[m, n] -> [m, n]", cut=letters)
        assert op._description.cut == {"m", "n"}


def test_parameters_that_do_not_fit(lib):
    other = "a Python function that calls it, as call="
    refused(ValueError, "call: the parameter rows of the kernel or C function is no input and no size of the signature "
            f"(x, n); accepted: these names, or {other}", lib.row_sum, "x[..., n] -> [...]")  # fmt: skip
    refused(ValueError, "call: the input s is no parameter of the kernel or C function (x, rows, n); accepted",
            lib.row_sum, "x[rows, n], s[n] -> [rows]", above="s[n]")  # fmt: skip
    refused(ValueError, "call: the parameter eps is a number, and the signature has it as an array; accepted",
            lib.scale, "x[rows, n], s[n], eps[n] -> y[rows, n]", above="eps[n]")  # fmt: skip
    refused(ValueError, "call: the parameter s is an array, and the signature has it as a number; accepted",
            lib.scale, "x[rows, n], s, eps -> y[rows, n]", above="s")  # fmt: skip
    refused(ValueError, "call: the parameter s is an array, and the signature has it as the size of an axis",
            lib.scale, "x[rows, n, s], eps -> y[rows, n]")  # fmt: skip
    refused(ValueError, "call: x is an input, and call writes to it; accepted: reads=('x',) where it only reads",
            lib.twice, "x[n] -> [n]", above="x[n]")  # fmt: skip
    refused(ValueError, "call writes to y, and the signature has 2 results; accepted: one for each",
            lib.row_sum, "x[rows, n] -> [rows], [rows]", above="[rows]")  # fmt: skip
    refused(ValueError, "call writes to whole, sign, and the signature has 1 results",
            lib.split, "x[n] -> [n]", above="[n]")  # fmt: skip
    refused(ValueError, "call: the result z is no pointer or view that call writes to; accepted: y",
            lib.row_sum, "x[rows, n] -> z[rows]", above="z[rows]")  # fmt: skip
    refused(ValueError, "call returns a value, 'double total(", lib.total, "x[n] -> []")
    refused(ValueError, "call: y is a pointer to void, to which no result is written", lib.fill, "x[n] -> [n]")
    refused(ValueError, "call is an expression, which has one result", interop.elementwise("x + 1"), "x[n] -> [n], [n]")
    refused(ValueError, "call: the parameter y of the expression is no input and no size", interop.elementwise("x + y"),
            "x[n] -> [n]")  # fmt: skip


# ---- calls ----


@pytest.fixture
def op(lib):
    return interop.operator("tests::errors", lib.scale, "x[rows, n], s[n], eps -> y[rows, n]")


def wrong(error, message, op, *inputs, above=None, **named):
    """Twice: before and after a call that is right has been kept."""
    for _ in range(2):
        with pytest.raises(error, match=f"^tests::errors: {re.escape(message)}") as caught:
            op(*inputs, **named)
        lines = str(caught.value).split("\n")
        if above:
            assert lines[1][lines[2].index("^") : len(lines[2])] == above
        assert op(X, S, 1).shape == (3, 4)


def test_shapes_that_do_not_fit(op):
    wrong(ValueError, "n is 3 in s, of shape (3,), and 4 in x; accepted: one size", op, X, S[:3], 1, above="n")
    wrong(ValueError, "x has 1 dimensions, shape (4,); accepted: 2", op, S, S, 1, above="x[rows, n]")
    wrong(ValueError, "s has 0 dimensions, shape (); accepted: 1", op, X, np.ones((), "float32"), 1, above="s[n]")


def test_dtypes_that_the_c_function_does_not_take(op):
    wrong(TypeError, "x is float64; accepted: float32", op, X.astype("float64"), S, 1, above="x[rows, n]")
    wrong(TypeError, "s is int32; accepted: float32", op, X, S.astype("int32"), 1, above="s[n]")


def test_what_is_no_array_or_no_number(op, torch):
    wrong(TypeError, "x is list; accepted: arrays with DLPack", op, [1.0], S, 1)
    wrong(TypeError, "s is NoneType; accepted: arrays with DLPack", op, X, None, 1)
    wrong(TypeError, "eps is numpy.ndarray; accepted: a number, or an array where the signature has axes",
          op, X, S, S, above="eps")  # fmt: skip
    wrong(TypeError, "eps is torch.Tensor; accepted: a number", op, X, S, torch.ones(()), above="eps")
    assert op(X, S, np.float32(1)).tolist() == op(X, S, 1).tolist()
    with pytest.raises(TypeError, match=r"^liboperators.scale: eps is "):
        op(X, S, "1")


def test_calls_that_do_not_fit(op):
    wrong(TypeError, "missing 1 required positional argument: 'eps'", op, X, S)
    wrong(TypeError, "takes 3 positional arguments but 4 were given", op, X, S, 1, 2)
    wrong(TypeError, "got multiple values for argument 's'", op, X, S, s=S)
    wrong(TypeError, "got an unexpected keyword argument 'epss'; did you mean 'eps'?", op, X, S, epss=1)


def test_other_layouts_are_refused_as_by_the_c_function(op):
    with pytest.raises(ValueError, match=r"^liboperators\.scale: x .*C-contiguous"):
        op(np.ones((4, 3), "float32").T, S, 1)


def test_an_array_type_that_is_not_known():
    class Own:
        shape, dtype = (4,), np.dtype("float32")

    op = interop.operator("tests::errors", first, "x[n] -> [n]")
    with pytest.raises(TypeError, match=r"^tests::errors: x is .*Own; accepted: arrays with DLPack"):
        op(Own())


# ---- what functions of the user's give: for the ways to each library ----


def described(**options):
    return interop.operator("tests::given", first, "x[m, n], k, s[n] -> y[m], [n]", **options)._description


ARRAYS = [((3, 4), "float32"), ((4,), "float64")]


def test_gradients_are_checked():
    check = described().check_gradients
    good = (X, None, S.astype("float64"))
    assert check(good, ARRAYS) == (good[0], good[2])
    assert check([None, None, None], ARRAYS) == (None, None)
    for given, error, message in [
        (X, TypeError, "gradient returned numpy.ndarray; accepted: a tuple of 3, for the inputs (x, k, s)"),
        ((X, S), ValueError, "gradient returned a tuple of 2; accepted: 3, for the inputs (x, k, s)"),
        ((X, 1.0, None), TypeError, "gradient returned float for k, which is a number; accepted: None"),
        ((S, None, None), ValueError, "gradient returned an array of shape (4,) for x; accepted: (3, 4)"),
        ((None, None, S), TypeError, "gradient returned float32 for s; accepted: float64"),
        ((2.0, None, None), TypeError, "gradient returned float for x; accepted: an array"),
    ]:
        with pytest.raises(error, match=f"^tests::given: {re.escape(message)}"):
            check(given, ARRAYS)
    one = interop.operator("tests::given_one", first, "k, x[n] -> [n]")._description
    assert one.check_gradients(S, [((4,), "float32")]) == (S,)


def test_tangents_are_checked():
    results = [((3,), "float32"), ((4,), "float32")]
    check = described().check_tangents
    assert check((None, S), results) == (None, S)
    with pytest.raises(ValueError, match=r"^tests::given: tangent returned an array of shape \(4,\) for y; accepted"):
        check((S, S), results)
    with pytest.raises(TypeError, match="^tests::given: tangent returned numpy.ndarray; accepted: a tuple of 2"):
        check(S, results)


def test_results_without_memory():
    results = described(dtype=lambda x, s: s).results(ARRAYS)
    assert results == (((3,), "float64"), ((4,), "float64"))
