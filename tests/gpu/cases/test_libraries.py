"""Inputs that broke other libraries: what PyTorch and the protocols mean, and what type results are of."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest
from helpers import libraries
from helpers.dlpack import Cai

import interop

# ---- PyTorch and shape semantics ----


# pytorch/pytorch#59945: memory of a lazily conjugated tensor holds the values before conjugation.
def test_b62_conjugated_and_negated_tensors(torch):
    z = torch.full((2, 2), 1j, device="cuda").conj()
    assert z.is_conj()
    assert interop.matmul(z, z).tolist() == [[-2, -2], [-2, -2]]
    assert interop.matmul(z, torch.eye(2, device="cuda", dtype=z.dtype)).tolist() == [[-1j, -1j], [-1j, -1j]]
    negated = z.imag
    assert negated.is_neg()
    assert interop.matmul(negated, torch.eye(2, device="cuda")).tolist() == [[-1, -1], [-1, -1]]
    assert interop.matmul(torch.eye(2, device="cuda"), negated).tolist() == [[-1, -1], [-1, -1]]


# pytorch/pytorch#169804: a parameter was refused in inference, or its graph was cut silently.
def test_b64_requires_grad(torch):
    w = torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
    x = torch.ones(4, 4, device="cuda")
    with torch.no_grad():
        assert (interop.matmul(x, w) == 4).all()
    with torch.inference_mode():
        assert (interop.matmul(x, w) == 4).all()
    interop.matmul(x, w).sum().backward()
    assert (w.grad == 4).all()
    with pytest.raises(BufferError, match=r"b requires grad.*b.detach\(\)"):
        interop.matmul(np.ones((4, 4), "f4"), w)


# pytorch/pytorch#148306: a wrapper has no storage.
def test_b65_wrapped_and_traced_arrays(torch, jax, jnp):
    assert (torch.vmap(lambda v: interop.matmul(v, v))(torch.ones(2, 3, 3, device="cuda")) == 3).all()
    host = np.ones((3, 3), "f4")
    with pytest.raises((TypeError, RuntimeError), match="no memory of its own"):
        torch.vmap(lambda v: interop.matmul(host, v))(torch.ones(2, 3, 3, device="cuda"))
    with pytest.raises(TypeError, match="b is a JAX tracer"):
        jax.jit(lambda v: interop.matmul(host, v))(jnp.ones((3, 3)))


# cupy/cupy#736: inner sizes that differ hit an internal assertion.
def test_b67_inner_sizes_that_differ(cp):
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(4, 2\).*the inner dimensions 3 and 4 differ"):
        interop.matmul(cp.ones((2, 3), "f4"), cp.ones((4, 2), "f4"))


# ---- copies, result type, protocol arguments ----


# wjakob/nanobind#711: a strided argument was written in an implicit copy.
def test_b74_strided_out(cp):
    base = cp.zeros((4, 4), "f4")
    o = cp.ones((4, 4), "f4")
    interop.matmul(o, o[:, :2], out=base[:, ::2])
    assert base[:, ::2].tolist() == [[4, 4]] * 4
    assert base[:, 1::2].sum() == 0


# openxla/xla#10613: the import of device memory into JAX failed on layouts.
def test_b76_results_for_jax(jax, jnp, cp):
    y = interop.matmul(jnp.ones((4, 4)), jnp.ones((4, 4)))
    assert y.devices() == jnp.ones(4).devices()
    assert bool((jax.jit(lambda v: v * 2)(y) == 8).all())
    mixed = interop.matmul(jnp.ones((4, 4)), cp.ones((4, 4), "f4"))
    assert bool((jax.jit(lambda v: v * 2)(mixed) == 8).all())


# pytorch/pytorch#54139: an object with the CUDA interface was downloaded in secret.
def test_b77_results_stay_on_the_device(torch, numba):
    d = libraries.by_name("numba", "cuda").make(np.ones((4, 4), "f4"))
    c = interop.matmul(torch.ones(4, 4, device="cuda"), d)
    assert c.is_cuda
    assert c.tolist() == [[4] * 4] * 4


# numba/numba#6904: host arrays were uploaded and downloaded in secret.
def test_b79_host_beside_device_arrays(numba):
    d = libraries.by_name("numba", "cuda").make(np.ones((4, 4), "f4"))
    with pytest.raises(TypeError, match="host"):
        interop.matmul(d, np.ones((4, 4), "f4"))


# nv-legate/cupynumeric#1239: __dlpack__ lacked newer keywords.
def test_b80_all_keywords_of_dlpack(cp):
    t = cp.ones((4, 4), "f4")
    o = interop.matmul(Cai(t), Cai(t))
    for keywords in (
        {},
        {"stream": None},
        {"stream": 1},
        {"stream": 2},
        {"stream": -1},
        {"stream": 1, "max_version": (1, 3), "dl_device": (2, 0), "copy": None},
        {"max_version": None, "copy": False},
    ):
        o.__dlpack__(**keywords)
    for keywords in ({"dl_device": (1, 0)}, {"dl_device": (1, 0), "copy": True}):  # a copy on the host, asked for
        capsule = o.__dlpack__(max_version=(1, 0), **keywords)
        assert np.array_equal(interop.matmul(capsule, np.eye(4, dtype="f4")), np.full((4, 4), 4, "f4"))
    with pytest.raises(BufferError, match="copy is False"):
        o.__dlpack__(dl_device=(1, 0), copy=False)


# ---- gradients and storages of PyTorch ----


def saved_value_changed_by(torch, write):
    """Change a value that autograd has saved, then ask for the gradient."""
    w = torch.ones(3, device="cuda", requires_grad=True)
    y = torch.full((3,), 2.0, device="cuda")
    z = (w * y).sum()
    write(y)
    z.backward()


# pytorch/pytorch#96852: a kernel wrote by a pointer, and autograd used the new values in silence.
@pytest.mark.parametrize("what", ["add", "a part", "aux of matmul", "expression", "kernel"])
def test_b91_writes_are_noticed_by_autograd(torch, twice, what):
    ones = torch.ones(3, device="cuda")
    write = {
        "add": lambda y: interop.add(y, 4.0, out=y),
        "a part": lambda y: interop.add(ones[:2], 1.0, out=y[:2]),
        "aux of matmul": lambda y: interop.matmul(torch.eye(3, device="cuda"), ones, epilogue="relu", aux=y),
        "expression": lambda y: interop.elementwise("x + 4")(y, out=y),
        "kernel": lambda y: twice(ones, 3, c=y),
    }[what]
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, write)


# pytorch/pytorch#14571: a write by a way that did not count as one gave a wrong gradient without an error.
@pytest.mark.parametrize("what", ["add", "a part", "matmul", "expression", "kernel"])
def test_b92_writes_through_a_view_are_noticed_by_autograd(torch, cp, twice, what):
    ones = cp.ones(3, "f4")
    write = {
        "add": lambda y: interop.add(ones, 1.0, out=interop.asarray(y)),
        "a part": lambda y: interop.add(ones[:2], 1.0, out=interop.asarray(y[1:])),
        "matmul": lambda y: interop.matmul(cp.eye(3, dtype="f4"), ones, out=interop.asarray(y)),
        "expression": lambda y: interop.elementwise("x + 4")(ones, out=interop.asarray(y)),
        "kernel": lambda y: twice(ones, 3, c=interop.asarray(y)),
    }[what]
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, write)


# zdevito/ATen#84: a storage was resized while another library looked at it: its memory belonged to others then. The
# view keeps the memory that it was made from, or such a tensor refuses to be resized.
@pytest.mark.parametrize("way", ["resize_", "the storage", "no bytes", "set_", "data"])
def test_b98_a_storage_resized_under_a_view(torch, cp, way):
    n = 1 << 22
    t = torch.full((n,), 3.0, device="cuda")
    view = interop.asarray(t)
    change = {
        "resize_": lambda: t.resize_(4 * n),
        "the storage": lambda: t.untyped_storage().resize_(16 * n),
        "no bytes": lambda: t.untyped_storage().resize_(0),
        "set_": lambda: t.set_(torch.zeros(4, device="cuda")),
        "data": lambda: setattr(t, "data", torch.zeros(4, device="cuda")),
    }[way]
    with contextlib.suppress(RuntimeError):  # refused
        change()
    gc.collect()
    junk = [torch.full((n,), 9.0, device="cuda") for _ in range(4)]
    if way in ("set_", "data"):  # the tensor has other memory now, and the view that of before
        assert (cp.asarray(view) == 3).all()
    else:  # on a GPU nothing can keep torch from it; the view is refused
        with pytest.raises(BufferError, match="has been resized or moved"):
            cp.asarray(view)
    del junk


# wjakob/nanobind#930: an object that held an ndarray, kept on what the ndarray belonged to, was never collected.
def test_b100_a_cycle_of_a_tensor_and_its_view(torch):
    t = torch.ones(3, device="cuda")
    alive = weakref.ref(t)
    t.view_ = interop.asarray(t)
    del t
    gc.collect()
    assert alive() is None
