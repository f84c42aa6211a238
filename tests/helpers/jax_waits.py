"""Programs that call a function which uses JAX itself, each in a process that is ended after a time."""

from __future__ import annotations

from pathlib import Path

from helpers import alone

__all__ = ["USES", "printed"]

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
#: By name: what the function does, and what of the error says so.
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


def printed(use: str, folder: Path, platform: str) -> list[str]:
    """Return what it prints: the exception of the function, or "nothing"; and 300.0, as JAX goes on."""
    return alone.run(PROGRAM.replace("USE", use).replace("PLATFORM", platform), folder).splitlines()
