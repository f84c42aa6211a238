"""Kernels of users' own and C functions under torch's compiler, its export and its modes."""

from __future__ import annotations

import functools
import gc
import pickle

import numpy as np
import pytest
from helpers import c_functions, kernels
from helpers.compiled import Compiled

import interop
from interop._functions.identity import identities

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import interop.torch  # noqa: E402 (for the operator)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SOURCE = """
void sum(const float* a, const float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
void split(const double* x, double* low, double* high, int n) {
  for (int i = 0; i < n; ++i) { high[i] = (int)x[i]; low[i] = x[i] - high[i]; }
}
void scale(double* x, double by, int n) { for (int i = 0; i < n; ++i) x[i] *= by; }
void shift(const double* x, double* y, unsigned long long by, int n) { for (int i = 0; i < n; ++i) y[i] = x[i] + by; }
double total(const double* x, int n) { double s = 0; for (int i = 0; i < n; ++i) s += x[i]; return s; }
int touch(const double* x, int n) { return 0; }
"""
DECLARATIONS = """
void sum(const float* a, const float* b, float* c, int n);
void split(const double* x, double* low, double* high, int n);
void scale(double* x, double by, int n);
void shift(const double* x, double* y, unsigned long long by, int n);
double total(const double* x, int n);
cudaError_t touch(const double* x, int n);
"""


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    path = c_functions.build(SOURCE, tmp_path_factory.mktemp("traced") / "libtraced.so")
    return interop.load(path, DECLARATIONS, memory="host")


def assert_compiles(function, *args, **options):
    compiled = Compiled(torch, function, **options)
    found, expected = compiled(*args), function(*args)
    assert type(found) is type(expected)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    assert (compiled.graphs, compiled.breaks) == (1, [])
    return compiled


A, B = torch.arange(5.0), torch.full((5,), 10.0)
LEAF = torch.ones(5, requires_grad=True)
X = torch.tensor([1.25, 2.5, -3.75], dtype=torch.float64)


# ---- compiled ----


def test_a_function_that_makes_its_result(lib):
    add = lib.sum.returning(c="a")
    compiled = assert_compiles(lambda a, b: add(a, b, 5) * 2, A, B)
    assert "interop.call" in compiled.operators
    assert_compiles(lambda a, b: add(a, n=5, b=b), A, B)
    assert_compiles(lambda a, b: add(a, b, 5, c=torch.empty(5)), A, B)
    assert_compiles(add, A, B, 5)
    assert_compiles(functools.partial(add, n=5), A, B)


def test_inductor_runs_it_in_its_place(lib):
    def call(x):
        y = x + 1
        lib.scale(y, 3.0, y.numel())
        lib.scale(y, 0.5, y.numel())
        return y - x

    compiled = Compiled(torch, call, backend="inductor")
    torch.testing.assert_close(compiled(X), call(X))
    assert (compiled.graphs, compiled.breaks) == (1, [])


def test_shape_rules_that_are_functions(lib):
    add = lib.sum.returning(c=lambda a, b, n: (n,))
    compiled = Compiled(torch, lambda a: add(a, a, a.numel()))
    for n in (5, 7, 9, 11):
        assert compiled(torch.ones(n)).tolist() == [2] * n
    assert (compiled.graphs, compiled.breaks) == (2, [])  # the second is for any size


def test_results_are_a_tuple_of_new_arrays_and_those_that_are_given(lib):
    split = lib.split.returning(low="x", high="x")
    assert_compiles(lambda x: torch.cat(split(x, 3)), X)
    out = torch.empty(3, dtype=torch.float64)
    low, high = Compiled(torch, lambda x, out: split(x, 3, high=out))(X, out)
    assert high is out
    torch.testing.assert_close(low + high, X)


def test_arguments_that_are_written_to_are_known(lib):
    scale = lib.scale

    def call(x):
        before = x + 1
        scale(x, 2.0, x.numel())
        return before + x  # the second one is what has been written

    compiled, x = Compiled(torch, call), X.clone()
    torch.testing.assert_close(compiled(x), X + 1 + 2 * X)
    torch.testing.assert_close(x, 2 * X)
    assert (compiled.graphs, compiled.breaks) == (1, [])


def test_ten_numbers_need_two_graphs(lib):
    compiled = Compiled(torch, lambda x, by: lib.scale(x, by, x.numel()))
    for i in range(10):
        x = X.clone()
        compiled(x, 0.5 + i)
        torch.testing.assert_close(x, (0.5 + i) * X)
    assert (compiled.graphs, compiled.breaks) == (2, [])


def test_arrays_of_numpy(lib):
    add = lib.sum.returning(c="a")
    a, out = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    assert_compiles(lambda a: add(a, a, 5), a)
    assert Compiled(torch, lambda a, out: add(a, a, 5, c=out))(a, out) is out
    np.testing.assert_array_equal(out, 2 * a)
    y = a.astype(float)
    Compiled(torch, lambda y: lib.scale(y, 3.0, 5))(y)
    np.testing.assert_array_equal(y, 3.0 * a)


class Other:
    """An array of nobody's library."""

    def __init__(self, x):
        self.__array_interface__ = x.__array_interface__


OTHER = Other(np.ones(3))
LEFT = {
    "a value": (lambda lib, x: lib.total(x, 3), "returns a value"),
    "no array is written": (lambda lib, x: lib.touch(x, 3), "writes to no array"),
    "2**64 - 1": (lambda lib, x: lib.shift.returning(y="x")(x, 2**64 - 1, 3), "by is 18446744073709551615"),
    "no tensor": (lambda lib, x: lib.scale(OTHER, 1.0, 3), "x is Other"),
}


@pytest.mark.parametrize(("call", "words"), LEFT.values(), ids=LEFT)
def test_what_a_graph_cannot_have_is_called_outside_of_it(lib, call, words):
    compiled = Compiled(torch, lambda x: (x + 1, call(lib, x)), fullgraph=False)
    expected = call(lib, X)
    _, found = compiled(X)
    assert type(found) is type(expected)
    assert found is None or np.all(np.asarray(found) == np.asarray(expected))
    assert any(words in reason for reason in compiled.breaks)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        Compiled(torch, lambda x: call(lib, x))(X)


REFUSED = {
    "too few": (lambda f, a: f(a, a), TypeError),
    "a keyword": (lambda f, a: f(a, a, 5, d=a), TypeError),
    "twice": (lambda f, a: f(a, a, 5, a=a), TypeError),
    "a gradient": (lambda f, a: f(a, LEAF, 5), BufferError),
}


@pytest.mark.parametrize(("call", "kind"), REFUSED.values(), ids=REFUSED)
def test_errors_are_those_of_the_function(lib, call, kind):
    add = lib.sum.returning(c="a")
    with pytest.raises(kind) as expected:
        call(add, A)
    with pytest.raises(kind) as found:
        Compiled(torch, lambda a: call(add, a), fullgraph=False)(A)
    assert str(found.value) == str(expected.value)
    with pytest.raises(torch._dynamo.exc.Unsupported) as said:
        Compiled(torch, lambda a: call(add, a))(A)
    assert str(expected.value)[:60].split("'")[0] in str(said.value)


def test_a_gradient_is_not_lost(lib):
    add = lib.sum.returning(c="a")
    a = A.clone().requires_grad_()
    with torch.no_grad():
        assert_compiles(lambda a: add(a, a, 5), a)
    assert_compiles(lambda a: add(a.detach(), a.detach(), 5), a)
    key = add._identity.key
    with pytest.raises(BufferError, match="requires grad, and interop has no derivative to record"):
        torch.ops.interop.call(key, "=r;=r;=i;c=w", [a, a], [torch.empty(5)], [5], [])


# ---- a kernel ----


@pytest.fixture(scope="module")
def add():
    return interop.kernel(kernels.ADD, "add", threads="a").returning(c="a")


def test_a_kernel_is_traced_whole(add):
    compiled = Compiled(torch, lambda a, b: add(a, b, a.numel(), block=128) + 1)
    with pytest.raises(TypeError) as expected:  # as it is said without the compiler: they are in host memory
        add(A, B, 5)
    with pytest.raises(TypeError) as found:
        compiled(A, B)
    assert str(found.value) == str(expected.value)
    assert (compiled.graphs, compiled.breaks) == (1, [])
    assert "interop.call" in compiled.operators


LAUNCHES = [{}, {"grid": 2}, {"threads": "b"}, {"threads": (5, 1)}, {"block": 64, "shared": 16, "cooperative": True}]


@pytest.mark.parametrize("options", LAUNCHES, ids=str)
def test_launch_options_reach_the_kernel(add, monkeypatch, options):
    seen = {}
    kind = type(add)
    # The compiler has its own way to the kernel, which ends in a call of it.
    graph = make_fx(lambda a: add(a, a, 5, **options), tracing_mode="fake")(A)
    monkeypatch.setattr(kind, "__call__", lambda _, *args, **named: seen.update(args=args, named=named))
    graph(A)
    assert [type(x) for x in seen["args"]] == [torch.Tensor, torch.Tensor, int]
    assert {name: x for name, x in seen["named"].items() if name != "c"} == options
    assert seen["named"]["c"].shape == (5,)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own first graph
@pytest.mark.usefixtures("cuda_device")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_kernel_is_launched_from_a_graph(add, mode):
    compiled = torch.compile(lambda a, b: add(a * 2, b, a.numel()) + 1, fullgraph=True, mode=mode)
    for i in range(4):
        a, b = (x.cuda() + i for x in (A, B))
        torch.testing.assert_close(compiled(a, b).clone(), 2 * a + b + 1)


def test_what_a_graph_says_of_a_call_is_one_line(lib):
    """Torch writes it into comments of the code that it makes for a GPU."""
    from torch.fx.experimental.proxy_tensor import make_fx

    add = lib.sum.returning(c="a")
    graph = make_fx(lambda a, b: add(a, b, 5))(A, B).graph
    words = [x for node in graph.nodes for x in node.args if isinstance(x, str)]
    assert words
    assert not any("\n" in x for x in words)


# ---- export, fake tensors, modes ----


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a):
        return self.function(a, a, a.shape[0]) * 2


