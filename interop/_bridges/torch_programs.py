"""Functions of torch as programs of tensors by position, for `interop.bridge(f, to="jax")`.

Derivatives are by autograd, so that they are of whatever it differentiates. Cotangents have the sign that JAX gives the
imaginary part of one, which is not torch's.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from interop._arguments import type_name
from interop._bridges.arrays import check_width, to_jax, to_torch
from interop._bridges.without_memory import results_of
from interop.torch._operator_function import compact
from interop.torch._tensors import name_of

__all__ = ["Function", "Gradients", "Mapped", "Program", "Tangents"]

_Tensors = Sequence[torch.Tensor]


class Program:
    """A function of tensors. It is a `Foreign` of `interop._bridges.primitive`, which says what its methods do."""

    #: The places of arrays that are all mapped where any is.
    whole: frozenset[int] = frozenset()

    def __init__(self, label: str, names: Sequence[str], by_xla: Callable[..., Any]) -> None:
        """Take what calls a function in what XLA runs: `by_xla(function, arrays, kinds)`."""
        self.label, self.names, self._by_xla = label, names, by_xla
        self._derived: dict[Any, Program] = {}
        self._lock = threading.Lock()

    def run(self, *tensors: torch.Tensor) -> _Tensors:
        """Return the results. Where gradients are enabled, autograd records them."""
        raise NotImplementedError

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """See `Foreign`."""
        raise NotImplementedError

    def mapped(self, flags: tuple[bool, ...], size: int) -> Program:
        """See `Foreign`."""
        raise NotImplementedError

    # ---- calls ----

    def compute(self, arrays: Sequence[Any]) -> list[Any]:
        """See `Foreign`."""
        with torch.inference_mode(False), torch.no_grad():  # tensors of that mode count no writes
            tensors = self._tensors(arrays)
            made = self._run(tensors)
            return self._arrays(tensors, made)

    def record(self, arrays: Sequence[Any], wanted: tuple[int, ...]) -> tuple[list[Any], Any]:
        """See `Foreign`."""
        with torch.inference_mode(False), torch.enable_grad():
            tensors = self._tensors(arrays)
            inputs = [x.requires_grad_() if place in wanted else x for place, x in enumerate(tensors)]
            made = self._run(inputs)
        return self._arrays(tensors, made), _Tape(self.label, inputs, made)

    def traced(self, arrays: Sequence[Any], kinds: Sequence[Any]) -> Sequence[Any]:
        """See `Foreign`."""
        if not arrays:
            raise TypeError(
                f"{self.label}: no argument is an array, so none says where a program calls it; accepted: one array"
            )
        made: Sequence[Any] = self._by_xla(self._in_xla, arrays, kinds)
        return made

    @functools.cached_property
    def _in_xla(self) -> Callable[..., Any]:
        """What XLA calls: one object for each program, as it is part of JAX's keys, by the name of the user's."""

        def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
            with torch.no_grad():
                return [compact(x.detach()) for x in self._run(tensors)]

        call.__name__ = self.label.partition("(")[2].removesuffix(")")
        return call

    def _tensors(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        _check_devices(self.label, self.names, arrays)
        return [to_torch(self.label, name, x) for name, x in zip(self.names, arrays, strict=True)]

    def _run(self, tensors: _Tensors) -> _Tensors:
        """Run it, and raise TypeError where it has written to an input, as far as torch counts that."""
        versions = [x._version for x in tensors]
        made = self.run(*tensors)
        for name, x, version in zip(self.names, tensors, versions, strict=True):
            if x._version != version:
                raise TypeError(
                    f"{self.label}: the function has written to {name}, which is an array of JAX's; accepted: a "
                    "function that only reads its arguments, such as one that writes to a copy"
                )
        return made

    def _arrays(self, tensors: _Tensors, made: _Tensors) -> list[Any]:
        """Return the results as arrays, of memory of their own: that of JAX's does not change, and is donated."""
        taken = {_storage(x) for x in tensors}
        arrays = []
        owners = [_owners(made, place) for place in range(len(made))]
        for x, counts in zip(made, owners, strict=True):
            is_shared = x._base is not None or counts != _OWNERS
            own = compact(x.detach())
            if (is_shared and _storage(own) == _storage(x)) or _storage(own) in taken:
                own = own.clone()
            taken.add(_storage(own))
            arrays.append(to_jax(self.label, "the result", own))
        return arrays

    # ---- derived programs ----

    def gradients(self, count: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> Program:
        """See `Foreign`."""
        return self._once(("gradients", count, wanted, given), lambda: Gradients(self, count, wanted, given))

    def tangents(self, count: int, moved: tuple[int, ...], given: tuple[int, ...]) -> Program:
        """See `Foreign`."""
        return self._once(("tangents", count, moved, given), lambda: Tangents(self, count, moved, given))

    def _once(self, key: Any, make: Callable[[], Program]) -> Program:
        with self._lock:
            if key not in self._derived:
                self._derived[key] = make()
            return self._derived[key]


class _Tape:
    """What autograd has recorded of one call."""

    def __init__(self, label: str, inputs: _Tensors, results: _Tensors) -> None:
        self.label, self.inputs, self.results = label, inputs, results

    def __call__(self, cotangents: dict[int, Any], places: Sequence[int]) -> list[Any]:
        with torch.inference_mode(False), torch.no_grad():
            given = {}
            for k, x in cotangents.items():  # JAX makes some on its default device, not committed to that
                given[k] = to_torch(self.label, "a cotangent", x).to(self.results[k].device)
            made = _pull([self.results[k] for k in given], [self.inputs[k] for k in places], [*given.values()])
            return [to_jax(self.label, "a cotangent", compact(x)) for x in made]


def _check_devices(label: str, names: Sequence[str], arrays: Sequence[Any]) -> None:
    for name, x in zip(names, arrays, strict=True):
        devices = x.sharding.device_set
        if len(devices) > 1:
            raise ValueError(
                f"{label}: {name} is on {len(devices)} devices; accepted: an array on one, or a call in jax.shard_map"
            )
        if devices != arrays[0].sharding.device_set:
            places = [next(iter(y.sharding.device_set)) for y in (arrays[0], x)]
            raise ValueError(
                f"{label}: {names[0]} is on {places[0]} and {name} is on {places[1]}; accepted: arrays on one device"
            )


def _pull(results: _Tensors, inputs: _Tensors, cotangents: _Tensors, goes_on: bool = False) -> list[torch.Tensor]:
    """Return the cotangents of the inputs. `goes_on`: are they to be differentiated?

    They may be computed again of the same record.
    """
    pairs = [(x, _conj(c)) for x, c in zip(results, cotangents, strict=True) if x.requires_grad]
    made: Sequence[Any] = [None] * len(inputs)
    if pairs:
        of, by = zip(*pairs, strict=True)
        made = torch.autograd.grad(of, inputs, by, retain_graph=True, create_graph=goes_on, allow_unused=True)
    return [torch.zeros_like(x) if g is None else _conj(g) for x, g in zip(inputs, made, strict=True)]


def _draws(program: Program, inputs: _Tensors) -> bool:
    """Does a program call an operation of torch that draws random numbers?"""
    with _Watch() as watch:
        program.run(*inputs)
    return bool(watch.has_drawn)


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Looks at the operations of a call."""

    has_drawn = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.has_drawn = self.has_drawn or torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def _random_states(tensors: _Tensors) -> list[torch.Tensor]:
    """Return the states of the generators of the devices of these tensors."""
    gpus = {x.get_device() for x in tensors if x.is_cuda}
    generators = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in sorted(gpus))]
    return [generator.get_state() for generator in generators]


def _variable(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory by which to differentiate; its tangent and its record go on in it."""
    view: torch.Tensor = x.view_as(x)  # `detach` would end both
    return view if view.requires_grad else view.requires_grad_()


def _conj(x: torch.Tensor) -> torch.Tensor:
    return x.conj() if x.is_complex() else x


def _owners(tensors: Sequence[torch.Tensor], place: int) -> tuple[int, int]:
    """Count the references to a tensor, and to its memory: a module may keep it, and autograd what it has recorded."""
    return sys.getrefcount(tensors[place]), torch._C._storage_Use_Count(_storage(tensors[place]))


def _storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


_OWNERS = _owners([torch.empty(1)], 0)  # of a tensor that nobody else has


def _plain(x: Any) -> Any:
    """Return a result with tuples in the place of those that torch makes in C, which JAX takes for values."""

    def is_structure(y: Any) -> bool:
        return isinstance(y, tuple) and hasattr(type(y), "n_sequence_fields")

    return jax.tree.map(lambda y: tuple(y) if is_structure(y) else y, x, is_leaf=is_structure)


class Function(Program):
    """A function of the user's."""

    def __init__(
        self,
        label: str,
        names: Sequence[str],
        by_xla: Callable[..., Any],
        function: Callable[..., Any],
        call: Callable[..., Any],
    ) -> None:
        """Take the function, and what calls it: `call(function, *tensors)` returns a pytree of tensors."""
        super().__init__(label, names, by_xla)
        self.function, self.call = function, call
        self.tree: Any = None  # of the result, once it has run: of the same shapes it is the same

    def run(self, *tensors: torch.Tensor) -> _Tensors:
        """Return the results."""
        return self._run_as(self.function, tensors)

    def _run_as(self, function: Callable[..., Any], tensors: _Tensors) -> _Tensors:
        leaves: list[Any]
        leaves, self.tree = jax.tree.flatten(_plain(self.call(function, *tensors)))
        for x in leaves:
            if not isinstance(x, torch.Tensor):
                raise TypeError(
                    f"{self.label}: the result has {type_name(x)}; accepted: tensors, in tuples, lists and dicts"
                )
        return leaves

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """Return what the function returns of tensors that have no memory."""

        def run(function: Callable[..., Any], tensors: _Tensors) -> _Tensors:
            with torch.no_grad():
                return self._run_as(function, tensors)

        made = results_of(self.label, self.function, given, run)
        for x in made:
            check_width(self.label, "the result", name_of(x.dtype))
        return [jax.ShapeDtypeStruct(tuple(x.shape), name_of(x.dtype)) for x in made]

    def mapped(self, flags: tuple[bool, ...], size: int) -> Program:
        """See `Foreign`."""
        return self._once(("mapped", flags, size), lambda: Mapped(self, flags, size))


class Mapped(Program):
    """A program that is mapped by `torch.vmap`."""

    def __init__(self, program: Function | Mapped, flags: tuple[bool, ...], size: int) -> None:
        super().__init__(program.label, program.names, program._by_xla)
        self.program, self.flags, self.size = program, flags, size

    def run(self, *tensors: torch.Tensor) -> _Tensors:
        """Return the results, mapped over their dimension 0."""
        dims = tuple(0 if flag else None for flag in self.flags)
        made: _Tensors = torch.vmap(lambda *some: tuple(self.program.run(*some)), dims, randomness="different")(
            *tensors
        )
        return made

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """See `Foreign`."""
        one = [
            jax.ShapeDtypeStruct(x.shape[1:], x.dtype) if flag else x for x, flag in zip(given, self.flags, strict=True)
        ]
        return [jax.ShapeDtypeStruct((self.size, *x.shape), x.dtype) for x in self.program.kinds(one)]

    def mapped(self, flags: tuple[bool, ...], size: int) -> Program:
        """See `Foreign`."""
        return self._once(("mapped", flags, size), lambda: Mapped(self, flags, size))


class _Derivative(Program):
    """A derivative of a program: of its inputs, and of tangents or cotangents."""

    def __init__(self, program: Program, count: int, by: tuple[int, ...], names: Sequence[str]) -> None:
        super().__init__(program.label, [*program.names, *names], program._by_xla)
        self.program, self.count = program, count
        self.whole = program.whole.union(by, range(count, count + len(names)))

    def _run_again(self, inputs: _Tensors) -> _Tensors:
        """Run the program, of which the values are known already. Raise where it draws random numbers, as others."""
        before = _random_states(inputs)
        made = self.program.run(*inputs)
        is_drawn = any(not torch.equal(x, y) for x, y in zip(before, _random_states(inputs), strict=True))
        if is_drawn and _draws(self.program, inputs):  # and not another thread alone
            raise NotImplementedError(
                f"{self.label}: the function draws random numbers, and is computed again for this derivative, with "
                "others; accepted: a function that is given its random numbers, as arrays, or jax.grad or jax.vjp of "
                "it outside jax.jit, which compute it once"
            )
        return made


class Gradients(_Derivative):
    """The gradients of a program: of its inputs, and of the cotangents of the results that are `given`."""

    def __init__(self, program: Program, count: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
        super().__init__(program, count, wanted, [f"the cotangent of result {place}" for place in given])
        self.wanted, self.given = wanted, given

    def run(self, *tensors: torch.Tensor) -> _Tensors:
        """Return the gradients by the `wanted` inputs, of which autograd's record goes on where it is enabled."""
        goes_on = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = [*tensors[: self.count]]
            for place in self.wanted:
                inputs[place] = _variable(inputs[place])
            made = self._run_again(inputs)
            results = [made[place] for place in self.given]
            return _pull(results, [inputs[place] for place in self.wanted], tensors[self.count :], goes_on)

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """See `Foreign`."""
        return [given[place] for place in self.wanted]

    def mapped(self, flags: tuple[bool, ...], size: int) -> Program:
        """See `Foreign`."""
        return self.program.mapped(flags[: self.count], size).gradients(self.count, self.wanted, self.given)


_dual_level = threading.RLock()  # torch has one for all threads


class Tangents(_Derivative):
    """The tangents of a program's results that are `given`: of its inputs, and of the tangents of the `moved` ones."""

    def __init__(self, program: Program, count: int, moved: tuple[int, ...], given: tuple[int, ...]) -> None:
        super().__init__(program, count, moved, [f"the tangent of {program.names[place]}" for place in moved])
        self.moved, self.given = moved, given

    def run(self, *tensors: torch.Tensor) -> _Tensors:
        """Return the tangents, by dual numbers; within those of others, which torch does not nest, by gradients."""
        inputs, tangents = [*tensors[: self.count]], tensors[self.count :]
        with _dual_level:
            if forward_ad._current_level < 0:  # private to torch
                with forward_ad.dual_level():
                    for place, t in zip(self.moved, tangents, strict=True):
                        inputs[place] = forward_ad.make_dual(inputs[place], t)
                    made = [forward_ad.unpack_dual(x) for x in self._run_again(inputs)]
                dual = [made[place] for place in self.given]
                return [torch.zeros_like(x.primal) if x.tangent is None else x.tangent for x in dual]
        return self._by_gradients(inputs, tangents)

    def _by_gradients(self, inputs: list[torch.Tensor], tangents: _Tensors) -> _Tensors:
        """Return them as the gradients, by cotangents, of gradients, which are linear in those."""
        goes_on = torch.is_grad_enabled()
        with torch.enable_grad():
            for place in self.moved:
                inputs[place] = _variable(inputs[place])
            made = self._run_again(inputs)
            results = [made[place] for place in self.given]
            cotangents = [torch.zeros_like(x, requires_grad=True) for x in results]
            grads = _pull(results, [inputs[place] for place in self.moved], cotangents, True)
            return _pull(grads, cotangents, tangents, goes_on)

    def kinds(self, given: Sequence[Any]) -> list[Any]:
        """See `Foreign`."""
        results = self.program.kinds(given[: self.count])
        return [results[place] for place in self.given]

    def mapped(self, flags: tuple[bool, ...], size: int) -> Program:
        """See `Foreign`."""
        return self.program.mapped(flags[: self.count], size).tangents(self.count, self.moved, self.given)
