"""Results on the GPU pass for torch's own in all that a user does. On the host: tests/exchange/test_torch_results.py.

Each check runs on tensors of torch's own, too ("torch"), which shows that it asks for no more than torch gives.
"""

from __future__ import annotations

import gc

import pytest
from helpers import alone, device, graphs, machine, results, user_functions

import interop

WAYS = [*results.WAYS, "kernel"]
every_way = pytest.mark.parametrize("make", ["torch", *WAYS], indirect=True)


@pytest.fixture(scope="module")
def c_function(tmp_path_factory):
    return user_functions.c_function(tmp_path_factory.mktemp("results"), on_gpu=True)


@pytest.fixture
def kernel(nvrtc):
    machine.need("cuda_core")
    return user_functions.kernel()


@pytest.fixture
def make(torch, request):
    """Make a new tensor by one way of interop; or by torch itself, which shows that the checks are fair."""
    way = request.param
    if way == "expression":
        machine.need("cuda_core")
    function = request.getfixturevalue(way.replace(" ", "_").lower()) if way in ("C function", "kernel") else None
    return lambda: results.produce(torch, way, "cuda", function)


@every_way
@pytest.mark.parametrize("check", results.CHECKS)
def test_a_result_passes_for_torchs_own(torch, make, check):
    results.CHECKS[check](torch, make())


@every_way
@pytest.mark.parametrize("mode", results.MODES)
def test_a_result_is_made_as_torch_makes_one_in_this_mode(torch, make, mode):
    results.MODES[mode](torch, make, torch.device("cuda", 0))


# ---- torch's allocator ----


def block_of(torch, c, snapshot=None):
    """Return the segment and the block that hold this tensor, as torch's allocator knows them."""
    found = [
        (segment, block)
        for segment in snapshot or torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["address"] == c.data_ptr()
    ]
    assert len(found) == 1
    return found[0]


@every_way
def test_the_allocator_knows_its_block(torch, make):
    c = make()
    segment, block = block_of(torch, c)
    assert block["state"] == "active_allocated"
    assert block["requested_size"] == results.NBYTES
    assert segment["device"] == 0
    del c
    gc.collect()


@every_way
def test_the_history_of_memory_knows_who_asked(torch, make):
    make()
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        c = make()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    _, block = block_of(torch, c, snapshot["segments"])
    assert any(frame["name"] == "produce" for frame in block.get("frames", []))  # of helpers/results.py
    assert any(entry["action"] == "alloc" and entry["addr"] == c.data_ptr() for entry in snapshot["device_traces"][0])


