"""Gradients of products of torch tensors, against torch's own: each way of a call."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
from helpers.torch_products import EPILOGUES, SHAPES, assert_close, needing_grad, product, tensors

torch = pytest.importorskip("torch")

from interop.torch._matmul import compute, record  # noqa: E402


def by_record(a, b, **options):
    return record(a, b, options)


def by_compute(a, b, **options):
    return compute(a, b, options)


WAYS = pytest.mark.parametrize("multiply", [by_record, by_compute])


def gradients(y, leaves, weight):
    return torch.autograd.grad(y, [x for x in leaves if x is not None], weight)


@WAYS
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
def test_gradients_of_every_shape_and_dtype(multiply, place, dtype, a_shape, b_shape):
    a, b = needing_grad(*tensors(torch, place, dtype, a_shape, b_shape))
    expected = torch.matmul(a, b)
    (weight,) = tensors(torch, place, dtype, expected.shape, seed=1)
    y = multiply(a, b)
    assert_close(torch, y, expected)
    assert_close(torch, gradients(y, (a, b), weight), gradients(expected, (a, b), weight))


@WAYS
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_gradients_by_every_term(multiply, place, dtype, epilogue):
    for bias_shape, c_shape in itertools.product([None, (5,), (3, 1)], [None, (2, 3, 5), (3, 1), ()]):
        shapes = [(2, 3, 4), (4, 5), c_shape, bias_shape]
        made = tensors(torch, place, dtype, *(shape or () for shape in shapes))
        leaves = needing_grad(*(x if shape is not None else None for x, shape in zip(made, shapes, strict=True)))
        factors = {"alpha": 0.5, "epilogue": epilogue} | ({} if c_shape is None else {"beta": -2})
        expected = product(torch, *leaves, **factors)
        y = multiply(*leaves[:2], c=leaves[2], bias=leaves[3], **factors)
        (weight,) = tensors(torch, place, dtype, expected.shape, seed=1)
        assert_close(torch, y, expected)
        assert_close(torch, gradients(y, leaves, weight), gradients(expected, leaves, weight))


@WAYS
def test_only_what_needs_a_gradient_has_one(multiply, place):
    for needed in itertools.product([False, True], repeat=4):
        if not any(needed):
            continue
        shapes = [(2, 3, 4), (4, 5), (3, 5), (5,)]
        terms = [
            x.requires_grad_(needs) for x, needs in zip(tensors(torch, place, "float64", *shapes), needed, strict=True)
        ]
        a, b, c, bias = terms
        multiply(a, b, c=c, bias=bias, epilogue="gelu").sum().backward()
        found = [x.grad for x in terms]
        assert [x is not None for x in found] == list(needed)
        leaves = needing_grad(*terms)
        product(torch, *leaves, epilogue="gelu").sum().backward()
        for x, leaf, needs in zip(found, leaves, needed, strict=True):
            if needs:
                assert_close(torch, x, leaf.grad)


@WAYS
@pytest.mark.parametrize(
    ("a_dtype", "b_dtype"),
    [
        pair
        for pair in itertools.product(["float32", "float16", "bfloat16", "complex64", "int32"], repeat=2)
        if pair != ("int32", "int32")
    ],
)
def test_gradients_have_the_dtypes_of_their_operands(multiply, place, a_dtype, b_dtype):
    operands = [
        x.to(getattr(torch, kind))
        for x, kind in zip(tensors(torch, place, "float32", (3, 4), (4, 5)), (a_dtype, b_dtype), strict=True)
    ]
    leaves = [x.requires_grad_() for x in operands if x.dtype != torch.int32]
    common = torch.promote_types(*(x.dtype for x in operands))
    expected = torch.matmul(*(x.to(common) for x in operands))
    y = multiply(*operands)
    (weight,) = tensors(torch, place, "float32", expected.shape, seed=1)
    weight = weight.to(common)
    assert_close(torch, y, expected)
    found = gradients(y, leaves, weight)
    assert [x.dtype for x in found] == [x.dtype for x in leaves]
    for x, other in zip(found, gradients(expected, leaves, weight), strict=True):
        torch.testing.assert_close(x, other, rtol=3e-2, atol=3e-2)


@WAYS
def test_gradients_of_a_wider_result(multiply, place):
    a, b = needing_grad(*tensors(torch, place, "float16", (3, 4), (4, 5)))
    y = multiply(a, b, dtype="float32")
    assert y.dtype == torch.float32
    expected = torch.matmul(a.float(), b.float())
    (weight,) = tensors(torch, place, "float32", (3, 5), seed=1)
    assert_close(torch, gradients(y, (a, b), weight), gradients(expected, (a, b), weight))


@WAYS
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("turn", ["transposed", "every second", "expanded", "offset"])
def test_gradients_of_views(multiply, place, dtype, turn):
    views = {
        "transposed": lambda x: x.mT,
        "every second": lambda x: x[:, ::2],
        "expanded": lambda x: x[:1].expand(4, -1),
        "offset": lambda x: x[1:, 1:],
    }
    base_a, base_b = needing_grad(*tensors(torch, place, dtype, (4, 4), (4, 4)))
    a, b = views[turn](base_a), views[turn](base_b)
    if turn == "every second":
        b = b.mT[:, ::2].mT[:1].expand(2, -1)
    y = multiply(a, b)
    expected = torch.matmul(a, b)
    weight = torch.ones((), dtype=expected.dtype, device=place).expand(expected.shape)  # as that of a sum
    assert_close(torch, gradients(y, (base_a, base_b), weight), gradients(expected, (base_a, base_b), weight))


@WAYS
def test_gradients_of_lazily_conjugated_tensors(multiply, place):
    a, b = needing_grad(*tensors(torch, place, "complex128", (3, 4), (5, 4)))
    (weight,) = tensors(torch, place, "complex128", (3, 5), seed=1)
    y, expected = multiply(a.conj(), b.mH, alpha=2 - 1j), (2 - 1j) * (a.conj() @ b.mH)
    assert_close(torch, y, expected)
    assert_close(torch, gradients(y, (a, b), weight.conj()), gradients(expected, (a, b), weight.conj()))


# ---- where derivatives bend ----


@WAYS
def test_relu_has_no_slope_at_zero(multiply, place):
    a, b = needing_grad(torch.tensor([[0.0], [1.0], [-1.0], [np.nan]], device=place), torch.ones(1, 1, device=place))
    multiply(a, b, epilogue="relu").sum().backward()
    (reference,) = needing_grad(a)
    torch.relu(reference @ b.detach()).sum().backward()
    torch.testing.assert_close(a.grad, reference.grad, equal_nan=True)
    assert a.grad[:3].flatten().tolist() == [0, 1, 0]


@WAYS
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_gelu_is_flat_far_from_zero(multiply, place, dtype, epilogue):
    far = [1e20, -1e20, np.inf, -np.inf, 50, -50]
    (a,) = needing_grad(torch.tensor(far, dtype=getattr(torch, dtype), device=place).unsqueeze(1))
    one = torch.ones(1, 1, dtype=a.dtype, device=place)
    y = multiply(a, one, epilogue=epilogue)
    (slope,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    assert slope.flatten().tolist() == [1, 0, 1, 0, 1, 0]
    (bend,) = torch.autograd.grad(slope.sum(), a)
    assert bend.flatten().tolist() == [0] * 6


@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_slope_of_gelu_is_right_to_the_dtype(place, dtype, epilogue):
    points = torch.linspace(-12, 12, 4801, dtype=torch.float64).to(getattr(torch, dtype))
    (a,) = needing_grad(points.to(place).unsqueeze(1))
    record(a, torch.ones(1, 1, dtype=a.dtype, device=place), {"epilogue": epilogue}).sum().backward()
    x = points.double()
    if epilogue == "gelu":
        exact = torch.special.erfc(-x / 2**0.5) / 2 + x * torch.exp(-x * x / 2) / (2 * np.pi) ** 0.5
    else:
        k = (2 / np.pi) ** 0.5
        s = torch.sigmoid(2 * k * (x + 0.044715 * x**3))
        exact = s + 2 * x * s * (1 - s) * k * (1 + 3 * 0.044715 * x * x)
    error = (a.grad.flatten().double().cpu() - exact).abs().max()
    # torch's formula for gelu_tanh has 1 - tanh^2, which cancels, times about 20 where that is a few eps.
    assert error <= (4 if epilogue == "gelu" else 64) * torch.finfo(a.dtype).eps


@WAYS
def test_a_factor_of_zero_takes_everything(multiply, place):
    a = torch.full((2, 3), np.nan, device=place, requires_grad=True)
    b = torch.full((3, 2), np.inf, device=place, requires_grad=True)
    c = torch.full((2, 2), np.nan, device=place, requires_grad=True)
    y = multiply(a, b, c=c, alpha=0, beta=0)
    assert y.tolist() == [[0, 0], [0, 0]]
    found = gradients(y, (a, b, c), torch.full((2, 2), np.inf, device=place))
    assert all(not x.any() for x in found)


# ---- the derivatives of derivatives ----


@WAYS
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_gradients_of_gradients(multiply, place, epilogue):
    leaves = needing_grad(*tensors(torch, place, "float64", (2, 3, 4), (4, 5), (3, 1), (5,)))
    assert torch.autograd.gradcheck(
        lambda a, b, c, bias: multiply(a, b, c=c, bias=bias, alpha=2, beta=0.5, epilogue=epilogue),
        leaves,
        check_batched_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        lambda a, b, c, bias: multiply(a, b, c=c, bias=bias, alpha=2, beta=0.5, epilogue=epilogue),
        leaves,
        check_batched_grad=True,
        check_fwd_over_rev=True,
    )


@WAYS
@pytest.mark.parametrize("alpha", [1, 0, 2 - 1j])
def test_gradients_of_gradients_of_complex_products(multiply, place, alpha):
    leaves = needing_grad(*tensors(torch, place, "complex128", (2, 2, 3), (3, 2), (2, 2)))
    assert torch.autograd.gradcheck(lambda a, b, c: multiply(a, b, c=c, alpha=alpha, beta=1j), leaves)
    assert torch.autograd.gradgradcheck(lambda a, b, c: multiply(a, b, c=c, alpha=alpha, beta=1j), leaves)


@WAYS
def test_a_gradient_goes_on_in_the_callers_record(multiply, place):
    """A penalty on a gradient trains the weights, too."""
    a, b = needing_grad(*tensors(torch, place, "float64", (3, 4), (4, 5)))

    def penalty(a, b, by):
        (slope,) = torch.autograd.grad(by(a, b).tanh().sum(), a, create_graph=True)
        return torch.autograd.grad((slope**2).sum(), (a, b))

    assert_close(torch, penalty(a, b, multiply), penalty(a, b, torch.matmul))


# ---- what has no derivative ----


@WAYS
def test_float8_is_named_as_not_differentiable(multiply, place):
    (a,) = needing_grad(torch.ones(16, 16, device=place).to(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match=r"interop\.matmul: a is float8_e4m3fn and requires grad.*a\.detach\(\)"):
        multiply(a, a.detach())


@WAYS
def test_the_terms_beside_float8_have_gradients(multiply, place):
    a = torch.eye(16, device=place).to(torch.float8_e4m3fn)
    (bias,) = needing_grad(torch.ones(16, dtype=torch.bfloat16, device=place))
    multiply(a, a.mT, bias=bias, scale_a=2, scale_b=torch.tensor(0.5, device=place)).sum().backward()
    assert bias.grad.tolist() == [16] * 16
    scale = torch.ones((), device=place, requires_grad=True)
    with pytest.raises(TypeError, match=r"scale_b is float32 and requires grad.*not differentiable by scales"):
        multiply(a, a.mT, scale_b=scale)


@WAYS
@pytest.mark.parametrize("name", ["out", "aux"])
def test_what_is_written_to_has_no_derivative(multiply, place, name):
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    written = torch.zeros(3, 5, device=place)
    with pytest.raises(RuntimeError, match=rf"interop\.matmul: {name} is given, and b requires grad"):
        multiply(a.detach(), b, epilogue="relu", **{name: written})
    assert not written.any()


@WAYS
def test_a_stream_and_a_gradient_do_not_go_together(multiply, cuda_device):
    a, b = needing_grad(*tensors(torch, "cuda", "float32", (3, 4), (4, 5)))
    with pytest.raises(ValueError, match=r"interop\.matmul: stream is given, and .* requires grad"):
        multiply(a, b, stream=torch.cuda.Stream())


@WAYS
@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (TypeError, {"alpha": "x"}, "alpha is 'x' .str., and the product is float32"),
        (TypeError, {"alpha": 1j}, "alpha is 1j .complex., and the product is float32"),
        (OverflowError, {"alpha": 10**400}, "alpha is 1000"),
        (ValueError, {"beta": 2}, "beta is given, and there is no c"),
        (ValueError, {"epilogue": "x"}, "epilogue is 'x'; accepted: None, 'relu'"),
        (TypeError, {"dtype": "int8"}, "dtype is int8, and the operands are float32"),
        (ValueError, {"scale_a": 2}, "scale_a is given, and the operands are float32"),
        (ValueError, {"precision": "x"}, "precision is 'x'"),
        (ValueError, {"backend": "x"}, "backend is 'x'"),
        (ValueError, {"autotune": 3}, "autotune is 3; accepted: None, True, False"),
        (ValueError, {"execution": "x"}, "execution is 'x'"),
        (TypeError, {"c": 3.0}, "c is float; accepted: arrays"),
        (TypeError, {"alpha": torch.tensor(2.0)}, "alpha is tensor.2.. .Tensor., and the product is float32"),
        (ValueError, {"c": torch.ones(7)}, "c has shape .7,.; accepted: one that broadcasts"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_errors_are_those_of_other_calls(multiply, error, options, message):
    a, b = needing_grad(*tensors(torch, "cpu", "float32", (3, 4), (4, 5)))
    with pytest.raises(error, match=rf"^interop\.matmul: {message}"):
        multiply(a, b, **options)


# ---- what is kept, and for how long ----


def test_arrays_of_other_libraries_take_part(place):
    if place != "cpu":
        pytest.skip("needs cupy: on the GPU, NumPy arrays do not go with tensors")
    (a,) = needing_grad(*tensors(torch, place, "float64", (3, 4)))
    b = np.arange(8.0).reshape(4, 2)
    record(a, b, {"bias": np.ones(2)}).sum().backward()
    assert a.grad.tolist() == [b.sum(1).tolist()] * 3


def saved(function):
    """What a call keeps for its gradients."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        y = function()
    return y, kept


