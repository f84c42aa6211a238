"""Programs of two processes, each of which has a shard of every distributed tensor. `run` starts them."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import interop
from helpers.torch_products import needing_grad, product, tensors

PROCESSES = 2


def run(program: str, place: str, folder: Path) -> None:
    """Run one of the programs below, each process on the host or on a GPU of its own; raise what one of them does."""
    torch.multiprocessing.spawn(_start, (program, place, str(folder / "store")), PROCESSES)


def _start(rank: int, program: str, place: str, store: str) -> None:
    if place == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if place == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    try:
        globals()[program](place)
    finally:
        dist.destroy_process_group()


def mesh_of(place: str, *shape: int) -> Any:
    return dist.device_mesh.init_device_mesh(place, shape or (PROCESSES,))


def distribute(x: Any, mesh: Any, *cuts: Any) -> Any:
    """Distribute a tensor; "sum": each process has a half of each value."""
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor

    if cuts == ("sum",):
        return DTensor.from_local(x.detach() / PROCESSES, mesh, [Partial()])
    return distribute_tensor(x, mesh, [cut_of(cut) for cut in cuts])


def cut_of(cut: Any) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return {None: Replicate(), "sum": Partial()}[cut] if cut in (None, "sum") else Shard(cut)


def assert_no_other_process(function: Any, *args: Any, **options: Any) -> Any:
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as seen:
        result = function(*args, **options)
    assert seen.get_total_counts() == 0, f"{dict(seen.get_comm_counts())} in {function}"
    return result


# ---- when torch is told ----


class Own(torch.Tensor):
    """A tensor of another class, with memory of its own."""


def first_meeting(place: str) -> None:
    """Nothing of distributed tensors is loaded before there is one, for other subclasses neither."""
    x = torch.ones(4, 4, device=place)
    interop.matmul(x.as_subclass(Own), x)
    assert "torch.distributed.tensor" not in sys.modules
    mesh = mesh_of(place)
    importlib.import_module("torch.distributed.tensor")
    interop.matmul(x.as_subclass(Own), x)
    assert "interop.torch._matmul_sharding" not in sys.modules
    with torch.inference_mode():
        y = interop.matmul(distribute(x, mesh, 0), distribute(x, mesh, None))
    assert (y.full_tensor() == 4).all()


# ---- each cut ----

#: Of two operands: the shapes; where each is cut, and then the result. None: each process has it whole.
CUTS = [
    ((5, 7), (7, 4), 0, None, 0),
    ((5, 7), (7, 4), None, 1, 1),
    ((5, 7), (7, 4), 1, 0, "sum"),
    ((5, 7), (7, 4), 1, None, "sum"),
    ((5, 7), (7, 4), None, 0, "sum"),
    ((5, 7), (7, 4), "sum", None, "sum"),
    ((5, 7), (7, 4), None, "sum", "sum"),
    ((5, 7), (7, 4), None, None, None),
    ((7,), (7, 4), None, 1, 0),
    ((7,), (7, 4), 0, 0, "sum"),
    ((5, 7), (7,), 0, None, 0),
    ((5, 7), (7,), 1, 0, "sum"),
    ((7,), (7,), 0, 0, "sum"),
    ((2, 5, 7), (2, 7, 4), 0, 0, 0),
    ((2, 5, 7), (2, 7, 4), 1, None, 1),
    ((2, 5, 7), (2, 7, 4), None, 2, 2),
    ((2, 5, 7), (2, 7, 4), 2, 1, "sum"),
    ((2, 5, 7), (7, 4), 0, None, 0),
    ((2, 5, 7), (7, 4), 1, None, 1),
    ((2, 5, 7), (7, 4), None, 1, 2),
    ((2, 5, 7), (7, 4), 2, 0, "sum"),
    ((5, 7), (2, 7, 4), None, 0, 0),
    ((2, 1, 5, 7), (3, 7, 4), 0, None, 0),
    ((2, 1, 5, 7), (3, 7, 4), None, 0, 1),
    ((1, 5, 7), (2, 7, 4), None, 0, 0),
    ((2, 5, 7), (7,), 0, None, 0),
    ((2, 5, 7), (7,), 1, None, 1),
    ((7,), (2, 7, 4), None, 0, 0),
]


def each_cut(place: str) -> None:
    """Values and gradients are those of one device, and neither has another process take part."""
    mesh = mesh_of(place)
    for a_shape, b_shape, a_cut, b_cut, cut in CUTS:
        result = torch.empty(a_shape).matmul(torch.empty(b_shape)).shape
        for terms, factors in _terms(result, len(a_shape) > 1 < len(b_shape)):
            for epilogue in [None] if cut == "sum" else [None, "relu", "gelu"]:
                case = [(a_shape, a_cut), (b_shape, b_cut), *terms]
                try:
                    _check_cut(place, mesh, case, result, cut, epilogue=epilogue, **factors)
                except Exception as error:
                    raise AssertionError(f"{case} to {cut}, {epilogue}, {factors}") from error


def _terms(result: tuple[int, ...], has_columns: bool) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the shapes of c and bias, which all processes have whole, and factors."""
    none = (None, None)
    found: list[tuple[list[Any], dict[str, Any]]] = [([none, none], {})]
    found.append(([((), None), none], {"alpha": 0.5, "beta": 3}))
    if result:
        found.append(([none, (result[-1:], None)], {}))
        found.append(([(result[-1:], None), ((1,), None)], {"beta": -2}))
    if has_columns:
        found.append(([(result[-2:], None), ((result[-2], 1), None)], {}))
    return found


