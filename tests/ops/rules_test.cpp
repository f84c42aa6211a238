/// The shape and dtype rules as a C++ program uses them, with no Python and no GPU: `ctest -L host`.
#include <interop/error.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace {

using namespace interop;

int passed = 0, failed = 0;

void expect(bool ok, const char* what) {
  ++(ok ? passed : failed);
  if (!ok) std::printf("FAILED  %s\n", what);
}

template <class Error, class Body>
void expect_throw(const char* part, Body&& body) {
  try {
    body();
    expect(false, part);
  } catch (const Error& error) {
    expect(std::strstr(error.what(), part) != nullptr, error.what());
  }
}

/// A compact array without memory.
struct Compact {
  Compact(std::vector<int64_t> sizes, DLDataType dtype) : shape(std::move(sizes)), strides(shape.size()) {
    compact_strides(shape.data(), static_cast<int>(shape.size()), strides.data());
    tensor = {nullptr, {kDLCPU, 0}, static_cast<int>(shape.size()), dtype, shape.data(), strides.data(), 0};
  }
  Compact(const Compact&) = delete;
  std::vector<int64_t> shape, strides;
  DLTensor tensor;
};

void check_matmul() {
  const Compact a({5, 2, 3}, kFloat32), b({3, 4}, kFloat32), c({5, 2, 4}, kFloat32);
  const ops::MatmulResult result = ops::matmul_result(a.tensor, b.tensor, kFloat32);
  expect(shape_text(result.shape) == "(5, 2, 4)", "the shape of a product");
  expect(result.dtype == kFloat32, "the dtype of a product");
  const Gemm gemm = ops::plan_matmul(a.tensor, b.tensor, c.tensor);
  expect(gemm.k == 3 && gemm.n == 4, "the sizes of a planned product");
  expect_throw<ValueError>("(4, 3)", [] {
    const Compact x({2, 2}, kFloat32), y({4, 3}, kFloat32);
    ops::matmul_result(x.tensor, y.tensor, kFloat32);
  });
  expect_throw<TypeError>("float8", [] { ops::check_matmul_dtypes(kFloat32, {kDLFloat8_e4m3fn, 8, 1}); });
}

void check_elementwise() {
  const Compact row({1, 4}, kFloat32), column({3, 1}, kFloat32), other({5}, kFloat32);
  const ops::NamedTensor fit[] = {{"a", &row.tensor}, {"b", &column.tensor}};
  expect(shape_text(ops::broadcast_shape("add", fit, 2)) == "(3, 4)", "a broadcast shape");
  const ops::NamedTensor unfit[] = {{"a", &row.tensor}, {"b", &other.tensor}};
  expect_throw<ValueError>("(5,)", [&] { ops::broadcast_shape("add", unfit, 2); });
  expect(dtype_name(ops::result_dtype("less", *find_operation("less"), kFloat32)) == "bool",
         "comparisons give bool");
  const auto compared_in = [](DLDataType a, DLDataType b) { return dtype_name(ops::comparison_dtype(a, b)); };
  const DLDataType boolean{kDLBool, 8, 1}, int8{kDLInt, 8, 1}, int64{kDLInt, 64, 1}, uint8{kDLUInt, 8, 1},
      uint32{kDLUInt, 32, 1}, uint64{kDLUInt, 64, 1};
  expect(compared_in(int8, int64) == "int64" && compared_in(uint32, uint8) == "uint32", "the wider of a kind");
  expect(compared_in(int8, uint8) == "int16" && compared_in(uint32, int8) == "int64", "one that holds both");
  expect(compared_in(boolean, uint8) == "uint8" && compared_in(int8, boolean) == "int8", "bool fits everywhere");
  expect(compared_in(uint64, int8) == "uint64" && compared_in(int64, uint64) == "uint64", "none holds both");
}

}  // namespace

int main() {
  check_matmul();
  check_elementwise();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
