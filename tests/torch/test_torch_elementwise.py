"""The elementwise functions inside torch's transforms: the values, dtypes and errors of calls outside them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import elements, torch_calls

import interop
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow:RuntimeWarning")

CASES = [(name, dtype) for name in FUNCTIONS for dtype in elements.DTYPES if elements.serves(name, dtype)]
SMOOTH = [name for name in FUNCTIONS if name not in COMPARISONS]


@pytest.fixture
def rules(torch):
    from interop.torch import _elementwise

    return _elementwise


def pair(name, x):
    """Return the operands for every pair of elements."""
    return (x,) if OPERATIONS[name].arity == 1 else (x[:, None], x[None])


# ---- values ----


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_values_are_those_of_the_kernels(torch, rules, place, name, dtype):
    """Integers and comparisons bit for bit, at every special value."""
    operands = pair(name, torch_calls.special(torch, dtype, place))
    units = 32 if name == "pow" else 16  # torch's own of complex numbers on a GPU
    torch_calls.assert_close(torch, rules.decomposed(name, *operands), getattr(interop, name)(*operands), units)


@pytest.mark.parametrize("name", elements.COMPLEX_SPECIAL)
@pytest.mark.parametrize("dtype", elements.COMPLEX)
def test_infinite_and_nan_parts_of_complex_numbers(torch, rules, place, dtype, name):
    operands = [torch.from_numpy(x).to(place) for x in elements.special_complex(name, dtype)]
    result, expected = rules.decomposed(name, *operands), getattr(interop, name)(*operands)
    torch_calls.assert_close(torch, result, expected)
    assert name == "abs" or elements.same_bits(result.cpu().numpy(), expected.cpu().numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("zero", [0, 0.5, float("inf"), True])
def test_divide_where_zero(torch, rules, place, dtype, zero):
    operands = pair("divide", torch_calls.special(torch, dtype, place))
    result = rules.decomposed("divide", *operands, where_zero=zero)
    torch_calls.assert_close(torch, result, interop.divide(*operands, where_zero=zero))


SCALARS = [True, 3, -2, 2**40, 0.75, -1e30, 2 + 1j, np.float32(0.1), np.int8(3), np.bool_(True)]


@pytest.mark.parametrize("dtype", elements.DTYPES)
@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
@pytest.mark.parametrize("name", ["add", "divide", "less", "equal", "maximum", "remainder"])
def test_scalars_count_by_their_kind(torch, rules, dtype, scalar, name):
    """As in the call outside; what that refuses is refused in its words."""
    x = torch_calls.special(torch, dtype, "cpu")
    for operands in ((x, scalar), (scalar, x)):
        expected, words = answer(name, *operands)
        if words is None:
            torch_calls.assert_close(torch, rules.decomposed(name, *operands), expected)
            continue
        with pytest.raises((TypeError, OverflowError)) as refused:
            rules.decomposed(name, *operands)
        assert str(refused.value) == words


def answer(name, *operands):
    """Return the result of the call outside, or its words."""
    try:
        return getattr(interop, name)(*operands), None
    except (TypeError, OverflowError) as error:
        return None, str(error)


@pytest.mark.parametrize("scalar", [2**64, -(2**63) - 1, 2**200, -(2**2000), 300, 65519.0, 65520.0, 3.4e38, 3.5e38])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_scalars_of_any_size(torch, rules, scalar, name):
    for dtype in elements.DTYPES:
        if not elements.serves(name, dtype):
            continue
        x = torch_calls.special(torch, dtype, "cpu")
        for operands in ((x, scalar), (scalar, x)):
            assert torch.equal(rules.decomposed(name, *operands), getattr(interop, name)(*operands)), dtype


@pytest.mark.parametrize("dtype", ["bool", *elements.INTEGERS])
@pytest.mark.parametrize("other", ["bool", *elements.INTEGERS])
def test_comparisons_of_integers_are_exact(torch, rules, place, dtype, other):
    a, b = (torch_calls.special(torch, x, place) for x in (dtype, other))
    for name in COMPARISONS:
        result = rules.decomposed(name, a[:, None], b[None])
        assert torch.equal(result, getattr(interop, name)(a[:, None], b[None])), name


@pytest.mark.parametrize("dtype", elements.DTYPES)
@pytest.mark.parametrize("other", elements.DTYPES)
def test_promotion(torch, rules, dtype, other):
    """Of two dtypes, each in turn of a 0-d tensor, which counts by its kind."""
    x, y = (torch_calls.ordinary(torch, (3,), d, "cpu") for d in (dtype, other))
    for operands in ((x, y), (x, y[0]), (x[0], y), (x[0], y[0])):
        for name in ("add", "divide"):
            expected, words = answer(name, *operands)
            if words is None:
                torch_calls.assert_close(torch, rules.decomposed(name, *operands), expected)
                continue
            with pytest.raises(TypeError) as refused:
                rules.decomposed(name, *operands)
            assert str(refused.value) == words


def test_the_default_dtype_counts(torch, rules):
    x = torch.arange(3)
    before = torch.get_default_dtype()
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert rules.decomposed("divide", x, 2).dtype == dtype
            assert rules.decomposed("add", x, 0.5).dtype == dtype
        finally:
            torch.set_default_dtype(before)


# ---- refusals and options ----

REFUSED = {
    "shapes": lambda torch, rules, add: add(torch.ones(2, 3), torch.ones(2)),
    "a scalar that does not fit": lambda torch, rules, add: add(torch.ones(2, dtype=torch.int8), 300),
    "an integer beyond floats": lambda torch, rules, add: add(torch.ones(2), 10**400),
    "float8": lambda torch, rules, add: add(torch.ones(2).to(torch.float8_e4m3fn), 1),
    "two dtypes": lambda torch, rules, add: add(torch.ones(2, dtype=torch.uint16), torch.ones(2, dtype=torch.int8)),
    "out's shape": lambda torch, rules, add: add(torch.ones(2), 1, out=torch.ones(3)),
    "out's dtype": lambda torch, rules, add: add(torch.ones(2), 1, out=torch.ones(2, dtype=torch.float64)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_those_of_the_call_outside(torch, rules, case):
    with pytest.raises((TypeError, ValueError, OverflowError)) as expected:
        REFUSED[case](torch, rules, interop.add)
    with pytest.raises(type(expected.value)) as refused:
        REFUSED[case](torch, rules, lambda a, b, **options: rules.compute("add", a, b, options))
    assert str(refused.value) == str(expected.value)


def test_out(torch, rules, place):
    x, out = torch.ones(3, device=place), torch.zeros(3, device=place)
    assert rules.compute("add", x, 2, {"out": out}) is out
    assert out.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match=r"^interop.add: out is given, and a requires grad"):
        rules.compute("add", x.requires_grad_(), 2, {"out": out})


def test_options_that_a_transform_cannot_have(torch, rules):
    x = torch.ones(3)
    with pytest.raises(ValueError, match=r"^interop.add: stream= cannot be used inside torch's transforms"):
        rules.compute("add", x, 2, {"stream": 0})
    with pytest.raises(ValueError, match=r"^interop.add: execution= cannot be used inside torch's transforms"):
        rules.compute("add", x, 2, {"execution": "cuda"})


def test_arrays_of_other_libraries(torch, rules):
    result = rules.compute("multiply", torch.tensor([1.0, 2.0]), np.array([3.0, 4.0], "float32"), {})
    assert result.tolist() == [3, 8]


@pytest.mark.parametrize("name", SMOOTH)
def test_autocast_changes_nothing(torch, rules, place, name):
    operands = operands_of(torch, name, place, "float16")
    expected = getattr(interop, name)(*operands)
    compiled = torch.compile(lambda *x: rules.decomposed(name, *x), fullgraph=True, backend="eager")
    with torch.autocast(place, dtype=torch.bfloat16):
        torch_calls.assert_close(torch, rules.decomposed(name, *operands), expected)
        torch_calls.assert_close(torch, compiled(*operands), expected)
    torch.compiler.reset()


# ---- transforms ----


def operands_of(torch, name, place, dtype="float64", shape=(5,)):
    return [torch_calls.ordinary(torch, shape, dtype, place, k) for k in range(OPERATIONS[name].arity)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(torch, rules, place, name):
    operands = operands_of(torch, name, place, shape=(4, 3))
    expected = getattr(interop, name)(*operands)
    torch_calls.assert_close(torch, torch.func.vmap(lambda *x: rules.decomposed(name, *x))(*operands), expected)
    if len(operands) == 2:
        mapped = torch.func.vmap(lambda *x: rules.decomposed(name, *x), in_dims=(1, None), out_dims=1)
        torch_calls.assert_close(torch, mapped(operands[0], operands[1][:, 0]), getattr(interop, name)(
            operands[0], operands[1][:, :1]))  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_by_transforms(torch, rules, place, name):
    """Of the first order and of the second, forward and back, and mapped; beside torch's own function."""
    operands = operands_of(torch, name, place)
    own = torch_calls.function_of_torch(torch, name)

    def ours(*x):
        return rules.decomposed(name, *x)

    func = torch.func
    for make in (
        lambda f: func.jacrev(f)(*operands),
        lambda f: func.jacfwd(f)(*operands),
        lambda f: func.jvp(f, tuple(operands), tuple(operands))[1],
        lambda f: func.hessian(lambda *x: f(*x).sum())(*operands),
        lambda f: func.vmap(func.grad(f))(*operands),
        lambda f: func.grad(lambda *x: func.grad(lambda *y: f(*y).sum())(*x).sum())(*operands),
    ):
        torch_calls.assert_close(torch, make(ours), make(own))


