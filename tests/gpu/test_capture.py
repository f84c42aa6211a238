"""Calls that are captured into a CUDA graph, and captures that must not be disturbed."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest
from helpers import alone, device, graphs, libraries
from helpers.device import is_busy, synchronize
from helpers.dlpack import Cai, Fake
from helpers.libraries import on_gpu
from helpers.races import ONES, N, warm

import interop


@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])  # "global": in the processes of their own below
def test_torch_captures_calls(torch, backend, mode):
    a = torch.ones(300, 200, device="cuda")
    b = torch.ones(200, 100, device="cuda")
    out = torch.zeros(300, 100, device="cuda")
    interop.matmul(a, b, backend=backend)
    with graphs.captured(torch, mode=mode) as graph:
        c = interop.matmul(a, b, backend=backend)
        interop.matmul(a.t().t(), b, out=out, backend=backend)
    assert c.data_ptr() != out.data_ptr()
    for value in (2, 3):
        a.fill_(value)
        c.fill_(-1)
        graph.replay()
        assert (c == 200 * value).all()
        assert (out == 200 * value).all()


def test_cupy_captures_calls(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = cupy.ones((N, N), "float32")
    synchronize()
    with stream:
        interop.matmul(a, a)
        stream.begin_capture()
        c = interop.matmul(a, a)
        graph = stream.end_capture()
        a.fill(2)
        c.fill(-1)
        graph.launch(stream)
    stream.synchronize()
    assert (c == 4 * N).all()


def test_a_capture_on_a_given_stream(torch):
    """`stream=` names the capturing stream; torch's own current stream is the same."""
    stream = torch.cuda.Stream()
    a, out = (torch.ones(N, N, device="cuda") for _ in range(2))
    synchronize()
    with torch.cuda.stream(stream):
        warm(a, a, out=out, stream=stream)
        with graphs.captured(torch, stream=stream) as graph:
            interop.matmul(a, a, out=out, stream=stream)
    a.fill_(3)
    synchronize()
    graph.replay()
    synchronize()
    assert (out == 9 * N).all()


def test_a_capture_that_forks_to_another_library(torch, cupy):
    """CuPy's stream has joined the capture of torch's: both waits become edges of the graph."""
    forked = cupy.cuda.Stream(non_blocking=True)
    a, out = (torch.ones(N, N, device="cuda") for _ in range(2))
    b = cupy.ones((N, N), "float32")
    with forked:
        warm(a, b, out=out)
    with graphs.captured(torch) as graph, forked:
        torch_stream = torch.cuda.current_stream()
        external = torch.cuda.ExternalStream(forked.ptr)
        external.wait_stream(torch_stream)
        interop.matmul(a, b, out=out)
        c = interop.matmul(a, b)
        torch_stream.wait_stream(external)
    b.fill(2)
    synchronize()
    graph.replay()
    synchronize()
    assert (out == 2 * N).all()
    assert (c == 2 * N).all()


FIRST_CALLS = {
    "torch": """
        import torch, interop
        a = torch.ones(300, 300, device="cuda")
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, capture_error_mode="global"):
            c = interop.matmul(a, a, backend=BACKEND)
        a.fill_(2)
        g.replay()
        assert (c == 1200).all()
    """,
    "cupy": """
        import cupy, interop
        s = cupy.cuda.Stream(non_blocking=True)
        a = cupy.ones((300, 300), "float32")
        out = cupy.empty((300, 300), "float32")
        cupy.cuda.Device().synchronize()
        with s:
            s.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            interop.matmul(a, a, out=out, backend=BACKEND)
            g = s.end_capture()
        a.fill(2)
        cupy.cuda.Device().synchronize()
        g.launch(s)
        s.synchronize()
        assert (out == 1200).all()
    """,
}


# Not ("cupy", "cublas"): its workspace would come from CuPy's pool, by a call that a global capture forbids.
@pytest.mark.parametrize(
    ("name", "backend"), [("torch", None), ("torch", "tiled"), ("torch", "cublas"), ("cupy", None), ("cupy", "tiled")]
)
def test_the_first_call_of_a_process_may_be_captured(tmp_path, name, backend):
    on_gpu(name)
    code = textwrap.dedent(FIRST_CALLS[name]).replace("BACKEND", repr(backend))
    if name == "cupy" and backend is None:
        code = code.replace("300, 300", "60, 60").replace("1200", "240")  # one that needs no workspace
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


NOT_THE_SAME_CAPTURE = "two streams of one call are not part of the same CUDA graph capture"


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_a_captured_and_a_free_stream_are_refused_and_neither_is_touched(torch, cupy, mode):
    a, out = (torch.ones(N, N, device="cuda") for _ in range(2))
    b = cupy.ones((N, N), "float32")
    free = cupy.cuda.Stream(non_blocking=True)
    with free:
        warm(a, b, out=out)
    with graphs.captured(torch, mode=mode) as graph:
        before = a * 2
        with free, pytest.raises(ValueError, match=NOT_THE_SAME_CAPTURE):
            interop.matmul(a, b)
        with free, pytest.raises(ValueError, match=NOT_THE_SAME_CAPTURE):
            interop.matmul(b, b, out=out)
        after = interop.matmul(a, a)  # which leaves the capture as it was
    assert not is_busy(free.ptr)
    graph.replay()  # the capture is whole
    synchronize()
    assert (before == 2).all()
    assert (after == N).all()
    with free:
        c = interop.matmul(b, b)  # and the free stream is free
    synchronize()
    assert (c == N).all()


