"""`interop.profile` on a GPU: launches and waits, and copies that kernels make or that cross devices.

What each call of the driver counts as: tests/exchange/test_profile.py, on one that is played.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.device import Side, delay, is_busy
from helpers.graphs import captured
from helpers.libraries import on_gpu

import interop


def sizes(counts):
    return {kind: (each.count, each.bytes) for kind, each in counts.items()}


def test_an_operation_is_a_launch_and_no_copy(torch):
    x = torch.ones(1000, device="cuda")
    with interop.profile() as p:
        interop.add(x, x)
    assert sizes(p.launches) == {"kernel": (1, 0)}
    assert p.transfers == {}
    assert p.allocations == {}  # the result is torch's
    assert p.waits == {}


def test_results_of_interops_own_are_allocated(torch):
    x = interop.ones(1000, "float32", memory="device")
    with interop.profile() as p:
        interop.add(x, x)
    assert sizes(p.allocations) == {"device": (1, 4000)}


@pytest.mark.parametrize("backend", ["tiled", "cublas"])
def test_products_are_launches_of_their_backend(torch, backend):
    x = torch.ones(512, 512, device="cuda")
    interop.matmul(x, x, backend=backend)
    with interop.profile() as p:
        interop.matmul(x, x, backend=backend)
    if backend == "cublas":
        assert p.launches["cuBLASLt"].count == 1
    else:
        assert "cuBLASLt" not in p.launches
        assert p.launches["kernel"].count >= 1
    assert p.transfers == {}


@pytest.mark.parametrize("to", ["device", "managed"])
def test_a_strided_copy_is_a_transfer_and_a_launch(to):
    x = interop.ones((100, 200), "float32", memory="device")
    y = interop.empty((200, 100), "float32", memory=to)
    with interop.profile() as p:
        interop.copyto(y, x.T)
    assert sizes(p.transfers) == {"device to device": (1, 80_000)}
    assert sizes(p.launches) == {"kernel": (1, 0)}
    assert p.copies[0].function == "interop.copyto"
    assert p.copies[0].file == __file__


def test_a_strided_copy_to_pinned_memory_goes_to_the_host():
    x = interop.ones((100, 200), "float32", memory="device")
    y = interop.empty((200, 100), "float32", memory="pinned")
    with interop.profile() as p:
        interop.copyto(y, x.T)
    assert sizes(p.transfers) == {"device to host": (1, 80_000)}


def test_planes_are_copied_to_the_host():
    x = interop.ones((8, 4, 100), "float32", memory="device")
    y = np.zeros((8, 8, 200), "float32")
    with interop.profile() as p:
        interop.copyto(y[:, :4, :100], x)
    assert sizes(p.transfers) == {"device to host": (1, 12_800)}


def test_one_value_is_a_launch_alone():
    x = interop.empty(1000, "float32", memory="device")
    with interop.profile() as p:
        x[...] = 3
    assert p.transfers == {}
    assert sizes(p.launches) == {"kernel": (1, 0)}


def test_a_wait_of_the_host_is_counted_with_its_time():
    side = Side(on_gpu("torch"))
    x = interop.empty(1000, "float32", memory="managed", stream=side.handle)
    delay(side.handle)
    interop.copyto(x, 1, stream=side.handle)
    assert is_busy(side.handle)
    with interop.profile() as p:
        np.asarray(x)
    assert not is_busy(side.handle)
    assert sum(p.waits[kind].count for kind in p.waits if kind.startswith("host for")) == 1
    assert 0 < sum(each.seconds for each in p.waits.values()) <= p.seconds


def test_a_copy_between_devices_is_a_peers(two_cuda_devices):
    first, second = two_cuda_devices
    x = interop.ones(1000, "float32", memory="device", device=first)
    y = interop.empty(1000, "float32", memory="device", device=second)
    with interop.profile() as p:
        interop.copyto(y, x)
    assert sizes(p.transfers) == {"peer": (1, 4000)}


def test_xlas_threads_are_counted(jax):
    """They run no Python."""
    x = jax.numpy.ones((256, 256), "float32")
    product = jax.jit(lambda a: interop.jax.matmul(a, a))
    product(x).block_until_ready()
    with interop.profile() as p:
        product(x).block_until_ready()
    assert sum(each.count for each in p.launches.values()) >= 1
    assert p.transfers == {}


def test_captured_work_is_counted_where_it_is_captured(torch):
    x, out = torch.ones(1000, device="cuda"), torch.empty(1000, device="cuda")
    interop.add(x, x, out=out)
    with interop.profile() as p, captured(torch) as graph:
        interop.add(x, x, out=out)
    with interop.profile() as q:
        graph.replay()
    torch.cuda.synchronize()
    assert sizes(p.launches) == {"kernel": (1, 0)}
    assert q.launches == {}
