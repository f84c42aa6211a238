"""The page of what every producer gives is true of this machine, and the checks behind it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import machine
from helpers.dlpack import Fake

import interop
from interop import testing as interop_testing
from interop._commands import cli, conformance
from interop._commands.consumers import CONSUMERS, Consumer, Seen

PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
NAMES = {  # of modules, as --require knows them
    "numba.cuda": "numba",
    "cuda.core.utils": "cuda_core",
}


@pytest.mark.parametrize("producer", conformance.WAYS, ids=lambda producer: producer.title)
def test_page_is_true(producer):
    if producer.device == "device":
        machine.need_gpu()
    if producer.module != "numpy":
        machine.need(NAMES.get(producer.module, producer.module))
    try:
        cells = conformance.check(producer)
    except ImportError as error:
        pytest.skip(f"the library has no such device here: {error}")
    assert [str(cell) for cell in cells if cell.outcome == "WRONG"] == []
    written = conformance.sections_of(PAGE.read_text(encoding="utf-8"))[producer.title]
    if "Not run yet" not in written:
        assert written.strip() == producer.table(cells).strip(), (
            "docs/conformance.md is out of date: run 'interop conformance --update docs/conformance.md'"
        )


def test_page_has_every_way():
    assert list(conformance.sections_of(PAGE.read_text(encoding="utf-8"))) == [way.title for way in conformance.WAYS]


def test_command_prints_and_updates(capsys, tmp_path, monkeypatch):
    few = [p for p in conformance.PRODUCERS if p.library == "memoryview"]
    absent = conformance.Producer("Absent", "x", "host", "no_such_module", lambda module, x: x)
    monkeypatch.setattr(conformance, "WAYS", [*few, absent])
    assert cli.main(["conformance"]) == 0
    text = capsys.readouterr().out
    assert "## memoryview, buffer protocol, host" in text
    assert "## Absent, x, host\n\nNot here: not installed" in text
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nIntro.\n\n## Absent, x, host\n\n| kept |\n")
    assert cli.main(["conformance", "--update", str(page)]) == 0
    written = page.read_text()
    assert written.startswith("# Title\n\nIntro.\n\n## memoryview")
    assert written.endswith("## Absent, x, host\n\n| kept |\n")
    assert cli.main(["conformance", "--update", str(page)]) == 0
    assert page.read_text() == written


def test_command_fails_for_a_wrong_cell(capsys, monkeypatch):
    wrong = conformance.Producer("Wrong", "x", "host", "numpy", lambda module, x: x.copy()[..., ::1] * 0)
    monkeypatch.setattr(conformance, "WAYS", [wrong])
    assert cli.main(["conformance"]) == 1
    assert "WRONG" in capsys.readouterr().out


# ---- consumers ----

_LAYOUTS = {"compact", "transposed", "sliced", "offset", "reversed", "0-d", "empty", "size 1"}
_NOT_NEGATIVE = _LAYOUTS - {"reversed"}
_SEEN = {"host", "pinned", "managed"}  # by the host
_IN_PLACE = {  # whatever the page says: the memories and layouts that a consumer takes without a copy
    ("NumPy", "`numpy.asarray`"): (_SEEN, _LAYOUTS),
    ("Python", "`memoryview`"): (_SEEN, _LAYOUTS),
    ("PyTorch", "`torch.from_dlpack`"): ({"host", "managed", "device"}, _NOT_NEGATIVE),
    ("PyTorch", "`interop.convert`"): ({*_SEEN, "device"}, _NOT_NEGATIVE),
    ("JAX", "`interop.convert`"): ({"host", "managed", "device"}, {"compact"}),
    ("CuPy", "`interop.convert`"): ({"managed", "device"}, _LAYOUTS),
    ("Numba", "`interop.convert`"): ({"managed", "device"}, {"compact", "transposed", "sliced", "offset"}),
}


@pytest.mark.parametrize(
    "consumer",
    [consumer for consumer in CONSUMERS if (consumer.library, consumer.way) in _IN_PLACE],
    ids=lambda consumer: consumer.title,
)
def test_what_is_taken_in_place(consumer):
    if consumer.device == "device":
        machine.need_gpu()
    if consumer.module != "numpy":
        machine.need(NAMES.get(consumer.module, consumer.module))
    memories, layouts = _IN_PLACE[consumer.library, consumer.way]
    cells = [cell for cell in conformance.check(consumer) if cell.memory in memories and cell.layout in layouts]
    assert cells
    assert [str(cell) for cell in cells if cell.outcome != "right"] == []


def test_a_consumers_faults_are_found():
    def outcomes(take):
        consumer = Consumer("A library", "a way", "host", "numpy", lambda np_, x: take(np_.asarray(x)), see_numpy)
        return {cell.layout: cell.outcome for cell in consumer.check()}

    assert set(outcomes(lambda x: x).values()) == {"right"}
    assert set(outcomes(lambda x: x.copy()).values()) == {"copy", "right"}  # right: there is nothing in "empty"
    assert outcomes(lambda x: x * 0)["compact"] == "WRONG"
    assert outcomes(lambda x: x.T)["compact"] == "WRONG"
    assert outcomes(lambda x: 1 / 0)["compact"] == "refused"
    steps = Consumer("A library", "a way", "host", "numpy", lambda np_, x: np_.asarray(x), wrong_steps)
    assert steps.check()[1].outcome == "WRONG"
    assert "| host | WRONG | WRONG |" in steps.table(steps.check())


def see_numpy(np_, x):
    return Seen(x.ctypes.data, x.shape, x.strides, x)


def wrong_steps(np_, x):
    return Seen(x.ctypes.data, x.shape, x.strides[::-1], x)


# ---- interop.testing: each kind of fault is found ----


def only(make, dtype="float64", layout="offset"):
    (cell,) = interop_testing.check_producer(make, dtypes=[dtype], layouts=[layout], strict=False)
    return cell


class Keeps:
    """Holds on to every array that it exports, for ever."""

    kept = []  # noqa: RUF012

    def __init__(self, x):
        self.fake = Fake(x)

    def __dlpack_device__(self):
        return self.fake.__dlpack_device__()

    def __dlpack__(self, **keywords):
        self.kept.append(self)
        return self.fake.__dlpack__(**keywords)


class Changes:
    """Exports other memory each time."""

    def __init__(self, x):
        self.arrays = [x.copy(), x.copy() + 1]

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **keywords):
        self.arrays.reverse()
        return self.arrays[0].__dlpack__()


def raises_strangely(x):
    class Strange:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            raise MemoryError("no more")

    return Strange()


@pytest.mark.parametrize(
    ("make", "outcome", "detail"),
    [
        (lambda x: x, "right", "buffer protocol"),
        (lambda x: Fake(x), "right", "__dlpack__"),
        (lambda x: x.astype("f4"), "WRONG", "dtype float32"),
        (lambda x: x[:, :2], "WRONG", r"shape \(3, 2\) for \(3, 5\)"),
        (lambda x: x[::-1], "WRONG", "other values"),
        (lambda x: x.copy(), "WRONG", "step 5 for 6 along dimension 0: not laid out as asked"),
        (Keeps, "WRONG", "still held"),
        (Changes, "WRONG", "read twice, it has another pointer"),
        (raises_strangely, "WRONG", "raises MemoryError: no more"),
        (lambda x: Fake(x, dtype_code=99), "TypeError", "unknown dtype"),
        (lambda x: Fake(x, version=(2, 0)), "BufferError", "speaks DLPack 2.0"),
        (lambda x: None, "none", ""),
        (lambda x: x.no_such, "none", "no_such"),
    ],
)
def test_check_producer_finds(make, outcome, detail):
    import re

    cell = only(make)
    assert cell.outcome == outcome, cell
    assert re.search(detail, cell.detail), cell


def test_check_producer_raises_for_wrong_cells():
    with pytest.raises(AssertionError, match="float32 reversed: WRONG") as caught:
        interop_testing.check_producer(lambda x: x.copy(), dtypes=["float32"])
    assert "compact" not in str(caught.value)
    assert interop.testing is interop_testing


def test_check_producer_raises_where_nothing_is_made():
    with pytest.raises(AssertionError, match=r"`make` returned no array at all; the first: .*division by zero"):
        interop_testing.check_producer(lambda x: 1 / 0)


def test_the_command_names_a_file_that_cannot_be_written(capsys, tmp_path):
    with pytest.raises(SystemExit) as exited:
        cli.main(["conformance", "--update", str(tmp_path / "no" / "page.md")])
    assert exited.value.code == 2
    assert "page.md: No such file or directory" in capsys.readouterr().err


def test_the_command_may_be_read_in_part():
    command = [sys.executable, "-m", "interop", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_check_producer_gives_a_cell_for_each_kind():
    cells = interop_testing.check_producer(np.asarray)
    assert len(cells) == len(interop_testing.DTYPES) * len(interop_testing.LAYOUTS)
    assert len(set(cells)) == len(cells)