def _check_cut(place: str, mesh: Any, case: list[Any], result: Any, cut: Any, **options: Any) -> None:
    made = tensors(torch, place, "float64", *(shape or () for shape, _ in case), result)
    weight = made.pop()
    leaves = needing_grad(*(None if shape is None else x for (shape, _), x in zip(case, made, strict=True)))
    expected = product(torch, *leaves, **options)
    present = [x for x in leaves if x is not None]
    gradients = torch.autograd.grad(expected, present, weight)

    shards = [
        None if x is None else distribute(x, mesh, cut).detach().requires_grad_()
        for (_, cut), x in zip(case, leaves, strict=True)
    ]
    given = {name: x for name, x in options.items() if x is not None and (name != "beta" or shards[2] is not None)}
    given.update((name, x) for name, x in zip(("c", "bias"), shards[2:], strict=True) if x is not None)
    found = assert_no_other_process(interop.matmul, *shards[:2], **given)
    assert found.placements == (cut_of(cut),), found.placements
    torch.testing.assert_close(found.full_tensor(), expected)
    weight = distribute(weight, mesh, None if cut == "sum" else cut)
    present = [x for x in shards if x is not None]
    for x, other in zip(assert_no_other_process(torch.autograd.grad, found, present, weight), gradients, strict=True):
        torch.testing.assert_close(x.full_tensor(), other)


# ---- cuts that do not fit, and what is no sum ----


