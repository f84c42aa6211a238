"""`interop.matmul` of host arrays in every dtype, with factors, `c=`, `bias=`, epilogues and `aux=`."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from helpers import forms, libraries, products
from hypothesis import given
from hypothesis import strategies as st

import interop

SHAPES = (((3, 5), (5, 4)), ((5,), (5,)), ((2, 3, 5), (5, 4)), ((3, 0), (0, 4)), ((4, 1, 2, 7), (3, 7, 2)))


def made(library, x):
    try:
        return library.make(x)
    except (TypeError, ValueError, AttributeError) as error:
        if library.name == "numpy":
            raise
        pytest.skip(f"{library!r} has no {x.dtype}: {error}")


def operands(library, shapes, dtype):
    x, y = forms.draw(shapes[0], dtype, 1), forms.draw(shapes[1], dtype, 2)
    return made(library, x), made(library, y), x, y


# ---- dtypes ----


@pytest.mark.parametrize("dtype", forms.DTYPES)
def test_values(host_library, dtype):
    for shapes in SHAPES:
        with products.naming(str(shapes)):
            a, b, x, y = operands(host_library, shapes, dtype)
            c = interop.matmul(a, b)
            assert host_library.is_ours(c)
            assert host_library.dtype(c) == dtype
            forms.check(host_library.to_numpy(c), x, y, dtype)


PAIRS = [("float32", "float64"), ("int32", "float64"), ("int8", "uint8"), ("bool", "int16"), ("bfloat16", "float32"),
         ("float16", "float32"), ("complex64", "float64"), ("int8", "complex64"), ("uint8", "int64")]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), [*PAIRS, *(pair[::-1] for pair in PAIRS)])
def test_mixed_dtypes_are_promoted_as_by_the_library(host_library, first, second):
    x, y = forms.draw((3, 5), first, 1), forms.draw((5, 4), second, 2)
    a, b = made(host_library, x), made(host_library, y)
    c = interop.matmul(a, b)
    dtype = host_library.dtype(interop.add(a, made(host_library, forms.draw((3, 5), second, 2))))
    assert host_library.dtype(c) == dtype
    kind = forms.numpy_dtype(dtype)
    forms.check(host_library.to_numpy(c), x.astype(kind), y.astype(kind), dtype)


@pytest.mark.parametrize(("integer", "narrow", "value"), [("int32", "float16", 70000), ("int64", "bfloat16", 257)])
def test_integers_beside_16_bit_floats_are_converted_first(host_library, integer, narrow, value):
    x, y = np.full((1, 1), value, integer), np.full((1, 1), 0.5, forms.numpy_dtype(narrow))
    a, b = made(host_library, x), made(host_library, y)
    if isinstance(a, np.ndarray) and narrow == "bfloat16":
        with pytest.raises(TypeError, match="numpy has no common dtype of int64 and bfloat16"):
            interop.matmul(a, b)
        return
    c = interop.matmul(a, b)
    kind = forms.numpy_dtype(host_library.dtype(c))  # NumPy's is wider
    with np.errstate(over="ignore"):
        expected = float(x.astype(kind).astype("float64")[0, 0]) / 2
    assert float(host_library.to_numpy(c).astype("float64")[0, 0]) == expected


@pytest.mark.parametrize(
    ("given", "dtype"),
    [("int8", "int32"), ("uint8", "int16"), ("bool", "int64"), ("bfloat16", "float32"), ("float16", "float64"),
     ("float32", "complex64")],
)  # fmt: skip
def test_dtype_widens_the_product(host_library, given, dtype):
    a, b, x, y = operands(host_library, ((3, 300), (300, 4)), given)
    c = interop.matmul(a, b, dtype=dtype)
    assert host_library.dtype(c) == dtype
    kind = forms.numpy_dtype(dtype)
    forms.check(host_library.to_numpy(c), x.astype(kind), y.astype(kind), dtype)


def test_dtype_is_given_by_any_library(torch, jax):
    x = np.full((2, 2), 100, "int8")
    for dtype in ("int32", np.int32, np.dtype("int32"), torch.int32, jax.numpy.int32):
        assert interop.matmul(x, x, dtype=dtype).tolist() == [[20000] * 2] * 2
    with pytest.raises(
        TypeError, match="dtype is 'quaternion'; accepted: None, a name, a dtype of NumPy, torch or JAX"
    ):
        interop.matmul(x, x, dtype="quaternion")
    with pytest.raises(TypeError, match="dtype is uint8, and the operands are int8; accepted: a dtype that numpy"):
        interop.matmul(x, x, dtype="uint8")


def test_half_precision_is_added_up_in_float32_and_rounded_once(host_library):
    """4096 + 4095 ones: in float16 the sum would stop growing at 2048."""
    x, y = np.ones((1, 8191), "float16"), np.ones((8191, 1), "float16")
    x[0, 0] = 4096
    c = host_library.to_numpy(interop.matmul(made(host_library, x), made(host_library, y)))
    assert c == np.float16(4096 + 8190)


@pytest.mark.parametrize("dtype", forms.DTYPES)
def test_every_product_is_added_once(host_library, dtype):
    """Of ones: what is dropped or added twice at the end of an odd k is a whole number (of bool: nothing shows)."""
    kind = forms.numpy_dtype(dtype)
    for k in (1, 33, 129, 1025):
        with products.naming(f"k = {k}"):
            a, b = made(host_library, np.ones((2, k), kind)), made(host_library, np.ones((k, 3), kind))
            assert (host_library.to_numpy(interop.matmul(a, b)) == np.asarray(k).astype(kind)).all()


@pytest.mark.parametrize("dtype", forms.FLOATS)
def test_special_values(host_library, dtype):
    x, y, expected = forms.special(dtype)
    with np.errstate(all="ignore"):
        got = host_library.to_numpy(interop.matmul(made(host_library, x), made(host_library, y)))
    if host_library.name == "jax":  # XLA may flush subnormal numbers
        got[3:5], expected[3:5] = 0, 0
    assert np.array_equal(got.astype("float64"), expected.astype("float64"), equal_nan=True)


@pytest.mark.parametrize("second", forms.FLOAT8)
@pytest.mark.parametrize("first", forms.FLOAT8)
def test_float8(host_library, first, second):
    x, y = forms.draw((16, 32), first, 1), forms.draw((32, 48), second, 2)
    a, b = made(host_library, x), made(host_library, y)
    c = interop.matmul(a, b, scale_a=0.5, scale_b=np.float32(3))
    assert host_library.dtype(c) == "bfloat16"
    forms.check(host_library.to_numpy(c), x, y, "bfloat16", alpha=1.5)
    scale = made(host_library, np.full((1,), 0.25, "float32"))
    for dtype in ("float16", "float32"):
        c = interop.matmul(a, b, scale_b=scale, dtype=dtype)
        assert host_library.dtype(c) == dtype
        forms.check(host_library.to_numpy(c), x, y, dtype, alpha=0.25)


def test_bool_is_or_of_ands(host_library):
    x = np.ones((2, 256), bool)  # 256 and 65536 are 0 in narrower integers
    assert host_library.to_numpy(interop.matmul(made(host_library, x), made(host_library, x.T.copy()))).all()


def test_conjugated_tensors_are_what_they_read(torch):
    x, y = (torch.from_numpy(forms.draw(shape, "complex64", seed)) for seed, shape in enumerate([(3, 5), (4, 5)]))
    for a, b in ((x.conj(), y.T), (x, y.mH), (x.conj(), y.mH), (x.mH.T, y.T.conj())):
        expected = a.resolve_conj() @ b.resolve_conj()
        assert torch.allclose(interop.matmul(a, b), expected, rtol=1e-5)


# ---- c=, factors, bias= ----


def scalars(dtype):
    return (3, -2) if dtype in forms.INTEGERS and dtype[0] == "i" else (3, 2) if dtype in forms.INTEGERS else (0.5, -2)


@pytest.mark.parametrize("dtype", forms.DTYPES[1:])
@pytest.mark.parametrize("shapes", [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (5,))], ids=products.shape_id)
def test_all_terms(host_library, dtype, shapes):
    a, b, x, y = operands(host_library, shapes, dtype)
    shape = np.matmul(np.zeros(shapes[0]), np.zeros(shapes[1])).shape
    c, bias = forms.draw(shape, dtype, 3), forms.draw(shape[-1:], dtype, 4)
    alpha, beta = scalars(dtype)
    given = {"c": made(host_library, c), "alpha": alpha, "beta": beta, "bias": made(host_library, bias)}
    got = interop.matmul(a, b, **given)
    assert host_library.dtype(got) == dtype
    forms.check(host_library.to_numpy(got), x, y, dtype, c=c, alpha=alpha, beta=beta, bias=bias)


def test_c_broadcasts_and_beta_is_one_with_it(host_library):
    a, b, x, y = operands(host_library, ((2, 3, 5), (5, 4)), "float32")
    for shape in ((4,), (3, 1), (2, 1, 1), ()):
        c = forms.draw(shape, "float32", 3)
        got = interop.matmul(a, b, c=made(host_library, c))
        forms.check(host_library.to_numpy(got), x, y, "float32", c=c)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 4), (1, 3, 1), ()], ids=str)
def test_bias_is_a_row_or_a_column(host_library, shape):
    a, b, x, y = operands(host_library, ((2, 3, 5), (5, 4)), "float32")
    bias = forms.draw(shape, "float32", 3)
    got = interop.matmul(a, b, bias=made(host_library, bias))
    forms.check(host_library.to_numpy(got), x, y, "float32", bias=bias)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_a_factor_of_zero_reads_nothing(host_library, dtype):
    nan, one = np.full((2, 2), np.nan, dtype), np.ones((2, 2), dtype)
    got = interop.matmul(made(host_library, nan), made(host_library, one), c=made(host_library, one), alpha=0)
    assert (host_library.to_numpy(got) == 1).all()
    got = interop.matmul(made(host_library, one), made(host_library, one), c=made(host_library, nan), beta=0.0)
    assert (host_library.to_numpy(got) == 2).all()


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
def test_out_may_be_c(host_view_library, dtype):
    library = host_view_library
    a, b, x, y = operands(library, ((3, 5), (5, 4)), dtype)
    c = forms.draw((3, 4), dtype, 3)
    out = made(library, c)
    assert interop.matmul(a, b, c=out, out=out) is out
    forms.check(library.to_numpy(out), x, y, dtype, c=c)


def test_out_may_not_be_c_shifted_by_one():
    base = np.zeros((4, 4), "float32")
    x = np.ones((3, 3), "float32")
    for c, out in ((base[:3, :3], base[1:, :3]), (base[0, :3], base[:3, :3])):
        with pytest.raises(ValueError, match="out shares memory with c"):
            interop.matmul(x, x, c=c, out=out)


# ---- epilogues ----


@pytest.mark.parametrize("dtype", forms.FLOATS)
@pytest.mark.parametrize("epilogue", forms.EPILOGUES)
def test_epilogues(host_library, dtype, epilogue):
    a, b, x, y = operands(host_library, ((7, 5), (5, 6)), dtype)
    bias = forms.draw((6,), dtype, 3)
    got = interop.matmul(a, b, bias=made(host_library, bias), epilogue=epilogue)
    forms.check(host_library.to_numpy(got), x, y, dtype, bias=bias, epilogue=epilogue)


@pytest.mark.parametrize("epilogue", forms.EPILOGUES)
def test_aux_is_what_the_epilogue_is_given(host_view_library, epilogue):
    library = host_view_library
    a, b, x, y = operands(library, ((7, 5), (5, 6)), "float32")
    c = forms.draw((7, 6), "float32", 3)
    base, view = products.LAYOUTS["sliced"]((7, 6), "float32", 4)
    made_base = library.make(base)
    aux = library.view_of(made_base, base, view)
    got = interop.matmul(a, b, c=library.make(c), epilogue=epilogue, aux=aux)
    forms.check(library.to_numpy(got), x, y, "float32", c=c, epilogue=epilogue)
    forms.check(library.to_numpy(aux), x, y, "float32", c=c)
    view[...] = library.to_numpy(aux)
    assert np.array_equal(library.to_numpy(made_base), base, equal_nan=True)  # nothing else was written


@pytest.mark.parametrize("epilogue", forms.EPILOGUES)
def test_epilogues_of_special_values(host_library, epilogue):
    x = np.array([[math.nan], [math.inf], [-1e30], [0.0]], "float32")
    one = np.ones((1, 1), "float32")
    got = host_library.to_numpy(interop.matmul(made(host_library, x), made(host_library, one), epilogue=epilogue))[:, 0]
    assert np.isnan(got[0])
    assert got[1:].tolist() == [math.inf, 0, 0]


# ---- what is refused ----

X = np.ones((2, 2), "float32")
Y = X.copy()
I8 = np.ones((2, 2), "int8")
BAD = {
    "beta alone": (ValueError, "beta is given, and there is no c for it to multiply; accepted: both", X, {"beta": 1}),
    "epilogue": (ValueError, r"epilogue is 'tanh'; accepted: None, 'relu', 'gelu' \(exact\), 'gelu_tanh'", X,
                 {"epilogue": "tanh"}),
    "epilogue of integers": (TypeError, "epilogue is given, and the result is int8; accepted: a result of float16", I8,
                             {"epilogue": "relu"}),
    "aux alone": (ValueError, "aux is given, and there is no epilogue, before which", X, {"aux": X.copy()}),
    "aux of another shape": (ValueError, r"aux has shape \(2,\); accepted: the result's shape, \(2, 2\)", X,
                             {"aux": X[0].copy(), "epilogue": "relu"}),
    "aux that is read": (ValueError, "aux shares memory with c", X, {"aux": Y, "c": Y, "epilogue": "relu"}),
    "read-only aux": (TypeError, "aux .* is read-only; accepted: a writable array", X,
                      {"aux": np.frombuffer(bytes(16), "f4").reshape(2, 2), "epilogue": "relu"}),
    "c of another dtype": (TypeError, "c is int8; accepted: the result's dtype, float32", X, {"c": I8}),
    "c of another shape": (ValueError, r"c has shape \(3,\); accepted: one that broadcasts to the result's, \(2, 2\)",
                           X, {"c": np.ones(3, "f4")}),
    "bias of both": (ValueError, r"bias has shape \(2, 2\); accepted: a row \(n,\) or a column \(m, 1\)", X,
                     {"bias": X}),
    "a fraction beside integers": (TypeError, r"alpha is 0.5 \(float\), and the product is int8; accepted: an integer",
                                   I8, {"alpha": 0.5}),
    "a complex factor": (TypeError, r"alpha is 1j \(complex\), and the product is float32; accepted: a real number", X,
                         {"alpha": 1j}),
    "an array as factor": (TypeError, r"beta is .* \(ndarray\), and the product is float32", X, {"c": X, "beta": X}),
    "a factor out of range": (OverflowError, "alpha is 300, which int8 cannot hold", I8, {"alpha": 300}),
    "factors of bool": (TypeError, "alpha is 2 .* the product is bool; accepted: 1", X > 0, {"alpha": 2}),
    "c of bool": (TypeError, "c is given, and the product is bool, which is not added to", X > 0, {"c": X > 0}),
    "scale": (ValueError, r"scale_a is given, and the operands are float32; accepted: None, or float8 operands", X,
              {"scale_a": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused_terms(what):
    exception, match, x, options = BAD[what]
    with pytest.raises(exception, match=f"^interop.matmul: {match}"):
        interop.matmul(x, x, **options)


def test_refused_scales():
    eight = np.ones((2, 2), ml_dtypes.float8_e5m2)
    with pytest.raises(ValueError, match=r"scale_b is float32 of shape \(2,\); accepted: a scalar, or one float32"):
        interop.matmul(eight, eight, scale_b=np.ones(2, "float32"))
    with pytest.raises(TypeError, match="dtype is float64; accepted for float8: None, bfloat16, float16, float32"):
        interop.matmul(eight, eight, dtype="float64")


# ---- any of them together ----


@given(st.data())
def test_property(data):
    dtype = data.draw(st.sampled_from(forms.DTYPES[1:]))
    names = ["numpy", *(["torch"] if dtype not in ("uint16", "uint32", "uint64") else [])]
    library = libraries.by_name(data.draw(st.sampled_from(names)))
    m, n, k = (data.draw(st.integers(0, 9)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    kind = forms.numpy_dtype(dtype)

    def view(shape):
        return data.draw(forms.strided(shape, dtype, library.negative))

    (base_x, x), (base_y, y) = view((*batch, m, k)), view((k, n))
    options = {}
    if data.draw(st.booleans()):
        options["c"] = view((m, n))[1].copy()
        options["beta"] = data.draw(st.sampled_from([0, 1, 2]))
    if data.draw(st.booleans()):
        options["bias"] = np.arange(n).astype(kind)
    options["alpha"] = data.draw(st.sampled_from([0, 1, 3]))
    if dtype in forms.FLOATS and data.draw(st.booleans()):
        options["epilogue"] = data.draw(st.sampled_from(forms.EPILOGUES))
    given = {name: library.make(z) if isinstance(z, np.ndarray) else z for name, z in options.items()}
    got = interop.matmul(library.view(base_x, x), library.view(base_y, y), **given)
    forms.check(library.to_numpy(got), x, y, dtype, **options)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (1j, TypeError, r"scale_a is 1j \(complex\); accepted: a real number, or one float32"),
        (10**400, OverflowError, "scale_a is "),
        (
            np.ones(2, "float32"),
            (TypeError, ValueError),
            r"scale_a is .*shape \(2,\); accepted: .*one float32",
        ),
    ],
    ids=["complex", "huge", "two"],
)
def test_scales_that_are_none(host_library, scale, error, message):
    x = made(host_library, np.ones((2, 2)).astype(ml_dtypes.float8_e4m3fn))
    scale = made(host_library, scale) if isinstance(scale, np.ndarray) else scale
    for call in (interop.matmul, lambda a, b, **options: interop.explain(interop.matmul, a, b, **options)):
        with pytest.raises(error, match=f"^interop.matmul: {message}"):
            call(x, x, scale_a=scale)


# ---- gelu ----


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", forms.FLOATS)
def test_gelu_is_right_to_a_few_units_in_the_last_place(host_library, dtype, epilogue, with_bias):
    """Relative to the result also where that is small, of sums that are exact."""
    x = forms.gelu_arguments(dtype)
    a = np.full((3, 1), 0.5 if with_bias else 1).astype(x.dtype)
    options = {"bias": host_library.make(x / x.dtype.type(2))} if with_bias else {}
    result = interop.matmul(host_library.make(a), host_library.make(x[None]), epilogue=epilogue, **options)
    result = host_library.to_numpy(result)
    in_jax = host_library.name == "jax"
    most = 0.51 if dtype in ("float16", "bfloat16") else 8  # 16 bits are rounded once, from float32
    assert result.dtype == x.dtype
    for row in result:
        if in_jax and epilogue == "gelu" and most == 8:  # of the tail of XLA's own erfc
            near = x > -6
            assert forms.gelu_error(row[near], x[near], epilogue) <= 24
            assert forms.gelu_error(row, x, epilogue, flushes=True) <= 512
        else:
            assert forms.gelu_error(row, x, epilogue, flushes=in_jax) <= most


def test_the_bound_of_gelu_tells_a_rounded_argument():
    """What 1 + tanh(x) leaves is not right."""
    x = forms.gelu_arguments("float64")
    naive = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert forms.gelu_error(naive, x, "gelu_tanh") > 1e5


@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
def test_gelu_of_special_values(host_library, epilogue):
    x = np.array([[np.inf, np.nan, 0.0, 1e30, -1e30]], "float32")
    with np.errstate(invalid="ignore"):
        result = interop.matmul(host_library.make(np.ones((1, 1), "float32")), host_library.make(x), epilogue=epilogue)
    result = host_library.to_numpy(result)[0]
    assert result[0] == np.inf
    assert np.isnan(result[1])
    assert result[2:].tolist() == [0, np.float32(1e30), 0]