MADE = {  # of n elements, all 2
    "torch": lambda torch, n: torch.full((n,), 2.0, device="cuda"),
    "add": lambda torch, n: interop.add(torch.ones(n, device="cuda"), 1.0),
    "expression": lambda torch, n: interop.elementwise("x + x")(torch.ones(n, device="cuda")),
    "matmul": lambda torch, n: interop.matmul(torch.ones(n // 64, 2, device="cuda"), torch.ones(2, 64, device="cuda")),
    "bias": lambda torch, n: interop.matmul(
        torch.ones(n // 64, 1, device="cuda"), torch.ones(1, 64, device="cuda"), bias=torch.ones(64, device="cuda")
    ),
    "kernel": lambda torch, n: user_functions.kernel()(torch.full((n,), 2.0, device="cuda"), n),
}
every_kind = pytest.mark.parametrize("kind", MADE)


@pytest.fixture
def compiler(nvrtc):
    return machine.need("cuda_core")


@every_kind
def test_it_counts_as_memory_of_torch(torch, compiler, kind):
    n = 1 << 20
    MADE[kind](torch, n)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    c = MADE[kind](torch, n)
    assert torch.cuda.memory_allocated() - before == 4 * n
    assert torch.cuda.max_memory_allocated() - before >= 4 * n
    del c
    assert torch.cuda.memory_allocated() == before


SIZES = [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26]


@every_kind
@pytest.mark.parametrize("size", SIZES)
def test_a_recorded_stream_keeps_the_block(torch, compiler, kind, size):
    """As the blocks are taken straight after, one that was given out too early would be among them."""
    n = size // 4
    torch.mul(MADE[kind](torch, n), 1).fill_(7)  # loads the kernels: that may wait for the device
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    spares = [torch.empty(n, device="cuda") for _ in range(8)]  # so that no block is asked of the driver below
    d = torch.empty(n, device="cuda")
    del spares
    side = torch.cuda.Stream()
    c = MADE[kind](torch, n).view(-1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        device.delay(side.cuda_stream)
        torch.mul(c, 1, out=d)
    c.record_stream(side)
    taken = c.data_ptr()
    del c
    others = [torch.empty(n, device="cuda").fill_(7) for _ in range(6)]
    assert not side.query()
    assert taken not in [other.data_ptr() for other in others]
    torch.cuda.synchronize()
    assert (d == 2).all()
    del others
    # Once the side stream is done it is given out, after what other blocks of that size there may be.
    again = [torch.empty(n, device="cuda") for _ in range(12 if size > 1 << 20 else 3000)]
    assert any(other.data_ptr() <= taken < other.data_ptr() + max(size, 512) for other in again)


@every_kind
def test_it_lies_in_a_pool_of_the_users(torch, compiler, kind):
    MADE[kind](torch, 1 << 20)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        c = MADE[kind](torch, 1 << 20)
    segment, _ = block_of(torch, c)
    assert tuple(segment["segment_pool_id"]) == tuple(pool.id)
    assert (c == 2).all()
    outside = MADE[kind](torch, 1 << 20)
    assert tuple(block_of(torch, outside)[0]["segment_pool_id"]) == (0, 0)
    del c
    gc.collect()


@every_kind
def test_in_a_capture_it_lies_in_the_graphs_pool(torch, compiler, kind):
    n = 1 << 18
    MADE[kind](torch, n)
    a = torch.ones(n, device="cuda")
    torch.cuda.synchronize()
    with graphs.captured(torch) as graph:
        c = MADE[kind](torch, n).view(-1)
        dropped = interop.add(c, a)
        e = interop.multiply(dropped, 2.0)
        del dropped  # its block is the graph's to use again
        f = interop.add(e, c)
    for result in (c, e, f):
        assert tuple(block_of(torch, result)[0]["segment_pool_id"]) == tuple(graph.pool())
    for value in (1, 5):
        junk = [torch.full((n,), -9.0, device="cuda") for _ in range(8)]
        a.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert (c == 2).all()
        assert (e == 2 * (2 + value)).all()
        assert (f == 2 * (2 + value) + 2).all()
        assert all((other == -9).all() for other in junk)


# ---- allocators of other kinds, each in a process of its own ----


@pytest.mark.parametrize(
    "setting",
    [
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ],
    ids=["expandable segments", "cudaMallocAsync", "no caching"],
)
def test_other_allocators_of_torch(torch, compiler, tmp_path, setting):
    out = alone.run(
        """
        import warnings

        import torch

        warnings.simplefilter("ignore")
        from helpers import results

        failed = []
        for way in ("torch", "add", "mixed dtypes", "expression", "matmul", "bias"):
            for name, check in results.CHECKS.items():
                try:
                    check(torch, results.produce(torch, way, "cuda"))
                except Exception as error:
                    failed.append(f"{way}: {name}: {type(error).__name__}: {error}")
        own = {line.split(": ")[1] for line in failed if line.startswith("torch: ")}  # beyond torch's own
        failed = [line for line in failed if line.split(": ")[1] not in own]
        assert len(own) < len(results.CHECKS) / 2, own
        assert not failed, failed
        print("done")
        """,
        tmp_path,
        **setting,
    )
    assert out == "done\n"


def test_out_of_memory_is_torchs_error_and_nothing_is_printed(torch, compiler, tmp_path):
    out = alone.run(
        """
        import os

        import torch
        from helpers import user_functions

        kernel, twice = user_functions.kernel(), interop.elementwise("x + x")
        torch.cuda.set_per_process_memory_fraction(0.02)
        n = int(0.012 * torch.cuda.get_device_properties(0).total_memory) // 4
        a, few = torch.ones(n, device="cuda"), torch.ones(1000, device="cuda")
        two = torch.full((1, 2), 2.0, device="cuda")
        calls = {
            "add": lambda x: interop.add(x, x),
            "expression": lambda x: twice(x),
            "matmul": lambda x: interop.matmul(x[:, None], two),
            "kernel": lambda x: kernel(2 * x if x is few else x, len(x)),
        }
        for call in calls.values():
            call(few)
        saved, errors = os.dup(2), os.open("errors", os.O_CREAT | os.O_RDWR)
        os.dup2(errors, 2)
        try:
            for name, call in calls.items():
                allocated = torch.cuda.memory_allocated()
                try:
                    call(a)
                except torch.OutOfMemoryError as error:
                    assert "Tried to allocate" in str(error), error
                else:
                    raise AssertionError(f"{name}: there is no room for the result")
                assert torch.cuda.memory_allocated() == allocated, name
                assert (call(few) == 2).all(), name
        finally:
            os.dup2(saved, 2)
        assert open("errors").read() == "", open("errors").read()
        assert (a == 1).all()
        print("done")
        """,
        tmp_path,
    )
    assert out == "done\n"


def test_other_processes_open_results(torch, compiler, tmp_path):
    out = alone.run(
        """
        import torch
        import torch.multiprocessing
        from torch.multiprocessing import reductions

        def change(c, value):
            assert (c == 2).all()
            c.fill_(value)
            torch.cuda.synchronize()
            del c

        def share(c):
            torch.cuda.synchronize()
            child = torch.multiprocessing.get_context("spawn").Process(target=change, args=(c, 9.0))
            child.start()
            child.join(100)
            return child.exitcode == 0 and bool((c == 9).all())

        if __name__ == "__main__":
            try:
                possible = share(torch.full((1000,), 2.0, device="cuda"))
            except RuntimeError as error:
                possible = False
            if not possible:
                print("torch's own cannot be shared here")
            else:
                ones = torch.ones(1000, device="cuda")
                product = interop.matmul(torch.ones(300, 2, device="cuda"), torch.ones(2, 30, device="cuda"))
                for c in (interop.add(ones, ones), product, interop.add(ones, ones)[10:]):
                    assert reductions.reduce_tensor(c)[0] is reductions.rebuild_cuda_tensor
                    assert share(c)
                print("done")
        """,
        tmp_path,
    )
    if out.startswith("torch's own"):
        pytest.skip(out.strip())
    assert out == "done\n"
