"""Products of torch tensors in torch's own operations, and operands, for tests of gradients and transforms."""

from __future__ import annotations

from types import ModuleType
from typing import Any

#: Matrices, vectors, stacks; stacks that broadcast either way.
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 6)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 3, 4), (4, 5)),
    ((3, 0), (0, 5)),
]

EPILOGUES = [None, "relu", "gelu", "gelu_tanh"]


def product(
    torch: ModuleType,
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 1,
    epilogue: str | None = None,
) -> Any:
    """`interop.matmul`, by torch."""
    total = torch.matmul(a, b) if alpha == 1 else alpha * torch.matmul(a, b)
    if c is not None:
        total = total + beta * c
    if bias is not None:
        total = total + bias
    if epilogue is None:
        return total
    if epilogue == "relu":
        return torch.relu(total)
    return torch.nn.functional.gelu(total, approximate="tanh" if epilogue == "gelu_tanh" else "none")


def tensors(torch: ModuleType, place: str, dtype: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    """Normally distributed ones, the same ones on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=getattr(torch, dtype), generator=generator).to(place) for shape in shapes]


def needing_grad(*tensors: Any) -> list[Any]:
    """The same values, as leaves."""
    return [None if x is None else x.detach().clone().requires_grad_() for x in tensors]


def assert_close(torch: ModuleType, found: Any, expected: Any) -> None:
    """Within torch's own bounds; 16-bit sums that cancel lose more."""
    first = found
    while isinstance(first, tuple | list):
        first = first[0]
    bounds = {"rtol": 3e-2, "atol": 3e-2} if first.dtype.itemsize == 2 else {}
    torch.testing.assert_close(found, expected, **bounds)
