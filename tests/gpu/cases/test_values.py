"""Inputs that broke other libraries: dtypes, and numbers that come out wrong."""

from __future__ import annotations

import pytest

import interop

# ---- dtypes ----


# jax-ml/jax#19352: boolean arrays became uint8 on the way.
def test_b50_bool_stays_bool(jnp, cp):
    m = jnp.array([True, False])
    c = interop.multiply(m, m)
    assert c.dtype == bool
    assert c.tolist() == [True, False]
    mixed = interop.multiply(cp.array([True, False]), m)
    assert mixed.dtype == bool
    assert mixed.tolist() == [True, False]


# cupy/cupy#7874: what the array interface cannot express fell through to a host path.
def test_b51_no_host_path_for_unknown_dtypes(torch):
    t = torch.ones(4, 4, device="cuda", dtype=torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        product = interop.matmul(t, t)
        array = interop.asarray(t)
        back = interop.convert(array, "torch")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (product.dtype, product.device) == (t.dtype, t.device)
    assert (product == 4).all()
    assert (array.dtype, array.device) == ("bfloat16", "cuda:0")
    assert (back.dtype, back.data_ptr()) == (torch.bfloat16, t.data_ptr())


# dmlc/dlpack#156: float8 was sent as uint8, losing its meaning.
def test_b53_float8_is_float8(torch):
    a = torch.full((16, 16), 1.5, device="cuda").to(torch.float8_e4m3fn)
    c = interop.matmul(a, a)
    assert c.dtype is torch.bfloat16
    assert (c == 36).all()


# NVIDIA/MatX#538, cupy/cupy#3941: integers came out as zeros, or rounded by floating point.
@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
def test_b56_b57_integers_are_exact(cp, dtype):
    assert (interop.matmul(cp.full((4, 4), 2, dtype), cp.full((4, 4), 2, dtype)) == 16).all()
    odd = 2 ** (4 * int(dtype[1]) - 1) - 1  # its square needs more bits than a float has
    c = interop.matmul(cp.full((1, 1), odd, dtype), cp.full((1, 1), odd, dtype))
    assert int(c[0, 0]) == odd * odd


# pytorch/pytorch#79270: TF32 was the default, of about three decimal digits.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b59_float32_is_float32(cp, backend):
    for n in (64, 512):
        a = cp.full((n, n), 1 + 2**-12, "f4")
        assert (interop.matmul(a, cp.eye(n, dtype="f4"), backend=backend) == a).all()


# pytorch/pytorch#135330: integers divided by zero gave undefined bits on the GPU.
def test_b60_integer_division_by_zero(cp):
    c = interop.divide(cp.array([1, 0, -1], "i4"), cp.array([0, 0, 0], "i4"))
    assert c[0] == cp.inf
    assert cp.isnan(c[1])
    assert c[2] == -cp.inf


# ---- numbers, on the device ----


# pytorch/pytorch#178723, a cousin of it: a wide 0-d integer was cast to the dtype of the array, and wrapped.
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_b105_a_wide_integer_of_no_dimensions_beside_a_narrow_array(torch, compiler, where):
    a, s = torch.tensor([44, 1], dtype=torch.int8, device="cuda"), torch.tensor(300, device=where)
    assert interop.equal(a, s).tolist() == [False, False]
    assert interop.less(a, s).tolist() == [True, True]
    assert interop.elementwise("x < y")(a, s).tolist() == [True, True]
    if where == "cuda":  # on the host it cannot lead
        assert interop.greater_equal(s, a).tolist() == [True, True]


# pydata/numexpr#415: constants of one value and two types were merged.
def test_b112_equal_constants_of_two_types_are_not_merged(cp, compiler):
    x, y = cp.array([1], "i1"), cp.array([100], "i1")
    got = interop.elementwise("x * (a * 1) + y * (a * 1.0)")(x, 3, y)
    want = interop.add(interop.multiply(x, 3), interop.multiply(y, 3.0))
    assert got.dtype == want.dtype
    assert got.tolist() == want.tolist() == [303.0]


# IntelPython/dpctl#1652: x // x of floats was 0 where the division is not correctly rounded.
def test_b116_x_floor_divided_by_x(torch, compiler):
    x = torch.arange(1.0, 4097.0, device="cuda")
    assert (interop.floor_divide(x, x) == 1).all()
    assert (interop.remainder(x * 3, x) == 0).all()
    assert (interop.elementwise("x // y")(x, x) == 1).all()


# cupy/cupy#9757: mixed integers were compared by C's conversions, wrong in silence.
def test_b157_mixed_comparisons(torch, cp, compiler):
    u, n = cp.array([1, 2**31], "u4"), cp.array([-1, -1], "i4")
    assert interop.less(u, n).tolist() == [False] * 2
    assert interop.greater(u, n).tolist() == [True] * 2
    assert interop.elementwise("x < y")(u, n).tolist() == [False] * 2
    wide, minus = cp.array([1, 2**63], "u8"), cp.array([-1, -(2**63)], "i8")
    assert interop.less(wide, minus).tolist() == [False] * 2
    assert interop.equal(wide, minus).tolist() == [False] * 2
    assert interop.elementwise("x <= y")(wide, minus).tolist() == [False] * 2
    t, z = torch.tensor([1, 200], dtype=torch.uint8, device="cuda"), torch.tensor(-19, dtype=torch.int8)
    for number in (z, z.cuda()):
        assert interop.less_equal(t, number).tolist() == [False] * 2
        assert interop.greater(t, number).tolist() == [True] * 2


# numpy/numpy#21506, on the device: the least integer by -1, and a division by 0, trapped or gave anything.
def test_b157_special_integers(cp):
    least = cp.array([-(2**31)], "i4")
    assert interop.floor_divide(least, -1).tolist() == [-(2**31)]
    assert interop.remainder(least, -1).tolist() == [0]
    assert interop.floor_divide(least, 0).tolist() == [0]
