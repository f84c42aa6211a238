"""What is kept of calls on NumPy's own arrays: the same results, errors and warnings as where nothing is.

A subclass of `numpy.ndarray` that overrides nothing is computed as all other host arrays are: nothing is kept of it.
"""

from __future__ import annotations

import enum
import functools
import itertools
import pickle
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
from helpers import elements
from helpers.threads import THREADS, at_once

import interop


class NotKept(np.ndarray):
    pass


class Three(enum.IntEnum):
    THREE = 3


NATIVE = [elements.BFLOAT16 if name == "bfloat16" else np.dtype(name) for name in elements.DTYPES]
# Equal to NumPy's own objects, or nearly.
OTHERS = [
    pickle.loads(pickle.dumps(np.dtype("f4"))),
    np.dtype(np.longlong),
    np.dtype("f4", metadata={"unit": "m"}),
    np.dtype(">f4"),
    np.dtype(np.longdouble),
    np.dtype(ml_dtypes.float8_e5m2),
]
BINARY = [name for name in elements.OPERATIONS if name not in elements.UNARY]
SCALARS = [True, 0, 3, -1, 300, 2**63, 2**70, 0.0, 2.5, 1e300, np.nan, np.inf, 1j, Three.THREE, np.float32(2)]
EXPRESSIONS = [
    "x * y + a",
    "x ** 2 - 1",
    "where(x > y, x * a, 0)",
    "sqrt(abs(x)) / (y + 2)",
    "x < y",
    "x == 3",
    "x > a",
    "minimum(x, y) % a",
    "x // y",
    "logical_and(x, y)",
    "hypot(x, y)",
    "-x",
    "x",
]
LAYOUTS = {
    "compact": lambda x: x,
    "columns": lambda x: np.asfortranarray(x) if x.ndim else x,
    "backwards": lambda x: x[::-1] if x.ndim else x,
    "spread": lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    "read-only": lambda x: np.broadcast_to(x, x.shape),
}
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), ()), ((), (3,)), ((0, 3), (3,)), ((1, 5), (5, 1))]


def draw(shape, dtype, seed):
    if dtype in NATIVE:
        return elements.draw(shape, dtype, seed)
    with np.errstate(all="ignore"):
        return np.asarray(elements.draw(shape, np.dtype("f4"), seed).astype(dtype))


