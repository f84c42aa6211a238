"""Distributed tensors (DTensor) and FSDP2, in two processes: on the host by gloo, on two GPUs by NCCL."""

from __future__ import annotations

import pytest
from helpers import alone

torch = pytest.importorskip("torch")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
def shards_place(request):
    """The device of each process's shards."""
    if request.param == "cuda":
        request.getfixturevalue("two_cuda_devices")
    return request.param


@pytest.mark.parametrize("program", ["products", "networks", "operators"])
def test_two_processes(shards_place, program, tmp_path):
    alone.run(
        f"""
        from pathlib import Path
        from helpers import sharded

        if __name__ == "__main__":
            sharded.run("{program}", "{shards_place}", Path("{tmp_path}"))
        """,
        tmp_path,
    )
