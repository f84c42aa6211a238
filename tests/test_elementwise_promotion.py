"""The dtype of elementwise operations on the host: of arrays of two dtypes, and of scalars beside an array."""

from __future__ import annotations

import contextlib
import itertools

import ml_dtypes
import numpy as np
import pytest
from helpers import elements, libraries, products, scalars

import interop
import interop._operations.promotion

# ---- mixed dtypes ----

PAIRS = [pair for pair in itertools.product(elements.DTYPES, repeat=2) if pair[0] != pair[1]]


def numpys_dtype(first, second):
    try:
        return np.result_type(elements.dtype_of(first), elements.dtype_of(second))
    except TypeError:
        return None


@pytest.mark.parametrize("name", ["add", "multiply", "less", "divide"])
def test_mixed_dtypes_of_numpy(name):
    for first, second in PAIRS:
        with products.naming(f"{first}, {second}"):
            x, y = elements.draw((7,), first, 1), elements.draw((7,), second, 2)
            common = numpys_dtype(first, second)
            if common is None:
                with pytest.raises(TypeError, match=f"interop.{name}: numpy has no common dtype of"):
                    elements.call(name, x, y)
                continue
            if not elements.serves(name, common.name):
                continue
            if name == "less" and {x.dtype.kind, y.dtype.kind} == {"i", "u"}:
                answer = np.less(x, y)
            else:
                answer = elements.expected(name, x, y, dtype=common.name)
            elements.check(name, elements.call(name, x, y), answer)


def test_mixed_dtypes_of_torch(torch):
    library = libraries.by_name("torch")
    for first, second in PAIRS:
        with products.naming(f"{first}, {second}"):
            x, y = (library.make(elements.draw((7,), dtype, place)) for place, dtype in enumerate((first, second)))
            try:
                common = torch.result_type(x, y)
                expected = torch.add(x, y)
            except RuntimeError:
                with pytest.raises(TypeError, match="interop.add: torch has no common dtype of"):
                    interop.add(x, y)
                continue
            result = interop.add(x, y)
            assert result.dtype == common
            assert torch.allclose(result, expected, rtol=1e-2, atol=1e-2, equal_nan=True)


def test_mixed_dtypes_of_jax(jax):
    library = libraries.by_name("jax")
    for first, second in PAIRS:
        with products.naming(f"{first}, {second}"), library.x64():
            x, y = (library.make(elements.draw((7,), dtype, place)) for place, dtype in enumerate((first, second)))
            result = interop.multiply(x, y)
            expected = x * y
            assert result.dtype == expected.dtype
            wide = [np.asarray(z).astype("complex128") for z in (result, expected)]
            assert np.allclose(*wide, rtol=1e-2, atol=1e-2, equal_nan=True)


def test_the_first_array_s_library_promotes(torch):
    integers, floats = np.arange(1, 4), np.ones(3, "float32")
    assert interop.add(integers, floats).dtype == np.float64
    assert interop.add(torch.from_numpy(integers), floats).dtype == torch.float32
    assert interop.add(integers, torch.from_numpy(floats)).dtype == np.float64
    assert interop.divide(integers, integers).dtype == np.float64
    assert interop.divide(torch.from_numpy(integers), integers).dtype == torch.float32


