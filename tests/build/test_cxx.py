"""The C++ libraries without Python: built, tested by ctest, installed, and used by a C++ program of another project."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import interop

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(program LANGUAGES CXX)
find_package(interop CONFIG REQUIRED)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE interop::ops interop::cuda)
"""
MAIN = """
#include <interop/cuda/driver.h>
#include <interop/ops/matmul.h>
#include <cstdio>
int main() { std::printf("%s %d", interop::dtype_name(interop::kFloat32).c_str(), interop::cuda::built_for()); }
"""


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def cmake(tmp_path_factory):
    """The folder of cmake and ctest: the machine's, or PyPI's."""
    if found := shutil.which("cmake"):
        return Path(found).parent
    folder = tmp_path_factory.mktemp("cmake")
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", "-q", "cmake")
    return folder / "bin"


def test_libraries_without_python(cmake, tmp_path):
    build, installed, program = tmp_path / "build", tmp_path / "installed", tmp_path / "program"
    options = ["-DINTEROP_PYTHON=OFF", "-DINTEROP_CUDA=OFF", "-DINTEROP_INSTALL_LIBRARIES=ON"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    header = Path(interop.get_include(), "dlpack/dlpack.h")
    if header.is_file():  # in a build tree, that of tvm-ffi is found
        options += [f"-DINTEROP_DLPACK_H={header}"]
    run(cmake / "cmake", "-S", ROOT, "-B", build, *options)
    run(cmake / "cmake", "--build", build)
    assert "100% tests passed" in run(cmake / "ctest", "--test-dir", build, "-L", "host")
    run(cmake / "cmake", "--install", build, "--prefix", installed)

    program.mkdir()
    (program / "CMakeLists.txt").write_text(PROJECT)
    (program / "main.cpp").write_text(MAIN)
    run(cmake / "cmake", "-S", program, "-B", program / "build", f"-Dinterop_DIR={installed / 'interop/cmake'}")
    run(cmake / "cmake", "--build", program / "build")
    assert run(program / "build/program") == "float32 0"
