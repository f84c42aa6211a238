"""What `interop.matmul` refuses, in which words, and that a refusal changes nothing."""

from __future__ import annotations

import gc
import re
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from helpers import libraries, machine
from helpers.dlpack import ABSENT, Cai, Fake, OldFake

import interop

NOT_AN_ARRAY = "accepted: arrays with DLPack, __cuda_array_interface__, the buffer protocol or __array_interface__"
DTYPES = (
    "accepted: bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, "
    "float8_e4m3fn, float8_e5m2"
)
ANY_DTYPE = "accepted: bool, integers, floats and complex numbers in native byte order"


def square(dtype="float64"):
    return np.array([[1, 2], [3, 4]], dtype)


def ones(*shape):
    return np.ones(shape)


def refused(exception, match, *arrays, **options):
    """The call raises exactly this; afterwards `out` and all reference counts are as they were."""
    out = options.get("out")
    values = out.copy() if isinstance(out, np.ndarray) else None
    everything = [x for x in (*arrays, *options.values()) if type(x) not in (type(None), bool, int, float, str)]

    def call():
        try:  # not pytest.raises, whose record of the traceback would hold the arguments
            interop.matmul(*arrays, **options)
        except exception as error:
            return type(error), str(error)
        pytest.fail(f"not refused; expected {exception.__name__}: {match}")

    def counts():
        return [sys.getrefcount(x) for x in everything]

    kind, message = call()  # the first one may fill caches
    assert kind is exception
    assert re.search(match, message), message
    gc.collect(0)
    before = counts()
    assert call() == (kind, message)
    if counts() != before:
        gc.collect()  # JAX's errors are in cycles
    assert counts() <= before
    if values is not None:
        assert out.tobytes() == values.tobytes()
    for x in everything:
        if isinstance(x, Fake):
            assert x.balanced
    assert interop._core.held_count() == 0


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
    ("dask.array.core", "Array"): "pass {}.compute(), or use {}.map_blocks(",
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


# ---- out= ----


def test_refuses_out_of_another_shape(host_view_library):
    a = host_view_library.make(square())
    for shape in ((2, 3), (2,), (1, 2, 2), (4,), ()):
        text = re.escape(str(shape))
        out = host_view_library.make(np.full(shape, 7.0))
        refused(ValueError, rf"^interop.matmul: out has shape {text}; accepted: .* \(2, 2\)$", a, a, out=out)
        assert (host_view_library.to_numpy(out) == 7).all()


@pytest.mark.parametrize("shapes", [((2**32, 1), (1, 2**32)), ((2**20, 1, 1, 2**20, 1), (2**20, 2**20, 1, 2**20))])
def test_refuses_results_beyond_all_memory(shapes):
    for library in ("numpy", "interop"):
        a, b = (interop.convert(np.broadcast_to(np.float32(1), shape), library) for shape in shapes)
        refused(ValueError, r"^interop.matmul: the result has shape .*, more elements than any memory$", a, b)


def test_refuses_out_of_another_dtype(host_view_library):
    a = host_view_library.make(square())
    for name in ("float32", "int64", "complex128"):
        out = host_view_library.make(np.full((2, 2), 7, name))
        refused(TypeError, f"^interop.matmul: out is {name}; accepted: the result's dtype, float64$", a, a, out=out)
        assert (host_view_library.to_numpy(out) == 7).all()


@pytest.mark.parametrize(
    "freeze",
    [
        lambda x: x.setflags(write=False) or x,
        lambda x: memoryview(x).toreadonly(),
        lambda x: Fake(x, flags=1),
        lambda x: memoryview(bytes(x.tobytes())).cast("d", (2, 2)),
    ],
    ids=["numpy", "memoryview", "dlpack", "bytes"],
)
def test_refuses_out_that_is_read_only(freeze):
    memory = np.full((2, 2), 7.0)
    out = freeze(memory)
    refused(TypeError, r"^interop.matmul: out .*is read-only; accepted: a writable array", square(), square(), out=out)
    assert (memory == 7).all()


