"""Products in the code that Inductor makes: calls of the function, without torch's dispatcher between."""

from __future__ import annotations

import contextlib
import re

import pytest

import interop

torch = pytest.importorskip("torch")

# Torch's compiler warns of what it does itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch", "ignore:Torchinductor does not support code"
)


def made(place, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(place, dtype)


@contextlib.contextmanager
def no_cache():
    """Make all code anew: that of other versions may be on disk."""
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    with fresh_cache():
        yield


def run(function, *args):
    """Return the result of a call, and the calls of products in the code that Inductor has made for it."""
    from torch._inductor.utils import run_and_get_code

    with no_cache():
        result, codes = run_and_get_code(function, *args)
    return result, [call for code in codes for call in re.findall(r"= (\S*interop\S*\(.*\))", code)]


def run_compiled(function, *args):
    return run(torch.compile(function, fullgraph=True), *args)


def names(call):
    return re.findall(r"(\w+)=", call)


CALLS = {
    "plain": (lambda a, b, c: interop.matmul(a, b), ["a", "b"]),
    "views": (lambda a, b, c: interop.matmul(b.T[1:], a.T), ["a", "b"]),
    "vectors": (lambda a, b, c: interop.matmul(a[0], b[:, 0]), ["a", "b"]),
    "terms": (
        lambda a, b, c: interop.matmul(a, b, c=c, bias=c[0], alpha=2, beta=-1, epilogue="relu"),
        ["a", "alpha", "b", "beta", "bias", "c", "epilogue"],
    ),
    "gelu": (lambda a, b, c: interop.matmul(a, b, epilogue="gelu"), ["a", "b", "epilogue"]),
    "kernel": (
        lambda a, b, c: interop.matmul(a, b, precision="tf32", dtype="float32"),
        ["a", "b", "dtype", "precision"],
    ),
}


@pytest.mark.parametrize(("call", "given"), CALLS.values(), ids=CALLS)
def test_the_function_is_called_with_what_is_given(place, call, given):
    args = made(place, 3, 4), made(place, 4, 5, seed=1), made(place, 3, 5, seed=2)
    result, calls = run_compiled(call, *args)
    torch.testing.assert_close(result, call(*args), rtol=0, atol=0)
    (line,) = calls
    assert line.startswith(("interop_matmul(", "(interop_matmul("))
    assert sorted(names(line)) == given


def test_scales_that_are_numbers(place):
    a, b = (made(place, 16, 16, seed=seed).to(torch.float8_e4m3fn) for seed in (0, 1))

    def call(a, b):
        return interop.matmul(a, b.T, scale_a=0.5, scale_b=2.0, dtype="float32")

    result, calls = run_compiled(call, a, b)
    torch.testing.assert_close(result, call(a, b))
    assert [sorted(names(line)) for line in calls] == [["a", "b", "dtype", "scale_a", "scale_b"]]


def test_conjugated_views(place):
    a, b = made(place, 3, 4, dtype=torch.complex64), made(place, 5, 4, dtype=torch.complex64, seed=1)
    result, calls = run_compiled(lambda a, b: interop.matmul(a.conj(), b.mH), a, b)
    torch.testing.assert_close(result, a.conj() @ b.mH)
    assert len(calls) == 1


def test_gradients_are_three_calls(place):
    a, b = (made(place, 4, 4, seed=seed).requires_grad_() for seed in (0, 1))
    grad = made(place, 4, 4, seed=2)
    compiled = torch.compile(interop.matmul, fullgraph=True)
    found, calls = run(lambda: torch.autograd.grad(compiled(a, b), (a, b), grad))
    torch.testing.assert_close(found, torch.autograd.grad(a @ b, (a, b), grad))
    assert len(calls) == 3
    assert all(line.startswith("interop_matmul(") for line in calls)


def test_an_operator_of_two_results_is_called_without_what_is_none(place):
    a, b, bias = made(place, 3, 4), made(place, 4, 5, seed=1), made(place, 5, seed=2)

    def call(a, b, bias):
        result = interop.matmul(a, b, bias=bias, epilogue="gelu", aux=(aux := torch.empty(3, 5, device=place)))
        return result, aux

    result, calls = run_compiled(call, a, b, bias)
    torch.testing.assert_close(result, call(a, b, bias))
    assert [sorted(names(line)) for line in calls] == [["a", "b", "bias", "epilogue"]]
    assert calls[0].startswith("torch.ops.interop.matmul_with_aux.default(")


def test_branches(place):
    a, b, first = made(place, 4, 4), made(place, 4, 4, seed=1), torch.tensor(False, device=place)

    def call(first, a, b):
        return torch.cond(first, lambda a, b: interop.matmul(a, b), lambda a, b: interop.matmul(b, a), (a, b))

    result, calls = run_compiled(call, first, a, b)
    torch.testing.assert_close(result, b @ a)
    assert len(calls) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program(place, strict):
    class Product(torch.nn.Module):
        def forward(self, a, b):
            return interop.matmul(a, b)

    args = made(place, 3, 4), made(place, 4, 5, seed=1)
    program = torch.export.export(Product(), args, strict=strict)
    result, calls = run_compiled(program.module(), *args)
    torch.testing.assert_close(result, args[0] @ args[1])
    assert calls[0].startswith("interop_matmul(")


def test_nothing_is_recorded_where_the_function_records_nothing(place):
    a, b = (made(place, 4, 4, seed=seed).requires_grad_() for seed in (0, 1))

    def call(a, b):
        with torch.no_grad():
            return interop.matmul(a, b)

    result, calls = run_compiled(call, a, b)
    assert not result.requires_grad
    assert calls[0].startswith("interop_matmul(")


def test_a_profiler_shows_the_operator(place):
    from torch.profiler import ProfilerActivity, profile

    a, b = made(place, 4, 4), made(place, 4, 4, seed=1)
    compiled = torch.compile(interop.matmul, fullgraph=True)
    with no_cache():
        compiled(a, b)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
            compiled(a, b)
    shown = {event.name for event in seen.events()}
    assert "interop::matmul" in shown
    assert "aten::mm" not in shown


def test_a_graph_that_is_made_of_a_graph_has_the_operator(place):
    from torch._inductor import config

    a, b = made(place, 4, 4), made(place, 4, 4, seed=1)
    with no_cache(), config.patch(fx_wrapper=True, size_asserts=False, alignment_asserts=False):
        result = torch.compile(interop.matmul, fullgraph=True)(a, b)
    torch.testing.assert_close(result, a @ b)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own first graph
def test_cuda_graphs_replay_products(cuda_device):
    a, b = made("cuda", 64, 64), made("cuda", 64, 64, seed=1)
    with no_cache():
        compiled = torch.compile(lambda a, b: interop.matmul(interop.matmul(a, b), b), mode="reduce-overhead")
        for _ in range(4):
            torch.testing.assert_close(compiled(a, b).clone(), interop.matmul(interop.matmul(a, b), b))
