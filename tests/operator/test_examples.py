"""The worked examples of docs/operator-examples.md: each operator, from every library, against NumPy."""

from __future__ import annotations

import io
import itertools
import re

import numpy as np
import pytest
from helpers import examples, machine
from helpers.compiled import Compiled
from helpers.examples import EXAMPLES
from helpers.traces import host_copies, traced

from interop import _core
from interop._cuda import nvrtc as compiler

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
needs_handlers = pytest.mark.skipif(
    not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX"
)

OWN = ["row_sum", "spread", "scale_bias_relu", "softmax", "softmax_back"]

#: Sums of at most 6 x 5 float32 products, which exp, computed to a few units of the last place, may precede.
TOLERANCE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def page():
    return examples.of_page()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "cuda":
        request.getfixturevalue("cuda_device")
        request.getfixturevalue("nvrtc")
    return request.param


@pytest.fixture(params=EXAMPLES)
def name(request):
    return request.param


@pytest.fixture
def op(page, name):
    return getattr(page, name)


@pytest.fixture
def example(name):
    return EXAMPLES[name]


@pytest.fixture
def of_torch(place, torch):
    """Return tensors of arrays of NumPy, on the place."""
    if place == "cuda" and not torch.cuda.is_available():
        machine.skip("torch+cuda", "this torch sees no GPU")
    return lambda arrays: [torch.tensor(x, device=place) for x in arrays]


@pytest.fixture
def of_jax(place, jax):
    """Return arrays of JAX of those of NumPy, on the place."""
    with jax.default_device(jax.devices(place)[0]):
        yield lambda arrays: [jax.numpy.asarray(x) for x in arrays]


def close(made, expected):
    made, expected = (x if isinstance(x, list | tuple) else [x] for x in (made, expected))
    for x, y in zip(made, expected, strict=True):
        x = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
        assert x.dtype == "float32"
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, **TOLERANCE)


def mapped(example, args, dims):
    """Return the values for each element along these axes, stacked."""
    count = next(x.shape[dim] for x, dim in zip(args, dims, strict=True) if dim is not None)
    each = [[x if dim is None else x.take(k, dim) for x, dim in zip(args, dims, strict=True)] for k in range(count)]
    return np.stack([example.value(*args) for args in each])


def batches(example):
    """Arguments of which some have an axis more, and its place in each: each argument alone, and all of them."""
    for which in itertools.product((False, True), repeat=len(example.shapes)):
        if sum(which) not in (1, len(which)):
            continue
        for at in (0, -1):
            args = example.arguments()
            dims = [at if is_mapped else None for is_mapped in which]
            more = [(np.stack([x, 1.5 * x, -x, x[..., ::-1]], at)) for x in args]
            yield [y if is_mapped else x for x, y, is_mapped in zip(args, more, which, strict=True)], dims


# ---- values, of every library ----


@pytest.mark.parametrize("shape", [(2, 3, 5), (5,), (0, 5), (3, 1), (4, 700)])
def test_values(op, example, any_library, request, shape):
    if any_library.device == "cuda":
        request.getfixturevalue("nvrtc")
    leading = {(2, 3): shape[:-1], (5,): shape[-1:], (2, 3, 5): shape}
    args = example._replace(shapes=tuple(leading[x] for x in example.shapes)).arguments()
    made = op(*map(any_library.make, args))
    assert any_library.is_ours(made)
    expected = example.value(*(x.astype("float64") for x in args))
    made = any_library.to_numpy(made)
    assert made.dtype == "float32"
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=2e-6 * shape[-1])


@pytest.mark.usefixtures("nvrtc")
def test_the_kernels_compile(page):
    """For a GPU that need not be there."""
    image, names = compiler.compile_source("rows", page.KERNELS, list(page.kernels), {}, "sm_90")
    assert image.startswith(b"\x7fELF")
    assert len(names) == len(OWN)
    assert [*page.kernels] == OWN


def test_what_does_not_fit_is_named(op, example):
    args = example.arguments()
    with pytest.raises(ValueError, match=rf"^{op.name}: "):
        op(*args[:-1], np.ones((), "float32"))
    with pytest.raises(TypeError, match=r"::\w+: [xg] is float64.*; accepted: float32"):  # as the kernel, everywhere
        op(*(x.astype("float64") for x in args))


def test_the_reference_has_the_gradients_that_it_says(example):
    args, g = example.arguments(), example.cotangent()
    expected = examples.slopes(lambda *args: float((example.value(*args) * g).sum()), args)
    for x, y in zip(example.gradient(g.astype("float64"), *(x.astype("float64") for x in args)), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)


# ---- torch ----


def test_torch_gradients(op, example, torch, of_torch):
    args, g, by = example.arguments(), example.cotangent(), example.arguments(seed=2)
    tensors, cotangent = [x.requires_grad_() for x in of_torch(args)], of_torch([g])[0].requires_grad_()
    first = torch.autograd.grad(
        op(*tensors), tensors, cotangent, create_graph=True, allow_unused=True, materialize_grads=True
    )
    close(first, example.gradient(g, *args))
    second = torch.autograd.grad(
        [x for x in first if x.requires_grad],
        [cotangent, *tensors],
        [x for x, y in zip(of_torch(by), first, strict=True) if y.requires_grad],
        allow_unused=True,
        materialize_grads=True,
    )
    close(second, example.second(g, args, by))


