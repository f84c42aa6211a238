"""`interop.jax.call`: functions of other libraries inside `jax.jit`, on the host.

On a GPU: tests/gpu/test_jax_call_gpu.py. Functions that use JAX themselves: test_jax_call_waits.py.
"""

from __future__ import annotations

import functools
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
def call(jax):
    return interop.jax.call


@pytest.fixture
def like(jax):
    """Return the description of an array of that shape and dtype."""
    return lambda shape, dtype="float32": jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture
def x(jax):
    return jax.numpy.arange(6, dtype="float32").reshape(2, 3)


def numpy_of(x):
    """The values of an argument, without a copy."""
    assert type(x) is interop.Array
    return np.asarray(x)


def double(x):
    return numpy_of(x) * 2


def error_of(jax, function, *args):
    """The exception of f, found by the error that JAX raises."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(function)(*args))
    found = interop.jax.exception_of(caught.value)
    assert found is not None, caught.value
    return found


# ---- values ----


def test_a_numpy_function_in_a_program(jax, call, like, x):
    smooth = interop.adapt(np.convolve, "numpy", writes=())

    @jax.jit
    def program(x, by):
        return call(smooth, x.ravel() + 1, by, out=like((7,))) * 10

    made = program(x, jax.numpy.array([0.5, 0.5]))
    assert np.allclose(made, np.convolve(np.arange(6) + 1, [0.5, 0.5]) * 10)


def test_concrete_arrays(call, like, x):
    made = call(double, x, out=like((2, 3)))
    assert np.array_equal(made, np.asarray(x) * 2)
    assert made.devices() == x.devices()


def test_what_the_function_gets(jax, call, like, x):
    met = []

    def look(x, y, *, by, scale):
        met.append((type(x), x.shape, x.dtype, x.device, x.stream, type(y), by, scale))
        assert not np.asarray(x).flags.writeable
        return numpy_of(x) * numpy_of(y["a"][0]) * scale

    made = jax.jit(lambda x: call(look, x, {"a": [np.float32([2])]}, by="name", scale=3, out=like((2, 3))))(x)
    assert np.array_equal(made, np.asarray(x) * 6)
    assert met == [(interop.Array, (2, 3), "float32", "cpu", None, dict, "name", 3)]


def test_results_are_written_by_out(jax, call, like, x):
    def add(a, b, out):
        assert type(out) is interop.Array
        np.add(numpy_of(a), numpy_of(b), out=np.asarray(out))

    assert np.array_equal(jax.jit(lambda x: call(add, x, x, out=like((2, 3))))(x), np.asarray(x) * 2)


def test_interops_own_functions_take_out(jax, call, like, x):
    made = jax.jit(lambda x: call(interop.multiply, x, 3, out=like((2, 3))))(x)
    assert np.array_equal(made, np.asarray(x) * 3)


def test_what_a_function_with_out_returns_counts_too(jax, call, like, x):
    def ignoring(x, out=None):
        return numpy_of(x) + 1

    assert np.array_equal(call(ignoring, x, out=like((2, 3))), np.asarray(x) + 1)


@pytest.mark.parametrize("takes_out", [False, True])
def test_pytrees(jax, call, like, x, takes_out):
    def made(pair):
        return {"sum": numpy_of(pair[0]) + numpy_of(pair[1]), "parts": (numpy_of(pair[0]).sum(1), pair[1])}

    def written(pair, out):
        values = made(pair)
        np.copyto(np.asarray(out["sum"]), values["sum"])
        np.copyto(np.asarray(out["parts"][0]), values["parts"][0])
        np.copyto(np.asarray(out["parts"][1]), values["parts"][1])

    out = {"sum": like((2, 3)), "parts": (like((2,)), like((2, 3)))}
    result = jax.jit(lambda x: call(written if takes_out else made, [x, x + 1], out=out))(x)
    values = np.asarray(x)
    assert np.array_equal(result["sum"], 2 * values + 1)
    assert np.array_equal(result["parts"][0], values.sum(1))
    assert np.array_equal(result["parts"][1], values + 1)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1, 5)])
def test_shapes(jax, call, like, shape):
    x = jax.numpy.ones(shape)
    made = jax.jit(lambda x: call(lambda x: numpy_of(x) + 1, x, out=like(shape)))(x)
    assert made.shape == shape
    assert np.array_equal(made, np.full(shape, 2, "float32"))


def test_a_scalar_of_numpy_is_a_result(jax, call, like, x):
    assert jax.jit(lambda x: call(lambda x: np.sum(numpy_of(x)), x, out=like(())))(x) == 15


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float64", "complex64", "int64"])
def test_dtypes(jax, call, dtype):
    values = np.array([0, 1, 1, 0]).astype(jax.numpy.dtype(dtype))
    with jax.enable_x64(True):
        x = jax.numpy.asarray(values)
    made = jax.jit(lambda x: call(interop.copy, x, out=jax.ShapeDtypeStruct((4,), values.dtype)))(x)
    assert made.dtype == values.dtype
    assert np.array_equal(made, values)


def test_torchs_functions(jax, torch, call, like, x):
    matmul = interop.adapt(torch.matmul, "torch", writes=())
    weight = torch.nn.Parameter(torch.ones(3, 3))
    recorded = []

    def layer(x):
        recorded.append(torch.is_grad_enabled())
        return torch.matmul(x, weight)

    made = jax.jit(lambda x: call(interop.adapt(layer, "torch", writes=()), x, out=like((2, 3))))(x)
    assert np.array_equal(made, np.asarray(x) @ np.ones((3, 3)))
    assert recorded == [False]
    assert torch.is_grad_enabled()
    made = jax.jit(lambda x: call(matmul, x, x.T, out=like((2, 2))))(x)
    assert np.array_equal(made, np.asarray(x) @ np.asarray(x).T)


def test_values_that_are_equal_but_not_the_same(call, like, x):
    def typed(x, value):
        return numpy_of(x) * 0 + np.float32({bool: 1, int: 2, float: 3}[type(value)] * np.copysign(1, value))

    values = [True, 1, 1.0, 0.0, -0.0]
    made = [float(call(typed, x, value, out=like((2, 3)))[0, 0]) for value in values]
    assert made == [1, 2, 3, 3, -3]


def test_the_same_call_is_compiled_once(jax, call, like, x):
    interop.jax._call._compiled.cache_clear()
    for _ in range(3):
        call(double, x, out=like((2, 3)))
    assert interop.jax._call._compiled.cache_info().misses == 1


# ---- what is refused ----


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda call, like, x: call(3, x, out=like(())), TypeError, "function is int"),
        (lambda call, like, x: call(double, out=like(())), TypeError, "no argument is an array"),
        (lambda call, like, x: call(double, x, out=None), ValueError, "out is None, with no result"),
        (lambda call, like, x: call(double, x, out=3), TypeError, "out is 3; accepted: a jax.ShapeDtypeStruct"),
        (lambda call, like, x: call(double, x), TypeError, "interop.jax.call.*out"),
        (lambda call, like, x: call(double, x, interop.asarray(x), out=like(())), TypeError, r"args\[1\] is interop"),
        (
            lambda call, like, x: call(double, np.ma.masked_array([1.0]), out=like(())),
            TypeError,
            r"args\[0\] is numpy.ma",
        ),
        (lambda call, like, x: call(double, x, by=object, y={1}, out=like(())), TypeError, "unhashable type: 'set'"),
        (lambda call, like, x: call(double, x, out=like((), "int4")), TypeError, "out is int4; accepted: bool"),
        (lambda call, like, x: call(double, x, out=like((-1,))), ValueError, "out"),
        (lambda call, like, x: call(double, x, vmap_method="all", out=like(())), ValueError, "vmap_method is 'all'"),
        (lambda call, like, x: call(double, x, stream=1, out=like((2, 3))), ValueError, "stream= is for device arrays"),
    ],
)
def test_arguments_that_are_refused(call, like, x, make, error, match):
    with pytest.raises(error, match=match):
        make(call, like, x)


def test_functions_that_run_later_are_refused(call, like, x):
    def later(x):
        yield x

    async def sometime(x):
        return x

    for f in (later, functools.partial(later), sometime):
        with pytest.raises(TypeError, match="runs after the call"):
            call(f, x, out=like((2, 3)))


def test_stream_inside_jit_is_refused(jax, call, like, x):
    with pytest.raises(ValueError, match="stream= cannot be used inside jax.jit"):
        jax.jit(lambda x: call(double, x, stream=1, out=like((2, 3))))(x)


@pytest.mark.parametrize(
    ("f", "error", "match"),
    [
        (lambda x: np.zeros((3, 2), "float32"), ValueError, r"shape \(3, 2\) on cpu; accepted: what out says, float32"),
        (lambda x: np.zeros((2, 3), "float64"), TypeError, r"the result is float64 of shape \(2, 3\) on cpu"),
        (lambda x: None, TypeError, "the result is NoneType; accepted: an array"),
        (lambda x: [np.zeros((2, 3), "float32")], TypeError, "the result is list; accepted: an array"),
        (lambda x: 1.0, TypeError, "the result is float; accepted: an array"),
        (lambda x: interop.add(x, x, out=x), TypeError, "interop.add: out .* is read-only"),
    ],
)
def test_results_that_are_refused(jax, call, like, x, f, error, match):
    found = error_of(jax, lambda x: call(f, x, out=like((2, 3))), x)
    assert isinstance(found, error)
    with pytest.raises(error, match=match):
        raise found


def test_a_structure_that_is_not_outs_is_refused(jax, call, like, x):
    found = error_of(jax, lambda x: call(double, x, out=(like((2, 3)), like(()))), x)
    assert isinstance(found, TypeError)
    assert "accepted: arrays in the structure of out" in str(found)


def test_an_adapted_function_that_may_write_is_refused(jax, torch, call, like, x):
    found = error_of(jax, lambda x: call(interop.adapt(torch.negative, "torch"), x, out=like((2, 3))), x)
    assert isinstance(found, TypeError)
    assert "is read-only, and the function may write to it" in str(found)


# ---- the memory is lent ----


def test_an_array_used_later_is_refused(jax, torch, call, like, x):
    kept = []

    def keep(x, out):
        kept.extend([x, x[0], x.T, out])
        np.copyto(np.asarray(out), np.asarray(x))

    jax.block_until_ready(jax.jit(lambda x: call(keep, x, out=like((2, 3))))(x))
    lent = "the memory was lent to a function of interop.jax.call, which has returned"
    for array in kept:
        assert array.dtype == "float32"  # what is no memory
        for use in (
            np.asarray,
            memoryview,
            torch.from_dlpack,
            lambda x: x.tolist(),
            lambda x: interop.add(x, x),
            lambda x: interop.convert(x, "numpy"),
            lambda x: interop.copyto(np.empty(x.shape, "float32"), x),
            interop.copy,
            interop.asarray,
            lambda x: interop.asarray(x[..., 0]),
            lambda x: x.__dlpack__(max_version=(1, 1)),
        ):
            with pytest.raises(BufferError, match=lent):
                use(array)


def test_it_is_refused_after_an_exception_too(jax, call, like, x):
    kept = []

    def fail(x):
        kept.append(x)
        raise KeyError("why")

    assert isinstance(error_of(jax, lambda x: call(fail, x, out=like((2, 3))), x), KeyError)
    with pytest.raises(BufferError, match="which has returned"):
        np.asarray(kept[0])


# ---- exceptions ----


def fail_deeply(x):
    def inside():
        return 1 / 0

    try:
        inside()
    except ZeroDivisionError as error:
        raise LookupError("of the function") from error


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


def test_the_exceptions_of_threads_are_told_apart(jax, call, like, x):
    def fail(x):
        raise ValueError(int(numpy_of(x)[0, 0]))

    program = jax.jit(lambda x: call(fail, x, out=like((2, 3))))
    found = {}

    def run(k):
        for _ in range(3):
            with pytest.raises(jax.errors.JaxRuntimeError) as caught:
                jax.block_until_ready(program(x + k))
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


# ---- transforms ----


def test_derivatives_are_refused(jax, call, like, x):
    with pytest.raises(NotImplementedError, match=r"interop.jax.call\(double\): JAX differentiates the call"):
        jax.grad(lambda x: call(double, x, out=like((2, 3))).sum())(x)
    stopped = jax.grad(lambda x: (x * call(double, jax.lax.stop_gradient(x), out=like((2, 3)))).sum())(x)
    assert np.array_equal(stopped, np.asarray(x) * 2)


def test_a_users_derivative(jax, call, like, x):
    @jax.custom_vjp
    def square(x):
        return call(lambda x: numpy_of(x) ** 2, x, out=like(x.shape))

    def slope(x, g):
        return 2 * numpy_of(x) * numpy_of(g)

    square.defvjp(lambda x: (square(x), x), lambda x, g: (call(slope, x, g, out=x),))
    assert np.array_equal(jax.jit(jax.grad(lambda x: square(x).sum()))(x), 2 * np.asarray(x))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap(jax, call, like, x, method):
    shapes = []

    def add(a, b):
        shapes.append((a.shape, b.shape))
        return numpy_of(a) + numpy_of(b)

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
            return numpy_of(x) * 2

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
    programs = [jax.jit(lambda x, k=k: call(lambda x: numpy_of(x) + k, x, out=like((2, 3)))) for k in range(20)]
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
