"""DLPack's C exchange API: the table that `interop.Array` gives, and arrays of types that have one."""

from __future__ import annotations

import ctypes
import gc
import re

import numpy as np
import pytest
from helpers import dlpack
from helpers.dlpack import CPU, ApiArray, Fake, NewerApiArray
from helpers.layouts import LAYOUTS, VALUES, layouts, pointer_of

import interop

# ---- the C exchange API, as a producer ----


@pytest.fixture
def api():
    return dlpack.exchange_api_of(interop.Array)


def test_the_table_is_complete(api):
    assert (api.major, api.minor, api.previous) == (1, 3, None)
    for name in ("allocator", "managed_from_py", "managed_to_py", "view_from_py", "current_work_stream"):
        assert ctypes.cast(getattr(api, name), ctypes.c_void_p).value
    assert not hasattr(interop.asarray(VALUES), "__c_dlpack_exchange_api__")


@layouts
def test_a_view_by_the_table(api, layout):
    x = LAYOUTS[layout]
    array = interop.asarray(x)
    tensor = dlpack.Tensor()
    assert api.view_from_py(array, ctypes.byref(tensor)) == 0
    assert tuple(tensor.shape[: tensor.ndim]) == x.shape
    assert tuple(tensor.strides[: tensor.ndim]) == array.strides
    assert tensor.data == (pointer_of(x) if x.size else None)
    assert (tensor.device.type, tensor.byte_offset) == (CPU, 0)


def test_an_owning_export_by_the_table_and_back(api):
    fake = Fake(VALUES.copy())
    managed = ctypes.c_void_p()
    assert api.managed_from_py(interop.asarray(fake), ctypes.byref(managed)) == 0
    gc.collect()
    assert not fake.balanced  # the export keeps it
    made = ctypes.c_void_p()
    assert api.managed_to_py(managed, ctypes.byref(made)) == 0
    array = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))
    assert type(array) is interop.Array
    assert np.shares_memory(np.asarray(array), fake.array)
    assert not fake.balanced
    del array
    assert fake.balanced


def test_the_allocator_of_the_table(api):
    shape = (ctypes.c_int64 * 2)(3, 5)
    prototype = dlpack.Tensor(None, dlpack.Device(CPU, 0), 2, dlpack.DataType(2, 32, 1), shape, None, 0)
    managed = ctypes.c_void_p()
    assert api.allocator(ctypes.byref(prototype), ctypes.byref(managed), None, None) == 0
    made = dlpack.ManagedVersioned.from_address(managed.value)
    assert (made.major, made.minor, made.flags) == (1, 3, 0)
    assert tuple(made.tensor.shape[:2]) == (3, 5)
    assert tuple(made.tensor.strides[:2]) == (5, 1)
    assert made.tensor.data % 64 == 0
    made.deleter(managed.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ndim": 65}, "ValueError: interop: allocator: ndim is 65; accepted: up to 64"),
        ({"ndim": -1}, "ValueError: interop: allocator: ndim is -1"),
        ({"ndim": -(2**31)}, "ValueError: interop: allocator: ndim is -2147483648"),
        ({"ndim": 2**31 - 1}, "ValueError: interop: allocator: ndim is 2147483647"),
        ({"device": dlpack.Device(4, 0)}, "ValueError: interop: allocator: device is DLPack device type 4"),
        ({"shape": None}, "ValueError: interop: allocator: shape is NULL; accepted: a size for each of 1"),
        ({"sizes": (-1,)}, r"ValueError: interop: allocator: shape is \(-1,\); accepted: no negative sizes"),
        ({"sizes": (0, -(2**63))}, "ValueError: interop: allocator: shape is .*; accepted: no negative sizes"),
        ({"sizes": (2**62,)}, "ValueError: interop: allocator: shape is .*, more elements than any memory"),
        ({"sizes": (2**32, 2**32)}, "ValueError: interop: allocator: shape is .*, more elements than any memory"),
        ({"sizes": (2**40, 2**40, 0)}, "ValueError: interop: allocator: shape is .*, more elements than any memory"),
        ({"sizes": (2**46, 2**8)}, "MemoryError: interop: out of memory"),
        ({"dtype": dlpack.DataType(2, 0, 1)}, "TypeError: interop: allocator: the prototype has the unknown float0"),
        ({"dtype": dlpack.DataType(2, 24, 1)}, "TypeError: interop: allocator: the prototype has the unknown float24"),
        ({"dtype": dlpack.DataType(1, 4, 1)}, "TypeError: interop: allocator: the prototype has the unknown uint4"),
        ({"dtype": dlpack.DataType(2, 32, 0)}, "TypeError: interop: allocator: .*; accepted: dtypes of one lane"),
        ({"dtype": dlpack.DataType(2, 32, 4)}, "TypeError: interop: allocator: .*; accepted: dtypes of one lane"),
        ({"dtype": dlpack.DataType(99, 32, 1)}, r"TypeError: interop: allocator: .*unknown dtype\(code=99"),
    ],
)
def test_what_the_allocator_refuses(api, fields, words):
    said = []

    @dlpack.SetError
    def set_error(context, kind, message):
        said.append((kind.decode(), message.decode()))

    shape = (ctypes.c_int64 * 65)(*[1] * 65)
    prototype = dlpack.Tensor(None, dlpack.Device(CPU, 0), 1, dlpack.DataType(2, 32, 1), shape, None, 0)
    if sizes := fields.get("sizes"):
        prototype.shape, prototype.ndim = (ctypes.c_int64 * len(sizes))(*sizes), len(sizes)
    elif "shape" in fields:
        prototype.shape = ctypes.POINTER(ctypes.c_int64)()
    for name, value in fields.items():
        if name not in ("sizes", "shape"):
            setattr(prototype, name, value)
    managed = ctypes.c_void_p()
    error = ctypes.cast(set_error, ctypes.c_void_p)
    assert api.allocator(ctypes.byref(prototype), ctypes.byref(managed), None, error) == -1
    assert managed.value is None
    ((kind, message),) = said
    assert re.match(words, f"{kind}: {message}"), (kind, message)


