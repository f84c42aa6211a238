/// Integer products on the tensor cores of sm_90, exact and wrapping. Integers are taken as sums of bytes.
///
/// With x = sum of 256^i x_i, a @ b is the sum over s of 256^s G_s, where G_s is the sum of a_i @ b_j over i + j = s.
/// Of a result of w bytes only s < w matters, and the sums may wrap, so Horner's rule does it in one accumulator: from
/// the largest s down, multiply by 256 and add G_s. Each a_i @ b_j is one pass over k of wgmma on bytes. That is the
/// integer case of the splitting of Ootomo, Ozaki and Yokota (DGEMM on integer matrix multiplication unit, 2024).
#include "cuda/matmul/wgmma/integers.h"

#include <interop/error.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/pack.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/wgmma/wgmma.cuh"

namespace interop::cuda::wgmma {
namespace {

// ---- the kernel's arguments ----

constexpr int kMaxPasses = 36;  // of 64 bits: i + j < 8

/// One product of bytes.
struct Pass {
  int8_t a, b;              // which bytes, counted from the lowest
  bool a_signed, b_signed;  // the highest byte of a signed integer that is narrower than the result
  bool shifts;              // is it the first pass of its s, but not of all passes?
};

struct IntegerArgs {
  CUtensorMap a, b;
  Grid grid;
  OutputArgs c;
  FinishArgs finish;
  int passes;
  int plane;  // bytes from the lowest byte of an element to its next one, in a row
  Pass pass[kMaxPasses];
};

/// Two warpgroups have 64 x N outputs each, and one loads.
template <int N, int Stages, typename Sum, bool Mixed>
struct IntegerShape {
  using Total = Sum;                     // uint32_t; or uint64_t, to which the sums of each pass are added
  static constexpr bool kMixed = Mixed;  // may bytes be signed?
  static constexpr int kStages = Stages, kCluster = 1, kM = 128, kN = N;
  static constexpr int kBytesA = kM * kRowBytes, kBytesB = kN * kRowBytes, kStageBytes = kBytesA + kBytesB;
  static constexpr int kBoxBytes = 64 * kRowBytes;
  static constexpr int kStoreBytes = 2 * 2 * kBoxBytes;
  static constexpr int kShared = 1024 + kStages * kStageBytes + kStoreBytes + 8 * (2 * kStages + 2);
  static constexpr int kReaders = 8;
  static_assert(kShared <= 227 * 1024 && kCluster == 1 && kReaders <= 128);
  static_assert(!kMixed || sizeof(Sum) == 4, "what is added up in 64 bits has no narrower bytes");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename S>
__device__ __forceinline__ void load_bytes(const IntegerArgs& args, const Memory<S>& memory) {
  sm90::prefetch_map(&args.a);
  sm90::prefetch_map(&args.b);
  Ring<S::kStages> ring;
  for (int unit = blockIdx.x; unit < args.grid.units; unit += gridDim.x) {
    const Tile tile = tile_at<S>(args.grid, unit, 0);
    sm90::Coordinates a = matrix_of_a(args.grid, tile), b = matrix_of_b(args.grid, tile);
    a.outer = tile.row;
    b.outer = tile.column;
    for (int pass = 0; pass < args.passes; ++pass) {
      a.inner = args.pass[pass].a * args.plane;
      b.inner = args.pass[pass].b * args.plane;
      for (int k_tile = 0; k_tile < args.grid.k_tiles; ++k_tile) {
        const uint32_t full = memory.full(ring.stage);
        sm90::wait(memory.empty(ring.stage), ring.parity ^ 1);
        sm90::expect_bytes(full, S::kStageBytes);
        sm90::load_box(memory.a(ring.stage), &args.a, full, a);
        sm90::load_box(memory.b(ring.stage), &args.b, full, b);
        a.inner += kRowBytes;
        b.inner += kRowBytes;
        ring.advance();
      }
    }
  }
}

/// Run by one warpgroup: sums += its 64 rows of a by all columns of b, over the next `k_tiles` of a pass.
template <typename S, bool ASigned, bool BSigned>
__device__ __forceinline__ void multiply_bytes(int k_tiles, const Memory<S>& memory, Ring<S::kStages>& ring, int block,
                                               uint32_t (&sums)[S::kN / 2]) {
  constexpr int kAtom = 1024;  // 8 rows of 128 bytes
  sm90::pin(sums);
  int previous = 0;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    sm90::wait(memory.full(ring.stage), ring.parity);
    const uint64_t a = sm90::descriptor(memory.a(ring.stage) + block * S::kBoxBytes, S::kBoxBytes, kAtom);
    const uint64_t b = sm90::descriptor(memory.b(ring.stage), S::kBoxBytes, kAtom);
    sm90::begin_products();
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k) {
      sm90::product_of_bytes<ASigned, BSigned, S::kN>(sums, a + k * 2, b + k * 2);
    }
    sm90::end_products();
    sm90::wait_for_products<1>();
    if (k_tile > 0) free_stage(memory, previous);
    previous = ring.stage;
    ring.advance();
  }
  sm90::wait_for_products<0>();
  sm90::pin(sums);
  free_stage(memory, previous);
}

template <typename S>
__device__ __forceinline__ void multiply_pass(const Pass& pass, int k_tiles, const Memory<S>& memory,
                                              Ring<S::kStages>& ring, int block, uint32_t (&sums)[S::kN / 2]) {
  if constexpr (S::kMixed) {
    if (pass.a_signed && pass.b_signed) return multiply_bytes<S, true, true>(k_tiles, memory, ring, block, sums);
    if (pass.a_signed) return multiply_bytes<S, true, false>(k_tiles, memory, ring, block, sums);
    if (pass.b_signed) return multiply_bytes<S, false, true>(k_tiles, memory, ring, block, sums);
  }
  multiply_bytes<S, false, false>(k_tiles, memory, ring, block, sums);
}

/// 512 k tiles of bytes add up to less than 2^32: 512 * 128 * 255^2.
constexpr int kPartTiles = 512;

template <typename S>
__device__ __forceinline__ void multiply_all(const IntegerArgs& args, const Memory<S>& memory, Ring<S::kStages>& ring,
                                             int block, typename S::Total (&totals)[S::kN / 2]) {
#pragma unroll
  for (int j = 0; j < S::kN / 2; ++j) totals[j] = 0;
#pragma unroll 1
  for (int at = 0; at < args.passes; ++at) {
    const Pass pass = args.pass[at];
    const int shift = pass.shifts ? 8 : 0;
#pragma unroll
    for (int j = 0; j < S::kN / 2; ++j) totals[j] <<= shift;
    if constexpr (sizeof(typename S::Total) == 4) {
      multiply_pass<S>(pass, args.grid.k_tiles, memory, ring, block, totals);
    } else {
#pragma unroll 1
      for (int left = args.grid.k_tiles; left > 0; left -= kPartTiles) {
        uint32_t part[S::kN / 2];
#pragma unroll
        for (int j = 0; j < S::kN / 2; ++j) part[j] = 0;
        multiply_pass<S>(pass, min(left, kPartTiles), memory, ring, block, part);
#pragma unroll
        for (int j = 0; j < S::kN / 2; ++j) totals[j] += part[j];
      }
    }
  }
}

// ---- storing ----

/// Loads the first `count` values from a row of an array of the result's shape.
template <typename Sum, int Count>
__device__ __forceinline__ void load_values(Sum (&values)[Count], const tiled::Place& from, int count, Format format) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    values[i] = i < count ? tiled::load_as<Sum>(from.data + i * from.step, format) : 0;
  }
}

