"""Gradients of the elementwise functions, by our own kernels and by torch's operations, beside torch's functions'."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import elements, torch_calls

import interop
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow:RuntimeWarning")

SMOOTH = [name for name in FUNCTIONS if name not in COMPARISONS]
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
CASES = [(name, dtype) for name in SMOOTH for dtype in DTYPES if elements.serves(name, dtype)]
WIDE = [(name, dtype) for name, dtype in CASES if dtype in ("float64", "complex128")]


def recorded(name, *operands, **options):
    """The public function: of tensors that need a gradient, it records."""
    return getattr(interop, name)(*operands, **options)


def by_torch(name, a, b=None, **options):
    from interop.torch._elementwise import compute

    return compute(name, a, b, options)


WAYS = pytest.mark.parametrize("way", [recorded, by_torch], ids=lambda way: way.__name__)


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def operands_of(torch, name, dtype, place):
    """Operands that broadcast each other."""
    shapes = [(4, 1, 3), (2, 3)][: OPERATIONS[name].arity]
    return [torch_calls.ordinary(torch, shape, dtype, place, k) for k, shape in enumerate(shapes)]


@WAYS
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_gradients_are_those_of_torchs_function(torch, place, way, name, dtype):
    """In the shape and dtype of each operand. Ours of 16-bit floats are rounded once, torch's at each step."""
    ours = leaves(*operands_of(torch, name, dtype, place))
    own = leaves(*ours)
    result, expected = way(name, *ours), torch_calls.function_of_torch(torch, name)(*own)
    torch_calls.assert_close(torch, result, expected)
    kind = str(result.dtype).removeprefix("torch.")
    gradient = torch_calls.ordinary(torch, tuple(result.shape), kind, place, 7)
    results = torch.autograd.grad(result, ours, gradient)
    for x, y in zip(results, torch.autograd.grad(expected, own, gradient), strict=True):
        torch_calls.assert_close(torch, x, y, 64)


@WAYS
@pytest.mark.parametrize(("name", "dtype"), WIDE)
def test_gradcheck(torch, place, way, name, dtype):
    operands = tuple(leaves(*operands_of(torch, name, dtype, place)))
    check = torch.autograd.gradcheck
    assert check(lambda *x: way(name, *x), operands, check_forward_ad=way is by_torch, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda *x: way(name, *x), operands)


@WAYS
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_where_derivatives_bend(torch, place, way, name):
    """At ties, at 0, and at infinities and NaN: as torch has them."""
    values = torch_calls.tensor(torch, [0, -0.0, 1, -1, 2, 0.5, np.nan, np.inf, -np.inf, -3], "float64", place)
    operands = torch.broadcast_tensors(values[:, None], values)[: OPERATIONS[name].arity]
    ours, own = leaves(*operands), leaves(*operands)
    way(name, *ours).sum().backward()
    torch_calls.function_of_torch(torch, name)(*own).sum().backward()
    for x, y in zip(ours, own, strict=True):
        torch_calls.assert_close(torch, x.grad, y.grad)


@WAYS
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_where_zero(torch, place, way, dtype):
    """What takes the quotient's place is a constant: the gradients are 0 there, and not NaN."""
    a, b = leaves(*(torch_calls.tensor(torch, x, dtype, place) for x in ([1, 0, 3], [0, 0, 2])))
    result = way("divide", a, b, where_zero=5)
    assert result.tolist() == [5, 5, 1.5]
    result.sum().real.backward()
    assert a.grad.tolist() == [0, 0, 0.5]
    assert b.grad.tolist() == [0, 0, -0.75]


@WAYS
def test_abs_of_complex_numbers_at_zero(torch, place, way):
    (x,) = leaves(torch_calls.tensor(torch, [0, 3 + 4j], "complex128", place))
    way("abs", x).sum().backward()
    torch_calls.assert_close(torch, x.grad, torch_calls.tensor(torch, [0, 0.6 + 0.8j], "complex128", place))


# ---- dtypes ----


