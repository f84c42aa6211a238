"""Operators that call one function for arrays on the host, and another for those on a GPU."""

from __future__ import annotations

import copy
import pickle
import types

import numpy as np
import pytest
from helpers import machine
from helpers.compiled import Compiled

import interop
from interop import _core

needs_handlers = pytest.mark.skipif(
    not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX"
)

X = np.arange(6, dtype="float32").reshape(2, 3)
ROWS = {"rows": lambda leading: leading}
ROW_SUM = "x[..., n] -> [...]"
KERNEL = interop.kernel(
    """
__global__ void row_sum(const float* x, float* y, int rows, int n) {
  const int r = blockIdx.x;
  float sum = 0;
  for (int c = 0; c < n; ++c) sum += x[r * n + c];
  if (threadIdx.x == 0) y[r] = sum;
}
""",
    "row_sum",
    grid=lambda x, rows, n: rows,
)
CPU, CUDA, PINNED, METAL, MANAGED = 1, 2, 3, 8, 13  # as DLPack counts the types of devices


class Placed:
    """An array that says it is on a device of that type, whose memory nobody reads."""

    def __init__(self, x, device_type):
        self.x, self.device_type = x, device_type
        self.shape, self.dtype = x.shape, x.dtype

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)


@pytest.fixture
def row_sum(lib):
    return interop.operator(
        "tests::either_row_sum",
        {"cpu": lib.row_sum, "cuda": KERNEL},
        ROW_SUM,
        sizes=ROWS,
        gradient=lambda g, x, y: g[..., None] + 0 * x,
        tangent=lambda tangents, inputs, outputs: tangents[0].sum(-1),
    )


def on_gpu_alone():
    return interop.operator("tests::on_gpu_alone", {"cuda": KERNEL}, ROW_SUM, sizes=ROWS, gradient=lambda g, x, y: None)


def seeing(*devices):
    """Return an operator that notes what it calls, and the notes."""
    seen = []
    call = {device: lambda x, device=device: seen.append(device) or x for device in devices}
    return interop.operator("tests::seeing", call, "x[n] -> [n]"), seen


# ---- the function for the arrays' device ----


def test_values_of_every_library(row_sum, any_library, request):
    if any_library.device == "cuda":
        request.getfixturevalue("nvrtc")
    made = row_sum(any_library.make(X))
    assert any_library.is_ours(made)
    np.testing.assert_array_equal(any_library.to_numpy(made), X.sum(1))


def test_each_call_is_of_the_device_of_its_arrays():
    """Also where types and shapes are those of a call before, of which what follows from them is kept."""
    op, seen = seeing("cpu", "cuda")
    for device in (CPU, CUDA, CPU, CUDA, MANAGED, PINNED, CPU):
        op(Placed(X[0], device))
    assert seen == ["cpu", "cuda", "cpu", "cuda", "cuda", "cpu", "cpu"]


def test_one_array_on_a_gpu_has_the_call_run_there():
    seen = []
    call = {device: lambda x, y, device=device: seen.append(device) or x for device in ("cpu", "cuda")}
    op = interop.operator("tests::two", call, "x[n], y[n] -> [n]")
    for devices in ((CPU, CPU), (CPU, CUDA), (CUDA, PINNED)):
        op(*(Placed(X[0], device) for device in devices))
    assert seen == ["cpu", "cuda", "cuda"]


def test_execution_is_of_the_function_for_gpus(lib):
    asked = []

    def on_gpu(x, execution=None):
        asked.append(execution)
        return x.sum(-1)

    op = interop.operator("tests::asked", {"cpu": lib.row_sum, "cuda": on_gpu}, ROW_SUM, sizes=ROWS)
    assert op(X, execution="cuda").tolist() == op(X).tolist()
    assert asked == ["cuda"]
    with pytest.raises(TypeError, match=r"^tests::asked: stream= cannot be used as call takes none"):
        op(X, stream=1)
    alone = interop.operator("tests::on_host_alone", {"cpu": lib.row_sum}, ROW_SUM, sizes=ROWS)
    with pytest.raises(
        ValueError, match=r"execution is given, which is of 'cuda', and call has a function for 'cpu' al"
    ):
        alone(X, execution="cuda")


