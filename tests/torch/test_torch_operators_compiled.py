"""Operators of `interop.operator` as torch's: by their names, under its compiler, in its export."""

from __future__ import annotations

import io

import pytest
from helpers import alone, operators
from helpers.compiled import Compiled

import interop

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import interop.torch  # noqa: E402 (for the operators)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

BY = 2.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("operators")


@pytest.fixture
def ops(place, folder):
    return operators.defined(place, folder, f"compiled_{place}")


def arrays(place, *shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(place) for shape in shapes]


def trained(function, x, w):
    x, w = (y.clone().requires_grad_() for y in (x, w))
    function(x, w).backward()
    return x.grad, w.grad


# ---- by name ----


@pytest.mark.parametrize("name", ["row_dot", "softmax", "times", "parts"])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck(ops, place, name, needs_grad):
    x, w = (y.requires_grad_(needs_grad) for y in arrays(place, (3, 4), (4,)))
    args = {"row_dot": (x, w), "times": (x, BY)}.get(name, (x,))
    found = torch.library.opcheck(getattr(getattr(torch.ops, f"compiled_{place}"), name).default, args)
    assert len(found) >= 4
    assert set(found.values()) == {"SUCCESS"}


def test_the_schema_is_that_of_the_signature(ops, place):
    package = getattr(torch.ops, f"compiled_{place}")
    schemas = [str(getattr(package, name).default._schema).partition("::")[2] for name in ("row_dot", "times", "parts")]
    assert schemas == [
        "row_dot(Tensor x, Tensor w, *, str? traced_in=None) -> Tensor",
        "times(Tensor x, Scalar by, *, str? traced_in=None) -> Tensor",
        "parts(Tensor x, *, str? traced_in=None) -> (Tensor, Tensor)",
    ]


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="torch has no such tag")
def test_a_c_function_without_a_stream_is_in_no_cuda_graph(ops, place):
    """Torch would take it into one, which the call refuses."""
    overload = getattr(torch.ops, ops["row_dot"].name.partition("::")[0]).row_dot.default
    assert (torch.Tag.cudagraph_unsafe in overload.tags) == (place == "cpu")


def test_the_operator_makes_arrays_compact(ops, place):
    """That of torch is called inside transforms; a call of the operator itself refuses, as one of its kernel does."""
    x, w = arrays(place, (4, 3), (4,))
    package = getattr(torch.ops, f"compiled_{place}")
    torch.testing.assert_close(package.row_dot(x.mT, w), x.mT @ w)
    torch.testing.assert_close(package.softmax(x[:1].expand(3, 3)), x[:1].expand(3, 3).softmax(-1))
    with pytest.raises(ValueError, match="x"):
        ops["row_dot"](x.mT, w)
    with pytest.raises(ValueError, match="x"):
        ops["row_dot"](x.mT.requires_grad_(), w)


def test_results_have_memory_of_their_own(place):
    """As torch's operators have it, whatever a Python function returns."""
    same = interop.operator(f"compiled_{place}::same", lambda x: x, "x[n] -> [n]")
    both = interop.operator(f"compiled_{place}::both", lambda x: (y := interop.add(x, x), y), "x[n] -> [n], [n]")
    (x,) = arrays(place, (4,))
    for op in (same, both):
        torch.library.opcheck(getattr(torch.ops, f"compiled_{place}").__getattr__(op.__name__).default, (x,))
    made = torch.vmap(same)(x[:, None])
    assert made.data_ptr() != x.data_ptr()


def test_conjugates_are_resolved(place):
    double = interop.operator(f"compiled_{place}::double", interop.elementwise("x + x"), "x[n] -> [n]")
    x = torch.tensor([1 + 2j, 3 - 1j], device=place)
    assert torch.vmap(double)(x[None].conj()).tolist() == [[2 - 4j, 6 + 2j]]
    assert torch.vmap(double)(x[None].conj().imag).tolist() == [[-4, 2]]


# ---- compiled ----


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_training_step_is_one_graph(ops, place, backend):
    def loss(x, w):
        return ops["row_dot"](ops["softmax"](x), w=w).square().sum()

    x, w = arrays(place, (3, 4), (4,))
    compiled = Compiled(torch, loss, backend=backend)
    expected = trained(lambda x, w: (x.softmax(-1) @ w).square().sum(), x, w)
    torch.testing.assert_close(trained(compiled, x, w), expected)
    assert (compiled.graphs, compiled.breaks) == (1, [])
    assert {f"compiled_{place}.row_dot.default", f"compiled_{place}.softmax.default"} <= compiled.operators


