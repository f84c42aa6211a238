"""`execution="cuda"`: host arrays, computed on the GPU, with a host result that is ready on return."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers import device, libraries, products
from helpers.backends import BACKENDS
from helpers.device import new_stream
from helpers.dlpack import Fake

import interop


@pytest.mark.parametrize("execution", ["cuda", "cuda:0"])
@pytest.mark.parametrize("shapes", [*products.SHAPES, ((1000, 517), (517, 1003))], ids=products.shape_id)
def test_values(host_library, dtype, shapes, execution):
    x, y, expected, magnitude = products.listed(shapes, dtype)
    c = interop.matmul(host_library.make(x), host_library.make(y), execution=execution)
    assert host_library.is_ours(c)
    assert host_library.dtype(c) == dtype
    products.check_product(host_library.to_numpy(c), x, y, expected, magnitude)


@BACKENDS
@pytest.mark.parametrize("layout_a", products.LAYOUTS)
def test_layouts(host_view_library, dtype, layout_a, backend):
    library = host_view_library
    layouts = [layout for layout in products.LAYOUTS if library.negative or layout not in products.NEGATIVE]
    if layout_a not in layouts:
        return  # this library has no such arrays
    base_a, x = products.LAYOUTS[layout_a]((3, 37, 19), dtype, 1)
    a = library.view(base_a, x)
    for layout_b in layouts:
        with products.naming(layout_b):
            base_b, y = products.LAYOUTS[layout_b]((3, 19, 29), dtype, 2)
            b = library.view(base_b, y)
            try:
                c = interop.matmul(a, b, execution="cuda", backend=backend)
            except ValueError as error:
                if backend != "cublas" or "cannot take this product" not in str(error):
                    raise
                continue
            products.check_product(library.to_numpy(c), x, y)


@pytest.mark.parametrize("layout", products.OUT_LAYOUTS)
def test_out_of_any_layout(host_view_library, dtype, layout):
    library = host_view_library
    if layout in products.NEGATIVE and not library.negative:
        return
    x, y, expected, magnitude = products.listed(((4, 33, 5), (4, 5, 36)), dtype)
    base, view = products.LAYOUTS[layout]((4, 33, 36), dtype, 3)
    made = library.make(base)
    out = library.view_of(made, base, view)
    assert interop.matmul(library.make(x), library.make(y), out=out, execution="cuda") is out
    products.check_product(library.to_numpy(out), x, y, expected, magnitude)
    view[...] = library.to_numpy(out)
    assert np.array_equal(library.to_numpy(made), base, equal_nan=True)


def test_libraries_may_mix(torch, jax):
    x, y = products.draw((5, 7), "float32", 1), products.draw((7, 3), "float32", 2)
    sources = {
        "numpy": (lambda v: v, np.ndarray),
        "torch": (torch.from_numpy, torch.Tensor),
        "jax": (libraries.by_name("jax").make, jax.Array),
        "buffer": (memoryview, interop.Array),
        "dlpack": (Fake, interop.Array),
    }
    for first, kind in sources.values():
        for second, _ in sources.values():
            c = interop.matmul(first(x), second(y), execution="cuda")
            assert isinstance(c, kind)
            products.check_product(np.from_dlpack(c), x, y)


@pytest.mark.parametrize("backend", ["tiled", "cublas"])
def test_a_backend_may_be_chosen(dtype, backend):
    x, y, expected, magnitude = products.listed(((131, 257), (257, 67)), dtype)
    products.check_product(interop.matmul(x, y, execution="cuda", backend=backend), x, y, expected, magnitude)


def test_float32_is_exact_and_tf32_is_asked_for():
    x = np.full((512, 512), 1 + 2.0**-12, "float32")
    one = np.eye(512, dtype="float32")
    assert np.array_equal(interop.matmul(x, one, execution="cuda"), x)
    c = interop.matmul(x, one, execution="cuda", precision="tf32")
    np.testing.assert_allclose(c, x, rtol=2.0**-10)


def test_a_stream_may_be_given():
    x = products.draw((65, 66), "float32")
    given = new_stream()
    device.delay(given)
    c = interop.matmul(x, x.T, execution="cuda", stream=given)
    assert not device.is_busy(given)  # ready on return
    products.check_product(c, x, x.T)


def test_the_callers_streams_are_not_waited_for(torch):
    """The work goes on a stream of our own: what else is queued on the card does not hold it up."""
    x = products.draw((65, 66), "float32")
    interop.matmul(x, x.T, execution="cuda")
    side = torch.cuda.Stream()
    for stream in (device.LEGACY, side.cuda_stream):
        device.delay(stream)
        products.check_product(interop.matmul(x, x.T, execution="cuda"), x, x.T)
        assert device.is_busy(stream)


def test_out_may_be_an_operand_as_operands_are_copied_first(dtype):
    """Where it is refused instead, nothing may have changed."""
    x = products.draw((33, 33), dtype)
    out = x.copy()
    try:
        interop.matmul(out, x, out=out, execution="cuda")
    except ValueError:
        assert np.array_equal(out, x)
    else:
        products.check_product(out, x, x)


def test_device_arrays_stay_where_they_are(device_library):
    x = products.draw((33, 33), "float32")
    a = device_library.make(x)
    for execution in ("cuda", "cuda:0"):
        c = interop.matmul(a, a, execution=execution)
        assert device_library.is_ours(c)
        products.check_product(device_library.to_numpy(c), x, x)
    with pytest.raises(ValueError, match="execution.*'cuda:97'"):
        interop.matmul(a, a, execution="cuda:97")


def test_a_gpu_that_is_not_there_is_named():
    x = np.ones((2, 2))
    out = np.full((2, 2), 7.0)
    with pytest.raises(ValueError, match=r"execution is 'cuda:97'; this machine has \d+ CUDA device"):
        interop.matmul(x, x, out=out, execution="cuda:97")
    assert (out == 7).all()


def test_no_device_memory_is_kept():
    x = np.ones((2048, 2048), "float32")
    interop.matmul(x, x, execution="cuda")
    device.synchronize()
    before = device.free_bytes()
    for _ in range(20):
        interop.matmul(x, x, execution="cuda")
    device.synchronize()
    assert before - device.free_bytes() < 64 << 20


def test_threads_have_streams_of_their_own():
    arrays = [np.full((200, 200), k, "float32") for k in range(8)]
    results = [None] * 8

    def work(k):
        for _ in range(20):
            results[k] = interop.matmul(arrays[k], arrays[k], execution="cuda")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, c in enumerate(results):
        assert (c == 200 * k * k).all()
