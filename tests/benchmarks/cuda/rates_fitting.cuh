/// What rates_benchmark times, and how it fits the numbers of cuda/matmul/rates.h to the times.
#pragma once

#include <interop/gemm.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/cuda/fit.h"
#include "benchmarks/cuda/timing.cuh"
#include "cuda/matmul/choosing.h"
#include "cuda/matmul/rates.h"

namespace interop::tests {

namespace rates = cuda::rates;

inline constexpr std::size_t kInputBytes = std::size_t{2} << 30, kOutputBytes = std::size_t{1} << 30;
inline constexpr std::size_t kBeyondL2 = std::size_t{160} << 20;

inline constexpr DLDataType kInt8{kDLInt, 8, 1}, kInt32{kDLInt, 32, 1}, kInt64{kDLInt, 64, 1};
inline constexpr DLDataType kComplex64{kDLComplex, 64, 1}, kComplex128{kDLComplex, 128, 1};

/// What all groups have in common. Outputs never land among inputs, whose values stay as they are.
struct Bench {
  explicit Bench(std::string only) : only(std::move(only)) {}

  const std::string only;
  const DeviceMemory inputs{kInputBytes}, outputs{kOutputBytes};
  const cuda::Device device{};

  bool leaves_out(const std::string& name) const { return name.find(only) == std::string::npos; }
  void fill_inputs(DLDataType dtype) const {
    const bool is_double = dtype.code == kDLComplex ? dtype.bits == 128 : dtype == kFloat64;
    fill_uniform(is_double                                 ? kFloat64
                 : dtype == kFloat16 || dtype == kBfloat16 ? dtype
                                                           : kFloat32,
                 inputs.data(), kInputBytes);
  }
};

// ---- timing and fitting ----

/// A launch to be timed: the terms of its time, and about how many microseconds it takes.
struct Point {
  std::vector<double> terms;
  double us;
  std::function<void(int)> launch;  // on the buffers of this number
};

/// The median microseconds of each launch, the launches interleaved.
inline std::vector<double> times_of(const std::string& name, const std::vector<Point>& points) {
  std::vector<std::unique_ptr<Repeats>> rows;
  for (const Point& point : points) {
    const int repeats = std::clamp(static_cast<int>(2e3 / point.us), 4, 100);
    rows.push_back(std::make_unique<Repeats>(name, repeats, point.launch));
  }
  replay_in_turn(rows);
  std::vector<double> times;
  for (const auto& row : rows) times.push_back(row->median() * 1e6);
  return times;
}

inline void print_group(const char* what, const char* sum) {
  std::printf("\n%s\n  us = %s\n  %-34s %11s %11s   here / rates.h\n", what, sum, "", "rates.h", "here");
}

inline void print(const std::string& name, double stands, double found) {
  std::printf("  %-34s %11.5g %11.5g   %.2f\n", name.c_str(), stands, found, found / stands);
}

/// The factors that the times fit best. Prints how well, and the last factor, which is the launch.
inline std::vector<double> fitted(const std::string& name, const std::vector<Point>& points) {
  const std::vector<double> times = times_of(name, points);
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < points.size(); ++i) samples.push_back({points[i].terms, times[i]});
  const Fit found = fit(samples);
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  std::printf("  %s: %zu times of %.1f to %.1f us, off by %.0f%% at most, launch %.2f us\n", name.c_str(), times.size(),
              *least, *most, found.worst_error * 100, found.factors.back());
  return found.factors;
}

// ---- products that give every SM the same number of tiles ----

/// Arrays of a product, over as many sets as exceed L2. `row` is the bytes of a row of k in an operand, where k is
/// adjacent in both; 0: a and b are stored by rows.
struct Product {
  DLDataType dtype, out_dtype;
  int64_t m, n, k, row;

  std::size_t a_bytes() const { return aligned_bytes(m * (row ? row : k * item_bytes(dtype)), kInt8); }
  std::size_t b_bytes() const { return aligned_bytes(n * (row ? row : k * item_bytes(dtype)), kInt8); }
  std::size_t c_bytes() const { return aligned_bytes(m * n, out_dtype); }
  std::size_t sets() const {
    const std::size_t wanted = kBeyondL2 / (a_bytes() + b_bytes() + c_bytes()) + 1;
    const std::size_t most = std::min(kInputBytes / (a_bytes() + b_bytes()), kOutputBytes / c_bytes());
    if (most == 0) throw std::length_error("a product does not fit into the buffers");
    return std::min(wanted, most);
  }
  Gemm gemm(const Bench& bench, int i) const {
    const std::size_t set = static_cast<std::size_t>(i) % sets();
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = dtype;
    gemm.out_dtype = out_dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = bench.inputs.data() + set * (a_bytes() + b_bytes());
    gemm.b = bench.inputs.data() + set * (a_bytes() + b_bytes()) + a_bytes();
    gemm.c = bench.outputs.data() + set * c_bytes();
    // The strides of packed integers count bytes.
    const int64_t along_k = row / (is_integral(dtype) ? 1 : item_bytes(dtype));
    gemm.a_strides = {row ? along_k : k, 1};
    gemm.b_strides = row ? MatrixStrides{1, along_k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    return gemm;
  }
};

/// A kernel and its tile.
struct TileKernel {
  DLDataType dtype, out_dtype;
  int64_t m, n;
  std::function<void(const Gemm&)> launch;

