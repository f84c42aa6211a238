"""The elementwise operations on the host: values of every dtype, layouts, `out=`, errors.

Which dtype a call of two dtypes, or of scalars, has: test_elementwise_promotion.py.
"""

from __future__ import annotations

import itertools

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import elements, libraries, products
from hypothesis import given
from hypothesis import strategies as st

import interop

SHAPES = (((), ()), ((3,), (3,)), ((1009,), ()), ((4, 5), (5,)), ((4, 1), (1, 5)), ((0, 3), (3,)), ((2, 1, 3), (4, 1)))
CASES = [case for case in itertools.product(elements.OPERATIONS, elements.DTYPES) if elements.serves(*case)]
REFUSED = [
    (name, dtype) for name in elements.OPERATIONS for dtype in elements.DTYPES if not elements.serves(name, dtype)
]
BY_CASE = pytest.mark.parametrize(("name", "dtype"), CASES)


def operands_of(name, shapes, dtype, seed=0):
    count = 1 if name in elements.UNARY else 2
    return [elements.draw(shape, dtype, seed + place) for place, shape in enumerate(shapes[:count])]


def answer_of(library, name, operands):
    """The answer, in the library's own default float where integers are divided."""
    answer = elements.expected(name, *operands)
    if name == "divide" and operands[0].dtype.kind in "biu" and library.name != "numpy":
        with np.errstate(all="ignore"):
            return np.divide(*(x.astype("float32") for x in operands)) if not is_wide_jax(library, operands) else answer
    return answer


def is_wide_jax(library, operands):
    return library.name == "jax" and operands[0].dtype.itemsize == 8


# ---- values ----


@BY_CASE
def test_values(host_library, name, dtype):
    for shapes in SHAPES if host_library.name != "jax" else SHAPES[3:4]:  # JAX compiles each
        with products.naming(f"{shapes}"):
            x = operands_of(name, shapes, dtype)
            result = elements.call(name, *(host_library.make(a) for a in x))
            assert host_library.is_ours(result)
            loose = host_library.name == "jax" and name == "divide"  # XLA's own on the CPU, by reciprocals
            elements.check(name, host_library.to_numpy(result), answer_of(host_library, name, x), loose)


@pytest.mark.parametrize("dtype", elements.COMPLEX)
def test_integral_powers_of_complex_numbers(host_library, dtype):
    """By multiplication: NumPy's bits, and of XLA, whose division is its own, close to them."""
    bases, exponents, answer = elements.integral_powers(dtype)
    few = [exponent + 99 for exponent in (-3, -1, 0, 1, 2, 3, 4, 7)]
    x = host_library.make(bases)
    with np.errstate(all="ignore"):
        if host_library.name != "jax":
            assert elements.same_bits(host_library.to_numpy(interop.pow(x, host_library.make(exponents))), answer)
            return
        for place in few:
            for f in (interop.pow, interop.elementwise("x ** y")):
                result, column = host_library.to_numpy(f(x, place - 99)), answer[:, place : place + 1]
                if place - 99 in (0, 1):
                    assert elements.same_bits(result, column)
                rows = np.isfinite(bases) & np.isfinite(column) & (np.abs(bases) < 1e9) & (np.abs(bases) > 1e-9)
                assert np.allclose(result[rows], column[rows], rtol=1e-5, atol=0)
                if place - 99 in (2, 4):  # of integers and halves, exact
                    rows = np.isin(bases.real, (1, -1, 1.5)) & np.isin(bases.imag, (1, -1, 1.5))
                    assert elements.same_bits(result[rows], column[rows])


@pytest.mark.parametrize(("name", "dtype"), REFUSED)
def test_dtypes_without_a_meaning_are_refused(host_library, name, dtype):
    x = [host_library.make(a) for a in operands_of(name, ((3,), (3,)), dtype)]
    with pytest.raises(TypeError, match=f"^interop.{name}: the operands are {dtype}; accepted: .*(integers|floats)"):
        elements.call(name, *x)


FLOAT_CASES = [(name, dtype) for name, dtype in CASES if dtype in elements.FLOATS and name not in elements.UNARY]


@pytest.mark.parametrize(("name", "dtype"), FLOAT_CASES)
def test_special_values(host_library, name, dtype):
    """Every pair of zeros, infinities, NaN and ordinary numbers."""
    pairs = np.array(list(itertools.product(elements.SPECIAL, repeat=2))).astype(elements.dtype_of(dtype))
    x, y = np.ascontiguousarray(pairs.T)
    result = elements.call(name, host_library.make(x), host_library.make(y))
    elements.check(name, host_library.to_numpy(result), elements.expected(name, x, y))


@pytest.mark.parametrize("dtype", elements.FLOATS)
@pytest.mark.parametrize("name", elements.UNARY)
def test_special_values_of_unary_operations(host_library, name, dtype):
    x = np.array(elements.SPECIAL).astype(elements.dtype_of(dtype))
    result = host_library.to_numpy(elements.call(name, host_library.make(x)))
    elements.check(name, result, elements.expected(name, x))


