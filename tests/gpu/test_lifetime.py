"""Who keeps device memory, and for how long: inputs until the work is done, outputs as long as anybody looks at them.

And that there is no more of it than the result: no operand is copied, whatever its layout. These tests watch the card's
time and memory, and want it alone. What they show without either is in test_ownership.py and test_allocators.py.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from helpers import device, libraries, products
from helpers.device import Side, delay, eventually, fill, free_bytes, is_busy, synchronize
from helpers.dlpack import Cai, Fake, Producer
from helpers.libraries import on_gpu
from helpers.memory import RESULT, VIEWS, WORKSPACE, big_operand, release_pools
from helpers.races import ONES, N

import interop


def warm(*arrays, **options):
    interop.matmul(*arrays, **options)
    synchronize()
    assert eventually(lambda: interop._core.held_count() == 0)


# ---- inputs live until the work that reads them is done ----


def test_an_unknown_producers_memory_is_held_until_the_work_is_done(cupy):
    fake = Fake(cupy.ones((N, N), "float32"))
    warm(fake, fake)
    assert fake.balanced
    delay(device.LEGACY)
    c = interop.matmul(fake, fake)
    assert is_busy(device.LEGACY)
    assert fake.exported == fake.deleted + 2
    assert interop._core.held_count() == 2
    synchronize()
    assert eventually(lambda: fake.balanced)
    assert (cupy.asarray(c) == N).all()


def test_held_producers_live_without_the_callers_reference(cupy):
    deleted = []

    class Owner(Fake):
        def __del__(self):
            deleted.append(is_busy(device.LEGACY))

    memory = cupy.ones((N, N), "float32")
    warm(Fake(memory), Fake(memory))
    delay(device.LEGACY)
    interop.matmul(Owner(memory), memory)
    assert deleted == []
    synchronize()
    assert eventually(lambda: deleted)
    assert deleted == [False]


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_unknown_memory_is_held_on_the_leads_stream(name):
    side = Side(on_gpu(name))
    a, fake = side.make(ONES), Fake(on_gpu("cupy").make(ONES))
    with side.current():
        warm(a, fake)
        delay(side.handle)
        interop.matmul(a, fake)
        assert is_busy(side.handle)
        assert fake.exported == fake.deleted + 1
    synchronize()
    assert eventually(lambda: fake.balanced)


@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_inputs_may_be_deleted_right_after_the_call(name):
    side = Side(on_gpu(name))
    library = side.library
    with side.current():
        warm(side.make(ONES), side.make(ONES))
        a, b = side.make(ONES), side.make(ONES)
        delay(side.handle)
        c = interop.matmul(a, b)
        del a, b
        junk = [library.make(np.full((N, N), 7, "float32")) for _ in range(16)]
    synchronize()
    assert (library.to_numpy(c) == N).all()
    del junk


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_inputs_on_a_given_stream_are_held_from_their_librarys_allocator(name):
    """The library would hand their memory out again, for its own stream, which does not wait for the given one."""
    side = Side(on_gpu(name))
    given = device.new_stream()
    with side.current():
        warm(side.make(ONES), side.make(ONES), stream=given)
        a, b = side.make(ONES), side.make(ONES)
        pointers = {side.library.pointer(a), side.library.pointer(b)}
        delay(given)
        c = interop.matmul(a, b, stream=given)
        del a, b
        others = [side.library.module.empty((N, N), dtype=side.library.module.float32, **_on(side)) for _ in range(16)]
        for other in others:
            fill(side.library.pointer(other), 7, N * N, side.handle)
        assert is_busy(given)
        assert not pointers & {side.library.pointer(other) for other in others}
    synchronize()
    assert (side.library.to_numpy(c) == N).all()


def _on(side):
    return {"device": "cuda"} if side.library.name == "torch" else {}


@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_jax_operands_may_be_deleted_right_after_the_call(name):
    """XLA knows nothing of our stream: without a hold it would give the memory to the next array."""
    side, jax = Side(on_gpu(name)), on_gpu("jax")
    big = np.ones((2048, 2048), "float32")
    with side.current():
        a = side.make(big)
        warm(a, jax.make(big))
        jax.module.numpy.full((2048, 2048), 7.0, "float32").block_until_ready()  # compiled
        x = jax.make(big)
        x.block_until_ready()
        delay(side.handle)
        c = interop.matmul(a, x)
        del x
        others = [jax.module.numpy.full((2048, 2048), 7.0, "float32").block_until_ready() for _ in range(8)]
        assert name == "numba" or is_busy(side.handle)
    synchronize()
    assert (side.library.to_numpy(c) == 2048).all()
    del others


def test_pinned_operands_are_held_until_the_work_is_done(torch):
    """Pinned memory comes from an allocator that does not order itself on the stream."""
    side = Side(on_gpu("torch"))
    a = side.make(ONES)
    with side.current():
        warm(a, torch.ones(N, N).pin_memory())
        cached = [torch.ones(N, N).pin_memory() for _ in range(4)]
        pinned, sevens = cached.pop(), torch.full((N, N), 7.0)
        del cached  # three blocks that torch has at hand, and a fourth only if it takes that of `pinned`
        pointer = pinned.data_ptr()
        delay(side.handle)
        c = interop.matmul(a, pinned)
        del pinned
        others = [sevens.pin_memory() for _ in range(3)]
        assert is_busy(side.handle)
        assert pointer not in [other.data_ptr() for other in others]
    synchronize()
    assert (c == N).all()


def test_the_host_does_not_wait_for_what_is_held(cupy):
    fakes = [Fake(cupy.ones((N, N), "float32")) for _ in range(20)]
    warm(fakes[0], fakes[0])
    delay(device.LEGACY)
    for fake in fakes:
        interop.matmul(fake, fake)
    assert is_busy(device.LEGACY)
    synchronize()
    assert eventually(lambda: all(fake.balanced for fake in fakes))


EXIT = {
    "held inputs": """
        fake = Fake(cupy.ones((64, 64), "float32"))
        interop.matmul(fake, fake)
        delay(1, 1500)
        interop.matmul(fake, fake)
    """,
    "held behind more than the bounded wait": """
        fake = Fake(cupy.ones((64, 64), "float32"))
        delay(1, 8000)
        interop.matmul(fake, fake)
    """,
    "living results": """
        x = cupy.ones((64, 64), "float32")
        results = [interop.matmul(Cai(x), Cai(x)) for _ in range(4)]
        capsule = results[0].__dlpack__()
        taken = torch.from_dlpack(results[1])
        import builtins
        builtins.kept = results, capsule, taken
    """,
    "results of an ended thread": """
        import threading
        kept = []
        def work():
            with torch.cuda.stream(torch.cuda.Stream()):
                a = torch.ones(64, 64, device="cuda")
                kept.append(interop.matmul(a, a))
                kept.append(interop.matmul(Cai(cupy.ones((4, 4))), Cai(cupy.ones((4, 4)))))
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    """,
    "jax": """
        import jax
        x = jax.numpy.ones((64, 64), "float32")
        y = interop.matmul(x, x)
        z = interop.matmul(cupy.ones((64, 64), "float32"), x)
        w = interop.matmul(x, cupy.ones((64, 64), "float32"))
    """,
}


@pytest.mark.parametrize("what", EXIT)
def test_the_process_ends_well(tmp_path, torch, cupy, what):
    if what == "jax":
        on_gpu("jax")
    (tmp_path / "helpers").symlink_to(libraries.__file__.rpartition("/")[0])
    head = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import cupy, torch, interop
        from helpers.device import delay
        from helpers.dlpack import Cai, Fake
    """
    code = textwrap.dedent(head) + textwrap.dedent(EXIT[what]) + "print('done')\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "Error" not in done.stderr


