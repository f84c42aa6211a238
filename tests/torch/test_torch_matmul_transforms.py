"""`torch.ops.interop.matmul` under torch's transforms, against torch's own product."""

from __future__ import annotations

import itertools

import pytest
from helpers.torch_products import EPILOGUES, SHAPES, assert_close, needing_grad, product, tensors

torch = pytest.importorskip("torch")

from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

from interop.torch._matmul import record  # noqa: E402 (which makes the operator)


def ours(a, b, c=None, bias=None, **options):
    return torch.ops.interop.matmul(a, b, c, bias, **options)


def theirs(*terms, **options):
    return product(torch, *terms, **options)


def loss_of(multiply, **options):
    return lambda *terms: multiply(*terms, **options).sin().sum()


TERMS = [(2, 3, 4), (4, 5), (3, 5), (5,)]
TRANSFORMS = {
    "grad": grad,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": hessian,
    "jacrev of jacfwd": lambda f, at: jacrev(jacfwd(f, at), at),
    "jacfwd of jacfwd": lambda f, at: jacfwd(jacfwd(f, at), at),
    "jacrev of grad": lambda f, at: jacrev(grad(f, at), at),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_transforms_by_every_term(place, name, epilogue):
    terms = tensors(torch, place, "float64", (2, 2, 3), (3, 2), (2, 2), (2,))
    options = {"alpha": 0.5, "beta": -2, "epilogue": epilogue}
    transform = TRANSFORMS[name]
    found, expected = (transform(loss_of(f, **options), (0, 1, 2, 3))(*terms) for f in (ours, theirs))
    assert_close(torch, found, expected)


@pytest.mark.parametrize("name", ["grad", "jacfwd", "hessian"])
@pytest.mark.parametrize("alpha", [1, 0])
def test_transforms_where_a_factor_is_zero(place, name, alpha):
    terms = tensors(torch, place, "float64", (2, 3), (3, 2), (2, 2))
    found, expected = (TRANSFORMS[name](loss_of(f, alpha=alpha, beta=0), (0, 1, 2))(*terms) for f in (ours, theirs))
    assert_close(torch, found, expected)


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "bfloat16"])
def test_tangents_of_every_shape(place, dtype, a_shape, b_shape):
    primals = tuple(tensors(torch, place, dtype, a_shape, b_shape))
    tangents = tuple(tensors(torch, place, dtype, a_shape, b_shape, seed=1))
    assert_close(torch, jvp(ours, primals, tangents), jvp(torch.matmul, primals, tangents))
    for i in range(2):  # of one operand alone
        rest = primals[1 - i]
        found, expected = (
            jvp(lambda x: f(*((x, rest) if i == 0 else (rest, x))), primals[i : i + 1], tangents[i : i + 1])  # noqa: B023
            for f in (ours, torch.matmul)
        )
        assert_close(torch, found, expected)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_tangents_by_dual_numbers(place, epilogue):
    import torch.autograd.forward_ad as forward_ad

    primals = tensors(torch, place, "float64", *TERMS)
    tangents = tensors(torch, place, "float64", *TERMS, seed=1)
    for given in itertools.product([False, True], repeat=4):
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(x, t) if is_dual else x
                for x, t, is_dual in zip(primals, tangents, given, strict=True)
            ]
            found, expected = (
                forward_ad.unpack_dual(f(*duals, alpha=0.5, beta=-2, epilogue=epilogue)) for f in (ours, theirs)
            )
            assert_close(torch, found.primal, expected.primal)
            assert (found.tangent is None) == (not any(given))
            if any(given):
                assert_close(torch, found.tangent, expected.tangent)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_gradients_forward_and_twice(place, dtype, epilogue):
    if dtype == "complex128" and epilogue:
        pytest.skip("epilogues are of real products")
    leaves = needing_grad(*tensors(torch, place, dtype, (2, 2, 3), (3, 2), (2, 2), (2,)))

    def function(*terms):
        return ours(*terms, alpha=0.5, beta=-2, epilogue=epilogue)

    assert torch.autograd.gradcheck(
        function, leaves, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(function, leaves, check_batched_grad=True, check_fwd_over_rev=True)


# ---- vmap ----

BATCHED = [
    (a_dim, b_dim, c, c_dim, bias, bias_dim)
    for a_dim, b_dim in [(0, None), (None, 0), (0, 0), (-1, 1), (None, None)]
    for c, c_dim in [(None, None), ("whole", None), ("row", 0), ("one", 0), ("whole", -1)]
    for bias, bias_dim in [(None, None), ("row", None), ("row", 0), ("column", 0)]
    if not (a_dim is b_dim is c_dim is bias_dim is None)
]


@pytest.mark.parametrize(("a_shape", "b_shape"), [pair for pair in SHAPES if 0 not in pair[0]], ids=str)
def test_vmap_of_every_shape(place, a_shape, b_shape):
    of_result = tuple(torch.matmul(torch.empty(a_shape), torch.empty(b_shape)).shape)
    vectors = (len(a_shape) == 1) + (len(b_shape) == 1)
    count = 0
    for a_dim, b_dim, c, c_dim, bias, bias_dim in BATCHED:
        if (bias and vectors == 2) or (bias == "column" and vectors):
            continue
        shapes = {
            "whole": of_result,
            "row": of_result[-1:],
            "column": (of_result[-2] if len(of_result) > 1 else 1, 1),
            "one": (),
            None: (),
        }
        dims = (a_dim, b_dim, c_dim, bias_dim)
        made = tensors(
            torch,
            place,
            "float64",
            *(
                shape if dim is None else (3, *shape)
                for shape, dim in zip((a_shape, b_shape, shapes[c], shapes[bias]), dims, strict=True)
            ),
        )
        terms = [x if dim is None else x.movedim(0, dim) for x, dim in zip(made, dims, strict=True)]
        terms = [x if kind else None for x, kind in zip(terms, (True, True, c, bias), strict=True)]
        options = {"alpha": 2, "epilogue": "relu"} | ({"beta": 3} if c else {})
        found, expected = (vmap(lambda *x: f(*x, **options), dims)(*terms) for f in (ours, theirs))  # noqa: B023
        assert_close(torch, found, expected)
        count += 1
    assert count > 20


def test_vmap_in_vmap(place):
    a, b, bias = tensors(torch, place, "float64", (2, 3, 4, 5), (3, 5, 6), (2, 6))

    def function(multiply):
        return vmap(vmap(lambda a, b, bias: multiply(a, b, None, bias), (0, 0, None)), (0, None, 0))(a, b, bias)

    assert_close(torch, function(ours), function(theirs))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_gradients_for_each_sample(place, epilogue):
    a, b, c, bias = tensors(torch, place, "float64", (6, 3, 4), (4, 5), (6, 3, 5), (5,))
    dims = (0, None, 0, None)
    found, expected = (
        vmap(grad(loss_of(f, epilogue=epilogue), (0, 1, 2, 3)), dims)(a, b, c, bias) for f in (ours, theirs)
    )
    assert_close(torch, found, expected)
    found, expected = (
        vmap(lambda *x: jvp(loss_of(f, epilogue=epilogue), x, x)[1], dims)(a, b, c, bias)  # noqa: B023
        for f in (ours, theirs)
    )
    assert_close(torch, found, expected)
    found, expected = (
        grad(lambda *x: vmap(loss_of(f, epilogue=epilogue), dims)(*x).sum(), (0, 1, 2, 3))(a, b, c, bias)  # noqa: B023
        for f in (ours, theirs)
    )
    assert_close(torch, found, expected)


def test_vmap_over_scales_of_float8(place):
    a = torch.eye(16, device=place).to(torch.float8_e4m3fn)
    scales = torch.tensor([1.0, 2.0, 4.0], device=place)
    found = vmap(lambda s: torch.ops.interop.matmul(a, a, None, None, s))(scales)
    assert torch.equal(found.float(), scales[:, None, None] * torch.eye(16, device=place))


def test_gradients_of_a_batch_of_weights(place):
    """`torch.autograd.grad(is_grads_batched=True)` of both ways of a call."""
    a, b = needing_grad(*tensors(torch, place, "float64", (3, 4), (4, 5)))
    (weights,) = tensors(torch, place, "float64", (7, 3, 5), seed=1)
    expected = (weights @ b.mT, a.mT @ weights)
    for y in (record(a, b, {}), ours(a, b)):
        assert_close(torch, torch.autograd.grad(y, (a, b), weights, is_grads_batched=True), expected)


# ---- transforms and torch's record together ----


def test_a_transform_in_a_recorded_function(place):
    a, b = needing_grad(*tensors(torch, place, "float64", (3, 4), (4, 5)))
    found, expected = (torch.autograd.grad(grad(loss_of(f))(a, b).tanh().sum(), (a, b)) for f in (ours, theirs))
    assert_close(torch, found, expected)


def test_the_function_of_a_vjp_outlives_the_transform(place):
    a, b = tensors(torch, place, "float64", (3, 4), (4, 5))
    (weight,) = needing_grad(*tensors(torch, place, "float64", (3, 5), seed=1))
    found, expected = (
        torch.autograd.grad(sum(x.sin().sum() for x in vjp(f, a, b)[1](weight)), weight) for f in (ours, theirs)
    )
    assert_close(torch, found, expected)


def test_a_module_called_with_other_parameters(place):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(tensors(torch, place, "float64", (4, 5))[0])

        def forward(self, x):
            return ours(x, self.weight, epilogue="gelu").sum()

    layer = Layer()
    (x,) = tensors(torch, place, "float64", (3, 4), seed=1)
    found = grad(lambda parameters: functional_call(layer, parameters, (x,)))({"weight": layer.weight.detach()})
    expected = grad(lambda w: theirs(x, w, epilogue="gelu").sum())(layer.weight.detach())
    assert_close(torch, found["weight"], expected)
