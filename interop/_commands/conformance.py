"""`interop conformance`: how interop reads every array library that is here, and how each reads interop's arrays."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interop._commands.consumers import CONSUMERS, Consumer
from interop.testing import DTYPES, LAYOUTS, Cell, check_producer

__all__ = ["PRODUCERS", "WAYS", "Producer", "check", "report", "update"]

Make = Callable[[Any, np.ndarray], Any]  # (module, values) -> array, None where the library has no such one


class _Only:
    """Shows one protocol of an array, whatever else it has."""

    def __init__(self, array: Any) -> None:
        self.array = array


class OnlyDlpack(_Only):
    """Shows `__dlpack__` alone."""

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)


class OnlyArrayInterface(_Only):
    """Shows `__array_interface__` alone."""

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


class OnlyCudaArrayInterface(_Only):
    """Shows `__cuda_array_interface__` alone."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


# ---- how each library makes an array of a layout ----


def _root(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the compact memory that `values` views, and the bytes from its first element to that of `values`."""
    base = values
    while isinstance(base.base, np.ndarray):
        base = base.base
    offset = values.__array_interface__["data"][0] - base.__array_interface__["data"][0] if values.size else 0
    return base, offset


def _steps(values: np.ndarray) -> tuple[int, ...]:
    return tuple(step // values.itemsize for step in values.strides)


def _torch(device: str) -> Make:
    def make(torch: Any, values: np.ndarray) -> Any:
        if min(values.strides, default=0) < 0:
            return None
        base, offset = _root(values)
        dtype = getattr(torch, str(values.dtype))
        memory = torch.from_numpy(base.view(np.uint8).copy()).view(dtype).to(device)
        return memory.as_strided(values.shape, _steps(values), offset // values.itemsize)

    return make


def _torch_cai(torch: Any, values: np.ndarray) -> Any:
    if values.dtype.name.startswith("float8"):
        return None  # its property raises KeyError
    return _shown(OnlyCudaArrayInterface, _torch("cuda")(torch, values))


def _jax(platform: str) -> Make:
    def make(jax: Any, values: np.ndarray) -> Any:
        if not values.flags.c_contiguous:
            return None  # JAX's arrays are compact
        with jax.enable_x64(True):
            return jax.device_put(values.copy(), jax.devices(platform)[0])

    return make


def _warp(device: str) -> Make:
    def make(warp: Any, values: np.ndarray) -> Any:
        warp.config.quiet = True
        base, offset = _root(values)
        name = str(values.dtype)
        if not hasattr(warp, name) or values.ndim == 0:
            return None
        memory = warp.array(base.reshape(-1).view(np.uint8).copy(), dtype=warp.uint8, device=device)
        view = warp.array(
            ptr=memory.ptr + offset,
            dtype=getattr(warp, name),
            shape=values.shape,
            strides=values.strides,
            device=device,
        )
        view.keep = memory
        return view

    return make


def _cupy(cupy: Any, values: np.ndarray) -> Any:
    base, offset = _root(values)
    memory = cupy.asarray(base.reshape(-1).view(np.uint8).copy())
    return cupy.ndarray(values.shape, values.dtype, memory.data + offset, values.strides)


def _cupy_managed(cupy: Any, values: np.ndarray) -> Any:
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        return _cupy(cupy, values)


def _numba(cuda: Any, values: np.ndarray) -> Any:
    if values.size == 0:
        return cuda.device_array(values.shape, values.dtype)
    base, offset = _root(values)
    memory = cuda.to_device(base.copy())
    shown = dict(memory.__cuda_array_interface__)
    shown.update(shape=values.shape, strides=values.strides, data=(shown["data"][0] + offset, False))
    return cuda.as_cuda_array(type("Shown", (), {"__cuda_array_interface__": shown, "memory": memory})())


def _tensorflow(tf: Any, values: np.ndarray) -> Any:
    return tf.constant(values) if values.flags.c_contiguous else None  # its tensors are compact


def _paddle(paddle: Any, values: np.ndarray) -> Any:
    if min(values.strides, default=0) < 0:
        return None
    if not hasattr(paddle, str(values.dtype)) or values.dtype == np.uint16:  # which is Paddle's name of bfloat16
        return None
    base, offset = _root(values)
    memory = paddle.to_tensor(base.reshape(-1).view(np.uint8).copy(), place="cpu").view(str(values.dtype))
    return memory.as_strided(list(values.shape), list(_steps(values)), offset)


def _cuda_core(utils: Any, values: np.ndarray) -> Any:
    return utils.StridedMemoryView.from_any_interface(values, stream_ptr=-1)


def _cuda_core_on_device(utils: Any, values: np.ndarray) -> Any:
    return utils.StridedMemoryView.from_any_interface(_cupy(importlib.import_module("cupy"), values), stream_ptr=-1)


def _tvm_ffi_on_device(tvm_ffi: Any, values: np.ndarray) -> Any:
    return tvm_ffi.from_dlpack(_torch("cuda")(importlib.import_module("torch"), values))


@dataclass(frozen=True)
class Producer:
    """One way into interop: arrays of one library, on one device, shown by one protocol."""

    library: str
    protocol: str
    device: str
    module: str
    make: Make

    @property
    def title(self) -> str:
        """The heading of its table."""
        return f"{self.library}, {self.protocol}, {self.device}"

    def load(self) -> Any:
        """Import its module; ImportError where it is absent, or has no such device."""
        if importlib.util.find_spec(self.module.split(".")[0]) is None:
            raise ImportError("not installed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's remarks on its own environment
            module = importlib.import_module(self.module)
            try:
                self.make(module, LAYOUTS["compact"](np.zeros((4, 6), np.float32)))
            except Exception as error:  # no device, above all
                raise ImportError(str(error)) from error
        return module

    def check(self) -> list[Cell]:
        """Read every dtype and layout; ImportError where it is not here."""
        module = self.load()
        streams = (1, 2) if self.device == "device" else ()
        return check_producer(lambda values: self.make(module, values), streams=streams, strict=False)

    def table(self, cells: list[Cell]) -> str:
        """Return the section of the page: dtypes with the same outcomes share a row."""
        columns = [(layout, "") for layout in LAYOUTS]
        columns += sorted({(cell.layout, cell.stream) for cell in cells if cell.stream})
        found = {(cell.dtype, cell.layout, cell.stream): cell.outcome for cell in cells}
        names = [layout if not stream else f"`stream={stream}`" for layout, stream in columns]
        rows: dict[str, list[str]] = {}  # outcomes -> the dtypes that have them
        for dtype in DTYPES:
            outcomes = (found[dtype, layout, stream] for layout, stream in columns)
            rows.setdefault(" | ".join(_WORDS.get(word, word) for word in outcomes), []).append(dtype)
        lines = [f"## {self.title}", "", "| dtype | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        lines += [f"| {', '.join(dtypes)} | {outcomes} |" for outcomes, dtypes in rows.items()]
        return "\n".join(lines) + "\n"


_WORDS = {"none": "-"}
EXCHANGE, DLPACK, CAI = "`__dlpack_c_exchange_api__`", "`__dlpack__`", "`__cuda_array_interface__`"

PRODUCERS = (
    Producer("NumPy", "buffer protocol", "host", "numpy", lambda np_, x: x),
    Producer("NumPy", DLPACK, "host", "numpy", lambda np_, x: OnlyDlpack(x)),
    Producer("NumPy", "`__array_interface__`", "host", "numpy", lambda np_, x: OnlyArrayInterface(x)),
    Producer("NumPy", "versioned capsule", "host", "numpy", lambda np_, x: x.__dlpack__(max_version=(1, 0))),
    Producer("NumPy", "unversioned capsule", "host", "numpy", lambda np_, x: x.__dlpack__()),
    Producer("memoryview", "buffer protocol", "host", "numpy", lambda np_, x: x.data),
    Producer("PyTorch", EXCHANGE, "host", "torch", _torch("cpu")),
    Producer("PyTorch", DLPACK, "host", "torch", lambda torch, x: _shown(OnlyDlpack, _torch("cpu")(torch, x))),
    Producer("JAX", DLPACK, "host", "jax", _jax("cpu")),
    Producer("Warp", DLPACK, "host", "warp", _warp("cpu")),
    Producer("tvm-ffi", DLPACK, "host", "tvm_ffi", lambda tvm_ffi, x: tvm_ffi.from_dlpack(x)),
    Producer("cuda.core StridedMemoryView", EXCHANGE, "host", "cuda.core.utils", _cuda_core),
    Producer("Paddle", EXCHANGE, "host", "paddle", _paddle),
    Producer("TensorFlow", "`tf.experimental.dlpack`", "host", "tensorflow", _tensorflow),
    Producer("CuPy", "its attributes", "device", "cupy", _cupy),
    Producer("CuPy, managed memory", "its attributes", "device", "cupy", _cupy_managed),
    Producer("CuPy", DLPACK, "device", "cupy", lambda cupy, x: OnlyDlpack(_cupy(cupy, x))),
    Producer("CuPy", CAI + " (version 3)", "device", "cupy", lambda cupy, x: OnlyCudaArrayInterface(_cupy(cupy, x))),
    Producer("PyTorch", EXCHANGE, "device", "torch", _torch("cuda")),
    Producer("PyTorch", DLPACK, "device", "torch", lambda torch, x: _shown(OnlyDlpack, _torch("cuda")(torch, x))),
    Producer(
        "PyTorch",
        CAI + " (version 2)",
        "device",
        "torch",
        _torch_cai,
    ),
    Producer("JAX", DLPACK, "device", "jax", _jax("cuda")),
    Producer("Numba", CAI, "device", "numba.cuda", _numba),
    Producer("Warp", DLPACK, "device", "warp", _warp("cuda:0")),
    Producer("tvm-ffi", DLPACK, "device", "tvm_ffi", _tvm_ffi_on_device),
    Producer("cuda.core StridedMemoryView", EXCHANGE, "device", "cuda.core.utils", _cuda_core_on_device),
)


def _shown(wrapper: type[_Only], array: Any) -> Any:
    return None if array is None else wrapper(array)


WAYS: tuple[Producer | Consumer, ...] = (*PRODUCERS, *CONSUMERS)

# ---- running them, and the page ----


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(way: Producer | Consumer) -> list[Any]:
    """Run every cell of one producer or consumer; ImportError where it is not here."""
    with _quietly():
        return list(way.check())


def report() -> tuple[str, bool]:
    """Return the tables of all that is here, with a line for what is not, and whether no cell is wrong."""
    sections, good = [], True
    for way in WAYS:
        try:
            cells = check(way)
        except ImportError as error:
            sections.append(f"## {way.title}\n\nNot here: {(str(error).splitlines() or [''])[0]}\n")
            continue
        sections.append(way.table(cells))
        wrong = [f"* {cell}" for cell in cells if cell.outcome == "WRONG"]
        good = good and not wrong
        if wrong:
            sections.append("\n".join(wrong) + "\n")
    return "\n".join(sections), good


_SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def sections_of(page: str) -> dict[str, str]:
    """Return the page's sections by their titles."""
    return {text.splitlines()[0].removeprefix("## "): text for text in _SECTION.findall(page)}


def update(path: Path) -> bool:
    """Write the sections of what is here into the page, and keep the others. Returns whether no cell is wrong."""
    page = path.read_text(encoding="utf-8")
    kept = sections_of(page)
    intro = page.split("\n## ", 1)[0].rstrip() + "\n"
    sections, good = [intro], True
    for way in WAYS:
        try:
            cells = check(way)
        except ImportError:
            old = kept.get(way.title, f"## {way.title}\n\nNot run yet: it needs a machine that has it.\n")
            sections.append(old.rstrip() + "\n")
            continue
        good = good and all(cell.outcome != "WRONG" for cell in cells)
        sections.append(way.table(cells))
    path.write_text("\n".join(sections), encoding="utf-8")
    return good
