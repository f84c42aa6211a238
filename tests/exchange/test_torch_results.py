"""Results in host memory pass for torch's own in all that a user does with them. The GPU: tests/gpu/test_results.py."""

from __future__ import annotations

import pytest
from helpers import alone, results, user_functions

import interop


@pytest.fixture(scope="module")
def c_function(tmp_path_factory):
    return user_functions.c_function(tmp_path_factory.mktemp("results"), on_gpu=False)


@pytest.fixture
def make(torch, request):
    """Make a new tensor by one way of interop; or by torch itself, which shows that the checks are fair."""
    way = request.param
    function = request.getfixturevalue("c_function") if way == "C function" else None
    return lambda: results.produce(torch, way, "cpu", function)


every_way = pytest.mark.parametrize("make", ["torch", *results.WAYS], indirect=True)


@every_way
@pytest.mark.parametrize("check", results.CHECKS)
def test_a_result_passes_for_torchs_own(torch, make, check):
    results.CHECKS[check](torch, make())


@every_way
@pytest.mark.parametrize("mode", results.MODES)
def test_a_result_is_made_as_torch_makes_one_in_this_mode(torch, make, mode):
    results.MODES[mode](torch, make, torch.device("cpu"))


@every_way
def test_numpy_locks_its_size(torch, make):
    c = make()
    seen = c.numpy()
    c.fill_(1)
    assert (seen == 1).all()
    with pytest.raises(RuntimeError, match="resizable"):
        c.resize_(64, 16)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_results_grow(torch, shape):
    c = interop.add(torch.ones(shape), 1.0)
    assert c.shape == shape
    assert c.untyped_storage().nbytes() == 0
    c.resize_(4).fill_(2)
    assert c.tolist() == [2] * 4


def test_other_processes_see_shared_results(torch, tmp_path):
    alone.run(
        """
        import torch
        import torch.multiprocessing

        def change(c):
            assert (c == 2).all()
            c.fill_(9)

        if __name__ == "__main__":
            for c in (interop.add(torch.ones(1000), 1.0), interop.matmul(torch.ones(30, 2), torch.ones(2, 30))):
                c.share_memory_()
                child = torch.multiprocessing.get_context("spawn").Process(target=change, args=(c,))
                child.start()
                child.join(60)
                assert child.exitcode == 0
                assert (c == 9).all()
        """,
        tmp_path,
    )
