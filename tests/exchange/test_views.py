"""Views that outlive the call they were made for keep what backs them; and what Python may change while it is read."""

from __future__ import annotations

import gc
import sys
import types
import weakref

import numpy as np
import pytest
from helpers.boxes import new_box, unpack
from helpers.dlpack import ABSENT, Cai, Fake, OldFake, stray_deletes
from helpers.exchange_api import Exchange

import interop

COPIED = 2  # the flag of DLPack 1.0


# ---- an exception's traceback keeps NumPy's view of an operand ----


def error_of(call):
    """The exception that a call raises in NumPy's part of it, with its traceback."""
    with pytest.raises(OverflowError) as caught:
        call()
    error = caught.value
    del caught
    return error


def arrays_in(error):
    """The NumPy arrays among the locals of the frames that an exception keeps."""
    found, trace = [], error.__traceback__
    while trace:
        for value in trace.tb_frame.f_locals.values():
            found += [x for x in (value if isinstance(value, list) else [value]) if type(x) is np.ndarray and x.ndim]
        trace = trace.tb_next
    return found


PRODUCERS = ("dlpack", "old dlpack", "capsule", "exchange api", "registered")
CALLS = {
    "add": lambda a: interop.add(a, 300),
    "out": lambda a: interop.add(np.zeros(4, "u1"), 300, out=a),
    "expression": lambda a: interop.elementwise("x + y")(a, 300),
}


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_traceback_keeps_the_memory_that_its_frames_see(producer, call):
    x = np.arange(4, dtype="u1")
    fake = (OldFake if producer == "old dlpack" else Fake)(x)
    library, kind = Exchange(lacks="allocate"), new_box(export=unpack)
    make = {"capsule": fake.capsule, "exchange api": lambda: library.type(fake), "registered": lambda: kind(fake)}
    arrays = [make.get(producer, lambda: fake)()]
    strays = stray_deletes()
    error = error_of(lambda: CALLS[call](*arrays))
    arrays.clear()
    views = [view for view in arrays_in(error) if view.ctypes.data == x.ctypes.data]
    assert views, "no frame keeps a view: this test shows nothing"
    assert views[0].tolist() == [0, 1, 2, 3]
    exports = 1
    if call == "out":  # again, to see that it is no copy
        exports += {"registered": 2, "dlpack": 1, "old dlpack": 1}.get(producer, 0)
    assert fake.exported == exports
    assert fake.deleted == exports - 1  # a deleter that frees would have left the views on freed memory
    del error
    gc.collect()
    assert fake.deleted == exports - 1  # `views` still has one
    del views
    gc.collect()
    assert fake.deleted == exports
    assert stray_deletes() == strays


def test_a_traceback_keeps_a_buffer_exported():
    memory = bytearray(range(4))
    error = error_of(lambda: interop.add(memory, 300))
    with pytest.raises(BufferError, match="[Ee]xist"):
        memory.extend(bytes(1 << 20))
    del error
    gc.collect()
    memory.extend(bytes(1 << 20))


def test_a_call_that_raises_nothing_keeps_nothing():
    fake = Fake(np.arange(4, dtype="u1"))
    interop.add(fake, 1)
    assert (fake.exported, fake.deleted) == (1, 1)
    memory = bytearray(4)
    interop.add(memory, 1)
    memory.append(0)


# ---- what a registered `export` returns ----


def junk(n):
    """Blocks of the size that a freed one may be reused for."""
    return [np.full(n, 7.0) for _ in range(64)]


class Emptied:
    """Shows NumPy memory that is emptied with the object, which the array that NumPy makes does not keep."""

    def __init__(self, x):
        self.memory = bytearray(x.tobytes())
        self.__array_interface__ = {"version": 3, "shape": x.shape, "typestr": x.dtype.str, "data": self.memory}

    def __del__(self):
        self.memory[:] = bytes(len(self.memory))


TEMPORARIES = {
    "numpy": lambda x: x.copy(),
    "array interface": Emptied,
    "dlpack": lambda x: Fake(x.copy()),
    "capsule": lambda x: Fake(x.copy()).capsule(),
    "interop": lambda x: interop.asarray(x.copy()),
    "buffer": lambda x: memoryview(bytearray(x.tobytes())).cast("d"),
    "torch": lambda x: sys.modules["torch"].from_numpy(x).clone(),
}


