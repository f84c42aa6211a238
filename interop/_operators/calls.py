"""What `call=` of an operator is, as a function of the inputs by position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from interop._functions.array_function import ArrayFunction
from interop._functions.parameters import Parameter
from interop._operators.arrays import facts_of
from interop._operators.signature import KEYWORDS, Signature, SizeRule

__all__ = ["ACCEPTED", "Call", "is_kernel", "of_array_function", "of_expression", "of_python"]

#: (what is called, places, values, tail): see `Call.prepare`.
Prepared = tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...], tuple[Any, ...] | None]
#: What an operator calls.
ACCEPTED = (
    "what interop.kernel and interop.elementwise make, a C function of interop.load, or a Python function over these"
)
_OTHERWISE = "a Python function that calls it, as call="


class Call(NamedTuple):
    """A function of the inputs by position, with the keywords of the call of an operator that are in `keywords`."""

    function: Callable[..., Any]
    keywords: tuple[str, ...]
    #: Of each input that is an array, the dtype that it must have, and of each result that which it has; "" if unknown.
    accepted: tuple[str, ...]
    made: tuple[str, ...]
    #: Of the sizes: what is called, the place of each argument among the inputs, or -1 and a value in its place, and
    #: what follows a tuple of the arguments, or None where they are passed by position.
    prepare: Callable[[Mapping[str, Any]], Prepared]
    #: What `function` calls, and with which arguments, of the inputs; None for a Python function.
    calls: Callable[[Sequence[Any]], tuple[Callable[..., Any], list[Any]]] | None = None
    #: The letters whose sizes are arguments.
    letters: tuple[str, ...] = ()
    #: Are the results of the shapes and dtypes of the signature, whatever the inputs?
    is_exact: bool = False
    #: May it be part of a CUDA graph? A C function that takes no stream may not.
    in_graphs: bool = True


def of_python(function: Callable[..., Any], signature: Signature) -> Call:
    """Return the call of a Python function, which takes the inputs by position."""
    try:
        known = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a built-in that has none
        known = {}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keywords = tuple(name for name in KEYWORDS if name in known and known[name].kind in named)
    places = tuple(range(len(signature.inputs)))
    prepared = (function, places, (None,) * len(places), None)
    return Call(
        function, keywords, ("",) * len(signature.arrays), ("",) * len(signature.outputs), lambda sizes: prepared
    )


def of_expression(
    label: str, expression: Any, parameters: Sequence[str], signature: Signature, extra: Mapping[str, SizeRule]
) -> Call:
    """Return the call of an expression, whose parameters are matched with the inputs, and with letters, by name."""
    if len(signature.outputs) != 1:
        raise ValueError(f"{label}: call is an expression, which has one result; accepted: a signature with one")
    takes = _Takes(label, "expression", parameters, signature, extra)

    def call(*inputs: Any, **options: Any) -> Any:
        return expression(*takes.arguments(inputs), **options)

    def prepare(sizes: Mapping[str, Any]) -> Prepared:
        return (expression, *takes.from_sizes(sizes), None)

    def calls(inputs: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return expression, takes.arguments(inputs)

    return Call(call, KEYWORDS, ("",) * len(signature.arrays), ("",), prepare, calls, takes.letters)


def is_kernel(function: ArrayFunction) -> bool:
    """Is it launched on the stream of the call?"""
    return "grid" in function._keywords


def of_array_function(label: str, function: ArrayFunction, signature: Signature, extra: Mapping[str, SizeRule]) -> Call:
    """Return the call of a kernel or C function, whose parameters are matched by name.

    Those that it writes are the results, which the call makes.
    """
    parameters = {p.name: p for p in function._parameters if p.is_argument}
    if function._value:
        raise ValueError(f"{label}: call returns a value, {function._value!r}; accepted: {_OTHERWISE}")
    results = _results_of(label, function, parameters, signature)
    taken = [name for name in parameters if name not in results]
    takes = _Takes(label, "kernel or C function", taken, signature, extra)
    for name in taken:
        _check_kind(label, function, parameters[name], signature)
    rules = {name: _rule_of(label, place, signature, taken, extra) for place, name in enumerate(results)}
    made: Any = function._with({}).returning(**rules)
    order = [list(made._shapes).index(name) for name in results]  # it returns them as it declares them
    is_ordered = order == sorted(order)

    def call(*inputs: Any, **options: Any) -> Any:
        returned = made(*takes.arguments(inputs), **options)
        return returned if is_ordered else tuple(returned[place] for place in order)

    def prepare(sizes: Mapping[str, Any]) -> Prepared:
        places = {name: signature.outputs[place].shape(sizes) for place, name in enumerate(results)}
        shapes = made._like | {made._places[name]: places[name] for name, _ in made._called}
        target, tail = made._prepared(shapes)
        if is_ordered:
            return (target, *takes.from_sizes(sizes), tail)

        def reordered(*args: Any) -> Any:
            returned = target(*args)
            return tuple(returned[place] for place in order)

        return (reordered, *takes.from_sizes(sizes), tail)

    def calls(inputs: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return made, takes.arguments(inputs)

    in_graphs = is_kernel(function) or function._in_graphs or any(p.kind == "stream" for p in function._parameters)
    keywords = tuple(name for name in KEYWORDS if name in made._keywords)
    accepted = tuple(parameters[signature.inputs[place].name].dtype for place in signature.arrays)
    dtypes = tuple(parameters[name].dtype for name in results)
    return Call(call, keywords, accepted, dtypes, prepare, calls, takes.letters, is_exact=True, in_graphs=in_graphs)


class _Takes:
    """The arguments of a function, made of the inputs and of the sizes of letters, by the names of its parameters."""

    def __init__(
        self,
        label: str,
        kind: str,
        parameters: Sequence[str],
        signature: Signature,
        extra: Mapping[str, SizeRule],
    ) -> None:
        self.label, self.signature, self.extra = label, signature, extra
        places = {operand.name: place for place, operand in enumerate(signature.inputs)}
        self.sources: list[int | str] = []  # of each argument: the place of an input, or a letter
        for name in parameters:
            if name not in places and name not in signature.letters and name not in self.extra:
                known = ", ".join([*places, *signature.letters, *self.extra])
                raise ValueError(
                    f"{label}: call: the parameter {name} of the {kind} is no input and no size of the signature "
                    f"({known}); accepted: these names, or {_OTHERWISE}"
                )
            self.sources.append(places.get(name, name))
        missing = [name for name in places if name not in parameters]
        if missing:
            place = places[missing[0]]
            raise ValueError(
                f"{label}: call: the input {missing[0]} is no parameter of the {kind} ({', '.join(parameters)}); "
                f"accepted: the names of its parameters, or {_OTHERWISE}{signature.pointed(place)}"
            )
        self.letters = tuple(source for source in self.sources if isinstance(source, str))

    def from_sizes(self, sizes: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Return the place of each argument among the inputs, or -1, and in its place the size of a letter."""
        places = tuple(-1 if isinstance(source, str) else source for source in self.sources)
        return places, tuple(sizes[source] if isinstance(source, str) else None for source in self.sources)

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        sizes: dict[str, Any] = {}
        if self.letters:
            shapes = [facts_of(inputs[place])[0] for place in self.signature.arrays]
            sizes = self.signature.sizes_of(self.label, shapes, self.extra)
        return [sizes[source] if isinstance(source, str) else inputs[source] for source in self.sources]


