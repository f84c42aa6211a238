// For NVRTC, which comes without the host's headers, and so cannot read CUDA's own file of this name: it declares
// functions of the host. These are the types of it that kernels take.
#pragma once
#if __has_include(<stdlib.h>)
#include_next <cuda.h>
#else
typedef unsigned cuuint32_t;
typedef unsigned long long cuuint64_t;
typedef struct alignas(128) CUtensorMap_st {
  cuuint64_t opaque[16];
} CUtensorMap;
#endif
