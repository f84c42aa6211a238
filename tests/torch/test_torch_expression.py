"""Expressions inside torch's transforms, and recorded for gradients: values, dtypes, derivatives, errors."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import elements, torch_calls
from helpers.torch_calls import split_of

import interop
from interop._operations.table import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow|invalid:RuntimeWarning")


def recorded(split, *operands, **options):
    """The public call: of tensors that need a gradient, it records."""
    return interop.elementwise(split.parsed.text)(*operands, **options)


def by_torch(split, *operands, **options):
    from interop.torch._expression import compute

    return compute(split, operands, options)


WAYS = pytest.mark.parametrize("way", [recorded, by_torch], ids=lambda way: way.__name__)


def text_of(operation):
    names = operation.parameters
    if not operation.symbol:
        return f"{operation.name}({', '.join(names)})"
    return f"{operation.symbol}{names[0]}" if operation.arity == 1 else f"{names[0]} {operation.symbol} {names[1]}"


WRITTEN = [name for name in OPERATIONS if name != "copy"]
SERVED = [
    (name, dtype)
    for name in WRITTEN
    for dtype in elements.DTYPES
    if elements.kind_of(dtype) in OPERATIONS[name].accepts or (OPERATIONS[name].in_float and dtype in ("bool", "int8"))
]


def operands_of(operation, x):
    """Return operands for every pair of elements."""
    return {1: (x,), 2: (x[:, None], x[None]), 3: (x[:, None] != 0, x[None], x[:, None])}[operation.arity]


# ---- values ----


@pytest.mark.parametrize(("name", "dtype"), SERVED)
def test_each_operation(torch, place, name, dtype):
    """Integers and comparisons bit for bit, at every special value."""
    text, operands = text_of(OPERATIONS[name]), operands_of(OPERATIONS[name], torch_calls.special(torch, dtype, place))
    expected = interop.elementwise(text)(*operands)
    units = 32 if name == "pow" else 16  # torch's own of complex numbers on a GPU
    torch_calls.assert_close(torch, by_torch(split_of(text, *operands), *operands), expected, units)


CHAINS = ["x * y + 2", "(x > 300) * y", "where(x < 1e300, x * 2 + y, 0)", "x / 2 + y / 3", "x == 2 ** 70", "x ** 2 - y",
          "-x % 3 + abs(y)", "x", "x // y * y + x % y"]  # fmt: skip


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("dtype", elements.DTYPES)
def test_chains(torch, place, text, dtype):
    """Of ordinary elements; what the call outside refuses is refused in its words."""
    operands = [torch_calls.tensor(torch, elements.draw((7, 5), dtype, k), dtype, place) for k in range(2)]
    function = interop.elementwise(text)
    operands = operands[: len(function.parameters)]
    split = split_of(text, *operands)
    expected, error = answer(lambda: function(*operands))
    if error is None:
        torch_calls.assert_close(torch, by_torch(split, *operands), expected, 64)
        return
    with pytest.raises(type(error)) as refused:
        by_torch(split, *operands)
    assert str(refused.value) == str(error)


def answer(call):
    """Return the result, and what is raised in its place."""
    try:
        return call(), None
    except (TypeError, OverflowError) as error:
        return None, error


@pytest.mark.parametrize("k", [True, 3, 0.5, 2j, 2**40, np.float32(0.5), np.int8(3)], ids=repr)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "complex64"])
@pytest.mark.parametrize("text", ["x * k + k", "x == k", "x * (2 * k + 1)", "where(x == k, k, x)"])
def test_scalars(torch, k, dtype, text):
    x = torch_calls.ordinary(torch, (3,), dtype, "cpu")
    split = split_of(text, *([x, k] if text.index("x") < text.index("k") else [k, x]))
    expected, error = answer(lambda: interop.elementwise(text)(x=x, k=k))
    for way in (by_torch, recorded):
        if error is None:
            torch_calls.assert_close(torch, way(split, x, k), expected)
            continue
        with pytest.raises(type(error)) as refused:
            way(split, x, k)
        assert str(refused.value) == str(error)


@WAYS
def test_shapes_that_do_not_broadcast(torch, way):
    x, y = torch.ones(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match="do not broadcast") as expected:
        interop.elementwise("x + y")(x, y)
    with pytest.raises(ValueError, match="do not broadcast") as refused:
        way(split_of("x + y", x, y), x.requires_grad_(), y)
    assert str(refused.value) == str(expected.value)


@WAYS
def test_out(torch, place, way):
    x, out = torch.ones(3, device=place), torch.zeros(3, device=place)
    assert way(split_of("x + 1", x), x, out=out) is out
    assert out.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match=r"^interop.elementwise\('x \+ 1'\): out is given, and x requires grad"):
        way(split_of("x + 1", x), x.requires_grad_(), out=out)
    with pytest.raises(ValueError, match=r"^interop.elementwise\('x \+ 1'\): stream="):
        way(split_of("x + 1", x), x, stream=0)


# ---- gradients ----

REAL = ["x * y + z", "where(x > 0.5, x * y, z)", "exp(-x * x) / (1 + y)", "abs(x) * maximum(y, z)", "x / y / z",
        "tanh(x * 0.79788 * (1 + 0.044715 * x * x)) * x", "x ** 2 + y ** 3 + z", "sqrt(square(x) + square(y))",
        "0.7 * x + y", "x", "-x", "log1p(exp(x)) * 0.7", "x % y + z", "x * x * x * x * x * x * x * x", "floor(x) * y",
        "hypot(x, y) * atan2(x, y)", "copysign(x, y)"]  # fmt: skip
COMPLEX = ["x * y + z", "abs(x) * y", "real(x) * imag(y) + abs(z)", "conj(x) * y / z", "x ** 2", "x ** y",
           "square(x) + 0.7 * y", "where(abs(x) > 0.9, x, y)"]  # fmt: skip
OF_EACH = [(text, "float64") for text in REAL] + [(text, "complex128") for text in COMPLEX]


def leaves_of(torch, text, dtype, place):
    shapes = {"x": (4, 1, 3), "y": (2, 3), "z": (1,)}
    names = interop.elementwise(text).parameters
    return [torch_calls.ordinary(torch, shapes[x], dtype, place, ord(x)).requires_grad_() for x in names]


@WAYS
@pytest.mark.parametrize(("text", "dtype"), OF_EACH)
def test_gradcheck(torch, place, way, text, dtype):
    operands = tuple(leaves_of(torch, text, dtype, place))
    split = split_of(text, *operands)
    check = torch.autograd.gradcheck
    assert check(lambda *x: way(split, *x), operands, check_forward_ad=way is by_torch, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda *x: way(split, *x), operands)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("text", REAL)
def test_gradients_of_narrow_floats(torch, place, text, dtype):
    """Added up in float32, and rounded once: beside those of float64, at operands that are the same."""
    operands = leaves_of(torch, text, dtype, place)
    wide = [x.detach().double().requires_grad_() for x in operands]
    result = recorded(split_of(text, *operands), *operands)
    result.sum().backward()
    by_torch(split_of(text, *wide), *wide).sum().backward()
    for x, y in zip(operands, wide, strict=True):
        assert x.grad.dtype == x.dtype
        eps = torch.finfo(x.dtype).eps  # the steps on the way forward are rounded to it
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=32 * eps, atol=32 * eps)


SMOOTH = [name for name in WRITTEN if any(OPERATIONS[name].derivatives) and "f" in OPERATIONS[name].accepts]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_where_derivatives_bend(torch, place, name):
    """By our kernels beside torch's own derivatives: at ties, at 0, at infinities and NaN."""
    values = [0, -0.0, 1, -1, 2, 0.5, np.nan, np.inf, -np.inf, -3, 0.25]
    if name == "copysign":  # of an infinity, torch's own is NaN
        values = [x for x in values if not np.isinf(x)]
    x = torch_calls.tensor(torch, values, "float64", place)
    operands = torch.broadcast_tensors(*operands_of(OPERATIONS[name], x))
    text, results = text_of(OPERATIONS[name]), []
    for way in (recorded, by_torch):
        own = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in operands]
        way(split_of(text, *own), *own).sum().backward()
        results.append([x.grad for x in own if x.requires_grad])
    for ours, torchs in zip(*results, strict=True):
        torch_calls.assert_close(torch, ours, torchs)


