"""`interop.load(header=)`: what is read of a header, and the reasons for what cannot be called.

Handles and strings: test_opaque.py. Headers of others: test_headers_of_others.py. Headers that hypothesis makes:
test_headers_made.py.
"""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import c_functions, machine

import interop

HEADER = r"""
#ifndef ELEMWISE_H
#define ELEMWISE_H
#include "types.h"
#include <not_there.h>
#include <cstddef>
#ifdef __CUDACC__
int for_nvcc(int);
#endif
#if !defined(__cplusplus)
int for_c(int);
#endif
#define API __attribute__((visibility("default")))
#define DECLARE(name) int name##_of_macro(int x);

/* int in_a_comment(int); */
namespace ew {
enum class Op : unsigned char { add = 1, sub };
__host__ inline int twice(int a) { if (a) { return 2 * a; } return 0; }
API void add(const float* a, const float* b, float c[], std::size_t n, int times = 1) noexcept;
int op(Op o, ::Mode m, my_uint);
[[nodiscard]] auto trailing(int x) -> int;
namespace inner {
  Op next(Op);
  long int unsigned spelled_in_another_order(long int unsigned x);
}
inline namespace v1 { int versioned(int); }
}  // namespace ew
namespace ew::inner { int deep(Op); }
DECLARE(one)
extern "C" {
int of_c(int x);
namespace ew { int of_c_too(int); int of_c_with_a_type(Op o); }
}
namespace [[deprecated]] marked { int in_marked(int); }
namespace __attribute__((visibility("default"))) marked { int in_marked_too(int); }
class OnGpu { public: __device__ float get() { return 1; } };
extern "C" int single(int), another(int);
extern int number;

namespace no {
int unknown(foo_t x);
int unknown_pointer(foo_t* x);
foo_t unknown_result();
int any_number(int, ...);
struct pair { int a, b; };
union either { int a; float b; };
int by_value(pair p);
int by_value_too(union either e);
pair returned();
int by_pointer(pair* p);
int by_reference(int& p);
int pointers(int** p);
int rows(float x[][3]);
int function_pointer(int (*f)(int));
template <class T> T any(T);
class Matrix { public: Matrix(); int member(int); static int of_class(); private: int n; };
inline int Matrix::outside() { return 1; }
__global__ void __launch_bounds__(256) kernel(float*);
template <int N> __global__ void kernel_template(float*);
__device__ float of_gpu(float);
int missing(int);
static int of_file(int) { return 1; }
int operator+(pair, int);
MYAPI int unknown_macro(int);
int deleted(int) = delete;
float* whose(int);
char* whose_text(int);
long double wide(long double);
int renamed(int) __asm__("other");
int is_volatile(volatile int* x);
std::string cxx(const std::string&);
inline int not_emitted(int x) { return x; }
int on_stream(int, cudaStream_t);
}
#endif
int of_include(int);
"""
TYPES = """
typedef unsigned int my_uint;
struct other* of_the_include(int);
int only_in_the_include(int);
enum Mode { OFF, ON = 7, BOTH = ON | 8 };
"""
SOURCE = r"""
#include <cstddef>
#include "types.h"
int of_include(int x) { return x; }
int one_of_macro(int x) { return x + 1; }
int only_in_the_include(int x) { return x; }
namespace ew {
enum class Op : unsigned char { add = 1, sub };
void add(const float* a, const float* b, float* c, std::size_t n, int times) noexcept {
  while (n--) c[n] = times * (a[n] + b[n]);
}
int op(Op o, Mode m, unsigned u) { return 100 * (int)o + 10 * (int)m + u; }
int trailing(int x) { return x; }
namespace inner {
  Op next(Op o) { return Op((int)o + 1); }
  int deep(Op o) { return (int)o; }
  unsigned long spelled_in_another_order(unsigned long x) { return x; }
}
inline namespace v1 { int versioned(int x) { return x; } }
}
extern "C" {
int of_c(int x) { return x; }
int of_c_too(int x) { return x; }
int of_c_with_a_type(ew::Op o) { return (int)o; }
int single(int x) { return x; }
int another(int x) { return x; }
}
namespace marked { int in_marked(int x) { return x; } int in_marked_too(int x) { return x; } }
namespace no { int of_file(int) { return 1; } }
"""


