"""Inputs that broke other libraries, those in host memory; the rest, and the list, are in tests/gpu/test_cases.py."""

from __future__ import annotations

import ml_dtypes
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


# jax-ml/jax#19352: boolean arrays were refused, or became uint8 on the way.
def test_b50_bool_stays_bool(host_jax, torch):
    m = host_jax.numpy.array([True, False])
    assert interop.asarray(m).dtype == "bool"
    t = interop.convert(m, "torch")
    assert t.dtype is torch.bool
    assert t.tolist() == [True, False]
    for back in (interop.convert(t, "jax"), interop.convert(t, "numpy"), np.asarray(interop.asarray(t))):
        assert back.dtype == bool
        assert back.tolist() == [True, False]


# dmlc/dlpack#156: float8 was sent as uint8, losing its meaning.
def test_b53_float8_stays_float8(jax, torch):
    t = torch.tensor([1.0, 2.0, 448.0]).to(torch.float8_e4m3fn)
    x = interop.convert(t, "numpy")
    assert x.dtype == ml_dtypes.float8_e4m3fn
    assert x.astype("f4").tolist() == [1, 2, 448]
    assert interop.convert(x, "torch").dtype is torch.float8_e4m3fn
    eights = jax.numpy.ones(64, "float8_e4m3fn")
    assert interop.convert(interop.convert(eights, "torch"), "jax").dtype == ml_dtypes.float8_e4m3fn
    assert interop.matmul(x, x).dtype == ml_dtypes.bfloat16


# dmlc/dlpack#97: bytes of big-endian data were read in the wrong order.
def test_b54_byte_order():
    a = np.arange(4, dtype=np.dtype("f4").newbyteorder()).reshape(2, 2)
    with pytest.raises(TypeError, match="a is [<>]f4; accepted: .* in native byte order"):
        interop.matmul(a, a)
