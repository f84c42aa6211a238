"""The C++ libraries without Python: built, tested by ctest, installed, and used by a C++ program of another project."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import interop

ROOT = Path(__file__).resolve().parents[2]
NO_TESTS = "interop: no C++ tests: "
EXTRA_HAS_GOOGLETEST = (platform.system(), platform.machine()) == ("Linux", "x86_64")
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


@pytest.fixture(scope="module")
def options():
    """Of a build without Python and CUDA."""
    header = Path(interop.get_include(), "dlpack/dlpack.h")
    if not header.is_file():  # in a build tree: that of tvm-ffi
        header = Path(importlib.util.find_spec("tvm_ffi").submodule_search_locations[0], "include/dlpack/dlpack.h")
    return ["-DINTEROP_PYTHON=OFF", "-DINTEROP_CUDA=OFF", f"-DINTEROP_DLPACK_H={header}"]


@pytest.fixture(scope="module")
def build(cmake, options, tmp_path_factory):
    """The folder of a build, which takes GoogleTest from this environment, and what cmake said."""
    folder = tmp_path_factory.mktemp("build")
    options = [*options, "-DINTEROP_INSTALL_LIBRARIES=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    said = run(cmake / "cmake", "-S", ROOT, "-B", folder, *options)
    run(cmake / "cmake", "--build", folder)
    return folder, said


def programs_of(cmake, build):
    shown = run(cmake / "ctest", "--test-dir", build, "--show-only=json-v1")
    return {test["name"] for test in json.loads(shown)["tests"] if not test["name"].startswith("build_")}


def test_host_tests_pass(cmake, build):
    folder, said = build
    if NO_TESTS in said and not EXTRA_HAS_GOOGLETEST:
        pytest.skip("no GoogleTest: the extra `test` has it for Linux on x86_64 alone")
    files = [file for layer in ("base", "ops") for file in (ROOT / "tests" / layer).glob("*_test.cpp")]
    programs = {f"{file.parent.name}_{file.stem}" for file in files}
    assert programs_of(cmake, folder) == {*programs, "benchmarks_fit_test"}
    assert "100% tests passed" in run(cmake / "ctest", "--test-dir", folder, "-L", "host")


def test_without_googletest_a_build_has_no_tests_and_says_so(cmake, options, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    options = [*options, f"-DPython_EXECUTABLE={tmp_path / 'bare/bin/python'}", "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"]
    said = run(cmake / "cmake", "-S", ROOT, "-B", tmp_path / "build", *options)
    assert said.count(NO_TESTS) == 1
    assert programs_of(cmake, tmp_path / "build") == set()


def test_a_build_of_the_package_looks_for_no_googletest(cmake, options, tmp_path):
    options = [*options, f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD=2"]
    run(cmake / "cmake", "-S", ROOT, "-B", tmp_path, *options)
    assert not re.search("GTest|GoogleTest", (tmp_path / "CMakeCache.txt").read_text(), re.IGNORECASE)
    assert programs_of(cmake, tmp_path) == set()


def test_libraries_serve_another_project(cmake, build, tmp_path):
    installed, program = tmp_path / "installed", tmp_path / "program"
    run(cmake / "cmake", "--install", build[0], "--prefix", installed)
    program.mkdir()
    (program / "CMakeLists.txt").write_text(PROJECT)
    (program / "main.cpp").write_text(MAIN)
    run(cmake / "cmake", "-S", program, "-B", program / "build", f"-Dinterop_DIR={installed / 'interop/cmake'}")
    run(cmake / "cmake", "--build", program / "build")
    assert run(program / "build/program") == "float32 0"