  /// The product of `blocks` tiles for each SM: as square as the number of SMs allows, of an even number of tiles down
  /// if it can be, as blocks of a cluster lie there.
  Product product(const Bench& bench, int64_t blocks, int64_t k, int64_t row = 0) const {
    const int64_t sms = bench.device.multiprocessors();
    int64_t across = 1;
    for (int64_t i = 1; i * i <= sms; ++i) {
      if (sms % i == 0) across = i;
    }
    if (sms / across % 2 != 0) across = sms / across;
    return {dtype, out_dtype, sms / across * m, across * blocks * n, k, row};
  }
  Point point(const Bench& bench, const Product& product, std::vector<double> terms, double us) const {
    return {std::move(terms), us, [this, &bench, product](int i) { launch(product.gemm(bench, i)); }};
  }
};

/// The number of the variant that has this very speed.
template <typename Variant, typename Variants, typename Speed>
int variant_of(const char* name, const Variants& all, Speed Variant::* member, const Speed& speed) {
  for (int i = 0; i < all.count; ++i) {
    const auto& [x, y] = all.first[i].*member;
    const auto& [speed_x, speed_y] = speed;
    if (x == speed_x && y == speed_y) return i;
  }
  throw std::logic_error(std::string(name) + " is of no kernel");
}

/// Fits a `Tile`, where `unit_us` is how long a tile of rate 1 takes for k = 1.
inline void fit_tile(const Bench& bench, const char* name, const rates::Tile& stands, const TileKernel& kernel,
                     double unit_us) {
  const std::string title = std::string(name) + ", " + dtype_name(kernel.dtype);
  bench.fill_inputs(kernel.dtype);
  std::vector<Point> points;
  for (const int64_t k : {512, 1024, 2048}) {
    for (const int64_t blocks : {1, 2, 3, 4, 6, 8}) {
      const double each = static_cast<double>(k), all = each * static_cast<double>(blocks);
      points.push_back(kernel.point(bench, kernel.product(bench, blocks, k), {all, each, 1},
                                    unit_us * (all + stands.start * each) / stands.rate));
    }
  }
  const std::vector<double> factors = fitted(title, points);
  print(std::string(name) + ".rate", stands.rate, unit_us / factors[0]);
  print(std::string(name) + ".start", stands.start, factors[1] / factors[0]);
}

/// Fits a `TileTime`. A k tile is 128 bytes; `planes`: those of a packed row of k, which has so many for `passes`
/// passes. Ping-pong: two tiles at a time.
inline void fit_tile_time(const Bench& bench, const char* name, const rates::TileTime& stands, const TileKernel& kernel,
                          int planes, int passes, bool ping_pong) {
  bench.fill_inputs(kernel.dtype);
  const int64_t of_tile = planes > 2 ? 128 : 128 / item_bytes(kernel.dtype);  // elements of k
  std::vector<Point> points;
  for (const int64_t wanted : {8, 16, 32, 64}) {
    const int64_t k_tiles = std::max<int64_t>(wanted / passes, wanted / 8);
    for (const int64_t waves : {1, 2, 3, 4}) {
      const int64_t tiles = ping_pong ? 2 * waves : waves;
      const auto all = static_cast<double>(tiles * k_tiles * passes), stores = static_cast<double>(tiles);
      const Product product = kernel.product(bench, tiles, k_tiles * of_tile, planes * k_tiles * 128);
      points.push_back(
          kernel.point(bench, product, {all, stores, 1}, all * stands.k_tile_us + stores * stands.store_us));
    }
  }
  const std::vector<double> factors = fitted(name, points);
  print(std::string(name) + ".k_tile_us", stands.k_tile_us, factors[0]);
  print(std::string(name) + ".store_us", stands.store_us, factors[1]);
}

}  // namespace interop::tests