@WAYS
def test_mixed_dtypes(torch, place, way):
    """Each gradient in its operand's dtype; integers have none."""
    x = torch_calls.ordinary(torch, (3,), "float16", place).requires_grad_()
    y = torch_calls.ordinary(torch, (2, 1), "float32", place).requires_grad_()
    n = torch.arange(1, 4, device=place)
    result = way(split_of("x * y / n + n // 2", x, y, n), x, y, n)
    assert result.dtype == torch.float32
    result.sum().backward()
    torch_calls.assert_close(torch, x.grad, (y.detach() / n).sum(0).to(torch.float16), 4)
    torch_calls.assert_close(torch, y.grad, (x.detach().float() / n).sum().expand(2, 1).float(), 4)


@WAYS
def test_what_has_no_gradient(torch, place, way):
    x, y = (torch.ones(3, device=place, requires_grad=True) for _ in range(2))
    assert not way(split_of("x > y", x, y), x, y).requires_grad
    z = torch.ones(3, device=place)
    assert not way(split_of("logical_and(x > 0, y > 0) * z", x, y, z), x, y, z).requires_grad
    result = way(split_of("where(x > 0, y, 0)", x, y), x, y)
    assert [g is None for g in torch.autograd.grad(result.sum(), (x, y), allow_unused=True)] == [True, False]


