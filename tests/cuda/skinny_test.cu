/// Tests and times src/cuda/matmul/skinny/skinny.cu without Python.
///
///   skinny_test
///   skinny_test --bench [--cublas PATH] [--dtype f16|bf16|f32|f64] [--seconds 50]
///
/// Tests: small integers, whose products are exact, so that c must equal a naive kernel's bit for bit, in whatever
/// number of parts k is divided and whichever way b takes; all that surrounds a, b and the elements of c is poison, and
/// must not reach c or change. Prints "N passed, N failed". --bench: graphs of many launches over buffers that exceed
/// L2, beside cuBLAS, with the rate of a copy; starts no shape after that many seconds. Both end with "HANGS", exit
/// status 3, when a launch takes seconds.
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <memory>
#include <sstream>

#include "cuda/matmul/skinny/skinny.h"
#include "cuda/matmul/tiled/tiled.h"
#include "device_check.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

// ---- cases ----

struct Case {
  DLDataType dtype;
  int64_t m, n, k;
  bool b_k_fast = false;
  char a = 'k';          // 'k' adjacent, with aligned rows; 'o'dd rows; 'm' adjacent
  char c = 'r';          // 'r'ows; 'c'olumns; every second element of 's'trided rows
  bool flipped = false;  // given as c^T = b^T a^T
  bool float32_c = false;
  int what = 0;
  int64_t b_pad = 0;
  bool scales = false, addend = false, aux = false;
  char bias = 0;  // 'r'ow or 'c'olumn
  Activation activation = Activation::none;
  std::vector<Batch> batch = {};
};

std::string text(const Case& x) {
  std::ostringstream s;
  s << dtype_name(x.dtype) << " " << x.m << "x" << x.n << "x" << x.k << " b " << (x.b_k_fast ? 'k' : 'n') << " a "
    << x.a << " c " << x.c << (x.flipped ? " flipped" : "") << (x.float32_c ? " float32 c" : "") << " data " << x.what
    << " pad " << x.b_pad << (x.scales ? " alpha beta" : "") << (x.addend ? " addend" : "") << (x.aux ? " aux" : "")
    << (x.bias == 'r'   ? " bias row"
        : x.bias == 'c' ? " bias column"
                        : "")
    << " activation " << static_cast<int>(x.activation);
  for (const Batch& dim : x.batch) s << " batch " << dim.size << (dim.a_varies ? "a" : "") << (dim.b_varies ? "b" : "");
  return s.str();
}

struct Placed {
  Strided x{};
  int64_t elements = 0;  // from the first to the last
};

