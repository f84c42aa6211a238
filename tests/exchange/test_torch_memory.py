"""What a view of a torch tensor keeps, and what torch learns of writes through it. On a GPU: tests/gpu."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers.dlpack import Tensor, exchange_api_of

import interop

LENGTH = 1 << 18  # a block of its own, which the allocator gives back at once


def refill(torch):
    """Take what memory was freed, and fill it with something else."""
    gc.collect()
    return [torch.full((LENGTH,), 9.0) for _ in range(4)]


# ---- the storage is kept, not the tensor ----


def _double(torch, x):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(x, requires_grad=False)
    view = interop.asarray(module.weight)
    module.double()
    return view


def _swap(torch, x):
    view = interop.asarray(x)
    other = torch.full((LENGTH,), 5.0)
    torch.utils.swap_tensors(x, other)
    del other
    return view


def _after(change):
    def act(torch, x):
        view = interop.asarray(x)
        change(torch, x)
        return view

    return act


def _set_data(torch, x):
    x.data = torch.full((LENGTH,), 5.0)


CHANGES = {
    "deleted": _after(lambda torch, x: None),
    "data": _after(_set_data),
    "set_": _after(lambda torch, x: x.set_()),
    "set_ to another": _after(lambda torch, x: x.set_(torch.full((LENGTH,), 5.0))),
    "module.double": _double,
    "swap_tensors": _swap,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_view_keeps_the_storage(torch, name):
    x = torch.full((LENGTH,), 3.0)
    pointer = x.data_ptr()
    view = CHANGES[name](torch, x)
    seen = np.asarray(view)
    del x
    blocks = refill(torch)
    assert seen.ctypes.data == pointer
    assert (seen == 3).all()
    assert (interop.add(view, 1.0).__array__() == 4).all()
    assert all((block == 9).all() for block in blocks)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "interop"])
def test_what_is_made_of_a_view_keeps_the_storage(torch, host_jax, library):
    x = torch.full((LENGTH,), 3.0)
    other = interop.convert(interop.asarray(x), library)
    x.data = torch.zeros(1)
    refill(torch)
    assert (np.asarray(other) == 3).all()


RESIZES = {
    "resize_": lambda x: x.resize_(4 * LENGTH),
    "storage": lambda x: x.untyped_storage().resize_(0),
    "resize_as_": lambda x: x.resize_as_(x.new_empty(4 * LENGTH)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "uint16", "bool", "complex64"])
@pytest.mark.parametrize("name", RESIZES)
def test_host_memory_under_a_view_is_not_resized(torch, name, dtype):
    x = torch.ones(LENGTH).to(getattr(torch, dtype))
    RESIZES[name](torch.ones(LENGTH))  # without a view it is
    view = interop.asarray(x)
    with pytest.raises(RuntimeError, match="not resizable"):
        RESIZES[name](x)
    refill(torch)
    assert (np.asarray(interop.convert(view, "numpy")) == 1).all()


def test_a_slice_and_its_base_are_not_resized(torch):
    base = torch.zeros(LENGTH)
    view = interop.asarray(base[3:5])
    with pytest.raises(RuntimeError, match="not resizable"):
        base.resize_(4 * LENGTH)
    assert np.asarray(view).tolist() == [0, 0]


USES = {
    "operand": lambda view: interop.add(view, 1.0),
    "second operand": lambda view: interop.matmul(np.ones((1, LENGTH), "f4"), view),
    "out": lambda view: interop.add(np.ones(LENGTH, "f4"), 1.0, out=view),
    "expression": lambda view: interop.elementwise("x + y")(np.ones(LENGTH, "f4"), view),
    "__dlpack__": lambda view: view.__dlpack__(),
    "__dlpack__, copied": lambda view: view.__dlpack__(copy=True, dl_device=(1, 0)),
    "buffer": memoryview,
    "numpy": np.asarray,
    "from_dlpack": np.from_dlpack,
    "convert": lambda view: interop.convert(view, "torch"),
    "read": lambda view: interop._core.read(view),
}


@pytest.mark.parametrize("name", USES)
def test_a_view_whose_memory_was_moved_is_refused(torch, name):
    """`share_memory_` alone moves memory that cannot be resized; a view of NumPy's would be left dangling."""
    x = torch.ones(LENGTH)
    view = interop.asarray(x)
    USES[name](view)
    x.share_memory_()
    with pytest.raises(BufferError, match="has been resized or moved; accepted: a new view"):
        USES[name](view)
    assert (np.asarray(interop.asarray(x)) != 0).all()  # a new view is one of the new memory


