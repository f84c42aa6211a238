"""Compiles CUDA C++ at run time, by NVRTC: the one place that does. What is compiled is kept, on disk too."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interop import _core
from interop._core import CudaError
from interop._version import __version__

__all__ = ["cache_folder", "compile_source", "load", "versions"]

_MOST_BYTES = 256 << 20  # of the cache on disk: the least recently read go first
_INSTALL = "pip install 'interop-dlpack[cu13]' (or [cu12])"

_loaded: dict[str, tuple[_core.LoadedKernel, ...]] = {}  # bounded by the sources of one process; CUDA unloads none
_lock = threading.RLock()  # compiling runs Python, and so `__del__` of any object, which may call a kernel in turn


def load(
    what: str,
    source: str,
    names: Sequence[str],
    options: Mapping[str, Any],
    architecture: str,
    headers: Sequence[str] = (),
) -> tuple[_core.LoadedKernel, ...]:
    """Return kernels of `source`, ready to be launched on devices of one architecture, such as "sm_90".

    `names` are the kernels' names; of templates, expressions such as "scale<float>". `options` are those of
    `cuda.core.ProgramOptions`. `what` stands in messages for what is compiled, `headers` are the texts that `source`
    includes. Compiles what neither this process nor the cache on disk has. Threads wait for each other. Raises
    CudaError, with the compiler's words.
    """
    key = _key(what, source, names, options, architecture, headers)
    with _lock:
        if key not in _loaded:
            image, lowered = _compiled(what, key, source, names, options, architecture)
            _loaded.setdefault(key, tuple(_core.LoadedKernel.load(image, lowered)))
        return _loaded[key]


def compile_source(
    what: str, source: str, names: Sequence[str], options: Mapping[str, Any], architecture: str
) -> tuple[bytes, list[str]]:
    """Compile without a look at any cache: a cubin, and the names that the kernels have in it. Needs no GPU."""
    core = _cuda_core(what)
    try:
        program = core.Program(source, "c++", core.ProgramOptions(arch=architecture, **options))
        code = program.compile("cubin", name_expressions=tuple(names))
    except Exception as error:  # of NVRTC, or of the search for it
        doing = f"{what}: compiling a kernel for {architecture} by NVRTC: "
        _, is_of_source, log = str(error).partition("compilation log:")
        if not is_of_source:
            raise CudaError(f"{doing}{error}; NVRTC comes with {_INSTALL}") from error
        if "open source file" in log:
            log += f"\nCUDA's own headers come with a toolkit, or with {_INSTALL}"
        raise CudaError(doing + log.replace("\0", "").strip()) from None
    mapping = getattr(code, "symbol_mapping", None) or getattr(code, "_sym_map", None) or {}
    lowered = [mapping.get(name, name) for name in names]
    return bytes(code.code), [x.decode() if isinstance(x, bytes) else x for x in lowered]


def cache_folder() -> Path:
    """Return where compiled kernels are kept: INTEROP_CACHE_DIR, or `interop` in the user's folder of caches."""
    if given := os.environ.get("INTEROP_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "interop"


def _cuda_core(what: str) -> Any:
    try:
        import cuda.core
    except ImportError as error:
        raise CudaError(
            f"{what}: compiling a kernel at run time needs cuda.core, which cannot be imported ({error}); {_INSTALL}"
        ) from error
    return cuda.core


def _key(
    what: str, source: str, names: Sequence[str], options: Mapping[str, Any], architecture: str, headers: Sequence[str]
) -> str:
    facts = [__version__, *versions(what), architecture, list(names), sorted(options.items()), source, list(headers)]
    return hashlib.sha256(json.dumps(facts, default=repr).encode()).hexdigest()


def versions(what: str = "interop") -> list[str]:
    """Return the versions of what compiles, cuda.core and NVRTC. CudaError, with what to install, if one is missing."""
    core = _cuda_core(what)
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise CudaError(f"{what}: NVRTC cannot be loaded: {error}; {_INSTALL}") from error
    return [core.__version__, f"{major}.{minor}"]


def _compiled(
    what: str, key: str, source: str, names: Sequence[str], options: Mapping[str, Any], architecture: str
) -> tuple[bytes, list[str]]:
    """Look on disk, and compile and keep what is not there. A folder that cannot be written is no error."""
    from cuda.core.utils import FileStreamProgramCache

    found, cache = None, None
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home
        cache = FileStreamProgramCache(cache_folder(), max_size_bytes=_MOST_BYTES)
        found = cache.get(key)
    if found is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # a broken file is written anew
            header, _, image = found.partition(b"\n")
            entry = json.loads(header)
            if entry["sha256"] == hashlib.sha256(image).hexdigest():
                return image, entry["names"]
    image, lowered = compile_source(what, source, names, options, architecture)
    if cache is not None:
        with contextlib.suppress(OSError):
            header = {"names": lowered, "sha256": hashlib.sha256(image).hexdigest()}
            cache[key] = json.dumps(header).encode() + b"\n" + image
    return image, lowered
