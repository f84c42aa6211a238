"""New arrays: on the host here, where every memory is the host's; on a GPU: tests/gpu/test_memory.py."""

from __future__ import annotations

import itertools
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from helpers import alone, machine

import interop
from interop import _creation

DTYPES = ["bool", "int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e5m2"]
MEMORIES = ["device", "managed", "pinned", "host"]


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.fixture(params=MEMORIES)
def memory(request):
    return request.param


def values_of(x):
    return np.asarray(x.to(memory="host"))


def check(x, expected, memory):
    assert type(x) is interop.Array
    on_host = memory == "host" or not machine.gpu_count()
    assert x.memory == ("host" if on_host else memory)
    assert x.device == ("cpu" if on_host or memory == "pinned" else "cuda:0")
    got = values_of(x)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.view("u1") if got.ndim else got, expected.view("u1") if got.ndim else expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_filled_arrays(memory, dtype, shape):
    wanted = numpy_dtype(dtype)
    empty = interop.empty(shape, dtype, memory=memory)
    assert (empty.shape, empty.dtype) == (shape, dtype)
    check(interop.zeros(shape, dtype, memory=memory), np.zeros(shape, wanted), memory)
    check(interop.ones(shape, wanted, memory=memory), np.ones(shape, wanted), memory)
    check(interop.full(shape, 1, dtype, memory=memory), np.full(shape, 1, wanted), memory)


def test_memory_is_aligned():
    kept = [interop.empty(size, "uint8", memory="host") for size in range(1, 40)]
    assert all(np.asarray(x).ctypes.data % 64 == 0 for x in kept)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "float32"), (np.float32, "float32"), (np.dtype("int8"), "int8"), (float, "float64"), (bool, "bool"),
     (int, "int64"), (complex, "complex128"), ("f4", "float32"), (ml_dtypes.bfloat16, "bfloat16")],
)  # fmt: skip
def test_dtypes_by_any_name(dtype, name):
    assert interop.empty(3, dtype, memory="host").dtype == name


def test_dtypes_of_torch(torch):
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        assert f"torch.{interop.empty(3, dtype).dtype}" == str(dtype)


@pytest.mark.parametrize("dtype", ["text", "S4", ">f4", object, None, 5, "datetime64[s]", [("a", "f4")]], ids=str)
def test_what_is_no_dtype(dtype):
    with pytest.raises(TypeError, match=r"^interop\.empty: dtype is .*; accepted: "):
        interop.empty(3, dtype)


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        (-1, ValueError, "shape is -1; accepted: no negative sizes"),
        ((2, -3), ValueError, r"shape is \(2, -3\); accepted: no negative sizes"),
        (2**70, ValueError, "more elements than any memory"),
        ((2**40, 2**40), ValueError, "more elements than any memory"),
        (1.5, TypeError, "shape is 1.5; accepted: an int, or a sequence of ints"),
        ((1, "x"), TypeError, r"shape is \(1, 'x'\); accepted"),
        (None, TypeError, "shape is None"),
        ({3}, TypeError, r"shape is \{3\}; accepted: an int, or a sequence of ints"),
        (b"ab", TypeError, "shape is b'ab'; accepted: an int, or a sequence of ints"),
        ((1,) * 65, ValueError, "shape has 65 dimensions; accepted: up to 64"),
    ],
    ids=str,
)
def test_what_is_no_shape(shape, error, words):
    with pytest.raises(error, match=rf"^interop\.zeros: .*{words}"):
        interop.zeros(shape, "float32")


def test_shapes_of_all_kinds():
    for shape in (3, (3,), [3], np.int64(3), np.array([3]), range(3, 4)):
        assert interop.empty(shape, "int8", memory="host").shape == (3,)


def test_other_arguments():
    with pytest.raises(ValueError, match=r"^interop\.ones: memory is 'gpu'; accepted: 'device', 'managed', 'pinned'"):
        interop.ones(3, "int8", memory="gpu")
    with pytest.raises(TypeError, match=r"^interop\.empty: missing 1 required positional argument: 'dtype'"):
        interop.empty(3)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'mem'; did you mean 'memory'"):
        interop.empty(3, "int8", mem="host")
    with pytest.raises(MemoryError, match=r"^interop\.empty: the host has no memory for shape \(1152.*,\) of int8$"):
        interop.empty(1 << 60, "int8", memory="host")
    with pytest.raises(OverflowError, match="300"):
        interop.full(3, 300, "int8", memory="host")
    for make in (interop.full, lambda size, value: interop.full_like(np.zeros(size), value)):
        with pytest.raises(TypeError, match=r": value is datetime64\[s\]; accepted: bool, integers, floats"):
            make(3, np.datetime64(3, "s"))
    for value, dtype in ((0.5, "int32"), (1j, "float32"), (2, "bool")):
        with pytest.raises(TypeError, match="accepted: a scalar of that kind"):
            interop.full(3, value, dtype, memory="host")


