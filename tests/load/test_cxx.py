"""`interop.load`: functions of C++, found by their declarations, and the reasons for those that are not.

Declarations that hypothesis makes: test_cxx_names.py.
"""

from __future__ import annotations

import inspect
import pickle
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers import c_functions

import interop

_SOURCE = r"""
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace pipcudemo {
int add(int a, int b) { return a + b; }
float add(float a, float b) { return a + b + 0.5f; }
double sum(const double* x, std::size_t n) { double s = 0; while (n--) s += *x++; return s; }
void twice(const float* __restrict__ x, float* __restrict y, const long long n) {
  for (long long i = 0; i < n; ++i) y[i] = 2 * x[i];
}
namespace inner { int deep(uint8_t x) { return x; } }
int number = 3;

int only_declared(int);
static int private_one(int x) { return x; }
namespace { int unnamed(int x) { return x; } }
__attribute__((visibility("hidden"))) int hidden(int x) { return private_one(x) + unnamed(x); }
int (*keeps)(int) = hidden;
inline int emitted(int x) { return x + 1; }
inline int not_emitted(int x) { return x; }
int (*emits)(int) = emitted;
template <typename T> T times(T x) { return 3 * x; }
template int times<int>(int);
extern "C" int of_c(int x) { return x; }
}  // namespace pipcudemo

namespace other { int add(int, int) { return 7; } }
namespace same { int same(int x) { return x; } }  // a name like that of a constructor
namespace lambdas { int (*f)(int) = [](int x) { return x; }; int g(int x) { return [x]() { return x; }(); } }
int add(unsigned a, unsigned b) { return a - b; }
extern "C" int both(int) { return 1; }
int both(float) { return 2; }
float div(float a, float b) { return a / b; }  // the C library has a `div` of integers
int throws(int x) { throw std::invalid_argument("x is wrong"); }

namespace lambdas { inline int h(int x) { return [x]() { return x; }(); } int (*emits_h)(int) = h; }
namespace std { int of_std(int x) { return x; } }
struct Ended { ~Ended(); int get(int); };
Ended::~Ended() {}
int Ended::get(int x) { return x; }
struct Made { Made(); int get(int); };
Made::Made() {}
int Made::get(int x) { return x; }
struct Virtual { virtual int get(int); };
int Virtual::get(int x) { return x; }
struct Looks { int get(int) const; int set(int); };
int Looks::get(int x) const { return x; }
int Looks::set(int x) { return x; }
struct Plain { int get(int); };
int Plain::get(int x) { return x; }
static int of_file(int x) { return x; }
int (*keeps_of_file)(int) = of_file;
extern "C" __attribute__((visibility("hidden"))) int hidden_in_c(int x) { return x; }
int (*keeps_in_c)(int) = hidden_in_c;
void kernel(float*) {}  // as CUDA's compiler has kernels on the host
__attribute__((used)) static void __device_stub__Z6kernelPf(float*) {}
__attribute__((visibility("hidden"))) void hidden_kernel(float*) {}
__attribute__((used)) static void __device_stub__Z13hidden_kernelPf(float*) {}
void (*keeps_kernel)(float*) = hidden_kernel;
void kernel_of_host(float*) {}
int twins_a(int) __asm__("_Z5twinsi");
int twins_a(int) { return 1; }
int twins_b(int) __asm__("_ZN5twinsEi");
int twins_b(int) { return 2; }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build(_SOURCE, tmp_path_factory.mktemp("cxx") / "libcxx.so", language="c++")


@pytest.fixture
def build(tmp_path):
    def build(text, name="libown.so", *options):
        return c_functions.build(text, tmp_path / name, *options, language="c++")

    return build


def test_a_function_of_a_namespace(path):
    lib = interop.load(path, "int pipcudemo::add(int, int);")
    assert lib.add(2, 3) == 5
    assert lib["pipcudemo::add"] is lib.add
    assert lib.add.__name__ == "add"
    assert "add" in dir(lib)
    assert repr(lib.add) == "<C function libcxx.pipcudemo::add: int pipcudemo::add(int, int)>"
    assert interop.load(path, "int pipcudemo::inner::deep(std::uint8_t x);").deep(255) == 255
    assert interop.load(path, "int ::pipcudemo::add(int, int) noexcept;").add(2, 3) == 5
    assert interop.load(path, "extern int same::same(int);").same(4) == 4
    assert interop.load(path, "int lambdas::g(int);").g(5) == 5
    assert interop.load(path, "int std::of_std(int);").of_std(6) == 6
    with pytest.raises(
        TypeError, match=re.escape("libcxx.pipcudemo::add takes 2 arguments (arg0, arg1), 1 were given")
    ):
        lib.add(2)


def test_parameters_without_names(path):
    lib = interop.load(path, "double pipcudemo::sum(host const double*, size_t); int pipcudemo::add(int, const int b);")
    assert str(inspect.signature(lib.sum)) == "(arg0, arg1)"
    assert str(inspect.signature(lib.add)) == "(arg0, b)"
    assert lib.sum(arg1=2, arg0=np.ones(2)) == 2
    with pytest.raises(TypeError, match="arg0 is float32 .*; accepted: .*float64"):
        lib.sum(np.ones(2, "f4"), 2)


def test_arrays_are_made(path):
    lib = interop.load(path, "void pipcudemo::twice(host const float*, host float* __restrict y, long long);")
    twice = pickle.loads(pickle.dumps(lib.twice.returning(y="arg0")))
    assert twice(np.ones(3, "f4"), 3).tolist() == [2] * 3


def test_overloads_are_told_apart_by_their_parameters(path):
    lib = interop.load(
        path, "int pipcudemo::add(int, int); float pipcudemo::add(float, float); int other::add(int, int);"
    )
    message = (
        r'has 3 declared functions \'add\'; accepted: lib["pipcudemo::add(int, int)"], '
        r'lib["pipcudemo::add(float, float)"], lib["other::add(int, int)"]'
    ).replace("\\", "")
    with pytest.raises(AttributeError, match=re.escape(message)):
        _ = lib.add
    with pytest.raises(KeyError, match="has 2 declared functions .*pipcudemo::add"):
        _ = lib["pipcudemo::add"]
    with pytest.raises(KeyError, match=r"has 2 declared functions .*add\(int,int\)"):
        _ = lib["add(int,int)"]
    assert lib["other::add"](1, 2) == 7
    assert lib["add(float, float)"](1, 2) == 3.5
    assert lib["::pipcudemo::add( signed , const int32_t )"](1, 2) == 3
    assert dir(lib).count("add") == 1
    for function in ("pipcudemo::add(int, int)", "other::add"):
        assert pickle.loads(pickle.dumps(lib[function]))(1, 2) == lib[function](1, 2)


def test_names_that_are_not_declared(path):
    lib = interop.load(path, "int pipcudemo::add(int, int); int add(unsigned, unsigned);")
    assert lib["add"](5, 3) == 2  # the name alone is that of the function without a namespace
    for name in ("dd", "cudemo::add", "pipcudemo", "pipcudemo::add(long, int)", "add(int", "", "("):
        with pytest.raises(KeyError, match="no declared function|2 declared functions"):
            print(lib[name])
    with pytest.raises(ValueError, match=r"\['add\(pair\)'\]: the type of 'arg0' is 'pair'; accepted"):
        _ = lib["add(pair)"]
    with pytest.raises(TypeError, match="the name of a function is int; accepted: a string"):
        _ = lib[3]


def test_a_function_that_is_declared_twice_is_one(path):
    lib = interop.load(path, "int pipcudemo::add(int, int); int pipcudemo::add(int a, const int b);")
    assert lib.add(2, 3) == 5


def test_a_name_of_c_goes_before_one_of_cxx(path):
    assert interop.load(path, "int both(int);").both(0) == 1
    assert interop.load(path, "int both(float);").both(0) == 1  # as in C, where the types are not in the name
    lib = interop.load(path, 'extern "C" int both(int); int both(float);')
    assert [lib["both(int)"](0), lib["both(float)"](0)] == [1, 2]
    with pytest.raises(AttributeError, match=r"no function 'both\(int\)': it has, in C\+\+, 'both\(float\)'"):
        interop.load(path, "int both(int); int both(float);")  # of two, that of C must say so


def test_a_name_of_cxx_goes_before_that_of_another_library(path):
    assert interop.load(path, "float div(float, float);").div(7, 2) == 3.5
    with pytest.raises(AttributeError, match=r"has no function 'div' of its own, but finds one in '.*libc"):
        interop.load(path, 'extern "C" float div(float, float);')
    with pytest.raises(AttributeError, match=r"has no function 'div' of its own, but finds one in '.*libc"):
        interop.load(path, "int div(int, int);")


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (
            "int pipcudemo::private_one(int);",
            "'pipcudemo::private_one(int)': it is static, or in an unnamed namespace; ",
        ),
        ("int pipcudemo::unnamed(int);", "it is static, or in an unnamed namespace; accepted: a function that the"),
        ("int pipcudemo::hidden(int);", "it is hidden (-fvisibility=hidden, or a linker's version script); accepted: "),
        ("int of_file(int);", "it is static, or in an unnamed namespace"),
        ("int hidden_in_c(int);", "it is static or hidden; accepted: a function that the library exports, as by "),
        ("int pipcudemo::not_emitted(int);", "nor has an inline one that nothing in the library needs"),
        ("int pipcudemo::only_declared(int);", "a function that is only declared has no symbol"),
        ("int pipcudemo::number(int);", "what has this name is data; accepted: a function"),
        (
            "int pipcudemo::times(int);",
            "it has 'int pipcudemo::times<int>(int)'; accepted: a function that is no template",
        ),
        (
            "int pipcudemo::of_c(int);",
            "it has 'of_c', as a function of C; accepted: extern \"C\" before the declaration",
        ),
        (
            "int pipcudemo::add(long, int);",
            "it has, in C++, 'add(unsigned int, unsigned int)', 'other::add(int, int)', "
            "'pipcudemo::add(float, float)', 'pipcudemo::add(int, int)'; accepted: a declaration of one of these, in",
        ),
        ("int sum(host const double*, size_t);", "it has, in C++, 'pipcudemo::sum(double const*, unsigned long)'; acc"),
        ("int pipcudemo::sum(host double*, size_t);", "it has, in C++, 'pipcudemo::sum(double const*, unsigned long)'"),
        (
            "int pipcudemo::twice(host const float*, host float*, int64_t);",
            "'pipcudemo::twice(float const*, float*, long",
        ),
        ('extern "C" int add(int, int);', 'accepted: a declaration of one of these, without extern "C", in \'extern'),
        ("int Made::get(int);", "'Made::get' is a member of a class, as the library has 'Made::Made()'"),
        ("int Ended::get(int);", "as the library has 'Ended::~Ended()'"),
        ("int lambdas::h(long);", "it has, in C++, 'lambdas::h(int)'; accepted: a declaration of one of these"),
        ("int Virtual::get(int);", "as the library has 'typeinfo for Virtual': it is called with an object"),
        ("int Looks::set(int);", "as the library has 'Looks::get(int) const'"),
        ("int Looks::get(int);", "as the library has 'Looks::get(int) const'"),
        (
            "void kernel(host float*);",
            "'kernel(float*)': it is a kernel, and what has its name on the host only launches",
        ),
        ("void hidden_kernel(host float*);", "it is a kernel, and what has its name on the host only launches it; acc"),
        ("int twins(int);", "'twins(int)' is the name of 2 functions; accepted: extern \"C\" before a declaration of "),
    ],
)
def test_the_reason_for_each_function_that_is_not_found(path, declaration, message):
    with pytest.raises(AttributeError, match=f"^interop.load: {re.escape(repr(str(path)))}") as caught:
        interop.load(path, f"int pipcudemo::add(int, int); {declaration}")
    assert message in str(caught.value).replace("vtable for", "typeinfo for")
    assert f"in {declaration[:-1]!r}" in str(caught.value)


def test_functions_of_types_with_other_names_in_symbols_are_pickled(build):
    """So are the names that messages give."""
    source = """
    struct float2 { float x, y; }; struct CUstream_st;
    int f(float2*) { return 1; } int f(float*) { return 2; } int g(float*, CUstream_st*) { return 3; }
    """
    lib = interop.load(
        build(source),
        "int f(host cuComplex* x); int f(host float* x); int g(device float* x, cudaStream_t s);",
    )
    with pytest.raises(AttributeError, match=re.escape('accepted: lib["f(float2*)"], lib["f(float*)"]')):
        lib.f  # noqa: B018
    assert lib["f(float2*)"](np.zeros(1, "complex64")) == 1
    for function in (lib["f(cuComplex*)"], lib["f(float2*)"], lib["f(float*)"], lib.g):
        assert repr(pickle.loads(pickle.dumps(function))) == repr(function)


def test_inline_functions_that_the_library_has(path):
    assert interop.load(path, "inline int pipcudemo::emitted(int);").emitted(1) == 2


def test_a_name_like_that_of_a_kernel_is_none(path):
    assert interop.load(path, "void kernel_of_host(host float*);").kernel_of_host(np.zeros(1, "f4")) is None


def test_a_symbol_is_a_name_of_c(path):
    assert interop.load(path, "int _ZN9pipcudemo3addEii(int, int);")._ZN9pipcudemo3addEii(2, 3) == 5
    assert interop.load(path, 'extern "C" int _ZN5twinsEi(int);')._ZN5twinsEi(0) == 2


def test_members_that_cannot_be_told_from_functions_are_believed(path):
    """Documented: nothing in the symbols says that Plain is a class."""
    assert interop.load(path, "int Plain::get(int);").get is not None


def test_what_a_function_throws_is_raised(path):
    with pytest.raises(ValueError, match="^x is wrong$"):
        interop.load(path, "int throws(int);").throws(1)


def test_a_function_of_another_library_is_named_as_that(build, tmp_path):
    build("namespace far { int away(int x) { return x; } }", "libfar.so")
    here = build(
        "namespace far { int away(int); } int near(int x) { return far::away(x); }",
        "libnear.so",
        tmp_path / "libfar.so",
    )
    assert interop.load(here, "int near(int);").near(4) == 4
    with pytest.raises(
        AttributeError, match=r"no function 'far::away\(int\)': it is of another library, which this one"
    ):
        interop.load(here, "int far::away(int);")


def test_a_stripped_library(path, tmp_path):
    if not (strip := shutil.which("strip")):
        pytest.skip("no strip")
    stripped = tmp_path / "libstripped.so"
    subprocess.run([strip, path, "-o", stripped], check=True)
    lib = interop.load(stripped, "int pipcudemo::add(int, int);")
    assert lib.add(2, 3) == 5
    with pytest.raises(AttributeError, match="nothing in it has this name: .* stripped, a static or a hidden one"):
        interop.load(stripped, "int pipcudemo::hidden(int);")


def test_versions_and_functions_that_the_loader_chooses(build, tmp_path):
    script = tmp_path / "versions"
    script.write_text('V1 { global: extern "C++" { "n::old(int)"; "n::chosen(int)"; }; local: *; };')
    source = """
    namespace n {
    int old(int x) { return x; }
    int left_out(int x) { return x; }
    static int one(int x) { return x + 1; }
    extern "C" { typedef int (*Function)(int); __attribute__((used)) Function choose() { return one; } }
    int chosen(int) __attribute__((ifunc("choose")));
    }
    """
    own = build(source, "libversions.so", f"-Wl,--version-script={script}")
    lib = interop.load(own, "int n::old(int); int n::chosen(int);")
    assert [lib.old(3), lib.chosen(3)] == [3, 4]
    with pytest.raises(AttributeError, match=r"'n::left_out\(int\)': it is hidden"):
        interop.load(own, "int n::left_out(int);")
