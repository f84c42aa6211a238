"""`torch.ops.interop.matmul` as torch's other parts see it: fake tensors, traces, compilers, checkpoints, modes."""

from __future__ import annotations

import pytest
from helpers.torch_products import EPILOGUES, SHAPES, assert_close, needing_grad, product, tensors

import interop

torch = pytest.importorskip("torch")

from interop.torch._matmul import compute, record  # noqa: E402

OPERATORS = pytest.mark.parametrize("name", ["matmul", "matmul_with_aux"])


def theirs(*terms, **options):
    return product(torch, *terms, **options)


def ours(a, b, c=None, bias=None, **options):
    return torch.ops.interop.matmul(a, b, c, bias, **options)


def by_record(a, b, **options):
    return record(a, b, options)


# ---- torch's own checks of operators ----

KEYWORDS = [
    {},
    {"alpha": 2},
    {"alpha": 0.5, "beta": -2, "terms": True},
    {"terms": True, "epilogue": "relu"},
    {"epilogue": "gelu"},
    {"epilogue": "gelu_tanh"},
    {"dtype": torch.float64},
    {"precision": "tf32"},
    {"precision": "tf32x3"},
    {"autotune": False},
    {"autotune": True},
    {"alpha": 0, "beta": 0, "terms": True},
]
ON_A_GPU = [
    {"backend": "tiled"},
    {"backend": "cublas"},
    {"backend": "tiled", "precision": "tf32x3"},
    {"execution": "cuda"},
]
FLOAT8 = {"factor_a": 0.5, "factor_b": 2.0}


# Since torch 2.14 the checks themselves look at the gradients of results.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck_of_every_keyword(place, keywords, needs_grad):
    operands = tensors(torch, place, "float32", (2, 3, 4), (4, 5), (3, 5), (5,))
    operands = needing_grad(*operands) if needs_grad else operands
    options = {name: x for name, x in keywords.items() if name != "terms"}
    operands = operands if "terms" in keywords else operands[:2]
    torch.library.opcheck(torch.ops.interop.matmul.default, operands, options)
    if "epilogue" in keywords:
        torch.library.opcheck(torch.ops.interop.matmul_with_aux.default, operands, options)


@pytest.mark.parametrize("dtype", ["complex128", "float16", "int32", "bool"])
def test_opcheck_of_every_kind_of_dtype(place, dtype):
    operands = [x.to(getattr(torch, dtype)) for x in tensors(torch, place, "float32", (3, 4), (4, 5))]
    torch.library.opcheck(torch.ops.interop.matmul.default, operands)


@pytest.mark.parametrize("scale", [False, True])
def test_opcheck_of_float8(place, scale):
    a = torch.eye(16, device=place).to(torch.float8_e4m3fn)
    one = torch.ones((), device=place)
    torch.library.opcheck(
        torch.ops.interop.matmul.default,
        (a, a.mT, None, None, one, one) if scale else (a, a.mT),
        {} if scale else FLOAT8,
        test_utils=("test_autograd_registration", "test_faketensor"),  # the others do arithmetic in float8
    )


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", ON_A_GPU, ids=str)
def test_opcheck_of_the_kernels(cuda_device, keywords):
    operands = needing_grad(*tensors(torch, "cuda", "float32", (32, 32), (32, 32)))
    torch.library.opcheck(torch.ops.interop.matmul.default, operands, keywords)


@pytest.mark.gpu
def test_opcheck_on_a_stream(cuda_device):
    """Without gradients, which go where the current stream is."""
    operands = tensors(torch, "cuda", "float32", (32, 32), (32, 32))
    stream = torch.cuda.current_stream().cuda_stream
    torch.library.opcheck(torch.ops.interop.matmul.default, operands, {"stream": stream})


def test_every_keyword_is_in_an_opcheck():
    checked = {name for keywords in (*KEYWORDS, *ON_A_GPU, FLOAT8) for name in keywords} - {"terms"} | {"stream"}
    arguments = torch.ops.interop.matmul.default._schema.arguments
    assert {x.name for x in arguments if x.kwarg_only} == checked


# ---- fake tensors ----


