"""Kernels and C functions inside `jax.jit` on a GPU: on XLA's stream, in XLA's memory, and in its graphs where safe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import alone, c_functions
from helpers.jax_order import A, assert_in_order
from helpers.kernels import ADD, TRANSPOSE

import interop
from interop import CudaError, _core

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")

SOURCE = r"""
#include <cuda_runtime.h>
__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
static cudaError_t sum_on(cudaStream_t stream, const float* a, const float* b, float* c, int n) {
  if (n > 0) sum_kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}
static cudaStream_t stream_of(int which, unsigned flags) {
  static cudaStream_t streams[2];
  if (!streams[which]) cudaStreamCreateWithFlags(&streams[which], flags);
  return streams[which];
}
extern "C" cudaError_t sum(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
  return sum_on(stream, a, b, c, n);
}
extern "C" cudaError_t on_default(const float* a, const float* b, float* c, int n) { return sum_on(0, a, b, c, n); }
extern "C" cudaError_t on_blocking(const float* a, const float* b, float* c, int n) {
  return sum_on(stream_of(0, cudaStreamDefault), a, b, c, n);
}
extern "C" cudaError_t on_own(const float* a, const float* b, float* c, int n) {
  const cudaStream_t stream = stream_of(1, cudaStreamNonBlocking);
  const cudaError_t status = sum_on(stream, a, b, c, n);
  cudaStreamSynchronize(stream);
  return status;
}
"""
ARRAYS = "device const float* a, device const float* b, device float* c, int n"
DECLARATIONS = f"cudaError_t sum({ARRAYS}, cudaStream_t stream);"


@pytest.fixture
def gpu(jax):
    """JAX, whose new arrays lie on the first GPU."""
    with jax.default_device(jax.devices("cuda")[0]):
        yield jax


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build_cuda(tmp_path_factory.mktemp("load"), "libsum", SOURCE)


# ---- values, and the stream ----


def test_a_kernel_runs_on_xlas_stream(gpu):
    add = interop.kernel(ADD, "add", threads="a").returning(c="a")
    assert_in_order(gpu, lambda x: add(x, x, x.size))


def test_a_c_function_runs_on_xlas_stream(gpu, path):
    add = interop.load(path, DECLARATIONS).sum.returning(c="a")
    assert_in_order(gpu, lambda x: add(x, x, x.size))


@pytest.mark.parametrize("name", ["on_default", "on_blocking", "on_own"])
def test_a_c_function_without_a_stream_is_ordered_with_xlas(gpu, path, name):
    lib = interop.load(path, f"cudaError_t {name}({ARRAYS});", streams="own" if name == "on_own" else "default")
    add = lib[name].returning(c="a")
    assert_in_order(gpu, lambda x: add(x, x, x.size))


def test_views_transforms_and_narrow_dtypes(gpu):
    jnp = gpu.numpy
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 16))
    transpose = transpose.returning(y=lambda x: x.shape[::-1])
    x = jnp.arange(600, dtype="float32").reshape(20, 30)
    np.testing.assert_array_equal(gpu.jit(transpose)(x), x.T)
    np.testing.assert_array_equal(gpu.jit(lambda x: transpose(x[::2, 1:]))(x), np.asarray(x)[::2, 1:].T)
    loop = gpu.jit(lambda x: gpu.lax.scan(lambda c, _: (transpose(transpose(c)) + 1, c.sum()), x, None, length=3)[0])
    np.testing.assert_array_equal(loop(x), x + 3)
    copy = "__global__ void copy(const __nv_bfloat16* x, __nv_bfloat16* y, __nv_bfloat16 by) { *y = *x * by; }"
    copy = interop.kernel(f"#include <cuda_bf16.h>\n{copy}", "copy", grid=1, block=1).returning(y="x")
    assert gpu.jit(lambda x: copy(x, 3))(jnp.full(1, 2, "bfloat16")).tolist() == [6]


def test_a_shard_map_runs_on_each_device(jax, two_cuda_devices):
    spec = jax.sharding.PartitionSpec("x")
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cuda")[:2])
    add = interop.kernel(ADD, "add", threads="a").returning(c="a")
    f = jax.shard_map(lambda x: add(x, x, x.size), mesh=mesh, in_specs=spec, out_specs=spec)
    x = jax.device_put(A, jax.sharding.NamedSharding(mesh, spec))
    np.testing.assert_array_equal(jax.jit(f)(x), 2 * A)


def test_variables_are_those_of_the_kernel(gpu):
    source = "__constant__ float by = 2; __global__ void scale(const float* x, float* y) { *y = by * *x; }"
    x = gpu.numpy.ones(1)
    first, second = (interop.kernel(source, "scale", grid=1, block=1).returning(y="x") for _ in range(2))
    f, g = gpu.jit(first), gpu.jit(second)
    assert (f(x).tolist(), g(x).tolist()) == ([2], [2])
    second.globals["by"] = np.float32(5)
    assert (f(x).tolist(), g(x).tolist()) == ([2], [5])
    assert '"interop_function"' in f.lower(x).compile().as_text()  # not in graphs


# ---- errors ----


def test_a_kernel_that_does_not_compile_is_an_error_at_lowering(gpu):
    broken = interop.kernel("__global__ void broken(const float* x, float* y) { *y = nothing; }", "broken", grid=1)
    with pytest.raises(CudaError, match="nothing"):
        gpu.jit(broken.returning(y="x")).lower(gpu.numpy.ones(1))


def test_failures_are_those_of_the_function(gpu, path):
    add = interop.kernel(ADD, "add", threads="a", block=4096).returning(c="a")
    x = gpu.numpy.asarray(A)
    with pytest.raises(gpu.errors.JaxRuntimeError, match=r"interop.kernel\('add'\): block is \(4096, 1, 1\)"):
        gpu.jit(lambda x: add(x, x, x.size))(x).block_until_ready()
    host = c_functions.build("void f(const float* x, float* y) { *y = *x; }", path.with_name("libhost.so"))
    f = interop.load(host, "void f(host const float* x, host float* y);").f.returning(y="x")
    with pytest.raises(ValueError, match="x is a pointer to host memory, and JAX computes this program on a GPU"):
        gpu.jit(f)(x)


# ---- other processes ----

KERNEL = f"""
    import sys
    import jax, jax.numpy as jnp
    import interop.jax
    add = interop.kernel({ADD!r}, "add", threads=lambda a, b, n: n).returning(c="a")
    x = jax.device_put(np.arange(4, dtype="float32"), jax.devices("cuda")[0])
