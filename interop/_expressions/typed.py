"""The dtypes of an expression's steps: each promotes its operands as the same call of an operation would."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from interop import _core
from interop._expressions.parser import Apply, Literal, Name, Node, Parsed
from interop._expressions.scalars import of_scalars
from interop._operations.promotion import (
    as_promoted,
    beside,
    configuration,
    element_of,
    numpy_dtype,
    promote,
    scalar_of,
    side_of,
)
from interop._operations.table import COMPARISONS, OPERATIONS, Operation

__all__ = ["ArrayRef", "Constant", "Reference", "Split", "Step", "StepRef", "Typed", "ValueRef"]


# ---- scalars: what of an expression is computed before the arrays are looked at ----


class Split:
    """An expression for calls in which the parameters named in `scalars` are scalars.

    `sources` are the scalars that the arrays meet: parameters, and what is computed of scalars alone.
    """

    def __init__(self, function: str, parsed: Parsed, scalars: frozenset[str]) -> None:
        self.function = function
        self.parsed = parsed
        self.scalars = scalars
        self.parameters = parsed.parameters
        self.arrays = tuple(name for name in self.parameters if name not in scalars)
        #: Of each node: is it of scalars alone, and of literals alone?
        self.is_scalar: list[bool] = []
        self.is_literal: list[bool] = []
        for node in parsed.nodes:
            args = node.args if isinstance(node, Apply) else ()
            is_literal = not isinstance(node, Name) and all(self.is_literal[x] for x in args)
            is_scalar = node.name in scalars if isinstance(node, Name) else all(self.is_scalar[x] for x in args)
            self.is_literal.append(is_literal)
            self.is_scalar.append(is_scalar)
        #: Nodes by their places, and the place of each among the sources.
        self.sources = self._find_sources()
        self.place_of = {source: place for place, source in enumerate(self.sources)}
        names = [node.name if isinstance(node, Name) else None for node in map(parsed.nodes.__getitem__, self.sources)]
        #: A parameter's place, or -1: to be computed.
        self.places = [self.parameters.index(name) if name else -1 for name in names]
        #: As messages name them.
        self.labels = [name or "a scalar of the expression" for name in names]

    def _find_sources(self) -> list[int]:
        last = len(self.parsed.nodes) - 1
        met = {last: None} if self.is_scalar[last] else {}
        for place, node in enumerate(self.parsed.nodes):
            if isinstance(node, Apply) and not self.is_scalar[place]:
                met.update((x, None) for x in node.args if self.is_scalar[x])
        return [x for x in met if not self.is_literal[x]]

    def evaluate(self, *arguments: Any) -> list[Any]:
        """Return the sources' values, given all parameters'."""
        given = dict(zip(self.parameters, arguments, strict=True))
        return self.values({name: scalar_of(given[name]) for name in self.scalars}, self.sources)

    def values(self, given: dict[str, Any], wanted: Sequence[int]) -> list[Any]:
        """Compute scalars among themselves: those that are `wanted`, and what they are made of."""
        needed = set(wanted)
        for place in reversed(range(len(self.parsed.nodes))):
            node = self.parsed.nodes[place]
            if place in needed and isinstance(node, Apply):
                needed.update(node.args)
        values: dict[int, Any] = {}
        for place in sorted(needed):
            node = self.parsed.nodes[place]
            if isinstance(node, Name):
                values[place] = given[node.name]
            elif isinstance(node, Literal):
                values[place] = node.value
            else:
                values[place] = of_scalars(node.operation, *(values[x] for x in node.args))
        return [values[place] for place in wanted]

    def type(
        self, library: str, arrays: Sequence[tuple[Any, ...]], scalars: Sequence[Any], sides: Sequence[int] = ()
    ) -> Typed:
        """Find the dtypes of all steps for arrays of `library`, and values of the sources.

        Each array is (dtype, is it 0-d); a weakly typed one of JAX's has the scalar that it stands for as third. Of the
        scalars the kinds alone count; `sides` are those of `Typed.compared`, where they are not all 0.
        """
        named = zip(self.arrays, arrays, strict=True)
        _core.abstract_operands(self.function, [(name, (), dtype) for name, (dtype, *_) in named])
        return _Typing(self, library, arrays, scalars, sides).run()


# ---- the steps ----


@dataclass(frozen=True)
class ArrayRef:
    """One of the arrays."""

    index: int
    dtype: str


@dataclass(frozen=True)
class ValueRef:
    """One of `Typed.values`."""

    index: int
    dtype: str


@dataclass(frozen=True)
class Constant:
    """A literal, as an element."""

    value: Any  #: a 0-d NumPy array
    dtype: str


@dataclass(frozen=True)
class StepRef:
    """The result of an earlier step."""

    index: int
    dtype: str


Reference = ArrayRef | ValueRef | Constant | StepRef


@dataclass(frozen=True)
class Step:
    """One operation, computed in `dtype`. Each argument is converted to the dtype beside it ("bool": is it nonzero)."""

    operation: Operation
    dtype: str
    out_dtype: str
    args: tuple[tuple[Reference, str], ...]


@dataclass(eq=False)
class Typed:
    """An expression for arrays of given dtypes; the last step is the result."""

    function: str
    arrays: list[str]  #: their dtypes
    current_configuration: Callable[[], Any]  #: of the library, as it is now
    steps: list[Step] = field(default_factory=list)
    values: list[tuple[int, str]] = field(default_factory=list)  #: (source, the dtype that it becomes)
    compared: list[tuple[int, str]] = field(default_factory=list)  #: (source, dtype of the array that it meets)
    configuration: Any = None  #: of the library, where the dtypes depend on it
    asks: bool = False  #: the library has been asked

    @property
    def out_dtype(self) -> str:
        """Return the dtype of the result."""
        return self.steps[-1].out_dtype

    def sides(self, scalars: Sequence[Any]) -> tuple[int, ...]:
        """Return where the sources' values lie beside what they are compared with; the steps are right for zeros."""
        return tuple(side_of(scalars[source], numpy_dtype(dtype)) for source, dtype in self.compared)

    def last_uses(self) -> list[list[int]]:
        """Return the steps that each step is the last one to use."""
        last = {ref.index: place for place, step in enumerate(self.steps) for ref, _ in step.args
                if isinstance(ref, StepRef)}  # fmt: skip
        used: list[list[int]] = [[] for _ in self.steps]
        for index, place in last.items():
            used[place].append(index)
        return used

    @functools.cached_property
    def dtypes(self) -> list[Any]:
        """Return all that occur, once the steps are there."""
        names = {*self.arrays, *(dtype for _, dtype in self.values), *(step.dtype for step in self.steps)}
        return [numpy_dtype(name) for name in names]


