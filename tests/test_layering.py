"""The arrows between the layers point one way: who may include or import whom."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

PYTHON = r"Python\.h|nanobind/.*|pytypedefs\.h|numpy/.*"
CUDA = r"cuda.*|cublas.*|device_launch_parameters\.h|mma\.h|cooperative_groups.*"
OWN = r"interop/(elementwise|gemm|tensor|error)\.h"  # plain facts and errors, of use to every layer

# Of each layer: what it may include beside the standard library and <dlpack/dlpack.h>.
ALLOWED = {
    "src/ops": rf"ops/.*|{OWN}",
    "src/cuda": rf"cuda/.*|{OWN}|interop/cuda/.*|{CUDA}",
    "src/exchange": rf"exchange/.*|{OWN}|interop/.*|{PYTHON}",
    "src/bindings": rf"bindings/.*|exchange/.*|ops/.*|interop/.*|{PYTHON}|xla/ffi/.*",
    "src/include/interop/cuda": rf"{OWN}|interop/cuda/.*|{CUDA}",
    "src/include/interop": rf"interop/.*|{PYTHON}",
}
# Public headers that know neither Python nor CUDA, as the lower layers include them.
PLAIN = ("elementwise.h", "tensor.h", "gemm.h", "error.h")
VIEW = SRC / "include/interop/view.cuh"  # what users' kernels include
STANDARD = re.compile(r"[a-z_0-9]+|std(def|int)\.h|dlpack/dlpack\.h|(dlfcn|link|pthread|unistd|unwind|sys/\w+)\.h")


def layer_of(file):
    return next(
        layer
        for layer in sorted(ALLOWED, key=len, reverse=True)
        if file.relative_to(ROOT).as_posix().startswith(layer + "/")
    )


def includes(file):
    text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


SOURCES = sorted(file for file in SRC.rglob("*") if file.suffix in SUFFIXES)


def test_there_are_sources_of_every_layer():
    assert {layer_of(file) for file in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_includes_point_downwards(file):
    allowed = re.compile(ALLOWED[layer_of(file)])
    for header in includes(file):
        assert STANDARD.fullmatch(header) or allowed.fullmatch(header), f"{file.name} includes {header}"


@pytest.mark.parametrize("name", PLAIN)
def test_plain_headers_know_neither_python_nor_cuda(name):
    header = SRC / "include/interop" / name
    for included in includes(header):
        assert STANDARD.fullmatch(included) or re.fullmatch(OWN, included), included
    assert not re.search(r"\b(nanobind|PyObject|cudaStream_t|__global__)\b", header.read_text())


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_kernels_are_in_the_cuda_layer_alone(file):
    text = re.sub(r"//.*", "", file.read_text())
    if file == VIEW:
        assert not re.search(r"__global__|<<<", text)
        assert not includes(file)
    elif layer_of(file) != "src/cuda":
        assert file.suffix in {".h", ".cpp"}
        assert not re.search(r"__global__|__device__|<<<", text)
    if layer_of(file) in ("src/cuda", "src/ops", "src/include/interop/cuda"):
        assert not re.search(r"\b(PyObject|Py_\w+|nanobind|nb::)", text)


def test_public_headers_include_no_private_ones():
    for file in (SRC / "include").rglob("*.h"):
        for header in includes(file):
            known = header.startswith(("interop/", "nanobind/")) or header in ("Python.h", "cuda_runtime_api.h")
            assert STANDARD.fullmatch(header) or known, f"{file.name}: {header}"


# ---- the Python half ----

MODULES = sorted((ROOT / "interop").glob("*.py"))
FREE = {"torch", "cupy", "jax", "numba", "warp", "cuda", "tensorflow"}


def imports_at_module_level(file):
    """The top-level packages that importing this module imports: those inside functions do not count."""
    found = set()
    pending = list(ast.parse(file.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "interop").split(".")[0] if node.level == 0 else "interop")
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_modules_import_no_array_library_but_numpy(file):
    forbidden = FREE - ({"jax"} if file.name in ("jax.py", "_jax_elementwise.py", "_expression_jax.py") else set())
    assert not imports_at_module_level(file) & forbidden


def test_the_package_imports_little():
    """What `import interop` runs: not even the modules of its commands."""
    init = ast.parse((ROOT / "interop/__init__.py").read_text())
    imported = {
        node.module for node in ast.walk(init) if isinstance(node, ast.ImportFrom) and node.module.startswith("interop")
    }
    names = ("_convert", "_elementwise", "_explain", "_expression", "_kernel", "_load", "_matmul", "_paths")
    names += ("_autotune", "_core", "_register", "_version")
    assert imported <= {"interop", *(f"interop.{name}" for name in names)}


# ---- habits of the tests and the benchmarks ----


def captures_in_torchs_default_mode(source):
    """Lines with `torch.cuda.graph(...)` that leave out the mode, or ask for "global"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.cuda.graph":
            mode = next((keyword.value for keyword in node.keywords if keyword.arg == "capture_error_mode"), None)
            if mode is None or ast.unparse(mode) == "'global'":
                yield node.lineno


@pytest.mark.parametrize("folder", ["interop", "tests"])
def test_no_capture_can_be_broken_by_jax(folder):
    """JAX's threads break one in that mode: see `helpers/graphs.py`. Scripts in strings are processes of their own."""
    found = {
        (path.relative_to(ROOT).as_posix(), line)
        for path in (ROOT / folder).rglob("*.py")
        for line in captures_in_torchs_default_mode(path.read_text())
    }
    assert not found


@pytest.mark.parametrize("options", ["", ", stream=s", ', capture_error_mode="global"'])
def test_a_capture_that_jax_can_break_is_found(options):
    assert list(captures_in_torchs_default_mode(f"with torch.cuda.graph(g{options}):\n    pass\n")) == [1]
    assert not list(captures_in_torchs_default_mode('torch.cuda.graph(g, capture_error_mode="thread_local")'))
