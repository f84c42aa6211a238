"""`interop.matmul` of host arrays: values, layouts, `out=`, mixed libraries, result types, and no copies."""

from __future__ import annotations

import array
import gc
import json
import subprocess
import sys
import textwrap
import tracemalloc
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import libraries, products
from helpers.dlpack import Fake
from hypothesis import given
from hypothesis import strategies as st

import interop

BY_SHAPE = pytest.mark.parametrize("shapes", products.SHAPES, ids=products.shape_id)


# ---- values ----


@BY_SHAPE
def test_matmul_values(host_library, dtype, shapes):
    a, b, x, y = products.pair(host_library, shapes, dtype)
    c = interop.matmul(a, b)
    assert host_library.is_ours(c)
    assert host_library.dtype(c) == dtype
    products.check_product(host_library.to_numpy(c), x, y)


@pytest.mark.parametrize("layout_a", products.LAYOUTS)
def test_matmul_layouts(host_view_library, dtype, layout_a):
    library = host_view_library
    layouts = [layout for layout in products.LAYOUTS if library.negative or layout not in products.NEGATIVE]
    if layout_a not in layouts:
        return  # this library has no such arrays
    base_a, x = products.LAYOUTS[layout_a]((3, 7, 5), dtype, 1)
    for layout_b in layouts:
        with products.naming(layout_b):
            base_b, y = products.LAYOUTS[layout_b]((3, 5, 4), dtype, 2)
            c = interop.matmul(library.view(base_a, x), library.view(base_b, y))
            products.check_product(library.to_numpy(c), x, y)


@pytest.mark.parametrize("layout", ["sliced", "padded", "offset", "reversed"])
def test_matmul_vectors_of_any_step(host_view_library, dtype, layout):
    if layout in products.NEGATIVE and not host_view_library.negative:
        return
    base_x, x = products.LAYOUTS[layout]((11, 7), dtype, 1)
    column = host_view_library.view(base_x, x[:, 2])
    row = host_view_library.view(base_x, x[3])
    a = host_view_library.view(base_x, x)
    products.check_product(host_view_library.to_numpy(interop.matmul(column, a)), x[:, 2], x)
    products.check_product(host_view_library.to_numpy(interop.matmul(a, row)), x, x[3])
    products.check_product(host_view_library.to_numpy(interop.matmul(row, row)), x[3], x[3])


def test_matmul_steps_of_dimensions_of_size_one_do_not_count(dtype):
    x, y = products.draw((1, 5), dtype), products.draw((5, 1), dtype)
    strange_x = np.lib.stride_tricks.as_strided(x, (1, 5), (12345 * x.itemsize, x.itemsize))
    strange_y = np.lib.stride_tricks.as_strided(y, (5, 1), (y.itemsize, -98765 * y.itemsize))
    products.check_product(interop.matmul(strange_x, strange_y), x, y)
    strange = Fake(x, strides=(2**55, 1))
    products.check_product(np.asarray(interop.matmul(strange, y)), x, y)


def test_matmul_of_an_array_with_itself(host_library, dtype):
    x = products.draw((17, 17), dtype)
    a = host_library.make(x)
    products.check_product(host_library.to_numpy(interop.matmul(a, a)), x, x)
    assert np.array_equal(host_library.to_numpy(a), x)  # which was only read


def test_matmul_propagates_special_values(host_library, dtype):
    x, y, expected = products.special_values(dtype)
    with np.errstate(all="ignore"):
        c = interop.matmul(host_library.make(x), host_library.make(y))
    assert np.isnan(expected[:2, 0]).all()
    assert expected[3, 1] == np.finfo(dtype).smallest_subnormal  # not flushed to zero
    got = host_library.to_numpy(c)
    if host_library.name == "jax":  # XLA may flush subnormal numbers
        got[3], expected[3] = 0, 0
        got[2, 2] = expected[2, 2]
    assert np.array_equal(got, expected, equal_nan=True)


