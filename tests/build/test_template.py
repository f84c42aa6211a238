"""The template project of docs/ builds against the installed package, with no file of this source tree, and works."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from helpers import machine

from interop import _core

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, cwd="/")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def pack(name: str, folder: Path) -> None:
    """Make a wheel of an installed distribution again, of what its RECORD lists."""
    distribution = importlib.metadata.distribution(name)
    facts = distribution.read_text("WHEEL") or ""
    tag = next(line.split()[1] for line in facts.splitlines() if line.startswith("Tag:"))
    wheel = folder / f"{name.replace('-', '_')}-{distribution.version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if not path.startswith("..") and "__pycache__" not in path and not path.endswith(("INSTALLER", "RECORD")):
                archive.write(distribution.locate_file(path), path)
        record = next(info.filename for info in archive.infolist() if info.filename.endswith("/WHEEL"))
        archive.writestr(record.replace("/WHEEL", "/RECORD"), "")


def nvcc_settings() -> dict[str, str]:
    """What CMake is told of NVIDIA's compiler from PyPI, where it is the only one."""
    for folder in sys.path:
        nvcc = Path(folder, "nvidia/cu13/bin/nvcc")
        if shutil.which("nvcc") is None and "CUDACXX" not in os.environ and nvcc.is_file():
            return {"CUDACXX": str(nvcc), "CUDAFLAGS": f"-L{nvcc.parents[1]}/lib"}
    return {}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of a fresh environment into which the template was installed, built in isolation."""
    folder = tmp_path_factory.mktemp("template")
    project = shutil.copytree(ROOT / "docs/template", folder / "project")
    wheels = folder / "wheels"
    wheels.mkdir()
    pack("interop-dlpack", wheels)
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", f"{project}[test]", PIP_FIND_LINKS=str(wheels), **nvcc_settings())
    return python, project


def test_template_passes_its_own_tests(installed):
    python, project = installed
    # The environment of these tests lends its array libraries; the module and interop come from the fresh one.
    lent = [folder for folder in sys.path if folder.endswith("site-packages")]
    chosen = ["-q", "-rs", str(project / "tests")]
    if not _core.build_info()["jax_functions"]:
        chosen += ["-k", "not jax"]
    code = f"import sys, pytest; sys.path += {lent!r}; sys.exit(pytest.main({chosen!r}))"
    said = run(python, "-c", code)
    assert "passed" in said
    if machine.gpu_count():
        assert "no GPU" not in said


def test_template_uses_the_installed_interop(installed):
    python, _ = installed
    code = "import row_sum, interop; print(interop.__file__); print(interop.get_include(), interop.get_cmake_dir())"
    said = run(python, "-c", code)
    assert str(ROOT) not in said
    for folder in said.split()[1:]:
        assert Path(folder).is_relative_to(python.parents[1])
        assert Path(folder).is_dir()


PRODUCTS = """
import numpy as np
import interop
from interop import _core

a = np.ones((300, 200), "float32")
has_cublas = bool(_core.machine_info()["cublas"])
for backend in ("tiled", "cublas") if has_cublas else ("tiled",):
    c = interop.matmul(a, a.T, execution="cuda", backend=backend)
    assert type(c) is np.ndarray
    assert (c == 200).all()
    print(backend, interop.__file__)
"""


@pytest.mark.gpu
def test_wheel_computes_products_of_numpy_arrays_on_gpu(installed, cuda_device):
    """In the fresh environment, which has no other array library."""
    python, _ = installed
    said = run(python, "-c", PRODUCTS)
    assert "tiled" in said
    assert str(ROOT) not in said
