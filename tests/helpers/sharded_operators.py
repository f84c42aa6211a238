"""What each of two processes does with operators of distributed tensors; `helpers.sharded` starts them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import interop
from helpers import operators
from helpers.sharded import assert_no_other_process, cut_of, distribute, mesh_of


def _tensors(place: str, *shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(place) for shape in shapes]


def _define(place: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = operators.defined(place, Path(folder), "sharded")
    made["outer"] = interop.operator(
        "sharded::outer",
        lambda x, y: interop.multiply(x[:, None], y),
        "x[m], y[n] -> [m, n]",
        cut="m, n",
        gradient=lambda g, x, y, z: ((g * y).sum(1), (g * x[:, None]).sum(0)),
    )
    made["gram"] = interop.operator(
        "sharded::gram",
        lambda x, y: interop.matmul(x.mT, y),
        "x[..., k, m], y[..., k, n] -> [..., m, n]; sum k",
        cut="n",
        gradient=lambda g, x, y, z: (interop.matmul(y, g.mT), interop.matmul(x, g)),
    )
    return made


#: Of each call: the operator, the shapes and cuts of its arrays, what follows them, and the cut of the results.
CUTS: list[tuple[str, list[tuple[int, ...]], list[Any], tuple[Any, ...], Any]] = [
    ("row_dot", [(5, 4), (4,)], [0, None], (), 0),
    ("row_dot", [(2, 5, 4), (4,)], [1, None], (), 1),
    ("row_dot", [(5, 4), (4,)], [None, None], (), None),
    ("softmax", [(2, 3, 4)], [0], (), 0),
    ("times", [(5, 4)], [0], (2.5,), 0),
    ("parts", [(5, 4)], [0], (), 0),
    ("outer", [(5,), (4,)], [0, None], (), 0),
    ("outer", [(5,), (4,)], [None, 0], (), 1),
    ("gram", [(6, 3), (6, 4)], [0, 0], (), "sum"),
    ("gram", [(6, 3), (6, 4)], [None, 1], (), 1),
    ("gram", [(2, 6, 3), (2, 6, 4)], [0, 0], (), 0),
]


def each_cut(place: str, made: dict[str, Any]) -> None:
    """A cut that the signature allows is that of the result, and no other process takes part."""
    mesh = mesh_of(place)
    for name, shapes, cuts, numbers, cut in CUTS:
        x = _tensors(place, *shapes)
        leaves = [y.clone().requires_grad_() for y in x]
        shards = [distribute(y, mesh, c).detach().requires_grad_() for y, c in zip(x, cuts, strict=True)]
        expected = made[name](*leaves, *numbers)
        found = assert_no_other_process(made[name], *shards, *numbers)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for y, whole in pairs:
            assert y.placements == (cut_of(cut),), f"{name} {cuts}: {y.placements}"
            torch.testing.assert_close(y.full_tensor(), whole)
        first, whole = (y[0] if isinstance(y, tuple) else y for y in (found, expected))
        gradients = torch.autograd.grad(first.full_tensor().square().sum(), shards)
        others = torch.autograd.grad(whole.square().sum(), leaves)
        for y, other in zip(gradients, others, strict=True):
            torch.testing.assert_close(y.full_tensor(), other)


def other_cuts(place: str, made: dict[str, Any]) -> None:
    """What may not be cut is made whole first: a softmax along its rows."""
    mesh = mesh_of(place)
    x, w = _tensors(place, (4, 6), (6,))
    for name, args, cuts in [
        ("softmax", [x], [1]),
        ("softmax", [x], ["sum"]),
        ("row_dot", [x, w], [1, 0]),
        ("row_dot", [x, w], [0, 0]),
        ("row_dot", [x, w], ["sum", None]),
        ("gram", [x, x], [0, 1]),
    ]:
        shards = [distribute(y, mesh, cut) for y, cut in zip(args, cuts, strict=True)]
        torch.testing.assert_close(made[name](*shards).full_tensor(), made[name](*args))


def two_dimensions(place: str, made: dict[str, Any]) -> None:
    """A mesh of two dimensions, cut in each on its own."""
    x, y = _tensors(place, (4,), (6,))
    for shape in ((1, 2), (2, 1)):
        mesh = mesh_of(place, *shape)
        found = assert_no_other_process(made["outer"], distribute(x, mesh, 0, None), distribute(y, mesh, None, 0))
        assert found.placements == (cut_of(0), cut_of(1))
        torch.testing.assert_close(found.full_tensor(), made["outer"](x, y))


def errors(place: str, made: dict[str, Any]) -> None:
    """What is refused of one device is refused with the same words."""
    mesh = mesh_of(place)
    x, w = _tensors(place, (4, 6), (5,))
    said = []
    for args in ([x, w], [distribute(x, mesh, 0), distribute(w, mesh, None)]):
        try:
            made["row_dot"](*args)
        except ValueError as error:
            said.append(str(error))
    assert len(said) == 2
    assert said[0] == said[1]


def compiled(place: str, made: dict[str, Any]) -> None:
    """Under torch's compiler the cuts are the same."""
    mesh = mesh_of(place)
    x, w = _tensors(place, (4, 6), (6,))
    call = torch.compile(lambda x, w: made["row_dot"](x, w) * 2, backend="aot_eager", fullgraph=True)
    found = call(distribute(x, mesh, 0), distribute(w, mesh, None))
    assert found.placements == (cut_of(0),)
    torch.testing.assert_close(found.full_tensor(), 2 * (x @ w))


def run_all(place: str) -> None:
    """All of the above."""
    made = _define(place)
    for program in (each_cut, other_cuts, two_dimensions, errors, compiled):
        program(place, made)