def test_full_takes_the_dtype_of_its_value(memory):
    for value in (True, 3, 2.5, 1j, np.float32(2), np.arange(3, dtype="int8")):
        check(interop.full((2, 3), value, memory=memory), np.full((2, 3), value), memory)


@pytest.mark.parametrize("arguments", [(5,), (2, 7), (0, 1, 0.25), (5, 0, -2), (0,), (3, 3)])
def test_arange_is_numpys(memory, arguments):
    check(interop.arange(*arguments, memory=memory), np.arange(*arguments), memory)
    check(interop.arange(*arguments, dtype="float32", memory=memory), np.arange(*arguments, dtype="f4"), memory)


NUMBERS = [0, 1, -7, 100, 0.5, -3.25, 1e-3, 1e20, 5e-324, 2**63, -(2**63), True, np.int8(-5), np.uint8(3)]
NUMBERS += [np.float16(0.1), np.float32(-2.5), np.int64(1000), np.uint64(9), np.float64(0.3)]


@pytest.mark.parametrize("dtype", [*DTYPES[:-1], None])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # as of NumPy
def test_what_a_gpu_goes_on_from_is_the_beginning_of_numpys(dtype):
    wanted = None if dtype is None else numpy_dtype(dtype)
    compared = 0
    for begin, end, step in itertools.product(NUMBERS, NUMBERS, [*NUMBERS[1:8], *NUMBERS[11:]]):
        try:
            values, count = _creation._beginning(begin, end, step, wanted)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            if "more elements" not in str(error):  # of 2**63 NumPy makes none
                with pytest.raises((TypeError, ValueError, OverflowError, MemoryError)):
                    np.arange(begin, end, step, dtype=wanted)
            continue
        if count > 100_000:
            continue
        expected = np.arange(begin, end, step, dtype=wanted)
        assert (count, values.dtype) == (len(expected), expected.dtype), (begin, end, step)
        assert values.tobytes() == expected[:2].tobytes(), (begin, end, step)
        compared += 1
    assert compared > 1000


def test_arange_with_a_step_alone():
    assert interop.arange(6, step=2, memory="host").tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0, 3, 0), ValueError, "step is 0; accepted: a finite number other than 0"),
        ((0, float("inf")), ValueError, "stop is inf; accepted: a finite number"),
        ((1j,), TypeError, "start is 1j; accepted: a real number"),
        ((2**64,), OverflowError, "start is 18446744073709551616; accepted: an integer of 64 bits, or a float"),
        ((3, None, 1, "bool"), TypeError, "start is 3, step is 1, dtype is 'bool': "),
        ((1e30,), ValueError, r"start is 1e\+30, step is 1, dtype is None: "),
        ((10**18,), MemoryError, "start is 1000000000000000000, step is 1, dtype is None: "),
        ((0, 3, 1, object), TypeError, "dtype is <class 'object'>; accepted: "),
    ],
    ids=str,
)
def test_what_arange_refuses(arguments, error, words):
    with pytest.raises(error, match=rf"^interop\.arange: {words}"):
        interop.arange(*arguments)


