"""A module that is built with another nanobind than interop's own works with the installed interop, and shares it.

The module is sorted.cpp: two results, and scratch memory. The compiler is called without CMake, as other build systems
do it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers.dlpack import Fake

import interop

SOURCE = Path(__file__).with_name("sorted.cpp")
# The last before interop's own nanobind 3, and the oldest that docs/template accepts, which Python 3.14 came after.
VERSIONS = ["2.15.0", *(["2.4.0"] if sys.version_info < (3, 14) else [])]
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing"]

X = np.array([3, 1, 2, 1], "float32")
VALUES, PLACES = [1, 1, 2, 3], [1, 3, 2, 0]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def headers():
    """The folders of interop's headers and of dlpack.h; in a build tree they are where the build has them from."""
    installed = Path(interop.get_include())
    if installed.is_dir():
        return [installed]
    tvm_ffi = importlib.util.find_spec("tvm_ffi")
    return [Path(__file__).parents[2] / "src/include", Path(tvm_ffi.origin).parent / "include"]


@pytest.fixture(scope="module", params=VERSIONS, ids="nanobind {}".format)
def module(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nanobind")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, f"nanobind=={request.param}")
    nanobind = folder / "nanobind"
    folders = [nanobind / "include", nanobind / "ext/robin_map/include", sysconfig.get_path("include"), *headers()]
    library = folder / "sorted.so"
    sources = [SOURCE, nanobind / "src/nb_combined.cpp"]
    run(os.environ.get("CXX", "c++"), *FLAGS, *(f"-I{path}" for path in folders), *sources, "-o", library)
    spec = importlib.util.spec_from_file_location("sorted", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.nanobind == 2
    return module


def test_two_results_of_every_library(module, host_library):
    values, places = module.sorted(host_library.make(X))
    assert host_library.is_ours(values)
    assert host_library.is_ours(places)
    assert host_library.to_numpy(values).tolist() == VALUES
    assert host_library.to_numpy(places).tolist() == PLACES
    assert [host_library.dtype(x) for x in (values, places)] == ["float32", "int64"]


def test_nothing_needs_no_scratch_memory(module):
    assert [x.shape for x in module.sorted(X[:0])] == [(0,), (0,)]


def test_out_is_the_first_result(module, host_view_library):
    base = np.full((4, 2), 7, "float32")
    made = host_view_library.make(base)
    out = host_view_library.view_of(made, base, base[:, 1])
    values, places = module.sorted(host_view_library.make(X), out)
    assert values is out
    assert host_view_library.to_numpy(places).tolist() == PLACES
    assert host_view_library.to_numpy(made).tolist() == [[7, value] for value in VALUES]


def test_a_library_that_python_taught_interop(module):
    """The routes are those of the one interop, whatever module asks for them."""

    class Box:
        def __init__(self, inside):
            self.inside = inside

    interop.register(
        Box,
        name=f"boxes of {module.__file__}",
        export=lambda box: box.inside,
        empty=lambda shape, dtype, device, stream: Box(np.full(shape, 99, dtype)),
    )
    values, places = module.sorted(Box(X))
    assert type(values) is type(places) is Box
    assert (values.inside.tolist(), places.inside.tolist()) == (VALUES, PLACES)


def test_arrays_of_no_library(module):
    x = Fake(X)
    values, places = module.sorted(x)
    assert type(values) is type(places) is interop.Array  # the one type that interop's own functions take and give
    assert interop.add(values, values).shape == (4,)
    assert np.asarray(places).tolist() == PLACES
    assert x.exported == 1
    assert x.balanced


def test_refusals_are_interops(module):
    for x, out, exception, match in (
        (X.astype("float64"), None, TypeError, r"^sorted.sorted: x is float64 .*accepted: a float32 array"),
        (X.reshape(2, 2), None, ValueError, r"^sorted.sorted: x is float32 of shape \(2, 2\)"),
        ([1.0], None, TypeError, "^sorted.sorted: x is list"),
        (X, np.empty(3, "float32"), ValueError, r"^sorted.sorted: out has shape \(3,\); accepted: .*\(4,\)"),
        (X, X, ValueError, "^sorted.sorted: out shares memory with x"),
    ):
        with pytest.raises(exception, match=match):
            module.sorted(x, out)
    assert X.tolist() == [3, 1, 2, 1]
