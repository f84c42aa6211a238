"""Host arrays on their way to the GPU and back, of sizes round what is small, at once and one after the other.

What the driver is called for, and what is left behind: tests/exchange/test_staging.py. Values of all operations:
test_execution.py.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers import device, products

import interop

K = 1024 // 4  # float32 elements
MOST = 1024 * K  # of the largest array that goes through kept memory
COUNTS = (0, 1, 63, 64, 65, *(kib * K + more for kib in (96, 384, 512, 1024) for more in (0, 1)), 9 << 20)


def drawn(count, seed=0):
    return np.random.default_rng(seed).integers(-1000, 1000, count).astype("float32")


@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_every_size(count):
    x, y = drawn(count, 1), drawn(count, 2)
    for _ in range(3):
        assert np.array_equal(interop.add(x, y, execution="cuda"), x + y)
        out = np.full(2 * count, 7, "float32")
        assert interop.add(x, y, out=out[::2], execution="cuda").base is out
        assert np.array_equal(out[::2], x + y)
        assert (out[1::2] == 7).all()
        x += 1


@pytest.mark.parametrize("count", COUNTS)
def test_arrays_with_gaps_and_turned_round(count):
    x, y = drawn(3 * count, 1)[::3], drawn(count, 2)[::-1]
    assert np.array_equal(interop.multiply(x, y, execution="cuda"), x * y)
    one = np.broadcast_to(np.float32(5), count)
    assert np.array_equal(interop.subtract(one, y, execution="cuda"), 5 - y)


@pytest.mark.parametrize("n", [16, 64, 156, 157, 256, 313, 314, 362, 363, 512, 513, 1024])
def test_products_of_every_size(dtype, n):
    x, y, expected, magnitude = products.listed(((n, 65), (65, n)), dtype)
    for _ in range(3):
        products.check_product(interop.matmul(x, y, execution="cuda"), x, y, expected, magnitude)
    out = np.empty_like(x, shape=(n, n)).T
    assert interop.matmul(x, y, out=out, execution="cuda") is out
    products.check_product(out, x, y, expected, magnitude)


def test_small_and_large_operands_of_one_product():
    for shapes in (((3, 2 * MOST), (2 * MOST, 3)), ((2000, 3), (3, 2000)), ((1, MOST), (MOST, 1))):
        x, y = (np.random.default_rng(0).integers(-2, 3, shape).astype("float32") for shape in shapes)
        expected = (x.astype("float64") @ y).astype("float32")  # small integers: exact in any order
        assert np.array_equal(interop.matmul(x, y, execution="cuda"), expected)


def test_more_small_arrays_than_there_is_room_for():
    arrays = [drawn(MOST, seed) for seed in range(7)]
    total = interop.elementwise("a + b + c + d + e + f + g")
    assert np.array_equal(total(*arrays, execution="cuda"), sum(arrays))


def test_what_is_changed_after_the_call_is_not_read():
    for count in COUNTS:
        x = drawn(count)
        c, expected = interop.add(x, x, execution="cuda"), x + x
        x[:] = 7
        assert np.array_equal(interop.add(x, x, execution="cuda"), np.full(count, 14, "float32"))
        assert np.array_equal(c, expected)


def test_threads_at_once_with_arrays_of_many_sizes():
    """More of them than there is kept memory for."""
    wrong = []

    def work(seed):
        for turn in range(28):
            x, y = drawn(COUNTS[(seed + turn) % len(COUNTS)], seed), np.float32(seed + turn)
            if not np.array_equal(interop.add(x, np.full_like(x, y), execution="cuda"), x + y):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_on_a_busy_stream_leaves_nothing_for_the_next_call():
    x, out = drawn(1000), np.full(1000, 7, "float32")
    for _ in range(3):
        given = device.new_stream()
        device.delay(given)
        with pytest.raises(TypeError, match="out is float32"):
            interop.less(x, x, out=out, execution="cuda", stream=given)
        assert (out == 7).all()
        assert np.array_equal(interop.add(x, x, execution="cuda"), x + x)


def test_another_context_has_memory_of_its_own():
    x = drawn(1000)
    for _ in range(2):
        assert np.array_equal(interop.add(x, x, execution="cuda"), x + x)
        with device.primary_context():
            assert np.array_equal(interop.add(x, x, execution="cuda"), x + x)


def test_a_given_stream_is_the_one_that_is_waited_for():
    x = drawn(1000)
    for _ in range(3):
        given = device.new_stream()
        device.delay(given)
        c = interop.add(x, x, execution="cuda", stream=given)
        assert not device.is_busy(given)
        assert np.array_equal(c, x + x)