template <typename Sum, int Count>
__device__ __forceinline__ void store_values(const tiled::Place& to, const Sum (&values)[Count], int count,
                                             Format format) {
  if (format == Format::plain && count == Count && to.step == sizeof(Sum) &&
      reinterpret_cast<uintptr_t>(to.data) % 16 == 0) {
    *reinterpret_cast<uint4*>(to.data) = reinterpret_cast<const uint4&>(values);
    return;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    if (i < count) tiled::store_as<Sum>(to.data + i * to.step, format, values[i]);
  }
}

/// Finishes and stores one warpgroup's outputs. 64 rows of 256 bytes at a time go through shared memory, so that a
/// thread then has neighbours of a row, and the stores are coalesced. `row` is the first row.
template <typename S>
__device__ __forceinline__ void store_integers(const IntegerArgs& args, const Memory<S>& memory, int warpgroup,
                                               const typename S::Total (&sums)[S::kN / 2], const Tile& tile, int row) {
  using Sum = typename S::Total;
  constexpr int kCount = 16 / sizeof(Sum);     // of a vector
  constexpr int kColumns = 256 / sizeof(Sum);  // of a box
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const uint32_t buffer = memory.c(warpgroup);
  // Vectors are swizzled, so that lanes that write different rows at a time write to different banks.
  const auto vector = [buffer](int box_row, int index) {
    const int turned = sizeof(Sum) == 4 ? box_row % 4 * 2 : box_row % 2 * 4;
    return buffer + box_row * 256 + (index ^ turned) * 16;
  };
  const FinishArgs& how = args.finish;
  const Sum alpha = how.scales ? *reinterpret_cast<const Sum*>(how.alpha) : 1;
  const Sum beta = how.scales ? *reinterpret_cast<const Sum*>(how.beta) : 1;
#pragma unroll 1
  for (int box = 0; box < S::kN / kColumns; ++box) {
    const int first_column = tile.column + box * kColumns;
    if (row >= args.grid.m || first_column >= args.grid.n) continue;  // for all threads alike
    sm90::named_barrier(1 + warpgroup, 128);                          // all have read the box before
#pragma unroll
    for (int i = 0; i < S::kN / kColumns; ++i) {  // registers cannot be indexed
      if (i != box) continue;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const Sum* const x = &sums[(i * kColumns / 8 + j) * 4];
        const int box_row = thread / 32 * 16 + lane / 4;
        const int index = (j * 8 + lane % 4 * 2) / kCount;
        const uint32_t within = sizeof(Sum) == 4 ? lane % 2 * 8 : 0;
        sm90::store_pair(vector(box_row, index) + within, x[0], x[1]);
        sm90::store_pair(vector(box_row + 8, index) + within, x[2], x[3]);
      }
    }
    sm90::named_barrier(1 + warpgroup, 128);
    const int column = first_column + thread % 16 * kCount;
    const int count = min(args.grid.n - column, kCount);
#pragma unroll 2
    for (int box_row = thread / 16; box_row < 64; box_row += 8) {
      alignas(16) Sum values[kCount];
      sm90::load_vector(values, vector(box_row, thread % 16));
      if (row + box_row >= args.grid.m || count <= 0) continue;
      Sum added[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] *= alpha;
      if (const tiled::Place addend = tiled::place_in(how.addend, tile.batch, row + box_row, column); addend.data) {
        load_values(added, addend, count, how.format);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] += beta * added[i];
      }
      if (const tiled::Place bias = tiled::place_in(how.bias, tile.batch, row + box_row, column); bias.data) {
        load_values(added, bias, count, how.format);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] += added[i];
      }
      store_values(tiled::place_in(args.c, tile.batch, row + box_row, column), values, count, how.format);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// integer_kernel: c = a @ b for every matrix of the batch, of integers modulo 2^32 or 2^64.
