/// Tests and times src/cuda/matmul/wgmma/wgmma.cu, mma/mma.cu, and TF32 of mma/wide.cu, without Python.
///
///   wgmma_test [--dtype bf16|tf32|tf32x3] [--mma] [--variants 0,1,...]
///   wgmma_test --bench [--cublas PATH] [--sizes 1024,...] [--no-shapes] [--small] [--dtype f16|bf16|tf32|tf32x3]
///              [--mma] [--variants 0,1,...] [--seconds 50]
///
/// Tests: small integers, whose products are exact in float32, so that c must equal a naive kernel's bit for bit; all
/// that surrounds a, b, the elements of c and the workspace is poison, and must not reach c or change. Prints "N
/// passed, N failed". All kernels by default, those of sm_90 where the device has it; --mma: those by mma.sync, which
/// with --dtype tf32 are of mma/wide.cu.
/// --bench: a CUDA graph of many launches over buffers that exceed L2, random data, variants and cuBLAS interleaved,
/// medians; starts no shape after that many seconds. cuBLAS is opened at run time; beside tf32x3 it computes in exact
/// float32. What is packed is part of the time; for tf32, a row "packed" shows what it takes to pack all that does not
/// run along k. --small: small products instead, beside the general kernel. Both end with "HANGS", exit status 3, when
/// a launch takes seconds.
#include <interop/error.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>

#include "cuda/matmul/mma/mma.h"
#include "cuda/matmul/mma/wide.h"
#include "cuda/matmul/tiled/tiled.h"
#include "cuda/matmul/wgmma/wgmma.h"
#include "device_check.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

const char* kind_name(DLDataType dtype, MatmulPrecision precision) {
  return precision == MatmulPrecision::tf32     ? "tf32"
         : precision == MatmulPrecision::tf32x3 ? "tf32x3"
         : dtype == kHalf                       ? "float16"
                                                : "bfloat16";
}

// ---- cases ----

struct Case {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  int64_t a_pad = 0, b_pad = 0, c_pad = 0;  // elements between rows
  bool c_transposed = false;
  int64_t c_column_step = 1;
  int64_t c_offset = 0;
  bool c_aligned = false;  // rows of c are multiples of 16 bytes, whatever n
  bool float32_c = false;
  int what = 0;
  bool scales = false, factors = false;
  bool addend = false, addend_transposed = false, addend_aligned = false, aux = false;
  char bias = 0;  // 'r'ow or 'c'olumn
  Activation activation = Activation::none;
  std::vector<Batch> batch = {};
  DLDataType dtype = kBrain;
  MatmulPrecision precision = MatmulPrecision::exact;
  bool by_mma = false;
  int unaligned = 0;               // a and b: rows of any length, that start at so many elements and thrice that
  int64_t a_step = 1, b_step = 1;  // with `unaligned`: from one element of a row to the next
};

std::string text(const Case& x) {
  std::ostringstream s;
  s << kind_name(x.dtype, x.precision) << " " << x.m << "x" << x.n << "x" << x.k << " " << (x.a_transposed ? 'T' : 'N')
    << (x.b_transposed ? 'T' : 'N') << " pads " << x.a_pad << "," << x.b_pad << "," << x.c_pad
    << (x.unaligned ? " unaligned, steps " : " steps ") << x.a_step << "," << x.b_step
    << (x.c_aligned ? " c aligned" : "") << (x.c_transposed ? " c^T" : "") << " c step " << x.c_column_step
    << " c offset " << x.c_offset << (x.float32_c ? " float32 c" : "") << " data " << x.what
    << (x.scales ? " alpha beta" : "") << (x.factors ? " factors" : "") << (x.addend ? " addend" : "")
    << (x.addend_transposed ? "^T" : "") << (x.addend_aligned ? " aligned" : "") << (x.aux ? " aux" : "")
    << (x.bias == 'r'   ? " bias row"
        : x.bias == 'c' ? " bias column"
                        : "")
    << " activation " << static_cast<int>(x.activation);
  for (const Batch& dim : x.batch) s << " batch " << dim.size << (dim.a_varies ? "a" : "") << (dim.b_varies ? "b" : "");
  return s.str();
}

int64_t round_up(int64_t x) { return (x + 7) / 8 * 8; }

/// Rows (or columns) of an array that starts `guard` elements into its memory, with its batch outside.
struct Placed {
  Strided x{};
  int64_t elements = 0;
};

