"""Threads that share what interop keeps of a GPU: streams, events, plans, kernels, and the order of work on one array.

As in tests/test_threads.py: where it can be, another call comes in at the moment that a rule is about, for certain.
"""

from __future__ import annotations

import ctypes
import textwrap

import numpy as np
import pytest
from helpers import dlpack, machine
from helpers.device import Snapshot, delay, fill, is_busy, new_stream, synchronize
from helpers.dlpack import CUDA, Cai
from helpers.threads import at_once, run_apart

import interop

THREADS = 8
N = 64
COUNT = N * N


def values_of(array):
    """Return the values of an `interop.Array` on the GPU."""
    synchronize()
    return machine.need("torch").from_dlpack(array).cpu().numpy()


def own_array(cupy, value):
    """Return an `interop.Array` in memory of its own."""
    made = interop.add(Cai(cupy.full((N, N), value, "float32")), 0)
    assert type(made) is interop.Array
    synchronize()
    return made


# ---- one array in several threads ----


class Late(Cai):
    """Memory that is asked for by `__dlpack__`, upon which `act` runs: another thread's work, between two steps."""

    def __init__(self, x, act):
        self.array, self.act = x, act

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        self.act()
        return self.array.__dlpack__(**options)


def test_uses_that_overlap_are_both_waited_for(cupy):
    slow, quick, writing = (new_stream() for _ in range(3))
    x, fives, zeros = own_array(cupy, 2), cupy.full((N, N), 5, "float32"), cupy.zeros((N, N), "float32")
    made = []

    def race(wait):
        def read_slowly():  # between the other call's wait for x and its note of having used it
            delay(slow, wait)
            made.append(interop.add(x, 1, stream=slow))

        interop.add(x, Late(zeros, read_slowly), stream=quick)
        busy = is_busy(slow)
        interop.add(fives, 0, out=x, stream=writing)  # waits for both
        return busy

    race(0)
    synchronize()
    x = own_array(cupy, 2)
    assert race(300)
    assert (values_of(made[-1]) == 3).all()
    assert (values_of(x) == 5).all()


def test_streams_lent_to_two_threads_are_both_waited_for(cupy):
    api = dlpack.exchange_api_of(interop.Array)
    view = interop.asarray(cupy.ones((N, N), "float32"))
    given = cupy.cuda.Stream(non_blocking=True)
    after = Snapshot((N, N))

    def lend():
        stream, tensor = ctypes.c_void_p(), dlpack.Tensor()
        assert api.current_work_stream(CUDA, 0, ctypes.byref(stream)) == 0
        assert api.view_from_py(view, ctypes.byref(tensor)) == 0
        return stream.value, tensor.data

    with given:
        cupy.from_dlpack(view)  # the first time takes long
    synchronize()
    stream, pointer = lend()
    [(other, _)] = at_once(1, lambda _: lend())
    assert other != stream
    delay(stream)
    fill(pointer, 3, COUNT, stream)  # the consumer that came first is not done yet
    with given:
        y = cupy.from_dlpack(view)
    after.take(y.data.ptr, given.ptr)
    assert is_busy(stream)
    assert (after.values() == 3).all()


def test_a_host_waits_for_an_array_that_others_use():
    # The event that it waits for, without the GIL, is replaced meanwhile.
    run_apart("""
        import cupy, numpy as np, interop
        from helpers.device import delay, new_stream, synchronize
        from helpers.dlpack import MANAGED, Fake
        from helpers.threads import at_once

        array = cupy.ndarray((64, 64), "float32", cupy.cuda.malloc_managed(64 * 64 * 4))
        array.fill(2)
        synchronize()
        view = interop.asarray(Fake(array, device_type=MANAGED))
        streams = [new_stream() for _ in range(8)]

        def work(k):
            for i in range(300):
                if k < 4:
                    assert (np.asarray(view) == 2).all()
                else:
                    if i % 10 == 0:
                        delay(streams[k], 0.2)
                    interop.add(view, k, stream=streams[k])

        at_once(8, work)
        synchronize()
    """)


def test_an_export_is_noted_while_another_is():
    # The libraries are asked about streams in Python: a lock held meanwhile would stop both for good.
    run_apart(
        """
        import cupy, torch, interop
        from helpers.dlpack import Cai
        from helpers.threads import meanwhile

        x = interop.add(Cai(cupy.ones((4, 4), "float32")), 0)
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            with meanwhile("return", "current_stream", lambda: x.__dlpack__(stream=two.cuda_stream)):
                x.__dlpack__(stream=one.cuda_stream)
        torch.cuda.synchronize()
        """,
        120,
    )


def test_threads_export_one_array(torch, cupy):
    x = own_array(cupy, 7)
    expected = torch.full((N, N), 7.0, device="cuda")

    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            return all(bool(torch.equal(torch.from_dlpack(x), expected)) for _ in range(50))

    assert all(at_once(THREADS, work))


