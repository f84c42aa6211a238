"""The values of an `interop.Array`: operators, conversions to numbers, printing. On a GPU: tests/gpu/test_memory.py."""

from __future__ import annotations

import copy
import operator
import pickle
import re

import ml_dtypes
import numpy as np
import pytest

import interop


def host(values, dtype=None):
    return interop.copy(np.asarray(values, dtype))


# ---- operators ----

ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("other", ["array", "ndarray", "scalar", "strided"])
def test_operators_compute(name, other):
    compute = getattr(operator, name)
    x, y = np.array([[1.5, 2.0], [3.0, -4.0]]), np.array([[2.0, 2.0], [0.5, 3.0]])
    others = {"array": host(y), "ndarray": y, "scalar": 2.0, "strided": host(y.T).T}
    expected = compute(x, 2.0 if other == "scalar" else y)
    got = compute(host(x), others[other])
    assert type(got) is interop.Array
    np.testing.assert_array_equal(np.asarray(got), expected)
    assert np.asarray(got).dtype == expected.dtype


@pytest.mark.parametrize("name", ARITHMETIC + COMPARISONS)
def test_operators_of_what_comes_first(name):
    """A scalar has no library; NumPy's array leaves it to interop, whose result is of NumPy, which leads."""
    compute = getattr(operator, name)
    y = np.array([2.0, 0.5, 3.0])
    got = compute(3.0, host(y))
    assert type(got) is interop.Array
    np.testing.assert_array_equal(np.asarray(got), compute(3.0, y))
    if name in ARITHMETIC:
        x = np.array([1.0, 2.0, -3.0])
        got = compute(x, host(y))
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, compute(x, y))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_operators_in_place(name):
    x, y = np.array([1.5, 2.0, 3.0]), np.array([2.0, 2.0, 0.5])
    expected = getattr(operator, name)(x, y)
    array = same = host(x)
    pointer = np.asarray(array).ctypes.data
    array = getattr(operator, "i" + name)(array, y)
    assert array is same
    assert np.asarray(array).ctypes.data == pointer
    np.testing.assert_array_equal(np.asarray(array), expected)


def test_matrix_products_and_signs():
    x = np.array([[1.0, -2.0], [3.0, 4.0]])
    a = host(x)
    np.testing.assert_array_equal(np.asarray(a @ a), x @ x)
    assert type(x @ a) is np.ndarray
    np.testing.assert_array_equal(x @ a, x @ x)
    for sign in (operator.neg, operator.pos, abs):
        np.testing.assert_array_equal(np.asarray(sign(a)), sign(x))
    assert not np.shares_memory(np.asarray(+a), np.asarray(a))


def test_torch_leads_where_it_comes_first(torch):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    got = host([3.0, 4.0]) + x
    assert type(got) is interop.Array
    assert got.tolist() == [4, 6]


def test_what_is_no_operand_is_left_to_python():
    x = host([1.0, 2.0])
    assert (x == None) is False  # noqa: E711
    assert (x != "x") is True
    assert x != object()
    for compute in (operator.add, operator.lt, operator.matmul):
        for other in (None, "x", object()):
            with pytest.raises(TypeError, match="Array"):
                compute(x, other)
            with pytest.raises(TypeError, match="Array"):
                compute(other, x)


# ---- one element ----


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex64"])
def test_one_element_is_a_number(shape, dtype):
    x = host(np.full(shape, 1, dtype))
    value = x.item()
    assert type(value) in (bool, int, float, complex)
    assert value == 1
    assert bool(x) is True
    assert bool(host(np.zeros(shape, dtype))) is False
    assert complex(x) == 1
    if dtype != "complex64":
        assert (int(x), float(x)) == (1, 1.0)
    else:
        for convert in (int, float):
            with pytest.raises(TypeError):
                convert(x)
    if "int" in dtype and shape == ():
        assert operator.index(x) == 1
        assert [5, 6][x] == 6
    else:
        why = "of integers, and this array is" if "int" not in dtype else "a 0-d array, and this array has"
        with pytest.raises(TypeError, match=rf"^interop\.Array: an index is {why}"):
            operator.index(x)


def test_one_element_of_ml_dtypes():
    x = host(np.full((1,), 1.5, ml_dtypes.bfloat16))
    assert type(x.item()) is float
    assert float(x) == 1.5


