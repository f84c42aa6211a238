#include "calculator.h"

#include <stdexcept>

namespace calculator {

int add(int a, int b) { return a + b; }
int subtract(int a, int b) { return a - b; }
int multiply(int a, int b) { return a * b; }

double divide(double a, double b) {
  if (b == 0) throw std::invalid_argument("b is 0");
  return a / b;
}

}  // namespace calculator
