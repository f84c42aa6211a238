"""Device time of products, by each backend beside torch, CuPy, JAX and nvmath."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import interop
from interop import _core
from interop._commands.bench.measure import (
    Row,
    bind,
    device_times,
    event_time,
    torch_stream_in_cupy,
    try_import,
    warm_up,
)
from interop._libraries.jax import jax_has_cuda

__all__ = ["run"]

_L2_BYTES = 128 << 20  # twice the largest L2 cache in use: what the buffers of a cold measurement must exceed


Operands = tuple[Any, Any, Any]


_LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}


@dataclasses.dataclass(frozen=True)
class _Product:
    """One product to be timed: shapes as in a @ b, dtypes by torch's names."""

    group: str
    dtype: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    layout: str = "NN"
    precision: Literal["tf32", "tf32x3"] | None = None
    result: str | None = None  #: another dtype than the operands'

    @property
    def operations(self) -> float:
        """Multiplications and additions; of complex numbers, those of their parts."""
        count = 2.0 * math.prod(self.a) * self.b[-1]
        return count * 4 if self.dtype.startswith("complex") else count

    @property
    def name(self) -> str:
        shapes = "@".join("x".join(map(str, shape)) for shape in (self.a, self.b))
        return f"{self.precision or self.dtype} {shapes} {self.layout}"


def _products() -> Iterable[_Product]:
    """Yield the products of the protocol, dtype by dtype."""

    def squares(
        dtype: str, sizes: Iterable[int], layouts: Iterable[str] = _LAYOUTS, **options: Any
    ) -> Iterable[_Product]:
        for n in sizes:
            for layout in layouts:
                yield _Product("square", dtype, (n, n), (n, n), layout, **options)

    yield from squares("float32", (512, 1024, 2048, 4096, 8192))
    for precision in ("tf32", "tf32x3"):
        yield from squares("float32", (1024, 2048, 4096, 8192), precision=precision)
    for dtype in ("float16", "bfloat16"):
        yield from squares(dtype, (512, 1024, 2048, 4096, 8192))
    yield from squares("float64", (1024, 2048, 4096))
    for dtype in ("int32", "int64", "complex64", "complex128"):
        yield from squares(dtype, (1024, 2048, 4096))
    yield from squares("int8", (2048, 4096), result="int32")
    for dtype in ("float32", "bfloat16"):
        for m in (1, 16, 128, 4096):
            for n, k in ((4096, 4096), (11008, 4096)):
                yield _Product("language model", dtype, (m, k), (k, n), "NT")
        yield _Product("language model", dtype, (4096, 14336), (14336, 4096), "NT")
        for m, n, k in ((8192, 8192, 128), (65536, 64, 64), (256, 256, 65536)):
            yield _Product("long", dtype, (m, k), (k, n))
        for m, n, k in ((1023, 1023, 1023), (4095, 4095, 4095), (1000, 1003, 1001)):
            yield _Product("odd", dtype, (m, k), (k, n))
    for layout, rows in (("NT", (8, 32, 64)), ("NN", (1, 8, 32, 64))):
        for m in rows:
            yield _Product("few rows", "bfloat16", (m, 4096), (4096, 4096), layout)
    for m in (32, 64):
        yield _Product("few rows", "bfloat16", (m, 4096), (4096, 11008), "NT")
    yield _Product("few rows", "bfloat16", (8, 7168), (7168, 256), "NT")  # the router of a mixture of experts
    yield _Product("few tiles", "float32", (256, 4096), (4096, 11008), "NT")
    for dtype in ("float16", "bfloat16"):
        yield _Product("few tiles", dtype, (256, 256), (256, 256))
        yield _Product("batched", dtype, (20_000, 16, 16), (20_000, 16, 16))
        yield _Product("batched", dtype, (8192, 32, 32), (8192, 32, 32))
    for dtype in ("float32", "float16", "bfloat16"):
        yield _Product("batched", dtype, (64, 512, 512), (64, 512, 512))
        yield _Product("batched", dtype, (1024, 64, 64), (1024, 64, 64))
        yield _Product("batched", dtype, (32, 1024, 512), (512, 1024))
        yield _Product("batched", dtype, (4096, 16, 16), (4096, 16, 16))
        yield _Product("batched", dtype, (256, 1, 128), (256, 128, 2048), "NT")  # attention: one token's scores,
        yield _Product("batched", dtype, (256, 1, 2048), (256, 2048, 128))  # and what it takes from the values


