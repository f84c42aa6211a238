/// The kernels of products of few rows, by shape, and their arguments. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cstdint>

#include "cuda/driver/kernel.h"
#include "cuda/elementwise/divisor.h"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::skinny {

using tiled::FinishArgs;
using tiled::kKernelBatchDims;
using tiled::OutputArgs;

constexpr int kMostRows = 16;
constexpr int kMostBlocks = 8;      // of a cluster
constexpr int kStreamedBlocks = 4;  // of the streamed kernel, per SM

/// One operand as a (mn, k) matrix; strides in bytes.
struct OperandArgs {
  const char* data;
  int64_t mn_stride, k_stride;
  int64_t batch_stride[kKernelBatchDims];
};

struct KernelArgs {
  OperandArgs a, b;  // b is the one that is read once
  OutputArgs c;
  FinishArgs finish;
  int m;
  int64_t n;
  int k, whole_k;     // whole_k: as much of k as whole vectors have
  int parts, part_k;  // part_k is one block's share of k
  int cluster;        // how many blocks share a part of k; 1 except in the streamed kernel
  Divisor column_blocks;
  int k_warps_log;  // how many of a block's warps share k
  bool a_vectors;   // k is a's unit stride, and its vectors are aligned
  bool is_plain;    // there is no epilogue: sums are stored unchanged
  bool down_rows;   // neighbouring threads store neighbouring rows (or columns)
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
  int64_t matrices;
  char* partials;  // where the partial sums go; null: k is not split, and the kernel finishes the sums
};

/// The kernel of one shape, and what its launcher must know about it.
struct Variant {
  int rows, columns, stage_k, warps_log;  // rows and columns are those of one warp, or of the warps that share k
  int shared_bytes;                       // dynamic; 0 where all of it is static
  Kernel* kernel;
};

/// The variant of the kernel in skinny.cu for m rows.
Variant registers_variant(DLDataType dtype, int64_t m, bool k_fast);
/// The variant of the kernel in streamed.cu for m rows of float32.
Variant streamed_variant(int64_t m, bool k_fast);
/// The variant of the kernel in dots.cu, where k is b's unit stride: for at most 4 rows of float32, or 2 of 16 bits.
Variant dots_variant(DLDataType dtype, int64_t m, int64_t k);

}  // namespace interop::cuda::skinny
