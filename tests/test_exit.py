"""How a process ends while threads are inside calls. Many more of these exits: tests/exits.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import libraries

EXITS = Path(__file__).with_name("exits.py")
_spec = importlib.util.spec_from_file_location("exits", EXITS)
exits = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exits)


def run(code, tmp_path):
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", exits.WAYS)
def test_the_process_ends_with_threads_in_calls(way, seed):
    assert exits.run(way, "numpy", seed)[1] == ""


@pytest.mark.parametrize("way", ["the end", "logging", "a handler that joins"])
@pytest.mark.parametrize(
    "library", [library for library in libraries.HOST if repr(library).startswith(("torch", "jax"))]
)
def test_so_it_does_with_threads_in_other_libraries(library, way):
    library.load()
    # More than once: on a busy machine a call of JAX's may outlast what the exit waits for, which JAX does not survive.
    faults = []
    while len(faults) < 3:
        fault = exits.run(way, repr(library).partition("-")[0], len(faults))[1]
        if not fault:
            return
        faults.append(fault)
    raise AssertionError("\n\n".join(faults))


def test_a_fault_of_the_exit_is_found(tmp_path):
    """What the command says of a process that does not end as it should."""
    assert exits.main(["--way", "os._exit", "--library", "numpy", "--count", "2", "--seconds", "60"]) == 0
    way, _ = exits.WAYS["os._exit"]
    exits.WAYS["os._exit"] = way, 5
    try:
        assert exits.run("os._exit", "numpy", 0)[1].startswith("exit status 4")
    finally:
        exits.WAYS["os._exit"] = way, 4


def test_threads_that_python_ends_stay_where_they_are(tmp_path):
    """Without what `interop` does at exit, so that threads are inside calls for certain."""
    done = run(
        """
        import atexit, threading, time
        import numpy as np
        import interop

        atexit.unregister(interop._core.close)

        class Producer:
            def __dlpack__(self, **_):
                time.sleep(0.001)
                return a.__dlpack__()

            def __dlpack_device__(self):
                time.sleep(0.001)
                return 1, 0

        a = np.ones((64, 64), "float32")
        expression = interop.elementwise("x * y + 1")

        def work():
            while True:
                interop.add(Producer(), a)
                expression(a, Producer())
                interop.convert(interop.asarray(Producer()), "numpy")

        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


WORKER = """
    import atexit, threading

    def at_exit():  # after all that interop does at exit, as it is registered before
        go.set()
        worker.join()
        with lock:  # which the worker had
            print(*said)

    atexit.register(at_exit)
    go, lock, said = threading.Event(), threading.Lock(), []
    {head}
    import interop

    def work():
        go.wait()
        with lock:
            try:
                said.append(interop.add(a, a)[0].item())
            except RuntimeError as error:
                said.append(error)

    interop.add(a, a)
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
"""


def test_a_handler_at_exit_may_wait_for_a_call(tmp_path):
    done = run(WORKER.format(head="import numpy as np; a = np.ones(3)"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_then_a_call_in_another_library_is_an_error(tmp_path, library):
    pytest.importorskip(library)
    module = "torch" if library == "torch" else "jax.numpy"
    done = run(WORKER.format(head=f"import {module} as module; a = module.ones(3)"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("interop.add: the interpreter is shutting down, which")


@pytest.mark.parametrize("call", ["interop.add(a, a)", "interop.convert(b, 'torch')"])
def test_threads_that_drop_tensors_end_well(tmp_path, call):
    """torch lets go of the GIL while it drops one. Of five, as a busy machine may be late once."""
    pytest.importorskip("torch")
    code = f"""
        import threading, time, torch, interop

        a = torch.ones(4, 4)
        b = interop.asarray(a)

        def work():
            while True:
                {call}

        {call}
        for _ in range(5):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
    """
    assert [run(code, tmp_path).returncode for _ in range(5)].count(0) >= 4


def test_the_exit_waits_for_the_drop_of_a_result(tmp_path):
    """As torch's, which lets go of the GIL for it; here for longer, so that the process ends meanwhile for certain."""
    code = """
        import threading, time, interop

        class Result:
            def __del__(self):
                returned.set()
                time.sleep(0.005)
                print("dropped", flush=True)

        def work():
            interop._core.within("a test", "a library", Result)

        returned = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        returned.wait()
    """
    done = [run(code, tmp_path) for _ in range(5)]
    assert {(x.returncode, x.stderr) for x in done} == {(0, "")}
    assert [x.stdout for x in done].count("dropped\n") >= 4  # a busy machine may be late once


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_then_giving_an_array_to_another_library_is_an_error(tmp_path, library):
    pytest.importorskip(library)
    call = f"interop.convert(a, {library!r}).shape"
    worker = WORKER.replace("interop.add(a, a)[0].item()", call)
    done = run(worker.format(head=f"import {library}, numpy as np; a = np.ones(3)"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("interop.convert: the interpreter is shutting down, which")


def test_then_giving_an_array_to_numpy_is_none(tmp_path):
    worker = WORKER.replace("interop.add(a, a)[0].item()", "interop.convert(a, 'numpy').shape")
    done = run(worker.format(head="a = memoryview(bytearray(3))"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(3,)\n", "")


def test_the_exit_does_not_wait_for_a_c_function(tmp_path):
    done = run(
        """
        import ctypes.util, threading
        import interop

        c = interop.load(ctypes.util.find_library("c"), "unsigned int sleep(unsigned int seconds);")
        threading.Thread(target=c.sleep, args=(600,), daemon=True).start()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("destroyed", [True, False])
@pytest.mark.parametrize("first", ["the main interpreter", "the subinterpreter"])
def test_a_subinterpreter_cannot_import_it(tmp_path, first, destroyed):
    done = run(
        f"""
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        if {first == "the main interpreter"}:
            import interop
        code = '''
        import sys
        sys.path[:] = {{path}}
        try:
            import interop
        except ImportError as error:
            print("subinterpreter" in str(error), flush=True)
        '''
        import textwrap
        other = interpreters.create()
        for _ in range(2):
            interpreters.run_string(other, textwrap.dedent(code).format(path=sys.path))
        if {destroyed}:
            interpreters.destroy(other)
        import interop
        import numpy as np
        print(interop.add(np.ones(1), 1), flush=True)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n[2.]\n", "")
