"""`interop.adapt`: functions of one library for the arrays of others, on the host.

What they write to: test_adapt_writes.py. Arrays within others: test_adapt_nested.py. The order of the work on a GPU:
tests/exchange/test_adapt_order.py, tests/gpu/test_adapt.py.
"""

from __future__ import annotations

import functools
import gc
import inspect
import pickle
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from helpers import alone, machine

import interop


def doubled(x, scale=2, *, out=None):
    """Scale an array of NumPy."""
    assert type(x) is np.ndarray
    return np.multiply(x, scale, out=out)


def several(a, b, *rest, out=None, **more):
    return None


def kinds(*args, **kwargs):
    """Return the types of the arguments, and the arguments."""
    return [type(x) for x in (*args, *kwargs.values())], args, kwargs


scaled = interop.adapt(doubled, "numpy", writes="out")


def pointer(x):
    return interop.convert(x, "numpy").__array_interface__["data"][0]


# ---- arguments and results ----


def test_the_result_is_of_the_library_of_the_first_array(torch, host_jax):
    t = torch.arange(3.0)
    assert torch.equal(scaled(t), torch.tensor([0.0, 2.0, 4.0]))
    view = scaled(interop.asarray(t))
    assert type(view) is interop.Array
    assert view.tolist() == [0, 2, 4]
    x = np.arange(3.0)
    assert type(scaled(x)) is np.ndarray
    convolve = interop.adapt(np.convolve, "numpy", writes=(), copy=None)
    assert type(convolve(x, t)) is np.ndarray
    assert type(convolve(t, x)) is torch.Tensor
    j = host_jax.numpy.arange(3.0)
    made = convolve(j, t)
    assert isinstance(made, host_jax.Array)
    assert made.tolist() == np.convolve(np.arange(3.0), np.arange(3.0)).tolist()


def test_every_target_on_the_host(torch, host_jax):
    x = interop.ones(4, "float32", memory="host")
    for library, function in (
        ("torch", torch.negative),
        ("numpy", np.negative),
        ("jax", host_jax.numpy.negative),
        ("interop", interop.negative),
    ):
        made = interop.adapt(function, library, copy=None)(x)
        assert type(made) is interop.Array
        assert made.tolist() == [-1] * 4


def test_arguments_are_the_same_memory(torch):
    t = torch.zeros(4)
    seen = []
    interop.adapt(seen.append, "numpy")(t)
    assert type(seen[0]) is np.ndarray
    assert pointer(t) == pointer(seen[0])
    seen[0][1] = 5
    assert t[1] == 5


def test_named_tuples_of_c(torch):
    made = interop.adapt(torch.max, "torch")(np.array([[1.0, 3.0], [2.0, 0.0]]), dim=1)
    assert type(made) is torch.return_types.max
    assert made.values.tolist() == [3, 2]
    assert type(made.indices) is np.ndarray


def test_results_that_are_no_arrays_pass_through(torch):
    t = torch.ones(3)
    assert interop.adapt(np.shape, "numpy")(t) == (3,)
    assert interop.adapt(np.allclose, "numpy")(t, t) is True
    assert interop.adapt(lambda x: None, "numpy")(t) is None
    assert interop.adapt(lambda x: torch.zeros(1), "numpy")(np.ones(1)).dtype is torch.float32  # of no business of it


@pytest.mark.parametrize(
    "dtype", ["U2", "S2", "M8[s]", "m8[s]", "V8", "O", [("a", "f4")]], ids=lambda dtype: str(dtype)[:3]
)
def test_results_of_numpy_that_are_no_numbers_pass_through(torch, dtype):
    made = np.zeros(2, dtype)
    number, same = interop.adapt(lambda x: (x + 1, made), "numpy")(torch.ones(2))
    assert same is made
    assert type(number) is torch.Tensor


def test_results_that_other_libraries_have_as_bfloat16(torch):
    made = interop.adapt(lambda x: x.astype(ml_dtypes.bfloat16), "numpy")(torch.ones(2))
    assert made.dtype is torch.bfloat16


def test_a_result_that_torch_has_not_conjugated_yet(torch):
    z = np.array([1 + 2j])
    with pytest.raises(BufferError, match=r"adapt\(conj\): the result is a lazily negated or conjugated tensor"):
        interop.adapt(torch.conj, "torch", writes=())(z)
    assert interop.adapt(torch.conj, "torch", writes=(), copy=None)(z).tolist() == [1 - 2j]
    imag = interop.adapt(lambda z: z.conj().imag, "torch", writes=(), copy=None)
    assert imag(z).tolist() == [-2]