@WAYS
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "pow", "maximum"])
@pytest.mark.parametrize(("dtype", "other"), [("float32", "float64"), ("float16", "float32"), ("float64", "complex64"),
                                              ("float32", "int64"), ("bfloat16", "bool")])  # fmt: skip
def test_each_gradient_has_its_operands_dtype(torch, place, way, name, dtype, other):
    if not elements.serves(name, "complex64" if "complex" in other else "float32"):
        return
    for order in (1, -1):
        x = torch_calls.ordinary(torch, (3,), dtype, place)
        y = torch_calls.ordinary(torch, (2, 1), other, place)
        ours = [z.clone().requires_grad_(z.is_floating_point() or z.is_complex()) for z in (x, y)][::order]
        own = [z.detach().clone().requires_grad_(z.requires_grad) for z in ours]
        # torch's own pow has no derivative beside a bool.
        own = [z.to(x.dtype) if z.dtype == torch.bool else z for z in own]
        result, expected = way(name, *ours), torch_calls.function_of_torch(torch, name)(*own)
        torch_calls.assert_close(torch, result, expected)
        result.backward(torch.ones_like(result))
        expected.backward(torch.ones_like(expected))
        for z, own_z in zip(ours, own, strict=True):
            if z.requires_grad:
                units = 64 * (16 if dtype == "float16" else 1)
                torch_calls.assert_close(torch, z.grad, own_z.grad, units)


@WAYS
@pytest.mark.parametrize("name", [name for name in SMOOTH if OPERATIONS[name].arity == 2])
def test_scalars_and_0d_tensors(torch, place, way, name):
    x = torch_calls.ordinary(torch, (3,), "float32", place)
    weak = torch_calls.ordinary(torch, (), "float64", place)
    own_function = torch_calls.function_of_torch(torch, name)
    for other in (2, 0.5, weak):
        for order in (1, -1):
            (ours,), (own,) = leaves(x), leaves(x)
            way(name, *[ours, other][::order]).sum().backward()
            own_other = other if isinstance(other, torch.Tensor) else torch.tensor(other, device=place)
            own_function(*[own, own_other][::order]).sum().backward()
            torch_calls.assert_close(torch, ours.grad, own.grad)
    (ours,), (own,) = leaves(weak), leaves(weak)
    way(name, x, ours).sum().backward()
    own_function(x, own).sum().backward()
    assert ours.grad.dtype == torch.float64
    torch.testing.assert_close(ours.grad, own.grad, rtol=1e-6, atol=1e-6)  # the sums are of float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["divide", "pow", "multiply"])
def test_gradients_of_16_bit_floats_are_rounded_once(torch, place, dtype, name):
    """To within half a unit of what float32 gives, where no sum follows."""
    operands = [torch_calls.ordinary(torch, (50,), dtype, place, k) for k in range(2)]
    ours, wide = leaves(*operands), leaves(*(x.float() for x in operands))
    recorded(name, *ours).sum().backward()
    torch_calls.function_of_torch(torch, name)(*wide).sum().backward()
    for x, y in zip(ours, wide, strict=True):
        assert torch.equal(x.grad, y.grad.to(x.dtype)) or (x.grad.float() - y.grad).abs().max() <= (
            0.501 * torch.finfo(x.dtype).eps * y.grad.abs().max()
        )


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_have_no_gradient(torch, place, name):
    (x,) = leaves(torch_calls.ordinary(torch, (3,), "float32", place))
    assert not recorded(name, x, 0.5).requires_grad
    assert not by_torch(name, x, 0.5).requires_grad
    out = torch.zeros(3, dtype=torch.bool, device=place)
    assert recorded(name, x, 0.5, out=out) is out
    assert torch.equal(out, getattr(interop, name)(x.detach(), 0.5))


# ---- torch's record ----


