"""What `interop.matmul` refuses of its operands and options, in which words, and that a refusal changes nothing.

Of `out=`: test_errors_of_out.py. Tensors that are more, or less, than their memory: test_errors_of_tensors.py. What
producers refuse, or hand over malformed: test_errors_of_exchange.py.
"""

from __future__ import annotations

import re
import types

import ml_dtypes
import numpy as np
import pytest
from helpers import libraries, machine
from helpers.dlpack import Cai, Fake
from helpers.refusals import ANY_DTYPE, CAI, ones, refused, square

import interop

NOT_AN_ARRAY = "accepted: arrays with DLPack, __cuda_array_interface__, the buffer protocol or __array_interface__"
DTYPES = (
    "accepted: bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, "
    "float8_e4m3fn, float8_e5m2"
)


# ---- not an array ----


class Meters(np.ndarray):
    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented


class NoUfuncs(np.ndarray):
    __array_ufunc__ = None


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], "list"),
        (((1.0, 2.0), (3.0, 4.0)), "tuple"),
        ("12", "str"),
        (b"12345678", "bytes"),
        (None, "NoneType"),
        (2, "int"),
        (2.0, "float"),
        (True, "bool"),
        (1j, "complex"),
        (np.float64(2), "numpy.float64"),
        (np.float32(2), "numpy.float32"),
        (np.str_("a"), "numpy.str_"),
        (np.ndarray, "type"),
        (object(), "object"),
        (iter([1.0]), "list_iterator"),
        (types.SimpleNamespace(shape=(2, 2), dtype=np.dtype("f8")), "types.SimpleNamespace"),
    ],
    ids=lambda value: value if isinstance(value, str) and value != "12" else "",
)
def test_refuses_what_is_no_array(thing, kind):
    refused(TypeError, f"^interop.matmul: a is {kind}; {NOT_AN_ARRAY}", thing, square())
    refused(TypeError, f"^interop.matmul: b is {kind}; {NOT_AN_ARRAY}", square(), thing)
    if thing is not None:
        refused(TypeError, f"^interop.matmul: out is {kind}; {NOT_AN_ARRAY}", square(), square(), out=thing)


WAYS = {
    ("pandas.core.frame", "DataFrame"): "pass {}.to_numpy()",
    ("pandas.core.series", "Series"): "pass {}.to_numpy()",
    ("pandas", "Index"): "pass {}.to_numpy()",
    ("polars.dataframe.frame", "DataFrame"): "pass {}.to_numpy()",
    ("scipy.sparse._csr", "csr_matrix"): "pass {}.toarray()",
    ("cupyx.scipy.sparse._csr", "csr_matrix"): "pass {}.toarray()",
    ("pyarrow.lib", "Table"): "pass {}.to_numpy(",
    ("dask.array.core", "Array"): "pass {}.compute(), or call an interop.operator",
    ("dask.dataframe.core", "DataFrame"): "pass {}.compute().to_numpy(), or use {}.map_partitions(",
    ("xarray.core.dataarray", "DataArray"): "pass {}.data",
    ("h5py._hl.dataset", "Dataset"): "pass {}[...]",
}


@pytest.mark.parametrize("module", WAYS, ids=lambda where: ".".join(where))
def test_what_holds_an_array_is_named_its_way_out(module):
    """By the names of the type, or of a base: no such library is imported."""
    base = type(module[1], (), {"__module__": module[0]})
    for kind in (base, type("Mine", (base,), {"__module__": "mine"})):
        a, b = (re.escape(WAYS[module].replace("{}", name)) for name in "ab")
        refused(TypeError, f"^interop.matmul: a is .*; {NOT_AN_ARRAY}.*; .*{a}", kind(), square())
        with pytest.raises(TypeError, match=f"^interop.add: b is .*; .*{b}"):
            interop.add(square(), kind())
        with pytest.raises(TypeError, match=r"^interop.elementwise\('2 \* b'\): b is .*; .*" + b):
            interop.elementwise("2 * b")(kind())
    lookalike = type(module[1], (), {"__module__": module[0].replace(".", "_") + "x"})
    with pytest.raises(TypeError, match="interop.register$"):
        interop.asarray(lookalike())


