"""Array libraries beside those of `helpers.libraries`, by real objects: each by its own route, with its own result.

Their layouts and dtypes are in the conformance matrix (`tests/test_conformance.py`).
"""

from __future__ import annotations

import ctypes
import gc
import sys

import numpy as np
import pytest
from helpers import machine
from helpers.dlpack import Fake, consume, stray_deletes
from helpers.exchange_api import Exchange

import interop

X = np.arange(6.0).reshape(2, 3)
Y = np.arange(12.0).reshape(3, 4)


def route(x):
    return interop._core.route(x)


# ---- any type with the C exchange API ----


@pytest.mark.parametrize(
    "tables",
    [
        [{}],
        [{"version": (1, 7)}],
        [{"attribute": "__c_dlpack_exchange_api__"}],
        [{"attribute": "__c_dlpack_exchange_api__", "as_int": True}],
        [{"version": (2, 0)}, {}],
        [{"version": (3, 1)}, {"version": (2, 0)}, {}],
    ],
    ids=["1.3", "later minor", "older name", "older name, int", "later major", "two later majors"],
)
def test_exchange_api_reads_and_allocates(tables):
    """Each table names the next as the one before it; the last, of version 1, answers."""
    library = answering = Exchange(**tables[-1])
    for fields in reversed(tables[:-1]):
        library = Exchange(before=library, **fields)
    a, b = library.array(X), library.array(Y.T.copy().T)
    assert route(a) == ("exchanged", "__dlpack_c_exchange_api__")
    c = interop.matmul(a, b)
    assert type(c) is answering.type
    assert np.array_equal(c.fake.array, X @ Y)
    assert answering.calls == ["from_python", "from_python", "allocate", "to_python"]
    assert interop.matmul(X, Y, out=(out := library.array(np.zeros((2, 4))))) is out
    assert np.array_equal(out.fake.array, X @ Y)
    assert type(interop.matmul(X, b)) is np.ndarray
    assert interop.matmul(library.array(X[0]), Y[:, 0]).fake.array.shape == ()
    assert interop.matmul(library.array(X[:0]), Y).fake.array.shape == (0, 4)
    assert library.balanced
    assert answering.balanced


@pytest.mark.parametrize(
    "fields",
    [
        {"version": (2, 0)},
        {"version": (0, 9)},
        {"lacks": "from_python"},
        {"name": b"another_api"},
        {"attribute": "__dlpack_c_exchange_api__", "as_int": True, "version": (9, 0)},
    ],
    ids=["no table of ours", "before 1", "no export", "another capsule", "an int, of version 9"],
)
def test_exchange_api_that_cannot_be_used_leaves_the_other_protocols(fields):
    library = Exchange(**fields)
    with pytest.raises(
        TypeError, match="^interop.matmul: a is exchanged.arrays.Exchanged; accepted: arrays with DLPack"
    ):
        interop.matmul(library.array(X), Y)

    class Both(library.type):
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return self.fake.__dlpack__(**keywords)

    assert route(Both(Fake(X))) == ("interop", "__dlpack__")
    assert np.array_equal(np.asarray(interop.matmul(Both(Fake(X)), Y)), X @ Y)
    assert library.calls == []


def test_of_several_protocols_the_first_is_taken():
    class Table(Exchange().type):
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            raise AssertionError("the table comes first")

    assert route(Table(Fake(X)))[1] == "__dlpack_c_exchange_api__"
    fields = {"__dlpack__": None, "__dlpack_device__": None, "__array_interface__": X.__array_interface__}
    assert route(type("Dlpack", (), fields)()) == ("interop", "__dlpack__")
    fields = {"__cuda_array_interface__": None, "__array_interface__": X.__array_interface__}
    assert route(type("Interfaces", (), fields)()) == ("interop", "__cuda_array_interface__")


@pytest.mark.parametrize("names", [("__array_interface__",), ("__dlpack__", "__dlpack_device__")], ids=str)
def test_a_protocol_on_the_instance_alone(names):
    class Proxy:
        pass

    proxy, x = Proxy(), np.arange(3.0)
    for name in names:
        setattr(proxy, name, getattr(x, name))
    assert np.shares_memory(np.asarray(interop.asarray(proxy)), x)
    with pytest.raises(TypeError, match="a is .*Proxy; accepted: arrays with DLPack"):
        interop.matmul(Proxy(), x)


def test_a_type_at_the_address_of_a_dropped_one_has_its_own_route():
    """Routes are known by the type's address, so a type that has one is kept alive."""
    for _ in range(20):
        assert route(type("One", (), {"__dlpack__": None, "__dlpack_device__": None})())[1] == "__dlpack__"
        gc.collect()
        assert route(type("Two", (), {"__array_interface__": None})())[1] == "buffer protocol"
        gc.collect()


