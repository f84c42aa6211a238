"""What `interop.share` asks a driver for, which is played: tests/helpers/working_driver.c.

That another process gets the memory, and in time, is in tests/gpu/test_share.py.
"""

from __future__ import annotations

ENTRY = """
from interop._memory import owner
entry, = owner.owner()._entries.values()
passed = lambda: owner.owner()._board.has_passed(entry.slot)
"""


def test_the_host_waits_for_nothing(play):
    said = play(f"""
x = device_ones(1 << 16)
queue(x)
log()
h = interop.share(x[10:]){ENTRY}
print(log())
shared = entry.shared
print(shared.by, shared.size, shared.offset, shared.uuid, passed())
x.synchronize()
lib.look(x, 1)
x.synchronize()
driver.cuStreamSynchronize(ctypes.c_void_p(x.stream))
print(passed())
h.close()
""")
    calls, facts, passed = said.splitlines()
    assert eval(calls)[-1] == "cuStreamWriteValue32"
    assert not {"cuStreamSynchronize", "cuEventSynchronize"} & set(eval(calls))
    assert facts == f"ipc {4 << 16} 40 {b'u' * 16} False"
    assert passed == "True"


def test_the_host_waits_where_processes_have_no_flags(play):
    said = play(f"""
for name in ("cuMemHostRegister", "cuStreamWriteValue32"):
    x = device_ones(1 << 16)
    queue(x)
    log()
    fail(name, 801)
    h = interop.share(x){ENTRY.replace(chr(10), chr(10) + "    ")}
    print("cuEventSynchronize" in log(), passed())
    h.close()
    del entry
""")
    assert said == "True True\nTrue True\n"


def test_a_system_that_gives_out_no_memory(play):
    said = play("""
x = device_ones(4)
fail("cuIpcGetMemHandle", 801)
try:
    interop.share(x)
except BufferError as error:
    print(error)
print(interop.open(interop.share(x)) is x)
""")
    error, is_same = said.splitlines()
    assert error == (
        "interop.share: x is memory of cuMemAlloc, of which this system gives other processes no handle "
        "(cuIpcGetMemHandle: PLAYED; in a container, its own IPC namespace may be why); accepted: device memory of "
        "interop.empty, or copy=True, which shares a copy"
    )
    assert is_same == "True"


def test_pinned_and_managed_memory(play):
    said = play("""
for memory in ("pinned", "managed"):
    try:
        interop.share(interop.empty(4, "float32", memory=memory))
    except BufferError as error:
        print(error)
""")
    pinned, managed = said.splitlines()
    assert pinned.startswith("interop.share: x is pinned memory, which its own process alone can map; accepted: ")
    assert managed.startswith("interop.share: x is managed memory, which its own process alone can map; accepted: ")
    assert pinned.endswith("copy=True, which shares a copy")
    assert managed.endswith("copy=True, which shares a copy")


def test_a_forked_child_leaves_the_parents_arrays_alone(play):
    said = play("""
import os, warnings
warnings.simplefilter("ignore")
x = device_ones(4)
h = interop.share(x)
child = os.fork()
if child == 0:
    h.close()
    del h
    os._exit(0)
print(os.waitpid(child, 0)[1], interop.open(h) is x)
""")
    assert said == "0 True\n"


def test_what_is_shared_stays_where_it_is(play):
    said = play("""
x = interop.empty(4, "float32")
h = interop.share(x)
log()
try:
    x.resize(1 << 20)
except ValueError as error:
    print(error)
print([call for call in log() if "Free" in call])
h.close()
x.resize(2)
print(x.shape)
""")
    error, frees, shape = said.splitlines()
    assert error.startswith("interop.Array.resize: the memory is in use by a view, ")
    assert (frees, shape) == ("[]", "(2,)")
