"""What torch notes of a tensor beside its memory: its C++ functions and Python's give the same answers."""

from __future__ import annotations

import pytest
from helpers import alone

ASK = """
    import torch

    def refused(error, words, call):
        try:
            call()
        except error as found:
            assert words in str(found), found
        else:
            raise AssertionError("it was not refused")

    x, out = torch.ones(3), torch.zeros(3)
    z = torch.tensor([1 + 2j, 3 - 4j])

    # lazily negated or conjugated, also where torch counts it as no view
    assert interop.add(z.conj().imag, 0.0).tolist() == [-2, 4]
    assert interop.add(z.conj().imag.data, 0.0).tolist() == [-2, 4]
    assert interop.add(z.conj(), 0.0).tolist() == [1 - 2j, 3 + 4j]
    refused(TypeError, "lazily negated", lambda: interop.add(z.imag, 0.0, out=z.conj().imag))

    # gradients
    leaf = torch.ones(3, requires_grad=True)
    for tensor in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3))):
        refused(BufferError, "requires grad", lambda: interop.convert(tensor, "numpy"))
        with torch.no_grad():
            assert interop.add(tensor, 0.0).tolist() == tensor.tolist()
    assert interop.add(leaf.detach(), 0.0).tolist() == [1, 1, 1]

    # writes are counted, and inference tensors have no count
    version = out._version
    interop.add(x, x, out=out)
    assert out._version == version + 1 and out.tolist() == [2, 2, 2]
    weight = torch.zeros(3, requires_grad=True)
    saved = (out * weight).sum()
    interop.add(x, x, out=out)
    refused(RuntimeError, "modified by an inplace operation", saved.backward)
    with torch.inference_mode():
        inference = torch.zeros(3)
        interop.add(x, x, out=inference)
    assert inference.tolist() == [2, 2, 2]
    assert interop.add(inference, 0.0).tolist() == [2, 2, 2]
    refused(TypeError, "inference tensor", lambda: interop.add(x, x, out=inference))

    # the state of the thread
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        refused(TypeError, "dispatch mode", lambda: interop.convert(x, "numpy"))
    assert interop.convert(x, "numpy").tolist() == [1, 1, 1]
    refused(TypeError, "tracing", lambda: torch.jit.trace(lambda t: torch.from_numpy(interop.convert(t, "numpy")), x))
    assert interop.convert(x, "numpy").tolist() == [1, 1, 1]

    tripled = torch.func.vmap(lambda t: interop.add(interop.add(t, t), t))(torch.ones(2, 3))
    assert tripled.tolist() == [[3] * 3] * 2
    slope = torch.func.grad(lambda t: interop.multiply(t, t).sum())(torch.ones(3))
    assert slope.tolist() == [2] * 3
    assert interop.add(x, x).tolist() == [2] * 3

    # memory: its own words where there is none, and that of now where it was changed
    refused(BufferError, "no memory of its own", lambda: interop.add(x.to_sparse(), 1.0))
    refused(BufferError, "device meta", lambda: interop.add(torch.ones(3, device="meta"), 1.0))
    a, b = torch.full((2,), 5.0), torch.full((3,), 6.0)
    assert interop.add(a, 1.0).tolist() == [6, 6]
    torch.utils.swap_tensors(a, b)
    assert interop.add(a, 1.0).tolist() == [7, 7, 7]
    a.data = torch.zeros(1)
    assert interop.add(a, 1.0).tolist() == [1]
"""


@pytest.mark.parametrize("way", ["shim", "python"])
def test_both_ways_answer_alike(torch, tmp_path, way):
    try:
        alone.run(ASK, tmp_path, INTEROP_TORCH_NOTES=way)
    except AssertionError as error:
        if way == "shim" and "which was not tested with torch" in str(error):
            pytest.skip(f"not tested with torch {torch.__version__}")
        raise


def test_an_unknown_way_is_refused(torch, tmp_path):
    alone.run(
        """
        import torch

        try:
            interop.add(torch.ones(1), 1.0)
        except ValueError as error:
            assert str(error) == "INTEROP_TORCH_NOTES is 'fast'; accepted: 'shim', 'python', or nothing"
        else:
            raise AssertionError("it was taken")
        """,
        tmp_path,
        INTEROP_TORCH_NOTES="fast",
    )
