"""Threads that share what interop keeps: routes, dtypes, expressions, registrations, arrays, the memory of calls.

Two kinds of tests. Those with `meanwhile` let another call in at the moment that a rule is about: they fail without the
rule, always. The others let many threads loose on what is new to all of them, for what nobody has thought of.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import enum
import gc
import itertools

import numpy as np
import pytest
from helpers import elements, machine
from helpers.dlpack import Fake
from helpers.threads import at_once, meanwhile, run_apart

import interop
from interop._expressions.typed import Split, Typed
from interop._operations import promotion

THREADS = 8


class Shown:
    """An array of a class that is made anew for each test, so that nothing is known of it."""

    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


def new_class(base=Shown, **members):
    return type("New", (base,), members)


def values_of(x):
    return np.asarray(x) if isinstance(x, interop.Array) else x.values if isinstance(x, Shown) else np.asarray(x)


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


# ---- routes and registrations ----


def test_threads_meet_a_new_type_at_once():
    def work(k, array):
        for _ in range(5):
            assert np.asarray(interop.add(array, k)).tolist() == [k + 1, k + 2, k + 3]

    for _ in range(40):
        array = new_class()(np.array([1.0, 2.0, 3.0]))
        at_once(THREADS, lambda k, array=array: work(k, array))


def test_threads_make_types_of_their_own():
    def work(k):
        for _ in range(20):
            array = new_class()(np.array([k, 1.0]))
            assert np.asarray(interop.multiply(array, 2)).tolist() == [2 * k, 2]
            with pytest.raises(TypeError, match="New"):
                interop.multiply(new_class(object)(), 2)

    at_once(THREADS, work)


def test_a_type_is_registered_once_whoever_comes_first():
    class Meta(type):
        def __getattr__(cls, name):  # what a class is asked for its protocols by
            raise AttributeError(name)

    kind = Meta("Grid", (), {"__init__": Shown.__init__})
    export = lambda grid: grid.values  # noqa: E731
    with (
        meanwhile("call", "__getattr__", lambda: interop.register(kind, name="first", export=export)),
        pytest.raises(ValueError, match=r"Grid'> is registered already, as 'first'"),
    ):
        interop.register(kind, name="second", export=export)


def test_threads_register_one_type():
    for round_ in range(30):
        kind = new_class()

        def work(k, kind=kind, round_=round_):
            try:
                interop.register(kind, name=f"threads-{round_}-{k}", export=lambda x: x.values)
            except ValueError as error:
                return str(error)
            return ""

        refused = [text for text in at_once(THREADS, work) if text]
        assert len(refused) == THREADS - 1
        assert all("registered already" in text for text in refused)


def test_a_type_is_registered_while_calls_run():
    for round_ in range(20):
        kind = new_class()
        child = new_class(kind)

        def work(k, kind=kind, child=child, round_=round_):
            if k == 0:
                make = lambda shape, dtype, *_, kind=kind: kind(np.empty(shape, dtype))  # noqa: E731
                interop.register(kind, name=f"late-{round_}", export=lambda x: x.values, empty=make)
            for _ in range(10):
                for array in (kind(np.ones(3)), child(np.ones(3))):
                    result = interop.add(array, k)
                    assert values_of(result).tolist() == [k + 1] * 3
                    assert isinstance(result, kind | interop.Array)

        at_once(THREADS, work)
        assert type(interop.add(child(np.ones(3)), 1)) is kind


def test_a_metaclass_that_changes_the_bases_of_its_classes():
    class Meta(type):
        @property
        def __module__(cls):
            if cls.changes:
                cls.changes = False
                cls.__bases__ = (type("More", cls.__bases__, {}),) if Plain in cls.__bases__ else (Other,)
                gc.collect()
            return "somewhere"

    class Base(Shown):
        pass

    class Other(Shown):
        pass

    class Plain:
        pass

    for _ in range(20):
        kind = Meta("Changing", (Base,), {"changes": True})
        assert np.asarray(interop.add(kind(np.ones(2)), 1)).tolist() == [2, 2]
        assert kind.__bases__ == (Other,)
        kind = Meta("Changing", (Plain,), {"changes": True})
        with pytest.raises(TypeError, match="accepted: arrays"):
            interop.add(kind(), 1)


# ---- calls within calls: the memory that a call hands on to the next, exports that call ----


def test_an_export_calls_the_same_function_again():
    f = interop.elementwise("x + 1")
    kind = new_class()
    interop.register(
        kind, name="nested", export=lambda x: f(x.values) if x.values.size < 4 else interop.add(x.values, 1)
    )

    def work(k):
        for _ in range(20):
            assert f(kind(np.full(3, float(k)))).__array__().tolist() == [k + 2.0] * 3
            assert interop.add(kind(np.full(5, float(k))), 1).__array__().tolist() == [k + 2.0] * 5

    at_once(THREADS, work)


ENDLESS = {
    "add": lambda x: interop.add(x, 1),
    "asarray": interop.asarray,
    "explain": lambda x: interop.explain(interop.add, x, 1),
    "expression": interop.elementwise("x + 1"),
    "kernel": interop.kernel("__global__ void f(double* x) {}", "f", grid=1),
    "matmul": lambda x: interop.matmul(x, x),
}


@pytest.mark.parametrize("f", ENDLESS.values(), ids=ENDLESS)
def test_an_export_without_end_is_an_error(f):
    kind = new_class()
    interop.register(kind, name="endless", export=lambda x: f(x))
    own = new_class()
    own.__dlpack_device__ = lambda x: (1, 0)
    own.__dlpack__ = lambda x, **_: f(x)
    for x in (kind(np.ones(3)), own(np.ones(3))):
        with pytest.raises((BufferError, RecursionError)):
            f(x)
    assert interop.elementwise("x + 1")(np.ones(3)).tolist() == [2, 2, 2]


def test_calls_from_del_in_many_threads():
    seen = []

    class Last(np.ndarray):
        def __del__(self):
            seen.append(np.asarray(interop.multiply(memoryview(np.ones(2)), 3)).tolist())

    def work(k):
        for _ in range(20):
            x = np.full(3, float(k)).view(Last)
            assert np.asarray(interop.add(interop.asarray(x), x)).tolist() == [2.0 * k] * 3
            del x

    at_once(THREADS, work)
    gc.collect()
    assert len(seen) >= THREADS * 20
    assert all(values == [3, 3] for values in seen)


# ---- interop.Array ----


def test_threads_share_an_array():
    for _ in range(10):
        fake = Fake(np.arange(6.0).reshape(2, 3))
        shared = interop.asarray(fake)

        def work(k, shared=shared):
            for _ in range(20):
                assert np.asarray(shared).tolist() == [[0, 1, 2], [3, 4, 5]]
                assert np.asarray(interop.add(shared, k)).sum() == 15 + 6 * k
                assert np.asarray(interop.asarray(shared)).shape == (2, 3)
                shared.__dlpack__(max_version=(1, 0))
                memoryview(shared).release()

        at_once(THREADS, work)
        del shared, work
        gc.collect()
        assert fake.balanced


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_threads_convert(library):
    if library != "numpy":
        machine.need(library)
    source = interop.add(interop.asarray(memoryview(np.arange(8, dtype="float32"))), 0)

    def work(k):
        for _ in range(20):
            assert np.asarray(interop.convert(source, library)).tolist() == [*range(8)]
            assert np.asarray(interop.convert(interop.add(source, k), library))[1] == k + 1

    at_once(THREADS, work)


def test_a_library_that_another_thread_is_importing(jax):
    del jax
    run_apart("""
        import sys, threading, numpy as np, interop

        reached, results = threading.Event(), []

        def profile(frame, event, _):
            if event == "call" and frame.f_code.co_name == "import_module":
                reached.set()  # it waits for the other thread's import

        def convert():
            sys.setprofile(profile)
            try:
                results.append(interop.convert(np.ones(16, "float32"), "jax"))
            except ValueError:  # of memory that is not aligned as JAX wants it
                results.append("refused")
            finally:
                reached.set()

        thread = threading.Thread(target=convert)

        class Middle:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.startswith("jax.") and not thread.ident:  # jax is half a module now
                    assert "jax" in sys.modules and not hasattr(sys.modules["jax"], "Array")
                    thread.start()
                    reached.wait()

        sys.meta_path.insert(0, Middle)
        import jax
        thread.join()
        assert len(results) == 1, results
    """)


# ---- JAX's programs ----


def test_threads_compile_for_jax(jax):
    arrays = [jax.numpy.arange(4).astype(dtype) for dtype in ("int32", "float32", "uint8", "float16")]
    f = interop.elementwise("x * y + 1")
    expected = [1, 2, 5, 10]

    def work(k):
        for x in arrays[k % 4 :] + arrays[: k % 4]:
            assert np.asarray(f(x, x)).tolist() == expected
            assert np.asarray(interop.multiply(x, x) + 1).tolist() == expected

    at_once(THREADS, work)


# ---- functions of libraries ----


def test_threads_call_a_c_function():
    lib = interop.load(ctypes.util.find_library("m"), "double hypot(double x, double y); double fabs(double x);")

    def work(k):
        for i in range(100):
            assert lib.hypot(3.0 * k, 4.0 * k) == 5.0 * k
            assert lib.fabs(-i) == i

    at_once(THREADS, work)


# ---- choices of products ----


def test_threads_save_and_load_choices(tmp_path):
    path = tmp_path / "choices.json"

    def work(_):
        for _ in range(20):
            with interop.autotune(path):
                interop.matmul(np.eye(2), np.eye(2))

    at_once(THREADS, work)
    assert list(tmp_path.iterdir()) == [path]


# ---- what is compiled at run time, and the libraries that this takes ----


def test_a_kernel_is_asked_for_while_another_is_compiled(nvrtc):
    # By `__del__` of any object: a lock that the thread itself holds would stop it for good.
    del nvrtc
    run_apart(
        """
        import contextlib, os, tempfile
        from helpers.threads import meanwhile

        os.environ["INTEROP_CACHE_DIR"] = tempfile.mkdtemp()
        import interop
        from interop._cuda import nvrtc

        seen = []

        def load(name):
            source = 'extern "C" __global__ void ' + name + "() {}"
            with contextlib.suppress(interop.CudaError):  # loading takes a GPU, compiling does not
                nvrtc.load("a test", source, [name], {}, "sm_80")
            seen.append(name)

        with meanwhile("return", "compile_source", lambda: load("second")):
            load("first")
        assert seen == ["second", "first"], seen
    """,
        120,
    )


def test_cublas_is_looked_for_again_where_the_look_was_interrupted():
    run_apart("""
        import sys, interop
        from helpers.threads import meanwhile

        def interrupt():
            raise KeyboardInterrupt

        try:
            with meanwhile("call", "load_nvidia_dynamic_lib", interrupt):
                interop._core.machine_info()
        except KeyboardInterrupt:
            pass
        with meanwhile("call", "load_nvidia_dynamic_lib", lambda: None):
            interop._core.machine_info()
    """)


def test_cublas_is_not_done_without_while_another_thread_looks_for_it():
    run_apart("""
        import interop
        from helpers.threads import at_once, meanwhile

        def look(_):
            with meanwhile("call", "load_nvidia_dynamic_lib", lambda: None):  # it looks for itself
                interop._core.machine_info()

        with meanwhile("call", "load_nvidia_dynamic_lib", lambda: at_once(1, look)):
            interop._core.machine_info()
    """)
