"""Dependent launches: a kernel that begins before the one ahead of it is done, and waits for it by itself."""

from __future__ import annotations

import pytest
from helpers import graphs, machine

import interop

SOURCE = """
extern "C" __global__ void slow(float* x, long long* began, long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long start = clock64();
  if (threadIdx.x == 0) began[0] = 1;
  while (clock64() - start < cycles) {}
  x[threadIdx.x] = 3;
}
extern "C" __global__ void next(const float* x, float* y, long long* seen, const float* early) {
  if (threadIdx.x == 0) seen[0] = *(const volatile float*)early == 3;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  y[threadIdx.x] = 2 * x[threadIdx.x];
}
"""


@pytest.fixture(autouse=True)
def _capable():
    machine.need_capability(90)


def test_it_waits_by_itself(torch):
    slow = interop.kernel(SOURCE, "slow", grid=1, block=32)
    x, began = torch.zeros(32, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    for dependent in (False, True):
        after = interop.kernel(SOURCE, "next", grid=1, block=32, dependent_launch=dependent)
        seen = torch.full((1,), 9, dtype=torch.int64, device="cuda")
        y = torch.zeros(32, device="cuda")
        for _ in range(2):  # once all is loaded
            x.zero_()
            slow(x, began, 40_000_000)
            after(x, y, seen, x)
        torch.cuda.synchronize()
        assert (y == 6).all()
        assert seen.item() == (0 if dependent else 1)  # it began before x was written


def test_the_call_says_it(torch):
    slow = interop.kernel(SOURCE, "slow", grid=1, block=32)
    after = interop.kernel(SOURCE, "next", grid=1, block=32)
    x, y = torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda")
    began, seen = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
    slow(x, began, 1000)
    after(x, y, seen, x, dependent_launch=True)
    assert (y == 6).all()
    assert "dependent" in interop.explain(after, x, y, seen, x, dependent_launch=True).algorithm
    with pytest.raises(ValueError, match="dependent_launch is 1; accepted: True or False"):
        after(x, y, seen, x, dependent_launch=1)


def test_the_work_behind_it_waits(torch, cupy):
    """What comes behind a dependent launch, on its stream or on another library's, comes behind all of it."""
    slow = interop.kernel(SOURCE, "slow", grid=1, block=32)
    after = interop.kernel(SOURCE, "next", grid=1, block=32, dependent_launch=True)
    side = torch.cuda.Stream()
    x, began, seen = (
        torch.zeros(32, device="cuda"),
        *(torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2)),
    )
    y = cupy.zeros(32, "float32")
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        with torch.cuda.stream(side):
            x.zero_()
            slow(x, began, 20_000_000)
            after(x, y, seen, x)
        assert (y * 1 == 6).all()  # on CuPy's stream
        y.fill(0)


def test_inside_jit_and_in_a_graph(torch, jax):
    source = """extern "C" __global__ void twice(const float* x, float* y) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      y[threadIdx.x] = 2 * x[threadIdx.x];
    }"""
    twice = interop.kernel(source, "twice", threads="x", block=32, dependent_launch=True).returning(y="x")
    x = jax.numpy.arange(32, dtype="float32")
    assert (jax.jit(lambda x: twice(twice(x + 1)))(x) == 4 * (x + 1)).all()
    x = torch.ones(32, device="cuda")
    with graphs.captured(torch) as graph:
        y = twice(twice(x * 3))
    x.fill_(5)
    graph.replay()
    assert (y == 60).all()