def _random(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        x = torch.rand(shape, device="cuda", dtype=torch.complex64 if dtype.is_complex else torch.float32)
        return (x * 2 - 1).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, device="cuda", dtype=dtype)


def _operands(torch: Any, product: _Product, count: int) -> list[Operands]:
    dtype = getattr(torch, product.dtype)

    def matrix(shape: tuple[int, ...], transposed: bool) -> Any:
        if not transposed:
            return _random(torch, shape, dtype)
        return _random(torch, (*shape[:-2], shape[-1], shape[-2]), dtype).mT

    left, right = _LAYOUTS[product.layout]
    shape = (*product.a[:-1], product.b[-1])
    result = getattr(torch, product.result or product.dtype)
    return [
        (matrix(product.a, left), matrix(product.b, right), torch.empty(shape, device="cuda", dtype=result))
        for _ in range(count)
    ]


_BOUNDS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 5e-3, "float64": 1e-14, "complex64": 2e-6, "complex128": 1e-14}


def _check_rows(torch: Any, product: _Product, backend: str, operands: Operands) -> None:
    """Raise if the first rows of a product differ from it in higher precision; integers must be exact."""
    a, b, out = operands
    rows = a[..., :8, :]
    if product.dtype.startswith("int"):
        expected = (rows.cpu().long() @ b.cpu().long()).to(out.dtype)
        if torch.equal(out[..., :8, :].cpu(), expected):
            return
        error, bound = math.inf, 0.0
    else:
        wide = torch.complex128 if a.dtype.is_complex else torch.float64
        expected = rows.to(wide) @ b.to(wide)
        error = float((out[..., :8, :].to(wide) - expected).norm() / expected.norm())
        bound = _BOUNDS[product.dtype] + 1e-7 * product.a[-1] ** 0.5 * (out.element_size() == 4)
        bound = 1e-3 if product.precision == "tf32" else bound
    if not error <= bound:
        raise AssertionError(f"interop bench: {product.name}, {backend}: error {error:.1e} is above {bound:.1e}")


def _own_products(product: _Product, operands: list[Operands], repeats: int) -> dict[str, list[Callable[[], Any]]]:
    """Return interop's calls of each backend that has the product: each makes `repeats` of them, over the buffers."""
    candidates: dict[str, list[Callable[[], Any]]] = {}
    backends: list[Literal["tiled", "cublas"] | None] = [None, "tiled"]
    if _core.machine_info()["cublas"]:
        backends.insert(1, "cublas")
    options: dict[str, Any] = {"precision": product.precision, "dtype": product.result}
    for backend in backends:
        a, b, out = operands[0]
        try:
            interop.matmul(a, b, out=out.fill_(77), backend=backend, **options)
        except ValueError:
            if backend != "cublas":
                raise
            continue  # which has no such product
        candidates[f"interop {backend}"] = [
            bind(interop.matmul, *operands[i % len(operands)], backend=backend, **options) for i in range(repeats)
        ]
    return candidates


