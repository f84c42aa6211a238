"""Machines that this one is not: no driver, one that does not start, one that is too old, no GPU, no cuBLASLt.

Each is played in a process of its own by libraries that the loader finds first. Whatever is missing, `import interop`
and host arrays work, and a device call says what is missing, which versions meet, and what to do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from helpers import drivers
from helpers.drivers import BUILT_FOR

MAJOR = BUILT_FOR // 1000

PROBE = """
import json
import numpy as np
import interop
from interop import _core

x = np.eye(2)
report = {"host": interop.matmul(x, x).tolist(), "errors": []}
for _ in range(2):  # the second call tries again, and says the same
    try:
        interop.matmul(x, x, execution="cuda")
    except interop.CudaError as error:
        said = str(error)
        assert said.startswith("interop.matmul: execution='cuda': "), said
        report["errors"].append(said.replace("interop.matmul: execution='cuda': ", "interop: "))
from interop._commands import info
info.LIBRARIES = ()  # which take seconds to import
report["info"] = info.report()
report["cublas"] = _core.machine_info()["cublas_status"]
print(json.dumps(report))
"""


@pytest.fixture
def probe(tmp_path):
    def run(folder=tmp_path):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        environment.pop("LD_PRELOAD", None)
        command = [sys.executable, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["host"] == [[1, 0], [0, 1]]
        first, second = report["errors"]
        assert first == second
        if BUILT_FOR == 0:
            assert "built without CUDA (-DINTEROP_CUDA=OFF)" in first
            pytest.skip("this build is for host arrays only, and says so")
        assert first in report["info"]
        return first

    return run


@pytest.fixture
def fake_driver(tmp_path, probe):
    def run(**played):
        drivers.build(tmp_path, **played)
        return probe()

    return run


def test_a_driver_that_does_not_load(tmp_path, probe):
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    message = probe()
    assert re.match(r"interop: no NVIDIA driver: libcuda.so.1 does not load \(.*too short.*\); ", message)
    assert f"install the NVIDIA driver for CUDA {MAJOR}." in message


@pytest.mark.parametrize("version", [11000, 12020])
def test_a_driver_that_is_too_old(fake_driver, version):
    if version // 1000 >= MAJOR > 0:
        pytest.skip(f"this build, for CUDA {MAJOR}, takes such a driver")
    message = fake_driver(version=version, too_old=True)
    assert f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, " in message
    assert f"this build needs CUDA {MAJOR}.0 or newer" in message
    assert f"update the driver, or build interop with a CUDA {version // 1000} toolkit" in message


def test_a_driver_that_lacks_a_function(fake_driver):
    message = fake_driver(too_old=True)
    assert re.match(
        r"interop: the NVIDIA driver has no cu[A-Z]\w+: too old for this build \(CUDA \d+\.\d+\); ", message
    )
    assert "update the driver" in message


@pytest.mark.parametrize("init", [100, 0], ids=["cuInit says so", "cuDeviceGetCount says 0"])
def test_a_machine_without_a_gpu(fake_driver, init):
    message = fake_driver(init=init)
    assert message.startswith("interop: no CUDA device: CUDA_ERROR_NO_DEVICE (no GPU, or CUDA_VISIBLE_DEVICES hides")


def test_a_driver_that_does_not_start(fake_driver):
    message = fake_driver(init=803)
    assert "cuInit" in message
    assert "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (driver and display mismatch)" in message
    assert "nvidia-smi" in message


def test_a_machine_without_cublas(tmp_path):
    for name in ("libcublasLt.so", "libcublasLt.so.12", "libcublasLt.so.13"):
        (tmp_path / name).write_bytes(b"")
    code = "import types, cuda.pathfinder; from interop import _core; "
    code += "cuda.pathfinder.load_nvidia_dynamic_lib = lambda _: types.SimpleNamespace(abs_path=None); "
    code += "print(_core.machine_info()['cublas_status'])"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = "too short" if BUILT_FOR else "built without CUDA"
    assert expected in done.stdout