def test_the_exchange_table_refuses_moved_memory(torch):
    x = torch.ones(LENGTH)
    view = interop.asarray(x)
    torch.from_dlpack(view)
    x.share_memory_()
    api, tensor = exchange_api_of(interop.Array), Tensor()
    with pytest.raises(BufferError, match="has been resized or moved"):
        api.view_from_py(view, ctypes.byref(tensor))


def test_an_exceptions_traceback_keeps_the_storage(torch):
    """Its frames have NumPy's views of the operands."""
    zeros = torch.zeros(LENGTH)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError) as caught:
        interop.divide(np.ones(LENGTH, "f4"), zeros)
    zeros.data = torch.zeros(1)
    blocks = refill(torch)
    views = []
    frame = caught.tb
    while frame:
        views += [v for v in frame.tb_frame.f_locals.values() if isinstance(v, np.ndarray) and v.size == LENGTH]
        frame = frame.tb_next
    assert any((view == 0).all() for view in views)
    assert not any((view == 9).any() for view in views)
    assert blocks


def test_empty_views(torch):
    view = interop.asarray(torch.ones(3)[3:])
    assert np.asarray(view).size == 0
    assert np.asarray(interop.add(view, 1.0)).size == 0


def test_views_inside_a_transform_of_torch_func(torch):
    outside = torch.full((3,), 2.0)

    def f(x):
        return (x * interop.add(outside, interop.convert(interop.asarray(outside), "torch"))).sum()

    assert torch.func.grad(f)(torch.ones(3)).tolist() == [4, 4, 4]


# ---- writes count ----


def gradient_after(torch, write):
    """Return the gradient of w in w * y after a write to y; "noticed" if torch refuses it."""
    w, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    z = (w * y).sum()
    write(y)
    try:
        z.backward()
    except RuntimeError as error:
        return "noticed" if "modified by an inplace operation" in str(error) else str(error)
    return w.grad.tolist()


