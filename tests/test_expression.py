"""`interop.elementwise` on the host: the function, its values, `out=`, libraries.

The text: test_expression_text.py. Its dtypes: test_expression_promotion.py.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from helpers import elements, expressions, products
from hypothesis import given
from hypothesis import strategies as st

import interop

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


def test_torch_tensors_that_need_grad_are_refused_where_numpy_leads(torch):
    y = torch.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match="y requires grad"):
        interop.elementwise("x + y")(np.ones(2), y)


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
