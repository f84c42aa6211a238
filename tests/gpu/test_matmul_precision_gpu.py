"""How exact products of device arrays are: each term once, rounded once, TF32 only when asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import libraries, products
from helpers.backends import BACKENDS, matmul

import interop

# ---- sums ----


@BACKENDS
def test_every_product_is_added_once(device_library, dtype, backend):
    """Of ones, a term that is dropped or added twice at the ragged end of k shows as a whole number."""
    for k in (1, 7, 31, 63, 65, 127, 129, 255, 1023, 1025, 4097):
        with products.naming(f"k = {k}"):
            a = device_library.make(np.ones((67, k), dtype))
            b = device_library.make(np.ones((k, 70), dtype))
            assert (device_library.to_numpy(interop.matmul(a, b, backend=backend)) == k).all()


@pytest.mark.parametrize("backend", [None, "cublas"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float16", {"dtype": "float32"}),
        ("bfloat16", {"dtype": "float32"}),
        ("float32", {}),
        ("float32", {"precision": "tf32"}),
        ("float64", {}),
        ("complex64", {}),
        ("complex128", {}),
        ("int8", {"dtype": "int32"}),
        ("float8_e4m3fn", {"dtype": "float32"}),
    ],
)
def test_a_divided_k_is_added_whole(torch, dtype, options, backend):
    """Few outputs, so that cuBLASLt divides k; among these k are such as it loses the end of, if left alone."""
    ragged = [64 * tiles + rest for tiles in (16, 45, 60, 90, 135, 180, 420, 900) for rest in (1, 2, 8, 16, 24, 32, 33)]
    for k in (*ragged, 4000, 5001, 10_000, 30_000, 65_530, 100_000):
        for m, n in ((1, 8), (8, 8), (32, 32), (100, 72), (128, 128), (48, 264)):
            a, b = (torch.ones(shape, device="cuda").to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
            for other in (b, b.view(n, k).T):
                c = matmul(a, other, backend=backend, may_refuse=dtype in ("int8", "float8_e4m3fn"), **options)
                assert c is None or bool((c == k).all()), (m, n, k, other.stride())


@pytest.mark.parametrize("backend", [None, "cublas"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_product_is_rounded_once(torch, dtype, order, backend):
    """Each sum is 2**p + 1, which 16 bits do not hold, and -2**p is added: 1, but not if the sum is rounded first.

    Some algorithms of cuBLASLt do that before they add the bias: those that divide k, and some for gelu.
    """
    kind = getattr(torch, dtype)
    most = 256 if dtype == "bfloat16" else 2048

    def addend(rows, columns):
        x = torch.full((rows, columns) if order == "C" else (columns, rows), -most, device="cuda", dtype=kind)
        return x if order == "C" else x.T

    for m, k, n in (
        (65, 33, 130),
        (64, 4096, 64),
        (100, 2048, 104),
        (65, 1033, 130),
        (16, 11520, 16),
        (256, 1000, 264),
    ):
        a, b = torch.ones((m, k), device="cuda", dtype=kind), torch.zeros((k, n), device="cuda", dtype=kind)
        b[0], b[k // 2], b[k - 1] = most - 1, 1, 1
        bias, c = addend(1, n)[0] if order == "C" else addend(m, 1), addend(m, n)
        for terms, added in (
            ({}, 0),
            ({"bias": bias}, -most),
            ({"c": c}, -most),
            ({"bias": bias, "c": torch.zeros_like(c)}, -most),
        ):
            exact = torch.full((m, n), most + 1 + added, device="cuda", dtype=torch.float64)
            activated = {"relu": exact, "gelu_tanh": torch.nn.functional.gelu(exact, approximate="tanh")}
            for epilogue in (None, "relu", "gelu_tanh"):
                for aux in (None, torch.empty_like(c)) if epilogue else (None,):
                    options = {**terms, "epilogue": epilogue, "aux": aux}
                    got = matmul(a, b, out=torch.empty_like(c), backend=backend, may_refuse=True, **options)
                    if got is None:
                        continue
                    near = {"rtol": 2.0**-7, "atol": 0} if epilogue == "gelu_tanh" else {"rtol": 0, "atol": 0}
                    torch.testing.assert_close(got, activated.get(epilogue, exact).to(kind), **near)
                    assert aux is None or torch.equal(aux, exact.to(kind)), (m, k, n, options)


def test_gelu_of_float8_is_cublas_which_rounds_it_once(torch):
    """That rule takes some of cuBLASLt's algorithms, and must leave one; known on Hopper, with cuBLASLt 13."""
    is_known = interop._core.machine_info()["devices"][0]["compute_capability"] == (9, 0)
    version = interop._core.machine_info()["cublas"]
    for m, k, n in ((128, 1024, 1024), (1024, 1024, 4096), (2048, 2048, 2048)):
        a, b = (torch.ones(shape, device="cuda").to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
        b = b.T
        options = {"epilogue": "gelu_tanh", "bias": torch.zeros(n, device="cuda", dtype=torch.bfloat16)}
        options["dtype"] = "bfloat16"
        algorithm = interop.explain(interop.matmul, a, b, **options).algorithm
        assert algorithm.startswith("cuBLASLt ") or not (is_known and version.startswith("13.")), algorithm
        assert bool((interop.matmul(a, b, **options) == k).all())


@BACKENDS
def test_special_values(device_library, dtype, backend):
    x, y, expected = products.special_values(dtype)
    c = interop.matmul(device_library.make(x), device_library.make(y), backend=backend)
    assert np.array_equal(device_library.to_numpy(c), expected, equal_nan=True)


@BACKENDS
def test_special_values_stay_in_their_row_and_column(device_library, dtype, backend):
    x, y = np.ones((130, 140), dtype), np.ones((140, 150), dtype)
    x[77, 139], y[0, 149] = np.nan, np.inf
    c = device_library.to_numpy(interop.matmul(device_library.make(x), device_library.make(y), backend=backend))
    assert np.isnan(c[77]).all()
    assert (np.delete(c[:, 149], 77) == np.inf).all()
    assert (np.delete(np.delete(c, 77, 0), 149, 1) == 140).all()


# ---- precision ----

EXACT = """
import numpy as np, sys
import interop
sys.path.insert(0, sys.argv[1])
from helpers import libraries

x = np.full((512, 512), 1 + 2.0**-12, "float32")  # TF32 has ten bits of fraction
for library in libraries.DEVICE:
    try:
        library.load()
    except BaseException as error:  # pytest's skip
        print(repr(library), error)
        continue
    for backend in (None, "tiled", "cublas"):
        a, one = library.make(x), library.make(np.eye(512, dtype="float32"))
        c = library.to_numpy(interop.matmul(a, one, backend=backend))
        assert np.array_equal(c, x), (repr(library), backend)
    print(repr(library), "exact")
"""


@BACKENDS
def test_float32_is_exact(device_library, backend):
    x = np.full((512, 512), 1 + 2.0**-12, "float32")
    a, one = device_library.make(x), device_library.make(np.eye(512, dtype="float32"))
    assert np.array_equal(device_library.to_numpy(interop.matmul(a, one, backend=backend)), x)


@pytest.mark.parametrize("override", ["0", "1"])
def test_float32_is_exact_whatever_nvidia_tf32_override_says(tmp_path, override, torch):
    (tmp_path / "helpers").symlink_to(libraries.__file__.rpartition("/")[0])
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": override}
    command = [sys.executable, "-c", EXACT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch-cuda exact" in done.stdout


def test_float32_is_exact_whatever_torch_allows(torch):
    library = libraries.by_name("torch", "cuda")
    x = np.full((512, 512), 1 + 2.0**-12, "float32")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        c = interop.matmul(library.make(x), library.make(np.eye(512, dtype="float32")))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert np.array_equal(library.to_numpy(c), x)


@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_tf32_is_as_exact_as_tf32(device_library, backend):
    x = products.draw((1024, 1024), "float32", 1)
    a = device_library.make(x)
    c = device_library.to_numpy(interop.matmul(a, a, precision="tf32", backend=backend))
    expected = products.exact(x, x)
    error = np.linalg.norm(c - expected) / np.linalg.norm(expected)
    assert error < 2e-3  # what TF32 gives is about 3e-4; on cards without it, far less


@pytest.mark.parametrize("backend", [None, "tiled"])
def test_tf32x3_is_as_exact_as_float32(device_library, backend):
    x = products.draw((1024, 1024), "float32", 1)
    a = device_library.make(x)
    c = device_library.to_numpy(interop.matmul(a, a, precision="tf32x3", backend=backend))
    expected = products.exact(x, x)
    assert np.linalg.norm(c - expected) / np.linalg.norm(expected) < 2e-6


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_tf32_of_float64_is_float64(device_library, precision):
    x, y, expected, magnitude = products.listed(((131, 257), (257, 67)), "float64")
    c = interop.matmul(device_library.make(x), device_library.make(y), precision=precision)
    products.check_product(device_library.to_numpy(c), x, y, expected, magnitude)


# ---- the same bits ----


@BACKENDS
def test_the_same_call_gives_the_same_bits(device_library, dtype, backend):
    shapes = ((193, 2048), (2048, 200))
    a, b, _, _ = products.pair(device_library, shapes, dtype)
    first = device_library.to_numpy(interop.matmul(a, b, backend=backend))
    for _ in range(5):
        device_library.poison()
        again = device_library.to_numpy(interop.matmul(a, b, backend=backend))
        assert again.tobytes() == first.tobytes()
