"""Inputs that broke other libraries: streams, and capture into graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import alone, graphs
from helpers.dlpack import Cai

import interop

# ---- streams and graph capture ----


# wjakob/nanobind#1241: the import of an array synchronised, which invalidates a capture.
def test_b01_capture_with_torch(torch):
    a = torch.ones(64, 64, device="cuda")
    interop.matmul(a, a)
    with graphs.captured(torch) as g:
        c = interop.matmul(a, a)
    a.fill_(2)
    g.replay()
    assert (c == 256).all()


# pytorch/pytorch#163242: an export without a stream made the legacy stream wait for the capturing one.
def test_b02_capture_with_cupy(cp):
    s = cp.cuda.Stream(non_blocking=True)
    a = cp.ones((64, 64), "f4")
    cp.cuda.Device().synchronize()
    with s:
        interop.matmul(a, a)
        s.begin_capture()
        c = interop.matmul(a, a)
        g = s.end_capture()
    c.fill(0)
    cp.cuda.Device().synchronize()
    g.launch(s)
    s.synchronize()
    assert (c == 64).all()


# data-apis/array-api#974: producers disagree on what stream=None means.
def test_b03_side_stream_race(torch):
    s = torch.cuda.Stream()
    a = torch.zeros(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        torch.cuda._sleep(10**8)
        a += 1
        c = interop.matmul(a, a)
    s.synchronize()
    assert (c == 1024).all()


# wjakob/nanobind#1345: a transposed operand was copied asynchronously and read before the copy was done.
def test_b04_transposed_operand_on_a_side_stream(torch):
    s = torch.cuda.Stream()
    x = torch.arange(1024.0 * 1024, device="cuda").view(1024, 1024)
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        a = x.t()
        c = interop.matmul(a, torch.eye(1024, device="cuda"))
    s.synchronize()
    assert torch.equal(c, x.t())


# NVIDIA/cudnn-frontend#483: "no stream given" meant stream 0.
def test_b06_no_stray_launch_in_a_global_capture(torch, tmp_path):
    alone.run(
        """
        import torch
        g = torch.cuda.CUDAGraph()
        a = torch.ones(8, 8, device="cuda")
        interop.matmul(a, a)
        with torch.cuda.graph(g, capture_error_mode="global"):
            c = interop.matmul(a, a)
        c.fill_(5)
        g.replay()
        assert (c == 8).all()
        """,
        tmp_path,
    )


# pytorch/pytorch#67618: the default stream's handle 0 was sent as DLPack's stream, where it is forbidden.
def test_b07_two_libraries_on_their_default_streams(torch, cp):
    c = interop.matmul(torch.ones(4, 4, device="cuda"), cp.ones((4, 4), "f4"))
    assert type(c) is torch.Tensor
    assert c.tolist() == [[4] * 4] * 4


# dmlc/xgboost#6753: the stream that the interface states was ignored.
def test_b09_the_stream_of_the_array_interface(cp):
    s = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with s:
        a = cp.zeros((4096, 4096), "f4")
        for _ in range(50):
            cp.add(a, 1, out=a)
        ca, column = Cai(a), Cai(a[:, :1])
    c = interop.matmul(ca, column)
    assert (cp.asarray(c) == 4096 * 2500).all()


# NVIDIA/cuda-python#285: JAX answers with an unversioned capsule, and takes -1 for a stream's handle.
def test_b10_jax_as_a_producer(jnp, cp):
    x = jnp.ones((8, 8), jnp.float32)
    y = interop.matmul(x, x)
    assert isinstance(y, type(x))
    assert bool((y == 8).all())
    assert (interop.matmul(cp.ones((8, 8), "f4"), x) == 8).all()  # by DLPack


# cupy/cupy#1109: a shared BLAS handle and its stream got mixed up between threads.
def test_b12_threads_with_their_own_streams(torch):
    a = [torch.full((512, 512), float(k), device="cuda") for k in range(8)]
    torch.cuda.synchronize()

    def f(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            c = interop.matmul(a[k], a[k])
            torch.cuda.current_stream().synchronize()
            return bool((c == 512 * k * k).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(f, range(8)))


# cupy/cupy#8599: a helper buffer was prepared on another stream.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b13_workspace_on_a_side_stream(cp, backend):
    s = cp.cuda.Stream(non_blocking=True)
    a = cp.ones((64, 1 << 16), "f4")
    cp.cuda.Device().synchronize()
    with s:
        c = interop.matmul(a, a.T, backend=backend)
    s.synchronize()
    assert (c == 65536).all()
