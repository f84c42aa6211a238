"""The dtypes of `interop.elementwise` on the host: of each step, and of scalars and literals."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers import elements, expressions, scalars

import interop
import interop._expressions.parser

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
