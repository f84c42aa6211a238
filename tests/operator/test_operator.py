"""Eager calls of operators: of C functions, expressions and Python functions, with the arrays of each library."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from helpers import machine
from helpers.threads import THREADS, at_once

import interop

X = np.arange(12, dtype="float32").reshape(3, 4)
S = np.arange(4, dtype="float32")


@pytest.fixture
def scale(lib):
    return interop.operator(
        "tests::scale", lib.scale, "x[..., n], s[n], eps -> y[..., n]", sizes={"rows": lambda leading: leading}
    )


def values(x):
    return x if isinstance(x, np.ndarray) else np.asarray(x)


# ---- what call may be ----


def test_a_c_function_is_given_the_sizes_of_letters(lib):
    op = interop.operator("tests::row_sum", lib.row_sum, "x[rows, n] -> [rows]")
    assert op(X).tolist() == X.sum(1).tolist()
    assert op(X).dtype == "float32"


def test_leading_axes_of_any_number(scale):
    for shape in ((4,), (3, 4), (2, 3, 4), (0, 4), (2, 0, 1, 4)):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        np.testing.assert_array_equal(scale(x, S, 0.5), x * S + np.float32(0.5))


def test_no_elements_at_all(scale):
    empty = scale(np.ones((3, 0), "float32"), np.ones(0, "float32"), 0.5)
    assert empty.shape == (3, 0)
    assert empty.dtype == "float32"


def test_inputs_by_name(scale):
    expected = (X * S + np.float32(2)).tolist()
    assert scale(X, S, eps=2).tolist() == expected
    assert scale(eps=2, s=S, x=X).tolist() == expected


def test_results_of_a_c_function_are_its_pointers_in_order(lib):
    op = interop.operator("tests::split", lib.split, "x[n] -> [n], [n]")
    whole, sign = op(np.array([-1.5, 0, 2.5], "float32"))
    assert (whole.tolist(), whole.dtype) == ([-1, 0, 2], "float32")
    assert (sign.tolist(), sign.dtype) == ([-1, 0, 1], "int32")


@pytest.mark.parametrize("results", ["sign[n], whole[n]", "sign[n], [n]", "[n], whole[n]"])
def test_or_by_the_names_of_the_results(lib, results):
    op = interop.operator("tests::split_by_name", lib.split, f"x[n] -> {results}")
    for _ in range(2):  # the second time as it is kept
        sign, whole = op(np.array([-1.5, 2.5], "float32"))
        assert (whole.tolist(), sign.tolist()) == ([-1, 2], [-1, 1])
        assert sign.dtype == "int32"


def test_a_size_that_is_in_no_input(lib):
    op = interop.operator("tests::pairs", lib.pairs, "x[n] -> [m]", sizes={"m": lambda n: n // 2})
    assert op(np.arange(6.0)).tolist() == [1, 5, 9]
    assert op(np.arange(5.0)).tolist() == [1, 5]


KERNEL = """
#include <interop/view.cuh>
__global__ void f(const float* x, interop::View<const double, 2> s, float by, long long* y, float* z, int n) {}
"""


def test_a_kernel_is_known_without_a_gpu():
    """What it makes, and what it takes, before it is compiled."""
    kernel = interop.kernel(KERNEL, "f", grid=1)
    op = interop.operator("tests::kernel", kernel, "x[..., n], by, s[n, 3] -> z[..., 2], [...]")
    description = op._description
    results = description.results([((5, 4), "float32"), ((4, 3), "float64")])
    assert results == (((5, 2), "float32"), ((5,), "int64"))
    with pytest.raises(TypeError, match="^tests::kernel: s is float32; accepted: float64"):
        description.results([((5, 4), "float32"), ((4, 3), "float32")])
    with pytest.raises(TypeError, match=r"^interop.kernel\('f'\): x is float32 of shape \(5, 4\).* on a CUDA device"):
        op(np.ones((5, 4), "float32"), 1, np.ones((4, 3)))
    function, args = description.chosen([]).calls([X, 2.0, np.ones((4, 3))])
    assert repr(function) == repr(kernel)
    assert [args[0] is X, args[1].shape, *args[2:]] == [True, (4, 3), 2.0, 4]


def test_an_expression(lib):
    op = interop.operator("tests::affine", interop.elementwise("x * s + eps / n"), "x[..., n], s[n], eps -> [..., n]")
    np.testing.assert_array_equal(op(X, S, 2), X * S + np.float32(0.5))
    with pytest.raises(ValueError, match=r"call returned an array of shape \(2, 3\) for the result; accepted: \(3,\)"):
        interop.operator("tests::wider", interop.elementwise("x + y"), "x[n], y[m, n] -> [n]")(S[:3], X[:2, :3])


def test_a_python_function(lib):
    row_sum = lib.row_sum.returning(y=lambda x, rows, n: (rows,))

    def mean(x, weight):
        return interop.multiply(row_sum(x, x.shape[0], x.shape[1]), weight / x.shape[1])

    op = interop.operator("tests::mean", mean, "x[rows, n], weight -> [rows]")
    np.testing.assert_array_equal(op(X, 2.0), 2 * X.mean(1))


def test_several_results_of_a_python_function():
    op = interop.operator("tests::both", lambda x: [x + 1, x.sum(-1)], "x[..., n] -> [..., n], total[...]")
    for _ in range(2):
        more, total = op(X)
        assert type(op(X)) is tuple
        np.testing.assert_array_equal(more, X + 1)
        np.testing.assert_array_equal(total, X.sum(-1))


def test_a_tuple_is_one_for_each_result_alone():
    op = interop.operator("tests::one", lambda x: (x,), "x[n] -> [n]")
    with pytest.raises(TypeError, match="^tests::one: call returned tuple for the result; accepted: an array"):
        op(S)


# ---- whose arrays, and on which options ----


def test_arrays_of_each_library(scale, torch, host_jax):
    expected = (X * S + np.float32(1)).tolist()
    made = scale(torch.from_numpy(X), torch.from_numpy(S), 1)
    assert type(made) is torch.Tensor
    assert made.tolist() == expected
    made = scale(host_jax.numpy.asarray(X), host_jax.numpy.asarray(S), 1)
    assert isinstance(made, host_jax.Array)
    assert made.tolist() == expected
    assert scale(interop.asarray(X), S, 1).shape == (3, 4)
    assert scale(X, torch.from_numpy(S), 1).tolist() == expected


def test_what_says_no_shape_is_viewed(scale):
    made = scale(X.__dlpack__(), memoryview(S), 1)
    np.testing.assert_array_equal(values(made), X * S + np.float32(1))


def test_nothing_is_copied():
    seen = []
    op = interop.operator("tests::same", lambda x: seen.append(x) or x, "x[...] -> [...]")
    assert op(X) is X
    assert seen[0] is X


def test_other_shapes_types_and_dtypes_are_other_calls(torch):
    """What is kept of a call serves calls like it alone."""
    op = interop.operator("tests::twice", lambda x, by: x * by, "x[..., n], by -> [..., n]")
    for k in range(20):  # more than are kept
        for x in (np.ones((k, 2)), np.ones((2, k), "float32"), torch.ones(k, 3), np.ones(k, "int64")):
            made = op(x, 2)
            assert type(made) is type(x)
            assert made.dtype == x.dtype
            assert made.shape == x.shape
    with pytest.raises(TypeError, match="call returned float64 for the result; accepted: int64"):
        op(np.ones(3, "int64"), 2.5)
    assert op(np.ones(3, "int64"), 2).tolist() == [2, 2, 2]


def test_results_are_checked_in_each_call():
    results = [np.ones(3), np.ones(3), np.ones(4), np.ones(3, "float32"), None, np.ones(3)]
    op = interop.operator("tests::worse", lambda x: results.pop(0), "x[n] -> [n]")
    x = np.zeros(3)
    assert op(x).tolist() == op(x).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=r"^tests::worse: call returned an array of shape \(4,\).*accepted: \(3,\)"):
        op(x)
    with pytest.raises(TypeError, match="call returned float32 for the result; accepted: float64"):
        op(x)
    with pytest.raises(TypeError, match="call returned NoneType for the result; accepted: an array"):
        op(x)
    assert op(x).tolist() == [1, 1, 1]


def test_errors_of_what_is_called_are_raised_as_they_are(lib):
    op = interop.operator("tests::fails", lib.fails, "x[n] -> [n]")
    with pytest.raises(interop.CudaError, match=r"liboperators\.fails"):
        op(np.ones(2, "float32"))

    def wrong(x):
        raise TypeError("mine")

    op = interop.operator("tests::wrong", wrong, "x[n] -> [n]")
    with pytest.raises(TypeError, match="^mine$"):
        op(S)


def test_options_are_handed_on():
    def call(x, *, stream=None, execution=None):
        return x if (stream, execution) == (None, None) else x + 1

    op = interop.operator("tests::options", call, "x[n] -> [n]")
    assert op(S).tolist() == op(S, stream=None).tolist() == S.tolist()
    assert op(S, execution="cuda").tolist() == op(S, stream=1).tolist() == (S + 1).tolist()
    op = interop.operator("tests::no_options", lambda x: x, "x[n] -> [n]")
    for name in ("stream", "execution"):
        with pytest.raises(TypeError, match=f"^tests::no_options: {name}= cannot be used as call takes none"):
            op(S, **{name: 1})


# ---- which calls are left to a library's transforms ----


def test_calls_of_torch_that_are_its_own(scale, torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    door = scale._calls.door
    x, s = torch.from_numpy(X), torch.from_numpy(S)
    assert door((x, s, 1)) == ""
    with_grad = x.clone().requires_grad_()
    assert door((with_grad, s, 1)) == door((x, s.clone().requires_grad_(), 1)) == "torch_autograd"
    with torch.no_grad():
        assert door((with_grad, s, 1)) == ""
    assert door((torch.nn.Parameter(x), s, 1)) == "torch_autograd"
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert door((fake, mode.from_tensor(s), 1)) == "torch"
    assert door((fake, s, 1)) == "torch"
    seen = []
    torch.vmap(lambda x: seen.append(door((x, s, 1))) or x)(x)
    torch.func.jvp(lambda x: seen.append(door((x, s, 1))) or x, (x,), (x,))
    assert seen == ["torch", "torch"]


def test_calls_of_jax_that_are_its_own(scale, host_jax):
    door, seen = scale._calls.door, []
    x, s = host_jax.numpy.asarray(X), host_jax.numpy.asarray(S)
    assert door((x, s, 1)) == ""
    host_jax.jit(lambda x: seen.append((door((x, s, 1)), door((x, S, 1)), door((X, x, 1)))) or x)(x)
    assert seen == [("jax", "jax", "jax")]


# ---- threads, and calls within calls ----


def test_threads_share_an_operator(scale):
    """More kinds of calls than are kept, so that plans are made, used and dropped at once."""

    def work(k):
        for n in range(40):
            x, s = np.full((k % 3, n % 12 + 1), k, "float32"), np.full(n % 12 + 1, n, "float32")
            assert (scale(x, s, 1) == k * n + 1).all()

    at_once(THREADS, work)


def test_an_operator_that_calls_itself():
    def halved(x):
        return x if x.shape[0] < 2 else np.concatenate([op(x[: len(x) // 2]), op(x[len(x) // 2 :])])

    op = interop.operator("tests::halved", halved, "x[n] -> [n]")
    for n in (0, 1, 5, 100):
        assert op(np.arange(n)).tolist() == [*range(n)]


# ---- dtypes ----


def test_dtypes_of_results():
    def computed(dtype, result):
        op = interop.operator("tests::dtypes", lambda x, i: x[i].astype(result), "x[n], i[m] -> [m]", dtype=dtype)
        return str(op(np.arange(3.0), np.array([2, 0])).dtype)

    assert computed(None, "float64") == "float64"
    assert computed("i", "int64") == "int64"
    assert computed("float32", "float32") == computed("f4", "float32") == "float32"
    assert computed(lambda x, i: {"float64": "complex128"}[x], "complex128") == "complex128"
    assert computed("bfloat16", "bfloat16") == "bfloat16"
    with pytest.raises(TypeError, match="call returned float64 for the result; accepted: float32"):
        computed("float32", "float64")


def test_a_dtype_for_each_result():
    op = interop.operator(
        "tests::argmax", lambda x: (x.max(-1), x.argmax(-1)), "x[..., n] -> [...], [...]", dtype=("x", "int64")
    )
    largest, at = op(X)
    assert (largest.tolist(), at.tolist()) == ([3, 7, 11], [3, 3, 3])
    assert (largest.dtype, at.dtype) == ("float32", "int64")


# ---- what it says of itself ----


def test_what_it_says_of_itself(scale):
    assert repr(scale) == "<operator tests::scale: x[..., n], s[n], eps -> y[..., n]>"
    assert (scale.name, scale.__name__) == ("tests::scale", "scale")
    assert scale.signature == "x[..., n], s[n], eps -> y[..., n]"
    assert str(inspect.signature(scale)) == "(x, s, eps, *, stream=None, execution=None)"
    assert scale.__doc__.startswith("scale(x, s, eps): x[..., n], s[n], eps -> y[..., n]\n\nvoid scale(")

    def documented(x):
        """Return it."""
        return x

    assert interop.operator("tests::doc", documented, "x[n] -> [n]").__doc__ == "doc(x): x[n] -> [n]\n\nReturn it."


def test_an_explained_call(scale, lib):
    plan = interop.explain(scale, X, S, eps=1)
    assert plan.function == repr(scale)
    assert [x.name for x in plan.arguments] == ["x", "s"]
    assert plan.arguments[0].pointer == X.ctypes.data
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("numpy", (3, 4), "float32")
    assert plan.algorithm.startswith("the C function void scale(")
    plan = interop.explain(interop.operator("tests::sum", interop.elementwise("x + y"), "x[n], y[n] -> [n]"), S, S)
    assert (plan.function, plan.result_shape) == ("<operator tests::sum: x[n], y[n] -> [n]>", (4,))


def test_an_explained_call_of_a_python_function():
    def halves(x):
        raise AssertionError("it is not called")

    op = interop.operator("tests::halves", halves, "x[..., n] -> [..., m]", sizes={"m": lambda n: n // 2})
    plan = interop.explain(op, X)
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("numpy", (3, 2), "float32")
    assert plan.algorithm.startswith("the Python function ")
    assert plan.algorithm.endswith("halves")
    assert (plan.arguments[0].library, plan.arguments[0].strides) == ("numpy", (4, 1))
    assert plan.copies == ()
    with pytest.raises(ValueError, match=r"^tests::halves: x has 0 dimensions"):
        interop.explain(op, np.ones(()))


def test_an_explained_call_inside_a_transform(scale, torch, jax):
    """There arrays may be made compact, as no call outside of one does."""
    plans = {}

    def explained(x, s):
        plans[type(x).__module__.partition(".")[0]] = interop.explain(scale, x, s, 1.0)
        return scale(x, s, 1.0)

    torch.vmap(explained, in_dims=(1, None))(torch.from_numpy(X), torch.ones(3))
    jax.make_jaxpr(jax.vmap(explained, in_axes=(1, None)))(X, np.ones(3, "float32"))
    assert len(plans) == 2
    for library, plan in (("torch", plans["torch"]), ("JAX", next(x for name, x in plans.items() if name != "torch"))):
        (copied,) = plan.copies
        assert copied.startswith("each array that a transform gives expanded or moved, made compact on its device by")
        assert f"the {library} " in plan.algorithm
        assert "void scale(" in plan.algorithm
    assert interop.explain(scale, X, S, 1.0).copies == ()


# ---- parts ----


def test_a_part_has_the_sizes_of_that_part_for_the_parameters_of_a_kernel(lib):
    da = machine.need("dask")
    op = interop.operator(
        "tests::cut_scale", lib.scale, "x[m, n], s[n], eps -> y[m, n]", sizes={"rows": lambda m: m}, cut="m"
    )
    made = op(da.from_array(X, chunks=((2, 1), 4)), S, 0.5)
    assert made.numblocks == (2, 1)
    assert made.compute(scheduler="sync").tolist() == (X * S + np.float32(0.5)).tolist()


# ---- sizes that are symbols ----


class Symbol:
    """An integer that is not known: with sums and products, and equal to what is written alike, and to no number."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Symbol(f"({self} + {other})")

    def __mul__(self, other):
        return Symbol(f"{self}*{other}")

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other):
        return isinstance(other, Symbol) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __str__(self):
        return self.text


