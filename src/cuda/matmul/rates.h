/// Every number that was measured or fitted to choose kernels: rates, times, and the sizes from which one kernel is
/// quicker than another. Private to src/cuda.
///
/// Cards: NVIDIA H100 80GB HBM3 and NVIDIA H200, both of 132 multiprocessors; each group names its own. Times are in
/// microseconds, sizes in bytes or elements. Three kinds of numbers stand here:
///
/// - Rates and times. `rates_benchmark` (tests/benchmarks/cuda) times the kernels, fits the formulas of the estimates
///   to the times, and prints each number under its name, beside the one here. Those here were fitted by hand, to
///   figures of the commands below; a group says which of its rates are not printed, and why.
/// - Units: what rates are relative to. None is printed, as only their product with a rate can be measured.
/// - Bounds: sizes from which one kernel is quicker than another. No command prints one. They are found by comparing
///   whole products on both sides, by the command that the group names. Some only limit memory, or what is tried.
///
///   interop bench matmul     whole products, of every backend
///   tensor_core_benchmark    every tile of the tensor cores' kernels (tests/benchmarks/cuda)
///   skinny_benchmark         products of few rows, by every kernel and in several parts, beside a copy (there, too)
#pragma once

#include <cstddef>
#include <cstdint>

namespace interop::cuda::rates {

// ---- our kernels or cuBLASLt's: H100, H200, cuBLASLt 13.1; bounds by `interop bench matmul`; docs/performance.md ----

/// A product is small up to this k, this m * n * k of a cube, and these bytes: our kernel then takes the GPU no longer
/// than cuBLASLt takes the host, and launching ours takes the host less than half of that. Reading more takes the
/// memory longer than the launch takes the host. In float32 our kernel also keeps up with cuBLASLt's on the GPU. H100.
constexpr int64_t kSmallFloat32 = 512, kSmallHalf = 256, kSmallOther = 128;
constexpr double kSmallBytes = 4e6;

/// The k from which cuBLASLt is slow where a vector of 16-bit floats meets a matrix whose unit stride is k.
constexpr int64_t kLongVector = 256;

/// Outputs are few below this m * n, where k is longer than this: only split-k occupies all SMs.
constexpr double kFewOutputs = 6e5;
constexpr int64_t kLongForFewOutputs = 1024;

/// The multiplications from which ours is the quicker kernel.
constexpr double kOddRows = 4e7, kUnalignedRows = 3e9, kHalf = 1.5e11, kInt8 = 1e8, kFewOutputsInParts = 1e8,
                 kTf32AlongNeither = 8e9;

// ---- split-k: H100; bounds by `interop bench matmul`; rates_benchmark: kLaunchUs, kMemoryRate ----

/// k is split from this length on, where there are no more outputs than tiles of 128 x 128 for 1.5 times its SMs: a
/// last wave of few tiles is as long as a full one.
constexpr int64_t kLeastDividedK = 2048, kMostDividedOutputs = 200 * 128 * 128;
/// The shortest part.
constexpr int64_t kLeastPartK = 256;
/// The most memory that the partial sums may take: they should stay in L2, of which an H100 has 50 MB. A constant, as
/// `largest_workspace` must know it without a device.
constexpr std::size_t kMostPartialBytes = std::size_t{32} << 20;
constexpr int kMostParts = 64;
/// A launch more; memory's bytes a microsecond; and what share of the time a split must leave.
constexpr double kLaunchUs = 3, kMemoryRate = 2.8e6, kWorthSplitting = 0.9;

// ---- packing for the tensor cores of sm_90: H100; rates_benchmark; rows of tensor_core_benchmark --dtype tf32 ----

/// Its launch, and its bytes a microsecond, read and written.
constexpr double kPackingUs = 4, kPackingRate = 2.5e6;

// ---- the general kernels: H100, with float32; rates_benchmark: the tiles ----

/// A bound: up to this k, and this cube, they are as quick as the tensor cores, since they start sooner.
constexpr int64_t kSmallGeneral = 128;
/// Units: an SM's multiply-adds of float32 in a microsecond, and how many of them take as long as one of another
/// arithmetic.
constexpr double kGeneralPeak = 128 * 1.7e3, kComplexSlower = 4, kInt64Slower = 8, kIntegerSlower = 2;

/// The speed of a tile of m x n. For each k, `blocks` blocks on one SM take as long as (blocks + start) * m * n / rate
/// multiply-adds do at the SM's peak.
struct Tile {
  double rate, start;
};
constexpr Tile kFloat32_128x128{0.777, 0.174}, kFloat32_64x64{0.647, 0.235}, kFloat32_32x64{0.563, 0.386},
    kFloat32_32x32{0.426, 0.44};
constexpr Tile kFloat64_32x32{0.35, 0.50};
constexpr Tile kComplex64_128x64{0.8, 0.2}, kComplex64_64x64{0.75, 0.2}, kComplex64_32x32{0.5, 0.44};
constexpr Tile kComplex128_64x32{0.7, 0.3};
constexpr Tile kInt32_128x128{0.85, 0.15}, kInt32_32x32{0.5, 0.44};
constexpr Tile kInt64_64x64{0.85, 0.15}, kInt64_32x32{0.6, 0.44};
/// Of 8 and 16 bits, added up in 32.
constexpr Tile kNarrow_64x64{0.6, 0.25}, kNarrow_32x32{0.4, 0.44};

// ---- 16-bit floats by mma.sync: H100; rates_benchmark; tensor_core_benchmark --mma ----

/// Multiplications of an SM in a microsecond, and the share of them that a tile reaches, which is 1 for the largest.
constexpr double kMmaRate = 150e6 / 132, kMma128x128 = 1.0, kMma64x64 = 0.6;

// ---- float64, complex128 and TF32 by mma.sync: H200, with squares of 256 to 2048, estimated for TF32;
// rates_benchmark: the tiles, kMmaTf32ByElements; tensor_core_benchmark --mma --dtype tf32 ----

/// Units: multiplications of float64 of an SM in a microsecond, and how many of them take as long as one of another
/// dtype.
constexpr double kMmaWideRate = 30e6 / 132, kMmaComplex128 = 4, kMmaTf32 = 1. / 8;
/// How much slower TF32 is for each operand that is copied element by element; estimated.
constexpr double kMmaTf32ByElements = 0.25;
/// `blocks` blocks on one SM take as long as (blocks + start) / rate times the multiplications of one block.
constexpr Tile kMmaFloat64_64x128{0.94, 0.3}, kMmaFloat64_64x64{0.875, 0.4}, kMmaFloat64_32x32{0.66, 2.0};
constexpr Tile kMmaComplex128_64x64{1.0, 0.3}, kMmaComplex128_32x32{1.0, 1.2};
/// These are bound by the loads from shared memory and by the rounding: 24 and 72 instructions for 16 products of a
/// warp of 64 x 32. On an H200 they reach 120 and 100 TFLOP/s.
constexpr Tile kMmaTf32_128x128{0.26, 0.3}, kMmaTf32_64x64{0.21, 0.6};

// ---- the tensor cores of sm_90: H100; rates_benchmark; tensor_core_benchmark --dtype bf16, tf32, tf32x3 ----

/// The times that a block takes for one k tile (of one pass), and to store a tile.
struct TileTime {
  double k_tile_us, store_us;
};
constexpr TileTime kHalf_128x256{0.80, 1.6}, kHalfPingPong_128x128{0.42, 0.4}, kHalf_128x128{0.48, 0.8},
    kHalf_128x64{0.36, 0.4};
constexpr TileTime kTf32_128x256{0.80, 3.2}, kTf32PingPong_128x128{0.42, 0.8}, kTf32_128x64{0.36, 0.8};
constexpr TileTime kTf32x3_128x128{0.46, 1.6}, kTf32x3_128x64{0.38, 0.8};
constexpr TileTime kBytes_128x256{0.80, 3.2}, kBytes_128x128{0.46, 1.6}, kBytes_128x64{0.36, 0.8};
/// Added up in 64 bits.
constexpr TileTime kWideBytes_128x128{0.52, 3.2}, kWideBytes_128x64{0.40, 1.6};

// ---- clusters that share k, of 16-bit floats on sm_90: H200, fitted by hand to whole products of 256 to 8192 ----

/// Bytes a microsecond of memory where the larger operand streams, and of an SM's loads; the share of the SMs that
/// saturate the memory; the start of each further block on an SM. No command prints one: a kernel's time has them all.
constexpr double kClusterMemory = 3.9e6, kSmIngest = 65e3, kEnoughSms = 0.75, kNextBlockUs = 0.6;
/// The time in which a cluster's blocks wait for each other, and add up the sums of a tile of m x n.
constexpr double kReduce_16x64 = 0.8, kReduce_32x64 = 1.0, kReduce_64x32 = 1.2, kReduce_64x64 = 1.6,
                 kReduce_128x64 = 2.3;
/// Bounds: the bytes of the larger operand from which clusters are quicker than the kernels of few rows; the most rows,
/// and bytes, for which they are quicker than cuBLASLt, too.
constexpr double kLeastClusterBytes = 2e6, kMostClusterBytes = 6e7;
constexpr int64_t kMostClusterRows = 32;
/// The most columns that become rows, as storing a transposed tile is slow.
constexpr int64_t kMostFlippedRows = 64;

// ---- few rows: bounds by skinny_benchmark; rates_benchmark: kWarpRate, kSumUs, kFastestMemory ----

/// The elements of the larger operand from which these kernels are quicker than the general ones: in all, and in each
/// matrix, as a block has at most one. The latter are fewer by kSkinnyCheaper for at most kSkinnyCheapRows rows, unless
/// 16-bit floats are read across k. H200.
constexpr int64_t kSkinnyElements = 64 * 1024, kSkinnyCheaper = 8, kSkinnyCheapRows = 8;
/// The most rows that are dot products: with more, the other kernels are as quick. H200.
constexpr int64_t kMostDotRowsOfHalf = 2, kMostDotRowsOfFloat32 = 4;
/// The fewest rows for which the larger operand streams through shared memory: where it is read along k, and across k
/// if it has fewer bytes than these. With fewer rows, the other kernels are as quick, or quicker where little is read.
/// H200.
constexpr int kLeastStreamedAlongK = 5, kLeastStreamedOfFew = 3;
constexpr double kMuchStreamed = 32e6;

/// Bytes a microsecond of one warp, of an SM, and of memory (kMemoryRate, above). H100. That of an SM is not printed:
/// where several blocks are on one, there are some on all, and memory or L2 is the limit.
constexpr double kWarpRate = 3e3, kSmRate = 60e3;
/// The least that the kernel that adds up the partial sums takes. H100.
constexpr double kSumUs = 2.5;
/// A bound: blocks of an SM from which k needs no more parts.
constexpr int kEnoughBlocksOfSm = 4;

/// The streamed kernel, H200: memory's bytes a microsecond; a stage on a busy SM, and more for each row; a stage of a
/// block alone; a block's start and end; by how much an SM has more blocks than its share, as clusters do not spread
/// evenly; the share of the computation that overlaps with no loads, at the start and the end. Only the first is
/// printed: the others were fitted to whole products, where stages wait for memory, too, so that no time has one alone.
constexpr double kFastestMemory = 4.2e6, kStageUs = 0.08, kStageUsOfRow = 0.021, kAloneUs = 0.6, kBlockUs = 1.5,
                 kUnevenClusters = 1.15, kNotOverlapped = 0.2;

}  // namespace interop::cuda::rates
