"""`interop.bridge(f, to="torch")`: functions of JAX as torch's. Their derivatives: tests/test_bridge_derivatives.py.

On a GPU, in the order of streams: tests/gpu/test_bridge.py. Of torch in JAX: tests/test_bridge_to_jax.py.
"""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import textwrap
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import machine

import interop


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.fixture(autouse=True)
def _wide(host_jax):
    """JAX in its 64-bit mode, which derivatives are checked in, on the host."""
    with host_jax.enable_x64(True):
        yield


@pytest.fixture
def jnp(jax):
    return jax.numpy


def scaled(x):
    import jax

    return jax.numpy.multiply(x, 2)


double = interop.bridge(scaled, to="torch")


# ---- values ----


def test_values_are_those_of_the_function(torch, jnp):
    x, w = torch.arange(6.0).reshape(2, 3), torch.ones(3, 2)
    made = interop.bridge(lambda x, w: jnp.tanh(x @ w) * x.sum(), to="torch")(x, w)
    assert type(made) is torch.Tensor
    assert torch.allclose(made, torch.tanh(x @ w) * x.sum())


def test_trees_of_arguments_and_results(torch, jnp):
    def f(pair, *, more):
        return {"sum": pair.first + more["x"][0], "pair": Pair(pair.second, None), "list": [pair.first * 2]}

    x, y, z = torch.ones(2), torch.full((2,), 3.0), torch.full((2,), 5.0)
    made = interop.bridge(f, to="torch")(Pair(x, y), more={"x": [z]})
    assert made["sum"].tolist() == [6, 6]
    assert type(made["pair"]) is Pair
    assert made["pair"].first.tolist() == [3, 3]
    assert made["pair"].second is None
    assert [x.tolist() for x in made["list"]] == [[2, 2]]


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
)
def test_dtypes(dtype, torch):
    x = torch.tensor([0, 1, 1]).to(getattr(torch, dtype))
    made = interop.bridge(lambda x: x[::-1], to="torch")(x)
    assert made.dtype == x.dtype
    assert torch.equal(made, x.flip(0))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_shapes(shape, torch, jnp):
    x = torch.ones(shape, requires_grad=True)
    made = interop.bridge(jnp.sin, to="torch")(x)
    made.sum().backward()
    assert made.shape == x.grad.shape == x.shape


def test_a_result_has_memory_of_its_own(torch):
    x = torch.ones(3)
    made = interop.bridge(lambda x: (x, x), to="torch")(x)
    for k, y in enumerate(made):
        y.fill_(k + 5)
    assert x.tolist() == [1, 1, 1]
    assert [y.tolist() for y in made] == [[5] * 3, [6] * 3]


def test_arrays_of_jax_beside_tensors(torch, jax):
    """Such as keys of random numbers, of which torch has none."""
    noise = interop.bridge(lambda key, x, w: x + jax.random.normal(key, x.shape) * w, to="torch")
    x, w = torch.zeros(4, requires_grad=True), jax.numpy.full(4, 2.0, "float32")
    first, again, other = (noise(jax.random.key(seed), x, w) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    first.sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(4, 3),
        lambda x: x.reshape(-1)[1:],
        lambda x: (x + 1j).conj(),
        lambda x: (x + 1j).conj().imag,
    ],
    ids=["transposed", "strided", "expanded", "offset", "conjugated", "negated"],
)
def test_what_jax_cannot_take_is_made_compact(make, torch):
    view = make(torch.arange(9.0).reshape(3, 3)).requires_grad_()
    call = interop.bridge(lambda x: x * 3, to="torch")
    made = call(view)
    assert torch.equal(made, view * 3)
    (grad,) = torch.autograd.grad(made.abs().sum(), view)
    assert torch.equal(grad, torch.autograd.grad((view * 3).abs().sum(), view)[0])
    (said,) = interop.explain(call, view).copies
    assert said.startswith("x: made compact on its device, as it is ")


def test_what_jax_can_take_is_not_copied(torch):
    x = torch.ones(16)
    call = interop.bridge(lambda x: x * 3, to="torch")
    plan = interop.explain(call, x)
    assert plan.copies == ()
    assert plan.result_library == "torch"
    assert "arrays of jax" in str(plan)


def test_a_subclass_that_is_its_memory(torch):
    class Named(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Named)
    assert interop.bridge(lambda x: x * 3, to="torch")(x).tolist() == [3, 3, 3]


# ---- traces ----


def test_it_is_traced_once_for_each_signature(torch, jnp):
    traces = []

    def f(x, *, scale=2):
        traces.append((x.shape, str(x.dtype), scale))
        return jnp.sin(x) * scale

    call = interop.bridge(f, to="torch")
    for _ in range(3):
        call(torch.ones(3))
    assert len(traces) == 1
    for _ in range(3):
        call(torch.ones(3, requires_grad=True)).sum().backward()
    assert len(traces) == 2
    for _ in range(2):
        call(torch.ones(4))
        call(torch.ones(3, dtype=torch.float64))
        call(torch.ones(3), scale=3)
    assert len(traces) == 5
    call(torch.ones(3), scale=3.0)
    assert traces[-1][2] == 3.0
    assert type(traces[-1][2]) is float


def test_what_is_no_array_is_static(torch, jnp):
    call = interop.bridge(lambda x, how, axis: getattr(jnp, how)(x, axis=axis), to="torch")
    x = torch.arange(6.0).reshape(2, 3)
    assert call(x, "sum", 0).tolist() == [3, 5, 7]
    assert call(x, "max", axis=1).tolist() == [2, 5]
    assert call(x, "sum", None).tolist() == 15


