"""INTEROP_CHECKED=1 for the indexes of views: what is compiled, what a view notes, and what a call raises of it.

The view is compiled for the host, and the calls are those of a driver that stands in for CUDA's. On the GPU:
tests/gpu/kernel/test_checked_indexes.py.
"""

from __future__ import annotations

import ctypes
import pickle
import re
from pathlib import Path

import pytest
from helpers import alone, c_functions, drivers
from helpers.kernels import UnloadedLibrary

import interop
from interop import _program
from interop._cuda import images, kept

HEADERS = Path(__file__).resolve().parents[1] / "src/include"
SOURCE = """
#include <interop/view.cuh>
__global__ void transpose(interop::View<const float, 2> x, interop::View<float, 2> y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  y(j, i) = x(i, j);
}
"""
#: Which of two kernels is there says how it was compiled.
TOLD = (
    SOURCE
    + """
#ifdef INTEROP_CHECKED
static_assert(sizeof(interop::View<float, 2>) == 56, "");
extern "C" __global__ void is_checked(int* x) {}
#else
static_assert(sizeof(interop::View<float, 2>) == 40, "");
extern "C" __global__ void is_plain(int* x) {}
#endif
"""
)


# ---- what is compiled ----


@pytest.fixture
def compiled(nvrtc, monkeypatch, tmp_path):
    """The image of `transpose` for a device that is not there, as the environment has INTEROP_CHECKED."""
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_libraries", {})
    monkeypatch.setattr(_program, "_modules_of_files", {})
    monkeypatch.setattr(interop._core.LoadedLibrary, "load", UnloadedLibrary)

    def compiled(said, source=SOURCE, **keywords):
        monkeypatch.setenv("INTEROP_CHECKED", said)
        library, _ = interop.kernel(source, "transpose", **keywords)._load("sm_90")
        return library.image

    return compiled


def kind_of(image):
    (kind,) = {"is_checked", "is_plain"}.intersection(images.read_cubin(image, ValueError).kernels)
    return kind


def without_checks(text):
    lines, depth = [], 0
    for line in text.splitlines():
        if depth or line == "#ifdef INTEROP_CHECKED":
            depth += line.startswith("#if") - line.startswith("#endif")
        else:
            lines.append(line)
    return "\n".join(lines)


def test_without_it_the_cubin_is_that_of_the_view_alone(compiled, tmp_path):
    """Byte for byte: the header without its lines for checks, in a folder that is looked into first, makes the same."""
    header = without_checks((HEADERS / "interop/view.cuh").read_text())
    plain = re.sub(r"/// An index that is out of bounds.*?\n};\n", "", header, flags=re.DOTALL)
    assert "Fault" not in plain
    (tmp_path / "interop").mkdir()
    (tmp_path / "interop/view.cuh").write_text(plain)
    alone = compiled("", options={"include_path": str(tmp_path)})
    assert compiled("") == alone
    assert compiled("0") == alone
    assert compiled("1") != alone


def test_what_is_kept_is_of_one_kind(compiled, tmp_path):
    """On disk and in the process, of a text and of a file: in any order, each has its own."""
    file = tmp_path / "transpose.cu"
    file.write_text(TOLD)
    for source in (TOLD, file):
        kinds = [kind_of(compiled(said, source)) for said in ("1", "0", "1", "0")]
        assert kinds == ["is_checked", "is_plain"] * 2


@pytest.mark.parametrize("given", ["SIZE=3", ("SIZE", "3"), ["OTHER", ("SIZE", "3")]])
def test_macros_of_the_caller_stay(compiled, given):
    source = TOLD + 'static_assert(SIZE == 3, "");\n'
    assert kind_of(compiled("1", source, options={"define_macro": given})) == "is_checked"


def test_nvcc_compiles_it_too(compiled, tmp_path):
    if c_functions.nvcc() is None:
        pytest.skip("no nvcc")
    file = tmp_path / "whole.cu"
    file.write_text(TOLD + "#include <iostream>\nint main() { std::cout << 1; }\n")
    assert kind_of(compiled("1", file, compiler="nvcc")) == "is_checked"
    assert kind_of(compiled("0", file, compiler="nvcc")) == "is_plain"