@pytest.fixture(scope="module", autouse=True)
def _reader():
    machine.need("headers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    (folder / "types.h").write_text(TYPES)
    (folder / "elemwise.h").write_text(HEADER)
    c_functions.build(SOURCE, folder / "libew.so", language="c++")
    return folder


@pytest.fixture(scope="module")
def lib(folder):
    return interop.load(folder / "libew.so", header=folder / "elemwise.h", memory="host")


@pytest.fixture
def load(tmp_path):
    """Load functions of C++ with the header in `text`, beside which are the files in `others`."""

    def load(source, text, others=None, **options):
        for name, content in {**(others or {}), "own.h": text}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        path = c_functions.build(source, tmp_path / "libown.so", language="c++")
        return interop.load(path, header=tmp_path / "own.h", **options)

    return load


# ---- what is read ----


def test_functions_are_called_as_they_stand(lib):
    a, c = np.arange(3, dtype="float32"), np.zeros(3, "float32")
    lib.add(a, a, c, 3, 2)
    assert c.tolist() == [0, 4, 8]
    assert lib.add.returning(c="a")(a, a, 3, times=1).tolist() == [0, 2, 4]
    assert str(inspect.signature(lib.add)) == "(a, b, c, n, times)"
    assert lib.op(1, 7, 3) == 173
    assert lib.trailing(4) == 4
    assert lib.next(1) == 2
    assert lib.deep(2) == 2
    assert lib.spelled_in_another_order(5) == 5
    assert lib.one_of_macro(1) == 2
    assert [lib.of_c(1), lib.of_c_too(2), lib.single(3), lib.another(4), lib.of_include(5)] == [1, 2, 3, 4, 5]
    assert (lib.of_c_with_a_type(2), lib.in_marked(3), lib.in_marked_too(4)) == (2, 3, 4)
    assert lib["ew::op"] is lib["op(ew::Op, Mode, unsigned)"]
    assert repr(lib.op) == "<C function libew.ew::op: int op(Op o, ::Mode m, my_uint)>"


def test_a_header_of_c(tmp_path):
    """Without extern "C", and with words that C++ has not."""
    text = """
    #include <stdbool.h>
    struct state { int n; };
    typedef enum color { RED, GREEN = 3 } color;
    extern struct state *state_new(void);
    __extension__ extern inline int state_next(struct state *restrict s, const float *__restrict x)
        __attribute__((nonnull(1)));
    _Bool is_green(enum color c);
    int apply(register const int n, signed const long m, float const x[const static 2]);
    int no_parameters();
    UNKNOWN_MACRO(makes_a_function);
    extern int (*callback)(int), other, several[3];
    """
    source = """
    #include <stdbool.h>
    enum color { RED, GREEN = 3 }; struct state { int n; } it;
    struct state *state_new(void) { return &it; }
    int state_next(struct state *s, const float *x) { return s->n += (int)*x; }
    bool is_green(enum color c) { return c == GREEN; }
    int no_parameters() { return 4; }
    """
    (tmp_path / "own.h").write_text(text)
    lib = interop.load(c_functions.build(source, tmp_path / "libown.so"), header=tmp_path / "own.h", memory="host")
    state = lib.state_new()
    assert lib.state_next(state, np.ones(1, "float32")) == 1
    assert lib.state_next(s=state, x=np.ones(1, "float32")) == 2
    assert (lib.is_green(3), lib.is_green(0), lib.no_parameters()) == (True, False, 4)
    assert lib.refused.keys() == {"apply", "UNKNOWN_MACRO"}  # neither is C++
    assert "in 'UNKNOWN_MACRO(makes_a_function)'" in lib.refused["UNKNOWN_MACRO"]


def test_values_of_an_enum_have_its_size(lib):
    with pytest.raises(OverflowError, match="libew.ew::op: o is 256, which uint8 cannot hold"):
        lib.op(256, 0, 0)
    with pytest.raises(OverflowError, match="libew.ew::op: m is -1, which uint32 cannot hold"):
        lib.op(1, -1, 0)


def test_an_inline_namespace_is_named(lib):
    assert lib.versioned(3) == 3
    assert "ew::v1::versioned" in lib.versioned._label


REFUSED = {
    "no::unknown": r"nothing that was read defines 'foo_t' \(not_there.h, cstddef: not found beside the header, nor in",
    "no::unknown_pointer": "the elements of 'x' are 'foo_t\\*'; .*nothing that was read defines 'foo_t'",
    "no::unknown_result": "the result is foo_t; accepted: void, .*nothing that was read defines 'foo_t'",
    "no::any_number": r"it takes any number of arguments \(\.\.\.\)",
    "no::by_value": "the type of 'p' is 'pair'; .*'no::pair' is a struct, which is not passed by value",
    "no::by_value_too": "'no::either' is a struct, which is not passed by value",
    "no::returned": "the result is pair; .*'no::pair' is a struct, which is not passed by value",
    "no::by_pointer": "'p' points to a struct, 'no::pair', and no function that is declared returns one",
    "no::by_reference": "'p' is a reference",
    "no::pointers": r"'p' is a pointer to pointers, 'int\*\*'",
    "no::rows": "'x' is an array of arrays",
    "no::function_pointer": "'f' is a function pointer",
    "no::any": "it is a template",
    "no::Matrix::member": "it is a member of a class",
    "no::Matrix::of_class": "it is a member of a class",
    "no::Matrix::Matrix": "it is a member of a class",
    "no::Matrix::outside": "it is a member of a class",
    "OnGpu::get": "it is a member of a class",
    "no::kernel": "it is a kernel; accepted: a function that launches it, or its source in interop.kernel",
    "no::kernel_template": "it is a kernel",
    "no::of_gpu": r"it is a function of the GPU \(__device__\)",
    "no::missing": r"'.*libew.so' has no function 'no::missing\(int\)': nothing in it has this name",
    "no::of_file": "it is static",
    "no::operator+": "it is an operator",
    "no::unknown_macro": "the declaration is not understood .*, in 'MYAPI int unknown_macro\\(int\\)'",
    "no::deleted": "it is deleted",
    "no::whose": r"the result is float\*, of which nothing says how long it is, and whose",
    "no::whose_text": r"the result is char\*, of which nothing says how long it is, and whose",
    "no::wide": "the type of 'arg0' is 'long double'",
    "no::renamed": "an attribute or asm changes how it is called",
    "no::is_volatile": "'x' is a pointer to what is volatile",
    "no::cxx": "'arg0' is a reference",
    "no::not_emitted": "an inline one that nothing in the library needs",
    "no::on_stream": "there is a stream, and no device pointer",
    "ew::twice": "an inline one that nothing in the library needs",
}


def test_what_cannot_be_called_has_a_reason(lib):
    assert set(lib.refused) == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_a_reason_names_what_is_wrong_and_where(lib, name, folder):
    assert re.search(REFUSED[name], lib.refused[name])
    line = int(re.search(rf"\({re.escape(str(folder / 'elemwise.h'))}:(\d+)\)$", lib.refused[name])[1])
    text = HEADER.splitlines()[line - 1]
    assert name.rpartition("::")[2] in text or "class " in text
    plain = name.rpartition("::")[2]
    with pytest.raises(AttributeError, match=f"has no function '{re.escape(plain)}' that can be called: "):
        getattr(lib, plain)
    with pytest.raises(KeyError, match="that can be called"):
        lib[name]


def test_only_this_file_declares_functions(lib):
    names = {function.partition("(")[0] for function in lib._functions} | set(lib.refused)
    assert not names & {"only_in_the_include", "of_the_include", "for_nvcc", "for_c", "in_a_comment", "number"}
    with pytest.raises(
        AttributeError, match="has no declared function 'only_in_the_include'; declared: ew::add, ew::op"
    ):
        lib.only_in_the_include  # noqa: B018


def test_what_is_refused_cannot_be_changed(lib):
    with pytest.raises(TypeError):
        lib.refused["x"] = "y"


def test_more_parameters_than_are_passed_are_a_reason(load):
    many = ", ".join(["int"] * 40)
    lib = load(
        f"int f({many}) {{ return 0; }} const char* g({many}) {{ return 0; }}",
        f"int f({many});\nconst char* g({many});",
    )
    assert re.search(r"libown.f has 40 parameters; accepted: up to .*own.h:1\)$", lib.refused["f"])
    assert re.search(r"libown.g has 40 parameters; accepted: up to .*own.h:2\)$", lib.refused["g"])


def test_overloads_of_which_one_is_refused(load):
    source = "int f(int) { return 1; } int f(float) { return 2; }"
    lib = load(source, "int f(int);\nint f(float);\nint f(foo);\nint f(bar);")
    assert (lib["f(int)"](0), lib["f(float)"](0)) == (1, 2)
    assert re.search(r"defines 'foo', in .*own.h:3\); and .*defines 'bar', in .*own.h:4\)$", lib.refused["f"])


# ---- types ----


def test_definitions_of_the_header_go_before_those_of_cuda(load):
    """A name that is CUDA's is what the text says it is; a file that is only included may not make it a struct."""
    source = "int f(float x) { return x; } struct __half; int g(const __half*) { return 2; }"
    lib = load(source, "typedef float half;\nint f(half x);")
    assert lib.f(3.0) == 3
    lib = load(
        source,
        '#include "h.h"\nint g(const half* x);',
        {"h.h": "struct __half { short x; };\ntypedef __half half;"},
        memory="host",
    )
    assert lib.g(np.zeros(2, "float16")) == 2
    lib = load(source, "struct half { float x; };\nint f(half x);")
    assert "'half' is a struct, which is not passed by value" in lib.refused["f"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ("A, B", "uint32"),
        ("A = -1", "int32"),
        ("A = 1u << 31", "uint32"),
        ("A = 0x100000000", "uint64"),
        ("A = -1, B = 0x7fffffffffffffff", "int64"),
        ("A = 'x', B, C = (A | B) << 2", "uint32"),
        ("A = OTHER + 1", "uint32"),
        ("A = 1 << 4 >> 2", "uint32"),
        ("A = 010, B = 0b11, C = ~0", "int32"),
    ],
)
def test_enums_have_the_size_that_compilers_choose(load, values, dtype):
    text = f"enum Before {{ OTHER = 5 }};\nenum E {{ {values} }};\nint f(E* x, E y);"
    source = (
        "#include <type_traits>\n" + text.rpartition("\n")[0] + "\nint f(E*, E) { return sizeof(E); }"
        "bool is_signed(E) { return std::is_signed<std::underlying_type<E>::type>::value; }"
    )
    text += "\nbool is_signed(E);"
    lib = load(source, text, memory="host")
    assert lib.f(np.zeros(1, dtype), 0) == np.dtype(dtype).itemsize
    assert lib.is_signed(0) == (dtype[0] == "i")


