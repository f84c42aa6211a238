"""Options, fixtures and the rule about skips: a skip asks the machine, and `--require` turns it into a failure."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # before JAX starts: it would take most of the GPU


def _make_helpers_importable() -> None:
    """`import helpers` for the tests: importmode=importlib puts no folder on sys.path."""
    folder = Path(__file__).with_name("helpers")
    spec = importlib.util.spec_from_file_location(
        "helpers", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["helpers"] = module
    spec.loader.exec_module(module)


_make_helpers_importable()

from helpers import libraries, machine, products  # noqa: E402

# They are for other processes, which alone can import them: a plugin, and modules on a driver that is played.
collect_ignore = ["array_api/plugin.py", "helpers/played_gpu.py", "helpers/played_cupy.py"]

# ---- --require ----


def _requirements(text: str) -> set[str]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = names - set(machine.REQUIREMENTS)
    if unknown:
        raise pytest.UsageError(
            f"--require: unknown name {', '.join(sorted(unknown))}; known: {', '.join(machine.REQUIREMENTS)}"
        )
    return names


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        metavar="NAMES",
        default="",
        help="comma list of " + ", ".join(machine.REQUIREMENTS) + ": a skip for want of one of these is a failure",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REQUIRED] = _requirements(config.getoption("--require"))
    hypothesis.settings.register_profile("explore", deadline=None)
    hypothesis.settings.register_profile("repeat", deadline=None, derandomize=True, database=None)
    # A run that must be complete must be repeatable, too.
    complete = os.environ.get("CI") or config.stash[_REQUIRED]
    hypothesis.settings.load_profile("repeat" if complete else "explore")


_REQUIRED = pytest.StashKey[set]()
_SKIP_REASON = re.compile(r"needs (?P<names>[\w+]+): |could not import '(?P<module>\w+)")


def _missing(reason: str, required: set[str]) -> bool:
    """Is this the reason of a skip for want of something that is required?"""
    found = _SKIP_REASON.search(reason)
    if not found:
        return False
    names = {found["module"]} if found["module"] else set(found["names"].split("+"))
    return names <= required


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport, required: set[str]) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2])
        if _missing(reason, required):
            report.outcome = "failed"
            report.longrepr = f"{reason.removeprefix('Skipped: ')}\n--require makes this skip a failure"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = yield
    _fail_if_required(report, item.config.stash[_REQUIRED])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _fail_if_required(report, collector.config.stash[_REQUIRED])
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    gpus = machine.gpu_names() or ["none"]
    return ["GPU: " + ", ".join(gpus), "libraries: " + ", ".join(libraries.versions())]


# ---- fixtures ----


@pytest.fixture(scope="session")
def cuda_device() -> int:
    """The ordinal of a CUDA device."""
    machine.need_gpu()
    return 0


@pytest.fixture
def two_cuda_devices() -> Iterator[tuple[int, int]]:
    machine.need_gpu(2)
    yield 0, 1
    if torch := sys.modules.get("torch"):
        torch.cuda.set_device(0)  # XLA leaves the context of its device current, for later tests


def _loaded(request: pytest.FixtureRequest) -> libraries.Library:
    request.param.load()
    return request.param


@pytest.fixture(params=libraries.HOST, ids=repr)
def host_library(request: pytest.FixtureRequest) -> libraries.Library:
    return _loaded(request)


@pytest.fixture(params=[library for library in libraries.HOST if library.views], ids=repr)
def host_view_library(request: pytest.FixtureRequest) -> libraries.Library:
    """A library whose arrays can have strides, and be written to."""
    return _loaded(request)


@pytest.fixture(params=libraries.DEVICE, ids=repr)
def device_library(request: pytest.FixtureRequest) -> libraries.Library:
    return _loaded(request)


@pytest.fixture(params=[library for library in libraries.DEVICE if library.views], ids=repr)
def device_view_library(request: pytest.FixtureRequest) -> libraries.Library:
    return _loaded(request)


_ANY = [*libraries.HOST, *(pytest.param(library, marks=pytest.mark.gpu) for library in libraries.DEVICE)]


@pytest.fixture(params=_ANY, ids=repr)
def any_library(request: pytest.FixtureRequest) -> libraries.Library:
    """A library on the host or on the GPU."""
    return _loaded(request)


@pytest.fixture(params=products.DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def torch():
    return machine.need("torch")


@pytest.fixture
def jax():
    return machine.need("jax")


@pytest.fixture
def host_jax(jax):
    """JAX whose new arrays lie in host memory, where a GPU would be the default, too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield jax


@pytest.fixture
def cupy(cuda_device):
    return machine.need("cupy")


@pytest.fixture
def numba(cuda_device):
    """The module `numba.cuda`."""
    return machine.need("numba")


@pytest.fixture(scope="module")
def _reader_of_headers():
    machine.need("headers")


@pytest.fixture
def nvrtc():
    """NVRTC, by way of cuda.core."""
    for module in ("cuda.core", "cuda.bindings"):
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec(module) is None:
            machine.skip("nvrtc", f"{module} is not installed")
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the library is looked for when it is first called
        machine.skip("nvrtc", f"does not load: {error}")
    return nvrtc
