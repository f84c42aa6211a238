"""`interop.adopt` on the host: functions of tvm-ffi with arrays of any library, and what it accepts.

On a device that is played: tests/exchange/test_adopt_order.py; on a GPU: tests/gpu/test_adopt.py.
"""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest
from helpers import kernels, machine
from helpers.layouts import pointer_of

import interop

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture(scope="module")
def tvm_ffi():
    return machine.need("tvm_ffi")


@pytest.fixture
def doubled(tvm_ffi):
    def double(x, y):
        np.multiply(np.from_dlpack(x), 2, out=np.from_dlpack(y))

    return interop.adopt(tvm_ffi.convert(double), "x, y", writes="y")


@pytest.fixture
def seen(tvm_ffi):
    """A function that returns nothing, and what it was called with."""

    class Seen(list):
        def adopt(self, signature, **options):
            return interop.adopt(tvm_ffi.convert(lambda *args: self.append(args)), signature, **options)

    return Seen()


# ---- arrays ----


def test_into_an_array(doubled):
    y = np.zeros_like(X)
    assert doubled(X, y) is None
    assert y.tolist() == (2 * X).tolist()
    assert doubled(x=X, y=(z := np.zeros_like(X))) is None
    assert z.tolist() == (2 * X).tolist()


def test_a_result_is_of_the_first_librarys(doubled, torch, jax):
    call = doubled.returning(y="x")
    for x, kind in (
        (X, np.ndarray),
        (torch.from_numpy(X), torch.Tensor),
        (jax.numpy.asarray(X), jax.Array),
        (interop.asarray(X), interop.Array),
    ):
        made = call(x)
        assert isinstance(made, kind)
        assert np.asarray(made).dtype == "float32"
        assert np.asarray(made).tolist() == (2 * X).tolist()


def test_no_array_is_copied(seen, torch):
    x, y = torch.ones(3), np.zeros((2, 3))
    seen.adopt("x, y")(x, y[:, ::2])
    ((a, b),) = seen
    assert np.from_dlpack(a).ctypes.data == x.data_ptr()
    assert pointer_of(np.from_dlpack(b)) == pointer_of(y)
    assert np.from_dlpack(b).strides == (24, 16)


def test_a_result_of_a_function_has_the_first_arrays_dtype(tvm_ffi):
    def column(n, x, y):
        np.sum(np.from_dlpack(x), axis=1, out=np.from_dlpack(y))

    call = interop.adopt(tvm_ffi.convert(column), "n, x, y", writes=["y"]).returning(y=lambda n, x: x.shape[:1])
    made = call(7, X)
    assert made.tolist() == [3, 12]
    assert made.dtype == "float32"
    given = np.zeros(2, "float32")
    assert call(7, X, y=given) is given
    with pytest.raises(ValueError, match=r"y has shape \(3,\); accepted: the shape that returning\(\) says, \(2,\)"):
        call(7, X, y=np.zeros(3, "float32"))


def test_several_results(tvm_ffi):
    def both(x, least, most):
        np.from_dlpack(least)[...] = np.from_dlpack(x).min(0)
        np.from_dlpack(most)[...] = np.from_dlpack(x).max(0)

    call = interop.adopt(tvm_ffi.convert(both), "x, least, most", writes=(1, "most"))
    least, most = call.returning(least=lambda x: 3, most=lambda x: (3,))(X)
    assert (least.tolist(), most.tolist()) == ([0, 1, 2], [3, 4, 5])


def test_a_result_like_an_array_of_another_dtype(seen):
    call = seen.adopt("x, k, y", writes="y").returning(y="k")
    made = call(X, np.arange(4))
    assert (made.dtype, made.shape) == (np.int64, (4,))


def test_what_is_no_array_is_passed_on(seen, tvm_ffi):
    seen.adopt("x, a, b, c, d, e, f")(X, 3, 2.5, True, "text", None, (1, 2))
    ((_, *others),) = seen
    assert others[:5] == [3, 2.5, True, "text", None]
    assert [*others[5]] == [1, 2]
    seen.adopt("x, a")(X, np.float32(1.5))
    assert seen[1][1] == 1.5


def test_what_torch_has_not_conjugated_or_negated_yet(doubled, torch):
    z = torch.tensor([1 + 2j, 3 - 4j])
    call = doubled.returning(y="x")
    assert call(z.conj()).tolist() == [2 - 4j, 6 + 8j]
    assert call(z.conj().imag).tolist() == [-4, 8]
    assert call(torch._efficientzerotensor(2)).tolist() == [0, 0]


