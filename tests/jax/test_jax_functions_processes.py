"""Programs that call C functions, compiled in one process and run in another: JAX's cache on disk, and exports."""

from __future__ import annotations

import shutil

import pytest
from helpers import alone, c_functions

from interop import _core

pytest.importorskip("jax")

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")

SOURCE = "void sum(const float* a, const float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }"
OTHER = SOURCE.replace("a[i] + b[i]", "a[i] - b[i]")

LOAD = """
    import sys
    import jax, jax.numpy as jnp
    import interop.jax
    jax.config.update("jax_platforms", "cpu")

    def load(path="./libown.so"):
        lib = interop.load(path, "void sum(host const float* a, host const float* b, host float* c, int n);")
        return lib.sum.returning(c=lambda a, b, n: n)  # its rule has no name that another process would know

    a, b = jnp.arange(4, dtype="float32"), jnp.ones(4)
"""
CACHED = (
    LOAD
    + """
    import logging
    for name, x in (("cache_dir", "./cache"), ("persistent_cache_min_compile_time_secs", 0),
                    ("persistent_cache_min_entry_size_bytes", -1)):
        jax.config.update("jax_compilation_cache_dir" if name == "cache_dir" else f"jax_{name}", x)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("hits") else None)
    add = load()
    print(jax.jit(lambda a, b: 2 * add(a, b, 4))(a, b).tolist(), "cache hits:", len(hits) > 0)
"""
)
EXPORT = (
    LOAD
    + """
    add = load()
    f = jax.jit(lambda a, b: 2 * add(a, b, 4))
    exported = jax.export.export(f, disabled_checks=interop.jax.disabled_checks())(a, b)
    open("program", "wb").write(exported.serialize())
"""
)
CALL = """
    program = jax.export.deserialize(bytearray(open("program", "rb").read()))
    print(jax.jit(program.call)(a, b).tolist())
"""


@pytest.fixture
def folder(tmp_path):
    c_functions.build(SOURCE, tmp_path / "libown.so")
    return tmp_path


def test_the_persistent_cache_serves_another_process(folder):
    assert alone.run(CACHED, folder).strip() == "[2.0, 4.0, 6.0, 8.0] cache hits: False"
    assert alone.run(CACHED, folder).strip() == "[2.0, 4.0, 6.0, 8.0] cache hits: True"


def test_the_persistent_cache_has_nothing_of_a_library_that_was_built_anew(folder):
    alone.run(CACHED, folder)
    c_functions.build(OTHER, folder / "libown.so")
    assert alone.run(CACHED, folder).strip() == "[-2.0, 0.0, 2.0, 4.0] cache hits: False"


def test_an_exported_program_calls_the_function_of_its_process(folder):
    pytest.importorskip("flatbuffers")  # by which JAX writes it
    alone.run(EXPORT, folder)
    assert alone.run(LOAD + "    add = load()\n" + CALL, folder).strip() == "[2.0, 4.0, 6.0, 8.0]"


def test_an_exported_program_finds_the_library_at_another_path(folder):
    pytest.importorskip("flatbuffers")
    alone.run(EXPORT, folder)
    (folder / "libown.so").rename(folder / "libmoved.so")
    assert alone.run(LOAD + "    add = load('./libmoved.so')\n" + CALL, folder).strip() == "[2.0, 4.0, 6.0, 8.0]"


@pytest.mark.parametrize("made", ["nothing", "another build", "a function that is gone"])
def test_an_exported_program_without_its_function_names_it(folder, made):
    pytest.importorskip("flatbuffers")
    alone.run(EXPORT, folder)
    if made == "another build":
        c_functions.build(OTHER, folder / "libown.so")
    load = {"nothing": "", "another build": "    add = load()\n", "a function that is gone": "    load()\n"}[made]
    code = f"""
    import pytest
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program calls 'sum', a kernel or C func") as e:
    {CALL.strip()}
    assert "accepted: a process in which interop.kernel or interop.load has made it" in str(e.value)
    """
    code = code.replace("    program =", "        program =").replace("    print(", "        print(")
    alone.run(LOAD + load + code, folder)


def test_a_program_goes_on_when_the_function_is_gone(folder):
    code = """
    import gc
    add = load()
    f = jax.jit(lambda a, b: add(a, b, 4)).lower(a, b).compile()
    del add
    jax.clear_caches(); gc.collect()
    print(f(a, b).tolist())
    """
    assert alone.run(LOAD + code, folder).strip() == "[1.0, 2.0, 3.0, 4.0]"


def test_without_a_build_id_the_file_is_hashed(tmp_path):
    c_functions.build(SOURCE, tmp_path / "libown.so", "-Wl,--build-id=none")
    shutil.copy(tmp_path / "libown.so", tmp_path / "libsame.so")
    c_functions.build(OTHER, tmp_path / "libother.so", "-Wl,--build-id=none")
    code = """
    from interop._functions.identity import content_key
    print(*(content_key(load(f"./lib{name}.so")) for name in ("own", "same", "other")))
    """
    own, same, other = alone.run(LOAD + code, tmp_path).split()
    assert own == same != other


def test_programs_run_in_many_threads_at_once(folder):
    code = """
    from concurrent.futures import ThreadPoolExecutor
    add = load()
    f = jax.jit(lambda a, b: add(a, b, 4))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: f(a, b + i).tolist(), range(400)))
    assert results == [[1.0 + i, 2.0 + i, 3.0 + i, 4.0 + i] for i in range(400)]
    """
    alone.run(LOAD + code, folder)