@pytest.mark.parametrize("dtype", elements.COMPLEX)
@pytest.mark.parametrize("name", elements.COMPLEX_SPECIAL)
def test_special_values_of_complex_numbers(host_library, name, dtype):
    x = elements.special_complex(name, dtype)
    result = host_library.to_numpy(elements.call(name, *(host_library.make(a) for a in x)))
    elements.check(name, result, elements.expected(name, *x))


INTEGER_OPERATIONS = [name for name in elements.OPERATIONS if name not in ("divide", *elements.UNARY)]


@pytest.mark.parametrize("dtype", elements.INTEGERS)
@pytest.mark.parametrize("name", INTEGER_OPERATIONS)
def test_special_integers(host_library, name, dtype):
    """The ends of the range, zero divisors, negative powers."""
    limits = np.iinfo(dtype)
    values = {limits.min, limits.max, limits.max - 1, 0, 1, 2, 3, 7, *([-1, -2, -3] if limits.min else [])}
    pairs = np.array(list(itertools.product(sorted(values), repeat=2)), dtype=object)
    x, y = (np.array(list(side), dtype) for side in pairs.T)
    result = elements.call(name, host_library.make(x), host_library.make(y))
    elements.check(name, host_library.to_numpy(result), elements.expected(name, x, y))


@pytest.mark.parametrize("dtype", elements.INTEGERS)
@pytest.mark.parametrize("name", elements.UNARY)
def test_special_integers_of_unary_operations(host_library, name, dtype):
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 0, 1], dtype)
    result = host_library.to_numpy(elements.call(name, host_library.make(x)))
    elements.check(name, result, elements.expected(name, x))


def test_complex_division_overflows_only_where_the_result_does(host_library):
    x = host_library.make(np.array([1e30 + 1e30j], "complex64"))
    assert host_library.to_numpy(interop.divide(x, x))[0] == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_where_zero(host_library, dtype):
    x, y = elements.draw((40,), dtype, 1), elements.draw((40,), dtype, 2)
    y[::3] = 0
    result = host_library.to_numpy(elements.call("divide", host_library.make(x), host_library.make(y), where_zero=-2.5))
    answer = elements.expected("divide", x, y)
    answer[y == 0] = -2.5
    elements.check("divide", result, answer)


def test_where_zero_of_integers_and_scalars(host_library):
    x = host_library.make(np.array([6, 7], "int32"))
    y = host_library.make(np.array([0, 2], "int32"))
    assert host_library.to_numpy(interop.divide(x, y, where_zero=9)).tolist() == [9, 3.5]
    assert host_library.to_numpy(interop.divide(x, 0, where_zero=float("inf"))).tolist() == [float("inf")] * 2


def test_where_zero_sees_the_converted_divisor(host_library):
    """1e-300 is 0 in float32, in which the division is."""
    x = host_library.make(np.ones(2, "float32"))
    assert host_library.to_numpy(interop.divide(x, 1e-300, where_zero=7)).tolist() == [7, 7]


@pytest.mark.parametrize("value", [1j, np.complex64(2)])
def test_where_zero_of_real_arrays_is_real(host_library, value):
    x = host_library.make(np.ones(2, "float32"))
    with pytest.raises(TypeError, match=r"^interop.divide: where_zero is .*j\)?, and the result is float32; "):
        interop.divide(x, x, where_zero=value)


def test_where_zero_that_no_float_holds(host_library):
    x = host_library.make(np.ones(2, "float32"))
    with pytest.raises(
        OverflowError, match=r"^interop.divide: where_zero is 10+[.]{3}, which float32 cannot hold; accepted"
    ):
        interop.divide(x, x, where_zero=10**400)


@pytest.mark.parametrize("value", ["x", [0], np.zeros(2)], ids=["str", "list", "array"])
def test_where_zero_is_a_scalar(host_library, value):
    x = host_library.make(np.ones(2, "float32"))
    with pytest.raises(TypeError, match=r"^interop.divide: where_zero is [\w.]+; accepted: None, or a scalar$"):
        interop.divide(x, x, where_zero=value)


# ---- layouts ----


@given(st.data())
def test_property(data):
    name = data.draw(st.sampled_from([name for name in elements.OPERATIONS if name != "pow"]))
    dtype = data.draw(st.sampled_from([dtype for dtype in elements.DTYPES if elements.serves(name, dtype)]))
    library = libraries.by_name(data.draw(st.sampled_from(["numpy", "torch"])))
    count = 1 if name in elements.UNARY else 2
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=4, min_side=0, max_side=5))
    kind = elements.dtype_of(dtype)
    pairs = [data.draw(products.strided(shape, kind, library.negative)) for shape in shapes.input_shapes]
    views = [view for _, view in pairs]
    answer = answer_of(library, name, views)
    if answer.dtype == np.float32 and kind.kind in "biu" and library.name == "numpy":
        answer = answer.astype(np.float64)
    out = data.draw(products.strided(shapes.result_shape, answer.dtype, library.negative))
    elements.check_calls(name, library, pairs, answer, out)