def test_public_functions_inside_transforms(torch, place):
    """They are what is computed here: mapped, differentiated, with a tangent, faked, traced."""
    from torch._subclasses import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = (torch_calls.ordinary(torch, (3,), "float64", place, k) for k in range(2))
    expression = interop.elementwise("x * y + exp(x)")
    for ours, own in (
        (interop.multiply, torch.mul),
        (interop.pow, torch.pow),
        (expression, lambda x, y: x * y + torch.exp(x)),
    ):
        for make in (
            lambda f: torch.func.vmap(f)(x, y),
            lambda f: torch.func.jacrev(f)(x, y),
            lambda f: torch.func.jacfwd(f)(x, y),
            lambda f: torch.func.vmap(torch.func.grad(f))(x, y),
            lambda f: make_fx(lambda *z: f(*z))(x, y)(x, y),
        ):
            torch_calls.assert_close(torch, make(ours), make(own))
        with forward_ad.dual_level():
            tangents = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, y), y)).tangent for f in (ours, own)]
            torch_calls.assert_close(torch, *tangents)
        with FakeTensorMode() as mode:
            assert ours(mode.from_tensor(x), mode.from_tensor(y)).shape == (3,)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_traces(torch, rules, place, name):
    """By `make_fx`, and of tensors without memory."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    operands = operands_of(torch, name, place, "float32")
    expected = getattr(interop, name)(*operands)
    graph = make_fx(lambda *x: rules.decomposed(name, *x))(*operands)
    torch_calls.assert_close(torch, graph(*operands), expected)
    mode = FakeTensorMode()
    fake = rules.decomposed(name, *(mode.from_tensor(x) for x in operands))
    assert (fake.dtype, fake.shape, fake.device) == (expected.dtype, expected.shape, expected.device)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_in_one_graph(torch, rules, place, name):
    """With integers, floats and scalars; the derivatives too."""
    operation = torch.compile(lambda *x: rules.decomposed(name, *x), fullgraph=True, backend="aot_eager")
    operands = operands_of(torch, name, place, "float32")
    cases = [operands, [x.to(torch.int32) for x in operands], [operands[0], *[0.5] * (len(operands) - 1)]]
    for case in cases:
        torch_calls.assert_close(torch, operation(*case), getattr(interop, name)(*case))
    if name in SMOOTH:
        leaves = [x.clone().requires_grad_() for x in operands]
        operation(*leaves).sum().backward()
        own = [x.clone().requires_grad_() for x in operands]
        torch_calls.function_of_torch(torch, name)(*own).sum().backward()
        for x, y in zip(leaves, own, strict=True):
            torch_calls.assert_close(torch, x.grad, y.grad)
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("name", ["multiply", "less"])
def test_another_scalar_compiles_nothing(torch, rules, name, dtype):
    """Two graphs for ten values: the first, and one for all others."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    operation = torch.compile(lambda x, k: rules.decomposed(name, x, k), fullgraph=True, backend=counter)
    x = torch_calls.ordinary(torch, (3,), dtype, "cpu")
    for k in range(3, 13):
        scalar = k if dtype == "int64" else 0.25 * k
        assert torch.equal(operation(x, scalar), getattr(interop, name)(x, scalar))
    assert counter.frame_count <= 2
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_default_dtype_compiles_anew(torch, rules, dtype):
    operation = torch.compile(lambda x: rules.decomposed("divide", x, 2), fullgraph=True, backend="eager")
    x, before = torch.arange(3), torch.get_default_dtype()
    for default in (before, getattr(torch, dtype), before):
        torch.set_default_dtype(default)
        try:
            assert operation(x).dtype == default
        finally:
            torch.set_default_dtype(before)
    torch.compiler.reset()


