"""Every function of elements, in every dtype and layout, on the device beside torch's own: the slowest ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import interop
from interop._commands.bench.measure import Row, device_times, warm_up
from interop._operations.table import FUNCTIONS, OPERATIONS

__all__ = ["run"]

_BYTES = 1 << 26  # of an array: three of them exceed the L2 cache
_BEHIND = 0.98  # of torch's rate; what is below is printed first
_DTYPES = {
    "bool": "b",
    "int8": "i",
    "uint8": "u",
    "int16": "i",
    "int32": "i",
    "int64": "i",
    "float16": "f",
    "bfloat16": "f",
    "float32": "f",
    "float64": "f",
    "complex64": "c",
    "complex128": "c",
}

Make = Callable[..., Any]
Layout = tuple[str, Callable[[Make, int], tuple[Any, Any]]]


def _layouts() -> Iterable[Layout]:
    """Yield each layout, and what makes both operands of it, of `n` elements; functions of one take the second."""
    side = 1 << 13
    yield "contiguous", lambda make, n: (make(n), make(n))
    yield "a number", lambda make, n: (make(n), None)
    yield "row broadcast", lambda make, n: (make(side, n // side), make(n // side))
    yield "column broadcast", lambda make, n: (make(side, n // side), make(side, 1))
    yield "transposed", lambda make, n: (make(side, n // side), make(n // side, side).T)
    yield (
        "NHWC and NCHW",
        lambda make, n: (make(32, 64, 64, n >> 17), make(32, n >> 17, 64, 64).permute(0, 2, 3, 1)),
    )
    yield "heads", lambda make, n: (make(8, 16, n >> 13, 64), make(8, n >> 13, 16, 64).permute(0, 2, 1, 3))
    yield "rows apart", lambda make, n: (make(side, n // side + 1)[:, 1:], make(side, n // side + 1)[:, :-1])
    yield "not aligned", lambda make, n: (make(n)[1:], make(n)[:-1])
    yield "every second", lambda make, n: (make(side, n // side)[:, ::2], make(side, n // side)[:, ::2])


def _maker(torch: Any, name: str, device: str) -> Make:
    """Return what makes random arrays of a dtype: of moderate numbers, none of them zero."""
    dtype, kind = getattr(torch, name), _DTYPES[name]

    def make(*shape: int) -> Any:
        if kind == "b":
            return torch.rand(*shape, device=device) > 0.5
        if kind in "iu":
            return torch.randint(1, 100, shape, device=device, dtype=dtype)
        return (torch.rand(*shape, device=device, dtype=dtype if kind == "c" else torch.float32) + 0.5).to(dtype)

    return make


def _serves(name: str, kind: str) -> bool:
    operation = OPERATIONS[name]
    return kind in operation.accepts or (operation.in_float and kind in "biu")


def _cases(torch: Any, only: str, device: str = "cuda", size: int = _BYTES) -> Iterable[tuple[str, str, list[Any]]]:
    """Yield a function, the dtype and layout of the operands, and these."""
    for dtype, kind in _DTYPES.items():
        make = _maker(torch, dtype, device)
        for layout, operands_of in _layouts():
            names = [name for name in FUNCTIONS if _serves(name, kind) and only in f"{name}, {dtype}, {layout}"]
            if not names:
                continue
            a, b = operands_of(make, size // getattr(torch, dtype).itemsize)
            number = True if kind == "b" else 3
            for name in names:
                if OPERATIONS[name].arity == 2:
                    yield name, f"{dtype}, {layout}", [a, number if b is None else b]
                elif b is not None and "broadcast" not in layout:
                    yield name, f"{dtype}, {layout}", [b]


def _agree(torch: Any, result: Any, answer: Any) -> bool:
    """Are they equal, but for what no two libraries round alike?"""
    if not (answer.is_floating_point() or answer.is_complex()):
        return bool(torch.equal(result, answer))
    slack = 32 * torch.finfo(answer.dtype).eps
    return bool(torch.allclose(result, answer, rtol=slack, atol=slack, equal_nan=True))


def _checked(torch: Any, name: str, case: str, operands: list[Any]) -> dict[str, list[Callable[[], Any]]]:
    """Return the calls of both, into the same memory, once they agree; nothing where torch has no such function."""
    function, peer = getattr(interop, name), getattr(torch, OPERATIONS[name].torch or name)
    try:
        answer = peer(*operands)
        out = torch.empty_like(answer, memory_format=torch.contiguous_format)
        peer(*operands, out=out)
    except (RuntimeError, TypeError):
        return {}
    out.zero_()
    function(*operands, out=out)
    if not _agree(torch, out, answer):
        raise AssertionError(f"interop bench: {name}, {case} is wrong; nothing was timed")
    return {
        "interop": [lambda: function(*operands, out=out)] * 4,
        "torch": [lambda: peer(*operands, out=out)] * 4,
    }


def run(torch: Any, only: str = "") -> Iterable[Row]:
    """Microseconds of every function beside torch's; printed in the order of the ratio, the slowest first."""
    warm_up(torch)
    rows: list[Row] = []
    for name, case, operands in _cases(torch, only):
        calls = _checked(torch, name, case, operands)
        if not calls:
            continue
        times = device_times(torch, calls, seconds=0.01)
        rows.append(
            {
                "case": f"{name}, {case}",
                "microseconds": times["interop"] * 1e6,
                "torch_microseconds": times["torch"] * 1e6,
                "ratio_to_torch": times["torch"] / times["interop"],
            }
        )
    _print(rows)
    yield from rows


def _print(rows: list[Row]) -> None:
    """Print a line for each row, those behind torch first."""
    rows.sort(key=lambda row: row["ratio_to_torch"])
    behind = [row for row in rows if row["ratio_to_torch"] < _BEHIND]
    print(f"{len(behind)} of {len(rows)} rows below {_BEHIND} of torch's rate\n")
    print(f"{'us, 64 MiB an array':<52}{'interop':>9}{'torch':>9}   rate to torch's")
    for place, row in enumerate(rows):
        if 0 < place == len(behind):
            print()
        line = f"{row['case']:<52}{row['microseconds']:>9.1f}{row['torch_microseconds']:>9.1f}"
        print(f"{line}   {row['ratio_to_torch']:.2f}")
