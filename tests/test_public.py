"""The package from outside: its names, their signatures and docstrings, what importing it does, its commands."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers import machine, products

import interop
from interop._commands import conformance
from interop._libraries import known
from interop._operations.table import FUNCTIONS as OF_ELEMENTS

ROOT = Path(__file__).resolve().parent.parent
ELEMENTWISE = list(OF_ELEMENTS)
MEMORY = ["arange", "copy", "copyto", "empty", "empty_like", "full", "full_like", "memory_pool", "ones", "ones_like"]
MEMORY += ["set_allocator", "zeros", "zeros_like"]
FUNCTIONS = [
    "adapt",
    "adopt",
    "asarray",
    "bridge",
    "convert",
    "elementwise",
    "explain",
    "graph",
    "kernel",
    "load",
    "matmul",
]
FUNCTIONS += ["open", "operator", "profile", "register", "share", "tensor_map", *MEMORY, *ELEMENTWISE]
CLASSES = [
    "Adapted",
    "Adopted",
    "Array",
    "Bridge",
    "CompiledFunction",
    "CudaError",
    "ExplainedArgument",
    "Explanation",
    "Expression",
    "Function",
    "Globals",
    "Graph",
    "GraphPool",
    "Kernel",
    "Library",
    "MemoryPool",
    "Opaque",
    "Operator",
    "Profile",
    "SharedHandle",
    "TensorMap",
    "Variable",
    "autotune",
]
PATHS = ["get_cmake_dir", "get_include"]
NAMES = [*CLASSES, "__version__", *PATHS, *FUNCTIONS]  # `jax` on first use


def run(*arguments, cwd, **environment):
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- names ----


def test_the_public_names():
    assert sorted(interop.__all__) == sorted(NAMES)
    public = {name for name in vars(interop) if not name.startswith("_") and not inspect.ismodule(vars(interop)[name])}
    assert public - {"annotations"} == set(NAMES) - {"__version__"}


def test_star_import_needs_no_other_library(tmp_path):
    code = "import sys; sys.modules['jax'] = None\nfrom interop import *\nprint(matmul.__name__)"
    assert run("-c", code, cwd=tmp_path) == "matmul\n"


def test_the_module_for_jax_is_loaded_on_first_use(jax, tmp_path):
    code = "import sys, interop; before = 'jax' in sys.modules; interop.jax.matmul; print(before, 'jax' in sys.modules)"
    assert run("-c", code, cwd=tmp_path) == "False True\n"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'interop' has no attribute 'matmull'"):
        _ = interop.matmull
    assert not hasattr(interop, "numpy")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_what_tools_expect(name):
    function = getattr(interop, name)
    assert inspect.isfunction(function) or inspect.isbuiltin(function)  # what torch.compile can look into
    assert function.__module__.split(".")[0] == "interop"
    assert function.__qualname__ == name
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


def test_the_signature_of_matmul():
    signature = inspect.signature(interop.matmul)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    options = ["out", "dtype", "c", "beta", "bias", "epilogue", "aux", "scale_a", "scale_b"]
    options += ["precision", "backend", "autotune", "stream", "execution"]
    assert signature.parameters["alpha"].default == 1
    assert kinds == {
        "a": inspect.Parameter.POSITIONAL_ONLY,
        "b": inspect.Parameter.POSITIONAL_ONLY,
        **dict.fromkeys([*options, "alpha"], inspect.Parameter.KEYWORD_ONLY),
    }
    assert all(signature.parameters[name].default is None for name in options)
    assert set(interop.matmul.__annotations__) == {*kinds, "return"}


def test_matmul_has_every_keyword_of_its_signature():
    x = np.eye(2)
    parameters = inspect.signature(interop.matmul).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    assert np.array_equal(interop.matmul(x, x, **dict.fromkeys(names)), x)
    for name in names:
        with pytest.raises((TypeError, ValueError), match=rf"^interop.matmul: {name} is "):
            interop.matmul(x, x, **{name: object()})


def test_classes_have_signatures():
    for kind in (interop.Kernel, interop.Function, interop.Expression, interop.Operator):
        assert inspect.signature(kind).parameters


def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant():
    x = np.eye(2)
    for call in (interop.matmul, lambda *arrays, **options: interop.explain(interop.matmul, *arrays, **options)):
        match = r"^interop.matmul: got an unexpected keyword argument 'outt'; did you mean 'out'\? accepted: out, dtype"
        with pytest.raises(TypeError, match=match):
            call(x, x, outt=None)


def test_matmul_knows_a_keyword_that_was_put_together():
    x, out = np.eye(2), np.zeros((2, 2))
    name = "".join(["o", "ut"])  # equal to the name that is written in a call, and another object
    assert interop.matmul(x, x, **{name: out}) is out


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_signatures_of_elementwise_functions(name):
    kinds = {name: parameter.kind for name, parameter in inspect.signature(getattr(interop, name)).parameters.items()}
    operands = ["x"] if name in ("negative", "abs") else ["a", "b"]
    options = ["out", "stream", *(["where_zero"] if name == "divide" else []), "execution"]
    assert kinds == {
        **dict.fromkeys(operands, inspect.Parameter.POSITIONAL_ONLY),
        **dict.fromkeys(options, inspect.Parameter.KEYWORD_ONLY),
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_of_functions_have_every_section_and_parameter(name):
    function = getattr(interop, name)
    text = inspect.getdoc(function)
    assert text.splitlines()[0].endswith(".")
    sections = re.findall(r"^(\w+)\n-+$", text, re.MULTILINE)
    returns = inspect.signature(function).return_annotation not in (None, "None")
    takes = ["Parameters"] if inspect.signature(function).parameters else []
    assert sections == [*takes, *(["Returns"] if returns else []), "Raises", "Notes", "Examples"]
    documented = re.findall(r"^(\w+) : ", text.split("Raises")[0], re.MULTILINE)
    assert documented == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_public_names_have_docstrings(name):
    assert inspect.getdoc(getattr(interop, name))


def test_members_of_array_have_docstrings():
    members = (
        "shape",
        "strides",
        "dtype",
        "device",
        "memory",
        "ndim",
        "stream",
        "T",
        "astype",
        "item",
        "reshape",
        "synchronize",
        "to",
        "__len__",
        "__dlpack__",
        "__dlpack_device__",
        "__cuda_array_interface__",
    )
    for name in members:
        assert inspect.getdoc(inspect.getattr_static(interop.Array, name)), name
    assert (interop.Array.__module__, interop.Array.__qualname__) == ("interop", "Array")


def test_cuda_error_is_a_runtime_error():
    assert issubclass(interop.CudaError, RuntimeError)
    assert interop.CudaError.__module__ == "interop"
    error = pickle.loads(pickle.dumps(interop.CudaError("words")))
    assert type(error) is interop.CudaError
    assert str(error) == "words"


def test_the_docstrings_examples_are_collected(tmp_path):
    """`pytest --pyargs interop` finds the examples of the installed package."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    options = ["--pyargs", "--doctest-modules", "--doctest-ignore-import-errors", "--collect-only", "-q", "interop"]
    found = run("-P", "-m", "pytest", *options, cwd=tmp_path)
    for name in ("interop.matmul", "_matmul.matmul"):
        if name in found:
            return
    pytest.fail(found)


