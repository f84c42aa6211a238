/// The PTX of sm_90a that our kernels use: barriers in shared memory, TMA, wgmma. Addresses of shared memory are
/// 32-bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/driver/driver_api.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace interop::cuda::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- barriers ----

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the cluster and to TMA.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the same barrier of a block of the cluster. It frees stages that wgmma has read, so it needs no
/// `.release.cluster`, which would wait for all earlier stores of the thread.
__device__ __forceinline__ void arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// Has the phase of this parity ended? Waits a while before it says no.
__device__ __forceinline__ bool try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!try_wait(barrier, parity)) {
  }
}

/// The same for what other blocks of the cluster wrote to this block's shared memory.
__device__ __forceinline__ void wait_for_others(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

/// A barrier of `threads` threads. __syncthreads has id 0.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_barrier() {
  arrive_at_cluster();
  wait_for_cluster();
}

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

/// Reads the float at this address in the shared memory of a block of the cluster.
__device__ __forceinline__ float load_from(uint32_t address, int rank) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n"
      "}"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

/// The same for four floats.
__device__ __forceinline__ float4 load_four_from(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

/// Writes two floats to this address in the shared memory of a block of the cluster; their bytes arrive at its barrier
/// `barrier`.
__device__ __forceinline__ void send_pair(uint32_t address, uint32_t barrier, int rank, float x, float y) {
  asm volatile(
      "{\n"
      ".reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [at];\n"
      "}" ::"r"(address),
      "r"(barrier), "r"(rank), "f"(x), "f"(y)
      : "memory");
}

template <int Registers>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- TMA ----

/// A map has five dimensions, or, if it is flat, only the first two: their boxes are loaded sooner.
struct Coordinates {
  int inner, outer, batch0, batch1, batch2;
};

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Loads a box; its bytes arrive at `barrier`.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, const Coordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer), "r"(at.batch0), "r"(at.batch1), "r"(at.batch2)
      : "memory");
}

/// How long L2 keeps what is read: a policy for `load_box`.
__device__ __forceinline__ uint64_t keep_shortly() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t keep_long() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, const Coordinates& at,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer), "r"(at.batch0), "r"(at.batch1), "r"(at.batch2), "l"(policy)
      : "memory");
}

/// The same by a flat map.
__device__ __forceinline__ void load_flat_box(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                              const Coordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer)
      : "memory");
}
__device__ __forceinline__ void load_flat_box(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                              const Coordinates& at, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void load_flat_box_to_all(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                                     const Coordinates& at, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer), "h"(blocks)
      : "memory");
}

/// Loads a box into each block of the cluster whose bit is set in `blocks`, at the same address and barrier in each.
__device__ __forceinline__ void load_box_to_all(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                                const Coordinates& at, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.inner), "r"(at.outer), "r"(at.batch0), "r"(at.batch1), "r"(at.batch2), "h"(blocks)
      : "memory");
}

/// Stores the part of a box that lies in the array. TMA stores whole 16 bytes, so it also writes beyond a row that does
/// not end at a multiple of 16 bytes.
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t from, const Coordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
      "r"(from), "r"(at.inner), "r"(at.outer), "r"(at.batch0), "r"(at.batch1), "r"(at.batch2)
      : "memory");
}

/// Makes this thread's stores since the last call one group.
__device__ __forceinline__ void end_store() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's latest groups of stores have yet to read shared memory.
template <int Pending>
__device__ __forceinline__ void wait_for_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/// Orders this thread's writes to shared memory before what TMA and wgmma read after the next barrier.
__device__ __forceinline__ void fence_async_reads() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Stores four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r0), "r"(r1), "r"(r2),
               "r"(r3)
               : "memory");
}

