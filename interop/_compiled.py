"""Functions of compiled modules that run without Python, as `<interop/function.h>` defines them."""

from __future__ import annotations

import importlib
from typing import Any

from interop import _core
from interop._functions.array_function import ArrayFunction, ShapeRule
from interop._functions.identity import Identity
from interop._functions.kernel_declaration import ARRAYS, parameters_of
from interop._functions.reads import checked
from interop._functions.shared_library import build_at
from interop._functions.tensor_maps import with_tensor_maps
from interop._streams import StreamLike
from interop._traced import call_by_operator, traced_by, traced_call

__all__ = ["CompiledFunction", "define"]


def define(module: Any, label: str, parameters: str, address: int, graph_safe: bool) -> None:
    """Put a function into the module that defines it; the compiled half calls this."""
    name = label.rpartition(".")[2]
    setattr(module, name, CompiledFunction((module.__name__, name), label, parameters, address, graph_safe, {}))


class CompiledFunction(ArrayFunction):
    """A function of a compiled module, called with arrays of any library; `<interop/function.h>` defines it.

    The call takes one argument for each parameter, in the declared order or by name, and the keywords ``stream`` and
    ``execution``, as in `interop.matmul`: arrays of a GPU or of the host, where the module has code for both. Pointers
    take C-contiguous arrays of exactly the declared dtype, views those of any strides.

    It returns None; or, after `returning`, arrays. Inside `jax.jit` it is a part of XLA's program.
    """

    def __init__(
        self,
        place: tuple[str, str],
        label: str,
        declared: str,
        address: int,
        graph_safe: bool,
        shapes: dict[str, ShapeRule],
    ) -> None:
        """`place` is where the function itself is found: the name of a module, and the name in it."""

        def refuse(what: str) -> ValueError:
            return ValueError(f"{label}: {what}")

        declared, parameters = parameters_of("", label, declared, refuse)
        parameters = with_tensor_maps(parameters, {}, (), refuse)  # of which there are none
        super().__init__(label, parameters, ARRAYS, ("stream", "execution"), shapes)
        self._made_of, self._tail = (place, label, declared, address, graph_safe), ({},)
        self._in_graphs = graph_safe
        self.__name__ = self.__qualname__ = place[1]
        self.__doc__ = f"{label}({declared})"
        declarations = [(p.kind, p.name, p.dtype, p.written, p.ndim, [*p.form]) for p in parameters]
        self._calls = _core.Kernel(label, declarations, address, checked(parameters, ()))
        self._identity = Identity.of(
            self, place[1], *self._made_of_content(), *self._shapes.items(), *self._shapes.values()
        )

    @traced_by(traced_call, is_method=True)
    def __call__(
        self, /, *args: Any, stream: StreamLike | None = None, execution: str | None = None, **named: Any
    ) -> Any:
        """Call the function; see the class."""
        try:
            return self._call(args, named, stream, execution, False)
        except TypeError:
            named |= {"stream": stream, "execution": execution}
            if (made := call_by_operator(self, args, named)) is NotImplemented:
                raise
            return made

    def _call(self, args: tuple[Any, ...], named: dict[str, Any], stream: Any, execution: Any, looks: bool) -> Any:
        def core(args: tuple[Any, ...], shapes: dict[int, Any], given: dict[int, Any]) -> Any:
            return self._calls.call_with(args, shapes, given, None, stream, execution, looks)

        return self._run(core, *self._bind(args, named), looks)

    def _made_of_content(self) -> tuple[object, ...]:
        _, label, declared, address, _ = self._made_of
        return (build_at(address), label, declared)

    def _with(self, shapes: dict[str, ShapeRule]) -> CompiledFunction:
        return CompiledFunction(*self._made_of, shapes)

    def __repr__(self) -> str:
        return f"<compiled function {self.__doc__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (*self._made_of[0], self._shapes)


def _function_again(module: str, name: str, shapes: dict[str, ShapeRule]) -> CompiledFunction:
    function: CompiledFunction = getattr(importlib.import_module(module), name)
    return function.returning(**shapes) if shapes else function