@pytest.mark.parametrize(
    "value",
    [
        "sizeof(int)",
        "UNKNOWN",
        "-1u",
        "1 << 99",
        "9 ** 9",
        "1 ? 2 : 3",
        "__LINE__ + f()",
        "1.5",
        "99999999999999999999",
    ],
)
def test_an_enum_of_unknown_size_is_refused(load, value):
    lib = load(
        "int f(int) { return 0; }",
        f"enum E {{ A = {value} }};\nenum Fixed : int {{ C = {value} }};\nint f(E);\nint f(Fixed);",
    )
    assert "'E' is an enum of which the value" in lib.refused["f"]


def test_typedefs_of_typedefs(load):
    source = """
    typedef struct { int v; } thing; thing it; int f(const thing* x) { return x->v; }
    thing* g() { it.v = 4; return &it; }
    int h(unsigned char* x) { return x[0]; } int i(const float* x) { return x[1]; }
    """
    lib = load(
        source,
        """
    typedef unsigned char Byte; typedef Byte Bytes; using Pointer = Bytes*; typedef float row[3];
    typedef const float cf;
    typedef struct { int v; } thing; typedef thing other; typedef other* handle;
    int f(const other* x); handle g(); int h(Pointer const x); int i(cf* x); int j(row x);
    typedef int around; typedef struct loop loop;
    """,
        memory="host",
    )
    assert lib.f(lib.g()) == 4
    assert lib.h(np.array([7], "uint8")) == 7
    assert lib.i(np.array([1, 2], "float32")) == 2
    assert "'x' is an array" in lib.refused["j"]