def test_refuses_out_of_jax(jax):
    out = jax.numpy.zeros((2, 2), "float32")
    x = square("float32")
    refused(TypeError, "^interop.matmul: out is .*, which is immutable", x, x, out=out)
    refused(TypeError, "^interop.matmul: out.* JAX arrays, which are immutable", out, out, out=out)
    assert not out.any()


@pytest.mark.parametrize("name", ["a", "b"])
def test_refuses_out_that_is_an_operand(host_view_library, name):
    out, other = host_view_library.make(square()), host_view_library.make(square())
    arrays = (out, other) if name == "a" else (other, out)
    refused(ValueError, f"^interop.matmul: out shares memory with {name}, ", *arrays, out=out)
    assert np.array_equal(host_view_library.to_numpy(out), square())


@pytest.mark.parametrize(
    "windows",
    [
        (np.s_[:, 0:4], np.s_[:, 3:7]),
        (np.s_[0:3, 0:3], np.s_[2:5, 2:5]),
        (np.s_[::2, ::2][:0] or np.s_[0:4:2, ::2], np.s_[0:2, 0:4]),
    ],
    ids=["columns", "corner", "interleaved"],
)
def test_refuses_out_that_overlaps_an_operand(host_view_library, windows):
    base = np.arange(56.0).reshape(7, 8)
    made = host_view_library.make(base)
    first, second = (host_view_library.view_of(made, base, base[window]) for window in windows)
    ours = np.matmul(base[windows[0]], np.ones((first.shape[1], second.shape[1])))
    other = host_view_library.make(np.ones((first.shape[1], second.shape[1])))
    assert ours.shape == tuple(second.shape), "the test itself"
    refused(ValueError, "^interop.matmul: out shares memory with a, ", first, other, out=second)
    assert np.array_equal(host_view_library.to_numpy(made), base)


def test_refuses_out_that_overlaps_an_operand_across_libraries(torch):
    x = square()
    refused(ValueError, "^interop.matmul: out shares memory with b, ", square(), torch.from_numpy(x), out=x)
    assert np.array_equal(x, square())


@pytest.mark.parametrize(
    ("elements", "steps"),
    [(1, (0, 0)), (2, (0, 1)), (2, (1, 0)), (3, (1, 1))],
    ids=["one", "rows", "columns", "windows"],
)
def test_refuses_out_whose_elements_share_memory(host_view_library, elements, steps):
    base = np.full(elements, 7.0)
    view = np.lib.stride_tricks.as_strided(base, (2, 2), tuple(8 * step for step in steps))
    made = host_view_library.make(base)
    out = host_view_library.view_of(made, base, view)
    a = host_view_library.make(square())
    refused(ValueError, "^interop.matmul: out .*has elements that share memory", a, a, out=out)
    assert (host_view_library.to_numpy(made) == 7).all()


# ---- torch tensors that are more, or less, than their memory ----


