"""Inputs that broke other libraries: shapes, strides, addresses, and outputs that do not fit."""

from __future__ import annotations

import pytest
from helpers import alone
from helpers.dlpack import Cai, Fake
from helpers.kernels import TWICE

import interop

# ---- zero-size arrays ----


# cupy/cupy#2104: a null pointer was asked for its attributes.
def test_b26_zero_size_arrays(cp):
    a = cp.empty((0, 4), "f4")
    c = interop.matmul(a, cp.ones((4, 3), "f4"))
    assert type(c) is cp.ndarray
    assert c.shape == (0, 3)
    assert c.dtype == a.dtype
    assert interop.matmul(Cai(a), Cai(cp.ones((4, 3), "f4"))).shape == (0, 3)


# numba/numba#4175: a None pointer for empty arrays, strides where there should be none.
def test_b28_the_form_of_the_array_interface(cp):
    t = cp.ones((3, 3), "f4")
    d = interop.matmul(Cai(t), Cai(t)).__cuda_array_interface__
    assert type(d["data"][0]) is int
    assert d["data"][1] is False
    assert d.get("strides") is None
    assert d["version"] == 3
    assert d["stream"] not in (0, -1)
    empty = Cai(cp.ones((1, 3), "f4"), shape=(0, 3), data=(None, False))
    c = interop.matmul(empty, Cai(t))
    assert c.shape == (0, 3)
    assert c.__cuda_array_interface__["data"][0] == 0


# pytorch/pytorch#31421: with no inner dimension the output was never written.
def test_b29_no_inner_dimension(cp):
    junk = cp.full(1 << 20, cp.nan, "f4")
    del junk
    c = interop.matmul(cp.empty((3, 0), "f4"), cp.empty((0, 5), "f4"))
    assert c.shape == (3, 5)
    assert (c == 0).all()


# triton-lang/triton#10427: launch-grid arithmetic divided by zero.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b31_no_rows_or_no_columns(cp, backend):
    for m, n in [(0, 5), (5, 0), (0, 0)]:
        c = interop.matmul(cp.ones((m, 4), "f4"), cp.ones((4, n), "f4"), backend=backend)
        assert c.shape == (m, n)
    assert interop.matmul(cp.ones((0, 2, 4), "f4"), cp.ones((4, 3), "f4"), backend=backend).shape == (0, 2, 3)


# ---- strides, order, views ----


# cupy/cupy#2095: NULL strides, which mean compact, crashed.
def test_b32_null_strides(cp):
    x = cp.arange(6, dtype="f4").reshape(2, 3)
    f = Fake(x, strides=None)
    assert cp.asarray(interop.matmul(f, cp.eye(3, dtype="f4"))).tolist() == [[0, 1, 2], [3, 4, 5]]