Placed place(int64_t rows, int64_t columns, bool transposed, int64_t pad, bool aligned, int64_t step,
             const std::vector<Batch>& batch, int which) {
  Placed p;
  const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
  const int64_t ld = aligned ? round_up(inner + pad) : inner * step + pad;
  p.x = {rows, columns, transposed ? step : ld, transposed ? ld : step, static_cast<int>(batch.size()), {}, {}};
  int64_t matrix = ld * outer;
  if (aligned) matrix = round_up(matrix);
  int64_t stride = matrix, all = matrix;
  for (int i = static_cast<int>(batch.size()) - 1; i >= 0; --i) {
    const bool varies = which == 2 || (which == 0 ? batch[i].a_varies : batch[i].b_varies);
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

/// Which kernels a case is for.
struct Kernels {
  const char* name;
  MatmulPrecision precision = MatmulPrecision::exact;
  bool by_mma = false;

  bool is_wide() const { return by_mma && precision == MatmulPrecision::tf32; }
  int variant_count() const {
    return is_wide() ? mma_wide::variant_count(kSingle)
           : by_mma  ? mma::variant_count()
                     : wgmma::variant_count(precision);
  }
  const char* variant_name(int variant) const {
    return is_wide() ? mma_wide::variant_name(kSingle, variant)
           : by_mma  ? mma::variant_name(variant)
                     : wgmma::variant_name(precision, variant);
  }
  /// Of those by mma.sync.
  bool serves(const Gemm& gemm) const { return is_wide() ? mma_wide::serves(gemm, precision) : mma::serves(gemm); }
  std::string describe(const Gemm& gemm) const { return is_wide() ? mma_wide::describe(gemm) : mma::describe(gemm); }
  void launch(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace) const {
    is_wide() ? mma_wide::launch_variant(variant, gemm, g_stream)
    : by_mma  ? mma::launch_variant(variant, gemm, g_stream)
              : wgmma::launch_variant(variant, gemm, plan, workspace, g_stream);
  }
  std::vector<int> all_variants() const {
    std::vector<int> all;
    for (int i = 0; i < variant_count(); ++i) all.push_back(i);
    return all;
  }
};

/// What became of one variant.
struct Tally {
  int passed = 0, failed = 0;
  bool stopped() const { return failed > 8; }
};

template <typename T, typename C>
void check_case_of(const Case& x, const std::vector<int>& variants, std::vector<Tally>& tallies, Arena& arena) {
  const Placed pa = place(x.m, x.k, x.a_transposed, x.a_pad, !x.unaligned, x.a_step, x.batch, 0);
  const Placed pb = place(x.k, x.n, x.b_transposed, x.b_pad, !x.unaligned, x.b_step, x.batch, 1);
  const Placed pc = place(x.m, x.n, x.c_transposed, x.c_pad, x.c_aligned, x.c_column_step, x.batch, 2);
  int64_t matrices = 1;
  for (const Batch& dim : x.batch) matrices *= dim.size;

  arena.reset();
  const auto make = [&](int64_t elements, std::size_t item) {
    const std::size_t bytes = (elements + 2 * kGuard) * item;
    char* const memory = arena.take(bytes);
    poison(memory, bytes);
    return memory;
  };
  T* const a = reinterpret_cast<T*>(make(pa.elements, sizeof(T))) + kGuard + x.unaligned;
  T* const b = reinterpret_cast<T*>(make(pb.elements, sizeof(T))) + kGuard + 3 * x.unaligned;
  const int64_t elements_c = pc.elements + x.c_offset, guarded_c = elements_c + 2 * kGuard;
  C *const got = reinterpret_cast<C*>(make(elements_c, sizeof(C))), *const want = reinterpret_cast<C*>(
                                                                        make(elements_c, sizeof(C)));
  auto* const differences = reinterpret_cast<Differences*>(arena.take(sizeof(Differences)));

  fill(a, pa.x, 1, x.what);
  fill(b, pb.x, 2, x.what);

  Gemm gemm;
  Finish<C> how;
  const auto extra = [&](const Placed& placed, uint32_t seed) {
    C* const data = reinterpret_cast<C*>(make(placed.elements, sizeof(C))) + kGuard;
    fill(data, placed.x, seed, x.what);
    return data;
  };
  if (x.scales) {
    how.factor = 2, how.beta = -3;
    gemm.scales = true;
    const float alpha = 2, beta = -3;
    std::memcpy(gemm.alpha.bytes, &alpha, sizeof alpha);
    std::memcpy(gemm.beta.bytes, &beta, sizeof beta);
  }
  if (x.factors) {
    how.factor *= 0.5;
    float* const factor = reinterpret_cast<float*>(arena.take(sizeof(float)));
    const float half = 0.5f;
    MUST(cudaMemcpyAsync(factor, &half, sizeof half, cudaMemcpyHostToDevice, g_stream));
    gemm.factor_b = factor;
  }
  if (x.addend) {
    const Placed placed = place(x.m, x.n, x.addend_transposed, 0, x.addend_aligned, 1, x.batch, 2);
    how.addend = extra(placed, 3);
    how.addend_x = placed.x;
    gemm.addend = how.addend;
    gemm.addend_strides = {placed.x.row_stride, placed.x.column_stride};
  }
  if (x.bias) {
    const bool is_row = x.bias == 'r';
    const Placed placed = place(is_row ? 1 : x.m, is_row ? x.n : 1, !is_row, 0, true, 1, {}, 2);
    how.bias = extra(placed, 4);
    how.bias_x = placed.x;
    (is_row ? how.bias_x.row_stride : how.bias_x.column_stride) = 0;
    gemm.bias = how.bias;
    gemm.bias_strides = {how.bias_x.row_stride, how.bias_x.column_stride};
  }
  C* got_aux = nullptr;
  const Placed pu = place(x.m, x.n, false, 8, false, 1, x.batch, 2);
  if (x.aux) {
    how.aux = reinterpret_cast<C*>(make(pu.elements, sizeof(C))) + kGuard;
    how.aux_x = pu.x;
    got_aux = reinterpret_cast<C*>(make(pu.elements, sizeof(C))) + kGuard;
    gemm.aux = got_aux;
    gemm.aux_strides = {pu.x.row_stride, pu.x.column_stride};
  }
  gemm.activation = how.activation = x.activation;
  reference_kernel<T, C>
      <<<2048, 256, 0, g_stream>>>(a, b, want + kGuard + x.c_offset, pa.x, pb.x, pc.x, matrices, x.k, how);
  MUST(cudaGetLastError());
  finish("the reference of " + text(x));

  gemm.dtype = gemm.b_dtype = x.dtype;
  gemm.out_dtype = x.float32_c ? kSingle : x.dtype;
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a = a;
  gemm.b = b;
  gemm.c = got + kGuard + x.c_offset;
  gemm.a_strides = {pa.x.row_stride, pa.x.column_stride};
  gemm.b_strides = {pb.x.row_stride, pb.x.column_stride};
  gemm.c_strides = {pc.x.row_stride, pc.x.column_stride};
  for (const Batch& dim : x.batch) {
    const int i = gemm.batch_ndim++;
    gemm.batch[i] = {dim.size,        pa.x.strides[i],         pb.x.strides[i],
                     pc.x.strides[i], how.addend_x.strides[i], how.aux_x.strides[i]};
  }
  const Kernels kernels{"", x.precision, x.by_mma};
  MatmulPlan plan;
  if (x.by_mma) {
    if (!expect(kernels.serves(gemm), text(x) + ": is not served")) return;
  } else {
    const std::optional<MatmulPlan> made = wgmma::plan(gemm, x.precision, std::size_t{1} << 30);
    if (!expect(made.has_value(), text(x) + ": is not served")) return;
    plan = *made;
    const bool both = x.precision == MatmulPrecision::tf32x3 || x.unaligned != 0;
    const bool one = x.precision == MatmulPrecision::tf32 && x.a_transposed && !x.b_transposed;
    if (x.m > 1 && x.n > 1 && x.k > 1) {
      expect(plan.packs_a + plan.packs_b == (both ? 2 : one ? 1 : 0), text(x) + ": what is packed");
    }
    expect(plan.workspace_bytes <= wgmma::largest_packing(gemm, x.precision, std::size_t{1} << 30),
           text(x) + ": the workspace has a bound");
  }
  constexpr std::size_t kTail = 4096;
  char* const workspace = arena.take(plan.workspace_bytes + kTail);

  // Of sums of k products in [-1, 1]; gelu is no integer.
  const bool exact = x.what != 1 && x.activation != Activation::gelu && x.activation != Activation::gelu_tanh;
  // With TF32 each product of two in [-1, 1] is off by up to 2^-10, with three of it by up to 2^-20.
  const double absolute = exact                                    ? 0
                          : x.what != 1                            ? 1e-3
                          : x.precision == MatmulPrecision::tf32   ? std::sqrt(x.k) * 2e-3
                          : x.precision == MatmulPrecision::tf32x3 ? std::sqrt(x.k) * 4e-6
                                                                   : x.k * 1e-6;
  const double rounding = std::is_same_v<C, float> ? 0 : std::is_same_v<C, __half> ? 1. / 1024 : 1. / 128;
  for (const int variant : variants) {
    Tally& tally = tallies[variant];
    if (tally.stopped()) continue;
    const std::string name =
        "variant " + std::to_string(variant) + " (" + kernels.variant_name(variant) + ") " + text(x);
    poison(got, guarded_c * sizeof(C));
    if (got_aux) poison(got_aux - kGuard, (pu.elements + 2 * kGuard) * sizeof(C));
    poison(workspace, plan.workspace_bytes + kTail);
    kernels.launch(variant, gemm, plan, workspace);
    const auto compare = [&](const C* ours, const C* theirs, int64_t elements, const Placed& placed) {
      const int64_t pitch = std::max(placed.x.row_stride, placed.x.column_stride);
      return difference(name, ours, theirs, elements, pitch, exact ? 0 : rounding, absolute, differences);
    };
    std::string wrong = compare(got + kGuard, want + kGuard, elements_c, pc);
    if (got_aux && wrong.empty()) {
      wrong = compare(got_aux, how.aux, pu.elements, pu);
      if (!wrong.empty()) wrong = ": aux" + wrong;
    }
    if (plan.workspace_bytes > 0 && wrong.empty()) {
      std::vector<unsigned char> tail(kTail);
      MUST(cudaMemcpy(tail.data(), workspace + plan.workspace_bytes, kTail, cudaMemcpyDeviceToHost));
      const bool is_left = std::all_of(tail.begin(), tail.end(), [](unsigned char byte) { return byte == 0xff; });
      if (!is_left) wrong = ": written beyond the workspace";
    }
    ++(expect(wrong.empty(), name + wrong) ? tally.passed : tally.failed);
    if (tally.stopped()) std::printf("variant %d: many failures, stopping it\n", variant);
  }
}

void check_case(const Case& x, const std::vector<int>& variants, std::vector<Tally>& tallies, Arena& arena) {
  if (x.precision != MatmulPrecision::exact) {
    check_case_of<float, float>(x, variants, tallies, arena);
  } else if (x.dtype == kHalf) {
    x.float32_c ? check_case_of<__half, float>(x, variants, tallies, arena)
                : check_case_of<__half, __half>(x, variants, tallies, arena);
  } else {
    x.float32_c ? check_case_of<__nv_bfloat16, float>(x, variants, tallies, arena)
                : check_case_of<__nv_bfloat16, __nv_bfloat16>(x, variants, tallies, arena);
  }
}

using Batches = std::vector<Batch>;

/// A product in its four layouts, changed alike.
class Cases {
 public:
  std::vector<Case> list;

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

const auto as_is = [](Case&) {};

/// Of float32: what is packed, what is not, and what differs from 16 bits.
std::vector<Case> tf32_cases(MatmulPrecision precision, bool by_mma) {
  Cases add;
  // From the simplest on: one k tile and one step of it, then more, then edges.
  add(128, 256, 32, as_is);
  add(64, 64, 8, as_is);
  add(128, 256, 64, as_is);
  add(256, 512, 32, as_is);
  add(128, 256, 1024, as_is);
  add(2048, 2048, 512, as_is);
  add(3000, 4104, 328, as_is);
  for (const int64_t m : {1, 7, 65, 200}) {
    for (const int64_t n : {1, 8, 33, 130, 264}) {
      for (const int64_t k : {1, 4, 17, 32, 100}) add(m, n, k, as_is);
    }
  }
  // As many k tiles as there are stages, and as are added up in one go, and around that.
  for (const int64_t k : {96, 128, 129, 160, 192, 224, 256, 257, 384, 416}) add(1600, 2304, k, as_is);
  for (const auto& [m, n, k] : {std::tuple{128, 128, 64}, {301, 521, 201}}) {
    add(m, n, k, [](Case& x) { x.unaligned = 1; });
    add(m, n, k, [](Case& x) { x.unaligned = 1, x.a_pad = 3, x.b_pad = 5; });
    add(m, n, k, [](Case& x) { x.unaligned = 1, x.a_step = 2, x.b_step = 3; });
    add(m, n, k, [](Case& x) { x.a_pad = 40, x.b_pad = 8, x.c_pad = 3; });
  }
  add(304, 520, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_column_step = 2; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 1; });
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
  add(127, 129, 1001, [](Case& x) { x.what = 2; });
  add(129, 257, 65537, [](Case& x) { x.what = 2; });
  add(512, 512, 4096, [](Case& x) { x.what = 1; });
  add(301, 521, 1001, [](Case& x) { x.what = 1; });
  for (Case& x : add.list) x.dtype = kSingle, x.precision = precision, x.float32_c = true, x.by_mma = by_mma;
  return add.list;
}

std::vector<Case> cases() {
  Cases add;
  // From the simplest on, so that the first failure says most.
  add(128, 256, 8, as_is);
  add(128, 256, 64, as_is);
  add(128, 256, 64, [](Case& x) { x.float32_c = true; });
  add(64, 64, 16, as_is);
  add(256, 512, 64, as_is);
  add(128, 256, 128, as_is);
  add(128, 256, 1024, as_is);
  add(2048, 2048, 512, as_is);
  add(2048, 2048, 512, [](Case& x) { x.float32_c = true; });
  add(3000, 4104, 328, as_is);
  add(3000, 4104, 328, [](Case& x) { x.dtype = kHalf; });
  for (const DLDataType dtype : {kHalf, kBrain}) {
    for (const int64_t m : {1, 7, 65, 200}) {
      for (const int64_t n : {1, 8, 33, 130, 264, 520}) {
        for (const int64_t k : {1, 17, 64, 200}) {
          add(m, n, k, [&](Case& x) { x.dtype = dtype; });
        }
      }
    }
  }
  // Rows of c that TMA could describe, but that end within 16 bytes.
  for (const int64_t n : {1, 2, 7, 9, 33, 65, 252, 257}) {
    add(1, n, 40, [](Case& x) { x.c_aligned = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = true; });
    add(n, 70, 40, [](Case& x) { x.c_aligned = x.c_transposed = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = x.float32_c = true; });
    add(70, n, 40, [](Case& x) { x.c_aligned = true, x.batch = Batches{{3, true, true}}; });
  }
  // As many k tiles as there are stages, and around that.
  for (const int64_t k : {128, 192, 256, 320, 384, 448, 512, 576, 768, 832}) add(1600, 2304, k, as_is);
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
  // All that may follow the sums; first one by one, then together, on sizes that take vectors and on odd ones.
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
    for (const DLDataType dtype : {kHalf, kBrain}) {
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
  add(127, 129, 1001, [](Case& x) { x.what = 2; });
  add(127, 129, 1001, [](Case& x) { x.what = 2, x.float32_c = true; });
  add(129, 257, 65537, [](Case& x) { x.what = 2, x.float32_c = true; });
  add(512, 512, 4096, [](Case& x) { x.what = 1; });
  add(512, 512, 4096, [](Case& x) { x.what = 1, x.float32_c = true; });
  add(512, 512, 4096, [](Case& x) { x.what = 1, x.dtype = kHalf; });
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, true, true}}; });
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, true, false}}; });
  add(200, 328, 136, [](Case& x) { x.batch = Batches{{5, false, true}}; });
  add(201, 329, 135, [](Case& x) { x.batch = Batches{{3, true, false}, {4, false, true}}; });
  add(64, 72, 136, [](Case& x) { x.batch = Batches{{3, true, true}, {2, false, true}, {7, true, true}}; });
  add(64, 72, 136,
      [](Case& x) { x.batch = Batches{{2, true, false}, {3, true, true}, {2, false, true}, {5, true, true}}; });
  add(16, 24, 8, [](Case& x) { x.batch = Batches{{700, true, true}}; });
  add(64, 64, 64, [](Case& x) { x.batch = Batches{{1024, true, true}}; });
  return add.list;
}