@pytest.mark.parametrize("strict", [True, False])
def test_export(lib, strict, tmp_path):
    add = lib.sum.returning(c="a")
    sizes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(Module(add), (A,), strict=strict, dynamic_shapes=sizes)
    assert program.module()(torch.ones(7)).tolist() == [4] * 7
    torch.export.save(program, tmp_path / "program.pt2")
    assert torch.export.load(tmp_path / "program.pt2").module()(torch.ones(3)).tolist() == [4] * 3


def test_modes_of_torch(lib):
    add = lib.sum.returning(c="a")
    with FakeTensorMode() as mode:
        made = add(mode.from_tensor(A), torch.empty(5), 5)
        assert (made.shape, made.dtype, made.fake_mode) == ((5,), torch.float32, mode)
    for tracing in ("real", "fake", "symbolic"):
        graph = make_fx(lambda a: add(a, a, 5), tracing_mode=tracing)(A)
        assert torch.equal(graph(B), 2 * B)
    with FlopCounterMode(display=False):
        assert torch.equal(add(A, A, 5), 2 * A)
    with FakeTensorMode() as mode, pytest.raises(TypeError, match="returns a value cannot be traced"):
        lib.total(mode.from_tensor(X), 3)


def test_the_operator_passes_torchs_checks(lib):
    key = lib.scale._identity.key
    number = torch.tensor(2.0, dtype=torch.float64)
    torch.library.opcheck(torch.ops.interop.call, (key, "=w;=n;=i", [], [X.clone()], [3], [number]))
    made = lib.sum.returning(c="a")
    arguments = made._identity.key, "=r;=r;=i;c=w", [A, B], [torch.empty(5)], [5], []
    torch.library.opcheck(torch.ops.interop.call, arguments)


