"""Blocks of `interop.graph` on a GPU that fail: what is raised, and that all is as it was before."""

from __future__ import annotations

import gc

import pytest
from helpers import graphs
from helpers.device import synchronize
from helpers.libraries import on_gpu
from helpers.races import ONES, N

import interop


@pytest.fixture
def untouched(torch, cupy):
    """After the test: current streams, allocators and collection are as before, and graphs can be captured."""

    def state():
        allocator = cupy.cuda.get_allocator()
        return torch.cuda.current_stream(), cupy.cuda.get_current_stream(), allocator, gc.isenabled()

    before = state()
    yield
    assert state() == before
    x = torch.ones(N, N, device="cuda")
    with interop.graph() as g:
        y = interop.matmul(x, x)
        z = cupy.from_dlpack(y) + 1
    x.fill_(2)
    g.replay()
    assert (y == 4 * N).all()
    assert (z == 4 * N + 1).all()
    g.reset()
    held = torch.cuda.memory_allocated()
    junk = torch.ones(1 << 24, device="cuda")
    del junk
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= held
    assert torch.cuda.memory_reserved() < held + (1 << 24) * 4  # torch gives memory back again


def waits(library):
    """What waits for the GPU, and cannot be captured."""
    if library == "torch":
        return lambda x: interop.convert(x, "torch").sum().item()
    if library == "cupy":
        return lambda x: interop.convert(x, "cupy").sum().get()
    return lambda x: interop.asarray(x)[0, 0].item()


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_call_that_cannot_be_captured(untouched, torch, library):
    x = torch.ones(N, N, device="cuda")
    with pytest.raises(Exception, match=r"(?i)captur") as caught, interop.graph() as g:  # noqa: PT012
        interop.add(x, x)
        waits(library)(x)
    said = (
        "the capture failed with this call" if library == "torch" else "the call is not captured"
    )  # as CuPy refuses it
    assert f"interop.graph: {said}, and there is no graph. What waits for the GPU" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="nothing was captured"):
        g.replay()
    with pytest.raises(ValueError, match="this graph was captured before"), g:
        pass


def test_cupys_products(untouched, torch, cupy):
    """CuPy refuses to capture what cuBLAS does; ours is captured."""
    x = cupy.ones((N, N), "float32")
    with interop.graph() as g:
        with pytest.raises(NotImplementedError, match="cuBLAS"):
            x @ x
        y = interop.matmul(x, x)
    g.replay()
    assert (y == N).all()


def test_interops_own_call_names_itself(untouched, torch):
    x = torch.ones(N, N, device="cuda")
    with pytest.raises(ValueError, match="interop.*captured into a CUDA graph"), interop.graph():
        waits("interop")(x)


def test_another_exception(untouched, torch):
    class MineError(Exception):
        pass

    with pytest.raises(MineError) as caught, interop.graph():  # noqa: PT012
        torch.ones(3, device="cuda") + 1
        raise MineError
    assert not hasattr(caught.value, "__notes__")


def test_an_error_that_the_block_catches(untouched, torch):
    x = torch.ones(N, N, device="cuda")
    failed = pytest.raises(interop.CudaError, match="the capture failed in the block, which caught the error")
    with failed, interop.graph(), pytest.raises(RuntimeError):
        x.sum().item()


def test_work_that_does_not_join(untouched, torch):
    x = torch.ones(N, N, device="cuda")
    side = torch.cuda.Stream()
    with pytest.raises(interop.CudaError, match=r"(?i)unjoined"), interop.graph():  # noqa: PT012
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
    del y


def test_one_at_a_time(untouched, torch):
    x = torch.ones(N, device="cuda")
    with interop.graph() as g:
        with pytest.raises(ValueError, match="this thread is in the block of another interop.graph"):
            interop.graph()
        y = x + 1
    g.replay()
    assert (y == 2).all()
    with pytest.raises(ValueError, match="nothing was captured|captured before"), g:
        pass


def test_in_another_capture(untouched, torch):
    x = torch.ones(N, device="cuda")
    with graphs.captured(torch, mode="relaxed") as graph:
        capturing = torch.cuda.current_stream()
        with pytest.raises(ValueError, match="the current stream of torch is being captured"), interop.graph():
            pass
        with pytest.raises(ValueError, match="stream is being captured into a CUDA graph already"):
            interop.graph(stream=capturing)
        y = x + 1
    graph.replay()
    assert (y == 2).all()


def test_a_replay_in_a_capture_is_refused(untouched, torch):
    x = torch.ones(N, device="cuda")
    with interop.graph() as g:
        y = x + 1
    with interop.graph() as outer:
        with pytest.raises(ValueError, match=r"interop.Graph.replay: the stream is being captured"):
            g.replay()
        z = y + 1
    g.replay()
    outer.replay()
    assert (z == 3).all()


def test_a_default_stream_is_refused(torch):
    for stream in (0, 1, 2, torch.cuda.default_stream()):
        with pytest.raises(ValueError, match="stream is a default stream, which is not captured"):
            interop.graph(stream=stream)


def test_a_given_stream_is_captured(untouched, torch, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = torch.ones(N, device="cuda")
    with interop.graph(stream=stream) as g:
        assert torch.cuda.current_stream().cuda_stream == stream.ptr == int(g.stream)
        y = x + 1
    g.replay()
    assert (y == 2).all()


def test_a_reset_graph(untouched, torch):
    x = torch.ones(N, device="cuda")
    with interop.graph() as g:
        x + 1
    g.reset()
    g.reset()
    with pytest.raises(ValueError, match=r"interop.Graph.replay: reset\(\) was called"):
        g.replay()


def test_jax_takes_no_part(untouched, torch, jax):
    x = on_gpu("jax").make(ONES)
    y = torch.ones(N, N, device="cuda")
    interop.add(x, x)
    interop.matmul(y, x)
    synchronize()
    with interop.graph() as g:
        with pytest.raises(
            ValueError, match=r"interop.add: the arrays are JAX's, which takes no part in interop.graph"
        ):
            interop.add(x, x)
        with pytest.raises(
            ValueError, match=r"interop.matmul: b is a JAX array, and JAX takes no part in interop.graph"
        ):
            interop.matmul(y, x)
        for call in (lambda: interop.matmul(x, y), lambda: interop.convert(x, "torch"), lambda: interop.asarray(x)):
            with pytest.raises(ValueError, match="is a JAX array, and JAX takes no part in interop.graph"):
                call()
        z = y + 1
    g.replay()
    assert (z == 2).all()


def test_collection_stays_off_where_it_was_off(torch):
    gc.disable()
    try:
        with interop.graph():
            torch.ones(3, device="cuda") + 1
        assert not gc.isenabled()
    finally:
        gc.enable()
