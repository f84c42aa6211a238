"""`interop.register`: libraries that a user teaches, and what is said of a registration that cannot work."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers import libraries
from helpers.boxes import Box, new_box, unpack
from helpers.dlpack import Cai, Fake, OldFake

import interop

X = np.arange(6.0).reshape(2, 3)
Y = np.arange(12.0).reshape(3, 4)


# ---- what is exported ----


def test_torch_counts_what_is_written_to_an_exported_tensor(torch):
    kind = new_box(export=unpack)
    x = torch.ones(3)
    interop.add(torch.zeros(3), 1, out=kind(x))
    assert x._version == 1


@pytest.mark.parametrize(
    "export",
    [
        lambda x: x,
        memoryview,
        Fake,
        OldFake,
        lambda x: Fake(x).capsule(),
        lambda x: Fake(x).capsule(versioned=False),
        lambda x: type("Shows", (), {"__array_interface__": x.__array_interface__, "keep": x})(),
        lambda x: interop.matmul(memoryview(x), np.eye(3)),  # an interop.Array
    ],
    ids=["numpy", "buffer", "dlpack", "old dlpack", "capsule", "old capsule", "array interface", "interop"],
)
def test_reads_what_is_exported(export):
    kind = new_box(export=lambda box: export(box.inside))
    c = interop.matmul(kind(X), kind(Y)) if X.shape == Y.shape else interop.matmul(kind(X), Y)
    assert type(c) is interop.Array
    assert np.array_equal(np.asarray(c), X @ Y)
    assert np.array_equal(interop.matmul(Y.T.copy(), kind(X).inside.T), Y.T @ X.T)
    facts = interop._core.read(kind(X[:, ::-1] if export is not memoryview else X))
    assert (facts["library"], facts["protocol"]) == ("boxes", "interop.register")


def test_reads_torch_and_jax_inside(torch, host_jax):
    kind = new_box(export=unpack)
    x, y = torch.from_numpy(X.astype("f4")), host_jax.numpy.asarray(Y, "float32")
    assert np.array_equal(np.asarray(interop.matmul(kind(x), kind(y))), X @ Y)
    leaf = x.clone().requires_grad_()
    with pytest.raises(BufferError, match="a requires grad"):  # the checks of torch are made all the same
        interop.matmul(kind(leaf), y)
    z = torch.complex(x, x)
    conjugated = z.conj().imag
    assert np.array_equal(np.asarray(interop.matmul(kind(conjugated), y)), -X @ Y)


def test_type_with_a_protocol_of_its_own_needs_no_export():
    class Mine:
        def __init__(self, x):
            self.fake = Fake(x)

        def __dlpack_device__(self):
            return self.fake.__dlpack_device__()

        def __dlpack__(self, **keywords):
            return self.fake.__dlpack__(**keywords)

    assert interop._core.read(Mine(X))["library"] == "interop"  # looked at, and kept, before it is registered
    interop.register(Mine, empty=lambda shape, dtype, device, stream: Mine(np.empty(shape, dtype)))
    mine = Mine(X)
    c = interop.matmul(mine, Y)
    assert type(c) is Mine
    assert np.array_equal(c.fake.array, X @ Y)
    facts = interop._core.read(mine)
    assert facts["library"] == __name__.partition(".")[0]
    assert facts["protocol"] == "__dlpack__"
    assert mine.fake.balanced


def test_subclasses_are_covered_and_may_differ():
    kind = new_box(export=unpack)
    child = type("Child", (kind,), {})
    late = type("Late", (kind,), {})
    assert np.array_equal(np.asarray(interop.matmul(child(X), late(Y))), X @ Y)
    interop.register(late, name="late", export=lambda box: box.inside * 2)
    assert np.array_equal(np.asarray(interop.matmul(child(X), late(Y))), X @ (2 * Y))
    assert interop._core.route(child(X)) == ("boxes", "interop.register")
    assert interop._core.route(late(X)) == ("late", "interop.register")


def test_subclasses_of_known_libraries_may_be_registered(torch):
    class Meters(np.ndarray):
        def __array_ufunc__(self, *args, **kwargs):
            return NotImplemented

    class Tagged(torch.Tensor):
        pass

    x = X.view(Meters)
    with pytest.raises(TypeError, match="operations of its own"):
        interop.matmul(x, Y)
    interop.register(
        Meters,
        export=np.asarray,
        empty=lambda shape, dtype, device, stream: np.empty(shape, dtype).view(Meters),
    )
    c = interop.matmul(x, Y)
    assert type(c) is Meters
    assert np.array_equal(np.asarray(c), X @ Y)

    interop.register(Tagged, export=lambda t: t.as_subclass(torch.Tensor))
    tagged = torch.from_numpy(X).as_subclass(Tagged)
    assert np.array_equal(np.asarray(interop.matmul(tagged, Y)), X @ Y)


def test_exports_are_given_back():
    made = []

    def export(box):
        made.append(Fake(box.inside))
        return made[-1]

    kind = new_box(export=export)
    box = kind(X)
    interop.matmul(box, Y)
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(box, X)
    before = sys.getrefcount(box)
    interop.matmul(box, Y)
    assert sys.getrefcount(box) == before
    assert len(made) == 3
    assert all(fake.balanced and fake.exported == 1 for fake in made)


# ---- results ----


def test_result_is_the_users_own():
    asked = []

    def empty(shape, dtype, device, stream):
        asked.append((shape, dtype, device, stream))
        return kind(np.full(shape, np.nan, dtype))

    kind = new_box(export=unpack, empty=empty)
    c = interop.matmul(kind(X), Y)
    assert type(c) is kind
    assert np.array_equal(c.inside, X @ Y)
    assert interop.matmul(kind(X[0]), Y[:, 0]).inside.shape == ()
    assert interop.matmul(kind(X[:0]), Y).inside.shape == (0, 4)
    interop.matmul(kind(X.astype("f4")), Y.astype("f4"))
    assert asked == [
        ((2, 4), "float64", "cpu", None),
        ((), "float64", "cpu", None),
        ((0, 4), "float64", "cpu", None),
        ((2, 4), "float32", "cpu", None),
    ]
    assert type(interop.matmul(X, kind(Y))) is np.ndarray  # led by NumPy


def test_out_of_a_registered_type():
    kind = new_box(export=unpack)
    out = kind(np.zeros((2, 4)))
    assert interop.matmul(X, Y, out=out) is out
    assert np.array_equal(out.inside, X @ Y)
    sealed = new_box(export=unpack, writable=False)
    with pytest.raises(TypeError, match=r"^interop.matmul: out is .*Box, which is immutable"):
        interop.matmul(X, Y, out=sealed(np.zeros((2, 4))))
    frozen = np.zeros((2, 4))
    frozen.setflags(write=False)
    with pytest.raises(TypeError, match="read-only"):
        interop.matmul(X, Y, out=kind(frozen))
    assert interop._core.read(sealed(X))["read_only"]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda kind, shape, dtype: np.empty(shape, dtype), "is numpy.ndarray; accepted: boxes's own type"),
        (lambda kind, shape, dtype: None, "is NoneType; accepted: boxes's own type"),
        (lambda kind, shape, dtype: kind(np.empty((3, 3), dtype)), r"has shape \(3, 3\); accepted: \(2, 4\)"),
        (lambda kind, shape, dtype: kind(np.empty(shape, "f4")), "is float32; accepted: float64"),
        (lambda kind, shape, dtype: kind(np.empty(shape, dtype, order="F")), "is strided; accepted: a compact"),
        (lambda kind, shape, dtype: kind(Fake(np.empty(shape, dtype), flags=1)), "is read-only; accepted: a writable"),
    ],
    ids=["other type", "nothing", "shape", "dtype", "strides", "read-only"],
)
def test_what_empty_returns_is_checked(wrong, match):
    kind = new_box(export=unpack, empty=lambda shape, dtype, device, stream: wrong(kind, shape, dtype))
    with pytest.raises(BufferError, match=f"^interop.register: the array that `empty` returns {match}"):
        interop.matmul(kind(X), Y)


# ---- errors of the functions ----


def fails_with(error):
    def fail(*_):
        raise error

    return fail


def test_a_refusal_of_export_is_quoted():
    kind = new_box(export=fails_with(RuntimeError("boxed in")))
    with pytest.raises(BufferError, match=r"^interop.matmul: a: .*Box refuses to export: boxed in"):
        interop.matmul(kind(X), Y)
    with pytest.raises(BufferError, match="^interop.matmul: b: "):
        interop.matmul(X, kind(Y))


@pytest.mark.parametrize("answer", [None, 3.0, [1.0], "x", b"x", np.float64(1)], ids=repr)
def test_exports_of_no_array(answer):
    kind = new_box(export=lambda box: answer)
    match = f"^interop.matmul: a: `export` of boxes returns {type(answer).__name__}|numpy.float64; accepted: an array"
    with pytest.raises(BufferError, match=match):
        interop.matmul(kind(X), Y)


def test_an_export_of_itself_ends():
    kind = new_box(export=lambda box: box)
    with pytest.raises(BufferError, match="returns .*Box; accepted: an array with"):
        interop.matmul(kind(X), Y)


def test_a_capsule_that_is_returned_twice():
    capsule = Fake(X).capsule()
    kind = new_box(export=lambda box: capsule)
    box = kind(X)
    interop.matmul(box, Y)
    with pytest.raises(ValueError, match="used before"):
        interop.matmul(box, Y)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_no_refusal_passes_through(error):
    kind = new_box(export=fails_with(error()))
    with pytest.raises(error):
        interop.matmul(kind(X), Y)


def test_errors_of_empty_are_raised_as_they_are():
    class NoBoxError(RuntimeError):
        pass

    kind = new_box(export=unpack, empty=fails_with(NoBoxError("none left")))
    with pytest.raises(NoBoxError, match="none left"):
        interop.matmul(kind(X), Y)


# ---- registrations that are refused ----


@pytest.mark.parametrize(
    ("arguments", "keywords", "exception", "match"),
    [
        ((5,), {}, TypeError, "kind is 5; accepted: a class"),
        ((X,), {}, TypeError, "kind is array"),
        ((list,), {"export": np.asarray}, ValueError, "<class 'list'> is built into Python"),
        ((object,), {"export": np.asarray}, ValueError, "is built into Python"),
        ((Box,), {}, TypeError, "has no protocol by which it could be read; pass `export`"),
        ((Box,), {"export": 5}, TypeError, "export is 5; accepted: None, or a callable"),
        ((Box,), {"export": unpack, "empty": "x"}, TypeError, "empty is 'x'; accepted: None, or a callable"),
        ((Box,), {"export": unpack, "current_stream": 1}, TypeError, "current_stream is 1; accepted: None, or"),
        ((Box,), {"export": unpack, "writable": 1}, TypeError, "writable is 1; accepted: True or False"),
        ((Box,), {"export": unpack, "name": ""}, TypeError, "name is ''; accepted: None, or a str"),
        ((Box,), {"export": unpack, "name": 5}, TypeError, "name is 5; accepted: None, or a str"),
        ((Box,), {"export": unpack, "name": "jax"}, ValueError, "name is 'jax', a library that interop knows"),
        ((np.ndarray,), {}, ValueError, "is an array of numpy, which interop knows; accepted: types of other"),
        ((interop.Array,), {}, ValueError, "is an array of interop, which interop knows"),
        ((Box,), {"export": unpack, "to_dlpack": unpack}, TypeError, "to_dlpack"),
        ((), {"kind": Box}, TypeError, "positional"),
    ],
    ids=lambda value: "",
)
def test_refused_registrations(arguments, keywords, exception, match):
    with pytest.raises(exception, match=match):
        interop.register(*arguments, **keywords)
    with pytest.raises(TypeError, match="a is .*Box; accepted: arrays with"):
        interop.matmul(Box(X), Y)  # nothing was registered


def test_refuses_types_of_torch(torch):
    with pytest.raises(ValueError, match="is an array of torch, which interop knows"):
        interop.register(torch.Tensor, export=lambda t: t.numpy())


# ---- registered again ----


def twice(box):
    return box.inside * 2


def test_a_registration_replaces_the_one_before():
    asked = []

    def empty(shape, dtype, device, stream):
        asked.append(shape)
        return kind(np.empty(shape, dtype))

    kind = new_box(export=unpack, empty=empty)
    child = type("Child", (kind,), {})
    for box in (kind(X), child(X)):
        assert np.array_equal(interop.matmul(box, Y).inside, X @ Y)
    interop.register(kind, name="others", export=twice, writable=False)
    for box in (kind(X), child(X), type("Late", (child,), {})(X)):
        c = interop.matmul(box, Y)
        assert type(c) is interop.Array  # the second says nothing of `empty`
        assert np.array_equal(np.asarray(c), 2 * X @ Y)
        with pytest.raises(TypeError, match="immutable"):
            interop.matmul(X, Y, out=box)
        said = interop.explain(interop.matmul, box, Y).arguments[0]
        assert (said.library, said.protocol) == ("others", "interop.register")
        assert interop._core.route(box) == ("others", "interop.register")
    assert len(asked) == 2


def test_a_subclass_keeps_what_was_said_of_itself():
    kind = new_box(export=unpack)
    child = type("Child", (kind,), {})
    interop.register(child, name="children", export=twice)
    assert np.array_equal(np.asarray(interop.matmul(child(X), Y)), 2 * X @ Y)
    interop.register(kind, name="others", export=lambda box: box.inside * 3)
    assert np.array_equal(np.asarray(interop.matmul(child(X), Y)), 2 * X @ Y)
    assert np.array_equal(np.asarray(interop.matmul(kind(X), Y)), 3 * X @ Y)


def test_protocols_are_looked_for_again():
    class Mine:
        @property
        def __array_interface__(self):
            return self.doubled.__array_interface__

        def __init__(self, x):
            self.fake = Fake(x)
            self.doubled = 2 * x

    interop.register(Mine, name="mine")
    mine = Mine(X)
    assert np.array_equal(np.asarray(interop.matmul(mine, Y)), 2 * X @ Y)
    Mine.__dlpack_device__ = lambda self: self.fake.__dlpack_device__()
    Mine.__dlpack__ = lambda self, **keywords: self.fake.__dlpack__(**keywords)
    interop.register(Mine, name="mine")
    assert np.array_equal(np.asarray(interop.matmul(mine, Y)), X @ Y)
    assert interop._core.route(mine) == ("mine", "__dlpack__")
    assert mine.fake.balanced


@pytest.mark.parametrize(
    ("keywords", "exception", "match"),
    [
        ({}, TypeError, "has no protocol by which it could be read; pass `export`"),
        ({"export": twice, "name": "jax"}, ValueError, "a library that interop knows"),
        ({"export": twice, "empty": 1}, TypeError, "empty is 1"),
    ],
    ids=lambda value: "",
)
def test_a_second_registration_that_is_refused_changes_nothing(keywords, exception, match):
    kind = new_box(export=unpack)
    with pytest.raises(exception, match=match):
        interop.register(kind, **keywords)
    assert np.array_equal(np.asarray(interop.matmul(kind(X), Y)), X @ Y)
    assert interop._core.route(kind(X)) == ("boxes", "interop.register")


def test_a_call_goes_on_by_what_was_registered_as_it_began():
    def export(box):
        interop.register(kind, name="others", export=twice, empty=lambda *_: 5 / 0)
        return box.inside

    kind = new_box(export=export, empty=lambda shape, dtype, *_: kind(np.empty(shape, dtype)))
    child = type("Child", (kind,), {})
    add = interop.elementwise("x + y + z")
    c = add(kind(X), child(X), kind(X))  # the first is exported, and then the class is another library's
    assert type(c) is kind
    assert np.array_equal(c.inside, 3 * X)
    with pytest.raises(ZeroDivisionError):
        add(kind(X), child(X), kind(X))
    interop.register(kind, name="others", export=twice)
    assert np.array_equal(np.asarray(add(kind(X), child(X), kind(X))), 6 * X)


def test_what_empty_returns_may_be_registered_again_meanwhile():
    def empty(shape, dtype, *_):
        interop.register(kind, name="others", export=twice)
        return kind(np.empty(shape, dtype))

    kind = new_box(export=unpack, empty=empty)
    assert np.array_equal(interop.matmul(kind(X), Y).inside, X @ Y)


def test_a_first_look_that_registers_leaves_one_registration():
    factors = iter(range(1, 100))

    class Meta(type):
        def __getattr__(cls, name):  # what a class is asked for its protocols by
            factor = next(factors)
            interop.register(kind, name=f"times {factor}", export=lambda box: box.inside * factor)
            raise AttributeError(name)

    class Odd(metaclass=Meta):
        __array_interface__ = X.__array_interface__

    kind = new_box(export=unpack)
    c = interop.elementwise("x + 0 * y - z")(kind(X), Odd(), kind(X))
    assert np.array_equal(np.asarray(c), 0 * X)
    assert next(factors) > 1


# ---- what `export` leaves to the array's own protocols ----


def left_to_itself(box):
    return NotImplemented


def test_an_export_may_leave_an_array_to_its_own_protocols():
    class Vector(np.ndarray):
        pass

    def export(x):
        return NotImplemented if x.base is not None else memoryview(np.asarray(x))

    def empty(shape, dtype, device, stream):
        return np.empty(shape, dtype).view(Vector)

    interop.register(Vector, name="vectors", export=export, empty=empty)
    own = Vector((2, 3))
    own[...] = X
    for x, protocol in ((own, "interop.register"), (own[:, ::-1], "buffer protocol"), (own.T[1], "buffer protocol")):
        facts = interop._core.read(x)
        assert (facts["library"], facts["protocol"]) == ("vectors", protocol)
        assert interop.explain(interop.add, x, 1).arguments[0].protocol == protocol
        c = interop.add(x, 1)
        assert type(c) is Vector
        assert np.array_equal(c, np.asarray(x) + 1)
    interop.add(own[0], 1, out=own[0])
    assert own[0].tolist() == [1, 2, 3]
    view = interop.asarray(own[1:])
    np.asarray(view)[0, 0] = 9
    assert own[1, 0] == 9


def test_an_array_without_a_protocol_of_its_own_cannot_be_left_to_itself():
    class Meters(np.ndarray):
        __array_ufunc__ = None

    boxes = new_box(export=left_to_itself)
    interop.register(Meters, name="boxes", export=left_to_itself)
    match = (
        r"^interop.matmul: a: `export` of boxes returns NotImplemented, and .*(Box|Meters) is read by no other "
        "protocol; accepted: an array with DLPack"
    )
    for x in (boxes(X), X.view(Meters)):
        with pytest.raises(BufferError, match=match):
            interop.matmul(x, Y)


def test_a_protocol_of_a_subclass_or_of_one_object_counts():
    kind = new_box(export=left_to_itself)

    class Child(kind):
        __dlpack_device__ = lambda self: self.inside.__dlpack_device__()  # noqa: E731
        __dlpack__ = lambda self, **keywords: self.inside.__dlpack__(**keywords)  # noqa: E731

    child = Child(Fake(X))
    assert np.array_equal(np.asarray(interop.matmul(child, Y)), X @ Y)
    assert child.inside.balanced
    assert interop._core.read(child)["protocol"] == "__dlpack__"
    box = kind(X)
    box.__array_interface__ = X.__array_interface__
    assert np.array_equal(np.asarray(interop.matmul(box, Y)), X @ Y)


def test_writing_is_checked_where_an_export_leaves_it_to_the_array():
    sealed = np.zeros(3)
    sealed.setflags(write=False)

    class Vector(np.ndarray):
        pass

    interop.register(Vector, name="vectors", export=left_to_itself)
    with pytest.raises(TypeError, match="read-only"):
        interop.add(np.ones(3), 1, out=sealed.view(Vector))
    interop.register(Vector, name="vectors", export=left_to_itself, writable=False)
    with pytest.raises(TypeError, match="immutable"):
        interop.add(np.ones(3), 1, out=np.zeros(3).view(Vector))

    class Copies(new_box(export=left_to_itself)):
        __dlpack_device__ = lambda self: (1, 0)  # noqa: E731
        __dlpack__ = lambda self, **_: Fake(self.inside.copy()).capsule()  # noqa: E731

    with pytest.raises(BufferError, match="copy"):
        interop.add(np.ones(3), 1, out=Copies(np.zeros(3)))


def test_many_types_are_read_right_beyond_the_cache():
    for k in range(600):
        kind = new_box(export=lambda box, k=k: box.inside * k)
        assert np.asarray(interop.matmul(kind(X), Y))[1, 3] == (X @ Y)[1, 3] * k


# ---- on a GPU ----


@pytest.fixture
def device_box(cupy):
    """Boxes of CuPy arrays, shown by `__cuda_array_interface__` without a stream; the stream is what they say."""

    def make(stream=None):
        def empty(shape, dtype, device, handle):
            asked.append((device, handle))
            return kind(cupy.empty(shape, dtype))

        asked = []
        kind = new_box(
            export=lambda box: Cai(box.inside, stream=None),
            current_stream=stream and (lambda device: stream),
            empty=empty,
        )
        return kind, asked

    return make


@pytest.mark.gpu
def test_device_calls_run_on_the_registered_stream(cupy, device_box):
    from helpers import device

    stream = device.new_stream()
    kind, asked = device_box(stream)
    external = libraries.by_name("cupy", "cuda").stream(stream)
    x, y = cupy.asarray(X), cupy.asarray(Y)
    late = cupy.zeros_like(x)
    cupy.cuda.Device().synchronize()
    interop.matmul(kind(x), kind(y))  # the first call takes its time
    with external:
        device.delay(stream)
        cupy.copyto(late, x)
    c = interop.matmul(kind(late), kind(y))
    assert device.is_busy(stream)
    assert interop._core.read(kind(x))["stream"] == stream
    assert np.array_equal(c.inside.get(stream=external), X @ Y)
    assert asked == [("cuda:0", stream)] * 2


@pytest.mark.gpu
def test_device_calls_are_joined_with_the_registered_stream(cupy, device_box):
    from helpers import device

    stream = device.new_stream()
    kind, _ = device_box(stream)
    x, y = cupy.asarray(X), cupy.asarray(Y)
    late = cupy.zeros_like(y)
    interop.matmul(x, kind(y))
    cupy.cuda.Device().synchronize()
    with libraries.by_name("cupy", "cuda").stream(stream):
        device.delay(stream)
        cupy.copyto(late, y)
    c = interop.matmul(x, kind(late))  # on CuPy's stream, behind the box's
    assert np.array_equal(c.get(), X @ Y)


@pytest.mark.gpu
def test_device_calls_with_a_given_stream_tell_empty(cupy, device_box):
    from helpers import device

    kind, asked = device_box(device.new_stream())
    given = device.new_stream()
    c = interop.matmul(kind(cupy.asarray(X)), cupy.asarray(Y), stream=given)
    assert asked == [("cuda:0", given)]
    device.synchronize()
    assert np.array_equal(c.inside.get(), X @ Y)


@pytest.mark.gpu
@pytest.mark.parametrize("answer", ["x", -1, object(), None])
def test_bad_current_streams(cupy, answer):
    kind = new_box(export=lambda box: Cai(box.inside, stream=None), current_stream=lambda device: answer)
    x = kind(cupy.asarray(X))
    with pytest.raises((TypeError, ValueError), match="^interop: the current stream of boxes"):
        interop.matmul(x, cupy.asarray(Y))
    kind = new_box(export=lambda box: Cai(box.inside, stream=None), current_stream=fails_with(OSError("gone")))
    with pytest.raises(BufferError, match="^interop: the current stream of boxes: gone"):
        interop.matmul(kind(cupy.asarray(X)), cupy.asarray(Y))
