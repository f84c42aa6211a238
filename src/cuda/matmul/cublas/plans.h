/// The plans of cuBLASLt's products, cached. Private to src/cuda.
#pragma once

#include <memory>

#include "cuda/matmul/cublas/algorithms.h"

namespace interop::cuda::cublas {

/// The plan of a product, from the cache or made; null if cuBLASLt knows no algorithm.
std::shared_ptr<const Plan> find_plan(const Gemm& gemm, const MatmulOptions& options, const Key& key,
                                      const Types& types, int device);

/// Forgets all plans, after a choice was kept.
void forget_plans();

}  // namespace interop::cuda::cublas
