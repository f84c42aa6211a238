"""`interop.jax.call` on a GPU: functions of other libraries on XLA's stream, in its memory, and never in its graphs."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import alone, device, machine
from helpers.conversions import quiet
from helpers.jax_order import A, N, assert_in_order
from helpers.jax_waits import USES, printed
from helpers.kernels import ADD

import interop
from interop import _core

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_call"], reason="this build has no handlers for JAX")


@pytest.fixture
def gpu(jax):
    """JAX, whose new arrays lie on the first GPU."""
    with jax.default_device(jax.devices("cuda")[0]):
        yield jax


@pytest.fixture
def call(jax):
    return interop.jax.call


# ---- what people do ----


def test_cupys_fft_in_a_program(gpu, call, cupy):
    import cupyx.scipy.fft

    fft = interop.adapt(cupyx.scipy.fft.fft, "cupy", writes=())

    @gpu.jit
    def spectrum(x):
        y = call(fft, x * 2, n=1024, out=gpu.ShapeDtypeStruct((1024,), "complex64"))
        return gpu.numpy.abs(y)

    x = gpu.numpy.asarray(np.random.default_rng(0).random(1000, np.float32))
    np.testing.assert_allclose(spectrum(x), np.abs(np.fft.fft(2 * np.asarray(x), 1024)), rtol=1e-3, atol=1e-2)


def test_torchs_functions_in_a_program(gpu, call, torch):
    qr = interop.adapt(torch.linalg.qr, "torch", writes=())
    like = gpu.ShapeDtypeStruct

    @gpu.jit
    def product(x):
        q, r = call(lambda x: tuple(qr(x)), x + 1, out=(like((20, 10), "float32"), like((10, 10), "float32")))
        return q @ r

    with gpu.default_matmul_precision("highest"):
        x = gpu.numpy.asarray(np.random.default_rng(0).random((20, 10), np.float32))
        np.testing.assert_allclose(product(x), np.asarray(x) + 1, rtol=1e-4)


def test_a_call_of_concrete_arrays(gpu, call, cupy, torch):
    negative = interop.adapt(cupy.negative, "cupy", writes=())
    x, stream = gpu.numpy.asarray(A), torch.cuda.Stream()
    made = call(negative, x, out=x)
    assert np.array_equal(made, -A)
    made = call(negative, x, out=x, stream=stream)
    snapshot = device.Snapshot((N,))
    snapshot.take(made.unsafe_buffer_pointer(), stream.cuda_stream)
    assert np.array_equal(snapshot.values(), -A)


# ---- the stream ----


def doubled_by_interop(request):
    return lambda x: interop.multiply(x, 2)


def doubled_by_interop_into_out(request):
    return interop.multiply, 2


def doubled_by_a_kernel(request):
    add = interop.kernel(ADD, "add", threads=lambda a, b, c, n: n)
    return lambda x, out: add(x, x, out, x.shape[0])


def doubled_by_cupy(request):
    cupy = request.getfixturevalue("cupy")
    return interop.adapt(lambda x: x * cupy.float32(2), "cupy", writes=())


def doubled_by_cupy_into_out(request):
    cupy = request.getfixturevalue("cupy")

    def double(x, out):
        cupy.add(x, x, out=out)

    return interop.adapt(double, "cupy", writes="out")


def doubled_by_torch(request):
    return interop.adapt(lambda x: x * 2, "torch", writes=())


def doubled_by_torch_alone(request):
    """On torch's current stream, the legacy default one, of which torch says so when it takes the arrays."""
    torch = request.getfixturevalue("torch")

    def double(x, out):
        torch.mul(torch.from_dlpack(x), 2, out=torch.from_dlpack(out))

    return double


def doubled_by_cupy_alone(request):
    cupy = request.getfixturevalue("cupy")

    def double(x):
        return cupy.from_dlpack(x) * cupy.float32(2)

    return double


def doubled_on_a_given_stream(request):
    torch = request.getfixturevalue("torch")
    stream = torch.cuda.Stream()

    def double(x, out):
        interop.multiply(x, 2, out=out, stream=stream)

    return double


def doubled_by_numba(request):
    numba = request.getfixturevalue("numba")

    @numba.jit
    def double(x, out):
        k = numba.grid(1)
        if k < x.size:
            out[k] = 2 * x[k]

    adopted = interop.adopt(double, writes="out", threads="x")
    return lambda x, out: adopted(x, out)


