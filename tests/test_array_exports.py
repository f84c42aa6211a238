"""What `interop.Array` hands to others: every keyword of `__dlpack__`, copies, the buffer, the C exchange API.

In host memory here; on a GPU: tests/gpu/test_convert.py. Results of calls, their lifetime and errors: test_array.py.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers import dlpack
from helpers.dlpack import (
    CPU,
    CUDA,
    MANAGED,
    PINNED,
    ApiArray,
    Buffer,
    Fake,
    NewerApiArray,
    consume,
    read_capsule,
)

import interop

IS_COPIED = 2
VALUES = np.arange(24, dtype="float32").reshape(4, 6)
LAYOUTS = {
    "compact": VALUES,
    "transposed": VALUES.T,
    "every other": VALUES[::2, 1::3],
    "reversed": VALUES[::-1, ::-2],
    "broadcast": np.broadcast_to(VALUES[0], (3, 6)),
    "no element": VALUES[:0],
    "no dimension": VALUES[1, 1, ...],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def eventually(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def pointer_of(x):
    return np.asarray(x).__array_interface__["data"][0]


# ---- copies ----


@layouts
@pytest.mark.parametrize("device", [None, (1, 0)])
def test_a_copy_is_a_copy(layout, device):
    x = LAYOUTS[layout]
    array = interop.asarray(x)
    capsule = array.__dlpack__(copy=True, dl_device=device, max_version=(1, 0))
    managed = read_capsule(capsule)
    assert managed.flags == IS_COPIED
    assert managed.tensor.device.type == CPU
    copied = interop.asarray(capsule)
    assert np.array_equal(np.asarray(copied), x)
    assert x.size == 0 or not np.shares_memory(np.asarray(copied), x)
    assert copied.shape == x.shape


def test_a_copy_is_writable_and_its_own():
    frozen = VALUES.copy()
    frozen.flags.writeable = False
    array = interop.asarray(frozen)
    copied = np.from_dlpack(array, copy=True)
    copied[0, 0] = 99
    assert frozen[0, 0] == 0
    legacy = array.__dlpack__(copy=True)  # an unversioned capsule cannot say read-only, and need not
    assert dlpack.capsule_name(legacy) == "dltensor"


def test_a_copy_outlives_the_array():
    x = VALUES.copy()
    capsule = interop.asarray(x).__dlpack__(copy=True)
    x[...] = -1
    del x
    gc.collect()
    assert np.array_equal(np.asarray(interop.asarray(capsule)), VALUES)


@pytest.mark.parametrize("copy", [None, False])
def test_no_copy_where_none_is_needed(copy):
    x = VALUES.copy()
    capsule = interop.asarray(x).__dlpack__(copy=copy, dl_device=(1, 0), max_version=(1, 0))
    managed = read_capsule(capsule)
    assert managed.flags == 0
    assert managed.tensor.data == pointer_of(x)


# ---- devices ----


def test_pinned_memory_is_host_memory_to_who_asks_for_that():
    x = VALUES.copy()
    array = interop.asarray(Fake(x, device_type=PINNED))
    assert array.__dlpack_device__() == (PINNED, 0)
    assert array.device == "pinned host memory"
    for keywords, device in (({}, PINNED), ({"dl_device": (PINNED, 0)}, PINNED), ({"dl_device": (CPU, 0)}, CPU)):
        capsule = array.__dlpack__(**keywords)
        tensor = read_capsule(capsule).tensor
        assert (tensor.device.type, tensor.device.id, tensor.data) == (device, 0, pointer_of(x))
    assert np.shares_memory(np.from_dlpack(array), x)
    assert memoryview(array).tolist() == x.tolist()


@pytest.mark.parametrize("device", [(CUDA, 0), (MANAGED, 0), (PINNED, 0), (CPU, 1), (4, 0)])
def test_host_memory_is_not_brought_to_a_device(device):
    array = interop.asarray(VALUES)
    for copy in (None, True, False):
        with pytest.raises(BufferError, match=r"dl_device is .*; accepted: None, or the array's own device, cpu"):
            array.__dlpack__(dl_device=device, copy=copy)


def test_device_types_may_be_enums():
    import enum

    class Device(enum.IntEnum):
        CPU = 1

    assert interop.asarray(VALUES).__dlpack__(dl_device=(Device.CPU, 0))


# ---- attributes ----


def test_len_and_stream():
    array = interop.asarray(VALUES)
    assert len(array) == 4
    assert array.stream is None
    with pytest.raises(TypeError, match="a 0-d array has no len"):
        len(interop.asarray(np.array(1.0)))


def test_read_only_arrays_have_read_only_buffers():
    view = memoryview(interop.asarray(memoryview(b"abc")))
    assert view.readonly
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_char.from_buffer(interop.asarray(memoryview(b"abc")))


get_buffer = dlpack._python("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int)
release_buffer = dlpack._python("PyBuffer_Release", None, ctypes.POINTER(Buffer))

WRITABLE, FORMAT, ND, STRIDES = 0x1, 0x4, 0x8, 0x18
C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT = 0x38, 0x58, 0x98, 0x118
FLAGS = sorted(
    {
        layout | other | more
        for layout in (0, ND, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT)
        for other in (0, C_CONTIGUOUS, F_CONTIGUOUS)
        for more in (0, WRITABLE, FORMAT, WRITABLE | FORMAT)
    }
)


def buffer_of(exporter, flags):
    """All that a consumer is told, or that it is refused."""
    view = Buffer()
    try:
        if get_buffer(exporter, view, flags) != 0:
            return None
    except (BufferError, ValueError) as error:
        assert type(error) is BufferError or not isinstance(exporter, interop.Array)  # noqa: PT017
        return None
    shape = view.shape[: view.ndim] if view.shape else None
    strides = view.strides[: view.ndim] if view.strides else None
    assert not view.suboffsets
    told = view.buf, view.len, view.itemsize, bool(view.readonly), view.ndim, view.format, shape, strides
    release_buffer(view)
    return told


BASE = np.arange(48.0).reshape(2, 4, 6)
BUFFERS = {
    "C": BASE,
    "Fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "neither": BASE.transpose(1, 0, 2),
    "steps": BASE[:, ::2],
    "negative": BASE[::-1],
    "broadcast": np.broadcast_to(BASE[0], (3, 4, 6)),
    "vector": BASE[0, 0],
    "column": BASE[0, :, :1],
    "row": BASE[0, :1, ::2],
    "size 1": BASE[:1, :, :].transpose(1, 0, 2),
    "one element": BASE[:1, 2:3, 4:5],
    "0-d": BASE[0, 0, 0, ...],
    "empty": BASE[:, :0],
    "empty steps": BASE[:0, ::2],
    "read-only": np.frombuffer(bytes(48), "f8").reshape(2, 3),
}


@pytest.mark.parametrize("layout", BUFFERS)
def test_buffers_are_what_the_flags_ask_for(layout):
    """Every combination of flags, against what NumPy says of the same memory."""
    x = BUFFERS[layout]
    array = interop.asarray(x)
    answers = set()
    for flags in FLAGS:
        expected, got = buffer_of(x, flags), buffer_of(array, flags)
        if x.size == 0 and expected and got:  # of nothing, only the layout counts
            expected, got = expected[1:-1], got[1:-1]
        elif expected and got and not x.flags.c_contiguous and not x.flags.f_contiguous:
            # Steps along a dimension of size 1 say nothing.
            steps = [
                tuple(s for s, size in zip(told[-1], x.shape, strict=True) if size > 1) for told in (expected, got)
            ]
            assert steps[0] == steps[1]
            expected, got = expected[:-1], got[:-1]
        assert got == expected, f"flags {flags:#x}"
        answers.add(got is None)
    writable_contiguous = x.flags.c_contiguous and x.flags.f_contiguous and x.flags.writeable
    assert answers == ({False} if writable_contiguous else {False, True})


def test_numpy_reads_what_has_no_buffer(torch):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    array = interop.asarray(x.T)
    with pytest.raises(BufferError, match="the buffer protocol has no bfloat16"):
        memoryview(array)
    y = np.asarray(array)
    assert y.dtype == ml_dtypes.bfloat16
    assert pointer_of(y) == x.data_ptr()
    y[0, 1] = 7
    assert x.tolist() == [[1, 2], [7, 4]]
    assert np.asarray(array, dtype="float32").tolist() == [[1, 7], [2, 4]]
    assert pointer_of(np.array(array)) != x.data_ptr()
    frozen = np.ones(3, ml_dtypes.float8_e5m2)
    frozen.flags.writeable = False
    assert not np.asarray(interop.asarray(frozen)).flags.writeable


def test_numpy_is_told_which_dtype_it_has_not():
    array = interop.asarray(Fake(np.ones(3, "float32"), dtype_code=5))  # complex, of 32 bits
    for read in (np.asarray, lambda x: interop.convert(x, "numpy")):
        with pytest.raises(TypeError, match="NumPy has no dtype for complex32"):
            read(array)


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


# ---- deleters ----


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_owner_of_a_view_is_let_go_on_a_thread_without_the_gil(version):
    fake = Fake(VALUES.copy())
    managed = consume(interop.asarray(fake).__dlpack__(max_version=version))
    assert not fake.balanced
    address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)  # lets the GIL go for the call
    thread = threading.Thread(target=delete, args=(ctypes.addressof(managed),))
    thread.start()
    thread.join()
    assert eventually(lambda: fake.balanced)


def test_an_owner_may_die_on_a_thread_without_the_gil():
    """Its `__del__` is Python code, which would crash there."""
    died = []

    class Owner:
        __array_interface__ = VALUES.__array_interface__

        def __del__(self):
            died.append(threading.current_thread())

    managed = consume(interop.asarray(Owner()).__dlpack__(max_version=(1, 0)))
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
    assert died == []
    thread = threading.Thread(target=delete, args=(ctypes.addressof(managed),))
    thread.start()
    thread.join()
    assert eventually(lambda: died)
    assert died != [thread]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_lets_owners_go_itself(tmp_path):
    """The thread that does so in the parent is not there: the child starts one of its own."""
    (tmp_path / "helpers").symlink_to(Path(dlpack.__file__).parent)
    code = """
        import ctypes, os, sys, time
        sys.path.insert(0, sys.argv[1])
        import numpy, interop
        from helpers.dlpack import Fake, consume

        def is_let_go():
            fake = Fake(numpy.ones(3))
            managed = consume(interop.asarray(fake).__dlpack__(max_version=(1, 0)))
            address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(managed))  # without the GIL
            end = time.monotonic() + 10
            while not fake.balanced and time.monotonic() < end:
                time.sleep(0.005)
            return fake.balanced

        assert is_let_go()
        child = os.fork()
        if child == 0:
            os._exit(0 if is_let_go() else 1)
        assert os.waitpid(child, 0)[1] == 0
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_many_exports_dropped_by_many_threads():
    fakes = [Fake(VALUES.copy()) for _ in range(200)]
    exports = [consume(interop.asarray(fake).__dlpack__(max_version=(1, 0))) for fake in fakes]

    def drop(part):
        for managed in part:
            address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(managed))

    threads = [threading.Thread(target=drop, args=(exports[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eventually(lambda: all(fake.balanced for fake in fakes))