# ---- streams and events of our own ----


def test_threads_that_come_and_go_compute_on_our_own_streams(cupy):
    x = own_array(cupy, 1)

    def work(k):
        c = x
        for _ in range(20):
            c = interop.add(c, k)
        return values_of(c)

    for _ in range(5):
        for k, values in enumerate(at_once(THREADS, work)):
            assert (values == 1 + 20 * k).all()


# ---- products ----


def test_the_first_products_of_a_process_come_from_many_threads():
    run_apart("""
        import torch, interop
        from helpers.threads import at_once

        x = torch.ones(256, 256, device="cuda")

        def work(k):
            return float(interop.matmul(x, x, backend="cublas")[k, k])

        assert at_once(8, work) == [256.0] * 8
    """)


def test_threads_plan_products_of_many_shapes(torch):
    random = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in random.integers(1, 300, 3)) for _ in range(40)]

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            for m, n, inner in shapes[5 * k :] + shapes[: 5 * k]:
                for backend in (None, "cublas", "tiled"):
                    a, b = torch.ones(m, inner, device="cuda"), torch.ones(inner, n, device="cuda")
                    c = interop.matmul(a, b, backend=backend)
                    assert bool((c == inner).all()), (m, n, inner, backend)

    at_once(THREADS, work)


def test_threads_tune_the_same_products(torch):
    sizes = (520, 776, 1032)
    arrays = {size: torch.ones(size, size, device="cuda", dtype=torch.bfloat16) for size in sizes}

    def work(k):
        for size in sizes[k % 3 :] + sizes[: k % 3]:
            assert bool((interop.matmul(arrays[size], arrays[size]) == size).all())

    with interop.autotune():
        at_once(THREADS, work)
    for size in sizes:
        x = arrays[size]
        product = f"bfloat16 {size}x{size} @ {size}x{size}"
        (choice,) = [choice for choice in interop._core.Tuning.choices(0) if choice["product"] == product]
        algorithm = interop.explain(interop.matmul, x, x).algorithm
        # No plan of before the choice is left.
        assert algorithm.startswith("tiled") if choice["backend"] == "tiled" else algorithm.endswith("tuned")


# ---- the GIL ----

FULL = """
    import time

    import cupy, torch, interop
    from interop._commands.bench.measure import torch_stream_in_cupy

    x, y = torch.ones(16, 16, device="cuda"), torch.ones(16, 16, device="cuda")
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    kernel = interop.kernel(source, "twice", grid=1, block=32) if CALL.startswith("kernel") else None
    call = eval("lambda: " + CALL)
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
        torch.cuda.synchronize()
        ended = []

        def wait(_):  # lets the GIL go as it sleeps, and takes it for what comes then
            time.sleep(0.3)
            ended.append(True)

        torch_stream_in_cupy(torch, cupy).launch_host_func(wait, None)
        for _ in range(5000):
            call()
        torch.cuda.synchronize()
    assert ended
"""


@pytest.mark.parametrize(
    "call",
    [
        "interop.add(x, y)",
        "interop.add(x, y, out=x)",
        "interop.matmul(x, y)",
        "interop.matmul(x, y, backend='cublas')",
        "kernel(x)",
    ],
)
def test_a_launch_into_a_full_stream_waits_without_the_gil(torch, cupy, nvrtc, call):
    # A stream holds some thousand launches: the rest wait for the host function, which waits for the GIL.
    run_apart(f"CALL = {call!r}\n" + textwrap.dedent(FULL), 120)


# ---- kernels compiled at run time ----


def test_threads_call_a_new_expression(torch):
    dtypes = (torch.float16, torch.float32, torch.int32)
    arrays = [torch.ones(1000, device="cuda", dtype=dtype) for dtype in dtypes]
    f = interop.elementwise("x * 3 + y * 2 - a")

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                for x in arrays[k % 3 :] + arrays[: k % 3]:
                    assert bool((f(x, x, 1) == 4).all())
                    assert bool((f(x, arrays[1], 1) == 4).all())

    at_once(THREADS, work)


REVERSE = """
extern "C" __global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float kept[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = kept[n - 1 - i];
}
"""


def test_threads_call_a_new_kernel_with_more_and_less_shared_memory(torch):
    reverse = interop.kernel(REVERSE, "reverse", grid=1)
    counts = [15000, 12500, 13500, 200]  # 60, 50 and 54 KB: more than every kernel may have

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            n = counts[k % 4]
            x, y = torch.arange(n, device="cuda", dtype=torch.float32), torch.zeros(n, device="cuda")
            for _ in range(200):
                reverse(x, y, n, shared=4 * n)
            assert torch.equal(y, x.flip(0))

    at_once(THREADS, work)
