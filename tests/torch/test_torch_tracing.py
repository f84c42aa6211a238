"""The public functions under torch's compiler: traced without a graph break, and equal to what they are without it."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers.compiled import Compiled

import interop
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

torch = pytest.importorskip("torch")

# Torch's compiler warns of what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def made(place, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(place, dtype)


def assert_same(x, y):
    assert type(x) is type(y)
    assert x.dtype == y.dtype
    if isinstance(x, np.ndarray):
        np.testing.assert_array_equal(x, y)
    else:
        assert x.device == y.device
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def assert_compiles(function, *args):
    """The first call is traced whole, and the result is that of the call without the compiler."""
    compiled = Compiled(torch, function)
    assert_same(compiled(*args), function(*args))
    assert (compiled.graphs, compiled.breaks) == (1, [])
    return compiled


PRODUCTS = {
    "plain": lambda a, b, c: interop.matmul(a, b),
    "batches": lambda a, b, c: interop.matmul(a[None], b.expand(2, -1, -1)),
    "transposed": lambda a, b, c: interop.matmul(b.T, a.T),
    "vectors": lambda a, b, c: interop.matmul(a[0], b[:, 0]),
    "terms": lambda a, b, c: interop.matmul(a, b, c=c, bias=c[0], alpha=2, beta=-1, epilogue="relu"),
    "gelu": lambda a, b, c: interop.matmul(a, b, bias=c[0], epilogue="gelu"),
    "factors": lambda a, b, c: interop.matmul(a, b, c=c, alpha=0.5, beta=0.25, bias=c[:, :1], epilogue="relu"),
    "factor and gelu": lambda a, b, c: interop.matmul(a, b, alpha=0.5, epilogue="gelu_tanh"),
    "a factor of 0": lambda a, b, c: interop.matmul(a, b / 0, c=c, alpha=0.0),
    "NumPy's scalar": lambda a, b, c: interop.matmul(a, b, alpha=np.float64(1.5)),
    "dtype's name": lambda a, b, c: interop.matmul(a, b, dtype="float32"),
    "NumPy's dtype": lambda a, b, c: interop.matmul(a, b, dtype=np.float32),
    "torch's dtype": lambda a, b, c: interop.matmul(a, b, dtype=torch.float32),
    "None": lambda a, b, c: interop.matmul(a, b, c=None, stream=None, out=None, epilogue=None),
    "tf32": lambda a, b, c: interop.matmul(a, b, precision="tf32"),
    "out": lambda a, b, c: interop.matmul(a, b, out=torch.empty_like(c)),
    "aux": lambda a, b, c: interop.matmul(a, b, epilogue="relu", aux=(x := torch.empty_like(c))) + x,
}


@pytest.mark.parametrize("call", PRODUCTS.values(), ids=PRODUCTS)
def test_products(place, call):
    compiled = assert_compiles(call, made(place, 3, 4), made(place, 4, 5, seed=1), made(place, 3, 5, seed=2))
    assert {"interop.matmul", "interop.matmul_with_aux"} & compiled.operators


def operands(name):
    return (made("cpu", 3, 4).abs() + 0.5, made("cpu", 4, seed=1).abs() + 0.5)[: len(OPERATIONS[name].parameters)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_functions(place, name):
    function = getattr(interop, name)
    given = [x.to(place) for x in operands(name)]
    compiled = Compiled(torch, lambda *x: function(*x))
    torch.testing.assert_close(compiled(*given), function(*given))
    assert (compiled.graphs, compiled.breaks) == (1, [])
    if len(given) == 2:
        integers = [(10 * x).to(torch.int32) for x in given]
        if name != "divide":
            assert_compiles(lambda *x: function(*x), *integers)
        compiled = Compiled(torch, lambda a, out: function(a, 2, out=out))
        out = torch.empty((3, 4), dtype=torch.bool if name in COMPARISONS else torch.float32, device=place)
        assert compiled(given[0], out) is out
        torch.testing.assert_close(out, function(given[0], 2))


def test_expressions(place):
    f = interop.elementwise("where(x > 0, x * y + s, 0)")
    x, y = made(place, 3, 4), made(place, 4, seed=1)
    assert_compiles(lambda x, y: f(x, y, 2.5), x, y)
    assert_compiles(lambda x, y: f(x, s=y, y=2), x, y)
    assert_compiles(f, x, y, 3)
    assert_compiles(functools.partial(f, s=0.5), x, y)
    assert_compiles(lambda x, y: f(x, y, y, out=torch.empty_like(x)), x, y)


def test_a_function_itself_and_a_partial_one_are_compiled(place):
    a, b = made(place, 4, 4), made(place, 4, 4, seed=1)
    assert_compiles(interop.matmul, a, b)
    assert_compiles(functools.partial(interop.matmul, epilogue="relu"), a, b)
    assert_compiles(interop.add, a, b)
    assert_compiles(interop.negative, a)
    assert_compiles(functools.partial(interop.add, 2), a)


def test_functions_that_are_compiled_themselves_have_graphs_of_their_own():
    compiled = [torch.compile(getattr(interop, name), backend="eager", fullgraph=True) for name in FUNCTIONS]
    for name, function in zip(FUNCTIONS, compiled, strict=True):
        torch.testing.assert_close(function(*operands(name)), getattr(interop, name)(*operands(name)))


def test_a_graph_is_of_its_own_function():
    compiled = Compiled(torch, lambda x, function: function(x, x))
    x = torch.full((3, 3), 3.0)
    f, g = interop.elementwise("x * y - 1"), interop.elementwise("x - y")
    partial = [functools.partial(interop.matmul, alpha=alpha) for alpha in (2, 3)]
    for function in (interop.add, interop.multiply, interop.matmul, *partial, f, g, interop.add):
        assert_same(compiled(x, function), function(x, x))
    assert compiled.breaks == []


def test_what_wraps_a_function_is_traced_itself():
    @functools.wraps(interop.add)
    def twice(a, b):
        return 2 * interop.add(a, b)

    x = torch.ones(3)
    assert_compiles(twice, x, x)
    assert_compiles(lambda x: twice(x, x), x)


def test_arrays_of_numpy_give_arrays_of_numpy():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    f = interop.elementwise("x * y + 1")
    assert_compiles(lambda a, b: interop.matmul(a, b), a, b)
    assert_compiles(lambda a, b: interop.matmul(a, b), a, torch.from_numpy(b))
    assert_compiles(lambda a, b: interop.matmul(a, b), torch.from_numpy(a), b)
    assert_compiles(lambda a: interop.add(2, a), a)
    assert_compiles(lambda a: f(a, a), a)
    out = np.empty((2, 4))
    assert Compiled(torch, lambda a, b, out: interop.matmul(a, b, out=out))(a, b, out) is out
    np.testing.assert_array_equal(out, a @ b)


VALUES = {
    "alpha": lambda x, s: interop.matmul(x, x, alpha=s),
    "alpha and beta": lambda x, s: interop.matmul(x, x, alpha=s, c=x, beta=2 * s, epilogue="gelu"),
    "add": lambda x, s: interop.add(x, s),
    "expression": lambda x, s: interop.elementwise("x * s + x")(x, s),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("first", [0.5, 2], ids=["floats", "integers"])
@pytest.mark.parametrize("call", VALUES)
def test_ten_values_of_a_number_need_two_graphs(place, call, first, needs_grad):
    function = VALUES[call]
    if call == "expression":
        f = interop.elementwise("x * s + x")
        function = lambda x, s: f(x, s)  # noqa: E731
    compiled = Compiled(torch, function)
    x = made(place, 4, 4).requires_grad_(needs_grad)
    for i in range(10):
        y = compiled(x, first + i)
        torch.testing.assert_close(y.detach(), function(x.detach(), first + i))
        if needs_grad:
            y.sum().backward()
    assert compiled.graphs <= 2
    assert compiled.breaks == []


def test_sizes_may_differ():
    compiled = Compiled(torch, lambda a, b: interop.add(interop.matmul(a, b), 1), dynamic=True)
    for n in (3, 5, 8):
        a = made("cpu", n, 4)
        assert_same(compiled(a, a.T), interop.add(interop.matmul(a, a.T), 1))
    assert compiled.graphs == 1


def test_gradients_go_through_a_compiled_function(place):
    f = interop.elementwise("x * y + 1")

    def loss(multiply, a, b):
        return f(interop.add(multiply(a, b), b), b).sum()

    leaves = [made(place, 4, 4, seed=seed).requires_grad_() for seed in (0, 1)]
    compiled = Compiled(torch, functools.partial(loss, interop.matmul))
    found = torch.autograd.grad(compiled(*leaves), leaves)
    a, b = leaves
    expected = torch.autograd.grad(((a @ b + b) * b + 1).sum(), leaves)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    assert (compiled.graphs, compiled.breaks) == (1, [])


REFUSED = {
    "a keyword": (lambda x: interop.matmul(x, x, alfa=2), "got an unexpected keyword argument 'alfa'; did you mean"),
    "another keyword": (lambda x: interop.add(x, x, alpha=2), "got an unexpected keyword argument 'alpha'"),
    "too few": (lambda x: interop.matmul(x), "missing 1 required positional argument: 'b'"),
    "too many": (lambda x: interop.add(x, x, x), "takes 2 positional arguments but 3 were given"),
    "no dtype": (lambda x: interop.matmul(x, x, dtype="floaty"), "dtype is 'floaty'"),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_errors_are_those_of_the_functions(call, words):
    x = torch.ones(2, 2)
    with pytest.raises(TypeError) as expected:
        call(x)
    assert words in str(expected.value)
    with pytest.raises(TypeError) as found:
        Compiled(torch, call, fullgraph=False)(x)
    assert str(found.value) == str(expected.value)
    # A whole graph cannot raise: the compiler says what would be raised.
    with pytest.raises(torch._dynamo.exc.Unsupported) as said:
        Compiled(torch, call)(x)
    assert str(expected.value)[:100] in str(said.value).replace("\\'", "'")


def test_shapes_that_do_not_fit_are_refused_while_tracing():
    with pytest.raises(RuntimeError, match="the inner dimensions 2 and 3 differ"):
        Compiled(torch, lambda x: interop.matmul(x, torch.ones(3, 2)))(torch.ones(2, 2))


def test_what_a_graph_cannot_have_is_called_outside_of_it():
    class Other:
        def __init__(self, x):
            self.__array_interface__ = x.__array_interface__

    def call(x):
        return interop.add(x, other) * 2

    other, x = Other(np.ones(3, "float32")), torch.ones(3)
    compiled = Compiled(torch, call, fullgraph=False)
    assert compiled(x).tolist() == [4, 4, 4]
    assert any("interop.add: b is Other" in reason for reason in compiled.breaks)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="interop.add: b is Other"):
        Compiled(torch, call)(x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="execution= cannot be used in a traced function"):
        Compiled(torch, lambda x: interop.add(x, x, execution="cuda"))(x)


def test_a_fused_expression_is_one_kernel():
    f = interop.elementwise("where(x > 0, x * y + 2, y)")
    x, y = made("cpu", 64, 64), made("cpu", 64, seed=1)
    compiled = Compiled(torch, lambda x, y: interop.add(f(x, y), x), backend="inductor")
    torch.testing.assert_close(compiled(x, y), interop.add(f(x, y), x))
    import torch._inductor.metrics as metrics

    torch._dynamo.reset()
    metrics.reset()
    torch.compile(lambda x, y: interop.add(f(x, y), x), fullgraph=True)(x + 1, y)
    assert metrics.generated_kernel_count == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own first graph
@pytest.mark.usefixtures("cuda_device")
def test_products_are_captured_in_cuda_graphs():
    f = interop.elementwise("x * y + s")

    def call(a, b, s):
        return f(interop.matmul(a, b, alpha=s, c=b, beta=2 * s), b, s)

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for seed in range(8):  # a replayed graph has the numbers of its own call
        a, b = made("cuda", 64, 64, seed=seed), made("cuda", 64, 64, seed=seed + 9)
        torch.testing.assert_close(compiled(a, b, seed + 0.5).clone(), call(a, b, seed + 0.5))