def test_a_kernel_stays_as_it_was_made(monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "1")
    checked = interop.kernel(SOURCE, "transpose")
    monkeypatch.delenv("INTEROP_CHECKED")
    plain = interop.kernel(SOURCE, "transpose")
    for made, says in ((checked, True), (plain, False)):
        for same in (made, made.returning(y="x"), pickle.loads(pickle.dumps(made))):
            assert same._program.source.checks_indexes is says
    assert checked._made_of_content() != plain._made_of_content()  # to XLA, two functions


def test_another_value(monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "yes")
    with pytest.raises(ValueError, match="^INTEROP_CHECKED is 'yes'; accepted: '1', '0', or nothing$"):
        interop.kernel(SOURCE, "transpose")


# ---- what a view notes ----

VIEW = """
#define INTEROP_CHECKED
#include <interop/view.cuh>
extern "C" {
int fault_bytes() { return sizeof(interop::IndexFault); }
int view_bytes() { return sizeof(interop::View<const float, 3>); }
// Reads x(i, j), and writes it to y(k), of a memory of 2 * 3 elements and of 4.
void copy(const float* x, float* y, long long i, unsigned j, int k, interop::IndexFault* fault) {
  const interop::View<const float, 2> from{x, {2, 3}, {3, 1}, fault, 4};
  const interop::View<float, 1> to{y, {4}, {1}, fault, 7};
  to(k) = from(i, j);
}
float of_own(const float* x, int i) { return interop::View<const float, 1>{x, {1}, {1}}(i); }
}
"""


