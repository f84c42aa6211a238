"""`interop.bridge` on a GPU: in the order of the streams, with no host wait, and memory that lives as long as it must.

Values and derivatives are in tests/test_bridge.py, of the host. These tests watch the card's time, and want it alone.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from helpers.device import Side, Snapshot, delay, eventually, fill, is_busy, slow_in_jax, synchronize
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, N

import interop


@pytest.fixture
def side():
    """A side stream of torch."""
    return Side(on_gpu("torch"))


@pytest.fixture
def squares(jax):
    """A function of JAX for tensors, whose gradient is twice its argument."""
    return interop.bridge(lambda x: x * x, to="torch")


# ---- a function of JAX in torch ----


def test_it_waits_for_the_current_stream_and_that_for_it(side, squares):
    x, snapshot = side.make(ONES), Snapshot((N, N))
    with side.current():
        squares(x)
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 3, COUNT, side.handle)
        made = squares(x)
        snapshot.take(made.data_ptr(), side.handle)
        assert is_busy(side.handle)  # and the host has not waited
    assert made.device == x.device
    assert (snapshot.values() == 9).all()


def test_the_backward_pass_is_in_the_order_of_the_forward_stream(side, squares, torch):
    """Torch computes gradients on a thread of its own, on which the stream of the forward pass is the current one."""
    x, grad, snapshot = side.make(ONES), side.make(ONES), Snapshot((N, N))
    x.requires_grad_()
    with side.current():
        torch.autograd.grad(squares(x), x, grad)
        synchronize()
        made = squares(x)
    delay(side.handle)
    fill(grad.data_ptr(), 5, COUNT, side.handle)
    with side.current():
        (g,) = torch.autograd.grad(made, x, grad)
        snapshot.take(g.data_ptr(), side.handle)
        assert is_busy(side.handle)
    assert (snapshot.values() == 10).all()


def test_a_gradient_of_a_gradient_is_in_order(side, squares, torch):
    x, snapshot = side.make(ONES), Snapshot((N, N))
    x.requires_grad_()

    def second():
        (g,) = torch.autograd.grad(squares(x).sum(), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    with side.current():
        second()
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 3, COUNT, side.handle)
        made = second()
        snapshot.take(made.data_ptr(), side.handle)
        assert is_busy(side.handle)
    assert (snapshot.values() == 24).all()  # d/dx of (2x)**2


def test_tangents_are_in_order(side, squares, torch):
    x, t, snapshot = side.make(ONES), side.make(ONES), Snapshot((N, N))

    def tangent():
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, t)
            return torch.autograd.forward_ad.unpack_dual(squares(dual)).tangent

    with side.current():
        tangent()
        synchronize()
        delay(side.handle)
        fill(t.data_ptr(), 3, COUNT, side.handle)
        made = tangent()
        snapshot.take(made.data_ptr(), side.handle)
    assert (snapshot.values() == 6).all()


def test_an_argument_may_be_dropped_and_written_over_after_the_call(side, jax, torch):
    slow = slow_in_jax(jax)
    call = interop.bridge(lambda x: slow(x, 2.0), to="torch")
    snapshot = Snapshot((N, N))
    with side.current():
        call(torch.ones(N, N, device="cuda"))
        synchronize()
        x = torch.full((N, N), 3.0, device="cuda")
        made = call(x)
        del x
        others = [torch.full((N, N), 7.0, device="cuda") for _ in range(20)]
        snapshot.take(made.data_ptr(), side.handle)
    assert np.allclose(snapshot.values(), 6)
    assert len(others) == 20


def test_an_argument_may_be_written_in_place_after_the_call(side, jax, torch):
    slow = slow_in_jax(jax)
    call = interop.bridge(lambda x: slow(x, 2.0), to="torch")
    x, snapshot = side.make(ONES), Snapshot((N, N))
    with side.current():
        call(x)
        synchronize()
        made = call(x)
        x.fill_(7)
        snapshot.take(made.data_ptr(), side.handle)
    assert np.allclose(snapshot.values(), 2)


def test_a_result_may_be_dropped_while_the_stream_reads_it(side, squares, jax, torch):
    x, copy = side.make(ONES), side.make(ONES)
    with side.current():
        squares(x)
        others = [jax.numpy.full((N, N), 5.0)]
        copy.copy_(x)
        synchronize()
        made = squares(x * 3)
        delay(side.handle)
        copy.copy_(made)
        del made
        others += [jax.numpy.full((N, N), 5.0) for _ in range(20)]
        jax.block_until_ready(others)
        assert is_busy(side.handle)
    synchronize()
    assert (copy == 9).all()


def test_what_is_kept_for_gradients_is_freed_with_them(squares, torch, jax):
    """As torch frees what it saves; with the result, the graph is there until then."""
    big = torch.ones(1 << 22, device="cuda", requires_grad=True)
    call = interop.bridge(lambda x: jax.numpy.sin(jax.numpy.sin(x)), to="torch")

    def in_use():
        gc.collect()
        synchronize()
        assert eventually(lambda: interop._core.held_count() == 0)
        return jax.devices("cuda")[0].memory_stats()["bytes_in_use"]

    torch.autograd.grad(call(big).sum(), big)
    before = in_use()
    made = call(big)
    assert in_use() >= before + 2 * big.nbytes  # the result, and what the gradient needs
    total = made.sum()
    torch.autograd.grad(total, big)
    assert in_use() <= before + big.nbytes  # the result alone


def test_a_thousand_steps_with_allocations_between(torch, jax):
    loss = interop.bridge(lambda w, x, y: ((jax.numpy.tanh(x @ w) - y) ** 2).mean(), to="torch")
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(64, 8, device="cuda", generator=generator)
    y = torch.tanh(x @ torch.randn(8, 4, device="cuda", generator=generator))
    w = torch.zeros(8, 4, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.02)
    for k in range(1000):
        optimizer.zero_grad()
        value = loss(w, x, y)
        torch.empty(k * 100 + 1, device="cuda").fill_(float("nan"))
        value.backward()
        optimizer.step()
    assert value.item() < 1e-3


def test_eight_threads_with_streams_of_their_own(torch, jax):
    call = interop.bridge(lambda x, k: (x * x).sum() * k, to="torch")
    wrong = []

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(20):
                x = torch.full((100,), float(k + step), device="cuda", requires_grad=True)
                (g,) = torch.autograd.grad(call(x, torch.tensor(2.0, device="cuda")), x)
                if not (g == 4 * (k + step)).all():
                    wrong.append((k, step))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


@pytest.mark.parametrize("make", ["expand", "transpose", "slice", "offset"])
def test_what_is_not_compact_is_made_so_on_the_device(make, side, torch, squares):
    x = {
        "expand": lambda base: base[:, :1].expand(N, N),
        "transpose": lambda base: base.T,
        "slice": lambda base: base[:, ::2],
        "offset": lambda base: base.reshape(-1)[1:],
    }[make](side.make(ONES))
    snapshot = Snapshot(tuple(x.shape))
    with side.current():
        squares(x)
        synchronize()
        delay(side.handle)
        x.fill_(3) if make != "expand" else x[:, :1].fill_(3)
        made = squares(x)
        snapshot.take(made.data_ptr(), side.handle)
        assert is_busy(side.handle)  # a copy by the host would have waited
    assert (snapshot.values() == 9).all()
    assert interop.explain(squares, x).copies


def test_conjugated_and_negated_views(torch, jax):
    call = interop.bridge(lambda z: z * 1j, to="torch")
    z = torch.tensor([1 + 2j, 3 - 1j], device="cuda")
    assert torch.equal(call(z.conj()), z.conj() * 1j)
    call = interop.bridge(lambda x: x + 0, to="torch")
    assert torch.equal(call(z.conj().imag), z.conj().imag)


def test_the_setting_of_the_forward_pass_is_that_of_torchs_thread(torch, jax):
    """JAX's 64-bit mode, where it is set within a context, is that of one thread."""
    call = interop.bridge(lambda x: jax.numpy.sin(x), to="torch")
    x = torch.ones(4, dtype=torch.float64, device="cuda", requires_grad=True)
    with jax.enable_x64(True):
        made = call(x).sum()
    (g,) = torch.autograd.grad(made, x)
    assert g.dtype == torch.float64
    assert torch.allclose(g, torch.cos(x), atol=1e-12)


