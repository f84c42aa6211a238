"""The elementwise operations of device arrays: values of every dtype and mix, layouts, `out=`, scalars, JAX."""

from __future__ import annotations

import itertools

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import comparisons, device, elements, graphs, libraries, products
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interop

SHAPES = (((), ()), ((3,), (3,)), ((100003,), (100003,)), ((400, 51), (51,)), ((40, 1), (1, 50)), ((0, 3), (3,)))
CASES = [case for case in itertools.product(elements.OPERATIONS, elements.DTYPES) if elements.serves(*case)]
BY_CASE = pytest.mark.parametrize(("name", "dtype"), CASES)
NO_BFLOAT16 = ("numba",)


def operands_of(name, shapes, dtype):
    count = 1 if name in elements.UNARY else 2
    return [elements.draw(shape, dtype, place) for place, shape in enumerate(shapes[:count])]


def answer_of(library, name, operands):
    if name == "divide" and operands[0].dtype.kind in "biu":
        wide = library.name in ("cupy", "numba", "numpy") or (library.name == "jax" and operands[0].dtype.itemsize == 8)
        with np.errstate(all="ignore"):
            return np.divide(*(x.astype("float64" if wide else "float32") for x in operands))
    return elements.expected(name, *operands)


def need_dtype(library, dtype):
    if dtype == "bfloat16" and library.name in NO_BFLOAT16:
        pytest.skip(f"{library} makes no bfloat16 arrays here")


@BY_CASE
def test_values(device_library, name, dtype):
    need_dtype(device_library, dtype)
    for shapes in SHAPES if device_library.name != "jax" else SHAPES[2:4]:
        with products.naming(f"{shapes}"):
            x = operands_of(name, shapes, dtype)
            arrays = [device_library.make(a) for a in x]
            device_library.poison()
            result = elements.call(name, *arrays)
            assert device_library.is_ours(result)
            elements.check(name, device_library.to_numpy(result), answer_of(device_library, name, x))


@pytest.mark.parametrize("dtype", elements.FLOATS)
@pytest.mark.parametrize("name", [name for name in elements.OPERATIONS if name not in elements.UNARY])
def test_special_values(torch, name, dtype):
    library = libraries.by_name("torch", "cuda")
    pairs = np.array(list(itertools.product(elements.SPECIAL, repeat=2))).astype(elements.dtype_of(dtype))
    x, y = np.ascontiguousarray(pairs.T)
    result = elements.call(name, library.make(x), library.make(y))
    elements.check(name, library.to_numpy(result), elements.expected(name, x, y))


@pytest.mark.parametrize("dtype", elements.COMPLEX)
@pytest.mark.parametrize("name", elements.COMPLEX_SPECIAL)
def test_special_values_of_complex_numbers(torch, name, dtype):
    library = libraries.by_name("torch", "cuda")
    x = elements.special_complex(name, dtype)
    result = library.to_numpy(elements.call(name, *(library.make(a) for a in x)))
    elements.check(name, result, elements.expected(name, *x))


@pytest.mark.parametrize("dtype", elements.COMPLEX)
def test_integral_powers_of_complex_numbers_are_numpy_s(torch, dtype):
    """Bit by bit, by an array of exponents and by scalars."""
    library = libraries.by_name("torch", "cuda")
    bases, exponents, answer = elements.integral_powers(dtype)
    result = library.to_numpy(interop.pow(library.make(bases), library.make(exponents)))
    assert elements.same_bits(result, answer)
    for exponent in (-3, -1, 0, 1, 2, 3, 4, 7, 98):
        column = answer[:, exponent + 99]
        for scalar in (exponent, float(exponent), complex(exponent)):
            result = library.to_numpy(interop.pow(library.make(bases[:, 0]), scalar))
            assert elements.same_bits(result, column), scalar


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_powers_of_complex_numbers_are_exact_where_products_are(request, name):
    request.getfixturevalue(name)
    library = libraries.by_name(name, "cuda")
    x = library.make(np.array([1 + 1j, complex(0, np.inf), complex(-0.0, -0.0)], "complex64"))
    assert elements.same_bits(library.to_numpy(interop.pow(x, 1)), np.power(library.to_numpy(x), 1))
    assert library.to_numpy(interop.pow(x, 2))[0] == 2j
    assert library.to_numpy(interop.pow(x, 4))[0] == -4
    other = library.to_numpy(interop.pow(x, 2.5))[0]  # by polar coordinates
    assert np.isclose(other, (1 + 1j) ** 2.5, rtol=1e-5)
    assert other != (1 + 1j) ** 2