"""


def test_an_exported_kernel_is_compiled_where_the_program_is_loaded(tmp_path):
    pytest.importorskip("flatbuffers")
    export = """
    f = jax.jit(lambda x: add(x, x, 4))
    exported = jax.export.export(f, platforms=["cuda"], disabled_checks=interop.jax.disabled_checks())(x)
    open("program", "wb").write(exported.serialize())
    """
    call = """
    program = jax.export.deserialize(bytearray(open("program", "rb").read()))
    print(jax.jit(program.call)(x).tolist())
    """
    alone.run(KERNEL + export, tmp_path)
    assert alone.run(KERNEL + call, tmp_path).strip() == "[0.0, 2.0, 4.0, 6.0]"


def test_the_persistent_cache_serves_another_process(tmp_path):
    cached = """
    jax.config.update("jax_compilation_cache_dir", "./cache")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("hits") else None)
    print(jax.jit(lambda x: add(x, x, 4))(x).tolist(), len(hits) > 0)
    """
    assert alone.run(KERNEL + cached, tmp_path).strip() == "[0.0, 2.0, 4.0, 6.0] False"
    assert alone.run(KERNEL + cached, tmp_path).strip() == "[0.0, 2.0, 4.0, 6.0] True"


# ---- graphs ----

GRAPHS = "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=CUSTOM_CALL"
PROGRAM = """
    import sys
    import jax, numpy as np
    import interop

    which, path, source, declarations = sys.argv[1:]
    if which == "kernel":
        add = interop.kernel(source, "add", threads="a").returning(c="a")
    else:
        safe = ("sum",) if which == "safe" else ()
        add = interop.load(path, declarations, graph_safe=safe).sum.returning(c="a")
    f = jax.jit(lambda a, b: add(add(a, b, a.size), b, a.size))
    gpu, kept = jax.devices("cuda")[0], []
    for i in range(12):  # at first everything is kept, so that all memory is new each time
        x = np.arange(4096, dtype="float32") + i
        a, b = jax.device_put(x, gpu), jax.device_put(2 * x, gpu)
        for repeat in range(3):  # then the same memory: a replay, with nothing to record anew
            c = f(a, b)
            assert np.array_equal(c, 5 * x), (i, repeat)
            if i < 6:
                kept.append((a, b, c))
            del c  # so that the next one has its memory
    print("right")
"""


@pytest.mark.parametrize("which", ["kernel", "safe", "not said"])
def test_xlas_graphs_have_what_is_safe_in_them(path, which):
    environment = {
        **os.environ,
        "XLA_FLAGS": GRAPHS,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "command_buffer_thunk=3",
    }
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), which, str(path), ADD, DECLARATIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]
    replays = re.findall(r"Execute command buffer.*executions=(\d+)", done.stderr)
    if which == "not said":
        assert not replays
    else:
        assert replays, "XLA used no graph"
        assert max(map(int, replays)) > 1, "every graph was recorded anew before its launch"
