/// Choices made by measuring, as they are kept. Private to src/cuda.
#pragma once

#include <string>

#include "cuda/matmul/cublas/algorithms.h"

namespace interop::cuda::cublas {

struct Choice {
  lt::Algorithm algorithm{};
  bool tiled = false;
  double microseconds = 0, untuned_microseconds = 0;
  std::string product;
};

/// Plans the product by the choice kept for it; false if there is none, or this cuBLASLt does not take it.
bool plan_as_chosen(Plan& plan, const OwnedOperation& operation);

/// Is there a choice for the product?
bool has_choice(const Key& key);

/// Keeps a choice, and forgets the plans made without it.
void keep(const Key& key, Choice choice);

}  // namespace interop::cuda::cublas
