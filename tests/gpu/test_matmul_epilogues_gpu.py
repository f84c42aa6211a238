"""A bias, activations and aux of `interop.matmul` on the GPU: by cuBLASLt, by a second kernel behind it, or by ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import forms, libraries, products
from helpers.backends import BACKENDS
from helpers.forms import matmul, operands

import interop

# ---- a bias, activations, aux ----


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


# ---- gelu, to the last places ----


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