@pytest.mark.parametrize("name", TEMPORARIES)
def test_a_view_of_what_export_returned_keeps_it(name, torch):
    x = np.arange(1000.0)
    kind = new_box(export=lambda box: TEMPORARIES[name](box.inside))
    view = interop.asarray(kind(x))
    gc.collect()
    kept = junk(1000)
    assert np.array_equal(np.asarray(view), x)
    assert np.array_equal(np.asarray(interop.add(kind(x), 1)), x + 1)
    error = error_of(lambda: interop.add(kind(x.astype("u1").copy()), 300)) if name in ("numpy", "torch") else None
    if error:
        seen = [view for view in arrays_in(error) if view.dtype == "u1" and view.base is not None]
        kept += [np.full(1000, 7, "u1") for _ in range(64)]
        assert any(np.array_equal(view, x.astype("u1")) for view in seen)  # the output is among them, too


def test_a_view_keeps_the_array_that_was_exported():
    kind = new_box(export=unpack)
    kind.__del__ = lambda box: box.inside.fill(7)  # its memory goes with it
    view = interop.asarray(kind(np.arange(4, dtype="u1")))
    error = error_of(lambda: interop.add(kind(np.arange(4, dtype="u1")), 300))
    seen = [array for array in arrays_in(error) if array.base is not None]
    del error
    gc.collect()
    assert np.asarray(view).tolist() == [0, 1, 2, 3]
    assert any(array.tolist() == [0, 1, 2, 3] for array in seen)  # the output is among them, too


def test_a_temporary_is_let_go_with_its_last_view(torch):
    alive = []

    def export(box):
        made = torch.from_numpy(box.inside).clone()
        alive.append(weakref.ref(made))
        return made

    kind = new_box(export=export)
    interop.add(kind(np.ones(4)), 1)
    gc.collect()
    assert alive[0]() is None
    view = interop.asarray(kind(np.ones(4)))
    assert np.asarray(view).sum() == 4
    del view
    gc.collect()
    assert alive[1]() is None


def test_writing_to_a_copy_that_the_array_keeps_is_refused():
    def export(box):
        box.kept = box.inside.copy()
        return box.kept

    x = np.zeros(3)
    with pytest.raises(BufferError, match="`export` of boxes returns a copy of the memory"):
        interop.add(np.ones(3), 1, out=new_box(export=export)(x))
    assert not x.any()


@pytest.mark.parametrize("name", TEMPORARIES)
def test_a_view_of_an_exported_copy_is_read_only(name, torch):
    x = np.zeros(1000)
    kind = new_box(export=lambda box: TEMPORARIES[name](box.inside))
    for out in (interop.asarray(kind(x)), interop.convert(kind(x), "numpy")):
        with pytest.raises(TypeError, match="^interop.add: out .*is read-only"):
            interop.add(np.ones(1000), 1, out=out)
    own = new_box(export=unpack)(x)
    interop.add(np.ones(1000), 1, out=interop.asarray(own))
    assert (x == 2).all()


def test_a_view_of_a_dlpack_copy_is_read_only():
    fake = Fake(np.zeros(3), flags=2)  # IS_COPIED
    with pytest.raises(TypeError, match="^interop.add: out .*is read-only"):
        interop.add(np.ones(3), 1, out=interop.asarray(fake))
    copy = interop.asarray(interop.asarray(np.zeros(3)).__dlpack__(max_version=(1, 0), copy=True))
    interop.add(np.ones(3), 1, out=copy)  # its only owner
    assert np.asarray(copy).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", TEMPORARIES)
def test_writing_to_an_exported_copy_is_refused(name, torch):
    x = np.zeros(1000)
    kind = new_box(export=lambda box: TEMPORARIES[name](box.inside))
    words = "^interop.add: out: `export` of boxes returns a copy of the memory of .*Box, to which writing would be lost"
    with pytest.raises(BufferError, match=words):
        interop.add(np.ones(1000), 1, out=kind(x))
    assert not x.any()


OWN = {
    "numpy": lambda x: x[:],
    "numpy itself": lambda x: x,
    "dlpack": Fake,
    "capsule": lambda x: Fake(x).capsule(),
    "interop": interop.asarray,
    "buffer": memoryview,
    "torch": lambda x: sys.modules["torch"].from_numpy(x),
}


@pytest.mark.parametrize("name", OWN)
def test_writing_to_the_arrays_own_memory_is_seen(name, torch):
    x = np.zeros(1000)
    kind = new_box(export=lambda box: OWN[name](box.inside))
    out = kind(x)
    assert interop.add(np.ones(1000), 1, out=out) is out
    assert (x == 2).all()
    empty = kind(np.zeros(0))
    assert interop.add(np.ones(0), 1, out=empty) is empty


