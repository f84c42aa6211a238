"""What NumPy computes for arrays of its own: calls of its functions, which the compiled half keeps for their dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from interop._expressions.typed import ArrayRef, Constant, Reference, Step, Typed, ValueRef
from interop._host import elementwise
from interop._operations.promotion import numpy_dtype
from interop._operations.table import COMPARISONS

__all__ = ["Plan", "of_expression", "of_function"]


@dataclass
class Plan:
    """Calls of NumPy's functions, one after the other; the last one gives the result.

    Operands are counted: the arrays (of a function, all that it is given), then `values`, `constants`, and the results
    of earlier steps.
    """

    #: Scalars that become elements: (source, what messages call it, dtype, are NumPy's warnings the caller's).
    values: list[tuple[int, str, Any, bool]] = field(default_factory=list)
    #: Scalars that the plan holds for only if they fit: (source, dtype).
    compared: list[tuple[int, Any]] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    #: (function, operands, options, options where the arrays are not compact, of one shape and of NumPy's own dtype
    #: objects, results that are not used again). Of the last step, the last option is the place of `out`, if one is
    #: given: by name, as `numpy.maximum` takes it in no other way.
    steps: list[tuple[Any, list[int], dict[str, Any], dict[str, Any], list[int]]] = field(default_factory=list)


def of_function(name: str, dtypes: Sequence[Any], has_out: bool, dtype: Any, result: Any) -> Plan | None:
    """Plan an elementwise function of arrays, by their dtypes, and of a scalar, for which there is None."""
    of_operands = tuple(dtype if x is None else x for x in dtypes)
    found = elementwise.ufunc_of(name, of_operands, dtype, result)
    if found is None:
        return None
    plan = Plan()
    operands = list(range(len(dtypes)))
    for place, given in enumerate(dtypes):
        if given is None:
            operands[place] = len(dtypes)
            plan.values.append((place, "ab"[place], dtype, name not in COMPARISONS))
            plan.compared += [(place, dtype)] if name in COMPARISONS else []
    _add(plan, found, operands, of_operands, dtype, result, [])
    return _ended(plan, has_out)


def of_expression(typed: Typed, labels: Sequence[str], has_out: bool) -> Plan | None:
    """Plan an expression. `labels` are what messages call its scalars."""
    if typed.configuration is not None:
        return None
    plan = Plan()
    plan.values = [(source, labels[source], numpy_dtype(dtype), True) for source, dtype in typed.values]
    plan.compared = [(source, numpy_dtype(dtype)) for source, dtype in typed.compared]
    plan.constants = [ref.value for step in typed.steps for ref, _ in step.args if isinstance(ref, Constant)]
    first_constant = len(typed.arrays) + len(typed.values)
    constants = iter(range(first_constant, first_constant + len(plan.constants)))

    def place_of(ref: Reference) -> int:
        if isinstance(ref, ArrayRef):
            return ref.index
        if isinstance(ref, ValueRef):
            return len(typed.arrays) + ref.index
        return next(constants) if isinstance(ref, Constant) else first_constant + len(plan.constants) + ref.index

    last_uses = typed.last_uses()
    for place, step in enumerate(typed.steps):
        operands = [place_of(ref) for ref, _ in step.args]
        dtypes = [numpy_dtype(ref.dtype) for ref, _ in step.args]
        dtype, result = numpy_dtype(step.dtype), numpy_dtype(step.out_dtype)
        found = _of_step(step, dtypes, dtype, result)
        if found is None:
            return None
        if step.operation.name == "square":
            operands, dtypes = operands * 2, dtypes * 2
        _add(plan, found, operands, dtypes, dtype, result, last_uses[place])
    return _ended(plan, has_out)


def _of_step(step: Step, dtypes: list[Any], dtype: Any, result: Any) -> tuple[Any, dict[str, Any]] | None:
    operation = step.operation
    if any(to == "bool" and ref.dtype != to for ref, to in step.args):
        return None
    if operation.is_function:
        return elementwise.ufunc_of(operation.name, tuple(dtypes), dtype, result)
    if operation.keeps(dtype.kind) or any(x != dtype for x in dtypes[operation.truths :]):
        return None
    if operation.name == "square":
        return elementwise.ufunc_of("multiply", (dtype, dtype), dtype, result)
    if operation.name == "where":
        return _where, {"dtype": dtype}
    function = getattr(np, operation.numpy)
    if (dtype.itemsize == 2 and dtype.kind in "fV") or not isinstance(function, np.ufunc):
        return None
    return (function, {"signature": (*dtypes, result)}) if _gives(function, dtypes, result) else None


def _where(truth: Any, x: Any, y: Any, out: Any = None, *, dtype: Any = None, order: Any = None) -> Any:
    """Call `numpy.where` as if it were a ufunc."""
    found = np.where(truth, x, y)
    if out is None:
        return np.asarray(found, dtype, order=order)
    np.copyto(out, found, casting="unsafe")
    return out


def _gives(ufunc: Any, dtypes: Sequence[Any], result: Any) -> bool:
    """Does a ufunc give that dtype by itself, and compute it of the operands as they are?"""
    try:
        return bool(ufunc.resolve_dtypes((*dtypes, None)) == (*dtypes, result))
    except TypeError:
        return False


def _add(
    plan: Plan,
    found: tuple[Any, dict[str, Any]],
    operands: list[int],
    dtypes: Sequence[Any],
    dtype: Any,
    result: Any,
    last_uses: list[int],
) -> None:
    ufunc, told = found
    # What one dtype gives by itself is asked of arrays alone: NumPy 1 promotes by the values of scalars.
    by_itself = ufunc is _where or (all(x == dtype for x in dtypes) and _gives(ufunc, dtypes, result))
    plan.steps.append((ufunc, operands, {} if by_itself else told, told, last_uses))


def _ended(plan: Plan, has_out: bool) -> Plan:
    function, operands, plain, full, last_uses = plan.steps[-1]
    plain, full = ({**plain, "out": None}, {**full, "out": None}) if has_out else (plain, {**full, "order": "C"})
    plan.steps[-1] = (function, operands, plain, full, last_uses)
    return plan
