"""Functions of a compiled module that run without Python, of rows.cpp: for every library, and inside `jax.jit`."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import interop
from interop import _core

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("rows.cpp")
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra"]

X = np.arange(12, dtype="float32").reshape(3, 4)


def headers():
    """The folders of interop's headers and of dlpack.h; in a build tree they are where the build has them from."""
    installed = Path(interop.get_include())
    if installed.is_dir():
        return [installed]
    return [
        ROOT / "src/include",
        ROOT / "src/base",
        Path(importlib.util.find_spec("tvm_ffi").origin).parent / "include",
    ]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    nanobind = Path(importlib.util.find_spec("nanobind").origin).parent
    folders = [nanobind / "include", nanobind / "ext/robin_map/include", sysconfig.get_path("include"), *headers()]
    library = tmp_path_factory.mktemp("modules") / "rows.so"
    command = [os.environ.get("CXX", "c++"), *FLAGS, *(f"-isystem{path}" for path in folders)]
    sources = [SOURCE, nanobind / "src/nb_combined.cpp"]
    done = subprocess.run([*command, *sources, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    spec = importlib.util.spec_from_file_location("rows", library)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rows"] = module  # where pickles look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["rows"]


@pytest.fixture
def row_sum(module):
    return module.row_sum.returning(sums=lambda x: x.shape[0])


# ---- calls ----


def test_arrays_of_every_library(row_sum, host_library):
    sums = row_sum(host_library.make(X))
    assert host_library.is_ours(sums)
    np.testing.assert_array_equal(host_library.to_numpy(sums), X.sum(1))


def test_views_are_read_and_written_where_they_are(module, row_sum):
    np.testing.assert_array_equal(row_sum(X.T[::-1, ::2]), X.T[::-1, ::2].sum(1))
    out = np.zeros(6, "float32")
    assert row_sum(X, sums=out[::2]).base is out
    assert out.tolist() == [6, 0, 22, 0, 38, 0]
    assert module.row_sum(X, out[1::2]) is None
    assert out.tolist() == [6, 6, 22, 22, 38, 38]
    assert row_sum(X[:0]).shape == (0,)


def test_numbers_and_names(module):
    scale = module.scale.returning(y="x")
    assert scale(n=2, by=3, x=np.array([1.0, 2.0])).tolist() == [3, 6]
    with pytest.raises(TypeError, match="modules.scale: n is float; accepted: an integer"):
        scale(np.ones(2), 3, 2.5)


def test_what_does_not_fit_is_named(module, row_sum):
    for x, error, match in (
        (X.astype("float64"), TypeError, "modules.row_sum: x is float64 .*accepted: a float32 array"),
        (X[0], ValueError, r"modules.row_sum: x is float32 of shape \(4,\)"),
    ):
        with pytest.raises(error, match=match):
            row_sum(x)
    with pytest.raises(TypeError, match="modules.row_sum: x is list"):
        module.row_sum([1.0], X[0])
    with pytest.raises(ValueError, match="modules.scale: x is not C-contiguous|modules.scale: x .*C-contiguous"):
        module.scale.returning(y="x")(np.ones((4, 3)).T, 1, 1)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        (0, TypeError, "^modules.fail: the kind is 0"),
        (1, interop.CudaError, "^modules.fail: the kind is 1"),
        (2, ValueError, "^modules.fail: the kind is 2"),
        (3, ValueError, "^modules.fail: parameter 0 is declared as another view"),
        (4, ValueError, "^modules.fail: parameter 0 is declared with elements of another size"),
    ],
)
def test_errors_of_the_function(module, kind, error, match):
    with pytest.raises(error, match=match):
        module.fail(X, X.copy(), kind)


def test_a_declaration_that_is_not_understood(module):
    with pytest.raises(ValueError, match="modules.bad: .*FILE"):
        module.define_badly(module)


def test_repr_explain_and_pickle(module, row_sum):
    text = "modules.row_sum(interop::View<const float, 2> x, interop::View<float, 1> sums)"
    assert repr(module.row_sum) == f"<compiled function {text}>"
    assert isinstance(module.row_sum, interop.CompiledFunction)
    assert interop.explain(row_sum, X).algorithm == f"the compiled function {text}"
    scale = pickle.loads(pickle.dumps(module.scale.returning(y="x")))
    assert scale(np.ones(2), 2, 2).tolist() == [2, 2]


