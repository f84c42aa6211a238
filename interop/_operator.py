"""One description of a function for every array library: `interop.operator`."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interop._arguments import named, shown, type_name
from interop._expression import Expression
from interop._functions.array_function import ArrayFunction
from interop._libraries.dask import is_dask_array
from interop._operators import calls, options, registry
from interop._operators.arguments import bound, refuse_option, signature_of
from interop._operators.content import changeable, key_of, portable
from interop._operators.description import Description
from interop._operators.devices import check_devices, joined
from interop._operators.signature import Signature, SizeRule, parse
from interop._streams import StreamLike
from interop._traced import traced_by

__all__ = ["Operator", "operator"]

_NAME = re.compile(r"[A-Za-z_]\w*::(?!__|name$)[A-Za-z_]\w*", re.ASCII)  # torch.ops.package.name is the package's own
_PACKAGES = ("interop", "aten", "prim", "prims")  # not of the user's


@named("interop.operator")
def operator(
    name: str,
    call: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    signature: str,
    *,
    gradient: Callable[..., Any] | None = None,
    tangent: Callable[..., Any] | None = None,
    dtype: Any = None,
    sizes: Mapping[str, Callable[..., Any]] | None = None,
    cut: str | None = None,
    batching: Any = None,
) -> Operator:
    """Make an operator of a function and a signature, to be called with arrays of any library.

    Parameters
    ----------
    name : str
        With a package: ``"package::row_sum"``. Defined again, it takes the place of the operator of that name.
    call : Kernel, Function, CompiledFunction, Expression or callable, or mapping of str to these
        What computes it. The parameters of a kernel, C function or expression are matched by name with the inputs; one
        with the name of a letter is given that size. What a kernel or C function writes are the results, by their
        names, else in order, and the call makes them. A Python function takes the inputs by position, and returns an
        array, or a tuple of several. ``{"cpu": f, "cuda": g}`` has one for each kind of device, or for one alone: `g`
        is called where an array is on a GPU.
    signature : str
        The inputs, their axes, and those of the results: ``"x[..., n], s[n], eps -> [..., n]"``. An input without axes
        is a number; ``...`` are leading axes. ``; sum k`` at the end says that the results are sums over ``k``.
    gradient : callable, optional
        ``gradient(g, *inputs, *outputs)``: the gradient by each input, an array or None, from that by the result; `g`
        is a tuple where there are several results. Reverse mode asks for it.
    tangent : callable, optional
        ``tangent(tangents, inputs, outputs)``, of tuples: the tangents of the results. Forward mode asks for it.
    dtype : str, callable, or tuple of these, optional
        The dtype of the results, or of each: its name, that of an input, or a function of the names of the inputs'
        dtypes. By default it is that of the pointer that is written, else that of the first array.
    sizes : mapping of str to callable, optional
        Functions of the letters that are in no input: each is called with the sizes that its parameters name, of
        inputs; ``leading`` is the number of elements of the leading axes. Integer arithmetic alone.
    cut : str, optional
        Letters along which the work may be cut, such as ``"m, n"``, beside ``...`` and sums: each part of the results
        is then what `call` makes of that part of the inputs. All other axes are whole.
    batching : "loop", optional
        How `vmap` maps an input that has no leading axes.

    Returns
    -------
    Operator
        To be called with the inputs, by position or by name.

    Raises
    ------
    TypeError
        An argument is of another type. In a call: an input is no array, or no number, or of a dtype that `call` does
        not take; a function returns no array, or one of another dtype.
    ValueError
        `signature` is none, and the message points at the character; `call` has a parameter that is neither an input
        nor a size, or does not write the results; it has other keys than ``"cpu"`` and ``"cuda"``, or takes or makes
        other dtypes for one than for the other; `sizes`, `dtype` or `cut` do not fit the signature. In a call: the
        shapes do not fit, or a function returns an array of another shape, and the message points into the signature;
        `call` has nothing for the device of the arrays.

    Notes
    -----
    A call with arrays that need no transform runs `call` at once, on the memory of the arrays, as `call` itself would:
    streams, memory and errors are those of `interop.kernel`, `interop.load` and `interop.elementwise`. No shape is
    broadcast.

    An operator is pickled by its name, and what it is made of. To load it in a process that has another operator of
    that name is a ValueError.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> scale = interop.operator(
    ...     "example::scale", interop.elementwise("x * s + b"), "x[..., n], s[n], b[n] -> [..., n]"
    ... )
    >>> scale
    <operator example::scale: x[..., n], s[n], b[n] -> [..., n]>
    >>> scale(np.ones((2, 3)), np.array([1.0, 2.0, 3.0]), b=np.zeros(3))
    array([[1., 2., 3.],
           [1., 2., 3.]])
    >>> scale(np.ones((2, 3)), np.ones(4), np.ones(3))
    Traceback (most recent call last):
      ...
    ValueError: example::scale: n is 4 in s, of shape (4,), and 3 in x; accepted: one size
        x[..., n], s[n], b[n] -> [..., n]
                     ^
    """
    if not isinstance(name, str):
        raise TypeError(f"interop.operator: name is {type_name(name)}; accepted: a str such as 'package::row_sum'")
    label = f"interop.operator({shown(name)})"
    parts = name.split("::")
    if not _NAME.fullmatch(name) or any(map(keyword.iskeyword, parts)) or parts[0] in _PACKAGES:
        raise ValueError(
            f"interop.operator: name is {shown(name)}; accepted: 'package::row_sum', of a package of yours"
        )
    rules = options.sizes_of(label, sizes)
    parsed = parse(f"{label}: signature", signature, rules)
    options.check_parts(label, parsed.sums, parsed, rules)
    for option, function in (("gradient", gradient), ("tangent", tangent)):
        if function is not None and not callable(function):
            raise TypeError(f"{label}: {option} is {type_name(function)}; accepted: a function, or None")
    if batching not in (None, "loop"):
        raise ValueError(f"{label}: batching is {shown(batching)}; accepted: None, 'loop'")
    devices = None
    if isinstance(call, Mapping):
        call = dict(call)
        check_devices(label, call)
        devices = {key: _call_of(f"{label}: for {key!r}", call[key], parsed, rules) for key in call}
        called = joined(label, devices, parsed)
    else:
        called = _call_of(label, call, parsed, rules)
    options.check_sizes(label, rules, parsed, called.letters)
    dtypes = options.dtypes_of(label, dtype, parsed, called.accepted, called.made)
    cuts = options.cut_of(label, cut, parsed, rules)
    made_of = (name, call, parsed.text, gradient, tangent, dtype, dict(sizes or {}), cut, batching)
    key, closed_over = key_of(*made_of), tuple(changeable(made_of))
    found = registry.find(name)
    if found is not None and found.key == key and [*map(id, found.closed_over)] != [*map(id, closed_over)]:
        # Equal now, but it closes over other lists than the operator that is there, whose call changes its own.
        key = key_of(*made_of, object())
    description = Description(
        name,
        parsed,
        called,
        key,
        closed_over=closed_over,
        devices=devices,
        gradient=gradient,
        tangent=tangent,
        dtypes=dtypes,
        sizes=rules,
        cut=cuts,
        batching=batching,
    )
    return Operator(registry.register(description), made_of)


def _call_of(label: str, call: Any, signature: Signature, sizes: Mapping[str, SizeRule]) -> calls.Call:
    if isinstance(call, ArrayFunction) and call._is_declared:
        return calls.of_array_function(label, call, signature, sizes)
    if isinstance(call, Expression):
        return calls.of_expression(label, call, call.parameters, signature, sizes)
    if not callable(call):
        raise TypeError(
            f"{label}: call is {type_name(call)}; accepted: {calls.ACCEPTED}; or {{'cpu': f, 'cuda': g}} of such"
        )
    return calls.of_python(call, signature)


def _doc_of(call: Any) -> str | None:
    if isinstance(call, dict):  # of functions for each kind of device
        return next(filter(None, map(_doc_of, call.values())), None)
    return inspect.getdoc(call) if inspect.isroutine(call) else getattr(call, "__doc__", None)


def _traced(operator: Operator, /, *inputs: Any, **named: Any) -> Any:
    from interop.torch import _operator_tracing  # by torch's compiler, as it traces

    return _operator_tracing.call(operator, inputs, named)


class Operator:
    """A function of arrays of any library; `interop.operator` makes it, and says what it takes.

    The call takes the inputs of the signature, by position or by name, and the keywords ``stream`` and ``execution``
    where what it calls takes them. It returns an array, or a tuple of several, of the library of the first array. Two
    of the same name that are made of the same are equal.
    """

    def __init__(self, description: Description, made_of: tuple[Any, ...]) -> None:
        self._description, self._made_of = description, made_of
        self._calls = description.make_calls()
        self._at_once = self._calls.call  # found once
        names = [operand.name for operand in description.signature.inputs]
        self.__name__ = self.__qualname__ = description.name.partition("::")[2]
        self.__signature__ = signature_of(names)
        doc = _doc_of(made_of[1])
        self.__doc__ = f"{self.__name__}({', '.join(names)}): {self.signature}" + (f"\n\n{doc}" if doc else "")

    @traced_by(_traced, is_method=True)
    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """Compute it."""
        if not named:
            try:
                made = self._at_once(inputs)
            except TypeError:
                self._description.check(inputs)  # which says what is wrong in terms of the signature
                raise
            if made is not NotImplemented:
                return made
        return self._call(inputs, **named)

    def _call(
        self,
        inputs: tuple[Any, ...],
        /,
        stream: StreamLike | None = None,
        execution: str | None = None,
        **named: Any,
    ) -> Any:
        description = self._description
        inputs = bound(description, inputs, named)
        where = self._calls.door(inputs)
        if where == "unknown" and any(map(is_dask_array, inputs)):
            where = "dask"
        given = self._options(where, inputs, stream, execution)
        if where in ("torch", "torch_autograd"):
            from interop.torch import _operators as in_torch

            if where == "torch":
                return in_torch.compute(description, inputs)
            made = in_torch.record(description, inputs)
            if description.gradient is not None:
                self._calls.record_by(*in_torch.recorder(description))  # to which later calls go at once
            return made
        if where == "jax":
            from interop.jax import _operators as in_jax

            return in_jax.compute(description, inputs)
        if where == "dask":
            from interop.dask import compute_operator

            return compute_operator(description, inputs)
        if where == "unknown":
            unknown = [place for place in description.signature.arrays if not self._calls.is_known(inputs[place])]
            description.readable(inputs, always=unknown)  # which says of which input
        return description.run(inputs, **given)

    def _options(self, where: str, inputs: Sequence[Any], stream: Any, execution: Any) -> dict[str, Any]:
        """Return the options that are given; TypeError where they cannot be."""
        description = self._description
        given = {name: x for name, x in (("stream", stream), ("execution", execution)) if x is not None}
        is_traced = where in ("torch", "torch_autograd", "jax", "dask")
        for name in given:
            if is_traced or name not in description.chosen(inputs, execution).keywords:
                refuse_option(description, name, is_traced and name in description.keywords)
        return given

    @property
    def name(self) -> str:
        """The name, with the package."""
        return self._description.name

    @property
    def signature(self) -> str:
        """The signature, in its canonical form."""
        return self._description.signature.text

    def __repr__(self) -> str:
        return f"<operator {self._description.name}: {self.signature}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Operator):
            return NotImplemented
        return self._description.name == other._description.name and self._description.key == other._description.key

    def __hash__(self) -> int:
        return hash((Operator, self._description.key))

    def __reduce__(self) -> tuple[Any, ...]:
        registry.check_newest(self._description)
        return _again, (self._description.key, *self._made_of)


def _again(key: str, name: str, call: Any, signature: str, *rest: Any) -> Operator:
    """Return a pickled operator: the one of its name, or made again if there is none."""
    names = ("gradient", "tangent", "dtype", "sizes", "cut", "batching")
    found = registry.find(name)
    if found is None:
        return operator(name, call, signature, **dict(zip(names, rest, strict=True)))
    if found.key != key and portable(key) and portable(found.key):
        raise ValueError(
            f"interop.operator({shown(name)}): the pickled operator is made of other content than the one that this "
            "process has by this name; accepted: the same in both"
        )
    return Operator(found, (name, call, signature, *rest))