def test_arrays_on_two_devices_are_refused(torch, squares):
    call = interop.bridge(lambda x, y: x + y, to="torch")
    with pytest.raises(ValueError, match="x is on cuda:0 and y is on cpu; accepted: all tensors on one device"):
        call(torch.ones(3, device="cuda"), torch.ones(3))


@pytest.mark.multi_gpu
def test_on_the_second_gpu(two_cuda_devices, squares, torch):
    x = torch.full((5,), 3.0, device="cuda:1", requires_grad=True)
    made = squares(x)
    assert made.device == x.device
    assert torch.cuda.current_device() == 0
    (g,) = torch.autograd.grad(made.sum(), x)
    assert g.device == x.device
    assert (g == 6).all()


# ---- a function of torch in JAX ----


def test_a_pending_jax_array_is_waited_for(side, jax, torch):
    slow = slow_in_jax(jax)
    x = jax.numpy.asarray(ONES)
    slow(x, 3.0).block_until_ready()
    call = interop.bridge(torch.square, to="jax")
    call(x)
    with side.current():
        made = call(slow(x, 3.0))
    assert isinstance(made, jax.Array)
    assert np.allclose(np.asarray(made), 9)


def test_jax_waits_for_the_current_stream(side, jax, torch):
    def late(x):
        delay(torch.cuda.current_stream().cuda_stream)
        return x * 3

    call = interop.bridge(late, to="jax")
    x = jax.numpy.asarray(ONES)
    with side.current():
        jax.block_until_ready(call(x) + 1)
        made = call(x) + 1
        assert is_busy(side.handle)  # the host has not waited
    assert (np.asarray(made) == 4).all()


