"""What `interop.matmul` says of producers that refuse to export, or hand over something malformed.

By DLPack, the buffer protocol, `__array_interface__` and `__cuda_array_interface__`; each export is given back once.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.dlpack import ABSENT, Cai, Fake, OldFake
from helpers.refusals import ANY_DTYPE, CAI, ones, refused, square

import interop


@pytest.mark.parametrize(
    ("fields", "exception", "match"),
    [
        ({"version": (2, 0)}, BufferError, "speaks DLPack 2.0; accepted: version 1"),
        ({"version": (0, 8)}, BufferError, "speaks DLPack 0.8; accepted: version 1"),
        ({"dtype_lanes": 2}, TypeError, r"has dtype\(code=2, bits=64, lanes=2\)"),
        ({"dtype_lanes": 0}, TypeError, r"has dtype\(code=2, bits=64, lanes=0\)"),
        ({"dtype_code": 99}, TypeError, r"dtype\(code=99, bits=64, lanes=1\)"),
        ({"dtype_code": 3}, TypeError, r"dtype\(code=3, bits=64, lanes=1\)"),
        ({"dtype_code": 8, "dtype_bits": 8}, TypeError, "is float8_e4m3; accepted: bool, int8 to int64"),
        ({"dtype_bits": 0}, TypeError, "has the unknown float0"),
        ({"dtype_bits": 4}, TypeError, "has the unknown float4"),
        ({"dtype_bits": 80}, TypeError, "has the unknown float80"),
        ({"device_type": 4}, TypeError, "lies on DLPack device type 4"),
        ({"device_type": 10}, TypeError, "lies on DLPack device type 10"),
        ({"device_type": 0}, TypeError, "lies on DLPack device type 0"),
        ({"device_id": -1}, BufferError, "malformed tensor: device id -1"),
        ({"shape": (-1, 2)}, BufferError, r"malformed tensor: shape \(-1, 2\)"),
        ({"shape": None}, BufferError, "malformed tensor: no shape"),
        ({"data": None}, BufferError, r"malformed tensor: a null pointer for shape \(2, 2\)"),
        ({"ndim": -1}, BufferError, "malformed tensor: ndim -1"),
        ({"shape": (1,) * 65, "strides": (1,) * 65}, ValueError, "has 65 dimensions; accepted: up to 64"),
        ({"strides": (2**60, 1)}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"strides": (1, -(2**62))}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"strides": (2**63 - 16, 1)}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"says": (1,)}, BufferError, "__dlpack_device__ does not return a pair"),
        ({"says": 1}, BufferError, "__dlpack_device__ does not return a pair"),
        ({"says": "cpu"}, BufferError, "__dlpack_device__"),
        ({"capsule_name": b"tensor"}, BufferError, "capsule named 'tensor'"),
        ({"capsule_name": b"used_dltensor"}, BufferError, "capsule that was used before"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_refuses_malformed_dlpack(fields, exception, match):
    x = square()
    fake = Fake(x, **fields)
    if "capsule_name" in fields:  # nobody takes such an export over, so nobody owes it a deleter call
        with pytest.raises(exception, match=f"^interop.matmul: a.*{match}"):
            interop.matmul(fake, square())
        assert (fake.exported, fake.deleted) == (1, 0)
        return
    refused(exception, f"^interop.matmul: a.*{match}", fake, square())
    refused(exception, f"^interop.matmul: b.*{match}", square(), fake)
    assert np.array_equal(x, square())


def test_accepts_what_dlpack_allows():
    x = square()
    same = [
        Fake(x, strides=None),
        Fake(x, flags=1),
        Fake(x, flags=2),
        Fake(x, version=(1, 7)),
        Fake(x, versioned=False),
        OldFake(x),
        Fake(x, data=x.ctypes.data - 24, byte_offset=24),
        Fake(x, device_type=3),  # pinned memory alone is host memory
        Fake(x, deleter=False),
    ]
    for fake in same:
        assert np.array_equal(np.asarray(interop.matmul(fake, x)), x @ x), fake.fields
    empty = Fake(x, shape=(0, 2), strides=(5, 5), data=None)
    assert np.asarray(interop.matmul(empty, x)).shape == (0, 2)


def test_asks_for_the_version_and_then_without():
    x = square()
    new, old = Fake(x), OldFake(x)
    interop.matmul(new, old)
    assert new.asked == [{"max_version": (1, 3)}]
    assert old.asked == [{"stream": None}]


class Raises:
    """A producer whose `__dlpack__`, or else `__dlpack_device__`, raises."""

    def __init__(self, error, message="", in_device=False):
        self.error, self.message, self.in_device = error, message, in_device

    def __dlpack_device__(self):
        if self.in_device:
            raise self.error(self.message)
        return (1, 0)

    def __dlpack__(self, **keywords):
        raise self.error(self.message)


@pytest.mark.parametrize("error", [RuntimeError, BufferError, ValueError, TypeError, AttributeError, OSError])
def test_refusals_of_a_producer_are_quoted(error):
    words = "no export on Sundays"
    refused(BufferError, f"^interop.matmul: a: .*Raises.*{words}", Raises(error, words), square())
    refused(BufferError, f"^interop.matmul: b: .*Raises.*{words}", square(), Raises(error, words, in_device=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_refusal_passes_through(error):
    for in_device in (False, True):
        with pytest.raises(error):
            interop.matmul(square(), Raises(error, in_device=in_device))


@pytest.mark.parametrize("value", [5, None, square()], ids=["int", "None", "array"])
def test_refuses_exports_that_are_no_capsule(value):
    class Strange:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return value

    refused(BufferError, "^interop.matmul: a.*Strange.*capsule", Strange(), square())


def test_refuses_a_capsule_that_was_used():
    x = square()
    for capsule in (x.__dlpack__(), x.__dlpack__(max_version=(1, 0))):
        interop.matmul(capsule, x)
        refused(ValueError, "^interop.matmul: a is a DLPack capsule that was used before", capsule, x)
        refused(ValueError, "^interop.matmul: b is a DLPack capsule that was used before", x, capsule)


def test_refuses_a_capsule_given_twice():
    fake = Fake(square())
    capsule = fake.capsule()
    with pytest.raises(ValueError, match="b is a DLPack capsule that was used before"):
        interop.matmul(capsule, capsule)
    del capsule
    assert fake.exported == 1
    assert fake.balanced


def test_refuses_capsules_of_other_things():
    import datetime

    capsule = datetime.datetime_CAPI
    refused(
        TypeError,
        "^interop.matmul: a is a capsule named 'datetime.datetime_CAPI'; accepted: 'dltensor'",
        capsule,
        square(),
    )


def test_rejected_capsules_are_released_once():
    fake = Fake(square(), dtype_code=99)
    for versioned in (True, False):
        capsule = fake.capsule(versioned=versioned)
        with pytest.raises(TypeError):
            interop.matmul(capsule, square())
        del capsule
    never = fake.capsule()  # not consumed: its own destructor releases it
    del never
    assert fake.exported == 3
    assert fake.balanced


def test_every_argument_is_released_when_a_later_one_is_refused():
    first, second = Fake(square()), Fake(square(), dtype_code=99)
    refused(TypeError, "b has the unknown", first, second)
    refused(TypeError, "out is float32", first, first, out=np.zeros((2, 2), "f4"))
    refused(ValueError, "the inner dimensions", first, ones(3, 3))
    assert first.exported == 2 + 4 + 2


def test_a_buffer_is_released_after_an_error():
    memory = bytearray(32)
    view = memoryview(memory).cast("d", (2, 2))
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(view, ones(3, 3))
    interop.matmul(view, ones(2, 2))
    view.release()
    memory.extend(b"x")  # BufferError while anybody still holds the buffer


@pytest.mark.parametrize("interface", [5, {}, {"shape": (2, 2), "typestr": "<f8", "version": 3, "data": "x"}])
def test_refuses_malformed_array_interfaces(interface):
    kind = type("Strange", (), {"__array_interface__": interface})
    refused(BufferError, "^interop.matmul: a.*Strange", kind(), square())


@pytest.mark.parametrize(
    ("fields", "exception", "match"),
    [
        ({"version": 1}, BufferError, "version below 2"),
        ({"version": ABSENT}, BufferError, "no version"),
        ({"mask": square()}, TypeError, "is masked; accepted: arrays without a mask"),
        ({"typestr": ">f8"}, TypeError, f"has the typestr '>f8'; {ANY_DTYPE}"),
        ({"typestr": "<V2"}, TypeError, f"has the typestr '<V2'; {ANY_DTYPE}"),
        ({"typestr": 3}, BufferError, "typestr is int, not a str"),
        ({"typestr": ABSENT}, BufferError, "no typestr"),
        ({"shape": [2, 2]}, BufferError, "shape is list, not a tuple"),
        ({"shape": (2, "x")}, BufferError, "shape: 'str' object"),
        ({"shape": (-1, 2)}, BufferError, r"shape \(-1, 2\)"),
        ({"shape": ABSENT}, BufferError, "no shape"),
        ({"shape": (1,) * 65}, ValueError, "65 dimensions; accepted: up to 64"),
        ({"strides": (8,)}, BufferError, "strides do not match shape"),
        ({"strides": (17, 3)}, BufferError, "strides are no multiples of the item size 8"),
        ({"data": 4096}, BufferError, "data is not a pair"),
        ({"data": (4096,)}, BufferError, "data is not a pair"),
        ({"data": (None, False)}, BufferError, "data: 'NoneType' object"),
        ({"data": (0, False)}, BufferError, r"a null pointer for shape \(2, 2\)"),
        ({"data": ABSENT}, BufferError, "no data"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_refuses_malformed_cuda_array_interfaces(fields, exception, match):
    array = Cai(None, **{**CAI, **fields})
    refused(exception, f"^interop.matmul: a.*{match}", array, array)


def test_refuses_a_cuda_array_interface_that_is_no_dict():
    kind = type("Strange", (), {"__cuda_array_interface__": 5})
    refused(
        BufferError, "^interop.matmul: a: __cuda_array_interface__ of .*Strange: is int, not a dict", kind(), square()
    )


def test_a_property_that_raises_is_quoted():
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("the pool is closed")

    with pytest.raises((BufferError, RuntimeError), match="the pool is closed"):
        interop.matmul(Broken(), square())
