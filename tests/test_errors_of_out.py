"""What `interop.matmul` refuses as `out=`: shapes, dtypes, memory that is read-only, shared or immutable."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.dlpack import Fake
from helpers.refusals import refused, square


def test_refuses_out_of_another_shape(host_view_library):
    a = host_view_library.make(square())
    for shape in ((2, 3), (2,), (1, 2, 2), (4,), ()):
        text = re.escape(str(shape))
        out = host_view_library.make(np.full(shape, 7.0))
        refused(ValueError, rf"^interop.matmul: out has shape {text}; accepted: .* \(2, 2\)$", a, a, out=out)
        assert (host_view_library.to_numpy(out) == 7).all()


def test_refuses_out_of_another_dtype(host_view_library):
    a = host_view_library.make(square())
    for name in ("float32", "int64", "complex128"):
        out = host_view_library.make(np.full((2, 2), 7, name))
        refused(TypeError, f"^interop.matmul: out is {name}; accepted: the result's dtype, float64$", a, a, out=out)
        assert (host_view_library.to_numpy(out) == 7).all()


@pytest.mark.parametrize(
    "freeze",
    [
        lambda x: x.setflags(write=False) or x,
        lambda x: memoryview(x).toreadonly(),
        lambda x: Fake(x, flags=1),
        lambda x: memoryview(bytes(x.tobytes())).cast("d", (2, 2)),
    ],
    ids=["numpy", "memoryview", "dlpack", "bytes"],
)
def test_refuses_out_that_is_read_only(freeze):
    memory = np.full((2, 2), 7.0)
    out = freeze(memory)
    refused(TypeError, r"^interop.matmul: out .*is read-only; accepted: a writable array", square(), square(), out=out)
    assert (memory == 7).all()


def test_refuses_out_of_jax(jax):
    out = jax.numpy.zeros((2, 2), "float32")
    x = square("float32")
    refused(TypeError, "^interop.matmul: out is .*, which is immutable", x, x, out=out)
    refused(TypeError, "^interop.matmul: out.* JAX arrays, which are immutable", out, out, out=out)
    assert not out.any()


@pytest.mark.parametrize("name", ["a", "b"])
def test_refuses_out_that_is_an_operand(host_view_library, name):
    out, other = host_view_library.make(square()), host_view_library.make(square())
    arrays = (out, other) if name == "a" else (other, out)
    refused(ValueError, f"^interop.matmul: out shares memory with {name}, ", *arrays, out=out)
    assert np.array_equal(host_view_library.to_numpy(out), square())


@pytest.mark.parametrize(
    "windows",
    [
        (np.s_[:, 0:4], np.s_[:, 3:7]),
        (np.s_[0:3, 0:3], np.s_[2:5, 2:5]),
        (np.s_[::2, ::2][:0] or np.s_[0:4:2, ::2], np.s_[0:2, 0:4]),
    ],
    ids=["columns", "corner", "interleaved"],
)
def test_refuses_out_that_overlaps_an_operand(host_view_library, windows):
    base = np.arange(56.0).reshape(7, 8)
    made = host_view_library.make(base)
    first, second = (host_view_library.view_of(made, base, base[window]) for window in windows)
    ours = np.matmul(base[windows[0]], np.ones((first.shape[1], second.shape[1])))
    other = host_view_library.make(np.ones((first.shape[1], second.shape[1])))
    assert ours.shape == tuple(second.shape), "the test itself"
    refused(ValueError, "^interop.matmul: out shares memory with a, ", first, other, out=second)
    assert np.array_equal(host_view_library.to_numpy(made), base)


def test_refuses_out_that_overlaps_an_operand_across_libraries(torch):
    x = square()
    refused(ValueError, "^interop.matmul: out shares memory with b, ", square(), torch.from_numpy(x), out=x)
    assert np.array_equal(x, square())


@pytest.mark.parametrize(
    ("elements", "steps"),
    [(1, (0, 0)), (2, (0, 1)), (2, (1, 0)), (3, (1, 1))],
    ids=["one", "rows", "columns", "windows"],
)
def test_refuses_out_whose_elements_share_memory(host_view_library, elements, steps):
    base = np.full(elements, 7.0)
    view = np.lib.stride_tricks.as_strided(base, (2, 2), tuple(8 * step for step in steps))
    made = host_view_library.make(base)
    out = host_view_library.view_of(made, base, view)
    a = host_view_library.make(square())
    refused(ValueError, "^interop.matmul: out .*has elements that share memory", a, a, out=out)
    assert (host_view_library.to_numpy(made) == 7).all()