def test_parameters_of_torch(doubled, torch):
    with torch.no_grad():
        assert doubled.returning(y="x")(torch.nn.Parameter(torch.ones(2))).tolist() == [2, 2]


def test_a_view_that_is_kept_keeps_the_memory(seen):
    x = np.ones(3)
    gone = weakref.ref(x)
    seen.adopt("x")(x)
    del x
    gc.collect()
    assert gone() is not None
    assert np.from_dlpack(seen[0][0]).tolist() == [1, 1, 1]
    seen.clear()
    gc.collect()
    assert gone() is None


def test_a_result_that_is_kept_keeps_its_memory(seen):
    made = seen.adopt("x, y", writes="y").returning(y="x")(X)
    made[...] = 5
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is not None
    assert np.from_dlpack(seen[0][1]).tolist() == [[5] * 3] * 2
    seen.clear()
    gc.collect()
    assert gone() is None


def test_what_it_raises(tvm_ffi):
    def fails(x, y):
        raise KeyError("mine")

    call = interop.adopt(tvm_ffi.convert(fails), "x, y", writes="y")
    y = np.zeros(3)
    for attempt in (lambda: call(X, y), lambda: call.returning(y="x")(X)):
        with pytest.raises(KeyError, match="mine"):
            attempt()
    y.resize(4, refcheck=False)  # which a call that was not ended would forbid


def test_a_call_within_a_call(doubled, tvm_ffi):
    def outer(x, y):
        doubled(np.from_dlpack(x), np.from_dlpack(y))
        doubled(np.from_dlpack(y), np.from_dlpack(y))

    made = interop.adopt(tvm_ffi.convert(outer), "x, y", writes="y").returning(y="x")(X)
    assert made.tolist() == (4 * X).tolist()


# ---- writes ----


def test_read_only_arrays_are_only_read(doubled, seen, jax):
    fixed = X.copy()
    fixed.flags.writeable = False
    y = np.zeros_like(X)
    doubled(fixed, y)
    assert y.tolist() == (2 * X).tolist()
    with pytest.raises(TypeError, match=r"interop\.adopt\(Function\): y .* is read-only; accepted: a writable"):
        doubled(X, fixed)
    with pytest.raises(TypeError, match=r"y is jaxlib.*, which is immutable; accepted: a writable array"):
        doubled(X, jax.numpy.zeros((2, 3)))
    with pytest.raises(TypeError, match="x .* is read-only"):
        seen.adopt("x")(fixed)  # it may write to all
    with pytest.raises(TypeError, match="x is jaxlib"):
        seen.adopt("x")(jax.numpy.zeros(3))
    assert not seen
    seen.adopt("x", writes=())(jax.numpy.zeros(3))
    assert len(seen) == 1


def test_tensors_that_require_grad(doubled, torch):
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(BufferError, match="x requires grad"):
        doubled.returning(y="x")(x)
    with torch.no_grad():
        made = doubled.returning(y="x")(x)
    assert made.tolist() == [2, 2, 2]
    assert not made.requires_grad


def test_writes_are_counted(doubled, torch):
    x, y = torch.ones(3), torch.zeros(3)
    before = x._version, y._version
    doubled(x, y)
    assert (x._version, y._version) == (before[0], before[1] + 1)


# ---- what is refused ----


def _none(*args):
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        (
            None,
            {},
            r"adopt\(Function\): a tvm_ffi\.Function does not say its parameters; accepted: signature=",
        ),
        ("", {}, "signature is ''; accepted: names of parameters, 'x, y, n'"),
        ("float* x", {}, r"signature is 'float\* x'; accepted: names"),
        ("x, y, x", {}, "signature has 'x' twice"),
        ("x, stream", {}, "the parameter 'stream' has the name of a keyword of the call"),
        ("x, y", {"writes": "z"}, "writes has 'z'; accepted: the parameters, x, y, or their positions"),
        ("x, y", {"writes": 2}, "writes has 2; accepted: the parameters, x, y"),
        ("x, y", {"writes": -1}, "writes has -1"),
        ("x, y", {"grid": 1}, r"grid is given, which is not for a tvm_ffi\.Function; accepted: no options of a launch"),
    ],
)
def test_what_it_is_made_of(tvm_ffi, signature, options, message):
    with pytest.raises(ValueError, match=message):
        interop.adopt(tvm_ffi.convert(_none), signature, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signature": 3}, "signature is int; accepted: a str, or None"),
        ({"writes": 1.5}, r"writes is 1\.5; accepted: None, the name of a parameter"),
        ({"writes": (None,)}, "writes has None"),
        ({"options": 3}, "options is int; accepted: a mapping of str, or None"),
        ({"options": {3: 3}}, "options has the key 3; accepted: names, each a str"),
        ({"blocks": 3}, "unexpected keyword argument 'blocks'; did you mean 'block'"),
    ],
)
def test_options_of_another_type(tvm_ffi, options, message):
    with pytest.raises(TypeError, match=rf"^interop\.adopt: .*{message}"):
        interop.adopt(tvm_ffi.convert(_none), **options)


