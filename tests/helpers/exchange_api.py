"""Types with a DLPack C exchange API whose every field a test can choose: from the standard's text, with ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from helpers import dlpack
from helpers.dlpack import Fake, ManagedVersioned, Tensor, _python

NAME = b"dlpack_exchange_api"

SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_Allocate = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SetError)
_FromPython = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_ToPython = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_Stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

_incref = _python("Py_IncRef", None, ctypes.py_object)


class Api(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", _Allocate),
        ("from_python", _FromPython),
        ("to_python", _ToPython),
        ("view", ctypes.c_void_p),
        ("stream", _Stream),
    )


class Exchange:
    """One library: a class of arrays, and the table on it. Calls are counted in `calls`.

    `attribute` says where the table is, `as_int` whether as a plain int; `version` and `before` (another `Exchange`)
    fill its header. `refuses` names a function that fails, `lacks` one that is null.
    """

    def __init__(
        self,
        *,
        version: tuple[int, int] = (1, 3),
        before: Exchange | None = None,
        attribute: str = "__dlpack_c_exchange_api__",
        as_int: bool = False,
        name: bytes = NAME,
        refuses: str = "",
        lacks: str = "",
        words: tuple[bytes, bytes] = (b"RuntimeError", b"no room"),
        stream: int = 0,
    ) -> None:
        self.calls: list[str] = []
        self.refuses, self.words, self.current = refuses, words, stream
        self.fakes: list[Fake] = []
        api = self.api = Api()
        api.major, api.minor = version
        api.previous = ctypes.addressof(before.api) if before else None
        for field, kind, function in (
            ("allocate", _Allocate, self._allocate),
            ("from_python", _FromPython, self._from_python),
            ("to_python", _ToPython, self._to_python),
            ("stream", _Stream, self._stream),
        ):
            if field != lacks:
                setattr(api, field, kind(function))
        address = ctypes.addressof(api)
        value = address if as_int else dlpack._new(address, name, None)
        self.type = type("Exchanged", (_Array,), {attribute: value, "__module__": "exchanged.arrays"})
        _forever.append((self, before))  # as the table must be

    def array(self, x: Any, **fields: Any) -> Any:
        made = self.type(Fake(x, **fields))
        self.fakes.append(made.fake)
        return made

    def _from_python(self, array: Any, out: Any) -> int:
        self.calls.append("from_python")
        if self.refuses == "from_python":
            return -1
        capsule = array.fake.capsule()
        managed = dlpack.consume(capsule)
        out[0] = ctypes.addressof(managed)
        return 0

    def _allocate(self, prototype: int, out: Any, context: int, set_error: Any) -> int:
        self.calls.append("allocate")
        if self.refuses == "allocate":
            set_error(context, *self.words)
            return -1
        tensor = Tensor.from_address(prototype)
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        kind = {code: letter for letter, code in dlpack.CODES.items()}[tensor.dtype.code]
        fake = Fake(np.full(shape, np.nan, np.dtype(f"{kind}{tensor.dtype.bits // 8}")))
        self.fakes.append(fake)
        managed = dlpack.consume(fake.capsule())
        out[0] = ctypes.addressof(managed)
        return 0

    def _to_python(self, address: int, out: Any) -> int:
        self.calls.append("to_python")
        managed = ManagedVersioned.from_address(address)
        fake = dlpack._exports[address][0]
        managed.deleter(address)  # the memory is the new object's
        made = self.type(fake)
        _incref(made)
        out[0] = id(made)
        return 0

    def _stream(self, device_type: int, device: int, out: Any) -> int:
        self.calls.append("stream")
        if self.refuses == "stream":
            return -1
        out[0] = self.current
        return 0

    @property
    def balanced(self) -> bool:
        return all(fake.balanced for fake in self.fakes)


class _Array:
    """An array with nothing but its type's table: no `__dlpack__`."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake


_forever: list[Any] = []
