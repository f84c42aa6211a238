/// The products that the kernels of the tensor cores are tested with, and how one is.
///
/// Small integers, whose products are exact in float32, so that c must equal a naive kernel's bit for bit. All that
/// surrounds a, b, the elements of c and the workspace is poison, and must not reach c or change.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/matmul/product.cuh"
#include "cuda/matmul/variants.h"

namespace interop::tests {

// ---- one case ----

struct Case {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  int64_t a_pad = 0, b_pad = 0, c_pad = 0;  // elements between rows
  bool c_transposed = false;
  int64_t c_column_step = 1;
  int64_t c_offset = 0;
  bool c_aligned = false;  // rows of c are multiples of 16 bytes, whatever n
  bool float32_c = false;
  Values values = Values::integers;
  bool scales = false, factors = false;
  bool addend = false, addend_transposed = false, addend_aligned = false, aux = false;
  char bias = 0;  // 'r'ow or 'c'olumn
  Activation activation = Activation::none;
  Batches batch = {};
  DLDataType dtype = kBfloat16;
  int unaligned = 0;               // a and b: rows of any length, that start at so many elements and thrice that
  int64_t a_step = 1, b_step = 1;  // with `unaligned`: from one element of a row to the next
};

inline std::string text(const Case& x) {
  std::ostringstream s;
  s << dtype_name(x.dtype) << " " << x.m << "x" << x.n << "x" << x.k << " " << (x.a_transposed ? 'T' : 'N')
    << (x.b_transposed ? 'T' : 'N') << " pads " << x.a_pad << "," << x.b_pad << "," << x.c_pad
    << (x.unaligned ? " unaligned, steps " : " steps ") << x.a_step << "," << x.b_step
    << (x.c_aligned ? " c aligned" : "") << (x.c_transposed ? " c^T" : "") << " c step " << x.c_column_step
    << " c offset " << x.c_offset << (x.float32_c ? " float32 c" : "") << " data " << static_cast<int>(x.values)
    << (x.scales ? " alpha beta" : "") << (x.factors ? " factors" : "") << (x.addend ? " addend" : "")
    << (x.addend_transposed ? "^T" : "") << (x.addend_aligned ? " aligned" : "") << (x.aux ? " aux" : "")
    << (x.bias == 'r'   ? " bias row"
        : x.bias == 'c' ? " bias column"
                        : "")
    << " activation " << static_cast<int>(x.activation);
  return s.str() + text(x.batch);
}

inline int64_t round_up(int64_t x) { return (x + 7) / 8 * 8; }

/// Which array of a product is placed: a and b may be the same along a dimension of the batch.
enum class Of { a, b, c };

/// Rows (or columns) with its batch outside.
inline Placed place(int64_t rows, int64_t columns, bool transposed, int64_t pad, bool aligned, int64_t step,
                    const Batches& batch, Of of) {
  Placed p;
  const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
  const int64_t ld = aligned ? round_up(inner + pad) : inner * step + pad;
  p.x = {rows, columns, transposed ? step : ld, transposed ? ld : step, static_cast<int>(batch.size()), {}, {}};
  int64_t matrix = ld * outer;
  if (aligned) matrix = round_up(matrix);
  int64_t stride = matrix, all = matrix;
  for (int i = static_cast<int>(batch.size()) - 1; i >= 0; --i) {
    const bool varies = of == Of::c || (of == Of::a ? batch[i].a_varies : batch[i].b_varies);
    p.x.sizes[i] = batch[i].size;
    p.x.strides[i] = varies ? stride : 0;
    if (varies) {
      all = stride * batch[i].size;
      stride = all + (aligned ? 16 : 0);  // so that neighbours do not collapse
    }
  }
  p.elements = all;
  return p;
}

inline Setup setup_of(const Case& x) {
  Setup setup;
  setup.dtype = x.dtype;
  setup.out_dtype = x.float32_c ? kFloat32 : x.dtype;
  setup.m = x.m;
  setup.n = x.n;
  setup.k = x.k;
  setup.batch = x.batch;
  setup.a = place(x.m, x.k, x.a_transposed, x.a_pad, !x.unaligned, x.a_step, x.batch, Of::a);
  setup.a.offset = x.unaligned;
  setup.b = place(x.k, x.n, x.b_transposed, x.b_pad, !x.unaligned, x.b_step, x.batch, Of::b);
  setup.b.offset = 3 * x.unaligned;
  setup.c = place(x.m, x.n, x.c_transposed, x.c_pad, x.c_aligned, x.c_column_step, x.batch, Of::c);
  setup.c.offset = x.c_offset;
  if (x.addend) setup.addend = place(x.m, x.n, x.addend_transposed, 0, x.addend_aligned, 1, x.batch, Of::c);
  if (x.aux) setup.aux = place(x.m, x.n, false, 8, false, 1, x.batch, Of::c);
  setup.bias = place_bias(x.bias, x.m, x.n);
  setup.values = x.values;
  setup.scales = x.scales;
  setup.factor = x.factors;
  setup.activation = x.activation;
  return setup;
}

/// Sums of k products in [-1, 1] are rounded, and gelu is no integer. With TF32 each product is off by up to 2^-10,
/// with three of it by up to 2^-20.
template <typename C>
Allowed allowed_of(const Case& x, MatmulPrecision precision) {
  const bool is_uniform = x.values == Values::uniform;
  if (!is_uniform && x.activation != Activation::gelu && x.activation != Activation::gelu_tanh) return {};
  return {std::is_same_v<C, float>    ? 0
          : std::is_same_v<C, __half> ? 1. / 1024
                                      : 1. / 128,
          !is_uniform                            ? 1e-3
          : precision == MatmulPrecision::tf32   ? std::sqrt(x.k) * 2e-3
          : precision == MatmulPrecision::tf32x3 ? std::sqrt(x.k) * 4e-6
                                                 : x.k * 1e-6};
}

/// The plan for a product, which must be served; of those by mma.sync an empty one.
inline std::optional<MatmulPlan> plan_of(const Case& x, const Kernels& kernels, const Gemm& gemm) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  if (kernels.by_mma) {
    EXPECT_TRUE(kernels.serves(gemm)) << text(x) << ": is not served";
    return kernels.serves(gemm) ? std::optional(MatmulPlan()) : std::nullopt;
  }
  const std::optional<MatmulPlan> plan = wgmma::plan(gemm, kernels.precision, kMost, Device());
  EXPECT_TRUE(plan.has_value()) << text(x) << ": is not served";
  if (!plan) return plan;
  const bool both = kernels.precision == MatmulPrecision::tf32x3 || x.unaligned != 0;
  const bool one = kernels.precision == MatmulPrecision::tf32 && x.a_transposed && !x.b_transposed;
  if (x.m > 1 && x.n > 1 && x.k > 1) {
    EXPECT_EQ(plan->packs_a + plan->packs_b, both ? 2 : one ? 1 : 0) << text(x) << ": what is packed";
  }
  EXPECT_LE(plan->workspace_bytes, wgmma::largest_packing(gemm, kernels.precision, kMost)) << text(x);
  return plan;
}