def test_a_result_that_empty_makes_is_no_copy_either():
    kind = new_box(
        export=lambda box: box.inside.copy(), empty=lambda shape, dtype, device, stream: kind(np.empty(shape, dtype))
    )
    with pytest.raises(BufferError, match="the array that `empty` returns: `export` of boxes returns a copy"):
        interop.add(kind(np.ones(4)), 1)


@pytest.mark.parametrize("way", ["dlpack", "capsule", "exchange api", "registered"])
def test_an_out_that_says_it_is_a_copy_is_refused(way):
    x = np.zeros(4)
    fake = Fake(x, flags=COPIED)
    library, kind = Exchange(), new_box(export=unpack)
    make = {"capsule": fake.capsule, "exchange api": lambda: library.type(fake), "registered": lambda: kind(fake)}
    out = make.get(way, lambda: fake)()
    with pytest.raises(BufferError, match=r"^interop.add: out: .* hands over a copy of its memory, to which writing"):
        interop.add(np.ones(4), 1, out=out)
    assert not x.any()
    copy = Fake(np.ones(4), flags=COPIED)
    assert np.array_equal(np.asarray(interop.add(copy, 1)), [2, 2, 2, 2])  # reading it is fine


class Copies:
    """A producer whose exports are copies, which no flag of a legacy capsule can say."""

    def __init__(self, x, versioned):
        self.x, self.versioned = x, versioned

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return Fake(self.x.copy()).capsule(versioned=self.versioned)


@pytest.mark.parametrize("versioned", [False, True])
def test_an_out_that_is_a_copy_and_does_not_say_so_is_refused(versioned):
    x = np.zeros(4)
    with pytest.raises(BufferError, match=r"^interop.add: out: .*Copies hands over a copy of its memory"):
        interop.add(np.ones(4), 1, out=Copies(x, versioned))
    assert not x.any()
    assert np.array_equal(np.asarray(interop.add(Copies(np.ones(4), versioned), 1)), [2, 2, 2, 2])  # reading is fine
    empty = Copies(np.zeros(0), versioned)
    assert interop.add(np.ones(0), 1, out=empty) is empty


# ---- Python that runs while something is read ----


def test_numbers_of_an_interface_that_change_the_interface():
    """`__index__` of a size is the producer's code: it may replace the very tuple that is being read."""
    good = {"typestr": "<f8", "data": (4096, False), "version": 3, "strides": ABSENT}
    ran = []

    class Size:
        def __init__(self, size, key):
            self.size, self.key = size, key

        def __index__(self):
            ran.append(self.key)
            array.__cuda_array_interface__[self.key] = None
            array.__cuda_array_interface__.clear()
            gc.collect()
            return self.size

    array = Cai(None, **good, shape=(Size(2, "shape"), Size(-3, "shape"), Size(2, "shape")))
    with pytest.raises((BufferError, TypeError), match="^interop.add: a"):
        interop.add(array, 1)
    assert ran == ["shape"] * 3
    array = Cai(None, **{**good, "version": Size(3, "version")}, shape=(2,))
    with pytest.raises((BufferError, TypeError), match="^interop.add: a.*no typestr"):
        interop.add(array, 1)
    array = Cai(None, **{**good, "data": (Size(0, "data"), False)}, shape=(2,))
    with pytest.raises((BufferError, TypeError), match="^interop.add: a.*null pointer"):
        interop.add(array, 1)


LIAR = types.SimpleNamespace(__module__="numba", __name__="DeviceNDArrayBase")


class Fickle(type):
    """A metaclass that gives the class other bases while it is asked for its names."""

    asked = 0

    @property
    def __module__(cls):
        Fickle.asked += 1
        if cls.__dict__.get("changes"):
            cls.__bases__ = (Fickle("Other", (Plain,), {}), Fickle("Another", (Plain,), {}))
            Fickle.junk = [(LIAR,) * length for length in (4, 5) for _ in range(100)]  # where the old bases stood
        return "elsewhere"


class Plain(metaclass=Fickle):
    changes = False


def test_bases_that_change_while_they_are_looked_through():
    for _ in range(20):
        first = Fickle("First", (Plain,), {})
        kind = Fickle("Changing", (first,), {"changes": True})
        with pytest.raises(TypeError, match=r"^interop.add: a is elsewhere.Changing; accepted"):
            interop.add(kind(), 1)
    assert Fickle.asked > 100