def other_cuts(place: str) -> None:
    """Shards that do not fit each other are moved first; what is no sum is not cut along k."""
    mesh = mesh_of(place)
    a, b = tensors(torch, place, "float64", (2, 4, 6), (6, 5))
    for a_cut, b_cut in itertools.product([0, 1, 2, None, "sum"], [0, 1, None, "sum"]):
        for epilogue in (None, "relu", None, "gelu", "gelu_tanh"):  # the sum before it is no answer for an epilogue
            found = interop.matmul(distribute(a, mesh, a_cut), distribute(b, mesh, b_cut), epilogue=epilogue)
            expected = product(torch, a, b, epilogue=epilogue)
            torch.testing.assert_close(found.full_tensor(), expected, msg=f"{a_cut}, {b_cut}, {epilogue}")

    a, b = distribute(a, mesh, 2), distribute(b, mesh, 0)
    for dtype in (torch.float64, torch.complex128):
        found = interop.matmul(a, b, dtype=dtype)
        assert found.dtype == found.full_tensor().dtype == dtype

    ones = torch.ones(4, 4, dtype=torch.bool, device=place)
    found = interop.matmul(distribute(ones, mesh, 1), distribute(ones, mesh, 0))
    assert (found.full_tensor().view(torch.uint8) == 1).all()

    halves = 100 * torch.ones(2, 2, dtype=torch.int8, device=place)
    summed = torch.distributed.tensor.DTensor.from_local(halves, mesh, [cut_of("sum")])
    whole = summed.full_tensor()  # which wraps
    identity = torch.eye(2, dtype=torch.int8, device=place)
    found = interop.matmul(summed, distribute(identity, mesh, None), dtype="int32")
    assert (found.full_tensor() == whole).all()

    a, b = (x.to(torch.float8_e4m3fn) for x in tensors(torch, place, "float32", (16, 32), (16, 32)))
    scale = torch.full((1,), 3.0, device=place)
    expected = interop.matmul(a, b.mT, scale_a=2.0, scale_b=scale)
    shards = distribute(a.view(torch.uint8), mesh, 0).view(a.dtype), distribute(b.view(torch.uint8), mesh, None)
    found = interop.matmul(shards[0], shards[1].view(b.dtype).mT, scale_a=2.0, scale_b=distribute(scale, mesh, None))
    assert found.placements == (cut_of(0),)
    torch.testing.assert_close(found.full_tensor(), expected)


def rows_of_stacks(place: str) -> None:
    """Rows of stacks that are flattened are cut with a stride."""
    mesh = mesh_of(place)
    x, w, g = tensors(torch, place, "float64", (3, 4, 6), (6, 5), (12, 5))
    stacks = distribute(x, mesh, 1)
    try:
        flat = stacks.view(12, 6)
    except RuntimeError as error:  # torch 2.11 has no tensor that is cut so
        if "Attempted to flatten multiple dimensions" not in str(error):
            raise
        return
    found = assert_no_other_process(interop.matmul, flat, distribute(w, mesh, None))
    torch.testing.assert_close(found.full_tensor(), x.view(12, 6) @ w)
    found = interop.matmul(flat.mT, distribute(g, mesh, None))
    torch.testing.assert_close(found.full_tensor(), x.view(12, 6).mT @ g)


def elementwise(place: str) -> None:
    """Elementwise functions and expressions are cut as torch's own operations are."""
    mesh = mesh_of(place)
    x, y = needing_grad(*tensors(torch, place, "float64", (5, 4), (4,)))
    for cut, function in itertools.product((0, 1), (interop.multiply, interop.elementwise("exp(x) * 2 + y"))):
        expected = function(x, y)
        shards = [x.detach().requires_grad_() for x in (distribute(x, mesh, cut), distribute(y, mesh, None))]
        found = assert_no_other_process(function, *shards)
        assert found.placements == (cut_of(cut),)
        torch.testing.assert_close(found.full_tensor(), expected)
        gradients = torch.autograd.grad(found.full_tensor().sum(), shards)
        for part, whole in zip(gradients, torch.autograd.grad(expected.sum(), (x, y)), strict=True):
            torch.testing.assert_close(part.full_tensor(), whole)


def errors(place: str) -> None:
    """What is refused of one device is refused with the same words."""
    mesh = mesh_of(place)
    a, b = distribute(torch.ones(4, 6, device=place), mesh, 0), distribute(torch.ones(5, 4, device=place), mesh, None)
    for options in ({}, {"dtype": "int8"}, {"precision": "best"}):
        given = (a, b) if not options else (a, a.mT)
        whole = [x.full_tensor() for x in given]
        raised = []
        for operands in (whole, given):
            try:
                interop.matmul(*operands, **options)
            except (TypeError, ValueError) as error:
                raised.append((type(error), str(error)))
        assert len(raised) == 2
        assert raised[0] == raised[1]


