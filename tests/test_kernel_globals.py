"""`Kernel.globals` without a GPU: names, refusals, and the order of what a stand-in driver is asked to queue.

On the GPU: tests/gpu/kernel/test_globals.py.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import drivers, machine
from helpers.kernels import UnloadedLibrary

import interop
from interop import _program
from interop._cuda import kept

PTX = """
.version 7.0
.target sm_75
.address_size 64
.const .align 4 .b8 _ZN4demo6filterE[36];
.global .align 4 .u32 counter = 3;
.global .align 4 .f32 _ZN1a4gainE;
.global .align 4 .f32 _ZN1b4gainE;
.visible .entry _Z3runPKfPf(.param .u64 a, .param .u64 b)
{
    ret;
}
"""
TEXT = """
__constant__ float weights[3];
__global__ void blur(const float* x, float* y) { y[0] = weights[0] * x[0]; }
__global__ void sharpen(const float* x, float* y) { y[0] = weights[1] * x[0]; }
template <typename T> __global__ void any(const T* x, T* y) { y[0] = weights[2] * x[0]; }
static __global__ void hidden(const float* x, float* y) { y[0] = weights[2] + x[0]; }
"""
FILTER = np.arange(9, dtype="float32")


# ---- names ----


@pytest.fixture
def run():
    return interop.kernel(PTX, "run", grid=1)


def test_variables_by_their_names(run):
    assert repr(run.globals) == "<globals of interop.kernel('run')>"
    for name in ("demo::filter", "filter", "_ZN4demo6filterE", "counter", "a::gain"):
        assert repr(run.globals[name]) == f"<variable interop.kernel('run').globals[{name!r}]>"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"there is no such variable; accepted: demo::filter \(36 bytes\), counter \(4 bytes\), a::gain"),
        ("gain", "there are 2 of this name; accepted: the symbol of one ('_ZN1a4gainE', a::gain, '_ZN1b4gainE', b::"),
        ("run", "there is no such variable"),
    ],
)
def test_a_variable_that_is_not_there(run, name, message):
    with pytest.raises(KeyError) as caught:
        run.globals[name] = FILTER
    assert caught.value.args[0].startswith(f"interop.kernel('run').globals[{name!r}]: ")
    assert message.replace("\\", "") in caught.value.args[0]
    bare = interop.kernel(PTX[: PTX.index(".const")] + PTX[PTX.index(".visible") :], "run")
    with pytest.raises(KeyError, match="accepted: none, as the code has none"):
        bare.globals["x"]


def test_names_and_iteration_are_refused(run):
    with pytest.raises(TypeError, match=r"interop.kernel\('run'\).globals: the name is int; accepted: a str"):
        run.globals[0]
    with pytest.raises(TypeError, match="not iterable"):
        iter(run.globals)
    with pytest.raises(TypeError):
        "counter" in run.globals  # noqa: B015


def test_values_that_are_no_arrays(run):
    for value in (2.0, None, "text", b"bytes", [1, 2]):
        with pytest.raises(TypeError, match=r"interop.kernel\('run'\).globals\['counter'\]: the array is "):
            run.globals["counter"] = value
    with pytest.raises(TypeError, match="device is str; accepted: an int"):
        run.globals["counter"].set(FILTER, device="cuda:0")


def test_a_traced_array_is_refused(run):
    jax = machine.need("jax")

    @jax.jit
    def traced(x):
        run.globals["filter"] = x
        return x

    with pytest.raises(TypeError, match=r"interop.kernel\('run'\).globals\['filter'\]: the array is .*trace"):
        traced(jax.numpy.zeros(9))


# ---- which kernels share ----


@pytest.fixture
def library_of(nvrtc, monkeypatch, tmp_path):
    """The library that a kernel is in, for a device that is not there."""
    machine.need("cuda_core")
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_libraries", {})
    monkeypatch.setattr(_program, "_modules_of_files", {})
    monkeypatch.setattr(interop._core.LoadedLibrary, "load", UnloadedLibrary)

    def find(kernel):
        (library, _), label = kernel._load("sm_90"), kernel._label
        variable = (
            kernel._program.variable(label, kernel.__name__, "weights", "sm_90") if library.has_variables else None
        )
        assert variable in (None, (library, "weights"))
        return library

    return find


def again(kernel):
    return pickle.loads(pickle.dumps(kernel))


def test_kernels_of_one_file_share(library_of, tmp_path):
    file = tmp_path / "x.cu"
    file.write_text(TEXT)
    blur, sharpen = (interop.kernel(file, name) for name in ("blur", "sharpen"))
    assert library_of(blur) is library_of(sharpen)
    assert library_of(interop.kernel(file, "blur", grid=1).returning(y="x")) is library_of(blur)
    floats, doubles = (interop.kernel(file, f"any<{type_name}>") for type_name in ("float", "double"))
    assert len({*map(library_of, (blur, floats, doubles))}) == 3
    assert library_of(interop.kernel(file, "hidden")) is library_of(blur)
    assert library_of(interop.kernel(file, "any<float>")) is library_of(floats)
    assert library_of(interop.kernel(file, "blur", options={"use_fast_math": True})) is not library_of(blur)
    assert library_of(again(blur)) is not library_of(blur)
    file.write_text(TEXT + "// changed")
    assert library_of(interop.kernel(file, "blur")) is not library_of(blur)
    assert library_of(sharpen) is library_of(blur)
    file.unlink()
    assert library_of(sharpen) is library_of(blur)  # and so its variables are, which `library_of` looks up
    other = tmp_path / "y.cu"
    other.write_text(TEXT)
    assert library_of(interop.kernel(other, "blur")) is not library_of(blur)


ANOTHER = "namespace other { __global__ void blur(float* x) { x[0] = 2; } }\n"


def test_a_kernel_of_another_namespace_is_not_taken(library_of, tmp_path):
    file = tmp_path / "x.cu"
    (tmp_path / "another.h").write_text(ANOTHER)
    file.write_text('#include "another.h"\nstatic __global__ void blur(float* x) { x[0] = 1; }\n')
    assert "other" not in interop.kernel(file, "blur", grid=1)._load("sm_90")[1]
    file.write_text("template <typename T> __global__ void blur(T* x) { x[0] = 1; }\n" + ANOTHER)
    with pytest.raises(interop.CudaError, match=r"Of other whole names there are: other::blur\(float\*\)$"):
        interop.kernel(file, "blur", grid=1, signature="float* x")._load("sm_90")
    assert interop.kernel(file, "other::blur", grid=1, signature="float* x")._load("sm_90")[1] == "_ZN5other4blurEPf"


def test_a_kernel_by_a_using_declaration_shares(library_of, tmp_path):
    file = tmp_path / "x.cu"
    file.write_text(
        "__constant__ float weights[9];\n" + ANOTHER.replace("= 2", "= weights[0]") + "using other::blur;\n"
    )
    of_both = [interop.kernel(file, name, grid=1, signature="float* x") for name in ("blur", "other::blur")]
    assert library_of(of_both[0]) is library_of(of_both[1])


def test_whichever_comes_first(library_of, tmp_path):
    (tmp_path / "x.cu").write_text(TEXT)
    instance, blur, sharpen = (
        library_of(interop.kernel(tmp_path / "x.cu", x)) for x in ("any<int>", "blur", "sharpen")
    )
    assert blur is sharpen is not instance


def test_kernels_of_a_text_do_not_share(library_of):
    blur = interop.kernel(TEXT, "blur")
    assert library_of(blur) is library_of(blur.returning(y="x"))
    assert library_of(blur) is not library_of(interop.kernel(TEXT, "blur"))
    assert library_of(blur) is not library_of(again(blur))


def test_what_has_no_variables_is_loaded_once(library_of):
    source = "__global__ void f(float* x) { x[0] = 1; }"
    assert library_of(interop.kernel(source, "f")) is library_of(interop.kernel(source, "f"))


# ---- the order of launches, writes and reads, as a driver is asked for it ----


@pytest.fixture
def queued(tmp_path):
    """What a stand-in driver is asked to queue by these lines, after the first launch has loaded the kernel.

    `launch(3)` is on stream 3; `write(4)` copies an array of the host, `copy(4)` one of the device, `read(4)` reads.
    """
    if drivers.BUILT_FOR == 0:
        pytest.skip("a build for host arrays only")
    written = (Path(__file__).parent / "helpers/order_driver.c").read_text()
    drivers.build(tmp_path, count=1, written=written)
    code = f"""
