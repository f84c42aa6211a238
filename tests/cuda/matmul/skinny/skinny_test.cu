/// Tests of cuda/matmul/skinny/skinny.h.
///
/// Small integers, whose products are exact, so that c must equal a naive kernel's bit for bit, in whatever number of
/// parts k is divided and whichever way b takes. All that surrounds a, b and the elements of c is poison, and must not
/// reach c or change. Ends with "HANGS", exit status 3, when a launch takes seconds.
#include "cuda/matmul/skinny/skinny.h"

#include <gtest/gtest.h>
#include <interop/cuda/matmul.h>

#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cuda/device.h"
#include "cuda/matmul/product.cuh"
#include "cuda/matmul/tiled/tiled.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

// ---- cases ----

struct Case {
  DLDataType dtype;
  int64_t m, n, k;
  bool b_k_fast = false;
  char a = 'k';            // 'k' adjacent, with aligned rows; 'o'dd rows; 'm' adjacent
  char c = 'r';            // 'r'ows; 'c'olumns; every second element of 's'trided rows
  bool flipped = false;    // given as c^T = b^T a^T
  bool float32_c = false;  // of 16-bit operands; others have a c of their own dtype
  Values values = Values::integers;
  int64_t b_pad = 0;
  bool scales = false, addend = false, aux = false;
  char bias = 0;  // 'r'ow or 'c'olumn
  Activation activation = Activation::none;
  Batches batch = {};
};

std::string text(const Case& x) {
  std::ostringstream s;
  s << dtype_name(x.dtype) << " " << x.m << "x" << x.n << "x" << x.k << " b " << (x.b_k_fast ? 'k' : 'n') << " a "
    << x.a << " c " << x.c << (x.flipped ? " flipped" : "") << (x.float32_c ? " float32 c" : "") << " data "
    << static_cast<int>(x.values) << " pad " << x.b_pad << (x.scales ? " alpha beta" : "")
    << (x.addend ? " addend" : "") << (x.aux ? " aux" : "")
    << (x.bias == 'r'   ? " bias row"
        : x.bias == 'c' ? " bias column"
                        : "")
    << " activation " << static_cast<int>(x.activation) << text(x.batch);
  return s.str();
}

/// `step` between the elements of a row (or column, if transposed), which start `ld` apart; `varies` tells of each
/// batch dimension whether it has its own matrices.
template <typename Varies>
Placed place(int64_t rows, int64_t columns, bool transposed, int64_t ld, int64_t step, const Batches& batch,
             Varies varies) {
  Placed p;
  p.x = {rows, columns, transposed ? step : ld, transposed ? ld : step, static_cast<int>(batch.size()), {}, {}};
  const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
  p.elements = (outer - 1) * ld + (inner - 1) * step + 1;
  int64_t stride = (outer * ld + 15) / 16 * 16;
  for (int i = static_cast<int>(batch.size()) - 1; i >= 0; --i) {
    p.x.sizes[i] = batch[i].size;
    if (!varies(batch[i])) continue;
    p.x.strides[i] = stride;
    p.elements += (batch[i].size - 1) * stride;
    stride = stride * batch[i].size + 16;  // so that neighbours do not collapse
  }
  return p;
}

int64_t round_up(int64_t x) { return (x + 7) / 8 * 8; }

Setup setup_of(const Case& x) {
  const auto a_varies = [](const Batch& dim) { return dim.a_varies; };
  const auto b_varies = [](const Batch& dim) { return dim.b_varies; };
  const auto always = [](const Batch&) { return true; };
  const int64_t a_ld = x.a == 'm' ? x.m : round_up(x.k) + (x.a == 'o' ? 1 : 0), c_step = x.c == 's' ? 2 : 1;
  Setup setup;
  setup.dtype = x.dtype;
  setup.out_dtype = x.float32_c && x.dtype.bits == 16 ? kFloat32 : x.dtype;
  setup.m = x.m;
  setup.n = x.n;
  setup.k = x.k;
  setup.batch = x.batch;
  setup.a = place(x.m, x.k, x.a == 'm', a_ld, 1, x.batch, a_varies);
  setup.b = place(x.k, x.n, x.b_k_fast, round_up(x.b_k_fast ? x.k : x.n) + x.b_pad, 1, x.batch, b_varies);
  setup.c = place(x.m, x.n, x.c == 'c', (x.c == 'c' ? x.m : x.n) * c_step + 3, c_step, x.batch, always);
  if (x.addend) setup.addend = place(x.m, x.n, true, x.m + 1, 1, x.batch, always);
  if (x.aux) setup.aux = place(x.m, x.n, false, x.n + 5, 1, x.batch, always);
  setup.bias = place_bias(x.bias, x.m, x.n);
  setup.values = x.values;
  setup.scales = x.scales;
  setup.activation = x.activation;
  return setup;
}

