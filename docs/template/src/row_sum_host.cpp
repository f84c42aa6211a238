#include "row_sum.h"

void row_sum_on_host(const Matrix& x, const Vector& y) {
  for (long long r = 0; r < x.size(0); ++r) {
    float sum = 0;
    for (long long c = 0; c < x.size(1); ++c) sum += x(r, c);
    y(r) = sum;
  }
}
