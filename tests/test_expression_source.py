"""The CUDA source of expressions, through NVRTC, which needs no GPU; and the cache of what it compiles."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np
import pytest
from helpers import comparisons, elements, expressions, machine
from helpers.kernels import UnloadedLibrary

import interop
from interop._cuda import kept
from interop._cuda import nvrtc as compiler
from interop._expressions import source
from interop._expressions.parser import parse
from interop._expressions.typed import Split

ARCHITECTURE = "sm_90"


def typed(text, dtypes, scalars=()):
    """An expression for arrays of `dtypes` (by parameter), of NumPy; the other parameters are the scalars."""
    parsed = parse(text)
    parameters = parsed.parameters
    names = [name for name in parameters if name not in dict(scalars)]
    split = Split("f", parsed, frozenset(dict(scalars)))
    arrays = [(dtypes if isinstance(dtypes, str) else dtypes[name], False) for name in names]
    return split.type("numpy", arrays, split.evaluate(*(dict(scalars).get(name) for name in parameters)))


def compiled(expression, *, passed=None, walk="Rows", tile=0, vector=4, unroll=2, architecture=ARCHITECTURE):
    passed = passed or [False] * len(expression.arrays)
    text = source.source(expression, passed, "Tiles" if tile else walk, tile, vector, unroll)
    image, names = compiler.compile_source("f", text, ["interop_expression"], source.OPTIONS, architecture)
    assert image.startswith(b"\x7fELF")
    assert names == ["interop_expression"]
    assert b".text.interop_expression" in image
    return image


def vector_of(dtype):
    return max(16 // elements.dtype_of(dtype).itemsize, 1)


# One expression for each dtype, of all that serves it, so that all of the generator is compiled and little time goes.
ARITHMETIC = {
    "b": "where(x & y | ~z ^ True, minimum(x, y) * z + x, maximum(x, True)) == (isnan(x) | logical_not(y))",
    "iu": "(((x + y * 3 - z // y % 7) ** z ** 2 & x | y ^ ~z) << 2 >> y) + abs(-x) + sign(x) + round(x) + (x < y) * z",
    "f": "where(x < y, x * y + z / 2.5 - x // y % z, -abs(x)) ** z + minimum(x, sqrt(y)) + maximum(sin(z), +x) ** 2",
    "c": "where(x == y, x * y + z / 2.5j - real(x), -conj(x)) ** z + abs(y) + square(imag(x)) + (x != 0)",
}


@pytest.mark.parametrize("dtype", elements.DTYPES)
@pytest.mark.parametrize("walk", ["Flat", "Rows", "Tiles"])
def test_all_operations_of_a_dtype_compile(nvrtc, dtype, walk):
    text = next(text for kinds, text in ARITHMETIC.items() if elements.kind_of(dtype) in kinds)
    if dtype.startswith("uint"):
        text = text.replace("abs(-x)", "x")
    vector = vector_of(dtype)
    if walk == "Tiles":
        compiled(typed(text, dtype), tile=64 if vector >= 4 else 32, vector=min(vector, 4))
    else:
        compiled(typed(text, dtype), walk=walk, vector=vector, unroll=1)


@pytest.mark.parametrize("dtype", elements.FLOATS)
def test_all_functions_of_floats_compile(nvrtc, dtype):
    compiled(typed(" + ".join(expressions.FUNCTIONS), dtype), vector=1, unroll=1)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_keeps_complex_numbers_compiles(nvrtc, dtype):
    for text in ("x", "+x", "conj(x)", "real(x)", "imag(x)", "square(x)"):
        compiled(typed(text, dtype), vector=1, unroll=1)


@pytest.mark.parametrize("dtype", elements.DTYPES)
def test_all_exact_functions_compile(nvrtc, dtype):
    texts = [text for text, served in expressions.TEST_CASES if served == dtype]
    compiled(typed(" + ".join(f"where({text}, 1, 0)" for text in texts), dtype), vector=vector_of(dtype), unroll=1)


@pytest.mark.parametrize("text", ["x + y", "x * y < 3"])
def test_mixed_dtypes_compile(nvrtc, text):
    for first, second in [("int8", "float16"), ("bfloat16", "float64"), ("bool", "complex64"), ("uint64", "int64")]:
        if "<" in text and "complex64" in (first, second):
            continue
        compiled(typed(text, {"x": first, "y": second}), vector=2, unroll=1)
        compiled(typed(text, {"x": first, "y": second}), tile=32, vector=2)


@pytest.mark.parametrize("symbol", ["==", "!=", "<", "<=", ">", ">="])
def test_comparisons_of_all_pairs_of_integers_compile(nvrtc, symbol):
    """All of them in one kernel; those of uint64 beside a signed dtype keep the sign."""
    names = {dtype: f"x{place}" for place, dtype in enumerate(comparisons.DTYPES)}
    tests = [f"where({names[a]} {symbol} {names[b]}, 1, 0)" for a, b in itertools.product(names, repeat=2)]
    expression = typed(" + ".join(tests), {name: dtype for dtype, name in names.items()})
    assert sum("WithSigns" in line for line in source_lines(expression)) == 8
    compiled(expression, vector=1, unroll=1)


def source_lines(expression):
    text = source.source(expression, [False] * len(expression.arrays), "Rows", 0, 1, 1)
    return text[text.index("struct Expression") :].splitlines()


def test_signs_follow_their_operands():
    def line(text):
        return next(
            x.split(" = ")[1] for x in source_lines(typed(text, {"u": "uint64", "s": "int8"})) if "WithSigns" in x
        )

    wide = "as<unsigned long long>"
    assert line("u < s") == f"WithSigns<Less>{{false, true}}(x0, {wide}(x1));"
    assert line("u > s") == f"WithSigns<Greater>{{false, true}}(x0, {wide}(x1));"
    assert line("s >= u") == f"WithSigns<GreaterEqual>{{true, false}}({wide}(x0), x1);"


@pytest.mark.parametrize(
    ("text", "dtype", "written"),
    [
        ("x < 300", "int8", "LessEqual{}(x0, static_cast<signed char>(0x7full))"),
        ("x == 300", "int8", "Greater{}(x0, static_cast<signed char>(0x7full))"),
        ("-1 < x", "uint64", "LessEqual{}(static_cast<unsigned long long>(0x0ull), x0)"),
        ("x != 2", "bool", "LessEqual{}(x0, true)"),
        ("x < 127", "int8", "Less{}(x0, static_cast<signed char>(0x7full))"),
    ],
)
def test_literals_that_a_dtype_cannot_hold(text, dtype, written):
    assert f"= {written};" in "".join(source_lines(typed(text, dtype)))


def test_scalars_and_0d_arrays_compile(nvrtc):
    expression = typed("x * a + y * (b + 1) + 2", {"x": "float16", "y": "int32"}, {"a": 2.5, "b": 1}.items())
    assert expression.values
    compiled(expression, passed=[False, True])


def test_many_arrays_compile(nvrtc):
    compiled(typed(" + ".join(f"x{k}" for k in range(16)), "float32"), unroll=1)
    compiled(typed(" + ".join(f"x{k}" for k in range(16)), "float32"), tile=32, unroll=1)
    compiled(typed(" + ".join(f"x{k}" for k in range(16)), "complex128"), tile=32, vector=1)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_89", "sm_100"])
def test_other_architectures_compile(nvrtc, architecture):
    compiled(typed("x * y + a", "bfloat16"), vector=8, unroll=1, architecture=architecture)


def test_what_does_not_compile_is_a_cuda_error(nvrtc):
    with pytest.raises(interop.CudaError, match=r"(?s)f: compiling a kernel for sm_90 by NVRTC: .*no_such_type"):
        compiler.compile_source("f", "no_such_type x;", ["x"], {}, ARCHITECTURE)


def test_names_of_templates_are_found(nvrtc):
    source = "template <typename T> __global__ void scale(T* x) { *x *= 2; }"
    _, names = compiler.compile_source("f", source, ["scale<float>", "scale<double>"], {}, ARCHITECTURE)
    assert all(name.startswith("_Z") for name in names)
    assert len(set(names)) == 2


# ---- the source ----


def test_another_scalar_gives_the_same_source():
    first, second = (typed("x * a", "float32", {"a": value}.items()) for value in (2.0, 3.0))
    sources = [source.source(x, [False], "Rows", 0, 4, 2) for x in (first, second)]
    assert sources[0] == sources[1]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("float32", "0.1", "__uint_as_float(0x3dcccccdu)"),
        ("float64", "1e400", "__longlong_as_double(static_cast<long long>(0x7ff0000000000000ull))"),
        ("float16", "0.1", "Half{0x2e66}"),
        ("bfloat16", "1.0", "BFloat16{0x3f80}"),
        ("int8", "-1", "static_cast<signed char>(0xffull)"),
        ("uint64", "3", "static_cast<unsigned long long>(0x3ull)"),
        ("complex64", "1j", "Complex<float>{__uint_as_float(0x0u), __uint_as_float(0x3f800000u)}"),
    ],
)
def test_literals_are_written_by_their_bits(dtype, value, text):
    assert f"Add{{}}(x0, {text})" in source.source(typed(f"x + {value}", dtype), [False], "Rows", 0, 1, 1)


def test_the_source_is_linear_in_the_length():
    sizes = []
    for count in (100, 200):
        terms = [f"(x * {k} + 1.5)" for k in range(1000, 1000 + count)]
        while len(terms) > 1:
            terms = [f"({' - '.join(terms[k : k + 2])})" for k in range(0, len(terms), 2)]
        sizes.append(len(source.source(typed(terms[0], "float32"), [False], "Rows", 0, 4, 1)))
    fixed = len(source.source(typed("x", "float32"), [False], "Rows", 0, 4, 1))
    assert sizes[1] - fixed <= 2.1 * (sizes[0] - fixed)


# ---- the cache ----


@pytest.fixture
def loader(nvrtc, monkeypatch, tmp_path):
    """`compiler.load` over an empty folder, with a count of what was compiled; nothing goes to a GPU."""
    counts = {"compiled": 0}
    compile_source = compiler.compile_source

    def counting(*arguments):
        counts["compiled"] += 1
        return compile_source(*arguments)

    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "compile_source", counting)
    monkeypatch.setattr(kept, "_loaded", {})
    monkeypatch.setattr(kept, "_libraries", {})
    monkeypatch.setattr(interop._core.LoadedLibrary, "load", UnloadedLibrary)

    def load(source="__global__ void f() {}", names=("f",), architecture=ARCHITECTURE, forget=True, **options):
        if forget:
            kept._loaded.clear()  # as in another process
            kept._libraries.clear()
        return compiler.load("f", source, names, options, architecture)

    load.counts = counts
    return load


def test_a_kernel_is_compiled_once_for_all_processes(loader, tmp_path):
    first = loader()
    assert loader(forget=False) is first
    assert loader() == first
    assert loader.counts["compiled"] == 1
    assert list((tmp_path / "cache").rglob("*"))


def test_what_differs_is_compiled_anew(loader):
    loader()
    loader(source="__global__ void f() { __syncthreads(); }")
    loader(architecture="sm_80")
    loader(fma=False)
    assert loader.counts["compiled"] == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: data[:-5] + bytes(255 - byte for byte in data[-5:]),
        lambda data: b"1\n" + data,
        lambda data: b"{}" + data[data.index(b"\n") :],
        lambda data: b"[" * 100_000,
        lambda data: b"",
    ],
    ids=["cut", "other bytes", "a number", "no entries", "deep", "empty"],
)
def test_broken_files_are_written_anew(loader, tmp_path, damage):
    first = loader()
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.write_bytes(damage(file.read_bytes()))
    assert loader() == first
    assert loader() == first
    assert loader.counts["compiled"] == 2


def test_a_folder_that_cannot_be_made_is_no_error(loader, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert loader() == loader()
    assert loader.counts["compiled"] == 2


def mode_of(path):
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_the_folder_is_this_users_alone(monkeypatch, tmp_path):
    machine.need("cuda_core")
    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(folder))
    before = os.umask(0o002)
    try:
        kept.write_image(kept.open_cache(), "key", b"image", ["name"])
    finally:
        os.umask(before)
    assert (mode_of(folder), mode_of(folder / "entries")) == (0o700, 0o700)
    for part in (folder, folder / "entries"):
        part.chmod(0o777)
        assert kept.open_cache() is None
        part.chmod(0o775)  # as older versions made it
        assert kept.read_image(kept.open_cache(), "key") == (b"image", ["name"])
    assert (mode_of(folder), mode_of(folder / "entries")) == (0o755, 0o700)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs another user's file")
def test_a_folder_of_a_group_with_anothers_file_is_none(monkeypatch, tmp_path):
    machine.need("cuda_core")
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    kept.write_image(kept.open_cache(), "key", b"image", ["name"])
    (file,) = (file for file in (tmp_path / "cache" / "entries").rglob("*") if file.is_file())
    os.chown(file, 1, 1)
    for part in ("cache", "cache/entries"):
        (tmp_path / part).chmod(0o775)
        assert kept.open_cache() is None
        (tmp_path / part).chmod(0o700)


def test_the_folder_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("INTEROP_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept.cache_folder() == tmp_path / "interop"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept.cache_folder() == tmp_path / ".cache/interop"


def test_without_cuda_core_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(
        interop.CudaError, match=r"needs cuda.core, .*pip install 'interop-dlpack\[cu13\]' \(or \[cu12\]\)"
    ):
        compiler.load("f", "", ["f"], {}, ARCHITECTURE)


def test_host_calls_need_no_compiler(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert interop.elementwise("x * 7 + 1")(np.arange(2)).tolist() == [1, 8]
