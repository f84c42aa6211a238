"""`interop.tensor_map`, and kernels with tensor maps, without a GPU. On the GPU: tests/gpu/kernel."""

from __future__ import annotations

import inspect
import pickle

import pytest
from helpers import machine

import interop
from interop import _program
from interop._cuda import nvrtc

MAP = "const __grid_constant__ CUtensorMap"


def kernel(declared, maps, **options):
    return interop.kernel(f"__global__ void f({declared}) {{}}", "f", tensor_maps=maps, **options)


def kinds(made):
    return [(p.kind, p.name, p.dtype, p.written, p.ndim) for p in made._parameters]


X = interop.tensor_map("x", box=(16, 32))


def test_what_it_is():
    made = interop.tensor_map("x", box=(64, 64), swizzle=128, dtype="float16", written=True, oob_fill="nan")
    text = "interop.tensor_map('x', box=(64, 64), swizzle=128, written=True, dtype='float16', l2_promotion=128, "
    assert repr(made) == text + "oob_fill='nan')"
    assert pickle.loads(pickle.dumps(made)) == made == eval(repr(made))
    assert interop.tensor_map("x", box=64) == interop.tensor_map("x", box=[64])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"array": 1}, TypeError, "array is int; accepted: a name"),
        ({"array": "1x"}, ValueError, "array is '1x'; accepted: a name"),
        ({"box": ()}, ValueError, r"box is \(\); accepted: 1 to 5 ints, each from 1 to 256"),
        ({"box": (1,) * 6}, ValueError, "accepted: 1 to 5 ints"),
        ({"box": (257, 4)}, ValueError, r"box is \(257, 4\)"),
        ({"box": (0, 4)}, ValueError, r"box is \(0, 4\)"),
        ({"box": (True, 4)}, TypeError, r"box is \(True, 4\)"),
        ({"box": 1.5}, TypeError, r"box is 1.5; accepted: .*in the order of the array's dimensions"),
        ({"swizzle": 16}, ValueError, "swizzle is 16; accepted: 0, 32, 64, 128"),
        ({"swizzle": "128"}, TypeError, "swizzle is str"),
        ({"l2_promotion": 32}, ValueError, "l2_promotion is 32; accepted: 0, 64, 128, 256"),
        ({"written": 1}, TypeError, "written is int; accepted: True, False"),
        ({"dtype": "complex64"}, ValueError, "dtype is 'complex64'; accepted: None, bool, int8"),
        ({"dtype": float}, TypeError, "dtype is type"),
        ({"oob_fill": "ones"}, ValueError, "oob_fill is 'ones'; accepted: 'zeros', 'nan'"),
        ({"oob_fill": 0}, TypeError, "oob_fill is int"),
        (
            {"oob_fill": "nan", "dtype": "int32"},
            ValueError,
            "oob_fill is 'nan', and dtype is 'int32'; accepted",
        ),
        (
            {"box": (4, 2), "dtype": "float32"},
            ValueError,
            r"rows have 8 bytes; accepted: rows of a multiple of 16",
        ),
        (
            {"box": (4, 64), "dtype": "float32", "swizzle": 128},
            ValueError,
            "256 bytes; .*up to 128 with swizzle",
        ),
        ({"box": (4, 64), "dtype": "float8_e4m3fn", "swizzle": 32}, ValueError, "64 bytes; .*up to 32 with swizzle=32"),
    ],
)
def test_what_it_refuses(given, error, message):
    given = {"array": "x", "box": (4, 4), **given}
    with pytest.raises(error, match=f"^interop.tensor_map: .*{message}"):
        interop.tensor_map(given.pop("array"), **given)


# ---- kernels ----


def test_the_array_stands_in_the_place_of_its_map():
    made = kernel(f"int n, {MAP} m, float* y", {"m": X})
    assert kinds(made)[1] == ("tensor_map", "x", "", False, 2)
    assert str(inspect.signature(made)).startswith("(n, x, y, *, grid=None")
    assert "dependent_launch=None" in str(inspect.signature(made))
    typed = kernel(f"{MAP} m", {"m": interop.tensor_map("y", box=16, dtype="float32", written=True)})
    assert kinds(typed) == [("tensor_map", "y", "float32", True, 1)]


def test_a_map_of_an_array_that_is_an_argument():
    """A pointer, before or behind; a view; or another map."""
    for declared in (f"{MAP} m, const float* x", f"const float* x, {MAP} m"):
        made = kernel(declared, {"m": X})
        assert str(inspect.signature(made)).startswith("(x, *, ")
        assert sorted(kinds(made)) == [("pointer", "x", "float32", False, 2), ("shared_map", "m", "", False, 2)]
    made = kernel(f"interop::View<const float, 2> x, {MAP} m", {"m": X._replace(written=True)})
    assert kinds(made)[0] == ("view", "x", "float32", True, 2)
    two = {"load": X, "store": interop.tensor_map("x", box=(8, 64), written=True, dtype="float16")}
    made = kernel(f"{MAP} load, {MAP} store", two)
    assert kinds(made) == [("tensor_map", "x", "float16", True, 2), ("shared_map", "store", "", False, 2)]
    assert made._parameters[1].form == (0, 0, 128, 0, 8, 64)
    made = kernel(f"void* x, {MAP} m", {"m": X._replace(dtype="int8")})
    assert kinds(made)[0] == ("pointer", "x", "int8", True, 2)