def test_what_is_kept_is_what_the_gradients_need(torch):
    x, y, z = (torch.ones(3).requires_grad_(k == 0) for k in range(3))
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        recorded(split_of("x * y + z", x, y, z), x, y, z)
    assert len(packed) == 1
    assert packed[0] is y


def test_more_operands_than_a_kernel_takes(torch):
    """The gradient is one more: torch's operations compute that of 16."""
    names = [f"x{k}" for k in range(16)]
    operands = [torch.full((2,), k + 1.0, requires_grad=True) for k in range(16)]
    recorded(split_of(" * ".join(names), *operands), *operands).sum().backward()
    product = torch.stack(operands).detach().prod(0)
    for x in operands:
        torch.testing.assert_close(x.grad, product / x.detach())


# ---- transforms ----

TEXT = "where(x > 0.75, x * y + 2, exp(y) * k)"


def own(torch, x, y, k=0.7):
    return torch.where(x > 0.75, x * y + 2, torch.exp(y) * k)


@pytest.fixture
def operands(torch, place):
    return [torch_calls.ordinary(torch, (5,), "float64", place, k) for k in range(2)]


def test_transforms(torch, operands):
    split, func = split_of(TEXT, *operands, 0.7), torch.func
    for make in (
        lambda f: func.vmap(f)(*operands),
        lambda f: func.jacrev(f)(*operands),
        lambda f: func.jacfwd(f, 1)(*operands),
        lambda f: func.jvp(f, tuple(operands), tuple(operands))[1],
        lambda f: func.hessian(lambda y: f(operands[0], y).sum())(operands[1]),
        lambda f: func.vmap(func.grad(f))(*operands),
    ):
        expected = make(lambda x, y: own(torch, x, y))
        torch_calls.assert_close(torch, make(lambda x, y: by_torch(split, x, y, 0.7)), expected)


def test_traces(torch, operands):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    split = split_of(TEXT, *operands, 0.7)
    graph = make_fx(lambda x, y: by_torch(split, x, y, 0.7))(*operands)
    torch_calls.assert_close(torch, graph(*operands), own(torch, *operands))
    mode = FakeTensorMode()
    fake = by_torch(split, *(mode.from_tensor(x) for x in operands), 0.7)
    assert (fake.shape, fake.dtype, fake.device) == (operands[0].shape, torch.float64, operands[0].device)


@pytest.fixture
def many_graphs(torch):
    """Let one function have as many graphs as the test needs to count them."""
    with torch._dynamo.config.patch(recompile_limit=16):
        yield


@pytest.mark.usefixtures("many_graphs")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("text", [TEXT, "x * (2 * k + 1) + y", "(x > k) * y", "x // y + k"])
def test_compiled_in_one_graph(torch, operands, text, dtype):
    """Two graphs for ten values of a scalar: the first, and one for all others. The derivatives too.

    More only where torch's own operations need more: torch 2.11 does for each value of 2 * k + 1.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    x, y = (z.to(getattr(torch, dtype)) for z in operands)
    counter, of_torch = (CompileCounterWithBackend("aot_eager") for _ in range(2))
    names = interop.elementwise(text).parameters
    split = split_of(text, *({"x": x, "y": y, "k": 0.5}[name] for name in names))

    def call(way, x, y, k):
        return way(split, *[{"x": x, "y": y, "k": k}[name] for name in names])

    compiled = torch.compile(lambda x, y, k: call(by_torch, x, y, k), fullgraph=True, backend=counter)
    own = eval(f"lambda x, y, k: {text}", {"where": torch.where, "exp": torch.exp})
    own_compiled = torch.compile(own, fullgraph=True, backend=of_torch)
    for k in range(10):
        own_compiled(x, y, k * 0.25)
        ours, expected = ([z.clone().requires_grad_() for z in (x, y)] for _ in range(2))
        results = []
        for function, tensors in ((compiled, ours), (lambda *z: call(recorded, *z), expected)):
            result = function(*tensors, k * 0.25)
            results.append(result)
            result.sum().backward()
        torch_calls.assert_close(torch, *results)
        for z, own_z in zip(ours, expected, strict=True):
            torch_calls.assert_close(torch, *(torch.zeros(()) if g is None else g for g in (z.grad, own_z.grad)))
    assert counter.frame_count <= max(2, of_torch.frame_count)
