"""Inputs that broke other libraries: arrays, buffers and capsules in host memory, and processes.

Of torch: test_cases_of_torch.py. Numbers: test_cases_of_numbers.py. C functions: test_cases_of_c_functions.py. The
list, and those on the device: tests/gpu/cases.
"""

from __future__ import annotations

import gc
import mmap

import ml_dtypes
import numpy as np
import pytest
from helpers import alone
from helpers.dlpack import Fake

import interop

# ---- arrays and their dtypes ----


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


# ---- buffers and capsules ----


# numpy/numpy#32697: a rejected capsule's destructor ran with the error pending: SystemError, and a leak.
@pytest.mark.parametrize(
    "call",
    [lambda f: interop.add(f, 1.0), lambda f: interop.matmul(np.ones((2, 4), "f4"), f), lambda f: interop.asarray(f)],
)
def test_b131_capsules_of_a_dtype_that_is_not_served(call):
    fake = Fake(np.ones(4, "f4"), dtype_code=99)
    with pytest.raises((TypeError, BufferError), match="^interop"):
        call(fake)
    gc.collect()
    assert fake.exported == 1
    assert fake.balanced


# capnproto/pycapnp#280: the export of a buffer was never released: it could not be resized or closed.
def test_b132_buffers_are_let_go_after_the_call():
    buffer = bytearray(16)
    interop.add(memoryview(buffer).cast("d"), 1.0)
    buffer.append(1)
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(memoryview(buffer)[:16].cast("d"), np.ones((3, 3)))
    buffer.append(1)
    mapped = mmap.mmap(-1, 64)
    view = interop.asarray(memoryview(mapped).cast("f"))
    result = interop.add(view, 1.0)
    del view
    mapped.close()
    assert np.asarray(result).tolist() == [1] * 16


# numpy/numpy#25941: `copy` was not known, or a copy was made where none was allowed.
def test_b134_array_and_its_copy_keyword():
    x = np.arange(3.0)
    view = interop.asarray(x)
    assert np.shares_memory(np.asarray(view), x)
    assert not np.shares_memory(np.array(view, copy=True), x)
    assert np.shares_memory(np.asarray(view, copy=False), x)
    assert np.asarray(view, dtype="f4").dtype == "f4"
    with pytest.raises(ValueError, match="copy"):
        np.asarray(view, dtype="f4", copy=False)


# python/cpython#148675: the format of complex numbers has two letters.
@pytest.mark.parametrize(("letter", "name"), [("F", "complex64"), ("D", "complex128")])
def test_b135_complex_buffers(letter, name):
    array = interop.asarray(memoryview(np.array([1j, 2], letter)))
    assert array.dtype == name
    assert np.asarray(interop.add(array, 1)).tolist() == [1 + 1j, 3]


# numpy/numpy#9049: structured, byte-swapped or misaligned data was misread.
@pytest.mark.parametrize(
    "x",
    [
        np.zeros(3, [("c", "u1"), ("f", "f4")]),
        np.zeros(3, [("c", "u1"), ("f", "f4")])["f"],
        np.arange(3, dtype=np.dtype("i4").newbyteorder()),
        np.array(["a"]),
        np.ones(2, object),
        np.ones(2, "M8[s]"),
        np.ones(2, np.longdouble),
    ],
    ids=lambda x: str(x.dtype),
)
def test_b137_what_is_no_plain_numbers(x):
    for call in (lambda: interop.add(x, 1), lambda: interop.asarray(x)):
        with pytest.raises(TypeError, match=r"^interop\.(add: a|asarray: x)\b"):
            call()


# ---- processes ----


# mitsuba-renderer/drjit#116: a native library in a forked child crashed, or hung. Here the child, and each kind of
# pool, computes and ends.
def test_b138_forks_and_pools(tmp_path):
    out = alone.run(
        """
        import multiprocessing
        import os
        import time

        if __name__ == "__main__":
            interop.add(np.ones(2), 1)
            interop.matmul(np.eye(2), np.eye(2))
            child = os.fork()
            if child == 0:
                interop.matmul(np.eye(2), np.eye(2))
                interop.elementwise("x + 1")(np.ones(2))
                os._exit(7)
            ended = status = 0
            for _ in range(600):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                time.sleep(0.05)
            assert ended, "the child hangs"
            assert os.waitstatus_to_exitcode(status) == 7
            for kind in multiprocessing.get_all_start_methods():
                with multiprocessing.get_context(kind).Pool(2) as pool:
                    results = [pool.apply_async(interop.add, (np.ones(2), i)) for i in range(4)]
                    assert [r.get(60).tolist() for r in results] == [[1 + i] * 2 for i in range(4)], kind
                    pool.close()
                    pool.join()
                print(kind)
        """,
        tmp_path,
    )
    assert "fork" in out.split()


# NVIDIA/cudf#6602: a package for GPUs failed at its import where there is none.
def test_b140_no_gpu(tmp_path):
    out = alone.run(
        """
        assert interop.add(np.ones(2), 1)[0] == 2
        try:
            interop.matmul(np.eye(2), np.eye(2), execution="cuda")
        except interop.CudaError as error:
            print("CudaError:", error)
        """,
        tmp_path,
        CUDA_VISIBLE_DEVICES="",
    )
    assert out.startswith("CudaError: ")