@pytest.fixture
def tensor(torch):
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_refuses_tensors_that_require_grad(torch, tensor):
    leaf = tensor.clone().requires_grad_()
    product = leaf * 2
    parameter = torch.nn.Parameter(tensor.clone())
    match = (
        r"requires grad, and interop has no derivative to record; pass {}.detach\(\), or call under torch.no_grad\(\)"
    )
    for x in (leaf, product, parameter):
        refused(BufferError, "^interop.matmul: a " + match.format("a"), x, tensor)
        refused(BufferError, "^interop.matmul: b " + match.format("b"), tensor, x)
        refused(BufferError, "^interop.matmul: out " + match.format("out"), tensor, tensor, out=x)
        expected = (x.detach() @ tensor).tolist()
        with torch.no_grad():
            c = interop.matmul(x, tensor)
            assert c.tolist() == expected
        assert not c.requires_grad
        with torch.inference_mode():
            assert interop.matmul(x, tensor).tolist() == expected
        assert interop.matmul(x.detach(), tensor).tolist() == expected


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_counts_what_is_written(torch, device):
    """As its own functions do: a backward pass that needs the old values must not use the new ones."""
    if device == "cuda":
        machine.need_gpu()
    x = torch.full((2, 2), 2.0, device=device)
    weight = torch.ones((2, 2), device=device, requires_grad=True)
    writers = (
        lambda out: interop.add(x, x, out=out),
        lambda out: interop.matmul(x, x, out=out),
        lambda out: interop.matmul(x, x, epilogue="relu", aux=out),
        lambda out: interop.elementwise("2 * x")(x, out=out),
    )
    for write in writers:
        saved = torch.ones((2, 2), device=device)
        loss = (weight * saved).sum()
        before = x._version, saved._version
        write(saved)
        assert (x._version, saved._version) == (before[0], before[1] + 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():  # whose tensors have no count
        assert float(interop.add(x, x, out=torch.ones((2, 2), device=device))[0, 0]) == 4


def test_refuses_functions_of_torch_func(torch, tensor):
    stack = tensor.expand(3, 2, 2)
    with pytest.raises((TypeError, RuntimeError), match="no memory of its own"):  # B65: not a BufferError
        torch.vmap(lambda x: interop.matmul(x, x))(stack)
    with pytest.raises(BufferError, match="requires grad"):
        torch.func.grad(lambda x: interop.matmul(x, x).sum())(tensor)
    with pytest.raises(TypeError, match="forward-mode tangent"):
        torch.func.jvp(lambda x: interop.matmul(x, x), (tensor,), (tensor,))
    with pytest.raises(TypeError, match="no memory of its own"):
        torch.func.functionalize(lambda x: interop.matmul(x, x))(tensor)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, at first use
def test_refuses_forward_mode_duals(torch, tensor):
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, torch.ones(2, 2))
        match = r"carries a forward-mode tangent.*unpack_dual\(x\).primal"
        refused(TypeError, "^interop.matmul: a " + match, dual, tensor)
        refused(TypeError, "^interop.matmul: b " + match, tensor, dual)
        refused(TypeError, "^interop.matmul: out " + match, tensor, tensor, out=dual)
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]  # no dual among them
    assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]


def test_refuses_fake_tensors(torch, tensor):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 2)
        with pytest.raises(TypeError, match="^interop.matmul: a"):
            interop.matmul(tensor, tensor)  # real memory, but the mode asked for none to be touched
    refused(TypeError, "^interop.matmul: a is .*FakeTensor, a subclass of torch.Tensor", fake, tensor)
    refused(TypeError, "^interop.matmul: b is .*FakeTensor, a subclass of torch.Tensor", tensor, fake)


def test_refuses_dispatch_modes(torch, tensor):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Counts(), pytest.raises(TypeError, match="a torch dispatch .*mode is active.*call it outside the mode"):
        interop.matmul(tensor, tensor)
    assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]


def test_a_default_device_of_torch_is_no_obstacle(torch, tensor):
    """`torch.device` as a context, and `torch.set_default_device`, are function modes: of where to make tensors."""
    with torch.device("cpu"):
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]
    torch.set_default_device("cpu")
    try:
        assert interop.matmul(tensor, tensor).tolist() == [[7, 10], [15, 22]]
    finally:
        torch.set_default_device(None)


def test_refuses_subclasses_of_tensor(torch, tensor):
    class Tagged(torch.Tensor):
        pass

    match = r"is .*Tagged, a subclass of torch.Tensor.*x.as_subclass\(torch.Tensor\)"
    tagged = tensor.as_subclass(Tagged)
    refused(TypeError, "^interop.matmul: a " + match, tagged, tensor)
    refused(TypeError, "^interop.matmul: b " + match, tensor, tagged)
    refused(TypeError, "^interop.matmul: out " + match, tensor, tensor, out=tagged)