def test_attributes_that_change_a_type_are_not_passed_over(load):
    lib = load(
        "int f(float) { return 0; } int g(int) { return 0; }",
        """
    typedef float v4 __attribute__((vector_size(16))); typedef int wide __attribute__((__mode__(__DI__)));
    int f(v4 x); int g(wide x); __attribute__((ms_abi)) int h(int);
    """,
    )
    assert "'x' is a type that an attribute changes" in lib.refused["f"]
    assert "'x' is a type that an attribute changes" in lib.refused["g"]
    assert "an attribute or asm changes how it is called" in lib.refused["h"]


def test_an_enum_whose_size_an_attribute_changes_is_refused(load):
    lib = load("int f(int) { return 0; }", "enum E { A } __attribute__((packed));\nint f(E);")
    assert "'E' is an enum of which an attribute changes the type" in lib.refused["f"]


def test_words_of_cuda_are_known_whatever_its_files_make_of_them(load):
    """As CUDA's own do, where nvcc does not read them."""
    words = "".join(f"#define {word}\n" for word in ("__global__", "__device__", "__host__", "__launch_bounds__(n)"))
    text = '#include "defines.h"\n__global__ void f(int);\n__device__ int g(int);\n__host__ __device__ int h(int);'
    lib = load(
        "int f(int x) { return x; } int g(int x) { return x; } int h(int x) { return x; }", text, {"defines.h": words}
    )
    assert lib.h(3) == 3
    assert "it is a kernel" in lib.refused["f"]
    assert "it is a function of the GPU" in lib.refused["g"]


