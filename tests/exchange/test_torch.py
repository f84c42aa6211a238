"""torch tensors that are more, or less, than their memory: the right value, or an exception that says why.

What torch's C exchange API leaves out is checked by interop; torch before 2.10 has no such API, and goes by
`Tensor.__dlpack__`. The same table runs over both ways.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import interop

NO_MEMORY = "has no memory of its own to work on"


@pytest.fixture
def t(torch):
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def product(torch, x):
    """`interop.matmul(x, 1)`, checked against torch's own."""
    one = torch.eye(2, dtype=x.dtype)
    c = interop.matmul(x, one)
    assert type(c) is torch.Tensor
    assert torch.equal(c, torch.matmul(x, one))
    return c


def read(x):
    """Return the values that interop reads, as NumPy has them."""
    facts = interop._core.read(x)
    assert facts["library"] == "torch"
    return np.frombuffer(facts["values"], facts["dtype"]).reshape(facts["shape"])


# ---- right values ----


LAZY = {
    "neg": lambda torch, t: torch._neg_view(t),
    "neg, transposed": lambda torch, t: torch._neg_view(t).T,
    "neg of neg": lambda torch, t: torch._neg_view(torch._neg_view(t)),
    "imaginary part of conj": lambda torch, t: torch.complex(t, t + 1).conj().imag,
    "real part of conj": lambda torch, t: torch.complex(t, t + 1).conj().real,
    "imaginary part of conj, sliced": lambda torch, t: torch.complex(t, t + 1).conj().imag[:, ::1].T,
    "zeros never stored": lambda torch, t: torch._efficientzerotensor(2, 2),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_views_give_their_values(torch, t, name):
    x = LAZY[name](torch, t)
    product(torch, x)
    assert np.array_equal(read(x), x.resolve_neg().clone().numpy())
    with torch.no_grad():
        product(torch, x)


CONJUGATED = {
    "conj": lambda z: z.conj(),
    "conj transposed": lambda z: z.mH,
    "conj of conj": lambda z: z.conj().conj(),
    "neg of conj": lambda z: z.conj()._neg_view(),
    "conj of a slice": lambda z: z[:, :1].conj(),
}


@pytest.mark.parametrize("name", CONJUGATED)
def test_conjugated_views_give_their_values(torch, t, name):
    x = CONJUGATED[name](torch.complex(t, t + 1))
    assert np.array_equal(read(x), x.resolve_conj().resolve_neg().numpy())


PLAIN = {
    "Buffer": lambda torch, t: torch.nn.Buffer(t),
    "Parameter without grad": lambda torch, t: torch.nn.Parameter(t, requires_grad=False),
    "detached": lambda torch, t: t.clone().requires_grad_().detach(),
    "view": lambda torch, t: t.clone().requires_grad_().detach().T,
    "shared memory": lambda torch, t: t.clone().share_memory_(),
    "from NumPy": lambda torch, t: torch.from_numpy(t.numpy()),
    "channels last": lambda torch, t: t.expand(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)[0, 1],
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_tensors_are_read_in_place(torch, t, name):
    x = PLAIN[name](torch, t)
    product(torch, x)
    assert interop._core.read(x)["pointer"] == x.data_ptr()


def test_inference_tensors(torch, t):
    with torch.inference_mode():
        x = t.clone()
        product(torch, x)
        out = torch.zeros(2, 2)
        assert interop.matmul(x, t, out=out) is out
    assert x.is_inference()
    product(torch, x)
    assert torch.equal(interop.matmul(t, x, out=torch.zeros(2, 2)), t @ x)


def test_saved_views_of_lazy_tensors_are_not_kept(torch, t):
    x = torch._neg_view(t)
    before = sys.getrefcount(x)
    product(torch, x)
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("name", ["neg", "imaginary part of conj", "zeros never stored"])
def test_lazy_views_are_no_output(torch, t, name):
    out = LAZY[name](torch, t)
    before = out.clone()
    with pytest.raises(TypeError, match="^interop.matmul: out.*(accepted: a plain tensor|has no memory)"):
        interop.matmul(t, t, out=out)
    assert torch.equal(out, before)


# ---- refusals ----

REFUSED = {
    "sparse_coo": (lambda torch, t: t.to_sparse(), BufferError, "layout torch.sparse_coo"),
    "sparse_csr": (lambda torch, t: t.to_sparse_csr(), BufferError, "layout torch.sparse_csr"),
    "sparse_bsr": (lambda torch, t: t.to_sparse_bsr((1, 1)), BufferError, "layout torch.sparse_bsr"),
    "mkldnn": (lambda torch, t: t.to_mkldnn(), BufferError, "layout torch._mkldnn"),
    "meta": (lambda torch, t: t.to("meta"), BufferError, "device meta"),
    "quantised": (lambda torch, t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), BufferError, "dlpack"),
    "bits": (lambda torch, t: t.view(torch.bits8), BufferError, "Bit types"),
    "nested": (lambda torch, t: torch.nested.nested_tensor([t, t]), BufferError, "Nested"),
    "jagged": (
        lambda torch, t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
        TypeError,
        "NestedTensor, a subclass of torch.Tensor",
    ),
    "functionalised": (lambda torch, t: torch._to_functional_tensor(t), TypeError, "a fake or functionalised tensor"),
    "float4": (
        lambda torch, t: t.view(torch.uint8).view(torch.float4_e2m1fn_x2),
        TypeError,
        "accepted: dtypes of one lane",
    ),
    "uninitialised parameter": (lambda torch, t: torch.nn.UninitializedParameter(), TypeError, "a subclass of torch"),
    "requires grad": (lambda torch, t: t.clone().requires_grad_(), BufferError, r"requires grad.*pass a.detach\(\)"),
    "Parameter": (lambda torch, t: torch.nn.Parameter(t), BufferError, "requires grad"),
    "result of autograd": (lambda torch, t: t.clone().requires_grad_() * 2, BufferError, "requires grad"),
    "masked": (
        lambda torch, t: torch.masked.masked_tensor(t, t > 2),
        TypeError,
        "MaskedTensor, a subclass of torch.Tensor",
    ),
}
#: These torch computes where it leads the call: see tests/torch.
MORE_THAN_MEMORY = ("jagged", "uninitialised parameter", "requires grad", "Parameter", "result of autograd", "masked")


@pytest.mark.filterwarnings("ignore")  # torch's own about these kinds: beta state, deprecation
@pytest.mark.parametrize("name", REFUSED)
def test_what_memory_cannot_say_is_refused(torch, t, name):
    make, exception, words = REFUSED[name]
    x = make(torch, t)
    calls = [((t.numpy(), x), "b")]
    if name not in MORE_THAN_MEMORY:
        calls += [((x, t), "a"), ((t, x), "b")]
    for arrays, argument in calls:
        with pytest.raises(exception, match=f"^interop.matmul: {argument}.*{words.replace('a.detach', '..detach')}"):
            interop.matmul(*arrays)


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(
    ("name", "exception", "words"),
    [
        ("vmap", TypeError, "a wrapper of torch.func"),
        ("vmap of vmap", TypeError, "a wrapper of torch.func"),
        ("grad", BufferError, "requires grad"),
        ("grad without grad mode", TypeError, "a wrapper of torch.func"),
        ("vmap of grad", BufferError, "requires grad"),
        ("grad of vmap", TypeError, "a wrapper of torch.func"),
        ("jvp", TypeError, "forward-mode tangent"),
        ("jacfwd", TypeError, "forward-mode tangent"),
        ("jacrev", BufferError, "requires grad"),
        ("functionalize", TypeError, "a fake or functionalised tensor"),
        ("make_fx", TypeError, "a torch dispatch mode is active"),
        ("jit.trace", TypeError, "torch.jit is tracing"),
    ],
)
def test_transformations_are_refused_where_numpy_leads(torch, t, name, exception, words):
    def f(x):
        return interop.matmul(np.eye(2, dtype="f4"), x)

    def scalar(x):
        return f(x).sum()

    def quietly(x):
        with torch.no_grad():
            return f(x).sum()

    stack = t.expand(3, 2, 2)
    call = {
        "vmap": lambda: torch.vmap(f)(stack),
        "vmap of vmap": lambda: torch.vmap(torch.vmap(f))(t.expand(3, 3, 2, 2)),
        "grad": lambda: torch.func.grad(scalar)(t),
        "grad without grad mode": lambda: torch.func.grad(quietly)(t),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(scalar))(stack),
        "grad of vmap": lambda: torch.func.grad(lambda x: torch.vmap(f)(x).sum())(stack),
        "jvp": lambda: torch.func.jvp(f, (t,), (t,)),
        "jacfwd": lambda: torch.func.jacfwd(f)(t),
        "jacrev": lambda: torch.func.jacrev(f)(t),
        "functionalize": lambda: torch.func.functionalize(f)(t),
        "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(f)(t),
        "jit.trace": lambda: torch.jit.trace(lambda x: f(x) + x, t),
    }[name]
    with pytest.raises(exception, match=f"^interop.matmul:.*{words}"):
        call()
    product(torch, t)  # nothing is left behind