@pytest.mark.parametrize("kind", ["sparse_coo", "mkldnn", "meta"])
def test_refuses_tensors_without_strided_memory(torch, tensor, kind):
    make = {
        "sparse_coo": lambda: tensor.to_sparse(),
        "mkldnn": lambda: tensor.to_mkldnn(),
        "meta": lambda: tensor.to("meta"),
    }[kind]
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no MKL-DNN")
    x = make()
    match = f"this torch.Tensor .*{kind}.* has no memory of its own to work on: ."  # and torch's own words
    refused(BufferError, "^interop.matmul: a: " + match, x, tensor)
    refused(BufferError, "^interop.matmul: b: " + match, tensor, x)


# ---- JAX arrays in mixed calls (those of JAX alone: test_jax.py) ----


def test_refuses_deleted_jax_arrays(jax):
    x = jax.numpy.ones((2, 2), "float32")
    x.delete()
    match = "the JAX array has been deleted or donated"
    refused(BufferError, "^interop.matmul: a: " + match, x, square("float32"))
    refused(BufferError, "^interop.matmul: b: " + match, square("float32"), x)


def test_refuses_tracers_beside_other_arrays(jax):
    x = square("float32")
    match = "is a JAX tracer .*no memory yet; inside jit every array of the call must be JAX's"
    with pytest.raises(TypeError, match="^interop.matmul: b " + match):
        jax.jit(lambda t: interop.matmul(x, t))(jax.numpy.ones((2, 2)))
    with pytest.raises(TypeError, match="^interop.matmul: a " + match):
        jax.jit(lambda t: interop.matmul(t, x))(jax.numpy.ones((2, 2)))
    with pytest.raises(TypeError, match="^interop.matmul: out is .*immutable"):
        jax.jit(lambda t: interop.matmul(x, x, out=t))(jax.numpy.ones((2, 2)))


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


# ---- producers that refuse, or hand over something malformed ----


