"""Arrays that lie: producers of DLPack and of `__cuda_array_interface__` whose every field a test can choose.

Written from the standards' texts with ctypes, so that nothing here shares code with what is tested.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

CPU, CUDA, PINNED, MANAGED = 1, 2, 3, 13
READ_ONLY = 1
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # NumPy's kind -> DLPack's code


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class CudaStream:
    """A stream that someone else owns, by the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's C API of our own: libraries set the types of `ctypes.pythonapi`'s, each its way."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_increment = _python("Py_IncRef", None, ctypes.py_object)
_name_of = _python("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer_of = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
# The same functions by address: a capsule that is being destroyed must not become a Python object again.
_is_valid_at = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


@_Destructor
def _destroy_capsule(address: int) -> None:
    for name, struct in ((LEGACY, Managed), (VERSIONED, ManagedVersioned)):
        if _is_valid_at(address, name):
            managed = struct.from_address(_pointer_at(address, name))
            managed.deleter(ctypes.addressof(managed))


def capsule_name(capsule: Any) -> str:
    return _name_of(capsule).decode()


def capsule_pointer(capsule: Any) -> int:
    return _pointer_of(capsule, _name_of(capsule))


def read_capsule(capsule: Any) -> Managed | ManagedVersioned:
    """Look into a capsule without consuming it."""
    struct = {"dltensor": Managed, "dltensor_versioned": ManagedVersioned}[capsule_name(capsule)]
    return struct.from_address(capsule_pointer(capsule))


_USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


def consume(capsule: Any) -> Managed | ManagedVersioned:
    """Take a capsule over as a consumer does; the caller owes one call of `.deleter`."""
    managed = read_capsule(capsule)
    _rename(capsule, _USED[_name_of(capsule)])
    return managed


def facts(x: Any) -> dict[str, Any]:
    """Return the fields of an array's DLTensor, from its library's own attributes."""
    if isinstance(x, np.ndarray):
        pointer, device, strides = x.__array_interface__["data"][0], (CPU, 0), x.strides
    elif type(x).__module__.startswith("cupy"):
        pointer, device, strides = x.data.ptr, (CUDA, x.device.id), x.strides
    elif type(x).__module__.startswith("torch"):
        pointer = x.data_ptr()
        device = (CUDA, x.device.index) if x.is_cuda else (CPU, 0)
        strides = tuple(step * x.element_size() for step in x.stride())
    else:
        raise NotImplementedError(type(x))
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    return {
        "data": pointer,
        "device_type": device[0],
        "device_id": device[1],
        "ndim": len(x.shape),
        "dtype_code": CODES[dtype.kind],
        "dtype_bits": dtype.itemsize * 8,
        "dtype_lanes": 1,
        "shape": tuple(x.shape),
        "strides": tuple(step // dtype.itemsize for step in strides),
        "byte_offset": 0,
        "flags": 0,
        "version": (1, 0),
    }


# Every export in consumers' hands: the address of its managed struct -> (its Fake, what the struct points to). The one
# deleter is a module's function, as a callback of ctypes must not be freed while it runs.
_exports: dict[int, tuple[Any, ...]] = {}


@Deleter
def _delete(address: int) -> None:  # on any thread, with or without the GIL: ctypes takes it
    fake = _exports.pop(address, (_strays,))[0]
    fake.deleted += 1


class _Strays:
    """Takes the deleter calls that belong to no living export: a second call for one, above all."""

    deleted = 0


_strays = _Strays()


def stray_deletes() -> int:
    """Return how often a deleter was called for an export that was given back before."""
    return _strays.deleted


def exports_out() -> int:
    """Return how many exports, of all that were made, have not been given back."""
    return len(_exports)


def _int64s(values: Sequence[int] | None) -> Any:
    if values is None:
        return ctypes.POINTER(ctypes.c_int64)()
    return ctypes.cast((ctypes.c_int64 * max(len(values), 1))(*values), ctypes.POINTER(ctypes.c_int64))


class Fake:
    """Re-exports an array by DLPack with fields replaced; an unknown library with no stream of its own.

    Fields: data, byte_offset, shape, strides, ndim, flags, version, dtype_code, dtype_bits, dtype_lanes, device_type,
    device_id. `capsule_name` gives the capsule another name, `versioned=False` an old capsule whatever is asked,
    `says` another answer of `__dlpack_device__`. Every call's keywords are kept in `.asked`; `.exported` counts the
    capsules and `.deleted` those given back; a deleter that runs twice counts in `stray_deletes`.
    """

    def __init__(
        self,
        x: Any,
        *,
        versioned: bool = True,
        capsule_name: bytes | None = None,
        says: tuple[int, int] | None = None,
        deleter: bool = True,
        **fields: Any,
    ) -> None:
        known = facts(x)
        unknown = set(fields) - set(known)
        assert not unknown, unknown
        self.array = x
        self.fields = {**known, **fields}
        if "shape" in fields and "ndim" not in fields and fields["shape"] is not None:
            self.fields["ndim"] = len(fields["shape"])
        self._versioned = versioned
        self._capsule_name = capsule_name
        self._says = says
        self._deleter = _delete if deleter else Deleter()
        self.asked: list[dict[str, Any]] = []
        self.exported = 0
        self.deleted = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._says or (self.fields["device_type"], self.fields["device_id"])

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        version = keywords.get("max_version")
        return self.capsule(versioned=self._versioned and version is not None and version[0] >= 1)

    def capsule(self, *, versioned: bool = True) -> Any:
        """Return one more export."""
        f = self.fields
        managed = ManagedVersioned() if versioned else Managed()
        if versioned:
            managed.major, managed.minor = f["version"]
            managed.flags = f["flags"]
        managed.deleter = self._deleter
        tensor = managed.tensor
        tensor.data = f["data"]
        tensor.device = Device(f["device_type"], f["device_id"])
        tensor.ndim = f["ndim"]
        tensor.dtype = DataType(f["dtype_code"], f["dtype_bits"], f["dtype_lanes"])
        shape, strides = _int64s(f["shape"]), _int64s(f["strides"])
        tensor.shape, tensor.strides = shape, strides
        tensor.byte_offset = f["byte_offset"]
        address = ctypes.addressof(managed)
        _exports[address] = (self, managed, shape, strides)  # until its deleter runs
        self.exported += 1
        name = self._capsule_name or (VERSIONED if versioned else LEGACY)
        return _new(address, name, ctypes.cast(_destroy_capsule, ctypes.c_void_p))

    @property
    def balanced(self) -> bool:
        """Has every export been given back, none of them twice?"""
        return self.exported == self.deleted and stray_deletes() == 0


class Producer:
    """An array of no library, with DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


class OldFake(Fake):
    """A producer from before `max_version`: any other keyword than `stream` is a TypeError."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked.append({"stream": stream})
        return self.capsule(versioned=False)


ABSENT = types.SimpleNamespace(is_absent=True)  # a Cai entry that is not there


class Cai:
    """Shows only an array's `__cuda_array_interface__`, as it was when this was made, with entries replaced.

    The array is kept alive. CuPy names its current stream at that moment, so make it where the array was written.
    """

    def __init__(self, x: Any, **fields: Any) -> None:
        self.array = x
        interface = {} if x is None else dict(x.__cuda_array_interface__)
        interface.update(fields)
        self.__cuda_array_interface__ = {key: value for key, value in interface.items() if value is not ABSENT}


# ---- the buffer protocol ----


class Buffer(ctypes.Structure):
    """CPython's Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    )


# ---- the C exchange API ----

Allocator = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p
)
FromPy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToPy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
ViewFromPy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
SetError = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class ExchangeApi(ctypes.Structure):
    """The table of C functions behind `__dlpack_c_exchange_api__`, as DLPack 1.3 has it."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", Allocator),
        ("managed_from_py", FromPy),
        ("managed_to_py", ToPy),
        ("view_from_py", ViewFromPy),
        ("current_work_stream", WorkStream),
    )