def test_sizes_that_are_not_known_yet(torch, rules):
    """Of tensors that depend on values, and of dimensions that are dynamic."""
    import torch._dynamo.config

    x = torch.tensor([1.0, -2.0, 3.0])

    def positive(x):
        chosen = x[x > 0]
        return rules.decomposed("multiply", rules.decomposed("add", chosen, chosen), chosen.shape[0])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert torch.compile(positive, fullgraph=True, backend="eager")(x).tolist() == [4, 12]
    torch.compiler.reset()
    dynamic = torch.export.Dim("n", min=2)
    exported = torch.export.export(Added(torch, rules), (x, x), dynamic_shapes=({0: dynamic}, {0: dynamic}))
    longer = torch.arange(5.0)
    assert torch.equal(exported.module()(longer, longer), 2 * longer + 5)


def Added(torch, rules):  # noqa: N802  # it is a module
    class Module(torch.nn.Module):
        def forward(self, a, b):
            return rules.decomposed("add", rules.decomposed("add", a, b), a.shape[0])

    return Module()


@pytest.mark.parametrize("name", ["divide"])
def test_inductor(torch, rules, place, name):
    """Fused, with an operation before it and one behind."""
    x, y = operands_of(torch, name, place, "float32", (7, 5))

    def chain(function):
        return lambda a, b: function(a * 2, b) * 1.5

    compiled = torch.compile(chain(lambda a, b: rules.decomposed(name, a, b)), fullgraph=True)
    torch_calls.assert_close(torch, compiled(x, y), chain(getattr(interop, name))(x, y))
    torch.compiler.reset()