@pytest.mark.parametrize(
    ("declared", "maps", "message"),
    [
        (f"{MAP} m", {}, r"'m' is a CUtensorMap, and nothing says of which array; accepted: .*tensor_maps=\{'m': "),
        ("float* x", {"m": X}, "'m' is no parameter of the type CUtensorMap; accepted: there is none"),
        (f"{MAP} m, float* y", {"m": X, "n": X}, "'n' is no parameter of the type CUtensorMap; accepted: m"),
        (
            "const CUtensorMap m",
            {"m": X},
            "'m' is a CUtensorMap that has no address where TMA .*: const __grid_con",
        ),
        ("__grid_constant__ CUtensorMap m", {"m": X}, "accepted: const __grid_constant__ CUtensorMap m"),
        ("const CUtensorMap* m", {"m": X}, "the elements of 'm' are 'const CUtensorMap'; accepted"),
        (f"{MAP} m, int x, float* y", {"m": X}, "'x' is a number; accepted: the name of an array"),
        (f"{MAP} m, interop::View<float, 3> x", {"m": X}, "the box has 2 sizes, and x has 3 dimensions"),
        (f"{MAP} m, float* x", {"m": X._replace(dtype="int32")}, "dtype is 'int32', and x is float32; accepted: that"),
        (f"{MAP} m", {"m": X._replace(array="stream")}, "the parameter 'stream' has the name of a keyword"),
        (
            f"{MAP} m, {MAP} n, {MAP} k",
            {"m": X, "n": X, "k": X._replace(array="n")},
            "two parameters are called 'n' then",
        ),
    ],
)
def test_what_does_not_fit(declared, maps, message):
    with pytest.raises(ValueError, match=rf"^interop.kernel\('f'\): .*{message}"):
        kernel(declared, maps)


@pytest.mark.parametrize("maps", [[], "m", {"m": (16, 32)}, {1: X}, X])
def test_what_is_no_mapping_of_maps(maps):
    with pytest.raises(TypeError, match=r"interop.kernel: tensor_maps (is|has) .*interop.tensor_map\(...\)"):
        kernel(f"{MAP} m", maps)


def test_reads_and_written_agree():
    with pytest.raises(ValueError, match="written is True, and reads= says that x is only read"):
        kernel(f"float* x, {MAP} m", {"m": X._replace(written=True)}, reads=("x",))
    made = kernel(f"float* x, {MAP} m", {"m": X}, reads=("x",))
    assert not made._parameters[0].written
    with pytest.raises(ValueError, match="'m' is a tensor map, of which interop.tensor_map.*written=.*says it"):
        kernel(f"float* x, {MAP} m", {"m": X}, reads=("m",))


def test_results_have_a_dtype():
    maps = {"m": X, "n": interop.tensor_map("y", box=(16, 32), written=True)}
    with pytest.raises(ValueError, match="returning: y is no pointer to elements that are written; accepted: none"):
        kernel(f"{MAP} m, {MAP} n", maps).returning(y="x")
    made = kernel(f"{MAP} m, {MAP} n", {**maps, "n": maps["n"]._replace(dtype="float32")}).returning(y="x")
    assert str(inspect.signature(made)).startswith("(x, *, y=None, grid")


def test_pickles():
    made = kernel(f"const float* x, {MAP} m", {"m": X}, grid=4, dependent_launch=True)
    again = pickle.loads(pickle.dumps(made))
    assert again.__reduce__() == made.__reduce__()
    assert kinds(again) == kinds(made)


def test_images_say_their_sizes():
    ptx = """.version 8.0
.target sm_90
.address_size 64
.entry _Z1fPf14CUtensorMap_st(.param .u64 a, .param .align 64 .b8 b[128]) { ret; }"""
    made = interop.kernel(ptx, "f", tensor_maps={"arg1": interop.tensor_map("x", box=16)})
    assert kinds(made) == [("pointer", "arg0", "float32", True, 0), ("tensor_map", "x", "", False, 1)]
    with pytest.raises(ValueError, match="'arg1' is a CUtensorMap, and nothing says of which array"):
        interop.kernel(ptx, "f")
    with pytest.raises(ValueError, match="arg0 is declared with 128 bytes, and is 8 bytes"):
        interop.kernel(
            ptx, "f", signature=f"{MAP} arg0, {MAP} arg1", tensor_maps={"arg0": X, "arg1": X._replace(array="y")}
        )


def test_a_first_header_of_cuda_for_nvrtc():
    """CUDA's own <cuda.h> declares functions of the host, which NVRTC refuses."""
    machine.need("nvrtc")
    machine.need("cuda_core")
    source = f"""#include <cuda.h>
    static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) >= 64, "");
    __global__ void f({MAP} m, cuuint64_t* y) {{ *y = reinterpret_cast<cuuint64_t>(&m); }}"""
    options = _program.compiler_options(None, "f", {})
    nvrtc.compile_source("a test", source, ["f"], options, "sm_90")


def test_the_header_of_cuda_itself_where_the_caller_has_made_it_readable(tmp_path):
    machine.need_libcu()
    (tmp_path / "stdlib.h").touch()
    source = f"""#include <cuda.h>
    static_assert(CUDA_VERSION >= 12000, "");
    __global__ void f({MAP} m, int* y) {{ *y = CU_TENSOR_MAP_SWIZZLE_128B; }}"""
    given = {"include_path": str(tmp_path), "device_as_default_execution_space": True}
    nvrtc.compile_source("a test", source, ["f"], _program.compiler_options(None, "f", given), "sm_90")