def test_sparse_matrices_of_scipy():
    sparse = pytest.importorskip("scipy.sparse")
    for make in (sparse.csr_matrix, sparse.coo_array):
        x = make(square())
        refused(TypeError, r"^interop.matmul: a is scipy.sparse.*pass a.toarray\(\)", x, square())
        assert np.array_equal(interop.matmul(x.toarray(), square()), square() @ square())  # as it says


def test_lists_and_bytes_are_named_their_way_out():
    for thing in ([1.0], (1.0,), range(3)):
        refused(TypeError, r"^interop.matmul: b is .*; pass numpy.asarray\(b\)", square(), thing)
    refused(TypeError, r"^interop.matmul: a is bytes; .*pass numpy.frombuffer\(a, dtype\)", b"1234", square())
    refused(TypeError, "^interop.matmul: a is str; .*; text is no array$", "1234", square())
    with pytest.raises(TypeError, match="a scalar of NumPy is no array"):
        interop.asarray(np.float32(1))


def test_only_what_has_execution_recommends_it():
    with pytest.raises(ValueError, match=r"stream is given.*; accepted: None, or execution='cuda' with it$"):
        interop.add(square(), square(), stream=1)
    with pytest.raises(ValueError, match=r"stream is given.*; accepted: None$"):
        interop._core.read(square(), 1)


def test_only_operands_may_be_arrays_instead(host_library):
    x = host_library.make(np.ones(2, "int8"))
    with pytest.raises(OverflowError, match=r"b is 1000, which int8 cannot hold; .* or an array$"):
        interop.add(x, 1000)
    matrix = host_library.make(np.ones((2, 2), "int8"))
    with pytest.raises(OverflowError, match=r"alpha is 1000, which int8 cannot hold; accepted: a value in its range$"):
        interop.matmul(matrix, matrix, alpha=1000)
    y = host_library.make(np.ones(2, "float32"))
    with pytest.raises(OverflowError, match=r"where_zero is 1.*, which float32 cannot hold; .*: a value in its range$"):
        interop.divide(y, y, where_zero=10**400)


@pytest.mark.parametrize(
    "array",
    [
        np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[1, 0], [0, 0]]),
        square().view(Meters),
        square().view(NoUfuncs),
    ],
    ids=["masked", "units", "no ufuncs"],
)
def test_refuses_subclasses_with_operations_of_their_own(array):
    name = type(array).__name__
    match = rf"is .*{name}, a subclass of numpy.ndarray with operations of its own.*numpy.asarray\(x\)"
    refused(TypeError, "^interop.matmul: a " + match, array, square())
    refused(TypeError, "^interop.matmul: b " + match, square(), array)
    refused(TypeError, "^interop.matmul: out " + match, square(), square(), out=array)


@pytest.mark.parametrize("arguments", [(), (square(),), (square(),) * 3])
def test_refuses_another_number_of_arguments(arguments):
    with pytest.raises(TypeError, match=r"^interop\.matmul: (missing|takes) "):
        interop.matmul(*arguments)


def test_refuses_unknown_keywords():
    with pytest.raises(TypeError, match="alhpa"):
        interop.matmul(square(), square(), alhpa=2)
    with pytest.raises(TypeError, match="positional"):
        interop.matmul(a=square(), b=square())


