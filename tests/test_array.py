"""`interop.Array`: what calls of no known array library give. In host memory here; on a GPU: tests/gpu."""

from __future__ import annotations

import copy
import ctypes
import gc
import operator
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers.dlpack import CPU, Buffer, Fake, capsule_name, consume, read_capsule

import interop

VALUES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def make(values=VALUES):
    """An `interop.Array` with these values: the product of a buffer and one."""
    return interop.matmul(memoryview(values), np.eye(values.shape[-1], dtype=values.dtype))


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
    assert repr(a) == f"interop.Array(shape=(2, 3), dtype={dtype}, device=cpu)"
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
        lambda: copy.copy(interop.asarray(np.ones(2))),
        lambda: copy.deepcopy(interop.asarray(np.ones(2))),
        lambda: pickle.dumps(interop.asarray(np.ones(2))),
        lambda: pickle.loads(b"cinterop\nArray\n)\x81."),
        lambda: pickle.loads(b"ccopyreg\n__newobj__\n(cinterop\nArray\ntR."),
    ],
    ids=["new", "arguments", "object", "subclass", "copy", "deepcopy", "dumps", "loads", "copyreg"],
)
def test_there_is_none_without_memory(make):
    """Not one that any attribute, buffer or export of would then have to answer for."""
    with pytest.raises(TypeError, match=r"interop\.Array"):
        make()


def test_its_values_are_not_read_by_the_way():
    """A buffer makes int() parse digits, a length makes a truth, an identity makes two arrays unequal."""
    x = interop.asarray(memoryview(b"12"))
    same = interop.asarray(memoryview(b"12"))
    empty = interop.asarray(np.zeros(0))
    refused = {
        "int": lambda: int(x),
        "float": lambda: float(x),
        "complex": lambda: complex(x),
        "index": lambda: operator.index(x),
        "round": lambda: round(x),
        "bool": lambda: bool(x),
        "not": lambda: not empty,
        "if": lambda: 1 if x else 2,
        "item": lambda: x[0],
        "slice": lambda: x[:],
        "iteration": lambda: list(x),
        "unpacking": lambda: [*x],
        "in": lambda: 49 in x,
        "reversed": lambda: reversed(x),
        "sorted": lambda: sorted([x, same]),
    }
    for name, compare in (
        ("equal", operator.eq),
        ("not_equal", operator.ne),
        ("less", operator.lt),
        ("less_equal", operator.le),
        ("greater", operator.gt),
        ("greater_equal", operator.ge),
    ):
        for other in (same, x, 1, None, "x"):
            with pytest.raises(TypeError, match=rf"^interop\.Array: operators .*accepted: interop\.{name}\(x, y\)"):
                compare(x, other)
            with pytest.raises(TypeError, match=r"^interop\.Array: operators compare no elements"):
                compare(other, x)
    for call in refused.values():
        with pytest.raises(TypeError, match=r"interop\.Array"):
            call()
    assert np.asarray(interop.equal(x, same)).all()  # what the message recommends


def test_it_may_be_a_key():
    """By its identity, which no comparison contradicts."""
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


# ---- the buffer protocol ----


def test_buffer_is_the_memory_itself(array):
    view = memoryview(array)
    assert (view.format, view.shape, view.strides, view.itemsize) == ("d", (2, 3), (24, 8), 8)
    assert not view.readonly
    assert view.c_contiguous
    assert view.tolist() == VALUES.tolist()
    first, second = np.asarray(array), np.asarray(array)
    first[0, 0] = 9
    assert second[0, 0] == 9
    assert np.shares_memory(first, second)


def test_buffer_outlives_the_array():
    a = make()
    view, array = memoryview(a), np.asarray(a)
    del a
    gc.collect()
    junk = [make(VALUES * 7) for _ in range(50)]
    assert view.tolist() == VALUES.tolist()
    assert np.array_equal(array, VALUES)
    del junk


SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 1, 4, 8, 0x18


@pytest.mark.parametrize("flags", [SIMPLE, WRITABLE, FORMAT, ND, STRIDES, STRIDES | FORMAT | WRITABLE])
def test_buffer_gives_what_is_asked_for(array, flags):
    view = Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    assert get(ctypes.py_object(array), ctypes.byref(view), ctypes.c_int(flags)) == 0
    try:
        assert (view.len, view.itemsize, view.ndim) == (48, 8, 2 if flags & ND else 0)  # as NumPy has it
        assert (view.format == b"d") == bool(flags & FORMAT)
        assert bool(view.shape) == bool(flags & ND)
        assert bool(view.strides) == (flags & STRIDES == STRIDES)
        assert not view.suboffsets
    finally:
        release(ctypes.byref(view))