def test_matmul_raises_no_warnings_of_numpy_for_other_libraries(torch):
    a = torch.tensor([[float("inf"), 3e38]])
    b = torch.tensor([[float("-inf"), 0.0], [0.0, 3e38]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = interop.matmul(a, b)
    assert not bool(torch.isfinite(c).any())


def test_matmul_respects_the_callers_numpy_error_state():
    x = np.array([[3e38, 3e38]], "float32")
    with np.errstate(all="raise"):
        try:
            np.matmul(x, x.T)
            numpy_raises = False
        except FloatingPointError:
            numpy_raises = True
        if numpy_raises:
            with pytest.raises(FloatingPointError):
                interop.matmul(x, x.T)
        else:
            interop.matmul(x, x.T)


def test_matmul_float64_stays_float64_with_x64_mode_off(jax):
    library = libraries.by_name("jax")
    x = np.array([[1 + 2.0**-40]])
    assert not jax.config.jax_enable_x64
    c = interop.matmul(library.make(x), x)  # a mixed call, led by JAX
    assert library.is_ours(c)
    assert library.dtype(c) == "float64"
    assert library.to_numpy(c)[0, 0] == x[0, 0] * x[0, 0]


# ---- results ----


def test_matmul_of_vectors_is_an_array_not_a_scalar(host_library, dtype):
    c = interop.matmul(host_library.make(np.ones(3, dtype)), host_library.make(np.ones(3, dtype)))
    assert host_library.is_ours(c)
    assert c.shape == ()
    assert host_library.to_numpy(c) == 3


def test_matmul_result_is_compact_and_its_own(host_library, dtype):
    x = products.draw((3, 4), dtype)
    a = host_library.make(x)
    first = interop.matmul(a, host_library.make(x.T.copy()))
    second = interop.matmul(a, host_library.make(x.T.copy()))
    assert host_library.pointer(first) != host_library.pointer(second)
    view = host_library.to_numpy(first)
    assert view.flags.c_contiguous
    if host_library.writable:
        first[...] = 0
        assert np.array_equal(host_library.to_numpy(second), view)


def test_matmul_result_outlives_everything(host_library, dtype):
    x = products.draw((64, 64), dtype)
    a, b = host_library.make(x), host_library.make(x)
    c = interop.matmul(a, b)
    row = c[5]
    del a, b, c
    gc.collect()
    junk = [np.full((64, 64), np.nan, dtype) for _ in range(16)]
    assert np.isfinite(host_library.to_numpy(row)).all()
    assert np.allclose(host_library.to_numpy(row), x[5] @ x, rtol=1e-4, atol=1e-4)
    del junk


def test_matmul_numpy_subclass_without_ufuncs_is_its_memory():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # numpy.matrix
        m = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    c = interop.matmul(m, m)
    assert type(c) is np.ndarray
    assert c.tolist() == [[7, 10], [15, 22]]


def test_matmul_memory_mapped_and_read_only_operands(tmp_path):
    x = products.draw((9, 9), "float64")
    x.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", "float64", "r", shape=(9, 9))
    x.flags.writeable = False
    products.check_product(interop.matmul(mapped, x), x, x)


# ---- out= ----


@pytest.mark.parametrize("layout", products.OUT_LAYOUTS)
@pytest.mark.parametrize("shapes", [((4, 3, 5), (4, 5, 6)), ((3, 5), (4, 5, 6))], ids=products.shape_id)
def test_matmul_out_of_any_layout(host_view_library, dtype, layout, shapes):
    if layout in products.NEGATIVE and not host_view_library.negative:
        return
    a, b, x, y = products.pair(host_view_library, shapes, dtype)
    base, view = products.LAYOUTS[layout]((4, 3, 6), dtype, 3)
    made = host_view_library.make(base)
    out = host_view_library.view_of(made, base, view)
    c = interop.matmul(a, b, out=out)
    assert c is out
    products.check_product(host_view_library.to_numpy(out), x, y)
    # What lies between the elements of `out` is as it was.
    view[...] = host_view_library.to_numpy(out)
    assert np.array_equal(host_view_library.to_numpy(made), base, equal_nan=True)


@pytest.mark.parametrize(
    ("shapes", "shape"),
    [
        (((3,), (3,)), ()),
        (((2, 3), (3,)), (2,)),
        (((3,), (3, 4)), (4,)),
        (((2, 0), (0, 3)), (2, 3)),
        (((0, 2), (2, 3)), (0, 3)),
    ],
)
def test_matmul_out_of_every_rank(host_view_library, dtype, shapes, shape):
    a, b, x, y = products.pair(host_view_library, shapes, dtype)
    out = host_view_library.make(np.full(shape, np.nan, dtype))
    assert interop.matmul(a, b, out=out) is out
    products.check_product(host_view_library.to_numpy(out), x, y)


def test_matmul_out_interleaved_with_an_operand(host_view_library, dtype):
    """Every second column is the operand, the ones between are `out`: no element is shared, so it is allowed."""
    base = products.draw((6, 12), dtype)
    made = host_view_library.make(base)
    a = host_view_library.view_of(made, base, base[:, ::2])
    out = host_view_library.view_of(made, base, base[:, 1::2])
    x = base[:, ::2].copy()
    interop.matmul(a, a, out=out)
    products.check_product(host_view_library.to_numpy(out), x, x)
    assert np.array_equal(host_view_library.to_numpy(a), x)


def test_matmul_out_of_another_library(dtype, torch):
    x, y = products.draw((3, 4), dtype, 1), products.draw((4, 5), dtype, 2)
    out = np.zeros((3, 5), dtype)
    assert interop.matmul(torch.from_numpy(x), torch.from_numpy(y), out=out) is out
    products.check_product(out, x, y)
    out = torch.zeros(3, 5, dtype=getattr(torch, dtype))
    assert interop.matmul(x, y, out=out) is out
    products.check_product(out.numpy(), x, y)
    out = bytearray(3 * 5 * np.dtype(dtype).itemsize)
    shaped = memoryview(out).cast("B").cast(np.dtype(dtype).char, (3, 5))
    assert interop.matmul(x, y, out=shaped) is shaped
    products.check_product(np.frombuffer(out, dtype).reshape(3, 5), x, y)


def test_matmul_out_that_reads_negated(torch):
    """The imaginary part of a conjugate reads as the negative of its memory: written right, or refused."""
    z = torch.zeros(2, 2, dtype=torch.complex64)
    out = z.conj().imag
    assert out.is_neg()
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    try:
        interop.matmul(x, x, out=out)
    except (TypeError, ValueError, BufferError):
        assert out.tolist() == [[0, 0], [0, 0]]
    else:
        assert out.tolist() == [[7, 10], [15, 22]]


def test_matmul_operand_that_reads_negated(torch):
    z = torch.complex(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    a = z.conj().imag
    assert a.is_neg()
    one = torch.eye(2)
    assert interop.matmul(a, one).tolist() == [[-1, -2], [-3, -4]]
    assert interop.matmul(one, a).tolist() == [[-1, -2], [-3, -4]]
    assert interop.matmul(np.eye(2, dtype="float32"), a).tolist() == [[-1, -2], [-3, -4]]


# ---- mixed libraries and protocols ----

# What each gives for a NumPy array, and how its results are told.
SOURCES = {
    "numpy": (lambda x: x, lambda c: type(c) is np.ndarray),
    "torch": (lambda x: libraries.by_name("torch").make(x), lambda c: libraries.by_name("torch").is_ours(c)),
    "jax": (lambda x: libraries.by_name("jax").make(x), lambda c: libraries.by_name("jax").is_ours(c)),
    "capsule": (lambda x: x.__dlpack__(max_version=(1, 0)), lambda c: type(c) is interop.Array),
    "old capsule": (lambda x: x.__dlpack__(), lambda c: type(c) is interop.Array),
    "dlpack": (Fake, lambda c: type(c) is interop.Array),
    "buffer": (memoryview, lambda c: type(c) is interop.Array),
    "array interface": (lambda x: ArrayInterface(x), lambda c: type(c) is interop.Array),
    "interop": (
        lambda x: interop.matmul(memoryview(np.eye(len(x), dtype=x.dtype)), x),
        lambda c: type(c) is interop.Array,
    ),
}


class ArrayInterface:
    def __init__(self, x):
        self.x = x
        self.__array_interface__ = x.__array_interface__

    @property
    def __array_interface__(self):
        return self.interface

    @__array_interface__.setter
    def __array_interface__(self, interface):
        self.interface = interface


@pytest.mark.parametrize("second", SOURCES)
@pytest.mark.parametrize("first", SOURCES)
def test_matmul_of_two_libraries(dtype, first, second):
    x, y = products.draw((3, 4), dtype, 1), products.draw((4, 5), dtype, 2)
    make_a, is_like_a = SOURCES[first]
    make_b, _ = SOURCES[second]
    a, b = make_a(x), make_b(y)
    c = interop.matmul(a, b)
    assert is_like_a(c)
    products.check_product(np.from_dlpack(c), x, y)


def test_matmul_of_python_arrays():
    a = array.array("d", [1, 2, 3])
    c = interop.matmul(a, np.ones(3))
    assert type(c) is interop.Array
    assert np.asarray(c) == 6


@pytest.mark.parametrize("make", [Fake, lambda x: Fake(x, versioned=False)], ids=["versioned", "unversioned"])
def test_matmul_gives_back_what_it_took(dtype, make):
    x = products.draw((3, 3), dtype)
    a = make(x)
    for _ in range(10):
        interop.matmul(a, a)
        interop.matmul(x, a)
        interop.matmul(a, x, out=x.copy())
    assert a.exported == 40
    assert a.balanced


def test_matmul_keeps_no_reference(host_library, dtype):
    x = products.draw((3, 3), dtype)
    a, b = host_library.make(x), host_library.make(x)
    interop.matmul(a, b)  # caches what is kept for ever
    gc.collect()
    before = sys.getrefcount(a), sys.getrefcount(b)
    for _ in range(50):
        interop.matmul(a, b)
        if host_library.writable:
            interop.matmul(a, a, out=b)
    gc.collect()
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before


# ---- no copies ----

SPY = """
    import json, sys
    import numpy as np

    real, seen = np.matmul, []

    def spy(a, b, out=None):
        seen.append([x.__array_interface__["data"][0] for x in (a, b, out)])
        seen.append([list(x.strides) for x in (a, b)])
        return real(a, b, out=out)

    np.matmul = spy  # before interop looks it up
    import interop
    sys.path.insert(0, sys.argv[1])
    from helpers import libraries

    report = {}
    base = np.arange(240, dtype="float32").reshape(12, 20)
    view = base[1::2, ::4].T  # (5, 6)
    for library in (libraries.by_name("numpy"), libraries.by_name("torch"), libraries.by_name("jax")):
        a, b = library.view(base, view), library.make(np.ones((6, 3), "float32"))
        if library.name == "jax":
            c = interop.matmul(np.ones((3, 5), "float32"), a)  # JAX by itself computes by XLA
            assert np.array_equal(c, np.ones((3, 5)) @ view)
            report[library.name] = [seen[-2][1] == library.pointer(a), True, True, True]
            c = interop.matmul(b, np.ones((3, 2), "float32"))
            report[library.name][2] = seen[-2][2] == library.pointer(c)
            continue
        c = interop.matmul(a, b)
        assert np.array_equal(library.to_numpy(c), view @ np.ones((6, 3), "float32"))
        report[library.name] = [
            seen[-2][0] == library.pointer(a) and seen[-2][1] == library.pointer(b),
            seen[-1][0] == list(view.strides),
            seen[-2][2] == library.pointer(c),
        ]
        out = library.make(np.zeros((3, 5), "float32"))
        interop.matmul(library.make(np.ones((3, 6), "float32")), library.view(base, view.T), out=out)
        report[library.name].append(seen[-2][2] == library.pointer(out))
    print(json.dumps(report))
"""


def test_matmul_reads_and_writes_the_arrays_own_memory(torch, jax, tmp_path):
    """NumPy is given the operands' own addresses and strides, and the address of the result that the caller gets."""
    code = textwrap.dedent(SPY)
    folder = str(tmp_path)
    (tmp_path / "helpers").symlink_to(libraries.__file__.rpartition("/")[0])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: [True] * 4 for name in ("numpy", "torch", "jax")}


@pytest.mark.parametrize("layout", ["compact", "transposed", "sliced", "padded", "reversed", "repeated rows"])
def test_matmul_allocates_the_output_alone(dtype, layout):
    _, x = products.LAYOUTS[layout]((512, 384), dtype, 1)
    y = products.draw((384, 4), dtype, 2)
    expected = np.dtype(dtype).itemsize * 512 * 4
    peaks = []
    for matmul in (np.matmul, interop.matmul):  # NumPy may copy an operand for its BLAS: by its version and layout
        matmul(x, y)
        tracemalloc.start()
        c = matmul(x, y)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert c.nbytes == expected
    assert expected <= peaks[1] < peaks[0] + x.nbytes / 8  # a copy of either operand would show


# ---- any shape, layout, library and dtype ----


@given(st.data())
def test_matmul_property(data):
    dtype = data.draw(st.sampled_from(products.DTYPES))
    first, second = (
        libraries.by_name(data.draw(st.sampled_from(names)))
        for names in (["numpy", "torch", "jax"], ["numpy", "torch"])  # JAX alone is test_jax_matmul.py's
    )
    shapes = data.draw(
        hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", min_side=0, max_side=6, max_dims=3)
    )
    (base_a, x), (base_b, y) = (
        data.draw(products.strided(shape, dtype, library.negative))
        for shape, library in zip(shapes.input_shapes, (first, second), strict=True)
    )
    c = interop.matmul(first.view(base_a, x), second.view(base_b, y))
    assert first.is_ours(c)
    assert first.dtype(c) == dtype
    values = first.to_numpy(c)
    assert values.shape == shapes.result_shape
    assert np.array_equal(values, np.matmul(x, y))  # small integers: exact in any order

    base_out, out_view = data.draw(products.strided(shapes.result_shape, dtype, second.negative))
    made = second.make(base_out)
    out = second.view_of(made, base_out, out_view)
    if any(n > 1 and s == 0 for n, s in zip(out_view.shape, out_view.strides, strict=True)) and out_view.size:
        with pytest.raises(ValueError, match="out .* has elements that share memory"):
            interop.matmul(first.view(base_a, x), second.view(base_b, y), out=out)
        assert np.array_equal(second.to_numpy(made), base_out)
        return
    assert interop.matmul(first.view(base_a, x), second.view(base_b, y), out=out) is out
    out_view[...] = np.matmul(x, y)
    assert np.array_equal(second.to_numpy(made), base_out)
