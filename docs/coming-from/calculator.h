#ifndef CALCULATOR_H
#define CALCULATOR_H

namespace calculator {

int add(int a, int b);
int subtract(int a, int b);
int multiply(int a, int b);
double divide(double a, double b);

}  // namespace calculator

#endif
