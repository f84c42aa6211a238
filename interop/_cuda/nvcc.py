"""Compiles whole files of CUDA C++, host code among it, by nvcc.

What a compilation depends on is known after it alone, from the compiler's list of the files that it read. So the cache
has two levels, as that of ccache: under the source, the flags, the compilers and the variables that they read stand the
lists of files that were read, or would have been, each with the files' hashes; under these stands the cubin.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interop._arguments import shown
from interop._core import CudaError
from interop._cuda import images, includes, kept
from interop._version import __version__

__all__ = ["compile_file", "compiled", "flags_of"]

_INSTALL = "a CUDA toolkit, or with pip install 'interop-dlpack[nvcc]'"
#: What nvcc and the host compiler read of the environment.
_MORE_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_FOLDERS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_VARIABLES = (*_MORE_FLAGS, "NVCC_CCBIN", *_FOLDERS)
#: Flags in these variables by which files are read that are in no list: of options, of folders of headers.
_READS_MORE = re.compile(r"@|-optf|-options-file|-I|-i|include")
_MOST_LISTS = 8  # of files that were read, for one source: the newest
_MOST_COMPILATIONS = 2  # of one source whose headers change meanwhile
_TICK = 0.02  # seconds: a file's time is that of the system's last tick


def compiled(
    what: str, path: Path, text: str, name: str, flags: Sequence[str], architecture: str, appended: str = ""
) -> tuple[str, kept.Image]:
    """Return the image, from the cache on disk or compiled now, and a key of all that it depends on. Needs no GPU.

    `text` is what the file had when its declarations were read, `name` a kernel; without one the image has those alone
    that the file's host code uses, or that other files might. `appended` is compiled behind the file. `what` stands in
    messages for what is compiled. Raises CudaError, in the compiler's words; OSError where the file is gone.
    """
    _check_unchanged(what, path, text)
    facts = [__version__, str(path), text, name, [*flags], architecture, appended, *_surroundings(what)]
    source_key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    cache = kept.open_cache()
    image_key = _known_key(cache, source_key)
    image = None if image_key is None else kept.read_image(cache, image_key)
    if image_key is None or image is None:
        return _compile_and_keep(cache, source_key, what, path, text, name, flags, architecture, appended)
    return image_key, image


def _check_unchanged(what: str, path: Path, text: str) -> None:
    if path.read_text(encoding="utf-8") != text:
        raise CudaError(f"{what}: {path} has changed since interop.kernel read it; make the kernel again")


def _compile_and_keep(
    cache: Any,
    source_key: str,
    what: str,
    path: Path,
    text: str,
    name: str,
    flags: Sequence[str],
    architecture: str,
    appended: str,
) -> tuple[str, kept.Image]:
    """Compile, and once more where a file has changed meanwhile; keep what is known to be of the files as they are."""
    for _ in range(_MOST_COMPILATIONS):
        started = time.time_ns()
        time.sleep(_TICK)
        image, files = compile_file(what, path, name, flags, architecture, appended)
        _check_unchanged(what, path, text)
        others = _other_files(what, files, flags)
        if others is None:
            break
        read = [(file, _digest(file)) for file in sorted({*files, *others})]
        if not any(_has_changed(file, digest, started) for file, digest in read if digest or file in files):
            image_key = _note(cache, source_key, read)
            kept.write_image(cache, image_key, *image)
            return image_key, image
    return kept.key_of_none(), image


def _has_changed(file: str, digest: str, since: int) -> bool:
    with contextlib.suppress(OSError):
        return not digest or Path(file).stat().st_ctime_ns >= since  # which no program can set, as it can st_mtime_ns
    return True


# ---- the cache: under each source the lists of files that its compilations read ----

Files = list[tuple[str, str]]  # each with the hash of what it had; "" for one that was not there


def _other_files(what: str, files: Sequence[str], flags: Sequence[str]) -> set[str] | None:
    """Return the files that would be read instead of these, or besides, if they were there; None where it is not known.

    What the toolkit's and the system's headers include is taken to stay as it is.
    """
    if any(_READS_MORE.search(os.environ.get(name, "")) for name in _MORE_FLAGS):
        return None
    listed = [os.environ[name].split(os.pathsep) for name in _FOLDERS if name in os.environ]
    folders = [flag[2:] for flag in flags if flag.startswith("-I")] + [folder for part in listed for folder in part]
    first = [flag.removeprefix("-include=") for flag in flags if flag.startswith("-include=")]
    others = {Path(folder, name) for name in first for folder in ("", *folders)}
    systems = _system_folders(what, files)
    for file in files:
        if os.path.realpath(file).startswith(systems):
            continue
        names = includes.names_in(Path(file).read_text(encoding="utf-8", errors="replace"))
        if names is None:
            return None
        others |= {Path(folder, name) for name in names for folder in (str(Path(file).parent), *folders)}
    return {*map(str, others)}


def _system_folders(what: str, files: Sequence[str]) -> tuple[str, ...]:
    """Return where the headers of the compilers and of the system are, each with a separator at its end."""
    roots = {Path(program).resolve().parent.parent for program in (_find_nvcc(what), _host_compiler())}
    parts = ("include", "targets", "lib/gcc", "lib64/gcc")
    folders = {Path(root, part) for root in roots for part in parts} | {Path("/usr/include"), Path("/usr/lib/gcc")}
    folders |= {folder for root in roots for folder in root.glob("*-linux-gnu")}
    folders |= {Path(file).parent for file in files if Path(file).name == "cuda_runtime.h"}  # which nvcc includes
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders)


def _known_key(cache: Any, source_key: str) -> str | None:
    """Return the key of the image whose files are as they are now; None if there is none."""
    hashes: dict[str, str] = {}

    def is_as_it_was(file: str, digest: str) -> bool:
        if file not in hashes:
            hashes[file] = _digest(file)
        return hashes[file] == digest

    for files in _lists(cache, source_key):
        if all(is_as_it_was(file, digest) for file, digest in files):
            return _image_key(source_key, files)
    return None


def _lists(cache: Any, source_key: str) -> list[Files]:
    with contextlib.suppress(OSError, ValueError, TypeError):  # a broken file is written anew
        found = None if cache is None else cache.get(source_key)
        if found is not None:
            return [[(str(file), str(digest)) for file, digest in files] for files in json.loads(found)]
    return []


def _note(cache: Any, source_key: str, read: Files) -> str:
    """Keep which files were read; return the key of the image."""
    if cache is not None:
        lists = [read, *(others for others in _lists(cache, source_key) if others != read)]
        with contextlib.suppress(OSError):
            cache[source_key] = json.dumps(lists[:_MOST_LISTS]).encode()
    return _image_key(source_key, read)


def _image_key(source_key: str, files: Files) -> str:
    return hashlib.sha256(json.dumps([source_key, files]).encode()).hexdigest()


def _digest(file: str) -> str:
    """Return the hash of what a file has; "" where it cannot be read."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return ""


