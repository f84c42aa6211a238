"""The build backend's one decision: which CUDA compiler, and what to ask PyPI for."""

import importlib.util
import platform
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "build_backend" / "interop_build.py"

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="no CUDA here"
    ),
    pytest.mark.skipif(importlib.util.find_spec("scikit_build_core") is None, reason="needs scikit-build-core"),
]


@pytest.fixture
def backend(monkeypatch):
    for name in ("CMAKE_ARGS", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "INTEROP_CUDA_TOOLKIT"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("interop_build", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Make a toolkit of a version, on PATH."""

    def make(version: str) -> str:
        nvcc = tmp_path / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {version}, V{version}.1\n")
        nvcc.chmod(0o755)
        monkeypatch.setenv("PATH", f"{nvcc.parent}:/usr/bin:/bin")
        return str(nvcc)

    return make


@pytest.mark.parametrize("version", ["12.0", "12.9", "13.0"])
def test_local_toolkit_wins(backend, toolkit, version):
    nvcc = toolkit(version)
    assert backend._requires(None) == [backend.XLA_HEADERS]
    assert backend._with_compiler(None) == {"cmake.define.CMAKE_CUDA_COMPILER": nvcc}


@pytest.mark.parametrize("version", ["11.8", "14.0"])
def test_local_toolkit_of_another_version_is_passed_over(backend, toolkit, version):
    nvcc = toolkit(version)
    assert str(backend._local_nvcc()) != nvcc


def test_pypi_toolkit_is_five_packages_of_one_release(backend, toolkit, monkeypatch):
    toolkit("13.0")
    monkeypatch.setenv("INTEROP_CUDA_TOOLKIT", "pypi")
    assert backend._requires(None) == [*backend.CUDA_FROM_PYPI, backend.XLA_HEADERS]
    assert len(backend.CUDA_FROM_PYPI) == 5
    assert all(requirement.endswith("==13.0.*") for requirement in backend.CUDA_FROM_PYPI)


def test_no_toolkit_without_isolation_says_what_to_do(backend, monkeypatch):
    monkeypatch.setenv("INTEROP_CUDA_TOOLKIT", "pypi")
    monkeypatch.setattr(backend, "_pypi_nvcc", lambda: None)
    with pytest.raises(SystemExit, match=r"interop: no CUDA compiler.*nvidia-cuda-nvcc==13\.0.*INTEROP_CUDA=OFF"):
        backend._with_compiler(None)


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, {"cmake.define.INTEROP_CUDA": "OFF"}),
        ({}, {"cmake.args": ["-DX=1", "-DINTEROP_CUDA=OFF"]}),
        ({"CMAKE_ARGS": "-DX=1 -DINTEROP_CUDA:BOOL=OFF"}, {}),
        ({"SKBUILD_CMAKE_DEFINE": "X=1;INTEROP_CUDA=OFF"}, {}),
        ({"CMAKE_ARGS": "-DINTEROP_CUDA=ON"}, {"cmake.define.INTEROP_CUDA": "off"}),
    ],
)
def test_host_only_build_asks_for_nothing(backend, monkeypatch, environment, settings):
    monkeypatch.setenv("INTEROP_CUDA_TOOLKIT", "pypi")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert backend._requires(settings) == []
    assert backend._with_compiler(settings) == settings


def test_given_compiler_is_left_alone(backend, monkeypatch):
    monkeypatch.setenv("CUDACXX", "/opt/other/nvcc")
    monkeypatch.setenv("INTEROP_CUDA_TOOLKIT", "pypi")
    assert backend._requires(None) == [backend.XLA_HEADERS]
    assert backend._with_compiler(None) is None


def test_toolkit_folder_without_nvcc_is_an_error(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("INTEROP_CUDA_TOOLKIT", str(tmp_path))
    with pytest.raises(SystemExit, match="INTEROP_CUDA_TOOLKIT"):
        backend._requires(None)
