"""Programs that call operators, compiled in one process and run in another: JAX's cache on disk, and exports."""

from __future__ import annotations

import re

import pytest
from helpers import alone, c_functions

import interop
from interop import _core

pytest.importorskip("jax")

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")

SOURCE = """
void scale(const float* x, const float* s, float* y, int rows, int n) {
  for (int r = 0; r < rows; ++r) for (int i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * s[i];
}
"""
OPERATOR = """
    import jax, jax.numpy as jnp
    import interop.jax
    jax.config.update("jax_platforms", "cpu")

    def make():
        lib = interop.load(
            "./libown.so", "void scale(host const float* x, host const float* s, host float* y, int rows, int n);"
        )
        return interop.operator(
            "tests::scale", lib.scale, "x[..., n], s[n] -> [..., n]", sizes={"rows": lambda leading: leading},
            gradient=lambda g, x, s, y: (op(g, s), (g * x).sum(tuple(range(x.ndim - 1)))),
        )

    x, s = jnp.arange(6, dtype="float32").reshape(2, 3), jnp.ones(3)
    f = jax.jit(jax.value_and_grad(lambda x, s: op(x, s).sum(), argnums=(0, 1)))
"""
CACHED = """
    for name, value in (("compilation_cache_dir", "./cache"), ("persistent_cache_min_compile_time_secs", 0),
                        ("persistent_cache_min_entry_size_bytes", -1)):
        jax.config.update(f"jax_{name}", value)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("hits") else None)
    op = make()
    value, (by_x, by_s) = f(x, s)
    print(value, by_x.tolist(), by_s.tolist(), "cache hits:", len(hits) > 0)
"""
EXPORT = """
    op = make()
    exported = jax.export.export(f, disabled_checks=interop.jax.disabled_checks())(x, s)
    open("program", "wb").write(exported.serialize())
"""
CALL = """
    program = jax.export.deserialize(bytearray(open("program", "rb").read()))
    value, (by_x, by_s) = jax.jit(program.call)(x, s)
    print(value, by_x.tolist(), by_s.tolist())
"""
EXPECTED = "15.0 [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]] [3.0, 5.0, 7.0]"


@pytest.fixture
def folder(tmp_path):
    c_functions.build(SOURCE, tmp_path / "libown.so")
    return tmp_path


def test_the_persistent_cache_serves_another_process(folder):
    assert alone.run(OPERATOR + CACHED, folder).strip() == f"{EXPECTED} cache hits: False"
    assert alone.run(OPERATOR + CACHED, folder).strip() == f"{EXPECTED} cache hits: True"


def test_an_exported_program_is_called_where_the_operator_is_made_and_where_its_function_alone_is(folder):
    pytest.importorskip("flatbuffers")  # by which JAX writes it
    alone.run(OPERATOR + EXPORT, folder)
    assert alone.run(OPERATOR + "    op = make()\n" + CALL, folder).strip() == EXPECTED
    function_alone = OPERATOR + "    interop.operator = lambda name, function, *_, **__: function\n    op = make()\n"
    assert alone.run(function_alone + CALL, folder).strip() == EXPECTED


def test_an_exported_program_without_the_function_names_it(folder):
    pytest.importorskip("flatbuffers")
    alone.run(OPERATOR + EXPORT, folder)
    code = """
    import pytest
    program = jax.export.deserialize(bytearray(open("program", "rb").read()))
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program calls 'scale', a kernel or C function"):
        jax.block_until_ready(jax.jit(program.call)(x, s))
    """
    alone.run(OPERATOR + code, folder)


def test_kernels_are_lowered_for_a_gpu_where_there_is_none(jax, operators_at):
    ops = operators_at("cuda")
    with jax.enable_x64(True):
        x, s = (jax.ShapeDtypeStruct(shape, "float64") for shape in ((3, 5), (5,)))
        f = jax.jit(jax.value_and_grad(lambda x, s: ops.row_dot(ops.softmax(x), s).sum(), argnums=(0, 1)))
        exported = jax.export.export(f, platforms=["cuda"], disabled_checks=interop.jax.disabled_checks())(x, s)
    called = re.findall(r'@(\w+)\([^)]*\).*function = "(\w+)-.*launch = dense<\[(\d+),', exported.mlir_module())
    assert called == [("interop_function", name, "1") for name in ("softmax", "row_dot", "outer", "softmax_back")]


def test_symbolic_shapes_are_exported_where_the_call_allows_them(jax, host_jax):
    jnp = jax.numpy
    op = interop.operator(
        "tests_jax_processes::layer",
        interop.elementwise("x * s + 1"),
        "x[..., n], s[..., n] -> [..., n]",
        gradient=lambda g, x, s, y: (g * s, g * x),
    )
    arrays = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n"), "float32")] * 2
    f = jax.jit(jax.grad(lambda x, s: op(x, s).sum(), argnums=(0, 1)))
    exported = jax.export.export(f, platforms=("cpu",), disabled_checks=interop.jax.disabled_checks())(*arrays)
    assert [str(x.shape) for x in exported.out_avals] == ["(b, n)", "(b, n)"]
    for sizes in ((2, 3), (4, 1)):
        x, s = jnp.full(sizes, 2.0), jnp.full(sizes, 3.0)
        by_x, by_s = exported.call(x, s)
        assert by_x.tolist() == s.tolist()
        assert by_s.tolist() == x.tolist()


def test_symbolic_shapes_that_a_function_cannot_take_are_refused_by_name(jax, host_jax, operators_at):
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float64")
        with pytest.raises(NotImplementedError, match=r"x has the symbolic shape \(b, 3\), not supported yet"):
            jax.export.export(jax.jit(operators_at("cpu").softmax))(x)