def test_a_forked_child_starts_clean(tmp_path, cupy):
    (tmp_path / "helpers").symlink_to(libraries.__file__.rpartition("/")[0])
    code = """
        import os, sys, warnings
        sys.path.insert(0, sys.argv[1])
        import cupy, numpy, interop
        from helpers.dlpack import Fake
        from helpers.device import delay
        fake = Fake(cupy.ones((64, 64), "float32"))
        interop.matmul(fake, fake)
        delay(1, 1000)
        interop.matmul(fake, fake)
        warnings.simplefilter("ignore")  # of forking beside threads
        child = os.fork()
        if child == 0:
            assert interop._core.held_count() == 0
            x = numpy.eye(2)
            assert (interop.matmul(x, x) == x).all()
            interop._core.close(0.8)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert fake.exported == fake.deleted + 2
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_cycle_is_collected_once_the_gpu_has_finished(cupy):
    class Owner(Producer):
        pass

    def is_whole():  # weak references are cleared before the collector finds that it must wait
        return any(type(x) is Owner and hasattr(x, "x") for x in gc.get_objects())

    owner = Owner(cupy.ones((N, N), "float32"))
    owner.view = interop.asarray(owner)
    synchronize()
    delay(device.LEGACY, device.COLLECTION_MS)
    del owner
    gc.collect()
    assert is_busy(device.LEGACY)
    assert is_whole()  # its memory may be read until then: an owner that is there, but emptied, does not keep it
    synchronize()
    assert eventually(lambda: interop._core.held_count() == 0)
    gc.collect()  # which hands the owner to the thread that lets it go
    assert eventually(lambda: interop._core.held_count() == 0)
    assert not is_whole()


@contextlib.contextmanager
def counting_references(*objects):
    gc.collect()
    before = [sys.getrefcount(x) for x in objects]
    yield
    synchronize()
    assert eventually(lambda: interop._core.held_count() == 0)
    gc.collect()
    assert [sys.getrefcount(x) for x in objects] == before


def test_calls_keep_no_reference(device_library):
    a, b = device_library.make(ONES), device_library.make(ONES)
    warm(a, b)
    with counting_references(a, b):
        for _ in range(50):
            interop.matmul(a, b)
            if device_library.writable:
                interop.matmul(a, a, out=b)
            with pytest.raises(ValueError, match="backend"):
                interop.matmul(a, b, backend="none")


# ---- results ----


def test_memory_of_dropped_results_waits_for_its_readers(cupy, torch):
    """The array is dropped while a kernel of its consumer still has to read it."""
    x, sevens = cupy.ones((N, N), "float32"), cupy.full((N, N), 7, "float32")
    synchronize()
    reader = Side(on_gpu("torch"))
    with reader.current():
        warm(Cai(x), Cai(x))
        c = interop.matmul(Cai(x), Cai(x))
        tensor = torch.from_dlpack(c)
        delay(reader.handle)
        seen = tensor.clone()
        del c, tensor
        time.sleep(0.02)  # a free that waited for no reader is done by now, and its memory comes next
        junk = [interop.matmul(Cai(sevens), Cai(x)) for _ in range(8)]
        assert is_busy(reader.handle)
    synchronize()
    assert (seen == N).all()
    del junk


def test_memory_of_dropped_results_waits_for_interops_own_stream(cupy):
    """The array is dropped while a call on interop's own stream still has to read it."""
    x = cupy.ones((N, N), "float32")
    sevens = x * 7
    synchronize()
    c = interop.matmul(Cai(x), Cai(x))
    d = interop.matmul(c, c)
    warm(d, d)
    delay(d.stream)
    e = interop.matmul(d, d)
    del d
    time.sleep(0.02)  # as above
    junk = [interop.matmul(Cai(sevens), Cai(x)) for _ in range(8)]
    assert is_busy(e.stream)
    synchronize()
    assert (cupy.from_dlpack(e) == float(N**7)).all()
    del junk