__device__ __forceinline__ void store_pair(uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_pair(uint32_t to, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_pair(uint32_t to, uint64_t x, uint64_t y) {
  asm volatile("st.shared.v2.u64 [%0], {%1, %2};" ::"r"(to), "l"(x), "l"(y) : "memory");
}

__device__ __forceinline__ void load_vector(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_vector(uint64_t (&to)[2], uint32_t from) {
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(to[0]), "=l"(to[1]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_pair(float& x, float& y, uint32_t from) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_four(float (&to)[4], uint32_t from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(from)
               : "memory");
}

// ---- wgmma ----

/// The descriptor of an operand in 128-byte swizzled atoms of 8 rows by 128 bytes. `step` is the distance from one atom
/// to the next along the rows. Where the rows are k, `block` is the distance from 64 of m or n to the next 64.
__host__ __device__ constexpr uint64_t descriptor(uint32_t address, int block, int step) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(step >> 4) << 32 | static_cast<uint64_t>(block >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `Pending` of the latest groups of products are under way.
template <int Pending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving uses of `values` across this point.
template <int Count>
__device__ __forceinline__ void pin(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int Count>
__device__ __forceinline__ void pin(uint32_t (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// clang-format off
#define INTEROP_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define INTEROP_R0 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define INTEROP_R1 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define INTEROP_R2 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define INTEROP_R3 \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define INTEROP_D8(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), \
  c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define INTEROP_D16(c, i) INTEROP_D8(c, i), INTEROP_D8(c, i + 8)
#define INTEROP_D32(c, i) INTEROP_D8(c, i), INTEROP_D8(c, i + 8), INTEROP_D8(c, i + 16), INTEROP_D8(c, i + 24)
#define INTEROP_TRANS(ta_, tb_) ", " ta_ ", " tb_
#define INTEROP_NO_TRANS(ta_, tb_) ""
#define INTEROP_WGMMA(n, k, type, registers, a_, b_, trans, ...)                                           \
  asm volatile("{\n.reg .pred accumulate;\nsetp.eq.u32 accumulate, 0, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type "." type " {" registers "}, "    \
               a_ ", " b_ ", accumulate, 1, 1" trans ";\n}"                                                \
               : __VA_ARGS__ : "l"(a), "l"(b), "n"(TransA), "n"(TransB) : "memory")
#define INTEROP_WGMMA_REGISTERS(n, registers, a_, b_, ...)                                                 \
  asm volatile("{\n.reg .pred accumulate;\nsetp.eq.u32 accumulate, 0, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" registers "}, {" a_ "}, " b_     \
               ", accumulate, 1, 1;\n}"                                                                     \
               : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define INTEROP_WGMMA_BYTES(n, registers, a_, b_, ...)                                                     \
  asm volatile("{\n.reg .pred accumulate;\nsetp.eq.u32 accumulate, 0, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." INTEROP_TYPES " {" registers "}, "         \
               a_ ", " b_ ", accumulate;\n}" : __VA_ARGS__ : "l"(a), "l"(b) : "memory")
#define INTEROP_WGMMA_BYTES_SIZES                                                                          \
  if constexpr (N == 64) {                                                                                 \
    INTEROP_WGMMA_BYTES(64, INTEROP_R0, "%32", "%33", INTEROP_D32("+r", 0));                               \
  } else if constexpr (N == 128) {                                                                         \
    INTEROP_WGMMA_BYTES(128, INTEROP_R0 ", " INTEROP_R1, "%64", "%65",                                     \
                        INTEROP_D32("+r", 0), INTEROP_D32("+r", 32));                                      \
  } else {                                                                                                 \
    static_assert(N == 256);                                                                               \
    INTEROP_WGMMA_BYTES(256, INTEROP_R0 ", " INTEROP_R1 ", " INTEROP_R2 ", " INTEROP_R3, "%128", "%129",   \
                        INTEROP_D32("+r", 0), INTEROP_D32("+r", 32), INTEROP_D32("+r", 64),                \
                        INTEROP_D32("+r", 96));                                                            \
  }
#define INTEROP_WGMMA_SIZES(type, k, trans)                                                                \
  if constexpr (N == 32) {                                                                                 \
    INTEROP_WGMMA(32, k, type, INTEROP_R16, "%16", "%17", trans("%18", "%19"), INTEROP_D16("+f", 0));            \
  } else if constexpr (N == 64) {                                                                                 \
    INTEROP_WGMMA(64, k, type, INTEROP_R0, "%32", "%33", trans("%34", "%35"), INTEROP_D32("+f", 0));             \
  } else if constexpr (N == 128) {                                                                         \
    INTEROP_WGMMA(128, k, type, INTEROP_R0 ", " INTEROP_R1, "%64", "%65", trans("%66", "%67"),             \
                  INTEROP_D32("+f", 0), INTEROP_D32("+f", 32));                                                        \
  } else {                                                                                                 \
    static_assert(N == 256);                                                                               \
    INTEROP_WGMMA(256, k, type, INTEROP_R0 ", " INTEROP_R1 ", " INTEROP_R2 ", " INTEROP_R3,                \
                  "%128", "%129", trans("%130", "%131"),                                                   \
                  INTEROP_D32("+f", 0), INTEROP_D32("+f", 32), INTEROP_D32("+f", 64), INTEROP_D32("+f", 96));                      \
  }
// clang-format on

/// d += a b by a warpgroup. a is 64 x k and b is k x N, where k spans 32 bytes: 16 elements, or 8 of float, whose lower
/// 13 bits are taken for zeros (TF32). Trans is 1 where k is not the unit stride; for float, k must be the unit stride.
template <typename T, int TransA, int TransB, int N>
__device__ __forceinline__ void product(float (&d)[N / 2], uint64_t a, uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    INTEROP_WGMMA_SIZES("f16", 16, INTEROP_TRANS)
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    INTEROP_WGMMA_SIZES("bf16", 16, INTEROP_TRANS)
  } else {
    static_assert(std::is_same_v<T, float> && TransA == 0 && TransB == 0);
    INTEROP_WGMMA_SIZES("tf32", 8, INTEROP_NO_TRANS)
  }
}

/// The same for float, with a in registers: lane 4 g + t of each warp holds (g, t), (g + 8, t), (g, t + 4) and
/// (g + 8, t + 4) of its 16 rows by 8. The registers may not change before the product has been waited for.
template <int N>
__device__ __forceinline__ void product_of_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (N == 64) {
    INTEROP_WGMMA_REGISTERS(64, INTEROP_R0, "%32, %33, %34, %35", "%36", INTEROP_D32("+f", 0));
  } else if constexpr (N == 128) {
    INTEROP_WGMMA_REGISTERS(128, INTEROP_R0 ", " INTEROP_R1, "%64, %65, %66, %67", "%68", INTEROP_D32("+f", 0),
                            INTEROP_D32("+f", 32));
  } else {
    static_assert(N == 256);
    INTEROP_WGMMA_REGISTERS(256, INTEROP_R0 ", " INTEROP_R1 ", " INTEROP_R2 ", " INTEROP_R3, "%128, %129, %130, %131",
                            "%132", INTEROP_D32("+f", 0), INTEROP_D32("+f", 32), INTEROP_D32("+f", 64),
                            INTEROP_D32("+f", 96));
  }
}

/// d += a b by a warpgroup, for bytes of 64 x 32 and 32 x N, k the unit stride of both; modulo 2^32.
template <bool ASigned, bool BSigned, int N>
__device__ __forceinline__ void product_of_bytes(uint32_t (&d)[N / 2], uint64_t a, uint64_t b) {
  if constexpr (ASigned && BSigned) {
#define INTEROP_TYPES "s8.s8"
    INTEROP_WGMMA_BYTES_SIZES
#undef INTEROP_TYPES
  } else if constexpr (ASigned) {
#define INTEROP_TYPES "s8.u8"
    INTEROP_WGMMA_BYTES_SIZES
#undef INTEROP_TYPES
  } else if constexpr (BSigned) {
#define INTEROP_TYPES "u8.s8"
    INTEROP_WGMMA_BYTES_SIZES
#undef INTEROP_TYPES
  } else {
#define INTEROP_TYPES "u8.u8"
    INTEROP_WGMMA_BYTES_SIZES
#undef INTEROP_TYPES
  }
}

#undef INTEROP_WGMMA_SIZES
#undef INTEROP_WGMMA_BYTES_SIZES
#undef INTEROP_WGMMA_BYTES
#undef INTEROP_WGMMA_REGISTERS
#undef INTEROP_WGMMA
#undef INTEROP_NO_TRANS
#undef INTEROP_TRANS
#undef INTEROP_D32
#undef INTEROP_D16
#undef INTEROP_D8
#undef INTEROP_R3
#undef INTEROP_R2
#undef INTEROP_R1
#undef INTEROP_R0
#undef INTEROP_R16

}  // namespace interop::cuda::sm90

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
