"""Operators of `interop.operator` with torch's derivatives and transforms, each against torch's own functions."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import operators

import interop

torch = pytest.importorskip("torch")

from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

BY = 2.5
#: Of each operator: what torch computes, the shapes of its arrays, and what follows them.
CASES = {
    "row_dot": (lambda x, w: x @ w, [(3, 4), (4,)], ()),
    "softmax": (lambda x: x.softmax(-1), [(3, 4)], ()),
    "times": (lambda x, by: x * by, [(3, 4)], (BY,)),
    "parts": (lambda x: (x - x.floor().detach(), x.floor().long()), [(3, 4)], ()),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("operators")


@pytest.fixture
def ops(place, folder):
    return operators.defined(place, folder, f"torch_{place}")


def arrays(place, *shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(place) for shape in shapes]


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def of(ops, name, place):
    """The operator, torch's function and arrays: both functions are of the arrays alone."""
    reference, shapes, numbers = CASES[name]
    op = ops[name]
    return (lambda *x: op(*x, *numbers)), (lambda *x: reference(*x, *numbers)), arrays(place, *shapes)


def first(x):
    return x[0] if isinstance(x, tuple) else x


# ---- derivatives ----


@cases
def test_results_have_gradients(ops, place, name):
    op, reference, x = of(ops, name, place)
    mine, theirs = leaves(*x), leaves(*x)
    for _ in range(3):  # the first call is by another way than the others
        made, expected = op(*mine), reference(*theirs)
        torch.testing.assert_close(made, expected)
        first(made).square().sum().backward()
        first(expected).square().sum().backward()
    torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs])