def test_sizes_may_change(ops, place):
    compiled = Compiled(torch, lambda x, w: ops["row_dot"](ops["softmax"](x), w) * 2)
    for rows, columns in ((3, 4), (5, 7), (2, 9), (6, 5)):
        x, w = arrays(place, (rows, columns), (columns,))
        torch.testing.assert_close(compiled(x, w), x.softmax(-1) @ w * 2)
    assert (compiled.graphs, compiled.breaks) == (2, [])  # the second is for any size


def test_integers_may_change_and_be_sizes(ops, place):
    compiled = Compiled(torch, lambda x, by: ops["times"](x, by) + ops["times"](x, x.shape[0]))
    for by in range(2, 7):
        (x,) = arrays(place, (by + 1, 4))
        torch.testing.assert_close(compiled(x, by), x * by + x * (by + 1))
    assert (compiled.graphs, compiled.breaks) == (2, [])


def test_sizes_that_depend_on_data(place):
    name, expression = f"compiled_{place}::product", interop.elementwise("x * y")
    op = interop.operator(name, expression, "x[..., n], y[..., n] -> [..., n]")
    (x,) = arrays(place, (4, 3))
    masks = [torch.tensor(mask, device=place) for mask in ([True, False, True, True], [True, True, False, True])]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = Compiled(torch, lambda x, a, b: op(x[a], x[b]))
        torch.testing.assert_close(compiled(x, *masks), x[masks[0]] * x[masks[1]])
        with pytest.raises(Exception, match="(?i)u\\d|runtime assertion|not equal"):
            compiled(x, masks[0], masks[0] & masks[1])
    assert (compiled.graphs, compiled.breaks) == (1, [])


def test_a_float_is_a_constant_of_the_graph(ops, place):
    compiled = Compiled(torch, lambda x: ops["times"](x, BY))
    (x,) = arrays(place, (3, 4))
    torch.testing.assert_close(compiled(x), x * BY)
    assert (compiled.graphs, compiled.breaks) == (1, [])


def test_several_results(ops, place):
    (x,) = arrays(place, (3, 4))
    compiled = Compiled(torch, lambda x: ops["parts"](x))
    torch.testing.assert_close(compiled(x), ops["parts"](x))
    torch.testing.assert_close(
        trained(lambda x, w: (compiled(x)[0] * w).sum(), x, x), trained(lambda x, w: ((x - x.floor()) * w).sum(), x, x)
    )


def test_transforms_are_compiled(ops, place):
    x, w = arrays(place, (3, 5, 4), (4,))
    for transform in (
        torch.func.vmap,
        lambda f, dims: torch.func.vmap(torch.func.grad(lambda *x: f(*x).sum(), 1), dims),
    ):
        compiled = Compiled(torch, transform(ops["row_dot"], (1, None)))
        torch.testing.assert_close(compiled(x, w), transform(torch.matmul, (1, None))(x, w))
        assert compiled.breaks == []


def test_arrays_of_numpy_are_compiled(folder):
    ops = operators.defined("cpu", folder, "compiled_cpu")
    x, w = (y.numpy() for y in arrays("cpu", (3, 4), (4,)))
    made = Compiled(torch, lambda x, w: ops["row_dot"](x, w))(x, w)
    assert type(made) is type(x)
    torch.testing.assert_close(made, ops["row_dot"](x, w))
    low, high = Compiled(torch, lambda x: ops["parts"](x))(x)
    torch.testing.assert_close(low + high, x)


def test_an_operator_of_a_python_function(ops, place):
    """Its kernels run eagerly in the graph: torch's compiler does not look into it."""

    def call(x, w):
        return interop.multiply(ops["row_dot"](ops["softmax"](x), w), 2.0)

    op = interop.operator(
        f"compiled_{place}::rows", call, "x[..., n], w[n] -> [...]", gradient=lambda g, x, w, y: (None, None)
    )
    x, w = arrays(place, (3, 4), (4,))
    compiled = Compiled(torch, op)
    torch.testing.assert_close(compiled(x, w), x.softmax(-1) @ w * 2)
    assert compiled.operators == {f"compiled_{place}.rows.default"}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own first graph
def test_in_cuda_graphs(cuda_device, folder):
    ops = operators.defined("cuda", folder, "compiled_cuda")

    def call(x, w):
        return ops["row_dot"](ops["times"](ops["softmax"](x), BY), w)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        x, w = (y + seed for y in arrays("cuda", (3, 4), (4,)))
        torch.testing.assert_close(compiled(x, w), x.softmax(-1) * BY @ w)
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


# ---- without memory, and exported ----