def test_numbers_of_numpy_are_arrays_without_dimensions(torch):
    """NumPy returns them in place of such arrays."""
    made = interop.adapt(np.sum, "numpy")(torch.ones(3))
    assert type(made) is torch.Tensor
    assert made.shape == ()
    assert made == 3
    assert type(interop.adapt(np.sum, "numpy")(np.ones(3))) is np.float64


def test_arrays_of_the_library_pass_through(torch):
    x = np.arange(3.0)
    call = interop.adapt(kinds, "numpy")
    _, (same, t), _ = call(x, torch.ones(1))
    assert same is x
    assert type(t) is torch.Tensor
    assert type(interop.adapt(lambda a, b: b + a, "numpy")(x, torch.ones(3))) is np.ndarray
    masked = np.ma.masked_array([1, 2], [True, False])
    assert call(masked)[1][0] is masked
    weight = torch.ones(2, requires_grad=True)
    assert interop.adapt(torch.sum, "torch")(weight).requires_grad


def test_a_result_that_is_a_view_of_an_argument(torch):
    t = torch.arange(6.0).reshape(2, 3)
    made = interop.adapt(np.transpose, "numpy")(t)
    assert made.shape == (3, 2)
    made[0, 1] = 9
    assert t[1, 0] == 9


def test_results_keep_their_memory(torch):
    made = interop.adapt(np.add, "numpy")(torch.ones(1000), 1)
    gc.collect()
    junk = [np.full(1000, -1.0, "float32") for _ in range(50)]
    assert (made == 2).all()
    del junk


def test_arguments_are_let_go(torch):
    t = torch.ones(3)
    gone = weakref.ref(t)
    made = scaled(t)
    del t
    gc.collect()
    assert gone() is None
    assert made.tolist() == [2, 2, 2]


def test_calls_without_arrays(torch):
    assert type(interop.adapt(np.arange, "numpy")(3)) is np.ndarray
    with pytest.raises(ValueError, match=r"adapt\(arange\): stream is given, but no argument is an array; accepted"):
        interop.adapt(np.arange, "numpy")(3, stream=1)


# ---- what is refused ----


def test_tensors_that_require_grad_raise(torch):
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(BufferError, match=r"^interop.adapt\(doubled\): x requires grad"):
        scaled(weight)
    with torch.no_grad():
        assert scaled(weight).tolist() == [2, 2, 2]
    with pytest.raises(BufferError, match="the result requires grad"):
        interop.adapt(lambda x: weight * x, "torch")(np.ones(3, "float32"))


def test_arrays_that_the_library_cannot_take(torch, host_jax):
    total = interop.adapt(torch.sum, "torch")
    x = np.arange(4.0)[::-1]
    message = r"^interop.adapt\(sum\): argument 0: torch has no negative strides; argument 0 is float64 of shape \(4,\)"
    with pytest.raises(ValueError, match=message + ".*or let the call copy it, by copy=None, and writes= without it$"):
        total(x)
    with pytest.raises(ValueError, match="or let the call copy it, by copy=None$"):
        interop.adapt(torch.sum, "torch", writes=())(x)
    copying = interop.adapt(torch.cumsum, "torch", writes=(), copy=None)
    assert copying(x, 0).tolist() == [3, 5, 6, 6]
    flip = interop.adapt(np.flip, "numpy", writes=())
    with pytest.raises(ValueError, match=r"adapt\(flip\): the result: torch has no negative strides.*by copy=None$"):
        flip(torch.arange(3.0))
    assert interop.adapt(np.flip, "numpy", writes=(), copy=None)(torch.arange(3.0)).tolist() == [2, 1, 0]
    strided = interop.adapt(host_jax.numpy.negative, "jax", copy=None)(np.arange(6.0)[::2])
    assert strided.tolist() == [0, -2, -4]


def test_what_is_written_to_is_not_copied(torch):
    x = np.arange(4.0)[::-1]
    with pytest.raises(ValueError, match="negative strides"):
        interop.adapt(torch.sum, "torch", copy=None)(x)


