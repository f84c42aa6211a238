"""What `torch.compile` traces in place of a function that calls the compiled half, which it cannot look into."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["call_by_operator", "traced_by", "traced_call", "traced_outside"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def traced_by(traced: Callable[..., Any], *, is_method: bool = False) -> Callable[[FunctionT], FunctionT]:
    """Have torch's compiler trace `traced` in place of the decorated function, with what that is called with.

    `traced` imports `interop.torch` in its body, which runs while the compiler traces it. In place of a method it may
    have no closure, as the compiler would look for it in that of the method.
    """

    def mark(function: FunctionT) -> FunctionT:
        words: dict[str, Any] = {"inline": traced}
        if not is_method:  # of torch.compile(function), which goes by these to what it compiles
            words |= {"orig_callable": traced, "wrapper_id": id(function)}
        # The names are private to torch.
        function.__dict__ = _Attributes(vars(function), **{f"{_PREFIX}{word}": x for word, x in words.items()})
        return function

    return mark


def traced_call(function: Any, /, *args: Any, **named: Any) -> Any:
    """Call a kernel or C function as torch's compiler traces it."""
    from interop.torch import _tracing

    return _tracing.call(function, *args, **named)


def traced_outside(function: Any, /, *args: Any, **named: Any) -> Any:
    """Have torch's compiler leave the call of a function of another library as it is, outside its graphs."""
    from interop.torch import _tracing

    return _tracing.outside(function, *args, **named)


def call_by_operator(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a kernel or C function that has raised an error, if that may be since a library follows an array.

    torch does under a mode, as that of `torch.export`, and where a tensor is fake; JAX where one is traced.
    NotImplemented if none does.
    """
    values = (*args, *named.values())
    if "torch" in sys.modules:
        from interop.torch import _calls

        if _calls.is_traced(values):
            return _calls.call(function, args, named)
    if "jax" in sys.modules:
        from interop.jax import _functions

        if _functions.is_traced(values):
            return _functions.call(function, args, named)
    return NotImplemented


_PREFIX = "_torchdynamo_"


class _Attributes(dict[str, Any]):
    """The attributes of a function, of which `functools.wraps` sees none that is for torch's compiler.

    A function of the user's that wraps this one would be traced as this one, without what it adds.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:  # type: ignore[override]
        return [name for name in super().__iter__() if not name.startswith(_PREFIX)]
