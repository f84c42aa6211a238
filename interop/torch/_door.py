"""The way from the compiled half to torch: the operations on tensors that are more than their memory."""

from __future__ import annotations

from typing import Any

from interop.torch import _elementwise, _elementwise_gradients, _expression, _matmul

__all__ = ["compute", "record"]

#: "matmul", an elementwise function by its name, or an expression: `_core.Expression` and its `Split`.
_Operation = Any


def compute(operation: _Operation, options: dict[str, Any], *operands: Any) -> Any:
    """Compute by torch's dispatcher: tensors that are fake, wrapped, traced, dual, or of a subclass.

    The second operand of a unary function is None. `options` are the arguments with a name, as given.
    """
    if not isinstance(operation, str):
        return _expression.compute(operation[1], operands, options)
    if operation == "matmul":
        return _matmul.compute(operands[0], operands[1], options)
    return _elementwise.compute(operation, operands[0], operands[1], options)


def record(operation: _Operation, options: dict[str, Any], *operands: Any) -> Any:
    """Compute plain tensors, one or more of which need a gradient, and record the derivative."""
    if not isinstance(operation, str):
        return _elementwise_gradients.record_expression(operation[0], operation[1], operands, options)
    if operation == "matmul":
        return _matmul.record(operands[0], operands[1], options)
    return _elementwise_gradients.record(operation, operands[0], operands[1], options)