/// Sums of k products in [-1, 1] are rounded, and gelu is no integer.
template <typename C>
Allowed allowed_of(const Case& x) {
  const bool is_uniform = x.values == Values::uniform;
  if (!is_uniform && x.activation != Activation::gelu && x.activation != Activation::gelu_tanh) return {};
  return {sizeof(C) >= 4              ? 0
          : std::is_same_v<C, __half> ? 1. / 1024
                                      : 1. / 128,
          is_uniform ? x.k * (x.dtype == kFloat64 ? 1e-15 : 1e-6) : 1e-3};
}

// ---- one case ----

constexpr std::size_t kWorkspace = std::size_t{33} << 20;

/// Poisons the results, launches, and compares; was all right?
template <typename T, typename C, typename Launch>
bool check_launch(const Case& x, Product<T, C>& product, const std::string& how, Launch launch) {
  const std::string name = text(x) + how;
  product.poison_results();
  launch();
  const std::string wrong = product.wrong(name, allowed_of<C>(x));
  EXPECT_EQ(wrong, "") << name;
  if (!wrong.empty() || !product.has_aux()) return wrong.empty();
  const std::string wrong_aux = product.wrong_aux(name, allowed_of<C>(x));
  EXPECT_EQ(wrong_aux, "") << name << ": aux";
  return wrong_aux.empty();
}

/// As a caller has it launched. Uniform values, whose sums are rounded, must give the same once more.
template <typename T, typename C>
void check_as_planned(const Case& x, Product<T, C>& product, void* workspace) {
  const MatmulPlan plan = plan_matmul(product.gemm, {MatmulBackend::tiled});
  const std::string algorithm = describe(product.gemm, plan);
  ASSERT_EQ(algorithm.substr(0, 13), "tiled skinny ") << text(x) << ": is computed by " << algorithm;
  ASSERT_LE(plan.workspace_bytes, kWorkspace) << text(x);
  const auto launch = [&] { launch_matmul(product.gemm, plan, workspace, stream()); };
  if (!check_launch(x, product, ", as planned", launch) || x.values != Values::uniform) return;
  product.keep();
  for (int i = 0; i < 3; ++i) {
    launch();
    EXPECT_EQ(product.wrong(text(x), {}), "") << text(x) << ", once more";
  }
}

template <typename T, typename C>
void check_every_way(const Case& x, Product<T, C>& product, void* workspace) {
  for (const skinny::Way way : {skinny::Way::registers, skinny::Way::shared_memory}) {
    const bool is_streamed = way == skinny::Way::shared_memory;
    if (is_streamed && !skinny::may_stream(product.gemm, Device())) continue;
    for (const int parts : {1, 2, 7}) {
      const MatmulPlan plan = skinny::choose_in_parts(product.gemm, parts, Device(), way);
      poison(workspace, plan.workspace_bytes);
      const std::string how = (is_streamed ? ", streamed, in parts: " : ", in parts: ") + std::to_string(parts);
      const auto launch = [&] { launch_matmul(product.gemm, plan, workspace, stream()); };
      if (!check_launch(x, product, how, launch)) return;
    }
  }
}

template <typename T, typename C>
void check_as(const Case& x, Arena& arena) {
  arena.reset();
  Product<T, C> product(setup_of(x), arena, text(x));
  if (x.flipped) tiled::transpose(product.gemm);
  void* const workspace = arena.take(kWorkspace);
  if (x.n * x.k * product.matrices() >= 64 * 1024) {  // large enough to come here
    check_as_planned(x, product, workspace);
    if (x.values == Values::uniform) return;
  }
  if (!::testing::Test::HasFailure()) check_every_way(x, product, workspace);
}

// ---- products: of each dtype, where k or n is the unit stride of b ----

class Skinny : public DeviceTest, public ::testing::WithParamInterface<std::tuple<DLDataType, bool>> {
 protected:
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << "needs compute capability 8.0";
  }

  /// Changes a plain product, and computes and compares it; not after a failure, so that the first one is seen.
  template <typename Change>
  void check(int64_t m, int64_t n, int64_t k, Change change) {
    if (HasFailure()) return;
    Case x{std::get<DLDataType>(GetParam()), m, n, k, b_k_fast};
    change(x);
    if (x.dtype == kFloat16) {
      x.float32_c ? check_as<__half, float>(x, arena_) : check_as<__half, __half>(x, arena_);
    } else if (x.dtype == kBfloat16) {
      x.float32_c ? check_as<__nv_bfloat16, float>(x, arena_) : check_as<__nv_bfloat16, __nv_bfloat16>(x, arena_);
    } else if (x.dtype == kFloat32) {
      check_as<float, float>(x, arena_);
    } else {
      check_as<double, double>(x, arena_);
    }
  }
  void check(int64_t m, int64_t n, int64_t k) {
    check(m, n, k, [](Case&) {});
  }

  /// Calls `body(m, more)`: k is about 300 and `more`, and each of the kernels has its turn.
  template <typename Body>
  void for_each_kernel(Body body) {
    for (const int64_t m : kRows) {
      for (const int64_t more : {-200, -140, 1000}) body(m, more);
    }
  }

  static constexpr int kRows[] = {1, 2, 3, 5, 8, 9, 16};
  const bool b_k_fast = std::get<bool>(GetParam());

 private:
  Arena arena_;
};

