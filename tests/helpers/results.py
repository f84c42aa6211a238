"""What a user can do with a tensor of torch's own, on any device: each thing as a check that a result must pass, too.

A check takes torch and a new tensor: float32, of shape (8, 16), compact, every element 6. Those of torch's own pass,
which the tests prove along with ours. A check of MODES takes torch, what makes such a tensor, and its device.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import interop

SHAPE = (8, 16)
NBYTES = 8 * 16 * 4


def is_plain(torch: Any, c: Any) -> None:
    assert type(c) is torch.Tensor
    assert (c.is_leaf, c.requires_grad, c.grad_fn, c.grad, c._version, c._base) == (True, False, None, None, 0, None)
    assert (tuple(c.shape), c.stride(), c.storage_offset(), c.dtype) == (SHAPE, (16, 1), 0, torch.float32)
    assert c.layout is torch.strided
    assert not any((c.is_inference(), c.is_conj(), c.is_neg(), c.is_pinned()))
    assert c.is_shared() == c.is_cuda
    assert c.data_ptr() % (512 if c.is_cuda else 64) == 0
    assert repr(c).startswith("tensor([[6., 6.")


def has_a_storage_of_its_size(torch: Any, c: Any) -> None:
    storage = c.untyped_storage()
    assert storage.nbytes() == NBYTES
    assert storage.data_ptr() == c.data_ptr()
    assert storage.resizable()
    assert storage.device == c.device


def resize_bigger(torch: Any, c: Any) -> None:
    assert c.resize_(64, 16) is c
    assert c.untyped_storage().nbytes() == 64 * 16 * 4
    assert (c[:8] == 6).all()
    c.fill_(2)
    assert c.sum().item() == 2 * 64 * 16


def resize_smaller_and_back(torch: Any, c: Any) -> None:
    pointer = c.data_ptr()
    c.resize_(2, 3)
    assert c.tolist() == [[6] * 3] * 2
    c.resize_(SHAPE)
    assert (c == 6).all()
    assert c.data_ptr() == pointer
    assert c.untyped_storage().nbytes() == NBYTES


def resize_the_storage(torch: Any, c: Any) -> None:
    storage = c.untyped_storage()
    storage.resize_(4096)
    assert storage.nbytes() == 4096
    assert (c == 6).all()
    storage.resize_(0)  # as FSDP does with what it has shared out
    assert (storage.nbytes(), c.data_ptr()) == (0, 0)
    storage.resize_(NBYTES)
    assert (c.fill_(3) == 3).all()


def set_to_another_storage(torch: Any, c: Any) -> None:
    other = torch.zeros(3, device=c.device)
    c.set_(other)
    assert c.data_ptr() == other.data_ptr()
    assert c.tolist() == [0, 0, 0]


def lend_the_storage(torch: Any, c: Any) -> None:
    flat = torch.empty(0, device=c.device).set_(c.untyped_storage(), 0, (128,))
    assert flat.data_ptr() == c.data_ptr()
    c.fill_(5)
    del c
    gc.collect()
    assert flat.tolist() == [5] * 128


def data_is_replaced(torch: Any, c: Any) -> None:
    alias = c.data
    assert alias.data_ptr() == c.data_ptr()
    c.data = torch.zeros(2, device=c.device)
    assert c.tolist() == [0, 0]
    assert (alias == 6).all()


def views_share_the_storage(torch: Any, c: Any) -> None:
    view = c[2:].t()
    assert view._base is c
    assert view.untyped_storage().data_ptr() == c.untyped_storage().data_ptr()
    view.add_(1)
    assert c[1:3].tolist() == [[6] * 16, [7] * 16]
    assert (c._version, view._version) == (1, 1)
    del c
    gc.collect()
    assert (view == 7).all()


def change_in_place(torch: Any, c: Any) -> None:
    c.t_().unsqueeze_(0)
    assert c.shape == (1, 16, 8)
    c.squeeze_(0).mul_(2)
    assert c.is_contiguous() is False
    assert (c == 12).all()


def backward_and_hooks(torch: Any, c: Any) -> None:
    seen = []
    assert c.requires_grad_() is c
    c.register_hook(lambda grad: seen.append(("hook", grad.sum().item())))
    c.register_post_accumulate_grad_hook(lambda p: seen.append(("post", p.grad.sum().item())))
    (c * 2).relu().sum().backward()
    assert c.is_leaf
    assert (c.grad == 2).all()
    assert seen == [("hook", 256), ("post", 256)]
    torch.optim.SGD([c], lr=1.0).step()
    assert (c == 4).all()


def saved_for_backward(torch: Any, c: Any) -> None:
    w = torch.ones(SHAPE, device=c.device, requires_grad=True)
    (w * c).sum().backward()
    assert torch.equal(w.grad, c)
    loss = (w * c).sum()
    c.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        noticed = str(error)
    else:
        noticed = ""
    assert "modified by an inplace operation" in noticed


def becomes_a_parameter(torch: Any, c: Any) -> None:
    layer = torch.nn.Linear(16, 8, device=c.device)
    layer.weight = torch.nn.Parameter(c)
    assert layer.weight.data_ptr() == c.data_ptr()
    layer(torch.ones(1, 16, device=c.device)).sum().backward()
    assert (layer.weight.grad == 1).all()


def pickled(torch: Any, c: Any) -> None:
    again = pickle.loads(pickle.dumps(c))
    assert torch.equal(again, c)
    assert (type(again), again.device) == (torch.Tensor, c.device)


def saved_to_a_file(torch: Any, c: Any) -> None:
    file = io.BytesIO()
    torch.save({"c": c, "row": c[1]}, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)
    assert torch.equal(again["c"], c)
    assert again["row"].untyped_storage().data_ptr() == again["c"].untyped_storage().data_ptr()
    assert again["c"].untyped_storage().nbytes() == NBYTES


def copied(torch: Any, c: Any) -> None:
    deep, shallow = copy.deepcopy(c), copy.copy(c)
    assert torch.equal(deep, c)
    assert deep.data_ptr() != c.data_ptr()
    assert shallow.data_ptr() == c.data_ptr()
    deep.fill_(1)
    assert (c == 6).all()


def weakly_referred_to(torch: Any, c: Any) -> None:
    c.note = "mine"
    alive = weakref.ref(c)
    assert alive().note == "mine"
    storage = weakref.ref(c.untyped_storage())
    del c
    gc.collect()
    assert alive() is None
    assert storage() is None


def swapped(torch: Any, c: Any) -> None:
    other = torch.zeros(2, device=c.device)
    torch.utils.swap_tensors(c, other)  # which refuses a tensor that somebody else holds
    assert c.tolist() == [0, 0]
    assert (other == 6).all()


def compiled_code_reads_it(torch: Any, c: Any) -> None:
    assert (torch.compile(lambda x: x * 2 + 1, backend="aot_eager", fullgraph=True)(c) == 13).all()


def transformed(torch: Any, c: Any) -> None:
    assert torch.func.vmap(lambda x: x.sum())(c).tolist() == [96] * 8
    assert (torch.func.grad(lambda x: (x * x).sum())(c) == 12).all()


def exported(torch: Any, c: Any) -> None:
    assert torch.from_dlpack(c).data_ptr() == c.data_ptr()
    assert (interop.add(c, 1.0) == 7).all()
    assert interop.add(c, 1.0, out=c) is c
    assert (c == 7).all()
    assert c._version == 1


def shared_with_processes(torch: Any, c: Any) -> None:
    assert c.share_memory_() is c
    assert c.is_shared()
    assert (c == 6).all()
    c.fill_(1)
    assert (c == 1).all()


CHECKS = {
    check.__name__: check
    for check in (
        is_plain,
        has_a_storage_of_its_size,
        resize_bigger,
        resize_smaller_and_back,
        resize_the_storage,
        set_to_another_storage,
        lend_the_storage,
        data_is_replaced,
        views_share_the_storage,
        change_in_place,
        backward_and_hooks,
        saved_for_backward,
        becomes_a_parameter,
        pickled,
        saved_to_a_file,
        copied,
        weakly_referred_to,
        swapped,
        compiled_code_reads_it,
        transformed,
        exported,
        shared_with_processes,
    )
}


# ---- modes in which a tensor is made ----


def inference_mode(torch: Any, make: Callable[[], Any], device: Any) -> None:
    with torch.inference_mode():
        c = make()
    assert c.is_inference()
    assert (c == 6).all()
    assert not make().is_inference()
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        c.requires_grad_()


def memory_that_torch_fills(torch: Any, make: Callable[[], Any], device: Any) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert (make() == 6).all()
    finally:
        torch.use_deterministic_algorithms(False)


def other_defaults(torch: Any, make: Callable[[], Any], device: Any) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        c = make()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert (c.dtype, c.device) == (torch.float32, device)
    assert (c == 6).all()


MODES = {check.__name__: check for check in (inference_mode, memory_that_torch_fills, other_defaults)}


def produce(torch: Any, name: str, device: str, function: Any = None) -> Any:
    """Make one new tensor by this way of interop, or by torch's own; `function` is one of `helpers.user_functions`."""
    options = {"dtype": torch.float32, "device": device}  # whatever the defaults are
    three, ones = torch.full(SHAPE, 3.0, **options), torch.ones(SHAPE, **options)
    rows, columns, bias = ones[:, :5], ones[:5], ones[0]
    return {
        "torch": lambda: three + three,
        "add": lambda: interop.add(three, three),
        "add a scalar": lambda: interop.add(three, 3.0),
        "abs": lambda: interop.abs(-2 * three),
        "where it is transposed": lambda: interop.multiply(torch.full(SHAPE[::-1], 2.0, **options).t(), three),
        "mixed dtypes": lambda: interop.add(three, three.int()),
        "expression": lambda: interop.elementwise("x * y - 3")(three, three),
        "matmul": lambda: interop.matmul(3 * rows[:, :2], columns[:2]),
        "bias": lambda: interop.matmul(rows, columns, bias=bias),
        "epilogue": lambda: interop.matmul(rows, columns, bias=bias, epilogue="relu"),
        "beta": lambda: interop.matmul(rows, columns, c=ones),
        "C function": lambda: function(three + three, three.numel()),
        "kernel": lambda: function(three + three, three.numel()),
    }[name]()


WAYS = (
    "add",
    "add a scalar",
    "abs",
    "where it is transposed",
    "mixed dtypes",
    "expression",
    "matmul",
    "bias",
    "epilogue",
    "beta",
    "C function",
)
