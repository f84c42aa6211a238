"""What the tests of operators need: C functions with host arrays."""

from __future__ import annotations

import pytest
from helpers import c_functions

import interop

SOURCE = r"""
void row_sum(const float* x, float* y, int rows, int n) {
  for (int r = 0; r < rows; ++r) {
    y[r] = 0;
    for (int c = 0; c < n; ++c) y[r] += x[r * n + c];
  }
}
void scale(const float* x, const float* s, float eps, float* y, long long rows, int n) {
  for (long long r = 0; r < rows; ++r) for (int c = 0; c < n; ++c) y[r * n + c] = x[r * n + c] * s[c] + eps;
}
void split(const float* x, float* whole, int* sign, int n) {
  for (int i = 0; i < n; ++i) { whole[i] = (float)(int)x[i]; sign[i] = (x[i] > 0) - (x[i] < 0); }
}
void twice(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2; }
void pairs(const double* x, double* y, int n, int m) { for (int i = 0; i < m; ++i) y[i] = x[2 * i] + x[2 * i + 1]; }
double total(const double* x, int n) { double sum = 0; for (int i = 0; i < n; ++i) sum += x[i]; return sum; }
void fill(const float* x, void* y, int n) {}
int fails(const float* x, float* y, int n) { return n; }
"""
DECLARATIONS = """
    void row_sum(host const float* x, host float* y, int rows, int n);
    void scale(host const float* x, host const float* s, float eps, host float* y, long long rows, int n);
    void split(host const float* x, host float* whole, host int* sign, int n);
    void twice(host float* x, int n);
    void pairs(host const double* x, host double* y, int n, int m);
    double total(host const double* x, int n);
    void fill(host const float* x, host void* y, int n);
    cudaError_t fails(host const float* x, host float* y, int n);
"""


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return c_functions.build(SOURCE, tmp_path_factory.mktemp("operators") / "liboperators.so")


@pytest.fixture(scope="session")
def lib(path):
    return interop.load(path, DECLARATIONS)
