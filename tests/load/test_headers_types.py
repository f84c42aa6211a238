"""`interop.load(header=)`: the types that a header defines."""

from __future__ import annotations

import re

import numpy as np
import pytest

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")


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
        "1 << 99",
        "1 << 32",
        "2 << 31",
        "0x7fffffff + 1",
        "2147483648u * -1L * 0x7fffffffffffffff",
        "1ulu",
        "18446744073709551615",
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


VALUES = [
    *("1 << 31", "~0LU", "~0xFFu", "0xFFFFFFFFu+1", "~0xF0000000", "-1u", "-1", "0x80000000, B = ~A", "1u - 2 >> 1"),
    *("0x80000000, B", "0x7fffffff, B, C", "0xffffffff, B = A + 1", "2147483648", "-2147483648", "0xFFFFFFFFu * 2"),
    *("-1 >> 1", "~0ull >> 4", "-1 + 0u", "-1L + 0u", "-1L + 0ul", "0xffffffffL + 1", "~0, B = A & 255"),
    *("1 << 31 >> 31", "1L << 31", "1u << 31, B = A << 1", "'a' - 'b'", "::Before::FIVE - 6", "FIVE | 1 << 31"),
    *("n::SIX - 7", "n :: Named :: SIX", "-1, B = 0xffffffff, C = A - 1", "BIG - 1", "7, B = E::A"),
]
BEFORE = """enum Before { FIVE = 5 }; enum Large { BIG = 0x80000000 }; enum { SIX = 66 };
namespace n { enum Named { SIX = 6 }; }
"""


def test_enums_have_the_values_that_compilers_give_them(load):
    """Also in text, and in arithmetic of several types."""
    text = BEFORE + "".join(f"namespace e{i} {{ enum E {{ A = {x} }}; }}\n" for i, x in enumerate(VALUES))
    last = [max(letter for letter in "ABC" if letter == "A" or f", {letter}" in x) for x in VALUES]
    functions = [
        f"e{i}::E f{i}({parameter});\nbool s{i}({parameter});\nint z{i}({parameter});\n"
        for i in range(len(VALUES))
        for parameter in [f"e{i}::E"]
    ]
    source = "#include <type_traits>\n" + text
    for i, letter in enumerate(last):
        source += f"""e{i}::E f{i}(e{i}::E) {{ return e{i}::{letter}; }} int z{i}(e{i}::E) {{ return sizeof(e{i}::E); }}
        bool s{i}(e{i}::E) {{ return std::is_signed<std::underlying_type<e{i}::E>::type>::value; }}"""
    lib = load(source, text + "".join(functions))
    assert not lib.refused
    for i, (x, letter) in enumerate(zip(VALUES, last, strict=True)):
        dtype = np.dtype(f"{'' if lib[f's{i}'](0) else 'u'}int{8 * lib[f'z{i}'](0)}")
        definition = lib._rules.names.find(f"e{i}::E", ())[0]
        assert (definition.dtype, definition.unusable) == (dtype.name, ""), x
        value = lib[f"f{i}"](0)
        assert definition.values[value] in (letter, *"ABC"), x
    names = interop.load(lib._library.path, "enum e0::E { A = 1 << 31 }; int z0(e0::E);")._rules.names
    assert names.find("e0::E", ())[0] == ("e0::E", "int32", {-(2**31): "A"}, "")


@pytest.mark.parametrize(
    "text",
    [
        "enum E { A = 5u, B = A - 6 };",
        "enum E { A = 0ull, B = A - 1 };",
        "enum { F = 1, G = 0x80000000 }; enum E { A = F - 2 };",
    ],
)
def test_a_value_that_c_and_cxx_make_another_of_is_refused(load, text):
    lib = load("int f(int) { return 0; }", f"{text}\nint f(E);")
    assert "'E' is an enum of which the value" in lib.refused["f"]


def test_values_behind_one_that_is_not_understood_are_not_counted(load):
    text = 'enum E : int { A = 1, B = sizeof(int), C, D = 9 };\nextern "C" E f(int);'
    lib = load('extern "C" int f(int x) { return x; }', text, status={"E": 0})
    with pytest.raises(RuntimeError, match="returned 2, a E"):
        lib.f(2)
    with pytest.raises(RuntimeError, match=r"returned 9 \(D\), a E"):
        lib.f(9)


