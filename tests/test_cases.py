"""Inputs that broke other libraries, those in host memory; the rest, and the list, are in tests/gpu/cases."""

from __future__ import annotations

import gc
import mmap
import operator
import os
import pickle
import shutil
import subprocess
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers import alone
from helpers.dlpack import Fake

import interop


# numpy/numpy#20742: old capsules cannot say read-only, so the export of such an array was refused.
def test_b46_read_only_arrays():
    a = np.arange(4, dtype="f4").reshape(2, 2)
    a.flags.writeable = False
    assert interop.matmul(a, a).tolist() == [[2, 3], [6, 11]]
    assert interop.matmul(a.__dlpack__(max_version=(1, 0)), a).__dlpack_device__() == (1, 0)


# jax-ml/jax#40789: an import that does not ask for a versioned capsule failed.
def test_b48_read_only_broadcasts():
    a = np.broadcast_to(np.float32(3), (4, 4))
    assert not a.flags.writeable
    assert (interop.matmul(a, np.ones((4, 4), "f4")) == 12).all()


def test_b48_read_only_arrays_beside_jax(host_jax):
    a = np.broadcast_to(np.float32(3), (4, 4))
    c = interop.matmul(host_jax.numpy.ones((4, 4), "float32"), a)
    assert isinstance(c, host_jax.Array)
    assert bool((c == 12).all())


# jax-ml/jax#19352: boolean arrays were refused, or became uint8 on the way.
def test_b50_bool_stays_bool(host_jax, torch):
    m = host_jax.numpy.array([True, False])
    assert interop.asarray(m).dtype == "bool"
    t = interop.convert(m, "torch")
    assert t.dtype is torch.bool
    assert t.tolist() == [True, False]
    for back in (interop.convert(t, "jax"), interop.convert(t, "numpy"), np.asarray(interop.asarray(t))):
        assert back.dtype == bool
        assert back.tolist() == [True, False]


# dmlc/dlpack#156: float8 was sent as uint8, losing its meaning.
def test_b53_float8_stays_float8(jax, torch):
    t = torch.tensor([1.0, 2.0, 448.0]).to(torch.float8_e4m3fn)
    x = interop.convert(t, "numpy")
    assert x.dtype == ml_dtypes.float8_e4m3fn
    assert x.astype("f4").tolist() == [1, 2, 448]
    assert interop.convert(x, "torch").dtype is torch.float8_e4m3fn
    eights = jax.numpy.ones(64, "float8_e4m3fn")
    assert interop.convert(interop.convert(eights, "torch"), "jax").dtype == ml_dtypes.float8_e4m3fn
    assert interop.matmul(x, x).dtype == ml_dtypes.bfloat16


# dmlc/dlpack#97: bytes of big-endian data were read in the wrong order.
def test_b54_byte_order():
    a = np.arange(4, dtype=np.dtype("f4").newbyteorder()).reshape(2, 2)
    with pytest.raises(TypeError, match="a is [<>]f4; accepted: .* in native byte order"):
        interop.matmul(a, a)


# ---- gradients, storages and modes of PyTorch ----


WRITES = {
    "add": lambda torch, y: interop.add(y, 4.0, out=y),
    "add, to a part": lambda torch, y: interop.add(torch.ones(2), 1.0, out=y[:2]),
    "aux of matmul": lambda torch, y: interop.matmul(torch.eye(3), torch.ones(3), epilogue="relu", aux=y),
    "expression": lambda torch, y: interop.elementwise("x + 4")(y, out=y),
}


def saved_value_changed_by(torch, write):
    """Change a value that autograd has saved, then ask for the gradient."""
    w = torch.ones(3, requires_grad=True)
    y = torch.full((3,), 2.0)
    z = (w * y).sum()
    write(torch, y)
    z.backward()


# pytorch/pytorch#96852: a kernel wrote by a pointer, and autograd used the new values in silence.
@pytest.mark.parametrize("write", WRITES)
def test_b91_writes_are_noticed_by_autograd(torch, write):
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, WRITES[write])


