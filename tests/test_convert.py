"""`interop.convert`: the same memory in an array of another library, no copy. On a GPU: tests/gpu/test_convert*.py."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from helpers.views import LAYOUTS, VALUES, load

import interop

LIBRARIES = ("numpy", "torch", "jax", "warp", "interop")


def aligned(x):
    """A copy of `x`, with its layout if that is compact, in memory that JAX takes as it is."""
    block = np.empty(x.nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    copied = np.ndarray(x.shape, x.dtype, block[start:].data, order=order)
    copied[...] = x
    return copied


def make(name, x):
    """Return an array of the library with these values, in aligned memory."""
    load(name)
    return interop.convert(aligned(x), name)


def values(x):
    """Return a copy of the values of any host array."""
    return np.array(interop.convert(x, "numpy"))


def pointer_of(x):
    return interop.convert(x, "numpy").__array_interface__["data"][0]


def is_of(name, x):
    return type(x).__module__.split(".")[0] in {"jax": ("jax", "jaxlib")}.get(name, (name,))


# ---- convert: every pair ----


@pytest.mark.parametrize("target", LIBRARIES)
@pytest.mark.parametrize("source", LIBRARIES)
def test_every_pair_shares_the_memory(source, target):
    load(target)
    x = make(source, VALUES)
    y = interop.convert(x, target)
    assert is_of(target, y)
    assert (y is x) == (source == target)
    assert tuple(y.shape) == VALUES.shape
    assert pointer_of(y) == pointer_of(x)
    assert np.array_equal(values(y), VALUES)


@pytest.mark.parametrize("target", LIBRARIES)
def test_writes_through_the_source_are_seen(target):
    load(target)
    x = aligned(VALUES)
    y = interop.convert(x, target)
    x[...] = 7
    assert (values(y) == 7).all()


@pytest.mark.parametrize("target", ["numpy", "torch", "interop"])
@pytest.mark.parametrize("source", ["numpy", "torch", "jax", "interop"])
def test_the_memory_outlives_its_owner(source, target):
    load(target)
    y = interop.convert(make(source, VALUES), target)
    gc.collect()
    junk = [make("numpy", np.full_like(VALUES, -1)) for _ in range(50)]
    assert np.array_equal(values(y), VALUES)
    del junk


def test_there_and_back(torch, jax):
    x = aligned(VALUES)
    y = x
    for library in ("torch", "interop", "jax", "torch", "numpy"):
        y = interop.convert(y, library)
    assert type(y) is np.ndarray
    assert np.shares_memory(x, y)


CANNOT = {  # (library, layout) -> what is said; all other pairs work
    ("torch", "reversed"): "torch has no negative strides",
    ("jax", "every other"): "JAX has compact arrays only",
    ("jax", "reversed"): "JAX has compact arrays only",
    ("jax", "broadcast"): "JAX has compact arrays only",
    ("jax", "one row"): "JAX cannot share the memory .*aligned",
    ("jax", "no dimension"): "JAX cannot share the memory .*aligned",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", LIBRARIES)
def test_layouts_are_kept_or_refused(target, layout):
    load(target)
    x = LAYOUTS[layout](aligned(VALUES))
    if (target, layout) == ("warp", "no dimension"):
        with pytest.raises(TypeError, match="Warp does not take this array"):
            interop.convert(x, target)
        return
    if words := CANNOT.get((target, layout)):
        with pytest.raises(ValueError, match=f"interop.convert: {words}.*; x is float32 of shape .*; .*copy"):
            interop.convert(x, target)
        return
    y = interop.convert(x, target)
    assert tuple(y.shape) == x.shape
    assert np.array_equal(values(y), x)
    assert x.size == 0 or pointer_of(y) == x.__array_interface__["data"][0]


INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", LIBRARIES)
def test_dtypes_of_numpy(target, dtype):
    load(target)
    x = aligned(np.array([0, 1, 2, 3]).astype(dtype))
    if target == "warp" and dtype.startswith("complex"):
        with pytest.raises(TypeError, match=f"interop.convert: Warp does not take this array .x is {dtype}"):
            interop.convert(x, target)
        return
    y = interop.convert(x, target)
    if target != "warp":  # which has types of its own
        assert str(y.dtype).removeprefix("torch.") == dtype
    assert pointer_of(y) == pointer_of(x)
    back = values(y)
    assert np.array_equal(back, x if target != "warp" or dtype != "bool" else x.astype(back.dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_dtypes_that_numpy_has_by_ml_dtypes(torch, jax, dtype):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(getattr(torch, dtype)).T
    y = interop.convert(x, "numpy")
    assert y.dtype == getattr(ml_dtypes, dtype)
    assert y.astype("float32").tolist() == [[1, 3], [2, 4]]
    assert pointer_of(y.view(f"u{y.itemsize}")) == x.data_ptr()
    assert interop.asarray(x).dtype == dtype
    jaxs = jax.numpy.ones((4, 4), dtype)
    assert interop.convert(interop.convert(jaxs, "torch"), "jax").dtype == dtype


SMALL_FLOATS = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@pytest.mark.parametrize("dtype", [name for name in SMALL_FLOATS if hasattr(ml_dtypes, name)])
@pytest.mark.parametrize("target", ["interop", "torch", "jax"])
def test_dtypes_of_ml_dtypes_go_and_come_back(target, dtype):
    module = load(target)
    x = aligned(np.array([[1, 2], [4, 8]]).astype(getattr(ml_dtypes, dtype)))
    if target == "torch" and not hasattr(module, dtype):
        with pytest.raises(TypeError, match=f"torch does not take this array .x is {dtype}"):
            interop.convert(x, target)
        return
    y = interop.convert(x, target)
    assert str(y.dtype).removeprefix("torch.") == dtype
    back = interop.convert(y, "numpy")
    assert back.dtype == x.dtype
    assert back.astype("float32").tolist() == [[1, 2], [4, 8]]
    assert pointer_of(back) == pointer_of(x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_layouts_of_ml_dtypes(dtype):
    base = np.arange(24).reshape(4, 6).astype(getattr(ml_dtypes, dtype))
    views = (base.T, base[::2, 1::3], base[::-1, ::-2], np.broadcast_to(base[0], (3, 6)), base[:0], base[1, 1, ...])
    for view in views:
        array = interop.asarray(view)
        assert array.dtype == dtype
        assert array.shape == view.shape
        back = np.asarray(array)
        assert np.array_equal(back, view)
        assert view.size == 0 or pointer_of(back) == pointer_of(view)


def test_dtypes_that_only_look_like_those_of_dlpack():
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for dtype, name in [
        (bfloat16.newbyteorder(), "[<>]V2"),
        (np.dtype("V2"), r"\|V2"),
        (np.dtype([("x", bfloat16)]), r"\[\('x', .*\)\]"),
        (np.dtype(ml_dtypes.int4), "int4"),
        (np.dtype(ml_dtypes.float8_e5m2).newbyteorder(), "[<>]f1"),
    ]:
        with pytest.raises(TypeError, match=f"x is {name}; accepted: .* in native byte order"):
            interop.asarray(np.zeros((2, 2), dtype))


def test_64_bits_stay_64_bits_with_jaxs_x64_mode_off(jax):
    assert not jax.config.jax_enable_x64
    y = interop.convert(aligned(np.arange(3.0)), "jax")
    assert str(y.dtype) == "float64"


# ---- read-only memory ----


def test_read_only_memory_stays_so(host_jax):
    frozen = aligned(VALUES)
    frozen.flags.writeable = False
    for x in (frozen, memoryview(b"abc"), host_jax.numpy.ones(3)):
        y = interop.convert(x, "numpy")
        assert not y.flags.writeable or y is x
        with pytest.raises(TypeError, match="out .*read-only"):
            interop.matmul(np.eye(1), np.ones((1, 3)), out=interop.asarray(np.broadcast_to(np.ones(3), (1, 3))))


def test_read_only_memory_goes_to_libraries_without_the_notion(torch, jax):
    frozen = aligned(VALUES)
    frozen.flags.writeable = False
    assert np.array_equal(values(interop.convert(frozen, "torch")), VALUES)
    assert np.array_equal(values(interop.convert(frozen, "jax")), VALUES)
    with pytest.raises(BufferError, match="read-only, which an unversioned capsule cannot say"):
        interop.asarray(frozen).__dlpack__()


def test_jax_is_told_how_to_take_its_own_read_only_memory(host_jax):
    """Its importer asks for no version, and its user cannot make it."""
    x = host_jax.numpy.arange(16.0)
    view = interop.asarray(x)
    with pytest.raises(BufferError, match=r'read-only.*where JAX asks, interop\.convert\(x, "jax"\)'):
        host_jax.dlpack.from_dlpack(view)
    y = interop.convert(view, "jax")  # what the message recommends
    assert y.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()


def test_writable_memory_stays_writable(torch):
    y = interop.convert(torch.zeros(3), "numpy")
    y[0] = 1
    assert y.flags.writeable


# ---- what convert refuses ----


@pytest.mark.parametrize("library", ["mlx", "", None, 3, ["torch"]])
def test_unknown_libraries(library):
    with pytest.raises(ValueError, match=re.escape(f"interop.convert: library is {library!r}; accepted: 'torch', ")):
        interop.convert(VALUES, library)


@pytest.mark.parametrize("source", ["numpy", "interop"])
@pytest.mark.parametrize("target", ["torch", "interop"])
def test_host_memory_has_no_stream(torch, source, target):
    with pytest.raises(ValueError, match="interop.convert: stream is given, but x is in host memory"):
        interop.convert(make(source, VALUES), target, stream=1)


def test_numpy_has_no_stream():
    with pytest.raises(ValueError, match="stream is given, but NumPy has no streams"):
        interop.convert(VALUES, "numpy", stream=1)


@pytest.mark.parametrize(("stream", "exception"), [("1", TypeError), (-1, ValueError), (True, TypeError)])
def test_bad_streams(stream, exception):
    with pytest.raises(exception, match="interop.convert: stream is "):
        interop.convert(VALUES, "torch", stream=stream)


@pytest.mark.parametrize("library", ["cupy", "numba"])
def test_host_memory_is_not_for_libraries_of_the_gpu(monkeypatch, library):
    """Whether the library is there or not: it is never reached."""
    name = {"cupy": "cupy", "numba": "numba.cuda"}[library]
    fake = types.ModuleType(name)
    fake.ndarray = type("ndarray", (), {})
    monkeypatch.setitem(sys.modules, name, fake)
    if library == "numba":
        monkeypatch.setitem(sys.modules, "numba", types.ModuleType("numba"))
    with pytest.raises(
        TypeError, match="has arrays on the GPU only; x is float32 of shape .* on cpu; copy it to the GPU"
    ):
        interop.convert(VALUES, library)


def test_a_library_that_is_not_installed(tmp_path):
    code = "import sys; sys.modules['torch'] = None\nimport interop\ninterop.convert(memoryview(b'x'), 'torch')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "ModuleNotFoundError" in done.stderr


def test_an_importers_own_refusal_is_quoted(torch, monkeypatch):
    def refuse(x):
        raise RuntimeError("not on a Friday")

    monkeypatch.setattr(torch, "from_dlpack", refuse)
    with pytest.raises(TypeError, match=r"torch does not take this array \(x is float32 .*\): not on a Friday"):
        interop.convert(VALUES, "torch")