@pytest.mark.parametrize("kernel", [np.sum, "scale", None, interop.kernel, lambda x: x])
def test_what_is_no_kernel(kernel):
    with pytest.raises(TypeError, match=r"interop\.adopt: kernel is .*; accepted: a tvm_ffi\.Function, a cuda\.core\."):
        interop.adopt(kernel)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X,), {}, r"interop\.adopt\(Function\) takes 2 arguments \(x, y\), 1 were given"),
        ((X, X, X), {}, "takes 2 arguments"),
        ((X,), {"x": X}, "x is given twice"),
        ((X, X), {"z": 1}, "has no keyword 'z'; accepted: x, y, stream"),
        ((X, X), {"grid": 1}, "has no keyword 'grid'"),
        ((X, np.ma.masked_array(X, X > 3)), {}, "y is numpy.ma.MaskedArray, a subclass of numpy.ndarray"),
    ],
)
def test_calls_that_do_not_fit(tvm_ffi, args, named, message):
    call = interop.adopt(tvm_ffi.convert(_none), "x, y")
    with pytest.raises(TypeError, match=message):
        call(*args, **named)


def test_a_call_without_arrays(tvm_ffi):
    call = interop.adopt(tvm_ffi.convert(_none), "x, y")
    with pytest.raises(ValueError, match="there is no array argument; accepted: at least one"):
        call(1, 2)
    with pytest.raises(ValueError, match="there is no array argument"):
        call.returning(y="x")(1)
    with pytest.raises(TypeError, match="y is int; accepted: arrays"):
        call.returning(x="y")(1, x=X)


def test_a_stream_for_host_arrays(doubled):
    with pytest.raises(ValueError, match="stream is given"):
        doubled(X, X.copy(), stream=1)


def test_arrays_that_are_traced(doubled, jax):
    with pytest.raises(TypeError, match="x is a JAX tracer"):
        jax.jit(doubled.returning(y="x"))(X)


@pytest.mark.parametrize(
    ("shapes", "kind", "message"),
    [
        ({"y": 3}, TypeError, "returning: the shape of y is int"),
        ({"y": "z"}, ValueError, "the shape of y is 'z'; accepted: a function, or one of x"),
        ({"x": "y"}, ValueError, "x is no pointer to elements that are written; accepted: y"),
    ],
)
def test_rules_of_results(doubled, shapes, kind, message):
    with pytest.raises(kind, match=message):
        doubled.returning(**shapes)


# ---- what it shows ----


def test_repr_and_signature(doubled, seen):
    assert repr(doubled) == "<adopted tvm_ffi.Function(x, y), which writes y>"
    assert repr(seen.adopt("x")) == "<adopted tvm_ffi.Function(x)>"
    assert repr(seen.adopt("x", writes=())) == "<adopted tvm_ffi.Function(x), which writes none>"
    assert str(doubled.returning(y="x").__signature__) == "(x, *, y=None, stream=None)"


def test_it_is_pickled_as_the_function_is(doubled):
    with pytest.raises(TypeError, match="does not support"):  # tvm-ffi's own words
        pickle.dumps(doubled)


def test_explain(doubled, torch):
    x = torch.from_numpy(X)
    plan = interop.explain(doubled.returning(y="x"), x)
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("torch", (2, 3), "float32")
    assert (plan.device, plan.copies) == ("cpu", ())
    assert plan.arguments[0].pointer == x.data_ptr()
    assert plan.algorithm == "the tvm_ffi.Function(x, y), which writes y"
    assert plan.function == "interop.adopt(Function)"


