"""What is installed: complete, small, and free of NVIDIA's libraries."""

import importlib.metadata
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import interop
from interop import _core


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder with the compiled half; in an editable install it is not that of the Python files."""
    return Path(_core.__file__).parent


def test_distribution_has_stub_marker_and_headers(package):
    for name in (
        "_core.pyi",
        "py.typed",
        "include/dlpack/dlpack.h",
        "include/interop/array.h",
        "include/interop/call.h",
        "include/interop/function.h",
        "include/interop/mdspan.h",
        "cmake/interopConfig.cmake",
    ):
        assert (package / name).is_file(), name


def test_distribution_is_small_and_has_no_library(package):
    assert [path.name for path in package.rglob("*.so*")] == [Path(_core.__file__).name]
    packed = sum(len(zlib.compress(path.read_bytes())) for path in package.rglob("*") if path.is_file())
    assert packed < 10_000_000  # as in a wheel


def test_distribution_names_its_version():
    assert importlib.metadata.version("interop-dlpack") == interop.__version__


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_import_loads_no_library_of_nvidia():
    code = "import interop; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout
    assert "_core" in maps
    for name in ("libcuda.so", "libcudart", "libcublas", "libnvrtc"):
        assert name not in maps