def test_typedefs_that_go_round_end(load):
    lib = load(
        "int f(int) { return 0; }",
        "typedef b a; typedef a b; typedef half __half; typedef __half half;\nint f(a);\nint g(half);",
    )
    assert set(lib.refused) == {"f", "g"}


# ---- where pointers point ----

POINTERS = "void f(const float* a, float* b, int n);\nvoid g(const float* a, int n);"
POINTERS_SOURCE = "void f(const float* a, float* b, int n) { b[0] = a[0] + n; } void g(const float*, int) {}"


def test_places_are_said_by_name(load):
    lib = load(POINTERS_SOURCE, POINTERS, host={"f": ("a", "b")})
    b = np.zeros(1, "float32")
    lib.f(np.ones(1, "float32"), b, 2)
    assert b[0] == 3
    assert re.search(
        r"the pointer 'a' says not once .* such as host=\{'g': \('a',\)\}, in 'void g\(.*own.h:2\)$",
        lib.refused["g"],
    )
    mixed = load(POINTERS_SOURCE, POINTERS, memory="device", host={"f": ["a"]})
    assert str(inspect.signature(mixed.f)) == "(a, b, n, *, stream=None, execution=None)"
    with pytest.raises(TypeError, match="libown.f: b is float32 .* on cpu; accepted: .*on a CUDA device"):
        mixed.f(b, b, 1)
    with pytest.raises(TypeError, match="libown.g: a is float32 .* on cpu; accepted: .*on a CUDA device"):
        mixed.g(b, 1)
    both = load(POINTERS_SOURCE, POINTERS, memory="host", device={"f": ("b",), "g": ("a",)})
    assert "stream" in str(inspect.signature(both.g))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"host": {"h": ("a",)}}, ValueError, "host: 'h' is no declared function; accepted: f, g$"),
        ({"device": {"f": ("c",)}}, ValueError, r"device\['f'\]: 'c' is no parameter; accepted: a, b, n$"),
        ({"host": {"f": ("a",)}, "device": {"f": ("a",)}}, ValueError, r"device\['f'\]: 'a' stands in host, too"),
        ({"host": {"f": ("a", "b", "n")}}, ValueError, "the type of 'n' is 'int', and 'host' is said of it; accepted:"),
        ({"host": {"f": ("a",)}}, ValueError, "the pointer 'b' says not once .* in 'void f"),
        ({"host": {"f": "a"}}, TypeError, r"host\['f'\] is str; accepted: a tuple of names, such as \('a',\)"),
        ({"device": ("f",)}, TypeError, "device is tuple; accepted: a mapping of the names of functions"),
        ({"host": {"f": (1,)}}, TypeError, r"host\['f'\] has an element of int"),
        ({"reads": {"f": ("a",)}, "memory": "host"}, ValueError, "reads: 'a' is a pointer to const"),
        ({"reads": {"f": ("n",)}, "memory": "host"}, ValueError, "reads: 'n' is no pointer; .* in 'void f.*own.h:1"),
        ({"status": {"my_status": 0}}, ValueError, "status: no declared function returns 'my_status'; accepted: void$"),
        ({"status": {"void": "0"}}, TypeError, r"status\['void'\] is str; accepted: an int, as in a mapping"),
        ({"status": ["my_status"]}, TypeError, "status is list; accepted: a mapping of types to their values"),
        (
            {"include_path": "folder"},
            TypeError,
            "include_path is no list of folders; accepted: a list or tuple of paths",
        ),
        ({"include_path": [1]}, TypeError, "include_path is no list of folders"),
    ],
)
def test_options_that_name_nothing(load, options, error, message):
    with pytest.raises(error, match=f"^interop.load: {message}|{message}") as caught:
        load(POINTERS_SOURCE, POINTERS, **options)
    assert re.search(message, str(caught.value))


