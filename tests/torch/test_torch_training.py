"""A network of two layers that trains by interop's operations: its losses, and what a step of it does, by a trace."""

from __future__ import annotations

import functools

import pytest
from helpers.torch_products import needing_grad, tensors
from helpers.traces import host_copies, traced

import interop

torch = pytest.importorskip("torch")

import interop.torch  # noqa: E402 (for the operators)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, while it loads the compiler

STEPS = 20
RATE = 0.1

scaled = interop.elementwise("x * gain + shift")


def ours(x, target, first, bias, gain, second, shift, backend=None):
    hidden = scaled(interop.matmul(x, first, bias=bias, epilogue="gelu_tanh", backend=backend), gain, 0.125)
    error = interop.subtract(interop.matmul(hidden, second, bias=shift, backend=backend), target)
    return interop.multiply(error, error).mean()


def theirs(x, target, first, bias, gain, second, shift):
    hidden = torch.nn.functional.gelu(x @ first + bias, approximate="tanh") * gain + 0.125
    return (hidden @ second + shift - target).square().mean()


def parameters(place):
    """Of a layer from 16 to 32 features, and of one from there to 4."""
    first, bias, gain, second, shift = tensors(torch, place, "float32", (16, 32), (32,), (32,), (32, 4), (4,))
    return needing_grad(first / 4, bias, gain, second / 6, shift)


def batches(place):
    """What to learn is a matrix, of other inputs at each step."""
    inputs = tensors(torch, place, "float32", *[(64, 16)] * STEPS, seed=1)
    (taught,) = tensors(torch, place, "float32", (16, 4), seed=2)
    return [(x, x @ taught) for x in inputs]


def compiled(function, compiler):
    torch._dynamo.reset()
    return function if compiler is None else torch.compile(function, backend=compiler, fullgraph=True)


def losses(function, place):
    weights = parameters(place)
    optimizer = torch.optim.SGD(weights, RATE, momentum=0.5)
    found = []
    for x, target in batches(place):
        optimizer.zero_grad()
        loss = function(x, target, *weights)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def assert_trains(function, place):
    """To the losses of torch's operations: the same steps, where products add up in another order.

    Such a sum of at most 64 float32 terms is off by a few units of the last place, 1.2e-7. A step on the way down keeps
    that small, and does not multiply it: 1e-5 is a hundred units, and a wrong or lost gradient is in the first digits.
    """
    found, expected = losses(function, place), losses(theirs, place)
    assert expected[-1] < expected[0] / 4
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("compiler", [None, "inductor"])
def test_a_network_trains_as_by_torchs_product(place, compiler):
    assert_trains(compiled(ours, compiler), place)


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda_device")
def test_a_network_trains_by_replayed_graphs():
    torch._dynamo.utils.counters.clear()
    torch._dynamo.reset()
    assert_trains(torch.compile(ours, fullgraph=True, mode="reduce-overhead"), "cuda")
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def test_a_gradient_that_is_lost_changes_the_losses(place):
    """What the tests above would find: a bias that does not learn."""

    def forgets(x, target, first, bias, *others):
        return ours(x, target, first, bias.detach() + 0 * bias, *others)

    with pytest.raises(AssertionError):
        assert_trains(forgets, place)


# ---- what a step does ----

OF_TORCH = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot"}


def step(function, place):
    """Return a training step that has run before: kernels are compiled, and cuBLAS is loaded."""
    weights, (x, target) = parameters(place), batches(place)[0]

    def run():
        function(x, target, *weights).backward()
        with torch.no_grad():
            for weight in weights:
                weight -= RATE * weight.grad
                weight.grad = None

    for _ in range(3):
        run()
    return run


@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
def test_the_products_of_a_step_are_ours(place, compiler):
    """Two forward and three back, since the inputs need no gradient; torch multiplies no matrices."""
    host, _ = traced(torch, step(compiled(ours, compiler), place), place)
    if compiler is None:  # one step of autograd for each, and its two products are one call
        assert (host["Product"], host["ProductBackward"]) == (2, 2)
    else:
        assert host["interop::matmul"] + host["interop::matmul_with_aux"] == 2 + 3
    assert not OF_TORCH & set(host)
    host, _ = traced(torch, step(theirs, place), place)
    assert OF_TORCH & set(host)  # so they are called, where they are


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda_device")
@pytest.mark.parametrize(
    "options",
    [None, {"backend": "inductor"}, {"mode": "reduce-overhead"}],
    ids=["eager", "inductor", "reduce-overhead"],
)
def test_a_step_on_a_gpu_is_our_kernels_and_no_host_copy(options):
    torch._dynamo.reset()
    function = functools.partial(ours, backend="tiled")
    if options:
        function = torch.compile(function, fullgraph=True, **options)
    _, device = traced(torch, step(function, "cuda"), "cuda")
    ours_of_device = {name: count for name, count in device.items() if "interop" in name}
    elements = {name for name in ours_of_device if "elementwise" in name or "expression" in name}
    assert sum(count for name, count in ours_of_device.items() if name not in elements) >= 2 + 3
    assert bool(elements) == (options is None)  # a compiler makes torch's own operations of them
    assert host_copies(device) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda_device")
@pytest.mark.parametrize("copy", [lambda: torch.ones(3, device="cuda").cpu(), lambda: torch.ones(3).cuda()])
def test_a_host_copy_is_seen_in_a_trace(copy):
    _, device = traced(torch, copy, "cuda")
    assert len(host_copies(device)) == 1
