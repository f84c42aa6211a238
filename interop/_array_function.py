"""What the functions of `interop.load` and the kernels of `interop.kernel` share: arguments, and results by rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

from interop._declarations import Parameter

__all__ = ["ArrayFunction", "ShapeRule"]

ShapeRule = str | Callable[..., tuple[int, ...]]
Core = Callable[[tuple[Any, ...], dict[int, Any]], Any]


class ArrayFunction:
    """A function that is called with arrays and numbers by position, some of which it may make itself."""

    def __init__(
        self,
        label: str,
        parameters: Sequence[Parameter],
        arrays: tuple[str, ...],
        keywords: tuple[str, ...],
        shapes: dict[str, ShapeRule],
        value: str = "",
    ) -> None:
        """Take what the call of `label` needs to know.

        `arrays` are the kinds of `parameters` that are arrays; those of the kind "stream" are no arguments. `keywords`
        are those of the call, `shapes` the rules of `returning`. `value`: the declaration, if it returns a value.
        """
        self._label, self._parameters, self._arrays, self._keywords = label, parameters, arrays, keywords
        self._value = value
        self._places = {p.name: place for place, p in enumerate(parameters) if p.kind != "stream"}
        self._shapes = {name: shapes[name] for name in self._places if name in shapes}
        self._given = [name for name in self._places if name not in shapes]
        #: The rules that are known before the call: the place of the array with the same shape.
        self._like: dict[int, Any] = {
            self._places[name]: self._places[rule] for name, rule in self._shapes.items() if isinstance(rule, str)
        }
        #: Are these all? Then `_run`, for so many arguments and no results by keyword, is core(args, self._like).
        self._is_direct, self._count = len(self._like) == len(self._shapes), len(self._given)
        self.__signature__ = self._make_signature()  # of the object; the class has its own

    def returning(self, **shapes: ShapeRule) -> Self:
        """Return the same function with some of its arrays made by the call, and returned.

        Parameters
        ----------
        shapes : name of a parameter, or callable
            For each array to be made, by the name of its parameter: the parameter whose array has the same shape, or
            a function that is called with the arguments of the call and returns a shape. The parameters named here
            are no longer arguments, but optional keywords, for an array to write to instead.

        Returns
        -------
        Function or Kernel
            It returns the array, or a tuple of several in the order of the parameters: of the library of the first
            array argument, allocated by that library.

        Raises
        ------
        ValueError
            There is no such parameter, it is no pointer that is written to, or one to ``void``; or the C function
            returns a value of its own.
        """
        if self._value:
            raise ValueError(f"{self._label}: returning: the C function returns a value, {self._value!r}")
        written = [p.name for p in self._parameters if p.written and p.dtype]
        arrays = [p.name for p in self._parameters if p.kind in self._arrays and p.name not in shapes]
        for name, rule in shapes.items():
            if name not in written:
                raise ValueError(
                    f"{self._label}: returning: {name} is no pointer to elements that are written; "
                    f"accepted: {', '.join(written) or 'none'}"
                )
            if not callable(rule) and rule not in arrays:
                raise ValueError(
                    f"{self._label}: returning: the shape of {name} is {rule!r}; accepted: a function, "
                    f"or one of {', '.join(arrays) or 'no arrays'}"
                )
        return self._with(shapes)

    def _with(self, shapes: dict[str, ShapeRule]) -> Self:
        raise NotImplementedError

    def _run(self, core: Core, args: tuple[Any, ...], results: dict[str, Any], looks: bool) -> Any:
        """Call `core` with the arguments but those to be made, and the rules of these; return what the call returns.

        `results` are the arrays to write to that were given by keyword. `looks`: return what `core` does.
        """
        if len(args) != self._count:
            raise TypeError(
                f"{self._label} takes {self._count} arguments ({', '.join(self._given) or 'none'}), "
                f"{len(args)} were given"
            )
        shapes = self._like
        if not self._is_direct:
            called = {name: x for name, x in self._shapes.items() if callable(x) and results.get(name) is None}
            shapes = shapes | {self._places[name]: tuple(rule(*args)) for name, rule in called.items()}
        if not results:
            return core(args, shapes)
        unknown = results.keys() - self._shapes.keys()
        if unknown:
            raise TypeError(
                f"{self._label} has no keyword {', '.join(sorted(unknown))}; accepted: "
                f"{', '.join([*self._keywords, *self._shapes])}"
            )
        present = {name: x for name, x in results.items() if x is not None}
        given = dict(zip(self._given, args, strict=True)) | present
        shapes = {place: x for place, x in shapes.items() if self._parameters[place].name not in present}
        made = core(tuple(given[name] for name in self._places if name in given), shapes)
        if looks or not present:
            return made
        new = iter((made,) if len(shapes) == 1 else made or ())
        both = tuple(present[name] if name in present else next(new) for name in self._shapes)
        return both if len(both) > 1 else both[0]

    def _make_signature(self) -> inspect.Signature:
        kinds = inspect.Parameter
        parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in self._given]
        keywords = [*self._shapes, *self._keywords]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in keywords]
        return inspect.Signature(parameters)