def test_an_array_may_be_dropped_while_torch_reads_it(side, jax, torch):
    def late(x):
        delay(torch.cuda.current_stream().cuda_stream)
        return x * 3

    call = interop.bridge(late, to="jax")
    x = jax.numpy.asarray(ONES)
    with side.current():
        call(x)
        synchronize()
        made = call(x * 2)  # which nothing else keeps
        others = [jax.numpy.full((N, N), 5.0) for _ in range(20)]
        jax.block_until_ready(others)
    assert (np.asarray(made) == 6).all()


def test_gradients_of_torch_in_jax_are_in_order(side, jax, torch):
    slow = slow_in_jax(jax)
    call = interop.bridge(torch.square, to="jax")
    x = jax.numpy.asarray(ONES)
    with side.current():
        _, pull = jax.vjp(call, x * 3)
        pull(slow(x, 5.0))
        (g,) = pull(slow(x, 5.0))
    assert np.allclose(np.asarray(g), 30)
    (h,) = jax.vjp(lambda x: jax.grad(lambda x: call(x).sum())(x), x)[1](slow(x, 5.0))
    assert np.allclose(np.asarray(h), 10)


def test_a_gradient_outlives_the_donation_of_what_it_is_of(jax, torch):
    """Of its argument, which torch's record reads, and of its result: JAX refuses it, or it harms nobody."""
    x = jax.numpy.full(1 << 16, 0.5)
    made, pull = jax.vjp(interop.bridge(torch.sin, to="jax"), x)
    again, pull_exp = jax.vjp(interop.bridge(torch.exp, to="jax"), x)
    overwrite = jax.jit(lambda x: x * 0 - 5, donate_argnums=0)
    refusals = []
    for y in (made, again, x):
        try:
            jax.block_until_ready(overwrite(y))
        except jax.errors.JaxRuntimeError as error:
            refusals.append(str(error))
    assert all("Donation requested for buffer with external reference" in words for words in refusals)
    ones = jax.numpy.ones(1 << 16)
    np.testing.assert_allclose(np.asarray(pull(ones)[0]), np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(pull_exp(ones)[0]), np.exp(0.5), rtol=1e-6)


def test_modules_on_the_host_where_jax_has_a_gpu(jax, torch):
    call = interop.bridge(torch.nn.Linear(2, 3), to="jax")
    with jax.default_device(jax.devices("cpu")[0]):
        assert jax.jit(call)(jax.numpy.ones((4, 2))).shape == (4, 3)