@WAYS
def test_no_more_is_kept_than_gradients_need(multiply, place):
    a, b, c = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5), (3, 5)))

    def addresses(function):
        y, kept = saved(function)
        return y, [x.data_ptr() for x in kept]

    assert addresses(lambda: multiply(a, b.detach()))[1] == [b.data_ptr()]
    assert addresses(lambda: multiply(a.detach(), b))[1] == [a.data_ptr()]
    assert addresses(lambda: multiply(a.detach(), b.detach(), c=c))[1] == []
    y, kept = addresses(lambda: multiply(a.detach(), b.detach(), c=c, epilogue="relu"))
    assert kept == [y.data_ptr()]


@WAYS
def test_an_operand_that_was_written_to_is_found(multiply, place):
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    operand = a.clone()
    y = multiply(operand, b)
    with torch.no_grad():
        operand.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@WAYS
def test_saved_tensor_hooks_see_what_is_kept(multiply, place):
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x.float()):
        y = multiply(a, b, epilogue="gelu")
    expected = product(torch, a, b, epilogue="gelu")
    assert_close(torch, gradients(y.sum(), (a, b), None), gradients(expected.sum(), (a, b), None))


@WAYS
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_is_kept_goes_with_the_result(multiply, place, epilogue):
    """Nothing that is kept holds the result itself: there is no cycle, which only a collection would end."""
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    gc.disable()
    try:
        y = multiply(a, b, epilogue=epilogue)
        result, record_of_it = weakref.ref(y), weakref.ref(y.grad_fn)
        del y
        assert result() is None
        assert record_of_it() is None
    finally:
        gc.enable()