# ---- the compilers ----


def _find_nvcc(what: str) -> str:
    from cuda import pathfinder

    with contextlib.suppress(Exception):  # a search, which may fail in ways of its own
        if found := pathfinder.find_nvidia_binary_utility("nvcc"):
            return str(found)
    usual = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    if found := shutil.which("nvcc", path=usual):
        return found
    raise CudaError(f"{what}: compiler is 'nvcc', and there is none; it comes with {_INSTALL}")


def _version(program: str) -> str:
    """Return what a compiler says of itself; it is asked once for each file that it is."""
    with contextlib.suppress(OSError):
        return _asked_version(program, Path(program).stat().st_mtime_ns)
    return "none"


@functools.cache
def _asked_version(program: str, _changed: int) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return f"{program}: {done.stdout}"


def _host_compiler() -> str:
    host = os.environ.get("NVCC_CCBIN") or "gcc"  # by which nvcc compiles C++, too
    if Path(host).is_dir():
        host = str(Path(host, "gcc"))
    return shutil.which(host) or host


def _surroundings(what: str) -> list[str]:
    """Return what else a compilation depends on: both compilers, and the variables of the environment."""
    compilers = (_find_nvcc(what), _host_compiler())
    return [*map(_version, compilers), *(f"{name}={os.environ.get(name)}" for name in _VARIABLES)]


# ---- compiling ----

#: The options of `cuda.core.ProgramOptions` that nvcc has, too, and how it spells them; with a bool, "=true".
_SWITCHES = {
    "debug": "-G", "lineinfo": "-lineinfo", "use_fast_math": "-use_fast_math", "device_code_optimize": "-dopt=on",
    "extra_device_vectorization": "-extra-device-vectorization", "restrict": "-restrict",
    "device_as_default_execution_space": "-expt-relaxed-constexpr",
}  # fmt: skip
_BOOLS = {"ftz": "-ftz", "prec_sqrt": "-prec-sqrt", "prec_div": "-prec-div", "fma": "-fmad"}
_VALUES = {"std": "-std=", "max_register_count": "-maxrregcount=", "ptxas_options": "-Xptxas="}
_LISTS = {"include_path": "-I", "define_macro": "-D", "undefine_macro": "-U", "pre_include": "-include="}


