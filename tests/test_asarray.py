"""`interop.asarray`: a view of the same memory, which it keeps. On a GPU: tests/gpu/test_convert*.py."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers import machine
from helpers.dlpack import Fake, OldFake, capsule_name
from helpers.views import LAYOUTS, VALUES, load

import interop


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
