/// y[r] = sum of x[r, c] over c. Strides may be anything.
#pragma once

#include <interop/view.cuh>

typedef struct CUstream_st* cudaStream_t;

using Matrix = interop::View<const float, 2>;
using Vector = interop::View<float, 1>;

void row_sum_on_host(const Matrix& x, const Vector& y);

/// Queues the work on `stream` and returns at once. Throws interop::CudaError if the launch fails.
void row_sum_on_gpu(const Matrix& x, const Vector& y, cudaStream_t stream);
