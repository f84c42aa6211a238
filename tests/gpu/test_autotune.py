"""interop.autotune on a GPU: what it chooses is used, kept, loaded, and right."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest
from helpers import graphs
from helpers.libraries import on_gpu

import interop

SIZES = itertools.count(640, 8)  # beyond what is small


@pytest.fixture
def fresh():
    """Sizes of products that no other test has: choices stay for the whole process."""
    return lambda: next(SIZES)


def operands(torch, n, dtype="float32"):
    kind = getattr(torch, dtype)
    generator = torch.Generator("cuda").manual_seed(n)
    return [torch.randn(n, n, device="cuda", generator=generator).to(kind) for _ in range(2)]


def algorithm(a, b, **options):
    return interop.explain(interop.matmul, a, b, **options).algorithm


def choice_of(n, dtype="float32"):
    (choice,) = [x for x in interop._core.Tuning.choices(0) if x["product"] == f"{dtype} {n}x{n} @ {n}x{n}"]
    return choice


def is_right(c, a, b):
    expected = a.double() @ b.double()
    return float((c.double() - expected).norm() / expected.norm()) < (1e-5 if c.dtype.itemsize == 4 else 5e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_chosen_is_used_and_right(torch, fresh, dtype):
    a, b = operands(torch, fresh(), dtype)
    untuned = algorithm(a, b)
    before = len(interop._core.Tuning.choices(0))
    out = torch.full_like(a, 77)
    assert interop.matmul(a, b, out=out, autotune=True) is out
    assert is_right(out, a, b)
    choice = choice_of(len(a), dtype)
    assert len(interop._core.Tuning.choices(0)) == before + 1
    assert 0 < choice["microseconds"] <= choice["untuned_microseconds"]
    tuned = algorithm(a, b)
    assert tuned.startswith("tiled") if choice["backend"] == "tiled" else tuned.endswith("tuned")
    assert algorithm(a, b, backend="cublas").endswith("tuned")
    assert algorithm(a, b, autotune=False) == untuned
    same = interop.matmul(a, b)
    assert torch.equal(out, same)
    assert is_right(interop.matmul(a, b, autotune=False), a, b)
    interop.matmul(a, b, autotune=True)
    assert len(interop._core.Tuning.choices(0)) == before + 1


def test_a_block_tunes_and_a_file_keeps(torch, cupy, fresh, tmp_path):
    n = fresh()
    path = tmp_path / "choices.json"
    rng = np.random.default_rng(n)
    a, b = (cupy.asarray(rng.random((n, n), "float32")) for _ in range(2))
    with interop.autotune(path):
        c = interop.matmul(a, b)
        interop.matmul(a[:8, :8], b[:8, :8])  # small: nothing to tune
    np.testing.assert_allclose(c.get(), a.get() @ b.get(), rtol=1e-4)
    entries = json.loads(path.read_text())["choices"]
    assert f"float32 {n}x{n} @ {n}x{n}" in [entry["product"] for entry in entries]
    assert {entry["card"] for entry in entries} == {interop._core.machine_info()["devices"][0]["name"]}
    assert interop.autotune.load(path) >= len(entries)
    assert cupy.array_equal(interop.matmul(a, b), c)


def test_an_algorithm_that_cublas_does_not_take_is_passed_over(torch, fresh):
    n = fresh()
    a, b = operands(torch, n)
    untuned = algorithm(a, b)
    interop.matmul(a, b, autotune=True)
    choice = choice_of(n)
    interop._core.Tuning.keep(0, choice | {"algorithm": "f" * 128, "backend": "cublas"})
    assert algorithm(a, b) == untuned
    assert is_right(interop.matmul(a, b), a, b)
    interop._core.Tuning.keep(0, choice)


def test_a_divided_k_is_added_whole(torch):
    a, b = torch.ones(64, 11_528, device="cuda").half(), torch.ones(11_528, 64, device="cuda").half()
    interop.matmul(a, b, dtype="float32", autotune=True)
    assert bool((interop.matmul(a, b, dtype="float32", backend="cublas") == 11_528).all())


def test_a_result_that_is_read_is_tuned_beside_itself(torch, fresh):
    n = fresh()
    a, b = operands(torch, n)
    c = torch.ones(n, n, device="cuda")
    assert interop.matmul(a, b, c=c, beta=3, out=c, autotune=True) is c
    expected = a.double() @ b.double() + 3
    assert float((c.double() - expected).norm() / expected.norm()) < 1e-5


def test_terms_and_batches(torch, fresh):
    n = fresh()
    a = torch.randn(3, n, n, device="cuda", dtype=torch.float16).mT
    b = torch.randn(n, 2 * n, device="cuda", dtype=torch.float16)[:, ::2].contiguous()
    bias = torch.randn(n, device="cuda", dtype=torch.float16)
    got = interop.matmul(a, b, bias=bias, epilogue="relu", autotune=True)
    expected = torch.relu(a.double() @ b.double() + bias)
    assert float((got.double() - expected).norm() / expected.norm()) < 2e-3


def test_a_captured_call_is_not_tuned(torch, fresh):
    a, b = operands(torch, fresh())
    before = interop._core.Tuning.choices(0)
    with graphs.captured(torch) as graph:
        c = interop.matmul(a, b, autotune=True)
    graph.replay()
    assert is_right(c, a, b)
    assert interop._core.Tuning.choices(0) == before


def test_host_arrays_computed_on_the_gpu(fresh):
    n = fresh()
    a, b = np.random.default_rng(n).random((2, n, n), "float32")
    np.testing.assert_allclose(interop.matmul(a, b, execution="cuda", autotune=True), a @ b, rtol=1e-4)


def test_all_memory_comes_back(torch, fresh):
    a, b = operands(torch, fresh())
    out = torch.empty_like(a)
    interop.matmul(b, a, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    interop.matmul(a, b, out=out, autotune=True)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_jax_uses_what_others_chose(torch, jax, fresh):
    on_gpu("jax")
    n = fresh()
    a, b = operands(torch, n)
    interop.matmul(a, b, autotune=True)
    x, y = jax.dlpack.from_dlpack(a), jax.dlpack.from_dlpack(b)
    np.testing.assert_allclose(np.asarray(interop.matmul(x, y)), (a @ b).cpu().numpy(), atol=1e-2)


def test_threads_tune_into_a_file_each_and_into_one(torch, fresh, tmp_path):
    """The blocks of other threads are open, closed and written meanwhile."""
    sizes = [fresh() for _ in range(4)]
    failed = []

    def work(n):
        try:
            a, b = operands(torch, n)
            for _ in range(5):
                with interop.autotune(tmp_path / f"{n}.json"), interop.autotune(tmp_path / "all.json"):
                    assert is_right(interop.matmul(a, b), a, b)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed

    def products_in(name):
        return {entry["product"] for entry in json.loads((tmp_path / name).read_text())["choices"]}

    tuned = {f"float32 {n}x{n} @ {n}x{n}" for n in sizes}
    assert tuned <= products_in("all.json")
    for n in sizes:
        assert f"float32 {n}x{n} @ {n}x{n}" in products_in(f"{n}.json")
        assert interop.matmul(*operands(torch, n)).shape == (n, n)
        kept = algorithm(*operands(torch, n))
        assert kept.startswith("tiled") or kept.endswith("tuned")  # no plan from before was kept
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*(f"{n}.json" for n in sizes), "all.json"])
