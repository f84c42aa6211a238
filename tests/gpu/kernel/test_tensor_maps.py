"""Tensor maps: boxes that TMA loads and stores, swizzled or not; arrays that it does not take; maps that are kept."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import elements, graphs, libraries, machine
from helpers.tma_kernels import COPY, READ, READ_LINE, grid_of

import interop

C_TYPES = {
    "float32": "float",
    "float16": "__half",
    "int8": "signed char",
    "float64": "double",
    "uint16": "unsigned short",
}


@pytest.fixture(autouse=True)
def _tma():
    machine.need_capability(90)


def copy_of(dtype="float32", rows=16, columns=32, swizzle=0, **options):
    """A kernel that copies x to y, by boxes."""
    box = {"box": (rows, columns), "swizzle": swizzle, "dtype": dtype, **options}
    maps = {"from": interop.tensor_map("x", **box), "to": interop.tensor_map("y", **box, written=True)}
    source = "#include <cuda_fp16.h>\n" * (dtype == "float16") + COPY
    return interop.kernel(
        source,
        f"copy<{C_TYPES[dtype]}, {rows}, {columns}>",
        tensor_maps=maps,
        grid=lambda x, *_: grid_of(x.shape, rows, columns),
        block=32,
    )


@pytest.mark.usefixtures("_cuda_headers")
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "swizzle"),
    [
        ("float32", 16, 32, 0),
        ("float32", 16, 32, 128),
        ("float32", 64, 8, 32),
        ("float16", 64, 64, 128),
        ("float16", 8, 32, 64),
        ("int8", 256, 16, 0),
        ("float64", 4, 2, 0),
        ("uint16", 1, 256, 0),
    ],
)
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_boxes_are_loaded_and_stored(name, dtype, rows, columns, swizzle):
    library = libraries.by_name(name, "cuda")
    if dtype == "uint16" and name == "torch":
        dtype = "float16"
    x = elements.draw((3 * rows + 1, 2 * columns + 16), dtype, 0)  # boxes at the edges have less
    made = copy_of(dtype, rows, columns, swizzle)
    y = library.make(np.zeros_like(x))
    made(library.make(x), y)
    np.testing.assert_array_equal(library.to_numpy(y), x)


def test_results_are_made(cupy, torch, jax):
    made = copy_of().returning(y="x")
    x = np.arange(33 * 40, dtype="float32").reshape(33, 40)
    for array in (cupy.asarray(x), torch.from_numpy(x).cuda(), jax.numpy.asarray(x)):
        y = made(array)
        assert type(y) is type(array)
        assert (interop.convert(y, "cupy") == cupy.asarray(x)).all()


def test_inside_jit(jax):
    made = copy_of().returning(y="x")
    x = jax.numpy.arange(33 * 40, dtype="float32").reshape(33, 40)
    y = jax.jit(lambda x: made(x + 1) * 2)(x)
    np.testing.assert_array_equal(np.asarray(y), (np.asarray(x) + 1) * 2)


@pytest.mark.parametrize("view", [np.s_[:], np.s_[3:40:2], np.s_[5:, 8:]], ids=["whole", "rows", "part"])
def test_rows_apart(cupy, view):
    whole = cupy.arange(50 * 64, dtype="float32").reshape(50, 64)
    x = whole[view]
    y = cupy.zeros_like(whole)[view]
    copy_of()(x, y)
    assert (y == x).all()


@pytest.mark.parametrize(("swizzle", "columns"), [(0, 32), (32, 8), (64, 16), (128, 32)])
def test_the_order_in_shared_memory(cupy, swizzle, columns):
    """Chunk c of 16 bytes of row r is at place c ^ (r's number of 128 bytes, as far as the swizzle goes)."""
    rows = 16
    maps = {"from": interop.tensor_map("x", box=(rows, columns), swizzle=swizzle)}
    read = interop.kernel(READ, f"read<float, {rows}, {columns}>", tensor_maps=maps, grid=1, block=64)
    x = cupy.arange(64 * 64, dtype="float32").reshape(64, 64)
    y = cupy.zeros(rows * columns, "float32")
    read(x, y, 7, 12)
    expected = x[7 : 7 + rows, 12 : 12 + columns].get().reshape(-1, 4)  # chunks
    if swizzle:
        place = np.arange(len(expected))
        expected = expected[place ^ ((place >> 3) & (swizzle // 16 - 1))]
    np.testing.assert_array_equal(y.get(), expected.ravel())


def test_a_broadcast_dimension(cupy):
    read = interop.kernel(
        READ, "read<float, 4, 8>", tensor_maps={"from": interop.tensor_map("x", box=(4, 8))}, grid=1, block=32
    )
    row, y = cupy.arange(16, dtype="float32"), cupy.zeros((4, 8), "float32")
    read(cupy.broadcast_to(row, (6, 16)), y, 2, 4)
    assert (y == row[4:12]).all()
    read(cupy.broadcast_to(row, (6, 16)), y, 4, 0)
    assert (y[:2] == row[:8]).all()
    assert not y[2:].any()


def test_one_dimension(cupy):
    read = interop.kernel(
        READ_LINE, "read<int, 1, 64>", tensor_maps={"from": interop.tensor_map("x", box=64)}, grid=1, block=32
    )
    x, y = cupy.arange(100, dtype="int32"), cupy.zeros(64, "int32")
    read(x, y, 0, 60)
    assert y.tolist() == [*range(60, 100), *[0] * 24]
    with pytest.raises(ValueError, match=r"accepted for a tensor map: 1 for the last dimension"):
        read(x[::2], y, 0, 0)


@pytest.mark.parametrize(("fill", "beyond"), [("zeros", 0.0), ("nan", np.nan)])
def test_beyond_the_end(cupy, fill, beyond):
    maps = {"from": interop.tensor_map("x", box=(4, 8), oob_fill=fill)}
    read = interop.kernel(READ, "read<float, 4, 8>", tensor_maps=maps, grid=1, block=32)
    x, y = cupy.ones((6, 12), "float32"), cupy.zeros((4, 8), "float32")
    read(x, y, 4, 8)
    expected = np.full((4, 8), beyond, "float32")
    expected[:2, :4] = 1
    np.testing.assert_array_equal(y.get(), expected)


def test_a_map_of_the_array_of_a_pointer(cupy):
    """One argument for both; by name, too."""
    source = READ.replace("T* y, int row", "const T* x, T* y, int row").replace("y[i] = box[i]", "y[i] = box[i] + x[0]")
    maps = {"from": interop.tensor_map("x", box=(4, 8))}
    read = interop.kernel(source, "read<float, 4, 8>", tensor_maps=maps, grid=1, block=32)
    x, y = cupy.full((6, 12), 2, "float32"), cupy.zeros((4, 8), "float32")
    read(x, y, 0, 0)
    assert (y == 4).all()
    read(row=0, column=0, y=y, x=3 * x)
    assert (y == 12).all()
    with pytest.raises(ValueError, match=r"x is .*shape \(72,\).*; accepted: .* of shape \(\*, \*\)"):
        read(x.ravel(), y, 0, 0)


def test_what_tma_does_not_take(cupy):
    read = interop.kernel(
        READ, "read<float, 4, 8>", tensor_maps={"from": interop.tensor_map("x", box=(4, 8))}, grid=1, block=32
    )
    x, y = cupy.zeros((16, 16), "float32"), cupy.ones((4, 8), "float32")
    wrong = (
        (x.ravel()[1:129].reshape(8, 16), ValueError, "x starts at an address that is not a multiple of 16 bytes"),
        (x[:, :14].copy(), ValueError, r"x has strides \(14, 1\), in elements of float32; .* rows of 16 elements"),
        (x.T, ValueError, r"x has strides \(1, 16\), in elements; accepted for a tensor map: 1 for the last"),
        (x[::-1], ValueError, "strides from 0 to below"),
        (x[:0], ValueError, "x has no elements"),
        (x[0], ValueError, r"x is .* of shape \(16,\)"),
        (x.astype("complex64"), TypeError, "x is complex64; accepted for a tensor map: bool, integers"),
        (x.astype("uint8"), ValueError, "x is uint8, so that a row of the box has 8 bytes; .* multiples of 16 bytes"),
    )
    for array, error, message in wrong:
        for call in (read, lambda *args: interop.explain(read, *args)):
            with pytest.raises(error, match=message):
                call(array, y, 0, 0)
    assert (y == 1).all()
    read(x[:0], y, 0, 0, grid=0)  # nothing is launched
    assert (y == 1).all()


def test_writing_is_refused_where_it_is_elsewhere(cupy, jax):
    made = copy_of()
    x = jax.numpy.zeros((16, 32), "float32")
    with pytest.raises(TypeError, match="y is .*, which is immutable"):
        made(cupy.zeros((16, 32), "float32"), x)


def test_arrays_that_move(cupy):
    """A map is of one address, shape and strides; more of them than are kept."""
    read = interop.kernel(
        READ, "read<float, 4, 8>", tensor_maps={"from": interop.tensor_map("x", box=(4, 8))}, grid=1, block=32
    )
    y = cupy.zeros((4, 8), "float32")
    whole = cupy.arange(200 * 64, dtype="float32").reshape(200, 64)
    for _ in range(2):
        for k in range(80):
            x = whole[k : k + 4 + k % 7, : 16 + 4 * (k % 5)]
            read(x, y, 0, 0)
            assert (y == x[:4, :8]).all()
        x = cupy.full((8, 8), 7, "float32")  # memory of others, perhaps
        read(x, y, 0, 0)
        assert (y == 7).all()
        del x


def test_a_given_stream_waits(torch):
    """What is written late on torch's current stream is read on another one."""
    made = copy_of().returning(y="x")
    made(torch.zeros(64, 64, device="cuda"))  # once all is loaded
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.zeros(64, 64, device="cuda")
        torch.cuda._sleep(100_000_000)
        x.fill_(3)
        y = made(x, stream=other)
    with torch.cuda.stream(other):
        assert (y == 3).all()


def test_arrays_of_two_libraries_are_ordered_both_ways(torch, cupy):
    """CuPy's stream stores to a tensor behind what torch's has queued, and torch reads it behind the store."""
    made = copy_of()
    x, y = cupy.full((64, 64), 5, "float32"), torch.zeros(64, 64, device="cuda")
    made(x, y)  # once all is loaded
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
        torch.cuda._sleep(100_000_000)
        y.fill_(3)
        made(x, y)
        assert (y == 5).all()


def test_stores_to_a_broadcast_dimension(cupy):
    x = cupy.zeros((16, 32), "float32")
    with pytest.raises(ValueError, match=r"y .* has elements that share memory"):
        copy_of()(x, cupy.lib.stride_tricks.as_strided(x, (16, 32), (0, 4)))


def test_what_is_written_is_waited_for(torch, cupy):
    """By whoever reads the array next, on another stream."""
    made = copy_of()
    y = interop.zeros((64, 64), "float32")
    made(torch.zeros(64, 64, device="cuda"), y)  # once all is loaded
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.full((64, 64), 3.0, device="cuda")
        torch.cuda._sleep(100_000_000)
        made(x, y)
    assert (cupy.asarray(y) == 3).all()


def test_in_a_graph(torch):
    made = copy_of().returning(y="x")
    x = torch.zeros(64, 64, device="cuda")
    with graphs.captured(torch) as graph:
        y = made(x)
    x.fill_(5)
    graph.replay()
    assert (y == 5).all()
