"""Calls that are captured into a CUDA graph, and captures that must not be disturbed."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from helpers import dlpack
from helpers.device import synchronize

import interop

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_torch_replays_with_new_values(torch, cuda_device, backend, mode):
    a = torch.ones(300, 300, device="cuda")
    interop.matmul(a, a, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        c = interop.matmul(a, a, backend=backend)
    a.fill_(2)
    c.fill_(-1)
    graph.replay()
    assert (c == 1200).all()


def test_cupy_replays_with_new_values(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = cupy.ones((64, 64), "f4")
    with stream:
        c = interop.matmul(a, a)
        stream.begin_capture()
        interop.matmul(a, a, out=c)
        graph = stream.end_capture()
        a.fill(2)
        c.fill(-1)
        graph.launch(stream)
    stream.synchronize()
    assert (c == 256).all()


@pytest.mark.parametrize("backend", ["tiled", "cublas"])
def test_the_first_call_of_a_process_can_be_captured(cuda_device, torch, backend):
    code = f"""
        import torch, interop
        a = torch.ones(300, 300, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = interop.matmul(a, a, backend={backend!r})
        a.fill_(2)
        graph.replay()
        assert (c == 1200).all()
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_captured_and_a_plain_stream_cannot_meet(torch, cupy):
    a = torch.ones(64, 64, device="cuda")
    b = cupy.ones((64, 64), "f4")
    plain = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), plain:
        with pytest.raises(ValueError, match="capture"):
            interop.matmul(a, b)
        c = interop.matmul(a, a)  # the capture is as it was
    graph.replay()
    assert (c == 64).all()


def test_two_captures_cannot_meet(torch, cupy):
    a = torch.ones(64, 64, device="cuda")
    b = cupy.ones((64, 64), "f4")
    other = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"), other:
        other.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        with pytest.raises(ValueError, match="capture"):
            interop.matmul(a, b)
        c = interop.matmul(a, a)
        other.end_capture()
    graph.replay()
    assert (c == 64).all()


def test_streams_of_one_capture_can_meet(torch, cupy):
    a = torch.ones(64, 64, device="cuda")
    b = cupy.ones((64, 64), "f4")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with cupy.cuda.Stream.from_external(side):
            c = interop.matmul(a, b)
        main.wait_stream(side)
    b.fill(2)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert (c == 128).all()


def test_a_jax_array_cannot_join_a_capture(torch, jax, cuda_device):
    a = torch.ones(64, 64, device="cuda")
    b = jax.device_put(np.ones((64, 64), np.float32), jax.devices("cuda")[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="JAX array"):
            interop.matmul(a, b)
        c = interop.matmul(a, a)
    graph.replay()
    assert (c == 64).all()


def test_what_a_captured_call_holds_belongs_to_the_graph(torch, cupy):
    fake = dlpack.Fake(cupy.ones((64, 64), "f4"))  # an unknown producer: held until the work is done
    a = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = interop.matmul(a, fake)
    torch.cuda.synchronize()
    time.sleep(0.2)
    assert fake.exported == 1
    assert fake.deleted == 0  # replays still read it
    graph.replay()
    assert (c == 64).all()
    del graph
    gc.collect()
    torch.cuda.synchronize()
    for _ in range(100):
        if fake.balanced:
            break
        time.sleep(0.05)
    assert fake.balanced


def test_an_interop_array_outlives_its_graph_and_the_other_way_round(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = cupy.ones((64, 64), "f4")
    with stream:
        interop.matmul(dlpack.Cai(a), dlpack.Cai(a))
        stream.synchronize()
        stream.begin_capture()
        c = interop.matmul(dlpack.Cai(a), dlpack.Cai(a))
        graph = stream.end_capture()
        a.fill(2)
        graph.launch(stream)
        stream.synchronize()
        assert (cupy.from_dlpack(c) == 256).all()
        del c
        gc.collect()
        graph.launch(stream)  # writes to memory that is the graph's own
        stream.synchronize()


def test_calls_of_another_thread_do_not_break_a_capture(torch, cupy):
    """Memory, streams, copies and waits of calls elsewhere, while this thread captures in the strictest mode."""
    a = torch.ones(64, 64, device="cuda")
    x = cupy.ones((64, 64), "f4")
    ones = np.ones((64, 64), "f4")
    interop.matmul(a, a)
    synchronize()
    results = []

    def work():
        results.append(interop.matmul(ones, ones, execution="cuda"))
        with cupy.cuda.Stream(non_blocking=True):
            results.append(interop.matmul(dlpack.Cai(x), dlpack.Cai(x)))

    thread = threading.Thread(target=work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        b = interop.matmul(a, a)
        thread.start()
        thread.join()
        c = interop.matmul(b, a)
    graph.replay()
    assert (c == 64 * 64).all()
    assert (results[0] == 64).all()
    assert (torch.from_dlpack(results[1]) == 64).all()


def test_held_inputs_do_not_break_a_capture_elsewhere(torch, cupy):
    """The reaper asks events of other streams while this thread captures in the strictest mode."""
    a = torch.ones(64, 64, device="cuda")
    fakes = [dlpack.Fake(cupy.ones((64, 64), "f4")) for _ in range(20)]
    torch.cuda.synchronize()
    for fake in fakes:
        interop.matmul(a, fake)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        c = interop.matmul(a, a)
        time.sleep(0.05)
        d = interop.matmul(c, a)
    graph.replay()
    assert (d == 64 * 64).all()