EXCHANGE_API = b"dlpack_exchange_api"


def exchange_api_of(type_: type) -> ExchangeApi:
    """Return the table of a type."""
    return ExchangeApi.from_address(_pointer_of(type_.__dlpack_c_exchange_api__, EXCHANGE_API))


class ApiArray:
    """An array whose type has the C exchange API, over NumPy's memory, and whose library makes arrays of this type."""

    refuses = False

    def __init__(self, x: np.ndarray) -> None:
        self.array = x
        self.fake = Fake(x)


def _managed_of(x: ApiArray) -> int:
    return capsule_pointer(_kept(x.fake.capsule()))


def _kept(capsule: Any) -> Any:
    _rename(capsule, _USED[VERSIONED])  # its deleter is now the consumer's to call
    return capsule


@FromPy
def _api_from_py(x: ApiArray, out: Any) -> int:
    if x.refuses:
        return -1  # with no Python error set, which ctypes cannot do in a callback
    out[0] = _managed_of(x)
    return 0


@Allocator
def _api_allocate(prototype: Any, out: Any, context: int, set_error: int) -> int:
    tensor = prototype.contents
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    assert (tensor.device.type, tensor.dtype.code) == (CPU, CODES["f"])
    out[0] = _managed_of(ApiArray(np.empty(shape, f"f{tensor.dtype.bits // 8}")))
    return 0


@ToPy
def _api_to_py(managed: int, out: Any) -> int:
    exported = _exports[managed][0]
    made = ApiArray(exported.array)
    ManagedVersioned.from_address(managed).deleter(managed)
    _increment(made)
    out[0] = id(made)
    return 0


@WorkStream
def _api_stream(device_type: int, device_id: int, out: Any) -> int:
    out[0] = None
    return 0


_API = ExchangeApi(1, 3, None, _api_allocate, _api_from_py, _api_to_py, ViewFromPy(), _api_stream)
_NEWER_API = ExchangeApi(2, 0, ctypes.addressof(_API))  # of a future version, which names the older one behind it


def _api_capsule(table: ExchangeApi) -> Any:
    return _new(ctypes.addressof(table), EXCHANGE_API, None)


ApiArray.__dlpack_c_exchange_api__ = _api_capsule(_API)


class NewerApiArray(ApiArray):
    """The same of a library that is ahead of us."""

    __dlpack_c_exchange_api__ = _api_capsule(_NEWER_API)
