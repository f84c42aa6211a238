"""Where JAX arrays of `interop.matmul` lie: on which device of the CPU, on several, on a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import machine
from helpers.jax_products import SHAPES, check_product, draw
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import interop

jax = pytest.importorskip("jax")
jnp = jax.numpy

jax.config.update("jax_num_cpu_devices", 8)  # before JAX starts: it has one otherwise


@pytest.fixture
def cpus():
    devices = jax.devices("cpu")
    assert len(devices) >= 4
    return devices


# ---- one device ----


def test_matmul_stays_on_its_device(cpus):
    for device in [*cpus, jax.devices()[0]]:
        (x, a), (y, b) = draw((2, 3), device=device), draw((3, 4), device=device)
        c = interop.matmul(a, b)
        assert c.devices() == {device}
        check_product(c, x, y)


def test_matmul_refuses_device_options_on_the_cpu(cpus):
    a = jax.device_put(np.ones((2, 2), "float32"), cpus[0])
    for f in (interop.matmul, jax.jit(interop.matmul, static_argnames="backend")):
        with pytest.raises(ValueError, match="backend='tiled' is for device arrays; JAX computes these on the CPU"):
            f(a, a, backend="tiled")
    with pytest.raises(ValueError, match=r"stream= is for device arrays, but a and b are JAX arrays on .*0"):
        interop.matmul(a, a, stream=1)
    with pytest.raises(ValueError, match=r"execution='cuda', but a and b are JAX arrays on .*jax.device_put"):
        interop.jax.matmul(a, a, execution="cuda")
    for precision in ("tf32", "tf32x3"):
        assert interop.matmul(a, a, precision=precision)[0, 0] == 2  # leave to round, where there is nothing to gain


def test_matmul_refuses_two_devices(cpus):
    a, b = (jax.device_put(np.ones((2, 2), "float32"), device) for device in cpus[1:3])
    with pytest.raises(ValueError, match=r"a is on .*1 and b is on .*2; put both on one device with jax.device_put"):
        interop.matmul(a, b)


def test_matmul_refuses_an_uncommitted_array_elsewhere(cpus):
    with jax.default_device(cpus[0]):
        a = jnp.ones((2, 2))  # which jnp would copy silently
    with pytest.raises(ValueError, match=r"a is on .*0 and b is on .*1;"):
        interop.matmul(a, jax.device_put(np.ones((2, 2), "float32"), cpus[1]))


def test_matmul_refuses_host_memory_of_a_device(cpus):
    a = jax.device_put(np.ones((2, 2), "float32"), cpus[0])
    pinned = jax.device_put(a, a.sharding.with_memory_kind("pinned_host"))
    with pytest.raises(ValueError, match="b is in JAX's host memory; move it first"):
        interop.matmul(a, pinned)


# ---- several devices ----


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(cpus, request):
    axis_types = (getattr(jax.sharding.AxisType, request.param),)
    return Mesh(np.array(cpus[:4]), ("x",), axis_types=axis_types)


@pytest.mark.parametrize("spec", [P("x", None), P(None, None)])
def test_matmul_refuses_arrays_on_other_devices(mesh, spec):
    wide = jax.device_put(np.ones((4, 4), "float32"), NamedSharding(mesh, spec))
    one = jax.device_put(np.ones((4, 4), "float32"), jax.devices("cpu")[0])
    message = r"^interop.matmul: a is on .*0 and b is on 4 devices, NamedSharding.*put both on the same devices with"
    with pytest.raises(ValueError, match=message):
        interop.matmul(one, wide)
    assert np.array_equal(np.asarray(interop.matmul(wide, wide)), np.full((4, 4), 4))


def test_a_stream_and_execution_are_for_arrays_on_one_device(mesh):
    wide = jax.device_put(np.ones((4, 4), "float32"), NamedSharding(mesh, P("x", None)))
    for f in (interop.matmul, interop.add):
        with pytest.raises(ValueError, match=r"stream= is for arrays on one device, but a and b are JAX arrays on 4"):
            f(wide, wide, stream=1)
    with pytest.raises(ValueError, match=r"execution='cuda', but a and b are JAX arrays on 4 devices, NamedSharding"):
        interop.jax.matmul(wide, wide, execution="cuda")


@pytest.mark.parametrize("check_vma", [True, False])
def test_matmul_inside_shard_map(mesh, check_vma):
    (x, a), (y, b) = draw((8, 6), device=jax.devices("cpu")[0]), draw((6, 5), device=jax.devices("cpu")[0])
    f = jax.shard_map(
        lambda a, b: interop.matmul(a, b), mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma
    )
    c = jax.jit(f)(
        jax.device_put(a, NamedSharding(mesh, P("x"))),
        jax.device_put(b, NamedSharding(mesh, P())),
    )
    assert len(c.devices()) == 4
    check_product(c, x, y)


def test_matmul_inside_shard_map_varies_where_an_operand_does(mesh):
    def f(a, b):
        return interop.matmul(a, b)

    for specs in ((P("x"), P()), (P(), P(None, "x"))):
        a, b = (jax.device_put(np.ones((4, 4), "float32"), NamedSharding(mesh, spec)) for spec in specs)
        with pytest.raises(ValueError, match="out_specs"):  # JAX's own check: the blocks of the product differ
            jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P())(a, b)


def test_matmul_under_a_mesh_of_one_device(cpus):
    for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
        mesh = Mesh(np.array(cpus[:1]), ("x",), axis_types=(kind,))
        (x, a), (y, b) = (draw(shape, device=NamedSharding(mesh, P())) for shape in ((2, 3), (4, 3, 5)))
        check_product(interop.matmul(a, b), x, y)
        check_product(jax.jit(lambda a, b: interop.matmul(a, b) * 1)(a, b), x, y)
        with jax.set_mesh(mesh):
            check_product(interop.matmul(a, b), x, y)
            check_product(jax.jit(lambda a, b: interop.matmul(a, b) * 1)(a, b), x, y)


# ---- on a GPU ----


@pytest.fixture
def gpu(cuda_device):
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        machine.skip("jax+cuda", f"this JAX sees no GPU: {error}")


def batch_ndim(x, y):
    """Over how many strides the batch of a product of compact arrays runs; 0 where there is nothing to add up."""
    if x.size == 0 or y.size == 0:
        return 0
    shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (np.broadcast_to(z, shape + z.shape[-2:]) for z in (x, y))
    repeats = [(x.strides[i] == 0, y.strides[i] == 0) for i in range(len(shape)) if shape[i] > 1]
    return len([*itertools.groupby(repeats)])  # dimensions that repeat the same operands merge


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), [*SHAPES, ((1000, 517), (517, 1003)), ((9, 64, 100), (100, 65))])
def test_matmul_backends_on_gpu(gpu, a, b, dtype, backend):
    (x, a), (y, b) = draw(a, dtype, gpu), draw(b, dtype, gpu)
    if backend == "cublas" and batch_ndim(x, y) > 1:
        with pytest.raises(ValueError, match='backend="cublas" cannot take this product: its batch'):
            interop.matmul(a, b, backend=backend)
        return
    c = interop.matmul(a, b, backend=backend)
    assert c.devices() == {gpu}
    check_product(c, x, y)
    check_product(jax.jit(lambda a, b: interop.matmul(a, b, backend=backend))(a, b), x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("precision", [None, "tf32", "tf32x3"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(0, 3, 2), (2, 0, 3), (16, 16, 16), (512, 512, 512), (513, 512, 512), (64, 8192, 64), (1, 513, 1)]
)
def test_xla_is_asked_for_the_workspace_that_plans_need(gpu, cupy, m, k, n, backend, precision):
    if backend == "cublas" and precision == "tf32x3":
        return  # refused
    a, b = cupy.ones((m, k), "float32"), cupy.ones((k, n), "float32")
    needed = interop.explain(interop.matmul, a, b, backend=backend, precision=precision).workspace_bytes
    shapes = ((m, k), "float32"), ((k, n), "float32")
    asked = interop._core.matmul_workspace(*shapes, "float32", backend, precision, False, False)
    assert needed <= asked <= 32 << 20
    exact_tiled = backend == "tiled" and not precision and k < 2048
    if exact_tiled or 0 in (m, k, n) or (m == 16 and not backend):
        assert asked == 0
    x = np.random.default_rng(0).integers(-2, 3, (m, k)).astype("float32")
    y = np.random.default_rng(1).integers(-2, 3, (k, n)).astype("float32")
    c = interop.matmul(jax.device_put(x, gpu), jax.device_put(y, gpu), backend=backend, precision=precision)
    assert np.array_equal(c, x @ y)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_matmul_tf32_only_when_asked_on_gpu(gpu, backend):
    a = jax.device_put(np.full((512, 512), 1 + 2.0**-12, "float32"), gpu)
    eye = jax.device_put(np.eye(512, dtype="float32"), gpu)
    assert np.array_equal(interop.matmul(a, eye, backend=backend), a)
    np.testing.assert_allclose(interop.matmul(a, eye, precision="tf32", backend=backend), a, rtol=2.0**-10)
    np.testing.assert_allclose(interop.matmul(a, eye, precision="tf32x3", backend=backend), a, rtol=2.0**-20)


@pytest.mark.gpu
def test_matmul_inside_a_long_jit_on_gpu(gpu):
    """Enough operations for XLA to use a CUDA graph; run often, with other work between, on fresh buffers."""
    (x, a), (y, b) = draw((300, 300), device=gpu), draw((300, 300), device=gpu)

    @jax.jit
    def f(a, b):
        for _ in range(8):
            b = jnp.tanh(interop.matmul(a, b) / 300)
        return b

    expected = y.astype("float64")
    for _ in range(8):
        expected = np.tanh(x.astype("float64") @ expected / 300)
    kept = []
    for i in range(20):
        kept.append(f(a, b))
        kept.append(jnp.full((257, 300), float(i)))
    for c in kept[::2]:
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_matmul_makes_the_stream_wait_on_gpu(gpu, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = jax.device_put(np.full((8192, 8192), 1, "float32"), gpu)
    interop.matmul(a, a, backend="tiled").block_until_ready()
    for _ in range(3):
        c = interop.matmul(a, a, backend="tiled", stream=stream)
        assert not c.is_ready()  # the host has not waited
        pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(c.unsafe_buffer_pointer(), c.nbytes, c), 0)
        with stream:  # reads the memory itself, so that nothing else can order it
            seen = cupy.ndarray(c.shape, cupy.float32, pointer)[-1, -64:].copy()
        stream.synchronize()
        assert bool((seen == 8192).all())
        del c


@pytest.mark.gpu
def test_matmul_execution_on_gpu(gpu):
    a = jax.device_put(np.ones((2, 2), "float32"), gpu)
    assert interop.jax.matmul(a, a, execution="cuda")[0, 0] == 2
    assert interop.jax.matmul(a, a, execution=f"cuda:{gpu.local_hardware_id}")[0, 0] == 2
    with pytest.raises(ValueError, match="execution='cuda:97', but a and b are JAX arrays on cuda:"):
        interop.jax.matmul(a, a, execution="cuda:97")


@pytest.mark.gpu
def test_matmul_refuses_cpu_and_gpu_arrays_together(gpu, cpus):
    a, b = (jax.device_put(np.ones((2, 2), "float32"), device) for device in (gpu, cpus[0]))
    with pytest.raises(ValueError, match=r"a is on cuda:0 and b is on .*(?i:cpu).*; put both on one device"):
        interop.matmul(a, b)
