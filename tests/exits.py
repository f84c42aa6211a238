"""Many exits with threads inside calls: what shows only once in a hundred of them.

    python tests/exits.py                        a thousand exits, over all ways to end and all libraries on the host
    python tests/exits.py --count 100 --parallel 4
    python tests/exits.py --way "logging" --library jax --count 50
    python tests/exits.py --control              the same threads with NumPy's functions alone

Each exit is a process of its own. It starts threads that call `interop` without a pause, and ends in the middle of
that. What fails: a death by a signal, a hang, an exit status or an output that is not the expected one, and a process
that lives for more than a second longer, after its last statement, than the slowest of the same without `interop`. (On
a busy machine raise that by --seconds.) The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes.util
import importlib.util
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np

Call = Callable[[], Any]
LIBRARIES = ("numpy", "torch", "jax")
HANG = 60  # seconds after which a process hangs
SHUTS_DOWN = "the interpreter is shutting down"  # what a thread may be told

# ---- what the threads call ----


class Producer:
    """An array of no library, whose Python code lets other threads run."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **_: Any) -> Any:
        time.sleep(0.001)
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        time.sleep(0.001)
        return 1, 0


def refused(call: Call, error: type[Exception]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError("no error")


def arrays_of(library: str, n: int) -> tuple[Any, Any]:
    a = np.arange(n * n, dtype="float32").reshape(n, n)
    if library == "torch":
        import torch

        return torch.from_numpy(a), torch.eye(n)
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(a), jnp.eye(n)
    return a, np.eye(n, dtype="float32")


def calls_of(library: str) -> dict[str, Call]:
    """Return calls of `interop` with the arrays of a library, by name."""
    import interop

    a, b = arrays_of(library, 32)
    wide, also = arrays_of(library, 400)
    host = np.ones(3)
    expression = interop.elementwise("x * y + 1")

    def tuned() -> None:
        with interop.autotune():
            interop.matmul(a, b)

    calls: dict[str, Call] = {
        "add": lambda: interop.add(a, b),
        "wide add": lambda: interop.add(wide, also),
        "matmul": lambda: interop.matmul(a, b),
        "wide matmul": lambda: interop.matmul(wide, also),
        "a fused matmul": lambda: interop.matmul(a, b, alpha=2, epilogue="relu"),
        "an expression": lambda: expression(a, b),
        "an error of shapes": lambda: refused(lambda: interop.add(a, np.ones(3)), Exception),
        "an error of types": lambda: refused(lambda: interop.add(a, "x"), TypeError),
        "a new expression": lambda: interop.elementwise("x * 2 - y")(a, b),
        "a producer": lambda: interop.add(Producer(host), host),
        "exports": lambda: np.from_dlpack(interop.asarray(host)) is memoryview(interop.asarray(host)),
        "autotune": tuned,
    }
    if library != "jax":
        out = arrays_of(library, 32)[1]
        calls["asarray"] = lambda: interop.asarray(a)
        calls["convert"] = lambda: interop.convert(interop.asarray(a), library)
        calls["explain"] = lambda: interop.explain(interop.matmul, a, b)
        calls["out"] = lambda: interop.multiply(a, b, out=out)
    path = ctypes.util.find_library("c")
    if path:
        c = interop.load(path, "int abs(int x); unsigned int sleep(unsigned int seconds);")
        calls["a C function"] = lambda: c.abs(-1)
        calls["a long C function"] = lambda: c.sleep(20)
    return calls


def numpy_calls(library: str) -> dict[str, Call]:
    """Return calls without `interop`, for the control; the library is loaded as well."""
    arrays_of(library, 2)
    a, b = arrays_of("numpy", 32)
    wide, also = arrays_of("numpy", 400)
    return {
        "add": lambda: np.add(a, b),
        "wide add": lambda: np.add(wide, also),
        "matmul": lambda: np.matmul(a, b),
        "wide matmul": lambda: np.matmul(wide, also),
        "a producer": lambda: time.sleep(0.004),
        "a long C function": lambda: time.sleep(20),
    }


def loop(call: Call) -> None:
    """Call for ever, as long as the interpreter lets this thread."""
    try:
        while True:
            call()
    except RuntimeError as error:
        if SHUTS_DOWN not in str(error):
            raise


def some(call: Call, count: int = 3) -> None:
    try:
        for _ in range(count):
            call()
    except RuntimeError as error:
        if SHUTS_DOWN not in str(error):
            raise


# ---- ways to end ----
# Each is run in the main thread, while daemon threads are in `loop`, and returns where the process is to end. It is
# given calls that finish soon.


def end(_: list[Call]) -> None:
    pass


def exit_(_: list[Call]) -> None:
    say_end()
    sys.exit(3)


def exception(_: list[Call]) -> None:
    say_end()
    raise ValueError("the end")


def exit_in_a_thread(calls: list[Call]) -> None:
    def work() -> None:
        some(calls[0], 3)
        sys.exit(5)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def a_handler_that_joins(calls: list[Call]) -> None:
    def work() -> None:
        early.wait()
        some(calls[0])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    joined.append(thread)


def a_handler_that_calls(calls: list[Call]) -> None:
    at_the_end.extend(calls)


def logging_(calls: list[Call]) -> None:
    class Handler(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:  # under the handler's lock, for which logging.shutdown waits
            some(calls[0], 1)

    logger = logging.getLogger("exits")
    logger.addHandler(Handler())
    logger.propagate = False
    for _ in range(3):
        threading.Thread(target=loop, args=(lambda: logger.warning("x"),), daemon=True).start()


def futures(calls: list[Call]) -> None:
    executor = ThreadPoolExecutor(3)
    made = [executor.submit(some, call) for call in calls]
    made[0].add_done_callback(lambda future: future.result())


def a_pool(calls: list[Call]) -> None:
    pool = ThreadPool(3)
    for call in calls:
        pool.apply_async(some, (call,))
    kept.append(pool)


def plain_threads(calls: list[Call]) -> None:
    for call in calls:
        threading.Thread(target=some, args=(call,)).start()


def an_interrupt(calls: list[Call]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore
    try:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            calls[0]()
    except KeyboardInterrupt:
        pass


def a_fork_in_a_thread(calls: list[Call]) -> None:
    def work() -> None:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, RuntimeWarning):  # Python 3.12, and JAX, warn of what this is about
                warnings.simplefilter("ignore", category)
            child = os.fork()
        if child == 0:
            signal.alarm(30)
            if library == "numpy":  # what threads of torch and JAX held is held for ever in the child
                some(calls[0])
            os._exit(0)
        status.append(os.waitpid(child, 0)[1])

    status: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert status == [0], status


def exit_at_once(_: list[Call]) -> None:
    say_end()
    sys.stdout.flush()
    os._exit(4)


WAYS: dict[str, tuple[Callable[[list[Call]], None], int]] = {  # with the exit status
    "the end": (end, 0),
    "sys.exit": (exit_, 3),
    "an exception": (exception, 1),
    "sys.exit in a thread": (exit_in_a_thread, 0),
    "a handler that joins": (a_handler_that_joins, 0),
    "a handler that calls": (a_handler_that_calls, 0),
    "logging": (logging_, 0),
    "futures": (futures, 0),
    "a pool": (a_pool, 0),
    "plain threads": (plain_threads, 0),
    "an interrupt": (an_interrupt, 0),
    "a fork in a thread": (a_fork_in_a_thread, 0),
    "os._exit": (exit_at_once, 4),
}

# ---- the process that ends ----

library = "numpy"
early = threading.Event()
joined: list[threading.Thread] = []
at_the_end: list[Call] = []
kept: list[Any] = []


def say_end() -> None:
    print(time.monotonic(), flush=True)


def at_exit() -> None:
    """Run after all that `interop` has at exit: this is registered before it is imported."""
    early.set()
    for thread in joined:
        thread.join()
    for call in at_the_end:
        call()


def child(way: str, seed: int, control: bool) -> None:
    atexit.register(at_exit)
    draw = random.Random(seed)
    calls = numpy_calls(library) if control else calls_of(library)
    soon = [call for name, call in calls.items() if "long" not in name]
    draw.shuffle(soon)
    chosen = [draw.choice(list(calls.values())) for _ in range(draw.choice([1, 3, 5]))]
    for call in {*chosen, *soon[:4]} & {*soon}:
        call()  # once: what is loaded and compiled at first takes long, and with JAX longer than an exit waits
    for call in chosen:
        threading.Thread(target=loop, args=(call,), daemon=True).start()
    time.sleep(draw.choice([0, 0.005, 0.05]))
    WAYS[way][0](soon[:4])
    say_end()


# ---- the exits ----


def run(way: str, name: str, seed: int, control: bool = False) -> tuple[float, str]:
    """Let one process end; return the seconds that it took, and what was wrong, "" where nothing was."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--child", way, "--library", name, "--seed", str(seed)]
    # NumPy's BLAS hangs where the process ends, or forks, while several threads of its own are at work.
    threads = {"OPENBLAS_NUM_THREADS": "1"} if control or way == "a fork in a thread" else {}
    if control:
        command.append("--control")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, env=os.environ | threads)
    except subprocess.TimeoutExpired:
        return HANG, "a hang"
    gone = time.monotonic()
    if done.returncode != WAYS[way][1]:
        return 0, f"exit status {done.returncode}: {done.stderr.strip()[-1500:]}"
    if (way != "an exception" and done.stderr) or not done.stdout:
        return 0, f"it says {done.stdout!r} and {done.stderr.strip()[-1500:]!r}"
    return gone - float(done.stdout.split()[0]), ""


def exits(ways: list[str], names: list[str], count: int, parallel: int, seconds: float, control: bool) -> int:
    limits = {}
    for name in names:
        for way in ways:
            limits[way, name] = max(run(way, name, seed, control=True)[0] for seed in range(2)) + seconds
    cases = [(way, name) for name in names for way in ways]
    weights = [4 if name == "numpy" else 1 for _, name in cases]  # it starts ten times as fast
    drawn = random.Random(0).choices(cases, weights, k=count)
    faults: Counter[str] = Counter()
    times = defaultdict(list)
    with ThreadPoolExecutor(parallel) as pool:
        results = pool.map(lambda i: run(*drawn[i], i, control), range(count))
        for i, (case, (took, fault)) in enumerate(zip(drawn, results, strict=True)):
            times[case].append(took)
            if not fault and took > limits[case]:
                fault = f"it took {took:.2f} s, and {limits[case]:.2f} s are allowed"
            if fault:
                faults[f"{case[0]}, {case[1]}"] += 1
                print(f"{case[0]}, {case[1]}, --seed {i}: {fault}", flush=True)
    for (way, name), took in sorted(times.items()):
        print(f"{way:<22}{name:<8}{len(took):>5} exits, the longest {max(took):.2f} s, of {limits[way, name]:.2f} s")
    print(f"{count} exits, {faults.total()} of them wrong")
    return int(bool(faults))


def main(arguments: list[str]) -> int:
    global library  # of the child
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=1, help="allowed beyond the control")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; all")
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="may be repeated; all that are here")
    parser.add_argument("--control", action="store_true", help="with NumPy's functions alone")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        library = options.library[0]
        child(options.child, options.seed, options.control)
        return 0
    names = options.library or [name for name in LIBRARIES if importlib.util.find_spec(name)]
    ways = options.way or list(WAYS)
    return exits(ways, names, options.count, options.parallel, options.seconds, options.control)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
