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
BASE = r"interop/(elementwise|error|gemm|operations|profile|tensor)\.h"  # plain facts and errors, of use to every layer
KERNELS = rf"{BASE}|interop/cuda/.*|{CUDA}|cuda/driver/.*"

# Of each layer: what it may include beside the standard library and <dlpack/dlpack.h>.
ALLOWED = {
    "src/base": BASE,
    "src/ops": rf"ops/.*|{BASE}",
    "src/cuda": KERNELS,
    "src/cuda/driver": KERNELS,
    "src/cuda/elementwise": rf"cuda/elementwise/.*|{KERNELS}",
    "src/cuda/matmul": rf"cuda/matmul/.*|{KERNELS}",
    "src/cuda/user": KERNELS,
    "src/exchange": rf"exchange/.*|{BASE}|interop/.*|{PYTHON}",
    "src/bindings": rf"bindings/.*|exchange/.*|ops/.*|interop/.*|{PYTHON}|xla/ffi/.*",
    "src/include/interop/cuda": rf"{BASE}|interop/cuda/.*|{CUDA}",
    "src/include/interop": rf"interop/.*|{PYTHON}",
}
# Of each library of the build: what it may be linked to.
LINKS = {
    "interop_base": {"interop_headers"},
    "interop_ops": {"interop_base"},
    "interop_cuda": {"interop_base", "${CMAKE_DL_LIBS}"},
    "_core": {"interop_ops", "interop_cuda"},
}
VIEW = SRC / "include/interop/view.cuh"  # what users' kernels include
STANDARD = re.compile(
    r"[a-z_0-9]+|std(def|int)\.h|dlpack/dlpack\.h|(cxxabi|dlfcn|fcntl|link|pthread|unistd|unwind|sys/\w+)\.h"
)


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


def test_links_point_downwards():
    text = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text())
    links = {}
    for target, rest in re.findall(r"target_link_libraries\((?!gtest)(\w+)\s([^)]*)\)", text):
        links.setdefault(target, set()).update(set(rest.split()) - {"PUBLIC", "PRIVATE", "INTERFACE"})
    assert links == LINKS


def test_every_source_is_built():
    """Each `.cpp` and `.cu` of a layer stands in the list of its library."""
    text = (ROOT / "CMakeLists.txt").read_text()
    listed = set(re.findall(r"^ +(src/\S+\.(?:cpp|cu))\)?$", text, re.MULTILINE))
    listed |= set(re.findall(r"target_sources\(_core PRIVATE (\S+)\)", text))
    assert listed == {file.relative_to(ROOT).as_posix() for file in SOURCES if file.suffix in (".cpp", ".cu")}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_kernels_are_in_the_cuda_layer_alone(file):
    text = re.sub(r"//.*", "", file.read_text())
    if file == VIEW:
        assert not re.search(r"__global__|<<<", text)
        assert not includes(file)
    elif not layer_of(file).startswith("src/cuda"):
        assert file.suffix in {".h", ".cpp"}
        assert not re.search(r"__global__|__device__|<<<", text)
    if not layer_of(file).startswith(("src/exchange", "src/bindings")) and layer_of(file) != "src/include/interop":
        assert not re.search(r"\b(PyObject|Py_\w+|nanobind|nb::)", text)


def test_public_headers_include_no_private_ones():
    for file in (SRC / "include").rglob("*.h"):
        for header in includes(file):
            known = header.startswith(("interop/", "nanobind/")) or header in ("Python.h", "cuda_runtime_api.h")
            assert STANDARD.fullmatch(header) or known, f"{file.name}: {header}"


# ---- the Python half ----

PACKAGE = ROOT / "interop"
MODULES = sorted(PACKAGE.rglob("*.py"))
FREE = {"torch", "cupy", "jax", "numba", "warp", "cuda", "tensorflow", "dask"}

# From the bottom up: each imports of its own layer and of those before it. What stands in no package is in `BOTTOM`, or
# one of the functions that users call.
BOTTOM = {"_arguments", "_core", "_streams", "_version"}
LAYERS = [
    "bottom",
    "_libraries",
    "_memory",
    "_operations",
    "_cuda",
    "_functions",
    "_expressions",
    "_operators",
    "_host",
    "jax",
    "torch",
    "dask",
    "_bridges",
    "functions that users call",
    "_commands",
]


def python_layer(module):
    """The layer of a module, such as "_host.matmul" or "_matmul", as a number; `interop` itself is ""."""
    first = module.partition(".")[0]
    if first in BOTTOM:
        return 0
    return LAYERS.index(first if first in LAYERS else "functions that users call")


def module_of(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULE_NAMES = {module_of(file) for file in MODULES} | {"_core"}


def own_imports(file):
    """The modules of `interop` that a module imports, anywhere in it: within functions, too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            assert not isinstance(node, ast.ImportFrom), f"{file.name} imports by dots"
            continue
        for name in names:
            if name == "interop" or name.startswith("interop."):
                module = name.removeprefix("interop").removeprefix(".")
                yield module if module in MODULE_NAMES else module.rpartition(".")[0]


def test_no_layer_of_python_is_forgotten():
    folders = {file.parent.relative_to(PACKAGE).parts[0] for file in MODULES if file.parent != PACKAGE}
    assert folders == {layer for layer in LAYERS if layer not in ("bottom", "functions that users call")}
    assert BOTTOM <= MODULE_NAMES


@pytest.mark.parametrize("file", MODULES, ids=module_of)
def test_imports_point_downwards(file):
    own = module_of(file)
    for module in own_imports(file):
        if own != "" and python_layer(own) < LAYERS.index("_commands") and own not in ("testing", "__main__"):
            assert module != "", f"{own} imports interop itself"
        assert python_layer(module) <= python_layer(own) or own == "__main__", f"{own} imports {module}"


def test_no_modules_import_each_other():
    arrows = {module_of(file): set(own_imports(file)) for file in MODULES}
    left = {module: arrows[module] - {"", module} for module in arrows if module != ""}
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        for module in free:
            del left[module]
    assert not left, f"these import each other: {sorted(left)}"


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


@pytest.mark.parametrize("file", MODULES, ids=module_of)
def test_modules_import_no_array_library_but_numpy(file):
    of_their_own = {**{name: {name} for name in ("jax", "torch", "dask")}, "_bridges": {"jax", "torch"}}
    forbidden = FREE - of_their_own.get(module_of(file).partition(".")[0], set())
    assert not imports_at_module_level(file) & forbidden


def test_the_package_imports_little():
    """What `import interop` runs: not even the modules of its commands."""
    init = ast.parse((ROOT / "interop/__init__.py").read_text())
    imported = {
        node.module for node in ast.walk(init) if isinstance(node, ast.ImportFrom) and node.module.startswith("interop")
    }
    names = (
        "_comparisons",
        "_compiled",
        "_convert",
        "_elementwise",
        "_explain",
        "_expression",
        "_kernel",
        "_load",
        "_matmul",
        "_operator",
        "_paths",
    )
    names += ("_autotune", "_copying", "_core", "_creation", "_pools", "_register", "_variables", "_version")
    names += ("_adapt", "_adopt", "_bridge", "_graph", "_handles", "_profile", "_share", "_tensor_map")
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
