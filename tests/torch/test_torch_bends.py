"""Derivatives where functions bend or jump, of the first order and the second, forward and back: as torch has them."""

from __future__ import annotations

import pytest
from helpers.torch_products import needing_grad, product, tensors

import interop

torch = pytest.importorskip("torch")

INF, NAN = float("inf"), float("nan")


def derivatives(function, *operands):
    """Return derivatives of a sum by every operand, each taken in its own way."""
    argnums = tuple(range(len(operands)))

    def total(*x):
        return function(*x).sum()

    leaves = needing_grad(*operands)
    recorded = torch.autograd.grad(function(*leaves).sum(), leaves, create_graph=True)
    slopes = sum(x.sum() for x in recorded)
    return {
        "value": function(*operands),
        "recorded": [x.detach() for x in recorded],
        "recorded twice": torch.autograd.grad(slopes, leaves, materialize_grads=True)
        if slopes.requires_grad
        else [torch.zeros_like(x) for x in leaves],
        "tangent": torch.func.jvp(function, operands, tuple(map(torch.ones_like, operands)))[1],
        "backward": torch.func.grad(total, argnums)(*operands),
        "forward over backward": torch.func.jvp(
            torch.func.grad(total, argnums), operands, tuple(map(torch.ones_like, operands))
        )[1],
        "backward over forward": torch.func.grad(
            lambda *x: torch.func.jvp(function, x, tuple(map(torch.ones_like, x)))[1].sum(), argnums
        )(*operands),
    }


def assert_same_derivatives(ours, own, *operands):
    found, expected = derivatives(ours, *operands), derivatives(own, *operands)
    for way, result in found.items():
        torch.testing.assert_close(result, expected[way], equal_nan=True, msg=lambda words, way=way: f"{way}: {words}")


def pairs(place, *values):
    x = torch.tensor(values, dtype=torch.float64, device=place)
    return tuple(z.contiguous() for z in torch.broadcast_tensors(x[:, None], x))


def quotient(a, b):
    """A quotient that is 5 where the divisor is 0."""
    return torch.where(b == 0, 5, a / torch.where(b == 0, 1, b))


OF_TWO = {
    "maximum": (interop.maximum, torch.maximum),
    "minimum": (interop.minimum, torch.minimum),
    "maximum in an expression": (interop.elementwise("maximum(x, y) * x"), lambda x, y: torch.maximum(x, y) * x),
    "minimum in an expression": (interop.elementwise("minimum(x, y) * x"), lambda x, y: torch.minimum(x, y) * x),
    "where": (interop.elementwise("where(x > y, x * y, y)"), lambda x, y: torch.where(x > y, x * y, y)),
    "abs": (interop.elementwise("abs(x - y) * y"), lambda x, y: (x - y).abs() * y),
    "divide where_zero": (lambda a, b: interop.divide(a, b, where_zero=5), quotient),
    "remainder": (interop.remainder, torch.remainder),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_ties_and_zeros(place, name):
    ours, own = OF_TWO[name]
    values = [0.0, -0.0, 1, -1, 2.5, -3]
    if name == "remainder":
        values = values[2:]  # by 0, a jump at every point
    assert_same_derivatives(ours, own, *pairs(place, *values))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4.0, 0.0, -1, 2.5])  # of 0.5 at -0.0 torch takes a root
@pytest.mark.parametrize("way", ["function", "expression", "literal"])
def test_powers_by_numbers(place, way, exponent):
    """Of bases of 0 and below, too."""
    ours = {
        "function": lambda x: interop.pow(x, exponent),
        "expression": lambda x: interop.elementwise("x ** k")(x, exponent),
        "literal": interop.elementwise(f"x ** {exponent}"),
    }[way]
    values = [0.0, -0.0, 1, -2, 0.25]
    x = torch.tensor(values, dtype=torch.float64, device=place)
    assert_same_derivatives(ours, lambda x: torch.pow(x, exponent), x)


def rows(place, *values, dtype=torch.float64):
    """Return a column, and the matrix of one number whose product with it is the column."""
    column = torch.tensor(values, dtype=dtype, device=place).unsqueeze(1)
    return column, torch.ones(1, 1, dtype=dtype, device=place)


def test_relu_at_zero(place):
    column, one = rows(place, 0.0, -0.0, 1, -1)
    assert_same_derivatives(
        lambda a, b: interop.matmul(a, b, epilogue="relu"), lambda a, b: torch.relu(a @ b), column, one
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
def test_gelu_far_from_zero(place, epilogue, dtype):
    """It is x or 0 there: torch's own formulas have the square of 1e20 in them, and give NaN."""
    column, one = rows(place, 1e20, -1e20, 50, -50, dtype=dtype)
    found = derivatives(lambda a: interop.matmul(a, one, epilogue=epilogue), column)
    step = torch.tensor([1.0, 0, 1, 0], dtype=dtype, device=place).unsqueeze(1)
    zero = torch.zeros_like(step)
    assert torch.equal(found.pop("value"), column * step)
    for way, result in found.items():
        expected = step if way in ("recorded", "tangent", "backward") else zero
        result = result if isinstance(result, torch.Tensor) else result[0]
        assert torch.equal(result, expected), way


@pytest.mark.parametrize("epilogue", [None, "gelu"])
def test_factors_of_zero(place, epilogue):
    """What is multiplied by 0 is not there: its derivatives are 0, of any order, even of infinities and NaN."""
    operands = tuple(tensors(torch, place, "float64", (2, 3), (3, 2), (2, 2)))
    options = {"alpha": 0, "beta": 0, "epilogue": epilogue}

    def ours(a, b, c):
        return interop.matmul(a, b, c=c, **options)

    assert_same_derivatives(ours, lambda a, b, c: product(torch, a, b, c, **options), *operands)
    for value in (INF, NAN):
        found = derivatives(ours, *(torch.full_like(x, value) for x in operands))
        for way, results in found.items():
            for result in [results] if isinstance(results, torch.Tensor) else results:
                assert not result.any(), (way, value)


# ---- by differences ----

# Those at a tie are the mean of both sides, as torch's derivative is; there is no second one.
TIES = {
    "maximum": interop.maximum,
    "minimum": interop.minimum,
    "expression": interop.elementwise("maximum(x, y) + minimum(2 * x, 2 * y)"),
    "abs": lambda x, y: interop.abs(interop.subtract(x, y)),
}


@pytest.mark.parametrize("name", TIES)
def test_gradcheck_at_ties(place, name):
    operands = needing_grad(*(torch.tensor([0.5, -1, 2], dtype=torch.float64, device=place) for _ in range(2)))
    assert torch.autograd.gradcheck(TIES[name], operands, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradcheck_where_a_factor_is_zero(place, dtype):
    operands = needing_grad(*tensors(torch, place, dtype, (2, 2, 3), (3, 2), (2, 2)))
    for factors in ({"alpha": 0, "beta": 2}, {"alpha": 2, "beta": 0}, {"alpha": 0, "beta": 0}):

        def function(a, b, c, factors=factors):
            return interop.matmul(a, b, c=c, **factors)

        assert torch.autograd.gradcheck(function, operands, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, operands, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradcheck_beside_zeros_that_are_replaced(place, dtype):
    """By the dividend, and by divisors that are not 0: at 0 the quotient jumps."""
    a, b = needing_grad(*tensors(torch, place, dtype, (4,), (2,)))
    zero = torch.zeros(2, dtype=b.dtype, device=place)

    def function(a, b):
        return interop.divide(a, torch.cat([b, zero]), where_zero=5)

    assert torch.autograd.gradcheck(function, (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (a, b), check_fwd_over_rev=True)
