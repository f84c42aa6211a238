"""`interop bench memory` on a driver that is played: that what it measures beside copies the same."""

from __future__ import annotations

import numpy as np
import pytest

from interop._commands.bench import memory

_DEVICE = """
from interop._commands.bench import memory
from interop._commands.bench.driver_copies import DriverCopies

memory._ROWS, memory._COLUMNS, memory._PAD = 5, 20, 4  # rows that the copy engines take

class Device:
    def __init__(self, values):
        self.array = interop.empty(values.shape, "float32")
        interop.copyto(self.array, values)
        self.array.synchronize()
        self.nbytes = values.nbytes
    def data_ptr(self):
        return self.__cuda_array_interface__["data"][0]
    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__

copies = DriverCopies(1)
def host_of(kind, values):
    whole = interop.empty(values.shape, "float32", memory="pinned")
    np.asarray(whole)[...] = values
    return whole if kind == "pinned" else np.asarray(whole).copy()
"""


@pytest.mark.parametrize("kind", ["pinned", "pageable"])
@pytest.mark.parametrize("rows", [False, True])
def test_both_copies_between_host_and_device_are_one(play, kind, rows):
    said = play(
        _DEVICE
        + f"""
values = np.arange(5 * 24, dtype="float32").reshape(5, 24)
zeros = np.zeros_like(values)
def part(host):
    return host[:, :20] if {rows} else host.reshape(-1)[:100]
for which in (0, 1):
    host, device = part(host_of({kind!r}, values)), Device(np.asarray(part(zeros)))
    log()
    memory._host_calls(copies, device, host, {rows}, True)[which]()
    copies_of = [line for line in log() if "Memcpy" in line]
    driver.cuStreamSynchronize(ctypes.c_void_p(1))
    assert device.array.tolist() == part(values).tolist()
    host = part(host_of({kind!r}, zeros))
    log()
    memory._host_calls(copies, device, host, {rows}, False)[which]()
    copies_of += [line for line in log() if "Memcpy" in line]
    device.array.synchronize()
    driver.cuStreamSynchronize(ctypes.c_void_p(1))
    assert np.asarray(host).tolist() == part(values).tolist()
    print(copies_of)
"""
    )
    by_driver, by_interop = map(eval, said.splitlines())
    assert len(by_driver) == 2
    if rows:
        assert by_driver == by_interop


def test_a_copy_on_the_device_copies(play):
    play(
        _DEVICE
        + """
a, b = Device(np.arange(60, dtype="float32")), Device(np.zeros(60, "float32"))
copies.on_device(b.data_ptr(), a.data_ptr(), 240)
driver.cuStreamSynchronize(ctypes.c_void_p(1))
assert b.array.tolist() == list(range(60))
try:
    fail("cuMemcpyAsync", 700)
    copies.on_device(b.data_ptr(), a.data_ptr(), 240)
except RuntimeError as error:
    assert "cuMemcpyAsync: CUDA error 700" in str(error)
else:
    raise AssertionError
"""
    )


# ---- without a device ----


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_layouts_are_copied_whole(torch, monkeypatch):
    monkeypatch.setattr(memory, "_BYTES", 1 << 16)
    for dtype in (torch.float32, torch.complex128):
        count = (1 << 16) // dtype.itemsize
        rows = 1 << (count.bit_length() // 2)
        a = torch.rand(rows, count // rows, dtype=dtype)
        seen = set()
        for layout, dst, src, moved in memory._layouts(torch, a):
            memory._check_tensors(torch, layout, lambda dst=dst, src=src: memory.interop.copyto(dst, src), dst, src)
            with pytest.raises(AssertionError, match=f"{layout} is wrong; nothing was timed"):
                memory._check_tensors(torch, layout, lambda: None, dst, src)
            assert moved == (3 if "second" in layout else 2) * dst.numel() * dtype.itemsize
            seen.add((layout, src.stride() if layout != "into padded rows" else dst.stride()))
        assert len(seen) == 6


def test_ratios_are_to_the_first_row(capsys):
    rows = list(memory._table("a table", "us", {"before": 4.0, "now": 3.0}))
    assert [(row["row"], row["value"], row["ratio"]) for row in rows] == [("before", 4, 1), ("now", 3, 0.75)]
    assert capsys.readouterr().out.split() == [
        "a",
        "table",
        "us",
        "ratio",
        "before",
        "4.000",
        "1.00",
        "now",
        "3.000",
        "0.75",
    ]


def test_samples_are_taken_in_turn(monkeypatch):
    monkeypatch.setattr(memory.measure, "BLOCKS", 3)
    made = []
    samplers = {name: lambda name=name: made.append(name) or float(len(made)) for name in "ab"}
    assert memory._in_turn(samplers, min) == {"a": 3, "b": 4}
    assert made == list("ab" * 4)
    assert np.isfinite(memory._in_turn(samplers, max)["a"])