# cupy/cupy#10172: CuPy exports negative strides as huge positive ones.
def test_b34_negative_strides(cp):
    a = cp.arange(4, dtype="f4").reshape(2, 2)[::-1]
    one = cp.eye(2, dtype="f4")
    assert interop.matmul(a, one).tolist() == [[2, 3], [0, 1]]
    assert interop.matmul(one, a).tolist() == [[2, 3], [0, 1]]
    huge = Fake(a, strides=((2**64 - 8) // 4, 1))  # as its DLPack export has it
    with pytest.raises(BufferError, match="strides lead beyond all memory"):
        interop.matmul(huge, one)


# pytorch/pytorch#188023: a capsule with negative strides aborted torch.
def test_b35_torch_gets_no_negative_strides(torch, cp):
    c = interop.matmul(torch.eye(3, device="cuda"), cp.arange(9, dtype="f4").reshape(3, 3)[::-1])
    assert c.tolist() == [[6, 7, 8], [3, 4, 5], [0, 1, 2]]
    assert c.stride() == (3, 1)


# jax-ml/jax#4196: the strides of a column slice were dropped.
def test_b37_column_slices(cp, jnp):
    b = cp.arange(6, dtype="f4").reshape(2, 3)[:, :2]
    assert interop.matmul(b, cp.eye(2, dtype="f4")).tolist() == [[0, 1], [3, 4]]
    assert interop.matmul(jnp.eye(2), b).tolist() == [[0, 1], [3, 4]]


# jax-ml/jax#17784: a transposed array was read untransposed.
def test_b38_transposed_operands(torch, jnp):
    b = torch.arange(6.0, device="cuda").reshape(2, 3).t()
    assert interop.matmul(b, torch.eye(2, device="cuda")).tolist() == [[0, 3], [1, 4], [2, 5]]
    c = interop.matmul(jnp.eye(3), b)
    assert c.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert bool(((c + 1)[2] == jnp.array([3.0, 6.0])).all())


# cupy/cupy#7267: a kernel that is given a pointer read a slice as if it were contiguous.
def test_b40_kernels_see_views(cp, twice):
    source = """
    #include <interop/view.cuh>
    __global__ void copy(interop::View<const float, 2> x, interop::View<float, 2> y) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
      if (i < x.size(0) && j < x.size(1)) y(i, j) = x(i, j);
    }
    """
    copy = interop.kernel(source, "copy", threads=lambda x, y: x.shape, block=(16, 16))
    x = cp.arange(10, dtype="f4").reshape(2, 5)[:, :4]
    y = cp.zeros((2, 4), "f4")
    copy(x, y)
    assert (y == x).all()
    for view in (x, x.T, cp.broadcast_to(cp.ones(1, "f4"), (1000,))):
        with pytest.raises(ValueError, match="a is .*accepted: a C-contiguous"):
            twice(view, view.size)


# cupy/cupy#3095: a broadcast operand was read out of bounds.
def test_b41_stride_0(cp):
    x = cp.broadcast_to(cp.ones(1, "f4"), (1000, 1000))
    c = interop.matmul(x, x)
    assert c.shape == (1000, 1000)
    assert (c == 1000).all()
    v = cp.broadcast_to(cp.ones(1, "f4"), (1000,))
    assert interop.matmul(v, v) == 1000


# pytorch/pytorch#30596: rows that overlap have a leading dimension that BLAS does not take.
@pytest.mark.sanitize
def test_b43_overlapping_windows(cp):
    w = cp.lib.stride_tricks.as_strided(cp.arange(5, dtype="f4"), (3, 3), (4, 4))
    assert interop.matmul(w, w).tolist() == [[5, 8, 11], [8, 14, 20], [11, 20, 29]]
    assert interop.matmul(w, w, backend="tiled").tolist() == [[5, 8, 11], [8, 14, 20], [11, 20, 29]]
    with pytest.raises(ValueError, match="a has no unit stride, or its rows overlap"):
        interop.matmul(w, w, backend="cublas")
    wide = cp.lib.stride_tricks.as_strided(cp.arange(1000, dtype="f8"), (500, 500), (8, 8))
    assert cp.array_equal(interop.matmul(wide, wide), wide.copy() @ wide.copy())


# ---- byte_offset ----


# pytorch/pytorch#170432: a non-zero byte_offset was dropped.
def test_b44_byte_offset(cp):
    x = cp.arange(8, dtype="f4")
    f = Fake(x[4:].reshape(2, 2), data=x.data.ptr, byte_offset=16)
    assert cp.asarray(interop.matmul(f, cp.eye(2, dtype="f4"))).tolist() == [[4, 5], [6, 7]]
    out = Fake(x[:4].reshape(2, 2), data=x.data.ptr - 16, byte_offset=16)
    interop.matmul(f, cp.eye(2, dtype="f4"), out=out)
    assert x.tolist() == [4, 5, 6, 7, 4, 5, 6, 7]


# ---- read-only data ----


# wjakob/nanobind#42: read-only operands were refused.
def test_b47_read_only_operands_and_out(cp):
    x = cp.ones((4, 4), "f4")
    f = Fake(x, flags=1)
    assert (cp.asarray(interop.matmul(f, f)) == 4).all()
    c = Cai(x, data=(x.data.ptr, True))
    assert (cp.asarray(interop.matmul(c, c)) == 4).all()
    for out in (f, c):
        with pytest.raises(TypeError, match="out .*is read-only"):
            interop.matmul(cp.ones((4, 4), "f4"), cp.ones((4, 4), "f4"), out=out)
    assert (x == 1).all()


# ---- kernel limits, aliasing ----


# cupy/cupy#9841: 32-bit indices overflowed.
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_b83_more_than_2_to_the_31_elements(torch, backend):
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free device memory")
    n = 2**31 + 8
    a = torch.ones(n, 1, device="cuda")
    c = interop.matmul(a, torch.full((1, 1), 3.0, device="cuda"), backend=backend)
    assert (c[:8] == 3).all()
    assert (c[-8:] == 3).all()
    del c
    a[-1] = 5
    row = interop.matmul(torch.ones(1, 1, device="cuda"), a.t(), backend=backend)
    assert row[0, -2:].tolist() == [1, 5]
    del row
    # Operands whose strides lead that far, though they are small.
    far = a.reshape(-1)[:: 2**30][:3].reshape(3, 1)
    far[2, 0] = 7
    assert interop.matmul(far, torch.ones(1, 2, device="cuda"), backend=backend)[2].tolist() == [7, 7]
    del a, far
    torch.cuda.empty_cache()


# ml-explore/mlx#3858: a long dimension was mapped to the grid's y or z, limited to 65535.
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_b85_long_dimensions(cp, backend):
    c = interop.matmul(cp.ones((70000 * 64, 1), "f4"), cp.ones((1, 1), "f4"), backend=backend)
    assert (c == 1).all()
    d = interop.matmul(cp.ones((1, 1), "f4"), cp.ones((1, 70000 * 64), "f4"), backend=backend)
    assert (d == 1).all()


# tile-ai/tilelang#2526: a view that starts at an odd element met a vectorised load.
@pytest.mark.sanitize
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b86_misaligned_views(torch, backend):
    for n in (33, 129, 256):
        h = torch.ones(n, n + 1, device="cuda")[:, 1:]
        assert (interop.matmul(h, h, backend=backend) == n).all()
        flat = torch.ones(n * n + 1, device="cuda")[1:].view(n, n)
        assert (interop.matmul(flat, flat, backend=backend) == n).all()


# pytorch/pytorch#17935: many threads wrote one element.
def test_b88_stride_0_out(torch):
    memory = torch.zeros(1, device="cuda")
    o = memory.expand(4, 4)
    with pytest.raises(ValueError, match="out .*has elements that share memory"):
        interop.matmul(torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda"), out=o)
    assert memory.item() == 0


# ---- outputs and addresses ----


# PowerGridModel/power-grid-model#722: an output of another size was written beyond its end.
def test_b142_outputs_of_another_shape(cp, twice):
    for given in (cp.zeros(8, "f4")[:2], cp.zeros(8, "f4"), cp.zeros((4, 1), "f4")):
        whole = given if given.base is None else given.base
        with pytest.raises(ValueError, match=r"^interop.kernel\('twice'\): c\b.*\(4,\)"):
            twice(cp.ones(4, "f4"), 4, c=given)
        assert not whole.any()
    right = cp.zeros(4, "f4")
    assert twice(cp.ones(4, "f4"), 4, c=right) is right
    assert right.tolist() == [2] * 4


# dmlc/dlpack#99: an address that is no multiple of the element's size was used as it is, and the context was lost. It
# is refused, or the values are right, and the next call works.
def test_b143_addresses_that_are_not_aligned(cp, compiler, tmp_path):
    out = alone.run(
        f"""
        import cupy as cp
        from helpers.dlpack import Cai, Fake

        twice = interop.kernel({TWICE!r}, "twice", threads="a").returning(c="a")
        b = cp.zeros(64, "u1")[1:33].view("f4")
        assert b.data.ptr % 4
        good, square = cp.ones(8, "f4"), b.reshape(2, 4)
        calls = {{
            "add": (lambda: interop.add(b, 1.0), 1),
            "add, second": (lambda: interop.add(good, b), 1),
            "add, of the interface": (lambda: interop.add(Cai(b), good), 1),
            "add, of DLPack": (lambda: interop.add(Fake(good, data=b.data.ptr), good), 1),
            "add, by an offset": (lambda: interop.add(Fake(good, data=b.data.ptr - 1, byte_offset=1), good), 1),
            "add, out": (lambda: interop.add(good, 0.0, out=b), 1),
            "matmul": (lambda: interop.matmul(square, b.reshape(4, 2)), 0),
            "matmul, tiled": (lambda: interop.matmul(square, b.reshape(4, 2), backend="tiled"), 0),
            "matmul, out": (lambda: interop.matmul(good[:2, None], good[None, :4], out=square), 1),
            "kernel": (lambda: twice(b, 8), 0),
            "kernel, out": (lambda: twice(good, 8, c=b), 2),
            "expression": (lambda: interop.elementwise("x + 1")(b), 1),
            "asarray": (lambda: interop.add(interop.asarray(b), 1.0), 1),
        }}
        for name, (call, value) in calls.items():
            b.fill(0)
            try:
                result = call()
            except (ValueError, BufferError, TypeError) as error:
                assert str(error).startswith("interop"), (name, error)
            else:
                assert (cp.asarray(result) == value).all(), name
            cp.cuda.Device().synchronize()
            assert interop.add(cp.ones(2, "f4"), 1.0).tolist() == [2, 2], name
            print(name)
        """,
        tmp_path,
    )
    assert "asarray" in out
