"""`interop.bridge(f, to="jax")`: functions of torch as JAX's, also inside `jax.jit`.

Their derivatives: tests/test_bridge_to_jax_derivatives.py.

On a GPU, in the order of streams: tests/gpu/test_bridge.py.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
import threading
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


def assert_close(found, expected):
    import jax

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)


# ---- values ----


@pytest.mark.parametrize("compiled", [False, True])
def test_values(compiled, jax, jnp, torch):
    call = interop.bridge(lambda x, w: torch.tanh(x @ w) * x.sum(), to="jax")
    x, w = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 2))
    made = (jax.jit(call) if compiled else call)(x, w)
    assert isinstance(made, jax.Array)
    assert_close(made, jnp.tanh(x @ w) * x.sum())


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


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("kind", ["parameter", "view", "buffer", "view of a buffer", "recorded"])
def test_memory_that_something_else_has_is_copied(kind, differentiated, jax, jnp, torch):
    kept = torch.nn.Parameter(torch.ones(32)) if kind in ("parameter", "view") else torch.ones(32)

    def f(x):
        if kind == "recorded":
            seen.append(torch.exp(x))
            return seen[-1]
        return kept if "view" not in kind else kept[0:]

    seen = [kept]
    call, x = interop.bridge(f, to="jax"), jnp.zeros(32, "float32")
    made = jax.vjp(call, x)[0] if differentiated else call(x)
    with torch.no_grad():
        seen[-1].fill_(5)
    assert made.tolist() == [1] * 32


def test_memory_that_autograd_has_recorded_is_copied(jax, jnp, torch):
    """Else a program that the result is donated to would write over it."""
    pointers = []

    def f(x):
        made = torch.exp(x)
        pointers.append(made.data_ptr())
        return made

    made, pull = jax.vjp(interop.bridge(f, to="jax"), jnp.zeros(32))
    assert made.unsafe_buffer_pointer() != pointers[-1]
    assert pull(made)[0].tolist() == [1] * 32


@pytest.mark.parametrize("differentiated", [False, True])
def test_memory_that_is_the_results_alone_is_not_copied(differentiated, jax, jnp, torch):
    pointers = []

    def f(x, w):
        made = [x @ w, (x + w).argmax(1)]
        pointers.append([y.data_ptr() for y in made])
        return made

    call, x = interop.bridge(f, to="jax"), jnp.ones((16, 16))
    made = jax.vjp(call, x, x)[0] if differentiated else call(x, x)
    assert [y.unsafe_buffer_pointer() for y in made] == pointers[-1]


def test_arrays_of_numpy_are_taken_as_jax_takes_them(torch):
    assert interop.bridge(torch.square, to="jax")(np.full(2, 3.0)).tolist() == [9, 9]


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


@pytest.mark.parametrize("compiled", [False, True])
def test_the_structure_of_a_result_may_be_that_of_its_shape(compiled, jax, jnp, torch):
    named = interop.bridge(lambda x: {"a": x} if x.shape[0] == 2 else {"b": x}, to="jax")
    parts = interop.bridge(lambda x: list(x.unbind(0)), to="jax")
    for size in (2, 3, 2, 3):
        for call, expected in ((named, {"a" if size == 2 else "b"}), (parts, size)):
            made = (jax.jit(lambda x, call=call: call(x)) if compiled else call)(jnp.ones((size, 4)))
            assert (set(made) if isinstance(made, dict) else len(made)) == expected


def test_tracing_leaves_a_module_as_it_is(jax, jnp, torch):
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.table = torch.nn.BatchNorm1d(3), None
            self.again, self.lock = self.norm, threading.Lock()  # which has no copy
            self.kept = self.norm.weight * 2

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(3.0)
            with self.lock:
                return self.again(x) + self.table

    module, x = Table(), jnp.arange(6, dtype="float32").reshape(2, 3)
    call = interop.bridge(module, to="jax")
    jax.make_jaxpr(call)(x)
    assert module.table is None
    assert module.norm.num_batches_tracked == 0
    made = jax.block_until_ready(jax.jit(call)(x))
    assert type(module.table) is torch.Tensor
    assert module.norm.num_batches_tracked == 1
    module.norm.reset_running_stats()
    np.testing.assert_allclose(made, module(torch.arange(6.0).reshape(2, 3)).detach(), rtol=1e-5)


def test_a_program_without_arrays_is_refused(jax, torch):
    call = interop.bridge(torch.ones, to="jax")
    assert call(3).tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=r"^interop.bridge\(ones\): no argument is an array"):
        jax.jit(lambda: call(3))()


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
