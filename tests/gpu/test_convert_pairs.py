"""`interop.convert` and `interop.asarray` on a GPU, of every pair of libraries: the same memory, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.conversions import convert, pointer_of, values
from helpers.libraries import on_gpu
from helpers.races import ONES, N

import interop

ON_GPU = ("torch", "cupy", "numba", "jax", "interop")


def make(name, x=ONES):
    return interop.asarray(on_gpu("cupy").make(x)) if name == "interop" else on_gpu(name).make(x)


def is_of(name, x):
    return type(x) is interop.Array if name == "interop" else on_gpu(name).is_ours(x)


@pytest.mark.parametrize("target", ON_GPU)
@pytest.mark.parametrize("source", ON_GPU)
def test_every_pair_shares_the_memory(source, target):
    x = make(source)
    if target != "interop":
        on_gpu(target)
    y = convert(x, target)
    assert is_of(target, y)
    assert (y is x) == (source == target)
    assert tuple(y.shape) == (N, N)
    assert pointer_of(y) == pointer_of(x)
    assert (values(y) == 1).all()


@pytest.mark.parametrize("target", ["torch", "cupy", "numba", "interop"])
def test_layouts_are_kept(cupy, target):
    x = cupy.arange(24, dtype="float32").reshape(4, 6)
    for view in (x.T, x[::2, 1::3], cupy.broadcast_to(x[0], (3, 6)), x[1], x[:, :0], x[1, 2]):
        y = convert(view, target)
        assert tuple(y.shape) == view.shape
        assert np.array_equal(values(y), view.get())


@pytest.mark.parametrize("target", ["cupy", "numba", "interop"])
def test_negative_strides_are_kept(cupy, target):
    x = cupy.arange(24, dtype="float32").reshape(4, 6)[::-1, ::-2]
    assert np.array_equal(values(convert(x, target)), x.get())


def test_negative_strides_are_not_for_torch(cupy, torch):
    with pytest.raises(ValueError, match="torch has no negative strides"):
        interop.convert(cupy.ones(4)[::-1], "torch")


def test_gaps_are_not_for_jax(torch, jax):
    with pytest.raises(ValueError, match="JAX has compact arrays only"):
        interop.convert(torch.ones(4, 4, device="cuda")[:, ::2], "jax")
    transposed = torch.arange(6.0, device="cuda").reshape(2, 3).T
    assert np.array_equal(np.asarray(interop.convert(transposed, "jax")), transposed.cpu().numpy())


def test_addresses_that_xla_does_not_take_are_not_for_jax(torch, jax):
    x = torch.ones(9, device="cuda")
    with pytest.raises(ValueError, match="JAX has device memory at multiples of 16 bytes only"):
        interop.convert(x[1:], "jax")
    assert interop.convert(x[4:], "jax").sum() == 5
    assert interop.convert(x[1:1], "jax").shape == (0,)


def test_device_memory_is_not_for_numpy():
    for name in ON_GPU:
        with pytest.raises(TypeError, match="NumPy has arrays in host memory only; x is float32 .* on cuda:0; copy it"):
            interop.convert(make(name), "numpy")
        with pytest.raises(TypeError, match="NumPy cannot read memory on cuda:0; accepted: "):
            np.asarray(interop.asarray(make(name)))


def test_bfloat16_of_cupy_goes_and_comes_back(torch, cupy):
    if int(cupy.__version__.split(".")[0]) < 14:
        pytest.skip("CuPy has bfloat16 since version 14")
    x = torch.tensor([1.0, 2.0], device="cuda").bfloat16()
    y = convert(x, "cupy")
    assert interop.asarray(y).dtype == "bfloat16"
    back = convert(y, "torch")
    assert back.dtype == torch.bfloat16
    assert back.data_ptr() == x.data_ptr()
    assert back.tolist() == [1, 2]


def test_numba_has_no_bfloat16(torch, numba):
    with pytest.raises(TypeError, match="Numba does not take this array .*bfloat16"):
        convert(torch.ones(3, device="cuda", dtype=torch.bfloat16), "numba")


def test_jax_numpy_takes_an_array_on_the_gpu(torch, jax):
    """For which JAX asks: the memory is shared, in stream order."""
    t = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    x = jax.numpy.asarray(interop.asarray(t))
    assert x.unsafe_buffer_pointer() == t.data_ptr()
    assert float(x[-1]) == (1 << 20) - 1