def test_zeros_of_both_signs_are_two_constants(torch, jnp):
    call = interop.bridge(lambda x, c: jnp.copysign(x, c), to="torch")
    assert call(torch.ones(1), 0.0).tolist() == [1]
    assert call(torch.ones(1), -0.0).tolist() == [-1]


# ---- torch's compilers ----


@pytest.mark.parametrize("is_called_before", [False, True])
def test_inside_torch_compile_it_is_called_between_the_graphs(is_called_before, torch, jnp):
    call = interop.bridge(jnp.sin, to="torch")
    if is_called_before:
        call(torch.ones(2))
    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():  # Dynamo looks at `.grad` of what it goes on with, which warns
        warnings.filterwarnings("ignore", category=UserWarning, message="The .grad attribute of a Tensor")
        made = torch.compile(lambda x: call(x * 2) * 2, backend="eager")(x)
    assert torch.allclose(made, torch.sin(x * 2) * 2)
    made.sum().backward()
    assert torch.allclose(x.grad, torch.cos(x * 2) * 4)


def test_a_whole_graph_is_refused_by_name(torch, jnp):
    call = interop.bridge(jnp.sin, to="torch")
    with pytest.raises(RuntimeError, match=r"interop.bridge\(sin\): torch's graphs cannot have a call of it"):
        torch.compile(lambda x: call(x) * 2, backend="eager", fullgraph=True)(torch.ones(3))


def followed():
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def fake(call, x):
        with FakeTensorMode() as mode:
            return call(mode.from_tensor(x))

    def trace(call, x):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit.trace")
            return torch.jit.trace(lambda x: call(x), x)

    return {"make_fx": lambda call, x: make_fx(call)(x), "jit.trace": trace, "fake": fake}


@pytest.mark.parametrize("kind", ["make_fx", "jit.trace", "fake"])
def test_what_follows_operations_is_refused(kind, torch, jnp):
    """It would have the values of this call for constants."""
    call = interop.bridge(jnp.sin, to="torch")
    with pytest.raises(TypeError, match=r"^interop.bridge\(sin\): "):
        followed()[kind](call, torch.ones(3))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [("float64", "float32"), ("int64", "int32"), ("complex128", "complex64"), ("uint64", "uint32")],
)
def test_64_bits_in_the_32_bit_mode_are_an_error(dtype, narrow, torch, jax):
    x = torch.ones(3, dtype=getattr(torch, dtype))
    words = f"x is {dtype}, which JAX has in its 64-bit mode alone; accepted: {narrow}, or jax.config.update"
    with jax.enable_x64(False), pytest.raises(TypeError, match=words):
        interop.bridge(lambda x: x + 1, to="torch")(x)


def refused():
    import torch

    x, module = torch.ones(2), torch.nn.Linear(2, 2)
    return {
        "numpy": (TypeError, r"x\['a'\] is numpy.ndarray; accepted: torch.Tensor, jax.Array", {"a": np.ones(2)}, x),
        "module": (TypeError, r"x is torch.nn.modules.linear.Linear, whose parameters JAX cannot see", module, x),
        "unhashable": (TypeError, r"x is .*, which is no array and has no hash", bytearray(2), x),
        "sparse": (TypeError, r"x is torch.sparse_coo; accepted: a dense tensor", x.to_sparse(), x),
        "meta": (ValueError, r"x is on meta and y is on cpu; accepted: all tensors on one device", x.to("meta"), x),
    }


@pytest.mark.parametrize("case", ["numpy", "module", "unhashable", "sparse", "meta"])
def test_arguments_that_are_refused(case, torch):
    def f(x, y):
        return y

    kind, words, x, y = refused()[case]
    call = interop.bridge(f, to="torch")
    with pytest.raises(kind, match=rf"^interop.bridge\(f\): {words}"):
        call(x, y)


def test_results_that_are_no_arrays_are_refused(torch):
    with pytest.raises(TypeError, match="the result has str; accepted: arrays, in tuples, lists and dicts"):
        interop.bridge(lambda x: (x, "a"), to="torch")(torch.ones(2))


def test_errors_of_the_function_are_as_they_are(torch):
    with pytest.raises(ZeroDivisionError):
        interop.bridge(lambda x: x / (1 // 0), to="torch")(torch.ones(2))


# ---- the object ----


def test_it_looks_like_the_function():
    assert double.__name__ == "scaled"
    assert inspect.signature(double) == inspect.signature(scaled)
    assert repr(double) == f"interop.bridge({__name__}.scaled, to='torch')"
    assert double == interop.bridge(scaled, to="torch")
    assert double != interop.bridge(scaled, to="jax")
    assert hash(double) == hash(interop.bridge(scaled, to="torch"))
    again = pickle.loads(pickle.dumps(interop.bridge(np.sin, to="torch")))
    assert again == interop.bridge(np.sin, to="torch")


@pytest.mark.parametrize(("library", "to"), [("jax", "torch"), ("torch", "jax"), ("jax", "jax"), ("torch", "torch")])
def test_a_library_that_is_not_installed_is_named(library, to):
    code = f"""
        import sys
        sys.modules[{library!r}] = None
        import interop
        call = interop.bridge(abs, to={to!r})
        try:
            call(1)
        except ModuleNotFoundError as error:
            assert str(error) == "interop.bridge(abs): library is '{library}', which is not installed", error
        else:
            raise SystemExit("no error")
    """
    machine.need("torch")
    subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(code)], check=True)


def test_interop_loads_neither_library():
    code = "import sys, interop; interop.bridge(abs, to='jax'); sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
