"""`interop.jax.call`: transforms, the lifetime of its functions, other processes, and threads.

Values and errors: test_jax_call.py.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from helpers import alone

import interop
from interop import _core

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_call"], reason="this build has no handlers for JAX")


@pytest.fixture(autouse=True)
def on_the_host(jax):
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def x(jax):
    return jax.numpy.arange(6, dtype="float32").reshape(2, 3)


def double(x):
    return np.asarray(x) * 2


# ---- transforms ----


def test_derivatives_are_refused(jax, call, like, x):
    with pytest.raises(NotImplementedError, match=r"interop.jax.call\(double\): JAX differentiates the call"):
        jax.grad(lambda x: call(double, x, out=like((2, 3))).sum())(x)
    stopped = jax.grad(lambda x: (x * call(double, jax.lax.stop_gradient(x), out=like((2, 3)))).sum())(x)
    assert np.array_equal(stopped, np.asarray(x) * 2)


def test_a_users_derivative(jax, call, like, x):
    @jax.custom_vjp
    def square(x):
        return call(lambda x: np.asarray(x) ** 2, x, out=like(x.shape))

    def slope(x, g):
        return 2 * np.asarray(x) * np.asarray(g)

    square.defvjp(lambda x: (square(x), x), lambda x, g: (call(slope, x, g, out=x),))
    assert np.array_equal(jax.jit(jax.grad(lambda x: square(x).sum()))(x), 2 * np.asarray(x))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap(jax, call, like, x, method):
    shapes = []

    def add(a, b):
        shapes.append((a.shape, b.shape))
        return np.asarray(a) + np.asarray(b)

    b = jax.numpy.ones(3)
    mapped = jax.vmap(lambda a, b: call(add, a, b, out=like((3,)), vmap_method=method), in_axes=(1, None))
    made = jax.jit(mapped)(x.T, b)
    assert np.array_equal(made, np.asarray(x) + 1)
    expected = {
        "sequential": {((3,), (3,))},
        "expand_dims": {((2, 3), (1, 3))},
        "broadcast_all": {((2, 3), (2, 3))},
    }
    assert set(shapes) == expected[method]


def test_vmap_without_a_method_is_refused(jax, call, like, x):
    with pytest.raises(NotImplementedError, match="accepted: vmap_method='sequential'"):
        jax.vmap(lambda x: call(double, x, out=like((3,))))(x)


def test_loops_and_branches(jax, call, like, x):
    def step(i, x):
        return jax.lax.cond(i % 2 == 0, lambda x: call(double, x, out=like((2, 3))), lambda x: x + 1, x)

    made = jax.jit(lambda x: jax.lax.fori_loop(0, 4, step, x))(x)
    assert np.array_equal(made, (np.asarray(x) * 2 + 1) * 2 + 1)


def test_export_is_refused(jax, call, like, x):
    with pytest.raises(NotImplementedError, match="the program is exported"):
        jax.export.export(jax.jit(lambda x: call(double, x, out=like((2, 3)))))(x)
    assert all("interop_call" not in str(check) for check in interop.jax.disabled_checks())


def test_the_handler_says_nothing_of_command_buffers(jax, call, like, x):
    text = jax.jit(lambda x: call(double, x, out=like((2, 3)))).lower(x).as_text()
    assert "@interop_call(" in text
    assert "has_side_effect = true" not in text


# ---- lifetime ----


def test_the_program_keeps_the_function(jax, call, like, x):
    class Function:
        def __call__(self, x):
            return np.asarray(x) * 2

    function = Function()
    gone = weakref.ref(function)
    program = jax.jit(lambda x, f=function: call(f, x, out=like((2, 3)))).lower(x).compile()
    del function
    jax.clear_caches()
    interop.jax._call._compiled.cache_clear()
    gc.collect()
    assert gone() is not None
    assert np.array_equal(program(x), np.asarray(x) * 2)
    del program
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def test_many_functions_are_told_apart(jax, call, like, x):
    programs = [jax.jit(lambda x, k=k: call(lambda x: np.asarray(x) + k, x, out=like((2, 3)))) for k in range(20)]
    for _ in range(2):
        for k, program in enumerate(programs):
            assert np.array_equal(program(x), np.asarray(x) + k)


CACHED = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    import interop, interop.jax
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", "./cache")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("hits") else None)
    x = jax.device_put(np.arange(4, dtype="float32"))
    program = jax.jit(lambda x: interop.jax.call(lambda x: np.asarray(x) {}, x, out=x))
    print(program(x).tolist(), len(hits))
"""


def test_the_persistent_cache_has_no_other_function(tmp_path):
    assert alone.run(CACHED.format("* 2"), tmp_path).split("\n")[0] == "[0.0, 2.0, 4.0, 6.0] 0"
    assert alone.run(CACHED.format("+ 1"), tmp_path).split("\n")[0] == "[1.0, 2.0, 3.0, 4.0] 0"


def test_eight_threads(jax, call, like):
    program = jax.jit(lambda x: call(interop.add, call(double, x, out=like((100,))), x, out=like((100,))) + 1)
    wrong = []

    def run(k):
        x = jax.numpy.full(100, k, "float32")
        wrong.extend(k for _ in range(50) if not np.array_equal(program(x), np.full(100, 3 * k + 1)))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
