"""Dtypes that no array library has, by every reader: a TypeError that names the argument, never other numbers."""

from __future__ import annotations

import array
import ctypes
import itertools

import ml_dtypes
import numpy as np
import pytest
from helpers.boxes import new_box, unpack
from helpers.dlpack import Cai, Fake, OldFake
from helpers.exchange_api import Exchange

import interop

INT, UINT, FLOAT, HANDLE, BFLOAT, COMPLEX, BOOL = range(7)
FLOAT8 = range(7, 15)
POSSIBLE = {
    *itertools.product((INT, UINT), (8, 16, 32, 64)),
    *itertools.product((FLOAT,), (16, 32, 64)),
    *itertools.product((COMPLEX,), (32, 64, 128)),
    *itertools.product((BOOL, *FLOAT8), (8,)),
    (BFLOAT, 16),
}
BITS = (0, 1, 2, 4, 6, 7, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 255)
IMPOSSIBLE = [*itertools.product((FLOAT,), (8, 24, 128)), *itertools.product((COMPLEX,), (8, 16, 24))]
IMPOSSIBLE += [*itertools.product((INT, UINT), (4, 24, 128)), *itertools.product((15, 16, 17), (4, 6, 8))]
IMPOSSIBLE += [*itertools.product((BOOL, 10), (1, 16)), *itertools.product((BFLOAT,), (8, 32)), (HANDLE, 64), (99, 8)]


Box = new_box(name="boxes of test_dtypes", export=unpack)
EXCHANGE = Exchange()

WAYS = {
    "dlpack": Fake,
    "old dlpack": OldFake,
    "capsule": lambda x, **fields: Fake(x, **fields).capsule(),
    "old capsule": lambda x, **fields: Fake(x, **fields).capsule(versioned=False),
    "exchange api": EXCHANGE.array,
    "registered": lambda x, **fields: Box(Fake(x, **fields)),
}
CALLS = {
    "interop.add: a": lambda x: interop.add(x, 1),
    "interop.add: out": lambda x: interop.add(np.ones(2), 1, out=x),
    "interop.matmul: b": lambda x: interop.matmul(np.ones((2, 2)), x),
    "interop.asarray: x": interop.asarray,
    "interop.convert: x": lambda x: interop.convert(x, "interop"),
    r"interop.elementwise\('2 \* y'\): y": lambda x: interop.elementwise("2 * y")(x),
    "interop.testing: the array": interop._core.read,
}


@pytest.mark.parametrize("way", WAYS)
def test_only_dtypes_that_exist_are_read(way):
    """Every code with every width: by `asarray`, which takes more than the operations do."""
    memory = np.zeros(64, "u1")
    taken = set()
    kept = []  # a capsule's destructor is Python here, and must not run while an error is on its way
    for code, bits in itertools.product(range(20), BITS):
        kept.append(WAYS[way](memory, dtype_code=code, dtype_bits=bits, shape=(1,), strides=(1,)))
        try:
            view = interop.asarray(kept[-1])
        except TypeError as error:
            assert str(error).startswith("interop.asarray: x has the unknown ")  # noqa: PT017
        else:
            taken.add((code, bits))
            assert view.dtype[-1] != ")"
    assert taken == POSSIBLE
    EXCHANGE.fakes.clear()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("label", CALLS)
def test_impossible_dtypes_are_refused_by_name(way, label):
    memory = np.zeros(64, "u1")
    for code, bits in IMPOSSIBLE:
        x = WAYS[way](memory, dtype_code=code, dtype_bits=bits, shape=(2,), strides=(1,))
        with pytest.raises(TypeError, match=f"^{label} has the unknown .*; accepted: bool, integers"):
            CALLS[label](x)
    for lanes in (0, 2, 4, 65535):
        x = WAYS[way](memory, dtype_code=FLOAT, dtype_bits=32, dtype_lanes=lanes, shape=(2,), strides=(1,))
        words = rf"has dtype\(code=2, bits=32, lanes={lanes}\); accepted: dtypes of one lane"
        with pytest.raises(TypeError, match=f"^{label} {words}"):
            CALLS[label](x)
    assert not memory.any()
    EXCHANGE.fakes.clear()