constexpr std::size_t kTail = 4096;  // bytes behind the workspace

/// Is what lies behind the workspace as it was?
inline bool is_tail_left(const char* tail) {
  std::vector<unsigned char> bytes(kTail);
  check_cuda(cudaMemcpy(bytes.data(), tail, kTail, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0xff; });
}

/// Has every variant compute a case, and compares.
template <typename T, typename C>
void check_as(const Case& x, const Kernels& kernels, Arena& arena) {
  arena.reset();
  Product<T, C> product(setup_of(x), arena, text(x));
  const std::optional<MatmulPlan> plan = plan_of(x, kernels, product.gemm);
  if (!plan) return;
  char* const workspace = arena.take(plan->workspace_bytes + kTail);
  const Allowed allowed = allowed_of<C>(x, kernels.precision);
  for (int variant = 0; variant < kernels.variant_count(); ++variant) {
    const std::string name =
        "variant " + std::to_string(variant) + " (" + kernels.variant_name(variant) + ") " + text(x);
    product.poison_results();
    poison(workspace, plan->workspace_bytes + kTail);
    kernels.launch(variant, product.gemm, *plan, workspace, stream());
    std::string wrong = product.wrong(name, allowed);
    if (wrong.empty() && product.has_aux()) {
      wrong = product.wrong_aux(name, allowed);
      if (!wrong.empty()) wrong = "aux: " + wrong;
    }
    if (wrong.empty() && plan->workspace_bytes > 0 && !is_tail_left(workspace + plan->workspace_bytes)) {
      wrong = "written beyond the workspace";
    }
    EXPECT_EQ(wrong, "") << name;
  }
}

