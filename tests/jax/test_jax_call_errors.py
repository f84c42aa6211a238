"""`interop.jax.call`: what its functions raise, on the host. Values, and what is refused: test_jax_call.py."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

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


def numpy_of(x):
    """The values of an argument, without a copy."""
    assert type(x) is interop.Array
    return np.asarray(x)


def error_of(jax, function, *args):
    """The exception of f, found by the error that JAX raises."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(function)(*args))
    found = interop.jax.exception_of(caught.value)
    assert found is not None, caught.value
    return found


def fail_deeply(x):
    def inside():
        return 1 / 0

    try:
        inside()
    except ZeroDivisionError as error:
        raise LookupError("of the function") from error


def test_a_call_of_concrete_arrays_raises_what_the_function_does(call, like, x):
    with pytest.raises(LookupError, match="of the function") as caught:
        call(fail_deeply, x, out=like((2, 3)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_adapted_function_may_copy_what_its_library_does_not_take(jax, torch, call, like, x):
    def plus(x, y):
        return x + y

    adapted = interop.adapt(plus, "torch", writes=(), copy=None)
    assert np.array_equal(jax.jit(lambda x: call(adapted, x, y=1, out=like((2, 3))))(x), np.asarray(x) + 1)


def test_arrays_within_what_an_adapted_function_takes(jax, torch, call, like, x):
    def total(pair, *, more):
        assert all(type(part) is torch.Tensor for part in (*pair, more["x"]))
        return {"sum": pair[0] + pair[1], "same": more["x"]}

    adapted = interop.adapt(total, "torch", writes=())
    out = {"sum": like((2, 3)), "same": like((2, 3))}
    made = jax.jit(lambda x: call(adapted, (x, x), more={"x": x}, out=out))(x)
    assert np.array_equal(made["sum"], 2 * np.asarray(x))
    assert np.array_equal(made["same"], x)


def test_an_adapted_function_writes_to_out(jax, torch, call, like, x):
    def both(x, out):
        assert all(type(part) is torch.Tensor for part in out)
        torch.mul(x, 2, out=out[0])
        torch.mul(x, 3, out=out[1])
        return out

    adapted = interop.adapt(both, "torch", writes="out")
    two, three = jax.jit(lambda x: call(adapted, x, out=(like((2, 3)), like((2, 3)))))(x)
    assert np.array_equal(two, 2 * np.asarray(x))
    assert np.array_equal(three, 3 * np.asarray(x))


def test_exceptions_arrive_with_their_traceback(jax, call, like, x):
    with pytest.raises(jax.errors.JaxRuntimeError, match="LookupError: of the function") as caught:
        jax.block_until_ready(jax.jit(lambda x: call(fail_deeply, x, out=like((2, 3))))(x))
    assert "in inside" in str(caught.value)
    found = interop.jax.exception_of(caught.value)
    assert type(found) is LookupError
    assert isinstance(found.__cause__, ZeroDivisionError)
    names = []
    trace = found.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "fail_deeply"


def test_an_exception_that_is_chained_from_another_is_found(jax, call, like, x):
    def fail(x):
        raise KeyError("first")

    def chained(x):
        raise ValueError("second") from errors[0]

    errors = []
    for f in (fail, chained):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(jax.jit(lambda x, f=f: call(f, x, out=like((2, 3))))(x))
        errors.append(caught.value)
    assert [type(interop.jax.exception_of(error)) for error in errors] == [KeyError, ValueError]
    with pytest.raises(ValueError, match="second"):
        call(chained, x, out=like((2, 3)))


def test_what_is_kept_of_an_exception_has_no_arrays(jax, call, like, x):
    class Large:
        pass

    gone = []

    def fail(x):
        large = Large()
        gone.append(weakref.ref(large))
        raise ValueError

    found = error_of(jax, lambda x: call(fail, x, out=like((2, 3))), x)
    assert found.__traceback__ is not None
    assert gone[0]() is None


def test_the_exceptions_of_threads_are_told_apart(jax, call, like, x):
    def fail(x):
        raise ValueError(int(numpy_of(x)[0, 0]))

    program = jax.jit(lambda x: call(fail, x, out=like((2, 3))))
    found = {}

    def run(k):
        mine = jax.device_put(np.asarray(x) + np.float32(k), x.devices().pop())  # a thread has its own default device
        for _ in range(3):
            with pytest.raises(jax.errors.JaxRuntimeError) as caught:
                jax.block_until_ready(program(mine))
            found.setdefault(k, set()).add(str(interop.jax.exception_of(caught.value)))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {k: {str(k)} for k in range(4)}


def test_few_exceptions_are_kept(jax, call, like, x):
    def fail(x):
        raise ValueError

    errors = []
    program = jax.jit(lambda x: call(fail, x, out=like((2, 3))))
    for _ in range(70):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(program(x))
        errors.append(caught.value)
    assert interop.jax.exception_of(errors[0]) is None
    assert interop.jax.exception_of(errors[-1]) is not None
    assert len(interop.jax._raised._kept) == 64
    assert interop.jax.exception_of(ValueError("of somebody else")) is None


def test_a_program_runs_after_one_that_failed(jax, call, like, x):
    fails = [True]

    def sometimes(x):
        if fails.pop():
            raise ValueError
        return numpy_of(x)

    fails.insert(0, False)
    program = jax.jit(lambda x: call(sometimes, x, out=like((2, 3))))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(program(x))
    assert np.array_equal(program(x), x)