def test_fake_tensors_and_traces(ops, place):
    x, w = arrays(place, (3, 4), (4,))
    with FakeTensorMode() as mode:
        made = ops["row_dot"](mode.from_tensor(x), mode.from_tensor(w))
        low, high = ops["parts"](mode.from_tensor(x))
    assert (made.shape, made.dtype, made.device.type) == ((3,), torch.float64, place)
    assert (low.dtype, high.dtype) == (torch.float64, torch.int64)
    graph = make_fx(lambda x, w: ops["row_dot"](x, w), tracing_mode="symbolic")(x, w)
    assert f"compiled_{place}.row_dot.default" in {str(node.target) for node in graph.graph.nodes}
    (bigger,) = arrays(place, (5, 4))
    torch.testing.assert_close(graph(bigger, w), bigger @ w)


@pytest.mark.parametrize("strict", [False, True])
def test_export(ops, place, strict):
    class Rows(torch.nn.Module):
        def forward(self, x, w):
            return ops["row_dot"](ops["times"](x, BY), w)

    x, w = arrays(place, (3, 4), (4,))
    shapes = {"x": {0: torch.export.Dim("rows")}, "w": None}
    program = torch.export.export(Rows(), (x, w), dynamic_shapes=shapes, strict=strict)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    module = torch.export.load(saved).module()
    (bigger,) = arrays(place, (7, 4))
    torch.testing.assert_close(module(bigger, w), bigger * BY @ w)


_DEFINITION = """
twice = interop.operator("exported::twice", interop.elementwise("2 * x"), "x[..., n] -> [..., n]")
"""


@pytest.mark.parametrize("order", ["import interop.torch\n{}", "{}\nimport interop.torch"])
def test_an_exported_program_is_loaded_by_another_process(tmp_path, order):
    saved = tmp_path / "saved.pt2"
    alone.run(
        f"""
        import sys, torch
        {_DEFINITION.strip()}
        assert "interop.torch" not in sys.modules  # nothing is defined for torch before it is needed

        class Twice(torch.nn.Module):
            def forward(self, x):
                return twice(x)

        torch.export.save(torch.export.export(Twice(), (torch.ones(2, 3),)), {str(saved)!r})
        """,
        tmp_path,
    )
    alone.run(
        order.format(_DEFINITION.strip())
        + f"\nimport torch\nassert (torch.export.load({str(saved)!r}).module()(torch.ones(2, 3)) == 2).all()",
        tmp_path,
    )


def test_a_program_without_torch_loads_none(tmp_path):
    used = "assert twice(np.ones((2, 3))).sum() == 12\nassert 'torch' not in sys.modules"
    alone.run(f"import sys\n{_DEFINITION.strip()}\n{used}", tmp_path, silent=True)


# ---- defined again ----


def test_a_gradient_that_was_changed_is_not_one_that_torch_has_kept(tmp_path):
    """Torch keeps compiled graphs on disk, the backward ones by what is in the forward ones."""
    code = """
        import torch

        def factor():
            return {factor}

        def gradient(g, x, y):
            return g * x * factor()

        expression = interop.elementwise("x * x")
        square = interop.operator("kept::square", expression, "x[..., n] -> [..., n]", gradient=gradient)
        x = torch.ones(4, 5, requires_grad=True)
        torch.compile(lambda x: square(x).sum(), fullgraph=True)(x).backward()
        print(x.grad[0, 0].item())
    """
    for number in (2.0, 3.0):
        made = alone.run(code.format(factor=number), tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "kept"))
        assert made.split() == [str(number)]


def test_a_definition_takes_the_place_of_another(place):
    (x,) = arrays(place, (3, 4))
    name = f"compiled_{place}::again"

    def define(text, signature="x[..., n] -> [..., n]", **options):
        return interop.operator(name, interop.elementwise(text), signature, **options)

    twice = define("2 * x")
    compiled = Compiled(torch, lambda x: twice(x))
    torch.testing.assert_close(compiled(x), 2 * x)
    assert torch.vmap(define("2 * x"))(x).equal(2 * x)  # the same: it is that one
    thrice = define("3 * x + y", "x[..., n], y[n] -> [..., n]", gradient=lambda g, x, y, z: (g * 3.0, None))
    torch.testing.assert_close(torch.vmap(thrice, (0, None))(x, x[0]), 3 * x + x[0])
    compiled = Compiled(torch, lambda x: thrice(x, x[0]))
    torch.testing.assert_close(compiled(x), 3 * x + x[0])
    torch.testing.assert_close(twice(x), 2 * x)
    with pytest.raises(ValueError, match="::again: it has been defined again, of other content"):
        torch.vmap(twice)(x)


def test_a_name_that_torch_has_is_refused():
    library = torch.library.Library("taken", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match="taken::op: torch has an operator of this name"):
        interop.operator("taken::op", interop.elementwise("2 * x"), "x[n] -> [n]")
    library._destroy()
    interop.operator("taken::op", interop.elementwise("2 * x"), "x[n] -> [n]")
    assert torch.ops.taken.op(torch.ones(2)).tolist() == [2, 2]
