"""Inputs that broke other libraries: gradients, storages and modes of PyTorch. The list: tests/gpu/cases."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from helpers import alone

import interop

WRITES = {
    "add": lambda torch, y: interop.add(y, 4.0, out=y),
    "add, to a part": lambda torch, y: interop.add(torch.ones(2), 1.0, out=y[:2]),
    "aux of matmul": lambda torch, y: interop.matmul(torch.eye(3), torch.ones(3), epilogue="relu", aux=y),
    "expression": lambda torch, y: interop.elementwise("x + 4")(y, out=y),
}


def saved_value_changed_by(torch, write):
    """Change a value that autograd has saved, then ask for the gradient."""
    w = torch.ones(3, requires_grad=True)
    y = torch.full((3,), 2.0)
    z = (w * y).sum()
    write(torch, y)
    z.backward()


# pytorch/pytorch#96852: a kernel wrote by a pointer, and autograd used the new values in silence.
@pytest.mark.parametrize("write", WRITES)
def test_b91_writes_are_noticed_by_autograd(torch, write):
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, WRITES[write])


VIEWED_WRITES = {
    "add": lambda y: interop.add(np.full(3, 5, "f4"), 1.0, out=interop.asarray(y)),
    "add, to a view of a view": lambda y: interop.add(
        np.full(3, 5, "f4"), 1.0, out=interop.asarray(interop.asarray(y))
    ),
    "add, to a part": lambda y: interop.add(np.full(2, 5, "f4"), 1.0, out=interop.asarray(y[1:])),
    "matmul": lambda y: interop.matmul(np.eye(3, dtype="f4"), np.ones(3, "f4"), out=interop.asarray(y)),
    "expression": lambda y: interop.elementwise("x + 4")(np.ones(3, "f4"), out=interop.asarray(y)),
}


# pytorch/pytorch#14571: a write by a way that did not count as one gave a wrong gradient without an error.
@pytest.mark.parametrize("write", VIEWED_WRITES)
def test_b92_writes_through_a_view_are_noticed_by_autograd(torch, write):
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, lambda torch, y: VIEWED_WRITES[write](y))


def test_b92_reading_a_view_is_no_write(torch):
    saved_value_changed_by(torch, lambda torch, y: interop.add(interop.asarray(y), 1.0))


# pytorch/pytorch#179422: the compiler gave a custom operator reinterpreted views, which it could not read.
def test_b94_a_custom_operator_around_a_product(torch):
    @torch.library.custom_op("interop_cases::mm", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
    def mm(a, b):
        return interop.matmul(a, b)

    @mm.register_fake
    def _(a, b):
        return a.new_empty(a.shape[0], b.shape[1])

    def f(x):
        y = (x * 2).t()
        return mm(y[:, ::2], (x + 1)[::2]).relu()

    x = torch.arange(12.0).reshape(4, 3)
    expected = ((x * 2).t()[:, ::2] @ (x + 1)[::2]).relu()
    assert torch.equal(torch.compile(f, backend="aot_eager", fullgraph=True)(x), expected)
    torch.library.opcheck(mm, (x.t(), x))


# pytorch/pytorch#180620: an operator that returned a view of its argument was refused.
def test_b95_results_are_new_memory_and_outputs_are_said_to_be_mutated(torch):
    @torch.library.custom_op("interop_cases::into", mutates_args=("out",), schema="(Tensor a, Tensor(a!) out) -> ()")
    def into(a, out):
        interop.add(a, 1.0, out=out)

    @into.register_fake
    def _(a, out):
        return None

    def f(x):
        out = torch.empty_like(x)
        into(x, out)
        return out * 2

    x = torch.arange(3.0)
    assert torch.compile(f, backend="aot_eager", fullgraph=True)(x).tolist() == [2, 4, 6]
    torch.library.opcheck(into, (x, torch.empty(3)))
    y = interop.add(x, 0.0)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


# pytorch/pytorch#195862: a parameter whose storage had been freed was read at address 0.
@pytest.mark.parametrize(
    "call",
    [
        lambda torch, t: interop.add(t, 1.0),
        lambda torch, t: interop.add(torch.ones(4), 1.0, out=t),
        lambda torch, t: interop.matmul(t, t),
        lambda torch, t: interop.asarray(t),
        lambda torch, t: interop.elementwise("x + 1")(t),
    ],
)
def test_b97_a_freed_storage(torch, call):
    t = torch.ones(4)
    t.untyped_storage().resize_(0)
    with pytest.raises((TypeError, BufferError, ValueError), match=r"^interop\.\w+(\('x \+ 1'\))?: (a|x|out)\b"):
        call(torch, t)


# zdevito/ATen#84: a storage was resized while another library looked at it: freed memory was read. Such an exporter
# refuses to be resized (torch after `t.numpy()`), or the view keeps the memory that it was made from.
def test_b98_a_storage_resized_under_a_view(torch, tmp_path):
    alone.run(
        """
        import gc
        import torch

        N = 1 << 22
        WAYS = {
            "resize_": lambda t: t.resize_(4 * N),
            "resize_ of its storage": lambda t: t.untyped_storage().resize_(16 * N),
            "a storage of no bytes": lambda t: t.untyped_storage().resize_(0),
            "set_": lambda t: t.set_(torch.zeros(4)),
            "data": lambda t: setattr(t, "data", torch.zeros(4)),
        }
        for name, change in WAYS.items():
            t = torch.full((N,), 3.0)
            view = interop.asarray(t)
            try:
                change(t)
            except RuntimeError as error:
                assert "resiz" in str(error), error
            gc.collect()
            junk = [torch.full((N,), 9.0) for _ in range(4)]
            assert (np.asarray(view) == 3).all(), name
        """,
        tmp_path,
    )


# wjakob/nanobind#930: an object that held an ndarray, kept on what the ndarray belonged to, was never collected.
@pytest.mark.parametrize(
    "look",
    [
        interop.asarray,
        lambda t: interop.asarray(interop.asarray(t)),
        lambda t: interop.convert(t, "interop"),
        lambda t: interop.convert(t, "numpy"),
        lambda t: (interop.asarray(t), interop.asarray(t[1:])),
    ],
    ids=["asarray", "asarray of asarray", "convert", "convert to NumPy", "two views"],
)
def test_b100_a_cycle_of_a_tensor_and_its_view(torch, look):
    t = torch.ones(3)
    alive = weakref.ref(t)
    t.view_ = look(t)
    del t
    gc.collect()
    assert alive() is None


# pytorch/pytorch#79085: inside autocast some operands of a custom operator were half, some not.
def test_b102_autocast(torch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert interop.matmul(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
        assert interop.add(torch.ones(2), torch.ones(2)).dtype is torch.float32


# pytorch/pytorch#126533: a library's own helpers made their tensors on the default device.
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_b103_the_default_device(torch, tmp_path, device):
    alone.run(
        f"""
        import torch

        torch.set_default_device("{device}")
        a = torch.ones(3, device="cpu", dtype=torch.int16)
        results = [
            interop.subtract(a, 1.5), interop.subtract(1.5, a), interop.divide(a, 2), interop.multiply(a, 2.5 + 0j),
            interop.add(a, torch.tensor(0.5, device="cpu")), interop.elementwise("x - 1.5")(a),
            interop.matmul(a.double(), torch.ones(3, 3, device="cpu", dtype=torch.float64)),
        ]
        assert all(result.device.type == "cpu" for result in results), results
        values = [result.tolist() for result in results]
        assert values == [[-0.5] * 3, [0.5] * 3, [0.5] * 3, [2.5] * 3, [1.5] * 3, [-0.5] * 3, [3] * 3], values
        """,
        tmp_path,
    )