def test_the_example_of_matmul_is_run(tmp_path):
    code = "import doctest, interop._matmul as m; print(doctest.testmod(m))"
    assert re.search(r"failed=0, attempted=[1-9]", run("-c", code, cwd=tmp_path))


# ---- torch.compile ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's own, while it loads the compiler
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_a_compiled_function_may_call_matmul(torch):
    def f(a, b):
        return interop.matmul(a * 2, b) + 1

    a, b = torch.ones(3, 4), torch.ones(4, 5)
    compiled = torch.compile(f, backend="eager")
    for _ in range(2):
        assert (compiled(a, b) == 9).all()


# ---- import ----


def test_import_loads_no_array_library(tmp_path):
    code = "import sys, interop; print({'torch', 'jax', 'cupy', 'numba', 'cuda'} & sys.modules.keys())"
    assert run("-c", code, cwd=tmp_path) == "set()\n"


def test_import_leaves_what_few_calls_need(tmp_path):
    code = """
import sys, interop
rare = {"_functions.headers", "_functions.preprocessed", "_cuda.nvcc", "_commands"}
print({f"interop.{module}" for module in rare} & sys.modules.keys())
"""
    assert run("-c", code, cwd=tmp_path) == "set()\n"


def test_host_calls_load_no_array_library(tmp_path):
    code = """
import sys, numpy, interop
x = numpy.eye(3)
interop.matmul(x, memoryview(x), out=x.copy())
interop.matmul(memoryview(x), x).__dlpack__()
try:
    interop.matmul([1], x)
except TypeError:
    pass
print([name for name in ("torch", "jax", "cupy", "numba", "cuda") if name in sys.modules])
"""
    assert run("-c", code, cwd=tmp_path) == "[]\n"


def test_import_starts_no_cuda_and_no_thread(tmp_path):
    code = """
import threading, interop
maps = open("/proc/self/maps").read()
print("libcuda.so" in maps, "libcublas" in maps, threading.active_count())
"""
    if not Path("/proc/self/maps").exists():
        pytest.skip("reads /proc")
    assert run("-c", code, cwd=tmp_path) == "False False 1\n"


def test_import_in_the_root_of_the_repository_finds_the_installed_package():
    code = "import interop, json; x = interop._core; print(json.dumps([x.__file__, interop.matmul.__name__]))"
    file, name = json.loads(run("-c", code, cwd=ROOT))
    assert not Path(file).is_relative_to(ROOT / "interop")
    assert name == "matmul"
    assert "interop-dlpack" in run("-m", "interop", "--version", cwd=ROOT)