@pytest.mark.parametrize(
    ("fields", "exception", "match"),
    [
        ({"version": (2, 0)}, BufferError, "speaks DLPack 2.0; accepted: version 1"),
        ({"version": (0, 8)}, BufferError, "speaks DLPack 0.8; accepted: version 1"),
        ({"dtype_lanes": 2}, TypeError, r"has dtype\(code=2, bits=64, lanes=2\)"),
        ({"dtype_lanes": 0}, TypeError, r"has dtype\(code=2, bits=64, lanes=0\)"),
        ({"dtype_code": 99}, TypeError, r"dtype\(code=99, bits=64, lanes=1\)"),
        ({"dtype_code": 3}, TypeError, r"dtype\(code=3, bits=64, lanes=1\)"),
        ({"dtype_code": 8, "dtype_bits": 8}, TypeError, "is float8_e4m3; accepted: bool, int8 to int64"),
        ({"dtype_bits": 0}, TypeError, "has the unknown float0"),
        ({"dtype_bits": 4}, TypeError, "has the unknown float4"),
        ({"dtype_bits": 80}, TypeError, "has the unknown float80"),
        ({"device_type": 4}, TypeError, "lies on DLPack device type 4"),
        ({"device_type": 10}, TypeError, "lies on DLPack device type 10"),
        ({"device_type": 0}, TypeError, "lies on DLPack device type 0"),
        ({"device_id": -1}, BufferError, "malformed tensor: device id -1"),
        ({"shape": (-1, 2)}, BufferError, r"malformed tensor: shape \(-1, 2\)"),
        ({"shape": None}, BufferError, "malformed tensor: no shape"),
        ({"data": None}, BufferError, r"malformed tensor: a null pointer for shape \(2, 2\)"),
        ({"ndim": -1}, BufferError, "malformed tensor: ndim -1"),
        ({"shape": (1,) * 65, "strides": (1,) * 65}, ValueError, "has 65 dimensions; accepted: up to 64"),
        ({"strides": (2**60, 1)}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"strides": (1, -(2**62))}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"strides": (2**63 - 16, 1)}, BufferError, "malformed tensor: its strides lead beyond all memory"),
        ({"says": (1,)}, BufferError, "__dlpack_device__ does not return a pair"),
        ({"says": 1}, BufferError, "__dlpack_device__ does not return a pair"),
        ({"says": "cpu"}, BufferError, "__dlpack_device__"),
        ({"capsule_name": b"tensor"}, BufferError, "capsule named 'tensor'"),
        ({"capsule_name": b"used_dltensor"}, BufferError, "capsule that was used before"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_refuses_malformed_dlpack(fields, exception, match):
    x = square()
    fake = Fake(x, **fields)
    if "capsule_name" in fields:  # nobody takes such an export over, so nobody owes it a deleter call
        with pytest.raises(exception, match=f"^interop.matmul: a.*{match}"):
            interop.matmul(fake, square())
        assert (fake.exported, fake.deleted) == (1, 0)
        return
    refused(exception, f"^interop.matmul: a.*{match}", fake, square())
    refused(exception, f"^interop.matmul: b.*{match}", square(), fake)
    assert np.array_equal(x, square())


def test_accepts_what_dlpack_allows():
    x = square()
    same = [
        Fake(x, strides=None),
        Fake(x, flags=1),
        Fake(x, flags=2),
        Fake(x, version=(1, 7)),
        Fake(x, versioned=False),
        OldFake(x),
        Fake(x, data=x.ctypes.data - 24, byte_offset=24),
        Fake(x, device_type=3),  # pinned memory alone is host memory
        Fake(x, deleter=False),
    ]
    for fake in same:
        assert np.array_equal(np.asarray(interop.matmul(fake, x)), x @ x), fake.fields
    empty = Fake(x, shape=(0, 2), strides=(5, 5), data=None)
    assert np.asarray(interop.matmul(empty, x)).shape == (0, 2)


def test_asks_for_the_version_and_then_without():
    x = square()
    new, old = Fake(x), OldFake(x)
    interop.matmul(new, old)
    assert new.asked == [{"max_version": (1, 3)}]
    assert old.asked == [{"stream": None}]


class Raises:
    """A producer whose `__dlpack__`, or else `__dlpack_device__`, raises."""

    def __init__(self, error, message="", in_device=False):
        self.error, self.message, self.in_device = error, message, in_device

    def __dlpack_device__(self):
        if self.in_device:
            raise self.error(self.message)
        return (1, 0)

    def __dlpack__(self, **keywords):
        raise self.error(self.message)


@pytest.mark.parametrize("error", [RuntimeError, BufferError, ValueError, TypeError, AttributeError, OSError])
def test_refusals_of_a_producer_are_quoted(error):
    words = "no export on Sundays"
    refused(BufferError, f"^interop.matmul: a: .*Raises.*{words}", Raises(error, words), square())
    refused(BufferError, f"^interop.matmul: b: .*Raises.*{words}", square(), Raises(error, words, in_device=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_refusal_passes_through(error):
    for in_device in (False, True):
        with pytest.raises(error):
            interop.matmul(square(), Raises(error, in_device=in_device))


@pytest.mark.parametrize("value", [5, None, square()], ids=["int", "None", "array"])
def test_refuses_exports_that_are_no_capsule(value):
    class Strange:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return value

    refused(BufferError, "^interop.matmul: a.*Strange.*capsule", Strange(), square())


def test_refuses_a_capsule_that_was_used():
    x = square()
    for capsule in (x.__dlpack__(), x.__dlpack__(max_version=(1, 0))):
        interop.matmul(capsule, x)
        refused(ValueError, "^interop.matmul: a is a DLPack capsule that was used before", capsule, x)
        refused(ValueError, "^interop.matmul: b is a DLPack capsule that was used before", x, capsule)


def test_refuses_a_capsule_given_twice():
    fake = Fake(square())
    capsule = fake.capsule()
    with pytest.raises(ValueError, match="b is a DLPack capsule that was used before"):
        interop.matmul(capsule, capsule)
    del capsule
    assert fake.exported == 1
    assert fake.balanced


def test_refuses_capsules_of_other_things():
    import datetime

    capsule = datetime.datetime_CAPI
    refused(
        TypeError,
        "^interop.matmul: a is a capsule named 'datetime.datetime_CAPI'; accepted: 'dltensor'",
        capsule,
        square(),
    )


def test_rejected_capsules_are_released_once():
    fake = Fake(square(), dtype_code=99)
    for versioned in (True, False):
        capsule = fake.capsule(versioned=versioned)
        with pytest.raises(TypeError):
            interop.matmul(capsule, square())
        del capsule
    never = fake.capsule()  # not consumed: its own destructor releases it
    del never
    assert fake.exported == 3
    assert fake.balanced


def test_every_argument_is_released_when_a_later_one_is_refused():
    first, second = Fake(square()), Fake(square(), dtype_code=99)
    refused(TypeError, "b has the unknown", first, second)
    refused(TypeError, "out is float32", first, first, out=np.zeros((2, 2), "f4"))
    refused(ValueError, "the inner dimensions", first, ones(3, 3))
    assert first.exported == 2 + 4 + 2


def test_a_buffer_is_released_after_an_error():
    memory = bytearray(32)
    view = memoryview(memory).cast("d", (2, 2))
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(view, ones(3, 3))
    interop.matmul(view, ones(2, 2))
    view.release()
    memory.extend(b"x")  # BufferError while anybody still holds the buffer


@pytest.mark.parametrize("interface", [5, {}, {"shape": (2, 2), "typestr": "<f8", "version": 3, "data": "x"}])
def test_refuses_malformed_array_interfaces(interface):
    kind = type("Strange", (), {"__array_interface__": interface})
    refused(BufferError, "^interop.matmul: a.*Strange", kind(), square())


# Of the checks below none gets as far as the pointer, so they need no GPU.
CAI = {"shape": (2, 2), "typestr": "<f8", "data": (4096, False), "version": 3}


@pytest.mark.parametrize(
    ("fields", "exception", "match"),
    [
        ({"version": 1}, BufferError, "version below 2"),
        ({"version": ABSENT}, BufferError, "no version"),
        ({"mask": square()}, TypeError, "is masked; accepted: arrays without a mask"),
        ({"typestr": ">f8"}, TypeError, f"has the typestr '>f8'; {ANY_DTYPE}"),
        ({"typestr": "<V2"}, TypeError, f"has the typestr '<V2'; {ANY_DTYPE}"),
        ({"typestr": 3}, BufferError, "typestr is int, not a str"),
        ({"typestr": ABSENT}, BufferError, "no typestr"),
        ({"shape": [2, 2]}, BufferError, "shape is list, not a tuple"),
        ({"shape": (2, "x")}, BufferError, "shape: 'str' object"),
        ({"shape": (-1, 2)}, BufferError, r"shape \(-1, 2\)"),
        ({"shape": ABSENT}, BufferError, "no shape"),
        ({"shape": (1,) * 65}, ValueError, "65 dimensions; accepted: up to 64"),
        ({"strides": (8,)}, BufferError, "strides do not match shape"),
        ({"strides": (17, 3)}, BufferError, "strides are no multiples of the item size 8"),
        ({"data": 4096}, BufferError, "data is not a pair"),
        ({"data": (4096,)}, BufferError, "data is not a pair"),
        ({"data": (None, False)}, BufferError, "data: 'NoneType' object"),
        ({"data": (0, False)}, BufferError, r"a null pointer for shape \(2, 2\)"),
        ({"data": ABSENT}, BufferError, "no data"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_refuses_malformed_cuda_array_interfaces(fields, exception, match):
    array = Cai(None, **{**CAI, **fields})
    refused(exception, f"^interop.matmul: a.*{match}", array, array)


def test_refuses_a_cuda_array_interface_that_is_no_dict():
    kind = type("Strange", (), {"__cuda_array_interface__": 5})
    refused(
        BufferError, "^interop.matmul: a: __cuda_array_interface__ of .*Strange: is int, not a dict", kind(), square()
    )


def test_a_property_that_raises_is_quoted():
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("the pool is closed")

    with pytest.raises((BufferError, RuntimeError), match="the pool is closed"):
        interop.matmul(Broken(), square())


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