def two_dimensions(place: str) -> None:
    """A mesh of two dimensions, cut in each on its own."""
    for shape in ((1, PROCESSES), (PROCESSES, 1)):
        mesh = mesh_of(place, *shape)
        a, b = tensors(torch, place, "float64", (4, 6), (6, 8))
        shards = distribute(a, mesh, 0, None), distribute(b, mesh, None, 1)
        found = assert_no_other_process(interop.matmul, *shards)
        assert found.placements == (cut_of(0), cut_of(1))
        torch.testing.assert_close(found.full_tensor(), a @ b)
        shards = distribute(a, mesh, 0, 1), distribute(b, mesh, None, 0)
        found = assert_no_other_process(interop.matmul, *shards)
        assert found.placements == (cut_of(0), cut_of("sum"))
        torch.testing.assert_close(found.full_tensor(), a @ b)


def products(place: str) -> None:
    """All of the above."""
    first_meeting(place)
    each_cut(place)
    other_cuts(place)
    rows_of_stacks(place)
    elementwise(place)
    errors(place)
    two_dimensions(place)


def operators(place: str) -> None:
    """What is defined by `interop.operator`."""
    from helpers import sharded_operators

    sharded_operators.run_all(place)


# ---- networks ----


class Linear(torch.nn.Linear):
    """torch's layer, by one product of ours or by its own."""

    def __init__(self, columns: int, rows: int, epilogue: str | None, is_ours: bool) -> None:
        super().__init__(columns, rows)
        self.epilogue = epilogue
        self.is_ours = is_ours

    def forward(self, x: Any) -> Any:
        if self.is_ours:
            return interop.matmul(x, self.weight.mT, bias=self.bias, epilogue=self.epilogue)
        y = super().forward(x)
        return y if self.epilogue is None else torch.nn.functional.gelu(y)


def _network(place: str, is_ours: bool) -> Any:
    torch.manual_seed(0)
    layers = Linear(16, 32, "gelu", is_ours), Linear(32, 8, None, is_ours)
    return torch.nn.Sequential(*layers).to(place)


def _train(network: Any, x: Any, y: Any) -> list[float]:
    """Return the losses of ten steps, of all processes' rows."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / PROCESSES)
    return losses


def networks(place: str) -> None:
    """A network of two layers trains as by torch's own products, and as on one device, compiled as well."""
    fully_sharded(place)
    for is_compiled in (False, True):
        tensor_parallel(place, is_compiled)


def fully_sharded(place: str) -> None:
    """Under FSDP2, each process has rows of its own, and shards of the weights."""
    from torch.distributed.fsdp import fully_shard

    mesh, rank = mesh_of(place), dist.get_rank()
    x, y = tensors(torch, place, "float32", (2 * PROCESSES, 3, 16), (2 * PROCESSES, 3, 8))
    expected = _train(_network(place, is_ours=False), x, y)
    for is_ours in (False, True):
        network = _network(place, is_ours)
        for layer in network:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
        assert isinstance(network[0].weight, torch.distributed.tensor.DTensor)
        losses = _train(network, x[2 * rank : 2 * rank + 2], y[2 * rank : 2 * rank + 2])
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert losses[-1] < 0.9 * losses[0]


def tensor_parallel(place: str, is_compiled: bool) -> None:
    """Under tensor parallelism, the first layer's columns are cut, and the second's k: one sum over the processes."""
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    x, y = tensors(torch, place, "float32", (4, 3, 16), (4, 3, 8))
    expected = _train(_network(place, is_ours=False), x, y)
    network = parallelize_module(
        _network(place, is_ours=True), mesh_of(place), {"0": ColwiseParallel(), "1": RowwiseParallel()}
    )
    with CommDebugMode() as seen:
        found = network(x)
    assert dict(seen.get_comm_counts()) == {torch.ops.c10d_functional.all_reduce: 1}
    torch.testing.assert_close(found, _network(place, is_ours=False)(x))
    if is_compiled:
        network = torch.compile(network, backend="aot_eager", fullgraph=True)
    losses = _train(network, x, y)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
