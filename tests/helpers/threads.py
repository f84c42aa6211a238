"""Threads that start at once and are switched often, and moments at which other work comes in for certain."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

THREADS = 8  # to let loose at once
_INTERVAL = 1e-6  # seconds between switches: at every chance


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(0)`, `work(1)`, ... each in a thread, from one moment on; return the results, or raise the first error.

    The threads are switched at every chance.
    """
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            barrier.wait()
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_INTERVAL)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def meanwhile(event: str, name: str, act: Callable[[], Any], times: int = 1) -> Iterator[None]:
    """Run `act` in the block at the first `event` ("call" or "return") of the Python function `name`, and then no more.

    Whatever calls Python lets other threads in, and they may do anything then. This is that, at a chosen moment. The
    block fails if the moment does not come.
    """
    left = times

    def profile(frame: Any, happened: str, _: Any) -> None:
        nonlocal left
        if happened == event and frame.f_code.co_name == name and left > 0:
            left -= 1
            act()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert left == 0, f"no {event} of {name}"


def run_apart(code: str, seconds: float = 300) -> str:
    """Run `code` in a process of its own, which may crash or stop for good, and return what it prints.

    It finds `helpers` and what they import.
    """
    tests = Path(__file__).resolve().parent.parent
    program = f"import sys\nsys.path.append({str(tests)!r})\n{textwrap.dedent(code)}"
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(os.environ))
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout
