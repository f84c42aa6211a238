"""Derivatives of `interop.bridge(f, to="jax")`, in every order, eager and inside `jax.jit`; and random numbers."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref

import numpy as np
import pytest

import interop
import interop.jax


@pytest.fixture(autouse=True)
def _wide(host_jax, torch):
    """JAX in its 64-bit mode, which derivatives are checked in, on the host."""
    with host_jax.enable_x64(True):
        yield


@pytest.fixture
def jnp(jax):
    return jax.numpy


@pytest.fixture
def layer(torch):
    return interop.bridge(lambda x, w: torch.tanh(x @ w) * x.sum(), to="jax")


def layer_in_jax(x, w):
    import jax

    return jax.numpy.tanh(x @ w) * x.sum()


@pytest.fixture
def arguments(jax):
    return tuple(jax.random.normal(jax.random.key(seed), (3, 3), "float64") for seed in range(2))


def assert_close(found, expected):
    import jax

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)


# ---- derivatives ----

DERIVATIVES = {
    "grad": lambda jax, f, x, w: jax.grad(lambda x, w: f(x, w).sum(), (0, 1))(x, w),
    "vjp": lambda jax, f, x, w: jax.vjp(f, x, w)[1](x),
    "jvp": lambda jax, f, x, w: jax.jvp(f, (x, w), (w, x)),
    "linearize": lambda jax, f, x, w: jax.linearize(f, x, w)[1](w, x),
    "transpose": lambda jax, f, x, w: jax.linear_transpose(jax.linearize(lambda x: f(x, w), x)[1], x)(w),
    "jacrev": lambda jax, f, x, w: jax.jacrev(f, 1)(x, w),
    "jacfwd": lambda jax, f, x, w: jax.jacfwd(f, 1)(x, w),
    "hessian": lambda jax, f, x, w: jax.hessian(lambda x, w: f(x, w).sum(), (0, 1))(x, w),
    "forward over forward": lambda jax, f, x, w: jax.jacfwd(jax.jacfwd(f), 1)(x, w),
    "reverse over reverse": lambda jax, f, x, w: jax.jacrev(jax.jacrev(f), 1)(x, w),
    "reverse over forward": lambda jax, f, x, w: jax.jacrev(jax.jacfwd(f), 1)(x, w),
    "third order": lambda jax, f, x, w: jax.jacfwd(jax.grad(lambda x: jax.grad(lambda x: f(x, w).sum())(x).sum()))(x),
    "vmap": lambda jax, f, x, w: jax.vmap(f, (2, None), 1)(jax.numpy.stack([x, 2 * x], 2), w),
    "vmap of vmap": lambda jax, f, x, w: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(
        jax.numpy.stack([x, w]), jax.numpy.stack([w, x, w])
    ),
    "vmap of grad": lambda jax, f, x, w: jax.vmap(jax.grad(lambda x, w: f(x, w).sum(), 1), (0, None))(
        jax.numpy.stack([x, w]), w
    ),
    "grad of vmap": lambda jax, f, x, w: jax.grad(lambda w: jax.vmap(f, (0, None))(jax.numpy.stack([x, w]), w).sum())(
        w
    ),
    "vmap of hessian": lambda jax, f, x, w: jax.vmap(jax.hessian(lambda x, w: f(x, w).sum()), (0, None))(
        jax.numpy.stack([x, w]), w
    ),
    "scan": lambda jax, f, x, w: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (f(c, w) / 9, None), x, None, 3)[0].sum()
    )(x),
    "vmap of scan": lambda jax, f, x, w: jax.vmap(
        jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c, w) / 9, None), x, None, 3)[0].sum())
    )(jax.numpy.stack([x, w])),
    "checkpoint": lambda jax, f, x, w: jax.grad(lambda x: jax.checkpoint(f)(x, w).sum())(x),
    "cond": lambda jax, f, x, w: jax.grad(
        lambda x: jax.lax.cond(x.sum() > 9, lambda x: x.sum(), lambda x: f(x, w).sum(), x)
    )(x),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name, compiled, layer, arguments, jax):
    function = functools.partial(DERIVATIVES[name], jax, layer)
    found = (jax.jit(function) if compiled else function)(*arguments)
    assert_close(found, DERIVATIVES[name](jax, layer_in_jax, *arguments))


def test_check_grads(layer, arguments, jax):
    from jax.test_util import check_grads

    check_grads(layer, arguments, order=2)


@pytest.mark.parametrize("compiled", [False, True])
def test_complex_derivatives_have_jaxs_sign(compiled, jax, jnp, torch):
    call = interop.bridge(lambda z, w: torch.sin(z) * w * z.conj(), to="jax")

    def in_jax(z, w):
        return jnp.sin(z) * w * jnp.conj(z)

    z, w = jnp.array([0.3 + 0.4j, -1 + 0.2j]), jnp.array([2.0, 0.5])
    t, c = (jnp.array([1 - 2j, 0.5j]), w[::-1]), jnp.array([0.1 + 1j, -2j])

    def both(f):
        return jax.vjp(f, z, w)[1](c), jax.jvp(f, (z, w), t)

    found = (jax.jit(both, static_argnums=0) if compiled else both)(call)
    assert_close(found, both(in_jax))


def test_integers(jax, jnp, torch):
    call = interop.bridge(lambda x, index: (x[index] * 3, index + 1), to="jax")
    x, index = jnp.arange(4.0), jnp.array([2, 0])
    grad, none = jax.grad(lambda x, i: call(x, i)[0].sum(), (0, 1), allow_int=True)(x, index)
    assert grad.tolist() == [3, 0, 3, 0]
    assert none.dtype == jax.dtypes.float0
    made, tangents = jax.jvp(lambda x: call(x, index), (x,), (x,))
    assert tangents[0].tolist() == [6, 0]
    assert tangents[1].dtype == jax.dtypes.float0
    assert made[1].tolist() == [3, 1]


def counted(torch):
    runs = []

    def f(x, y):
        runs.append([z.requires_grad for z in (x, y)])
        return torch.sin(x) * y

    return f, runs


def test_reverse_mode_computes_the_function_once(jax, jnp, torch):
    """And differentiates it by what JAX asks for alone."""
    f, runs = counted(torch)
    call = interop.bridge(f, to="jax")
    call(jnp.ones(2), jnp.ones(2))
    assert runs == [[False, False]]
    runs.clear()
    made, pull = jax.vjp(lambda y: call(jnp.ones(2), y), jnp.ones(2))
    pull(made)
    pull(made)
    assert runs == [[False, True]]


def test_what_is_recorded_is_freed_with_what_reads_it(jax, jnp, torch):
    kept = []

    def f(x):
        made = torch.sin(x)
        kept.append(weakref.ref(made))
        return made * made

    call, x = interop.bridge(f, to="jax"), jnp.ones(3)
    jax.grad(lambda x: call(x).sum())(x)
    jax.linearize(call, x)[1](x)
    _, pull = jax.vjp(call, x)
    gc.collect()
    *others, last = [ref() is not None for ref in kept]
    assert last
    assert not any(others)
    assert pull(x)[0].shape == x.shape
    del pull
    gc.collect()
    assert not any(ref() is not None for ref in kept)


def test_forward_mode_records_nothing(jax, jnp, torch):
    f, runs = counted(torch)
    jax.jvp(interop.bridge(f, to="jax"), (jnp.ones(2),) * 2, (jnp.ones(2),) * 2)
    assert not any(map(any, runs))


def test_a_program_computes_it_again_for_its_gradients(jax, jnp, torch):
    f, runs = counted(torch)
    compiled = jax.jit(jax.value_and_grad(lambda x, y: interop_call(x, y).sum()))
    interop_call = interop.bridge(f, to="jax")
    jax.block_until_ready(compiled(jnp.ones(2), jnp.ones(2)))
    runs.clear()
    jax.block_until_ready(compiled(jnp.ones(2), jnp.ones(2)))
    assert sorted(runs) == [[False, False], [True, False]]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_with_its_parameters(compiled, jax, jnp, torch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 1)).double()
    call = interop.bridge(lambda p, x: torch.func.functional_call(module, p, (x,)), to="jax")
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in module.named_parameters()}
    grad = jax.grad(lambda p, x: call(p, x).sum())
    found = (jax.jit(grad) if compiled else grad)(params, jnp.ones((2, 4)))
    module(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    assert_close(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


def test_a_module_by_itself_has_its_weights_for_constants(jax, jnp, torch):
    module = torch.nn.BatchNorm1d(3).double()
    call = interop.bridge(module, to="jax")
    x = jnp.arange(6.0).reshape(2, 3)
    grad = jax.grad(lambda x: (call(x) ** 3).sum())(x)
    inputs = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).requires_grad_()
    (module(inputs) ** 3).sum().backward()
    assert_close(grad, inputs.grad.numpy())
    assert module.weight.grad is not None  # of torch's own backward pass; JAX's has left it alone
    assert module.running_mean.tolist() != [0, 0, 0]


def test_there_and_back(jax, jnp, torch):
    """A function of JAX, in torch, in JAX."""
    there = interop.bridge(jnp.sin, to="torch")
    back = interop.bridge(lambda x: there(x) * x, to="jax")
    x = jnp.arange(3.0)
    assert_close(jax.grad(lambda x: back(x).sum())(x), jax.grad(lambda x: (jnp.sin(x) * x).sum())(x))


def test_within_inference_mode(jax, jnp, torch):
    call = interop.bridge(torch.square, to="jax")
    with torch.inference_mode():
        assert call(jnp.full(2, 3.0)).tolist() == [9, 9]
        assert jax.grad(lambda x: call(x).sum())(jnp.full(2, 3.0)).tolist() == [6, 6]


def test_forward_mode_on_several_threads(jax, jnp, torch):
    """Torch has one level of dual numbers for all of them."""

    def slow(x):
        time.sleep(0.002)
        return torch.sin(x)

    call, x, wrong = interop.bridge(slow, to="jax"), jnp.arange(5, dtype="float32"), []  # as other threads are

    def work():
        for _ in range(20):
            try:
                np.testing.assert_allclose(jax.jvp(call, (x,), (x,))[1], x * jnp.cos(x), rtol=1e-5)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- random numbers ----


def test_random_numbers_are_drawn_once_in_eager_reverse_mode(jax, jnp, torch):
    call = interop.bridge(lambda x: torch.nn.functional.dropout(x, 0.5), to="jax")
    made, pull = jax.vjp(call, jnp.ones(64))
    assert_close(pull(jnp.ones(64))[0], made)


@pytest.mark.parametrize("mode", ["jvp", "second order"])
def test_random_numbers_that_would_be_drawn_again_are_refused(mode, jax, jnp, torch):
    call = interop.bridge(lambda x: torch.nn.functional.dropout(x, 0.5) * x, to="jax")
    x = jnp.ones(64)
    differentiate = {
        "jvp": lambda: jax.jvp(call, (x,), (x,)),
        "second order": lambda: jax.grad(lambda x: jax.grad(lambda x: call(x).sum())(x).sum())(x),
    }[mode]
    with pytest.raises(NotImplementedError, match="draws random numbers, and is computed again for this derivative"):
        differentiate()


def test_random_numbers_in_the_gradients_of_a_program_are_refused(jax, jnp, torch):
    call = interop.bridge(lambda x: torch.nn.functional.dropout(x, 0.5) * x, to="jax")
    compiled = jax.jit(jax.grad(lambda x: call(x).sum()))
    with pytest.raises(jax.errors.JaxRuntimeError, match="draws random numbers") as error:
        jax.block_until_ready(compiled(jnp.ones(64)))
    assert isinstance(interop.jax.exception_of(error.value), NotImplementedError)
