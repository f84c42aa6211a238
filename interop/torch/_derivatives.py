"""Derivatives of typed expressions, as typed expressions: each is one kernel of ours, for one operand."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interop import _core
from interop._expressions.parser import Apply, Literal, Name, parse
from interop._expressions.source import load
from interop._expressions.typed import ArrayRef, Constant, Reference, Step, StepRef, Typed, ValueRef, kind_of
from interop._operations.promotion import numpy_dtype
from interop._operations.table import OPERATIONS, Operation

__all__ = ["Derivative", "NoDerivativeError", "Program", "Steps"]


class NoDerivativeError(Exception):
    """Our kernels have no derivative by that operand, though there is one."""


class Steps:
    """Typed steps that are added one by one; what is added twice is one step."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = list(steps)
        self.places: dict[Any, StepRef] = {}
        for place, step in enumerate(steps):
            self.places.setdefault(_key(step), StepRef(place, step.out_dtype))

    def apply(self, name: str, dtype: str, *operands: Reference) -> StepRef:
        """Add an operation that is computed in `dtype`, to which its operands are converted."""
        operation = OPERATIONS[name]
        out_dtype = _core.abstract_elementwise(name, dtype, [])[1]
        targets = ["bool"] * operation.truths + [dtype] * (len(operands) - operation.truths)
        step = Step(operation, dtype, out_dtype, tuple(zip(operands, targets, strict=True)))
        place = self.places.setdefault(_key(step), StepRef(len(self.steps), out_dtype))
        if place.index == len(self.steps):
            self.steps.append(step)
        return place

    def as_dtype(self, x: Reference, dtype: str) -> Reference:
        """Convert; of a complex number a real dtype gets the real part."""
        if kind_of(x.dtype) == "c" and kind_of(dtype) != "c":
            x = self.apply("real", x.dtype, x)
        return x if x.dtype == dtype else self.apply("copy", dtype, x)


def _key(step: Step) -> Any:
    """Return what a step is, as a key: what two have alike has one value."""
    args = tuple(((x.dtype, x.value.tobytes()) if isinstance(x, Constant) else x, to) for x, to in step.args)
    return step.operation.name, step.dtype, args


def literal(value: complex, dtype: str) -> Constant:
    """Return a number as an element."""
    return Constant(np.asarray(value).astype(numpy_dtype(dtype)), dtype)


# ---- programs ----


@dataclass(frozen=True)
class Derivative:
    """What the gradient of a result becomes, as that of one operand, before it is summed to the operand's shape.

    `program` computes it of the arrays `arrays` and then the gradient, and of the scalars `values`; None: it is the
    gradient itself, or, with `is_zero`, zero.
    """

    program: Program | None
    arrays: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    is_zero: bool = False


class Program:
    """A typed expression of arrays and scalars, given in their order, which one kernel computes."""

    def __init__(self, typed: Typed, names: Sequence[str], labels: Sequence[str]) -> None:
        if len(names) + len(labels) > _core.Expression.max_parameters:
            raise NoDerivativeError(f"{len(names) + len(labels)} operands")
        self.typed = typed
        self.names = tuple(names)
        self.labels = tuple(labels)  #: of the scalars, as messages name them
        self.parameters = (*self.names, *(f"scalar {k}" for k in range(len(labels))))
        self.places = list(range(len(names), len(self.parameters)))
        self._derivatives: dict[int, Derivative | None] = {}

    @functools.cached_property
    def _calls(self) -> _core.Expression:
        return _core.Expression(self.typed.function, list(self.parameters), lambda _: self, load)

    def type(self, *_: object) -> Typed:
        """Return the steps, which are for these dtypes alone; `Split.type` finds them."""
        return self.typed

    def __call__(self, arrays: Sequence[Any], values: Sequence[Any], options: dict[str, Any]) -> Any:
        """Compute it of torch's tensors as memory."""
        return _core.below_autograd(self._calls, options, *arrays, *values)

    def derivative(self, array: int) -> Derivative | None:
        """Return the derivative by one of the arrays; None where the result does not depend on it smoothly.

        Raises NoDerivativeError where our kernels have none.
        """
        if array not in self._derivatives:
            self._derivatives[array] = _differentiate(self, array)
        return self._derivatives[array]


