"""What the functions of `interop.load` and the kernels of `interop.kernel` share: arguments, and rules for results."""

from __future__ import annotations

import inspect
import keyword
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

from interop._arguments import known_keywords
from interop._functions.identity import Identity
from interop._functions.parameters import Parameter

__all__ = ["LAUNCH_OPTIONS", "ArrayFunction", "Launch", "ShapeRule", "extents_of"]

ShapeRule = str | Callable[..., int | Sequence[int]]
#: Of the arguments, of the rules of the results to be made, and of those of the results among the arguments.
Core = Callable[[tuple[Any, ...], dict[int, Any], dict[int, Any]], Any]
Launch = tuple[Any, ...]  # the values of `LAUNCH_OPTIONS`, in their order
LAUNCH_OPTIONS = ("grid", "threads", "block", "shared", "cluster", "cooperative", "dependent_launch")


def extents_of(launch: Launch) -> tuple[Any, Any]:
    """Return the grid or the threads, where they depend on the arguments; None for the other one, or for both."""
    grid, threads = launch[:2]
    return grid if callable(grid) else None, threads if callable(threads) else None


class ArrayFunction:
    """A function that is called with arrays and numbers, some of which it may make itself."""

    _identity: Identity
    _calls: Any  # the compiled half
    _tail: tuple[Any, ...]  # what a plain call of it is given behind the arguments and the rules
    _in_graphs = False  # does it say that XLA may record it into a CUDA graph?
    _content: str | None = None  # the key of `identity.content_key`, once it is known
    _is_declared = True  # is it known of each parameter whether it is an array, and of which dtype?
    _extents: tuple[Any, Any] = (None, None)  # of a kernel: see `extents_of`

    def __init__(
        self,
        label: str,
        parameters: Sequence[Parameter],
        arrays: tuple[str, ...],
        keywords: tuple[str, ...],
        shapes: dict[str, ShapeRule],
        value: str = "",
        reads: tuple[str, ...] = (),
    ) -> None:
        """Take what the call of `label` needs to know.

        `arrays` are the kinds of `parameters` that are arrays; not all are arguments of the call. `keywords`
        are those of the call, `shapes` the rules of `returning`. `value`: the declaration, if it returns a value.
        `reads`: the pointers without ``const`` that are only read.
        """
        self._label, self._parameters, self._arrays, self._keywords = label, parameters, arrays, keywords
        self._value, self._reads = value, reads
        self._places = {p.name: place for place, p in enumerate(parameters) if p.is_argument}
        self._shapes = {name: shapes[name] for name in self._places if name in shapes}
        self._given = [name for name in self._places if name not in shapes]
        #: The rules that are known before the call: the place of the array with the same shape.
        self._like: dict[int, Any] = {
            self._places[name]: self._places[rule] for name, rule in self._shapes.items() if isinstance(rule, str)
        }
        #: The other rules, which are functions of the arguments.
        self._called = [(name, rule) for name, rule in self._shapes.items() if not isinstance(rule, str)]
        #: Are these all? Then `_run`, for so many arguments and no results by keyword, is core(args, self._like).
        self._is_direct, self._count = not self._called, len(self._given)
        self.__signature__ = self._make_signature()  # of the object; the class has its own

    def returning(self, **shapes: ShapeRule) -> Self:
        """Return the same function with some of its arrays made by the call, and returned.

        Parameters
        ----------
        shapes : name of a parameter, or callable
            For each array to be made, by the name of its parameter: the parameter whose array has the same shape, or
            a function that is called with the arguments of the call, by position, and returns a shape: a tuple of
            ints, or an int for one dimension. The parameters named here are no longer arguments, but optional
            keywords, for an array of just that shape to write to instead.

        Returns
        -------
        Function or Kernel
            It returns the array, or a tuple of several in the order of the parameters: of the library of the first
            array argument, allocated by that library.

        Raises
        ------
        TypeError
            A rule is neither a name nor a function of the arguments. In a call: what the function returns is no shape.
        ValueError
            There is no such parameter, it is no pointer that is written to, or one to ``void``, or one that ``reads=``
            names; or the C function returns a value of its own. In a call: a size is negative, or an array that is
            given has another shape.
        """
        if self._value:
            raise ValueError(f"{self._label}: returning: the C function returns a value, {self._value!r}")
        written = [p.name for p in self._parameters if p.written and p.dtype]
        arrays = [p.name for p in self._parameters if p.kind in self._arrays and p.name not in shapes]
        for name, rule in shapes.items():
            if name in self._reads:
                raise ValueError(
                    f"{self._label}: returning: {name} is only read, as reads= says, and a result is written; "
                    f"accepted: {', '.join(written) or 'none'}"
                )
            if name not in written:
                raise ValueError(
                    f"{self._label}: returning: {name} is no pointer to elements that are written; "
                    f"accepted: {', '.join(written) or 'none'}"
                )
            known = f"accepted: a function, or one of {', '.join(arrays) or 'no arrays'}"
            if not callable(rule) and not isinstance(rule, str):
                raise TypeError(f"{self._label}: returning: the shape of {name} is {type(rule).__name__}; {known}")
            if isinstance(rule, str) and rule not in arrays:
                raise ValueError(f"{self._label}: returning: the shape of {name} is {rule!r}; {known}")
        made = self._with(shapes)
        for name, rule in made._called:
            made._check_rule(name, rule)
        return made

    def _check_rule(self, name: str, rule: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(rule)
        except (TypeError, ValueError):  # of a built-in that has none
            return
        try:
            signature.bind(*self._given)
        except TypeError as error:
            raise TypeError(
                f"{self._label}: returning: the function for the shape of {name} cannot be called: {error}; accepted: "
                f"one that takes {len(self._given)} by position ({', '.join(self._given) or 'none'})"
            ) from None

    def _with(self, shapes: dict[str, ShapeRule]) -> Self:
        raise NotImplementedError

    def _prepared(self, shapes: dict[int, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what makes the call, given a tuple of the arguments and, behind it, what stands second here.

        `shapes` are the rules of the results, all of which are made. The options are those of the construction.
        """
        return self._calls.call, (shapes, *self._tail)

    def _made_of_content(self) -> tuple[object, ...]:
        """Return what the function itself is made of, whatever its results and its launch are: the same anywhere."""
        raise NotImplementedError

    def _bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return an argument for each parameter but the results, and the results that are given.

        `named` are both by name. Throws the TypeError of a call that does not fit.
        """
        if len(args) == self._count and (not named or named.keys() <= self._shapes.keys()):
            return args, {name: x for name, x in named.items() if x is not None}
        values = dict(zip(self._given, args, strict=False))
        for name, x in named.items():
            if name not in self._places:
                known = known_keywords(name, [*self._places, *self._keywords])
                raise TypeError(f"{self._label} has no keyword {name!r}; {known}")
            if name in values:
                raise TypeError(f"{self._label}: {name} is given twice, by position and by name")
            if name not in self._shapes:
                values[name] = x
        if len(args) > self._count or len(values) < self._count:
            names = ", ".join(self._given) or "none"
            missing = [name for name in self._given if name not in values]
            what = f", without {', '.join(missing)}" if named and missing else ""
            raise TypeError(
                f"{self._label} takes {self._count} arguments ({names}), "
                f"{len(args) + len([name for name in named if name not in self._shapes])} were given{what}"
            )
        results = {name: x for name in self._shapes if (x := named.get(name)) is not None}
        return tuple(values[name] for name in self._given), results

    def _launch(self, args: tuple[Any, ...], given: Launch) -> Launch:
        """Return the options of a kernel's call with what they are functions of put in."""
        grid, threads = given[:2] if given[0] is not None or given[1] is not None else self._extents
        what = "grid" if callable(grid) else "threads"
        try:
            if callable(grid):
                grid = grid(*args)
            if callable(threads):
                threads = threads(*args)
        except Exception as error:
            self._add_note(error, what)
            raise
        return (grid, threads, *given[2:])

    def _run(self, core: Core, args: tuple[Any, ...], results: dict[str, Any], looks: bool) -> Any:
        """Call `core` with what `_bind` has returned, and the rules of the results; return what the call returns.

        `looks`: return what `core` does.
        """
        shapes = self._like
        if not self._is_direct:
            shapes = shapes | {self._places[name]: self._shape_of(name, rule, args) for name, rule in self._called}
        if not results:
            return core(args, shapes, {})
        values = dict(zip(self._given, args, strict=True)) | results
        shapes = shapes.copy()
        given = {place: shapes.pop(place) for place in [self._places[name] for name in results]}
        made = core(tuple(values[name] for name in self._places if name in values), shapes, given)
        if looks:
            return made
        new = iter((made,) if len(shapes) == 1 else made or ())
        both = tuple(results[name] if name in results else next(new) for name in self._shapes)
        return both if len(both) > 1 else both[0]

    def _shape_of(self, name: str, rule: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            returned = rule(*args)
        except Exception as error:
            self._add_note(error, f"the shape of {name}")
            raise
        if type(returned) is tuple:  # whose sizes C++ reads and checks
            return returned
        try:
            if isinstance(returned, int):
                return (returned,)
            is_number = not hasattr(returned, "__iter__") or getattr(returned, "ndim", 1) == 0
            return (operator.index(returned),) if is_number else tuple(returned)
        except TypeError:
            raise TypeError(
                f"{self._label}: the shape of {name}, as its function returns it, is {type(returned).__name__}; "
                "accepted: a tuple of ints, or an int"
            ) from None

    def _add_note(self, error: Exception, what: str) -> None:
        """Say where an error of a user's function comes from; it is raised as it is."""
        error.add_note(f"{self._label}: raised by the function for {what}, of {', '.join(self._given) or 'nothing'}")

    def _make_signature(self) -> inspect.Signature:
        kinds = inspect.Parameter
        # A name that is a word of Python's cannot stand in a call: it is shown by its position, or not at all.
        reserved = [place for place, name in enumerate(self._given) if keyword.iskeyword(name)]
        first_named = reserved[-1] + 1 if reserved else 0
        parameters = [
            kinds(name, kinds.POSITIONAL_ONLY if place < first_named else kinds.POSITIONAL_OR_KEYWORD)
            for place, name in enumerate(self._given)
        ]
        keywords = [name for name in (*self._shapes, *self._keywords) if not keyword.iskeyword(name)]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in keywords]
        return inspect.Signature(parameters)
