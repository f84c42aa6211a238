"""Results and workspaces come from the allocator of the caller's library, and its errors are the call's."""

from __future__ import annotations

import pytest

import interop


def test_results_and_workspaces_come_from_cupys_allocator(cupy):
    asked = []
    pool = cupy.cuda.MemoryPool()

    def allocate(size):
        asked.append(size)
        return pool.malloc(size)

    a = cupy.ones((1000, 1000), "float32")
    with cupy.cuda.using_allocator(allocate):
        c = interop.matmul(a, a)
    assert 4_000_000 in asked
    assert pool.used_bytes() >= 4_000_000
    del c
    assert pool.used_bytes() == 0


def test_a_workspace_comes_from_cupys_allocator(cupy):
    asked = []

    def allocate(size):
        asked.append(size)
        return cupy.get_default_memory_pool().malloc(size)

    seen = set()
    for k in (1 << 12, 1 << 16, 1 << 18):  # of which cuBLAS computes parts side by side, and then their sum
        a = cupy.ones((64, k), "float32")
        size = interop.explain(interop.matmul, a, a.T, backend="cublas").workspace_bytes
        with cupy.cuda.using_allocator(allocate):
            c = interop.matmul(a, a.T, backend="cublas")
        assert (c == k).all()
        assert not size or size in asked
        seen.add(size)
    assert any(seen)


def test_a_cupy_pool_that_is_full_is_an_error_that_changes_nothing(cupy):
    pool = cupy.cuda.MemoryPool()
    a = cupy.ones((1000, 1000), "float32")
    pool.set_limit(size=1 << 20)
    with cupy.cuda.using_allocator(pool.malloc), pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        interop.matmul(a, a)
    assert (interop.matmul(a, a) == 1000).all()


def test_a_torch_pool_that_is_full_is_torchs_error(torch):
    a = torch.ones(1 << 20, 1, device="cuda")
    b = torch.ones(1, 1 << 20, device="cuda")
    with pytest.raises((RuntimeError, MemoryError), match="out of memory|Tried to allocate"):
        interop.matmul(a, b)  # 4 TiB
    assert interop.matmul(b, a).item() == 1 << 20


def test_out_of_memory_names_the_call(torch):
    """An `interop.Array` leads, so that the memory is asked for by this library."""
    wide = interop.asarray(torch.ones(1, device="cuda").expand(1 << 40))
    for name, call in (("add", lambda: interop.add(wide, 1)), ("negative", lambda: interop.negative(wide))):
        with pytest.raises(interop.CudaError, match=rf"^interop\.{name}: allocating .*CUDA_ERROR_OUT_OF_MEMORY"):
            call()