def _differentiate(program: Program, array: int) -> Derivative | None:
    typed = program.typed
    gradient = ArrayRef(len(typed.arrays), typed.out_dtype)
    steps = Steps(typed.steps)
    reverse = _Reverse(steps, typed, array)
    if StepRef(len(typed.steps) - 1, typed.out_dtype) not in reverse.depending:
        return None
    found = reverse.run(gradient)
    if found is None:
        return Derivative(None, is_zero=True)
    found = steps.as_dtype(found, typed.arrays[array])
    if found == gradient:
        return Derivative(None)
    if not isinstance(found, StepRef):
        found = steps.apply("copy", found.dtype, found)
    return _pruned(program, steps.steps[: found.index + 1])


def _pruned(program: Program, steps: Sequence[Step]) -> Derivative:
    """Keep what the last step needs: of the steps, of the arrays and of the scalars."""
    typed = program.typed
    needed = {len(steps) - 1}
    arrays, values = {len(typed.arrays)}, set()
    for place in reversed(range(len(steps))):
        for ref, _ in steps[place].args if place in needed else ():
            if isinstance(ref, StepRef):
                needed.add(ref.index)
            elif isinstance(ref, ArrayRef):
                arrays.add(ref.index)
            elif isinstance(ref, ValueRef):
                values.add(ref.index)
    kept, kept_arrays, kept_values = sorted(needed), sorted(arrays), sorted(values)

    def moved(ref: Reference) -> Reference:
        if isinstance(ref, StepRef):
            return StepRef(kept.index(ref.index), ref.dtype)
        if isinstance(ref, ArrayRef):
            return ArrayRef(kept_arrays.index(ref.index), ref.dtype)
        return ValueRef(kept_values.index(ref.index), ref.dtype) if isinstance(ref, ValueRef) else ref

    dtypes = [*typed.arrays, typed.out_dtype]
    derived = Typed(typed.function, [dtypes[k] for k in kept_arrays], typed.current_configuration)
    derived.values = [(place, typed.values[k][1]) for place, k in enumerate(kept_values)]
    for place in kept:
        step = steps[place]
        args = tuple((moved(ref), to) for ref, to in step.args)
        derived.steps.append(Step(step.operation, step.dtype, step.out_dtype, args))
    names = [*program.names, _new_name(program.names)]
    made = Program(derived, [names[k] for k in kept_arrays], [program.labels[k] for k in kept_values])
    return Derivative(made, tuple(kept_arrays[:-1]), tuple(kept_values))


def _new_name(names: Sequence[str]) -> str:
    """Name the gradient; that of a gradient has another one beside it."""
    candidates = itertools.chain(["the gradient"], (f"the gradient ({k})" for k in itertools.count(2)))
    return next(name for name in candidates if name not in names)


# ---- from the result back to an operand ----


class _Reverse:
    """Finds the derivative by one array, step by step from the last one. 16-bit floats are added up in float32."""

    def __init__(self, steps: Steps, typed: Typed, array: int) -> None:
        self.steps = steps
        self.typed = typed
        self.array = ArrayRef(array, typed.arrays[array])
        self.depending: set[Reference] = {self.array} if kind_of(self.array.dtype) in "fc" else set()
        for place, step in enumerate(typed.steps):
            if any(self.depends(step, k) for k in range(len(step.args))):
                self.depending.add(StepRef(place, step.out_dtype))

    def depends(self, step: Step, k: int) -> bool:
        ref = step.args[k][0]
        return not isinstance(ref, Constant) and ref in self.depending and _has_derivative(step, k)

    def run(self, gradient: Reference) -> Reference | None:
        """Return the derivative times the conjugated gradient of the result; None where it is zero."""
        found: dict[Reference, Reference] = {StepRef(len(self.typed.steps) - 1, self.typed.out_dtype): gradient}
        for place in reversed(range(len(self.typed.steps))):
            step = self.typed.steps[place]
            g = found.pop(StepRef(place, step.out_dtype), None)
            for k, (ref, _) in enumerate(step.args) if g else ():
                term = _Partial(self.steps, step, place, g).by(k) if self.depends(step, k) else None
                if term is not None:
                    dtype = _wide(ref.dtype)
                    term = self.steps.as_dtype(term, dtype)
                    found[ref] = self.steps.apply("add", dtype, found[ref], term) if ref in found else term
        return found.get(self.array)


def _has_derivative(step: Step, k: int) -> bool:
    if kind_of(step.dtype) not in "fc" or kind_of(step.out_dtype) not in "fc":
        return False
    return step.operation.name == "imag" or step.operation.derivatives[k] is not None