WAYS = [way for name, way in [*globals().items()] if name.startswith("doubled_")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("doubled_"))
def test_it_is_in_xlas_order(gpu, call, torch, cupy, request, way):
    with quiet():
        f = way(request)
        f, more = f if isinstance(f, tuple) else (f, None)
        more = () if more is None else (more,)
        assert_in_order(gpu, lambda x: call(f, x, *more, out=gpu.ShapeDtypeStruct((N,), "float32")))


def test_slow_work_of_the_function_is_waited_for(gpu, call, cupy, torch):
    """The host does not wait for it, and XLA's next kernel does."""
    streams = []

    def slowly(x):
        streams.append(cupy.cuda.get_current_stream().ptr)
        device.delay(streams[-1])
        return x * cupy.float32(2)

    program = gpu.jit(lambda x: call(interop.adapt(slowly, "cupy", writes=()), x + 1, out=x) + 1)
    x = gpu.numpy.asarray(A)
    gpu.block_until_ready(program(x))
    made = program(x + 1)
    assert device.is_busy(streams[-1])
    assert np.array_equal(made, 2 * (A + 2) + 1)


def test_what_is_current_in_the_function(gpu, call, cupy, torch):
    seen = []

    def look(x):
        seen.append((x.stream, x.device, torch.is_grad_enabled(), machine.current_context() is not None))
        return x

    def adapted(library, current):
        return interop.adapt(lambda x: seen.append(current()) or x, library, writes=())

    current_of_cupy = adapted("cupy", lambda: cupy.cuda.get_current_stream().ptr)
    current_of_torch = adapted("torch", lambda: torch.cuda.current_stream().cuda_stream)
    program = gpu.jit(lambda x: call(current_of_torch, call(current_of_cupy, call(look, x, out=x), out=x), out=x))
    torchs, cupys = torch.cuda.current_stream(), cupy.cuda.get_current_stream()
    assert np.array_equal(program(gpu.numpy.asarray(A)), A)
    (stream, place, is_recorded, has_context), of_cupy, of_torch = seen
    assert stream not in (None, 0, 1, 2)
    assert (place, is_recorded, has_context) == ("cuda:0", False, True)
    assert of_cupy == of_torch == stream
    assert (torch.cuda.current_stream(), cupy.cuda.get_current_stream()) == (torchs, cupys)
    assert torch.is_grad_enabled()


def test_nothing_is_copied_to_the_host(gpu, call, cupy):
    double = interop.adapt(lambda x: x * cupy.float32(2), "cupy", writes=())
    program = gpu.jit(lambda x: call(double, x, out=x))
    x = gpu.numpy.asarray(A)
    gpu.block_until_ready(program(x))
    with interop.profile() as profile, gpu.transfer_guard("disallow_explicit"):
        gpu.block_until_ready(program(x))
    assert "host" not in {place for line in str(profile).splitlines() for place in line.split() if "->" in line}


# ---- the memory ----


def test_an_array_used_later_is_refused(gpu, call, cupy, torch):
    kept = []

    def keep(x, out):
        kept.extend([x, x[1:], out])
        interop.copyto(out, x)

    gpu.block_until_ready(gpu.jit(lambda x: call(keep, x, out=x))(gpu.numpy.asarray(A)))
    for x in kept:
        for use in (
            lambda x: interop.add(x, x),
            cupy.from_dlpack,
            torch.from_dlpack,
            cupy.asarray,
            interop.copy,
            lambda x: x.tolist(),
        ):
            with pytest.raises(BufferError, match="which has returned"):
                use(x)


def test_a_thousand_runs_with_allocations_between(gpu, call, cupy, torch):
    double = interop.adapt(lambda x: x + x, "cupy", writes=())
    add = interop.adapt(torch.add, "torch", writes=())
    program = gpu.jit(lambda x: call(add, call(double, x + 1, out=x), x, out=x) - 1)
    x = gpu.numpy.asarray(A[:5000])
    for k in range(1000):
        made = program(x + k)
        others = [gpu.numpy.full(5000, -1.0), cupy.full(5000, -1.0), torch.full((5000,), -1.0, device="cuda")]
        if k % 100 == 0:
            cupy.get_default_memory_pool().free_all_blocks()
            torch.cuda.empty_cache()
            gc.collect()
        np.testing.assert_array_equal(made, 3 * (A[:5000] + k) + 1)
        del others


