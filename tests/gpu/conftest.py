"""Everything in this folder needs a GPU."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from helpers import device, libraries, machine
from helpers.races import WITH_STREAMS

import interop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _gpu(cuda_device):
    """Skips where there is none. After each test the device is idle, and nothing is held."""
    device.delay(device.LEGACY, 0)  # loads the kernel, ahead of any race
    yield
    device.synchronize(cuda_device)
    assert device.eventually(lambda: interop._core.held_count() == 0), "inputs are still held although the GPU is idle"


@pytest.fixture(autouse=True)
def _exact_memory(request):
    """For the sanitizer, each array of CuPy has memory of its own: in a larger block an overrun would not show."""
    marked = request.node.get_closest_marker("sanitize") is not None
    if not marked or importlib.util.find_spec("cupy") is None:
        yield
        return
    with machine.need("cupy").cuda.using_allocator(None):
        yield


@pytest.fixture
def torch():
    """A torch that sees the GPU."""
    return libraries.by_name("torch", "cuda").module


@pytest.fixture
def torch_sm80(torch):
    """A torch on a card of compute capability 8.0 or later, for which the build has code."""
    major, minor = interop._core.machine_info()["devices"][0]["compute_capability"]
    if major < 8:
        pytest.skip("the kernel is for compute capability 8.0 and later")
    built = [int(number) for number in re.findall(r"\d+", interop._core.build_info()["architectures"])]
    if not any(80 <= number <= 10 * major + minor for number in built):
        pytest.skip("this build has no code for 80 and later")
    return torch


@pytest.fixture
def jax():
    """A JAX that sees the GPU."""
    return libraries.by_name("jax", "cuda").module


@pytest.fixture(params=WITH_STREAMS)
def side(request):
    """A side stream of a library, and that library."""
    return device.Side(libraries.on_gpu(request.param))
