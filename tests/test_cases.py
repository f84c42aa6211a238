"""Inputs that broke other libraries, those in host memory; the rest, and the list, are in tests/gpu/test_cases.py."""

from __future__ import annotations

import numpy as np
import pytest

import interop


# numpy/numpy#20742: old capsules cannot say read-only, so the export of such an array was refused.
def test_b46_read_only_arrays():
    a = np.arange(4, dtype="f4").reshape(2, 2)
    a.flags.writeable = False
    assert interop.matmul(a, a).tolist() == [[2, 3], [6, 11]]
    assert interop.matmul(a.__dlpack__(max_version=(1, 0)), a).__dlpack_device__() == (1, 0)


# jax-ml/jax#40789: an import that does not ask for a versioned capsule failed.
def test_b48_read_only_broadcasts():
    a = np.broadcast_to(np.float32(3), (4, 4))
    assert not a.flags.writeable
    assert (interop.matmul(a, np.ones((4, 4), "f4")) == 12).all()


def test_b48_read_only_arrays_beside_jax(host_jax):
    a = np.broadcast_to(np.float32(3), (4, 4))
    c = interop.matmul(host_jax.numpy.ones((4, 4), "float32"), a)
    assert isinstance(c, host_jax.Array)
    assert bool((c == 12).all())


# dmlc/dlpack#97: bytes of big-endian data were read in the wrong order.
def test_b54_byte_order():
    a = np.arange(4, dtype=np.dtype("f4").newbyteorder()).reshape(2, 2)
    with pytest.raises(TypeError, match="a is [<>]f4; accepted: .* in native byte order"):
        interop.matmul(a, a)