def test_pointers_that_are_only_read(load):
    lib = load(
        POINTERS_SOURCE.replace("const ", ""), POINTERS.replace("const ", ""), memory="host", reads={"f": ("a",)}
    )
    b = np.zeros(1, "float32")
    lib.f(np.frombuffer(b"\0\0\x80?", "float32"), b, 2)
    assert b[0] == 3


def test_places_are_said_of_text_too(tmp_path):
    path = c_functions.build("void f(const float* a, float* b) { b[0] = a[0]; }", tmp_path / "libown.so")
    text = "void f(const float* a, host float* b);"
    lib = interop.load(path, text, host={"f": ("a", "b")})
    assert lib.f.returning(b="a")(np.ones(1, "float32")).tolist() == [1]
    with pytest.raises(ValueError, match="the pointer 'b' is said to be 'device' and 'host'; accepted: one of both"):
        interop.load(path, text, memory="host", device={"f": ("b",)})


# ---- statuses ----


def test_a_status_is_raised(load):
    text = """
    typedef enum { MY_OK = 2, MY_BAD = -3 } my_status; my_status f(int x); int g(int x);
    my_status h(const int*, int* y);
    """
    source = """
    typedef enum { MY_OK = 2, MY_BAD = -3 } my_status; my_status f(int x) { return (my_status)x; }
    int g(int x) { return x; }
    my_status h(const int* x, int* y) { *y = *x + 1; return MY_OK; }
    """
    lib = load(source, text, status={"my_status": 2}, memory="host")
    assert lib.f(2) is None
    with pytest.raises(
        RuntimeError, match=r"^libown.f returned -3 \(MY_BAD\), a my_status, of which success is 2$"
    ) as caught:
        lib.f(-3)
    assert not isinstance(caught.value, interop.CudaError)
    with pytest.raises(RuntimeError, match="^libown.f returned 9, a my_status"):
        lib.f(9)
    assert lib.h.returning(y="arg0")(np.array([4], "int32")).tolist() == [5]
    assert lib.g(1) == 1
    assert load(source, text).f(-3) == -3  # nothing says that it is a status
    of_numbers = load(source, text, status={"int": 0})
    assert of_numbers.g(0) is None
    with pytest.raises(RuntimeError, match="returned 1, a int"):
        of_numbers.g(1)