# ---- __dlpack__ ----


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({}, "dltensor"),
        ({"stream": None}, "dltensor"),
        ({"max_version": None}, "dltensor"),
        ({"max_version": (0, 8)}, "dltensor"),
        ({"max_version": (1, 0)}, "dltensor_versioned"),
        ({"max_version": (1, 3)}, "dltensor_versioned"),
        ({"max_version": (2, 0)}, "dltensor_versioned"),  # what we have: the consumer checks
        ({"dl_device": (1, 0), "copy": False}, "dltensor"),
        ({"dl_device": None, "copy": None, "stream": None, "max_version": (1, 1)}, "dltensor_versioned"),
    ],
)
def test_dlpack_keywords(array, keywords, name):
    capsule = array.__dlpack__(**keywords)
    assert capsule_name(capsule) == name
    managed = read_capsule(capsule)
    tensor = managed.tensor
    assert (tensor.device.type, tensor.device.id) == (CPU, 0)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 64, 1)
    assert tensor.ndim == 2
    assert tensor.shape[:2] == [2, 3]
    assert tensor.strides[:2] == [3, 1]
    assert tensor.byte_offset == 0
    assert tensor.data == np.asarray(array).ctypes.data
    assert bool(managed.deleter)
    if name == "dltensor_versioned":
        assert managed.major == 1
        assert managed.flags == 0


