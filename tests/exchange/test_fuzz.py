"""Random arrays of every library against NumPy, and producers of which every field is wrong in every way.

What is malformed gives a listed exception and is given back once; nothing is read that should not be.
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys

import numpy as np
import pytest
from helpers import libraries
from helpers.boxes import new_box, unpack
from helpers.dlpack import ABSENT, Cai, Fake, OldFake, stray_deletes
from helpers.exchange_api import Exchange
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import interop

LISTED = (TypeError, ValueError, BufferError, interop.CudaError)
DTYPES = [f"{kind}{size}" for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "248")) for size in sizes]
DTYPES += ["bool", "c8", "c16"]


# ---- layouts ----


@st.composite
def layouts(draw, most_dimensions=5):
    """Shape, steps in elements and offset of a view of a compact 1-D base, and how long that base is."""
    shape = draw(st.lists(st.integers(0, 4), max_size=most_dimensions).map(tuple))
    steps = tuple(draw(st.integers(-7, 7)) for _ in shape)
    reach = [(size - 1) * step for size, step in zip(shape, steps, strict=True)] if math.prod(shape) else []
    before, after = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    offset = before + draw(st.integers(0, 3))
    return shape, steps, offset, offset + after + 1 + draw(st.integers(0, 2))


def view_of(base, shape, steps, offset):
    bytes_ = tuple(step * base.itemsize for step in steps)
    return np.ndarray(shape, base.dtype, base.data, offset * base.itemsize, bytes_)


def values(dtype, count):
    bits = np.random.default_rng(count).integers(0, 256, count * np.dtype(dtype).itemsize, dtype=np.uint8)
    return (bits % 2).astype(bool) if dtype == "bool" else bits.view(dtype)


def check_read(array, x):
    facts = interop._core.read(array)
    assert facts["shape"] == x.shape
    assert facts["dtype"] == x.dtype.name
    assert facts["values"] == x.tobytes()


class Carried:
    """Shows an array's `__array_interface__` alone."""

    def __init__(self, x):
        self.x = x

    @property
    def __array_interface__(self):
        return self.x.__array_interface__


def through_torch(x, base, shape, steps, offset):
    torch = sys.modules["torch"]
    if min(steps, default=0) < 0:
        return None
    return torch.from_numpy(base).as_strided(shape, steps, offset)


WAYS = {
    "numpy": lambda x, *_: x,
    "memoryview": lambda x, *_: memoryview(x),
    "array interface": lambda x, *_: Carried(x),
    "numpy's dlpack": lambda x, *_: Fake(x),
    "old dlpack": lambda x, *_: OldFake(x),
    "byte_offset": lambda x, *_: Fake(x, data=x.ctypes.data - 24, byte_offset=24) if x.size else Fake(x),
    "capsule": lambda x, *_: Fake(x).capsule(),
    "exchange api": lambda x, *_: EXCHANGE.array(x),
    "registered": lambda x, *_: Box(x),
    "torch": through_torch,
}
EXCHANGE = Exchange()
UNMADE = Exchange(lacks="allocate")  # its results are interop's, of any dtype


Box = new_box(name="boxes of test_fuzz", export=unpack)


@pytest.mark.parametrize("way", WAYS)
@given(layout=layouts(), dtype=st.sampled_from(DTYPES))
@example(layout=((), (), 0, 1), dtype="f4")
@example(layout=((0, 3), (5, -2), 0, 1), dtype="f8")
@example(layout=((1, 1), (-7, 7), 0, 1), dtype="c16")
@example(layout=((3, 4), (0, 0), 0, 1), dtype="i2")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_layout_is_read_right(way, layout, dtype, torch):
    shape, steps, offset, count = layout
    base = values(dtype, count)
    x = view_of(base, shape, steps, offset)
    array = WAYS[way](x, base, shape, steps, offset)
    if array is not None:
        check_read(array, x)
    EXCHANGE.fakes.clear()


