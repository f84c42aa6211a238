/// y[r] = sum of x[r, c] over c. Strides are in elements, and may be anything.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;

struct Matrix {
  const float* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
};

void row_sum_on_host(const Matrix& x, float* y, int64_t y_stride);

/// Queues the work on `stream` and returns at once. Throws interop::CudaError if the launch fails.
void row_sum_on_gpu(const Matrix& x, float* y, int64_t y_stride, cudaStream_t stream);