inline void check(const Case& x, const Kernels& kernels, Arena& arena) {
  if (x.dtype == kFloat32) {
    check_as<float, float>(x, kernels, arena);
  } else if (x.dtype == kFloat16) {
    x.float32_c ? check_as<__half, float>(x, kernels, arena) : check_as<__half, __half>(x, kernels, arena);
  } else {
    x.float32_c ? check_as<__nv_bfloat16, float>(x, kernels, arena)
                : check_as<__nv_bfloat16, __nv_bfloat16>(x, kernels, arena);
  }
}

// ---- groups of cases ----

/// A product in its four layouts, changed alike.
class Cases {
 public:
  std::vector<Case> list;

  void operator()(int64_t m, int64_t n, int64_t k) {
    (*this)(m, n, k, [](Case&) {});
  }
  template <typename Change>
  void operator()(int64_t m, int64_t n, int64_t k, Change change) {
    for (int layout = 0; layout < 4; ++layout) {
      Case x{m, n, k};
      x.a_transposed = layout & 2;
      x.b_transposed = layout & 1;
      change(x);
      list.push_back(x);
    }
  }
};

/// Cases that are tested as one; `name` is the test's.
struct Group {
  const char* name;
  Cases (*cases)();
};

// ---- of 16 bits ----

/// From the simplest on, so that the first failure says most.
inline Cases whole_tiles() {
  Cases add;
  add(128, 256, 8);
  add(128, 256, 64);
  add(128, 256, 64, [](Case& x) { x.float32_c = true; });
  add(64, 64, 16);
  add(256, 512, 64);
  add(128, 256, 128);
  add(128, 256, 1024);
  add(2048, 2048, 512);
  add(2048, 2048, 512, [](Case& x) { x.float32_c = true; });
  add(3000, 4104, 328);
  add(3000, 4104, 328, [](Case& x) { x.dtype = kFloat16; });
  return add;
}

inline Cases odd_sizes() {
  Cases add;
  for (const DLDataType dtype : {kFloat16, kBfloat16}) {
    for (const int64_t m : {1, 7, 65, 200}) {
      for (const int64_t n : {1, 8, 33, 130, 264, 520}) {
        for (const int64_t k : {1, 17, 64, 200}) {
          add(m, n, k, [&](Case& x) { x.dtype = dtype; });
        }
      }
    }
  }
  return add;
}

/// Rows of c that TMA could describe, but that end within 16 bytes.
inline Cases short_rows_of_c() {
  Cases add;
  for (const int64_t n : {1, 2, 7, 9, 33, 65, 252, 257}) {
    add(1, n, 40, [](Case& x) { x.c_aligned = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = true; });
    add(n, 70, 40, [](Case& x) { x.c_aligned = x.c_transposed = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = x.float32_c = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = true, x.batch = Batches{{3, true, true}}; });
  }
  return add;
}

/// As many k tiles as there are stages, and around that.
inline Cases stages() {
  Cases add;
  for (const int64_t k : {128, 192, 256, 320, 384, 448, 512, 576, 768, 832}) add(1600, 2304, k);
  return add;
}

inline Cases layouts_of_c() {
  Cases add;
  add(300, 520, 200, [](Case& x) { x.float32_c = true; });
  add(301, 521, 201, [](Case& x) { x.float32_c = true; });
  add(301, 521, 201, [](Case& x) { x.a_pad = 40, x.b_pad = 8, x.c_pad = 3; });
  add(304, 520, 201, [](Case& x) { x.c_pad = 16; });
  add(304, 520, 201, [](Case& x) { x.c_pad = 2; });
  add(304, 520, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_column_step = 2; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 1; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 2; });
  return add;
}

