"""How long the memory of `interop.Array` stays: cycles, deleters on any thread, forks, the end of the process."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers import dlpack
from helpers.device import eventually
from helpers.dlpack import CPU, Fake, consume
from helpers.layouts import VALUES

import interop

# ---- the end of the process ----

EXITS = {
    "arrays and capsules": "kept = [a, a.__dlpack__(), a.__dlpack__(max_version=(1, 0)), memoryview(a)]",
    "a consumer's array": "kept = np.from_dlpack(a)",
    "a consumer's tensor": "import torch; kept = torch.from_dlpack(a)",
    "a cycle": "kept = [a]; kept.append(kept)",
    "a builtin": "import builtins; builtins.kept = a, a.__dlpack__(), memoryview(a)",
    "an attribute of a library": "np.kept = a, a.__dlpack__(), interop.matmul",
    "a daemon thread at work": """
        import threading
        def work():
            while True:
                interop.matmul(memoryview(np.eye(8)), a if a.shape == (8, 8) else np.eye(8)).__dlpack__()
        threading.Thread(target=work, daemon=True).start()
    """,
}


@pytest.mark.parametrize("what", EXITS)
def test_the_process_ends_well(tmp_path, what):
    head = "import numpy as np\nimport interop\na = interop.matmul(memoryview(np.eye(3)), np.eye(3))\n"
    code = head + textwrap.dedent(EXITS[what]) + "\nprint('done')\n"
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# ---- cycles ----


class Ndarray(np.ndarray):
    """An array that has attributes."""


class Producer:
    """(A Fake is kept by its capsules.)"""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return CPU, 0


def owners():
    try:
        import torch
    except ImportError:
        pass
    else:
        yield pytest.param(lambda: torch.ones(3), id="torch")
    yield pytest.param(lambda: np.ones(3).view(Ndarray), id="ndarray")
    yield pytest.param(lambda: Producer(np.ones(3)), id="dlpack")


HOLDS = {
    "a view": interop.asarray,
    "a buffer of it": lambda x: memoryview(interop.asarray(x)),
    "a view of a view": lambda x: [interop.asarray(interop.asarray(x))],
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("make_owner", [*owners()])
def test_a_cycle_through_a_view_is_collected(make_owner, hold):
    owner = make_owner()
    owner.kept = HOLDS[hold](owner)
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "export",
    [np.from_dlpack, memoryview, np.asarray, lambda view: view.__dlpack__(), lambda view: view],
    ids=["consumer", "buffer", "array", "capsule", "view"],
)
@pytest.mark.parametrize("make_owner", [x for x in owners() if x.id != "torch"])  # of which the storage is kept
def test_a_cycle_is_kept_by_an_export(make_owner, export):
    owner = make_owner()
    owner.kept = interop.asarray(owner)
    exported = export(owner.kept)
    is_capsule = type(exported).__name__ == "PyCapsule"
    alive = weakref.ref(owner)
    del owner
    for _ in range(3):
        gc.collect()
        junk = [np.full(3, 7.0) for _ in range(50)]
    assert alive() is not None
    assert alive().kept.shape == (3,)
    if not is_capsule:
        assert np.asarray(exported).tolist() == [1, 1, 1]
    del exported, junk
    gc.collect()
    assert alive() is None


def test_an_export_by_an_array_of_a_cycle_keeps_the_memory():
    """The array is emptied; who has its memory still has it."""

    class Node:
        pass

    fake = Fake(np.ones(3))
    node = Node()
    node.itself, node.kept = node, interop.asarray(fake)
    exported = np.from_dlpack(node.kept)
    del node
    gc.collect()
    assert not fake.balanced
    assert exported.tolist() == [1, 1, 1]
    del exported
    assert fake.balanced


# ---- deleters ----


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_owner_of_a_view_is_let_go_on_a_thread_without_the_gil(version):
    fake = Fake(VALUES.copy())
    managed = consume(interop.asarray(fake).__dlpack__(max_version=version))
    assert not fake.balanced
    address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)  # lets the GIL go for the call
    thread = threading.Thread(target=delete, args=(ctypes.addressof(managed),))
    thread.start()
    thread.join()
    assert eventually(lambda: fake.balanced)


def test_an_owner_may_die_on_a_thread_without_the_gil():
    """Its `__del__` is Python code, which would crash there."""
    died = []

    class Owner:
        __array_interface__ = VALUES.__array_interface__

        def __del__(self):
            died.append(threading.current_thread())

    managed = consume(interop.asarray(Owner()).__dlpack__(max_version=(1, 0)))
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
    assert died == []
    thread = threading.Thread(target=delete, args=(ctypes.addressof(managed),))
    thread.start()
    thread.join()
    assert eventually(lambda: died)
    assert died != [thread]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_lets_owners_go_itself(tmp_path):
    """The thread that does so in the parent is not there: the child starts one of its own."""
    (tmp_path / "helpers").symlink_to(Path(dlpack.__file__).parent)
    code = """
        import ctypes, os, sys, time
        sys.path.insert(0, sys.argv[1])
        import numpy, interop
        from helpers.dlpack import Fake, consume

        def is_let_go():
            fake = Fake(numpy.ones(3))
            managed = consume(interop.asarray(fake).__dlpack__(max_version=(1, 0)))
            address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(managed))  # without the GIL
            end = time.monotonic() + 10
            while not fake.balanced and time.monotonic() < end:
                time.sleep(0.005)
            return fake.balanced

        assert is_let_go()
        child = os.fork()
        if child == 0:
            os._exit(0 if is_let_go() else 1)
        assert os.waitpid(child, 0)[1] == 0
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_many_exports_dropped_by_many_threads():
    fakes = [Fake(VALUES.copy()) for _ in range(200)]
    exports = [consume(interop.asarray(fake).__dlpack__(max_version=(1, 0))) for fake in fakes]

    def drop(part):
        for managed in part:
            address = ctypes.cast(managed.deleter, ctypes.c_void_p).value
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(managed))

    threads = [threading.Thread(target=drop, args=(exports[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eventually(lambda: all(fake.balanced for fake in fakes))
