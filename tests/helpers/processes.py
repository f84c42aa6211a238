"""Another process, which runs what it is told: for arrays that two processes have."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Self

import numpy as np

import interop

_TESTS = str(Path(__file__).resolve().parents[1])
_TIMEOUT = 120  # seconds, for all that is done there


class OtherError(Exception):
    """What was raised there, with its traceback. `kind` is the name of its type."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Other:
    """A new process, which ends with the `with` block: quietly, and well, unless it was killed."""

    def __init__(self, **environment: str) -> None:
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _TESTS]))
        env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path, **environment}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-c", "from helpers import processes; processes.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        self._watchdog = threading.Timer(_TIMEOUT, self._process.kill)
        self._watchdog.start()
        self.pid = self._process.pid
        self._was_killed = False

    def run(self, code: str, **names: Any) -> Any:
        """Run the code with these names there, and those of earlier code; return what it gave `result`, if anything."""
        pickle.dump((code, names), self._process.stdin)
        self._process.stdin.flush()
        is_right, value = pickle.load(self._process.stdout)
        if not is_right:
            raise OtherError(*value)
        return value

    def kill(self) -> None:
        self._was_killed = True
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        status = self._process.wait()
        self._process.stdout.close()
        self._watchdog.cancel()
        assert self._was_killed or error[0] is not None or status == 0, f"the other process ended with {status}"


def shared_array(values: Any, dtype: str | None = None) -> interop.Array:
    """Return an array on the host that can be shared, with these values."""
    values = np.asarray(values)
    array = interop.empty(values.shape, dtype or values.dtype, memory="host", shared=True)
    array[...] = interop.asarray(values).astype(array.dtype)
    return array


def entries(folder: str) -> int:
    """Return how many files a folder has."""
    return len(list(Path(folder).iterdir()))


def serve() -> None:
    """What it runs."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    names: dict[str, Any] = {}
    while True:
        try:
            code, given = pickle.load(stdin)
        except EOFError:
            return
        names.update(given, result=None)
        try:
            exec(code, names)
            answer = (True, names["result"])
        except BaseException as error:
            answer = (False, (type(error).__name__, f"{error}\n{traceback.format_exc()}"))
        given.clear()
        names.pop("result", None)
        pickle.dump(answer, stdout)
        stdout.flush()
        del answer