OPENED = "enum { N = 1 }; namespace n { namespace m { enum { N = -1 }; } USING; enum E { A = N }; } using n::E;"


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("enum { N = -1 }; namespace n { enum { N = 1 }; } enum E { A = N };", "int32"),
        ("enum { N = 1 }; namespace n { enum { N = -1 }; } enum E { A = N };", "uint32"),
        ("enum { N = 1 }; namespace n { enum { N = -1 }; enum E { A = N }; } using n::E;", "int32"),
        ("enum { N = 1 }; enum class S { N = -1 }; enum E { A = N };", "uint32"),
        ("enum { N = 1 }; namespace n { enum { N = sizeof(int) }; enum E { A = N }; } using n::E;", ""),
        ("enum { N = 1 }; namespace n { const int N = -1; enum E { A = N }; } using n::E;", ""),
        (OPENED.replace("USING", "using m::N"), "int32"),
        (OPENED.replace("USING", "using namespace m"), ""),
    ],
)
def test_enumerators_are_looked_up_in_their_namespaces(load, text, dtype):
    lib = load('extern "C" int f(int) { return 0; }', f'{text}\nextern "C" int f(E);')
    if dtype:
        assert lib.f._declaration.parameters[0].dtype == dtype
    else:
        assert "the value 'N' of 'A' is not understood" in lib.refused["f"]


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


@pytest.mark.parametrize(
    "text",
    [
        "typedef float T; namespace n { int f(T); typedef int T; }",
        "typedef float T; namespace n { typedef T U; typedef int T; int f(U); }",
        "namespace n { int f(T); } typedef float T;",
        "typedef float T; namespace n { namespace m { typedef int T; } using namespace m; int f(T); }",
        "typedef float T; namespace n { using namespace m; typedef T U; int f(U); }",
        "typedef float T; namespace n { namespace m { typedef int X; } using m::T; int f(T); }",
    ],
)
def test_a_name_is_not_taken_for_another_of_a_namespace_around_it(load, text):
    source = "namespace n { int f(float) { return 1; } int f(int) { return 2; } }"
    lib = load(source, text)
    assert set(lib.refused) == {"n::f"}
    if "using m::T" not in text:
        assert re.search(
            "a type's name is defined behind it, or again|"
            "is a type (whose name a using directive may hide|of which a name is defined again)",
            lib.refused["n::f"],
        )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("typedef float T; namespace n { namespace m { typedef int T; } using m::T; int f(T); }", 2),
        ("typedef int T; namespace n { typedef float T; int f(::T); }", 2),
        ("namespace a { typedef int T; } using namespace a; namespace n { using a::T; using a::T; int f(T); }", 2),
        ("typedef float T; using ::T; namespace n { namespace a {} using namespace a; using ::T; int f(T); }", 1),
        ("namespace n { using std::int32_t; namespace a {} using namespace a; int f(int32_t); }", 2),
        ("namespace n { typedef float T; int f(T); } typedef int T;", 1),
        ("typedef float T; namespace m { using namespace n; } namespace n { int f(T); }", 1),
    ],
)
def test_names_of_using_declarations_are_known(load, text, result):
    lib = load("namespace n { int f(float) { return 1; } int f(int) { return 2; } }", text)
    assert (lib.f(0), dict(lib.refused)) == (result, {})


def test_a_struct_may_be_defined_behind_its_functions(load):
    text = "struct S; typedef struct R* R_p; S* f(); int g(S*); R_p h(); struct S { int x; }; struct R { int x; };"
    lib = load(
        f"{text} S s; S* f() {{ return &s; }} int g(S* x) {{ return x == &s; }} R r; R_p h() {{ return &r; }}", text
    )
    assert lib.g(lib.f()) == 1
    assert lib.h().type == "R*"


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