std::string name(const ::testing::TestParamInfo<Skinny::ParamType>& info) {
  return dtype_name(std::get<DLDataType>(info.param)) + (std::get<bool>(info.param) ? "_k_adjacent" : "_n_adjacent");
}

INSTANTIATE_TEST_SUITE_P(, Skinny,
                         ::testing::Combine(::testing::Values(kFloat32, kFloat64, kFloat16, kBfloat16),
                                            ::testing::Values(true, false)),
                         name);

TEST_P(Skinny, ComputesEverySize) {
  for (int64_t m = 1; m <= 16; ++m) {
    for (const int64_t n : {b_k_fast ? 1 : 8, b_k_fast ? 33 : 40, b_k_fast ? 129 : 136, b_k_fast ? 1001 : 1000}) {
      for (const int64_t k : {1, 5, 64, 160, 257, 1023, 4096}) check(m, n, k);
    }
  }
}

TEST_P(Skinny, ComputesManyColumns) {
  for (const int64_t m : kRows) check(m, 70000, 64);
}

TEST_P(Skinny, ReadsEveryLayout) {
  for_each_kernel([&](int64_t m, int64_t more) {
    check(m, 1000, more + 300, [](Case& x) { x.a = 'o'; });
    check(m, 1000, more + 300, [](Case& x) { x.a = 'm'; });
    check(m, 1000, more + 303, [](Case& x) { x.a = 'm'; });
    check(m, 1000, more + 300, [](Case& x) { x.b_pad = 16; });
  });
}

TEST_P(Skinny, WritesEveryLayout) {
  for_each_kernel([&](int64_t m, int64_t more) {
    for (const char c : {'r', 'c', 's'}) {
      for (const bool flipped : {false, true}) {
        check(m, 1000, more + 301, [&](Case& x) { x.c = c, x.flipped = flipped; });
        check(m, 1000, more + 301, [&](Case& x) { x.c = c, x.flipped = flipped, x.float32_c = true; });
      }
    }
  });
}

TEST_P(Skinny, AppliesAllTermsToEveryLayout) {
  for_each_kernel([&](int64_t m, int64_t more) {
    for (const char c : {'r', 'c', 's'}) {
      for (const bool flipped : {false, true}) {
        check(m, 1000, more + 301, [&](Case& x) {
          x.c = c, x.flipped = flipped, x.addend = true, x.scales = true, x.bias = 'r', x.aux = true;
          x.activation = Activation::relu;
        });
      }
    }
  });
}

TEST_P(Skinny, AppliesEachTerm) {
  for_each_kernel([&](int64_t m, int64_t more) {
    check(m, 1000, more + 301, [](Case& x) { x.bias = 'c'; });
    check(m, 1000, more + 301, [](Case& x) { x.activation = Activation::gelu; });
    check(m, 1000, more + 301, [](Case& x) { x.activation = Activation::gelu_tanh, x.aux = true; });
  });
}

TEST_P(Skinny, ComputesBatches) {
  for_each_kernel([&](int64_t m, int64_t more) {
    const int64_t n = more < 0 ? 1048 : 136;  // small matrices of a short k would not be these kernels'
    check(m, n, more + 264, [](Case& x) { x.batch = Batches{{5, true, true}}; });
    check(m, n, more + 264, [](Case& x) { x.batch = Batches{{5, true, false}}; });
    check(m, n, more + 264, [](Case& x) { x.batch = Batches{{5, false, true}}; });
    check(m, n, more + 263, [](Case& x) {
      x.batch = Batches{{3, true, false}, {2, false, true}, {4, true, true}, {2, true, true}};
      x.addend = true, x.aux = true;
    });
  });
}

/// Of ones: each element is k. Finds a kernel that drops the end of k.
TEST_P(Skinny, AddsUpALongK) {
  for (const int64_t m : kRows) {
    for (const int64_t k : {1023, 4097, 65535}) {
      check(m, 24, k, [](Case& x) { x.values = Values::ones, x.float32_c = true; });
    }
  }
}