def test_torch_forward_mode(op, example, torch, of_torch):
    args, tangents, g = example.arguments(), example.arguments(seed=2), example.cotangent()
    _, tangent = torch.func.jvp(op, tuple(of_torch(args)), tuple(of_torch(tangents)))
    expected = sum((a * t).sum() for a, t in zip(example.gradient(g, *args), tangents, strict=True))
    np.testing.assert_allclose(float((tangent * of_torch([g])[0]).sum()), expected, rtol=1e-4, atol=1e-5)


def test_torch_vmap(op, example, torch, of_torch):
    for args, dims in batches(example):
        close(torch.vmap(op, in_dims=tuple(dims))(*of_torch(args)), mapped(example, args, dims))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(op, name, example, torch, of_torch, backend):
    args, g = example.arguments(), example.cotangent()
    compiled = Compiled(torch, lambda *args: op(*args) * 2, backend=backend)
    tensors = [x.requires_grad_() for x in of_torch(args)]
    made = compiled(*tensors)
    close(made, 2 * example.value(*args))
    by = torch.autograd.grad(made, tensors, of_torch([g])[0], allow_unused=True, materialize_grads=True)
    close(by, example.gradient(2 * g, *args))
    assert (compiled.graphs, compiled.breaks) == (1, [])
    assert f"tests_examples.{name}.default" in compiled.operators


@pytest.mark.parametrize("needs_grad", [False, True])
def test_torch_opcheck(op, name, example, torch, of_torch, needs_grad):
    tensors = [x.requires_grad_(needs_grad) for x in of_torch(example.arguments())]
    op(*tensors)  # which makes torch's operator
    found = torch.library.opcheck(getattr(torch.ops.tests_examples, name).default, tuple(tensors))
    assert len(found) >= 4
    assert set(found.values()) == {"SUCCESS"}


def test_torch_export(op, name, example, torch, of_torch):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return op(*args) * 2

    args = example.arguments()
    program = torch.export.export(Model(), tuple(of_torch(args)))
    assert f"tests_examples.{name}.default" in {str(node.target) for node in program.graph.nodes}
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    close(torch.export.load(file).module()(*of_torch(args)), 2 * example.value(*args))


# ---- JAX ----


@needs_handlers
def test_jax_jit_is_one_program(op, name, example, jax, of_jax):
    """Of a call of the function for the place alone: the other half is in no program."""
    args = of_jax(example.arguments())
    close(jax.jit(op)(*args), example.value(*example.arguments()))
    text = jax.jit(op).lower(*args).compile().as_text()
    assert "callback" not in text
    assert "conditional" not in text
    is_expression = name == "scale_bias_relu" and args[0].device.platform == "cpu"
    assert text.count('custom_call_target="interop_function') == (0 if is_expression else 1)


@needs_handlers
@pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")
def test_jax_programs_for_a_gpu_call_the_kernel(op, name, example, host_jax):
    """On every machine: the kernel is compiled where the program is loaded."""
    traced = host_jax.jit(op).trace(*map(host_jax.numpy.asarray, example.arguments()))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(r'function = "(\w+)-', text) == [name]
    assert "launch = dense<[6, 1, 1, 256, " in text  # a block for each row


@needs_handlers
@pytest.mark.parametrize("is_jitted", [False, True])
def test_jax_gradients(op, example, jax, of_jax, is_jitted):
    args, g, by = example.arguments(), example.cotangent(), example.arguments(seed=2)

    def first(g, *args):
        return jax.vjp(op, *args)[1](g)

    def total(g, *args):
        return sum((a * b).sum() for a, b in zip(first(g, *args), of_jax(by), strict=True))

    second = jax.grad(total, argnums=tuple(range(len(args) + 1)))
    if is_jitted:
        first, second = jax.jit(first), jax.jit(second)
    close(first(*of_jax([g, *args])), example.gradient(g, *args))
    close(second(*of_jax([g, *args])), example.second(g, args, by))


@needs_handlers
def test_jax_forward_mode_and_hessian(op, example, jax, of_jax):
    args, tangents, g = example.arguments(), example.arguments(seed=2), example.cotangent()
    (cotangent,) = of_jax([g])
    _, tangent = jax.jvp(op, of_jax(args), of_jax(tangents))
    expected = sum((a * t).sum() for a, t in zip(example.gradient(g, *args), tangents, strict=True))
    np.testing.assert_allclose(float((tangent * cotangent).sum()), expected, rtol=1e-4, atol=1e-5)
    hessian = jax.hessian(lambda *args: (op(*args) * cotangent).sum(), argnums=tuple(range(len(args))))(*of_jax(args))
    for k, by in enumerate(tangents):  # times a vector it is the second derivative by that argument
        zeros = [by if k == place else np.zeros_like(x) for place, x in enumerate(args)]
        expected = example.second(g, args, zeros)[1:]
        for row, y in zip(hessian[k], expected, strict=True):
            np.testing.assert_allclose(np.tensordot(by, np.asarray(row), by.ndim), y, rtol=1e-4, atol=1e-5)


