"""The PEP 517 backend: scikit-build-core, plus a CUDA compiler from PyPI where the machine has none.

A requirement's marker cannot ask whether nvcc is installed, so it is asked here. INTEROP_CUDA_TOOLKIT chooses:

    unset, auto   a local toolkit (CUDACXX, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda) of CUDA 12 or 13, else PyPI's
    local, pypi   only the one or the other
    a folder      the toolkit there: <folder>/bin/nvcc
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _skbuild
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

# nvcc pins none of the others, and a newer one writes PTX that a CUDA 13.0 driver refuses.
CUDA_FROM_PYPI = [
    f"{name}==13.0.*"
    for name in (
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
        "nvidia-cuda-crt",
        "nvidia-cuda-runtime",
        "nvidia-cuda-cccl",
    )
]

# XLA's FFI headers. Handlers built with those of a newer jaxlib are refused by older JAX; these run on all since.
# Without them (-DINTEROP_JAX=OFF, or a Python that it has no wheel for) the package has no JAX half.
XLA_HEADERS = "jaxlib==0.8.0; python_version < '3.15'"


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _skbuild.get_requires_for_build_wheel(config_settings) + _requires(config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _skbuild.get_requires_for_build_editable(config_settings) + _requires(config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    return _skbuild.build_wheel(wheel_directory, _with_compiler(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _skbuild.build_editable(wheel_directory, _with_compiler(config_settings), metadata_directory)


def _requires(config_settings: Settings) -> list[str]:
    """What this build needs beyond `build-system.requires`."""
    if not _cuda_asked(config_settings):
        return []
    requires = []
    if not _compiler_given(config_settings) and _local_nvcc() is None:
        requires += CUDA_FROM_PYPI
    if not _is_off(_cmake_define("INTEROP_JAX", config_settings)):
        requires.append(XLA_HEADERS)
    return requires


def _with_compiler(config_settings: Settings) -> Settings:
    """The settings, with the CUDA compiler that `_requires` decided for."""
    if not _cuda_asked(config_settings) or _compiler_given(config_settings):
        return config_settings
    nvcc = _local_nvcc() or _pypi_nvcc()
    if nvcc is None:  # only without build isolation
        raise SystemExit(
            f"interop: no CUDA compiler. Put nvcc of CUDA 12 or 13 on PATH, pip install {' '.join(CUDA_FROM_PYPI)}, "
            "or ask for a host-only build with -C cmake.define.INTEROP_CUDA=OFF."
        )
    return {**(config_settings or {}), "cmake.define.CMAKE_CUDA_COMPILER": str(nvcc)}


def _cuda_asked(config_settings: Settings) -> bool:
    has_cuda = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    return has_cuda and not _is_off(_cmake_define("INTEROP_CUDA", config_settings))


def _compiler_given(config_settings: Settings) -> bool:
    return "CUDACXX" in os.environ or _cmake_define("CMAKE_CUDA_COMPILER", config_settings) is not None


def _cmake_define(name: str, config_settings: Settings) -> str | None:
    """What config settings, else environment, give for a CMake variable: the last one wins, as in CMake."""
    words = [os.environ.get(variable, "") for variable in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")]
    for key, values in (config_settings or {}).items():
        words += [f"{key}={value}" for value in ([values] if isinstance(values, str) else values)]
    found = re.findall(rf"(?:^|[\s;.]|-D){name}(?::\w+)?=([^\s;]+)", " ".join(words))
    return found[-1] if found else None


def _is_off(value: str | None) -> bool:
    return value is not None and value.upper() in ("OFF", "0", "NO", "FALSE", "N")


def _local_nvcc() -> Path | None:
    """nvcc of a local toolkit that is to be used."""
    choice = os.environ.get("INTEROP_CUDA_TOOLKIT", "auto")
    if choice == "pypi":
        return None
    if choice not in ("auto", "local"):
        nvcc = Path(choice, "bin", "nvcc")
        if not nvcc.is_file():
            raise SystemExit(f"interop: INTEROP_CUDA_TOOLKIT={choice}: there is no {nvcc}")
        return nvcc
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [shutil.which("nvcc"), *(f"{folder}/bin/nvcc" for folder in folders if folder)]
    for candidate in candidates:
        if candidate and Path(candidate).is_file() and _release(candidate) in (12, 13):
            return Path(candidate)
    if choice == "local":
        raise SystemExit("interop: INTEROP_CUDA_TOOLKIT=local, but no nvcc of CUDA 12 or 13 was found")
    return None


def _release(nvcc: str) -> int | None:
    """The major version of an nvcc; None if it does not run."""
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"release (\d+)\.", text)
    return int(found[1]) if found else None


def _pypi_nvcc() -> Path | None:
    """nvcc of the `nvidia-cuda-nvcc` wheel, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        nvcc = Path(folder, "cu13", "bin", "nvcc")
        if nvcc.is_file():
            return nvcc
    return None
