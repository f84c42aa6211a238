"""`interop.elementwise` of device arrays: kernels compiled at run time, with the bits of the chain of operations."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from helpers import device, elements, expressions, graphs, libraries, machine, products

import interop

SHAPES = ((1003, 37), (37,), (1003, 1))


@pytest.fixture(autouse=True)
def _compiler():
    machine.need("nvrtc")
    machine.need("cuda_core")


def to_numpy(tensor):
    return libraries.by_name("torch", "cuda").to_numpy(tensor)


def expect_same(result, answer):
    """The same bits, but for those of NaN."""
    result, answer = to_numpy(result), to_numpy(answer)
    assert (result.dtype, result.shape) == (answer.dtype, answer.shape)
    if result.dtype.kind in "biu":
        assert np.array_equal(result, answer)
    else:
        assert np.array_equal(result.astype("complex128"), answer.astype("complex128"), equal_nan=True)


# ---- values ----


@pytest.mark.parametrize(("text", "dtype"), expressions.CASES)
def test_chains(torch, text, dtype):
    library = libraries.by_name("torch", "cuda")
    x, y, z = (library.make(elements.draw(shape, dtype, place)) for place, shape in enumerate(SHAPES))
    try:
        answer = expressions.chain(text, x, y, z)
    except TypeError:
        pytest.skip("torch has no common dtype of these")
    expect_same(expressions.call(text, x, y, z), answer)


@pytest.mark.parametrize("dtype", elements.FLOATS)
@pytest.mark.parametrize("text", expressions.FUNCTIONS)
def test_functions(torch, text, dtype):
    library = libraries.by_name("torch", "cuda")
    x = np.concatenate([np.linspace(-0.99, 0.99, 41), [0.0, -0.0]]).astype(elements.dtype_of(dtype))
    with np.errstate(all="ignore"):
        answer = expressions.FUNCTIONS[text](x.astype("float64"))
    result = library.to_numpy(interop.elementwise(text)(library.make(x)))
    eps = float(ml_dtypes.finfo(x.dtype).eps)
    assert result.dtype == x.dtype
    assert np.allclose(result.astype("float64"), answer, rtol=8 * eps, atol=4 * eps, equal_nan=True)


@pytest.mark.parametrize(("text", "dtype"), expressions.TEST_CASES)
def test_exact_functions(torch, text, dtype):
    library = libraries.by_name("torch", "cuda")
    x, y = elements.draw((40, 1), dtype), elements.draw((1, 7), dtype, 1)
    if x.dtype.kind in "fc":
        x.flat[:2] = np.inf, np.nan
    answer = np.asarray(expressions.TESTS[text][1](x, y))
    result = library.to_numpy(expressions.call(text, library.make(x), library.make(y), None))
    assert result.dtype == answer.dtype
    assert np.array_equal(result, answer, equal_nan=answer.dtype.kind in "fc")


@pytest.mark.parametrize("dtype", elements.COMPLEX)
def test_integral_powers_of_complex_numbers_are_numpy_s(torch, dtype):
    """Bit by bit: by an array, by a scalar, and by literals."""
    library = libraries.by_name("torch", "cuda")
    bases, exponents, answer = elements.integral_powers(dtype)
    x = library.make(bases)
    f = interop.elementwise("x ** y")
    assert elements.same_bits(library.to_numpy(f(x, library.make(exponents))), answer)
    for exponent in (-3, 1, 2, 3, 50):
        column = answer[:, exponent + 99 : exponent + 100]
        assert elements.same_bits(library.to_numpy(f(x, exponent)), column), exponent
        assert elements.same_bits(library.to_numpy(interop.elementwise(f"x ** {exponent}")(x)), column), exponent
    either = bases[:, 0] != 0  # of zeros a product knows the signs, and a power does not
    for text, rows in (("x ** 2", slice(None)), ("x * x", either), ("square(x)", either)):
        result = library.to_numpy(interop.elementwise(text)(x))
        assert elements.same_bits(result[rows], answer[rows, 101:102]), text


@pytest.mark.parametrize("dtype", elements.INTEGERS[:4])
def test_shifts_by_too_much(torch, dtype):
    library = libraries.by_name("torch", "cuda")
    x = elements.draw((40,), dtype)
    counts = np.resize(np.array([0, 1, 7, 8, 15, 31, 32, 63, 64, 100, -1]), 40).astype(dtype)
    for text, function in (("x << n", np.left_shift), ("x >> n", np.right_shift)):
        result = interop.elementwise(text)(library.make(x), library.make(counts))
        assert np.array_equal(library.to_numpy(result), function(x, counts))


def test_nothing_is_contracted(torch):
    """x * y + a with a fused multiply-add has other bits for about every third element."""
    x, y, a = (torch.randn(100003, device="cuda") for _ in range(3))
    result = interop.elementwise("x * y + a")(x, y, a)
    assert torch.equal(result, x * y + a)
    assert not torch.equal(result, (x.double() * y.double() + a.double()).float())  # as a fused one would round


def test_mixed_dtypes(torch):
    """All pairs of dtypes in one kernel each, against the chain."""
    library = libraries.by_name("torch", "cuda")
    f = interop.elementwise("x * y + 1")
    for first, second in itertools.product(["int8", "uint8", "int64", "bfloat16", "float32", "complex64"], repeat=2):
        with products.naming(f"{first}, {second}"):
            x, y = (library.make(elements.draw((67, 33), dtype, k)) for k, dtype in enumerate((first, second)))
            expect_same(f(x, y[:, :1]), interop.add(interop.multiply(x, y[:, :1]), 1))


def test_every_library(device_library):
    x, y = elements.draw((50, 60), "float32"), elements.draw((60,), "float32", 1)
    result = interop.elementwise("x * y + a")(device_library.make(x), device_library.make(y), a=0.5)
    assert device_library.is_ours(result)
    answer = x * y + np.float32(0.5)
    contracts = device_library.name == "jax"  # XLA may
    assert np.allclose(device_library.to_numpy(result), answer, rtol=1e-5 if contracts else 0, atol=1e-5 * contracts)


# ---- layouts ----

LAYOUTS = {
    "contiguous": (lambda x: x, "contiguous"),
    "misaligned": (lambda x: x.flatten()[1:], "contiguous"),
    "rows": (lambda x: x[:, 1:], "rows"),
    "strided": (lambda x: x[:, ::2], "strided"),
    "reversed": (lambda x: x.flip(0)[:, 3:], None),
    "transposed": (lambda x: x.T, None),
}


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "complex128", "bool"])
def test_layouts(torch, dtype):
    """Every combination of layouts of three arrays, one of which may be transposed."""
    library = libraries.by_name("torch", "cuda")
    text = "where(x == y, y, z)"
    shape = (131, 131)
    x, y, z = (library.make(elements.draw(shape, dtype, place)) for place in range(3))
    ways = [lambda a: a, lambda a: a.T, lambda a: a[:, :1], lambda a: a[:1], lambda a: a.flip(1), lambda a: a[0, 0]]
    for f, g, h in itertools.product(ways, repeat=3):
        if f(x).ndim + g(y).ndim + h(z).ndim == 0:
            continue
        a, b, c = f(x), g(y), h(z)
        assert torch.equal(expressions.call(text, a, b, c), torch.where(a == b, b, c))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_by_name(torch, name, dtype):
    library = libraries.by_name("torch", "cuda")
    change, layout = LAYOUTS[name]
    x, y = (change(library.make(elements.draw((203, 333), dtype, place))) for place in range(2))
    f = interop.elementwise("x * y + x")
    expect_same(f(x, y), interop.add(interop.multiply(x, y), x))
    if layout:
        assert layout in interop.explain(f, x, y).algorithm


def test_tiles_with_mixed_dtypes_and_many_arrays(torch):
    sizes = (70, 65, 100)
    arrays = [torch.randint(0, 5, sizes, device="cuda").to(dtype) for dtype in (torch.int8, torch.half, torch.float64)]
    arrays += [torch.rand(sizes[::-1], device="cuda").permute(2, 1, 0) for _ in range(4)]
    names = [f"x{k}" for k in range(len(arrays))]
    f = interop.elementwise(" + ".join(names))
    assert "transposed" in interop.explain(f, *arrays).algorithm
    answer = arrays[0]
    for x in arrays[1:]:
        answer = interop.add(answer, x)
    assert torch.equal(f(*arrays), answer)
    out = torch.empty(sizes[::-1], device="cuda", dtype=answer.dtype).permute(2, 1, 0)
    assert f(*arrays, out=out) is out
    assert torch.equal(out, answer)


def test_many_dimensions(torch):
    x = torch.rand([2, 3] * 5, device="cuda").permute(9, 1, 3, 5, 7, 0, 2, 4, 6, 8)
    y = torch.rand([x.shape[k] if k % 2 else 1 for k in range(10)], device="cuda")
    assert torch.equal(interop.elementwise("x * y - y")(x, y), x * y - y)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2), (1,), ()])
def test_small_and_empty(torch, shape):
    x = torch.ones(shape, device="cuda")
    result = interop.elementwise("x * 2 + y")(x, x)
    assert result.shape == shape
    assert (result == 3).all()


def test_16_arrays(torch):
    arrays = [torch.full((100, 3), k, device="cuda") for k in range(16)]
    result = interop.elementwise(" + ".join(f"x{k}" for k in range(16)))(*arrays)
    assert (result == 120).all()


# ---- scalars ----


def test_scalars_are_values(torch):
    x = torch.arange(5, device="cuda", dtype=torch.float16)
    f = interop.elementwise("x * a + b * 2")
    for a, b in [(1, 2), (0.1, True), (-3, 0.5)]:
        expect_same(f(x, a, b), interop.add(interop.multiply(x, a), b * 2))
    zero_d = torch.tensor(0.5, dtype=torch.float64)
    expect_same(f(x, zero_d, zero_d), interop.add(interop.multiply(x, zero_d), interop.multiply(zero_d.cuda(), 2)))
    with pytest.raises(OverflowError, match="b is 300|a scalar of the expression is 600"):
        f(x.to(torch.int8), 1, 300)
    with pytest.raises(TypeError, match="x is on cuda:0 and a is in host memory"):
        f(x, torch.ones(5), 1)


def test_another_scalar_compiles_nothing(torch, monkeypatch):
    f, x = interop.elementwise("x * a - 0.25"), torch.ones(3, device="cuda")
    f(x, 2.0)
    monkeypatch.setattr("interop._cuda.nvrtc.load", None)
    assert f(x, 3.0).tolist() == [2.75] * 3
    assert f(x + 1, 4.0).tolist() == [7.75] * 3


# ---- streams, memory, captures ----


def test_out_may_be_an_operand_or_overlap_one(torch):
    f = interop.elementwise("x + 2 * y")
    x = torch.arange(1000.0, device="cuda")
    answer = x + 2 * x
    f(x, x, out=x)
    assert torch.equal(x, answer)
    y = x.clone()
    f(x[1:], x[:-1], out=x[1:])
    assert torch.equal(x[1:], y[1:] + 2 * y[:-1])
    square = torch.rand(70, 70, device="cuda")
    answer = square + 2 * square.T
    f(square, square.T, out=square)
    assert torch.equal(square, answer)
    assert interop.explain(f, square, square.T, out=square).workspace_bytes == square.nbytes


def test_on_a_busy_side_stream(torch):
    f = interop.elementwise("x * 2 + y")
    x = torch.ones(1 << 16, device="cuda")
    f(x, x)  # compiled before the race
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        device.delay(stream.cuda_stream)
        x.fill_(3)
        result = f(x, x)
    assert not stream.query()
    del x
    stream.synchronize()
    assert (result == 9).all()


def test_stream_is_given(torch):
    f, stream = interop.elementwise("x + 1"), torch.cuda.Stream()
    x = torch.zeros(100, device="cuda")
    result = f(x, stream=stream)
    stream.synchronize()
    assert (result == 1).all()


def test_first_use_inside_a_capture(torch):
    """Compiling, loading and launching of what was never used, while the stream is captured."""
    f = interop.elementwise("x * y + 0.123")
    x, y = (torch.rand(64, 65, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    with graphs.captured(torch) as graph:
        f(x, y, out=out)
    x.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    expect_same(out, interop.add(interop.multiply(x, y), 0.123))


def test_a_capture_with_a_result_and_a_temporary(torch):
    f = interop.elementwise("x + y * 0.0123")
    x = torch.rand(80, 80, device="cuda")
    with graphs.captured(torch) as graph:
        result = f(x, x.T)
        f(x, x.T, out=x)
    answer = interop.add(x, interop.multiply(x.T, 0.0123))
    graph.replay()
    torch.cuda.synchronize()
    expect_same(result, answer)
    expect_same(x, answer)


def test_host_arrays_on_the_gpu():
    x, y = elements.draw((40, 50), "float32"), elements.draw((50,), "float64", 1)
    result = interop.elementwise("x * y + a")(x, y, a=2, execution="cuda")
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, x * y + 2)


def test_threads(torch):
    f, failures = interop.elementwise("x * y - 0.75"), []

    def run(dtype):
        x = torch.ones(1000, device="cuda", dtype=dtype)
        failures.extend(dtype for _ in range(10) if not (f(x, x) == 0.25).all())

    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64] * 2
    threads = [threading.Thread(target=run, args=(dtype,)) for dtype in dtypes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.multi_gpu
def test_each_device_has_its_kernel(torch, two_cuda_devices):
    f = interop.elementwise("x * 2 + y")
    for index in two_cuda_devices * 2:
        x = torch.ones(5, device=f"cuda:{index}")
        assert f(x, x).device.index == index
        assert (f(x, x) == 3).all()
    with pytest.raises(ValueError, match="x is on cuda:0 and y is on cuda:1"):
        f(torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"))


def test_another_process_compiles_nothing(torch, tmp_path):
    code = """
import torch, interop
from interop._cuda import nvrtc
compile_source, count = nvrtc.compile_source, []
nvrtc.compile_source = lambda *a: (count.append(1), compile_source(*a))[1]
x = torch.ones(3, device="cuda")
assert interop.elementwise("x * 5 - 2")(x).tolist() == [3, 3, 3]
print(len(count))
"""
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "INTEROP_CACHE_DIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        found.append(int(done.stdout))
    assert found == [1, 0]


@pytest.mark.sanitize
def test_reads_and_writes_stay_inside(torch):
    """For compute-sanitizer: ends of rows, tiles at the rim, misaligned starts."""
    f = interop.elementwise("x * y + 1")
    for dtype in (torch.int8, torch.float16, torch.float32, torch.float64):
        for rows, columns in ((1, 1), (3, 17), (65, 67)):
            x, y = (torch.ones(rows, columns, device="cuda", dtype=dtype) for _ in range(2))
            assert (f(x, y) == 2).all()
            assert (f(x.T, torch.ones(columns, rows, device="cuda", dtype=dtype)) == 2).all()
            assert (f(x.flatten()[1:], y.flatten()[:-1]) == 2).all()
