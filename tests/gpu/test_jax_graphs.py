"""Products inside `jax.jit` that XLA records into CUDA graphs of its own, its command buffers.

Each runs in a process of its own, as XLA reads its flags once. That a graph was really used is seen in what XLA logs of
its command buffers. "no graphs" is the control: the same program, and no such log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

GRAPHS = "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer="
FLAGS = {
    "one graph": GRAPHS + "FUSION,CUBLAS,CUSTOM_CALL",
    "products alone": GRAPHS + "CUSTOM_CALL",
    "no graphs": GRAPHS,
}

# Whole numbers, so that every order of summation gives the same. The sizes: one for the package's own kernel, and one
# long sum, which cuBLAS splits over blocks with partial sums in a workspace.
PROGRAM = """
    import sys
    import jax, numpy as np
    import jax.numpy as jnp
    import interop

    backend, loop = sys.argv[1], sys.argv[2]
    m, k = (64, 96) if backend == "tiled" else (64, 8192)
    gpu = jax.devices("cuda")[0]
    random = np.random.default_rng(0)

    def add_product(i, c, a, b):
        return c + interop.matmul(jnp.roll(a, i, 0), b, backend=backend)

    @jax.jit
    def sum_of_products(a, b):
        c = jnp.zeros((m, m), jnp.float32)
        if loop == "fori_loop":
            return jax.lax.fori_loop(0, 4, lambda i, c: add_product(i, c, a, b), c)
        for i in range(4):
            c = add_product(i, c, a, b)
        return c

    def draw():
        x, y = (random.integers(-2, 3, shape).astype("float32") for shape in ((m, k), (k, m)))
        expected = sum(np.roll(x, i, 0) @ y for i in range(4))
        return jax.device_put(x, gpu), jax.device_put(y, gpu), expected

    def overwrite_free_memory():
        jax.block_until_ready([jnp.full(size, jnp.nan, jnp.float32) for size in (m * m, m * k, 1 << 20, 12 << 20)])

    kept = []
    for i in range(12):  # at first everything is kept, so that all memory is new each time
        a, b, expected = draw()
        for repeat in range(3):  # then the same memory: a replay, with nothing to record anew
            c = sum_of_products(a, b)
            assert np.array_equal(c, expected), (i, repeat)
            if i < 6:
                kept.append((a, b, c, expected))
            del c
            if i % 2:
                overwrite_free_memory()
    for a, b, c, expected in kept:
        assert np.array_equal(c, expected)
    print("right")
"""


def run(flags, *arguments):
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "command_buffer_thunk=3",
    }
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def replays(log):
    """The numbers of each graph's launches since it was last recorded, in order."""
    line = r"command_buffer_thunk\.cc.*Execute command buffer.*executions=(\d+)"
    return [int(count) for count in re.findall(line, log)]


@pytest.mark.parametrize("loop", ["unrolled", "fori_loop"])
@pytest.mark.parametrize("backend", ["tiled", "cublas"])
@pytest.mark.parametrize("flags", FLAGS)
def test_products_in_xlas_graphs_are_right_at_every_replay(jax, flags, backend, loop):
    done = run(FLAGS[flags], backend, loop)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]
    launches = replays(done.stderr)
    if flags == "no graphs":
        assert not launches
    elif (flags, loop) != ("products alone", "fori_loop"):  # of which XLA, seen with JAX 0.11, makes no graph
        assert launches, "XLA used no graph"
        assert max(launches) > 1, "every graph was recorded anew before its launch"


def test_a_whole_loop_is_one_graph(jax):
    """XLA makes the loop itself a part of the graph: the product is recorded into the body of a conditional node."""
    done = run(GRAPHS + "FUSION,CUBLAS,CUSTOM_CALL,WHILE", "tiled", "fori_loop")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]
    assert replays(done.stderr), "XLA used no graph"


def test_a_lone_call_makes_no_graph(jax):
    """A graph for one product would cost more than it saves; XLA's own threshold keeps it from that."""
    code = """
        import jax, numpy as np, interop
        a = jax.device_put(np.ones((64, 64), "float32"), jax.devices("cuda")[0])
        for _ in range(5):
            assert (np.asarray(interop.matmul(a, a)) == 64).all()
        print("right")
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "command_buffer_thunk=3"}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]
    assert not replays(done.stderr)