def in_fake_mode(function, *tensors):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return function(*(mode.from_tensor(x) for x in tensors))


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
def test_fake_tensors_have_the_shape_and_layout_of_real_ones(place, dtype, a_shape, b_shape):
    a, b = tensors(torch, place, dtype, a_shape, b_shape)
    found, real = in_fake_mode(ours, a, b), ours(a, b)
    assert type(found).__name__ == "FakeTensor"
    assert (found.shape, found.stride(), found.dtype, found.device) == (
        real.shape,
        real.stride(),
        real.dtype,
        real.device,
    )


WRONG = [
    (((3, 4), (5, 6)), {}),
    (((2, 3, 4), (3, 4, 5)), {}),
    (((), (4, 5)), {}),
    (((3, 4), (4, 5), (7,)), {}),
    (((3, 4), (4, 5), None, (3, 5)), {}),
    (((3, 4), (4, 5)), {"alpha": 1j}),
    (((3, 4), (4, 5)), {"beta": 2}),
    (((3, 4), (4, 5)), {"epilogue": "x"}),
    (((3, 4), (4, 5)), {"precision": "x"}),
    (((3, 4), (4, 5)), {"backend": "x"}),
    (((3, 4), (4, 5)), {"factor_a": 2}),
    (((3, 4), (4, 5)), {"dtype": torch.int8}),
]


@pytest.mark.parametrize(("shapes", "options"), WRONG, ids=str)
def test_errors_of_fake_tensors_are_those_of_real_ones(shapes, options):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def call():
        return ours(*(None if shape is None else torch.ones(shape) for shape in shapes), **options)

    with pytest.raises((TypeError, ValueError), match=r"^interop\.matmul: ") as real:
        call()
    with FakeTensorMode(), pytest.raises(real.type) as fake:
        call()
    assert str(fake.value) == str(real.value)


def test_operands_on_two_devices_are_refused_by_shape_too(cuda_device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ValueError, match="interop.matmul: a is on cpu and b is on cuda"):
        ours(torch.ones(3, 4), torch.ones(4, 5, device="cuda"))


def test_shapes_may_be_symbols(place):
    """One graph serves every size, and sizes that do not fit are named."""
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b, c = tensors(torch, place, "float32", (2, 3, 4), (4, 5), (3, 5))
    graph = make_fx(lambda a, b, c: ours(a, b, c, epilogue="relu"), tracing_mode="symbolic")(a, b, c)
    assert "interop.matmul" in graph.code
    other = tensors(torch, place, "float32", (7, 6, 8), (8, 9), (6, 9))
    assert_close(torch, graph(*other), theirs(*other, epilogue="relu"))
    with pytest.raises(ValueError, match=r"interop\.matmul: .*inner dimensions 4 and 6 differ"):
        make_fx(lambda a, b: ours(a, b), tracing_mode="symbolic")(a, torch.ones(6, 5, device=place))
    with pytest.raises(ValueError, match=r"interop\.matmul: c has shape"):
        make_fx(lambda a, b, c: ours(a, b, c), tracing_mode="symbolic")(a, b, torch.ones(11, device=place))