import sys
import numpy as np
import interop

class Device:
    def __init__(self, values):
        self.values = np.array(values, "float32")
        self.__cuda_array_interface__ = {{**self.values.__array_interface__, "version": 3, "stream": None}}

kernel = interop.kernel({PTX!r}, "run", grid=1)
filter = kernel.globals["filter"]
x = Device(np.arange(9))
def launch(stream, kernel=kernel): kernel(x, x, stream=stream)
def write(stream, values=np.ones(9, "float32")): filter.set(values, stream=stream)
def copy(stream): filter.set(x, stream=stream)
def read(stream): return filter.get("float32", (3, 3), stream=stream)
"""

    def run(lines):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        program = code + textwrap.dedent(lines)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split("\n")

    return run


def story(lines):
    """The lines with each event as what was queued before it was recorded on its stream."""
    last, points, told = {}, {}, []
    for line in lines:
        words = line.split()
        if words[:1] in (["launch"], ["copy"]):
            last[words[-1]] = " ".join(words)
            told.append(line)
        elif words[:1] == ["record"]:
            points[words[1]] = last.get(words[-1], f"nothing on {words[-1]}")
        elif "waits" in words:
            told.append(line[: line.rindex(" ") + 1] + "'" + points.get(words[-1], "nothing") + "'")
        elif line:
            told.append(line)
    return told


@pytest.mark.parametrize("write", ["write", "copy"])
def test_a_write_waits_for_launches_on_every_stream_and_they_for_it(queued, write):
    told = story(queued(f"launch(3); launch(4); launch(4); {write}(5); launch(3); launch(6); launch(3); launch(5)"))
    copied = "copy from the host on 5" if write == "write" else "copy on 5"
    told = [line for line in told if "nothing" not in line]
    assert told == [
        "load", "launch on 3", "launch on 4", "launch on 4",
        "5 waits for 'launch on 3'", "5 waits for 'launch on 4'", copied,
        f"3 waits for '{copied}'", "launch on 3",
        f"6 waits for '{copied}'", "launch on 6",
        "launch on 3",  # which is behind it already
        "launch on 5",  # on whose stream it is
    ]  # fmt: skip


def test_launches_do_not_wait_for_each_other(queued):
    told = story(queued("launch(3); launch(4); launch(3); launch(5)"))
    assert [line for line in told if "waits" in line and "nothing" not in line] == []


def test_a_write_waits_for_the_one_before(queued):
    told = story(queued("write(3); write(4); launch(5); write(4)"))
    copied = "copy from the host on"
    assert told == [
        "load", f"{copied} 3", f"4 waits for '{copied} 3'", f"{copied} 4", f"5 waits for '{copied} 4'", "launch on 5",
        "4 waits for 'launch on 5'", f"{copied} 4",
    ]  # fmt: skip


def test_a_read_waits_for_all_of_it_and_the_host_for_the_read(queued):
    told = story(queued("launch(3); write(4, np.arange(9, dtype='float32')); launch(5); print(read(6).tolist())"))
    assert told[-5:] == [
        "6 waits for 'copy from the host on 4'", "6 waits for 'launch on 5'", "copy to the host on 6",
        "synchronize stream 6", "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]",
    ]  # fmt: skip


def test_in_a_capture_the_host_waits_for_what_was_outside(queued):
    told = story(
        queued("launch(3); write(3); launch(4); launch(4096); write(4097); launch(4098); write(3); launch(8192)")
    )
    told = [line for line in told if "nothing" not in line and line != "the graph keeps it"]
    copied = "copy from the host on"
    assert told == [
        "load", "launch on 3", f"{copied} 3", f"4 waits for '{copied} 3'", "launch on 4",
        f"the host waits for '{copied} 3'", "launch on 4096",
        f"the host waits for '{copied} 3'", "the host waits for 'launch on 4'",
        "4097 waits for 'launch on 4096'", f"{copied} 4097",
        f"the host waits for '{copied} 3'", f"4098 waits for '{copied} 4097'", "launch on 4098",
        "3 waits for 'launch on 4'", f"{copied} 3",  # not for the graph, which has not run
        f"the host waits for '{copied} 3'", "launch on 8192",  # another capture
    ]  # fmt: skip


def test_a_launch_that_cannot_be_noted_is_not_queued_or_over(queued):
    """What is queued and not noted would not be waited for."""
    told = story(
        queued("""
        import ctypes
        environment = ctypes.CDLL(None)
        launch(9)
        for name, stream in ((b"NO_EVENTS", 3), (b"NO_RECORDS", 9)):
            environment.setenv(name, b"1", 1)
            try:
                launch(stream)
            except interop.CudaError as error:
                print("refused", flush=True)
            environment.unsetenv(name)
        write(5)
    """)
    )
    assert told == [
        "load", "launch on 9", "refused", "launch on 9", "synchronize stream 9", "refused",
        "5 waits for 'launch on 9'", "copy from the host on 5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "launches",
    ["for k in range(70): launch(4096 + k)", "launch(4096); [launch(4096 * k) for k in range(2, 70)]"],
    ids=["of one capture", "of many"],
)
def test_a_captured_write_waits_for_all_launches_of_its_capture(queued, launches):
    told = story(queued(f"{launches}\nwrite(4096 + 100)"))
    waits = [line for line in told if line.startswith("4196 waits for 'launch")]
    assert len(waits) == (70 if "range(70)" in launches else 1)


def test_a_graph_keeps_the_values_of_the_host(queued):
    assert queued("write(4096)").count("the graph keeps it") == 1
    assert queued("write(3)").count("the graph keeps it") == 0


def test_kernels_that_do_not_share_are_not_ordered(queued):
    told = story(
        queued(f"""
        other = interop.kernel({PTX!r}, "run", grid=1)
        launch(3)
        launch(4, other)
        write(5)
        launch(6, other)
        launch(6, kernel.returning(arg1="arg0").__class__(*kernel._made_of, {{}}, kernel._program))
    """)
    )
    assert told.count("load") == 2
    assert "5 waits for 'launch on 3'" in told
    assert "5 waits for 'launch on 4'" not in told
    assert told[-3:] == ["launch on 6", "6 waits for 'copy from the host on 5'", "launch on 6"]


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        (
            ".param .u64 a, .param .u64 b, .param .u64 c",
            "x, x, 3",
            "3 parameters are declared, and the compiled kernel has 2",
        ),
        (
            ".param .u64 a, .param .u32 b",
            "x, 3",
            "b is declared with 4 bytes, and is 8 bytes in the compiled kernel; acc",
        ),
    ],
)
def test_parameters_that_the_driver_knows_otherwise(queued, parameters, arguments, message):
    signature = "float* a, unsigned b" if "u32" in parameters else "float* a, float* b, long long n"
    told = queued(f"""
        text = {PTX!r}.replace(".param .u64 a, .param .u64 b", {parameters!r})
        other = interop.kernel(text, "run", grid=1, signature={signature!r})
        for _ in range(2):
            try: other({arguments}, stream=3)
            except ValueError as error: print(error)
    """)
    assert [line for line in told if "launch" in line] == []
    assert [line.startswith(f"interop.kernel('run'): {message}") for line in told if "declared" in line] == [True, True]


def test_the_values_are_those_of_now(queued):
    told = queued("""
        values = np.arange(9, dtype="float32")
        filter.set(values)
        values[:] = 0
        print(filter.get("float32").tolist(), filter.nbytes)
        filter.set(np.full(9, 5, "float32").__dlpack__(), stream=3)
        print(filter.get("float32").tolist())
        kernel.globals["filter"] = np.full((3, 3), 7, "int32")
        print(filter.get("int32", (3, 3)).tolist())
    """)
    assert "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] 36" in told
    assert "[[7, 7, 7], [7, 7, 7], [7, 7, 7]]" in told
    assert str([5.0] * 9) in told


def test_refusals_that_need_a_driver(queued):
    told = queued("""
        def said(function, *arguments, **named):
            try: function(*arguments, **named)
            except Exception as error: print(type(error).__name__, error)
        said(filter.set, np.ones(8, "float32"))
        said(filter.set, np.ones((9, 2), "float32")[:, 0])
        said(filter.set, np.ones(9, "float32"), device=1)
        said(filter.set, x, device=1)
        said(filter.get, "float64")
        said(filter.get, "float32", (4, 4))
        said(filter.get, "float32", stream=4096)
        said(kernel.globals["counter"].get, "int32")
        said(kernel.globals["counter"].set, np.float32(1))
        print(read(3).any())
    """)
    label = "interop.kernel('run').globals['filter']: "
    told = [line for line in told if "Error" in line or line in ("True", "False")]
    assert (
        told[0]
        == f"ValueError {label}the array has 32 bytes, and the variable 36; accepted: an array of exactly as many bytes"
    )
    assert told[1].startswith(f"ValueError {label}the array")
    assert "C-contiguous" in told[1] or "contiguous" in told[1]
    assert told[2] == f"ValueError {label}device is 1; this machine has 1 CUDA device(s)"
    assert told[3].startswith(f"ValueError {label}device is 1, and the array is on cuda:0; accepted: the array's own")
    assert told[4].startswith(f"ValueError {label}float64 is asked for, and the variable has 36 bytes; accepted: ")
    assert told[5].startswith(f"ValueError {label}float32 of shape (4, 4) is asked for, and the variable has 36 bytes")
    assert told[6].startswith(f"ValueError {label}the stream is being captured into a CUDA graph, and reading waits")
    assert (
        "CudaError interop.kernel('run').globals['counter']: source (PTX for sm_75, of version 7.0) has no" in told[7]
    )
    assert "has no variable counter" in told[8]
    assert told[9] == "False"


def test_a_profile_counts_what_is_queued(queued):
    told = queued("""
        with interop.profile() as p:
            launch(3); launch(4); write(5); copy(5); read(6)
        launch(3)
        print("counted", {kind: each.count for kind, each in p.launches.items()}, p.waits["stream for event"].count)
        print("copied", {kind: (each.count, each.bytes) for kind, each in p.transfers.items()})
    """)
    waits = sum("waits for" in line and line[0].isdigit() for line in told)
    assert f"counted {{'kernel': 2}} {waits - 1}" in told  # the last launch waits for a write
    counts = {"device to device": (1, 36), "device to host": (1, 36), "host to device": (1, 36)}
    assert f"copied {counts}" in told