def _peers(torch: Any, product: _Product, operands: list[Operands], repeats: int) -> dict[str, float]:
    """Return the seconds of a product by the libraries whose calls no graph of torch's captures: CuPy, JAX, nvmath."""
    a, b, _ = operands[0]
    seconds: dict[str, float] = {}
    calls: dict[str, Callable[[], Any]] = {}
    if (
        (cupy := try_import("cupy"))
        and product.dtype != "bfloat16"
        and not product.precision
        and product.result is None
    ):
        x, y = cupy.from_dlpack(a), cupy.from_dlpack(b)
        calls["cupy"] = lambda: cupy.matmul(x, y)
    if product.dtype in ("float32", "float16", "bfloat16", "float64") and not product.precision and len(product.a) == 2:
        try:
            plan = importlib.import_module("nvmath.linalg.advanced").Matmul(a, b)
            plan.plan()
            calls["nvmath"] = plan.execute
        except Exception as error:  # not here, or not for this product: no reason to time nothing at all
            print(f"  nvmath: skipped: {type(error).__name__}: {str(error).splitlines()[0]}")
    for name, call in calls.items():
        try:
            with torch_stream_in_cupy(torch, cupy) if name == "cupy" else contextlib.nullcontext():
                seconds[name] = event_time(torch, call, repeats)
        except Exception as error:
            print(f"  {name}: skipped: {type(error).__name__}: {str(error).splitlines()[0]}")
    if (jax := try_import("jax")) and jax_has_cuda(jax) and product.result is None and product.operations > 2e9:
        with jax.enable_x64(True):
            x, y = jax.dlpack.from_dlpack(a.contiguous()), jax.dlpack.from_dlpack(b.contiguous())
            jitted = jax.jit(
                functools.partial(
                    jax.numpy.matmul, precision="tensorfloat32" if product.precision == "tf32" else "highest"
                )
            )
            jitted(x, y).block_until_ready()
            started = time.perf_counter()
            for _ in range(repeats):
                last = jitted(x, y)
            last.block_until_ready()
            seconds["jax"] = (time.perf_counter() - started) / repeats
    return seconds


_NAMES = ("torch", "interop None", "interop cublas", "interop tiled", "cupy", "jax", "nvmath")


def run(torch: Any, only: str = "") -> Iterable[Row]:
    """TFLOP/s (TOP/s of integers) of products, by each backend beside torch, CuPy, JAX and nvmath."""
    warm_up(torch)
    print(f"{'TFLOP/s':<44}" + "".join(f"{name.removeprefix('interop '):>9}" for name in _NAMES) + "   None / torch")
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for product in _products():
        if only and only not in f"{product.group} {product.name}":
            continue
        rates = _rates(torch, product)
        best = rates.get("torch")
        print(
            f"{product.name:<44}"
            + "".join(f"{rates[name]:>9.1f}" if name in rates else f"{'-':>9}" for name in _NAMES)
            + (f"{rates['interop None'] / best:>12.2f}" if best else "")
        )
        for name, rate in rates.items():
            for peer in ("torch", "cupy"):
                if name.startswith("interop") and peer in rates:
                    key = (product.precision or product.dtype, name, peer)
                    ratios.setdefault(key, []).append(rate / rates[peer])
            yield {
                "group": product.group,
                "product": product.name,
                "dtype": product.dtype,
                "backend": name,
                "tflops": rate,
                "ratio_to_torch": rate / best if best else "",
            }
    for (dtype, name, peer), values in ratios.items():
        mean = statistics.geometric_mean(values)
        print(f"{dtype}, {name}: geometric mean {mean:.3f} of {peer}, worst {min(values):.3f}")


def _rates(torch: Any, product: _Product) -> dict[str, float]:
    """Return the 10^12 operations a second of a product by each library and backend."""
    torch.backends.cuda.matmul.allow_tf32 = product.precision == "tf32"
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        setattr(torch.backends.cuda.matmul, name, False)
    item = getattr(torch, product.dtype).itemsize
    inputs = (math.prod(product.a) + math.prod(product.b)) * item
    buffers = max(1, min(16, math.ceil(_L2_BYTES / inputs)))
    repeats = 100 if product.operations < 5e9 else 20 if product.operations < 5e10 else 4
    operands = _operands(torch, product, buffers)
    candidates = _own_products(product, operands, repeats)
    for name, calls in candidates.items():
        operands[0][2].fill_(77)
        calls[0]()
        _check_rows(torch, product, name, operands[0])
    if not product.dtype.startswith("int"):
        candidates["torch"] = [bind(torch.matmul, *operands[i % buffers]) for i in range(repeats)]
    seconds = device_times(torch, candidates) | _peers(torch, product, operands, repeats)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {name: product.operations / seconds[name] / 1e12 for name in _NAMES if name in seconds}