@pytest.mark.parametrize("dtype", elements.INTEGERS)
@pytest.mark.parametrize("name", [name for name in elements.OPERATIONS if name not in ("divide", *elements.UNARY)])
def test_special_integers(torch, name, dtype):
    library = libraries.by_name("torch", "cuda")
    limits = np.iinfo(dtype)
    values = {limits.min, limits.max, limits.max - 1, 0, 1, 2, 3, 7, *([-1, -2, -3] if limits.min else [])}
    pairs = np.array(list(itertools.product(sorted(values), repeat=2)), dtype=object)
    x, y = (np.array(list(side), dtype) for side in pairs.T)
    result = elements.call(name, library.make(x), library.make(y))
    elements.check(name, library.to_numpy(result), elements.expected(name, x, y))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_where_zero(torch, dtype):
    library = libraries.by_name("torch", "cuda")
    x, y = elements.draw((4001,), dtype, 1), elements.draw((4001,), dtype, 2)
    y[::3] = 0
    result = library.to_numpy(interop.divide(library.make(x), library.make(y), where_zero=-2.5))
    answer = elements.expected("divide", x, y)
    answer[y == 0] = -2.5
    elements.check("divide", result, answer)


@pytest.mark.parametrize(("value", "error"), [(1j, TypeError), (np.complex64(2), TypeError), (10**400, OverflowError)])
def test_where_zero_must_fit(torch, value, error):
    x = torch.ones(3, device="cuda")
    out = torch.full_like(x, 7)
    with pytest.raises(error, match=r"^interop.divide: where_zero is "):
        interop.divide(x, x, where_zero=value, out=out)
    assert (out == 7).all()


# ---- mixed dtypes ----


@pytest.mark.parametrize("name", ["add", "less"])
@pytest.mark.parametrize("first", elements.DTYPES)
def test_mixed_dtypes_of_torch(torch, first, name):
    library = libraries.by_name("torch", "cuda")
    exact = (
        comparisons.DTYPES if name == "less" and first in comparisons.DTYPES else ()
    )  # test_comparisons.py has those
    for second in set(elements.DTYPES).difference(exact):
        with products.naming(f"{first}, {second}"):
            x, y = (library.make(elements.draw((33, 67), dtype, place)) for place, dtype in enumerate((first, second)))
            x = x[:, 1:]
            y = y[:, :1]
            try:
                common = torch.result_type(x, y)
            except RuntimeError:
                with pytest.raises(TypeError, match="torch has no common dtype"):
                    elements.call(name, x, y)
                continue
            if not elements.serves(name, str(common).removeprefix("torch.")):
                continue
            answer = elements.expected(name, library.to_numpy(x.to(common)), library.to_numpy(y.to(common)))
            elements.check(name, library.to_numpy(elements.call(name, x, y)), answer)


def test_mixed_dtypes_transposed(torch):
    x = torch.rand(300, 200, device="cuda").half()
    y = torch.randint(-5, 5, (200, 300), device="cuda", dtype=torch.int16)
    assert torch.equal(interop.add(x, y.T), x + y.T)


# ---- scalars ----


