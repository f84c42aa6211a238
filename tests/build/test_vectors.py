"""Memory that a module of C++ owns, by <interop/array.h>: vectors.cpp, built without CMake as in test_nanobind.py."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers import machine

import interop

SOURCE = Path(__file__).with_name("vectors.cpp")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing"]


def folders():
    """Of interop's headers and of dlpack.h; in a build tree they are where the build has them from."""
    installed = Path(interop.get_include())
    if installed.is_dir():
        return [installed]
    tvm_ffi = importlib.util.find_spec("tvm_ffi")
    root = Path(__file__).parents[2] / "src"
    return [root / "include", root / "base", Path(tvm_ffi.origin).parent / "include"]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    nanobind = Path(importlib.util.find_spec("nanobind").origin).parent
    library = folder / "vectors.so"
    includes = [nanobind / "include", nanobind / "ext/robin_map/include", sysconfig.get_path("include"), *folders()]
    system = [option for folder in includes[:3] for option in ("-isystem", str(folder))]
    own = [f"-I{folder}" for folder in includes[3:]]
    command = [os.environ.get("CXX", "c++"), *FLAGS, *system, *own, SOURCE, nanobind / "src/nb_combined.cpp"]
    done = subprocess.run([*command, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    spec = importlib.util.spec_from_file_location("vectors", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vector_grows_as_any_other(module):
    assert module.sum_of_squares(1000) == sum(i * i for i in range(1000))


def test_memory_that_is_not_there_is_an_error(module):
    with pytest.raises((MemoryError, interop.CudaError)):
        module.too_much()
    assert module.sum_of_squares(3) == 5


def test_python_keeps_memory_of_cxx(module):
    x = module.ramp(1000)
    assert type(x) is interop.Array
    assert (x.dtype, x.shape) == ("int32", (1000,))
    view = np.asarray(x)
    del x
    gc.collect()
    junk = [module.ramp(1000) for _ in range(20)]
    assert view.tolist() == list(range(1000))
    del junk


def test_an_array_is_one_memory_for_cxx_and_numpy(module):
    image = module.Image([2, 3])
    assert image.shape == [2, 3]
    x = image.to_python()
    view = np.asarray(x)
    assert view.ctypes.data == image.address()
    assert view.tolist() == [[0, 0, 0], [0, 0, 0]]
    image.fill(2)
    assert view.tolist() == [[2, 2, 2], [2, 2, 2]]
    view[0, 1] = 5
    assert np.asarray(image).tolist() == [[2, 5, 2], [2, 2, 2]]
    x += 1
    x.synchronize()
    assert np.asarray(image)[0].tolist() == [3, 6, 3]
    assert x.memory == ("managed" if machine.gpu_count() else "host")


def test_an_array_is_resized_while_python_has_it_not(module):
    image = module.Image([4])
    image.fill(7)
    x = image.to_python()
    with pytest.raises(ValueError, match=r"^interop::array::resize: an array of Python has the memory"):
        image.resize([100])
    assert x.tolist() == [7] * 4
    del x
    gc.collect()
    image.resize([2, 3])
    assert np.asarray(image).tolist() == [[7, 7, 7], [7, 0, 0]]
    with pytest.raises(ValueError, match="a size is negative"):
        image.resize([-1])