def _results_of(
    label: str, function: ArrayFunction, parameters: Mapping[str, Parameter], signature: Signature
) -> list[str]:
    """Return the parameter that is each result: by the name of the result, else the next one that is written."""
    inputs = {operand.name: place for place, operand in enumerate(signature.inputs)}
    written = [p.name for p in parameters.values() if p.written and p.kind in function._arrays]
    for name in written:
        if name in inputs:
            raise ValueError(
                f"{label}: call: {name} is an input, and call writes to it; accepted: reads=({name!r},) where it only "
                f"reads, a result of this name, or {_OTHERWISE}{signature.pointed(inputs[name])}"
            )
    for place, operand in enumerate(signature.outputs):
        if operand.name and operand.name not in written:
            raise ValueError(
                f"{label}: call: the result {operand.name} is no pointer or view that call writes to; accepted: "
                f"{', '.join(written) or 'none'}{signature.pointed(len(inputs) + place)}"
            )
    for name in written:
        if not parameters[name].dtype:
            raise ValueError(
                f"{label}: call: {name} is a pointer to void, to which no result is written; accepted: "
                f"pointers to elements, or {_OTHERWISE}"
            )
    named = {operand.name for operand in signature.outputs}
    unnamed = [name for name in written if name not in named]
    if len(written) != len(signature.outputs):
        raise ValueError(
            f"{label}: call writes to {', '.join(written) or 'nothing'}, and the signature has "
            f"{len(signature.outputs)} results; accepted: one for each, or {_OTHERWISE}"
            f"{signature.pointed(len(inputs))}"
        )
    return [operand.name or unnamed.pop(0) for operand in signature.outputs]


def _check_kind(label: str, function: ArrayFunction, parameter: Parameter, signature: Signature) -> None:
    """Refuse an array for a number, and a number for an array."""
    place = next((k for k, operand in enumerate(signature.inputs) if operand.name == parameter.name), None)
    is_array = parameter.kind in function._arrays
    if not is_array and parameter.kind != "scalar":
        raise ValueError(f"{label}: call: the parameter {parameter.name} is no array or number; accepted: {_OTHERWISE}")
    if place is None:
        if is_array:
            raise ValueError(
                f"{label}: call: the parameter {parameter.name} is an array, and the signature has it as the size of "
                f"an axis; accepted: another letter, or {_OTHERWISE}"
            )
    elif is_array != (signature.inputs[place].axes is not None):
        is_, has = ("an array", "a number") if is_array else ("a number", "an array")
        raise ValueError(
            f"{label}: call: the parameter {parameter.name} is {is_}, and the signature has it as {has}; accepted: "
            f"{parameter.name}{'[...]' if is_array else ''} there{signature.pointed(place)}"
        )


def _rule_of(
    label: str, place: int, signature: Signature, taken: Sequence[str], extra: Mapping[str, SizeRule]
) -> str | Callable[..., Any]:
    """Return the rule of `ArrayFunction.returning` for a result: the name of an input of the same axes, if any is."""
    axes = signature.outputs[place].axes
    like = next((operand.name for operand in signature.inputs if operand.axes == axes), None)
    if like:
        return like
    arrays = [taken.index(signature.inputs[k].name) for k in signature.arrays]

    def shape(*args: Any) -> Any:
        sizes = signature.sizes_of(label, [facts_of(args[k])[0] for k in arrays], extra)
        return signature.outputs[place].shape(sizes)

    return shape
