"""Compiles CUDA C++ at run time, by NVRTC."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interop import _core
from interop._core import CudaError
from interop._cuda import kept
from interop._version import __version__

__all__ = ["compile_source", "compiled", "load", "versions"]

_INSTALL = "pip install 'interop-dlpack[cu13]' (or [cu12])"


def load(
    what: str,
    source: str,
    names: Sequence[str],
    options: Mapping[str, Any],
    architecture: str,
) -> tuple[_core.LoadedKernel, ...]:
    """Return kernels of `source`, ready to be launched on devices of one architecture, such as "sm_90".

    `names` are the kernels' names; of templates, expressions such as "scale<float>". `options` are those of
    `cuda.core.ProgramOptions`. `what` stands in messages for what is compiled; `source` includes no file.
    Compiles what neither this process nor the cache on disk has. Threads wait for each other. Raises CudaError, with
    the compiler's words.
    """
    key, image = compiled(what, source, names, options, architecture, tuple)
    return kept.kernels(key, lambda: image()[1])


def compiled(
    what: str,
    source: str,
    names: Sequence[str],
    options: Mapping[str, Any],
    architecture: str,
    read_headers: Callable[[], Sequence[str] | None],
) -> tuple[str, Callable[[], tuple[str, kept.Image]]]:
    """Return a key of all that the image depends on, and what gets both: from the cache on disk, or by compiling.

    `read_headers` returns what the source includes, as it is now; None where that is not known, and so nothing is
    kept. The key that comes with the image is another where a header has changed while it was compiled.
    """

    def key_now() -> str:
        headers = read_headers()
        return kept.key_of_none() if headers is None else _key(what, source, names, options, architecture, headers)

    key = key_now()

    def image() -> tuple[str, kept.Image]:
        cache = kept.open_cache()
        found = kept.read_image(cache, key)
        if found is None:
            found = compile_source(what, source, names, options, architecture)
            if key_now() != key:
                return kept.key_of_none(), found
            kept.write_image(cache, key, *found)
        return key, found

    return key, image


def compile_source(
    what: str, source: str, names: Sequence[str], options: Mapping[str, Any], architecture: str
) -> kept.Image:
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
            of_cccl = re.search(r'open source file "(?:cuda|cub|thrust|nv)/', log)
            install = "pip install 'cuda-toolkit[cccl]'" if of_cccl else _INSTALL
            log += f"\nCUDA's own headers come with a toolkit, or with {install}"
        if "open source file" in log or "host function" in log:
            log += "\nA file with host code in it is compiled by compiler='nvcc', given as a path"
        raise CudaError(doing + log.replace("\0", "").strip()) from None
    mapping = getattr(code, "symbol_mapping", None) or getattr(code, "_sym_map", None) or {}
    lowered = [mapping.get(name, name) for name in names]
    return bytes(code.code), [x.decode() if isinstance(x, bytes) else x for x in lowered]


def _cuda_core(what: str) -> Any:
    try:
        return importlib.import_module("cuda.core")  # `cuda` may not have it yet while another thread imports it
    except ImportError as error:
        raise CudaError(
            f"{what}: compiling a kernel at run time needs cuda.core, which cannot be imported ({error}); {_INSTALL}"
        ) from error


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