/// Of 16 bits by mma.sync: the same, and what TMA cannot read.
std::vector<Case> mma_cases() {
  Cases add;
  add(64, 64, 16, as_is);  // one step, one k tile, all stages
  add(64, 64, 32, as_is);
  add(128, 128, 64, as_is);
  add(128, 128, 96, as_is);
  for (const auto& [m, n, k] : {std::tuple{64, 64, 32}, {302, 522, 202}, {130, 66, 1030}}) {
    add(m, n, k, [](Case& x) { x.unaligned = 2; });
    add(m, n, k, [](Case& x) { x.unaligned = 2, x.a_pad = 2, x.b_pad = 4, x.dtype = kHalf; });
  }
  add(300, 520, 200, [](Case& x) { x.unaligned = 2, x.batch = Batches{{3, true, true}, {2, false, true}}; });
  std::vector<Case> list = std::move(add.list);
  for (const Case& x : cases()) list.push_back(x);
  for (Case& x : list) x.by_mma = true;
  return list;
}

void test(const Kernels& kernels, const std::vector<int>& variants) {
  std::vector<Tally> tallies(kernels.variant_count());
  Arena arena;
  const double start = seconds();
  double next = start + 2;
  const bool is_tf32 = kernels.precision != MatmulPrecision::exact;
  const std::vector<Case> all = is_tf32          ? tf32_cases(kernels.precision, kernels.by_mma)
                                : kernels.by_mma ? mma_cases()
                                                 : cases();
  for (std::size_t i = 0; i < all.size(); ++i) {
    check_case(all[i], variants, tallies, arena);
    if (seconds() < next) continue;
    next += 2;
    std::printf("%.0f s: %d of %d cases\n", seconds() - start, static_cast<int>(i + 1), static_cast<int>(all.size()));
  }
  for (const int variant : variants) {
    std::printf("%s variant %d %-32s %d passed, %d failed%s\n", kernels.name, variant, kernels.variant_name(variant),
                tallies[variant].passed, tallies[variant].failed, tallies[variant].stopped() ? ", stopped" : "");
  }
}