@pytest.mark.parametrize("shape", [(0,), (2,), (1, 2)])
def test_of_other_counts_there_is_no_number(shape):
    x = host(np.ones(shape, "int32"))
    calls = {
        "truth": bool, "int()": int, "float()": float, "complex()": complex, "item()": interop.Array.item,
    }  # fmt: skip
    for what, call in calls.items():
        match = rf"^interop\.Array: {re.escape(what)} is for an array of one element, and this one has shape "
        with pytest.raises(ValueError, match=match):
            call(x)
    with pytest.raises(TypeError, match="an index is a 0-d array, and this array has "):
        operator.index(x)
    with pytest.raises(ValueError, match="truth"):
        assert x == x


def test_lists_and_iteration():
    x = host([[1, 2], [3, 4]])
    assert x.tolist() == [[1, 2], [3, 4]]
    assert x[0, 1].tolist() == 2
    rows = list(x)
    assert [type(row) for row in rows] == [interop.Array] * 2
    assert rows[1].tolist() == [3, 4]
    rows[1][...] = 7
    assert x.tolist() == [[1, 2], [7, 7]]
    assert 2 in x[0]
    assert 9 not in x[0]
    with pytest.raises(TypeError, match="0-d array"):
        iter(x[0, 0])


# ---- printing ----


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.float32(2.5), "interop.Array(2.5, dtype=float32, device=cpu)"),
        ([1, 2], "interop.Array([1, 2], dtype=int64, device=cpu)"),
        (np.zeros((0, 3)), "interop.Array([], shape=(0, 3), dtype=float64, device=cpu)"),
        (
            np.arange(6.0).reshape(2, 3).T,
            "interop.Array([[0., 3.],\n               [1., 4.],\n               [2., 5.]], dtype=float64, device=cpu)",
        ),
        (np.array([1.5], ml_dtypes.bfloat16), "interop.Array([1.5], dtype=bfloat16, device=cpu)"),
    ],
)
def test_it_prints_its_values(values, text):
    assert repr(interop.asarray(np.asarray(values))) == str(interop.asarray(np.asarray(values))) == text


@pytest.mark.parametrize("shape", [(1001,), (40, 50), (3, 500), (2, 2, 300), (1, 2000, 1), (7, 7, 30)])
def test_of_large_arrays_the_corners_are_printed(shape):
    values = np.arange(np.prod(shape), dtype="float64").reshape(shape)
    expected = np.array2string(values, separator=", ", threshold=0, prefix="interop.Array(")
    assert repr(host(values)) == f"interop.Array({expected}, shape={shape}, dtype=float64, device=cpu)"


# ---- other dtypes ----


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "complex64", "bfloat16", np.float64, int])
def test_astype(dtype):
    x = np.array([[0.0, 1.5], [2.0, -3.0]])
    made = host(x).astype(dtype)
    wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert made.dtype == wanted.name
    np.testing.assert_array_equal(np.asarray(made), x.astype(wanted))


# ---- copies of the object ----


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("memory", ["host", "device", "managed", "pinned"])  # the host's, with no GPU
def test_pickle_and_copies(dtype, memory):
    values = np.arange(12).reshape(3, 4).astype(dtype)
    array = interop.copy(values, memory=memory)[:, ::2]
    for make in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        made = make(array)
        assert type(made) is interop.Array
        assert (made.dtype, made.memory, made.device) == (array.dtype, array.memory, array.device)
        assert made.strides == (2, 1)
        interop.copyto(array, 0)  # the memory is another
        np.testing.assert_array_equal(np.asarray(made.to(memory="host")), values[:, ::2])
        interop.copyto(array, values[:, ::2])


def test_pickle_of_every_protocol():
    array = interop.copy(np.float32([[1, 2], [3, 4]]))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        made = pickle.loads(pickle.dumps({"x": [array]}, protocol))
        assert made["x"][0].tolist() == [[1, 2], [3, 4]]


def test_format():
    assert f"{host(1.25):.1f}" == f"{1.25:.1f}"
    assert f"{host([[7]]):04d}" == "0007"
    assert f"{host([1, 2])}" == str(host([1, 2]))
    with pytest.raises(ValueError, match=r"interop\.Array: format\(\) is for an array of one element.*accepted: "):
        f"{host([1.0, 2.0]):.1f}"
