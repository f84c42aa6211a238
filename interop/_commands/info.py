"""`interop info`: what is installed, what was found where, and what is missing."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

import numpy as np

import interop
from interop import _core
from interop._libraries.known import LIBRARIES, READ_ALSO, Library, ReadAlso

__all__ = ["report"]


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _versions() -> Iterator[tuple[str, str]]:
    yield "interop-dlpack", interop.__version__
    yield "Python", f"{platform.python_version()} ({sys.platform}, {platform.machine()})"
    for name in ("numpy", "ml_dtypes", "cuda-pathfinder"):
        yield name, importlib.metadata.version(name)
    build = _core.build_info()
    if build["cuda"] == 0:
        yield "build", "host arrays only (-DINTEROP_CUDA=OFF)"
        return
    yield "build", f"CUDA {_cuda_version(build['cuda'])}, {build['compiler']}"
    yield "architectures", build["architectures"]
    yield "JAX handlers", "built in" if build["jax_ffi"] else "not built in (no jaxlib headers at build time)"


def _devices() -> Iterator[tuple[str, str]]:
    machine = _core.machine_info()
    if machine["driver"]:
        yield "driver", f"supports CUDA {_cuda_version(machine['driver'])}"
    for index, card in enumerate(machine["devices"]):
        major, minor = card["compute_capability"]
        yield (
            f"cuda:{index}",
            f"{card['name']}, compute capability {major}.{minor}, {card['multiprocessors']} multiprocessors, "
            f"{card['memory_bytes'] / 2**30:.0f} GiB",
        )
    if machine["no_gpu"]:
        yield "no GPU", machine["no_gpu"]


def _route(library: Library) -> str:
    """Say how the library's arrays are read, shown on a real one."""
    try:
        module = library.load()
        version = library.version()
    except Exception as error:  # whatever stops an import is the answer
        return str(error)
    devices = ["cpu"] if library.on_host else []
    if library.has_cuda(module):
        devices.append("cuda")
    if not devices:
        return f"{version}; no CUDA device for it"
    _, protocol = _core.route(library.to_device(module, np.zeros(1, np.float32), devices[-1]))
    return f"{version}; read by {protocol}; on {', '.join(devices)}"


def _presence(library: ReadAlso) -> str:
    version = library.version()
    return (
        f"{version}; read by {library.protocol}"
        if version
        else f"not installed; pip install {library.distributions[0]}"
    )


def _array_libraries() -> Iterator[tuple[str, str]]:
    yield from ((library.name, _route(library)) for library in LIBRARIES)
    yield from ((library.name, _presence(library)) for library in READ_ALSO)


def report() -> str:
    """Return what `interop info` prints."""
    sections = {
        "versions": _versions(),
        "devices": _devices(),
        "array libraries": _array_libraries(),
        "CUDA libraries": iter([("cuBLASLt", _core.machine_info()["cublas_status"])]),
    }
    lines = []
    for title, rows in sections.items():
        lines.append(title)
        lines += [f"  {name:<16}{text}" for name, text in rows]
    return "\n".join(lines + _other_distribution())


def _other_distribution() -> list[str]:
    """Warn of the other project on PyPI that has this import name."""
    try:
        version = importlib.metadata.version("interop")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        f"warning: the distribution 'interop' {version} is installed too. It is another project with the same import "
        "name; both cannot share an environment. Remove it, then install interop-dlpack again."
    ]