@given(first=layouts(3), second=st.data(), names=st.tuples(st.sampled_from(list(WAYS)), st.sampled_from(list(WAYS))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_of_any_layouts_are_right(first, second, names, torch):
    shape, steps, offset, count = first
    if not shape:
        return
    columns = second.draw(st.integers(0, 3))
    other_steps = second.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    inner = shape[-1]
    base = np.random.default_rng(count).integers(-4, 5, count).astype("f8")
    x = view_of(base, shape, steps, offset)
    length = max(inner - 1, 0) * other_steps[0] + max(columns - 1, 0) * other_steps[1] + 1
    other = np.random.default_rng(length).integers(-4, 5, length).astype("f8")
    y = view_of(other, (inner, columns), other_steps, 0)
    a = WAYS[names[0]](x, base, shape, steps, offset)
    b = WAYS[names[1]](y, other, (inner, columns), other_steps, 0)
    if a is None or b is None:
        return
    c = interop.matmul(a, b)
    got = c.fake.array if hasattr(c, "fake") else np.asarray(c)
    assert np.array_equal(got, x @ y)


@given(layout=layouts(3))
def test_out_of_any_layout_is_written_right_or_refused(layout):
    shape, steps, offset, count = layout
    if len(shape) != 2:
        return
    base = np.full(count, 7.0)
    out = view_of(base, shape, steps, offset)
    a, b = np.arange(2.0 * shape[0]).reshape(shape[0], 2), np.arange(2.0 * shape[1]).reshape(2, shape[1])
    addresses = {offset + i * steps[0] + j * steps[1] for i in range(shape[0]) for j in range(shape[1])}
    try:
        assert interop.matmul(a, b, out=out) is out
    except ValueError as error:
        # Exact for what slicing, transposing and broadcasting make; other steps may be refused without need.
        assert "elements that share memory" in str(error)  # noqa: PT017
        assert (base == 7).all()
        return
    assert len(addresses) == out.size
    assert np.array_equal(out, a @ b)
    rest = [k for k in range(count) if k not in addresses]
    assert (base[rest] == 7).all()


# ---- malformed producers ----

BIG = [0, 1, -1, 2, 3, 7, 8, 63, 64, 65, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63)]


def extents(count):
    """Tuples of plausible and absurd sizes."""
    return st.lists(st.sampled_from(BIG), min_size=count, max_size=count).map(tuple)


def never_too_long(x, fields):
    """May these values be read at all? A lie about the extent of real memory cannot be found out by anybody."""
    shape = fields.get("shape", x.shape)
    strides = fields.get("strides", tuple(step // x.itemsize for step in x.strides))
    item = max((fields.get("dtype_bits", 64) * fields.get("dtype_lanes", 1) + 7) // 8, 1)
    if math.prod(shape) == 0:
        return True
    if math.prod(shape) > 4096:
        return False
    if strides is None:
        strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    reach = [(size - 1) * step * item for size, step in zip(shape, strides, strict=False)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + item
    start = fields.get("byte_offset", 0)
    return start + low >= 0 and start + high <= x.nbytes


@st.composite
def wrong_fields(draw):
    """Any of a DLTensor's fields, each replaced by each wrong thing."""
    ndim = draw(st.integers(0, 4))
    options = {
        "dtype_code": st.integers(0, 255),
        "dtype_bits": st.integers(0, 255),
        "dtype_lanes": st.sampled_from([0, 1, 2, 4, 65535]),
        "device_type": st.integers(-1, 20).filter(lambda kind: kind not in (2, 13)),
        "device_id": st.sampled_from([-1, 0, 1, 2**31 - 1]),
        "flags": st.integers(0, 2**64 - 1),
        "version": st.tuples(st.sampled_from([0, 1, 2, 2**32 - 1]), st.sampled_from([0, 3, 2**32 - 1])),
        "data": st.just(None),
        "byte_offset": st.sampled_from([0, 8, 16]),
        "shape": extents(ndim),
        "strides": st.one_of(st.none(), extents(ndim)),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), min_size=1, max_size=4))
    if chosen & {"shape", "strides"}:
        chosen |= {"shape", "strides"}
    fields = {name: draw(options[name]) for name in sorted(chosen)}
    if draw(st.booleans()) and "shape" not in fields:
        fields["ndim"] = draw(st.sampled_from([-1, -(2**31), 65, 2**31 - 1]))
    return fields


@pytest.mark.parametrize("way", ["dlpack", "old dlpack", "capsule", "old capsule", "exchange api", "registered"])
@given(fields=wrong_fields())
@example(fields={"shape": (2**62, 2**62), "strides": (0, 0)})  # more elements than an int64 counts
@example(fields={"shape": (2**32, 2**32), "strides": (0, 0)})  # as many elements as 0, modulo 2**64
@example(fields={"shape": (2**62, 4), "strides": None})
@example(fields={"shape": (2, 2), "strides": (-(2**63), 0)})
@example(fields={"shape": (2, 2), "strides": (2**63 - 1, 2**63 - 1)})
def test_malformed_dlpack_is_refused_and_given_back(way, fields):
    x = np.arange(64.0)
    known = {"shape": (8, 8), "strides": (8, 1), **fields}
    fake = (OldFake if way == "old dlpack" else Fake)(x, **known)
    if way in ("capsule", "old capsule"):
        array = fake.capsule(versioned=way == "capsule")
    elif way == "exchange api":
        array = EXCHANGE.type(fake)
    else:
        array = Box(fake) if way == "registered" else fake
    call = interop._core.read if never_too_long(x, known) else refuse_only
    try:
        call(array)
    except LISTED:
        pass
    else:  # a broadcast shape may have more elements than memory, but no more than can be counted
        assert math.prod(known["shape"]) < 2**62
    del array
    if not fake.balanced:
        gc.collect()
    assert fake.exported == fake.deleted
    assert stray_deletes() == 0


def refuse_only(array):
    """Import without reading a value: nothing fits this, and a product with it would have no element."""
    interop.matmul(array, np.ones((1000003, 0)))


READS = {
    "add": lambda x: interop.add(x, 1),
    "matmul": lambda x: interop.matmul(x, np.ones((8, 2))),
    "expression": lambda x: interop.elementwise("x * x + 1")(x),
    "explain": lambda x: interop.explain(interop.add, x, 1),
    "out": lambda x: interop.add(np.ones((8, 8)), 1, out=x),
}
LOOKS = {
    "asarray": interop.asarray,
    "convert": lambda x: interop.convert(x, "interop"),
    "export": lambda x: interop.asarray(x).__dlpack__(max_version=(1, 0)),
    "no element": lambda x: interop.matmul(x, np.ones((1000003, 0))),
}


@pytest.mark.parametrize("way", ["dlpack", "old dlpack", "capsule", "exchange api", "registered"])
@given(fields=wrong_fields(), chosen=st.sampled_from(sorted({**READS, **LOOKS})))
@example(fields={"byte_offset": 2**64 - 8}, chosen="add")
@example(fields={"byte_offset": 2**63}, chosen="asarray")
@example(fields={"shape": (2**40, 2**40, 0), "strides": None}, chosen="asarray")
@example(fields={"shape": (0, 2**62, 2**62), "strides": (1, 1, 1)}, chosen="add")
@example(fields={"shape": (3,), "strides": (2**62,)}, chosen="add")
@example(fields={"shape": (8, 8), "strides": (-8, -1), "byte_offset": 63 * 8}, chosen="add")
@example(fields={"dtype_code": 6, "dtype_bits": 16}, chosen="add")
@example(fields={"dtype_code": 5, "dtype_bits": 24}, chosen="convert")
@example(fields={"ndim": 66}, chosen="out")
def test_hostile_tensors_through_every_function(way, fields, chosen):
    """The right exception or the right answer, and every export given back once: nothing is read that should not be."""
    x = np.arange(64.0)
    known = {"shape": (8, 8), "strides": (8, 1), **fields}
    if chosen in READS and not never_too_long(x, known):
        chosen = "asarray"
    fake = (OldFake if way == "old dlpack" else Fake)(x, **known)
    make = {"capsule": fake.capsule, "exchange api": lambda: UNMADE.type(fake), "registered": lambda: Box(fake)}
    array = make.get(way, lambda: fake)()
    said = None
    try:
        result = {**READS, **LOOKS}[chosen](array)
    except LISTED as error:
        said = str(error)
    if said is not None:
        assert said.startswith(("interop.", "this torch")), said
    elif chosen == "add" and known == {"shape": (8, 8), "strides": (8, 1), "byte_offset": 0}:
        assert np.array_equal(np.asarray(result), x.reshape(8, 8) + 1)
    result = array = None
    if not fake.balanced:
        gc.collect()
    assert fake.exported == fake.deleted
    assert stray_deletes() == 0


@given(
    typestr=st.one_of(st.text(max_size=5), st.from_regex(r"\A[<>|=]?[biufcVOSUMmt][0-9]{0,3}\Z")),
    shape=st.lists(st.sampled_from(BIG), max_size=3).map(tuple),
    strides=st.one_of(st.none(), st.lists(st.sampled_from(BIG), max_size=3).map(tuple)),
    chosen=st.sampled_from(["add", "matmul", "expression", "asarray", "convert"]),
)
@example(typestr="<f3", shape=(2,), strides=None, chosen="add")
@example(typestr="<f8", shape=(3,), strides=(2**62,), chosen="add")
@example(typestr="<f8", shape=(2**32, 2**32, 0), strides=None, chosen="asarray")
def test_hostile_interfaces_through_every_function(typestr, shape, strides, chosen):
    """A null pointer, so that nothing is right but what has no element."""
    array = Cai(None, typestr=typestr, shape=shape, strides=strides, data=(0, False), version=3)
    try:
        {**READS, **LOOKS}[chosen](array)
    except LISTED as error:
        assert str(error).startswith("interop")  # noqa: PT017
    else:
        assert math.prod(shape) == 0


NOT_INTS = [None, 1.5, "8", b"8", (), [], {}, object(), float("nan"), 2**63, 2**64, -(2**63) - 1, 10**30]
WRONG = {
    "version": [ABSENT, None, 1, 0, -1, "3", 3.0, (3,), 2**70],
    "mask": [np.ones((2, 2)), False, 0, "x"],
    "typestr": [
        ABSENT,
        None,
        4,
        b"<f8",
        "",
        "<",
        "f8",
        ">f8",
        "<f3",
        "<f16",
        "<V2",
        "|O8",
        "<U1",
        "<f8 ",
        "\ud800",
        "<f99",
    ],
    "shape": [
        ABSENT,
        None,
        4,
        (2**32, 2**32),
        [2, 2],
        "22",
        (2, None),
        (2, 1.5),
        (2, "2"),
        (-1, 2),
        (2**63,),
        (1,) * 65,
        ((2,), 2),
    ],
    "strides": [4, [16, 8], "x", (8,), (8, 8, 8), (17, 8), (None, 8), (16, 8.0), (2**63, 8), (16, "8")],
    "data": [
        *(ABSENT, None, 4096, "x", [4096, False], (), (4096,), (4096, False, 0), (0, False), (None, False)),
        *(("4096", False), (4096.0, False), (2**64, False), (-(2**70), False)),
    ],
}
GOOD = {"shape": (2, 2), "typestr": "<f8", "data": (4096, False), "version": 3, "strides": None}


def refusal(*arrays):
    """Return the words of the listed exception. Not by pytest.raises, which would hold the arrays."""
    try:
        interop.matmul(*arrays)
    except (TypeError, ValueError, BufferError) as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize(
    ("entry", "value"),
    [(entry, value) for entry, wrong in WRONG.items() for value in wrong],
    ids=lambda value: ascii(value)[:30] if isinstance(value, str) and value in WRONG else "",
)
def test_malformed_cuda_array_interfaces_are_refused(entry, value):
    """None of them gets as far as asking CUDA about the pointer, so they need no GPU."""
    array = Cai(None, **{**GOOD, entry: value})
    before = sys.getrefcount(array)
    assert refusal(array, np.ones((2, 2))).startswith("interop.matmul: a")
    assert refusal(np.ones((2, 2)), array).startswith("interop.matmul: b")
    assert sys.getrefcount(array) == before


@given(
    entries=st.dictionaries(
        st.sampled_from(["shape", "typestr", "data", "version", "strides", "mask", "stream", "descr"]),
        st.one_of(st.sampled_from([*NOT_INTS, ABSENT]), st.tuples(st.sampled_from(NOT_INTS)), st.text(max_size=4)),
        min_size=1,
    )
)
def test_random_cuda_array_interfaces_are_refused(entries):
    array = Cai(None, **{**GOOD, "data": (0, False), **entries})  # a null pointer: refused whatever else is said
    with pytest.raises(LISTED, match="^interop"):
        interop.matmul(array, np.ones((2, 2)))


@pytest.mark.gpu
@pytest.mark.parametrize("value", [0, -1, "1", 1.5, (1,), 2**70], ids=repr)
def test_malformed_streams_of_cuda_array_interfaces(cupy, value):
    x = cupy.ones((2, 2))
    with pytest.raises(BufferError, match="^interop.matmul: a: __cuda_array_interface__ of .*stream"):
        interop.matmul(Cai(x, stream=value), x)


@pytest.mark.gpu
@pytest.mark.parametrize("pointer", [1, 4096, -1, 2**47])
def test_pointers_unknown_to_cuda(cupy, pointer):
    x = cupy.ones((2, 2))
    with pytest.raises(BufferError, match="its pointer is unknown to CUDA"):
        interop.matmul(Cai(x, data=(pointer, False)), x)


@pytest.mark.parametrize(
    "interface",
    [{**GOOD, entry: value} for entry in ("shape", "typestr", "strides", "data") for value in WRONG[entry]],
    ids=lambda value: "",
)
def test_malformed_array_interfaces_are_refused(interface):
    shown = {key: value for key, value in interface.items() if value is not ABSENT}
    if shown.get("data") == (4096, False):  # memory of ours, as NumPy believes what it is told
        shown["data"] = (KEPT.ctypes.data, False)
    kind = type("Shown", (), {"__array_interface__": shown})
    with contextlib.suppress(LISTED):
        interop._core.read(kind())


KEPT = np.zeros(4096)


@given(
    device=st.one_of(
        st.sampled_from([None, (), (1,), (1, 0, 0), [1, 0], "10", 5, (1.5, 0), ("1", 0), (None, 0), (1, "0")]),
        st.tuples(
            st.sampled_from([-1, 0, 1, 3, 99, 2**31, 2**63, 10**30]), st.sampled_from([None, -1, 0, 2**31, 10**30])
        ),
    )
)
def test_any_dlpack_device_is_read_or_refused(device):
    x = np.arange(4.0)
    fake = Fake(x, says=device) if device else Fake(x, says=(device,))
    try:
        check_read(fake, x)
    except LISTED as error:
        assert str(error).startswith("interop.testing: the array")  # noqa: PT017
    assert fake.balanced


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["attributes", "interface", "dlpack"])
@given(layout=layouts(), dtype=st.sampled_from(DTYPES))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_layout_on_a_device_is_read_right(way, layout, dtype, cupy):
    shape, steps, offset, count = layout
    base = values(dtype, count)
    x = view_of(base, shape, steps, offset)
    library = libraries.by_name("cupy", "cuda")
    array = library.view(base, x)
    if way == "interface":
        array = Cai(array)
    elif way == "dlpack":
        array = Fake(array)
    check_read(array, x)
