"""What is said of operators of `interop.operator` that torch's derivatives and transforms find something wrong with."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers.compiled import Compiled

import interop

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

PRODUCT = interop.elementwise("x * y")


def define(name, **options):
    return interop.operator(f"errors::{name}", PRODUCT, "x[..., n], y[..., n] -> [..., n]", **options)


def ones(*shape, grad=False, **options):
    return torch.ones(shape or (2, 3), requires_grad=grad, **options)


def transforms():
    """Ways to ask for the gradient by the first input."""
    return {
        "call": lambda f: f(ones(grad=True), ones()).sum().backward(),
        "call again": lambda f: [f(ones(grad=True), ones()).sum().backward() for _ in range(2)],
        "by name": lambda f: f(y=ones(), x=ones(grad=True)).sum().backward(),
        "grad": lambda f: torch.func.grad(lambda x: f(x, ones()).sum())(ones()),
        "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x, ones(3)).sum()))(ones()),
        "jacrev": lambda f: torch.func.jacrev(lambda x: f(x, ones()))(ones()),
    }


@pytest.fixture(params=transforms())
def reverse(request):
    return transforms()[request.param]


# ---- derivatives that are missing ----


def test_no_gradient(reverse):
    op = define("no_gradient", tangent=lambda t, inputs, outputs: t[0])
    words = r"errors::no_gradient: x requires grad, and the operator has no gradient; accepted: .*gradient=f.*x\.detach"
    with pytest.raises(NotImplementedError, match=words):
        reverse(op)
    with torch.no_grad():
        assert op(ones(grad=True), ones()).sum() == 6
    with pytest.raises(NotImplementedError, match="errors::no_gradient: y requires grad"):
        op(ones(), ones(grad=True))


def test_no_gradient_in_a_graph():
    compiled = Compiled(torch, define("no_gradient_compiled"))
    with pytest.raises(Exception, match="errors::no_gradient_compiled: x requires grad"):
        compiled(ones(grad=True), ones())


@pytest.mark.parametrize(
    "forward",
    [
        lambda f: torch.func.jvp(f, (ones(), ones()), (ones(), ones())),
        lambda f: torch.func.jacfwd(f)(ones(), ones()),
        lambda f: torch.func.jvp(torch.vmap(f), (ones(), ones()), (ones(), ones())),
    ],
)
def test_no_tangent(forward):
    op = define("no_tangent", gradient=lambda g, x, y, z: (g * y, g * x))
    words = (
        "errors::no_tangent: x has a tangent, and the operator has no tangent; its gradient serves reverse mode alone"
    )
    with pytest.raises(NotImplementedError, match=f"{words}; accepted: .*tangent=f"):
        forward(op)


def test_no_tangent_of_a_dual():
    op = define("no_tangent_of_y")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(ones(), ones())
        with pytest.raises(NotImplementedError, match="no_tangent_of_y: y has a tangent.*tangent=f"):
            op(ones(), dual)


# ---- derivatives that return something else ----


@pytest.mark.parametrize(
    ("gradient", "error", "words"),
    [
        (
            lambda g, x, y, z: g,
            TypeError,
            "gradient returned torch.Tensor; accepted: a tuple of 2, for the inputs (x, y)",
        ),
        (lambda g, x, y, z: (g,), ValueError, "gradient returned a tuple of 1; accepted: 2"),
        (lambda g, x, y, z: (g.sum(), None), ValueError, "gradient returned an array of shape () for x"),
        (lambda g, x, y, z: (None, g[..., :1]), ValueError, "gradient returned an array of shape"),
        (lambda g, x, y, z: (g.to(torch.float64), g), TypeError, "gradient returned float64 for x; accepted: float32"),
        (lambda g, x, y, z: (1.0, g), TypeError, "gradient returned float for x; accepted: an array"),
    ],
)
def test_wrong_gradients(reverse, gradient, error, words):
    import re

    with pytest.raises(error, match=re.escape(f"errors::wrong: {words}")):
        reverse(define("wrong", gradient=gradient))


def test_a_gradient_of_another_library():
    op = define("of_numpy", gradient=lambda g, x, y, z: (np.ones((2, 3), "float32"), None))
    with pytest.raises(TypeError, match="of_numpy: gradient returned numpy.ndarray for x; accepted: torch.Tensor"):
        op(ones(grad=True), ones()).sum().backward()


def test_a_gradient_of_a_number():
    op = interop.operator(
        "errors::number", interop.elementwise("x * by"), "x[n], by -> [n]", gradient=lambda g, x, by, y: (g, g)
    )
    with pytest.raises(TypeError, match="number: gradient returned .*Tensor for by, which is a number; accepted: None"):
        op(ones(3, grad=True), 2.0).sum().backward()


def test_an_error_of_a_gradient_is_raised_as_it_is(reverse):
    def gradient(g, x, y, z):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        reverse(define("raises", gradient=gradient))


@pytest.mark.parametrize(
    ("tangent", "error", "words"),
    [
        (lambda t, inputs, outputs: t[0][0], ValueError, "tangent returned an array of shape .* for the result"),
        (lambda t, inputs, outputs: t[0].to(torch.float64), TypeError, "tangent returned float64 for the result"),
        (lambda t, inputs, outputs: (t[0],), TypeError, "tangent returned tuple for the result; accepted: an array"),
    ],
)
def test_wrong_tangents(tangent, error, words):
    op = define("wrong_tangent", tangent=tangent)
    with pytest.raises(error, match=f"errors::wrong_tangent: {words}"):
        torch.func.jvp(op, (ones(), ones()), (ones(), ones()))


# ---- inputs ----


def ways():
    """Ways to call, which have the same said of the same inputs."""

    def mapped(f):
        def call(*inputs):
            dims = tuple(0 if isinstance(x, torch.Tensor) else None for x in inputs)
            return torch.vmap(f, dims)(*(x[None] if dim == 0 else x for x, dim in zip(inputs, dims, strict=True)))

        return call

    def with_grad(f):
        return lambda *x: f(
            *(y.requires_grad_() if isinstance(y, torch.Tensor) and y.is_floating_point() else y for y in x)
        )

    return {
        "eager": lambda f: f,
        "vmap": mapped,
        "grad": with_grad,
        "grad again": lambda f: (f(ones(grad=True), ones()), with_grad(f))[1],
    }


@pytest.fixture(params=ways())
def way(request):
    return ways()[request.param]


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        (lambda: (ones(2, 3), ones(2, 4)), ValueError, "n is 4 in y, of shape (2, 4), and 3 in x"),
        (lambda: (ones(2, 3), ones(3)), ValueError, "... is () in y, of shape (3,), and (2,) in x"),
        (lambda: (ones(2, 3), "text"), TypeError, "y is str; accepted: arrays"),
        (lambda: (ones(2, 3),), TypeError, ""),
    ],
)
def test_wrong_inputs(way, inputs, error, words):
    import re

    op = define("inputs", gradient=lambda g, x, y, z: (g * y, g * x))
    with pytest.raises(error, match="(?s).*" + re.escape(words)):
        way(op)(*inputs())


def test_wrong_shapes_in_graphs_and_without_memory():
    op = define("shapes")
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="n is 4 in y"):
        op(mode.from_tensor(ones(2, 3)), mode.from_tensor(ones(2, 4)))
    with pytest.raises(Exception, match="n is 4 in y"):
        Compiled(torch, op)(ones(2, 3), ones(2, 4))
    with pytest.raises(ValueError, match="n is 4 in y"):
        torch.ops.errors.shapes(ones(2, 3, device="meta"), ones(2, 4, device="meta"))


def test_two_devices():
    op = define("devices")
    op(ones(), ones())
    torch.vmap(op)(ones(), ones())
    with (
        FakeTensorMode(),
        pytest.raises(ValueError, match="errors::devices: x is on cpu and y is on cuda:0; accepted: all"),
    ):
        op(ones(), ones(device="cuda:0"))


@pytest.mark.multi_gpu
def test_two_gpus(two_cuda_devices):
    op = define("gpus", gradient=lambda g, x, y, z: (g * y, g * x))
    x, y = ones(device="cuda:0", grad=True), ones(device="cuda:1")
    for call in (op, torch.vmap(op), Compiled(torch, op)):
        with pytest.raises(Exception, match="cuda:1|device"):
            call(x, y)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_input_that_is_written_to(needs_grad):
    def call(x):
        interop.add(x, x, out=x)
        return interop.add(x, x)

    op = interop.operator("errors::written", call, "x[..., n] -> [..., n]", gradient=lambda g, x, y: g)
    with pytest.raises(TypeError, match="errors::written: call has written to x; accepted: a function that only reads"):
        (op if needs_grad else torch.vmap(op))(ones(grad=needs_grad) if needs_grad else ones())


def test_wrong_results_in_a_transform():
    op = interop.operator("errors::results", lambda x: x[0], "x[n, m] -> [n]")
    with pytest.raises(ValueError, match=r"errors::results: call returned an array of shape \(3,\) for the result"):
        torch.vmap(op)(ones(1, 2, 3))


# ---- keywords ----


@pytest.mark.parametrize("option", ["stream", "execution"])
def test_options_in_transforms(option):
    op = define("options", gradient=lambda g, x, y, z: (g * y, g * x))
    given = {option: {"stream": 0, "execution": "host"}[option]}
    words = f"errors::options: {option}= cannot be used in a"
    with pytest.raises(TypeError, match=words):
        op(ones(grad=True), ones(), **given)
    with pytest.raises(TypeError, match=words):
        torch.vmap(functools.partial(op, **given))(ones(), ones())
    with pytest.raises(Exception, match=words):
        Compiled(torch, lambda x: op(x, x, **given))(ones())


def test_other_inputs_leave_the_graph():
    op = define("leaves")
    with pytest.raises(Exception, match="errors::leaves: y is list, with which no call can be traced"):
        Compiled(torch, lambda x: op(x, [1.0]))(ones())
    with pytest.raises(Exception, match="takes|given|missing"):
        Compiled(torch, lambda x: op(x))(ones())