def test_promotion_follows_torch_s_default_dtype(torch):
    x = torch.arange(3)
    assert interop.divide(x, x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert interop.divide(x, x).dtype == torch.float64
        assert interop.multiply(x, 2.5).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert interop.multiply(x, 2.5).dtype == torch.float32


PROMOTED = [*((dtype, is_0d) for dtype in elements.DTYPES for is_0d in (False, True)), True, 3, 2.5, 1j]


@pytest.mark.parametrize("default", ["float32", "float64", "float16", "bfloat16"])
def test_promotion_is_torch_s(torch, default):
    """Every pair of dtypes, 0-d or not, and of scalars."""
    torch.set_default_dtype(getattr(torch, default))
    try:
        for pair in itertools.product(PROMOTED, repeat=2):
            if not any(isinstance(x, tuple) for x in pair):
                continue
            theirs = [torch.empty(() if x[1] else (1,), dtype=getattr(torch, x[0])) if isinstance(x, tuple) else x
                      for x in pair]  # fmt: skip
            with products.naming(str(pair)):
                try:
                    common = str(torch.result_type(*theirs)).removeprefix("torch.")
                except RuntimeError:
                    with pytest.raises(TypeError, match="^f: torch has no common dtype of"):
                        interop._operations.promotion.promote("f", "torch", False, *pair)
                    continue
                assert interop._operations.promotion.promote("f", "torch", False, *pair) == common
    finally:
        torch.set_default_dtype(torch.float32)


def test_promotion_makes_no_tensors(torch):
    """Neither on the default device, nor where a mode of the caller's would see them."""

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.ones(3, dtype=torch.int16)
    for device in ("meta", "cpu" if torch.cuda.is_available() else "cuda"):
        interop._operations.promotion._known.clear()
        torch.set_default_device(device)
        try:
            r, quotient = interop.subtract(x, 1.5), interop.divide(x, 2)
        finally:
            torch.set_default_device(None)
        assert r.device.type == "cpu"
        assert r.tolist() == quotient.add(-1).tolist() == [-0.5] * 3
    interop._operations.promotion._known.clear()
    seen = []
    with Seen():
        interop.subtract(x, 1.5)
    assert not [function for function in seen if "empty" in str(function) or "result_type" in str(function)]


def test_the_errstate_of_the_caller_is_no_other_library_s(torch):
    x = torch.ones(2, dtype=torch.float32)
    with np.errstate(all="raise"):
        for scalar in (1e300, 1e-300):
            interop._operations.promotion._known.clear()
            assert interop.multiply(x, scalar).tolist() == (x.double() * scalar).float().tolist()
            assert interop.multiply(x.half(), scalar).tolist() == interop.multiply(x, scalar).tolist()
            assert interop.divide(x, x * 0, where_zero=scalar).tolist() == interop.multiply(x, scalar).tolist()
            product = interop.matmul(torch.eye(2), torch.eye(2), alpha=scalar)
            assert product[0, 0] == interop.multiply(x, scalar)[0]
        assert interop.divide(x, 0).isinf().all()
        with pytest.raises(FloatingPointError):  # as NumPy itself
            interop.divide(np.ones(2), 0)


def test_0d_tensors_are_weak_as_in_torch(torch):
    x = torch.ones(3, dtype=torch.float16)
    assert interop.add(x, torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float16
    assert interop.add(torch.ones(3, dtype=torch.int8), torch.tensor(300)).tolist() == [45] * 3
    assert interop.add(np.ones(3, "float16"), np.array(2.0)).dtype == np.float64  # not in NumPy


# ---- scalars ----

NO_SUCH_SUM = {("torch", "uint16", complex), ("torch", "float16", complex)}  # or a dtype of its own: ComplexHalf


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("scalar", [True, 3, 2.5, 1 + 2j], ids=repr)
def test_python_scalars_are_weak(host_library, dtype, scalar):
    if (host_library.name, dtype, type(scalar)) in NO_SUCH_SUM:
        return
    x = host_library.make(elements.draw((5,), dtype))
    result = interop.add(x, scalar)
    if (host_library.name, dtype) not in {("torch", "uint16"), ("numpy", "bfloat16")}:  # torch has none, NumPy widens
        with host_library.x64() if host_library.name == "jax" and dtype == "int64" else contextlib.nullcontext():
            theirs = x + scalar
        assert result.dtype == theirs.dtype
        assert np.allclose(*(host_library.to_numpy(y).astype("complex128") for y in (result, theirs)), rtol=1e-2)
    if not (dtype == "bool" and isinstance(scalar, bool)):
        assert host_library.dtype(interop.subtract(scalar, x)) == host_library.dtype(result)


@pytest.mark.parametrize("scalar", [*scalars.OF_A_KIND, np.bool_(True)], ids=repr)
def test_scalars_count_by_their_kind(host_library, scalar):
    """Whether it was a subclass that came first, or not."""
    plain = scalars.plain(scalar)
    for dtype in ("int8", "int32", "float16", "float32", "complex64"):
        if (host_library.name, dtype, type(plain)) in NO_SUCH_SUM:
            continue
        x = host_library.make(elements.draw((5,), dtype))
        for name in ("add", "multiply", "divide", "pow", "equal"):
            for first, second in ((scalar, plain), (plain, scalar)):
                interop._operations.promotion._known.clear()
                with np.errstate(all="ignore"):
                    results = [getattr(interop, name)(x, y) for y in (first, second)]
                assert host_library.dtype(results[0]) == host_library.dtype(results[1])
                assert np.array_equal(*map(host_library.to_numpy, results), equal_nan=True)


@pytest.mark.parametrize("scalar", [*scalars.OF_A_KIND[:3], np.bool_(True)], ids=repr)
def test_factors_and_replacements_count_by_their_kind(host_library, scalar):
    plain = scalars.plain(scalar)
    x = host_library.make(np.array([[1.0, 0.0], [2.0, 4.0]], "float32"))
    for f in (
        lambda y: interop.divide(x, x, where_zero=y),
        lambda y: interop.matmul(x, x, alpha=y),
        lambda y: interop.matmul(x, x, c=x, beta=y),
    ):
        assert np.array_equal(*(host_library.to_numpy(f(y)) for y in (scalar, plain)))


def test_a_subclass_with_a_dtype_of_its_own_keeps_it():
    """numpy.float64 is a float, and numpy.complex128 a complex, with a dtype."""
    assert interop.add(np.ones(2, "float32"), np.float64(1)).dtype == np.float64
    assert interop.add(np.ones(2, "complex64"), np.complex128(1)).dtype == np.complex128


def test_a_value_that_is_too_large_decides_no_dtype(host_library):
    x = host_library.make(np.ones(2, "int8"))
    for _ in range(2):
        interop._operations.promotion._known.clear()
        for scalar in (2**70, 10**5000):
            with pytest.raises(OverflowError, match="^interop.divide: b is .*, which float(32|64) cannot hold" if
                               scalar > 2**1024 else "^interop.add: b is .*, which int8 cannot hold"):  # fmt: skip
                (interop.divide if scalar > 2**1024 else interop.add)(x, scalar)
        with pytest.raises(OverflowError, match="^interop.add: b is an integer of 16610 bits, which int8 cannot hold"):
            interop.add(x, 10**5000)


def test_bfloat16_beside_a_scalar_stays_bfloat16():
    x = np.ones(2, ml_dtypes.bfloat16)
    assert interop.add(x, 2.5).dtype == ml_dtypes.bfloat16
    assert interop.multiply(2, x).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(("dtype", "value"), [("int8", 128), ("uint8", -1), ("uint64", 2**64), ("int64", -(2**63) - 1)])
def test_integer_scalars_that_do_not_fit(host_library, dtype, value):
    x = host_library.make(np.zeros(2, dtype))
    with pytest.raises(OverflowError, match=f"^interop.add: b is {value}, which {dtype} cannot hold; accepted: "):
        interop.add(x, value)


def test_numpy_scalars_are_scalars(torch):
    assert interop.add(np.ones(2, "float32"), np.float64(1)).dtype == np.float64
    assert interop.add(torch.ones(2), np.float64(1)).dtype == torch.float32  # a number, to torch
    with pytest.raises(TypeError, match="interop.add: a and b are scalars, numpy.float64 and int; accepted: an array"):
        interop.add(np.float64(1), 2)


def test_scalars_need_an_array_beside_them():
    with pytest.raises(TypeError, match="interop.negative: x is a scalar, float; accepted: an array"):
        interop.negative(1.0)
    with pytest.raises(TypeError, match="interop.add: b is str; accepted: arrays"):
        interop.add(np.ones(2), "2")
    with pytest.raises(TypeError, match="interop.add: b is NoneType; accepted: arrays"):
        interop.add(np.ones(2), None)
