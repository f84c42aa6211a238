/// Prints what measured times say of the numbers of cuda/matmul/rates.h, under their names, beside what stands there.
///
///   rates_benchmark [--only TEXT]
///
/// --only: the constants whose name has this text. A time is that of one launch in a graph of many, over buffers that
/// exceed L2, random data, launches interleaved, the median. Each group says the sum that its times are fitted to, by
/// least squares of the relative errors. The launch is a term of its own wherever the sum has one: the estimates
/// compare kernels by what remains. "off by" is the largest error of the fit. Ends with "HANGS", exit status 3, when a
/// launch takes seconds.
#include "cuda/matmul/rates.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/cuda/rates_fitting.cuh"
#include "cuda/matmul/mma/mma.h"
#include "cuda/matmul/mma/wide.h"
#include "cuda/matmul/mma/wide_kernels.h"
#include "cuda/matmul/pack.h"
#include "cuda/matmul/skinny/kernels.h"
#include "cuda/matmul/skinny/skinny.h"
#include "cuda/matmul/split.h"
#include "cuda/matmul/tiled/tiled.h"
#include "cuda/matmul/wgmma/integers.h"
#include "cuda/matmul/wgmma/kernels.h"
#include "cuda/matmul/wgmma/wgmma.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

/// A constant's name, and its value.
#define NAMED(constant) #constant, rates::constant

