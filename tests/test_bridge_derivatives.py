"""Derivatives of `interop.bridge(f, to="torch")`: by autograd, in every order, and under `torch.func`."""

from __future__ import annotations

import threading

import pytest

import interop


@pytest.fixture(autouse=True)
def _wide(host_jax):
    """JAX in its 64-bit mode, which derivatives are checked in, on the host."""
    with host_jax.enable_x64(True):
        yield


@pytest.fixture
def jnp(jax):
    return jax.numpy


@pytest.fixture
def layer(jax):
    """A function of JAX, the same one of torch, and arguments."""
    return interop.bridge(lambda x, w: jax.numpy.tanh(x @ w) * x.sum(), to="torch")


def layer_in_torch(x, w):
    return x.matmul(w).tanh() * x.sum()


@pytest.fixture
def arguments(torch):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))


# ---- gradients ----


def test_gradients(layer, arguments, torch):
    grad = torch.ones(3, 3, dtype=torch.float64)
    found = torch.autograd.grad(layer(*arguments), arguments, grad)
    expected = torch.autograd.grad(layer_in_torch(*arguments), arguments, grad)
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y)


def test_gradcheck(layer, arguments, torch):
    assert torch.autograd.gradcheck(
        layer, arguments, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )


def test_gradgradcheck(layer, arguments, torch):
    assert torch.autograd.gradgradcheck(
        layer, arguments, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_complex_gradients_have_torchs_sign(torch, jnp):
    call = interop.bridge(lambda z, w: jnp.sin(z) * w * jnp.conj(z), to="torch")
    z = torch.tensor([0.3 + 0.4j, -1 + 0.2j], dtype=torch.complex128, requires_grad=True)
    w = torch.tensor([2.0, 0.5], dtype=torch.float64, requires_grad=True)
    found = torch.autograd.grad(call(z, w).abs().sum(), (z, w))
    expected = torch.autograd.grad((torch.sin(z) * w * z.conj()).abs().sum(), (z, w))
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y)
    assert torch.autograd.gradcheck(call, (z, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (z, w), check_fwd_over_rev=True)


def test_third_order(torch, jnp):
    x = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    made = interop.bridge(jnp.sin, to="torch")(x)
    for _ in range(3):
        (made,) = torch.autograd.grad(made, x, create_graph=True)
    assert torch.allclose(made, -torch.cos(x))


def test_integers_and_arguments_without_gradients(torch):
    call = interop.bridge(lambda x, index, mask, c: (x[index] * mask * c, index + 1), to="torch")
    x, c = torch.arange(4.0, requires_grad=True), torch.full((2,), 3.0)
    index, mask = torch.tensor([2, 0]), torch.tensor([True, False])
    made, more = call(x, index, mask, c)
    assert not more.requires_grad
    made.sum().backward()
    assert x.grad.tolist() == [0, 0, 3, 0]
    assert c.grad is None


def test_only_what_needs_a_gradient_is_differentiated(torch, jax):
    """The rule of an argument that needs none is not so much as traced."""

    @jax.custom_vjp
    def fails(x):
        return x

    def refuse(*_):
        raise AssertionError("differentiated")

    fails.defvjp(refuse, refuse)
    call = interop.bridge(lambda x, y: x * fails(y), to="torch")
    x = torch.ones(2, requires_grad=True)
    call(x, torch.ones(2)).sum().backward()
    assert x.grad.tolist() == [1, 1]
    with torch.no_grad():
        assert not call(x, torch.ones(2, requires_grad=True)).requires_grad
    with pytest.raises(AssertionError, match="differentiated"):
        call(x, torch.ones(2, requires_grad=True))


def test_results_without_a_gradient_of_their_own(torch, jnp):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    sine, cosine, _ = interop.bridge(lambda x: (jnp.sin(x), jnp.cos(x), jnp.argmax(x)), to="torch")(x)
    (grad,) = torch.autograd.grad(sine.sum(), x)
    assert torch.allclose(grad, torch.cos(x))
    assert cosine.requires_grad


def test_no_grad_and_retain_graph(torch, jnp):
    call = interop.bridge(lambda x: jnp.sin(x) * x, to="torch")
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert call(x).grad_fn is None
    made = call(x).sum()
    made.backward(retain_graph=True)
    made.backward()
    first = x.grad.clone() / 2
    assert torch.allclose(first, torch.cos(x) * x + torch.sin(x))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        made.backward()


def test_an_argument_that_is_written_to_before_its_gradient_is_an_error(torch, jnp):
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    made = interop.bridge(jnp.sin, to="torch")(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_a_result_that_is_kept_for_the_gradient_is_not_kept_twice(torch, jnp):
    """The gradient of exp is of its result, which torch has already."""
    saved = []
    x = torch.ones(64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y.data_ptr()) or y, lambda y: y):
        made = interop.bridge(jnp.exp, to="torch")(x)
    made.sum().backward()
    assert torch.allclose(x.grad, torch.exp(x))
    assert saved == [x.data_ptr(), made.data_ptr()]


def test_what_the_function_closes_over_is_not_kept_for_each_call(torch, jnp):
    weights, saved = jnp.full((64, 64), 0.5, "float32"), []
    x = torch.ones(64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y.shape) or y, lambda y: y):
        made = interop.bridge(lambda x: jnp.sin(x @ weights), to="torch")(x)
    assert (64, 64) not in saved
    made.sum().backward()
    assert torch.allclose(x.grad, torch.full((64,), 32 * torch.cos(torch.tensor(32.0)).item()))


