/// The kernels of 16-bit floats and TF32 on the tensor cores of sm_90, by tile, and their arguments. Private to
/// src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include "cuda/driver/kernel.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/wgmma/launch.h"

namespace interop::cuda::wgmma {

struct KernelArgs {
  CUtensorMap a, b, c_map;
  Grid grid;
  OutputArgs c;
  FinishArgs finish;
  int plane;        // for operands in two parts: elements from a high part to its low part
  bool c_by_tma;    // the sums are stored by c_map, from registers
  bool transposed;  // the product's transpose is computed: c and finish are the product's own
};

/// A shape and its speed.
struct Variant {
  const char* name;
  rates::TileTime time;
  int m, n, cluster, b_share, shared_bytes;
  bool ping_pong;
  Kernel* kernels[2][2][2];  // [bfloat16][k fast in a][k fast in b]; of float32 only [0][...][1], in two [0][1][1]
};

/// The tiles of a precision, the smallest last.
struct Variants {
  const Variant* first;
  int count;
};
Variants variants(MatmulPrecision precision);

}  // namespace interop::cuda::wgmma
