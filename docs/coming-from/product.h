#ifndef PRODUCT_H
#define PRODUCT_H

#include <cuda_runtime.h>

// c = a * b, of square matrices of n rows in host memory.
cudaError_t tiledMultiply(const float* a, const float* b, float* c, int n);

#endif
