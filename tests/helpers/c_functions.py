"""C functions to load: how one is compiled, and a library of many kinds of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def build(text: str, library: Path, *options: str | Path, language: str = "c") -> Path:
    """Compile C, or C++ ("c++"), to this shared library and return its path; skip where there is no compiler.

    It is a new file each time, which takes the place of another.
    """
    variable, *names = ("CC", "cc", "gcc") if language == "c" else ("CXX", "c++", "g++")
    compiler = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        pytest.skip(f"no compiler of {language}")
    source, fresh = library.with_suffix(".c" if language == "c" else ".cpp"), library.with_name("fresh.so")
    source.write_text(text)
    subprocess.run([*compiler.split(), "-shared", "-fPIC", source, "-o", fresh, *options], check=True)
    return fresh.replace(library)


def nvcc() -> str | None:
    """Return CUDA's compiler, of a toolkit or of PyPI's wheels."""
    wheels = (Path(folder, "nvidia/cu13/bin/nvcc") for folder in sys.path)
    return shutil.which("nvcc") or next((str(path) for path in wheels if path.is_file()), None)


def build_cuda(folder: Path, name: str, source: str, *options: str | Path) -> Path:
    """Compile CUDA C++ to a shared library for this machine's GPU and return its path; skip where there is no nvcc."""
    compiler = nvcc()
    if compiler is None:
        pytest.skip("no nvcc")
    (folder / f"{name}.cu").write_text(source)
    wheels = Path(compiler).resolve().parents[1] / "lib"
    command = [compiler, "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-cudart", "static", f"-L{wheels}", *options]
    subprocess.run([*command, folder / f"{name}.cu", "-o", folder / f"{name}.so"], check=True)
    return folder / f"{name}.so"


_SOURCE = r"""
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

void sum(const float* a, const float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
void split(const double* x, double* low, int64_t* high, int n) {
  for (int i = 0; i < n; ++i) { high[i] = (int64_t)floor(x[i]); low[i] = x[i] - high[i]; }
}
int8_t narrow(int8_t x) { return x; }
uint16_t wide(uint16_t x) { return x; }
uint64_t huge(uint64_t x) { return x; }
bool is_not(bool x) { return !x; }
float half_of(float x) { return x / 2; }
int status(int x) { return x; }
unsigned long long first_byte(const void* x) { return *(const unsigned char*)x; }
double many(int a, float b, double c, int d, int e, int f, int g, int h, short i, double j, float k, double l, double m,
            double n, double o, float p, signed char q) {
  return a + 2.0 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l + 13 * m +
         14 * n + 15 * o + 16 * p + 17 * q;
}
void wait_for(const int* flag_pipe, char* byte) { *byte = 0; (void)!read(*flag_pipe, byte, 1); }
"""

DECLARATIONS = """
    /* as in the header */
    extern "C" void sum(host const float* a, const host float * b, host float *__restrict__ c, int n);
    void split(host const double* x, host double* low, host int64_t* high, int n);  // two results
    int8_t narrow(int8_t x);
    uint16_t wide(uint16_t x);
    uint64_t huge(uint64_t x);
    bool is_not(bool x);
    float half_of(float x);
    cudaError_t status(int x);
    unsigned long long first_byte(host const void* x);
    double many(int a, float b, double c, int d, int e, int f, int g, int h, short i, double j, float k, double l,
                double m, double n, double o, float p, signed char q);
    void wait_for(host const int* flag_pipe, host char* byte);
"""

A = np.arange(5, dtype="float32")
B = np.full(5, 10, "float32")


def example(folder: Path) -> Path:
    """Return a library, built in `folder`, of the functions of `DECLARATIONS`."""
    return build(_SOURCE, folder / "libsum.so", "-O1", "-lm")
