"""The standard headers of a kernel that NVRTC compiles, which comes without the host's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from helpers import machine
from helpers.kernels import MULTIPLY

import interop
from interop import _program
from interop._cuda import nvrtc as compiler


@pytest.mark.parametrize("has_cuda", [True, False], ids=["with CUDA's headers", "alone"])
@pytest.mark.parametrize(
    "first",
    ["", "#include <cstddef>", "#include <stddef.h>", "#include <cstdint>", "#include <stdint.h>",
     "#include <cuda/std/cstdint>", "#include <cstdint>\n#include <cuda/std/cstdint>\n#include <cuda/std/cstddef>"],
)  # fmt: skip
def test_the_standard_headers_that_nvrtc_lacks(monkeypatch, first, has_cuda):
    machine.need("nvrtc")
    machine.need("cuda_core")
    if not has_cuda:
        monkeypatch.setattr(_program, "cuda_headers", lambda: ())
    elif not _program.cuda_headers():
        pytest.skip("CUDA's own headers are not installed")
    if "cuda/" in first and not has_cuda:
        pytest.skip("it includes them")
    source = first + '\nstatic_assert(sizeof(std::size_t) == 8, "");\n'
    if "int" in first:
        source += 'static_assert(sizeof(int64_t) == 8 && sizeof(uint16_t) == 2 && uint8_t(-1) == 255, "");\n'
    if "<cstdint>" in first:
        source += 'static_assert(sizeof(std::int32_t) == 4 && std::int8_t(-1) < 0, "");\n'
    source += "__global__ void k(float* x, std::size_t n) { if (n) x[0] = MORE; }"
    options = _program.compiler_options(None, "k", {"define_macro": "MORE=1", "pre_include": "cstddef"})
    compiler.compile_source("a test", source, ["k"], options, "sm_80")


def test_a_standard_header_that_is_the_hosts():
    machine.need("nvrtc")
    machine.need("cuda_core")
    source = "#include <vector>\n__global__ void k(float* x) {}"
    options = _program.compiler_options(None, "k", {})
    with pytest.raises(interop.CudaError, match="compiled by compiler='nvcc'"):
        compiler.compile_source("a test", source, ["k"], options, "sm_80")


def test_cudas_own_headers_are_found():
    machine.need("nvrtc")
    machine.need("cuda_core")
    if not _program.cuda_headers():
        pytest.skip("CUDA's own headers are not installed")
    source = "#include <cuda_fp16.h>\n__global__ void k(__half* x, __half by) { *x = __hmul(*x, by); }"
    compiler.compile_source("a test", source, ["k"], _program.compiler_options(None, "k", {}), "sm_80")


def test_tensor_cores_by_their_header():
    machine.need("nvrtc")
    machine.need("cuda_core")
    folders = _program.cuda_headers()
    if not any(Path(folder, "mma.h").is_file() for folder in folders):
        pytest.skip("CUDA's own headers are not installed")
    if not any(Path(folder, "crt/mma.h").is_file() for folder in folders):
        pytest.skip("nvidia-cuda-crt is not installed")
    assert len({*folders}) == len(folders)
    compiler.compile_source("a test", MULTIPLY, ["multiply"], _program.compiler_options(None, "multiply", {}), "sm_80")


def test_the_extras_have_the_other_half_of_that_header():
    root = Path(__file__).resolve().parent.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert "cuda-toolkit[crt]==13.*" in extras["cu13"]
    assert "cuda-toolkit[nvcc]==12.*" in extras["cu12"]  # it has crt/ in the package of the compiler
