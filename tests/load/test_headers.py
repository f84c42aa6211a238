"""`interop.load(header=)`: what is read of a header, and the reasons for what cannot be called.

Types: test_headers_types.py. Statuses: test_headers_statuses.py. Options: test_headers_options.py. Handles and strings:
test_opaque.py. Headers of others: test_headers_of_others.py. Headers that hypothesis makes: test_headers_made.py.
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
from helpers import c_functions

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")

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
    "no::missing": r"^the library has no function 'no::missing\(int\)': nothing in it has this name",
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
    with pytest.raises(AttributeError, match=f"has no function '{re.escape(plain)}' that can be called: ") as error:
        getattr(lib, plain)
    assert str(error.value).count(str(folder / "libew.so")) == 1
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


def test_functions_of_the_type_of_a_typedef_have_a_reason(load):
    text = "typedef int fn_t(int); namespace n { fn_t f; } fn_t* pointer; typedef int number; number variable; int g();"
    lib = load("int g() { return 7; }", text)
    assert set(lib.refused) == {"n::f"}
    assert "its parameters are those of a typedef; accepted: a declaration with its" in lib.refused["n::f"]


def test_a_function_with_the_name_of_an_attribute(load):
    lib = load("int refused(int x) { return x; }", "int refused(int x);")
    assert (lib["refused"](3), dict(lib.refused)) == (3, {})


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
