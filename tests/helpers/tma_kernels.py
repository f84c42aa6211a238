"""Kernels that move boxes of matrices by TMA, through shared memory; for compute capability 9.0 and later."""

from __future__ import annotations

#: What the instructions are, so that no header is needed but that of the map's type.
_INSTRUCTIONS = r"""
#include <cuda.h>

__device__ unsigned shared_address(const void* x) { return (unsigned)__cvta_generic_to_shared(x); }
__device__ void load(void* box, const CUtensorMap& map, int x, int y, unsigned long long* arrived, int bytes) {
  const unsigned at = shared_address(arrived);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(box)), "l"(&map), "r"(x), "r"(y), "r"(at)
      : "memory");
  unsigned done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(at)
        : "memory");
  }
}
__device__ void store(const CUtensorMap& map, int x, int y, const void* box) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared_address(box))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
"""
#: A block for each box of (ROWS, COLUMNS), by one thread.
COPY = (
    _INSTRUCTIONS
    + r"""
template <typename T, int ROWS, int COLUMNS>
__global__ void copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
  __shared__ alignas(1024) T box[ROWS * COLUMNS];
  __shared__ alignas(8) unsigned long long arrived;
  if (threadIdx.x != 0) return;
  load(box, from, blockIdx.x * COLUMNS, blockIdx.y * ROWS, &arrived, sizeof box);
  store(to, blockIdx.x * COLUMNS, blockIdx.y * ROWS, box);
}
"""
)
#: One box, as it lies in shared memory: y has it in the order of addresses.
READ = (
    _INSTRUCTIONS
    + r"""
template <typename T, int ROWS, int COLUMNS>
__global__ void read(const __grid_constant__ CUtensorMap from, T* y, int row, int column) {
  __shared__ alignas(1024) T box[ROWS * COLUMNS];
  __shared__ alignas(8) unsigned long long arrived;
  if (threadIdx.x == 0) load(box, from, column, row, &arrived, sizeof box);
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) y[i] = box[i];
}
"""
)

#: The same for an array of one dimension: ROWS is 1, and `row` nothing.
READ_LINE = READ.replace(".2d.", ".1d.").replace("{%2, %3}", "{%2}").replace("{%1, %2}", "{%1}")


def grid_of(shape: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Return the blocks of `COPY`."""
    return -(-shape[1] // columns), -(-shape[0] // rows)
