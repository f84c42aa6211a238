"""Threads that share arrays, libraries, choices of products, and what is compiled.

Two kinds of tests. Those with `meanwhile` let another call in at the moment that a rule is about: they fail without the
rule, always. The others let many threads loose on what is new to all of them, for what nobody has thought of.

Expressions and dtypes: test_threads_of_dtypes.py. Types of arrays: test_threads_of_types.py.
"""

from __future__ import annotations

import ctypes.util
import gc

import numpy as np
import pytest
from helpers import machine
from helpers.dlpack import Fake
from helpers.threads import THREADS, at_once, run_apart

import interop

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