def test_plain_tensors_inside_a_transformation_are_right(torch, t):
    got = torch.vmap(lambda x: x + interop.matmul(t, t))(t.expand(3, 2, 2))
    assert torch.equal(got, (t + t @ t).expand(3, 2, 2))


def test_fake_tensors_are_refused_where_numpy_leads(torch, t):
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    mode = FakeTensorMode()
    with pytest.raises(TypeError, match="b is .*FakeTensor, a subclass of torch.Tensor"):
        interop.matmul(t.numpy(), mode.from_tensor(t))
    x = t.numpy()
    with mode, pytest.raises(TypeError, match="a torch dispatch mode is active"):
        interop.matmul(x, t)
    with FunctionalTensorMode():
        functional = FunctionalTensor.to_functional(t)
    with pytest.raises(TypeError, match="b is .*FunctionalTensor, a subclass of torch.Tensor"):
        interop.matmul(t.numpy(), functional)


def test_a_dual_tensor_beside_a_lazy_view(torch, t):
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(t, torch.ones(2, 2))
        with pytest.raises(TypeError, match="carries a forward-mode tangent"):
            interop.matmul(t.numpy(), torch._neg_view(t), bias=dual)
        product(torch, forward_ad.unpack_dual(dual).primal)


@pytest.mark.parametrize("kind", ["compile", "symbolic_trace"])
def test_graph_capture_by_torch(torch, t, kind):
    if kind == "compile":
        compiled = torch.compile(lambda x: interop.matmul(x, x) + 1, backend="eager")
        assert torch.equal(compiled(t), t @ t + 1)
        return
    with pytest.raises((TypeError, BufferError), match="Proxy"):
        torch.fx.symbolic_trace(lambda x: interop.matmul(x, x))


# ---- torch before 2.10 ----

OLD = """
    import sys
    import torch

    # What torch 2.9 lacks; the rest of this torch's `Tensor.__dlpack__` is 2.9's, line for line where it matters here.
    del torch.Tensor.__dlpack_c_exchange_api__
    import pytest

    assert pytest.main(sys.argv[1:]) == 0
    import interop

    assert interop._core.route(torch.ones(1)) == ("torch", "__dlpack__ (torch before 2.10)")
"""


def test_torch_without_the_exchange_api(torch, request):
    """A stand-in for an older torch: the tests of values and refusals again, in a process without the table."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return  # they run in this process
    chosen = (
        "(lazy or conjugated or plain or inference or cannot_say or transformations or dual or fake)"
        " and not without_the_exchange_api"
    )
    command = [sys.executable, "-P", "-c", textwrap.dedent(OLD), __file__, "-q", "-x", "-p", "no:cacheprovider"]
    # No plugins: some warn where they find themselves inside a run of pytest-xdist.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "-k", chosen], capture_output=True, text=True, cwd=request.config.rootpath, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
