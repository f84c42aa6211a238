"""`interop.explain`: what a call would do, without doing it. Host arrays and JAX here; on a GPU: tests/gpu."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from helpers.dlpack import Fake

import interop

A = np.arange(6, dtype="float32").reshape(2, 3)
B = np.arange(12, dtype="float32").reshape(3, 4)


def explain(*arrays, **options):
    return interop.explain(interop.matmul, *arrays, **options)


def test_host_arrays():
    plan = explain(A, B[:, ::-2])
    a, b = plan.arguments
    assert (a.name, a.library, a.protocol) == ("a", "numpy", "buffer protocol")
    assert (a.shape, a.strides, a.dtype, a.device) == ((2, 3), (3, 1), "float32", "cpu")
    assert a.pointer == A.ctypes.data
    assert (b.name, b.shape, b.strides, b.pointer) == ("b", (3, 2), (4, -2), B[:, ::-2].ctypes.data)
    assert plan.function == "interop.matmul"
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("numpy", (2, 2), "float32")
    assert (plan.device, plan.stream, plan.stream_reason) == ("cpu", None, "host arrays have no stream")
    assert (plan.waits, plan.held, plan.copies) == ((), (), ())
    assert plan.allocator == "numpy's own, in host memory"
    assert (plan.algorithm, plan.workspace_bytes) == ("numpy.matmul, on views of the arrays", 0)


def test_arrays_of_other_libraries(torch, host_jax):
    plan = explain(torch.from_numpy(A), memoryview(B))
    assert [x.library for x in plan.arguments] == ["torch", "interop"]
    assert plan.arguments[0].protocol == "__dlpack_c_exchange_api__"
    assert re.fullmatch(r"torch's own, by torch('s C functions|\.empty_strided), in host memory", plan.allocator)
    assert explain(memoryview(A), B).allocator == "interop's, 64-byte aligned host memory"
    plan = explain(host_jax.numpy.asarray(A), B)
    assert plan.result_library == "jax"
    assert plan.arguments[0].read_only
    assert plan.allocator == "interop's, 64-byte aligned host memory, handed to JAX without a copy"


def test_out():
    out = np.full((2, 4), 7, "float32")
    plan = explain(memoryview(A), B, out=out)
    assert [x.name for x in plan.arguments] == ["a", "b", "out"]
    assert plan.arguments[2].pointer == out.ctypes.data
    assert plan.allocator == "none: out is given"
    assert plan.result_library == "numpy"
    assert (out == 7).all()


def test_lazy_views_are_copies(torch):
    z = torch.ones(2, 2, dtype=torch.complex64).conj().imag
    plan = explain(z, z.clone())
    assert plan.copies == ("a: a lazily negated or conjugated tensor, resolved by its library",)


def test_jax_arrays_alone(host_jax):
    a, b = host_jax.numpy.asarray(A), host_jax.numpy.asarray(B)
    plan = explain(a, b)
    assert plan.arguments[0].pointer == a.unsafe_buffer_pointer()
    assert (plan.arguments[0].device, plan.device) == ("cpu", "cpu")
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("jax", (2, 4), "float32")
    assert (plan.stream, plan.workspace_bytes, plan.allocator) == (None, None, "XLA's")
    assert plan.algorithm == "the JAX primitive interop_matmul: jax.numpy.matmul"
    plans = []
    host_jax.jit(lambda a, b: plans.append(explain(a, b)) or a)(a, b)
    assert plans[0].arguments[0].pointer is None
    assert plans[0].arguments[0].device == "the device of jax.jit"
    assert "jax.numpy.matmul on the CPU, the XLA FFI handler interop_matmul" in plans[0].algorithm


def test_nothing_is_kept_or_written(torch):
    fake = Fake(A.copy())
    x = torch.from_numpy(A.copy())
    plan = explain(fake, B)
    assert fake.exported == 1  # it shows itself in no other way
    assert fake.balanced
    assert plan.arguments[0].pointer == fake.array.ctypes.data
    explain(x, B)
    assert np.array_equal(fake.array, A)
    assert np.array_equal(x.numpy(), A)


BAD = {
    "shapes": ((A, A), {}),
    "dtype": ((A, B.astype("float128" if hasattr(np, "float128") else object)), {}),
    "narrow dtype": ((A, B), {"dtype": "float16"}),
    "beta without c": ((A, B), {"beta": 2}),
    "unknown epilogue": ((A, B), {"epilogue": "tanh"}),
    "bias of another dtype": ((A, B), {"bias": np.ones(4)}),
    "aux without epilogue": ((A, B), {"aux": np.ones((2, 4), "float32")}),
    "scale of float32": ((A, B), {"scale_a": 2.0}),
    "no array": ((A, 3), {}),
    "out of another shape": ((A, B), {"out": np.ones(3, "float32")}),
    "out of another dtype": ((A, B), {"out": np.ones((2, 4))}),
    "out is an operand": ((A[:, :2], A[:, 1:].T @ A[:, 1:]), {"out": A[:, :2]}),
    "read-only out": ((A, B), {"out": np.broadcast_to(np.float32(1), (2, 4))}),
    "backend": ((A, B), {"backend": "tiled"}),
    "unknown backend": ((A, B), {"backend": "mkl"}),
    "precision": ((A, B), {"precision": "fast"}),
    "stream": ((A, B), {"stream": 1}),
    "execution": ((A, B), {"execution": "gpu"}),
}


def check_same_error(errors, function, arguments, options):
    """The call raises one of these, and its explanation the same in the same words."""
    with pytest.raises(errors) as expected:
        function(*arguments, **options)
    with pytest.raises(expected.type) as found:
        interop.explain(function, *arguments, **options)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("what", BAD)
def test_the_errors_are_those_of_the_call(what):
    check_same_error((TypeError, ValueError), interop.matmul, *BAD[what])


@pytest.mark.parametrize("scalar", [2.0, np.float64(2), np.int8(2)], ids=repr)
def test_scalars_beside_jax_arrays(host_jax, scalar):
    a = host_jax.numpy.asarray(A)
    product = interop.elementwise("x * y")
    for function, arguments in ((interop.add, (a, scalar)), (interop.add, (scalar, a)), (product, (a, scalar))):
        plan = interop.explain(function, *arguments)
        assert plan.result_dtype == str(function(*arguments).dtype)
        assert [argument.library for argument in plan.arguments] == ["jax"]


def test_the_errors_are_those_of_the_call_in_jax(host_jax):
    a = host_jax.numpy.asarray(A)
    square = a[:, :2]
    scaled = interop.elementwise("x * y")
    for function, x, options in (
        (interop.matmul, a, {"out": A}),
        (interop.matmul, a, {}),
        (interop.matmul, square, {"aux": A}),
        (interop.matmul, square, {"autotune": True}),
        (interop.matmul, square, {"stream": "fast"}),
        (interop.matmul, square, {"stream": 1}),
        (interop.matmul, square, {"backend": "tiled"}),
        (interop.matmul, square, {"bias": a}),
        (interop.matmul, square, {"c": a}),
        (interop.matmul, square, {"alpha": "two"}),
        (interop.matmul, square, {"scale_a": 2.0}),
        (interop.matmul, square, {"dtype": "int8"}),
        *(
            (f, a, options)
            for f in (interop.add, scaled)
            for options in ({"stream": "fast"}, {"stream": 1}, {"out": A})
        ),
    ):
        check_same_error((TypeError, ValueError), function, (x, x), options)


@pytest.mark.parametrize("options", [{"stream": 1}, {"execution": "cuda"}], ids=str)
def test_the_errors_are_those_of_the_call_in_jit(host_jax, options):
    a = host_jax.numpy.asarray(A)
    for function in (interop.matmul, interop.add):
        with pytest.raises(ValueError, match="cannot be used inside jax.jit") as expected:
            host_jax.jit(lambda x, y, f=function: f(x, y, **options))(a, a.T if function is interop.matmul else a)
        with pytest.raises(ValueError, match="cannot be used inside jax.jit") as found:
            host_jax.jit(lambda x, y, f=function: interop.explain(f, x, y, **options) and x)(
                a, a.T if function is interop.matmul else a
            )
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "function",
    [print, np.matmul, interop.asarray, "matmul", None],
    ids=lambda function: getattr(function, "__name__", repr(function)),
)
def test_what_cannot_be_explained(function):
    with pytest.raises(TypeError, match="interop.explain: function is .*; accepted: interop.matmul"):
        interop.explain(function, A, B)


@pytest.mark.parametrize("make", ["numpy", "jax"])
def test_scalars_are_checked_as_by_the_call(make, host_jax):
    asarray = host_jax.numpy.asarray if make == "jax" else np.asarray
    whole, real = asarray(np.ones((2, 2), "int8")), asarray(A)
    for function, arguments, options in (
        (interop.add, (whole, 300), {}),
        (interop.divide, (real, real), {"where_zero": 1j}),
        (interop.add, (1, 2), {}),
        (interop.matmul, (whole, whole), {"alpha": 0.5}),
        (interop.matmul, (whole, whole), {"alpha": np.int64(300)}),
    ):
        check_same_error((TypeError, OverflowError), function, arguments, options)
    for call in (interop.matmul, lambda x: interop.explain(interop.matmul, x)):
        with pytest.raises(TypeError, match="missing"):
            call(whole)


def test_unknown_options_are_type_errors():
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        explain(A, B, size=3)


def test_the_record_is_frozen_and_prints():
    plan = explain(A, B)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.stream = 1
    lines = str(plan).splitlines()
    assert lines[0] == "interop.matmul"
    assert lines[1] == f"  a          numpy by buffer protocol: float32 (2, 3), strides (3, 1), cpu, {A.ctypes.data:#x}"
    assert [line.split()[0] for line in lines[3:]] == [
        "result",
        "device",
        "stream",
        "waits",
        "held",
        "copies",
        "allocator",
        "workspace",
        "algorithm",
    ]
    assert plan == explain(A, B)