/// `step` between the elements of a row (or column, if transposed), which start `ld` apart; `varies` tells of each
/// batch dimension whether it has its own matrices.
template <typename Varies>
Placed place(int64_t rows, int64_t columns, bool transposed, int64_t ld, int64_t step, const std::vector<Batch>& batch,
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

int64_t up(int64_t x) { return (x + 7) / 8 * 8; }

template <typename T>
DLDataType dtype_of() {
  return std::is_same_v<T, __half>          ? kHalf
         : std::is_same_v<T, __nv_bfloat16> ? kBrain
         : std::is_same_v<T, float>         ? kSingle
                                            : kDouble;
}

template <typename T, typename C>
void check_case_of(const Case& x, Arena& arena) {
  const auto a_varies = [](const Batch& dim) { return dim.a_varies; };
  const auto b_varies = [](const Batch& dim) { return dim.b_varies; };
  const auto always = [](const Batch&) { return true; };
  const Placed pa =
      place(x.m, x.k, x.a == 'm', x.a == 'm' ? x.m : up(x.k) + (x.a == 'o' ? 1 : 0), 1, x.batch, a_varies);
  const Placed pb = place(x.k, x.n, x.b_k_fast, up(x.b_k_fast ? x.k : x.n) + x.b_pad, 1, x.batch, b_varies);
  const int64_t step_c = x.c == 's' ? 2 : 1;
  const Placed pc = place(x.m, x.n, x.c == 'c', (x.c == 'c' ? x.m : x.n) * step_c + 3, step_c, x.batch, always);
  int64_t matrices = 1;
  for (const Batch& dim : x.batch) matrices *= dim.size;

  arena.reset();
  const auto make = [&](int64_t elements, std::size_t item) {
    const std::size_t bytes = (elements + 2 * kGuard) * item;
    char* const memory = arena.take(bytes);
    poison(memory, bytes);
    return memory + kGuard * item;
  };
  const auto make_filled = [&](auto type, const Placed& placed, uint32_t seed) {
    using E = decltype(type);
    E* const data = reinterpret_cast<E*>(make(placed.elements, sizeof(E)));
    fill(data, placed.x, seed, x.what);
    return data;
  };
  const T *const a = make_filled(T{}, pa, 1), *const b = make_filled(T{}, pb, 2);
  C *const got = reinterpret_cast<C*>(make(pc.elements, sizeof(C))), *const want = reinterpret_cast<C*>(
                                                                         make(pc.elements, sizeof(C)));
  auto* const differences = reinterpret_cast<Differences*>(arena.take(sizeof(Differences)));

  Gemm gemm;
  Finish<C> how;
  if (x.scales) {
    how.factor = 2, how.beta = -3;
    gemm.scales = true;
    const auto set = [](ScalarValue& value, auto x) { std::memcpy(value.bytes, &x, sizeof x); };
    if (x.dtype == kDouble) {
      set(gemm.alpha, 2.), set(gemm.beta, -3.);
    } else {
      set(gemm.alpha, 2.f), set(gemm.beta, -3.f);
    }
  }
  if (x.addend) {
    const Placed placed = place(x.m, x.n, true, x.m + 1, 1, x.batch, always);
    gemm.addend = how.addend = make_filled(C{}, placed, 3);
    how.addend_x = placed.x;
    gemm.addend_strides = {placed.x.row_stride, placed.x.column_stride};
  }
  if (x.bias) {
    const bool is_row = x.bias == 'r';
    const Placed placed = place(is_row ? 1 : x.m, is_row ? x.n : 1, !is_row, is_row ? x.n : x.m, 1, {}, always);
    gemm.bias = how.bias = make_filled(C{}, placed, 4);
    how.bias_x = placed.x;
    (is_row ? how.bias_x.row_stride : how.bias_x.column_stride) = 0;
    gemm.bias_strides = {how.bias_x.row_stride, how.bias_x.column_stride};
  }
  C* got_aux = nullptr;
  const Placed pu = place(x.m, x.n, false, x.n + 5, 1, x.batch, always);
  if (x.aux) {
    how.aux = reinterpret_cast<C*>(make(pu.elements, sizeof(C)));
    how.aux_x = pu.x;
    got_aux = reinterpret_cast<C*>(make(pu.elements, sizeof(C)));
    gemm.aux = got_aux;
    gemm.aux_strides = {pu.x.row_stride, pu.x.column_stride};
  }
  gemm.activation = how.activation = x.activation;
  reference_kernel<T, C><<<2048, 64, 0, g_stream>>>(a, b, want, pa.x, pb.x, pc.x, matrices, x.k, how);
  MUST(cudaGetLastError());
  finish("the reference of " + text(x));

  gemm.dtype = gemm.b_dtype = x.dtype;
  gemm.out_dtype = dtype_of<C>();
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a = a;
  gemm.b = b;
  gemm.c = got;
  gemm.a_strides = {pa.x.row_stride, pa.x.column_stride};
  gemm.b_strides = {pb.x.row_stride, pb.x.column_stride};
  gemm.c_strides = {pc.x.row_stride, pc.x.column_stride};
  for (const Batch& dim : x.batch) {
    const int i = gemm.batch_ndim++;
    gemm.batch[i] = {dim.size,        pa.x.strides[i],         pb.x.strides[i],
                     pc.x.strides[i], how.addend_x.strides[i], how.aux_x.strides[i]};
  }
  if (x.flipped) tiled::transpose(gemm);

  // Of sums of k products in [-1, 1]; gelu is no integer.
  const bool exact = x.what != 1 && x.activation != Activation::gelu && x.activation != Activation::gelu_tanh;
  const double absolute = exact ? 0 : x.what != 1 ? 1e-3 : x.k * (x.dtype == kDouble ? 1e-15 : 1e-6);
  const double rounding = sizeof(C) >= 4 ? 0 : std::is_same_v<C, __half> ? 1. / 1024 : 1. / 128;
  const auto compare = [&](const std::string& name, const C* ours, const C* theirs, const Placed& placed,
                           bool bit_for_bit) {
    const int64_t pitch = std::max(placed.x.row_stride, placed.x.column_stride);
    const std::string wrong = difference(name, ours, theirs, placed.elements, pitch, bit_for_bit ? 0 : rounding,
                                         bit_for_bit ? 0 : absolute, differences);
    return expect(wrong.empty(), name + wrong);
  };
  const auto check = [&](const std::string& name, auto launch) {
    poison(got - kGuard, (pc.elements + 2 * kGuard) * sizeof(C));
    if (got_aux) poison(got_aux - kGuard, (pu.elements + 2 * kGuard) * sizeof(C));
    launch();
    if (!compare(name, got, want, pc, exact)) return false;
    return !got_aux || compare(name + ": aux", got_aux, how.aux, pu, exact);
  };

  // As a caller has it launched, if it is large enough to come here.
  const std::size_t kWorkspace = std::size_t{33} << 20;
  void* const workspace = arena.take(kWorkspace);
  if (x.n * x.k * matrices >= 64 * 1024) {
    const MatmulPlan plan = plan_matmul(gemm, {MatmulBackend::tiled});
    const std::string algorithm = describe(gemm, plan);
    if (!expect(algorithm.compare(0, 13, "tiled skinny ") == 0, text(x) + ": is computed by " + algorithm)) return;
    expect(plan.workspace_bytes <= kWorkspace, text(x) + ": asks for " + std::to_string(plan.workspace_bytes));
    if (!check(text(x) + ", as planned", [&] { launch_matmul(gemm, plan, workspace, g_stream); })) return;
    if (x.what == 1) {
      MUST(cudaMemcpyAsync(want - kGuard, got - kGuard, (pc.elements + 2 * kGuard) * sizeof(C),
                           cudaMemcpyDeviceToDevice, g_stream));
      for (int i = 0; i < 3; ++i) {
        launch_matmul(gemm, plan, workspace, g_stream);
        compare(text(x) + ", once more", got, want, pc, true);
      }
      return;
    }
  }
  for (const skinny::Way way : {skinny::Way::registers, skinny::Way::shared_memory}) {
    const bool streamed = way == skinny::Way::shared_memory;
    if (streamed && !skinny::may_stream(gemm)) continue;
    for (const int parts : {1, 2, 7}) {
      poison(workspace, skinny::workspace_bytes(gemm, parts));
      if (!check(text(x) + (streamed ? ", streamed" : "") + ", in parts: " + std::to_string(parts),
                 [&] { skinny::launch(gemm, parts, workspace, g_stream, way); })) {
        return;
      }
    }
  }
}

void check_case(const Case& x, Arena& arena) {
  if (x.dtype == kHalf) {
    x.float32_c ? check_case_of<__half, float>(x, arena) : check_case_of<__half, __half>(x, arena);
  } else if (x.dtype == kBrain) {
    x.float32_c ? check_case_of<__nv_bfloat16, float>(x, arena) : check_case_of<__nv_bfloat16, __nv_bfloat16>(x, arena);
  } else if (x.dtype == kSingle) {
    check_case_of<float, float>(x, arena);
  } else {
    check_case_of<double, double>(x, arena);
  }
}

std::vector<Case> cases() {
  using Batches = std::vector<Batch>;
  std::vector<Case> list;
  // From the simplest on, so that the first failure says most.
  for (const DLDataType dtype : {kSingle, kDouble, kHalf, kBrain}) {
    for (const bool b_k_fast : {true, false}) {
      const auto add = [&](int64_t m, int64_t n, int64_t k, auto change) {
        Case x{dtype, m, n, k, b_k_fast};
        change(x);
        list.push_back(x);
      };
      const auto as_is = [](Case&) {};
      for (int m = 1; m <= 16; ++m) {
        for (const int64_t n : {b_k_fast ? 1 : 8, b_k_fast ? 33 : 40, b_k_fast ? 129 : 136, b_k_fast ? 1001 : 1000}) {
          for (const int64_t k : {1, 5, 64, 160, 257, 1023, 4096}) add(m, n, k, as_is);
        }
      }
      for (const int m : {1, 2, 3, 5, 8, 9, 16}) {
        for (const int64_t more : {-200, -140, 1000}) {   // by each of the kernels, for a short k and for a long one
          const int64_t columns = more < 0 ? 1048 : 136;  // of a matrix in a batch; a small one would not be theirs
          add(m, 1000, more + 300, [](Case& x) { x.a = 'o'; });
          add(m, 1000, more + 300, [](Case& x) { x.a = 'm'; });
          add(m, 1000, more + 303, [](Case& x) { x.a = 'm'; });
          add(m, 1000, more + 300, [](Case& x) { x.b_pad = 16; });
          for (const char c : {'r', 'c', 's'}) {
            for (const bool flipped : {false, true}) {
              add(m, 1000, more + 301, [&](Case& x) { x.c = c, x.flipped = flipped; });
              add(m, 1000, more + 301, [&](Case& x) { x.c = c, x.flipped = flipped, x.float32_c = true; });
              add(m, 1000, more + 301, [&](Case& x) {
                x.c = c, x.flipped = flipped, x.addend = true, x.scales = true, x.bias = 'r', x.aux = true;
                x.activation = Activation::relu;
              });
            }
          }
          add(m, 1000, more + 301, [](Case& x) { x.bias = 'c'; });
          add(m, 1000, more + 301, [](Case& x) { x.activation = Activation::gelu, x.what = 0; });
          add(m, 1000, more + 301, [](Case& x) { x.activation = Activation::gelu_tanh, x.aux = true; });
          add(m, columns, more + 264, [](Case& x) { x.batch = Batches{{5, true, true}}; });
          add(m, columns, more + 264, [](Case& x) { x.batch = Batches{{5, true, false}}; });
          add(m, columns, more + 264, [](Case& x) { x.batch = Batches{{5, false, true}}; });
          add(m, columns, more + 263, [](Case& x) {
            x.batch = Batches{{3, true, false}, {2, false, true}, {4, true, true}, {2, true, true}};
            x.addend = true, x.aux = true;
          });
        }
        for (const int64_t k : {1023, 4097, 65535}) add(m, 24, k, [](Case& x) { x.what = 2, x.float32_c = true; });
        add(m, 2000, 4096, [](Case& x) { x.what = 1; });
        add(m, 24, 65536, [](Case& x) { x.what = 1; });
        add(m, 4096, 1000, [](Case& x) { x.what = 1, x.flipped = true; });
        add(m, 70000, 64, as_is);
      }
    }
  }
  return list;
}

/// What must be left to the other kernels.
void test_refusals() {
  const auto served = [](auto change) {
    Gemm g;
    g.dtype = g.b_dtype = g.out_dtype = kSingle;
    g.m = 4;
    g.n = g.k = 1024;
    g.a = g.b = reinterpret_cast<void*>(4096);
    g.c = reinterpret_cast<void*>(8192);
    g.a_strides = g.b_strides = g.c_strides = {1024, 1};
    change(g);
    return skinny::serves(g);
  };
  expect(served([](Gemm&) {}), "the plain product is served");
  expect(served([](Gemm& g) { tiled::transpose(g); }), "its transpose is served");
  expect(served([](Gemm& g) { g.a_strides = {1025, 3}; }), "any strides of a are served");
  expect(served([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }), "any address of a is served");
  expect(served([](Gemm& g) { g.b_strides = {1028, 1}; }), "aligned rows of b are served");
  expect(!served([](Gemm& g) { g.m = 17; }), "17 rows");
  expect(!served([](Gemm& g) { g.b_strides = {1025, 1}; }), "odd rows of b");
  expect(!served([](Gemm& g) { g.n = 1023; }), "rows of b that end within a vector");
  expect(!served([](Gemm& g) { g.b_strides = {2048, 2}; }), "no unit stride in b");
  expect(!served([](Gemm& g) { g.b = reinterpret_cast<void*>(4100); }), "b not aligned");
  expect(!served([](Gemm& g) { g.k = 0; }), "k = 0");
  expect(!served([](Gemm& g) { g.k = 8; }), "a small product");
  expect(!served([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = {kDLInt, 32, 1}; }), "int32");
  expect(!served([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = {kDLComplex, 64, 1}; }), "complex64");
  expect(!served([](Gemm& g) {
    g.dtype = g.out_dtype = kHalf;
    g.b_dtype = kBrain;
  }),
         "float16 beside bfloat16");
  expect(!served([](Gemm& g) {
    g.batch_ndim = 1;
    g.batch[0] = {2, 4096, 1025, 4096, 0, 0};
  }),
         "odd matrices of b");

  expect(served([](Gemm& g) {
           g.n = 128, g.k = 64;
           g.batch_ndim = 1;
           g.batch[0] = {100, 4096, 8192, 512, 0, 0};
         }),
         "matrices of medium size are served");
  expect(!served([](Gemm& g) {
    g.n = 32, g.k = 64;
    g.batch_ndim = 1;
    g.batch[0] = {100'000, 256, 2048, 128, 0, 0};
  }),
         "many small matrices");

  Gemm g;
  g.dtype = g.b_dtype = g.out_dtype = kSingle;
  g.m = 1, g.n = 32770, g.k = 4096;
  g.a = g.b = reinterpret_cast<void*>(4096);
  g.c = reinterpret_cast<void*>(8192);
  g.a_strides = g.c_strides = {g.k, 1}, g.b_strides = {1, g.k};
  g.batch_ndim = 1;
  g.batch[0] = {1 << 16, g.k, 0, g.n, 0, 0};
  const auto is_dots = [&] { return skinny::serves(g) && skinny::describe(g).compare(0, 12, "skinny dots ") == 0; };
  expect(is_dots(), "dot products of a large batch");
  g.batch[0].size = 1 << 18;
  expect(skinny::serves(g) && !is_dots(), "dot products with more blocks than a grid has");
}

void test() {
  Arena arena;
  const double start = seconds();
  double next = start + 5;
  const std::vector<Case> all = cases();
  for (std::size_t i = 0; i < all.size() && g_failed < 50; ++i) {
    check_case(all[i], arena);
    if (seconds() < next) continue;
    next += 5;
    std::printf("%.0f s: %d of %d cases\n", seconds() - start, static_cast<int>(i + 1), static_cast<int>(all.size()));
  }
}

// ---- the benchmark ----

/// Bytes that a copy reads and writes, in a second.
double copy_rate(char* memory, std::size_t bytes) {
  const std::size_t half = bytes / 2;
  Repeats copy("copy", 4,
               [&](int) { MUST(cudaMemcpyAsync(memory + half, memory, half, cudaMemcpyDeviceToDevice, g_stream)); });
  for (int i = 0; i < 10; ++i) copy.replay();
  return 2. * half / copy.median();
}

template <typename T>
void fill_bytes(char* memory, std::size_t bytes) {
  fill(reinterpret_cast<T*>(memory), {1, static_cast<int64_t>(bytes / sizeof(T)), 0, 1, 0, {}, {}}, 3, 1);
}

void bench(DLDataType dtype, int64_t m, int64_t n, int64_t k, bool b_k_fast, const Cublas& cublas, char* memory,
           std::size_t bytes, double rate) {
  const int64_t item = item_bytes(dtype);
  const auto round = [](int64_t size) { return static_cast<std::size_t>((size + 255) / 256 * 256); };
  const std::size_t a_bytes = round(m * k * item), b_bytes = round(k * n * item), c_bytes = round(m * n * item);
  const std::size_t set_bytes = a_bytes + b_bytes + c_bytes;
  const int sets =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{160} << 20) / set_bytes + 1, 1, bytes / set_bytes));
  const int repeats = std::clamp(static_cast<int>(2e-3 * 2.5e12 / set_bytes), 4, 200);
  constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  char* const workspace = memory + bytes;
  const auto make = [&](int i) {
    char* const set = memory + i % sets * set_bytes;
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = set;
    gemm.b = set + a_bytes;
    gemm.c = set + a_bytes + b_bytes;
    gemm.a_strides = {k, 1};
    gemm.b_strides = b_k_fast ? MatrixStrides{1, k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    return gemm;
  };
  if (!skinny::serves(make(0))) return;
  // Outputs land among the inputs of the next case: fill anew.
  dtype == kHalf     ? fill_bytes<__half>(memory, sets * set_bytes)
  : dtype == kBrain  ? fill_bytes<__nv_bfloat16>(memory, sets * set_bytes)
  : dtype == kSingle ? fill_bytes<float>(memory, sets * set_bytes)
                     : fill_bytes<double>(memory, sets * set_bytes);
  finish("filling the buffers");

  std::printf("%s %lldx%lldx%lld, b %s, chosen: %s\n", dtype_name(dtype).c_str(), (long long)m, (long long)n,
              (long long)k, b_k_fast ? "k adjacent" : "n adjacent", skinny::describe(make(0)).c_str());
  std::vector<std::unique_ptr<Repeats>> rows;
  if (cublas) rows.push_back(std::make_unique<Repeats>("cuBLAS", repeats, [&](int i) { cublas.launch(make(i)); }));
  for (const skinny::Way way : {skinny::Way::registers, skinny::Way::shared_memory}) {
    const bool streamed = way == skinny::Way::shared_memory;
    if (streamed && !skinny::may_stream(make(0))) continue;
    const int own = skinny::parts(make(0), kWorkspace, way);  // starred
    std::vector<int> tried{own};
    for (const int parts : {1, 2, 3, 4}) {
      if (parts != own) tried.push_back(parts);
    }
    for (const int parts : tried) {
      if (skinny::workspace_bytes(make(0), parts) > kWorkspace) continue;
      rows.push_back(std::make_unique<Repeats>((streamed ? "streamed, " : "") + std::to_string(parts) +
                                                   (parts == 1 ? " part" : " parts") + (parts == own ? " *" : ""),
                                               repeats, [&workspace, &make, parts, way](int i) {
                                                 skinny::launch(make(i), parts, workspace, g_stream, way);
                                               }));
    }
  }
  replay_in_turn(rows);
  const double base = rows[0]->median(), moved = static_cast<double>(m * k + k * n + m * n) * item;
  for (auto& row : rows) {
    const double time = row->median();
    std::printf("  %-20s %9.2f us %7.0f GB/s  %.2f of a copy  x%.3f\n", row->name.c_str(), time * 1e6,
                moved / time / 1e9, moved / time / rate, base / time);
  }
}