def test_statuses_of_cuda_are_known(load):
    text = "cudaError_t f(int);\ncublasStatus_t g(int);\nCUresult h(int);\nint i(cudaError_t);"
    source = "".join(f'extern "C" int {name}(int x) {{ return x; }}\n' for name in "fghi")
    lib = load(source, text)
    assert (lib.f(0), lib.g(0), lib.h(0)) == (None, None, None)
    for name in "fgh":
        with pytest.raises(interop.CudaError):
            getattr(lib, name)(13)
    with pytest.raises(interop.CudaError, match="libown.g returned 13, a cublasStatus_t, of which success is 0"):
        lib.g(13)
    assert lib.i(3) == 3
    lib = load(
        source, '#include "blas.h"\n' + text, {"blas.h": "typedef enum { CUBLAS_STATUS_FAILED = 13 } cublasStatus_t;"}
    )
    with pytest.raises(interop.CudaError, match=r"returned 13 \(CUBLAS_STATUS_FAILED\), a cublasStatus_t"):
        lib.g(13)


def test_a_status_of_any_size(load):
    text = "enum class S : unsigned char { ok, bad = 200 };\nenum U { OK, BAD = 0x80000001 };\nS f(int);\nU g(int);"
    lib = load(
        text.replace("S f(int);\nU g(int);", "") + "S f(int x) { return (S)x; } U g(int x) { return x ? BAD : OK; }",
        text,
        status={"S": 0, "U": 0},
    )
    with pytest.raises(RuntimeError, match=r"returned 200 \(bad\)"):
        lib.f(200)
    with pytest.raises(RuntimeError, match=r"returned 2147483649 \(BAD\)"):
        lib.g(1)


# ---- text beside the header, and pickle ----


def test_text_goes_first_and_uses_the_types_of_the_header(load):
    source = "enum E { A }; int f(int* x) { return *x; } int g(E e) { return e; } int h(int) { return 8; }"
    header = "enum E { A };\nint f(int* x);\nMYAPI int h(int);"
    lib = load(source, header)
    assert set(lib.refused) == {"f", "h"}
    path, header = lib._library.path, lib._made_of.header
    lib = interop.load(path, "int f(host int* x); int g(E e); int h(int);", header=header)
    assert not lib.refused
    assert (lib.f(np.array([3], "int32")), lib.g(4), lib.h(0)) == (3, 4, 8)
    with pytest.raises(ValueError, match="the type of 'x' is 'foo'") as caught:  # of text it is an error, as ever
        interop.load(path, "int f(foo x);", header=header)
    assert type(caught.value) is ValueError


def test_a_library_is_pickled_with_its_header(folder, lib):
    again = pickle.loads(pickle.dumps(lib))
    assert again.op(1, 7, 3) == 173
    assert dict(again.refused) == dict(lib.refused)
    assert pickle.loads(pickle.dumps(lib.op))(1, 0, 0) == 100
    options = {"host": {"ew::add": ("a", "b", "c")}, "include_path": [folder], "reads": None}
    lib = interop.load(folder / "libew.so", header=str(folder / "elemwise.h"), **options)
    again = pickle.loads(pickle.dumps(lib))
    assert again.__reduce__() == lib.__reduce__()
    assert lib.__reduce__()[1][3] == (str(folder),)
    a = np.ones(1, "float32")
    assert again.add.returning(c="a")(a, a, 1, 1) == 2


# ---- the preprocessor ----


def test_includes_are_found_in_the_given_folders(load, tmp_path):
    other = tmp_path / "include"
    others = {"include/nested.h": '#pragma once\n#include "more.h"', "include/more.h": "typedef int number;"}
    text = "#pragma once\n#include <nested.h>\nint f(number x);"
    assert "(nested.h: not found beside the header" in load("int f(int x) { return x; }", text, others).refused["f"]
    assert load("int f(int x) { return x; }", text, others, include_path=[other]).f(3) == 3


