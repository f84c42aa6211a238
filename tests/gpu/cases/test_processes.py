"""Inputs that broke other libraries: what a call compiles, contexts, allocators, forks, and faults of before."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from helpers import alone, device, graphs
from helpers.kernels import TWICE

import interop

# ---- faults ----


# pytorch/pytorch#167414: an old asynchronous error was reported as the library's own fault.
def test_b89_an_earlier_fault(tmp_path, torch, cupy):
    code = """
        import torch, cupy, interop
        fault = cupy.RawKernel('extern "C" __global__ void fault(int* p) { *p = 1; }', "fault")
        x, out = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda")
        interop.matmul(x, x)
        fault((1,), (1,), (cupy.uint64(8),))
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        try:
            interop.matmul(x, x, out=out)
        except RuntimeError as error:
            assert "interop.matmul" not in str(error) or "earlier" in str(error), error
            print("refused:", type(error).__name__)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "refused: CudaError" in done.stdout, done.stderr


# ---- compilation, contexts, allocators, processes ----


# NVIDIA/Fuser#635: a first compilation inside a capture was not permitted.
def test_b145_first_compiled_inside_a_capture(torch, twice):
    a = torch.ones(64, device="cuda")
    f = interop.elementwise("x * 3 + y - 41")  # which no other test has compiled
    torch.cuda.synchronize()
    with graphs.captured(torch) as g:
        c = f(a, a)
        e = twice(a, 64)
    a.fill_(20)
    g.replay()
    torch.cuda.synchronize()
    assert (c == 39).all()
    assert (e == 40).all()


# openmm/openmm-torch#78: another context was current: invalid resource handle.
def test_b147_another_context_is_current(torch, compiler):
    from cuda.bindings import driver

    def checked(answer):
        status, *values = answer
        assert int(status) == 0
        return values[0] if values else None

    a = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    try:
        created = driver.cuCtxCreate(None, 0, 0)  # of CUDA 13
    except TypeError:
        created = driver.cuCtxCreate(0, 0)
    context = checked(created)
    try:
        c = interop.add(a, a)
        assert int(checked(driver.cuCtxGetCurrent())) == int(context)
    finally:
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuCtxDestroy(context))
    torch.cuda.synchronize()
    assert (c == 2).all()


# pytorch/pytorch#24078: record_stream did nothing for memory that the allocator does not know by that tensor, and the
# block was given out again. (Other results: tests/gpu/test_results.py.)
@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24])
@pytest.mark.parametrize("make", [lambda a: interop.add(a, a), lambda a: a + a], ids=["ours", "torchs"])
def test_b148_record_stream(torch, size, make):
    n = size // 4
    a = torch.ones(n, device="cuda")
    torch.mul(make(a), 1).fill_(7)  # loads the kernels: that may wait for the device
    torch.cuda.empty_cache()
    spares = [torch.empty(n, device="cuda") for _ in range(4)]  # so that no block is asked of the driver below
    d = torch.empty(n, device="cuda")
    del spares
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    c = make(a)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        device.delay(side.cuda_stream)
        torch.mul(c, 1, out=d)
    c.record_stream(side)
    taken = c.data_ptr()
    del c
    others = [torch.empty(n, device="cuda").fill_(7) for _ in range(3)]
    assert not side.query()
    assert taken not in [other.data_ptr() for other in others]
    torch.cuda.synchronize()
    assert (d == 2).all()


# ai-dynamo/nixl#1754: memory of CUDA's virtual memory management was refused, or took the slow path.
def test_b150_expandable_segments(torch, cp, tmp_path):
    alone.run(
        """
        import torch

        a = torch.ones(1 << 24, device="cuda")
        assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
        b = a[3:]
        square = a[: 1 << 20].view(1024, 1024)
        assert (interop.add(b, b) == 2).all()
        assert (interop.add(b, interop.convert(b, "cupy")) == 2).all()
        assert interop.matmul(square, square)[5, 5] == 1024
        assert interop.asarray(b).device == "cuda:0"
        """,
        tmp_path,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )


# pytorch/pytorch#13751: after running out of memory, the next, innocent launch reported the old error.
def test_b152_out_of_memory_and_the_call_after_it(torch, tmp_path):
    alone.run(
        """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.02)
        n = int(0.012 * torch.cuda.get_device_properties(0).total_memory) // 4
        a = torch.ones(n, device="cuda")
        for call in (lambda: interop.add(a, a), lambda: interop.matmul(a[: n // 2, None], a[None, :64])):
            try:
                call()
            except torch.OutOfMemoryError as error:
                assert "out of memory" in str(error), error
            else:
                raise AssertionError("there is no room for the result")
        x = torch.ones(n // 4, device="cuda")
        assert (interop.add(x, x) == 2).all()
        del x
        torch.cuda.empty_cache()
        # Cached blocks that are too small, and no room beside them: they are given back, and tried first.
        blocks = [torch.empty(n // 8, device="cuda") for _ in range(4)]
        del blocks
        assert torch.cuda.memory_reserved() > 1.4 * 4 * n
        assert (interop.add(a[: n // 2], a[: n // 2])[::1000] == 2).all()
        """,
        tmp_path,
    )


# numba/numba#7248: a cache that could not be written was an error at the first kernel.
def test_b154_a_cache_folder_that_cannot_be_written(torch, compiler, monkeypatch):
    monkeypatch.setenv("INTEROP_CACHE_DIR", "/proc/no/such")
    x = torch.ones(8, device="cuda")
    assert (interop.elementwise("x * 7 + 2")(x) == 9).all()
    source = TWICE.replace("2 * a[i]", "2 * a[i] + 5")  # which no other test has compiled
    assert (interop.kernel(source, "twice", threads="a").returning(c="a")(x, 8) == 7).all()


# NVIDIA/DALI#3671: a fork after CUDA was used: initialization errors, or a hang.
def test_b155_a_fork_after_cuda_was_used(torch, tmp_path):
    alone.run(
        """
        import os
        import time
        import warnings

        import torch

        warnings.simplefilter("ignore")  # of forking beside threads
        x = torch.ones(4, device="cuda")
        interop.add(x, x)
        torch.cuda.synchronize()
        child = os.fork()
        if child == 0:
            right = interop.add(np.ones(2), 1)[0] == 2
            try:
                interop.matmul(np.eye(2), np.eye(2), execution="cuda")
            except RuntimeError:
                os._exit(7 if right else 2)
            os._exit(1)
        ended = status = 0
        for _ in range(600):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.05)
        assert ended, "the child hangs"
        assert os.waitstatus_to_exitcode(status) == 7
        assert (interop.add(x, x) == 2).all()
        """,
        tmp_path,
    )