VIEWED_WRITES = {
    "add": lambda y: interop.add(np.full(3, 5, "f4"), 1.0, out=interop.asarray(y)),
    "add, to a view of a view": lambda y: interop.add(
        np.full(3, 5, "f4"), 1.0, out=interop.asarray(interop.asarray(y))
    ),
    "add, to a part": lambda y: interop.add(np.full(2, 5, "f4"), 1.0, out=interop.asarray(y[1:])),
    "matmul": lambda y: interop.matmul(np.eye(3, dtype="f4"), np.ones(3, "f4"), out=interop.asarray(y)),
    "expression": lambda y: interop.elementwise("x + 4")(np.ones(3, "f4"), out=interop.asarray(y)),
}


# pytorch/pytorch#14571: a write by a way that did not count as one gave a wrong gradient without an error.
@pytest.mark.parametrize("write", VIEWED_WRITES)
def test_b92_writes_through_a_view_are_noticed_by_autograd(torch, write):
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, lambda torch, y: VIEWED_WRITES[write](y))


def test_b92_reading_a_view_is_no_write(torch):
    saved_value_changed_by(torch, lambda torch, y: interop.add(interop.asarray(y), 1.0))


# pytorch/pytorch#179422: the compiler gave a custom operator reinterpreted views, which it could not read.
def test_b94_a_custom_operator_around_a_product(torch):
    @torch.library.custom_op("interop_cases::mm", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
    def mm(a, b):
        return interop.matmul(a, b)

    @mm.register_fake
    def _(a, b):
        return a.new_empty(a.shape[0], b.shape[1])

    def f(x):
        y = (x * 2).t()
        return mm(y[:, ::2], (x + 1)[::2]).relu()

    x = torch.arange(12.0).reshape(4, 3)
    expected = ((x * 2).t()[:, ::2] @ (x + 1)[::2]).relu()
    assert torch.equal(torch.compile(f, backend="aot_eager", fullgraph=True)(x), expected)
    torch.library.opcheck(mm, (x.t(), x))


# pytorch/pytorch#180620: an operator that returned a view of its argument was refused.
def test_b95_results_are_new_memory_and_outputs_are_said_to_be_mutated(torch):
    @torch.library.custom_op("interop_cases::into", mutates_args=("out",), schema="(Tensor a, Tensor(a!) out) -> ()")
    def into(a, out):
        interop.add(a, 1.0, out=out)

    @into.register_fake
    def _(a, out):
        return None

    def f(x):
        out = torch.empty_like(x)
        into(x, out)
        return out * 2

    x = torch.arange(3.0)
    assert torch.compile(f, backend="aot_eager", fullgraph=True)(x).tolist() == [2, 4, 6]
    torch.library.opcheck(into, (x, torch.empty(3)))
    y = interop.add(x, 0.0)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


# pytorch/pytorch#195862: a parameter whose storage had been freed was read at address 0.
@pytest.mark.parametrize(
    "call",
    [
        lambda torch, t: interop.add(t, 1.0),
        lambda torch, t: interop.add(torch.ones(4), 1.0, out=t),
        lambda torch, t: interop.matmul(t, t),
        lambda torch, t: interop.asarray(t),
        lambda torch, t: interop.elementwise("x + 1")(t),
    ],
)
def test_b97_a_freed_storage(torch, call):
    t = torch.ones(4)
    t.untyped_storage().resize_(0)
    with pytest.raises((TypeError, BufferError, ValueError), match=r"^interop\.\w+(\('x \+ 1'\))?: (a|x|out)\b"):
        call(torch, t)


# zdevito/ATen#84: a storage was resized while another library looked at it: freed memory was read. Such an exporter
# refuses to be resized (torch after `t.numpy()`), or the view keeps the memory that it was made from.
def test_b98_a_storage_resized_under_a_view(torch, tmp_path):
    alone.run(
        """
        import gc
        import torch

        N = 1 << 22
        WAYS = {
            "resize_": lambda t: t.resize_(4 * N),
            "resize_ of its storage": lambda t: t.untyped_storage().resize_(16 * N),
            "a storage of no bytes": lambda t: t.untyped_storage().resize_(0),
            "set_": lambda t: t.set_(torch.zeros(4)),
            "data": lambda t: setattr(t, "data", torch.zeros(4)),
        }
        for name, change in WAYS.items():
            t = torch.full((N,), 3.0)
            view = interop.asarray(t)
            try:
                change(t)
            except RuntimeError as error:
                assert "resiz" in str(error), error
            gc.collect()
            junk = [torch.full((N,), 9.0) for _ in range(4)]
            assert (np.asarray(view) == 3).all(), name
        """,
        tmp_path,
    )


# wjakob/nanobind#930: an object that held an ndarray, kept on what the ndarray belonged to, was never collected.
@pytest.mark.parametrize(
    "look",
    [
        interop.asarray,
        lambda t: interop.asarray(interop.asarray(t)),
        lambda t: interop.convert(t, "interop"),
        lambda t: interop.convert(t, "numpy"),
        lambda t: (interop.asarray(t), interop.asarray(t[1:])),
    ],
    ids=["asarray", "asarray of asarray", "convert", "convert to NumPy", "two views"],
)
def test_b100_a_cycle_of_a_tensor_and_its_view(torch, look):
    t = torch.ones(3)
    alive = weakref.ref(t)
    t.view_ = look(t)
    del t
    gc.collect()
    assert alive() is None


# pytorch/pytorch#79085: inside autocast some operands of a custom operator were half, some not.
def test_b102_autocast(torch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert interop.matmul(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
        assert interop.add(torch.ones(2), torch.ones(2)).dtype is torch.float32


# pytorch/pytorch#126533: a library's own helpers made their tensors on the default device.
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_b103_the_default_device(torch, tmp_path, device):
    alone.run(
        f"""
        import torch

        torch.set_default_device("{device}")
        a = torch.ones(3, device="cpu", dtype=torch.int16)
        results = [
            interop.subtract(a, 1.5), interop.subtract(1.5, a), interop.divide(a, 2), interop.multiply(a, 2.5 + 0j),
            interop.add(a, torch.tensor(0.5, device="cpu")), interop.elementwise("x - 1.5")(a),
            interop.matmul(a.double(), torch.ones(3, 3, device="cpu", dtype=torch.float64)),
        ]
        assert all(result.device.type == "cpu" for result in results), results
        values = [result.tolist() for result in results]
        assert values == [[-0.5] * 3, [0.5] * 3, [0.5] * 3, [2.5] * 3, [1.5] * 3, [-0.5] * 3, [3] * 3], values
        """,
        tmp_path,
    )


# ---- numbers ----

COMPARISONS = {
    "equal": ("==", operator.eq),
    "not_equal": ("!=", operator.ne),
    "less": ("<", operator.lt),
    "less_equal": ("<=", operator.le),
    "greater": (">", operator.gt),
    "greater_equal": (">=", operator.ge),
}


# pytorch/pytorch#178723, a cousin of it: a wide 0-d integer was cast to the dtype of the array, and wrapped.
@pytest.mark.parametrize("wide", [300, -300, 2**40])
def test_b105_a_wide_integer_of_no_dimensions_beside_a_narrow_array(torch, wide):
    values = [44, 1, -128, 127]
    a, s = torch.tensor(values, dtype=torch.int8), torch.tensor(wide)
    for name, (sign, compare) in COMPARISONS.items():
        want = [compare(value, wide) for value in values]
        assert getattr(interop, name)(a, s).tolist() == want
        assert getattr(interop, name)(s, a).tolist() == [compare(wide, value) for value in values]
        assert interop.elementwise(f"x {sign} y")(a, s).tolist() == want
    assert interop.equal(a, torch.tensor(44)).tolist() == [True, False, False, False]


# cupy/cupy#9753: uint64 beside a number above int64 was an OverflowError; beside signed integers it was wrong.
def test_b107_uint64_is_compared_exactly():
    a = np.array([0, 2**63, 2**64 - 1], "u8")
    assert interop.equal(a, 2**64 - 1).tolist() == [False, False, True]
    assert interop.greater_equal(2**63, a).tolist() == [True, True, False]
    assert interop.less(a, np.array([-1, -1, -1])).tolist() == [False] * 3


# jax-ml/jax#27021: uint32 beside int32 became int32 in 32-bit mode, and wrapped.
def test_b108_uint32_beside_int32_in_jax(host_jax):
    jnp = host_jax.numpy
    u, z = jnp.array([2147483647, 2147483648], jnp.uint32), jnp.array([0, 0], jnp.int32)
    for less in (interop.less, host_jax.jit(interop.less), interop.elementwise("x < y")):
        assert less(u, z).tolist() == [False, False]


# tinygrad/tinygrad#3186: float16 beside a Python number became float32.
def test_b110_maximum_of_a_narrow_float_and_a_number(torch):
    assert interop.maximum(np.array([1, 2], "f2"), 3.1).dtype == np.float16
    assert interop.maximum(torch.ones(2, dtype=torch.bfloat16), 3.1).dtype is torch.bfloat16
    assert np.isnan(interop.minimum(np.array([np.nan, 1.0]), np.array([0.0, np.nan]))).all()


# pydata/numexpr#428: the exponent -2.0 of an integer became an integer: zeros.
def test_b111_float_literals_stay_floats():
    result = interop.elementwise("x ** -2.0")(np.array([2, 4], "i4"))
    assert result.dtype == np.float64
    assert result.tolist() == [0.25, 0.0625]
    assert interop.elementwise("x ** -2")(np.array([2, 1, -1], "i4")).tolist() == [0, 1, 1]
    assert interop.elementwise("x ** 2.0")(np.array([3], "i2")).dtype == np.float64


# pydata/numexpr#415: constants of one value and two types were merged. Here `a * 1` is an integer and `a * 1.0` is not.
def test_b112_equal_constants_of_two_types_are_not_merged():
    x, y, a = np.array([1], "i1"), np.array([100], "i1"), 3
    want = interop.add(interop.multiply(x, a * 1), interop.multiply(y, a * 1.0))
    got = interop.elementwise("x * (a * 1) + y * (a * 1.0)")(x, a, y)
    assert got.dtype == want.dtype == np.float64
    assert got.tolist() == want.tolist() == [303.0]


# numpy/numpy#21506: the least integer by -1 trapped, or gave anything.
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_b114_the_least_integer_by_minus_one(host_jax, torch, name):
    least = np.array([-(2**31)], "i4")
    x = {"numpy": lambda: least, "torch": lambda: torch.from_numpy(least), "jax": lambda: host_jax.numpy.array(least)}
    x = x[name]()
    with np.errstate(over="ignore"):  # NumPy warns of it
        assert interop.floor_divide(x, -1).tolist() == [-(2**31)]
    assert interop.remainder(x, -1).tolist() == [0]
    assert interop.abs(x).tolist() == [-(2**31)]


# IntelPython/dpctl#1652: x // x was 0 on a GPU. The same on the device is in tests/gpu/cases.
def test_b116_x_floor_divided_by_x():
    x = np.arange(1, 4097, dtype="f4")
    assert (interop.floor_divide(x, x) == 1).all()
    assert (interop.remainder(x * 3, x) == 0).all()
    assert (interop.elementwise("x // y")(x, x) == 1).all()


# ---- modes of JAX ----


# jax-ml/jax#25299: the second run of a computation, which looks for the NaN, broke.
@pytest.mark.parametrize("name", ["divide", "multiply", "remainder", "matmul", "expression"])
def test_b118_debug_nans(host_jax, name):
    jnp = host_jax.numpy
    infinite, zero = jnp.full((2, 2), jnp.inf), jnp.zeros((2, 2))
    call = {
        "divide": lambda: interop.divide(zero, zero),
        "multiply": lambda: interop.multiply(infinite, zero),
        "remainder": lambda: interop.remainder(infinite, zero),
        "matmul": lambda: interop.matmul(infinite, zero),
        "expression": lambda: interop.elementwise("x / y")(zero, zero),
    }[name]
    with host_jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        call()


def test_b118_debug_infs(host_jax):
    jnp = host_jax.numpy
    with host_jax.debug_infs(True):
        with pytest.raises(FloatingPointError, match="inf"):
            interop.divide(jnp.ones(2), jnp.zeros(2))
        with pytest.raises(FloatingPointError, match="inf"):
            interop.matmul(jnp.full((2, 2), 2e38), jnp.full((2, 2), 2.0))
        assert interop.divide(jnp.ones(2), jnp.ones(2)).tolist() == [1, 1]


# jax-ml/jax#5532: what was compiled in one mode ran in the other. (The case divides an int32 array in 64-bit mode, of
# which jax.numpy makes float32: here the integers are those of the mode.)
def test_b119_64_bit_mode_on_and_off(host_jax):
    f = interop.elementwise("x / 3 + sqrt(x)")
    narrow = host_jax.numpy.arange(4, dtype="int32")
    for wide in (False, True, False, True):
        with host_jax.enable_x64(wide):
            want = "float64" if wide else "float32"
            x = host_jax.numpy.arange(4)
            assert interop.divide(x, 2).dtype == want
            assert f(x).dtype == want
            assert interop.add(narrow, 0.5).dtype == want


# ---- C functions ----


@pytest.fixture
def build(tmp_path):
    """Compile C to a shared library in `tmp_path`, and return its path."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(source, name="lib.so"):
        (tmp_path / "source.c").write_text(source)
        command = [*compiler.split(), "-shared", "-fPIC", tmp_path / "source.c", "-o", tmp_path / name]
        subprocess.run(command, check=True)
        return tmp_path / name

    return build


# PowerGridModel/power-grid-model#722: an output of another size was filled in part, or written beyond its end.
@pytest.mark.parametrize(
    "made", [lambda: np.zeros(8, "f4")[:2], lambda: np.zeros(8, "f4"), lambda: np.zeros((4, 1), "f4")]
)
def test_b121_outputs_of_another_shape(build, made):
    library = build("void twice(const float* a, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = 2 * a[i]; }")
    declaration = "void twice(const float* a, float* c, int n);"
    twice = interop.load(library, declaration, memory="host").twice.returning(c="a")
    given = made()
    whole = given if given.base is None else given.base
    with pytest.raises(ValueError, match=r"^lib\.twice: c\b.*\(4,\)"):
        twice(np.ones(4, "f4"), 4, c=given)
    assert not whole.any()
    right = np.zeros(4, "f4")
    assert twice(np.ones(4, "f4"), 4, c=right) is right
    assert right.tolist() == [2] * 4


# nagisa/rust_libloading#135: a library rebuilt at the same path was the old one in silence. The system's loader cannot
# give the new one while the old one is in use, so an error that says so is right, too.
def test_b122_a_library_that_was_rebuilt(build):
    path = build("int v(void) { return 1; }")
    old = interop.load(path, "int v(void);")
    assert old.v() == 1
    path.unlink()
    build("int v(void) { return 2; }")
    try:
        new = interop.load(path, "int v(void);").v()
    except (OSError, RuntimeError, UserWarning) as error:
        new = str(error)
    assert new == 2 or "lib.so" in str(new)
    assert old.v() == 1


# root-project/root#569: a path was looked for in the system's folders.
@pytest.mark.parametrize("path", ["./libm.so.6", Path("./libm.so.6"), Path("libm.so.6")], ids=repr)
def test_b123_a_relative_path_is_a_file(build, tmp_path, monkeypatch, path):
    build("double cos(double x) { return 99; }", "libm.so.6")
    monkeypatch.chdir(tmp_path)
    assert interop.load(path, "double cos(double x);").cos(0.0) == 99


# pepijndevos/futhark-pycffi#15: a parser of declarations stopped at the block of a header.
def test_b124_a_headers_extern_c_block(build):
    path = build("int three(void) { return 3; }")
    try:
        three = interop.load(path, 'extern "C" {\nint three(void);\n}').three()
    except ValueError as error:
        three = str(error)
    assert three == 3 or 'extern "C"' in str(three)


# cupy/cupy#8485: the bits of a Python float were read as those of another type.
def test_b126_numbers_are_converted_to_the_declared_type(build):
    source = "float half(float x) { return x / 2; } double same(double x) { return x; } int id(int x) { return x; }"
    lib = interop.load(build(source), "float half(float x); double same(double x); int id(int x);")
    assert lib.half(3) == 1.5
    assert lib.half(np.float64(3)) == 1.5
    assert lib.half(float("inf")) == float("inf")
    assert lib.same(1e300) == 1e300
    for function, number in (("id", 2**31), ("half", 10**400), ("half", 1e300), ("half", -1e39), ("same", 10**400)):
        with pytest.raises(OverflowError, match=rf"^lib\.{function}: x is .* cannot hold"):
            getattr(lib, function)(number)


# robol/MPSolve#5: without declared types 64-bit numbers were cut to 32 bits.
def test_b128_widths_of_parameters_and_results(build):
    parameters = (
        "int a, double b, float c, int64_t d, char e, double f, float g, int h, int i, int j, double k, double l, "
        "double m, double n, double o"
    )
    total = " + ".join(f"{name} * {2**i}.0" for i, name in enumerate("abcdefghijklmno"))
    source = f"""
    #include <stdint.h>
    int64_t id(int64_t x) {{ return x; }}
    uint64_t big(void) {{ return -1; }}
    double mix({parameters}) {{ return {total}; }}
    """
    lib = interop.load(build(source), f"int64_t id(int64_t x); double mix({parameters}); uint64_t big(void);")
    assert lib.id(-(2**63)) == -(2**63)
    assert lib.big() == 2**64 - 1
    assert lib.mix(*[1] * 15) == 2**15 - 1


# uqfoundation/pathos#307: C functions could not be pickled.
def test_b129_functions_are_pickled_by_what_they_are_made_of(build):
    def again(x):
        return pickle.loads(pickle.dumps(x))

    lib = interop.load(build("int id(int x) { return x; }"), "int id(int x);")
    assert again(lib.id)(4) == 4
    assert again(lib).id(5) == 5
    assert again(interop.elementwise("x + 1"))(np.ones(2)).tolist() == [2, 2]
    kernel = interop.kernel("__global__ void k(float* x, int n) {}", "k", threads="x")
    assert "float* x" in repr(again(kernel))
    assert repr(again(kernel)) == repr(kernel)


# ---- buffers and capsules ----


# numpy/numpy#32697: a rejected capsule's destructor ran with the error pending: SystemError, and a leak.
@pytest.mark.parametrize(
    "call",
    [lambda f: interop.add(f, 1.0), lambda f: interop.matmul(np.ones((2, 4), "f4"), f), lambda f: interop.asarray(f)],
)
def test_b131_capsules_of_a_dtype_that_is_not_served(call):
    fake = Fake(np.ones(4, "f4"), dtype_code=99)
    with pytest.raises((TypeError, BufferError), match="^interop"):
        call(fake)
    gc.collect()
    assert fake.exported == 1
    assert fake.balanced


# capnproto/pycapnp#280: the export of a buffer was never released: it could not be resized or closed.
def test_b132_buffers_are_let_go_after_the_call():
    buffer = bytearray(16)
    interop.add(memoryview(buffer).cast("d"), 1.0)
    buffer.append(1)
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(memoryview(buffer)[:16].cast("d"), np.ones((3, 3)))
    buffer.append(1)
    mapped = mmap.mmap(-1, 64)
    view = interop.asarray(memoryview(mapped).cast("f"))
    result = interop.add(view, 1.0)
    del view
    mapped.close()
    assert np.asarray(result).tolist() == [1] * 16


# numpy/numpy#25941: `copy` was not known, or a copy was made where none was allowed.
def test_b134_array_and_its_copy_keyword():
    x = np.arange(3.0)
    view = interop.asarray(x)
    assert np.shares_memory(np.asarray(view), x)
    assert not np.shares_memory(np.array(view, copy=True), x)
    assert np.shares_memory(np.asarray(view, copy=False), x)
    assert np.asarray(view, dtype="f4").dtype == "f4"
    with pytest.raises(ValueError, match="copy"):
        np.asarray(view, dtype="f4", copy=False)


# python/cpython#148675: the format of complex numbers has two letters.
@pytest.mark.parametrize(("letter", "name"), [("F", "complex64"), ("D", "complex128")])
def test_b135_complex_buffers(letter, name):
    array = interop.asarray(memoryview(np.array([1j, 2], letter)))
    assert array.dtype == name
    assert np.asarray(interop.add(array, 1)).tolist() == [1 + 1j, 3]


# numpy/numpy#9049: structured, byte-swapped or misaligned data was misread.
@pytest.mark.parametrize(
    "x",
    [
        np.zeros(3, [("c", "u1"), ("f", "f4")]),
        np.zeros(3, [("c", "u1"), ("f", "f4")])["f"],
        np.arange(3, dtype=np.dtype("i4").newbyteorder()),
        np.array(["a"]),
        np.ones(2, object),
        np.ones(2, "M8[s]"),
        np.ones(2, np.longdouble),
    ],
    ids=lambda x: str(x.dtype),
)
def test_b137_what_is_no_plain_numbers(x):
    for call in (lambda: interop.add(x, 1), lambda: interop.asarray(x)):
        with pytest.raises(TypeError, match=r"^interop\.(add: a|asarray: x)\b"):
            call()


# ---- processes ----


# mitsuba-renderer/drjit#116: a native library in a forked child crashed, or hung. Here the child, and each kind of
# pool, computes and ends.
def test_b138_forks_and_pools(tmp_path):
    out = alone.run(
        """
        import multiprocessing
        import os
        import time

        if __name__ == "__main__":
            interop.add(np.ones(2), 1)
            interop.matmul(np.eye(2), np.eye(2))
            child = os.fork()
            if child == 0:
                interop.matmul(np.eye(2), np.eye(2))
                interop.elementwise("x + 1")(np.ones(2))
                os._exit(7)
            ended = status = 0
            for _ in range(600):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                time.sleep(0.05)
            assert ended, "the child hangs"
            assert os.waitstatus_to_exitcode(status) == 7
            for kind in multiprocessing.get_all_start_methods():
                with multiprocessing.get_context(kind).Pool(2) as pool:
                    results = [pool.apply_async(interop.add, (np.ones(2), i)) for i in range(4)]
                    assert [r.get(60).tolist() for r in results] == [[1 + i] * 2 for i in range(4)], kind
                    pool.close()
                    pool.join()
                print(kind)
        """,
        tmp_path,
    )
    assert "fork" in out.split()


# NVIDIA/cudf#6602: a package for GPUs failed at its import where there is none.
def test_b140_no_gpu(tmp_path):
    out = alone.run(
        """
        assert interop.add(np.ones(2), 1)[0] == 2
        try:
            interop.matmul(np.eye(2), np.eye(2), execution="cuda")
        except interop.CudaError as error:
            print("CudaError:", error)
        """,
        tmp_path,
        CUDA_VISIBLE_DEVICES="",
    )
    assert out.startswith("CudaError: ")