def test_explain_calls_nothing(tvm_ffi):
    interop.explain(interop.adopt(tvm_ffi.convert(_none), "x, y", writes="y").returning(y="x"), X)


# ---- as an operator ----


def test_as_the_call_of_an_operator(doubled, torch):
    scale = interop.operator(
        "adopted::double", doubled.returning(y="x"), "x[...] -> [...]", gradient=lambda g, x, y: 2 * g
    )
    assert scale(X).tolist() == (2 * X).tolist()
    x = torch.ones(3, requires_grad=True)
    scale(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert torch.compile(lambda x: scale(x) + 1, backend="eager", fullgraph=True)(torch.ones(3)).tolist() == [3, 3, 3]


def test_torch_compiles_what_is_around_it(doubled, torch):
    call = doubled.returning(y="x")
    compiled = torch.compile(lambda x: call(x * 3) + 1, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [7, 7]


# ---- other kernels, without their libraries ----


def _numba(function):
    return kernels.played("numba.cuda.dispatcher", "CUDADispatcher", py_func=staticmethod(function))()


def _cupy(**attributes):
    kernel = kernels.PlayedRawKernel()
    vars(kernel).update(attributes)
    return kernel


CORE = kernels.played("cuda.core._module", "Kernel", handle=1)()


def test_the_parameters_of_a_raw_kernel():
    call = interop.adopt(_cupy(), threads="x")
    assert isinstance(call, interop.Kernel)
    assert repr(call) == "<adopted cupy.RawKernel scale(const float* x, float* y, float* z, int n)>"
    assert str(call.returning(y="x", z="x").__signature__).startswith("(x, n, *, y=None, z=None, grid=None")
    call = interop.adopt(_cupy(), threads="x", writes="y")
    assert repr(call).endswith("int n), which only reads z>")
    with pytest.raises(ValueError, match=r"z is only read, as reads= says"):
        call.returning(z="x")
    call = interop.adopt(_cupy(name="_Z5scalePKfPf", code=None), grid=1)
    assert repr(call) == "<adopted cupy.RawKernel _Z5scalePKfPf(float const* arg0, float* arg1)>"


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (CORE, {}, r"interop\.adopt\(cuda\.core\.Kernel\): a cuda\.core\.Kernel without a source does not say its"),
        (_cupy(code=None), {}, r"interop\.adopt\(scale\): a cupy\.RawKernel without a source does not say"),
        (_cupy(), {"writes": "x"}, "writes has 'x', which is only read as it is declared; accepted: y, z"),
        (_cupy(), {"writes": "n"}, "writes has 'n', which is only read"),
        (_cupy(), {"writes": "w"}, "writes has 'w'; accepted: the parameters, x, y, z, n"),
        (
            _cupy(),
            {"options": {}},
            r"options is given, which is not for a cupy\.RawKernel; accepted: grid, threads, block",
        ),
        (_cupy(), {"grid": 1, "threads": "x"}, "grid and threads are given; accepted: one of them"),
        (_cupy(), {"threads": "n"}, "threads is 'n'; accepted: the name of an array parameter"),
        (CORE, {"signature": "x, y"}, r"interop\.adopt\('kernel'\): "),
        (_numba(lambda x, *args: None), {}, r"the parameter \*args is not by position"),
    ],
)
def test_what_kernels_are_made_of(kernel, options, message):
    with pytest.raises(ValueError, match=message):
        interop.adopt(kernel, **options)


def test_host_arrays_are_not_for_raw_kernels():
    call = interop.adopt(CORE, "const float* x, float* y, int n", threads="x")
    with pytest.raises(
        TypeError, match=r"interop\.adopt\('kernel'\): x is float32 .* accepted: a float32 array on a CUDA"
    ):
        call(X, X.copy(), 6)
    with pytest.raises(TypeError, match=r"n is numpy\.ndarray; accepted: an integer"):
        call(X, X.copy(), X)


def test_variables_of_adopted_code():
    kernel = interop.adopt(_cupy(), grid=1)
    with pytest.raises(KeyError, match="'weights' is in code that another library has loaded"):
        kernel.globals["weights"] = np.ones(3)


class _Pickled(kernels.PlayedRawKernel):
    pass


def test_raw_kernels_are_pickled_as_they_are():
    call = interop.adopt(_Pickled(), threads="x", writes="y").returning(y="x")
    again = pickle.loads(pickle.dumps(call))
    assert repr(again) == repr(call)
    assert str(again.__signature__) == str(call.__signature__)
