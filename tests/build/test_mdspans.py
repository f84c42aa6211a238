"""Mdspans of libcu++ in a module of C++, by <interop/mdspan.h>: mdspans.cpp, built as in test_compiled_functions.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers import machine

import interop

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("mdspans.cpp")
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra"]
X = np.arange(12.0).reshape(3, 4)


def headers():
    """The folders of interop's headers and of dlpack.h; in a build tree they are where the build has them from."""
    installed = Path(interop.get_include())
    if installed.is_dir():
        return [installed]
    dlpack = Path(importlib.util.find_spec("tvm_ffi").origin).parent / "include"
    return [ROOT / "src/include", ROOT / "src/base", dlpack]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    machine.need_libcu()
    from cuda import pathfinder

    cccl = pathfinder.find_nvidia_header_directory("cccl")
    # Beside libcu++ are the runtime's headers of the same toolkit; those of a package may lack parts.
    cuda = [cccl, str(Path(cccl).parent), pathfinder.find_nvidia_header_directory("cudart")]
    nanobind = Path(importlib.util.find_spec("nanobind").origin).parent
    folders = [nanobind / "include", nanobind / "ext/robin_map/include", sysconfig.get_path("include"), *cuda]
    library = tmp_path_factory.mktemp("modules") / "mdspans.so"
    command = [os.environ.get("CXX", "c++"), *FLAGS, *(f"-isystem{path}" for path in folders if path)]
    command += [f"-I{path}" for path in headers()]
    sources = [SOURCE, nanobind / "src/nb_combined.cpp"]
    done = subprocess.run([*command, *sources, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "src/include" not in done.stderr, done.stderr[-4000:]  # a warning
    spec = importlib.util.spec_from_file_location("mdspans", library)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mdspans"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mdspans"]


def test_functions_without_python(module, host_library):
    transposed = module.transposed.returning(y=lambda x: x.shape[::-1])
    x = np.arange(15, dtype="float32").reshape(3, 5)
    y = transposed(host_library.make(x))
    assert host_library.is_ours(y)
    np.testing.assert_array_equal(host_library.to_numpy(y), x.T)
    np.testing.assert_array_equal(transposed(x[::-1, ::-2]), x[::-1, ::-2].T)


def test_what_the_declaration_says_is_checked(module):
    x = np.zeros((3, 5), "float32")
    with pytest.raises(ValueError, match=r"mdspans.transposed: y is .*; accepted: a C-contiguous float32 .* \(\*, 3\)"):
        module.transposed(x, np.zeros((5, 6), "float32")[:, ::2])
    with pytest.raises(ValueError, match=r"mdspans.transposed: y is .* shape \(5, 4\).*; accepted: .* \(\*, 3\)"):
        module.transposed(x, np.zeros((5, 4), "float32"))
    with pytest.raises(ValueError, match=r"y has shape \(5, 4\); accepted: \(\*, 3\), the extents of its mdspan"):
        module.transposed.returning(y=lambda x: (5, 4))(x)
    with pytest.raises(ValueError, match="mdspans.transposed: parameter 1 has sizes or strides beyond the mdspan's"):
        module.transposed(np.zeros((3, 2**15), "float32"), np.zeros((2**15, 3), "float32"))


def test_functions_with_python(module, host_library):
    x = host_library.make(X)
    assert module.right(x) == module.any(x) == module.few(x) == module.fixed(x) == 11
    assert module.left(X.T) == module.any(X.T) == module.any(X[::-1, ::-1]) == 11
    for function, array, match in (
        (
            module.right,
            X.T,
            "the stride 1 in dimension 0; accepted: 3, as the mdspan's layout has it",
        ),
        (module.left, X, "the stride 4 in dimension 0; accepted: 1"),
        (module.fixed, X[:, :3].copy(), "the size 3 in dimension 1; accepted: 4, its static extent"),
        (module.few, np.zeros((12, 12)), "more elements than the mdspan's type of indices counts"),
        (module.few, np.zeros((1, 200)), "sizes or strides beyond the mdspan's type of indices"),
        (module.few, np.zeros((2, 200))[::-1, :3], "sizes or strides beyond the mdspan's type of indices"),
        (module.few, np.zeros((3, 100))[::-1, :3], "more elements than the mdspan's type of indices counts"),
        (module.any, X[0], "mdspans.first_and_last: x is float64 of shape"),
    ):
        with pytest.raises(ValueError, match=match):
            function(array)
    with pytest.raises(TypeError, match="x is float32"):
        module.right(X.astype("float32"))
    with pytest.raises(Exception, match="which the call was not told of"):
        module.write(np.zeros((2, 2), "float32"))


def test_any_dltensor(module):
    assert module.offset() == 25
    with pytest.raises(TypeError, match="interop::as_mdspan: the array has elements of another type"):
        module.of_floats()


def test_memory_that_is_owned(module):
    assert np.asarray(module.owned()).tolist() == [[0, 1, 2], [10, 11, 12]]