def test_other_things_that_are_no_arrays_of_values(torch, jax):
    call = interop.adapt(torch.negative, "torch", writes=())
    with pytest.raises(TypeError, match=r"adapt\(negative\): argument 0 is numpy.ma"):
        call(np.ma.masked_array([1.0]))
    with pytest.raises(TypeError, match=r"adapt\(negative\): argument 0 is a JAX tracer"):
        jax.jit(call)(jax.numpy.ones(3))
    dask = machine.need("dask")
    with pytest.raises(TypeError, match=r"adapt\(negative\): argument 0 is dask"):
        call(dask.ones(3))


def test_host_arrays_have_no_stream(torch):
    with pytest.raises(ValueError, match=r"adapt\(doubled\): stream is given, but x is in host memory"):
        scaled(torch.ones(3), stream=1)


def test_exceptions_arrive_as_they_are(torch):
    class MineError(Exception):
        pass

    def fails(x):
        raise MineError("as it is")

    with pytest.raises(MineError, match="^as it is$"):
        interop.adapt(fails, "numpy")(torch.ones(1))
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        interop.adapt(doubled, "numpy")(torch.ones(1), nothing=1)


def each(x):
    yield x + 1


async def later(x):
    return x + 1


async def each_later(x):
    yield x + 1


class Called:
    async def __call__(self, x):
        return x + 1


@pytest.mark.parametrize("function", [each, later, each_later, Called()])
def test_functions_that_run_after_the_call(torch, function):
    message = "^interop.adapt: function is .*, a generator or async function, .*; accepted: one that does its work"
    for refused in (function, functools.partial(function)):
        with pytest.raises(TypeError, match=message):
            interop.adapt(refused, "numpy")
    hidden = interop.adapt(lambda x: function(x), "numpy")
    with pytest.raises(TypeError, match=r"adapt\(<lambda>\): the result is .*, which runs after the call; accepted"):
        hidden(torch.ones(1))


@pytest.mark.parametrize(
    ("arguments", "named", "exception", "message"),
    [
        ((3, "numpy"), {}, TypeError, "function is int; accepted: a callable"),
        ((doubled, "mlx"), {}, ValueError, "library is 'mlx'; accepted: 'torch', "),
        ((doubled, None), {}, ValueError, "library is None; accepted"),
        ((doubled, "numpy"), {"copy": True}, ValueError, "copy is True; accepted: False, or None"),
        ((doubled, "numpy"), {"writes": "y"}, ValueError, "writes is 'y'; accepted: the parameters .* x, scale, out"),
        (
            (doubled, "numpy"),
            {"writes": 2},
            ValueError,
            "writes is 2; accepted: the position .* from 0 to 1",
        ),
        ((doubled, "numpy"), {"writes": -1}, ValueError, "writes is -1; accepted"),
        ((doubled, "numpy"), {"writes": 1.5}, TypeError, "writes is 1.5; accepted: None, the name"),
        ((doubled, "numpy"), {"writes": [None]}, TypeError, "writes has None; accepted"),
        ((doubled, "numpy"), {"writes": True}, TypeError, "writes is True; accepted"),
    ],
)
def test_bad_arguments_of_adapt(arguments, named, exception, message):
    with pytest.raises(exception, match=f"^interop.adapt: {message}"):
        interop.adapt(*arguments, **named)


def test_a_library_that_is_not_installed(tmp_path):
    said = alone.run(
        """
        import sys
        sys.modules["cupy"] = None
        call = interop.adapt(len, "cupy")
        try:
            call(np.ones(3))
        except ModuleNotFoundError as error:
            print(error)
        """,
        tmp_path,
    )
    assert said == "interop.adapt(len): library is 'cupy', which is not installed\n"


# ---- the object ----


def test_it_is_like_the_function():
    assert scaled.__name__ == "doubled"
    assert scaled.__doc__ == doubled.__doc__
    assert scaled.__wrapped__ is doubled
    assert repr(scaled) == f"interop.adapt({__name__}.doubled, 'numpy', writes='out')"
    assert repr(interop.adapt(np.convolve, "numpy", copy=None)) == "interop.adapt(numpy.convolve, 'numpy', copy=None)"
    assert str(inspect.signature(scaled)) == "(x, scale=2, *, out=None, stream=None)"
    assert list(inspect.signature(interop.adapt(several, "torch")).parameters)[-2:] == ["stream", "more"]
    assert (
        repr(interop.adapt(functools.partial(doubled, scale=3), "torch"))
        == f"interop.adapt({__name__}.doubled, 'torch')"
    )