def test_a_file_that_is_included_again_and_again_is_a_part_of_the_header(load):
    """So are those of math.h."""
    others = {"calls.inc": "TYPE NAME(once)(TYPE);\nTYPE NAME(twice)(TYPE x);", "once.h": "int no(int);"}
    text = '#include "once.h"\n' + "".join(
        f'#define TYPE {type_}\n#define NAME(x) x##{letter}\n#include "calls.inc"\n#undef TYPE\n#undef NAME\n'
        for type_, letter in (("float", "f"), ("double", "d"))
    )
    lib = load(
        "float twicef(float x) { return 2 * x; } double twiced(double x) { return 2 * x; } int no(int x) { return x; }",
        text,
        others,
    )
    assert (lib.twicef(1.5), lib.twiced(1.5)) == (3, 3)
    assert set(lib.refused) == {"oncef", "onced"}
    assert lib.refused["oncef"].endswith("calls.inc:1)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#ifdef A\nint f(int);", "own.h:1: Unterminated #ifdef A"),
        ("int f(int);\n#endif", "own.h:2: Misplaced #endif"),
        ("#ifdef\n#endif\nint f(int);", "own.h', whose preprocessor's lines are not understood: IndexError"),
        ('#include "own.h"\nint f(int);', "own.h: is included 100 files deep, perhaps by itself"),
        ("struct S;\nextern int x;", "own.h', which declares no function$"),
        ("", "own.h', which declares no function$"),
        ('#include "other.h"', "declares no function; those of what it includes do not count: other.h"),
    ],
)
def test_headers_that_are_none(load, text, message):
    with pytest.raises(ValueError, match=f"^interop.load: .*{message}"):
        load("int f(int x) { return x; }", text, {"other.h": "int f(int);"})


BAD = [
    *(
        "int f(int;\n}}}}{{{ int g(int);",
        "namespace a { int f(int);",
        '"',
        "'",
        "\\",
        "}",
        "@@@ int f(int);",
        "int f(\0int);",
    ),
    *("#error no\nint f(int);", "#define f(\nint f(int);", "template <", "int f(" * 500),
]


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_an_error_or_a_reason(load, text):
    try:
        lib = load("int f(int x) { return x; }", text)
    except ValueError as caught:
        error = str(caught)
    else:
        error = "own.h" if lib.refused or lib.f(1) == 1 else "nothing"
    assert "own.h" in error


def test_bytes_that_are_no_utf8(load, tmp_path):
    lib = load("int f(int x) { return x; }", "int f(int);")
    (tmp_path / "own.h").write_bytes(b"// \xe9\xff\nint f(int);")
    assert interop.load(lib._library.path, header=tmp_path / "own.h").f(1) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"header": "absent.h"}, OSError, "header is '.*absent.h', which cannot be read: No such file"),
        ({"header": "."}, OSError, "header is '.*', which cannot be read: Is a directory"),
        ({"header": b"own.h"}, TypeError, "header is bytes; accepted: a string, or a path"),
        ({}, ValueError, "declarations has none; accepted: at least one C declaration, or header="),
    ],
)
def test_headers_that_cannot_be_read(folder, options, error, message):
    with pytest.raises(error, match=f"^interop.load: {message}"):
        interop.load(folder / "libew.so", **options)


def test_headers_are_read_in_threads(folder):
    def read(_):
        lib = interop.load(folder / "libew.so", header=folder / "elemwise.h", memory="host")
        return sorted(lib._functions), dict(lib.refused)

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(read, range(8))
    assert all(other == first for other in others)


def test_the_reader_is_imported_with_the_first_header(folder):
    code = f"""
import sys, interop
lib = interop.load({str(folder / "libew.so")!r}, "int of_c(int);")
assert lib.of_c(1) == 1 and not dict(lib.refused)
assert not {{"pcpp", "cxxheaderparser"}} & set(sys.modules)
sys.modules["pcpp"] = None
try:
    interop.load({str(folder / "libew.so")!r}, header={str(folder / "elemwise.h")!r})
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("interop.load: header= needs cxxheaderparser and pcpp, which cannot be imported (")
    assert result.stdout.endswith("pip install 'interop-dlpack[headers]'\n")
