"""What an operator is, for every array library's way to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from interop import _core
from interop._arguments import shown, type_name
from interop._operators.arrays import Facts, discrete, facts_of, readable
from interop._operators.calls import Call
from interop._operators.options import DtypeRule
from interop._operators.signature import LEADING, Signature, SizeRule, shown_shape

__all__ = ["Description"]


class Description:
    """An operator, and what follows from its signature without memory.

    `call` says what is called; where there are `devices`, it is what all of these say, and one of them is called.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        call: Call,
        key: str,
        *,
        closed_over: Sequence[object] = (),
        devices: Mapping[str, Call] | None = None,
        gradient: Callable[..., Any] | None = None,
        tangent: Callable[..., Any] | None = None,
        dtypes: Sequence[DtypeRule] = (),
        sizes: Mapping[str, SizeRule] | None = None,
        cut: frozenset[str] = frozenset(),
        batching: Any = None,
    ) -> None:
        self.name = self.label = name
        self.signature = signature
        self.gradient, self.tangent, self.cut, self.batching, self.key = gradient, tangent, cut, batching, key
        self.closed_over = closed_over
        self.keywords = call.keywords
        self._call, self._accepted, self._made = call, call.accepted, call.made
        #: What is called for arrays on each kind of device; None where it is the same everywhere.
        self.devices = devices
        #: Are the results of the shapes and dtypes of `results`, without `check_results`?
        self.is_exact = call.is_exact
        self.in_graphs = call.in_graphs
        self._dtypes = tuple(dtypes) or (None,) * len(signature.outputs)
        self.sizes = dict(sizes or {})
        self._names = [signature.inputs[place].name for place in signature.arrays]

    @property
    def maps_leading(self) -> bool:
        """May a call have more leading axes, or fewer, and be the same for each element of these?

        Not where the size of a result follows from how many elements they have.
        """
        of_results = {letter for operand in self.signature.outputs for letter in operand.letters}
        return all(LEADING not in rule.letters for letter, rule in self.sizes.items() if letter in of_results)

    # ---- without memory ----

    def results(self, arrays: Sequence[Facts]) -> tuple[Facts, ...]:
        """Return the shapes and dtypes of the results, of those of the inputs that are arrays.

        Throws ValueError for shapes, and TypeError for dtypes, that do not fit.
        """
        for name, (_, dtype), accepted in zip(self._names, arrays, self._accepted, strict=True):
            if accepted and dtype != accepted:
                place = self.signature.arrays[self._names.index(name)]
                raise TypeError(f"{self.label}: {name} is {dtype}; accepted: {accepted}{self.signature.pointed(place)}")
        sizes = self.signature.sizes_of(self.label, [shape for shape, _ in arrays], self.sizes)
        shapes = self.signature.result_shapes(sizes)
        return tuple((shape, self._dtype_of(place, arrays)) for place, shape in enumerate(shapes))

    def _dtype_of(self, place: int, arrays: Sequence[Facts]) -> str:
        rule = self._dtypes[place]
        if rule is None:
            return self._made[place] or arrays[0][1]
        return rule(self.label, [dtype for _, dtype in arrays])

    # ---- what functions of the user's give ----

    def check_results(self, made: Any, expected: Sequence[Facts]) -> Any:
        """Return what `call` has returned: an array, or a tuple of several.

        Throws TypeError or ValueError for anything but arrays of the shapes and dtypes that `results` has returned.
        """
        several = len(expected) > 1
        arrays = self._listed("call", made, len(expected), "the results") if several else (made,)
        for place, (x, facts) in enumerate(zip(arrays, expected, strict=True)):
            self._check("call", self._result_name(place), x, facts, len(self.signature.inputs) + place)
        return tuple(arrays) if several else made

    def check_tangents(self, made: Any, expected: Sequence[Facts]) -> Any:
        """Return what `tangent` has returned, as `check_results` does: an array, or None, for each result."""
        several = len(expected) > 1
        arrays = self._listed("tangent", made, len(expected), "the results") if several else (made,)
        for place, (x, facts) in enumerate(zip(arrays, expected, strict=True)):
            if x is not None:
                self._check("tangent", self._result_name(place), x, facts, len(self.signature.inputs) + place)
        return tuple(arrays) if several else made

    def check_gradients(self, given: Any, arrays: Sequence[Facts]) -> tuple[Any, ...]:
        """Return what `gradient` has returned: an array or None for each input that is an array.

        `arrays` are the shapes and dtypes of these. Where there is one, the array alone is accepted, too.
        """
        inputs = self.signature.inputs
        if not isinstance(given, tuple | list) and len(arrays) == 1:
            gradients = [given if place in self.signature.arrays else None for place in range(len(inputs))]
        else:
            gradients = list(self._listed("gradient", given, len(inputs), "the inputs"))
        facts = dict(zip(self.signature.arrays, arrays, strict=True))
        for place, x in enumerate(gradients):
            if x is None:
                continue
            if place not in facts:
                raise TypeError(
                    f"{self.label}: gradient returned {type_name(x)} for {inputs[place].name}, which is a number; "
                    f"accepted: None{self.signature.pointed(place)}"
                )
            self._check("gradient", inputs[place].name, x, facts[place], place)
        return tuple(gradients[place] for place in self.signature.arrays)

    def _listed(self, function: str, given: Any, count: int, what: str) -> Sequence[Any]:
        names = ", ".join(
            self._result_name(k) if what == "the results" else self.signature.inputs[k].name for k in range(count)
        )
        if not isinstance(given, tuple | list):
            raise TypeError(
                f"{self.label}: {function} returned {type_name(given)}; accepted: a tuple of {count}, for {what} "
                f"({names}), as {self.signature} has them"
            )
        if len(given) != count:
            raise ValueError(
                f"{self.label}: {function} returned a tuple of {len(given)}; accepted: {count}, for {what} ({names}), "
                f"as {self.signature} has them"
            )
        return given

    def _check(self, function: str, name: str, x: Any, expected: Facts, place: int) -> None:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise TypeError(
                f"{self.label}: {function} returned {type_name(x)} for {name}; accepted: an array"
                f"{self.signature.pointed(place)}"
            )
        (shape, dtype), (its_shape, its_dtype) = expected, facts_of(x)
        if len(shape) != len(its_shape) or any(not a == b for a, b in zip(shape, its_shape, strict=True)):
            raise ValueError(
                f"{self.label}: {function} returned an array of shape {shown_shape(its_shape)} for {name}; accepted: "
                f"{shown_shape(shape)}{self.signature.pointed(place)}"
            )
        if dtype != its_dtype:
            raise TypeError(
                f"{self.label}: {function} returned {its_dtype} for {name}; accepted: {dtype}"
                f"{self.signature.pointed(place)}"
            )

    def _result_name(self, place: int) -> str:
        name = self.signature.outputs[place].name
        return name or ("the result" if len(self.signature.outputs) == 1 else f"result {place}")

    # ---- the call ----

    def readable(self, inputs: Sequence[Any], always: Collection[int] = ()) -> list[Any]:
        """Return the inputs, where each array says its shape and dtype; TypeError for what is none, or no number.

        Those at the places of `always` are returned as an `interop.Array`.
        """
        read = list(inputs)
        for place, (operand, x) in enumerate(zip(self.signature.inputs, inputs, strict=True)):
            if operand.axes is not None:
                read[place] = readable(self.label, operand.name, x, place in always)
            elif hasattr(x, "__dlpack__") or (hasattr(x, "ndim") and x.ndim):
                raise TypeError(
                    f"{self.label}: {operand.name} is {type_name(x)}; accepted: a number, or an array where the "
                    f"signature has axes, such as {operand.name}[]{self.signature.pointed(place)}"
                )
        return read

    def check(self, inputs: Sequence[Any]) -> tuple[list[Any], tuple[Facts, ...]]:
        """Return the inputs, as `readable` does, and what `results` returns for them."""
        read = self.readable(inputs)
        return read, self.results([facts_of(read[place]) for place in self.signature.arrays])

    def chosen(self, inputs: Sequence[Any], execution: Any = None) -> Call:
        """Return what is called for these inputs, which are memory; ValueError where there is nothing for their device.

        A function of it takes the inputs by position, numbers as numbers, and gives an array, or a tuple of several.
        """
        if self.devices is None:
            return self._call
        if execution is not None:
            device, what = "cuda", "execution is given, which is of 'cuda'"
        else:
            arrays = tuple([inputs[place] for place in self.signature.arrays])
            device = _core.device_of(self.label, self._names, arrays)
            what = f"the arrays are on {shown(device)}"
        return self.of_device(device, what)

    def of_device(self, device: str, what: str = "") -> Call:
        """Return what is called on a kind of device; ValueError, which says `what` it is of, where that is nothing."""
        devices = self.devices or {}
        if device in devices or self.devices is None:
            return devices.get(device, self._call)
        given = " and ".join(map(repr, devices))
        raise ValueError(
            f"{self.label}: {what}, and call has a function for {given} alone; accepted: {given}, or an operator whose "
            "call has one for that, too"
        )

    def run(self, inputs: Sequence[Any], **options: Any) -> Any:
        """Call `call` at once with these inputs, and check what it returns. `options` are of `keywords`."""
        inputs, expected = self.check(inputs)
        chosen = self.chosen(inputs, options.get("execution"))
        made = chosen.function(*inputs, **options)
        return made if chosen.is_exact else self.check_results(made, expected)

    def make_calls(self) -> _core.OperatorCalls:
        """Return what runs calls at once, and keeps what follows from the types and shapes of their inputs."""
        names = [operand.name for operand in self.signature.inputs]
        return _core.OperatorCalls(
            self.label,
            names,
            self.signature.arrays,
            not self.is_exact,
            self.devices is not None,
            self.prepare,
            self.check_results,
        )

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return what `_core.OperatorCalls` keeps of calls with inputs of these types and shapes, or None.

        That is what `Call.prepare` says, the results' shapes and dtypes where they are to be checked, and the places of
        those that are no floats, real or complex.
        """
        read, expected = self.check(inputs)
        if any(x is not y for x, y in zip(read, inputs, strict=True)):
            return None
        shapes = [facts_of(inputs[place])[0] for place in self.signature.arrays]
        sizes = self.signature.sizes_of(self.label, shapes, self.sizes)
        chosen = self.chosen(inputs)
        return (*chosen.prepare(sizes), None if chosen.is_exact else expected, discrete(expected))