@pytest.mark.parametrize(
    ("types", "parameter"),
    [
        ("typedef float v4 [[gnu::vector_size(16)]];", "v4"),
        ("using v4 [[ gnu::vector_size(16) ]] = float;", "v4"),
        ("typedef int wide [[using gnu: mode(DI)]];", "wide"),
        ("typedef float v4 __attribute__((ext_vector_type(4)));", "v4"),
        ("typedef __attribute__((neon_vector_type(4))) float v4;", "v4"),
    ],
)
def test_attributes_of_every_spelling_that_change_a_type_are_seen(load, types, parameter):
    lib = load("int f(float) { return 0; }", f"{types}\nint f({parameter} x);")
    assert "'x' is a type that an attribute changes" in lib.refused["f"]


@pytest.mark.parametrize(
    "attribute",
    [
        "[[gnu::ms_abi]]",
        "[ [gnu::ms_abi] ]",
        *(f"__attribute__(({x}))" for x in ("vectorcall", "regcall", "swiftcall", "preserve_most", 'pcs("aapcs")')),
    ],
)
def test_attributes_of_every_spelling_that_change_a_call_are_seen(load, attribute):
    lib = load("int f(int) { return 0; }", f"{attribute} int f(int);")
    assert "an attribute or asm changes how it is called" in lib.refused["f"]


def test_attributes_that_change_nothing_are_passed_over(load):
    lib = load(
        "int f(int x) { return x; } int g(int x) { return x + 1; }",
        "[[nodiscard, gnu::cold]] int f [[gnu::noinline]] (int x);\nint g([[maybe_unused]] int x) [[gnu::pure]];",
    )
    assert (lib.f(2), lib.g(2)) == (2, 3)


@pytest.mark.parametrize("enum", ["enum E { A } __attribute__((packed));", "enum [[gnu::packed]] E { A };"])
def test_an_enum_whose_size_an_attribute_changes_is_refused(load, enum):
    lib = load("int f(int) { return 0; }", f"{enum}\nint f(E);")
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


@pytest.mark.parametrize(
    "condition",
    [
        "UINT_MAX == 0xffffffffUL",
        "LONG_MAX > 2147483647L && ULONG_MAX == 0xffffffffffffffffull",
        "INT_MIN < 0 && SIZE_MAX > UINT32_MAX && CHAR_BIT == 8 && CHAR_MAX == 127",
        "__SIZEOF_LONG__ == 8 && __SIZEOF_INT__ == 4 && __SIZEOF_LONG_DOUBLE__ > 8",
        "__INT_MAX__ == 0x7fffffff && __LONG_LONG_WIDTH__ == 64 && __UINT64_MAX__ > 0 && !defined(__UINT_MAX__)",
        "defined(__STDC__) && __WORDSIZE == 64",
        "true && !false",
        "(1ull<<40) > 5",
        "MILLION == 1000000 && 0x1'0 == 16 && 0b1'1 == 3 && 010 == 8",
        "'1' == 49 && -1 < 0LL && -1 > 0llu",
    ],
)
@pytest.mark.parametrize("found", [False, True])
def test_conditions_are_those_of_the_compiler(load, condition, found):
    """Whether the files of the compiler are found, or not."""
    text = f"#define MILLION 1'000'000\n#if {condition}\ntypedef int t;\n#else\ntypedef short t;\n#endif\n"
    check = 'static_assert(sizeof(t) == sizeof(int), "");\n'
    files = "#include <limits.h>\n#include <stdint.h>\n"
    lib = load(
        f"{files}{text}{check}int f(t x) {{ return x; }}",
        f"{files}{text}int f(t x);",
        include_path=["/usr/include"] if found else [],
    )
    assert lib.f(70000) == 70000


@pytest.mark.parametrize("is_included", [False, True])
def test_a_file_may_begin_with_a_mark_of_unicode(load, is_included):
    types = "\ufeff#define T int\ntypedef T number;\n"
    text = '\ufeff#include "types.h"\n' if is_included else types
    lib = load("int f(int x) { return x; }", f"{text}int f(number x);", {"types.h": types})
    assert lib.f(3) == 3


