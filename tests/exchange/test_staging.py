"""`execution="cuda"` on a driver that is played: what it is called for, in which order, and what is left behind.

What this driver is asked to do runs as late as CUDA allows: tests/helpers/working_driver.c. On a real one:
tests/gpu/test_execution.py, tests/gpu/test_staging.py.
"""

from __future__ import annotations

import pytest
from helpers import alone, c_functions, drivers

_SOURCE = r"""
#include <pthread.h>
#include <stddef.h>

void stand_in_queue(void*, void (*)(void*), const void*, size_t);

struct Sum { const float *a, *b; float *c, *d; int n; };
static void run_sum(void* arguments) {
  struct Sum* sum = arguments;
  for (int i = 0; i < sum->n; ++i) {
    const float total = sum->a[i] + sum->b[i];
    if (sum->d) sum->d[i] += total;
    sum->c[i] = total;
  }
}
void add(const float* a, const float* b, float* c, int n, void* stream) {
  struct Sum sum = {a, b, c, NULL, n};
  stand_in_queue(stream, run_sum, &sum, sizeof sum);
}
int add_and_collect(const float* a, const float* b, float* c, float* d, int n, int status, void* stream) {
  struct Sum sum = {a, b, c, d, n};
  stand_in_queue(stream, run_sum, &sum, sizeof sum);
  return status;
}

struct Pair { const float* a; float* b; int n; };
static void run_scan(void* arguments) {
  struct Pair* pair = arguments;
  for (int i = 1; i < pair->n; ++i) pair->b[i] = pair->a[i - 1] + 1;
}
void scan(const float* a, float* b, int n, void* stream) {
  struct Pair pair = {a, b, n};
  stand_in_queue(stream, run_scan, &pair, sizeof pair);
}
static void run_both(void* arguments) {
  struct Pair* pair = arguments;
  for (int i = 0; i < pair->n; ++i) ((float*)pair->a)[i] += 1;
  for (int i = 0; i < pair->n; ++i) pair->b[i] += 10;
}
void both(float* a, float* b, int n, void* stream) {
  struct Pair pair = {a, b, n};
  stand_in_queue(stream, run_both, &pair, sizeof pair);
}
void look(const float* a, int n, void* stream) { (void)a, (void)n, (void)stream; }

/* Comes back once as many threads are inside as were said. */
static pthread_barrier_t barrier;
void expect(int threads) { pthread_barrier_init(&barrier, NULL, threads); }
void add_together(const float* a, const float* b, float* c, int n, void* stream) {
  pthread_barrier_wait(&barrier);
  add(a, b, c, n, stream);
  pthread_barrier_wait(&barrier);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if drivers.BUILT_FOR == 0:
        pytest.skip("this build is for host arrays only")
    folder = tmp_path_factory.mktemp("driver")
    drivers.build_working(folder)
    c_functions.build(_SOURCE, folder / "libplayed.so", f"-L{folder}", "-l:libcuda.so.1")
    return folder


@pytest.fixture
def play(folder, tmp_path):
    """Run this code where the driver is played."""

    def play(code):
        return alone.run("from helpers.played_gpu import *\n" + code, tmp_path, LD_LIBRARY_PATH=str(folder))

    return play


K = 1024
MOST = K * K // 4  # elements of the largest array for which no memory is allocated
SENT = ["cuMemcpyHtoDAsync {bytes} pageable"] * 2
SENT_BY_HOST = ["cuMemcpyHtoDAsync {bytes} pinned"] * 2
FETCHED = ["cuMemcpyDtoHAsync {bytes} pageable", "cuStreamSynchronize"]
FETCHED_BY_HOST = ["cuMemcpyDtoHAsync {bytes} pinned", "cuStreamSynchronize"]
ALLOCATED = ["cuMemAllocFromPoolAsync {bytes}"]


@pytest.mark.parametrize(
    ("size", "calls"),
    [
        (4, SENT + FETCHED_BY_HOST),
        (96 * K, SENT + FETCHED_BY_HOST),
        (96 * K + 4, SENT_BY_HOST + FETCHED_BY_HOST),
        (384 * K, SENT_BY_HOST + FETCHED_BY_HOST),
        (384 * K + 4, SENT + FETCHED_BY_HOST),
        (512 * K, SENT + FETCHED_BY_HOST),
        (512 * K + 4, SENT + FETCHED),
        (K * K, SENT + FETCHED),
        (K * K + 4, (ALLOCATED + SENT[:1]) * 2 + ALLOCATED + FETCHED + ["cuMemFreeAsync"] * 3),
    ],
)
def test_the_driver_is_called_for_no_more_than_this(play, size, calls):
    """A copy of each array, and one wait. After the first call no memory is allocated for small arrays.

    Which of them pass through page-locked memory is a matter of speed alone.
    """
    said = play(f"""