void bench_all(const std::vector<DLDataType>& dtypes, double limit, const Cublas& cublas) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  char* memory;
  MUST(cudaMalloc(&memory, kBytes + (std::size_t{32} << 20)));
  MUST(cudaMemsetAsync(memory, 1, kBytes, g_stream));
  const double rate = copy_rate(memory, kBytes);
  std::printf("a copy: %.0f GB/s\n", rate / 1e9);
  const double start = seconds();
  int left_out = 0;
  struct Size {
    int64_t n, k;
  };
  for (const Size size : {Size{4096, 4096}, {11008, 4096}, {4096, 14336}, {576, 7168}, {24, 65536}, {65536, 64}}) {
    for (const DLDataType dtype : dtypes) {
      for (const bool b_k_fast : {true, false}) {
        for (const int64_t m : {1, 2, 4, 8, 16}) {
          if (seconds() - start > limit) {
            ++left_out;
          } else {
            bench(dtype, m, size.n, size.k, b_k_fast, cublas, memory, kBytes, rate);
          }
        }
      }
    }
  }
  std::printf("%.0f s, %d shapes left out for want of time\n", seconds() - start, left_out);
}

}  // namespace

int main(int argc, char** argv) {
  bool benchmark = false;
  double limit = 50;
  std::vector<DLDataType> dtypes{kSingle, kBrain, kHalf, kDouble};
  std::vector<std::string> paths = kCublasPaths;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--bench") {
      benchmark = true;
    } else if (flag == "--seconds") {
      limit = std::stod(value), ++i;
    } else if (flag == "--dtype") {
      dtypes = {value == "f16" ? kHalf : value == "bf16" ? kBrain : value == "f64" ? kDouble : kSingle}, ++i;
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
      bench_all(dtypes, limit, Cublas(paths));
      return 0;
    }
    test_refusals();
    test();
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed != 0;
}
