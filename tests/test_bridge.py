"""`interop.bridge(f, to="torch")`: functions of JAX as torch's, in values and in every derivative.

On a GPU, in the order of streams: tests/gpu/test_bridge.py. Of torch in JAX: tests/test_bridge_to_jax.py.
"""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
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


def scaled(x):
    import jax

    return jax.numpy.multiply(x, 2)


double = interop.bridge(scaled, to="torch")


# ---- values ----


def test_values_are_those_of_the_function(layer, arguments, torch):
    made = layer(*arguments)
    assert type(made) is torch.Tensor
    assert torch.allclose(made, layer_in_torch(*arguments))


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


def test_saved_tensors_can_be_moved_by_hooks(torch, jnp):
    x = torch.linspace(0, 1, 5).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        made = interop.bridge(lambda x: jnp.sin(jnp.sin(x)), to="torch")(x)
    made.sum().backward()
    assert torch.allclose(x.grad, torch.cos(torch.sin(x)) * torch.cos(x))


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
