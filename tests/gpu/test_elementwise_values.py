"""Elementwise kernels that take several elements at a time, or a quicker way than the general one: every value."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import elements, libraries, products

import interop

NARROW = ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16")
FUNCTIONS = [name for name in elements.OPERATIONS if name != "pow"]
LENGTH = 1 << 16


def on_gpu():
    return libraries.by_name("torch", "cuda")


def check(name, x, y):
    library = on_gpu()
    operands = [library.make(a) for a in ((x,) if name in elements.UNARY else (x, y))]
    result = library.to_numpy(elements.call(name, *operands))
    with np.errstate(invalid="ignore"):  # conversions of signalling NaNs
        elements.check(name, result, elements.expected(name, *((x,) if name in elements.UNARY else (x, y))))


# ---- words of small elements ----


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
@pytest.mark.parametrize("name", [name for name in elements.OPERATIONS if name != "divide"])
def test_every_pair_of_bytes(torch, name, dtype):
    if not elements.serves(name, dtype):
        return
    values = np.arange(256).astype("uint8")
    x, y = np.repeat(values, 256), np.tile(values, 256)
    if dtype == "bool":
        x, y = x > 127, y > 127
    check(name, x.astype(dtype), y.astype(dtype))


@pytest.mark.parametrize("name", ["add", "multiply", "minimum", "equal", "less", "less_equal", "abs"])
def test_bools_of_any_byte(torch, name):
    """A bool is true where its byte is not zero, in whatever way it is read."""
    x = torch.arange(256, device="cuda", dtype=torch.uint8).repeat(33)
    y = x.roll(7) & 3
    truths = [(a != 0).cpu().numpy() for a in (x, y)]
    arrays = [a.view(torch.bool) for a in (x, y)]
    operands = arrays[:1] if name in elements.UNARY else arrays
    answer = elements.expected(name, *truths[: len(operands)])
    for places in (slice(None), slice(1, -2), slice(None, None, 3)):
        with products.naming(f"{places}"):
            result = elements.call(name, *(a[places] for a in operands))
            assert np.array_equal(result.view(torch.uint8).cpu().numpy(), answer[places].astype("uint8"))
    square = [a[: 80 * 96].view(80, 96) for a in operands]
    result = elements.call(name, *(a.T for a in square[:1]), *(a.view(96, 80) for a in square[1:]))
    turned = [t[: 80 * 96].reshape(80, 96) for t in truths]
    answer = elements.expected(name, *(t.T for t in turned[:1]), *(t.reshape(96, 80) for t in turned[1 : len(square)]))
    assert np.array_equal(result.view(torch.uint8).cpu().numpy(), answer.astype("uint8"))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_16_bit_value_beside_others(torch, name, dtype):
    if name == "divide" and dtype not in elements.FLOATS:
        return
    bits = np.arange(LENGTH, dtype="uint16")
    rng = np.random.default_rng(1)
    for others in (rng.integers(0, LENGTH, LENGTH), np.repeat(rng.integers(0, LENGTH, 256), 256), np.roll(bits, 1)):
        x, y = bits.view(elements.dtype_of(dtype)), others.astype("uint16").view(elements.dtype_of(dtype))
        check(name, x, y)


# ---- layouts of narrow elements ----


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", [(64, 64), (128, 128), (129, 257), (200, 8), (9, 1000), (3, 70, 130)])
def test_transposed_operands(torch, dtype, shape):
    library = on_gpu()
    turned = (*shape[:-2], shape[-1], shape[-2])
    x, y = elements.draw(shape, dtype, 1), elements.draw(turned, dtype, 2)
    a, b = library.make(x), library.make(y)
    y = y.swapaxes(-1, -2)
    for name in ("add", "less", "maximum"):
        for second in (b.mT, b.mT[..., :1], a.mT.contiguous().mT):
            with products.naming(f"{name}, {tuple(second.stride())}"):
                wanted = elements.expected(name, x, library.to_numpy(second))
                elements.check(name, library.to_numpy(elements.call(name, a, second)), wanted)
    wanted = elements.expected("add", x[..., 1:], y[..., 1:])
    elements.check("add", library.to_numpy(interop.add(a[..., 1:], b.mT[..., 1:])), wanted)


@pytest.mark.parametrize("dtype", elements.DTYPES)
def test_arrays_that_begin_anywhere(torch, dtype):
    """Flat ones, and rows: by vectors from aligned places, or element by element."""
    library = on_gpu()
    x, y = (elements.draw((9001,), dtype, seed) for seed in (1, 2))
    a, b = library.make(x), library.make(y)
    for first, second in itertools.product((0, 1, 3), repeat=2):
        with products.naming(f"{first}, {second}"):
            length = 8998
            out = torch.empty(length + 5, device="cuda", dtype=a.dtype)
            interop.add(a[first : first + length], b[second : second + length], out=out[second : second + length])
            answer = elements.expected("add", x[first : first + length], y[second : second + length])
            elements.check("add", library.to_numpy(out[second : second + length]), answer)


@pytest.mark.parametrize("dtype", elements.DTYPES)
@pytest.mark.parametrize("columns", [64, 65])
def test_broadcast_rows_and_columns(torch, dtype, columns):
    library = on_gpu()
    x = elements.draw((301, columns), dtype, 1)
    for shape in ((columns,), (301, 1), (1, 1)):
        y = elements.draw(shape, dtype, 2)
        with products.naming(f"{shape}"):
            elements.check(
                "add", library.to_numpy(interop.add(library.make(x), library.make(y))), elements.expected("add", x, y)
            )


# ---- quotients ----


def quotients(dtype):
    """Yield operands about the bounds of the quick way: large quotients, large and small divisors, exact multiples."""
    rng = np.random.default_rng(3)
    n = LENGTH

    def unit():
        return rng.uniform(-1, 1, n)

    bound = 2.0**21 if dtype != "float64" else 2.0**40
    edge = 2.0**100 if dtype != "float64" else 2.0**900
    integers = rng.integers(-1000, 1000, n)
    yield unit(), unit()
    yield integers * rng.integers(1, 9, n) * 0.37, integers * 0.37
    yield integers / 10, rng.integers(-99, 99, n) / 10
    yield bound * rng.uniform(0.9, 1.1, n), unit()
    yield np.rint(bound * rng.uniform(0.2, 1.1, n)) * 0.7, np.full(n, 0.7)
    if dtype in ("float32", "float64", "bfloat16"):
        for scale in (edge, 1 / edge):
            yield unit() * scale, unit() * scale
            yield unit(), unit() * scale


@pytest.mark.parametrize("dtype", elements.FLOATS)
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "divide"])
def test_quotients_of_floats(torch, name, dtype):
    for place, (x, y) in enumerate(quotients(dtype)):
        with products.naming(f"{place}"), np.errstate(all="ignore"):
            check(name, x.astype(elements.dtype_of(dtype)), y.astype(elements.dtype_of(dtype)))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_quotients_of_integers(torch, name, dtype):
    rng = np.random.default_rng(4)
    limits = np.iinfo(dtype)
    n = 4096
    wide = rng.integers(limits.min, limits.max, n, dtype=dtype, endpoint=True)
    small = rng.integers(-9 if limits.min else 0, 9, n, dtype=dtype, endpoint=True)
    for x, y in ((wide, wide[::-1].copy()), (wide, small), (small, small[::-1].copy()), (small, wide)):
        check(name, x, y)


# ---- powers ----


@pytest.mark.parametrize(
    ("bases", "exponents"),
    [
        ((0, 1), (0, 4)),
        ((0.5, 2), (-120, 120)),
        ((0.7, 1.42), (-250, 250)),
        ((0.999, 1.001), (-80000, 80000)),
        ((1e-38, 3e38), (-1.5, 1.5)),
        ((1e-45, 1e-37), (-1, 1)),
    ],
)
def test_powers_of_float32_are_right_to_3_units_in_the_last_place(torch, bases, exponents):
    rng = np.random.default_rng(5)
    x = rng.uniform(*bases, 1 << 20).astype("float32")
    y = rng.uniform(*exponents, 1 << 20).astype("float32")
    with np.errstate(all="ignore"):
        answer = np.power(x.astype("float64"), y.astype("float64"))
        rounded = answer.astype("float32")
    result = interop.pow(torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()).cpu().numpy()
    normal = np.isfinite(rounded) & (np.abs(rounded) > np.finfo("float32").tiny)
    assert np.max(np.abs(result - answer)[normal] / np.spacing(np.abs(rounded[normal]))) < 3
    assert np.array_equal(np.isinf(result), np.isinf(rounded))
    assert np.all(result[rounded == 0] <= np.finfo("float32").smallest_subnormal)