/// What the kernel must leave to another.
void test_refusals() {
  const auto gemm = [](auto change) {
    Gemm g;
    g.dtype = g.b_dtype = g.out_dtype = kBrain;
    g.m = g.n = g.k = 64;
    g.a = g.b = reinterpret_cast<void*>(4096);
    g.c = reinterpret_cast<void*>(8192);
    g.a_strides = g.b_strides = g.c_strides = {64, 1};
    change(g);
    const std::optional<MatmulPlan> made = wgmma::plan(g, MatmulPrecision::exact, std::size_t{1} << 20);
    return made ? made->packs_a + 2 * made->packs_b : -1;
  };
  expect(gemm([](Gemm&) {}) == 0, "the plain product is served");
  expect(gemm([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = kSingle; }) == -1, "float32");
  expect(gemm([](Gemm& g) { g.out_dtype = kSingle; }) == 0, "a float32 result is served");
  expect(gemm([](Gemm& g) { g.out_dtype = kHalf; }) == -1, "a float16 result of bfloat16");
  expect(gemm([](Gemm& g) { g.b_dtype = kHalf; }) == -1, "float16 beside bfloat16");
  expect(gemm([](Gemm& g) { g.k = 0; }) == -1, "k = 0");
  expect(gemm([](Gemm& g) { g.a_strides = {65, 1}; }) == 1, "odd rows of a are packed");
  expect(gemm([](Gemm& g) { g.a_strides = {-64, 1}; }) == 1, "rows of a backwards are packed");
  expect(gemm([](Gemm& g) { g.a_strides = {0, 1}; }) == 1, "one row of a for all is packed");
  expect(gemm([](Gemm& g) { g.b_strides = {128, 2}; }) == 2, "b without a unit stride is packed");
  expect(gemm([](Gemm& g) { g.a = reinterpret_cast<void*>(4098); }) == 1, "an unaligned a is packed");
  expect(gemm([](Gemm& g) {
           g.batch_ndim = 1;
           g.batch[0] = {2, 4096, -4096, 4096, 0, 0};
         }) == 2,
         "a batch of b backwards is packed");
  expect(gemm([](Gemm& g) {
           g.batch_ndim = 1;
           g.batch[0] = {2, 4096, 0, 4096, 0, 0};
         }) == 0,
         "broadcast b is served");

  const auto plan = [](MatmulPrecision precision, auto change) {
    Gemm g;
    g.dtype = g.b_dtype = g.out_dtype = kSingle;
    g.m = g.n = g.k = 64;
    g.a = g.b = reinterpret_cast<void*>(4096);
    g.c = reinterpret_cast<void*>(8192);
    g.a_strides = g.c_strides = {64, 1};
    g.b_strides = {1, 64};
    change(g);
    return wgmma::plan(g, precision, std::size_t{1} << 20);
  };
  const auto packs = [&](auto change) {
    const std::optional<MatmulPlan> made = plan(MatmulPrecision::tf32, change);
    return made ? made->packs_a + 2 * made->packs_b : -1;
  };
  expect(packs([](Gemm&) {}) == 0, "TF32 of aligned rows of k: nothing is packed");
  expect(packs([](Gemm& g) { g.a_strides = {1, 64}; }) == 0, "columns of a are read");
  expect(packs([](Gemm& g) { g.b_strides = {64, 1}; }) == 0, "rows of b are read");
  const auto neither = [](Gemm& g) { g.a_strides = {1, 64}, g.b_strides = {64, 1}; };
  expect(packs(neither) == 2, "b is packed where k is the unit stride of neither");
  expect(packs([&](Gemm& g) { neither(g), g.m = 32; }) == 1, "a is packed where it is smaller");
  expect(packs([](Gemm& g) { g.a_strides = {66, 1}, g.b_strides = {64, 1}; }) == 1, "odd rows of a are packed, not b");
  expect(packs([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }) == 1, "an unaligned a is packed");
  expect(packs([](Gemm& g) { g.b_strides = {1, -64}; }) == 2, "b backwards is packed");
  expect(packs([](Gemm& g) { g.a_strides = {0, 1}; }) == 1, "one row of a for all is packed");
  expect(packs([](Gemm& g) { g.dtype = g.b_dtype = kBrain; }) == -1, "bfloat16 is not TF32's");
  expect(packs([](Gemm& g) { g.k = 0; }) == -1, "nothing to add up is not TF32's");
  expect(!plan(MatmulPrecision::exact, [](Gemm&) {}), "exact is exact");
  const MatmulPlan in_two = plan(MatmulPrecision::tf32x3, [](Gemm&) {}).value();
  expect(in_two.packs_a && in_two.packs_b && in_two.workspace_bytes == 2 * 2 * 64 * 64 * 4, "TF32x3 packs both in two");
  const auto large = [](Gemm& g) { g.m = g.n = g.k = 512, g.a_strides = {512, 1}, g.b_strides = {512, 1}; };
  expect(!plan(MatmulPrecision::tf32x3, large), "no more memory than is allowed");
}

