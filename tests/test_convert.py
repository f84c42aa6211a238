"""`interop.asarray` and `interop.convert`: the same memory, never a copy. In host memory here; on a GPU: tests/gpu."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
import types
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers import machine
from helpers.dlpack import Fake, OldFake, capsule_name

import interop

LIBRARIES = ("numpy", "torch", "jax", "warp", "interop")
VALUES = np.arange(12, dtype="float32").reshape(3, 4)


def aligned(x):
    """A copy of `x`, with its layout if that is compact, in memory that JAX takes as it is."""
    block = np.empty(x.nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    copied = np.ndarray(x.shape, x.dtype, block[start:].data, order=order)
    copied[...] = x
    return copied


def load(name):
    """Import a library, or skip where it is absent."""
    if name in machine.REQUIREMENTS:
        return machine.need(name)
    module = pytest.importorskip(name)
    if name == "warp":
        module.config.quiet = True
    return module


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


LAYOUTS = {
    "compact": lambda x: x,
    "transposed": lambda x: x.T,
    "every other": lambda x: x[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[0], (5, 4)),
    "one row": lambda x: x[1:2],
    "no element": lambda x: x[:, :0],
    "no dimension": lambda x: x[1, 2, ...],
}
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


# ---- asarray ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("library", ["numpy", "torch", "fake", "old fake", "buffer", "array interface"])
def test_asarray_is_the_same_memory(library, layout):
    x = LAYOUTS[layout](VALUES.copy())
    if library == "torch":
        if layout == "reversed":
            pytest.skip("torch has no such tensor")
        source = load("torch").from_numpy(VALUES.copy())
        source = source.as_strided(x.shape, [s // 4 for s in x.strides], source.storage_offset())
        x = source.numpy()
    else:
        show = {"fake": Fake, "old fake": OldFake, "buffer": memoryview, "array interface": OnlyArrayInterface}
        source = show.get(library, lambda x: x)(x)
    view = interop.asarray(source)
    assert type(view) is interop.Array
    assert (view.shape, view.ndim, view.dtype, view.device) == (x.shape, x.ndim, "float32", "cpu")
    if x.size > 1:
        steps = [(s // 4, n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1]
        assert [(s, n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1] == steps
    assert np.array_equal(np.asarray(view), x)
    assert x.size == 0 or np.asarray(view).__array_interface__["data"][0] == x.__array_interface__["data"][0]


class OnlyArrayInterface:
    def __init__(self, x):
        self.array = x
        self.__array_interface__ = x.__array_interface__


OnlyArrayInterface.__array_interface__ = None  # on the type, too, as producers have it


def test_asarray_of_an_array_is_itself():
    view = interop.asarray(VALUES)
    assert interop.asarray(view) is view


def test_asarray_uses_a_capsule_up():
    capsule = VALUES.__dlpack__(max_version=(1, 0))
    assert np.shares_memory(np.asarray(interop.asarray(capsule)), VALUES)
    assert capsule_name(capsule) == "used_dltensor_versioned"
    with pytest.raises(ValueError, match="interop.asarray: x is a DLPack capsule that was used before"):
        interop.asarray(capsule)


def test_asarray_keeps_the_owner_and_lets_it_go():
    class Owner:
        def __init__(self, x):
            self.__array_interface__ = x.__array_interface__
            self.array = x

    Owner.__array_interface__ = None
    owner = Owner(VALUES.copy())
    gone = weakref.ref(owner)
    view = interop.asarray(owner)
    exported = np.asarray(view)
    del owner, view
    gc.collect()
    assert gone() is not None
    assert np.array_equal(exported, VALUES)
    del exported
    gc.collect()
    assert gone() is None


def test_asarray_keeps_a_tensor(torch):
    """That is, its storage: the memory is read by a plain pointer, and nothing else keeps it."""
    memory = np.ones(3, "f4")
    x = torch.from_numpy(memory)
    gone = weakref.ref(memory)
    view = interop.asarray(x)
    capsule = view.__dlpack__()
    del memory, x, view
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_asarray_gives_every_export_back_once():
    fake = Fake(VALUES.copy())
    views = [interop.asarray(fake) for _ in range(5)]
    assert fake.exported == 5
    assert fake.deleted == 0
    capsule = views[0].__dlpack__()
    taken = np.from_dlpack(views[1])
    del views
    assert fake.deleted == 3
    del capsule, taken
    assert fake.balanced


def test_asarray_keeps_a_buffer_exported():
    x = bytearray(8)
    view = interop.asarray(x)
    with pytest.raises(BufferError):
        x.append(1)
    del view
    x.append(1)


def test_a_view_takes_part_in_calls(torch):
    x = torch.zeros(3, 3, dtype=torch.float64)
    assert interop.matmul(np.eye(3), np.full((3, 3), 2.0), out=interop.asarray(x)) is not None
    assert (x == 2).all()
    with pytest.raises(ValueError, match="out shares memory with a"):
        interop.matmul(x, np.eye(3), out=interop.asarray(x))
    assert type(interop.matmul(interop.asarray(x), np.eye(3))) is interop.Array


@pytest.mark.parametrize(
    "convert", [interop.asarray, lambda x: interop.convert(x, "numpy")], ids=["asarray", "convert"]
)
@pytest.mark.parametrize(
    "x", [3, 2.5, "text", b"bytes", [1, 2], None, np.float32(1), np.ma.masked_array([1.0]), ...], ids=repr
)
def test_what_is_no_array(convert, x):
    if isinstance(x, np.ndarray) and convert is not interop.asarray:
        pytest.skip("a masked array is NumPy's own")
    with pytest.raises(TypeError, match=r"interop\.(asarray|convert): x is "):
        convert(x)


def test_tensors_with_more_than_memory_are_refused(torch):
    z = torch.ones(2, 2, dtype=torch.complex64)
    refused = {
        "x requires grad": torch.ones(3, requires_grad=True),
        "x is a lazily negated or conjugated tensor": z.conj(),
        "x is a lazily negated": z.conj().imag,
        "a subclass of torch.Tensor": torch.ones(3).as_subclass(type("Sub", (torch.Tensor,), {})),
        "has no memory": torch.ones(3).to_sparse(),
    }
    for words, x in refused.items():
        for function in (interop.asarray, lambda x: interop.convert(x, "numpy")):
            with pytest.raises((TypeError, BufferError), match=words):
                function(x)
    with torch.no_grad():
        assert interop.asarray(refused["x requires grad"]).shape == (3,)
    resolved = interop.asarray(z.conj().resolve_conj())
    assert resolved.dtype == "complex64"
    assert interop.convert(refused["x requires grad"], "torch") is refused["x requires grad"]


def test_jax_arrays_without_memory_are_refused(jax):
    deleted = jax.numpy.ones(3)
    deleted.delete()
    with pytest.raises(BufferError, match="x: the JAX array has been deleted"):
        interop.asarray(deleted)

    def traced(x):
        with pytest.raises(TypeError, match="x is a JAX tracer"):
            interop.convert(x, "numpy")
        return x

    jax.jit(traced)(jax.numpy.ones(3))


def test_dtypes_that_dlpack_has_not():
    for x in (np.ones(2, ">f4"), np.array(["a"]), np.zeros(2, "i4,f4"), np.zeros(2, "datetime64[s]"), np.array([{}])):
        with pytest.raises(TypeError, match="interop.asarray: x is .*; accepted: bool, integers, floats"):
            interop.asarray(x)


# ---- at exit ----


EXITS = {
    "in a builtin": "import builtins; builtins.kept = view, view.__dlpack__(), memoryview(view), np.asarray(view)",
    "in a cycle": "kept = [view, np.asarray(view)]; kept.append(kept)",
    "by another library": "np.kept = interop.convert(view, 'torch') if torch else view",
    # A C library that lets its tensor go at the process's exit, after Python's.
    "by C": """
        import ctypes
        from helpers.dlpack import consume
        managed = consume(view.__dlpack__())
        deleter = ctypes.cast(managed.deleter, ctypes.c_void_p)
        at_exit = ctypes.CDLL(None).__cxa_atexit
        at_exit.argtypes = [ctypes.c_void_p] * 3
        assert at_exit(deleter, ctypes.addressof(managed), None) == 0
    """,
}


@pytest.mark.parametrize("what", EXITS)
def test_views_may_outlive_the_interpreter(tmp_path, what):
    (tmp_path / "helpers").symlink_to(Path(machine.__file__).parent)
    code = f"""
        import sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np, interop
        try:
            import torch
        except ImportError:
            torch = None
        view = interop.asarray(np.arange(6.0) if torch is None else torch.arange(6.0))
        {EXITS[what].strip()}
        print("done")
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
