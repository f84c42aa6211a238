/// The fit by which rates_benchmark finds the numbers of cuda/matmul/rates.h.
#include "benchmarks/cuda/fit.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace interop::tests {
namespace {

TEST(Fit, FindsTheFactorsOfExactValues) {
  // As the time of blocks on an SM: blocks * k, k, and the launch, which are many orders apart.
  std::vector<Sample> samples;
  for (const double k : {512, 1024, 2048}) {
    for (const double blocks : {1, 2, 5}) {
      samples.push_back({{blocks * k * 1e6, k, 1}, 3e-9 * blocks * k * 1e6 + 2e-3 * k + 1.5});
    }
  }
  const Fit found = fit(samples);
  EXPECT_NEAR(found.factors[0], 3e-9, 1e-15);
  EXPECT_NEAR(found.factors[1], 2e-3, 1e-9);
  EXPECT_NEAR(found.factors[2], 1.5, 1e-6);
  EXPECT_LT(found.worst_error, 1e-9);
}

TEST(Fit, WeighsRelativeErrors) {
  // Of values 1 and 2 for one term, the factor is between them: of its squared relative errors, 4/3 gives the least,
  // 6/5, as (1/1 + 1/2) / (1/1 + 1/4).
  const Fit found = fit({{{1}, 1}, {{1}, 2}});
  EXPECT_NEAR(found.factors[0], 1.2, 1e-12);
  EXPECT_NEAR(found.worst_error, 0.4, 1e-12);
}

TEST(Fit, RefusesTermsThatAreNotToldApart) {
  EXPECT_THROW(fit({{{1, 2}, 1}, {{2, 4}, 3}}), std::invalid_argument);
  EXPECT_THROW(fit({{{1, 2}, 1}}), std::invalid_argument);
}

}  // namespace
}  // namespace interop::tests