@needs_handlers
def test_jax_vmap(op, example, jax, of_jax):
    for args, dims in batches(example):
        expected = mapped(example, args, dims)
        f = jax.vmap(op, in_axes=tuple(dims))
        close(f(*of_jax(args)), expected)
        close(jax.jit(f)(*of_jax(args)), expected)


@needs_handlers
def test_jax_scan(op, example, jax, of_jax):
    args = example.arguments()
    many = [np.stack([x, -x, 2 * x]) for x in args]
    total, each = jax.lax.scan(lambda total, args: (total + op(*args).sum(), op(*args)), 0.0, tuple(of_jax(many)))
    expected = mapped(example, many, [0] * len(args))
    close(each, expected)
    np.testing.assert_allclose(float(total), expected.sum(), rtol=1e-4)


@needs_handlers
def test_jax_export(op, example, jax, of_jax, place):
    import interop.jax

    args = of_jax(example.arguments())
    checks = interop.jax.disabled_checks()
    exported = jax.export.export(jax.jit(op), platforms=[place], disabled_checks=checks)(*args)
    again = jax.export.deserialize(exported.serialize())
    close(again.call(*args), example.value(*example.arguments()))


# ---- Dask ----


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_dask(op, example, place):
    da, np_or_cupy = machine.need("dask"), np if place == "cpu" else machine.need("cupy")
    args = example.arguments()
    lazy = [
        da.from_array(np_or_cupy.asarray(x), chunks=(1, 2, 5)[: x.ndim] if x.ndim > 1 else 5, asarray=False)
        for x in args
    ]
    made = op(*lazy)
    assert type(made) is da.Array
    assert made.numblocks[:2] == (2, 2)
    computed = made.compute(scheduler="sync")
    assert type(computed) is np_or_cupy.ndarray
    close(computed if place == "cpu" else computed.get(), example.value(*args))
    if op.name.endswith("scale_bias_relu"):  # of which the columns may be cut, too
        lazy = [x.rechunk({x.ndim - 1: 2}) for x in lazy]
        made = op(*lazy)
        assert made.chunks[-1] == (2, 2, 1)
        computed = made.compute(scheduler="sync")
        close(computed if place == "cpu" else computed.get(), example.value(*args))


# ---- all of them in a step of training: what the device does ----


def kernels(device):
    """Return those of our kernels that are in a trace, by their names there, which may be mangled."""
    return {name for name in OWN if any(re.search(rf"(^|\s|_Z\d+){name}(\(|P|$)", event) for event in device)}


def test_our_kernels_are_known_by_their_names():
    device = ["softmax(float const*, float*, long long, long long)", "_Z7row_sumPKfPfxx", "spread", "softmax_warp()"]
    assert kernels(device) == {"softmax", "row_sum", "spread"}


@pytest.mark.gpu
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("options", [None, {"backend": "inductor"}], ids=["eager", "inductor"])
def test_a_step_in_torch_copies_nothing_to_or_from_the_host(page, torch, cuda_device, options):
    if not torch.cuda.is_available():
        machine.skip("torch+cuda", "this torch sees no GPU")
    torch._dynamo.reset()
    function = page.surprise if options is None else torch.compile(page.surprise, fullgraph=True, **options)
    x, s, b, chosen = (torch.from_numpy(y).cuda() for y in (page.x, page.s, page.b, page.chosen))
    layer = [y.requires_grad_() for y in (s, b)]

    def step():
        function(x, *layer, chosen).mean().backward()
        with torch.no_grad():
            for y in layer:
                y -= 0.3 * y.grad
                y.grad = None

    for _ in range(3):
        step()
    _, device = traced(torch, step, "cuda")
    assert kernels(device) == set(OWN)
    assert host_copies(device) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("nvrtc")
@needs_handlers
def test_a_jitted_step_in_jax_copies_nothing_to_or_from_the_host(page, torch, jax, cuda_device):
    if not torch.cuda.is_available():
        machine.skip("torch+cuda", "this torch sees no GPU")

    @jax.jit
    def step(x, s, b, chosen):
        by_s, by_b = jax.grad(lambda s, b: page.surprise(x, s, b, chosen).mean(), argnums=(0, 1))(s, b)
        return s - 0.3 * by_s, b - 0.3 * by_b

    with jax.default_device(jax.devices("cuda")[0]):
        x, s, b, chosen = (jax.numpy.asarray(y) for y in (page.x, page.s, page.b, page.chosen))
        for _ in range(3):
            s, b = jax.block_until_ready(step(x, s, b, chosen))
        _, device = traced(torch, lambda: jax.block_until_ready(step(x, s, b, chosen)), "cuda")
        assert kernels(device) == set(OWN)
        assert host_copies(device) == []
        made = jax.block_until_ready(2 * s)
        _, device = traced(torch, lambda: np.asarray(made), "cuda")  # a copy is seen, where there is one
        assert len(host_copies(device)) == 1