THREADS = """
    import threading
    import cupy, jax, torch
    import interop.jax
    double = interop.adapt(lambda x: x + x, "cupy", writes=())
    add = interop.adapt(torch.add, "torch", writes=())
    program = jax.jit(lambda x: interop.jax.call(add, interop.jax.call(double, x + 1, out=x), x, out=x) - 1)
    wrong = []

    def run(k):
        x = jax.device_put(np.full(50000, k, "float32"), jax.devices("cuda")[0])
        for _ in range(100):
            if not np.array_equal(program(x), np.full(50000, 3 * k + 1)):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    print(wrong, any(thread.is_alive() for thread in threads))
"""


def test_eight_threads(tmp_path):
    assert alone.run(THREADS, tmp_path).strip() == "[] False"


# ---- two devices ----


@pytest.mark.multi_gpu
def test_a_shard_map_calls_it_on_each_device(jax, call, cupy, two_cuda_devices):
    seen = set()

    def double(x):
        seen.add((x.device.id, cupy.cuda.Device().id))
        return x * cupy.float32(2)

    spec = jax.sharding.PartitionSpec("x")
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cuda")[:2])
    one = interop.adapt(double, "cupy", writes=())
    f = jax.shard_map(lambda x: call(one, x, out=x), mesh=mesh, in_specs=spec, out_specs=spec)
    x = jax.device_put(A, jax.sharding.NamedSharding(mesh, spec))
    np.testing.assert_array_equal(jax.jit(f)(x), 2 * A)
    assert seen == {(0, 0), (1, 1)}


@pytest.mark.multi_gpu
def test_the_device_that_a_function_sets_is_its_own(jax, call, cupy, two_cuda_devices):
    def careless(x, out):
        cupy.cuda.Device(0).use()
        interop.multiply(x, 2, out=out)

    x = jax.device_put(A, jax.devices("cuda")[1])
    program = jax.jit(lambda x: call(careless, x, out=x) + 1)
    for _ in range(3):
        np.testing.assert_array_equal(program(x), 2 * A + 1)


# ---- errors ----


def test_exceptions_arrive(gpu, call):
    def fail(x):
        raise LookupError("of the function")

    program = gpu.jit(lambda x: call(fail, x, out=x))
    x = gpu.numpy.asarray(A)
    with pytest.raises(gpu.errors.JaxRuntimeError, match="LookupError: of the function") as caught:
        gpu.block_until_ready(program(x))
    assert type(interop.jax.exception_of(caught.value)) is LookupError
    with pytest.raises(LookupError, match="of the function"):
        call(fail, x, out=x)
    assert np.array_equal(x + 1, A + 1)


def test_a_result_in_host_memory_is_refused(gpu, call):
    program = gpu.jit(lambda x: call(lambda x: np.zeros(N, "float32"), x, out=x))
    with pytest.raises(gpu.errors.JaxRuntimeError, match=r"on cpu; accepted: what out says, .* on cuda:0"):
        gpu.block_until_ready(program(gpu.numpy.asarray(A)))


TRANSFERS = {
    "get": ("jax.device_get(other)", "the function has JAX copy an array to the host"),
    "values": ("np.asarray(other)", "the function has JAX copy an array to the host"),
    "scalar": ("float(other[0, 0])", "the function calls JAX ("),
}


@pytest.mark.parametrize("name", [*USES, *TRANSFERS])
def test_jax_is_refused_by_name(name, tmp_path):
    use, message = {**USES, **TRANSFERS}[name]
    said, after = printed(use, tmp_path, "cuda")
    assert said.startswith("RuntimeError("), said
    assert message in said
    assert after == "300.0"


# ---- graphs ----

GRAPHS = "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL"
PROGRAM = """
    import jax, numpy as np, interop, interop.jax
    calls = []

    def double(x, out):
        calls.append(x.stream)
        interop.multiply(x, 2, out=out)

    def program(x):
        for _ in range(4):
            x = interop.jax.call(double, x + 1, out=x)
        return interop.matmul(x, x)

    x = jax.device_put(np.ones((64, 64), "float32"), jax.devices("cuda")[0])
    program = jax.jit(program)
    for _ in range(10):
        assert (np.asarray(program(x)) == 64 * 46 * 46).all()
    print(len(calls))
"""


def test_it_is_never_in_a_graph():
    """Beside kernels that are: XLA calls it in every run."""
    environment = {
        **os.environ,
        "XLA_FLAGS": GRAPHS,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "command_buffer_thunk=3",
    }
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "40\n"), done.stderr[-3000:]
    assert re.search(r"command_buffer_thunk\.cc.*Execute command buffer", done.stderr), "XLA used no graph"
