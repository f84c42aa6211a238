"""What the driver receives of mdspans, tensor maps and dependent launches: a driver that stands in for CUDA's.

On the GPU: tests/gpu/kernel.
"""

from __future__ import annotations

import textwrap

import pytest
from helpers import alone, drivers

#: The sizes of the parameters are those that the test says. A launch keeps their values and its attributes; a map is
#: written down as it is made, and has a number.
LAUNCHES = """
typedef unsigned long long U64;
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  *library = calloc(1, 1);
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { *kernel = library; return 0; }
int cuKernelGetFunction(void** function, void* kernel) { *function = kernel; return 0; }
int cuFuncGetAttribute(int* value, int name, void* function) { *value = 0; return 0; }
int cuFuncSetAttribute(void* function, int name, int value) { return 0; }
static unsigned char kept[8][128];
static int kept_sizes[8];
int cuKernelGetParamInfo(void* kernel, size_t i, size_t* offset, size_t* size) {
  *size = i < 8 ? kept_sizes[i] : 0;
  return *size ? 0 : INVALID_VALUE;
}
static char attributes[128];
void stand_in_sizes(const int* sizes, int count) {
  for (int i = 0; i < 8; ++i) kept_sizes[i] = i < count ? sizes[i] : 0;
}
const unsigned char* stand_in_kept(int i) { return kept[i]; }
const char* stand_in_attributes(void) { return attributes; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned d,
                   void* stream, void** parameters, void** extra) {
  attributes[0] = 0;
  for (int i = 0; i < 8; ++i) memcpy(kept[i], kept_sizes[i] ? parameters[i] : kept[i], kept_sizes[i]);
  return 0;
}
struct Attribute { int id; char pad[4]; unsigned value[16]; };
struct Config { unsigned sizes[7]; void* stream; struct Attribute* attributes; unsigned count; };
int cuLaunchKernelEx(const struct Config* config, void* function, void** parameters, void** extra) {
  cuLaunchKernel(function, 0, 0, 0, 0, 0, 0, 0, 0, parameters, extra);
  for (unsigned i = 0; i < config->count; ++i) {
    const size_t length = strlen(attributes);
    snprintf(attributes + length, sizeof attributes - length, "%d=%u ", config->attributes[i].id,
             config->attributes[i].value[0]);
  }
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* data, const U64* sizes, const U64* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion,
                           int fill) {
  static unsigned char number = 0;
  char text[256];
  int length = snprintf(text, sizeof text, "map %d:", type);
  for (unsigned i = 0; i < rank; ++i) length += snprintf(text + length, sizeof text - length, " %llu", sizes[i]);
  for (unsigned i = 0; i + 1 < rank; ++i) length += snprintf(text + length, sizeof text - length, " /%llu", strides[i]);
  for (unsigned i = 0; i < rank; ++i) {
    length += snprintf(text + length, sizeof text - length, " x%u.%u", box[i], steps[i]);
  }
  snprintf(text + length, sizeof text - length, " %d %d %d %d", interleave, swizzle, promotion, fill);
  note((size_t)map % 64 == 0 ? text : "map at an odd address");
  memset(map, ++number, 128);
  return 0;
}
"""
START = """
import ctypes, struct
from interop import _kernel, _program

driver = ctypes.CDLL("libcuda.so.1")
driver.stand_in_log.restype = driver.stand_in_attributes.restype = ctypes.c_char_p
driver.stand_in_kept.restype = ctypes.POINTER(ctypes.c_ubyte * 128)
library = interop._core.LoadedLibrary.load(b"\\x7fELF", "a test", False)
_program.Program.kernel = lambda self, label, name, architecture: library.kernel(name)
_program.Program.image = lambda self, label, name, architecture: b""

def sizes(*bytes):
    driver.stand_in_sizes((ctypes.c_int * len(bytes))(*bytes), len(bytes))
def kept(i, form):
    return struct.unpack_from(form, bytes(driver.stand_in_kept(i).contents))
def maps():
    return [line for line in driver.stand_in_log().decode().splitlines() if line.startswith("map")]
def said(call, *args, **named):
    try:
        call(*args, **named)
    except (TypeError, ValueError) as error:
        print(error)
MAP = "const __grid_constant__ CUtensorMap"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    folder = tmp_path_factory.mktemp("driver")
    drivers.build_working(folder, written=LAUNCHES)
    return folder


@pytest.fixture
def play(folder, tmp_path):
    """Run this code where the driver is played: what it prints, by lines."""

    def play(code, **environment):
        return alone.run(
            START + textwrap.dedent(code), tmp_path, LD_LIBRARY_PATH=str(folder), **environment
        ).splitlines()

    return play


def test_the_parts_of_an_mdspan_are_where_the_compiler_has_them(play):
    """Pointer last, an extent of 16 bits, one that is static, strides before extents: no order is assumed."""
    beyond = (
        "interop.kernel('f'): x has shape (3, 40000) and strides (40000, 1), which its mdspan counts in signed "
        "integers of 16 bits; accepted: sizes, strides and indices from -32768 to 32767"
    )
    backwards = beyond.replace("(3, 40000) and strides (40000, 1)", "(3, 5) and strides (-20000, 1)")
    assert play("""
    measured = [(b"\\x11" * 32, 24, [-1, 2], [4, 8]), (b"\\x22" * 8, 0, [-1, -1], [-1, -1])]
    _kernel.measured = lambda image, parameters, refuse: measured
    signature = ("cuda::std::mdspan<float, cuda::std::extents<short, 3, cuda::std::dynamic_extent>, layout_stride> x, "
                 "cuda::std::mdspan<const float, cuda::std::extents<int, 3, 5>> y, int n")
    f = interop.kernel("//", "f", signature=signature, grid=1)
    x, y = interop.empty((3, 6), "float32"), interop.empty((3, 5), "float32")
    sizes(32, 8, 4)
    f(x[:, ::-2], y, 7)
    address = x.__cuda_array_interface__["data"][0]
    part = x[:, ::-2].__cuda_array_interface__["data"][0]
    print(kept(0, "<HhhHhHIQQ")[:-1] == (0x1111, 3, 6, 0x1111, -2, 0x1111, 0x11111111, 0x1111111111111111))
    print(kept(0, "<24xQ")[0] == part == address + 20)
    print(kept(1, "<Q")[0] == y.__cuda_array_interface__["data"][0], kept(2, "<i"))
    x = interop.empty((3, 40000), "float32")
    said(f, x, y, 7)
    said(lambda *args: interop.explain(f, *args), x, y, 7)
    x = interop.empty((3, 20000), "float32")[::-1, :5]         # -2 * 20000 is beyond, and no size or stride is
    said(f, x, y, 7)
    """) == ["True", "True", "True (7,)", beyond, beyond, backwards]


def test_a_tensor_map_is_made_once_for_an_array(play):
    assert play("""
    f = interop.kernel("//", "f", signature=f"int n, {MAP} m, float* y", grid=1,
                       tensor_maps={"m": interop.tensor_map("x", box=(8, 16), swizzle=64, l2_promotion=256)})
    x, y = interop.empty((3, 40, 24), "float32"), interop.empty((4,), "float32")
    sizes(4, 128, 8)
    f(1, x[0], y)
    print(maps(), kept(0, "<i"), set(kept(1, "128B")), kept(2, "<Q")[0] == y.__cuda_array_interface__["data"][0])
    f(2, x[0], y)
    print(maps(), kept(0, "<i"), set(kept(1, "128B")))
    f(3, x[1], y)                     # another address
    f(4, x[0, ::2], y)                # other strides
    f(5, x[0, :5], y)                 # another shape
    f(6, x[0, :1], y)                 # a dimension of one element
    print("\\n".join(maps()), set(kept(1, "128B")))
    f(7, x[1], y)
    print(maps(), set(kept(1, "128B")))
    """) == [
        "['map 7: 24 40 /96 x16.1 x8.1 0 2 3 0'] (1,) {1} True",
        "[] (2,) {1}",
        "map 7: 24 40 /96 x16.1 x8.1 0 2 3 0",
        "map 7: 24 20 /192 x16.1 x8.1 0 2 3 0",
        "map 7: 24 5 /96 x16.1 x8.1 0 2 3 0",
        "map 7: 24 1 /16 x16.1 x8.1 0 2 3 0 {5}",
        "[] {2}",
    ]


def test_the_least_recently_used_map_goes_first(play):
    assert play("""
    f = interop.kernel("//", "f", signature=f"{MAP} m", grid=1, tensor_maps={"m": interop.tensor_map("x", box=16)})
    x = interop.empty((100, 32), "float32")
    sizes(128)
    for k in range(32):
        f(x[k])
    f(x[0])
    print(len(maps()))
    f(x[32])
    f(x[0])
    print(len(maps()))
    f(x[1])                           # it was used before all others
    print(len(maps()))
    """) == ["32", "1", "1"]


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *(
            ("bool", 0),
            ("uint8", 0),
            ("int8", 0),
            ("int16", 1),
            ("uint16", 1),
            ("uint32", 2),
            ("int32", 3),
            ("uint64", 4),
        ),
        *(("int64", 5), ("float16", 6), ("float32", 7), ("float64", 8), ("bfloat16", 9)),
    ],
)
def test_dtypes_of_maps(play, dtype, number):
    (line,) = play(f"""
    f = interop.kernel("//", "f", signature=f"{{MAP}} m", grid=1, tensor_maps={{"m": interop.tensor_map("x", box=16)}})
    sizes(128)
    f(interop.empty(64, {dtype!r}))
    print(maps()[0])
    """)
    assert line == f"map {number}: 64 x16.1 0 0 2 0"


def test_a_map_and_a_pointer_of_one_array(play):
    assert play("""
    maps_of = {"m": interop.tensor_map("x", box=(4, 8), oob_fill="nan"), "n": interop.tensor_map("x", box=(2, 4))}
    f = interop.kernel("//", "f", signature=f"{MAP} m, const float* x, {MAP} n, int k", grid=1, tensor_maps=maps_of)
    x = interop.empty((8, 8), "float32")
    sizes(128, 8, 128, 4)
    f(x, 5)
    print(maps(), set(kept(0, "128B")), kept(1, "<Q")[0] == x.__cuda_array_interface__["data"][0], set(kept(2, "128B")),
          kept(3, "<i"))
    said(f, x[0], 5)
    said(f, x[:0], 5)
    f(x[:0], 5, grid=0)
    """) == [
        "['map 7: 8 8 /32 x8.1 x4.1 0 0 2 1', 'map 7: 8 8 /32 x4.1 x2.1 0 0 2 0'] {1} True {2} (5,)",
        "interop.kernel('f'): x is float32 of shape (8,), strides (1,), on cuda:0; accepted: a C-contiguous float32 "
        "array of shape (*, *) on a CUDA device",
        "interop.kernel('f'): x has no elements; accepted for a tensor map: at least one",
    ]


def test_what_tma_does_not_take(play):
    """The call says it, and so does `explain`, which makes no map."""
    label = "interop.kernel('f'): x "
    accepted = "; accepted for a tensor map: "
    said = [
        f"{label}has strides (6, 1), in elements of float32{accepted}multiples of 16 bytes for all dimensions but the "
        "last, such as rows of 8 elements",
        f"{label}has strides (8, 2), in elements{accepted}1 for the last dimension",
        f"{label}has strides (-8, 1), in elements{accepted}strides from 0 to below 2**40 bytes",
        f"{label}starts at an address that is not a multiple of 16 bytes, as TMA needs{accepted}an aligned array",
        f"{label}is int8, so that a row of the box has 8 bytes{accepted}a box whose rows are multiples of 16 bytes",
        f"{label}is float64, so that a row of the box has 64 bytes{accepted}with swizzle=32 rows of up to so "
        "many bytes",
        f"{label}is complex64{accepted}bool, integers, float8, float16, bfloat16, float32, float64",
    ]
    assert play("""
    f = interop.kernel("//", "f", signature=f"{MAP} m", grid=1,
                       tensor_maps={"m": interop.tensor_map("x", box=(2, 8), swizzle=32)})
    x = interop.empty((8, 8), "float32")
    sizes(128)
    for array in (interop.empty((8, 6), "float32"), x[:, ::2], x[::-1], x[:, 1:], interop.empty((8, 16), "int8"),
                  interop.empty((8, 8), "float64"), interop.empty((8, 8), "complex64")):
        said(f, array)
        said(lambda x: interop.explain(f, x), array)
    print(maps())
    """) == [line for line in said for _ in range(2)] + ["[]"]


def test_a_device_without_tma(play):
    assert play(
        """
    f = interop.kernel("//", "f", signature=f"{MAP} m", grid=1, tensor_maps={"m": interop.tensor_map("x", box=16)})
    g = interop.kernel("//", "g", signature="float* x", grid=1, dependent_launch=True)
    x = interop.empty(64, "float32")
    sizes(128)
    said(f, x)
    sizes(8)
    said(g, x)
    """,
        STAND_IN_CAPABILITY="8",
    ) == [
        "interop.kernel('f'): x is a tensor map, and the device has compute capability 8.0; accepted: 9.0 or later, "
        "which has TMA",
        "interop.kernel('g'): dependent_launch is True; accepted: False, as this device has no compute capability of "
        "9.0 or later",
    ]


def test_dependent_launches_say_it_to_the_driver(play):
    """Programmatic stream serialization is attribute 6; clusters are 4, cooperative launches 2."""
    assert play("""
    f = interop.kernel("//", "f", signature="float* x", grid=1)
    g = interop.kernel("//", "g", signature="float* x", grid=2, dependent_launch=True, cluster=2)
    x = interop.empty(64, "float32")
    sizes(8)
    for call, named in ((f, {}), (f, {"dependent_launch": True}), (g, {}), (g, {"dependent_launch": False})):
        call(x, **named)
        print(driver.stand_in_attributes().decode())
    print(interop.explain(g, x).algorithm)
    """) == [
        "",
        "6=1 ",
        "4=2 6=1 ",
        "4=2 ",
        "g(float* x), grid (2, 1, 1), block (256, 1, 1), clusters of (2, 1, 1), dependent",
    ]