@pytest.mark.parametrize("call", [{"cpu": "row_sum"}, types.MappingProxyType({"cpu": "row_sum", "cuda": "kernel"})])
def test_any_mapping_will_do(lib, call):
    functions = {key: KERNEL if key == "cuda" else lib.row_sum for key in call}
    op = interop.operator("tests::any_mapping", type(call)(functions), ROW_SUM, sizes=ROWS)
    assert op(X).tolist() == [3, 12]


def test_what_is_called_is_explained(row_sum, lib, torch):
    plan = interop.explain(row_sum, X)
    assert plan.function == f"<operator tests::either_row_sum: {ROW_SUM}>"
    assert plan.algorithm.startswith("the C function void row_sum(")
    op, _ = seeing("cpu", "cuda")
    assert interop.explain(op, X[0]).algorithm.startswith("the Python function seeing.<locals>.")
    plans = []
    torch.vmap(lambda x: plans.append(interop.explain(row_sum, x)) or row_sum(x))(torch.tensor(X))
    assert "for 'cpu' <C function liboperators.row_sum: void" in plans[0].algorithm
    assert "for 'cuda' <kernel row_sum(" in plans[0].algorithm
    with pytest.raises(ValueError, match="the arrays are on 'cpu', and call has a function for 'cuda' alone"):
        interop.explain(on_gpu_alone(), X)


# ---- a device for which there is none ----

MISSING = "and call has a function for 'cuda' alone; accepted: 'cuda', or an operator whose call has one for that, too"


def test_a_device_without_a_function_is_named():
    op = on_gpu_alone()
    with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: the arrays are on 'cpu', {MISSING}"):
        op(X)
    op, seen = seeing("cpu", "cuda")
    with pytest.raises(
        ValueError, match=r"^tests::seeing: the arrays are on 'DLPack device type 8, id 0', and call has"
    ):
        op(Placed(X[0], METAL))
    assert seen == []
    op(Placed(X[0], CUDA))


def test_in_torch(torch):
    op, x = on_gpu_alone(), torch.tensor(X)
    for given in (x, x.clone().requires_grad_()):
        with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: the arrays are on 'cpu', {MISSING}"):
            op(given)
    with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: the arrays are on 'cpu', {MISSING}"):
        torch.vmap(op)(x)
    with pytest.raises(RuntimeError, match=rf"tests::on_gpu_alone: x is on 'cpu', {MISSING}"):
        torch.compile(op, backend="eager", fullgraph=True)(x)


def test_in_jax(jax):
    op = on_gpu_alone()
    with jax.default_device(jax.devices("cpu")[0]):
        x = jax.numpy.asarray(X)
        for given in (lambda: op(x), lambda: jax.jit(op)(x), lambda: jax.vmap(op)(x)):
            with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: (the arrays are on|JAX.*) 'cpu', {MISSING}"):
                given()


def test_in_dask():
    da = machine.need("dask")
    with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: the arrays are on 'cpu', {MISSING}"):
        on_gpu_alone()(da.from_array(X))  # at once, not as it is computed