/// All that may follow the sums, one by one, on sizes that take vectors and on odd ones.
inline Cases each_term() {
  Cases add;
  for (const auto& [m, n] : {std::pair{304, 520}, {301, 521}}) {
    add(m, n, 136, [](Case& x) { x.scales = true; });
    add(m, n, 136, [](Case& x) { x.factors = true; });
    add(m, n, 136, [](Case& x) { x.addend = true; });
    add(m, n, 136, [](Case& x) { x.addend = x.addend_transposed = x.scales = true; });
    add(m, n, 136, [](Case& x) { x.bias = 'r'; });
    add(m, n, 136, [](Case& x) { x.bias = 'c'; });
    add(m, n, 136, [](Case& x) { x.aux = true, x.activation = Activation::relu; });
    add(m, n, 136, [](Case& x) { x.activation = Activation::gelu, x.float32_c = true; });
    add(m, n, 136, [](Case& x) { x.activation = Activation::gelu_tanh; });
  }
  return add;
}

inline Cases all_terms() {
  Cases add;
  for (const auto& [m, n] : {std::pair{304, 520}, {301, 521}}) {
    for (const DLDataType dtype : {kFloat16, kBfloat16}) {
      for (const bool float32_c : {false, true}) {
        for (const char bias : {'r', 'c'}) {
          add(m, n, 72, [&](Case& x) {
            x.dtype = dtype, x.float32_c = float32_c, x.bias = bias;
            x.scales = x.factors = x.addend = x.aux = true;
            x.activation = Activation::relu;
            x.batch = Batches{{2, true, true}, {3, true, false}};
          });
        }
      }
    }
  }
  add(300, 516, 72, [](Case& x) {
    x.addend = x.addend_aligned = x.c_aligned = x.aux = true, x.bias = 'r';
    x.batch = Batches{{2, true, false}, {3, true, true}, {2, false, true}, {2, true, true}};
  });
  add(1, 521, 72, [](Case& x) { x.addend = x.scales = true, x.bias = 'r', x.c_transposed = true; });
  add(301, 1, 72, [](Case& x) { x.addend = x.scales = true, x.bias = 'c'; });
  return add;
}

/// Of ones: each element is k. Finds a kernel that drops the end of k.
inline Cases long_sums() {
  Cases add;
  add(127, 129, 1001, [](Case& x) { x.values = Values::ones; });
  add(127, 129, 1001, [](Case& x) { x.values = Values::ones, x.float32_c = true; });
  add(129, 257, 65537, [](Case& x) { x.values = Values::ones, x.float32_c = true; });
  return add;
}

inline Cases rounded_sums() {
  Cases add;
  add(512, 512, 4096, [](Case& x) { x.values = Values::uniform; });
  add(512, 512, 4096, [](Case& x) { x.values = Values::uniform, x.float32_c = true; });
  add(512, 512, 4096, [](Case& x) { x.values = Values::uniform, x.dtype = kFloat16; });
  return add;
}

inline Cases batches() {
  Cases add;
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, true, true}}; });
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, true, false}}; });
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, false, true}}; });
  add(201, 329, 135, [](Case& x) { x.batch = Batches{{3, true, false}, {4, false, true}}; });
  add(64, 72, 136, [](Case& x) { x.batch = Batches{{3, true, true}, {2, false, true}, {7, true, true}}; });
  add(64, 72, 136,
      [](Case& x) { x.batch = Batches{{2, true, false}, {3, true, true}, {2, false, true}, {5, true, true}}; });
  add(16, 24, 8, [](Case& x) { x.batch = Batches{{700, true, true}}; });
  add(64, 64, 64, [](Case& x) { x.batch = Batches{{1024, true, true}}; });
  return add;
}

inline std::vector<Group> groups_of_16_bits() {
  return {{"WholeTiles", whole_tiles}, {"OddSizes", odd_sizes},      {"ShortRowsOfC", short_rows_of_c},
          {"Stages", stages},          {"LayoutsOfC", layouts_of_c}, {"EachTerm", each_term},
          {"AllTerms", all_terms},     {"LongSums", long_sums},      {"RoundedSums", rounded_sums},
          {"Batches", batches}};
}

// ---- of float32: what is packed, what is not, and what differs from 16 bits ----

inline Cases of_float32(Cases cases) {
  for (Case& x : cases.list) x.dtype = kFloat32, x.float32_c = true;
  return cases;
}

/// From the simplest on: one k tile and one step of it, then more, then edges.
inline Cases float32_tiles() {
  Cases add;
  add(128, 256, 32);
  add(64, 64, 8);
  add(128, 256, 64);
  add(256, 512, 32);
  add(128, 256, 1024);
  add(2048, 2048, 512);
  add(3000, 4104, 328);
  return of_float32(add);
}

