"""`interop.Array`: what calls of no known array library give. In host memory here; on a GPU: tests/gpu.

Its values, operators and views: test_array_values.py, test_array_views.py.
What it hands to others: test_array_buffer.py, test_array_dlpack.py, test_array_exports.py, test_array_exchange_api.py.
How long its memory stays: test_array_lifetime.py.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import host_arrays
from helpers.dlpack import Fake, read_capsule
from helpers.host_arrays import VALUES

import interop

make = host_arrays.make


@pytest.fixture
def array():
    return make()


SOURCES = {
    "buffer": memoryview,
    "capsule": lambda x: x.__dlpack__(max_version=(1, 0)),
    "unversioned capsule": lambda x: x.__dlpack__(),
    "dlpack": Fake,
}


# ---- what it says of itself ----


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attributes(source, dtype):
    a = interop.matmul(SOURCES[source](VALUES.astype(dtype)), np.eye(3, dtype=dtype))
    assert type(a) is interop.Array
    assert a.shape == (2, 3)
    assert a.strides == (3, 1)
    assert a.ndim == 2
    assert a.dtype == dtype
    assert a.device == "cpu"
    assert a.__dlpack_device__() == (1, 0)
    assert a.memory == "host"
    assert np.array_equal(np.asarray(a), VALUES)


def test_of_no_dimension():
    a = interop.matmul(memoryview(np.arange(3.0)), np.arange(3.0))
    assert (a.shape, a.strides, a.ndim) == ((), (), 0)
    assert np.asarray(a) == 5
    assert np.from_dlpack(a) == 5
    assert memoryview(a).tolist() == 5


def test_of_no_element():
    a = interop.matmul(Fake(np.zeros((0, 3))), np.zeros((3, 4)))
    assert a.shape == (0, 4)
    assert np.asarray(a).shape == (0, 4)
    assert np.from_dlpack(a).shape == (0, 4)
    assert not read_capsule(a.__dlpack__()).tensor.data  # a null pointer, as the standard wants
    again = interop.matmul(a, np.zeros((4, 2)))
    assert again.shape == (0, 2)


def test_cannot_be_made_directly():
    with pytest.raises(TypeError):
        interop.Array()


@pytest.mark.parametrize(
    "make",
    [
        lambda: interop.Array.__new__(interop.Array),
        lambda: interop.Array.__new__(interop.Array, 1, x=2),
        lambda: object.__new__(interop.Array),
        lambda: type("Sub", (interop.Array,), {})(),
        lambda: pickle.loads(b"cinterop\nArray\n)\x81."),
        lambda: pickle.loads(b"ccopyreg\n__newobj__\n(cinterop\nArray\ntR."),
    ],
    ids=["new", "arguments", "object", "subclass", "loads", "copyreg"],
)
def test_there_is_none_without_memory(make):
    """Not one that any attribute, buffer or export of would then have to answer for."""
    with pytest.raises(TypeError, match=r"interop\.Array"):
        make()


def test_it_may_be_a_key():
    """By its identity, as torch's tensors are: `==` is of the elements."""
    x, same = interop.asarray(memoryview(b"12")), interop.asarray(memoryview(b"12"))
    keys = {x: 1, same: 2}
    assert (keys[x], keys[same], len({x, same, x})) == (1, 2, 2)
    assert hash(x) == hash(x) != hash(same)
    assert len(x) == 2


def test_jax_numpy_takes_it(host_jax):
    """For which JAX asks: it looks at no protocol, and takes the name of the dtype for something else."""
    jnp = host_jax.numpy
    values = np.arange(6, dtype="float32").reshape(2, 3)
    for array in (interop.asarray(values), interop.asarray(values.T)):
        for make in (jnp.asarray, jnp.array):
            made = make(array)
            assert isinstance(made, host_jax.Array)
            np.testing.assert_array_equal(np.asarray(made), np.asarray(array))


def test_attributes_cannot_be_set(array):
    for name in ("shape", "strides", "dtype", "device", "ndim"):
        with pytest.raises(AttributeError):
            setattr(array, name, None)


def test_host_memory_has_no_cuda_array_interface(array):
    with pytest.raises(AttributeError, match="host memory"):
        _ = array.__cuda_array_interface__
    assert not hasattr(array, "__cuda_array_interface__")


def test_memory_is_aligned_for_jax():
    kept = [make(np.ones((1, size))) for size in range(1, 40)]
    for a in kept:
        assert np.asarray(a).ctypes.data % 64 == 0


# ---- as an operand, and as `out=` ----


def test_as_an_operand(array, torch):
    c = interop.matmul(array, np.ones((3, 2)))
    assert type(c) is interop.Array
    assert np.array_equal(np.asarray(c), VALUES @ np.ones((3, 2)))
    assert type(interop.matmul(np.ones((4, 2)), array)) is np.ndarray
    assert type(interop.matmul(torch.ones(4, 2, dtype=torch.float64), array)) is torch.Tensor


def test_as_out(array):
    pointer = np.asarray(array).ctypes.data
    assert interop.matmul(np.full((2, 5), 2.0), np.ones((5, 3)), out=array) is array
    assert np.asarray(array).tolist() == [[10] * 3] * 2
    assert np.asarray(array).ctypes.data == pointer
    with pytest.raises(ValueError, match="out shares memory with a"):
        interop.matmul(array, np.eye(3), out=array)


def test_as_out_where_another_library_leads(array, torch):
    interop.matmul(torch.full((2, 5), 2.0, dtype=torch.float64), np.ones((5, 3)), out=array)
    assert np.asarray(array).tolist() == [[10] * 3] * 2


# ---- read-only memory ----


def test_read_only_memory_is_said_to_be_so(monkeypatch):
    """NumPy sees operands of other libraries by an `interop.Array`: a read-only one must not be handed out writable."""
    seen = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ_ONLY_VIEWS)], capture_output=True, text=True, check=False
    )
    assert seen.returncode == 0, seen.stderr


READ_ONLY_VIEWS = """
    import numpy as np

    real, views = np.matmul, []

    def spy(a, b, out=None):
        views.append((a, b))
        return real(a, b, out=out)

    np.matmul = spy
    import interop

    frozen = memoryview(bytes(np.eye(3).tobytes())).cast("d", (3, 3))
    free = memoryview(bytearray(np.eye(3).tobytes())).cast("d", (3, 3))
    interop.matmul(frozen, free)
    a, b = views[0]
    assert not a.flags.writeable
    assert b.flags.writeable
    array = a.base
    while not isinstance(array, interop.Array):
        array = array.obj if isinstance(array, memoryview) else array.base
    try:
        array.__dlpack__()  # an unversioned capsule cannot say it
    except BufferError as error:
        assert "read-only" in str(error) and "max_version=(1, 0)" in str(error)
    else:
        raise AssertionError("exported writable")
    assert not np.from_dlpack(array).flags.writeable
    try:
        memoryview(array)[0, 0] = 1
    except TypeError:
        pass
    else:
        raise AssertionError("written")
    del a, b, array, views
"""
