"""`interop.bridge(f, to="jax")`: functions of torch as JAX's, in values and in every derivative, also inside `jax.jit`.

On a GPU, in the order of streams: tests/gpu/test_bridge.py.
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import interop
import interop.jax


class Pair(NamedTuple):
    first: Any
    second: Any


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


# ---- values ----


@pytest.mark.parametrize("compiled", [False, True])
def test_values(compiled, layer, arguments, jax):
    made = (jax.jit(layer) if compiled else layer)(*arguments)
    assert isinstance(made, jax.Array)
    assert_close(made, layer_in_jax(*arguments))


@pytest.mark.parametrize("compiled", [False, True])
def test_trees_of_arguments_and_results(compiled, jax, jnp, torch):
    def f(pair, *, more, name):
        assert name == "static"
        return {"sum": pair.first + more["x"][0], "max": torch.max(pair.first, dim=0), "pair": Pair(pair.second, None)}

    call = functools.partial(interop.bridge(f, to="jax"), name="static")
    made = (jax.jit(call) if compiled else call)(Pair(jnp.ones(2), jnp.arange(3)), more={"x": [jnp.full(2, 4.0)]})
    assert made["sum"].tolist() == [5, 5]
    assert [x.tolist() for x in made["max"]] == [1, 0]
    assert made["max"][1].dtype == "int64"
    assert type(made["pair"]) is Pair
    assert made["pair"].first.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
)
@pytest.mark.parametrize("compiled", [False, True])
def test_dtypes(compiled, dtype, jax, jnp, torch):
    call = interop.bridge(lambda x: x.flip(0), to="jax")
    x = jnp.array([0, 1, 1]).astype(dtype)
    made = (jax.jit(call) if compiled else call)(x)
    assert made.dtype == x.dtype
    assert (made == x[::-1]).all()


def test_results_are_made_compact(jax, jnp, torch):
    call = interop.bridge(lambda x: (x.T, x[:1].expand(4, 2), (x * 1j).conj()), to="jax")
    for made in (call(jnp.eye(2)), jax.jit(call)(jnp.eye(2))):
        assert_close(made, (jnp.eye(2), jnp.eye(2)[:1].repeat(4, 0), jnp.eye(2) * -1j))


def test_a_result_has_memory_of_its_own(jnp, torch):
    x = jnp.ones(3)
    same, view = interop.bridge(lambda x: (x, x.reshape(3, 1)), to="jax")(x)
    pointers = {y.unsafe_buffer_pointer() for y in (x, same, view)}
    assert len(pointers) == 3
    weight = torch.nn.Parameter(torch.ones(3))
    made = interop.bridge(lambda x: weight, to="jax")(x)
    with torch.no_grad():
        weight.fill_(5)
    assert made.tolist() == [1, 1, 1]


def test_arrays_of_numpy_are_taken_as_jax_takes_them(torch):
    assert interop.bridge(torch.square, to="jax")(np.full(2, 3.0)).tolist() == [9, 9]


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


# ---- programs ----


def test_it_is_traced_once_by_jax(jax, jnp, torch):
    calls = []

    def f(x, scale):
        calls.append(type(x).__name__)
        return x * scale

    call = interop.bridge(f, to="jax")
    compiled = jax.jit(lambda x: call(x, 3))
    for _ in range(3):
        assert compiled(jnp.ones(2)).tolist() == [3, 3]
    assert calls.count("Tensor") == 3
    assert calls.count("FakeTensor") == 1


def test_what_torch_cannot_trace_is_refused_inside_jit(jax, jnp, torch):
    call = interop.bridge(lambda x: x * float(x.sum()), to="jax")
    assert call(jnp.ones(2)).tolist() == [2, 2]
    words = r"what it returns inside jax.jit is found by a call with tensors that have no memory, and that raised"
    with pytest.raises(NotImplementedError, match=words):
        jax.jit(call)(jnp.ones(2))


def test_an_error_inside_a_program_arrives(jax, jnp, torch):
    def fails(x):
        if type(x) is torch.Tensor:
            raise LookupError("of the function's own")
        return x

    with pytest.raises(jax.errors.JaxRuntimeError, match="of the function's own") as error:
        jax.block_until_ready(jax.jit(interop.bridge(fails, to="jax"))(jnp.ones(2)))
    assert isinstance(interop.jax.exception_of(error.value), LookupError)
    with pytest.raises(LookupError, match="of the function's own"):
        interop.bridge(fails, to="jax")(jnp.ones(2))


# ---- what is refused ----


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_that_writes_to_its_argument_is_refused(compiled, jax, jnp, torch):
    call = interop.bridge(lambda x: x.add_(1), to="jax")
    words = r"the function has written to x, which is an array of JAX's"
    with pytest.raises((TypeError, jax.errors.JaxRuntimeError), match=words):
        jax.block_until_ready((jax.jit(call) if compiled else call)(jnp.ones(2)))


@pytest.mark.parametrize("compiled", [False, True])
def test_64_bits_in_the_32_bit_mode_are_an_error(compiled, jax, jnp, torch):
    wide = jnp.ones(2)
    call = interop.bridge(lambda x: x.double(), to="jax")
    with jax.enable_x64(False):
        with pytest.raises(TypeError, match="the result is float64, which JAX has in its 64-bit mode alone; accepted"):
            (jax.jit(call) if compiled else call)(jnp.ones(2))
        with pytest.raises(TypeError, match="x is float64, which JAX has in its 64-bit mode alone; accepted: float32"):
            call(wide)


def test_other_arguments_are_refused(jnp, torch):
    call = interop.bridge(lambda x: x, to="jax")
    with pytest.raises(TypeError, match=r"^interop.bridge\(<lambda>\): x is torch.Tensor; accepted: jax.Array, numpy"):
        call(torch.ones(2))
    with pytest.raises(TypeError, match="the result has int; accepted: tensors, in tuples, lists and dicts"):
        interop.bridge(lambda x: 3, to="jax")(jnp.ones(2))


def test_a_transpose_of_the_call_itself_is_refused(jax, jnp, torch):
    call = interop.bridge(lambda x: x * 2, to="jax")
    with pytest.raises(NotImplementedError, match="JAX transposes a call of it, as if it was linear"):
        jax.linear_transpose(call, jnp.ones(2))(jnp.ones(2))


def test_explain(jnp, torch):
    call = interop.bridge(torch.square, to="jax")
    plan = interop.explain(call, jnp.ones(3))
    assert plan.result_library == "jax"
    assert plan.device == "cpu"
    assert "on arrays of torch" in plan.algorithm
    with pytest.raises(TypeError, match="is given no arrays; accepted: arrays among its arguments"):
        interop.explain(call, 3)


# ---- several devices ----


def test_each_device_calls_it_with_its_part():
    code = """
        import jax, numpy as np, torch, interop
        from jax.sharding import Mesh, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), "d")
        call = interop.bridge(lambda x: torch.sin(x) * x.sum(), to="jax")
        def f(x):
            return call(x)
        def f_in_jax(x):
            return jax.numpy.sin(x) * x.sum()
        x = jax.numpy.arange(8.0)
        def loss(f):
            return lambda x: jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x).sum()
        found, expected = (jax.jit(jax.value_and_grad(loss(g)))(x) for g in (f, f_in_jax))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
        try:
            call(jax.device_put(x, jax.NamedSharding(mesh, P("d"))))
        except ValueError as error:
            assert "x is on 2 devices; accepted: an array on one, or a call in jax.shard_map" in str(error), error
        else:
            raise SystemExit("an array on two devices was taken")
        add = interop.bridge(torch.add, to="jax")
        try:
            add(*(jax.device_put(x, device) for device in jax.devices()))
        except ValueError as error:
            assert "0 is on cpu:0 and argument 1 is on cpu:1; accepted: arrays on one device" in str(error), error
        else:
            raise SystemExit("arrays on two devices were taken")
    """
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    subprocess.run(command, check=True, env={**os.environ, **environment}, timeout=300)
