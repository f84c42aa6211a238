"""`interop.matmul` of device arrays in every dtype, with all its terms, by both backends."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import forms, libraries, products
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interop

BACKENDS = pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
SHAPES = (
    ((1, 1), (1, 1)),
    ((65, 33), (33, 129)),
    ((131, 257), (257, 67)),
    ((256, 128), (128, 256)),
    ((3, 64, 48), (48, 80)),
    ((4, 1, 2, 7), (3, 7, 2)),
    ((300,), (300,)),
    ((3, 0), (0, 4)),
)


def matmul(a, b, *, backend, **options):
    """The product; None where cuBLASLt was asked for by name and says that it cannot."""
    try:
        return interop.matmul(a, b, backend=backend, **options)
    except ValueError as error:
        if backend != "cublas" or 'backend="cublas" cannot take this product: ' not in str(error):
            raise
    return None


def made(library, x):
    try:
        return library.make(x)
    except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError) as error:
        pytest.skip(f"{library!r} has no {x.dtype}: {error}")


def operands(library, shapes, dtype):
    x, y = forms.draw(shapes[0], dtype, 1), forms.draw(shapes[1], dtype, 2)
    return made(library, x), made(library, y), x, y


# ---- dtypes ----


@BACKENDS
@pytest.mark.parametrize("dtype", forms.DTYPES)
def test_values(device_library, dtype, backend):
    for shapes in SHAPES:
        with products.naming(str(shapes)):
            a, b, x, y = operands(device_library, shapes, dtype)
            device_library.poison()
            c = matmul(a, b, backend=backend)
            if c is None:
                continue
            assert device_library.is_ours(c)
            assert device_library.dtype(c) == dtype
            forms.check(device_library.to_numpy(c), x, y, dtype)


# Those of which cuBLASLt must take compact arrays.
OF_CUBLAS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", OF_CUBLAS)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_cublas_takes_every_order(torch, dtype, transposed):
    library = libraries.by_name("torch", "cuda")
    x, y = forms.draw((256, 128), dtype, 1), forms.draw((128, 64), dtype, 2)
    a, b = (library.make(z.T.copy()).T if t else library.make(z) for z, t in zip((x, y), transposed, strict=True))
    forms.check(library.to_numpy(interop.matmul(a, b, backend="cublas")), x, y, dtype)


@pytest.mark.parametrize("dtype", forms.DTYPES)
@pytest.mark.parametrize("layout", ["transposed", "sliced", "padded", "offset", "reversed", "repeated rows", "windows"])
def test_layouts(device_view_library, dtype, layout):
    library = device_view_library
    if layout in products.NEGATIVE and not library.negative:
        return
    base, x = products.LAYOUTS[layout]((3, 37, 19), "float32", 1)
    kind = forms.numpy_dtype(dtype)
    wide = np.where(np.isnan(base), 77, base * 10).astype(kind)
    steps = [step // 4 * kind.itemsize for step in x.strides]
    start = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4
    view = np.lib.stride_tricks.as_strided(wide.reshape(-1)[start:], x.shape, steps)
    y = forms.draw((19, 70), dtype, 2)
    b = made(library, y)
    forms.check(library.to_numpy(interop.matmul(library.view(wide, view), b)), view, y, dtype)


@BACKENDS
@pytest.mark.parametrize("dtype", forms.DTYPES)
def test_every_product_is_added_once(device_library, dtype, backend):
    """Of ones: what is dropped or added twice at the ragged end of k is a whole number (of bool: nothing shows)."""
    for k in (1, 7, 33, 129, 257):
        with products.naming(f"k = {k}"):
            kind = forms.numpy_dtype(dtype)
            a, b = made(device_library, np.ones((67, k), kind)), made(device_library, np.ones((k, 70), kind))
            c = matmul(a, b, backend=backend)
            if c is not None:
                assert (device_library.to_numpy(c) == np.asarray(k).astype(kind)).all()


@BACKENDS
@pytest.mark.parametrize("dtype", forms.FLOATS)
@pytest.mark.parametrize("sides", [(8, 2, 5), (256, 64, 128)], ids=str)
def test_special_values(device_library, dtype, sides, backend):
    """Of a small product, and of one for tensor cores."""
    x, y, expected = forms.special(dtype, sides)
    a, b = made(device_library, x), made(device_library, y)
    c = matmul(a, b, backend=backend)
    if c is not None:
        got = device_library.to_numpy(c)
        assert np.array_equal(got.astype("float64"), expected.astype("float64"), equal_nan=True)


@BACKENDS
@pytest.mark.parametrize("dtype", [*forms.FLOATS, *forms.COMPLEX])
def test_nan_stays_in_its_row_and_column(torch, dtype, backend):
    library = libraries.by_name("torch", "cuda")
    x, y = np.ones((136, 144), forms.numpy_dtype(dtype)), np.ones((144, 152), forms.numpy_dtype(dtype))
    x[77, 143], y[0, 151] = math.nan, math.nan
    c = library.to_numpy(interop.matmul(library.make(x), library.make(y), backend=backend)).astype("complex128")
    is_nan = np.zeros(c.shape, bool)
    is_nan[77], is_nan[:, 151] = True, True
    assert np.array_equal(np.isnan(c), is_nan)
    assert (c[~is_nan] == 144).all()


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        ("float32", "float64", None),
        ("int8", "int8", "int32"),
        ("int8", "uint8", "int32"),
        ("uint8", "uint8", "int64"),
        ("int32", "float64", None),
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "bfloat16", None),
        ("float16", "float32", None),
        ("complex64", "float32", None),
        ("bool", "int16", None),
    ],
)
def test_mixed_dtypes_and_wider_results(torch, first, second, dtype):
    library = libraries.by_name("torch", "cuda")
    for shapes in (((65, 300), (300, 40)), ((2, 128, 256), (256, 64))):
        x, y = forms.draw(shapes[0], first, 1), forms.draw(shapes[1], second, 2)
        a, b = library.make(x), library.make(y)
        result = dtype or str(torch.promote_types(a.dtype, b.dtype)).removeprefix("torch.")
        kind = forms.numpy_dtype(result)
        for left, right in ((a, b), (a[..., ::2, :], b), (a[:, :1].expand(a.shape) if a.ndim == 3 else a, b)):
            c = interop.matmul(left, right, dtype=dtype)
            assert library.dtype(c) == result
            x_read = library.to_numpy(left.contiguous())
            forms.check(library.to_numpy(c), x_read.astype(kind), y.astype(kind), result)


@BACKENDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("first", forms.FLOAT8)
def test_float8(torch, first, dtype, backend):
    library = libraries.by_name("torch", "cuda")
    x, y = forms.draw((64, 128), first, 1), forms.draw((128, 96), "float8_e4m3fn", 2)
    a, b = library.make(x), library.make(y.T.copy()).T  # the layout of tensor cores
    scale = torch.full((1,), 0.25, device="cuda")
    c = matmul(a, b, scale_a=scale, scale_b=3.0, dtype=dtype, backend=backend)
    if backend == "cublas":
        assert c is not None
    # Tensor cores add float8 products up in fewer bits than float32 has.
    forms.check(library.to_numpy(c), x, y, dtype, alpha=0.75, unit_roundoff=2.0**-14)


@BACKENDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("epilogue", [None, "relu", "gelu_tanh"])
def test_float8_with_a_bias(torch, epilogue, dtype, backend):
    """cuBLASLt takes a bias of 16 bits beside a float32 result, whatever it points to."""
    library = libraries.by_name("torch", "cuda")
    x, y = forms.draw((64, 128), "float8_e4m3fn", 1), forms.draw((128, 96), "float8_e4m3fn", 2)
    bias = forms.draw((96,), dtype, 3)
    a, b = library.make(x), library.make(y.T.copy()).T
    c = matmul(a, b, bias=library.make(bias), epilogue=epilogue, dtype=dtype, backend=backend)
    if c is not None:
        u = HARDWARE_TANH if may_be_cublas_gelu("float8_e4m3fn", epilogue, backend) else 2.0**-14
        forms.check(library.to_numpy(c), x, y, dtype, bias=bias, epilogue=epilogue, unit_roundoff=u)
    if backend == "cublas":
        assert (c is None) == (dtype == "float32")


def test_int8_products_of_cublas_are_exact(torch):
    library = libraries.by_name("torch", "cuda")
    x, y = forms.draw((64, 128), "int8", 1), forms.draw((128, 96), "int8", 2)
    c = matmul(library.make(x), library.make(y.T.copy()).T, dtype="int32", backend="cublas")
    if c is not None:
        forms.check(library.to_numpy(c), x.astype("int32"), y.astype("int32"), "int32")


@pytest.mark.parametrize("dtype", forms.COMPLEX)
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_conjugated_tensors_are_flags(torch, dtype, backend):
    library = libraries.by_name("torch", "cuda")
    for n in (3, 200):
        x, y = forms.draw((n, n), dtype, 1), forms.draw((n, n), dtype, 2)
        a, b = library.make(x), library.make(y)
        out = torch.empty(n, n, dtype=a.dtype, device="cuda").T
        for left, right, x_read, y_read in (
            (a.conj(), b, x.conj(), y), (a, b.mH, x, y.conj().T), (a.mH, b.conj(), x.conj().T, y.conj()),
            (a.T, b.mH, x.T, y.conj().T), (a.mH, b, x.conj().T, y),
        ):  # fmt: skip
            explained = interop.explain(interop.matmul, left, right, backend=backend)
            assert explained.copies == ()
            forms.check(library.to_numpy(interop.matmul(left, right, backend=backend)), x_read, y_read, dtype)
            interop.matmul(left, right, out=out, backend=backend)
            forms.check(library.to_numpy(out.contiguous()), x_read, y_read, dtype)


# ---- terms ----


def scalars(dtype):
    return (3, 2) if dtype in forms.INTEGERS else (0.5, -2)


@BACKENDS
@pytest.mark.parametrize("dtype", forms.DTYPES[1:])
def test_all_terms(device_library, dtype, backend):
    alpha, beta = scalars(dtype)
    for shapes in (((65, 33), (33, 130)), ((256, 64), (64, 128)), ((2, 40, 33), (33, 40)), ((65, 33), (33,))):
        with products.naming(str(shapes)):
            a, b, x, y = operands(device_library, shapes, dtype)
            shape = np.matmul(np.zeros(shapes[0]), np.zeros(shapes[1])).shape
            c, bias = forms.draw(shape, dtype, 3), forms.draw(shape[-1:], dtype, 4)
            options = {"c": made(device_library, c), "alpha": alpha, "beta": beta, "bias": made(device_library, bias)}
            got = matmul(a, b, backend=backend, **options)
            if got is not None:
                forms.check(device_library.to_numpy(got), x, y, dtype, c=c, alpha=alpha, beta=beta, bias=bias)


@BACKENDS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("epilogue", [None, *forms.EPILOGUES])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("m", "k", "n"), [(256, 64, 128), (65, 33, 130)])
def test_bias_and_epilogues(torch, dtype, epilogue, order, backend, m, k, n):
    library = libraries.by_name("torch", "cuda")
    a, b, x, y = operands(library, ((m, k), (k, n)), dtype)
    bias = forms.draw((n,) if order == "C" else (m, 1), dtype, 3)
    out = library.make(forms.poison((m, n), dtype))
    out = out if order == "C" else library.make(forms.poison((n, m), dtype)).T
    got = matmul(a, b, bias=library.make(bias), epilogue=epilogue, out=out, backend=backend)
    if backend == "cublas" and epilogue in (None, "relu") and m == 256:
        assert got is not None  # what fused products of other libraries do
    if got is not None:
        forms.check(library.to_numpy(got.contiguous()), x, y, dtype, bias=bias, epilogue=epilogue)


HARDWARE_TANH = 2.0**-12


def may_be_cublas_gelu(dtype, epilogue, backend):
    """Tell whether cuBLASLt's gelu may be used, with the tanh of the hardware: enough for float8."""
    return epilogue == "gelu_tanh" and backend != "tiled" and dtype in forms.FLOAT8