@pytest.mark.parametrize("value", [None, 5.0, "x", 0, property(lambda self: 1)], ids=lambda value: type(value).__name__)
def test_exchange_api_that_is_no_table(value):
    kind = type("Odd", (), {"__dlpack_c_exchange_api__": value, "__array_interface__": X.__array_interface__})
    assert route(kind()) == ("interop", "buffer protocol")


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (2, 3)},
        {"shape": (8,)},
        {"ndim": 1},
        {"shape": None},
        {"dtype_bits": 32},
        {"data": None},
        {"strides": (1, 2)},
        None,
    ],
    ids=str,
)
def test_an_allocator_that_makes_something_else(fields):
    """What it returns is written to, so it is looked at first."""

    class Lies(Exchange):
        def _allocate(self, prototype, out, context, set_error):
            if fields is None:
                return 0  # and no tensor
            self.made = Fake(np.zeros((2, 4)), **fields)
            out[0] = ctypes.addressof(consume(self.made.capsule()))
            return 0

    library = Lies()
    with pytest.raises(BufferError, match=r"makes another tensor than the one asked for, float64 of shape \(2, 4\)"):
        interop.matmul(library.array(X), Y)
    assert library.balanced
    assert fields is None or library.made.balanced


def test_exchange_api_without_an_allocator():
    for fields in ({"lacks": "allocate"}, {"lacks": "to_python"}):
        library = Exchange(**fields)
        c = interop.matmul(library.array(X), Y)
        assert type(c) is interop.Array
        assert np.array_equal(np.asarray(c), X @ Y)


def test_exchange_api_that_refuses():
    library = Exchange(refuses="from_python")
    with pytest.raises(BufferError, match=r"^interop.matmul: a: .*Exchanged refuses to export: it gives no reason"):
        interop.matmul(library.array(X), Y)
    library = Exchange(refuses="allocate")
    with pytest.raises(RuntimeError, match="^no room$"):
        interop.matmul(library.array(X), Y)
    library = Exchange(refuses="allocate", words=(b"MemoryError", b"none at all"))
    with pytest.raises(MemoryError, match="^none at all$"):
        interop.matmul(library.array(X), Y)
    assert library.balanced


