"""Functions of `interop.jax.call` that use JAX themselves: a named error, no hang. Each in a process with a time."""

from __future__ import annotations

import pytest
from helpers import alone

from interop import _core

pytest.importorskip("jax")

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_call"], reason="this build has no handlers for JAX")

PROGRAM = """
    import functools
    import threading
    import jax, jax.numpy as jnp
    import interop.jax
    jax.config.update("jax_platforms", "PLATFORM")

    @jax.jit
    def before(x):
        return x @ x

    other = jnp.ones((300, 300), "float32")
    jax.block_until_ready(before(other))  # compiled
    compiled = before.lower(other).compile()

    def f(x):
        USE
        return x

    out = jax.ShapeDtypeStruct((300, 300), "float32")
    program = jax.jit(lambda x: interop.jax.call(f, x @ x, out=out) + 1)
    try:
        jax.block_until_ready(program(other))
    except jax.errors.JaxRuntimeError as error:
        print(repr(interop.jax.exception_of(error)))
    else:
        print("nothing")
    print(float(before(other)[0, 0]))  # and JAX goes on
"""
USES = {
    "jnp": ("jnp.sin(other)", "the function calls JAX (sin)"),
    "operator": ("other + 1", "the function calls JAX (add)"),
    "jitted": ("before(other)", "the function calls JAX (before)"),
    "made": ("jnp.zeros(3)", "the function calls JAX ("),
    "put": ("jax.device_put(np.ones(3))", "the function calls JAX (device_put)"),
    "lent": ("jnp.asarray(x)", "an array of JAX is used in a function that XLA calls"),
    "gradient": ("jax.grad(lambda x: jnp.sum(x * x))(other)", "the function calls JAX ("),
    "itself": ("program(other)", "the function calls JAX ("),
    "call": ("interop.jax.call(interop.copy, other, out=other)", "the function calls JAX (interop_call)"),
    "interop": ("interop.add(other, other)", "an array of JAX is used in a function that XLA calls"),
    "beside": ("interop.copyto(np.empty((300, 300), 'float32'), other)", "an array of JAX is used in a function"),
    "converted": ("interop.convert(x, 'jax')", "an array of JAX is used in a function that XLA calls"),
    "asarray": ("interop.asarray(other)", "an array of JAX is used in a function that XLA calls"),
}


def printed(use, folder, platform="cpu"):
    return alone.run(PROGRAM.replace("USE", use).replace("PLATFORM", platform), folder).splitlines()


@pytest.mark.parametrize("name", USES)
def test_jax_is_refused_by_name(name, tmp_path):
    use, message = USES[name]
    said, after = printed(use, tmp_path)
    assert said.startswith("RuntimeError("), said
    assert message in said
    assert after == "300.0"


def test_it_is_refused_there_alone(tmp_path):
    """A thread that is not XLA's may use JAX meanwhile; and so may this one afterwards."""
    use = "thread = threading.Thread(target=lambda: print(float(jnp.sum(jnp.ones(3)))));thread.start();thread.join(60)"
    assert printed(use, tmp_path) == ["3.0", "nothing", "300.0"]