def test_errors_of_copies_speak_of_the_function_that_copies():
    x = interop.zeros((2, 3), "int32", memory="host")
    for call, words in (
        (lambda: interop.full(3, 0.5, "int32"), r"full: value is 0\.5, and the array is int32"),
        (lambda: interop.full(3, np.ones(2)), r"full: value has shape \(2,\), which .* of the array, \(3,\)"),
        (lambda: interop.full_like(x, 0.5), r"full_like: value is 0\.5, and the array is int32"),
        (lambda: interop.copy(x, stream=1), r"copy: stream is given"),
        (lambda: interop.copyto(x, 0.5), r"copyto: src is 0\.5, and dst is int32"),
        (lambda: x.__setitem__(0, 0.5), r"Array\.__setitem__: value is 0\.5, and the array is int32"),
        (lambda: x.to(stream=1), r"Array\.to: stream is given"),
        (lambda: x.to(memory="host", device=0), r"Array\.to: device is 0, and memory is 'host'; accepted: None"),
        (lambda: x.to(device="cpu"), r"Array\.to: device is 'cpu'; .*; the host's memory is memory='host'"),
        (
            lambda: x.to("device"),
            r"Array\.to: takes 0 positional arguments but 1 was given; accepted: none",
        ),
        (lambda: x.to(memori="host"), r"Array\.to: got an unexpected keyword argument 'memori'; did you mean 'memory'"),
        (lambda: x.astype(), r"Array\.astype: missing 1 required positional argument: 'dtype'"),
        (lambda: x.advise("often"), r"Array\.advise: advice is 'often'; accepted: 'read_mostly'"),
        (lambda: x.astype("text"), r"Array\.astype: dtype is 'text'; accepted: a name"),
        (lambda: interop.zeros_like(x, device=0), r"zeros_like: device is 0, and memory is 'host'; accepted: None"),
        (lambda: interop.zeros_like(x, stream=1), r"zeros_like: stream is 1, and memory is 'host', which has none"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^interop\.{words}"):
            call()


def test_like_another_array(torch):
    for x in (np.ones((2, 3), "float32"), torch.ones(2, 3), interop.ones((2, 3), "float32", memory="host")):
        assert interop.empty_like(x).shape == (2, 3)
        check(interop.zeros_like(x), np.zeros((2, 3), "float32"), "host")
        check(interop.ones_like(x, dtype="int8"), np.ones((2, 3), "int8"), "host")
        check(interop.full_like(x, 4), np.full((2, 3), 4, "float32"), "host")
        check(interop.copy(x), np.ones((2, 3), "float32"), "host")
    with pytest.raises(TypeError, match=r"^interop\.zeros_like: x is list"):
        interop.zeros_like([1, 2])


def test_results_are_taken_by_every_library(host_jax, torch):
    """Without a copy: JAX alone asks for an alignment."""
    x = interop.arange(6, dtype="float32", memory="host").reshape(2, 3)
    address = np.asarray(x).ctypes.data
    assert torch.from_dlpack(x).data_ptr() == address
    assert interop.convert(x, "jax").unsafe_buffer_pointer() == address
    assert np.from_dlpack(x).ctypes.data == address


def test_on_a_machine_with_no_gpu_all_memory_is_the_hosts():
    if machine.gpu_count():
        pytest.skip("this machine has a GPU")
    for memory in MEMORIES:
        x = interop.zeros(3, "float32", memory=memory)
        assert (x.memory, x.device, x.stream) == ("host", "cpu", None)
        assert x.to(memory=memory) is x
        x.prefetch()
        x.prefetch(0)
        x.advise("read_mostly", "host")
        x.synchronize()
    for call in (
        lambda: interop.empty(3, "int8", device=0),
        lambda: x.to(device="cuda"),
        interop.memory_pool,
        lambda: interop.memory_pool("pinned", device=0),
    ):
        with pytest.raises(interop.CudaError):
            call()
    with pytest.raises(ValueError, match=r"^interop\.empty: stream is 1, and this machine has no GPU"):
        interop.empty(3, "int8", stream=1)
    for hint in (x.prefetch, lambda device: x.advise("read_mostly", device)):
        with pytest.raises(ValueError, match=r"^interop\.Array\.\w+: device is 'x'; accepted: None, 'host', an index"):
            hint("x")


def test_a_driver_that_is_broken_is_an_error(tmp_path):
    """It is there, so the memory that was asked for was to be had."""
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    if interop._core.build_info()["cuda"] == 0:
        pytest.skip("this build is for host arrays only")
    alone.run(
        """
        try:
            interop.empty(3, "int8")
        except interop.CudaError as error:
            assert "does not load" in str(error)
        else:
            raise AssertionError
        assert interop.empty(3, "int8", memory="host").memory == "host"
        """,
        tmp_path,
        LD_LIBRARY_PATH=str(tmp_path),
    )


def test_importing_starts_no_cuda():
    code = "import interop; assert interop.zeros(3, 'int8', memory='host').tolist() == [0, 0, 0]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_written_to_while_others_are_made():
    """Memory that was freed is not that of an array in use."""
    kept = [interop.full(1000, k, "int32", memory="pinned") for k in range(50)]
    for _ in range(100):
        interop.full(1000, -1, "int32", memory="pinned")
    for k, x in enumerate(kept):
        assert (values_of(x) == k).all()


@pytest.mark.parametrize(
    ("allocator", "error"), [("tensorflow", ValueError), (5, TypeError), (("torch",), TypeError)], ids=str
)
def test_what_is_no_allocator(allocator, error):
    with pytest.raises(error, match=r"^interop\.set_allocator: allocator is .*'torch', 'cupy', 'rmm', a function"):
        interop.set_allocator(allocator)
    interop.set_allocator(None)