class Fault(ctypes.Structure):
    _fields_ = (
        ("is_noted", ctypes.c_int),
        ("argument", ctypes.c_int),
        ("dimension", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("size", ctypes.c_longlong),
        ("indexes", ctypes.c_longlong * 64),
        ("sink", ctypes.c_float * 4),
    )


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "libview.so"
    lib = ctypes.CDLL(str(c_functions.build(VIEW, path, "-std=c++17", f"-I{HEADERS}", language="c++")))
    lib.of_own.restype = ctypes.c_float
    lib.copy.argtypes = (*[ctypes.c_void_p] * 2, ctypes.c_longlong, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
    return lib


def copied(view, i, j, k):
    """What `copy` notes, and what it leaves in y."""
    fault, x, y = Fault(sink=(9,) * 4), (ctypes.c_float * 6)(*range(6)), (ctypes.c_float * 4)()
    view.copy(x, y, i, j, k, ctypes.byref(fault))
    return fault, [*y]


def test_layouts(view):
    assert view.fault_bytes() == ctypes.sizeof(Fault)
    assert view.view_bytes() == 8 + 2 * 3 * 8 + 16


def test_within_bounds_nothing_is_noted(view):
    for i in range(2):
        for j in range(3):
            fault, y = copied(view, i, j, 3)
            assert not fault.is_noted
            assert y == [0, 0, 0, 3 * i + j]


@pytest.mark.parametrize(
    ("i", "j", "dimension", "size"),
    [(2, 0, 0, 2), (-1, 2, 0, 2), (0, 3, 1, 3), (1, 2**32 - 1, 1, 3), (2**62, 0, 0, 2), (5, 5, 0, 2)],
)
def test_an_index_out_of_bounds_reads_the_sink(view, i, j, dimension, size):
    fault, y = copied(view, i, j, 0)
    assert (fault.is_noted, fault.argument, fault.dimension, fault.size) == (1, 4, dimension, size)
    assert fault.indexes[:3] == [i, j, 0]
    assert y == [9, 0, 0, 0]


@pytest.mark.parametrize("k", [4, -1, 2**31 - 1])
def test_an_index_out_of_bounds_writes_to_the_sink(view, k):
    fault, y = copied(view, 1, 1, k)
    assert (fault.argument, fault.dimension, fault.size, fault.indexes[0]) == (7, 0, 4, k)
    assert y == [0] * 4
    assert fault.sink[0] == 4


def test_the_first_one_stays(view):
    """C++17 evaluates the right side of an assignment first."""
    fault, _ = copied(view, 2, 0, 4)
    assert (fault.argument, fault.indexes[:2]) == (4, [2, 0])


def test_a_view_of_ones_own_is_not_checked(view):
    assert view.of_own((ctypes.c_float * 6)(*range(6)), 5) == 5


# ---- what a call raises ----

#: Kernels run at once, on the host: that of the test's library, as the views come.
LAUNCHES = """
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  *library = calloc(1, 1);
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { *kernel = library; return 0; }
int cuKernelGetFunction(void** function, void* kernel) { *function = kernel; return 0; }
int cuFuncGetAttribute(int* value, int name, void* function) { *value = 0; return 0; }
int cuKernelGetParamInfo(void* kernel, size_t i, size_t* offset, size_t* size) {
  *size = i == 0 ? 8 : i == 3 ? 4 : 40;
  return i < 4 ? 0 : INVALID_VALUE;
}
static void (*kernel)(void**, void*);
void stand_in_kernel(void (*run)(void**, void*)) { kernel = run; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned d,
                   void* stream, void** parameters, void** extra) {
  kernel(parameters, stream);
  return 0;
}
"""
KERNEL = """
#define INTEROP_CHECKED
#include <interop/view.cuh>
#include <cstddef>
#include <cstring>

extern "C" void stand_in_kernel(void (*)(void**, void*));
extern "C" void stand_in_queue(void*, void (*)(void*), const void*, size_t);
struct Shift {
  const float* counts;
  interop::View<const float, 1> x;
  interop::View<float, 1> y;
  int by;
};
static void run(void* arguments) {
  Shift* const shift = *static_cast<Shift**>(arguments);
  for (int i = 0; i < shift->x.size(0); ++i) shift->y(i + shift->by) = shift->x(i);
  delete shift;
}
static void launch(void** parameters, void* stream) {
  const auto shift = new Shift{};
  std::memcpy(&shift->counts, parameters[0], sizeof shift->counts);
  std::memcpy(&shift->x, parameters[1], sizeof shift->x);
  std::memcpy(&shift->y, parameters[2], sizeof shift->y);
  std::memcpy(&shift->by, parameters[3], sizeof shift->by);
  stand_in_queue(stream, run, &shift, sizeof shift);
}
extern "C" void start() { stand_in_kernel(launch); }
"""
START = """
import ctypes, os
from interop import _program

ctypes.CDLL(os.environ["LD_LIBRARY_PATH"] + "/libkernel.so").start()
library = interop._core.LoadedLibrary.load(b"\\x7fELF", "a test", False)
_program.Program.kernel = lambda self, label, name, architecture: library.kernel(name)
SIGNATURE = "const float* counts, interop::View<const float, 1> x, interop::View<float, 1> y, int by"
shift = interop.kernel("", "shift", signature=SIGNATURE, grid=1, block=32)
def device(values):
    x = interop.empty(len(values), "float32")
    interop.copyto(x, np.array(values, "float32"))
    return x
def host(x):
    y = np.empty(x.shape, "float32")
    interop.copyto(y, x)
    return y.tolist()
counts, x, y = device([0]), device([1, 2, 3]), device([0, 0, 0])
def said(*args, **named):
    try:
        shift(*args, **named)
    except IndexError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    folder = tmp_path_factory.mktemp("driver")
    drivers.build_working(folder, written=LAUNCHES)
    options = ("-std=c++17", f"-I{HEADERS}", f"-L{folder}", "-l:libcuda.so.1")
    c_functions.build(KERNEL, folder / "libkernel.so", *options, language="c++")
    return folder


@pytest.fixture
def play(folder, tmp_path):
    """Run this code where the driver is played: what it prints, by lines."""

    def play(code):
        environment = {"LD_LIBRARY_PATH": str(folder), "INTEROP_CHECKED": "1"}
        return alone.run(START + code, tmp_path, **environment).splitlines()

    return play


BEYOND = (
    "interop.kernel('shift'): y({}) is out of bounds: dimension 0 has size {}; accepted: {}; the first such access was "
    "in block (0, 0, 0), thread (0, 0, 0), and what the call has written is undefined"
)


def test_the_call_raises(play):
    """Each call for itself, once the work on its stream is done; what is within bounds has been written."""
    lines = play("""
said(counts, x, y, 1)
said(counts, x, y, -2)
said(counts, x, y, 0)
said(counts, x, interop.empty(0, "float32"), 0)
print(host(y))
""")
    assert lines == [BEYOND.format(3, 3, "0 to 2"), BEYOND.format(-2, 3, "0 to 2"), BEYOND.format(0, 0, "none"), ONES]


ONES = "[1.0, 2.0, 3.0]"


def test_results_and_arrays_of_the_host(play):
    """What is copied back is what the kernel has written within bounds."""
    lines = play("""
on_host = np.zeros(3, "float32")
said(np.zeros(1, "float32"), np.ones(3, "float32"), on_host, 2, execution="cuda")
print(on_host.tolist())
shift = shift.returning(y="x")
said(counts, x, 7)
print(host(shift(counts, x, 0)))
""")
    assert lines == [BEYOND.format(3, 3, "0 to 2"), "[0.0, 0.0, 1.0]", BEYOND.format(7, 3, "0 to 2"), ONES]


def test_an_operator_of_such_a_kernel(play):
    lines = play("""
shifted = interop.operator("tests::shift", shift, "counts[k], x[n], by -> y[n]")
for by in (0, 1, 0):
    try:
        print(host(shifted(counts, x, by)))
    except IndexError as error:
        print(error)
""")
    assert lines == [ONES, BEYOND.format(3, 3, "0 to 2"), ONES]


def test_what_a_call_waits_for(play):
    lines = play("""
driver = ctypes.CDLL("libcuda.so.1")
driver.stand_in_log.restype = ctypes.c_char_p
shift(counts, x, y, 0)
driver.stand_in_log()
shift(counts, x, y, 0)
print(*[line for line in driver.stand_in_log().decode().splitlines() if "Memcpy" in line or "Synchronize" in line])
print(interop.explain(shift, counts, x, y, 0).waits[-1])
pointers = interop.kernel("", "f", signature="const float* x, float* y", grid=1)
print([wait for wait in interop.explain(pointers, x, y).waits if "INTEROP_CHECKED" in wait])
""")
    size = ctypes.sizeof(Fault)
    assert lines == [
        f"cuMemcpyHtoDAsync {size} pageable cuMemcpyDtoHAsync {size} pageable cuStreamSynchronize",
        "INTEROP_CHECKED=1: the host reads whether an index of x, y was out of bounds, and waits for its stream",
        "[]",
    ]


def test_a_capture_is_refused(tmp_path):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    drivers.build(tmp_path, count=1, written=(Path(__file__).parent / "helpers/order_driver.c").read_text())
    said = alone.run(
        """
        class Device:
            __cuda_array_interface__ = {**np.zeros(3, "float32").__array_interface__, "version": 3, "stream": None}
        x, source = Device(), "const float* x, interop::View<float, 1> y"
        for call in (interop.kernel("", "f", signature=source, grid=1), lambda *args, **named: interop.explain(
                interop.kernel("", "f", signature=source, grid=1), *args, **named)):
            try:
                call(x, x, stream=8192)
            except ValueError as error:
                print(error)
        """,
        tmp_path,
        LD_LIBRARY_PATH=str(tmp_path),
        INTEROP_CHECKED="1",
    )
    message = (
        "interop.kernel('f'): the call's stream is being captured into a CUDA graph, and INTEROP_CHECKED=1 reads after "
        "the call whether an index of y was out of bounds, which cannot be captured; accepted: a call outside the "
        "capture, or a process without INTEROP_CHECKED"
    )
    assert said.splitlines() == [message] * 2
