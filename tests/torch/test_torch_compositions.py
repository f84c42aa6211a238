"""Transforms of transforms, hooks and compilers together: each against torch's own operations."""

from __future__ import annotations

import numpy as np
import pytest

import interop


@pytest.fixture
def square(torch, place):
    return torch.arange(1.0, 5, dtype=torch.float64, device=place).reshape(2, 2)


def compiled(torch, function, backend):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


TRANSFORMS = {
    "grad": lambda torch, f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda torch, f: lambda x: torch.func.jvp(f, (x,), (x + 1,))[1],
    "jacrev": lambda torch, f: torch.func.jacrev(f),
    "jacfwd": lambda torch, f: torch.func.jacfwd(f),
    "hessian": lambda torch, f: torch.func.hessian(lambda x: (f(x) ** 2).sum()),
    "grad of grad": lambda torch, f: torch.func.grad(
        lambda x: torch.func.grad(lambda y: (f(y) ** 2).sum())(x).sin().sum()
    ),
    "grad of jvp": lambda torch, f: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (x,))[1].sin().sum()),
    "vmap of grad": lambda torch, f: torch.func.vmap(torch.func.grad(lambda row: f(row).square().sum())),
}
mixed = interop.elementwise("where(x > 1.5, x * y, exp(x) / y)")
FUNCTIONS = {
    "matmul": (lambda torch, x, w: interop.matmul(x, w), lambda torch, x, w: x @ w),
    "matmul with terms": (
        lambda torch, x, w: interop.matmul(x, w, bias=w[0], alpha=0.5, epilogue="gelu"),
        lambda torch, x, w: torch.nn.functional.gelu(0.5 * (x @ w) + w[0]),
    ),
    "elementwise": (
        lambda torch, x, w: interop.divide(interop.pow(x, 3), interop.maximum(x, w[0])),
        lambda torch, x, w: x**3 / torch.maximum(x, w[0]),
    ),
    "expression": (
        lambda torch, x, w: mixed(x, w[0]),
        lambda torch, x, w: torch.where(x > 1.5, x * w[0], x.exp() / w[0]),
    ),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(torch, square, transform, function, backend):
    """Each as it is, and compiled: in one graph, without a break."""
    w = square.flip(1) / 4 + 0.75
    ours, own = (TRANSFORMS[transform](torch, lambda x, f=f: f(torch, x, w)) for f in FUNCTIONS[function])
    if backend:
        ours = compiled(torch, ours, backend)
    torch.testing.assert_close(ours(square), own(square))


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
def test_transforms_by_inductor(torch, square):
    """All of them in one graph: each alone takes a compiler of C++ some 10 s."""
    w = square.flip(1) / 4 + 0.75

    def of(which):
        def f(x):
            for name in ("matmul with terms", "elementwise", "expression"):
                x = FUNCTIONS[name][which](torch, x, w)
            return x

        return lambda x: [make(torch, f)(x) for make in TRANSFORMS.values()]

    torch.testing.assert_close(compiled(torch, of(0), "inductor")(square), of(1)(square))


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
def test_a_dual_level_is_compiled(torch, square):
    forward_ad = torch.autograd.forward_ad

    def tangent(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(interop.matmul(dual, x)).tangent

    assert torch.allclose(compiled(torch, tangent, "eager")(square), torch.ones_like(square) @ square)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
def test_a_power_in_a_text_has_a_number_as_exponent(torch, square):
    """Compiled as well: what goes backward through the tangent of a power by a tensor is NaN below 0."""
    cube = interop.elementwise("x ** 3")
    transform = TRANSFORMS["grad of jvp"](torch, cube)
    expected = TRANSFORMS["grad of jvp"](torch, lambda x: x**3)(-square)
    torch.testing.assert_close(compiled(torch, transform, "aot_eager")(-square), expected)


CHAINS = {
    "products": lambda x: interop.multiply(interop.multiply(x, x), x),
    "quotients": lambda x: interop.divide(interop.add(x, 1), interop.multiply(x, x)),
    "powers": lambda x: interop.pow(x, 3),
    "expressions": lambda x: interop.elementwise("x * y + sin(x)")(x, interop.multiply(x, 2)),
}
OWN_CHAINS = {
    "products": lambda x: x * x * x,
    "quotients": lambda x: (x + 1) / (x * x),
    "powers": lambda x: x**3,
    "expressions": lambda x: x * (x * 2) + x.sin(),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_derivatives_of_every_order(torch, square, chain):
    def derivatives(function):
        x = square.clone().requires_grad_()
        y, found = function(x), []
        for _ in range(4):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            if not y.requires_grad:
                return [*found, y]
            found.append(y)
        return found

    found, expected = derivatives(CHAINS[chain]), derivatives(OWN_CHAINS[chain])
    for x, y in zip(found, expected, strict=False):
        assert torch.allclose(x, y)
    assert len(found) >= 3


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
def test_training_by_a_turned_stack_is_compiled(torch, place):
    x, w = torch.randn(2, 7, 3, device=place), torch.randn(3, 4, device=place, requires_grad=True)
    f = compiled(torch, lambda x, w: interop.matmul(x.transpose(0, 1), w), "aot_eager")
    (found,) = torch.autograd.grad(f(x, w).sum(), w)
    assert torch.allclose(found, torch.autograd.grad((x.transpose(0, 1) @ w).sum(), w)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "own"),
    [
        (lambda x: interop.matmul(x, x), lambda x: x @ x),
        (lambda x: interop.multiply(x, x), lambda x: x * x),
        (lambda x: interop.elementwise("x * exp(x)")(x), lambda x: x * x.exp()),
    ],
    ids=["matmul", "multiply", "expression"],
)
def test_tangents_of_mapped_functions(torch, square, ours, own):
    stack = torch.stack([square, square + 1])
    found, expected = (torch.func.jvp(lambda x, f=f: torch.func.vmap(f)(x), (stack,), (stack,))[1] for f in (ours, own))
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("options", [{}, {"bias": True}])
def test_a_hook_may_unpack_a_subclass(torch, square, options):
    class Seen(torch.Tensor):
        pass

    a, b = square.clone().requires_grad_(), square.clone().requires_grad_()
    options = {"bias": torch.ones(2, dtype=torch.float64, device=square.device)} if options else {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.as_subclass(Seen)):
        y = interop.matmul(a, b, **options)
    y.sum().backward()
    assert torch.equal(a.grad.as_subclass(torch.Tensor), torch.ones_like(y) @ square.mT)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_quotients_at_special_values_are_compiled(torch, place, name, dtype):
    special = [0.0, -0.0, 1, -1, 2.5, -2.5, 7, 1e6, float("inf"), float("-inf"), float("nan")]
    x = torch.tensor(special, dtype=getattr(torch, dtype), device=place)
    a, b = x[:, None], x[None]
    if name == "remainder":  # that of an infinity is the compiler's
        a = a[torch.isfinite(x)]
    function = getattr(interop, name)
    torch._dynamo.reset()
    found = torch.compile(lambda a, b: function(a, b), fullgraph=True)(a, b)
    assert torch.equal(found.nan_to_num(12345), function(a, b).nan_to_num(12345))


def test_the_zeroth_power_of_complex_numbers_is_one_when_mapped(torch, place):
    z = torch.zeros(3, dtype=torch.complex128, device=place)
    assert torch.func.vmap(interop.pow)(z, z).tolist() == [1, 1, 1]
    assert torch.func.vmap(lambda v: interop.pow(v, 0))(z).tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")  # torch's own, while it exports
def test_a_size_is_a_scalar_of_an_exported_program(torch):
    class Scaled(torch.nn.Module):
        def forward(self, x):
            return interop.multiply(x, x.shape[0]), interop.less(x, x.shape[0])

    program = torch.export.export(
        Scaled(), (torch.arange(5),), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=100)}}
    )
    product, less = program.module()(torch.arange(7))
    assert product.tolist() == [7 * k for k in range(7)]
    assert less.tolist() == [True] * 7


def test_an_array_that_is_no_tensor_is_named(torch):
    weight = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match="^interop.matmul: b cannot be a tensor: .*negative strides"):
        interop.matmul(weight, np.ones((2, 3), "f4")[::-1])