# ---- how it is given ----


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({}, ValueError, "call is an empty mapping; accepted: {'cpu': f, 'cuda': g}, or one of these"),
        ({"cpu": len, "gpu": len}, ValueError, "call has 'gpu'; accepted: {'cpu': f, 'cuda': g}"),
        ({("cpu",): len}, TypeError, "call has a key that is tuple; accepted: {'cpu': f, 'cuda': g}"),
        ({"cpu": 1}, TypeError, "call['cpu'] is int; accepted: what interop.kernel and"),
        ({"cpu": {"cpu": len}}, TypeError, "call['cpu'] is dict; accepted: what interop.kernel and"),
        (
            {"cpu": KERNEL},
            ValueError,
            "call['cpu'] is <kernel row_sum(const float* x, float* y, int rows, int n)>, which",
        ),
    ],
)
def test_what_is_no_mapping_of_devices_is_named(call, error, message):
    with pytest.raises(error) as caught:
        interop.operator("tests::wrong", call, ROW_SUM, sizes=ROWS)
    assert str(caught.value).startswith(f"interop.operator('tests::wrong'): {message}")


def test_a_function_of_the_other_memory_is_named(lib, path):
    with pytest.raises(ValueError, match=r"call\['cuda'\] is .*row_sum.*, of which x is host memory; accepted: a"):
        interop.operator("tests::wrong", {"cuda": lib.row_sum}, ROW_SUM, sizes=ROWS)
    on_device = interop.load(path, "void row_sum(device const float* x, device float* y, int rows, int n);").row_sum
    with pytest.raises(ValueError, match=r"call\['cpu'\] is .*row_sum.*, of which x is device memory; accepted: a"):
        interop.operator("tests::wrong", {"cpu": on_device}, ROW_SUM, sizes=ROWS)


def test_what_does_not_fit_says_for_which_device(lib):
    with pytest.raises(
        ValueError, match=r"for 'cuda': call: the parameter rows of the kernel or C function is no input"
    ):
        interop.operator("tests::wrong", {"cpu": lambda x: x.sum(-1), "cuda": KERNEL}, ROW_SUM)


# ---- dtypes: the same wherever the arrays are ----


def test_dtypes_that_one_says_are_those_of_both():
    op = interop.operator("tests::same", {"cpu": lambda x: x.sum(-1), "cuda": KERNEL}, ROW_SUM, sizes=ROWS)
    assert op(X).tolist() == [3, 12]
    with pytest.raises(TypeError, match="^tests::same: x is float64; accepted: float32"):
        op(X.astype("float64"))
    wide = {"cpu": lambda x: x.sum(-1, dtype="float64"), "cuda": KERNEL}
    with pytest.raises(TypeError, match="^tests::wide: call returned float64 for the result; accepted: float32"):
        interop.operator("tests::wide", wide, ROW_SUM, sizes=ROWS)(X)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("double", "double"), "call accepts float32 for 'cpu' and float64 for 'cuda' as x; accepted: the same"),
        (
            ("float", "double"),
            "call makes float32 for 'cpu' and float64 for 'cuda' as result 0; accepted: the same",
        ),
    ],
)
def test_two_dtypes_are_refused(lib, types, message):
    source = "__global__ void row_sum(const {}* x, {}* y, int rows, int n) {{}}".format(*types)
    call = {"cpu": lib.row_sum, "cuda": interop.kernel(source, "row_sum", grid=1)}
    with pytest.raises(ValueError, match=rf"^interop.operator\('tests::differ'\): {message}"):
        interop.operator("tests::differ", call, ROW_SUM, sizes=ROWS)


# ---- content ----


def double(x):
    return x * 2


def triple(x):
    return x * 3


def define(**call):
    return interop.operator("tests::devices_again", call, "x[...] -> [...]")


def test_equal_and_pickled_by_what_is_called_for_each():
    first = define(cpu=double, cuda=triple)
    assert define(cuda=triple, cpu=double) == first
    assert pickle.loads(pickle.dumps(first)) == first
    assert copy.copy(first)(X).tolist() == (2 * X).tolist()
    changed = define(cpu=double, cuda=double)
    assert changed != first
    assert changed != interop.operator("tests::devices_again", double, "x[...] -> [...]")
    with pytest.raises(ValueError, match="defined again"):
        pickle.dumps(first)


# ---- torch ----