def test_operators_of_it(module, host_library):
    op = interop.operator("modules::row_sum", module.row_sum, "x[rows, n] -> [rows]", gradient=lambda g, x, y: None)
    for _ in range(2):  # the second time as it is kept
        sums = op(host_library.make(X))
        assert host_library.is_ours(sums)
        np.testing.assert_array_equal(host_library.to_numpy(sums), X.sum(1))
    scale = interop.operator("modules::scale", module.scale, "x[n], by -> [n]")
    assert scale(np.ones(2), 3).tolist() == [3, 3]
    assert (scale._description.in_graphs, op._description.in_graphs) == (True, False)  # as the module says


def test_operators_of_it_in_torch(module):
    torch = pytest.importorskip("torch")
    op = interop.operator(
        "modules::row_sum_of_torch",
        module.row_sum,
        "x[rows, n] -> [rows]",
        gradient=lambda g, x, y: (g[:, None] + 0 * x,),
    )
    x = torch.from_numpy(X).requires_grad_()
    for f in (op, torch.compile(op, backend="aot_eager", fullgraph=True)):
        (by_x,) = torch.autograd.grad((f(x) ** 2).sum(), x)
        np.testing.assert_array_equal(by_x, 2 * X.sum(1, keepdims=True) * np.ones(4))


# ---- inside compilers ----


def test_inside_torch_compile(row_sum):
    torch = pytest.importorskip("torch")
    f = torch.compile(lambda x: row_sum(x + 1) * 2, backend="aot_eager", fullgraph=True)
    np.testing.assert_array_equal(f(torch.from_numpy(X)).numpy(), 2 * (X + 1).sum(1))


@pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")
def test_inside_jit(module, row_sum, host_jax):
    jax = host_jax
    x = jax.numpy.asarray(X)
    f = jax.jit(lambda x: row_sum(x.T) + row_sum(x)[0])
    np.testing.assert_array_equal(f(x), X.sum(0) + X.sum(1)[0])
    assert "callback" not in f.lower(x).compile().as_text()
    scale = module.scale.returning(y="x")
    with jax.enable_x64(True):
        assert jax.jit(lambda x: scale(x, 3, x.size))(jax.numpy.ones(2)).tolist() == [3, 3]
    fails = module.fail.returning(y="x")
    with pytest.raises(jax.errors.JaxRuntimeError, match="modules.fail: the kind is 0"):
        jax.jit(lambda x: fails(x, 0))(x).block_until_ready()
    with pytest.raises(NotImplementedError, match="modules.row_sum: JAX differentiates the call by x"):
        jax.grad(lambda x: row_sum(x).sum())(x)


@pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")
@pytest.mark.parametrize(("name", "target"), [("row_sum", "interop_function"), ("copy", "interop_function_in_graphs")])
def test_xlas_graphs_have_it_as_its_definition_says(module, row_sum, name, target):
    jax = pytest.importorskip("jax")
    f = row_sum if name == "row_sum" else module.copy.returning(y="x")
    x = jax.ShapeDtypeStruct(X.shape, "float32")
    assert f"@{target}(" in jax.jit(f).trace(x).lower(lowering_platforms=("cuda",)).as_text()


# ---- on a GPU ----


def test_a_copy_on_the_host(module):
    np.testing.assert_array_equal(module.copy.returning(y="x")(X), X)


@pytest.mark.gpu
def test_arrays_of_a_gpu(module, device_library):
    y = module.copy.returning(y="x")(device_library.make(X))
    assert device_library.is_ours(y)
    np.testing.assert_array_equal(device_library.to_numpy(y), X)
    with pytest.raises(interop.CudaError, match="modules.row_sum: this module has code for the host alone"):
        module.row_sum.returning(sums=lambda x: x.shape[0])(device_library.make(X))


@pytest.mark.gpu
@pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")
def test_inside_jit_on_a_gpu(module, jax, cuda_device):
    copy = module.copy.returning(y="x")

    def slow(x):  # some hundred milliseconds, in memory that held something else before
        half = jax.lax.fori_loop(0, 20000, lambda _, c: c + 1, x)
        return jax.lax.fori_loop(0, 20000, lambda _, c: c - 1, half)

    x = jax.device_put(np.arange(1 << 20, dtype="float32") % 1024, jax.devices("cuda")[0])
    f = jax.jit(lambda x: slow(copy(slow(x))))
    for repeat in range(3):
        np.testing.assert_array_equal(f(x + repeat), x + repeat)