def test_the_allocator_without_a_prototype(api):
    said = []
    set_error = dlpack.SetError(lambda context, kind, message: said.append((kind, message)))
    managed = ctypes.c_void_p()
    error = ctypes.cast(set_error, ctypes.c_void_p)
    assert api.allocator(None, ctypes.byref(managed), None, error) == -1
    assert said == [(b"ValueError", b"interop: allocator: the prototype is NULL; accepted: a DLTensor")]
    assert api.allocator(None, ctypes.byref(managed), None, None) == -1  # nobody to tell


@pytest.mark.parametrize("sizes", [(), (0,), (0, 2**40), (1,) * 64], ids=str)
def test_shapes_that_the_allocator_takes(api, sizes):
    shape = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    prototype = dlpack.Tensor(None, dlpack.Device(CPU, 0), len(sizes), dlpack.DataType(2, 32, 1), shape, None, 0)
    if not sizes:
        prototype.shape = ctypes.POINTER(ctypes.c_int64)()
    managed = ctypes.c_void_p()
    assert api.allocator(ctypes.byref(prototype), ctypes.byref(managed), None, None) == 0
    made = dlpack.ManagedVersioned.from_address(managed.value)
    assert tuple(made.tensor.shape[: len(sizes)]) == sizes
    made.deleter(managed.value)


def test_the_work_stream_of_the_host(api):
    stream = ctypes.c_void_p(1)
    assert api.current_work_stream(CPU, 0, ctypes.byref(stream)) == 0
    assert stream.value is None


def test_what_is_no_array_is_a_python_error(api):
    with pytest.raises(TypeError, match=r"numpy.ndarray; accepted: an interop.Array"):
        api.view_from_py(VALUES, ctypes.byref(dlpack.Tensor()))


def test_tvm_ffi_reads_and_makes_arrays_by_the_table():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    x = VALUES.copy()
    echoed = tvm_ffi.get_global_func("testing.echo")(interop.asarray(x))
    assert type(echoed) is interop.Array
    assert np.shares_memory(np.asarray(echoed), x)


# ---- the C exchange API, as a consumer ----


@pytest.mark.parametrize("kind", [ApiArray, NewerApiArray])
def test_arrays_of_a_type_with_the_table(kind):
    x = kind(VALUES.copy())
    assert interop._core.route(x) == ("helpers", "__dlpack_c_exchange_api__")
    product = interop.matmul(x, np.eye(6, dtype="float32"))
    assert type(product) is ApiArray  # made by its own allocator
    assert np.array_equal(product.array, VALUES)
    view = interop.asarray(x)
    assert np.shares_memory(np.asarray(view), x.array)
    assert not x.fake.balanced
    del view
    assert x.fake.balanced


def test_a_refusal_by_the_table_is_an_error():
    x = ApiArray(VALUES.copy())
    x.refuses = True
    with pytest.raises(
        BufferError, match="interop.matmul: a: helpers.dlpack.ApiArray refuses to export: it gives no reason"
    ):
        interop.matmul(x, VALUES.T)
