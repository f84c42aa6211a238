"""`interop.matmul` of device arrays with all its terms, by both backends.

Dtypes: test_matmul_dtypes_gpu.py. Biases and activations, and aux: test_matmul_epilogues_gpu.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import forms, libraries, products
from helpers.backends import BACKENDS
from helpers.forms import made, matmul, operands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interop

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