def flags_of(what: str, options: Mapping[str, Any]) -> list[str]:
    """Return nvcc's arguments for options of `cuda.core.ProgramOptions`. ValueError, naming it, for what it lacks."""
    flags: list[str] = []
    for key, value in options.items():
        if value is None:
            continue
        if key in _SWITCHES and isinstance(value, bool):
            flags += [_SWITCHES[key]] if value else []
        elif key in _BOOLS and isinstance(value, bool):
            flags.append(f"{_BOOLS[key]}={str(value).lower()}")
        elif key in _VALUES and isinstance(value, str | int) and not isinstance(value, bool):
            flags.append(f"{_VALUES[key]}{value}")
        elif key in _LISTS:
            flags += [_LISTS[key] + _item(what, key, one) for one in _several(value)]
        else:
            known = ", ".join(sorted([*_SWITCHES, *_BOOLS, *_VALUES, *_LISTS, "arch"]))
            raise ValueError(
                f"{what}: options has {key!r}: {shown(value)}, which compiler='nvcc' does not take; accepted: {known}"
            )
    return flags


def _several(value: Any) -> Sequence[Any]:
    """Return the items of a list; a string, a path and a pair (name, value) of a macro are one."""
    is_one = isinstance(value, str | os.PathLike | tuple)
    return [value] if is_one else list(value)


def _item(what: str, key: str, one: Any) -> str:
    if isinstance(one, str | os.PathLike):
        return str(one)
    if isinstance(one, tuple) and len(one) == 2 and key == "define_macro":
        return f"{one[0]}={one[1]}"
    raise ValueError(f"{what}: options has {key!r} with {shown(one)}; accepted: a str, or a path")


def compile_file(
    what: str, path: Path, name: str, flags: Sequence[str], architecture: str, appended: str = ""
) -> tuple[kept.Image, list[str]]:
    """Compile without a look at any cache: a cubin with the kernel's name in it, and the files that were read.

    Needs no GPU. What is compiled is a unit that includes the file, where it stands, and names the kernel: so errors
    have the file's own lines, and a template, or a kernel that nothing uses, is in the cubin.
    """
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:  # of this user alone
        unit, image, read = (Path(folder, file) for file in ("unit.cu", "unit.cubin", "unit.d"))
        kept_kernel = f'extern "C" void* interop_kept() {{ return (void*)&{name}; }}\n' if name else ""
        unit.write_text(f'#include "{path}"\n{kept_kernel}{appended}')
        nvcc = _find_nvcc(what)
        command = [nvcc, "-cubin", f"-arch={architecture}", *flags, "-MD", "-MF", read, "-o", image, unit]
        status, output = _run(command)
        if status != 0:
            raise CudaError(f"{what}: compiling {path} for {architecture} by nvcc: {_explained(output)}")
        files = [file for file in _files_of(read.read_text()) if Path(file).parent != Path(folder)]
        cubin = image.read_bytes()
    return (cubin, [_entry(what, path, name, cubin)] if name else []), files


def _run(command: Sequence[Any]) -> tuple[int, str]:
    """Run a command, with all that it starts: these end with it where Ctrl-C or another error comes between."""
    process = subprocess.Popen(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, output


def _explained(output: str) -> str:
    text = output.strip()
    if shutil.which("g++") is None and "NVCC_CCBIN" not in os.environ:
        text += "\nnvcc needs a host compiler, and there is no g++ on PATH; NVCC_CCBIN names another"
    return text


def _files_of(rule: str) -> list[str]:
    """Return the files of a rule of make, as compilers write them."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\(.)", r"\1", file).replace("$$", "$") for file in re.findall(r"(?:\\.|[^\s\\])+", files)]


# ---- the kernel of a cubin ----


def _entry(what: str, path: Path, name: str, cubin: bytes) -> str:
    """Return the symbol of the kernel `name`."""
    kernels = images.read_cubin(cubin, lambda said: ValueError(f"{what}: nvcc has made {said}")).kernels or {}
    fitting = images.find_named(name, kernels)
    if len(fitting) != 1:
        raise CudaError(
            f"{what}: {path} has {len(fitting)} kernels of that name; it has: "
            f"{'; '.join(images.demangled(fitting or kernels).values()) or 'none'}"
        )
    return fitting[0]
