"""interop.autotune where nothing can be tuned: its file, and what it refuses. On a GPU: tests/gpu/test_autotune.py."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import interop
from interop import _autotune

X = np.ones((3, 3), "float32")


def entry(**changes):
    return {
        "card": "A card that nobody has",
        "cublas": "13.1.0",
        "product": "float32 3x3 @ 3x3",
        "backend": "cublas",
        "microseconds": 1.0,
        "untuned_microseconds": 2.0,
        "key": "0" * 18 * 16,
        "algorithm": "0" * 8 * 16,
        **changes,
    }


def write(path, *entries):
    path.write_text(json.dumps({"interop autotune": 1, "choices": list(entries)}))
    return path


def test_host_arrays_have_nothing_to_tune(tmp_path):
    path = tmp_path / "choices.json"
    with interop.autotune(path):
        np.testing.assert_array_equal(interop.matmul(X, X, autotune=True), X @ X)
        np.testing.assert_array_equal(interop.matmul(X, X, autotune=False), X @ X)
    assert json.loads(path.read_text()) == {"interop autotune": 1, "choices": []}


def test_choices_of_other_cards_stay_in_the_file(tmp_path):
    path = write(tmp_path / "choices.json", entry(), entry(key="1" * 18 * 16))
    with interop.autotune(path):
        pass
    assert json.loads(path.read_text())["choices"] == [entry(), entry(key="1" * 18 * 16)]
    assert interop.autotune.load(path) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"interop autotune": 2, "choices": []}', '{"interop autotune": 1, "choices": [{}]}', "\x00\xff"],
)
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "choices.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"interop.autotune: .*choices.json is not a file of choices"):
        interop.autotune.load(path)
    with pytest.raises(ValueError, match="is not a file of choices"), interop.autotune(path):
        pass
    assert path.read_bytes() == text.encode("latin-1")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        interop.autotune.load(tmp_path / "choices.json")
    with interop.autotune(tmp_path / "choices.json"):
        pass
    assert (tmp_path / "choices.json").exists()


@pytest.mark.parametrize("change", [{"key": "0"}, {"key": "g" * 18 * 16}, {"algorithm": "00"}, {"microseconds": "x"}])
def test_a_malformed_choice_is_refused(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        interop._core.Tuning.keep(0, entry(**change))
    assert interop._core.Tuning.choices(0) == []


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="interop.matmul: autotune is 1; accepted: None, True, False"):
        interop.matmul(X, X, autotune=1)


def test_jax_arrays_are_refused(jax):
    x = jax.numpy.ones((3, 3))
    with pytest.raises(ValueError, match="autotune is given, and the arrays are JAX's.*accepted: None"):
        interop.matmul(x, x, autotune=True)


def test_blocks_nest():
    tunes = []
    with interop.autotune():
        with interop.autotune():
            tunes.append(interop.autotune._open)
        tunes.append(interop.autotune._open)
    assert [*tunes, interop.autotune._open] == [2, 1, 0]


# ---- the file, which others may be writing, too ----

# Several threads of a process, each with a choice of its own.
WRITERS = """
import sys, threading
import interop
from interop import _autotune

path, who = sys.argv[1], sys.argv[2]
mine = threading.local()
_autotune._machine = lambda: (["a card"], "")
interop._core.Tuning.keep = lambda device, entry: None
interop._core.Tuning.choices = lambda device: [{"key": f"{who} {mine.number}"}]
wrong = []

def write(number):
    mine.number = number
    for _ in range(10):
        try:
            with interop.autotune(path):
                pass
        except BaseException as error:
            wrong.append(repr(error))

threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
"""


def keys_in(path):
    return sorted(entry["key"] for entry in json.loads(path.read_text())["choices"])


def test_threads_and_processes_may_write_one_file(tmp_path):
    path = tmp_path / "choices.json"
    command = [sys.executable, "-P", "-c", WRITERS, str(path)]
    writers = [subprocess.Popen([*command, who], stderr=subprocess.PIPE, text=True) for who in "abc"]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    assert keys_in(path) == [f"{who} {number}" for who in "abc" for number in range(4)]  # none was lost
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]


def test_threads_may_write_a_file_each(tmp_path):
    failed = []

    def write(number):
        try:
            for _ in range(20):
                with interop.autotune(tmp_path / f"{number}.json"), interop.autotune(tmp_path / "all.json"):
                    pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*(f"{n}.json" for n in range(8)), "all.json"])
    assert interop.autotune._open == 0


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target = write(tmp_path / "elsewhere" / "target.json", entry())
    link = tmp_path / "link.json"
    link.symlink_to(target)
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "elsewhere" / "new.json")
    assert interop.autotune.save(link) == interop.autotune.save(dangling) == 0
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert json.loads(target.read_text())["choices"] == [entry()]
    assert json.loads(dangling.read_text())["choices"] == []
    assert sorted(file.name for file in (tmp_path / "elsewhere").iterdir()) == ["new.json", "target.json"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_stay_and_new_files_have_those_of_the_umask(tmp_path):
    secret = write(tmp_path / "secret.json")
    secret.chmod(0o600)
    interop.autotune.save(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.chmod(0o664)
    interop.autotune.save(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o664
    code = "import os, sys, interop; os.umask(0o027); interop.autotune.save(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path / "new.json"], check=True)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path, monkeypatch, error):
    path = write(tmp_path / "choices.json", entry())
    before = path.read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(error), interop.autotune(path):
        pass
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]
    assert interop.autotune._open == 0
    monkeypatch.undo()
    assert interop.autotune.save(path) == 0  # and nothing is locked


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_while_another_thread_wrote(tmp_path):
    code = """
import os, sys, threading
import interop
from interop import _autotune

inside, leave = threading.Event(), threading.Event()
def hold():
    with _autotune._alone(_autotune.Path(sys.argv[1])):
        inside.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    interop.autotune.save(sys.argv[1] + "/choices.json")
    os._exit(0)
leave.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
interop.autotune.save(sys.argv[1] + "/choices.json")
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "1" * 5000,
        '{"interop autotune": 1, "choices": 3}',
        '{"interop autotune": 1, "choices": [{"card": [], "cublas": "", "key": ""}]}',
        '{"interop autotune": 1, "choices": "xyz"}',
        '{"interop autotune": ' + "[" * 200 + "]" * 200 + ', "choices": []}',
    ],
    ids=["deep", "digits", "number", "list", "text", "long format"],
)
def test_malformed_files_are_refused_shortly(tmp_path, text):
    path = tmp_path / "choices.json"
    path.write_text(text)
    for use in (interop.autotune.load, interop.autotune.save):
        with pytest.raises(ValueError, match=r"^interop.autotune: .*choices.json is not a file of choices") as caught:
            use(path)
        assert len(str(caught.value)) < 300 + len(str(path))
    assert path.read_text() == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_no_file_is_left_alone(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for use in (interop.autotune.load, interop.autotune.save):
        with pytest.raises(ValueError, match="a device or a pipe"):
            use(pipe)
        with pytest.raises(IsADirectoryError):
            use(tmp_path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=r"[Ll]oop|levels of symbolic links"):
        interop.autotune.save(loop)
    assert loop.is_symlink()


def test_the_lock_is_on_the_folder(tmp_path):
    """Nothing is left beside the file, and a folder that is not there is said to be missing."""
    with _autotune._alone(tmp_path):
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        interop.autotune.save(tmp_path / "no" / "choices.json")