@pytest.mark.parametrize(
    "typestr",
    [
        *("<f3", "<f1", "<f0", "<f16", "<f12", "<c4", "<c1", "<c2", "<c3", "<c32", "|b2", "|b0", "<b4"),
        *("<i3", "<i16", "<i0", "<u5", "<V1", "|V2", "|O8", "|S4", "<U1", "<M8", "<m8", "<t4", "<e2"),
        *(">f4", ">i2", ">c8", "<f-4", "<f 4", "<f04 ", "<i256", "<i264", "<u33", "<c264", "f4", "<"),
        *("", "<f", "<4", "\0f4", "<f4\0"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("label", ["interop.add: a", "interop.asarray: x", "interop.testing: the array"])
def test_impossible_typestrs(typestr, label):
    """Refused before CUDA is asked about the pointer, so this needs no GPU."""
    x = Cai(None, shape=(2,), typestr=typestr, data=(4096, False), version=3)
    with pytest.raises(TypeError, match=f"^{label} has the typestr '"):
        CALLS[label](x)


BUFFERS = {
    "long double": np.ones(2, np.longdouble),
    "complex of them": np.ones(2, np.clongdouble),
    "big-endian": np.ones(2, ">f8"),
    "structure": np.zeros(2, "f4,f4"),
    "bytes": np.zeros(2, "S3"),
    "text": np.zeros(2, "U1"),
    "objects": np.zeros(2, object),
    "void": np.zeros(2, "V3"),
    "dates": np.zeros(2, "M8[s]"),
    "int4": np.ones(2, ml_dtypes.int4),
    "uint2": np.ones(2, ml_dtypes.uint2),
    "characters": memoryview(b"ab").cast("c"),
    "pointers": (ctypes.c_void_p * 2)(),
    "long double of C": (ctypes.c_longdouble * 2)(),
    "wide characters": (ctypes.c_wchar * 2)(),
    "big-endian of C": (ctypes.c_int32.__ctype_be__ * 2)(),
    "structure of C": (type("Pair", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_int)]}) * 2)(),
    "text of array": array.array("u", "ab"),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("label", CALLS)
def test_impossible_buffers(name, label):
    with pytest.raises(TypeError, match=f"^{label} is .*; accepted: bool, integers, floats and complex numbers"):
        CALLS[label](BUFFERS[name])


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("kind", ["int", "uint"])
@pytest.mark.parametrize("label", CALLS)
def test_torch_integers_of_less_than_a_byte(kind, bits, label, torch):
    """torch exports them as bytes, whose sums would be something else."""
    x = torch.zeros(2, dtype=torch.uint8).view(getattr(torch, f"{kind}{bits}"))
    with pytest.raises(TypeError, match=f"^{label} is torch.{kind}{bits}; accepted: dtypes of whole bytes"):
        CALLS[label](x)
    assert interop.add(x.view(torch.uint8), 1).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint2", "uint4", "float4_e2m1fn"])
def test_jax_dtypes_of_less_than_a_byte(dtype, host_jax):
    jnp = host_jax.numpy
    x, wide = jnp.ones(2, dtype), jnp.ones(2, "float32")
    for label, call in {
        "interop.add: a": lambda: interop.add(x, x),
        "interop.multiply: b": lambda: interop.multiply(wide, x),
        "interop.abs: x": lambda: interop.abs(x),
        "interop.less: a": lambda: interop.less(x, 1),
        "interop.matmul: a": lambda: interop.matmul(x, x),
        r"interop.elementwise\('p \* q'\): q": lambda: interop.elementwise("p * q")(wide, x),
    }.items():
        for run in (call, host_jax.jit(call)):
            with pytest.raises(TypeError, match=f"^{label} is {dtype}; accepted: bool, int8 to int64"):
                run()
    with pytest.raises((TypeError, BufferError), match=r"^interop.add: b"):
        interop.add(np.ones(2, "u1"), x)
    with pytest.raises(TypeError, match="^interop.add: b is"):
        interop.explain(interop.add, wide, x)


def test_dtypes_that_are_promoted_are_served_themselves():
    """NumPy would promote float8 beside float32, and the kernels read no float8."""
    x = np.ones(2, ml_dtypes.float8_e4m3fn)
    with pytest.raises(TypeError, match="^interop.add: b is float8_e4m3fn; accepted: bool, int8 to int64"):
        interop.add(np.ones(2, "f4"), x)
    with pytest.raises(TypeError, match=r"^interop.elementwise\('p \* q'\): p is float8_e4m3fn; accepted"):
        interop.elementwise("p * q")(x, np.ones(2, "f4"))
