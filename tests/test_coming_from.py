"""The old ways of docs/coming-from.md: the files of its folder that its blocks do without, and the lines it counts."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers import alone, c_functions

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
FILES = PAGE.with_suffix("")
EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")
PYTHON_H = Path(sysconfig.get_path("include"))


@pytest.fixture
def files(tmp_path):
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    return tmp_path


def lines(text):
    return sum(1 for line in text.splitlines() if line.strip())


def test_the_page_counts_right():
    page = PAGE.read_text(encoding="utf-8")
    counted = dict(re.findall(r"(\d+) of `(\w+\.\w+)`", page))
    assert sorted(counted.values()) == ["calculator_module.cpp", "product_module.cpp", "sum_ctypes.py"]
    for count, name in counted.items():
        assert lines((FILES / name).read_text()) == int(count)
    program = (FILES / "matrix.cu").read_text()
    assert f"`main`: {lines(program[program.index('int main') :])}," in page
    extension = (FILES / "sum_torch.cu").read_text()
    kernel = extension[extension.index("__global__") : extension.index("}\n") + 2]
    assert f"| {lines(extension) - lines(kernel)}, and its build for each PyTorch |" in page


def test_the_module_of_cpython(files):
    if not (PYTHON_H / "Python.h").is_file():
        pytest.skip("no Python.h")
    source = (files / "calculator_module.cpp").read_text()
    c_functions.build(
        source, files / f"calculator_module{EXTENSION}", files / "calculator.cpp", f"-I{files}", f"-I{PYTHON_H}",
        language="c++",
    )  # fmt: skip
    said = alone.run(
        """
        import sys
        sys.path.insert(0, ".")
        import calculator_module as module
        print(module.add(2, 3), module.subtract(2, 3), module.multiply(2, 3), module.divide(1, 4))
        try:
            module.divide(1, 0)
        except ValueError as error:
            print(error)
        """,
        files,
    )
    assert said == "5 -1 6 0.25\nb is 0\n"


@pytest.mark.gpu
def test_the_module_of_pybind11(files, cuda_device):
    pybind11 = pytest.importorskip("pybind11")
    library = c_functions.build_cuda(files, "product", (files / "product.cu").read_text())
    library.rename(files / "libproduct.so")
    module = files / f"product_module{EXTENSION}"
    compiler = c_functions.nvcc()
    options = [f"-I{pybind11.get_include()}", f"-I{PYTHON_H}", f"-I{files}", "-Xlinker", f"-rpath={files}"]
    options += ["-cudart", "static", f"-L{Path(compiler).resolve().parents[1] / 'lib'}"]
    subprocess.run(
        [compiler, "-shared", "-Xcompiler", "-fPIC", *options, files / "product_module.cpp", files / "libproduct.so",
         "-o", module],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location("product_module", module)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    x, y = np.random.default_rng(0).random((2, 40, 40), "float32")
    np.testing.assert_allclose(found.multiply(x, y), x @ y, rtol=1e-5)
    with pytest.raises(ValueError, match="square"):
        found.multiply(x, y[:3])


@pytest.mark.gpu
def test_the_library_of_ctypes(files, cuda_device):
    c_functions.build_cuda(files, "sum", (files / "sum.cu").read_text()).rename(files / "libsum.so")
    said = alone.run(
        """
        import sys
        sys.path.insert(0, ".")
        from sum_ctypes import add
        print(add(np.arange(3, dtype="float32"), np.ones(3, "float32")).tolist())
        try:
            add(np.arange(3), np.arange(3))
        except TypeError as error:
            print(error)
        """,
        files,
    )
    assert said == "[1.0, 2.0, 3.0]\ntwo float32 arrays of one shape are needed\n"
