"""`reads=` of kernels and C functions on the GPU: who is accepted, what is copied, what INTEROP_CHECKED=1 finds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import c_functions, device, graphs, libraries
from helpers.kernels import A, B, N

import interop

SOURCE = """
__global__ void sum(float* a, float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
__global__ void lie(float* a, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i];
  if (i == 7) a[i] += 1;
}
__global__ void lie_late(float* a, float* c, int n) {
  long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < 50000000);
  a[0] += 1;
}
"""
HOST_FUNCTION = "void nothing(float* a, float* c, int n) {}"


def of(name, reads=("a",)):
    return interop.kernel(SOURCE, name, threads="a", reads=reads)


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "1")


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


# ---- what it accepts ----


@pytest.mark.parametrize("said", ["0", "1"])
def test_sum_of_every_library(device_library, monkeypatch, said):
    """JAX among them, whose arrays cannot be written to."""
    monkeypatch.setenv("INTEROP_CHECKED", said)
    add = of("sum", ("a", "b")).returning(c="a")
    result = add(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + B)


def test_jax_is_refused_where_it_is_not_said(jax):
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    with pytest.raises(TypeError, match=r"sum.*: b is .*, which is immutable"):
        of("sum", ("a",)).returning(c="a")(a, b, N)


@pytest.mark.parametrize("said", ["0", "1"])
def test_host_arrays_are_copied_there_alone(monkeypatch, said):
    monkeypatch.setenv("INTEROP_CHECKED", said)
    add = of("sum", ("a", "b"))
    a, b, c = read_only(A), read_only(B), np.zeros(N, "float32")
    add(a, b, c, N, execution="cuda")
    np.testing.assert_array_equal(c, A + B)
    copies = interop.explain(add, a, b, c, N, execution="cuda").copies
    assert [copy.split(" cuda")[0] for copy in copies] == ["a: to", "b: to", "c: to", "c: from"]
    plain = interop.explain(of("sum", ()), A.copy(), B.copy(), c, N, execution="cuda").copies
    assert [copy.split(" cuda")[0] for copy in plain] == ["a: to", "a: from", "b: to", "b: from", "c: to", "c: from"]


# ---- INTEROP_CHECKED=1 ----


@pytest.mark.usefixtures("checked")
def test_a_lie_is_caught(device_view_library):
    a, c = device_view_library.make(A), device_view_library.make(np.zeros(N, "float32"))
    with pytest.raises(ValueError, match=r"^interop.kernel\('lie'\): a is only read, .* from element 7 on; accepted: "):
        of("lie")(a, c, N)
    np.testing.assert_array_equal(device_view_library.to_numpy(c), A)  # the kernel has run
    of("sum", ("a",))(a, c, c, N)


@pytest.mark.usefixtures("checked")
def test_a_lie_about_an_array_of_jax_is_caught(jax):
    with pytest.raises(ValueError, match="a is only read, .* from element 7 on"):
        of("lie").returning(c="a")(jax.numpy.asarray(A), N)


@pytest.mark.usefixtures("checked")
def test_a_lie_about_a_host_array_is_caught():
    a, c = A.copy(), np.zeros(N, "float32")
    with pytest.raises(ValueError, match="a is only read, .* from element 7 on"):
        of("lie")(a, c, N, execution="cuda")
    np.testing.assert_array_equal(a, A)  # the copy on the GPU was written
    np.testing.assert_array_equal(c, A)


@pytest.mark.usefixtures("checked")
def test_pinned_and_managed_memory(cupy):
    pinned = libraries.by_name("torch", "cuda").module.from_numpy(A.copy()).pin_memory()
    managed = cupy.ndarray(N, "float32", memptr=cupy.cuda.malloc_managed(4 * N))
    managed[...] = cupy.asarray(A)
    for a in (pinned, managed):
        c = cupy.zeros(N, "float32")
        of("sum", ("a", "b"))(a, cupy.asarray(B), c, N)
        np.testing.assert_array_equal(c.get(), A + B)
        with pytest.raises(ValueError, match="a is only read, .* from element 7 on"):
            of("lie")(a, c, N)


@pytest.mark.usefixtures("checked")
def test_it_waits_for_the_calls_stream(side):
    """What was queued before is not the kernel's doing; what the kernel does late is."""
    a, b, c = side.make(np.zeros(N, "float32")), side.make(B), side.make(np.zeros(N, "float32"))
    write, add, lie = of("sum", ()), of("sum", ("a", "b")), of("lie_late")
    with side.current():
        for function in (write, add):
            function(b, b, c, N)  # compiled and loaded
        device.delay(side.handle, 50)
        write(b, b, a, N)
        add(a, a, c, N)
        with pytest.raises(ValueError, match="a is only read, .* from element 0 on"):
            lie(a, c, 1)
    np.testing.assert_array_equal(side.library.to_numpy(c), 4 * B)


@pytest.mark.usefixtures("checked")
def test_an_array_that_is_given_for_both_may_change(cupy):
    x = cupy.asarray(A)
    of("sum", ("a", "b"))(x, x, x, N)
    np.testing.assert_array_equal(x.get(), 2 * A)


@pytest.mark.usefixtures("checked")
def test_it_is_not_captured(torch):
    add, c = of("sum", ("a", "b")), torch.zeros(N, device="cuda")
    x = torch.ones(N, device="cuda")
    add(x, x, c, N)
    torch.cuda.synchronize()
    with graphs.captured(torch) as graph:
        y = x + 1
        for call in (add, lambda *args: interop.explain(add, *args)):
            with pytest.raises(ValueError, match=r"captured into a CUDA graph, and INTEROP_CHECKED=1 compares a "):
                call(x, x, c, N)
        of("sum", ())(x, x, c, N)  # nothing is compared
    graph.replay()  # the capture was not broken
    torch.cuda.synchronize()
    assert (y == 2).all()


@pytest.mark.usefixtures("checked")
def test_explain_says_what_is_compared(cupy):
    x, c = cupy.asarray(A), cupy.zeros(N, "float32")
    waits = interop.explain(of("sum", ("a", "b")), x, x, c, N).waits
    assert waits[-1] == "INTEROP_CHECKED=1: the host compares a, b before the call and after, and waits for its stream"


# ---- C functions ----


@pytest.mark.parametrize("said", ["0", "1"])
def test_c_functions_with_device_pointers(tmp_path, jax, monkeypatch, said):
    monkeypatch.setenv("INTEROP_CHECKED", said)
    path = c_functions.build(HOST_FUNCTION, tmp_path / "libnothing.so")
    declaration = "void nothing(float* a, float* c, int n);"
    lib = interop.load(path, declaration, memory="device", reads={"nothing": ("a",)}, needs_gpu=True)
    nothing = lib.nothing.returning(c="a")
    assert isinstance(nothing(jax.numpy.asarray(A), N), jax.Array)
    made = nothing(read_only(A), N, execution="cuda")
    assert type(made) is np.ndarray
    with pytest.raises(TypeError, match=r"libnothing.nothing: a is .*, which is immutable"):
        interop.load(path, declaration, memory="device").nothing.returning(c="a")(jax.numpy.asarray(A), N)