//   in      a: rows of k bytes, all lowest ones, then all next ones...; b: the same for its columns; by tensor maps
//   out     c (m, n) of any strides, finished as `FinishArgs` says
//   launch  one block of kThreads per SM, or per tile where those are fewer; kShared dynamic shared memory
template <typename S>
__global__ void __launch_bounds__(kThreads, 1) integer_kernel(const __grid_constant__ IntegerArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  const Memory<S> memory{(sm90::shared_address(shared) + 1023) & ~uint32_t{1023}};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      sm90::init_barrier(memory.full(i), 1);
      sm90::init_barrier(memory.empty(i), S::kReaders);
    }
    sm90::publish_barriers();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // tells the compiler that it is uniform in a warp
  if (warpgroup < 0) {
    sm90::fewer_registers<40>();
    if (threadIdx.x == 0) load_bytes<S>(args, memory);
  } else {
    sm90::more_registers<232>();
    Ring<S::kStages> ring;
    for (int unit = blockIdx.x; unit < args.grid.units; unit += gridDim.x) {
      typename S::Total totals[S::kN / 2];
      multiply_all<S>(args, memory, ring, warpgroup, totals);
      const Tile tile = tile_at<S>(args.grid, unit, 0);
      store_integers<S>(args, memory, warpgroup, totals, tile, tile.row + warpgroup * 64);
    }
  }
#endif
}

// ---- the variants ----

/// A shape and its speed.
struct Variant {
  const char* name;
  rates::TileTime time;
  int n, shared_bytes;
  Kernel* kernels[2];  // by [are there signed bytes?]
};

template <typename S>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&integer_kernel<S>), S::kShared);
  return &kernel;
}

constexpr int kM = 128;  // of all tiles

template <int N, int Stages>
Variant of_32_bits(const char* name, const rates::TileTime& time) {
  return {
      name,
      time,
      N,
      IntegerShape<N, Stages, uint32_t, false>::kShared,
      {kernel_of<IntegerShape<N, Stages, uint32_t, false>>(), kernel_of<IntegerShape<N, Stages, uint32_t, true>>()}};
}