def test_scalars_and_0d_host_arrays(torch):
    x = torch.arange(5, device="cuda", dtype=torch.float16)
    # The scalar becomes a float16 first, as in NumPy; torch's own would stay wider.
    assert torch.equal(interop.multiply(x, 0.1), x * torch.tensor(0.1, dtype=torch.float16, device="cuda"))
    assert torch.equal(interop.subtract(2, x), 2 - x)
    zero_d = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(interop.add(x, zero_d), x + zero_d)
    assert torch.equal(interop.add(zero_d, x), zero_d + x)
    with pytest.raises(TypeError, match="interop.add: a is on cuda:0 and b is in host memory"):
        interop.add(x, torch.ones(5))
    with pytest.raises(OverflowError, match="b is 300, which int8 cannot hold"):
        interop.add(torch.ones(2, device="cuda", dtype=torch.int8), 300)


# ---- layouts ----


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_property(cuda_device, data):
    name = data.draw(st.sampled_from([name for name in elements.OPERATIONS if name != "pow"]))
    dtype = data.draw(st.sampled_from([dtype for dtype in elements.DTYPES if elements.serves(name, dtype)]))
    library = libraries.by_name("torch", "cuda")
    count = 1 if name in elements.UNARY else 2
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=5, min_side=0, max_side=9))
    kind = elements.dtype_of(dtype)
    pairs = [data.draw(products.strided(shape, kind, library.negative)) for shape in shapes.input_shapes]
    answer = answer_of(library, name, [view for _, view in pairs])
    out = data.draw(products.strided(shapes.result_shape, answer.dtype, library.negative))
    elements.check_calls(name, library, pairs, answer, out)


LAYOUTS = {
    "misaligned": lambda x: (x[1:, 1:], x[:-1, :-1]),
    "transposed": lambda x: (x, x.T),
    "both transposed": lambda x: (x.T, x.T),
    "row": lambda x: (x, x[3:4]),
    "column": lambda x: (x, x[:, 3:4]),
    "every second": lambda x: (x[:, ::2], x[:, 1::2]),
    "reversed": lambda x: (x[::-1, ::-1], x),
}


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(torch, layout, dtype):
    library = libraries.by_name("torch", "cuda")
    base = elements.draw((514, 514), dtype)
    views = LAYOUTS[layout](base)
    if layout == "reversed":
        arrays = [device_array(library, base, view) for view in views]
    else:
        arrays = [library.view(base, view) for view in views]
    result = interop.add(*arrays)
    elements.check("add", np.asarray(library.to_numpy(as_tensor(torch, result))), elements.expected("add", *views))


def device_array(library, base, view):
    """A view of torch's memory that torch itself cannot have: as an `interop.Array` by its interface."""
    made = library.make(base)
    interface = {
        "shape": view.shape,
        "strides": view.strides,
        "typestr": view.dtype.str,
        "data": (made.data_ptr() + libraries.offset_of(base, view), False),
        "version": 3,
    }
    if view.dtype == elements.BFLOAT16:
        pytest.skip("the interface has no bfloat16")
    return Shown(made, interface)


class Shown:
    def __init__(self, owner, interface):
        self.owner = owner
        self.__cuda_array_interface__ = interface


def as_tensor(torch, x):
    return x if isinstance(x, torch.Tensor) else torch.from_dlpack(x)


@pytest.mark.parametrize("size", [2**31 + 5])
def test_more_elements_than_32_bits_count(torch, size):
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GB of free device memory")
    x = torch.full((size,), 3, device="cuda", dtype=torch.int8)
    y = interop.add(x, x[-1])
    assert y.shape == x.shape
    assert (int(y[0]), int(y[-1]), int(y.min()), int(y.max())) == (6, 6, 6, 6)


# ---- out= ----


def test_out_may_be_an_operand(torch):
    x, y = torch.rand(3, 1000, 101, device="cuda")[:2]
    answer = x - y
    assert interop.subtract(x, y, out=y) is y
    assert torch.equal(y, answer)


