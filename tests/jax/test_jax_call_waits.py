"""Functions of `interop.jax.call` that use JAX themselves: a named error, no hang. Each in a process with a time."""

from __future__ import annotations

import pytest
from helpers import alone
from helpers.jax_waits import USES, printed

from interop import _core

pytest.importorskip("jax")

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_call"], reason="this build has no handlers for JAX")


@pytest.mark.parametrize("name", USES)
def test_jax_is_refused_by_name(name, tmp_path):
    use, message = USES[name]
    said, after = printed(use, tmp_path, "cpu")
    assert said.startswith("RuntimeError("), said
    assert message in said
    assert after == "300.0"


INTERRUPTED = """
    import jax
    import interop.jax
    jax.config.update("jax_platforms", "cpu")

    raised = []

    def f(x, out):
        if not raised:  # once, as a key is pressed once: another would end what comes after the loop
            raised.append(True)
            raise KeyboardInterrupt

    x = jax.numpy.ones(3)
    program = jax.jit(lambda x: interop.jax.call(f, x, out=x))
    try:
        for _ in range(1000):
            try:
                program(x)
            except jax.errors.JaxRuntimeError:  # where XLA has called the function by then
                pass
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_in_the_function_ends_the_program(tmp_path):
    """XLA's error alone would be lost: nobody waits for the results."""
    assert alone.run(INTERRUPTED, tmp_path).strip() == "interrupted"


def test_it_is_refused_there_alone(tmp_path):
    """A thread that is not XLA's may use JAX meanwhile; and so may this one afterwards."""
    use = "thread = threading.Thread(target=lambda: print(float(jnp.sum(jnp.ones(3)))));thread.start();thread.join(60)"
    assert printed(use, tmp_path, "cpu") == ["3.0", "nothing", "300.0"]
