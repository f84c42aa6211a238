"""Threads that share what is known of expressions and dtypes. The two kinds of tests: test_threads.py."""

from __future__ import annotations

import contextlib
import enum
import gc
import itertools

import numpy as np
import pytest
from helpers import elements, machine
from helpers.threads import THREADS, at_once, meanwhile, run_apart

import interop
from interop._expressions.typed import Split, Typed
from interop._operations import promotion

# ---- expressions ----


def found_out(kind, f):
    """What an expression keeps of this kind."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is kind and x.function == repr(f)]


def test_an_expression_is_called_while_it_looks_for_its_dtypes():
    # The list of what is known grows, and moves, while the library is asked for its configuration.
    run_apart("""
        import torch, interop
        from helpers.threads import meanwhile

        f = interop.elementwise("x + y")
        x, y = torch.ones(3, dtype=torch.int32), torch.ones(3)
        f(x, y)
        integers = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
        floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

        def others():
            for dtype in integers:
                for other in floats:
                    f(x.to(dtype), y.to(other))

        with meanwhile("return", "configuration", others):
            result = f(x, y)
        assert result.dtype == torch.float32 and result.tolist() == [2, 2, 2]
    """)


def test_an_expression_keeps_one_split_and_one_typed_whoever_comes_first():
    x = np.ones(3, "int32")
    f = interop.elementwise("x * y + 3")
    with meanwhile("return", "__init__", lambda: f(x, 2)):  # of the Split, which the other call makes too
        f(x, 2)
    assert len(found_out(Split, f)) == 1
    g = interop.elementwise("x * y + 4")
    with meanwhile("return", "type", lambda: g(x, 2)):
        g(x, 2)
    assert len(found_out(Typed, g)) == 1
    assert f(x, 2).tolist() == [5, 5, 5]
    assert g(x, 2).tolist() == [6, 6, 6]


def test_an_expression_called_from_within_its_own_making():
    x = np.arange(3.0)
    f = interop.elementwise("x * 2 + y")
    seen = []
    for name in ("type", "evaluate", "compute", "promote"):
        with contextlib.suppress(AssertionError), meanwhile("call", name, lambda: seen.append(f(x, x))):
            f(x, 1)
    assert seen
    assert all(np.array_equal(result, x * 3) for result in seen)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_threads_call_a_new_expression_with_all_dtypes(library):
    dtypes = [x for x in elements.INTEGERS if library == "numpy" or x in ("int8", "int16", "int32", "int64", "uint8")]
    dtypes += ["float32", "float64"]
    make = np.asarray if library == "numpy" else machine.need("torch").from_numpy
    arrays = {dtype: make(np.arange(1, 6).astype(dtype)) for dtype in dtypes}
    pairs = list(itertools.product(dtypes, repeat=2))
    expected = np.arange(1, 6) * np.arange(1, 6) + 3
    for _ in range(4):
        f = interop.elementwise("x * y + a")

        def work(k, f=f):
            for a, b in pairs[k::2] + pairs[::7]:
                assert np.array_equal(np.asarray(f(arrays[a], arrays[b], 3)), expected), (a, b)
                assert np.array_equal(np.asarray(f(arrays[a], y=2, a=arrays[b])), 3 * np.arange(1, 6)), (a, b)

        at_once(THREADS, work)


# ---- promotion ----


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(promotion, "_known", {})


@pytest.fixture
def default_dtype(torch):
    before = torch.get_default_dtype()
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("nothing_known")
def test_a_default_dtype_that_changes_while_torch_is_asked(default_dtype):
    torch = default_dtype
    x = torch.ones(3, dtype=torch.int16)
    with meanwhile("call", "_promoted", lambda: torch.set_default_dtype(torch.float64)):
        interop.divide(x, 2)
    torch.set_default_dtype(torch.float32)
    assert interop.divide(x, 2).dtype == torch.float32


def test_a_default_dtype_that_changes_while_torch_is_asked_about_two_arrays():
    run_apart("""
        import torch, interop
        from helpers.threads import meanwhile

        x, y = torch.ones(3, dtype=torch.int16), torch.ones(3, dtype=torch.int8)
        with meanwhile("call", "_promoted", lambda: torch.set_default_dtype(torch.float64)):
            interop.divide(x, y)
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert interop.divide(x, y).dtype == dtype
    """)


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize(("event", "function"), [("call", "_promoted"), ("return", "promote")])
def test_a_default_dtype_that_changes_while_an_expression_finds_its_dtypes(default_dtype, event, function):
    torch = default_dtype
    x = torch.ones(3, dtype=torch.int16)
    f = interop.elementwise("x / y")
    with meanwhile(event, function, lambda: torch.set_default_dtype(torch.float64)):
        f(x, x)
    assert f(x, x).dtype == torch.float64
    torch.set_default_dtype(torch.float32)
    assert f(x, x).dtype == torch.float32


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_an_int_of_a_class_of_the_users_counts_as_an_int(library):
    x = np.array([True, False])
    if library == "torch":
        x = machine.need("torch").from_numpy(x)
    if library == "jax":
        x = machine.need("jax").numpy.asarray(x)
    for k in range(5):
        level = enum.IntEnum(f"Level{k}", {"low": 5, "high": 7})
        result = interop.add(x, level.low)
        assert str(result.dtype) == str(interop.add(x, 5).dtype)
        assert np.asarray(result).tolist() == [6, 5]
    assert len(promotion._known) <= 1  # no class is kept


@pytest.mark.usefixtures("nothing_known")
def test_threads_ask_for_all_promotions_at_once():
    names = [*elements.INTEGERS, "float16", "float32", "float64", "complex64", "bool"]
    pairs = list(itertools.product(names, repeat=2))
    expected = [np.result_type(a, b) for a, b in pairs]
    arrays = {name: np.ones(2, name) for name in names}

    def work(_):
        return [interop.multiply(arrays[a], arrays[b]).dtype for a, b in pairs]

    assert all(found == expected for found in at_once(THREADS, work))


# ---- NumPy's dtypes ----


def test_a_dtype_is_kept_once_whoever_asks_first():
    # An import may run Python, by a hook in the place of __import__, and lets other threads in. The table has room for
    # each dtype once.
    run_apart("""
        import builtins, numpy as np, torch, interop

        x = interop.asarray(torch.arange(3, dtype=torch.bfloat16))
        imports, depth = builtins.__import__, 0

        def hook(name, *arguments):
            global depth
            if name == "ml_dtypes" and depth < 100:
                depth += 1
                np.asarray(x)
            return imports(name, *arguments)

        builtins.__import__ = hook
        np.asarray(x)
        builtins.__import__ = imports
        assert depth == 100
        for dtype in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
            seen = np.asarray(interop.asarray(torch.arange(2).to(getattr(torch, dtype))))
            assert seen.dtype == dtype and seen.tolist() == [0, 1], dtype
        assert np.asarray(x).astype(int).tolist() == [0, 1, 2]
    """)


def test_threads_read_and_make_arrays_of_all_dtypes():
    names = [*elements.INTEGERS, "float16", "float32", "float64", "complex64", "complex128", "bool"]
    arrays = [np.arange(2).astype(name) for name in names]

    def work(k):
        for x in arrays[k:] + arrays[:k]:
            made = interop.add(memoryview(x), memoryview(x)) if x.dtype != bool else interop.asarray(x)
            assert np.asarray(made).dtype == x.dtype
            assert np.asarray(interop.equal(interop.asarray(x), x)).all()

    for _ in range(10):
        at_once(THREADS, work)
