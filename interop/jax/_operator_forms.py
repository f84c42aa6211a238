"""What an operator computes in a program of JAX's: its results, their tangents, or gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from interop._arguments import type_name
from interop._libraries.jax import keeping
from interop._operations.finish import finish_dtype
from interop._operations.promotion import numpy_dtype
from interop._operators.arrays import Facts
from interop._operators.description import Description
from interop._operators.signature import Operand
from interop.jax._placement import name_of

__all__ = ["Derivative", "Form", "Gradient", "Number", "Results", "Tangent", "is_differentiable", "sum_dtype"]

_Tracer = jax.core.Tracer


class Number:
    """A number that is fixed in a program. Equal to those of the same type that print the same: 1 is not 1.0."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = type(value), repr(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value)


def is_differentiable(x: Any) -> bool:
    """Has an array, or what JAX knows of one, a dtype of floats or complex numbers?"""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _facts(x: Any) -> Facts:
    return x.shape, name_of(x.dtype)


@dataclass(frozen=True)
class Form:
    """A function of the user's, of arrays by position. `numbers` has the fixed ones among the inputs, by their places.

    Each operand and each result has axes, as the signature has them.
    """

    description: Description
    numbers: tuple[Number | None, ...]
    #: Is it computed by what the function is written over where that is differentiated, or mapped over all but "..."?
    is_inlined: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return self.description.label

    def __repr__(self) -> str:
        fixed = [
            f"{operand.name}={number!r}"
            for operand, number in zip(self.description.signature.inputs, self.numbers, strict=True)
            if number is not None
        ]
        return f"<{', '.join([f'{type(self).__name__.lower()} of {self.label}', *fixed])}>"

    @functools.cached_property
    def inputs(self) -> tuple[Operand, ...]:
        """The inputs that are operands: the arrays, and the numbers that are traced, which have no axes."""
        pairs = zip(self.description.signature.inputs, self.numbers, strict=True)
        return tuple(Operand(operand.name, operand.axes or ()) for operand, number in pairs if number is None)

    @functools.cached_property
    def outputs(self) -> tuple[Operand, ...]:
        """The results of the operator, each with a name."""
        outputs = self.description.signature.outputs
        alone = len(outputs) == 1
        return tuple(
            Operand(operand.name or ("the result" if alone else f"result {place}"), operand.axes)
            for place, operand in enumerate(outputs)
        )

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    @functools.cached_property
    def results(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    @functools.cached_property
    def sums(self) -> tuple[str, ...]:
        """The letters over which parts are added up."""
        return ()

    def facts(self, operands: Sequence[Any]) -> list[Facts]:
        """Return the shape and dtype of each result; raise for operands that do not fit."""
        raise NotImplementedError

    def on(self, platform: str) -> Form:
        """Return what is computed in a program for a platform of JAX's; raise where that is nothing."""
        return self

    def compute(self, *operands: Any) -> tuple[Any, ...]:
        """Call the function of arrays that are traced, and return its results, all arrays of JAX's."""
        expected = self.facts(operands)
        dtypes = [numpy_dtype(dtype) for _, dtype in expected]
        with keeping(*dtypes, *(x.dtype for x in operands)):
            made = self._call(*operands)
            return tuple(
                jnp.zeros(shape, dtype) if x is None else jnp.asarray(x)
                for x, (shape, _), dtype in zip(made, expected, dtypes, strict=True)
            )

    def _call(self, *operands: Any) -> Sequence[Any]:
        raise NotImplementedError

    def given(self, operands: Sequence[Any]) -> list[Any]:
        """Return the inputs of the operator by position, of those that are operands."""
        left = iter(operands)
        return [next(left) if number is None else number.value for number in self.numbers]

    def places(self) -> list[int]:
        """Return the place among all inputs of each that is an operand."""
        return [place for place, number in enumerate(self.numbers) if number is None]

    def array_facts(self, inputs: Sequence[Any]) -> list[Facts]:
        """Return the shapes and dtypes of the arrays among all inputs."""
        return [_facts(inputs[place]) for place in self.description.signature.arrays]

    @contextlib.contextmanager
    def reading(self, function: str, **named: Any) -> Iterator[None]:
        """Raise TypeError, which says what was asked for, where a function reads values or addresses of arrays."""
        what = "the values of an array"
        try:
            yield
            return
        except AttributeError as error:
            if not isinstance(error.obj, _Tracer):
                raise
            name = next((name for name, x in named.items() if x is error.obj), "an array")
            what, cause = f"{name}.{error.name}", error
        except (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
            jax.errors.TracerIntegerConversionError,
            jax.errors.NonConcreteBooleanIndexError,
        ) as error:
            cause = error
        raise TypeError(
            f"{self.label}: {function} asks for {what}, which JAX traces: there are shapes and dtypes, and no memory "
            "yet; accepted: a function over kernels, C functions, expressions and operations of interop and JAX"
        ) from cause


@dataclass(frozen=True, repr=False)
class Results(Form):
    """The results of an operator, of its inputs: of what it calls on one kind of device, where that is not the same."""

    device: str = ""

    def on(self, platform: str) -> Form:
        if self.description.devices is None:
            return self
        self.description.of_device(platform, f"JAX compiles it for {platform!r}")
        return replace(self, device=platform)

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        return self.inputs

    @functools.cached_property
    def results(self) -> tuple[Operand, ...]:
        return self.outputs

    @functools.cached_property
    def sums(self) -> tuple[str, ...]:
        return self.description.signature.sums

    def facts(self, operands: Sequence[Any]) -> list[Facts]:
        return [*self.description.results(self.array_facts(self.given(operands)))]

    def _call(self, *operands: Any) -> Sequence[Any]:
        expected, call = self.facts(operands), self.description.of_device(self.device).function
        with self.reading("call", **_named(self.inputs, operands)):
            made = call(*self.given(operands))
        made = self.description.check_results(made, expected)
        return _arrays_of_jax(self.label, "call", made if len(expected) > 1 else (made,))


@dataclass(frozen=True, repr=False)
class Derivative(Form):
    """By the inputs with the places `by`, of the results with the places `of`.

    The inputs and the results are known. A program keeps those that are `kept`, and of the others the dtypes: there,
    zeros stand for what no function reads.
    """

    by: tuple[int, ...]
    of: tuple[int, ...]
    kept: tuple[bool, ...]
    dtypes: tuple[str, ...]

    @functools.cached_property
    def known(self) -> tuple[Operand, ...]:
        """The inputs that are operands, and the results; among them those that are not kept."""
        return (*self.inputs, *self.outputs)

    def kept_of(self, known: Sequence[Any]) -> list[Any]:
        """Return those that are kept."""
        return [x for x, is_kept in zip(known, self.kept, strict=True) if is_kept]

    def all_known(self, operands: Sequence[Any], kept: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Return all inputs, and the results, of those that are kept."""
        left, sizes = iter(kept), self.sizes(operands)
        known = [
            next(left) if is_kept else jnp.zeros(operand.shape(sizes), numpy_dtype(dtype))
            for operand, is_kept, dtype in zip(self.known, self.kept, self.dtypes, strict=True)
        ]
        return self.given(known), known[len(self.inputs) :]

    def sizes(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return the size of each letter."""
        sizes: dict[str, Any] = {}
        for operand, x in zip(self.operands, operands, strict=True):
            axes = operand.axes or ()
            count = len(x.shape) - len(axes) + 1 if operand.has_leading else 0
            by_axis = [tuple(x.shape[:count]), *x.shape[count:]] if operand.has_leading else x.shape
            sizes |= {"..." if axis is ... else str(axis): size for axis, size in zip(axes, by_axis, strict=True)}
        return sizes

    def facts_of(self, places: Sequence[int], operands: Sequence[Any]) -> list[Facts]:
        """Return the shapes and dtypes of those of the known with these places."""
        sizes = self.sizes(operands)
        return [(self.known[place].shape(sizes), self.dtypes[place]) for place in places]


@dataclass(frozen=True, repr=False)
class Tangent(Derivative):
    """The tangents of results, of what is known, and tangents of inputs."""

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        inputs = self.description.signature.inputs
        tangents = (Operand(f"the tangent of {inputs[place].name}", inputs[place].axes) for place in self.by)
        return (*self.kept_of(self.known), *tangents)

    @functools.cached_property
    def results(self) -> tuple[Operand, ...]:
        return tuple(self.outputs[place] for place in self.of)

    def facts(self, operands: Sequence[Any]) -> list[Facts]:
        return self.facts_of([len(self.inputs) + place for place in self.of], operands)

    def _call(self, *operands: Any) -> Sequence[Any]:
        function = self.description.tangent
        if function is None:
            raise self.missing()
        count = sum(self.kept)
        inputs, outputs = self.all_known(operands, operands[:count])
        by = dict(zip(self.by, operands[count:], strict=True))
        tangents: list[Any] = [None] * len(inputs)
        for place in self.description.signature.arrays:
            x = inputs[place]
            if is_differentiable(x):
                tangents[place] = by[place] if place in by else jnp.zeros(x.shape, x.dtype)
        with self.reading("tangent"):
            made = function(tuple(tangents), tuple(inputs), tuple(outputs))
        made = self.description.check_tangents(made, [_facts(x) for x in outputs])
        made = _arrays_of_jax(self.label, "tangent", made if len(outputs) > 1 else (made,))
        return [made[place] for place in self.of]

    def missing(self) -> NotImplementedError:
        """Return the error where tangents are asked for, and the operator has but a gradient."""
        names = ", ".join(self.description.signature.inputs[place].name for place in self.by)
        return NotImplementedError(
            f"{self.label}: JAX asks for tangents by {names} (jax.jvp, jax.jacfwd, jax.linearize), and it has a "
            "gradient alone; accepted: tangent= of interop.operator, or reverse mode (jax.grad, jax.vjp, jax.jacrev)"
        )


@dataclass(frozen=True, repr=False)
class Gradient(Derivative):
    """The gradients by inputs, of those of results, and of what is known.

    `gradient` is the adjoint, as torch has it. JAX's is the transpose: the conjugate of the adjoint of the conjugate.
    """

    is_inlined: ClassVar[bool] = True

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        grads = (Operand(f"the gradient of {self.outputs[k].name}", self.outputs[k].axes) for k in self.of)
        return (*grads, *self.kept_of(self.known))

    @functools.cached_property
    def results(self) -> tuple[Operand, ...]:
        return tuple(self.description.signature.inputs[place] for place in self.by)

    def facts(self, operands: Sequence[Any]) -> list[Facts]:
        places = self.places()
        return self.facts_of([places.index(place) for place in self.by], operands)

    def _call(self, *operands: Any) -> Sequence[Any]:
        function = self.description.gradient
        assert function is not None
        count = len(self.of)
        inputs, outputs = self.all_known(operands, operands[count:])
        by_result = dict(zip(self.of, map(_conj, operands[:count]), strict=True))
        # Of what has no gradient, zeros of its own dtype, as torch has them.
        grads = [by_result.get(k, jnp.zeros(x.shape, x.dtype)) for k, x in enumerate(outputs)]
        with self.reading("gradient"):
            made = function(tuple(grads) if len(grads) > 1 else grads[0], *inputs, *outputs)
        made = self.description.check_gradients(made, self.array_facts(inputs))
        made = _arrays_of_jax(self.label, "gradient", made)
        arrays = self.description.signature.arrays
        return [_conj(made[arrays.index(place)]) for place in self.by]


def _named(operands: Sequence[Operand], values: Sequence[Any]) -> dict[str, Any]:
    return {operand.name: x for operand, x in zip(operands, values, strict=True)}


def _conj(x: Any) -> Any:
    return jnp.conj(x) if x is not None and jnp.issubdtype(x.dtype, jnp.complexfloating) else x


def _arrays_of_jax(label: str, function: str, made: Sequence[Any]) -> Sequence[Any]:
    for x in made:
        if not isinstance(x, jax.Array | np.ndarray | np.generic | None):
            raise TypeError(
                f"{label}: {function} returned {type_name(x)} where JAX traces it; accepted: arrays of JAX, and of "
                "NumPy as constants"
            )
    return made


def sum_dtype(dtype: Any) -> Any:
    """Return the dtype in which parts are added up, which is rounded to `dtype` once."""
    return np.dtype("int32") if dtype.kind == "b" else finish_dtype(dtype)