void test_refusals_of_mma() {
  const auto serves = [](auto change) {
    Gemm g;
    g.dtype = g.b_dtype = g.out_dtype = kBrain;
    g.m = g.n = g.k = 64;
    g.a = g.b = reinterpret_cast<void*>(4096);
    g.c = reinterpret_cast<void*>(8192);
    g.a_strides = g.b_strides = g.c_strides = {64, 1};
    change(g);
    return mma::serves(g);
  };
  expect(serves([](Gemm&) {}), "mma serves the plain product");
  expect(serves([](Gemm& g) { g.a_strides = {-66, 1}, g.b_strides = {1, 0}; }), "mma: any even strides");
  expect(serves([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }), "mma: 4-byte alignment");
  expect(!serves([](Gemm& g) { g.a = reinterpret_cast<void*>(4098); }), "mma: 2-byte alignment");
  expect(!serves([](Gemm& g) { g.a_strides = {65, 1}; }), "mma: odd rows of a");
  expect(!serves([](Gemm& g) { g.b_strides = {128, 2}; }), "mma: no unit stride in b");
  expect(!serves([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = kSingle; }), "mma: float32");
  expect(!serves([](Gemm& g) { g.b_dtype = kHalf; }), "mma: float16 beside bfloat16");
  expect(!serves([](Gemm& g) { g.k = 0; }), "mma: k = 0");

  const auto serves_wide = [](MatmulPrecision precision, DLDataType dtype, DLDataType out_dtype) {
    Gemm g;
    g.dtype = g.b_dtype = dtype;
    g.out_dtype = out_dtype;
    g.m = g.n = g.k = 64;
    g.a_strides = g.b_strides = {130, -2};
    return mma_wide::serves(g, precision);
  };
  constexpr MatmulPrecision kExact = MatmulPrecision::exact, kTf32 = MatmulPrecision::tf32;
  expect(serves_wide(kTf32, kSingle, kSingle), "mma_wide serves TF32");
  expect(serves_wide(kExact, kDouble, kDouble), "mma_wide serves float64");
  expect(!serves_wide(kExact, kSingle, kSingle), "mma_wide: exact float32");
  expect(!serves_wide(MatmulPrecision::tf32x3, kSingle, kSingle), "mma_wide: TF32x3");
  expect(!serves_wide(kTf32, kDouble, kDouble), "mma_wide: TF32 of float64");
  expect(!serves_wide(kTf32, kSingle, kDouble), "mma_wide: a float64 result of float32");
}