FIVES = np.full(3, 5.0, "f4")
TWICE = interop.elementwise("x * 2")
WRITES = {
    "asarray": lambda y: interop.add(FIVES, 1.0, out=interop.asarray(y)),
    "numpy": lambda y: interop.add(FIVES, 1.0, out=interop.convert(y, "numpy")),
    "a slice of numpy": lambda y: interop.add(FIVES[1:], 1.0, out=interop.convert(y, "numpy")[:2]),
    "memoryview": lambda y: interop.add(FIVES, 1.0, out=memoryview(interop.asarray(y))),
    "a capsule": lambda y: interop.add(FIVES, 1.0, out=interop.asarray(y).__dlpack__(max_version=(1, 0))),
    "a view of a view": lambda y: interop.add(FIVES, 1.0, out=interop.asarray(interop.convert(y, "numpy"))),
    "a view of detach": lambda y: interop.add(FIVES, 1.0, out=interop.asarray(y.detach())),
    "a slice": lambda y: interop.add(FIVES[:2], 1.0, out=interop.asarray(y[1:])),
    "expression": lambda y: TWICE(FIVES, out=interop.asarray(y)),
    "matmul": lambda y: interop.matmul(np.eye(3, dtype="f4"), FIVES, out=interop.asarray(y)),
    "aux": lambda y: interop.matmul(np.eye(3, dtype="f4"), FIVES, epilogue="relu", aux=interop.asarray(y)),
    "another tensor": lambda y: interop.add(FIVES, 1.0, out=interop.convert(interop.asarray(y), "torch")),
    "torch.from_dlpack": lambda y: interop.add(FIVES, 1.0, out=sys.modules["torch"].from_dlpack(interop.asarray(y))),
    "torch.from_numpy": lambda y: interop.add(
        FIVES, 1.0, out=sys.modules["torch"].from_numpy(interop.convert(y, "numpy"))
    ),
    "unknown view": lambda y: interop.add(FIVES, 1.0, out=np.from_dlpack(interop.asarray(y))),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_a_view_is_counted(torch, name):
    assert gradient_after(torch, WRITES[name]) == "noticed"


def _refused(y):
    with pytest.raises(ValueError, match="out has shape"):
        interop.add(np.ones(4), 1.0, out=interop.asarray(y))


READS = {
    "nothing": lambda y: None,
    "a read": lambda y: interop.add(interop.asarray(y), 1.0),
    "of another tensor": lambda y: interop.add(FIVES, 1.0, out=interop.asarray(y.clone())),
    "beside it": lambda y: interop.add(FIVES, 1.0, out=np.empty(3, "f4")),
    "refused": _refused,
}


@pytest.mark.parametrize("name", READS)
def test_what_is_no_write_is_not_counted(torch, name):
    assert gradient_after(torch, READS[name]) == [2, 2, 2]


def test_a_view_that_is_gone_is_forgotten(torch):
    memory = np.ones(3, "f4")
    y = torch.from_numpy(memory)
    view = interop.asarray(y)
    interop.add(FIVES, 1.0, out=memory)
    assert y._version == 1
    del view
    interop.add(FIVES, 1.0, out=memory)
    assert y._version == 1  # as of NumPy's own writes, torch knows nothing


def test_one_write_counts_once(torch):
    y = torch.ones(3)
    view = interop.asarray(y)
    interop.add(FIVES, 1.0, out=view)
    assert y._version == 1
    interop.add(torch.ones(3), 1.0, out=y)
    assert y._version == 2


def test_one_write_counts_once_for_many_views(torch):
    y = torch.ones(3)
    views = [interop.asarray(y), interop.asarray(y), interop.asarray(y.detach()), interop.asarray(y[:2])]
    interop.add(torch.ones(3), 1.0, out=y)
    assert y._version == 1
    interop.add(FIVES, 1.0, out=views[0])
    assert y._version == 2


def test_a_write_between_the_elements_of_a_view_is_none_to_it(torch):
    both = np.zeros((3, 2), "f4")
    x, y = torch.from_numpy(both[:, 0]), torch.from_numpy(both[:, 1])
    views = [interop.asarray(x), interop.asarray(y)]
    interop.add(FIVES, 1.0, out=both[:, 0])
    assert [x._version, y._version] == [1, 0]
    assert views


def test_many_views(torch):
    """Of many sizes and places: each write counts for what it meets, and for nothing else."""
    whole = torch.zeros(4096)
    parts = [torch.zeros(n) for n in (1, 5, 300)]
    views = [interop.asarray(whole)] + [interop.asarray(part) for part in parts for _ in range(20)]
    interop.add(FIVES[:1], 1.0, out=interop.convert(parts[0], "numpy"))
    assert [part._version > 0 for part in parts] == [True, False, False]
    assert whole._version == 0
    interop.add(FIVES[:1], 1.0, out=interop.convert(whole, "numpy")[4095:])
    assert whole._version > 0
    assert views


# ---- inference tensors ----


@pytest.mark.parametrize("view", ["itself", "asarray", "numpy"])
def test_inference_tensors_are_written_in_inference_mode_alone(torch, view):
    with torch.inference_mode():
        y = torch.ones(3)
    target = {
        "itself": lambda: y,
        "asarray": lambda: interop.asarray(y),
        "numpy": lambda: interop.convert(y, "numpy"),
    }[view]()
    with pytest.raises(TypeError, match="^interop.add: out is memory of a torch inference tensor"):
        interop.add(FIVES, 1.0, out=target)
    assert y.tolist() == [1, 1, 1]
    with torch.inference_mode():
        interop.add(FIVES, 1.0, out=target)
    assert y.tolist() == [6, 6, 6]


# ---- the two ways to a new tensor ----

WAYS = ["shim", "python"]
TRY = """
    import os, sys, numpy, torch, interop
    a = torch.ones(2, 3)
    print(interop.explain(interop.add, a, a).allocator)
    for dtype in (torch.bool, torch.int8, torch.uint16, torch.uint64, torch.float16, torch.bfloat16, torch.float64,
                  torch.complex64, torch.complex128):
        c = interop.add(a.to(dtype), a.to(dtype))
        assert c.dtype is dtype and c.stride() == (3, 1) and c.is_contiguous() and c.untyped_storage().resizable()
        assert c.tolist() == [[dtype is torch.bool or 2] * 3] * 2
    eights = torch.ones(16, 16).to(torch.float8_e4m3fn)
    assert interop.matmul(eights, eights, dtype="bfloat16").dtype is torch.bfloat16
    assert interop.add(torch.ones(0, 3), 1.0).stride() == torch.empty(0, 3).stride()
    assert interop.add(torch.tensor(1.0), 1.0).shape == ()
    before = os.dup(2)
    r, w = os.pipe()
    os.dup2(w, 2)
    try:
        interop.add(torch.ones(1).expand(1 << 55), 1.0)
    except RuntimeError as error:  # what torch.empty raises
        words = str(error)
    os.dup2(before, 2)
    os.close(w)
    assert "allocate" in words, words
    assert os.read(r, 1000) == b"", "torch's C functions wrote to stderr"
"""


def run(way, code):
    environment = {**os.environ, "INTEROP_TORCH_RESULTS": way}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_a_new_tensor(torch, way):
    done = run(way, TRY)
    if way == "shim" and "which was not tested with torch" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    words = {"shim": "torch's C functions", "python": "torch.empty_strided"}[way]
    assert done.stdout == f"torch's own, by {words}, in host memory\n"


def test_an_unknown_way_is_refused(torch):
    done = run("fast", "import torch, interop; interop.add(torch.ones(1), 1.0)")
    assert "ValueError: INTEROP_TORCH_RESULTS is 'fast'; accepted: 'shim', 'python', or nothing" in done.stderr


def test_no_mode_sees_the_allocation(torch):
    """A mode of torch's functions sees what the user calls, of which this is none."""
    code = """
        import torch, interop
        seen = []
        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))
        x = torch.ones(1)
        with Mode():
            interop.add(x, 1.0)
            assert torch.empty_strided not in seen, seen
            torch.empty_strided((1,), (1,))
            assert torch.empty_strided in seen
    """
    done = run("python", code)
    assert done.returncode == 0, done.stderr


def test_results_by_the_other_way(torch, request):
    """The tests of results, of values and of refusals again, in a process that makes and asks tensors by Python."""
    if "INTEROP_TORCH_RESULTS" in os.environ:
        return  # this is that process
    files = [Path(__file__).with_name(name) for name in ("test_torch.py", "test_torch_results.py")]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    # No plugins: some warn where they find themselves inside a run of pytest-xdist.
    ways = {"INTEROP_TORCH_RESULTS": "python", "INTEROP_TORCH_NOTES": "python"}
    environment = {**os.environ, **ways, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, *files], capture_output=True, text=True, cwd=request.config.rootpath, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_bfloat16_views_keep_their_values(torch):
    x = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    seen = interop.convert(x, "numpy")
    assert seen.dtype == ml_dtypes.bfloat16
    x.data = torch.zeros(1, dtype=torch.bfloat16)
    assert seen.astype("f4").tolist() == [1.5, 2.5]