# ---- out= ----


def test_out_may_be_an_operand(host_view_library):
    x, y = elements.draw((6, 7), "float32", 1), elements.draw((6, 7), "float32", 2)
    a = host_view_library.make(x)
    assert interop.subtract(host_view_library.make(y), a, out=a) is a
    assert np.array_equal(host_view_library.to_numpy(a), y - x)


@pytest.mark.parametrize("case", ["before", "behind", "transposed", "column"])
def test_out_may_overlap_an_operand(host_view_library, case):
    """NumPy's result: as if every element were read before any is written."""
    base = elements.draw((9, 9), "float32")
    made = host_view_library.make(base)
    source, target = {
        "before": (base[1:], base[:-1]),
        "behind": (base[:-1], base[1:]),
        "transposed": (base.T, base),
        "column": (np.broadcast_to(base[:, 4:5], (9, 9)), base),
    }[case]
    a = host_view_library.view_of(made, base, source)
    out = host_view_library.view_of(made, base, target)
    other = elements.draw(source.shape, "float32", 5)
    answer = source + other
    interop.add(a, host_view_library.make(other), out=out)
    target[...] = answer
    assert np.array_equal(host_view_library.to_numpy(made), base)


def test_comparison_into_the_memory_of_an_operand():
    x = np.arange(8, dtype="uint8")
    out = x.view(bool)
    interop.less(x, 4, out=out)
    assert out.tolist() == [True] * 4 + [False] * 4


def test_out_is_checked():
    x = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"interop.add: out has shape \(3,\); accepted: the result's shape, \(2, 3\)"):
        interop.add(x, x, out=np.ones(3))
    with pytest.raises(TypeError, match="interop.add: out is float32; accepted: the result's dtype, float64"):
        interop.add(x, x, out=np.ones((2, 3), "float32"))
    with pytest.raises(TypeError, match="interop.less: out is float64; accepted: the result's dtype, bool"):
        interop.less(x, x, out=x)
    fixed = np.ones((2, 3))
    fixed.flags.writeable = False
    with pytest.raises(TypeError, match="interop.add: out .* is read-only"):
        interop.add(x, x, out=fixed)
    with pytest.raises(ValueError, match="interop.add: out .* has elements that share memory"):
        interop.add(x, x, out=np.lib.stride_tricks.as_strided(np.ones(3), (2, 3), (0, 8)))


# ---- results, libraries and errors ----


def test_results_are_arrays_never_scalars(host_library):
    result = interop.add(host_library.make(np.array(1.5)), 2)
    assert host_library.is_ours(result)
    assert result.shape == ()
    assert host_library.to_numpy(result) == 3.5


def test_arrays_of_two_libraries(torch, host_jax):
    x = np.arange(3.0)
    assert type(interop.add(torch.from_numpy(x), x)) is torch.Tensor
    assert type(interop.add(x, torch.from_numpy(x))) is np.ndarray
    assert libraries.by_name("jax").is_ours(interop.add(host_jax.numpy.ones(3), np.ones(3, "float32")))
    assert type(interop.add(memoryview(x), x)) is interop.Array


def test_numpys_warnings_are_numpys_alone(torch):
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        interop.divide(np.ones(2), 0)
    with np.errstate(all="raise"):
        assert interop.divide(torch.ones(2), 0).tolist() == [float("inf")] * 2


def test_shapes_that_do_not_broadcast():
    with pytest.raises(
        ValueError, match=r"interop.add: a has shape \(2, 3\) and b has shape \(2,\): the sizes 3 and 2"
    ):
        interop.add(np.ones((2, 3)), np.ones(2))


def test_stream_and_execution_of_host_arrays():
    with pytest.raises(ValueError, match="interop.add: stream is given, but the arrays are in host memory"):
        interop.add(np.ones(2), 1, stream=1)
    with pytest.raises(ValueError, match="interop.add: execution is 'gpu'; accepted: None, 'cuda'"):
        interop.add(np.ones(2), 1, execution="gpu")


def test_tensors_that_require_grad_are_refused_where_numpy_leads(torch):
    with pytest.raises(BufferError, match="interop.add: b requires grad"):
        interop.add(np.ones(2), torch.ones(2, requires_grad=True))


def test_explain():
    plan = interop.explain(interop.divide, np.ones((2, 3), "int32"), 2, where_zero=0)
    assert plan.function == "interop.divide"
    assert (plan.result_shape, plan.result_dtype) == ((2, 3), "float64")
    assert plan.algorithm == "NumPy's divide, on views of the arrays, in float64"
    assert [x.name for x in plan.arguments] == ["a"]
    assert interop.explain(interop.abs, np.ones(2, "complex64")).result_dtype == "float32"