def test_words_of_c_that_say_nothing_here_are_passed_over(load):
    lib = load(
        'extern "C" int f(int x) { return x; } extern "C" void g(int) {}',
        'extern "C" { int f(register int x); _Noreturn void g(register int); }',
    )
    assert lib.f(3) == 3
    assert not lib.refused


@pytest.mark.parametrize(
    "types",
    [
        "typedef struct pool pool;",
        "struct pool; typedef struct pool pool;",
        "typedef struct pool pool; struct pool { int v; };",
        "typedef struct pool { int v; } pool;",
        "struct pool; typedef struct ::pool pool;",
        "typedef struct pool pool; typedef pool pool;",
        "typedef struct pool pool; namespace n { typedef pool pool; }",
    ],
)
def test_a_typedef_may_have_the_name_of_its_struct(load, types):
    source = "struct pool { int v; }; static pool p{5}; pool* made() { return &p; } int value(const pool* x) "
    lib = load(source + "{ return x->v; }", f"{types}\npool* made(); int value(const pool* x);")
    assert lib.value(lib.made()) == 5


def test_typedefs_of_one_name_in_two_namespaces(load):
    header = """
    struct pool; namespace n { struct pool; typedef struct pool pool; pool* made(); int value(pool*); }
    typedef int I; namespace n { typedef I I; I twice(I); }
    namespace m { typedef struct color { int v; } color; typedef ::I J; J thrice(J); }
    int of_outer(pool*);
    """
    source = """
    struct pool { int v; }; namespace n { struct pool { int v; }; static pool p{5}; pool* made() { return &p; }
    int value(pool* x) { return x->v; } int twice(int x) { return 2 * x; } }
    namespace m { int thrice(int x) { return 3 * x; } } int of_outer(pool*) { return 0; }
    """
    lib = load(source, header)
    assert not lib.refused
    assert (lib.value(lib.made()), lib.twice(2), lib.thrice(2)) == (5, 4, 6)
    with pytest.raises(TypeError, match="pool"):
        lib.of_outer(lib.made())


@pytest.mark.parametrize(
    "type_name",
    [
        *("double complex", "long double complex", "double _Complex", "float imaginary", "double complex[3]"),
        *("int _Atomic", "unsigned __int128"),
    ],
)
def test_words_of_types_are_no_names(load, type_name):
    """As a number of another kind would be passed in another way."""
    lib = load('extern "C" int f(double) { return 0; }', f'extern "C" int f({type_name});')
    assert f"'{type_name.removesuffix('[3]')}" in lib.refused["f"]
    if "[" not in type_name:
        with pytest.raises(ValueError, match=f"the type of 'arg0' is '{type_name}'"):
            interop.load(lib._library.path, f'extern "C" int f({type_name});')
        with pytest.raises(ValueError, match=f"the result is {type_name};"):
            interop.load(lib._library.path, f'extern "C" {type_name} f(double);')


def test_words_of_types_behind_others_are_names(load):
    source = (
        "typedef int my_int; int f(my_int complex) { return complex; } int g(const float* complex) { return *complex; }"
    )
    lib = load(source, "typedef int my_int; int f(my_int complex); int g(const float* complex);", memory="host")
    assert (lib.f(complex=3), lib.g(complex=np.ones(1, "float32"))) == (3, 1)


def test_functions_of_namespaces_without_names_are_refused(load):
    """Their symbols are those of each file that includes them, and one of the namespace outside may be another."""
    header = """
    namespace n { namespace { enum E { A }; int f(int); extern "C" int g(int); namespace deep { int h(int); } } }
    namespace n { int i(E); }
    """
    source = """
    namespace n { int f(int) { return 1; } namespace deep { int h(int) { return 1; } } }
    extern "C" int g(int) { return 1; }
    """
    lib = load(source, header)
    for name in ("n::f", "n::g", "n::deep::h"):
        assert "it is in a namespace without a name, and has no symbol outside its file" in lib.refused[name]


def test_typedefs_that_go_round_end(load):
    lib = load(
        "int f(int) { return 0; }",
        "typedef b a; typedef a b; typedef half __half; typedef __half half;\nint f(a);\nint g(half);",
    )
    assert set(lib.refused) == {"f", "g"}
