"""What tests of device memory between processes share."""

from __future__ import annotations

from typing import Any

import numpy as np

import interop

#: What the other process of a test runs first.
START = """
import ctypes, gc, os
import numpy as np
import interop
from helpers import device, machine
from helpers.device import delay, eventually, is_busy, synchronize

def values_of(x):
    return np.asarray(interop.copy(x, memory="host")).tolist()

def count(folder):
    return len(os.listdir(folder))

def address_of(x):
    return interop.asarray(x).__cuda_array_interface__["data"][0]

def is_mapped(address):
    ordinal = ctypes.c_int()
    with device.primary_context():
        return machine.driver().cuPointerGetAttribute(ctypes.byref(ordinal), 9, ctypes.c_uint64(address)) == 0

delay(device.LEGACY, 0)
"""


def values_of(x: Any) -> np.ndarray:
    return np.asarray(interop.copy(x, memory="host"))


def address_of(x: Any) -> int:
    return interop.asarray(x).__cuda_array_interface__["data"][0]