@pytest.mark.parametrize("case", ["before", "behind", "transposed", "column"])
def test_out_may_overlap_an_operand(torch, case):
    base = torch.rand(513, 513, device="cuda")
    source, target = {
        "before": (base[1:], base[:-1]),
        "behind": (base[:-1], base[1:]),
        "transposed": (base.T, base),
        "column": (base[:, 4:5].expand(513, 513), base),
    }[case]
    other = torch.rand(source.shape, device="cuda")
    answer = source + other
    plan = interop.explain(interop.add, source, other, out=target)
    assert "into a temporary that is copied to out" in plan.algorithm
    assert plan.workspace_bytes == answer.numel() * 4
    interop.add(source, other, out=target)
    assert torch.equal(target, answer)


def test_comparison_into_the_memory_of_an_operand(torch):
    x = torch.arange(100, device="cuda", dtype=torch.uint8)
    out = x.view(torch.bool)
    interop.less(x, 40, out=out)
    assert out.tolist() == [True] * 40 + [False] * 60


def test_unaligned_memory_is_refused(torch):
    x = torch.zeros(40, device="cuda", dtype=torch.uint8)
    interface = {"shape": (4,), "strides": None, "typestr": "<f4", "data": (x.data_ptr() + 1, False), "version": 3}
    with pytest.raises(ValueError, match="interop.negative: x starts at an address that is not a multiple of 4 bytes"):
        interop.negative(Shown(x, interface))


# ---- what explain says, streams, graphs, execution ----


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [
        (lambda x: (x, x), "contiguous, vectors of 4, float32"),
        (lambda x: (x, x[0]), "rows, vectors of 4, float32"),
        (lambda x: (x, x.T), "transposed, tiles of 64 x 64, float32"),
        (lambda x: (x[:, ::2], 1), "strided, vectors of 4, float32"),
        (lambda x: (x, x.int()), "contiguous, vectors of 4, float32"),
        (lambda x: (x[:0], x[:0]), "nothing to compute"),
    ],
)
def test_explain(torch, make, algorithm):
    assert interop.explain(interop.add, *make(torch.rand(64, 64, device="cuda"))).algorithm == algorithm


def test_on_a_busy_side_stream_and_in_a_graph(torch):
    x = torch.rand(1000, device="cuda")
    stream = torch.cuda.Stream()
    with graphs.captured(torch, stream=stream) as graph:
        y = interop.multiply(interop.add(x, x), x)
    x.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 8))


def test_stream_option(torch):
    stream = torch.cuda.Stream()
    x = torch.rand(1 << 20, device="cuda")
    device.delay(device.LEGACY, 20)
    x.fill_(3)
    y = interop.add(x, 1, stream=stream)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 4))


def test_execution_of_host_arrays():
    x = elements.draw((50, 60), "float32", 1)
    result = interop.floor_divide(x, 0.75, execution="cuda")
    assert type(result) is np.ndarray
    elements.check("floor_divide", result, elements.expected("floor_divide", x, np.float32(0.75)))
    assert interop.subtract(x, x.copy(), out=x, execution="cuda") is x
    assert not x.any()


# ---- JAX ----


def test_jax_under_jit_and_vmap(jax):
    x = jax.numpy.arange(12.0).reshape(3, 4)
    on_host = np.asarray(x)  # XLA's own division does not round as IEEE has it
    f = jax.jit(lambda a, b: interop.divide(interop.add(a, b), b, where_zero=7))
    expected = np.where(on_host[0] == 0, 7, (on_host + on_host[0]) / np.maximum(on_host[0], 1))
    np.testing.assert_allclose(f(x, x[0]), expected, rtol=2**-22)
    mapped = jax.vmap(interop.subtract, in_axes=(1, None))(x, jax.numpy.ones(3))
    assert np.array_equal(mapped, np.asarray(x).T - 1)


def test_jax_mixed_dtypes_scalars_and_unary(jax):
    x = jax.numpy.arange(-3, 4, dtype="int16")
    y = jax.numpy.ones(7, "bfloat16")
    assert interop.add(x, y).dtype == jax.numpy.bfloat16
    assert np.array_equal(interop.abs(x), np.abs(np.asarray(x)))
    assert np.array_equal(interop.multiply(x, 3), np.asarray(x) * 3)
    assert np.array_equal(interop.floor_divide(x, 0), np.zeros(7))