template <int N, int Stages>
Variant of_64_bits(const char* name, const rates::TileTime& time) {
  using S = IntegerShape<N, Stages, uint64_t, false>;
  return {name, time, N, S::kShared, {kernel_of<S>(), kernel_of<S>()}};
}

struct Variants {
  const Variant* first;
  int count;
};

/// The smallest last.
Variants integer_variants(const Gemm& gemm) {
  static const Variant narrow[] = {
      of_32_bits<256, 4>("128x256x128", rates::kBytes_128x256),
      of_32_bits<128, 6>("128x128x128", rates::kBytes_128x128),
      of_32_bits<64, 8>("128x64x128", rates::kBytes_128x64),
  };
  static const Variant wide[] = {
      of_64_bits<128, 6>("128x128x128", rates::kWideBytes_128x128),
      of_64_bits<64, 8>("128x64x128", rates::kWideBytes_128x64),
  };
  if (gemm.out_dtype.bits == 64) return {wide, 2};
  return {narrow, 3};
}

// ---- planning ----

int bytes_of(DLDataType dtype) { return dtype.bits / 8; }

/// The products of bytes that make the result, in Horner's order.
int set_passes(Pass* passes, const Gemm& gemm) {
  const int width = bytes_of(gemm.dtype), out = bytes_of(gemm.out_dtype);
  const int planes = std::min(width, out);
  int count = 0;
  for (int s = std::min(out - 1, 2 * (planes - 1)); s >= 0; --s) {
    const int first = count;
    for (int a = std::max(0, s - (planes - 1)); a <= std::min(planes - 1, s); ++a) {
      const int b = s - a;
      const auto is_signed = [&](DLDataType dtype, int at) {
        return dtype.code == kDLInt && at == width - 1 && width < out;
      };
      passes[count] = {static_cast<int8_t>(a), static_cast<int8_t>(b), is_signed(gemm.dtype, a),
                       is_signed(gemm.b_dtype, b), count == first && first > 0};
      ++count;
    }
  }
  return count;
}

int pass_count(const Gemm& gemm) {
  Pass passes[kMaxPasses];
  return set_passes(passes, gemm);
}

bool has_signed(const Pass* passes, int count) {
  return std::any_of(passes, passes + count, [](const Pass& pass) { return pass.a_signed || pass.b_signed; });
}

bool is_pair_of_integers(const Gemm& gemm) {
  return is_integral(gemm.dtype) && is_integral(gemm.b_dtype) && is_integral(gemm.out_dtype) &&
         gemm.dtype.bits == gemm.b_dtype.bits && gemm.dtype.lanes == 1;
}

/// Does TMA read these bytes along k directly? Any byte but 0 is a true bool, so bool is read only where the sums stay
/// below 2^32.
bool is_read(const Gemm& gemm, DLDataType dtype, const void* data, int64_t mn, const MatrixStrides& strides,
             int64_t BatchDim::* stride) {
  constexpr int64_t kVector = 16;
  if (dtype.bits != 8 || (dtype.code == kDLBool && gemm.k > (int64_t{1} << 16))) return false;
  if (!is_tma_address(data) || (strides.column != 1 && gemm.k > 1)) return false;
  if (mn > 1 && !is_tma_stride(strides.row, kVector)) return false;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    const int64_t step = gemm.batch[i].*stride;
    if (step != 0 && !is_tma_stride(step, kVector)) return false;
  }
  return true;
}

bool reads_a(const Gemm& gemm) {
  return is_read(gemm, gemm.dtype, gemm.a, gemm.m, gemm.a_strides, &BatchDim::a_stride);
}
bool reads_b(const Gemm& gemm) {
  return is_read(gemm, gemm.b_dtype, gemm.b, gemm.n, {gemm.b_strides.column, gemm.b_strides.row}, &BatchDim::b_stride);
}

int64_t k_tiles_of(const Gemm& gemm) { return ceil_div(gemm.k, kRowBytes); }