inline Cases float32_odd_sizes() {
  Cases add;
  for (const int64_t m : {1, 7, 65, 200}) {
    for (const int64_t n : {1, 8, 33, 130, 264}) {
      for (const int64_t k : {1, 4, 17, 32, 100}) add(m, n, k);
    }
  }
  return of_float32(add);
}

/// As many k tiles as there are stages, and as are added up in one go, and around that.
inline Cases float32_stages() {
  Cases add;
  for (const int64_t k : {96, 128, 129, 160, 192, 224, 256, 257, 384, 416}) add(1600, 2304, k);
  return of_float32(add);
}

inline Cases float32_layouts() {
  Cases add;
  for (const auto& [m, n, k] : {std::tuple{128, 128, 64}, {301, 521, 201}}) {
    add(m, n, k, [](Case& x) { x.unaligned = 1; });
    add(m, n, k, [](Case& x) { x.unaligned = 1, x.a_pad = 3, x.b_pad = 5; });
    add(m, n, k, [](Case& x) { x.unaligned = 1, x.a_step = 2, x.b_step = 3; });
    add(m, n, k, [](Case& x) { x.a_pad = 40, x.b_pad = 8, x.c_pad = 3; });
  }
  add(304, 520, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_column_step = 2; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 1; });
  return of_float32(add);
}

inline Cases float32_terms() {
  Cases add;
  for (const auto& [m, n] : {std::pair{304, 520}, {301, 521}}) {
    add(m, n, 72, [](Case& x) { x.addend = x.addend_transposed = x.scales = true; });
    for (const char bias : {'r', 'c'}) {
      add(m, n, 72, [&](Case& x) {
        x.bias = bias;
        x.scales = x.factors = x.addend = x.aux = true;
        x.activation = Activation::relu;
        x.batch = Batches{{2, true, true}, {3, true, false}};
      });
    }
  }
  add(304, 520, 136, [](Case& x) { x.activation = Activation::gelu; });
  return of_float32(add);
}

inline Cases float32_batches() {
  Cases add;
  for (const int unaligned : {0, 1}) {
    add(200, 328, 136, [&](Case& x) { x.batch = Batches{{5, true, true}}, x.unaligned = unaligned; });
    add(200, 328, 136, [&](Case& x) { x.batch = Batches{{5, true, false}}, x.unaligned = unaligned; });
    add(201, 329, 135,
        [&](Case& x) { x.batch = Batches{{3, true, false}, {4, false, true}}, x.unaligned = unaligned; });
    add(64, 72, 136, [&](Case& x) {
      x.batch = Batches{{2, true, false}, {3, true, true}, {2, false, true}, {5, true, true}}, x.unaligned = unaligned;
    });
  }
  add(64, 64, 64, [](Case& x) { x.batch = Batches{{1024, true, true}}; });
  return of_float32(add);
}

/// Of ones: each element is k.
inline Cases float32_long_sums() {
  Cases add;
  add(127, 129, 1001, [](Case& x) { x.values = Values::ones; });
  add(129, 257, 65537, [](Case& x) { x.values = Values::ones; });
  return of_float32(add);
}

inline Cases float32_rounded_sums() {
  Cases add;
  add(512, 512, 4096, [](Case& x) { x.values = Values::uniform; });
  add(301, 521, 1001, [](Case& x) { x.values = Values::uniform; });
  return of_float32(add);
}

inline std::vector<Group> groups_of_float32() {
  return {{"WholeTiles", float32_tiles},   {"OddSizes", float32_odd_sizes},
          {"Stages", float32_stages},      {"Layouts", float32_layouts},
          {"Terms", float32_terms},        {"Batches", float32_batches},
          {"LongSums", float32_long_sums}, {"RoundedSums", float32_rounded_sums}};
}

// ---- the test ----

/// Groups of cases, by kernels that the device has.
class TensorCores : public DeviceTest, public ::testing::WithParamInterface<Group> {
 protected:
  /// Not after a case that failed, so that the first one is seen.
  void check_all(const Kernels& kernels) {
    for (const Case& x : GetParam().cases().list) {
      if (!HasFailure()) check(x, kernels, arena_);
    }
  }

 private:
  Arena arena_;
};

inline void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }
inline std::string group_name(const ::testing::TestParamInfo<Group>& info) { return info.param.name; }

}  // namespace interop::tests