ROUTES = [  # m, k beside 256 columns: skinny ones, with a divided k too; tiles; tensor cores; a divided k of tiles
    *[(1, 1), (1, 64), (2, 4096), (8, 1000), (16, 8192)],
    *[(33, 17), (64, 64), (128, 1024), (256, 4096), (64, 65536), (1024, 1024)],
]


@BACKENDS
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [*forms.FLOATS, "tf32", "tf32x3", "float8_e4m3fn"])
def test_gelu_is_right_to_a_few_units_in_the_last_place(torch, dtype, epilogue, with_bias, backend):
    """Relative to the result also where that is small, by every route, of sums that are exact."""
    options = {"epilogue": epilogue, "backend": backend}
    kind = "float32" if dtype.startswith("tf32") or dtype in forms.FLOAT8 else dtype
    if dtype in forms.FLOAT8:
        options["dtype"] = "float32"
    if dtype.startswith("tf32"):
        options["precision"] = dtype
        if (dtype, backend) == ("tf32x3", "cublas"):
            pytest.skip("cuBLASLt has no tf32x3")
    x = forms.gelu_arguments(kind if dtype not in forms.FLOAT8 else dtype)
    row = torch.from_numpy(x.astype("float64")).cuda()
    if with_bias:
        options["bias"] = (row / 2).to(getattr(torch, kind))
    most = 0.51 if kind in ("float16", "bfloat16") else 8
    for m, k in ROUTES:
        a, b = (torch.zeros(shape, device="cuda", dtype=torch.float64) for shape in ((m, k), (k, 256)))
        a[:, k // 2] = 0.5 if with_bias else 1
        b[k // 2] = row
        a, b = (z.to(getattr(torch, dtype if dtype in forms.FLOAT8 else kind)) for z in (a, b))
        for other in (b, b.T.contiguous().T):
            with products.naming(f"{m} x {k}"):
                got = matmul(a, other, **options)
                if got is None:
                    continue
                assert bool((got == got[:1]).all())
                if may_be_cublas_gelu(dtype, epilogue, backend):
                    exact = torch.nn.functional.gelu(row, approximate="tanh")
                    assert bool(
                        ((got[0].double() - exact).abs() <= HARDWARE_TANH * row.abs() + exact.abs() / 128).all()
                    )
                    continue
                result = got[0].double().cpu().numpy().astype(forms.numpy_dtype(kind))
                assert forms.gelu_error(result, x, epilogue) <= most


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_no_gelu_is_cublas_s_where_its_tanh_would_show(torch, dtype):
    a = torch.ones((1024, 1024), device="cuda", dtype=getattr(torch, dtype))
    for epilogue in ("gelu", "gelu_tanh"):
        algorithm = interop.explain(interop.matmul, a, a, epilogue=epilogue).algorithm
        assert not algorithm.startswith("cuBLASLt") or algorithm.endswith(FINISHED)
        with pytest.raises(ValueError, match="cublas.*gelu"):
            interop.matmul(a, a, epilogue=epilogue, backend="cublas")


# ---- products of cuBLASLt that a kernel of ours finishes in their place ----

FINISHED = "finished by a second kernel"


def empty_in_order(torch, shape, dtype, order):
    """Return a tensor of NaN in some order, and the base of whose elements it has the first, or the last."""
    kind = getattr(torch, dtype)
    if order == "odd address":
        base = torch.full((math.prod(shape) + 1,), math.nan, dtype=kind, device="cuda")
        return base[1:].view(shape), base
    *batch, m, n = shape
    base = torch.full((*batch, n, m) if order == "F" else (*batch, m, n + 20 * (order == "padded")), math.nan,
                      dtype=kind, device="cuda")  # fmt: skip
    return base.mT if order == "F" else base[..., :n], base


def check_finished(torch, x, y, a, b, dtype, order, bias, epilogue, is_finished=True, scale=1.0, **checked):
    """Compute a @ b with all terms, by the route that is expected."""
    library = libraries.by_name("torch", "cuda")
    shape = (*x.shape[:-1], y.shape[-1])
    (out, base), (aux, _), (c, _) = (empty_in_order(torch, shape, dtype, order) for _ in range(3))
    c.copy_(library.make(forms.draw(shape, dtype, 5)))
    options = {"c": c, "alpha": 0.5, "beta": -2, "bias": library.make(bias), "epilogue": epilogue, "out": out}
    options |= {"aux": aux} if epilogue else {}
    options |= {"dtype": dtype, "scale_a": scale} if scale != 1 else {}
    algorithm = interop.explain(interop.matmul, a, b, **options).algorithm
    assert algorithm.endswith(FINISHED) == is_finished, algorithm
    interop.matmul(a, b, **options)
    terms = {"c": library.to_numpy(c.contiguous()), "alpha": 0.5 * scale, "beta": -2, "bias": bias, **checked}
    forms.check(library.to_numpy(out.contiguous()), x, y, dtype, epilogue=epilogue, **terms)
    if epilogue:
        forms.check(library.to_numpy(aux.contiguous()), x, y, dtype, **terms)
    assert int(base.isnan().sum()) == base.numel() - out.numel()  # nothing else was written


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("order", ["C", "F", "odd address", "padded"])
def test_gelu_of_wide_results_is_a_second_kernel(torch, dtype, epilogue, order):
    library = libraries.by_name("torch", "cuda")
    for shapes in (((2, 140, 700), (2, 700, 132)), ((141, 700), (700, 131))):
        with products.naming(str(shapes)):
            a, b, x, y = operands(library, shapes, dtype)
            bias = forms.draw(shapes[1][-1:], dtype, 3)
            check_finished(torch, x, y, a, b, dtype, order, bias, epilogue, order != "padded")


@pytest.mark.parametrize("epilogue", [None, "relu", "gelu"])
@pytest.mark.parametrize("across", [False, True])
def test_a_float32_bias_beside_float8_is_a_second_kernel(torch, epilogue, across):
    library = libraries.by_name("torch", "cuda")
    x, y = forms.draw((160, 704), "float8_e4m3fn", 1), forms.draw((704, 144), "float8_e4m3fn", 2)
    a, b = library.make(x), library.make(y.T.copy()).T  # the layout of tensor cores
    bias = forms.draw((160, 1) if across else (144,), "float32", 3)
    check_finished(torch, x, y, a, b, "float32", "C", bias, epilogue, scale=0.5, unit_roundoff=2.0**-14)


def test_gelu_by_tf32_is_a_second_kernel(torch):
    library = libraries.by_name("torch", "cuda")
    a, b, x, y = operands(library, ((160, 704), (704, 144)), "float32")
    options = {"epilogue": "gelu", "precision": "tf32"}
    assert interop.explain(interop.matmul, a, b, **options).algorithm.endswith(FINISHED)
    forms.check(
        library.to_numpy(interop.matmul(a, b, **options)), x, y, "float32", epilogue="gelu", unit_roundoff=2.0**-11
    )


@BACKENDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("epilogue", forms.EPILOGUES)
def test_aux(torch, dtype, epilogue, backend):
    library = libraries.by_name("torch", "cuda")
    a, b, x, y = operands(library, ((2, 64, 32), (32, 48)), dtype)
    base = library.make(forms.poison((2, 64, 56), dtype))
    aux = base[..., :48]
    got = matmul(a, b, epilogue=epilogue, aux=aux, backend=backend)
    if got is not None:
        forms.check(library.to_numpy(got), x, y, dtype, epilogue=epilogue)
        forms.check(library.to_numpy(aux.contiguous()), x, y, dtype)
    assert bool(base[..., 48:].isnan().all())  # nothing else was written


@BACKENDS
@pytest.mark.parametrize("epilogue", forms.EPILOGUES)
def test_epilogues_of_special_values(torch, epilogue, backend):
    library = libraries.by_name("torch", "cuda")
    x = np.zeros((64, 64), "float32")
    x[:3, 0] = math.nan, math.inf, -1e30
    got = matmul(library.make(x), library.make(np.ones((64, 64), "float32")), epilogue=epilogue, backend=backend)
    if got is not None:
        column = library.to_numpy(got)[:, 5]
        assert np.isnan(column[0])
        assert column[1:5].tolist() == [math.inf, 0, 0, 0]


@BACKENDS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_a_factor_of_zero_reads_nothing(torch, dtype, backend):
    library = libraries.by_name("torch", "cuda")
    nan, one = (library.make(np.full((64, 64), value).astype(forms.numpy_dtype(dtype))) for value in (math.nan, 1))
    assert bool((interop.matmul(nan, one, c=one, alpha=0, backend=backend) == 1).all())
    assert bool((interop.matmul(one, one, c=nan, beta=0, backend=backend) == 64).all())


@BACKENDS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex128"])
def test_out_may_be_c(device_view_library, dtype, backend):
    library = device_view_library
    a, b, x, y = operands(library, ((130, 64), (64, 96)), dtype)
    c = forms.draw((130, 96), dtype, 3)
    out = made(library, c)
    if matmul(a, b, c=out, out=out, beta=2, backend=backend) is not None:
        forms.check(library.to_numpy(out), x, y, dtype, c=c, beta=2)


def test_staged_host_arrays(cuda_device):
    x, y = forms.draw((40, 30), "float32", 1), forms.draw((30, 20), "float32", 2)
    bias, aux = forms.draw((20,), "float32", 3), forms.poison((20, 40), "float32").T
    got = interop.matmul(x, y, bias=bias, epilogue="relu", aux=aux, execution="cuda")
    forms.check(got, x, y, "float32", bias=bias, epilogue="relu")
    forms.check(aux, x, y, "float32", bias=bias)


def test_explain_says_what_is_converted(torch):
    a, b = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda", dtype=torch.float64)
    explained = interop.explain(interop.matmul, a, b)
    assert "a is converted to float64 first, in the workspace" in explained.algorithm
    assert explained.workspace_bytes >= 64 * 64 * 8


def test_memory_is_the_output_and_the_workspace_alone(torch):
    a = torch.ones(512, 1024, device="cuda", dtype=torch.int32)
    bias = torch.ones(512, device="cuda", dtype=torch.int32)
    interop.matmul(a, a.T, bias=bias)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    c = interop.matmul(a, a.T, bias=bias)
    workspace = interop.explain(interop.matmul, a, a.T, bias=bias).workspace_bytes
    assert torch.cuda.max_memory_allocated() - before == c.numel() * 4 + workspace


# ---- the same bits, exactness ----


@BACKENDS
@pytest.mark.parametrize("dtype", OF_CUBLAS)
def test_the_same_call_gives_the_same_bits(torch, dtype, backend):
    library = libraries.by_name("torch", "cuda")
    a, b, _, _ = operands(library, ((193, 2048), (2048, 200)), dtype)
    first = library.to_numpy(interop.matmul(a, b, backend=backend)).tobytes()
    for _ in range(4):
        library.poison()
        assert library.to_numpy(interop.matmul(a, b, backend=backend)).tobytes() == first


EXACT = """
import torch, interop
for dtype in (torch.float32, torch.complex64):
    x = torch.full((512, 512), 1 + 2.0**-12, device="cuda", dtype=dtype)  # TF32 has ten bits of fraction
    one = torch.eye(512, device="cuda", dtype=dtype)
    for backend in (None, "cublas", "tiled"):
        for options in ({}, {"c": torch.zeros_like(x), "beta": 2}):
            assert torch.equal(interop.matmul(x, one, backend=backend, **options), x), (dtype, backend, options)
    if dtype == torch.float32:
        bias = torch.zeros(512, device="cuda")
        assert torch.equal(interop.matmul(x, one, bias=bias, epilogue="relu"), x)
print("exact")
"""


@pytest.mark.parametrize("override", ["0", "1"])
def test_float32_and_complex64_are_exact_whatever_nvidia_tf32_override_says(torch, tmp_path, override):
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": override}
    done = subprocess.run([sys.executable, "-c", EXACT], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "exact\n", done.stderr


# ---- any of them together ----


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_property(torch, data):
    library = libraries.by_name("torch", "cuda")
    dtype = data.draw(st.sampled_from([x for x in forms.DTYPES[1:] if x not in ("uint16", "uint32", "uint64")]))
    side = data.draw(st.sampled_from([5, 40, 150]))
    m, n, k = (data.draw(st.integers(0, side)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (), (1,), (3,), (2, 2)] if side < 150 else [()]))
    written = []  # the array, its base here and there, the view of it

    def tensor(shape, is_written=False):
        base, x = data.draw(forms.strided(shape, dtype, distinct=is_written))
        on_gpu = library.make(base)
        view = library.view_of(on_gpu, base, x)
        if is_written:
            written.append((view, base, on_gpu, x))
        return view, x

    (a, x), (b, y) = tensor((*batch, m, k)), tensor((k, n))
    options, expected = {}, {}

    def add(name, value, array=None):
        options[name], expected[name] = value, value if array is None else array

    if data.draw(st.booleans()):
        add("c", *tensor((*batch, m, n)))
        add("beta", data.draw(st.sampled_from([0, 1, 2])))
    if data.draw(st.booleans()):
        add("bias", *tensor(data.draw(st.sampled_from([(n,), (m, 1)]))))
    add("alpha", data.draw(st.sampled_from([0, 1, 3])))
    if dtype in forms.FLOATS and data.draw(st.booleans()):
        add("epilogue", data.draw(st.sampled_from(forms.EPILOGUES)))
        if data.draw(st.booleans()):
            options["aux"] = tensor((*batch, m, n), is_written=True)[0]
    if data.draw(st.booleans()):
        options["out"] = tensor((*batch, m, n), is_written=True)[0]
    backend = data.draw(st.sampled_from([None, "tiled", "cublas"]))
    got = matmul(a, b, backend=backend, **options)
    if got is not None:
        forms.check(library.to_numpy(got), x, y, dtype, **expected)
        if "aux" in options:
            forms.check(library.to_numpy(options["aux"]), x, y, dtype, **{**expected, "epilogue": None})
    for view, base, on_gpu, x in written:
        if got is not None:
            x[...] = library.to_numpy(view)
        assert np.array_equal(library.to_numpy(on_gpu), base)  # nothing else was written