namespace {

// ---- the general kernels ----

void bench_general(const Bench& bench) {
  struct Entry {
    const char* name;
    rates::Tile stands;
    DLDataType dtype;
    tiled::Variants variants;
    double slower = 1;
  };
  const Entry entries[] = {
      {NAMED(kFloat32_128x128), kFloat32, tiled::float32_variants()},
      {NAMED(kFloat32_64x64), kFloat32, tiled::float32_variants()},
      {NAMED(kFloat32_32x64), kFloat32, tiled::float32_variants()},
      {NAMED(kFloat32_32x32), kFloat32, tiled::float32_variants()},
      {NAMED(kFloat64_32x32), kFloat64, tiled::float64_variants()},
      {NAMED(kComplex64_128x64), kComplex64, tiled::complex64_variants(), rates::kComplexSlower},
      {NAMED(kComplex64_64x64), kComplex64, tiled::complex64_variants(), rates::kComplexSlower},
      {NAMED(kComplex64_32x32), kComplex64, tiled::complex64_variants(), rates::kComplexSlower},
      {NAMED(kComplex128_64x32), kComplex128, tiled::complex128_variants(), rates::kComplexSlower},
      {NAMED(kInt32_128x128), kInt32, tiled::int32_variants(), rates::kIntegerSlower},
      {NAMED(kInt32_32x32), kInt32, tiled::int32_variants(), rates::kIntegerSlower},
      {NAMED(kInt64_64x64), kInt64, tiled::int64_variants(), rates::kInt64Slower},
      {NAMED(kInt64_32x32), kInt64, tiled::int64_variants(), rates::kInt64Slower},
      {NAMED(kNarrow_64x64), kFloat16, tiled::float16_variants()},
      {NAMED(kNarrow_32x32), kFloat16, tiled::float16_variants()},
      {NAMED(kNarrow_64x64), kInt8, tiled::int8_variants(), rates::kIntegerSlower},
      {NAMED(kNarrow_32x32), kInt8, tiled::int8_variants(), rates::kIntegerSlower},
  };
  print_group(
      "The general kernels, a and b stored by rows; kGeneralPeak and how much slower a dtype is are as they stand",
      "slower * k * m * n / (rate * kGeneralPeak) * (blocks of an SM + start) + launch");
  for (const Entry& entry : entries) {
    if (bench.leaves_out(entry.name)) continue;
    const int variant = variant_of(entry.name, entry.variants, &tiled::Variant::speed, entry.stands);
    const tiled::Variant& of = entry.variants.first[variant];
    const TileKernel kernel{entry.dtype, entry.dtype, of.m, of.n,
                            [variant](const Gemm& gemm) { tiled::launch_variant(variant, gemm, stream()); }};
    fit_tile(bench, entry.name, entry.stands, kernel, entry.slower * of.m * of.n / rates::kGeneralPeak);
  }
}

// ---- mma.sync ----

void bench_mma(const Bench& bench) {
  print_group("16-bit floats by mma.sync: bfloat16, a and b stored by rows; kMmaRate is that of the tile of 128 x 128",
              "k * m * n / (share * kMmaRate) * blocks of an SM + launch");
  if (!bench.device.has_sm80_code()) {
    std::printf("  not on this card\n");
    return;
  }
  bench.fill_inputs(kBfloat16);
  const auto fit_share = [&](const char* name, double stands, const char* tile, int64_t size) {
    int variant = 0;
    while (variant < mma::variant_count() && std::string(mma::variant_name(variant)) != tile) ++variant;
    if (variant == mma::variant_count()) throw std::logic_error(std::string(name) + " is of no kernel");
    const TileKernel kernel{kBfloat16, kBfloat16, size, size,
                            [variant](const Gemm& gemm) { mma::launch_variant(variant, gemm, stream()); }};
    std::vector<Point> points;
    for (const int64_t k : {512, 1024, 2048}) {
      for (const int64_t blocks : {1, 2, 3, 4, 6, 8}) {
        const auto work = static_cast<double>(k * size * size * blocks);
        points.push_back(
            kernel.point(bench, kernel.product(bench, blocks, k), {work, 1}, work / stands / rates::kMmaRate));
      }
    }
    return 1 / fitted(name, points)[0];
  };
  if (bench.leaves_out("kMmaRate") && bench.leaves_out("kMma128x128") && bench.leaves_out("kMma64x64")) return;
  const double rate = fit_share(NAMED(kMma128x128), "128x128x32", 128) / rates::kMma128x128;
  print("kMmaRate", rates::kMmaRate, rate);
  print("kMma64x64", rates::kMma64x64, fit_share(NAMED(kMma64x64), "64x64x32", 64) / rate);
}

/// By how much a product takes longer where b's address is no multiple of 16, and b is copied element by element.
double slower_by_elements(const Bench& bench, const TileKernel& kernel) {
  const Product product = kernel.product(bench, 4, 2048);
  const Point by_vectors = kernel.point(bench, product, {}, 500);
  Point by_elements = by_vectors;
  by_elements.launch = [&](int i) {
    Gemm gemm = product.gemm(bench, i);
    gemm.b = static_cast<const float*>(gemm.b) + 1;
    kernel.launch(gemm);
  };
  const std::vector<double> times = times_of("kMmaTf32ByElements", {by_vectors, by_elements});
  return times[1] / times[0] - 1;
}

void bench_mma_wide(const Bench& bench) {
  struct Entry {
    const char* name;
    rates::Tile stands;
    DLDataType dtype;
    double each;
  };
  const Entry entries[] = {
      {NAMED(kMmaFloat64_64x128), kFloat64, 1},
      {NAMED(kMmaFloat64_64x64), kFloat64, 1},
      {NAMED(kMmaFloat64_32x32), kFloat64, 1},
      {NAMED(kMmaComplex128_64x64), kComplex128, rates::kMmaComplex128},
      {NAMED(kMmaComplex128_32x32), kComplex128, rates::kMmaComplex128},
      {NAMED(kMmaTf32_128x128), kFloat32, rates::kMmaTf32},
      {NAMED(kMmaTf32_64x64), kFloat32, rates::kMmaTf32},
  };
  print_group(
      "Wide dtypes by mma.sync, a and b stored by rows; kMmaWideRate and how many times as long a dtype takes "
      "are as they stand",
      "each * k * m * n / (rate * kMmaWideRate) * (blocks of an SM + start) + launch");
  if (!bench.device.has_sm80_code()) {
    std::printf("  not on this card\n");
    return;
  }
  const auto kernel_of = [](const char* name, const rates::Tile& speed, DLDataType dtype) {
    const mma_wide::Variants all = mma_wide::variants(dtype);
    const int variant = variant_of(name, all, &mma_wide::Variant::speed, speed);
    return TileKernel{dtype, dtype, all.first[variant].m, all.first[variant].n,
                      [variant](const Gemm& gemm) { mma_wide::launch_variant(variant, gemm, stream()); }};
  };
  for (const Entry& entry : entries) {
    if (bench.leaves_out(entry.name)) continue;
    const TileKernel kernel = kernel_of(entry.name, entry.stands, entry.dtype);
    const double multiplications = static_cast<double>(kernel.m * kernel.n);
    fit_tile(bench, entry.name, entry.stands, kernel, entry.each * multiplications / rates::kMmaWideRate);
  }
  if (bench.leaves_out("kMmaTf32ByElements")) return;
  bench.fill_inputs(kFloat32);
  print("kMmaTf32ByElements", rates::kMmaTf32ByElements,
        slower_by_elements(bench, kernel_of(NAMED(kMmaTf32_128x128), kFloat32)));
}

// ---- the tensor cores of sm_90 ----

void bench_wgmma_floats(const Bench& bench) {
  struct Entry {
    const char* name;
    rates::TileTime stands;
    DLDataType dtype;
    MatmulPrecision precision = MatmulPrecision::exact;
    int planes = 1, passes = 1;
  };
  const Entry entries[] = {
      {NAMED(kHalf_128x256), kBfloat16},
      {NAMED(kHalfPingPong_128x128), kBfloat16},
      {NAMED(kHalf_128x128), kBfloat16},
      {NAMED(kHalf_128x64), kBfloat16},
      {NAMED(kTf32_128x256), kFloat32, MatmulPrecision::tf32},
      {NAMED(kTf32PingPong_128x128), kFloat32, MatmulPrecision::tf32},
      {NAMED(kTf32_128x64), kFloat32, MatmulPrecision::tf32},
      {NAMED(kTf32x3_128x128), kFloat32, MatmulPrecision::tf32x3, 2, 3},
      {NAMED(kTf32x3_128x64), kFloat32, MatmulPrecision::tf32x3, 2, 3},
  };
  for (const Entry& entry : entries) {
    if (bench.leaves_out(entry.name)) continue;
    const wgmma::Variants all = wgmma::variants(entry.precision);
    const int variant = variant_of(entry.name, all, &wgmma::Variant::time, entry.stands);
    const wgmma::Variant& of = all.first[variant];
    MatmulPlan plan;  // packs nothing: the operands lie as if packed
    plan.family = MatmulFamily::wgmma;
    plan.precision = entry.precision;
    plan.multiprocessors = bench.device.multiprocessors();
    const TileKernel kernel{entry.dtype, entry.dtype, of.m, of.n, [variant, plan](const Gemm& gemm) {
                              wgmma::launch_variant(variant, gemm, plan, nullptr, stream());
                            }};
    fit_tile_time(bench, entry.name, entry.stands, kernel, entry.planes, entry.passes, of.ping_pong);
  }
}

/// Of int8 added up in 32 bits, one pass, and of int64, 36 passes over the eight bytes of both operands.
void bench_wgmma_integers(const Bench& bench) {
  struct Entry {
    const char* name;
    rates::TileTime stands;
    const char* tile;
    DLDataType dtype, out_dtype;
    int64_t n;
    int planes, passes;
  };
  const Entry entries[] = {
      {NAMED(kBytes_128x256), "128x256x128", kInt8, kInt32, 256, 1, 1},
      {NAMED(kBytes_128x128), "128x128x128", kInt8, kInt32, 128, 1, 1},
      {NAMED(kBytes_128x64), "128x64x128", kInt8, kInt32, 64, 1, 1},
      {NAMED(kWideBytes_128x128), "128x128x128", kInt64, kInt64, 128, 8, 36},
      {NAMED(kWideBytes_128x64), "128x64x128", kInt64, kInt64, 64, 8, 36},
  };
  for (const Entry& entry : entries) {
    if (bench.leaves_out(entry.name)) continue;
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = entry.dtype;
    gemm.out_dtype = entry.out_dtype;
    int variant = 0;
    const int count = wgmma::integer_variant_count(gemm);
    while (variant < count && std::string(wgmma::integer_variant_name(gemm, variant)) != entry.tile) ++variant;
    if (variant == count) throw std::logic_error(std::string(entry.name) + " is of no kernel");
    MatmulPlan plan;  // as above
    plan.family = MatmulFamily::wgmma_integers;
    plan.multiprocessors = bench.device.multiprocessors();
    const TileKernel kernel{entry.dtype, entry.out_dtype, 128, entry.n, [variant, plan](const Gemm& gemm) {
                              wgmma::launch_integer_variant(variant, gemm, plan, nullptr, stream());
                            }};
    fit_tile_time(bench, entry.name, entry.stands, kernel, entry.planes, entry.passes, false);
  }
}

void bench_wgmma(const Bench& bench) {
  print_group("The tensor cores of sm_90, k adjacent in a and b, or packed before",
              "tiles of an SM * (k tiles * passes * k_tile_us + store_us) + launch");
  if (!bench.device.has_sm90a_code()) {
    std::printf("  not on this card\n");
    return;
  }
  bench_wgmma_floats(bench);
  bench_wgmma_integers(bench);
}

// ---- packing, the sums of parts, few rows, memory ----

void bench_packing(const Bench& bench) {
  if (bench.leaves_out("kPackingUs") && bench.leaves_out("kPackingRate")) return;
  print_group("Packing of a float32 operand in which k is not adjacent, rounded to TF32",
              "kPackingUs + bytes, read and written / kPackingRate");
  bench.fill_inputs(kFloat32);
  std::vector<Point> points;
  for (const int64_t size : {256, 512, 1024, 2048, 4096}) {
    const auto bytes = static_cast<std::size_t>(4 * size * size);  // rows are whole cache lines: as many packed
    const std::size_t sets = kBeyondL2 / (2 * bytes) + 1;
    const double moved = 2. * static_cast<double>(bytes);
    points.push_back({{moved, 1}, rates::kPackingUs + moved / rates::kPackingRate, [=, &bench](int i) {
                        Gemm gemm;
                        gemm.dtype = gemm.b_dtype = gemm.out_dtype = kFloat32;
                        gemm.m = gemm.n = gemm.k = size;
                        gemm.a = bench.inputs.data() + static_cast<std::size_t>(i) % sets * bytes;
                        gemm.a_strides = {1, size};
                        char* const to = bench.outputs.data() + static_cast<std::size_t>(i) % sets * bytes;
                        pack(gemm, true, false, Packed::tf32, to, stream());
                      }});
  }
  const std::vector<double> factors = fitted("packing", points);
  print("kPackingUs", rates::kPackingUs, factors[1]);
  print("kPackingRate", rates::kPackingRate, 1 / factors[0]);
}

void bench_sums(const Bench& bench) {
  if (bench.leaves_out("kLaunchUs") && bench.leaves_out("kSumUs")) return;
  print_group("The kernel that adds up the partial sums: float32, 8 parts, which are in L2",
              "kLaunchUs, or kSumUs + bytes / a rate");
  bench.fill_inputs(kFloat32);
  constexpr int kParts = 8;
  std::vector<Point> points;
  for (const int64_t n : {64, 256, 1024, 4096, 16384}) {
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = kFloat32;
    gemm.m = 16;
    gemm.n = n;
    gemm.k = rates::kLeastDividedK;
    gemm.c = bench.outputs.data();
    gemm.c_strides = {n, 1};
    const auto bytes = static_cast<double>(tiled::partial_bytes(gemm, kParts));
    points.push_back({{bytes, 1}, rates::kSumUs, [gemm, &bench](int) {
                        tiled::launch_sum_of_parts(gemm, bench.inputs.data(), kParts, stream());
                      }});
  }
  const double us = fitted("sums", points)[1];
  print("kLaunchUs", rates::kLaunchUs, us);
  print("kSumUs", rates::kSumUs, us);
}

/// One row of float32 by a matrix, n adjacent.
Product one_row(int64_t n, int64_t k) { return {kFloat32, kFloat32, 1, n, k, 0}; }

void bench_warp(const Bench& bench) {
  if (bench.leaves_out("kWarpRate")) return;
  print_group("One block of the kernel of few rows in registers: one row of float32, n adjacent",
              "bytes of a warp / kWarpRate + launch");
  bench.fill_inputs(kFloat32);
  const skinny::Variant variant = skinny::registers_variant(kFloat32, 1, false);
  std::vector<Point> points;
  for (const int64_t k : {8192, 16384, 32768, 65536}) {
    const Product product = one_row(variant.columns, k);
    const double bytes = 4. * static_cast<double>(variant.columns * k) / (1 << variant.warps_log);
    const MatmulPlan plan = skinny::choose_in_parts(product.gemm(bench, 0), 1, bench.device, skinny::Way::registers);
    if (plan.undivided.k_warps_log != variant.warps_log) throw std::logic_error("kWarpRate: more than one block");
    points.push_back({{bytes, 1}, bytes / rates::kWarpRate, [=, &bench](int i) {
                        skinny::launch(product.gemm(bench, i), plan, nullptr, stream());
                      }});
  }
  print("kWarpRate", rates::kWarpRate, 1 / fitted("one block", points)[0]);
}

void bench_memory(const Bench& bench) {
  if (!bench.leaves_out("kMemoryRate")) {
    print_group("A copy of 1 GiB", "bytes, read and written / kMemoryRate");
    print("kMemoryRate", rates::kMemoryRate, copy_rate(bench.inputs.data(), kInputBytes) / 1e6);
  }
  if (bench.leaves_out("kFastestMemory") || !bench.device.has_sm90a_code()) return;
  print_group("The streamed kernel: one row of float32 by 16384 x 16384, n adjacent",
              "bytes of the matrix / kFastestMemory");
  bench.fill_inputs(kFloat32);
  const Product product = one_row(16384, 16384);
  const double bytes = 4. * 16384 * 16384;
  const MatmulPlan plan = skinny::choose_in_parts(product.gemm(bench, 0), 1, bench.device, skinny::Way::shared_memory);
  const std::vector<double> times =
      times_of("kFastestMemory", {{{}, bytes / rates::kFastestMemory, [&](int i) {
                                     skinny::launch(product.gemm(bench, i), plan, nullptr, stream());
                                   }}});
  print("kFastestMemory", rates::kFastestMemory, bytes / times[0]);
}

// ---- the program ----

/// Brings the clocks up: two seconds of products.
void warm_up(const Bench& bench) {
  bench.fill_inputs(kFloat32);
  const TileKernel kernel{kFloat32, kFloat32, 128, 128,
                          [](const Gemm& gemm) { tiled::launch_variant(0, gemm, stream()); }};
  Repeats products("warming up", 10, kernel.point(bench, kernel.product(bench, 8, 2048), {}, 0).launch);
  for (const double end = seconds() + 2; seconds() < end;) products.replay();
}

void bench_all(const std::string& only) {
  const Bench bench(only);
  warm_up(bench);
  bench_memory(bench);
  bench_packing(bench);
  bench_sums(bench);
  bench_general(bench);
  bench_mma(bench);
  bench_mma_wide(bench);
  bench_wgmma(bench);
  bench_warp(bench);
}

}  // namespace

int main(int count, char** arguments) {
  std::string only;
  for (int i = 1; i < count; ++i) {
    if (std::string(arguments[i]) == "--only" && i + 1 < count) {
      only = arguments[++i];
    } else {
      std::printf("unknown argument %s\n", arguments[i]);
      return 2;
    }
  }
  try {
    start_output();
    bench_all(only);
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  return 0;
}