// ---- the benchmark ----

struct BenchOptions {
  std::vector<int> variants;
  bool general_too = false;
  DLDataType dtype = kBrain;
  Kernels kernels{"16 bits"};
};

void bench(int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, bool a_t, bool b_t,
           const BenchOptions& bench_options, const Cublas& cublas, char* memory, std::size_t bytes) {
  const Kernels& kernels = bench_options.kernels;
  const MatmulPrecision precision = kernels.precision;
  const int item = bench_options.dtype.bits / 8;
  const auto up = [&](int64_t elements) { return static_cast<std::size_t>((elements * item + 255) / 256 * 256); };
  const std::size_t a_bytes = up(m * k * batch), b_bytes = up(k * n * (b_broadcast ? 1 : batch)),
                    c_bytes = up(m * n * batch);
  const std::size_t set_bytes = a_bytes + b_bytes + c_bytes;
  char* const workspace = memory;                                   // one for all, as a caller's allocator has it
  const std::size_t workspace_bytes = (a_bytes + b_bytes) * 5 / 2;  // a bit more than both in two
  if (precision != MatmulPrecision::exact) memory += workspace_bytes, bytes -= workspace_bytes;
  if (set_bytes > bytes) return;
  const int sets = static_cast<int>(
      std::clamp<std::size_t>((std::size_t{160} << 20) / (a_bytes + b_bytes) + 1, 1, bytes / set_bytes));
  const double work = 2.0 * m * n * k * batch;
  const int repeats = std::clamp(static_cast<int>(4e-3 / (work / 500e12)), 2, 200);
  const auto make = [&](int i) {
    char* const set = memory + i % sets * set_bytes;
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = bench_options.dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = set;
    gemm.b = set + a_bytes;
    gemm.c = set + a_bytes + b_bytes;
    gemm.a_strides = a_t ? MatrixStrides{1, m} : MatrixStrides{k, 1};
    gemm.b_strides = b_t ? MatrixStrides{1, k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    if (batch > 1) {
      gemm.batch_ndim = 1;
      gemm.batch[0] = {batch, m * k, b_broadcast ? 0 : k * n, m * n, 0, 0};
    }
    return gemm;
  };
  const bool is_tf32 = precision != MatmulPrecision::exact;
  const auto plan = [=](const Gemm& gemm) {
    return kernels.by_mma ? std::optional(MatmulPlan()) : wgmma::plan(gemm, precision, workspace_bytes);
  };
  // Every operand that does not run along k, instead of reading one as it lies.
  const auto packing_plan = [=](const Gemm& gemm) {
    MatmulPlan packing = *plan(gemm);
    packing.packs_a = a_t, packing.packs_b = !b_t;
    return packing;
  };
  const bool is_served = kernels.by_mma ? kernels.serves(make(0)) : plan(make(0)).has_value();
  const std::string chosen = !is_served       ? "none"
                             : kernels.by_mma ? kernels.describe(make(0))
                                              : wgmma::describe(make(0), *plan(make(0)));
  std::printf("%s %lldx%lldx%lld", kind_name(bench_options.dtype, precision), (long long)m, (long long)n, (long long)k);
  if (batch > 1) std::printf(" batch %lld%s", (long long)batch, b_broadcast ? " (b broadcast)" : "");
  std::printf(" %c%c, chosen: %s\n", a_t ? 'T' : 'N', b_t ? 'T' : 'N', chosen.c_str());
  // Outputs land among the inputs of the next case: fill anew.
  const Strided all{1, static_cast<int64_t>(sets * set_bytes / item), 0, 1, 0, {}, {}};
  if (is_tf32) {
    fill_kernel<<<1024, 256, 0, g_stream>>>(reinterpret_cast<float*>(memory), all, 1, 3, 1);
  } else if (bench_options.dtype == kHalf) {
    fill_kernel<<<1024, 256, 0, g_stream>>>(reinterpret_cast<__half*>(memory), all, 1, 3, 1);
  } else {
    fill_kernel<<<1024, 256, 0, g_stream>>>(reinterpret_cast<__nv_bfloat16*>(memory), all, 1, 3, 1);
  }

  finish("filling the buffers");
  std::vector<std::unique_ptr<Repeats>> rows;
  if (cublas) {
    rows.push_back(std::make_unique<Repeats>(
        "cuBLAS", repeats, [&](int i) { cublas.launch(make(i), precision == MatmulPrecision::tf32); }));
  }
  for (const int variant : bench_options.variants) {
    if (!is_served) break;
    const std::string name = std::to_string(variant) + " " + kernels.variant_name(variant);
    rows.push_back(std::make_unique<Repeats>(name, repeats, [&, variant](int i) {
      const Gemm gemm = make(i);
      kernels.launch(variant, gemm, *plan(gemm), workspace);
    }));
    if (precision != MatmulPrecision::tf32 || kernels.by_mma || (!a_t && b_t)) continue;
    rows.push_back(std::make_unique<Repeats>(name + ", packed", repeats, [&, variant](int i) {
      const Gemm gemm = make(i);
      kernels.launch(variant, gemm, packing_plan(gemm), workspace);
    }));
  }
  if (bench_options.general_too) {
    rows.push_back(
        std::make_unique<Repeats>("general", repeats, [&](int i) { tiled::launch_general(make(i), g_stream); }));
  }
  replay_in_turn(rows);
  const double base = rows.empty() ? 0 : rows[0]->median();
  for (auto& row : rows) {
    const double time = row->median();
    std::printf("  %-48s %9.2f us %7.1f TFLOP/s  x%.3f\n", row->name.c_str(), time * 1e6, work / time / 1e12,
                base / time);
  }
}

void bench_all(const std::vector<int>& sizes, bool shapes, double limit, const BenchOptions& options,
               const Cublas& cublas) {
  constexpr std::size_t kBytes = std::size_t{8} << 30;
  char* memory;
  MUST(cudaMalloc(&memory, kBytes));
  const double start = seconds();
  int left_out = 0;
  const auto one = [&](int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, int layout) {
    if (seconds() - start > limit) {
      ++left_out;
    } else {
      bench(m, n, k, batch, b_broadcast, layout & 2, layout & 1, options, cublas, memory, kBytes);
    }
  };
  for (int i = 0; i < 2; ++i) one(8192, 8192, 8192, 1, false, 0);
  std::printf("---- the clock has settled ----\n");
  if (options.general_too) {
    for (const int layout : {0, 1}) {
      for (const int size : {16, 32, 64, 96, 128, 192, 256, 384, 512}) one(size, size, size, 1, false, layout);
      for (const int k : {16, 32, 64, 128, 256, 1024}) {
        one(16, 16, k, 1, false, layout);
        one(64, 64, k, 1, false, layout);
        one(256, 256, k, 1, false, layout);
        one(1024, 1024, k, 1, false, layout);
      }
      for (const int batch : {4, 16, 64, 256}) {
        one(32, 32, 32, batch, false, layout);
        one(64, 64, 64, batch, false, layout);
      }
    }
  }
  for (const int size : sizes) {
    for (int layout = 0; layout < 4; ++layout) one(size, size, size, 1, false, layout);
  }
  if (shapes) {
    for (const int layout : {0, 1}) {
      for (const int m : {16, 128, 4096}) one(m, 4096, 4096, 1, false, layout);
      for (const int m : {16, 128, 4096}) one(m, 11008, 4096, 1, false, layout);
      one(4096, 4096, 14336, 1, false, layout);
    }
    one(8192, 128, 8192, 1, false, 0);
    one(65536, 64, 64, 1, false, 0);
    one(256, 256, 65536, 1, false, 0);
    one(4096, 4096, 256, 1, false, 0);
    one(8192, 8192, 512, 1, false, 0);
    one(512, 512, 512, 64, false, 0);
    one(64, 64, 64, 1024, false, 0);
    one(1024, 1024, 512, 32, true, 0);
  }
  std::printf("%.0f s, %d shapes left out for want of time\n", seconds() - start, left_out);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> list;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) list.push_back(std::stoi(item));
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  bool benchmark = false, shapes = true, every_kernel = true;
  double limit = 50;
  std::vector<int> sizes{4096, 8192, 2048, 1024};
  BenchOptions options;
  std::vector<std::string> paths = kCublasPaths;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--bench") {
      benchmark = true;
    } else if (flag == "--no-shapes") {
      shapes = false;
    } else if (flag == "--small") {
      options.general_too = true;
      shapes = false;
      sizes.clear();
    } else if (flag == "--mma") {
      options.kernels.by_mma = true;
      every_kernel = false;
    } else if (flag == "--seconds") {
      limit = std::stod(value), ++i;
    } else if (flag == "--sizes") {
      sizes = numbers(value), ++i;
    } else if (flag == "--variants") {
      options.variants = numbers(value), ++i;
    } else if (flag == "--dtype") {
      const std::string kind = value;
      ++i;
      every_kernel = false;
      options.dtype = kind == "f16" ? kHalf : kind == "bf16" ? kBrain : kSingle;
      options.kernels.precision = kind == "tf32"     ? MatmulPrecision::tf32
                                  : kind == "tf32x3" ? MatmulPrecision::tf32x3
                                                     : MatmulPrecision::exact;
      if (options.dtype == kSingle && options.kernels.precision == MatmulPrecision::exact) {
        std::printf("--dtype %s: accepted: f16, bf16, tf32, tf32x3\n", value);
        return 2;
      }
    } else if (flag == "--cublas") {
      paths.insert(paths.begin(), value), ++i;
    } else {
      std::printf("unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines show as they come, in a file too
  MUST(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
  cudaDeviceProp properties;
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
  try {
    if (benchmark) {
      if (options.variants.empty()) options.variants = options.kernels.all_variants();
      bench_all(sizes, shapes, limit, options, Cublas(paths));
      return 0;
    }
    const bool has_wgmma = properties.major == 9 && properties.minor == 0;
    if (has_wgmma) test_refusals();
    test_refusals_of_mma();
    for (const Kernels& kernels :
         {Kernels{"16 bits"}, Kernels{"tf32", MatmulPrecision::tf32}, Kernels{"tf32x3", MatmulPrecision::tf32x3},
          Kernels{"mma", {}, true}, Kernels{"tf32 mma", MatmulPrecision::tf32, true}}) {
      const bool is_asked =
          every_kernel || (kernels.precision == options.kernels.precision && kernels.by_mma == options.kernels.by_mma);
      if (!is_asked || (!has_wgmma && !kernels.by_mma)) continue;
      test(kernels, options.variants.empty() ? kernels.all_variants() : options.variants);
    }
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed != 0;
}