def outcome(function, operands):
    """The result with all that is seen of it, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = function(*operands)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            found = (type(error), str(error).replace(f"{__name__}.NotKept", "numpy.ndarray"))
        else:
            assert type(x) is np.ndarray
            found = (x.dtype, x.dtype.char, x.dtype.metadata, x.shape, x.strides, str(x.flags), x.tolist())
    return repr(found), sorted(str(each.message) for each in caught)


def check(function, operands):
    """The first call finds out what is kept; the second one has it."""
    others = [x.view(NotKept) if isinstance(x, np.ndarray) else x for x in operands]
    expected = outcome(function, others)
    assert outcome(function, operands) == expected
    assert outcome(function, operands) == expected


def python_of(function, *operands):
    """The Python functions of the package that a call runs."""
    called = []

    def profile(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("interop"):
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        function(*operands)
    finally:
        sys.setprofile(None)
    return called


# ---- what a call costs ----


@pytest.mark.parametrize("dtypes", list(itertools.product([np.float32, np.int32, np.uint64], repeat=2)))
def test_a_second_call_runs_no_python_but_the_function(dtypes):
    x, y = (np.ones((3, 4), dtype) for dtype in dtypes)
    interop.add(x, y)
    assert python_of(interop.add, x, y) == ["add"]
    assert python_of(interop.add, x.T, y.T) == ["add"]
    assert python_of(interop.add, x[:, ::2], y[0, :1]) == ["add"]
    out = interop.add(x, y)
    interop.add(x, y, out=out)
    assert python_of(functools.partial(interop.add, out=out), x, y) == ["add"]
    f = interop.elementwise("x * y + a")
    f(x, y, y)
    assert python_of(f, x, y, y) == ["__call__"]


# ---- results ----


@pytest.mark.parametrize("name", BINARY)
def test_dtypes(name):
    shapes = itertools.cycle(SHAPES)
    layouts = itertools.cycle(itertools.product(LAYOUTS.values(), repeat=2))
    for seed, dtypes in enumerate(itertools.product(NATIVE + OTHERS, repeat=2)):
        pair = [
            layout(draw(shape, dtype, seed + place))
            for place, (shape, dtype, layout) in enumerate(zip(next(shapes), dtypes, next(layouts), strict=True))
        ]
        check(getattr(interop, name), pair)


@pytest.mark.parametrize("name", elements.UNARY)
def test_dtypes_of_one(name):
    for dtype, layout, (shape, _) in itertools.product(NATIVE + OTHERS, LAYOUTS.values(), SHAPES):
        if dtype.kind == "c" and layout is not LAYOUTS["compact"]:
            continue  # whose absolute value NumPy rounds by the strides, and a view has others
        check(getattr(interop, name), [layout(draw(shape, dtype, 0))])


@pytest.mark.parametrize("name", BINARY)
def test_scalars(name):
    for dtype, scalar in itertools.product(NATIVE, SCALARS):
        x = elements.draw((5,), dtype)
        check(getattr(interop, name), [x, scalar])
        check(getattr(interop, name), [scalar, x])


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions(text):
    f = interop.elementwise(text)
    count = len(f.parameters)
    shapes = itertools.cycle(SHAPES)
    for seed, dtypes in enumerate(itertools.product(NATIVE + OTHERS, repeat=min(count, 2))):
        of_all = zip((*dtypes, dtypes[0]), (*next(shapes), ()), LAYOUTS.values(), strict=False)
        check(f, [layout(draw(shape, dtype, seed)) for dtype, shape, layout in of_all][:count])
    for dtype, scalar in itertools.product(NATIVE, SCALARS if count > 1 else []):
        x = elements.draw((5,), dtype)
        check(f, [x] * (count - 1) + [scalar])
        check(f, [scalar] + [x] * (count - 1))


def test_a_scalar_that_is_beyond_a_comparison_once():
    x = np.array([1, 100], np.int8)
    f = interop.elementwise("x < a")
    for limit in (300, 2, 300, -300, 50, 2**70):
        expected = [limit > 1, limit > 100]
        assert interop.less(x, limit).tolist() == expected
        assert f(x, limit).tolist() == expected
        assert interop.greater(limit, x).tolist() == expected


# ---- what is not kept, after what is ----


def test_units_and_masks_are_still_refused():
    class Units(np.ndarray):
        def __array_ufunc__(self, *args, **kwargs):
            raise AssertionError("called")

    x = np.ones(3)
    f = interop.elementwise("x + y")
    interop.add(x, x), f(x, x)
    for other in (x.view(Units), np.ma.array(x)):
        for call in (interop.add, f):
            with pytest.raises(TypeError, match="a subclass of numpy.ndarray with operations of its own"):
                call(x, other)


def test_structures_and_their_fields():
    record = np.ones(3, [("x", "f4"), ("tag", "i1")])
    even = np.ones(3, [("x", "f4"), ("y", "f4")])
    x = np.ones(3, "f4")
    assert (interop.add(x, even["y"]) == 2).all()
    with pytest.raises(TypeError, match="b steps 5 bytes along dimension 0"):
        interop.add(x, record["x"])
    with pytest.raises(TypeError, match="accepted: bool, integers, floats"):
        interop.add(x, record)


@pytest.mark.parametrize("f", [interop.add, interop.elementwise("x + y")], ids=["function", "expression"])
def test_shapes_are_refused_before_anything_is_computed(f):
    x = np.full((3, 4), 3e38, "f4")
    with np.errstate(all="ignore"):
        f(x, x)
    with np.errstate(all="raise"):
        check(f, [x, x[:, :3]])
    wide = np.broadcast_to(np.float32(1), (2**20, 2**20, 1))
    for size in (2**20, 2**23):  # too many for the memory, and for any
        check(f, [wide, np.broadcast_to(np.float32(1), (size,))])


def test_strides_beyond_all_memory_are_refused():
    x = np.ones(2, "f4")
    interop.add(x, x)
    far = np.lib.stride_tricks.as_strided(x, (2**40, 3), (2**40, 4))
    with pytest.raises((BufferError, ValueError)):
        interop.add(far, x[:1])


OUTS = {
    "of its own": lambda x: np.empty((4, 5), "f4"),
    "an operand": lambda x: x[:4],
    "beside an operand": lambda x: x[1:],
    "an operand backwards": lambda x: x[:4][::-1],
    "of every second column": lambda x: np.empty((4, 10), "f4")[:, ::2],
    "of another dtype": lambda x: np.empty((4, 5), "f8"),
    "of a dtype with metadata": lambda x: np.empty((4, 5), np.dtype("f4", metadata={"unit": "m"})),
    "big-endian": lambda x: np.empty((4, 5), ">f4"),
    "too large": lambda x: np.empty((2, 4, 5), "f4"),
    "read-only": lambda x: np.frombuffer(bytes(80), "f4").reshape(4, 5),
    "of one row": lambda x: np.broadcast_to(np.empty(5, "f4"), (4, 5)),
    "a list": lambda x: [1.0],
}


@pytest.mark.parametrize("out_of", OUTS.values(), ids=OUTS)
@pytest.mark.parametrize(
    "f",
    [interop.add, interop.maximum, *map(interop.elementwise, ("x * y + x", "minimum(x, y)", "where(x > y, x, y)"))],
    ids=["add", "maximum", "sum", "minimum", "where"],
)
def test_out(f, out_of):
    def call(kind):
        x, y = np.arange(25, dtype="f4").reshape(5, 5), np.arange(5, dtype="f4")
        out = out_of(x)
        try:
            assert f(x[:4].view(kind), y.view(kind), out=out) is out
        except (TypeError, ValueError) as error:
            return type(error), str(error), x.tolist()
        return out.tolist(), x.tolist()

    f(np.ones((4, 5), "f4"), np.ones(5, "f4"), out=np.empty((4, 5), "f4"))
    assert call(np.ndarray) == call(np.ndarray) == call(NotKept)


def test_a_write_to_what_is_a_view_of_a_tensor_is_counted(torch):
    x = np.ones(3, "f4")
    f = interop.elementwise("x * y")
    owner = torch.zeros(3)
    out = np.asarray(interop.asarray(owner))
    for call in (interop.add, f):
        call(x, x, out=np.empty(3, "f4"))
        before = owner._version
        call(x, x, out=out)
        assert owner._version == before + 1


def test_options():
    x = np.ones(3, "f4")
    interop.add(x, x)
    assert interop.add(x, x, out=None, stream=None, execution=None).tolist() == [2, 2, 2]
    assert interop.divide(x, 0 * x, where_zero=7).tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="stream is given"):
        interop.add(x, x, stream=1)
    with pytest.raises(TypeError):
        interop.add(x, x, backend="numpy")


# ---- NumPy's floating-point errors are the caller's ----


@pytest.mark.parametrize("f", [interop.multiply, interop.elementwise("x * y + 1")], ids=["function", "expression"])
def test_errstate(f):
    x = np.full(3, 3e38, "f4")
    before = sys.getrefcount(x)
    calls = []
    for _ in range(3):
        with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
            f(x, x)
        with np.errstate(over="ignore"):
            assert np.isinf(f(x, x)).all()
        with np.errstate(over="call", call=lambda *found: calls.append(found)):
            f(x, x)
        with pytest.warns(RuntimeWarning, match="overflow"):
            f(x, x)
    assert len(calls) == 3
    assert sys.getrefcount(x) == before


def test_a_handler_that_calls_interop():
    x = np.full(3, 3e38, "f4")
    f = interop.elementwise("x * y + 1")
    with np.errstate(over="ignore"):
        f(x, x)
    inner = []
    with np.errstate(over="call", call=lambda *_: inner.append(f(x / x, x.astype("f8")))):
        assert np.isinf(f(x, x)).all()
    assert inner[0].dtype == np.float64


# ---- memory and threads ----


def test_operands_and_results_are_let_go():
    x, y = np.ones((3, 4), "f4"), np.ones(4, "f4")
    f = interop.elementwise("x * y + 2.5 * y")
    before = [sys.getrefcount(each) for each in (x, y)]
    for _ in range(5):
        results = [interop.add(x, y), f(x, y)]
        assert all(sys.getrefcount(result) == 3 for result in results)  # the list, the loop, the argument
    assert [sys.getrefcount(each) for each in (x, y)] == before


def test_threads_that_find_out_the_same_at_once():
    dtypes = [np.dtype(d) for d in ["i1", "i2", "i4", "i8", "f4", "f8"]]
    for _ in range(5):
        f = interop.elementwise("x * y + a")

        def work(k, f=f):
            for place in range(len(dtypes) ** 2):
                i, j = divmod((place + 7 * k) % len(dtypes) ** 2, len(dtypes))
                x, y = np.full(5, 2, dtypes[i]), np.full(5, 3, dtypes[j])
                z = f(x, y, x)
                assert z.dtype == np.result_type(x, y)
                assert (z == 8).all()
            return True

        assert all(at_once(THREADS, work))
