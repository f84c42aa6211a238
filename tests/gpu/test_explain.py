"""`interop.explain` on a GPU: streams, waits, what is held, copies; and that nothing of it happens."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import device
from helpers.device import Side, delay, free_bytes, is_busy, synchronize
from helpers.dlpack import Fake
from helpers.libraries import on_gpu

import interop

N = 64
ONES = np.ones((N, N), "float32")


def explain(*arrays, **options):
    return interop.explain(interop.matmul, *arrays, **options)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_the_librarys_stream(name):
    side = Side(on_gpu(name))
    a = side.make(ONES)
    with side.current():
        plan = explain(a, a)
    assert plan.stream == side.handle
    assert plan.stream_reason == f"the current one of {name}, the library of a"
    assert (plan.waits, plan.held, plan.copies) == ((), (), ())
    assert (plan.device, plan.arguments[0].device) == ("cuda:0", "cuda:0")
    assert plan.arguments[0].pointer == side.library.pointer(a)
    assert re.fullmatch(f"{name}'s own(, by torch's C functions)?, on the call's stream", plan.allocator)
    assert plan.algorithm.startswith("tiled")
    assert plan.workspace_bytes == 0


def test_another_librarys_stream_would_be_joined_and_is_not():
    one, two = Side(on_gpu("torch")), Side(on_gpu("cupy"))
    a, b = one.make(ONES), two.make(ONES)
    with one.current(), two.current():
        explain(a, b)
        delay(two.handle)
        plan = explain(a, b)
        assert not is_busy(one.handle)
    assert plan.waits == (f"b: the call waits for stream {two.handle:#x}, which waits for the call in turn",)
    synchronize()


def test_a_given_stream(cupy):
    side = Side(on_gpu("torch"))
    a = side.make(ONES)
    given = cupy.cuda.Stream(non_blocking=True)
    with side.current():
        delay(side.handle)
        plan = explain(a, a, stream=given)
        assert not is_busy(given.ptr)
    assert (plan.stream, plan.stream_reason) == (given.ptr, "given by stream=")
    assert plan.waits == tuple(f"{x}: the call waits for stream {side.handle:#x}" for x in "ab")
    assert plan.held == ("a", "b")
    synchronize()


def test_unknown_producers(cupy):
    fake = Fake(cupy.ones((N, N), "float32"))
    plan = explain(fake, fake)
    assert plan.stream == 1
    assert plan.stream_reason == "the legacy default stream, as nothing is known of the library of a"
    assert plan.waits == tuple(f"{x}: its producer makes the call wait, by __dlpack__(stream=)" for x in "ab")
    assert plan.held == ("a", "b")
    assert fake.balanced
    assert plan.allocator == "the CUDA driver's stream-ordered pool, by interop"


def test_jax_beside_another_library(jax, torch):
    plan = explain(torch.ones(N, N, device="cuda"), on_gpu("jax").make(ONES))
    assert plan.waits == ("b: its producer makes the call wait, by __dlpack__(stream=)",)
    assert plan.held == ("b",)


def test_results_of_no_library(cupy):
    fake = Fake(cupy.ones((N, N), "float32"))
    c = interop.matmul(fake, fake)
    plan = explain(c, c)
    assert plan.stream_reason.startswith("interop's own of this thread and device")
    assert plan.waits[0] == "a: the call waits for its last use, on the legacy default stream"
    view = interop.asarray(cupy.ones((N, N), "float32"))
    plan = explain(view, view)
    assert plan.stream == 1
    assert plan.stream_reason == "the one that a itself names"


def test_execution_on_the_gpu():
    plan = explain(ONES, ONES[:, ::2], execution="cuda")
    assert plan.device == "cuda:0"
    assert plan.copies == (
        f"a: to cuda:0, {4 * N * N} bytes, as execution= asks",
        f"b: to cuda:0, {2 * N * N} bytes, as execution= asks",
        f"the result: from cuda:0, {2 * N * N} bytes, as execution= asks",
    )
    assert plan.arguments[0].device == "cpu"
    assert plan.allocator == "numpy's own, in host memory"


def test_jax_alone(jax):
    a = on_gpu("jax").make(ONES)
    plan = explain(a, a)
    assert plan.device == "cuda:0"
    assert "the XLA FFI handler interop_matmul" in plan.algorithm


def test_nothing_is_allocated(torch):
    a = torch.ones(2048, 2048, device="cuda")
    explain(a, a)
    synchronize()
    delay(device.LEGACY, 0)
    changed = 0
    for _ in range(20):  # other processes on the card allocate, too
        before = torch.cuda.memory_allocated(), free_bytes()
        plan = explain(a, a)
        changed += (torch.cuda.memory_allocated(), free_bytes()) != before
    assert plan.algorithm.startswith(("cuBLASLt", "tiled"))
    assert changed < 10