def test_two_captures_are_refused_and_neither_is_touched(torch, cupy):
    a = torch.ones(N, N, device="cuda")
    b = cupy.ones((N, N), "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        warm(a, b)
        d = cupy.zeros((N, N), "float32")
        cupy.add(b, 1, out=d)
        synchronize()
    with graphs.captured(torch, mode="relaxed") as graph:
        before = a * 2
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            with pytest.raises(ValueError, match=NOT_THE_SAME_CAPTURE):
                interop.matmul(a, b)
            cupy.add(b, 2, out=d)
            other = stream.end_capture()
    graph.replay()
    other.launch(stream)
    synchronize()
    assert (before == 2).all()
    assert (d == 3).all()


def test_a_capture_with_a_jax_array_is_refused(torch):
    a = torch.ones(N, N, device="cuda")
    x = on_gpu("jax").make(ONES)
    warm(a, x)
    with graphs.captured(torch, mode="relaxed") as graph:
        with pytest.raises(ValueError, match="b is a JAX array.*CUDA graph"):
            interop.matmul(a, x)
        after = a + 1
    graph.replay()
    synchronize()
    assert (after == 2).all()


def test_inputs_of_a_captured_call_live_as_long_as_the_graph(torch, cupy):
    """A producer that only the call holds: its memory is read again by each replay."""
    a = torch.ones(N, N, device="cuda")
    out = torch.zeros(N, N, device="cuda")
    fake = Fake(cupy.full((N, N), 2, "float32"))
    synchronize()
    warm(a, fake, out=out)
    assert device.eventually(lambda: fake.balanced)
    with graphs.captured(torch, mode="relaxed") as graph:
        interop.matmul(a, fake, out=out)
    graph.replay()
    synchronize()
    assert fake.exported == fake.deleted + 1  # still the graph's
    junk = [cupy.full((N, N), 7, "float32") for _ in range(16)]
    graph.replay()
    synchronize()
    assert (out == 2 * N).all()
    del graph, junk
    torch.cuda.synchronize()
    assert device.eventually(lambda: fake.balanced)


def test_an_interop_array_outlives_its_graph_and_the_other_way_round(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = cupy.ones((N, N), "float32")
    with stream:
        interop.matmul(Cai(a), Cai(a))
        stream.synchronize()
        stream.begin_capture()
        c = interop.matmul(Cai(a), Cai(a))
        graph = stream.end_capture()
        a.fill(2)
        graph.launch(stream)
        stream.synchronize()
        assert (cupy.from_dlpack(c) == 4 * N).all()
        del c
        gc.collect()
        graph.launch(stream)  # writes to memory that is the graph's own
        stream.synchronize()


def test_calls_of_another_thread_do_not_break_a_capture(torch, cupy, tmp_path):
    """Memory, streams, copies and waits of calls elsewhere, while this thread captures in the strictest mode."""
    alone.run(
        """
        import threading
        import cupy
        import torch
        from helpers.dlpack import Cai

        ones = np.ones((64, 64), "float32")
        a = torch.ones(64, 64, device="cuda")
        x = cupy.ones((64, 64), "float32")
        interop.matmul(a, a)
        torch.cuda.synchronize()
        results = []

        def work():
            results.append(interop.matmul(ones, ones, execution="cuda"))
            with cupy.cuda.Stream(non_blocking=True):
                results.append(interop.matmul(Cai(x), Cai(x)))

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
        """,
        tmp_path,
    )


def test_held_inputs_do_not_break_a_capture_elsewhere(torch, cupy, tmp_path):
    """The reaper asks events of other streams while this thread captures in the strictest mode."""
    alone.run(
        """
        import time
        import cupy
        import torch
        from helpers.dlpack import Fake

        a = torch.ones(64, 64, device="cuda")
        fakes = [Fake(cupy.ones((64, 64), "float32")) for _ in range(20)]
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
        """,
        tmp_path,
    )


# ---- conversions ----


def test_convert_in_a_capture(torch, cupy):
    stream = torch.cuda.Stream()
    cupys = libraries.by_name("cupy", "cuda").stream(stream.cuda_stream)
    x = torch.ones(N, N, device="cuda")
    out = torch.zeros(N, N, device="cuda")
    synchronize()
    with torch.cuda.stream(stream), cupys:
        interop.convert(x, "cupy") + 1
        with graphs.captured(torch, stream=stream) as graph:
            y = interop.convert(x, "cupy")
            interop.matmul(y, interop.asarray(x), out=out)
            interface = interop.asarray(x).__cuda_array_interface__
            assert interface["stream"] == stream.cuda_stream
    x.fill_(2)
    synchronize()
    graph.replay()
    synchronize()
    assert (out == 4 * N).all()


def test_the_host_cannot_wait_in_a_capture(torch, cupy):
    pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.ones((N, N), "float32")
    stream = torch.cuda.Stream()
    x += 1  # compiled ahead of the capture
    synchronize()
    with graphs.captured(torch, stream=stream), libraries.by_name("cupy", "cuda").stream(stream.cuda_stream):
        with pytest.raises(
            ValueError, match="the host cannot wait for an interop.Array whose stream is being captured"
        ):
            interop.convert(x, "numpy")
        x += 1