# ---- which function a graph names ----


def test_keys_are_those_of_what_is_called(lib):
    text = kernels.ADD

    def key(*args, **options):
        return interop.kernel(*args, **options)._identity.key

    assert key(text, "add") == key(text, "add")
    others = [
        key(text, "add", threads="a"),
        key(text.replace("+ b", "- b"), "add"),
        key(text, "add", options={"std": "c++20"}),
        key(text, "add", reads=["c"]),
    ]
    assert len({key(text, "add"), *others}) == 5
    grid = lambda *_: 1  # noqa: E731
    assert key(text, "add", grid=grid) != key(text, "add", grid=grid)  # nothing says what a function does
    assert lib.sum._identity.key == pickle.loads(pickle.dumps(lib.sum))._identity.key
    assert lib.sum._identity.key != lib.scale._identity.key
    assert lib.sum.returning(c="a")._identity.key != lib.sum.returning(c="b")._identity.key


def test_another_library_at_the_same_path_has_other_keys(tmp_path):
    """A graph may be kept on disk, with the key in it."""
    made = []
    for factor in (2, 3):
        text = f"void f(double* x, int n) {{ for (int i = 0; i < n; ++i) x[i] *= {factor}; }}"
        path = c_functions.build(text, tmp_path / "libkept.so")
        made.append(interop.load(path, "void f(double* x, int n);", memory="host").f)
    assert made[0]._identity.key != made[1]._identity.key
    for function, factor in zip(made, (2, 3), strict=True):
        x = X.clone()
        torch.ops.interop.call(function._identity.key, "=w;=i", [], [x], [3], [])
        assert torch.equal(x, factor * X)


def test_a_key_is_forgotten_with_its_functions_and_kept_by_a_graph(lib):
    made = interop.kernel(kernels.TWICE, "twice")
    key = made._identity.key
    again = interop.kernel(kernels.TWICE, "twice")
    del made
    gc.collect()
    assert next(iter(identities[key].functions)) is again
    del again
    gc.collect()
    assert key not in identities
    words = r"the graph calls 'twice', a kernel or C function that this process has not made"
    with pytest.raises(RuntimeError, match=words):
        torch.ops.interop.call(key, "=r;=w;=i", [A], [B.clone()], [5], [])


def test_a_graph_keeps_what_it_calls(lib):
    def traced():
        add = lib.sum.returning(c=lambda a, b, n: n)  # no other function has its key
        return make_fx(lambda a: add(a, a, 5), tracing_mode="fake")(A)

    graph = traced()
    gc.collect()
    assert torch.equal(graph(B), 2 * B)