def test_import_of_a_source_tree_alone_says_what_to_do(tmp_path):
    shutil.copytree(
        ROOT / "interop", tmp_path / "interop", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # where it may be installed
    command = [sys.executable, "-S", "-c", "import interop"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 1
    assert "ImportError: interop: the compiled half (interop._core) cannot be imported" in done.stderr
    assert "'pip install .'" in done.stderr


def test_import_of_two_versions_says_what_to_do(tmp_path):
    package = tmp_path / "interop"
    shutil.copytree(ROOT / "interop", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_version.py").write_text('__version__ = "0.0.0"\n')
    done = subprocess.run([sys.executable, "-c", "import interop"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "these Python files are version 0.0.0 and the compiled half is" in done.stderr
    assert "pip install --force-reinstall interop-dlpack" in done.stderr


def test_there_is_one_version():
    """That of interop/_version.py, which the build reads: see pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    written = re.search(r'^__version__ = "(.+)"$', (ROOT / "interop/_version.py").read_text(), re.MULTILINE)[1]
    assert project["project"].get("version", written) == written
    assert interop.__version__ == interop._core.build_info()["version"] == written
    for distribution in importlib.metadata.distributions(name="interop-dlpack"):
        assert distribution.version == written


# ---- the command ----


def test_info_reports_this_machine(tmp_path):
    report = run("-m", "interop", "info", cwd=tmp_path)
    assert re.search(rf"^  interop-dlpack +{re.escape(interop.__version__)}$", report, re.MULTILINE)
    assert re.search(rf"^  numpy +{re.escape(np.__version__)}", report, re.MULTILINE)
    for section in ("versions", "devices", "array libraries", "CUDA libraries"):
        assert re.search(f"^{section}$", report, re.MULTILINE), report
    for library in ("numpy", "torch", "jax", "cupy", "numba"):
        assert re.search(f"^  {library} ", report, re.MULTILINE), report
    for name in ("warp", "tvm-ffi", r"cuda\.core", "paddle", "tensorflow"):
        row = rf"^  {name} +(not installed; pip install [\w-]+|\d[\w.+]*; read by [\w.]+)$"
        assert re.search(row, report, re.MULTILINE), report


@pytest.mark.parametrize("library", known.READ_ALSO, ids=lambda library: library.name)
def test_info_says_the_route(library):
    machine.need(next(name for name, module in machine.REQUIREMENTS.items() if module == library.module))
    producer = next(p for p in conformance.PRODUCERS if (p.module, p.device) == (library.module, "host"))
    array = producer.make(producer.load(), np.zeros((4, 6), np.float32))
    assert interop._core.route(array)[1] == library.protocol
    assert library.version() is not None


def test_info_imports_no_library_for_its_version(tmp_path):
    code = (
        "import sys; from interop._commands import info; info.LIBRARIES = (); print(info.report()); "
        "assert not {'warp', 'tvm_ffi', 'cuda.core', 'paddle', 'tensorflow'} & set(sys.modules)"
    )
    assert "tvm-ffi" in run("-c", code, cwd=tmp_path)


def test_demo_runs(tmp_path):
    report = run("-m", "interop", "demo", cwd=tmp_path)
    assert "numpy" in report


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["bench", "frobnicate"]])
def test_the_command_refuses_what_it_does_not_know(tmp_path, arguments):
    done = subprocess.run([sys.executable, "-m", "interop", *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "usage: interop" in done.stderr


@pytest.mark.parametrize("path", ["", "\udcff/page.md"], ids=["empty", "no text"])
def test_the_command_says_which_file_it_cannot_write(tmp_path, path):
    command = [sys.executable, "-m", "interop", "conformance", "--update", path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, errors="replace")
    assert done.returncode == 2
    assert re.match("interop conformance: .*: (Is a directory|No such file or directory)\n$", done.stderr)


# ---- threads ----


def test_many_threads_on_host_arrays():
    x = products.draw((65, 65), "float64")
    expected = x @ x
    wrong = []
    barrier = threading.Barrier(16)

    class Mine(np.ndarray):  # a new type: its route is looked up by all threads at once
        pass

    def work(k):
        barrier.wait()
        mine = x.view(Mine)
        for _ in range(200):
            out = np.empty_like(x)
            results = (
                interop.matmul(x, mine),
                np.asarray(interop.matmul(memoryview(x), x)),
                interop.matmul(x, x, out=out),
            )
            if not all(np.allclose(c, expected) for c in results):
                wrong.append(k)
            try:
                interop.matmul(x, x[:3])
            except ValueError:
                continue
            wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_types_than_the_cache_holds():
    """The cache of routes is bounded: types made in a loop neither crash nor lead to a wrong route."""
    x = np.eye(2)
    for k in range(2000):
        array = x.view(type(f"Type{k}", (np.ndarray,), {}))
        assert interop.matmul(array, x).tolist() == [[1, 0], [0, 1]]
    refused = type("Refused", (np.ndarray,), {"__array_ufunc__": None})
    with pytest.raises(TypeError, match="Refused"):
        interop.matmul(x.view(refused), x)
    assert interop.matmul(x, x).tolist() == [[1, 0], [0, 1]]