@pytest.mark.parametrize("kind", ["versioned", "unversioned"])
def test_capsules_that_nobody_consumes_leak_nothing(cupy, kind):
    x = cupy.ones((1024, 1024), "float32")
    version = {"max_version": (1, 3)} if kind == "versioned" else {}
    interop.matmul(Cai(x), Cai(x)).__dlpack__(**version)
    synchronize()
    pool = interop.memory_pool()
    before = pool.used_bytes
    for _ in range(200):  # of 4 MiB each
        interop.matmul(Cai(x), Cai(x)).__dlpack__(**version)
    gc.collect()
    assert eventually(lambda: interop._core.held_count() == 0)
    synchronize()
    interop.matmul(Cai(x), Cai(x))  # lets pending frees go on
    assert eventually(lambda: pool.used_bytes - before < 128 << 20)


# ---- extra device memory: the result, and the workspace that the caller's own allocator gives ----


@pytest.mark.parametrize("backend", [None, "tiled"])
@pytest.mark.parametrize("layout", VIEWS)
def test_torch_gives_out_the_result_alone(layout, backend):
    if layout in products.NEGATIVE:
        return  # torch has no such tensors
    library = on_gpu("torch")
    cuda = library.module.cuda
    a, b = big_operand(library, layout), big_operand(library, "compact")
    interop.matmul(a, b, backend=backend)  # loads and plans, outside of what is measured
    release_pools(library)
    cuda.reset_peak_memory_stats()
    before, free = cuda.memory_allocated(), free_bytes()
    c = interop.matmul(a, b, backend=backend)
    peak = cuda.max_memory_allocated() - before
    assert RESULT <= peak <= RESULT + (0 if backend == "tiled" else WORKSPACE)
    # Nor beside torch's allocator: its own segments account for what is gone from the card.
    assert free - free_bytes() <= RESULT + 2 * WORKSPACE
    assert cuda.memory_allocated() - before == RESULT
    del c


