"""What functions of `interop.adapt` write to: the caller's arrays, and no other."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

import interop


def doubled(x, scale=2, *, out=None):
    return np.multiply(x, scale, out=out)


scaled = interop.adapt(doubled, "numpy", writes="out")


def test_out_is_the_callers_own_array(torch):
    t, out = torch.arange(3.0), torch.zeros(3)
    assert scaled(t, out=out) is out
    assert out.tolist() == [0, 2, 4]
    add = interop.adapt(np.add, "numpy", writes="out")
    assert add(t, t, out) is out
    assert add(t, 1.0, out=(out,)) is out
    assert out.tolist() == [1, 2, 3]
    x = np.zeros(3, "float32")
    assert scaled(t, out=x) is x  # of another library than the first
    assert x.tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_that_the_function_resizes_is_refused(torch):
    dot = interop.adapt(torch.tensordot, "torch", writes="out")
    x, out = np.ones((2, 2), "float32"), np.zeros((4, 4), "float32")
    with pytest.raises(ValueError, match=r"has resized out, of shape \(4, 4\), to \(2, 2\)"):
        dot(x, x, 1, out=out)


@pytest.mark.parametrize("writes", [None, "x", 0, ["x"]])
def test_read_only_arrays_are_refused_where_they_may_be_written_to(torch, host_jax, writes):
    def negate(x, y=None):
        return torch.negative(x)

    frozen = np.ones(3)
    frozen.flags.writeable = False
    call = interop.adapt(negate, "torch", writes=writes)
    for x in (frozen, host_jax.numpy.ones(3)):
        with pytest.raises(TypeError, match=r"adapt\(negate\): x is read-only, and the .* writes= with the"):
            call(x)
    assert interop.adapt(negate, "torch", writes=())(frozen).tolist() == [-1] * 3
    assert interop.adapt(negate, "torch", writes="y")(frozen).tolist() == [-1] * 3
    with pytest.raises(TypeError, match="y is read-only"):
        interop.adapt(negate, "torch", writes="y")(np.ones(3), frozen)


def test_numpy_refuses_such_writes_itself(host_jax):
    x = host_jax.numpy.ones(3)
    assert interop.adapt(np.sum, "numpy", copy=None, writes=())(x) == 3
    assert interop.adapt(lambda x: x.flags.writeable, "numpy")(x) is False
    with pytest.raises(ValueError, match="read-only"):
        interop.adapt(np.ndarray.sort, "numpy")(x)
    with pytest.raises(TypeError, match="a is read-only"):
        interop.adapt(lambda a: a, "numpy", writes="a")(x)


def test_torch_counts_the_writes(torch):
    t, out = torch.ones(3), torch.zeros(3)
    versions = t._version, out._version
    scaled(t, out=out)
    assert (t._version, out._version) == (versions[0], versions[1] + 1)
    interop.adapt(doubled, "numpy")(t)  # which may write to any
    assert t._version == versions[0] + 1
    interop.adapt(doubled, "numpy", writes=())(t)
    assert t._version == versions[0] + 1
    weight = torch.ones(3, requires_grad=True)
    lost = weight * t
    scaled(torch.ones(3), out=t)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lost.sum().backward()


def test_inference_tensors_are_not_written(torch):
    with torch.inference_mode():
        t = torch.ones(3)
    assert scaled(t).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match=r"adapt\(doubled\): out is memory of a torch inference tensor"):
        scaled(torch.ones(3), out=t)
    with torch.inference_mode():
        assert scaled(torch.ones(3), out=t) is t


def several(a, b, *rest, out=None, **more):
    return None


@pytest.mark.parametrize(
    ("writes", "written"),
    [
        ("a", ["a"]),
        (1, ["b"]),
        ("rest", ["rest"]),
        (2, ["rest"]),
        (["out", "more"], ["out", "unknown"]),
        ("unknown", ["rest", "unknown"]),
        (["unknown", 0], ["a", "rest", "unknown"]),
        (["unknown", 3], ["unknown"]),
        ("more", ["unknown"]),
        ((), []),
        (None, ["a", "b", "rest", "out", "unknown"]),
    ],
)
def test_writes_names_parameters(torch, writes, written):
    frozen = np.broadcast_to(np.ones(1), (3,))  # read-only
    call = interop.adapt(functools.wraps(several)(lambda *a, **k: None), "torch", writes=writes)
    t = torch.ones(3)
    places = {"a": (frozen, t, t), "b": (t, frozen, t), "rest": (t, t, frozen)}
    for name in ("a", "b", "rest", "out", "unknown"):
        arguments, named = (places[name], {}) if name in places else ((t, t), {name: frozen})
        if name in written:
            with pytest.raises(TypeError, match="is read-only"):
                call(*arguments, **named)
        else:
            call(*arguments, **named)


def test_writes_of_functions_without_a_signature(torch):
    def plain(*args, **kwargs):
        return torch.ones(1)

    plain.__signature__ = "none"
    with pytest.raises(TypeError):
        inspect.signature(plain)
    frozen = np.broadcast_to(np.ones(1), (3,))
    call = interop.adapt(plain, "torch", writes=["out", 1])
    call(frozen, torch.ones(1), other=frozen)
    for arguments, named, name in (((frozen, frozen), {}, "argument 1"), ((), {"out": frozen}, "out")):
        with pytest.raises(TypeError, match=f"{name} is read-only"):
            call(*arguments, **named)
    call = interop.adapt(plain, "torch", writes="out")  # which may stand at any place
    call(other=frozen)
    interop.adapt(plain, "torch", writes=())(frozen)
    for arguments, named, name in (((frozen,), {}, "argument 0"), ((), {"out": frozen}, "out")):
        with pytest.raises(TypeError, match=f"{name} is read-only.* writes= with the names or positions"):
            call(*arguments, **named)


def test_a_built_in_does_not_write_to_what_is_read_only(torch, host_jax):
    x = host_jax.numpy.array([-1.0, 2.0])
    with pytest.raises(TypeError, match=r"adapt\(relu_\): argument 0 is read-only"):
        interop.adapt(torch.relu_, "torch", writes="input")(x)
    assert x.tolist() == [-1, 2]


def test_names_that_a_signature_does_not_have():
    with pytest.raises(ValueError, match="writes is 'inpalce'; accepted: the parameters of the function, x, inplace"):
        interop.adapt(lambda x, inplace=False: None, "torch", writes="inpalce")
