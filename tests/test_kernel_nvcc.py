"""`interop.kernel(path, name, compiler="nvcc")` without a GPU: what is compiled, and what the cache on disk goes by."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import interop
from interop._cuda import images, kept, nvcc

pytest.importorskip("cuda.core")

NVCC = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]))
needs_nvcc = pytest.mark.skipif(NVCC is None or shutil.which("g++") is None, reason="needs nvcc and a host compiler")

WHOLE = """
#include <cstddef>
#include <iostream>
#include "by.h"

namespace demo {
template <typename T, int N>
__global__ void scale(const T* x, T* y, std::size_t n) {
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = N * BY * x[i];
}
}  // namespace demo

namespace {
__global__ void hidden(float* y) { y[0] = 1; }
}
static __global__ void unused(float* y) { y[0] = 2; }
extern "C" __global__ void plain(float* y) { y[0] = 3; }
__global__ void one(float* y) { y[0] = 4; }

int main() {
  demo::scale<double, 2><<<1, 32>>>(nullptr, nullptr, 0);
  std::cout << cudaDeviceSynchronize() << std::endl;
}
"""


@pytest.fixture
def whole(tmp_path, monkeypatch):
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "by.h").write_text('#include "again.h"\n')
    (tmp_path / "again.h").write_text("#define BY 3\n")
    file = tmp_path / "whole.cu"
    file.write_text(WHOLE)
    return file


def compiled(file, name="one", flags=(), architecture="sm_80"):
    return nvcc.compiled("a test", file, file.read_text(), name, [*flags], architecture)


# ---- what is compiled ----


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("one", "_Z3onePf"),
        ("plain", "plain"),
        ("unused", "_Z6unusedPf"),
        ("demo::scale<float, 4>", "_ZN4demo5scaleIfLi4EEEvPKT_PS1_m"),
        ("::demo::scale<double,2>", "_ZN4demo5scaleIdLi2EEEvPKT_PS1_m"),
    ],
)
def test_kernels_of_a_whole_file(whole, name, symbol):
    (image, names), files = nvcc.compile_file("a test", whole, name, [], "sm_80")
    assert image.startswith(b"\x7fELF")
    assert names == [symbol]
    assert symbol in images.read_cubin(image, ValueError).kernels
    assert {str(whole), str(whole.parent / "by.h"), str(whole.parent / "again.h")} <= set(files)
    assert not any("unit.cu" in file for file in files)


@needs_nvcc
def test_a_kernel_without_linkage(whole):
    (_, (name,)), _ = nvcc.compile_file("a test", whole, "hidden", [], "sm_80")
    assert "hidden" in name


@needs_nvcc
def test_errors_have_the_lines_of_the_file(whole):
    whole.write_text(WHOLE + "\n__global__ void wrong(float* y) { y[0] = nothing; }\n")
    line = whole.read_text().count("\n")
    with pytest.raises(interop.CudaError) as caught:
        nvcc.compile_file("a test", whole, "wrong", [], "sm_80")
    assert str(caught.value).startswith(f"a test: compiling {whole} for sm_80 by nvcc: ")
    assert f'{whole}({line}): error: identifier "nothing" is undefined' in str(caught.value)


@needs_nvcc
def test_what_the_file_does_not_have(whole):
    with pytest.raises(interop.CudaError, match='identifier "absent" is undefined'):
        nvcc.compile_file("a test", whole, "absent", [], "sm_80")
    whole.write_text(WHOLE + "\n__device__ int known;\n")
    with pytest.raises(interop.CudaError, match=r"has 0 kernels of that name; it has: .*one\(float\*\)"):
        nvcc.compile_file("a test", whole, "known", [], "sm_80")


@needs_nvcc
def test_a_path_with_spaces_and_quotes(whole):
    folder = whole.parent / "a folder $(touch x) ' with"
    folder.mkdir()
    for file in ("whole.cu", "by.h", "again.h"):
        shutil.copy(whole.parent / file, folder)
    key, _ = compiled(folder / "whole.cu")
    assert compiled(folder / "whole.cu")[0] == key
    (folder / "again.h").write_text("#define BY 4\n")
    assert compiled(folder / "whole.cu")[0] != key
    assert not (folder / "x").exists()


# ---- the cache ----


@pytest.fixture
def counted(monkeypatch):
    """The names that were compiled."""
    names = []
    compile_file = nvcc.compile_file

    def count(what, path, name, *others):
        names.append(name)
        return compile_file(what, path, name, *others)

    monkeypatch.setattr(nvcc, "compile_file", count)
    return names


@needs_nvcc
def test_what_is_compiled_is_kept(whole, counted):
    first = compiled(whole)
    assert compiled(whole) == first
    assert counted == ["one"]


@needs_nvcc
@pytest.mark.parametrize(
    "part", ["source", "header", "nested", "flags", "architecture", "name", "variable", "path", "host compiler"]
)
def test_each_part_of_the_key(whole, counted, monkeypatch, part):
    first, _ = compiled(whole)
    arguments = {"file": whole}
    if part == "source":
        whole.write_text(WHOLE.replace("= 4", "= 5"))
    elif part == "header":
        (whole.parent / "by.h").write_text("#define BY 5\n")
    elif part == "nested":
        (whole.parent / "again.h").write_text("#define BY 5\n")
    elif part == "flags":
        arguments["flags"] = ["-DBY_FLAG"]
    elif part == "architecture":
        arguments["architecture"] = "sm_86"
    elif part == "name":
        arguments["name"] = "plain"
    elif part == "variable":
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
    elif part == "host compiler":
        wrapper = whole.parent / "gcc"
        wrapper.write_text('#!/bin/sh\nexec gcc "$@"\n')
        wrapper.chmod(0o700)
        monkeypatch.setenv("NVCC_CCBIN", str(whole.parent))
        other, _ = compiled(whole)
        wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo another && exit\nexec gcc "$@"\n')
        assert compiled(whole)[0] not in (first, other)
        counted.pop()
    else:
        arguments["file"] = Path(shutil.copy(whole, whole.parent / "copy.cu"))
    assert compiled(**arguments)[0] != first
    assert len(counted) == 2
    if part in ("header", "nested"):  # as it was: both are kept
        (whole.parent / "by.h").write_text('#include "again.h"\n')
        (whole.parent / "again.h").write_text("#define BY 3\n")
        assert compiled(whole)[0] == first
        assert len(counted) == 2


@needs_nvcc
def test_a_broken_entry_is_compiled_again(whole, counted):
    key, (_, names) = compiled(whole)
    cache = kept.open_cache()
    cache[key] = b"{broken"
    again = compiled(whole)
    assert (again[0], again[1][1]) == (key, names)  # the bytes are others: nvcc writes a new mark into each
    assert compiled(whole) == again
    assert len(counted) == 2


@needs_nvcc
def test_a_folder_that_others_may_write_to_is_not_read(whole, counted):
    compiled(whole)
    folder = kept.cache_folder()
    folder.chmod(0o777)
    assert kept.open_cache() is None
    compiled(whole)
    assert len(counted) == 2
    folder.chmod(0o700)
    compiled(whole)
    assert len(counted) == 2


@needs_nvcc
def test_two_processes_at_once(whole):
    code = (
        "import sys, pathlib; from interop._cuda import nvcc; file = pathlib.Path(sys.argv[1])\n"
        "print(nvcc.compiled('a test', file, file.read_text(), 'one', [], 'sm_80')[0])"
    )
    running = [
        subprocess.Popen([sys.executable, "-P", "-c", code, str(whole)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    keys = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert keys == {compiled(whole)[0] + "\n"}


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("#include <value.h>", "A/value.h"),
        ('#include "value.h"', "value.h"),
        ("#include <outer.h>", "B/value.h"),
        ("#include <value.h>", "relative/value.h"),
        ("#include <value.h>", "of CPATH/value.h"),
        ('#if __has_include("new.h")\n#include "new.h"\n#else\n#define VALUE 0x1111\n#endif', "new.h"),
        ("#include <next.h>", "A/next.h"),
    ],
    ids=["another folder", "beside", "beside the one that includes it", "relative", "CPATH", "asked for", "next"],
)
def test_a_file_that_is_new(whole, counted, monkeypatch, source, new):
    folder = whole.parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CPATH", str(folder / "of CPATH"))
    for header, text in {
        "C/value.h": "#define VALUE 0x1111\n",
        "B/outer.h": '#include "value.h"\n',
        "A0/next.h": "#include_next <next.h>\n",
        "B/next.h": "#define VALUE 0x1111\n",
    }.items():
        (folder / header).parent.mkdir(exist_ok=True)
        (folder / header).write_text(text)
    whole.write_text(source + '\nextern "C" __global__ void one(int* y) { y[0] = VALUE; }\n')
    flags = [f"-I{folder}/A0", f"-I{folder}/A", "-Irelative", f"-I{folder}/B"]
    flags += [f"-isystem={folder}/C"] if "CPATH" in new else [f"-I{folder}/C"]
    first, (image, _) = compiled(whole, flags=flags)
    assert (0x1111).to_bytes(4, "little") in image
    assert compiled(whole, flags=flags)[0] == first
    assert len(counted) == 1
    (folder / new).parent.mkdir(exist_ok=True)
    (folder / new).write_text("#define VALUE 0x2222\n")
    _, (image, _) = compiled(whole, flags=flags)
    assert (0x2222).to_bytes(4, "little") in image
    assert len(counted) == 2


@needs_nvcc
@pytest.mark.parametrize("how", ["a macro", "a file of flags", "flags"])
def test_what_cannot_be_known_is_not_kept(whole, counted, monkeypatch, how):
    if how == "a macro":
        whole.write_text(WHOLE.replace('#include "by.h"', '#define HEADER "by.h"\n#include HEADER'))
    else:
        (whole.parent / "flags").write_text("-DFLAG")
        option = f"--options-file={whole.parent}/flags" if how == "a file of flags" else f"-I{whole.parent}"
        monkeypatch.setenv("NVCC_APPEND_FLAGS", option)
    assert compiled(whole)[0] != compiled(whole)[0]
    assert len(counted) == 2


def changing(monkeypatch, file, *texts):
    """Writes a text into the file after each compilation, before its files are looked at."""
    compile_file, left = nvcc.compile_file, [*texts]

    def late(*arguments):
        done = compile_file(*arguments)
        if left:
            file.write_text(left.pop(0))
        return done

    monkeypatch.setattr(nvcc, "compile_file", late)


@needs_nvcc
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_header_that_changes_while_it_is_compiled(whole, counted, monkeypatch, times):
    whole.write_text('#include "by.h"\nextern "C" __global__ void one(int* y) { y[0] = BY; }\n')
    changing(monkeypatch, whole.parent / "again.h", *(f"#define BY 0x{number}333\n" for number in range(2, 2 + times)))
    key, (image, _) = compiled(whole)
    assert len(counted) == 2
    assert (0x2333).to_bytes(4, "little") in image
    later, (image, _) = compiled(whole)
    assert (later == key) == (times == 1)
    assert (0x2333 + 0x1000 * (times - 1)).to_bytes(4, "little") in image
    assert len(counted) == (2 if times == 1 else 3 if times == 2 else 4)


@needs_nvcc
def test_a_file_that_changes_while_it_is_compiled(whole, monkeypatch):
    changing(monkeypatch, whole, WHOLE + "// changed\n")
    with pytest.raises(interop.CudaError, match=r"whole.cu has changed since interop.kernel read it; make the kernel"):
        compiled(whole)


def test_a_file_that_has_changed(whole):
    with pytest.raises(interop.CudaError, match=r"whole.cu has changed since interop.kernel read it; make the kernel"):
        nvcc.compiled("a test", whole, "another text", "one", [], "sm_80")


def test_no_nvcc(whole, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda _: None)
    with pytest.raises(interop.CudaError, match=r"compiler is 'nvcc', and there is none; it comes with a CUDA toolkit"):
        compiled(whole)


def test_an_interrupt_ends_what_was_started(tmp_path):
    script = tmp_path / "slow"
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    script.chmod(0o700)
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so in the background
    code = f"{heard}; from interop._cuda import nvcc; nvcc._run([{str(script)!r}])"
    process = subprocess.Popen([sys.executable, "-P", "-c", code], stderr=subprocess.PIPE, text=True)
    child = tmp_path / "child"
    for _ in range(600):
        if child.exists() and child.read_text().strip():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    status = Path(f"/proc/{child.read_text().strip()}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


# ---- options and refusals ----


def test_options_as_nvcc_spells_them():
    options = {
        "std": "c++20", "use_fast_math": True, "lineinfo": False, "fma": False, "ftz": True, "max_register_count": 32,
        "include_path": ["a", Path("b")], "define_macro": [("N", "3"), "M"], "undefine_macro": "K", "debug": None,
    }  # fmt: skip
    assert nvcc.flags_of("a test", options) == [
        "-std=c++20", "-use_fast_math", "-fmad=false", "-ftz=true", "-maxrregcount=32", "-Ia", "-Ib", "-DN=3", "-DM",
        "-UK",
    ]  # fmt: skip
    assert nvcc.flags_of("a test", {"define_macro": ("N", 3)}) == ["-DN=3"]


@pytest.mark.parametrize(
    "options", [{"no_cache": True}, {"fma": "yes"}, {"std": True}, {"define_macro": [3]}, {"include_path": ("a", "b")}]
)
def test_options_that_nvcc_does_not_take(options, whole):
    (key,) = options
    with pytest.raises(ValueError, match=rf"^interop.kernel: options has '{key}'.*; accepted: "):
        interop.kernel(whole, "one", compiler="nvcc", options=options)


def test_what_is_no_compiler(whole):
    with pytest.raises(ValueError, match=r"^interop.kernel: compiler is 'gcc'; accepted: 'nvrtc', 'nvcc'"):
        interop.kernel(whole, "one", compiler="gcc")
    with pytest.raises(TypeError, match=r"^interop.kernel: compiler is NoneType; accepted: 'nvrtc', 'nvcc'"):
        interop.kernel(whole, "one", compiler=None)
    with pytest.raises(TypeError, match=r"compiler is 'nvcc', and source is a str; accepted with it: a path object"):
        interop.kernel(WHOLE, "one", compiler="nvcc")


def test_the_kernel_is_declared_and_pickled(whole):
    made = interop.kernel(whole, "demo::scale<float, 4>", compiler="nvcc", threads="y", options={"arch": "sm_80"})
    assert repr(made) == "<kernel demo::scale<float, 4>(const float* x, float* y, std::size_t n)>"
    again = pickle.loads(pickle.dumps(made.returning(y="x")))
    assert again.__reduce__() == made.returning(y="x").__reduce__()
    assert again._program.source.compiler == "nvcc"


def test_nvrtc_says_who_compiles_host_code(whole):
    from interop._cuda import nvrtc

    with pytest.raises(interop.CudaError, match="A file with host code in it is compiled by compiler='nvcc'"):
        nvrtc.compile_source("a test", WHOLE, ["one"], {}, "sm_80")
