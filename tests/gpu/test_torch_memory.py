"""What a view of a torch tensor keeps on a GPU, what is held for a call, and how results fail."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import interop

LENGTH = 1 << 20  # 4 MB: a block of its own

pytestmark = pytest.mark.gpu


def refill(torch, value=9.0):
    """Take what torch's allocator has got back, and fill it with something else."""
    gc.collect()
    return [torch.full((LENGTH,), value, device="cuda") for _ in range(6)]


def _set_data(torch, x):
    x.data = torch.zeros(1, device="cuda")


def _double(torch, x):
    module = torch.nn.Module()
    module.weight = x
    module.double()


def _swap(torch, x):
    torch.utils.swap_tensors(x, torch.nn.Parameter(torch.zeros(1, device="cuda"), requires_grad=False))


CHANGES = {"data": _set_data, "set_": lambda torch, x: x.set_(), "module.double": _double, "swap_tensors": _swap}


def parameter(torch, value):
    return torch.nn.Parameter(torch.full((LENGTH,), value, device="cuda"), requires_grad=False)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("library", ["interop", "cupy", "torch"])
def test_a_view_keeps_the_storage(torch, cupy, name, library):
    x = parameter(torch, 3.0)
    view = interop.convert(interop.asarray(x), library)
    CHANGES[name](torch, x)
    blocks = refill(torch)
    assert (interop.convert(interop.add(view, 1.0), "torch") == 4).all()
    assert all((block == 9).all() for block in blocks)


@pytest.mark.parametrize("name", CHANGES)
def test_held_inputs_keep_the_storage(torch, name):
    """With `stream=`, torch does not know where its memory is still being read."""
    side = torch.cuda.Stream()
    x, out = parameter(torch, 3.0), torch.zeros(LENGTH, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
    interop.add(x, 1.0, out=out, stream=side)
    CHANGES[name](torch, x)
    refill(torch)
    side.synchronize()
    assert (out == 4).all()


@pytest.mark.parametrize("change", ["to more", "storage to none", "storage to less"])
def test_memory_that_went_back_to_torch_is_refused(torch, change):
    x = torch.full((LENGTH,), 3.0, device="cuda")
    view = interop.asarray(x)
    assert (interop.convert(interop.add(view, 1.0), "torch") == 4).all()
    if change == "to more":
        x.resize_(8 * LENGTH)
    else:
        x.untyped_storage().resize_(0 if change == "storage to none" else 1024)
    uses = [
        lambda: interop.add(view, 1.0),
        lambda: interop.add(torch.ones(LENGTH, device="cuda"), 1.0, out=view),
        lambda: interop.matmul(view, view),
        lambda: view.__dlpack__(),
        lambda: view.__cuda_array_interface__,
        lambda: interop.convert(view, "torch"),
    ]
    for use in uses:
        with pytest.raises(BufferError, match="has been resized or moved; accepted: a new view"):
            use()
    torch.cuda.synchronize()


@pytest.mark.parametrize("library", ["interop", "cupy", "numba"])
def test_a_write_through_a_view_is_counted(torch, cupy, numba, library):
    w, y = torch.ones(3, device="cuda", requires_grad=True), torch.full((3,), 2.0, device="cuda")
    z = (w * y).sum()
    view = interop.convert(y, library)
    interop.add(cupy.full(3, 5, "f4"), 1.0, out=view)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    assert (y == 6).all()


def test_a_kernels_write_through_a_view_is_counted(torch, cupy, nvrtc):
    y = torch.zeros(64, device="cuda")
    kernel = interop.kernel(
        "__global__ void fill(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 7; }", "fill", threads="x"
    )
    kernel(interop.asarray(y), 64)
    assert y._version == 1
    kernel(interop.convert(y, "cupy")[:5], 5)
    assert y._version == 2
    assert (y == 7).all()


OUT_OF_MEMORY = """
    import os, sys, torch, interop
    torch.cuda.set_per_process_memory_fraction(0.02)
    n = int(0.012 * torch.cuda.get_device_properties(0).total_memory) // 4
    a = torch.ones(n, device="cuda")
    r, w = os.pipe()
    before = os.dup(2)
    os.dup2(w, 2)
    f = interop.elementwise("x * 2 + 1")
    for call in (lambda: interop.add(a, a), lambda: interop.less(a[:, None], a[:8]), lambda: f(a),
                 lambda: interop.add(a, a, stream=1)):
        try:
            call()
            raise SystemExit("nothing was raised")
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error)
    os.dup2(before, 2)
    os.close(w)
    assert os.read(r, 1000) == b"", "torch's C functions wrote to stderr"
    x = torch.ones(n // 4, device="cuda")
    assert (interop.add(x, x) == 2).all()
    del x
    cached = torch.empty(n // 2, device="cuda")
    del cached  # what the allocator caches is used before it gives up
    assert (interop.add(a[: n // 3], a[: n // 3]) == 2).all()
    print(interop.explain(interop.add, a, a).allocator)
"""


@pytest.mark.parametrize("way", ["shim", "python"])
def test_out_of_memory_is_torchs_own_error(torch, way):
    environment = {**os.environ, "INTEROP_TORCH_RESULTS": way}
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(OUT_OF_MEMORY)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert ("C functions" if way == "shim" else "torch.empty_strided") in done.stdout


@pytest.mark.parametrize("way", ["shim", "python"])
@pytest.mark.parametrize("size", [1024, 1 << 16, 1 << 20, 1 << 22])
def test_record_stream_holds_a_result(torch, way, size):
    """The block is not given out again while a side stream that was recorded still reads it."""
    code = f"""
        import torch, interop
        n, side = {size}, torch.cuda.Stream()
        a = torch.ones(n, device="cuda")
        interop.add(a, a)
        torch.full((n,), 7.0, device="cuda") * 1  # loads the kernels, which waits
        torch.cuda.synchronize()
        for _ in range(5):
            c = interop.add(a, a)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2 * 10**8)
                d = c * 1
            c.record_stream(side)
            pointer = c.data_ptr()
            del c
            taken = [torch.full((n,), 7.0, device="cuda") for _ in range(4)]
            assert pointer not in [x.data_ptr() for x in taken]
            torch.cuda.synchronize()
            assert (d == 2).all()
            del d, taken
        torch.cuda.empty_cache()
        # Not recorded, it is: the test can tell.
        c = interop.add(a, a)
        pointer = c.data_ptr()
        del c
        assert pointer in [torch.empty_like(a).data_ptr()]
    """
    environment = {**os.environ, "INTEROP_TORCH_RESULTS": way}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_inside_a_transform_of_torch_func(torch):
    k = torch.ones(3, device="cuda")
    gradient = torch.func.grad(lambda x: (x * interop.add(k, k)).sum())(torch.ones(3, device="cuda"))
    assert gradient.tolist() == [2, 2, 2]
    mapped = torch.vmap(lambda x: x + interop.add(k, k))(torch.ones(2, 3, device="cuda"))
    assert mapped.tolist() == [[3, 3, 3]] * 2


def test_pinned_views_are_not_resized(torch):
    x = torch.ones(LENGTH).pin_memory()
    view = interop.asarray(x)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(4 * LENGTH)
    assert (np.asarray(view) == 1).all()