x = np.arange({size // 4}, dtype="float32")
for _ in range(3):
    log()
    c = add(x, x, x.size, execution="cuda")
    said = log()
    assert (c == x + x).all()
print(said)
""")
    assert eval(said) == [line.format(bytes=size) for line in calls]


def test_what_would_be_copied_is_explained(play):
    """The C function takes device pointers, which the arrays are not yet; the copy of one with gaps has none."""
    said = play("""
x = np.ones((4, 4), "float32")
for a in (x, x[:, 1], x[::2]):
    add(a, a, a.size, execution="cuda")
    log()
    plan = interop.explain(add, a, a, a.size, execution="cuda")
    assert not any("Memcpy" in line for line in log())
    print(*plan.copies, sep="; ")
try:
    interop.explain(add, x.T, x.T, 16, execution="cuda")
except ValueError as error:
    print(error)
""")
    *copies, turned = said.splitlines()
    assert copies == [
        "; ".join(
            f"{name}: {way} cuda:0, {size} bytes, as execution= asks"
            for name, way in (("a", "to"), ("b", "to"), ("the result", "from"))
        )
        for size in (64, 16, 32)
    ]
    assert "a is float32 of shape (4, 4), strides (1, 4)" in turned


def test_arrays_that_share_memory_share_it_on_the_device(play):
    said = play("""
lib = interop.load(FOLDER / "libplayed.so",
                   "void scan(device const float* a, device float* b, int n, cudaStream_t stream);"
                   "void both(device float* a, device float* b, int n, cudaStream_t stream);")
for x in (np.zeros(5, "float32"), np.zeros(10, "float32")[::2]):
    lib.scan(x, x, 5, execution="cuda")
    print(x.tolist())
    x[:] = 0
    lib.both(x, x, 5, execution="cuda")
    print(x.tolist())
x = np.zeros(6, "float32")
for call in (lambda: lib.both(x[:4], x[2:], 4, execution="cuda"), lambda: lib.scan(x[1:], x[:5], 5, execution="cuda")):
    try:
        call()
    except ValueError as error:
        print(error)
print(x.tolist())
""")
    *values, first, second, untouched = said.splitlines()
    assert values == ["[0.0, 1.0, 2.0, 3.0, 4.0]", "[11.0, 11.0, 11.0, 11.0, 11.0]"] * 2
    assert first.startswith(
        "libplayed.both: a shares memory with b, and execution= would copy each by itself; accepted: "
    )
    assert second.startswith("libplayed.scan: b shares memory with a, and execution=")
    assert untouched == str([0.0] * 6)


def test_the_one_copy_of_an_array_that_is_given_twice_is_explained(play):
    said = play("""
lib = interop.load(FOLDER / "libplayed.so",
                   "void scan(device const float* a, device float* b, int n, cudaStream_t stream);")
x, y = np.zeros(5, "float32"), np.zeros(5, "float32")
for arrays in ((x, y), (x, x)):
    log()
    lib.scan(*arrays, 5, execution="cuda")
    made = [line.split()[0] for line in log() if "Memcpy" in line]
    print(made, *interop.explain(lib.scan, *arrays, 5, execution="cuda").copies, sep="; ")
""")
    there, back = "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"
    bytes_ = "cuda:0, 20 bytes, as execution= asks"
    assert said.splitlines() == [
        f"{[there, there, back]}; a: to {bytes_}; b: to {bytes_}; b: from {bytes_}",
        f"{[there, back]}; a: to {bytes_}; a: from {bytes_}",
    ]


def test_an_error_waits_for_copies_of_large_arrays(play):
    """The first result's memory is page-locked: a copy to it that is queued still runs after the call."""
    assert play("""
n = 400_000
small = np.ones(4, "float32")
add(small, small, 4, execution="cuda")
driver.cuMemHostAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
pinned = ctypes.c_void_p()
assert driver.cuMemHostAlloc(ctypes.byref(pinned), 4 * n, 0) == 0
c = np.frombuffer((ctypes.c_float * n).from_address(pinned.value), "float32")
d, x = np.full(n, 7, "float32"), np.ones(n, "float32")
fail("cuMemcpyDtoHAsync", 2, 1)
try:
    lib.add_and_collect(x, x, c, d, n, 0, execution="cuda")
except interop.CudaError:
    c[:] = 5
add(small, small, 4, execution="cuda")
print(c.min(), c.max())
""").split() == ["5.0", "5.0"]


def test_several_results_are_waited_for_once(play):
    said = play("""
x, c, d = np.ones(8, "float32"), np.zeros(8, "float32"), np.zeros(8, "float32")
lib.add_and_collect(x, x, c, d, 8, 0, execution="cuda")
print([line for line in log() if "DtoH" in line or "Synchronize" in line])
assert (c == 2).all() and (d == 2).all()
""")
    assert eval(said) == ["cuMemcpyDtoHAsync 32 pinned"] * 2 + ["cuStreamSynchronize"]


def test_arrays_of_every_size_are_right(play):
    """Round what is small, and beyond what there is room for at once."""
    play(f"""
for count in (0, 1, 63, 64, 65, 2048, 24576, 24577, 98304, 98305, 131072, 131073, {MOST}, {MOST} + 1, 9 << 20):
    for other in (count, min(count, 65)):
        x, y = np.arange(count, dtype="float32"), np.full(count, 2, "float32")
        c, d = np.zeros(count, "float32"), np.ones(other, "float32")
        for k in range(1, 3):
            lib.add_and_collect(x, y, c, d, other, 0, execution="cuda")
            assert (c[:other] == (x + y)[:other]).all(), count
            assert (d == 1 + k * (x + y)[:other]).all(), count
        assert (add(x, y, count, execution="cuda") == x + y).all(), count
""")


def test_arrays_with_gaps_are_right(play):
    play("""
x, y = np.arange(300, dtype="float32")[::3], np.arange(100, dtype="float32")
base = np.zeros(200, "float32")
lib.add(x, y, base[::2], 100, execution="cuda")
assert (base[::2] == x + y).all()
assert (base[1::2] == 0).all()
one = np.broadcast_to(np.float32(5), 100)
assert (add(one, y, 100, execution="cuda") == 5 + y).all()
""")


def test_what_is_changed_after_the_call_is_not_read(play):
    play("""
x, y = np.ones(1000, "float32"), np.ones(1000, "float32")
c = add(x, y, 1000, execution="cuda")
x[:] = y[:] = 7
d = add(x, y, 1000, execution="cuda")
assert (c == 2).all()
assert (d == 14).all()
""")


def test_calls_at_once_have_memory_of_their_own(play):
    """More than there are blocks for: the others have copies of their own."""
    play("""
import threading

def work(k):
    x = np.full(count, k, "float32")
    results[k] = together(x, x, count, execution="cuda")

lib.expect(12)
for count in (1000, 40_000, 100_000):
    results = {}
    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(12):
        assert (results[k] == 2 * k).all(), k
    assert pinned_bytes() == 8 * (4 << 20)
""")


def test_a_thread_that_ends_leaves_its_block_to_the_next(play):
    play("""
import threading

x = np.ones(10, "float32")
for _ in range(20):
    thread = threading.Thread(target=lambda: add(x, x, 10, execution="cuda"))
    thread.start()
    thread.join()
assert pinned_bytes() == 4 << 20
""")


@pytest.mark.parametrize("count", [1000, 3 * MOST])
def test_a_copy_or_wait_that_fails_leaves_results_as_they_were(play, count):
    said = play(f"""
x = np.ones({count}, "float32")
c, d = np.full({count}, 7, "float32"), np.full({count}, 7, "float32")
for name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize"):
    if name == "cuStreamSynchronize" and {count} > {MOST}:
        continue  # what is copied without the block is there before the host waits
    fail(name, 2)
    try:
        lib.add_and_collect(x, x, c, d, {count}, 0, execution="cuda")
    except interop.CudaError as error:
        print(error)
    assert (c == 7).all() and (d == 7).all(), name
    assert (add(x, x, {count}, execution="cuda") == 2).all()
""")
    lines = said.splitlines()
    assert len(lines) == (3 if count == 1000 else 2)
    assert all(line.startswith("libplayed.add_and_collect: execution='cuda': ") for line in lines), lines


def test_an_error_before_the_launch_waits_for_what_was_queued(play):
    """The next call takes the block, perhaps on another stream."""
    said = play("""
x = np.ones(1000, "float32")
add(x, x, 1000, execution="cuda")
log()
try:
    add(x, x.astype("int32"), 1000, execution="cuda")
except TypeError as error:
    print(error)
    print(log())
assert (add(x, x, 1000, execution="cuda") == 2).all()
assert pinned_bytes() == 4 << 20
""")
    error, calls = said.splitlines()
    assert "b is int32" in error
    assert eval(calls) == ["cuMemcpyHtoDAsync 4000 pageable"] * 2 + ["cuStreamSynchronize"]


def test_a_function_that_fails_has_written_what_it_wrote(play):
    said = play("""
x, c, d = np.ones(8, "float32"), np.zeros(8, "float32"), np.zeros(8, "float32")
try:
    lib.add_and_collect(x, x, c, d, 8, 2, execution="cuda")
except interop.CudaError as error:
    print(error)
assert (c == 2).all()
""")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said


def test_a_function_without_results_is_waited_for(play):
    """So that an error of its kernel is its own."""
    said = play("""
x = np.ones(8, "float32")
lib.look(x, 8, execution="cuda")
log()
lib.look(x, 8, execution="cuda")
print(log())
""")
    assert eval(said) == ["cuMemcpyHtoDAsync 32 pageable", "cuStreamSynchronize"]


@pytest.mark.parametrize("refused", ["cuMemHostAlloc", "cuMemAllocAsync"])
def test_without_memory_for_a_block_arrays_have_copies_of_their_own(play, refused):
    said = play(f"""
x = np.ones(40_000, "float32")
fail("{refused}", 2)
assert (add(x, x, 40_000, execution="cuda") == 2).all()
print([line for line in log() if "cuMemcpy" in line])
assert pinned_bytes() == 0
assert (add(x, x, 40_000, execution="cuda") == 2).all()
assert pinned_bytes() == 4 << 20
""")
    assert all("pageable" in line for line in eval(said))


def test_a_forked_child_is_refused(play):
    """What the parent keeps is no memory of the child's."""
    said = play("""
import os

x = np.ones(1000, "float32")
add(x, x, 1000, execution="cuda")
if os.fork() == 0:
    try:
        add(x, x, 1000, execution="cuda")
    except interop.CudaError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
assert (add(x, x, 1000, execution="cuda") == 2).all()
""")
    assert "CUDA_ERROR_NOT_INITIALIZED" in said
