"""Who computes a call of tensors: this package, with or without a record, or torch's dispatcher."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import interop


@pytest.fixture
def matrices(torch, place):
    torch.manual_seed(0)
    return {name: torch.randn(3, 3, device=place, dtype=torch.float64) for name in ("a", "b", "c", "bias")} | {
        "bias": torch.randn(3, device=place, dtype=torch.float64)
    }


def product(matrices, **options):
    return interop.matmul(matrices["a"], matrices["b"], c=matrices["c"], bias=matrices["bias"], **options)


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_a_gradient_of_any_operand_is_recorded(torch, matrices, name):
    x = matrices[name].requires_grad_()
    own = torch.matmul(matrices["a"], matrices["b"]) + matrices["c"] + matrices["bias"]
    assert torch.allclose(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (product(matrices), own)))
    with torch.no_grad():
        assert not product(matrices).requires_grad
    with torch.inference_mode():
        assert product(matrices).is_inference()


@pytest.mark.parametrize("place_of_tensor", [0, 1])
def test_a_gradient_of_any_operand_of_a_sum_is_recorded(torch, place, place_of_tensor):
    x, y = torch.ones(3, device=place), torch.ones(3, device=place)
    needing = (x, y)[place_of_tensor].requires_grad_()
    (interop.multiply(x, y) + interop.elementwise("x * y")(x, y)).sum().backward()
    assert needing.grad.tolist() == [2, 2, 2]


def test_a_mode_sees_the_product(torch, matrices):
    from torch.utils.flop_counter import FlopCounterMode

    importlib.import_module("interop.torch")  # before the counter, which takes the formulas that are there
    with FlopCounterMode(display=False) as counter:
        product(matrices)
    assert counter.get_total_flops() == 2 * 3**3


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_a_tangent_of_any_operand_is_followed(torch, matrices, name):
    forward_ad = torch.autograd.forward_ad
    x = matrices[name]
    expected = torch.func.jvp(
        lambda x: (
            torch.matmul(*({**matrices, name: x}[k] for k in "ab"))
            + {**matrices, name: x}["c"]
            + {**matrices, name: x}["bias"]
        ),
        (x,),
        (torch.ones_like(x),),
    )
    with forward_ad.dual_level():
        matrices[name] = forward_ad.make_dual(x, torch.ones_like(x))
        primal, tangent = forward_ad.unpack_dual(product(matrices))
        assert torch.allclose(primal, expected[0])
        assert torch.allclose(tangent, expected[1])


def test_an_output_that_requires_grad_is_refused(torch, matrices):
    out = torch.zeros(3, 3, device=matrices["a"].device, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="interop.matmul: out"):
        product(matrices, out=out)
    with pytest.raises(RuntimeError, match="interop.add: out"):
        interop.add(matrices["a"], 1, out=out)
    with pytest.raises(RuntimeError, match="out is given"):
        interop.elementwise("x + 1")(matrices["a"], out=out)
    assert not out.any()
    with torch.no_grad():
        assert product(matrices, out=out) is out


def test_what_a_registered_library_exports_is_checked(torch, matrices):
    class Weight:
        def __init__(self, tensor):
            self.tensor = tensor

    interop.register(Weight, export=lambda x: x.tensor)
    weight = Weight(matrices["b"])
    assert torch.equal(interop.matmul(matrices["a"], weight), interop.matmul(matrices["a"], matrices["b"]))
    weight.tensor.requires_grad_()
    with pytest.raises(BufferError, match="interop.matmul: b requires grad"):
        interop.matmul(matrices["a"], weight)


def test_a_gradient_of_plain_tensors_is_the_kernels_alone(torch, matrices, monkeypatch):
    """One call of the compiled half; torch's own operations are for what is differentiated again, and slower."""
    from interop.torch import _matmul_function, _tensors

    def recorded(*_):
        raise AssertionError("recorded")

    monkeypatch.setattr(_matmul_function, "products_recorded", recorded)
    a, b = matrices["a"].requires_grad_(), matrices["b"]
    for options in ({}, {"c": matrices["c"]}):
        interop.matmul(a, b, **options).sum().backward()
        with pytest.raises(AssertionError, match="recorded"):
            torch.autograd.grad(interop.matmul(a, b, **options).sum(), a, create_graph=True)
    assert not _tensors.in_transform()
    assert torch.func.vmap(lambda x: x * _tensors.in_transform())(torch.ones(2)).tolist() == [1, 1]


def test_an_aux_without_an_epilogue_is_refused_in_a_transform(torch, place):
    x, aux = torch.ones(3, 2, 2, device=place), torch.ones(3, 2, 2, device=place)
    with pytest.raises(ValueError, match="interop.matmul: aux is given, and there is no epilogue"):
        torch.func.vmap(lambda x, aux: interop.matmul(x, x, aux=aux))(x, aux)


def test_numpy_leads_no_gradient(torch):
    with pytest.raises(BufferError, match="interop.add: b requires grad"):
        interop.add(np.ones(3), torch.ones(3, requires_grad=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_nested_tensors(torch):
    """Torch maps the elementwise functions over what they hold; a product of them is refused."""
    parts = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    found = interop.elementwise("x * y + 1")(interop.add(nested, 1), 2)
    assert torch.equal(found.values(), 2 * (torch.cat(parts) + 1) + 1)
    for name, call in {
        "a": lambda: interop.matmul(nested, torch.ones(3, 5)),
        "b": lambda: interop.matmul(torch.ones(5, 3, requires_grad=True), nested),
        "c": lambda: interop.matmul(parts[0], torch.ones(3, 3), c=nested),
    }.items():
        with pytest.raises(
            TypeError, match=rf"^interop\.matmul: {name} is a nested tensor; accepted: .*{name}\.values"
        ):
            call()
