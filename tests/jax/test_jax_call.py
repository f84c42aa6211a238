"""`interop.jax.call`: functions of other libraries inside `jax.jit`, on the host.

On a GPU: tests/gpu/test_jax_call_gpu.py. Exceptions: test_jax_call_errors.py. Transforms and lifetime:
test_jax_call_transforms.py. Functions that use JAX
themselves: test_jax_call_waits.py.
"""

from __future__ import annotations

import dataclasses
import functools

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


@pytest.mark.parametrize("order", ["in their places", "own arrays", "exchanged"])
def test_what_lies_in_out_is_returned(jax, call, like, x, order):
    def both(x, out):
        np.copyto(np.asarray(out[0]), numpy_of(x) + 1)
        np.copyto(np.asarray(out[1]), numpy_of(x) + 2)
        return {
            "in their places": (np.asarray(out[0]), out[1]),
            "own arrays": (np.asarray(out[0]) * 1, np.asarray(out[1]) * 1),
            "exchanged": (out[1], out[0]),
        }[order]

    def program(x):
        return call(both, x, out=(like((2, 3)), like((2, 3))))

    if order == "exchanged":
        assert "result 0 lies in the memory of out, and not in its place" in str(error_of(jax, program, x))
        return
    one, two = jax.jit(program)(x)
    assert np.array_equal(one, np.asarray(x) + 1)
    assert np.array_equal(two, np.asarray(x) + 2)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_that_torch_resizes_is_refused(jax, torch, call, like, x):
    f = interop.adapt(lambda x, out: torch.tensordot(x, x, 2, out=out), "torch", writes="out")
    found = error_of(jax, lambda x: call(f, x, out=like((4, 4))), x)
    assert type(found) is ValueError
    assert "the function has resized out to shape ()" in str(found)


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


def test_values_that_say_they_are_equal(call, like, x):
    def first(x, values):
        (value,) = values
        return numpy_of(x) * 0 + np.float32(10 if value is True else value)

    assert call(first, x, frozenset({True}), out=like((2, 3)))[0, 0] == 10
    assert call(first, x, frozenset({1}), out=like((2, 3)))[0, 0] == 1

    @dataclasses.dataclass(frozen=True)
    class Scale:
        by: object

        def __call__(self, x):
            return numpy_of(x) * 0 + np.float32(10 if self.by is True else self.by)

    assert call(Scale(True), x, out=like((2, 3)))[0, 0] == 10
    assert call(Scale(1), x, out=like((2, 3)))[0, 0] == 1


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
    may_write = "0 is read-only, and the function may write to it"
    for writes in (None, 0):
        with pytest.raises(TypeError, match=may_write):
            call(interop.adapt(torch.negative, "torch", writes=writes), x, out=like((2, 3)))
    with pytest.raises(TypeError, match="x is read-only"):
        jax.jit(lambda x: call(interop.adapt(lambda x: x, "torch"), {"a": [x]}, out=like((2, 3))))(x)
    with pytest.raises(TypeError, match="the function is JAX's"):
        call(interop.adapt(jax.numpy.sin, "jax"), x, out=like((2, 3)))


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
