#include "row_sum.h"

void row_sum_on_host(const Matrix& x, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < x.rows; ++r) {
    float sum = 0;
    for (int64_t c = 0; c < x.columns; ++c) sum += x.data[r * x.row_stride + c * x.column_stride];
    y[r * y_stride] = sum;
  }
}
