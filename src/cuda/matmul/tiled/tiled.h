/// The arguments of the tiled kernels, and the list of those kernels. Private to src/cuda. The kernels are in
/// kernel.cuh, one file for each arithmetic instantiates them, and tiled.cpp chooses among them and launches them. The
/// tensor-core kernels are in ../wgmma (sm_90) and ../mma (sm_80 and later).
#pragma once

#include <interop/gemm.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "cuda/driver/kernel.h"
#include "cuda/matmul/choosing.h"
#include "cuda/matmul/rates.h"

namespace interop::cuda::tiled {

constexpr int kKernelBatchDims = 4;

/// The format of an element in memory. The kernels of an arithmetic convert its narrower formats to its own type.
enum class Format : int {
  plain,  ///< as the arithmetic's own type
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int8,
  uint8,
  int16,
  uint16,
  boolean
};

/// One input as a (mn, k) matrix, where mn is m for a and n for b. Strides and steps are in bytes. The steps follow
/// from the strides and the kernel's shape; as arguments they are constants to the kernel and take no registers.
struct OperandArgs {
  const char* data;
  int64_t mn_stride, k_stride;
  int64_t mn_step, k_step;  // between the elements that one thread copies
  int64_t tile_step;        // from one k tile to the next
  int64_t batch_stride[kKernelBatchDims];
  int k_fast;  // do neighbouring threads copy neighbours in k (or in mn)?
  Format format;
};

/// A matrix of the result's shape; strides in bytes.
struct OutputArgs {
  char* data;
  int64_t row_stride, column_stride;
  int64_t batch_stride[kKernelBatchDims];
};

/// The epilogue: how a sum is finished before it is stored.
struct FinishArgs {
  bool direct;         // there is no epilogue: sums are stored unchanged, in the arithmetic's own type
  bool vector_stores;  // if `direct`: columns are adjacent, and every fourth (second) one is 16-byte aligned
  bool conjugates;     // the sum is conjugated first
  bool scales;
  Format format;  // of c, addend, bias and aux
  int activation;
  alignas(16) unsigned char alpha[16];  // in the arithmetic's own type
  alignas(16) unsigned char beta[16];
  const float* factors[2];  // in device memory; null for 1
  OutputArgs addend;        // null data: no addend
  OutputArgs bias;
  OutputArgs aux;
};

/// How many matrices the batch has.
inline int64_t matrices(const Gemm& gemm) {
  int64_t count = 1;
  for (int i = 0; i < gemm.batch_ndim; ++i) count *= gemm.batch[i].size;
  return count;
}

/// The arguments of a matrix of the result's shape, without its batch; `item` is the size of an element.
OutputArgs output_args(const void* data, const MatrixStrides& strides, int64_t item);
/// `vectors`: may sums without an epilogue be stored as vectors?
FinishArgs finish_args(const Gemm& gemm, bool vectors);
/// Puts the batch dimensions from `first` on into `sizes`, and their strides into `c` and the arrays of `finish`.
void set_output_batch(const Gemm& gemm, int first, int64_t (&sizes)[kKernelBatchDims], OutputArgs& c,
                      FinishArgs& finish);
/// Turns c = a b into c^T = b^T a^T.
void transpose(Gemm& gemm);

/// Calls `launch(part)` for every index of the first `walked` batch dimensions; `part` begins at the matrices there.
template <typename Launch>
void walk_batch(Gemm gemm, int walked, Launch launch) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  const auto moved = [](const void* data, int64_t bytes) {
    return data ? static_cast<const char*>(data) + bytes : data;
  };
  int64_t at[kMaxDims];
  std::fill_n(at, walked, 0);
  for (;;) {
    launch(gemm);
    int dim = walked - 1;
    for (; dim >= 0; --dim) {
      const BatchDim& step = gemm.batch[dim];
      const int64_t steps = ++at[dim] < step.size ? 1 : 1 - step.size;  // forward, or back to the start
      gemm.a = moved(gemm.a, steps * step.a_stride * item);
      gemm.b = moved(gemm.b, steps * step.b_stride * item);
      gemm.c = const_cast<void*>(moved(gemm.c, steps * step.c_stride * out_item));
      gemm.addend = moved(gemm.addend, steps * step.addend_stride * out_item);
      gemm.aux = const_cast<void*>(moved(gemm.aux, steps * step.aux_stride * out_item));
      if (steps == 1) break;
      at[dim] = 0;
    }
    if (dim < 0) return;
  }
}

/// The general kernel whose busiest SM should finish first.
Estimate choose(const Gemm& gemm, const Device& device);
/// Launches one of them. `gemm` is not empty. It is quickest where c's rows have the unit stride.
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);
/// "128x128x8, float32".
std::string describe(const Gemm& gemm, int variant);

struct KernelArgs {
  OperandArgs a, b;
  OutputArgs c;
  int64_t m, n;
  int k_tiles, k_last;  // how many k tiles; the length of the last one
  unsigned row_tiles, column_tiles;
  unsigned conjugates_a;  // the bit that flips the sign of a's imaginary parts, or 0
  int64_t first_matrix;   // of this launch
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
  FinishArgs finish;
};

/// The kernels of one shape, by [vectors of a][vectors of b], and their speed.
struct Variant {
  const char* name;
  int m, n, k, threads;
  bool reads_vectors;
  int step_vectors_m, step_vectors_n;  // rows of k that one pass of vector copies covers, for a and for b
  rates::Tile speed;
  Kernel* kernels[2][2];
};

/// The shapes of one arithmetic, the smallest last.
struct Variants {
  const Variant* first;
  int count;
};

Variants float32_variants();
Variants float64_variants();
Variants int32_variants();  ///< of 32-bit integers, signed or not
Variants int64_variants();  ///< of 64-bit integers
Variants complex64_variants();
Variants complex128_variants();
Variants float16_variants();  ///< of 16-bit floats, added up in float32
Variants float8_variants();   ///< of 8-bit floats, added up in float32
Variants int16_variants();    ///< of 16-bit integers, added up in 32 bits
Variants int8_variants();     ///< of 8-bit integers and bool, added up in 32 bits

}  // namespace interop::cuda::tiled
