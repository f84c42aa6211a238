"""`interop.matmul` of device arrays in every dtype, by both backends."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import forms, libraries, products
from helpers.backends import BACKENDS
from helpers.forms import made, matmul, operands

import interop

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


def test_explain_says_what_is_converted(torch):
    a, b = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda", dtype=torch.float64)
    explained = interop.explain(interop.matmul, a, b)
    assert "a is converted to float64 first, in the workspace" in explained.algorithm
    assert explained.workspace_bytes >= 64 * 64 * 8


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
