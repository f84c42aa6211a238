/// Least squares: the factors of a sum of terms that measured values fit best.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace interop::tests {

/// A measured value above 0, and the terms that it should be the sum of, each times a factor.
struct Sample {
  std::vector<double> terms;
  double value;
};

/// The factors, and the largest relative error of a value that they give.
struct Fit {
  std::vector<double> factors;
  double worst_error;
};

/// Solves a system of linear equations by elimination. A row is the coefficients of an equation, and its right side.
inline std::vector<double> solve(std::vector<std::vector<double>> rows) {
  const std::size_t count = rows.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      if (std::abs(rows[j][i]) > std::abs(rows[i][i])) std::swap(rows[i], rows[j]);
    }
    if (std::abs(rows[i][i]) < 1e-12) throw std::invalid_argument("the samples do not tell the terms apart");
    for (std::size_t j = 0; j < count; ++j) {
      const double share = j == i ? 0 : rows[j][i] / rows[i][i];
      for (std::size_t column = i; column <= count; ++column) rows[j][column] -= share * rows[i][column];
    }
  }
  std::vector<double> solution;
  for (std::size_t i = 0; i < count; ++i) solution.push_back(rows[i][count] / rows[i][i]);
  return solution;
}

/// Minimises the sum of the squares of the relative errors. There are at least as many samples as terms.
inline Fit fit(const std::vector<Sample>& samples) {
  const std::size_t count = samples.at(0).terms.size();
  // Terms are divided by their largest, as they may be many orders apart.
  std::vector<double> largest(count, 0);
  for (const Sample& sample : samples) {
    for (std::size_t i = 0; i < count; ++i)
      largest[i] = std::max(largest[i], std::abs(sample.terms.at(i) / sample.value));
  }
  std::vector<std::vector<double>> rows(count, std::vector<double>(count + 1, 0));
  for (const Sample& sample : samples) {
    const auto scaled = [&](std::size_t i) { return sample.terms[i] / sample.value / largest[i]; };
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) rows[i][j] += scaled(i) * scaled(j);
      rows[i][count] += scaled(i);
    }
  }
  Fit found{solve(rows), 0};
  for (std::size_t i = 0; i < count; ++i) found.factors[i] /= largest[i];
  for (const Sample& sample : samples) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += found.factors[i] * sample.terms[i];
    found.worst_error = std::max(found.worst_error, std::abs(sum / sample.value - 1));
  }
  return found;
}

}  // namespace interop::tests