def test_what_torch_records_for_jax_is_freed(jax, torch):
    call = interop.bridge(lambda x: torch.sin(torch.sin(x)), to="jax")
    x = jax.numpy.ones(1 << 20)
    jax.block_until_ready(jax.grad(lambda x: call(x).sum())(x))
    gc.collect()
    synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        jax.block_until_ready(jax.grad(lambda x: call(x).sum())(x))
    gc.collect()
    synchronize()
    assert eventually(lambda: torch.cuda.memory_allocated() <= before)


def test_a_module_of_torch_in_jax(jax, torch):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).cuda()
    call = interop.bridge(lambda p, x: torch.func.functional_call(module, p, (x,)), to="jax")
    params = {name: interop.convert(p.detach(), "jax") for name, p in module.named_parameters()}
    x = jax.numpy.ones((2, 4))
    grads = jax.grad(lambda p: call(p, x).sum())(params)
    module(torch.ones(2, 4, device="cuda")).sum().backward()
    for name, p in module.named_parameters():
        assert np.allclose(np.asarray(grads[name]), p.grad.cpu().numpy(), atol=1e-6)


# ---- inside jax.jit ----


def test_a_program_is_in_the_order_of_xlas_stream(jax, torch):
    """The function is called as the program is enqueued; its work, and the delays in it, are on XLA's stream."""
    streams = []

    def late(x):
        streams.append(torch.cuda.current_stream().cuda_stream)
        if type(x) is torch.Tensor:
            delay(streams[-1], 100)
        return x * 3

    call = interop.bridge(late, to="jax")
    program = jax.jit(lambda x: call(x + 1) * call(x * 2) - 1)
    x = jax.numpy.asarray(ONES)
    made = program(x)
    assert (np.asarray(made) == 35).all()
    assert (np.asarray(program(x * 2) + 1) == 108).all()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_gradients_in_a_program(jax, torch):
    def late(x):
        if type(x) is torch.Tensor:
            delay(torch.cuda.current_stream().cuda_stream, 50)
        return torch.sin(x)

    call = interop.bridge(late, to="jax")
    x = jax.numpy.linspace(0, 1, 50)
    for transform, expected in (
        (jax.grad(lambda x: call(x * 2).sum()), 2 * np.cos(2 * np.asarray(x))),
        (lambda x: jax.jvp(call, (x,), (x,))[1], np.cos(np.asarray(x)) * np.asarray(x)),
        (jax.grad(lambda x: jax.grad(lambda x: call(x).sum())(x).sum()), -np.sin(np.asarray(x))),
        (jax.vmap(jax.grad(call)), np.cos(np.asarray(x))),
    ):
        np.testing.assert_allclose(np.asarray(jax.jit(transform)(x)), expected, atol=1e-6)


def test_a_hundred_steps_of_a_program_with_allocations_between(jax, torch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).cuda()
    call = interop.bridge(lambda p, x: torch.func.functional_call(module, p, (x,)), to="jax")
    params = {name: interop.convert(p.detach().clone(), "jax") for name, p in module.named_parameters()}
    x = jax.numpy.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = x.sum(1)

    @jax.jit
    def step(params):
        loss, grads = jax.value_and_grad(lambda p: ((call(p, x)[:, 0] - y) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    losses = []
    for k in range(100):
        params, loss = step(params)
        losses.append(loss)
        torch.empty(k * 1000 + 1, device="cuda").fill_(float("nan"))
        jax.numpy.full(k * 1000 + 1, float("nan"))
    losses = np.asarray(jax.numpy.stack(losses))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.2 * losses[0]


def test_eight_threads_of_programs(jax, torch):
    call = interop.bridge(lambda x: torch.sin(x) * x, to="jax")
    program = jax.jit(jax.grad(lambda x: call(x).sum()))
    wrong = []

    def work(k):
        for step in range(20):
            x = np.float32(k + step)
            found = float(program(jax.numpy.full(100, x))[7])
            if abs(found - (np.cos(x) * x + np.sin(x))) > 1e-4 * (1 + abs(x)):
                wrong.append((k, step, found))

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


@pytest.mark.multi_gpu
def test_torch_on_the_second_gpu(two_cuda_devices, jax, torch):
    x = jax.device_put(np.full(4, 3.0, "float32"), jax.devices("cuda")[1])
    g = jax.grad(lambda x: interop.bridge(torch.square, to="jax")(x).sum())(x)
    assert g.devices() == x.devices()
    assert (np.asarray(g) == 6).all()