def test_sizes_may_be_symbols():
    sizes = {"k": lambda n, leading: n + 2 * leading}
    op = interop.operator("tests::symbols", lambda x, s: x, "x[..., n], s[n] -> [..., n, k], [..., 3]", sizes=sizes)
    a, b, n = map(Symbol, "abn")
    results = op._description.results([((a, b, n), "float32"), ((n,), "float64")])
    texts = [tuple(map(str, shape)) for shape, _ in results]
    assert texts == [("a", "b", "n", "(n + a*1*b*2)"), ("a", "b", "3")]
    assert [dtype for _, dtype in results] == ["float32", "float32"]
    with pytest.raises(ValueError, match="^tests::symbols: n is a in s, of shape \\(a,\\), and n in x"):
        op._description.results([((a, b, n), "float32"), ((a,), "float64")])


def test_sizes_may_be_those_of_jax(jax):
    n, m = jax.export.symbolic_shape("n, m")
    op = interop.operator("tests::jax_sizes", lambda x: x, "x[..., n] -> [..., k]", sizes={"k": lambda n: 2 * n + 1})
    ((shape, _),) = op._description.results([((m, n), "float32")])
    assert shape == (m, 2 * n + 1)


def test_sizes_may_be_those_of_torch(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(5, 7))
    op = interop.operator("tests::sizes", lambda x: x, "x[..., n] -> [..., k]", sizes={"k": lambda n: 2 * n + 1})
    ((shape, _),) = op._description.results([(tuple(x.shape), "float32")])
    assert not any(type(size) is int for size in shape)
    assert str(shape[1].node.expr) == f"2*{x.shape[1].node.expr} + 1"
    assert not mode.shape_env.guards


def test_functions_of_equal_lists_are_two():
    """Each operator calls its own function, whose list is another one; the same function twice is the same operator."""

    def counting(calls):
        def call(x):
            calls.append(x.shape)
            return x + 1

        return call

    first, second = [], []
    call = counting(second)
    one, two = (interop.operator("tests::counts", f, "x[n] -> [n]") for f in (counting(first), call))
    assert one != two
    two(np.ones(3))
    assert (first, second) == ([], [(3,)])
    one(np.ones(2))
    assert (first, second) == ([(2,)], [(3,)])
    second.clear()
    again = interop.operator("tests::counts", call, "x[n] -> [n]")
    assert again == interop.operator("tests::counts", call, "x[n] -> [n]")