def _wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


class _Partial:
    """The gradient of one step's result times the step's derivatives, as the table has them."""

    def __init__(self, steps: Steps, step: Step, place: int, gradient: Reference | None) -> None:
        assert gradient is not None
        self.step = step
        self.dtype = _wide(step.dtype)
        self.is_complex = kind_of(step.dtype) == "c"
        self.result = StepRef(place, step.out_dtype)
        self.gradient = gradient
        self.apply = steps.apply
        self.operands = dict(
            zip(step.operation.parameters, (_converted(steps, ref, to) for ref, to in step.args), strict=False)
        )
        self.steps = steps

    def by(self, k: int) -> Reference | None:
        """Return it for one operand; None where it is zero."""
        operation = self.step.operation
        special = _OF_COMPLEX.get(operation.name) if self.is_complex else None
        if special:
            return special(self)
        text = operation.derivatives[k]
        assert text is not None
        g = self.steps.as_dtype(self.gradient, self.dtype)
        return self.times(g, _tree(text, operation), -1)

    def times(self, g: Reference, tree: tuple[Any, ...], at: int) -> Reference | None:
        """Multiply by what stands at one node: in the branches of `where`, so that what is left out does not count."""
        node = tree[at]
        if isinstance(node, Literal):
            if node.value == 0:
                return None
            return g if node.value == 1 else self.apply("multiply", self.dtype, g, literal(node.value, self.dtype))
        if isinstance(node, Apply):
            name, args = node.operation.name, node.args
            if name == "negative":
                term = self.times(g, tree, args[0])
                return term and self.apply("negative", self.dtype, term)
            if name == "where":
                zero = literal(0, self.dtype)
                branches = (self.times(g, tree, x) or zero for x in args[1:])
                return self.apply("where", self.dtype, self.value(tree, args[0]), *branches)
            if name == "divide":
                term = self.times(g, tree, args[0])
                return term and self.apply("divide", self.dtype, term, self.conjugated(tree, args[1]))
        return self.apply("multiply", self.dtype, g, self.conjugated(tree, at))

    def conjugated(self, tree: tuple[Any, ...], at: int) -> Reference:
        value = self.value(tree, at)
        return self.apply("conj", self.dtype, value) if self.is_complex else value

    def value(self, tree: tuple[Any, ...], at: int) -> Reference:
        node = tree[at]
        if isinstance(node, Name):
            return self.operands[node.name]
        if isinstance(node, Literal):
            return literal(node.value, self.dtype)
        operation: Operation = node.operation
        if kind_of(self.dtype) not in operation.accepts:
            raise NoDerivativeError(f"{operation.name} of complex numbers")
        args = [self.value(tree, x) for x in node.args]
        dtype = "bool" if operation.truths == len(args) else self.dtype
        return self.apply(operation.name, dtype, *args)


def _converted(steps: Steps, ref: Reference, to: str) -> Reference:
    """Return an operand as the step has it."""
    return ref if ref.dtype == to or to == "bool" else steps.apply("copy", to, ref)


@functools.cache
def _tree(text: str, operation: Operation) -> tuple[Any, ...]:
    """Return the nodes of a derivative, of which the last one is the whole."""
    try:
        return (Literal(float(text)),)
    except ValueError:
        return parse(text).nodes


def _by_abs(partial: _Partial) -> Reference:
    """Multiply by the sign, x / abs(x); 0 for 0."""
    (x,), size = partial.operands.values(), partial.result
    safe = partial.apply("where", size.dtype, partial.apply("equal", size.dtype, size, literal(0, size.dtype)),
                         literal(1, size.dtype), size)  # fmt: skip
    sign = partial.apply("divide", partial.dtype, x, safe)
    return partial.apply("multiply", partial.dtype, partial.gradient, sign)


def _by_imag(partial: _Partial) -> Reference:
    return partial.apply("multiply", partial.dtype, partial.gradient, literal(1j, partial.dtype))


#: What is no holomorphic function: how its gradient is that of its operand.
_OF_COMPLEX: dict[str, Callable[[_Partial], Reference]] = {
    "abs": _by_abs,
    "real": lambda partial: partial.apply("copy", partial.dtype, partial.gradient),
    "imag": _by_imag,
    "conj": lambda partial: partial.apply("conj", partial.dtype, partial.gradient),
}