@cases
def test_gradients_are_those_of_differences(ops, place, name):
    op, _, x = of(ops, name, place)
    x = leaves(*x)
    assert torch.autograd.gradcheck(
        lambda *x: first(op(*x)),
        x,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: first(op(*x)), x, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_a_gradient_that_is_expanded_is_made_compact(ops, place):
    seen = []

    def gradient(g, x, y):
        seen.append((g.is_contiguous(), tuple(g.stride())))
        return g * 2.0

    twice = interop.operator(
        f"torch_{place}::twice", interop.elementwise("2 * x"), "x[..., n] -> [..., n]", gradient=gradient
    )
    (x,) = leaves(*arrays(place, (3, 4)))
    twice(x).sum().backward()
    assert seen == [(True, (4, 1))]
    assert (x.grad == 2).all()


def test_the_gradient_is_a_kernel_of_the_same_kind(ops, place, folder):
    """A kernel reads an expanded gradient as little as any other array that is not compact."""
    times = operators.functions(place, folder)["times"].returning(y="x")
    op = interop.operator(
        f"torch_{place}::scaled",
        operators.functions(place, folder)["times"],
        "x[..., n], by -> [..., n]",
        sizes=operators.ROWS,
        gradient=lambda g, x, by, y: (times(g, by, 3, 4), None),
    )
    (x,) = leaves(*arrays(place, (3, 4)))
    for _ in range(2):
        op(x, BY).sum().backward()
    assert (x.grad == 2 * BY).all()


def test_integers_have_no_gradient(ops, place):
    (x,) = leaves(*arrays(place, (3, 4)))
    for _ in range(2):
        low, high = ops["parts"](x)
        assert low.requires_grad
        assert not high.requires_grad
        torch.testing.assert_close(low + high, x.detach())


def test_none_is_no_gradient(place):
    name = f"torch_{place}::first"
    op = interop.operator(
        name, interop.elementwise("x + 0 * y"), "x[n], y[n] -> [n]", gradient=lambda g, x, y, z: (g, None)
    )
    x, y = leaves(*arrays(place, (4,), (4,)))
    for _ in range(2):
        op(x, y).sum().backward()
    assert (x.grad == 2).all()
    assert y.grad is None
    op(x.detach(), y).sum().backward()
    assert y.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_gradient_that_is_only_noted_is_resolved(place, dtype):
    seen = []

    def gradient(g, x, y):
        seen.append((g.is_contiguous(), g.is_neg(), g.is_conj(), g.tolist()))
        return g

    name = f"torch_{place}::noted_{str(dtype).partition('.')[2]}"
    op = interop.operator(name, interop.elementwise("x + 1"), "x[n] -> [n]", gradient=gradient)
    (x,) = leaves(torch.ones(3, dtype=dtype, device=place))
    values = torch.tensor([1, 2, 3], dtype=dtype, device=place) * (1 if dtype == torch.float32 else 1 + 2j)
    for g in (values, torch._neg_view(values), values.conj(), torch._neg_view(values.conj()), values.flip(0)):
        expected = (True, False, False, g.tolist())
        assert torch.autograd.grad(op(x), x, g)[0].tolist() == expected[-1]
        assert seen.pop() == expected
    pair = torch.stack([values, values], 1)[:, 0]
    torch.autograd.grad(op(x), x, pair)
    assert seen.pop() == (True, False, False, values.tolist())


def test_a_call_keeps_what_its_gradient_reads(place):
    def kept_by(gradient):
        op = interop.operator(
            f"torch_{place}::kept", interop.elementwise("x * y"), "x[n], y[n] -> [n]", gradient=gradient
        )
        x, y = leaves(*arrays(place, (4,), (4,)))
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            op(x, y).sum().backward()
        return [k for k, operand in enumerate((x, y)) if any(other is operand for other in kept)]

    assert kept_by(lambda g, x, y, z: (g, g)) == []
    assert kept_by(lambda g, x, y, z: (g * y, g)) == [1]
    assert kept_by(lambda g, x, y, z: (g * y, g * x)) == [0, 1]
    assert kept_by(lambda *given: (given[0] * given[2], None)) == [0, 1]
    assert kept_by(functools.partial(lambda n, g, x, y, z: (g * y, None), 1)) == [0, 1]


def test_arrays_of_other_libraries_are_among_the_inputs(folder):
    op = operators.defined("cpu", folder, "torch_cpu")["row_dot"]
    x, w = arrays("cpu", (3, 4), (4,))
    (leaf,) = leaves(x)
    for _ in range(2):
        torch.testing.assert_close(op(leaf, w.numpy()), x @ w)
    op(leaf, w.numpy()).sum().backward()
    torch.testing.assert_close(leaf.grad, w.expand(3, 4))


def test_checkpoints_and_functional_hessians(ops, place):
    x, w = arrays(place, (3, 4), (4,))

    def mine(x, w):
        return ops["row_dot"](ops["softmax"](x), w).square().sum()

    def theirs(x, w):
        return (x.softmax(-1) @ w).square().sum()

    from torch.utils.checkpoint import checkpoint

    a, b = leaves(x, w)
    checkpoint(mine, a, b, use_reentrant=False).backward()
    c, d = leaves(x, w)
    theirs(c, d).backward()
    torch.testing.assert_close([a.grad, b.grad], [c.grad, d.grad])
    functional = torch.autograd.functional
    for options in ({}, {"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}):
        torch.testing.assert_close(
            functional.hessian(mine, (x, w), **options), functional.hessian(theirs, (x, w), **options)
        )


def test_autocast_changes_nothing(ops, place):
    x, w = leaves(*arrays(place, (3, 4), (4,)))
    with torch.autocast(place):
        made = ops["row_dot"](x, w)
        traced = vmap(ops["row_dot"], (0, None))(x, w)
    assert made.dtype == traced.dtype == torch.float64
    made.sum().backward()
    assert x.grad.dtype == torch.float64


def test_forward_mode(ops, place):
    x, w, dx, dw = arrays(place, (3, 4), (4,), (3, 4), (4,))
    with torch.autograd.forward_ad.dual_level():
        made = ops["row_dot"](torch.autograd.forward_ad.make_dual(x, dx), w)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(made).tangent, dx @ w)
    for args, tangents in (((x, w), (dx, dw)), ((x, w), (dx, torch.zeros_like(w)))):
        torch.testing.assert_close(jvp(ops["row_dot"], args, tangents), jvp(torch.matmul, args, tangents))


# ---- transforms ----

MAPPED = [
    ("row_dot", (0, None)),
    ("row_dot", (1, None)),
    ("row_dot", (2, None)),
    ("row_dot", (None, 0)),
    ("row_dot", (None, 1)),
    ("row_dot", (1, 1)),
    ("softmax", (0,)),
    ("softmax", (2,)),
    ("times", (1,)),
    ("parts", (2,)),
]


@pytest.mark.parametrize(("name", "dims"), MAPPED)
def test_vmap(ops, place, name, dims):
    op, reference, x = of(ops, name, place)
    mapped = []
    for k, (y, dim) in enumerate(zip(x, dims, strict=True)):
        shape = list(y.shape)
        if dim is not None:
            shape.insert(dim, 5)
        mapped += arrays(place, shape, seed=k)
    for out in (0, 1, -1) if name != "row_dot" else (0, 1):
        torch.testing.assert_close(vmap(op, dims, out)(*mapped), vmap(reference, dims, out)(*mapped))
    leaf = leaves(*mapped)
    first(vmap(op, dims)(*leaf)).square().sum().backward()
    other = leaves(*mapped)
    first(vmap(reference, dims)(*other)).square().sum().backward()
    torch.testing.assert_close([x.grad for x in leaf], [x.grad for x in other])
    per_sample = [grad(lambda *x, f=f: first(f(*x)).square().sum(), tuple(range(len(x)))) for f in (op, reference)]
    torch.testing.assert_close(vmap(per_sample[0], dims)(*mapped), vmap(per_sample[1], dims)(*mapped))


@pytest.mark.parametrize(
    ("shapes", "inner", "outer"),
    [
        (((2, 5, 3, 4), (4,)), (0, None), (0, None)),
        (((3, 5, 4, 2), (4,)), (1, None), (3, None)),
        (((2, 5, 3, 4), (5, 4)), (0, 0), (0, None)),
        (((5, 3, 4), (4, 2)), (0, None), (None, 1)),
        (((3, 4), (2, 5, 4)), (None, 0), (None, 0)),
    ],
)
def test_vmap_in_vmap(ops, place, shapes, inner, outer):
    args = arrays(place, *shapes)
    torch.testing.assert_close(
        vmap(vmap(ops["row_dot"], inner), outer)(*args), vmap(vmap(torch.matmul, inner), outer)(*args)
    )


@pytest.mark.parametrize(("shapes", "dims"), [(((0, 3, 4), (4,)), (0, None)), (((3, 4), (0, 4)), (None, 0))])
def test_vmap_of_nothing(ops, place, shapes, dims):
    args = arrays(place, *shapes)
    torch.testing.assert_close(vmap(ops["row_dot"], dims)(*args), vmap(torch.matmul, dims)(*args))


def test_an_operator_that_is_called_for_each(place):
    calls = []

    def call(x):
        calls.append(tuple(x.shape))
        return interop.add(x, x)

    op = interop.operator(f"torch_{place}::each", call, "x[..., n] -> [..., n]", batching="loop")
    (x,) = arrays(place, (3, 4))
    torch.testing.assert_close(vmap(op)(x), 2 * x)
    assert calls == [(4,)] * 3


@pytest.mark.parametrize(
    "transform",
    [grad, jacrev, jacfwd, hessian, lambda f, k: jacfwd(jacfwd(f, k), k), lambda f, k: jacrev(jacrev(f, k), k)],
)
@pytest.mark.parametrize("place_of", [0, 1])
def test_transforms(ops, place, transform, place_of):
    x, w = arrays(place, (3, 4), (4,))

    def mine(x, w):
        return ops["row_dot"](ops["softmax"](x), w).square().sum()

    def theirs(x, w):
        return (x.softmax(-1) @ w).square().sum()

    torch.testing.assert_close(transform(mine, place_of)(x, w), transform(theirs, place_of)(x, w))
    torch.testing.assert_close(
        vmap(transform(mine, place_of), (0, None))(x[:, None], w),
        vmap(transform(theirs, place_of), (0, None))(x[:, None], w),
    )


def test_gradients_of_tangents(ops, place):
    x, w = arrays(place, (3, 4), (4,))

    def pushed(f):
        return grad(lambda x: jvp(lambda x: f(x).square().sum(), (x,), (x,))[1])(x)

    torch.testing.assert_close(pushed(lambda x: ops["row_dot"](x, w)), pushed(lambda x: x @ w))
    torch.testing.assert_close(vjp(lambda x: ops["softmax"](x), x)[1](x), vjp(lambda x: x.softmax(-1), x)[1](x))


def test_functional_call(ops, place):
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(arrays(place, (4,))[0])

        def forward(self, x):
            return ops["row_dot"](x, self.weight)

    (x,) = arrays(place, (3, 4))
    module = Rows()
    found = grad(lambda p: functional_call(module, p, (x,)).sum())(dict(module.named_parameters()))
    torch.testing.assert_close(found["weight"], x.sum(0))


def test_a_numpy_scalar_is_a_number(ops, place):
    (x,) = arrays(place, (3, 4))
    torch.testing.assert_close(vmap(lambda x: ops["times"](x, np.float64(BY)))(x), x * BY)