/// Launches the matrices of batch dimensions [first, batch_ndim), at most kBatchDims of them. `gemm` has bytes, `k` of
/// them in a row; `args` has the passes.
void launch_batch(IntegerArgs args, const Gemm& gemm, int first, int64_t k, const Variant& variant, int multiprocessors,
                  cudaStream_t stream) {
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  MapSpec specs[3];
  set_grid(args.grid, specs, args.c, args.finish, gemm, first, kM, variant.n, 1);
  args.grid.k_tiles = static_cast<int>(k_tiles_of(gemm));
  const auto set_rows = [k](MapSpec& spec, const void* data, int64_t mn, int64_t stride, int box) {
    spec.data = data;
    spec.inner = k;
    spec.outer = mn;
    spec.outer_stride = mn > 1 ? stride : 16;
    spec.box_outer = box;
  };
  set_rows(specs[0], gemm.a, gemm.m, gemm.a_strides.row, kM);
  set_rows(specs[1], gemm.b, gemm.n, gemm.b_strides.column, variant.n);
  encode(args.a, specs[0], CU_TENSOR_MAP_DATA_TYPE_UINT8);
  encode(args.b, specs[1], CU_TENSOR_MAP_DATA_TYPE_UINT8);
  launch_tiles(*variant.kernels[has_signed(args.pass, args.passes)], &args, args.grid, 1, variant.shared_bytes,
               multiprocessors, stream);
}

}  // namespace

std::size_t largest_integer_packing(const Gemm& gemm, std::size_t most_packed_bytes) {
  if (!is_pair_of_integers(gemm) || !is_countable(gemm, 8) || !is_built_for_sm90a()) return 0;
  const std::size_t bytes = packed_bytes(gemm, !reads_a(gemm), !reads_b(gemm), Packed::bytes);
  return bytes <= most_packed_bytes ? bytes : 0;
}

std::optional<MatmulPlan> plan_integers(const Gemm& gemm, std::size_t most_packed_bytes, const Device& device) {
  if (!is_pair_of_integers(gemm) || !is_countable(gemm, 8) || !device.has_sm90a_code()) return std::nullopt;
  MatmulPlan plan;
  plan.family = MatmulFamily::wgmma_integers;
  plan.packs_a = !reads_a(gemm);
  plan.packs_b = !reads_b(gemm);
  if (!can_pack(gemm, plan.packs_a, plan.packs_b)) return std::nullopt;
  plan.workspace_bytes = packed_bytes(gemm, plan.packs_a, plan.packs_b, Packed::bytes);
  if (plan.workspace_bytes > most_packed_bytes) return std::nullopt;
  plan.multiprocessors = device.multiprocessors();
  return plan;
}

Estimate choose_integers(const Gemm& gemm, const Device& device) {
  const int sms = device.multiprocessors();
  const int64_t count = matrices(gemm);
  const auto k_tiles = static_cast<double>(k_tiles_of(gemm) * pass_count(gemm));
  const Variants all = integer_variants(gemm);
  Estimate best{all.count - 1, std::numeric_limits<double>::infinity()};
  for (int i = all.count - 1; i >= 0; --i) {  // the largest of equally quick ones
    const Variant& variant = all.first[i];
    const int64_t tiles = ceil_div(gemm.m, kM) * ceil_div(gemm.n, variant.n) * count;
    const double us =
        static_cast<double>(ceil_div(tiles, sms)) * (k_tiles * variant.time.k_tile_us + variant.time.store_us);
    if (us <= best.us) best = {i, us};
  }
  return best;
}

void launch_integer_variant(int variant, const Gemm& asked, const MatmulPlan& plan, void* workspace,
                            cudaStream_t stream) {
  IntegerArgs args{};
  args.passes = set_passes(args.pass, asked);
  const Packing packed = packing_of_a(asked, Packed::bytes);
  args.plane = static_cast<int>(packed.plane());
  const int64_t k = packed.planes == 1 ? asked.k : packed.row();
  Gemm gemm = asked;
  pack(gemm, plan.packs_a, plan.packs_b, Packed::bytes, workspace, stream);
  gemm.dtype = gemm.b_dtype = {kDLUInt, 8, 1};
  const int walked = std::max(0, gemm.batch_ndim - kBatchDims);
  tiled::walk_batch(gemm, walked, [&](const Gemm& part) {
    launch_batch(args, part, walked, k, integer_variants(asked).first[variant], plan.multiprocessors, stream);
  });
}

std::string describe_integers(const Gemm& gemm, int variant) {
  const int passes = pass_count(gemm);
  return std::string("wgmma ") + integer_variant_name(gemm, variant) + " of bytes, " + std::to_string(passes) +
         (passes == 1 ? " pass, " : " passes, ") + dtype_name(gemm.out_dtype);
}

int integer_variant_count(const Gemm& gemm) { return integer_variants(gemm).count; }

const char* integer_variant_name(const Gemm& gemm, int variant) { return integer_variants(gemm).first[variant].name; }

}  // namespace interop::cuda::wgmma