@pytest.mark.parametrize("backend", [None, "tiled"])
@pytest.mark.parametrize("layout", VIEWS)
def test_cupy_gives_out_the_result_alone(cupy, layout, backend):
    asked = []

    class Recorder(cupy.cuda.MemoryHook):
        name = "Recorder"

        def malloc_preprocess(self, device_id, size, mem_size):
            asked.append(size)

    library = on_gpu("cupy")
    a, b = big_operand(library, layout), big_operand(library, "compact")
    interop.matmul(a, b, backend=backend)  # loads and plans, outside of what is measured
    synchronize()
    free = free_bytes()
    with Recorder():
        c = interop.matmul(a, b, backend=backend)
    assert free - free_bytes() <= RESULT + 2 * WORKSPACE
    assert asked.count(RESULT) == 1
    rest = sum(asked) - RESULT
    assert rest <= (0 if backend == "tiled" else WORKSPACE)
    del c


@pytest.mark.parametrize("layout", VIEWS)
def test_the_card_gives_out_the_result_alone(device_view_library, layout):
    """Seen from the driver, while the call still waits for its turn: whatever it took is still taken."""
    library = device_view_library
    if layout in products.NEGATIVE and not library.negative:
        return
    a, b = big_operand(library, layout), big_operand(library, "compact")
    interop.matmul(a, b, backend="tiled")
    release_pools(library)
    before = free_bytes()
    delay(device.LEGACY)
    c = interop.matmul(a, b, backend="tiled")
    assert before - free_bytes() <= RESULT + (32 << 20)  # the allocators round up
    synchronize()
    del c
    release_pools(library)


@pytest.mark.parametrize("layout", ["compact", "transposed", "sliced"])
def test_out_takes_no_memory_at_all(device_view_library, layout):
    library = device_view_library
    a, out = big_operand(library, "compact"), big_operand(library, layout)
    interop.matmul(a, a, out=out, backend="tiled")
    release_pools(library)
    before = free_bytes()
    delay(device.LEGACY)
    interop.matmul(a, a, out=out, backend="tiled")
    assert before - free_bytes() < 4 << 20
    synchronize()