def kind_of(dtype: str) -> str:
    """Return NumPy's letter for the kind of a dtype; "f" for bfloat16."""
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


@dataclass(frozen=True)
class _Operand:
    """A typed node: strong, with a dtype, or weak, which counts by its kind alone: a scalar, or an array of JAX's."""

    ref: Reference | None = None
    is_0d: bool = False
    scalar: Any = None  # of what is weak: its value, or one of its kind
    source: int = -1  # of a scalar: its place in Split.sources; -1 for a literal

    def described(self) -> Any:
        """Return it as `as_promoted` takes it."""
        if not self.ref:
            return self.scalar
        return (self.ref.dtype, self.is_0d) if self.scalar is None else (self.ref.dtype, self.is_0d, self.scalar)


class _Typing:
    def __init__(
        self,
        split: Split,
        library: str,
        arrays: Sequence[tuple[Any, ...]],
        scalars: Sequence[Any],
        sides: Sequence[int],
    ) -> None:
        self.split = split
        self.library = library
        self.arrays = arrays
        self.scalars = [scalar_of(x) for x in scalars]
        self.sides = sides
        self.configuration = functools.partial(configuration, library)
        self.typed = Typed(split.function, [array[0] for array in arrays], self.configuration)
        self.place_of: dict[tuple[int, str], int] = {}  # in typed.values

    def run(self) -> Typed:
        before = self.configuration()
        nodes, split = self.split.parsed.nodes, self.split
        literals = [place for place in range(len(nodes)) if split.is_literal[place]]
        met = {x for place, node in enumerate(nodes) if isinstance(node, Apply) and not split.is_scalar[place]
               for x in node.args}  # fmt: skip
        wanted = [place for place in literals if place in met]
        values = dict(zip(wanted, split.values({}, wanted), strict=True))
        operands: dict[int, _Operand] = {}
        for place, node in enumerate(nodes):
            if place in values:
                operands[place] = _Operand(scalar=values[place])
            elif split.is_scalar[place]:
                if place in split.place_of:
                    source = split.place_of[place]
                    operands[place] = _Operand(scalar=self.scalars[source], source=source)
            else:
                operands[place] = self.typed_operand(node, operands)
        result = operands[len(nodes) - 1]
        if not isinstance(result.ref, StepRef):
            copy = OPERATIONS["copy"]
            self.step(copy, self.common_dtype(copy, [result]), None, [result])
        if self.typed.asks:
            if self.configuration() != before:  # another thread has changed it between two steps
                return _Typing(self.split, self.library, self.arrays, self.scalars, self.sides).run()
            self.typed.configuration = before
        return self.typed

    def typed_operand(self, node: Node, typed: dict[int, _Operand]) -> _Operand:
        if isinstance(node, Name):
            index = self.split.arrays.index(node.name)
            dtype, is_0d, *scalar = self.arrays[index]
            return _Operand(ArrayRef(index, dtype), is_0d, *scalar)
        assert isinstance(node, Apply)
        operands = [typed[x] for x in node.args]
        operation = node.operation
        promoted = operands[operation.truths :]
        dtype = self.common_dtype(operation, promoted) if promoted else "bool"
        if operation.name == "pow" and _is_two(operands[1]) and kind_of(dtype) in "iuf":
            return self.step(OPERATIONS["square"], dtype, node, operands[:1])
        if operation.name in COMPARISONS:
            operation = self.compare(operation, dtype, operands)
        return self.step(operation, dtype, node, operands)

    def compare(self, operation: Operation, dtype: str, operands: list[_Operand]) -> Operation:
        """Return the comparison that answers for any scalar, and put one that `dtype` holds in its place."""
        place = next((i for i, x in enumerate(operands) if x.ref is None), None)
        if place is None:
            return operation
        operand, kind = operands[place], numpy_dtype(dtype)
        if operand.source < 0:
            side = side_of(operand.scalar, kind)
        else:
            at = len(self.typed.compared)
            side = self.sides[at] if self.sides else 0
            self.typed.compared.append((operand.source, dtype))
        if side == 0:
            return operation
        name, scalar = beside(operation.name, side, kind, place == 0)
        operands[place] = _Operand(scalar=scalar)
        return OPERATIONS[name]

    def common_dtype(self, operation: Operation, operands: Sequence[_Operand]) -> str:
        """Return the dtype that operands share, without asking where they do so themselves."""
        described = [x.described() for x in operands]
        dtype = _core.shared_dtype(operation.name, described)
        if dtype is not None:
            return dtype
        self.typed.asks = True
        return promote(self.split.function, self.library, operation.in_float, *as_promoted(described))

    def step(self, operation: Operation, dtype: str, node: Apply | None, operands: Sequence[_Operand]) -> _Operand:
        out_dtype = self.result_dtype(operation, dtype, node)
        targets = ["bool"] * operation.truths + [dtype] * (len(operands) - operation.truths)
        args = tuple((self.reference(x, to), to) for x, to in zip(operands, targets, strict=True))
        self.typed.steps.append(Step(operation, dtype, out_dtype, args))
        is_0d = all(x.is_0d for x in operands if x.ref)
        return _Operand(StepRef(len(self.typed.steps) - 1, out_dtype), is_0d)

    def result_dtype(self, operation: Operation, dtype: str, node: Apply | None) -> str:
        try:
            return _core.abstract_elementwise(operation.name, dtype, [])[1]
        except TypeError as error:
            raise TypeError(f"{self.where(node)}{error}") from None

    def where(self, node: Apply | None) -> str:
        return f"{self.split.function}: in {self.split.parsed.text_of(node)!r}: " if node else ""

    def reference(self, operand: _Operand, dtype: str) -> Reference:
        if operand.ref:
            return operand.ref
        if operand.source < 0:
            name = "the literal"
            return Constant(element_of(self.split.function, name, operand.scalar, numpy_dtype(dtype)), dtype)
        value = (operand.source, dtype)
        if value not in self.place_of:
            self.place_of[value] = len(self.typed.values)
            self.typed.values.append(value)
        return ValueRef(self.place_of[value], dtype)


def _is_two(operand: _Operand) -> bool:
    return operand.ref is None and operand.source < 0 and type(operand.scalar) in (int, float) and operand.scalar == 2
