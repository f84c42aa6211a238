"""`interop.profile` on the host: what is counted, by whom, and where copies come from.

On a driver that is played: tests/exchange/test_profile.py. On a GPU: tests/gpu/test_profile.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import numpy as np
import pytest
from helpers import alone, dlpack

import interop

VALUES = np.arange(6.0).reshape(2, 3)


def sizes(counts):
    return {kind: (each.count, each.bytes) for kind, each in counts.items()}


def line_above():
    return sys._getframe(1).f_lineno - 1


def test_it_counts_allocations_and_copies_of_the_host():
    with interop.profile() as p:
        interop.empty((2, 3), "float64", memory="host")
        interop.copyto(np.zeros((2, 3)), VALUES)
        interop.copyto(np.zeros((4, 2, 3), "float32"), VALUES.astype("float32"))
    assert sizes(p.allocations) == {"host": (1, 48)}
    assert sizes(p.transfers) == {"host to host": (2, 48 + 96)}
    assert p.waits == p.launches == p.holds == {}
    assert 0 < p.transfers["host to host"].seconds < p.seconds


def test_what_copies_nothing_is_no_copy():
    x = interop.asarray(VALUES)
    with interop.profile() as p:
        interop.convert(x, "numpy")
        np.asarray(x)
        np.from_dlpack(x)
        interop.copyto(np.zeros(3), 1)  # one value, which is no array
        interop.add(VALUES, VALUES)
        assert x.to(memory="host") is x
    assert p.transfers == {}
    assert p.copies == []


def test_what_fails_is_not_counted():
    with interop.profile() as p, pytest.raises(ValueError, match="does not broadcast"):
        interop.copyto(np.zeros(2), np.zeros(3))
    assert p.transfers == {}


def test_what_is_done_outside_is_not_counted():
    p = interop.profile()
    interop.copy(VALUES)
    with p:
        pass
    interop.copy(VALUES)
    assert not any(getattr(p, what) for what in ("allocations", "transfers", "waits", "launches", "holds", "copies"))


# ---- where copies come from ----


@pytest.mark.parametrize(
    ("function", "copy"),
    [
        ("interop.copy", lambda: interop.copy(VALUES)),
        ("interop.copyto", lambda: interop.copyto(np.zeros((2, 3)), VALUES)),
        ("interop.Array.__setitem__", lambda: interop.zeros((2, 3), "float64", memory="host").__setitem__(..., VALUES)),
        ("interop.full_like", lambda: interop.full_like(VALUES, np.ones((2, 3)))),
        ("interop.Array.__dlpack__", lambda: interop.asarray(VALUES).__dlpack__(copy=True, max_version=(1, 0))),
    ],
)
def test_a_copy_says_which_function_made_it(function, copy):
    with interop.profile() as p:
        copy()
    (made,) = p.copies
    assert (made.kind, made.function) == ("host to host", function)
    assert (made.file, made.line) == (__file__, copy.__code__.co_firstlineno)
    assert (made.count, made.bytes) == (1, VALUES.nbytes)


def test_copies_are_told_apart_by_line_and_added_up():
    target = np.zeros((2, 3))
    with interop.profile() as p:
        for _ in range(3):
            interop.copyto(target, VALUES)
            many = line_above()
        interop.copyto(target[0], VALUES[0])
        one = line_above()
    assert [(each.line, each.count, each.bytes) for each in p.copies] == [(many, 3, 144), (one, 1, 24)]


def test_the_line_is_the_callers_in_any_thread():
    def copy():
        interop.copy(VALUES)

    with interop.profile() as p:
        threads = [threading.Thread(target=copy) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (made,) = p.copies
    assert (made.file, made.line, made.count) == (__file__, copy.__code__.co_firstlineno + 1, 4)


def test_code_that_was_made_has_the_name_it_was_given():
    with interop.profile() as p:
        exec(compile("\n\ninterop.copy(VALUES)", "<a \ud800 cell>", "exec"), {"interop": interop, "VALUES": VALUES})
        exec(compile("\n\ninterop.copy(VALUES)", "<cell>", "exec"), {"interop": interop, "VALUES": VALUES})
    assert {(made.file, made.line) for made in p.copies} == {("<a \\ud800 cell>", 3), ("<cell>", 3)}


def test_a_module_of_like_name_is_the_users(tmp_path):
    (tmp_path / "interop_of_mine.py").write_text("import interop\ndef copy(x):\n    return interop.copy(x)\n")
    said = alone.run(
        """
        import sys; sys.path.insert(0, ".")
        import interop_of_mine
        with interop.profile() as p:
            interop_of_mine.copy(np.ones(3))
        print([(each.file.rpartition("/")[2], each.line, each.function) for each in p.copies])
        """,
        tmp_path,
    )
    assert eval(said) == [("interop_of_mine.py", 3, "interop.copy")]


# ---- several profiles, several threads ----


def test_nested_profiles_each_count():
    with interop.profile() as outer:
        interop.copy(VALUES)
        with interop.profile() as inner:
            interop.copy(VALUES)
            assert outer.transfers["host to host"].count == 2  # while it runs
        interop.copy(VALUES)
    assert (outer.transfers["host to host"].count, inner.transfers["host to host"].count) == (3, 1)


def test_profiles_that_overlap_each_count():
    first, second = interop.profile(), interop.profile()
    with first:
        second.__enter__()
        interop.copy(VALUES)
    interop.copy(VALUES)
    second.__exit__(None, None, None)
    interop.copy(VALUES)
    assert (first.transfers["host to host"].count, second.transfers["host to host"].count) == (1, 2)


def test_all_threads_are_counted_exactly():
    count, threads = 200, 8
    targets = [np.zeros((2, 3)) for _ in range(threads)]
    done = threading.Barrier(threads + 1)

    def work(target):
        for _ in range(count):
            interop.copyto(target, VALUES)
            interop.empty(5, "float32", memory="host")
        done.wait()

    with interop.profile() as p:
        for target in targets:
            threading.Thread(target=work, args=(target,)).start()
        while done.n_waiting < threads:  # read beside the threads that write
            with interop.profile():
                assert p.as_dict()
        done.wait()
    assert sizes(p.transfers) == {"host to host": (threads * count, threads * count * VALUES.nbytes)}
    assert sizes(p.allocations) == {"host": (threads * count, threads * count * 20)}


def test_one_that_is_dropped_while_it_runs_ends(tmp_path):
    alone.run(
        """
        p = interop.profile().__enter__()
        assert interop._core.profiles_running() == 1
        del p
        assert interop._core.profiles_running() == 0
        p = interop.profile().__enter__()  # runs until the process ends
        """,
        tmp_path,
        silent=True,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_counts_nothing(tmp_path):
    alone.run(
        """
        import os
        with interop.profile() as p:
            interop.copy(np.ones(3))
            child = os.fork()
            interop.copy(np.ones(3))
            before = p.transfers["host to host"].count
        with interop.profile() as q:
            interop.copy(np.ones(3))
        right = (before, q.transfers["host to host"].count) == ((1, 1) if child == 0 else (2, 1))
        if child == 0:
            os._exit(0 if right and interop._core.profiles_running() == 0 else 1)
        assert right and os.waitpid(child, 0)[1] == 0
        """,
        tmp_path,
    )


# ---- the object ----


def test_it_is_used_once():
    p = interop.profile()
    with p:
        with pytest.raises(ValueError, match=r"^interop.profile: this profile was used before; accepted: a new one"):
            p.__enter__()
        interop.copy(VALUES)
    with pytest.raises(ValueError, match=r"^interop.profile: this profile was used before"), p:
        pass
    assert p.transfers["host to host"].count == 1


def test_an_error_in_the_block_ends_it():
    p = interop.profile()
    with pytest.raises(ZeroDivisionError), p:
        _ = 1 / 0
    interop.copy(VALUES)
    assert p.transfers == {}


def test_the_table():
    p = interop.profile()
    assert repr(p) == "<interop.Profile, not yet begun, 0.000000 s>"
    with p:
        assert repr(p).startswith("<interop.Profile, running, ")
        interop.copy(VALUES)
        line = line_above()
    assert repr(p).startswith("<interop.Profile, ended, ")
    lines = str(p).splitlines()
    assert lines[0].split() == ["interop.profile", "count", "bytes", "seconds"]
    assert [line for line in lines if line.endswith(": none")] == ["waits: none", "launches: none", "holds: none"]
    (copied,) = (each for each in lines if each.startswith("  host to host"))
    assert copied.split()[3:5] == ["1", "48"]
    (made,) = (each for each in lines if __file__ in each)
    assert made.startswith(f"  {__file__}:{line}, interop.copy, host to host ")
    assert made.split()[-3:-1] == ["1", "48"]
    assert "not seen: what other libraries allocate, copy, wait for and launch by themselves" in lines[-1]


def test_as_dict_is_for_json():
    with interop.profile() as p:
        interop.copy(VALUES)
    whole = json.loads(json.dumps(p.as_dict()))
    assert whole["transfers"]["host to host"]["bytes"] == whole["copies"][0]["bytes"] == 48
    assert whole["copies"][0]["function"] == "interop.copy"
    assert whole["seconds"] == p.seconds


def test_arrays_of_other_libraries(torch):
    fake = dlpack.Fake(np.zeros((2, 3)))
    with interop.profile() as p:
        interop.copyto(fake, torch.ones(2, 3))
        torch.ones(2, 3).clone()  # torch's own, which is not seen
    assert sizes(p.transfers) == {"host to host": (1, 48)}