def test_saved_tensors_can_be_moved_by_hooks(torch, jnp):
    x = torch.linspace(0, 1, 5).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        made = interop.bridge(lambda x: jnp.sin(jnp.sin(x)), to="torch")(x)
    made.sum().backward()
    assert torch.allclose(x.grad, torch.cos(torch.sin(x)) * torch.cos(x))


def test_what_torch_has_no_dtype_of_is_kept_by_jax(torch, jax, jnp):
    """A key, of which `jax.checkpoint` draws the numbers again."""

    def f(key, x):
        return jax.checkpoint(lambda x: jnp.sin(x) * jax.random.normal(key, x.shape, x.dtype))(x)

    x, key = torch.linspace(0.5, 1, 5).requires_grad_(), jax.random.key(3)
    made = interop.bridge(f, to="torch")(key, x)
    (grad,) = torch.autograd.grad(made.sum(), x)
    assert torch.allclose(grad, torch.cos(x) * made / torch.sin(x))


def test_checkpoints(layer, arguments, torch):
    made = torch.utils.checkpoint.checkpoint(layer, *arguments, use_reentrant=False)
    found = torch.autograd.grad(made.sum(), arguments)
    for x, y in zip(found, torch.autograd.grad(layer_in_torch(*arguments).sum(), arguments), strict=True):
        assert torch.allclose(x, y)


def test_gradients_on_another_thread_have_the_setting_of_the_call(torch, jax, jnp):
    """As on a GPU, where torch's own thread has JAX's defaults."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    made = interop.bridge(jnp.sin, to="torch")(x).sum()
    found = []

    def work():
        assert not jax.config.jax_enable_x64
        found.extend(torch.autograd.grad(made, x, create_graph=True))
        found.extend(torch.autograd.grad(found[0].sum(), x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.allclose(found[0], torch.cos(x), atol=1e-12)
    assert torch.allclose(found[1], -torch.sin(x), atol=1e-12)


def test_a_module_of_torch_with_a_function_of_jax_in_it(torch, jnp):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.activation = interop.bridge(lambda x: x * jnp.tanh(x), to="torch")

        def forward(self, x):
            return self.activation(self.linear(x))

    torch.manual_seed(0)
    module, x = Layer(), torch.randn(5, 4)
    module(x).sum().backward()
    found = module.linear.weight.grad.clone()
    module.zero_grad()
    y = module.linear(x)
    (y * y.tanh()).sum().backward()
    assert torch.allclose(found, module.linear.weight.grad, atol=1e-6)


# ---- torch.func ----

TRANSFORMS = {
    "grad": lambda t, f, x, w: t.grad(lambda x: f(x, w).sum())(x),
    "vjp": lambda t, f, x, w: t.vjp(f, x, w)[1](x),
    "jvp": lambda t, f, x, w: t.jvp(f, (x, w), (w, x))[1],
    "jacrev": lambda t, f, x, w: t.jacrev(f)(x, w),
    "jacfwd": lambda t, f, x, w: t.jacfwd(f)(x, w),
    "hessian": lambda t, f, x, w: t.hessian(lambda x: f(x, w).sum())(x),
    "reverse over forward": lambda t, f, x, w: t.jacrev(t.jacfwd(lambda x: f(x, w).sum()))(x),
    "forward over forward": lambda t, f, x, w: t.jacfwd(t.jacfwd(lambda x: f(x, w).sum()))(x),
    "reverse over reverse": lambda t, f, x, w: t.jacrev(t.jacrev(lambda x: f(x, w).sum()))(x),
    "vmap": lambda t, f, x, w: t.vmap(f, (2, None), 1)(x.expand(4, 3, 3).movedim(0, 2) * 1, w),
    "vmap of vmap": lambda t, f, x, w: t.vmap(t.vmap(f, (0, None)), (None, 0))(x.expand(2, 3, 3), w.expand(4, 3, 3)),
    "vmap of grad": lambda t, f, x, w: t.vmap(t.grad(lambda x: f(x, w).sum()))(x.expand(4, 3, 3)),
    "grad of vmap": lambda t, f, x, w: t.grad(lambda w: t.vmap(f, (0, None))(x.expand(4, 3, 3), w).sum())(w),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, layer, arguments, torch):
    x, w = (x.detach() for x in arguments)
    found = TRANSFORMS[transform](torch.func, layer, x, w)
    expected = TRANSFORMS[transform](torch.func, layer_in_torch, x, w)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    assert all(torch.allclose(a, b) for a, b in pairs)


def test_trees_under_transforms(torch, jnp):
    call = interop.bridge(lambda p, x: {"y": x * p["a"], "n": jnp.argmax(x)}, to="torch")
    made = torch.func.vmap(call, ({"a": None}, 0))({"a": torch.tensor(2.0)}, torch.eye(3))
    assert made["y"].tolist() == (torch.eye(3) * 2).tolist()
    assert made["n"].tolist() == [0, 1, 2]


def test_dual_numbers(layer, arguments, torch):
    x, w = (x.detach() for x in arguments)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, w)
        found = torch.autograd.forward_ad.unpack_dual(layer(dual, w)).tangent
    assert torch.allclose(found, torch.func.jvp(lambda x: layer_in_torch(x, w), (x,), (w,))[1])