# ---- traces ----


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_product_and_its_two_gradients(place, tracing_mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(a, b):
        y = ours(a, b, alpha=2, precision="tf32")
        return torch.autograd.grad(y.sin().sum(), (a, b))

    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    graph = make_fx(step, tracing_mode=tracing_mode)(a, b)
    calls = [node for node in graph.graph.nodes if node.target is torch.ops.interop.matmul.default]
    assert len(calls) == 3
    assert all(node.kwargs.get("precision") == "tf32" and node.kwargs.get("alpha") == 2 for node in calls)
    assert not any(".mm" in str(node.target) for node in graph.graph.nodes)
    expected = torch.autograd.grad((2 * (a @ b)).sin().sum(), (a, b))
    assert_close(torch, list(graph(a, b)), list(expected))


def counting_graphs():
    """A compiler that runs each graph as it is, and counts them."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_compiled_with_and_without_gradients(place, dynamic, epilogue):
    count = counting_graphs()

    @torch.compile(backend=count, fullgraph=True, dynamic=dynamic)
    def function(a, b, bias):
        return torch.ops.interop.matmul(a, b, None, bias, epilogue=epilogue) * 2

    for rows in (3, 7) if dynamic else (3,):
        leaves = needing_grad(*tensors(torch, place, "float32", (rows, 4), (4, 5), (5,)))
        with torch.no_grad():
            assert_close(torch, function(*leaves), theirs(leaves[0], leaves[1], None, leaves[2], epilogue=epilogue) * 2)
        y = function(*leaves)
        expected = theirs(leaves[0], leaves[1], None, leaves[2], epilogue=epilogue) * 2
        assert_close(torch, y, expected)
        assert_close(
            torch,
            torch.autograd.grad(y.sin().sum(), leaves),
            torch.autograd.grad(expected.sin().sum(), leaves),
        )
    assert count.frame_count <= 2  # with gradients, and without


def test_ten_integers_as_factors_make_two_graphs_at_most(place):
    count = counting_graphs()

    @torch.compile(backend=count, fullgraph=True)
    def function(a, b, alpha):
        return torch.ops.interop.matmul(a, b, alpha=alpha)

    a, b = tensors(torch, place, "float32", (3, 4), (4, 5))
    for alpha in range(2, 12):
        assert_close(torch, function(a, b, alpha), alpha * (a @ b))
    assert count.frame_count <= 2


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_a_symbolic_batch(place, strict):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(tensors(torch, place, "float32", (4, 5))[0])

        def forward(self, x):
            return torch.ops.interop.matmul(x, self.weight, epilogue="relu")

    layer = Layer()
    (x,) = tensors(torch, place, "float32", (3, 4), seed=1)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=strict)
    (other,) = tensors(torch, place, "float32", (11, 4), seed=2)
    assert_close(torch, program.module()(other), theirs(other, layer.weight, epilogue="relu"))
    assert any("interop.matmul" in str(node.target) for node in program.graph.nodes)


# torch's compiled autograd makes the leaves of its graph into what is none, and looks at their gradients.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("multiply", [by_record, ours])
def test_a_recorded_backward_pass_can_be_compiled(place, multiply, epilogue):
    """By torch's compiled autograd: one graph, with our products in it."""
    from torch._dynamo import compiled_autograd

    count = counting_graphs()
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    expected = torch.autograd.grad(theirs(a, b, epilogue=epilogue).sin().sum(), (a, b))
    with compiled_autograd._enable(torch.compile(backend=count, fullgraph=True)):
        multiply(a, b, epilogue=epilogue).sin().sum().backward()
    assert_close(torch, [a.grad, b.grad], list(expected))
    (graph,) = count.graphs
    assert sum("interop.matmul" in str(node.target) for node in graph.graph.nodes) == 2


# ---- modes, checkpoints, autocast ----


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(place, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    y = checkpoint(lambda a, b: ours(a, b, epilogue="gelu"), a, b, use_reentrant=use_reentrant)
    expected = theirs(a, b, epilogue="gelu")
    y.sum().backward()
    assert_close(torch, [a.grad, b.grad], list(torch.autograd.grad(expected.sum(), (a, b))))


def test_a_selective_checkpoint_can_keep_the_product(place):
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    seen = []

    def policy(context, operator, *args, **kwargs):
        seen.append((operator, context.is_recompute))
        keeps = operator is torch.ops.interop.matmul.default
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    y = checkpoint(
        lambda a, b: ours(a, b).sin(),
        a,
        b,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    assert (torch.ops.interop.matmul.default, False) in seen
    assert_close(torch, torch.autograd.grad(y.sum(), (a, b)), torch.autograd.grad((a @ b).sin().sum(), (a, b)))


def test_products_are_counted_as_torchs_are(place):
    from torch.utils.flop_counter import FlopCounterMode

    def count(multiply):
        a, b = needing_grad(*tensors(torch, place, "float32", (2, 3, 4), (4, 5)))
        with FlopCounterMode(display=False) as mode:
            multiply(a, b).sum().backward()
        return mode.get_total_flops()

    assert count(ours) == count(torch.matmul) == 3 * 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_autocast_does_not_change_products(place, dtype):
    a, b = needing_grad(*tensors(torch, place, dtype, (3, 4), (4, 5)))
    (plain,) = [torch.autograd.grad(ours(a, b).sum(), (a, b))]
    with torch.autocast(place, dtype=torch.bfloat16):
        y = ours(a, b)
        assert y.dtype == a.dtype
        assert torch.equal(y, ours(a.detach(), b.detach()))
        found = torch.autograd.grad(y.sum(dtype=y.dtype), (a, b))
    assert all(torch.equal(x, other) for x, other in zip(found, plain, strict=True))


def test_inference_mode(place):
    a, b = needing_grad(*tensors(torch, place, "float32", (3, 4), (4, 5)))
    with torch.inference_mode():
        y = ours(a, b)
        assert y.is_inference()
        assert_close(torch, y, a @ b)


def test_a_subclass_without_rules_stays_one(place):
    class Marked(torch.Tensor):
        pass

    a, b = tensors(torch, place, "float32", (3, 4), (4, 5))
    y = ours(a.as_subclass(Marked), b)
    assert type(y) is Marked
    assert_close(torch, y.as_subclass(torch.Tensor), a @ b)


def test_lazily_conjugated_views_are_not_copied(place):
    """The dispatcher's way out for operators that do not know the bit would be a copy of the operand."""
    a, b = tensors(torch, place, "complex128", (3, 4), (3, 5))
    seen = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    view = a.mH
    with Seen():
        y = ours(view, b)
    assert seen == ["interop.matmul.default"]
    assert_close(torch, y, a.mH @ b)


@pytest.mark.parametrize("names", [("out",), ("aux",), ("out", "aux")], ids=str)
def test_arrays_to_write_to_without_gradients(place, names):
    a, b = tensors(torch, place, "float32", (3, 4), (4, 5))
    written = {name: torch.empty(3, 5, device=place) for name in names}
    y = compute(a, b, {"epilogue": "relu", **written})
    assert_close(torch, y, theirs(a, b, epilogue="relu"))
    if "out" in written:
        assert y is written["out"]
    if "aux" in written:
        assert_close(torch, written["aux"], a @ b)
    for wrong, error, message in (
        (torch.empty(5, 3, device=place), ValueError, r"has shape \(5, 3\); accepted: the result's shape, \(3, 5\)"),
        (torch.empty(3, 5, device=place, dtype=torch.float64), TypeError, "is float64; accepted: the result's dtype"),
    ):
        with pytest.raises(error, match=rf"interop\.matmul: {names[0]} {message}"):
            compute(a, b, {"epilogue": "relu", names[0]: wrong})
    with pytest.raises(ValueError, match="aux is given, and there is no epilogue"):
        compute(a, b, {"aux": torch.empty(3, 5, device=place)})


@pytest.mark.gpu
def test_no_host_copy_and_no_wait_in_training(cuda_device):
    """Forward and backward are capturable, which any synchronisation or host copy would forbid."""
    a, b, bias = needing_grad(*tensors(torch, "cuda", "float32", (64, 32), (32, 48), (48,)))

    def step():
        y = ours(a, b, None, bias, epilogue="gelu")
        return torch.autograd.grad(y.square().sum(), (a, b, bias))

    side = torch.cuda.Stream()
    torch.cuda.synchronize()  # a, b and bias are made on another stream
    with torch.cuda.stream(side):
        expected = step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert_close(torch, found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_of_a_recorded_product_are_those_of_a_plain_one(cuda_device, dtype, epilogue):
    a, b = needing_grad(*tensors(torch, "cuda", dtype, (256, 192), (192, 320)))
    with torch.no_grad():
        plain = interop.matmul(a, b, epilogue=epilogue)
    assert torch.equal(ours(a, b, epilogue=epilogue), plain)
    assert torch.equal(interop.matmul(a, b, epilogue=epilogue), plain)


def test_a_stack_and_a_weight_are_one_product_for_the_weights_gradient(place):
    """The sum over the stack is part of the product, where the memory allows it: one call in the trace, no sum."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(a, b, weight):
        return torch.autograd.grad(ours(a, b), (a, b), weight)

    a, b = needing_grad(*tensors(torch, place, "float32", (2, 3, 4), (4, 5)))
    (weight,) = tensors(torch, place, "float32", (2, 3, 5))
    names = [str(node.target) for node in make_fx(step)(a, b, weight).graph.nodes]
    assert not any("sum" in name for name in names)
    for stack in (a, a.detach().mT.contiguous().mT.requires_grad_()):
        found, expected = (torch.autograd.grad(f(stack, b), (stack, b), weight) for f in (ours, torch.matmul))
        assert_close(torch, found, expected)
