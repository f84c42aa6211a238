"""The table of operations on elements, as the compiled half has it: see src/base/interop/operations.h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from interop import _core

__all__ = ["COMPARISONS", "FUNCTIONS", "OPERATIONS", "Operation"]


@dataclass(frozen=True)
class Operation:
    """One operation on elements. The first `truths` of its operands are only asked whether they are zero."""

    name: str  #: as the array API calls it
    symbol: str | None  #: in an expression; None where it is written as a function there
    arity: int
    parameters: tuple[str, ...]  #: the names of its operands
    functor: str  #: in src/cuda/elementwise
    accepts: str  #: kinds of dtypes: bool, signed and unsigned integers, floats, complex numbers
    gives: Literal["same", "bool", "part"]  #: the dtype that it is computed in, bool, or that of complex numbers' parts
    in_float: bool  #: integers and bool are computed in the library's default float
    truths: int
    is_function: bool  #: of this package, such as `interop.add`
    numpy: str  #: NumPy's function
    torch: str | None  #: torch's; None where it has none
    derivatives: tuple[str | None, ...]  #: by each operand, as expressions of them; None where there is none
    identity: str | None  #: what changes no other operand: "0", "1", "largest", "least"

    def keeps(self, kind: str) -> bool:
        """Is the result the operand itself, where its dtype is of this kind? Roundings leave integers as they are."""
        return self.name in ("copy", "positive") or (kind in "iu" and self.name in ("floor", "ceil", "trunc", "round"))


OPERATIONS = {line["name"]: Operation(**line) for line in _core.operations()}
#: Those that are functions of this package, in the order of the table.
FUNCTIONS = tuple(name for name, operation in OPERATIONS.items() if operation.is_function)
COMPARISONS = tuple(name for name in FUNCTIONS if OPERATIONS[name].gives == "bool")