@pytest.mark.parametrize(
    ("fields", "exception", "words"),
    [
        ({"version": (2, 0)}, BufferError, "speaks DLPack 2.0"),
        ({"dtype_code": 99}, TypeError, "unknown dtype"),
        ({"dtype_lanes": 2}, TypeError, "one lane"),
        ({"ndim": -1}, BufferError, "malformed tensor: ndim -1"),
        ({"shape": (-2, 3)}, BufferError, "malformed tensor"),
        ({"data": None}, BufferError, "a null pointer"),
        ({"device_type": 9}, TypeError, "lies on DLPack device type 9"),
        ({"strides": (2**60, 1)}, BufferError, "beyond all memory"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_exchange_api_that_hands_over_something_malformed(fields, exception, words):
    library = Exchange()
    for arrays, name in (((library.array(X, **fields), Y), "a"), ((Y.T, library.array(X.T, **fields)), "b")):
        with pytest.raises(exception, match=f"^interop.matmul: {name}.*{words}"):
            interop.matmul(*arrays)
    assert library.balanced
    assert stray_deletes() == 0


def test_exchange_api_read_only_and_offsets():
    library = Exchange()
    with pytest.raises(TypeError, match="^interop.matmul: out .*is read-only"):
        interop.matmul(X, Y, out=library.array(np.zeros((2, 4)), flags=1))
    shifted = library.array(X, data=X.ctypes.data - 16, byte_offset=16, strides=None)
    assert np.array_equal(interop.matmul(shifted, Y).fake.array, X @ Y)
    assert library.balanced


@pytest.mark.gpu
def test_exchange_api_streams(cupy):
    from helpers import device

    for library, expected in ((Exchange(), 1), (Exchange(stream=(side := device.new_stream())), side)):
        array = library.array(cupy.asarray(X))
        assert interop._core.read(array)["stream"] == expected
        assert library.calls[:2] == ["from_python", "stream"]
    library = Exchange(refuses="stream")
    with pytest.raises(BufferError, match="^interop: the current stream of exchanged: it gives no reason"):
        interop.matmul(library.array(cupy.asarray(X)), cupy.asarray(Y))
    with pytest.raises(BufferError, match="current stream of exchanged"):
        interop.matmul(cupy.asarray(X), library.array(cupy.asarray(Y)))


# ---- libraries that are installed, or skipped ----


@pytest.fixture
def tvm_ffi():
    return machine.need("tvm_ffi")


@pytest.fixture
def warp():
    module = machine.need("warp")
    module.config.quiet = True
    return module


@pytest.fixture
def paddle():
    return machine.need("paddle")


@pytest.fixture
def tensorflow():
    return machine.need("tensorflow")


def no_references_are_lost(call, *arrays):
    call()
    gc.collect(0)
    before = [sys.getrefcount(x) for x in arrays]
    call()
    assert [sys.getrefcount(x) for x in arrays] == before


def test_tvm_ffi_tensors(tvm_ffi):
    a, b = tvm_ffi.from_dlpack(X), tvm_ffi.from_dlpack(Y)
    assert route(a) == ("tvm_ffi", "__dlpack__")
    c = interop.matmul(a, b)
    assert type(c) is tvm_ffi.Tensor
    assert np.array_equal(np.from_dlpack(c), X @ Y)
    out = tvm_ffi.from_dlpack(memory := np.zeros((2, 4)))
    assert interop.matmul(X, b, out=out) is out
    assert np.array_equal(memory, X @ Y)
    assert np.from_dlpack(interop.matmul(tvm_ffi.from_dlpack(X[:0].copy()), Y)).shape == (0, 4)
    no_references_are_lost(lambda: interop.matmul(a, b), a, b)


def test_tvm_ffi_objects_with_the_exchange_api(tvm_ffi):
    a = tvm_ffi.core.DLTensorTestWrapper(tvm_ffi.from_dlpack(X))
    assert route(a) == ("tvm_ffi", "__dlpack_c_exchange_api__")
    assert np.array_equal(np.asarray(interop.matmul(a, Y)), X @ Y)
    no_references_are_lost(lambda: interop.matmul(a, Y), a)


def test_cuda_core_views():
    view = machine.need("cuda_core").StridedMemoryView.from_any_interface
    x, y = X.copy(), Y[::-1]
    a, b = view(x, stream_ptr=-1), view(y, stream_ptr=-1)
    assert route(a) == ("cuda", "__dlpack_c_exchange_api__")
    c = interop.matmul(a, b)
    assert type(c) is interop.Array  # a view allocates nothing
    assert np.array_equal(np.asarray(c), X @ y)
    out = view(memory := np.zeros((2, 4)), stream_ptr=-1)
    assert interop.matmul(a, b, out=out) is out
    assert np.array_equal(memory, X @ y)
    memory.setflags(write=False)
    with pytest.raises(TypeError, match="is read-only"):
        interop.matmul(a, b, out=view(memory, stream_ptr=-1))
    no_references_are_lost(lambda: interop.matmul(a, b), a, b, x)


def test_warp_arrays(warp):
    def make(x):
        return warp.array(x, dtype=warp.dtype_from_numpy(x.dtype), device="cpu")

    a, b = make(X), make(Y)
    assert route(a) == ("warp", "__dlpack__")
    c = interop.matmul(a, b)
    assert type(c) is type(a)
    assert c.dtype is warp.float64
    assert np.array_equal(c.numpy(), X @ Y)
    assert np.array_equal(interop.matmul(make(X.astype("f4")), make(Y.astype("f4"))).numpy(), X @ Y)
    out = warp.zeros((2, 4), dtype=warp.float64, device="cpu")
    assert interop.matmul(a, Y, out=out) is out
    assert np.array_equal(out.numpy(), X @ Y)
    assert np.array_equal(np.asarray(interop.matmul(a, make(Y[:, 0].copy()))), X @ Y[:, 0])
    assert type(interop.matmul(make(X[0]), make(Y[:, 0].copy()))) is interop.Array  # Warp has no 0-d arrays
    assert interop.matmul(make(X), warp.empty((3, 0), dtype=warp.float64, device="cpu")).shape == (2, 0)
    no_references_are_lost(lambda: interop.matmul(a, b), a, b)


def test_warp_arrays_of_vectors_and_structures(warp):
    vectors = warp.array(X, dtype=warp.vec3d, device="cpu")
    assert vectors.shape == (2,)
    assert np.array_equal(interop.matmul(vectors, Y).numpy(), X @ Y)

    class Point:
        pass

    structure = warp.struct(type("Point", (), {"__annotations__": {"x": warp.float32}, "__module__": __name__}))
    points = warp.zeros(3, dtype=structure, device="cpu")
    with pytest.raises(BufferError, match="^interop.matmul: a: .*array refuses to export: Cannot convert structured"):
        interop.matmul(points, Y)
    rows = warp.indexedarray(
        warp.array(X, dtype=warp.float64, device="cpu"), [warp.array([0, 1], dtype=int, device="cpu"), None]
    )
    with pytest.raises(TypeError, match="^interop.matmul: a is .*indexedarray; accepted: "):
        interop.matmul(rows, Y)


@pytest.mark.gpu
def test_warp_arrays_on_a_device(warp, cuda_device):
    from helpers import device

    a, b = (warp.array(x, dtype=warp.float64, device="cuda:0") for x in (X, Y))
    c = interop.matmul(a, b)
    assert type(c) is type(a)
    assert np.array_equal(c.numpy(), X @ Y)
    stream = warp.Stream("cuda:0")
    late = warp.zeros_like(a)
    warp.synchronize()
    with warp.ScopedStream(stream, sync_enter=False):
        device.delay(stream.cuda_stream)
        warp.copy(late, a)
        c = interop.matmul(late, b)
        assert device.is_busy(stream.cuda_stream)
        assert interop._core.read(a)["stream"] == stream.cuda_stream
        assert np.array_equal(c.numpy(), X @ Y)
    given = interop.matmul(a, b, stream=device.new_stream())
    device.synchronize()
    assert type(given) is type(a)
    assert np.array_equal(given.numpy(), X @ Y)


@pytest.mark.gpu
def test_tvm_ffi_tensors_on_a_device(tvm_ffi, cupy):
    from helpers import device

    side = device.new_stream()
    a, b = tvm_ffi.from_dlpack(cupy.asarray(X)), tvm_ffi.from_dlpack(cupy.asarray(Y))
    assert interop._core.read(a)["stream"] == 1
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), side):
        assert interop._core.read(a)["stream"] == side
        c = interop.matmul(a, b)
    device.synchronize()
    assert type(c) is tvm_ffi.Tensor
    assert np.array_equal(cupy.from_dlpack(c).get(), X @ Y)


@pytest.mark.gpu
def test_cuda_core_buffers(cuda_device):
    core = pytest.importorskip("cuda.core")
    machine.need("cuda_core")
    gpu = core.Device(0)
    gpu.set_current()
    stream = gpu.create_stream()
    buffer = gpu.memory_resource.allocate(48, stream=stream)
    stream.sync()
    facts = interop._core.read(buffer, stream=stream)
    assert (facts["shape"], facts["dtype"], facts["device"]) == ((48,), "int8", "cuda:0")
    assert facts["pointer"] == int(buffer.handle)


def test_paddle_tensors(paddle):
    a, b = paddle.to_tensor(X), paddle.to_tensor(Y)
    assert route(a)[0] == "paddle"
    c = interop.matmul(a, b)
    assert type(c) is type(a)
    assert np.array_equal(c.numpy(), X @ Y)
    assert np.array_equal(interop.matmul(b.T, a.T).numpy(), (X @ Y).T)
    out = paddle.zeros([2, 4], "float64")
    assert interop.matmul(a, Y, out=out) is out
    assert np.array_equal(out.numpy(), X @ Y)
    assert interop.matmul(paddle.to_tensor(X[0]), Y[:, 0]).shape == []
    learned = paddle.to_tensor(X, stop_gradient=False)
    with pytest.raises(BufferError, match=r"a has stop_gradient=False.*pass a.detach\(\), or .*paddle.no_grad\(\)"):
        interop.matmul(learned, b)
    assert np.array_equal(interop.matmul(learned.detach(), b).numpy(), X @ Y)
    with paddle.no_grad():
        assert np.array_equal(interop.matmul(learned, b).numpy(), X @ Y)
    with pytest.raises(BufferError, match="refuses to export"):
        interop.matmul(paddle.sparse.sparse_coo_tensor([[0, 1], [0, 1]], [1.0, 2.0], [2, 2]), b)


def test_tensorflow_tensors(tensorflow):
    tf = tensorflow
    a, b = tf.constant(X), tf.constant(Y)
    assert route(a) == ("tensorflow", "tf.experimental.dlpack")
    c = interop.matmul(a, b)
    assert type(c) is type(a)
    assert np.array_equal(c.numpy(), X @ Y)
    assert interop.matmul(a[:0], b).shape == (0, 4)
    assert interop.matmul(a[0], b[:, 0]).shape == ()
    with pytest.raises(TypeError, match="out is .*EagerTensor, which is immutable"):
        interop.matmul(X, Y, out=c)
    # TensorFlow aborts the process when it is asked to export strings.
    with pytest.raises(TypeError, match="a is a tf.Tensor of string; accepted: bool, integers, floats"):
        interop.matmul(tf.constant(["a"]), b)
    with pytest.raises(TypeError, match="a is .*ResourceVariable; accepted: "):
        interop.matmul(tf.Variable(X), b)
