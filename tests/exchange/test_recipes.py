"""The recipe for cuvec of docs/libraries.md, and its use, as they stand.

On a library of its kind, `helpers.cuvec`, and on the package itself where that is installed and works.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import cuvec as kind
from helpers import device, machine

import interop

PAGE = Path(__file__).parents[2] / "docs" / "libraries.md"


def block(words):
    """The one block of the page that needs these."""
    (code,) = re.findall(rf"^```python {words}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return code


@pytest.fixture(params=["of its kind", "package"])
def cuvec(request):
    return kind if request.param == "of its kind" else machine.need_cuvec()


@pytest.fixture
def taught(cuvec, monkeypatch):
    """The names of the recipe's block, which has been run."""
    monkeypatch.setitem(sys.modules, "cuvec", cuvec)
    names = {"__name__": "recipe"}
    exec(block("cuvec"), names)
    return names


@pytest.fixture
def loose(cuvec):
    """Make what NumPy computes of CuVecs: an array of the class, with no vector."""
    return lambda values: np.asarray(values, "float32").view(cuvec.CuVec)


def test_the_class_is_of_cuvecs_kind(cuvec):
    v = cuvec.zeros((2, 3))
    assert v.__cuda_array_interface__["data"] == v.__array_interface__["data"]
    for other in (v[1:], v.T, v + v, v.reshape(6)):
        assert type(other) is cuvec.CuVec
        assert not hasattr(other, "__cuda_array_interface__")
    v.resize((6,))
    assert v.__cuda_array_interface__["shape"] == (6,)
    with pytest.raises(KeyError):
        cuvec.zeros(3, "complex64")


def test_arrays_with_no_vector_are_left_to_numpy(taught, cuvec, loose):
    x, y = loose([[1, 2], [3, 4]]), loose([[1, 1], [1, 1]])
    for a in (x, x[:, ::-1], x.T):
        total = interop.add(a, y)
        assert type(total) is cuvec.CuVec
        assert total.tolist() == (np.asarray(a) + 1).tolist()
        said = interop.explain(interop.add, a, y).arguments[0]
        assert (said.library, said.protocol, said.device) == ("cuvec", "buffer protocol", "cpu")
    assert interop.matmul(x[0], y[0]).shape == ()
    assert type(interop.less(x, y)) is cuvec.CuVec
    out = loose([0, 0])
    assert interop.add(x[0], y[0], out=out) is out
    assert out.tolist() == [2, 3]


def test_vectors_and_their_views_are_exported(taught, cuvec, loose):
    v = cuvec.zeros((2, 3))
    for x in (v, v[1:], v[:, ::2], v.T, v[1:][0], v.reshape(6)):
        shown = taught["export"](x)
        interface = shown.__cuda_array_interface__
        assert interface["data"][0] == x.ctypes.data
        assert interface["shape"] == x.shape
        assert (interface["strides"] or np.empty(x.shape, x.dtype).strides) == x.strides
    for x in (v + v, loose([1.0]), v.copy()):
        assert taught["export"](x) is NotImplemented
    v.resize((6,))
    assert taught["export"](v).__cuda_array_interface__["shape"] == (6,)


def test_memory_that_no_gpu_can_read_is_refused(taught, cuvec, monkeypatch):
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)  # for the vectors of its kind, which are the host's then
    if cuvec is not kind and machine.driver():
        pytest.skip("the package's vectors are managed memory here")
    v = cuvec.zeros(3)
    with pytest.raises((BufferError, RuntimeError), match="^interop.add: a|no usable|driver"):
        interop.add(v, v)


@pytest.mark.gpu
def test_vectors_are_computed_on_the_gpu(taught, cuvec, cuda_device):
    exec(block("cuvec cuda"), taught)
    v, w = cuvec.zeros((4, 4)), cuvec.zeros((4, 4))
    v[:], w[:] = np.arange(16).reshape(4, 4), 2
    said = interop.explain(interop.add, v, w)
    assert [argument.device for argument in said.arguments] == ["cuda:0"] * 2
    for a, b in ((v, w), (v[1:], w[1:]), (v.T, w), (v[:, ::2], w[:, :2])):
        total = interop.add(a, b)
        product = interop.matmul(a.T, b)
        cuvec.dev_sync()
        for result, expected in ((total, np.asarray(a) + 2), (product, np.asarray(a).T @ np.asarray(b))):
            assert type(result) is cuvec.CuVec
            assert result.__cuda_array_interface__["shape"] == expected.shape
            assert np.array_equal(np.asarray(result), expected)
    dot = interop.matmul(v[0], w[0])
    v.resize((16,))
    doubled = interop.multiply(v, 2)
    cuvec.dev_sync()
    assert (dot.shape, float(dot)) == ((), 12)
    assert doubled.tolist() == list(range(0, 32, 2))


@pytest.mark.gpu
def test_what_the_gpu_and_cuvec_cannot_take_together(taught, cuvec, loose, cuda_device):
    v = cuvec.zeros(3)
    with pytest.raises(TypeError, match="a is on cuda:0 and b is in host memory"):
        interop.add(v, loose([1, 2, 3]))
    with pytest.raises(KeyError):
        interop.less(v, v)
    out = cuvec.zeros(3, "uint8").view("bool")
    interop.less(v, cuvec.asarray(loose([1, 0, 2])), out=out)
    cuvec.dev_sync()
    assert out.tolist() == [True, False, True]


@pytest.mark.gpu
def test_a_vector_is_kept_until_the_gpu_is_done_with_it(taught, cuvec, cuda_device):
    v = cuvec.zeros(1 << 16)
    w, total = cuvec.zeros(1 << 16), cuvec.zeros(1 << 16)
    v[:] = 1
    interop.add(v, w, out=total)  # the first call takes its time
    cuvec.dev_sync()
    total[:] = 0
    device.delay(device.LEGACY)
    interop.add(v, w, out=total)
    assert device.is_busy(device.LEGACY)
    assert interop._core.held_count() > 0
    del v, w
    cuvec.dev_sync()
    assert (total == 1).all()


@pytest.mark.gpu
def test_what_coming_from_cuvec_needs(taught, cuda_device, tmp_path, monkeypatch):
    page = PAGE.with_name("coming-from.md")
    code = page.read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```$", code, re.MULTILINE | re.DOTALL)[1]
    blocks = re.findall(r"^```python cuvec cuda\n(.*?)^```$", code, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    shutil.copytree(page.with_suffix(""), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in (first, *blocks):
        exec(block, names)