def test_attributes_of_the_function_are_not_its_own(torch):
    def plus_one(x):
        return x + 1

    plus_one._call = plus_one._foreign = plus_one._made_of = 3
    call = interop.adapt(plus_one, "numpy")
    assert call(torch.ones(1)).tolist() == [2]
    assert call == interop.adapt(plus_one, "numpy")
    assert call.__wrapped__._call == 3


def test_it_is_pickled(torch):
    call = interop.adapt(np.convolve, "numpy", writes=["a"], copy=None)
    again = pickle.loads(pickle.dumps(call))
    assert again == call
    assert hash(again) == hash(call)
    assert again is not call
    assert again != interop.adapt(np.convolve, "numpy")
    assert again(torch.ones(2), torch.ones(2)).tolist() == [1, 2, 1]


def test_in_the_place_of_the_function_it_is_pickled_by_name(tmp_path):
    alone.run(
        """
        import pickle

        def total(x):
            return np.sum(x)

        total = interop.adapt(total, "numpy")
        assert pickle.loads(pickle.dumps(total)) is total
        """,
        tmp_path,
    )


def test_as_the_call_of_an_operator(torch, host_jax):
    call = interop.adapt(np.cumsum, "numpy", writes=(), copy=None)
    operator = interop.operator("test_adapt::cumsum", call, "a[n] -> [n]")
    assert operator(torch.ones(3)).tolist() == [1, 2, 3]
    assert type(operator(np.ones(3))) is np.ndarray
    made = operator(host_jax.numpy.ones(3))
    assert isinstance(made, host_jax.Array)
    assert made.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="stream is given"):
        operator(torch.ones(3), stream=1)
    calls = [interop.adapt(doubled, "numpy", writes=()) for _ in range(2)]
    assert interop.operator("test_adapt::twice", calls[0], "x[n] -> [n]") == interop.operator(
        "test_adapt::twice", calls[1], "x[n] -> [n]"
    )


def test_explain(torch):
    plan = interop.explain(scaled, torch.ones(3), out=np.zeros(3, "float32"))
    assert [(x.name, x.library, x.shape, x.dtype) for x in plan.arguments] == [
        ("x", "torch", (3,), "float32"),
        ("out", "numpy", (3,), "float32"),
    ]
    assert (plan.result_library, plan.result_shape, plan.device, plan.stream) == ("torch", None, "cpu", None)
    assert plan.copies == ()
    assert "what the function returns" in str(plan)
    copying = interop.adapt(torch.cumsum, "torch", writes=(), copy=None)
    (copy,) = interop.explain(copying, np.arange(4.0)[::-1], 0).copies
    assert copy == "argument 0: copied, as torch has no negative strides"
    with pytest.raises(ValueError, match="negative strides"):
        interop.explain(interop.adapt(torch.sum, "torch", copy=None), np.arange(4.0)[::-1])
    with pytest.raises(TypeError, match="is given no arrays"):
        interop.explain(scaled, 3)


def test_registered_libraries(torch):
    class Grid:
        __slots__ = ("values",)

        def __init__(self, values):
            self.values = values

    grid = Grid(np.arange(3.0))
    call = interop.adapt(kinds, "torch")
    assert call(grid)[0] == [Grid]  # no array yet
    interop.register(Grid, name="grids", export=lambda grid: grid.values)
    types, (same,), _ = call(grid)
    assert types == [torch.Tensor]
    assert same is grid
    assert type(interop.adapt(torch.negative, "torch")(grid)) is interop.Array


def test_threads(torch):
    def work(k):
        t = torch.full((100,), float(k))
        return all((scaled(t, k) == k * k).all() for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_inside_torch_compile(torch):
    """The compiler leaves the call as it is."""
    compiled = torch.compile(lambda x: scaled(x + 1) + 1, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [5, 5, 5]
    whole = torch.compile(lambda x: scaled(x), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"accepted in one: an interop\.operator of it"):
        whole(torch.ones(3))


def test_the_label_is_that_of_the_call():
    call = interop.adapt(functools.partial(doubled), "numpy")
    with pytest.raises(ValueError, match=re.escape("interop.adapt(doubled): stream is given")):
        call(np.ones(1), stream=1)