@pytest.mark.parametrize(("name", "needing", "kept"), [
    ("add", (True, True), 0), ("subtract", (True, True), 0), ("negative", (True,), 0), ("multiply", (True, False), 1),
    ("multiply", (True, True), 2), ("divide", (True, False), 1), ("divide", (False, True), 2),
    ("maximum", (True, False), 2), ("remainder", (True, False), 0), ("floor_divide", (True, True), 0),
    ("abs", (True,), 1),
])  # fmt: skip
def test_what_is_kept_is_what_the_gradients_need(torch, name, needing, kept):
    operands = [torch.ones(3).requires_grad_(x) for x in needing]
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        recorded(name, *operands)
    assert len(packed) == kept


def test_an_operand_that_has_changed_since(torch, place):
    x, y = torch.ones(3, device=place, requires_grad=True), torch.ones(3, device=place)
    result = recorded("multiply", x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_one_tensor_as_both_operands(torch, place):
    x = torch.tensor([2.0, 3.0], device=place, requires_grad=True)
    recorded("multiply", x, x).sum().backward()
    assert x.grad.tolist() == [4, 6]


def test_gradients_that_are_lazy_or_strided(torch, place):
    """Such as conjugates, and one number for all elements."""
    x, y = leaves(*(torch_calls.ordinary(torch, (3, 4), "complex64", place, k) for k in range(2)))
    own = leaves(x, y)
    torch.autograd.backward(recorded("multiply", x, y).conj().T.sum().real)
    torch.autograd.backward(torch.mul(*own).conj().T.sum().real)
    for z, own_z in zip((x, y), own, strict=True):
        torch_calls.assert_close(torch, z.grad, own_z.grad)


def test_arrays_of_other_libraries(torch):
    (x,) = leaves(torch.tensor([1.0, 2.0]))
    recorded("multiply", x, np.array([3.0, 4.0], "float32")).sum().backward()
    assert x.grad.tolist() == [3, 4]


@WAYS
def test_out_is_refused_as_torch_refuses_it(torch, way):
    (x,) = leaves(torch.ones(3))
    with pytest.raises(RuntimeError):
        torch.add(x, 1, out=torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"^interop.add: out is given, and a requires grad"):
        way("add", x, 1, out=torch.zeros(3))
    with torch.no_grad():
        assert way("add", x, 1, out=torch.zeros(3)).tolist() == [2, 2, 2]


def test_a_stream_is_refused(torch):
    (x,) = leaves(torch.ones(3))
    with pytest.raises(ValueError, match=r"^interop.add: stream= is given, and b requires grad"):
        recorded("add", 1, x, stream=0)


def test_refusals_are_those_of_the_call_outside(torch):
    (x,) = leaves(torch.ones(3))
    for a, b in ((x, torch.ones(2)), (10**400, x), (x, torch.ones(3).to(torch.float8_e4m3fn))):
        with pytest.raises((TypeError, ValueError, OverflowError)) as refused:
            recorded("add", a, b)
        a, b = (y.detach() if isinstance(y, torch.Tensor) else y for y in (a, b))
        with pytest.raises(type(refused.value)) as expected:
            interop.add(a, b)
        assert str(refused.value) == str(expected.value)


def test_powers_of_complex_numbers(torch, place):
    """Our kernels have no complex logarithm: the derivative by the exponent is torch's."""
    operands = tuple(leaves(*(torch_calls.ordinary(torch, (3,), "complex128", place, k) for k in range(2))))
    assert torch.autograd.gradcheck(lambda *x: recorded("pow", *x), operands)
    assert type(recorded("pow", operands[0], 2).grad_fn).__name__ == "_RecordedBackward"
    assert type(recorded("pow", *operands).grad_fn).__name__ != "_RecordedBackward"


@pytest.mark.gpu
def test_gradients_on_a_gpu_wait_for_nothing(torch, cuda_device):
    """Neither copies to the host nor synchronisation, forward and back."""
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = torch.full((1000,), 2.0, device="cuda", requires_grad=True)
    recorded("multiply", x, y).sum().backward()  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        recorded("multiply", x, y).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.grad.tolist() == [4] * 1000