# ---- dtypes ----


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2fnuz", "float8_e8m0fnu"])
def test_refuses_dtypes_that_it_does_not_serve(name):
    x = square().astype(getattr(ml_dtypes, name))
    refused(TypeError, f"^interop.matmul: a is {name}; {DTYPES}$", x, square())
    refused(TypeError, f"^interop.matmul: b is {name}; {DTYPES}$", square(), x)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_refuses_float8_beside_another_dtype(name, torch):
    x = torch.ones(2, 2).to(getattr(torch, name))
    both = "accepted: two float8 arrays, or none"
    refused(TypeError, f"^interop.matmul: a is {name} and b is float64; {both}$", x, square())
    refused(TypeError, f"^interop.matmul: a is float64 and b is {name}; {both}$", square(), x)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (square().astype(object), "object"),
        (np.zeros((2, 2), [("x", "f8")]), r"\[\('x', '<f8'\)\]"),
        (np.array([["a", "b"]]), "<U1"),
        (np.array([[b"a", b"b"]]), r"\|S1"),
        (np.zeros((2, 2), "M8[s]"), r"datetime64\[s\]"),
        (square().astype(square().dtype.newbyteorder()), "[<>]f8"),
    ],
    ids=["object", "structured", "unicode", "bytes", "datetime", "swapped"],
)
def test_refuses_dtypes_of_no_dlpack_code(array, name):
    refused(TypeError, f"^interop.matmul: a is {name}; {ANY_DTYPE}$", array, square())
    refused(TypeError, f"^interop.matmul: b is {name}; {ANY_DTYPE}$", square(), array)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 on this platform")
def test_refuses_long_double():
    refused(TypeError, f"^interop.matmul: a is float(96|128); {ANY_DTYPE}$", square().astype(np.longdouble), square())


def test_refuses_dtypes_without_a_common_one(torch):
    x = square().astype(ml_dtypes.bfloat16)
    refused(TypeError, "^interop.matmul: numpy has no common dtype of bfloat16 and float16: ", x, square("float16"))


def test_refuses_steps_between_elements():
    odd = np.ndarray((2, 2), "float64", bytearray(64), 0, (17, 8))
    match = "a steps 17 bytes along dimension 0, which is no multiple of its item size 8; copy it first"
    refused(TypeError, match, odd, square())


# ---- shapes ----


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        ((2, 3), (4, 2), "the inner dimensions 3 and 4 differ"),
        ((3,), (4,), "the inner dimensions 3 and 4 differ"),
        ((3,), (4, 3), "the inner dimensions 3 and 4 differ"),
        ((4, 3), (4,), "the inner dimensions 3 and 4 differ"),
        ((2, 0), (1, 2), "the inner dimensions 0 and 1 differ"),
        ((2, 1), (3, 2), "the inner dimensions 1 and 3 differ"),  # 1 does not broadcast here
        ((2, 2, 3), (3, 3, 2), "the batch dimensions 2 and 3 do not broadcast"),
        ((2, 1, 2, 3), (3, 5, 3, 2), "the batch dimensions 2 and 3 do not broadcast"),
        ((0, 2, 3), (2, 3, 2), "the batch dimensions 0 and 2 do not broadcast"),
    ],
)
def test_refuses_shapes_that_do_not_fit(host_library, a, b, what):
    match = "^" + re.escape(f"interop.matmul: a has shape {a} and b has shape {b}: {what}")
    refused(ValueError, match, host_library.make(ones(*a)), host_library.make(ones(*b)))
    with pytest.raises(ValueError):  # as NumPy does
        np.matmul(ones(*a), ones(*b))


def test_refuses_0d_operands(host_library):
    scalar, matrix = host_library.make(np.array(2.0)), host_library.make(square())
    match = r"^interop.matmul: {} is 0-d, shape \(\); accepted: one dimension or more"
    refused(ValueError, match.format("a"), scalar, matrix)
    refused(ValueError, match.format("b"), matrix, scalar)


@pytest.mark.parametrize("shapes", [((2**32, 1), (1, 2**32)), ((2**20, 1, 1, 2**20, 1), (2**20, 2**20, 1, 2**20))])
def test_refuses_results_beyond_all_memory(shapes):
    for library in ("numpy", "interop"):
        a, b = (interop.convert(np.broadcast_to(np.float32(1), shape), library) for shape in shapes)
        refused(ValueError, r"^interop.matmul: the result has shape .*, more elements than any memory$", a, b)


# ---- options ----


@pytest.mark.parametrize("value", ["cutlass", "CUBLAS", "", 1, b"tiled", True, ["tiled"]])
def test_refuses_unknown_backends(host_library, value):
    a = host_library.make(square())
    text = re.escape(repr(value))
    refused(ValueError, f"^interop.matmul: backend is {text}; accepted: None, 'tiled', 'cublas'$", a, a, backend=value)