@pytest.mark.parametrize(
    ("keywords", "exception", "match"),
    [
        ({"dl_device": (2, 0)}, BufferError, r"dl_device is \(2, 0\); accepted: None, or the array's own device, cpu"),
        ({"dl_device": (1, 1)}, BufferError, r"dl_device is \(1, 1\)"),
        ({"stream": 1}, ValueError, "stream is 1; accepted for host memory: None"),
        ({"stream": -1}, ValueError, "stream is -1; accepted for host memory: None"),
        ({"steam": 1}, TypeError, None),
        ({"stream": 10**5000}, ValueError, "stream is an integer of 16610 bits"),
        ({"stream": 1.0}, ValueError, "stream is 1.0; accepted for host memory: None"),
        ({"max_version": 1}, TypeError, "max_version is 1; accepted: None, or a tuple of two ints"),
        ({"max_version": ("1", 0)}, TypeError, "max_version is .*; accepted: None, or a tuple of two ints"),
        ({"max_version": (1,)}, TypeError, "max_version is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": 1}, TypeError, "dl_device is 1; accepted: None, or a tuple of two ints"),
        ({"dl_device": ("1", 0)}, TypeError, "dl_device is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": (1.0, 0)}, TypeError, "dl_device is .*; accepted: None, or a tuple of two ints"),
        ({"dl_device": (2**32 + 1, 0)}, BufferError, "dl_device is "),  # not (1, 0)
        ({"dl_device": (1, -(2**32))}, BufferError, "dl_device is "),
        ({"dl_device": (10**5000, 0)}, BufferError, "dl_device is an object without a repr"),
        ({"copy": 1}, TypeError, "copy is 1; accepted: None, True or False"),
        ({"copy": np.True_}, TypeError, "copy is .*True.*; accepted: None, True or False"),
        ({"copy": "no"}, TypeError, "copy is 'no'; accepted: None, True or False"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_dlpack_refuses(array, keywords, exception, match):
    with pytest.raises(exception, match=match):
        array.__dlpack__(**keywords)
    assert np.array_equal(np.asarray(array), VALUES)


def test_dlpack_takes_keywords_only(array):
    with pytest.raises(TypeError):
        array.__dlpack__(None)


def test_dlpack_consumers(array, torch, jax):
    by_numpy, by_torch, by_jax = np.from_dlpack(array), torch.from_dlpack(array), jax.dlpack.from_dlpack(make())
    for taken in (by_numpy, by_torch, by_jax):
        assert np.array_equal(np.asarray(taken), VALUES)
    by_torch[0, 0] = 9
    assert by_numpy[0, 0] == 9
    assert np.asarray(array)[0, 0] == 9
    assert by_torch.data_ptr() == by_numpy.ctypes.data


def test_dlpack_to_jax_is_no_copy(jax):
    a = make(VALUES.astype("float32"))
    taken = jax.dlpack.from_dlpack(a)
    assert taken.unsafe_buffer_pointer() == np.asarray(a).ctypes.data
    assert bool((jax.jit(lambda x: x + 1)(taken) == VALUES + 1).all())


def test_exports_outlive_the_array(torch):
    a = make()
    taken, tensor, capsule, old = (
        np.from_dlpack(a),
        torch.from_dlpack(a),
        a.__dlpack__(max_version=(1, 0)),
        a.__dlpack__(),
    )
    del a
    gc.collect()
    junk = [make(VALUES * 7) for _ in range(50)]
    assert np.array_equal(taken, VALUES)
    assert np.array_equal(tensor.numpy(), VALUES)
    assert np.array_equal(np.asarray(interop.matmul(capsule, np.eye(3))), VALUES)
    assert np.array_equal(np.asarray(interop.matmul(old, np.eye(3))), VALUES)
    del junk


def memory_of_process():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("version", [{}, {"max_version": (1, 3)}], ids=["unversioned", "versioned"])
def test_no_capsule_leaks(consumed, version):
    values = np.ones((1 << 20, 1))  # 8 MiB

    def once():
        capsule = make(values).__dlpack__(**version)
        if consumed:
            managed = consume(capsule)
            managed.deleter(ctypes.addressof(managed))

    once()
    before = memory_of_process()
    for _ in range(30):
        once()
    assert memory_of_process() - before < 80 << 20


def test_the_deleter_runs_on_any_thread_without_the_gil():
    managed = [consume(make().__dlpack__()) for _ in range(200)]
    managed += [consume(make().__dlpack__(max_version=(1, 0))) for _ in range(200)]

    def free(part):
        for each in part:
            address = ctypes.cast(each.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(each))  # lets the GIL go for the call

    threads = [threading.Thread(target=free, args=(managed[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.asarray(make()), VALUES)


def test_views_of_foreign_memory_keep_its_owner():
    """What NumPy computes on, in a call of other libraries, is a view that must not outlive its owner's memory."""
    fake = Fake(VALUES.copy())
    c = interop.matmul(fake, np.eye(3))
    assert fake.balanced  # the call is over: nothing holds the operand
    assert np.array_equal(np.asarray(c), VALUES)


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


# ---- the end of the process ----

EXITS = {
    "arrays and capsules": "kept = [a, a.__dlpack__(), a.__dlpack__(max_version=(1, 0)), memoryview(a)]",
    "a consumer's array": "kept = np.from_dlpack(a)",
    "a consumer's tensor": "import torch; kept = torch.from_dlpack(a)",
    "a cycle": "kept = [a]; kept.append(kept)",
    "a builtin": "import builtins; builtins.kept = a, a.__dlpack__(), memoryview(a)",
    "an attribute of a library": "np.kept = a, a.__dlpack__(), interop.matmul",
    "a daemon thread at work": """
        import threading
        def work():
            while True:
                interop.matmul(memoryview(np.eye(8)), a if a.shape == (8, 8) else np.eye(8)).__dlpack__()
        threading.Thread(target=work, daemon=True).start()
    """,
}


@pytest.mark.parametrize("what", EXITS)
def test_the_process_ends_well(tmp_path, what):
    head = "import numpy as np\nimport interop\na = interop.matmul(memoryview(np.eye(3)), np.eye(3))\n"
    code = head + textwrap.dedent(EXITS[what]) + "\nprint('done')\n"
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# ---- cycles ----


class Ndarray(np.ndarray):
    """An array that has attributes."""


class Producer:
    """(A Fake is kept by its capsules.)"""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return CPU, 0


def owners():
    try:
        import torch
    except ImportError:
        pass
    else:
        yield pytest.param(lambda: torch.ones(3), id="torch")
    yield pytest.param(lambda: np.ones(3).view(Ndarray), id="ndarray")
    yield pytest.param(lambda: Producer(np.ones(3)), id="dlpack")


HOLDS = {
    "a view": interop.asarray,
    "a buffer of it": lambda x: memoryview(interop.asarray(x)),
    "a view of a view": lambda x: [interop.asarray(interop.asarray(x))],
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("make_owner", [*owners()])
def test_a_cycle_through_a_view_is_collected(make_owner, hold):
    owner = make_owner()
    owner.kept = HOLDS[hold](owner)
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "export",
    [np.from_dlpack, memoryview, np.asarray, lambda view: view.__dlpack__(), lambda view: view],
    ids=["consumer", "buffer", "array", "capsule", "view"],
)
@pytest.mark.parametrize("make_owner", [x for x in owners() if x.id != "torch"])  # of which the storage is kept
def test_a_cycle_is_kept_by_an_export(make_owner, export):
    owner = make_owner()
    owner.kept = interop.asarray(owner)
    exported = export(owner.kept)
    is_capsule = type(exported).__name__ == "PyCapsule"
    alive = weakref.ref(owner)
    del owner
    for _ in range(3):
        gc.collect()
        junk = [np.full(3, 7.0) for _ in range(50)]
    assert alive() is not None
    assert alive().kept.shape == (3,)
    if not is_capsule:
        assert np.asarray(exported).tolist() == [1, 1, 1]
    del exported, junk
    gc.collect()
    assert alive() is None


def test_an_export_by_an_array_of_a_cycle_keeps_the_memory():
    """The array is emptied; who has its memory still has it."""

    class Node:
        pass

    fake = Fake(np.ones(3))
    node = Node()
    node.itself, node.kept = node, interop.asarray(fake)
    exported = np.from_dlpack(node.kept)
    del node
    gc.collect()
    assert not fake.balanced
    assert exported.tolist() == [1, 1, 1]
    del exported
    assert fake.balanced