TEST_P(Skinny, RepeatsBitForBit) {
  for (const int64_t m : kRows) {
    check(m, 2000, 4096, [](Case& x) { x.values = Values::uniform; });
    check(m, 24, 65536, [](Case& x) { x.values = Values::uniform; });
    check(m, 4096, 1000, [](Case& x) { x.values = Values::uniform, x.flipped = true; });
  }
}

// ---- what is served, and what must be left to the other kernels ----

struct SkinnyServes : ::testing::Test {
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << "needs compute capability 8.0";
  }
};

/// Is a product of 4 rows by a matrix of 1024 x 1024 served, once changed?
template <typename Change>
bool serves(Change change) {
  Gemm g;
  g.dtype = g.b_dtype = g.out_dtype = kFloat32;
  g.m = 4;
  g.n = g.k = 1024;
  g.a = g.b = reinterpret_cast<void*>(4096);
  g.c = reinterpret_cast<void*>(8192);
  g.a_strides = g.b_strides = g.c_strides = {1024, 1};
  change(g);
  return skinny::serves(g, Device());
}

TEST_F(SkinnyServes, AProductAndItsTranspose) {
  EXPECT_TRUE(serves([](Gemm&) {}));
  EXPECT_TRUE(serves([](Gemm& g) { tiled::transpose(g); }));
}

TEST_F(SkinnyServes, AnyLayoutOfTheSmallerOperand) {
  EXPECT_TRUE(serves([](Gemm& g) { g.a_strides = {1025, 3}; }));
  EXPECT_TRUE(serves([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }));
}

TEST_F(SkinnyServes, AlignedRowsOfTheLargerOperandOnly) {
  EXPECT_TRUE(serves([](Gemm& g) { g.b_strides = {1028, 1}; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.b_strides = {1025, 1}; })) << "odd rows";
  EXPECT_FALSE(serves([](Gemm& g) { g.n = 1023; })) << "rows that end within a vector";
  EXPECT_FALSE(serves([](Gemm& g) { g.b_strides = {2048, 2}; })) << "no unit stride";
  EXPECT_FALSE(serves([](Gemm& g) { g.b = reinterpret_cast<void*>(4100); })) << "not aligned";
  EXPECT_FALSE(serves([](Gemm& g) {
    g.batch_ndim = 1;
    g.batch[0] = {2, 4096, 1025, 4096, 0, 0};
  })) << "odd matrices";
}

TEST_F(SkinnyServes, NoMoreThan16Rows) {
  EXPECT_FALSE(serves([](Gemm& g) { g.m = 17; }));
}

TEST_F(SkinnyServes, NoSmallProducts) {
  EXPECT_FALSE(serves([](Gemm& g) { g.k = 0; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.k = 8; }));
}

TEST_F(SkinnyServes, BatchesOfMatricesThatAreNotSmall) {
  EXPECT_TRUE(serves([](Gemm& g) {
    g.n = 128, g.k = 64;
    g.batch_ndim = 1;
    g.batch[0] = {100, 4096, 8192, 512, 0, 0};
  }));
  EXPECT_FALSE(serves([](Gemm& g) {
    g.n = 32, g.k = 64;
    g.batch_ndim = 1;
    g.batch[0] = {100'000, 256, 2048, 128, 0, 0};
  }));
}

TEST_F(SkinnyServes, TwoFloatsOfOneDtypeOnly) {
  EXPECT_FALSE(serves([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = {kDLInt, 32, 1}; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = {kDLComplex, 64, 1}; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.dtype = g.out_dtype = kFloat16, g.b_dtype = kBfloat16; }));
}

TEST_F(SkinnyServes, DotProductsWhoseBlocksAGridHas) {
  Gemm g;
  g.dtype = g.b_dtype = g.out_dtype = kFloat32;
  g.m = 1, g.n = 32770, g.k = 4096;
  g.a = g.b = reinterpret_cast<void*>(4096);
  g.c = reinterpret_cast<void*>(8192);
  g.a_strides = g.c_strides = {g.k, 1}, g.b_strides = {1, g.k};
  g.batch_ndim = 1;
  g.batch[0] = {1 << 16, g.k, 0, g.n, 0, 0};
  const Device device;
  const auto is_dots = [&] {
    return skinny::serves(g, device) &&
           skinny::describe(g, skinny::choose(g, 0, device)).compare(0, 12, "skinny dots ") == 0;
  };
  EXPECT_TRUE(is_dots());
  g.batch[0].size = 1 << 18;
  EXPECT_TRUE(skinny::serves(g, device) && !is_dots());
}

}  // namespace
