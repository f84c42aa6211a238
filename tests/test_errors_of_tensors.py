"""Tensors of torch and arrays of JAX that `interop.matmul` refuses: those that are more, or less, than their memory.

Tensors that are more are refused where NumPy leads the call, as their gradient or their meaning would be lost in its
result. What torch leads, torch's own machinery computes: see tests/torch.
"""

from __future__ import annotations

import pytest
from helpers import machine
from helpers.refusals import refused, square

import interop

SQUARE = square("float32")

# ---- torch tensors that are more, or less, than their memory ----


@pytest.fixture
def tensor(torch):
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_refuses_tensors_that_require_grad(torch, tensor):
    leaf = tensor.clone().requires_grad_()
    product = leaf * 2
    parameter = torch.nn.Parameter(tensor.clone())
    match = (
        r"requires grad, and interop has no derivative to record; pass {}.detach\(\), or call under torch.no_grad\(\)"
    )
    for x in (leaf, product, parameter):
        refused(BufferError, "^interop.matmul: b " + match.format("b"), SQUARE, x)
        refused(BufferError, "^interop.matmul: bias " + match.format("bias"), SQUARE, SQUARE, bias=x)
        refused(BufferError, "^interop.matmul: out " + match.format("out"), SQUARE, SQUARE, out=x)
        expected = (x.detach() @ tensor).tolist()
        with torch.no_grad():
            c = interop.matmul(x, tensor)
            assert c.tolist() == expected
            assert interop.matmul(SQUARE, x).tolist() == expected
        assert not c.requires_grad
        with torch.inference_mode():
            assert interop.matmul(x, tensor).tolist() == expected
        assert interop.matmul(x.detach(), tensor).tolist() == expected


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_counts_what_is_written(torch, device):
    """As its own functions do: a backward pass that needs the old values must not use the new ones."""
    if device == "cuda":
        machine.need_gpu()
    x = torch.full((2, 2), 2.0, device=device)
    weight = torch.ones((2, 2), device=device, requires_grad=True)
    writers = (
        lambda out: interop.add(x, x, out=out),
        lambda out: interop.matmul(x, x, out=out),
        lambda out: interop.matmul(x, x, epilogue="relu", aux=out),
        lambda out: interop.elementwise("2 * x")(x, out=out),
    )
    for write in writers:
        saved = torch.ones((2, 2), device=device)
        loss = (weight * saved).sum()
        before = x._version, saved._version
        write(saved)
        assert (x._version, saved._version) == (before[0], before[1] + 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():  # whose tensors have no count
        assert float(interop.add(x, x, out=torch.ones((2, 2), device=device))[0, 0]) == 4


def test_refuses_functions_of_torch_func(torch, tensor):
    stack = tensor.expand(3, 2, 2)
    with pytest.raises((TypeError, RuntimeError), match="no memory of its own"):  # B65: not a BufferError
        torch.vmap(lambda x: interop.matmul(SQUARE, x))(stack)
    with pytest.raises(BufferError, match="requires grad"):
        torch.func.grad(lambda x: interop.matmul(SQUARE, x).sum())(tensor)
    with pytest.raises(TypeError, match="forward-mode tangent"):
        torch.func.jvp(lambda x: interop.matmul(SQUARE, x), (tensor,), (tensor,))
    with pytest.raises(TypeError, match="no memory of its own"):
        torch.func.functionalize(lambda x: interop.matmul(SQUARE, x))(tensor)


def test_refuses_forward_mode_duals(torch, tensor):
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, torch.ones(2, 2))
        match = r"carries a forward-mode tangent.*unpack_dual\(x\).primal"
        refused(TypeError, "^interop.matmul: b " + match, SQUARE, dual)
        refused(TypeError, "^interop.matmul: bias " + match, SQUARE, tensor, bias=dual)
        refused(TypeError, "^interop.matmul: out " + match, SQUARE, SQUARE, out=dual)
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]  # no dual among them
    assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]


def test_refuses_fake_tensors(torch, tensor):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 2)
        with pytest.raises(TypeError, match="^interop.matmul: a torch dispatch mode"):
            interop.matmul(SQUARE, tensor)  # real memory, but the mode asked for none to be touched
    refused(TypeError, "^interop.matmul: b is .*FakeTensor, a subclass of torch.Tensor", SQUARE, fake)


def test_refuses_dispatch_modes(torch, tensor):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Counts(), pytest.raises(TypeError, match="a torch dispatch .*mode is active.*call it outside the mode"):
        interop.matmul(SQUARE, tensor)
    assert interop.matmul(SQUARE, tensor).tolist() == [[7, 10], [15, 22]]


def test_a_default_device_of_torch_is_no_obstacle(torch, tensor):
    """`torch.device` as a context, and `torch.set_default_device`, are function modes: of where to make tensors."""
    with torch.device("cpu"):
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]
    torch.set_default_device("cpu")
    try:
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]
    finally:
        torch.set_default_device(None)


def test_refuses_subclasses_of_tensor(torch, tensor):
    class Tagged(torch.Tensor):
        pass

    match = r"is .*Tagged, a subclass of torch.Tensor.*x.as_subclass\(torch.Tensor\)"
    tagged = tensor.as_subclass(Tagged)
    refused(TypeError, "^interop.matmul: b " + match, SQUARE, tagged)
    refused(TypeError, "^interop.matmul: out " + match, SQUARE, SQUARE, out=tagged)


@pytest.mark.parametrize("kind", ["sparse_coo", "mkldnn", "meta"])
def test_refuses_tensors_without_strided_memory(torch, tensor, kind):
    make = {
        "sparse_coo": lambda: tensor.to_sparse(),
        "mkldnn": lambda: tensor.to_mkldnn(),
        "meta": lambda: tensor.to("meta"),
    }[kind]
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no MKL-DNN")
    x = make()
    match = f"this torch.Tensor .*{kind}.* has no memory of its own to work on: ."  # and torch's own words
    refused(BufferError, "^interop.matmul: a: " + match, x, tensor)
    refused(BufferError, "^interop.matmul: b: " + match, tensor, x)


# ---- JAX arrays in mixed calls (those of JAX alone: test_jax_matmul_refusals.py) ----


def test_refuses_deleted_jax_arrays(jax):
    x = jax.numpy.ones((2, 2), "float32")
    x.delete()
    match = "the JAX array has been deleted or donated"
    refused(BufferError, "^interop.matmul: a: " + match, x, square("float32"))
    refused(BufferError, "^interop.matmul: b: " + match, square("float32"), x)


def test_refuses_tracers_beside_other_arrays(jax):
    x = square("float32")
    match = "is a JAX tracer .*no memory yet; inside jit every array of the call must be JAX's"
    with pytest.raises(TypeError, match="^interop.matmul: b " + match):
        jax.jit(lambda t: interop.matmul(x, t))(jax.numpy.ones((2, 2)))
    with pytest.raises(TypeError, match="^interop.matmul: a " + match):
        jax.jit(lambda t: interop.matmul(t, x))(jax.numpy.ones((2, 2)))
    with pytest.raises(TypeError, match="^interop.matmul: out is .*immutable"):
        jax.jit(lambda t: interop.matmul(x, x, out=t))(jax.numpy.ones((2, 2)))