@pytest.mark.parametrize("value", ["float32", "TF32", "highest", 1, False])
def test_refuses_unknown_precisions(host_library, value):
    a = host_library.make(square())
    match = rf"^interop.matmul: precision is {value!r}; accepted: None \(exact\), 'tf32', 'tf32x3'$"
    refused(ValueError, match, a, a, precision=value)


def test_refuses_tf32x3_of_cublas(host_library):
    a = host_library.make(square())
    match = "^interop.matmul: precision is 'tf32x3', which backend='cublas' does not serve; accepted: precision None or"
    refused(ValueError, match, a, a, backend="cublas", precision="tf32x3")


@pytest.mark.parametrize(
    "value", ["cpu", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:9999", "", 0, b"cuda"]
)
def test_refuses_unknown_executions(host_view_library, value):
    a = host_view_library.make(square())
    match = f"^interop.matmul: execution is {re.escape(repr(value))}; accepted: None, 'cuda', 'cuda:0'"
    refused(ValueError, match, a, a, execution=value)


@pytest.mark.parametrize("value", [0, 1, 2, -1, "1", object()])
def test_refuses_streams_for_host_arrays(host_view_library, value):
    a = host_view_library.make(square())
    refused(ValueError, "^interop.matmul: stream is given, but the arrays are in host memory", a, a, stream=value)


@pytest.mark.parametrize("value", ["tiled", "cublas"])
def test_refuses_backends_for_host_arrays(host_view_library, value):
    a = host_view_library.make(square())
    refused(ValueError, "^interop.matmul: backend is given, but the arrays are in host memory", a, a, backend=value)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_tf32_of_host_arrays_is_exact(host_library, precision):
    a = host_library.make(np.full((2, 2), 1 + 2.0**-12, "float32"))
    one = host_library.make(np.eye(2, dtype="float32"))
    c = interop.matmul(a, one, precision=precision)
    assert np.array_equal(host_library.to_numpy(c), host_library.to_numpy(a))


# ---- without a GPU ----


@pytest.mark.skipif(machine.gpu_count() > 0, reason="this machine has a GPU")
def test_device_calls_without_a_gpu_say_what_is_missing(host_view_library):
    a = host_view_library.make(square())
    out = np.full((2, 2), 7.0)
    asked = "interop.{}: execution='cuda': "
    missing = "(no NVIDIA driver|no CUDA device|the NVIDIA driver|starting|built without)"
    for call, which in (
        (lambda: interop.matmul(a, a, execution="cuda"), asked.format("matmul")),
        (lambda: interop.matmul(a, a, execution="cuda:1", backend="tiled"), asked.format("matmul")),
        (lambda: interop.matmul(square(), square(), execution="cuda", out=out), asked.format("matmul")),
        (lambda: interop.add(a, 1, execution="cuda"), asked.format("add")),
        (lambda: interop.negative(a, execution="cuda"), asked.format("negative")),
        (lambda: interop.explain(interop.add, a, a, execution="cuda"), asked.format("add")),
        (lambda: interop.elementwise("2 * x")(a, execution="cuda"), asked.format("elementwise('2 * x')")),
        (lambda: interop.matmul(Fake(square(), device_type=2), square()), "interop.matmul: "),
        (lambda: interop.matmul(Fake(square(), device_type=13), square()), "interop.matmul: "),
        (lambda: interop.matmul(Cai(None, **CAI), square()), "interop.matmul: "),
        (lambda: interop.add(Cai(None, **CAI), square()), "interop.add: "),
        (lambda: interop.elementwise("2 * x")(Cai(None, **CAI)), "interop.elementwise('2 * x'): "),
        (lambda: interop.asarray(Cai(None, **CAI)), "interop.asarray: "),
        (lambda: interop.convert(Cai(None, **CAI), "numpy"), "interop.convert: "),
    ):
        with pytest.raises(interop.CudaError, match=f"^{re.escape(which)}{missing}"):
            call()
    assert re.match(f"interop: {missing}", interop._core.machine_info()["no_gpu"])
    assert (out == 7).all()
    assert libraries.NumPy().is_ours(interop.matmul(square(), square()))  # host calls go on