def test_torch_derivatives_and_vmap(row_sum, torch):
    x = torch.tensor(X, requires_grad=True)
    row_sum(x).square().sum().backward()
    assert x.grad.tolist() == (2 * X.sum(1, keepdims=True) * np.ones_like(X)).tolist()
    _, tangent = torch.func.jvp(row_sum, (torch.tensor(X),), (torch.ones(2, 3),))
    assert tangent.tolist() == [3, 3]
    assert torch.vmap(row_sum, in_dims=1)(torch.tensor(X)[None].movedim(1, 1)).tolist() == [[3], [12]]


def test_torch_compiled(row_sum, torch):
    compiled = Compiled(torch, lambda x: row_sum(x) * 2)
    assert compiled(torch.tensor(X)).tolist() == [6, 24]
    assert (compiled.graphs, compiled.breaks) == (1, [])
    torch.library.opcheck(torch.ops.tests.either_row_sum.default, (torch.tensor(X, requires_grad=True),))


def test_fake_tensors_are_on_the_device_that_they_say(row_sum, torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for device in ("cpu", "cuda"):
            made = row_sum(torch.empty(4, 3, device=device))
            assert (made.device.type, made.shape, made.dtype) == (device, (4,), torch.float32)
        on_gpu = on_gpu_alone()
        assert on_gpu(torch.empty(4, 3, device="cuda")).shape == (4,)
        with pytest.raises(ValueError, match=rf"^tests::on_gpu_alone: x is on 'cpu', {MISSING}"):
            on_gpu(torch.empty(4, 3))


# ---- JAX ----


@needs_handlers
def test_jax_transforms(row_sum, jax):
    with jax.default_device(jax.devices("cpu")[0]):
        x = jax.numpy.asarray(X)
        assert jax.jit(row_sum)(x).tolist() == [3, 12]
        by = jax.grad(lambda x: (row_sum(x) ** 2).sum())(x)
        assert by.tolist() == (2 * X.sum(1, keepdims=True) * np.ones_like(X)).tolist()
        assert jax.jit(jax.vmap(row_sum))(x).tolist() == [3, 12]
        assert jax.lax.map(row_sum, x).tolist() == [3, 12]
        assert jax.jvp(row_sum, (x,), (x,))[1].tolist() == [3, 12]


@needs_handlers
@pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")
@pytest.mark.usefixtures("nvrtc")
def test_a_program_for_each_platform_has_its_function(row_sum, host_jax):
    import interop.jax

    traced = host_jax.jit(row_sum).trace(host_jax.numpy.asarray(X))
    texts = {platform: traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda")}
    assert "launch = dense<[2, 1, 1, " in texts["cuda"]
    assert "launch = " not in texts["cpu"]
    for text in texts.values():
        assert "stablehlo.case" not in text
        assert text.count("stablehlo.custom_call @interop_function") == 1
    exported = host_jax.export.export(
        host_jax.jit(row_sum), platforms=["cpu", "cuda"], disabled_checks=interop.jax.disabled_checks()
    )(host_jax.numpy.asarray(X))
    assert exported.mlir_module().count("stablehlo.custom_call @interop_function") == 2
    again = host_jax.export.deserialize(exported.serialize())
    assert again.call(host_jax.numpy.asarray(X)).tolist() == [3, 12]


def test_a_function_is_traced_for_its_platform_alone(host_jax):
    seen = []
    call = {device: lambda x, device=device: seen.append(device) or x + 1 for device in ("cpu", "cuda")}
    op = interop.operator("tests::traced_once", call, "x[n] -> [n]")
    assert host_jax.jit(op)(host_jax.numpy.asarray(X[0])).tolist() == [1, 2, 3]
    assert set(seen) == {"cpu"}


# ---- Dask ----


def test_dask_blocks(row_sum):
    da = machine.need("dask")
    made = row_sum(da.from_array(X, chunks=(1, 3)))
    assert made.numblocks == (2,)
    assert made.compute(scheduler="sync").tolist() == [3, 12]
