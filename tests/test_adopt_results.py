"""What functions of `interop.adopt` return, on the host."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import machine

import interop

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture(scope="module")
def tvm_ffi():
    return machine.need("tvm_ffi")


def test_what_it_returns(tvm_ffi, torch):
    count = interop.adopt(tvm_ffi.convert(lambda x: np.from_dlpack(x).size), "x")
    assert count(torch.from_numpy(X)) == 6
    itself = interop.adopt(tvm_ffi.convert(lambda x: x), "x")
    x = torch.from_numpy(X)
    view, frozen = interop.asarray(torch.ones(2)), np.broadcast_to(np.ones(1), (3,))
    for given in (X, view):
        assert itself(given) is given
    assert itself(x).data_ptr() == x.data_ptr()
    second = interop.adopt(tvm_ffi.convert(lambda x, y: y), "x, y", writes=())
    for given in (X, view, frozen):
        assert second(X, given) is given
    assert second(torch.ones(2), X) is X  # of another library than the first


def test_what_it_returns_of_a_read_only_array_is_read_only(tvm_ffi):
    def rest(x):
        return tvm_ffi.from_dlpack(np.from_dlpack(x)[1:])

    call = interop.adopt(tvm_ffi.convert(rest), "x", writes=())
    frozen = np.ones(3)
    frozen.flags.writeable = False
    made = call(frozen)
    assert made.tolist() == [1, 1]
    assert not made.flags.writeable
    assert call(np.ones(3)).flags.writeable
    (made,) = interop.adopt(tvm_ffi.convert(lambda x: [rest(x)]), "x", writes=())(frozen)
    assert not made.flags.writeable


def test_lists_of_tensors(tvm_ffi, torch):
    def several(x):
        half = np.from_dlpack(x) / 2
        return [x, 3, [tvm_ffi.from_dlpack(half)], "text"]

    for x, kind in ((X, np.ndarray), (torch.from_numpy(X), torch.Tensor), (interop.asarray(X), interop.Array)):
        first, number, nested, text = interop.adopt(tvm_ffi.convert(several), "x", writes=())(x)
        assert (type(first), number, type(nested[0]), text) == (kind, 3, kind, "text")
        assert np.asarray(nested[0]).tolist() == (X / 2).tolist()
    numbers = interop.adopt(tvm_ffi.convert(lambda x: [1, [2]]), "x", writes=())(X)
    assert type(numbers) is tvm_ffi.Array


def test_maps_of_tensors_are_refused(tvm_ffi):
    for make in (lambda x: {"k": x}, lambda x: {"k": [x]}, lambda x: [{"k": x}]):
        with pytest.raises(TypeError, match=r"adopt\(Function\): the result has a tensor in a map"):
            interop.adopt(tvm_ffi.convert(make), "x", writes=())(X)
    assert interop.adopt(tvm_ffi.convert(lambda x: {"k": 1}), "x", writes=())(X)["k"] == 1


def test_the_first_array_is_that_of_the_first_parameter(tvm_ffi, torch):
    """Whatever the order of the keywords."""

    def rest(n, x, y):
        return tvm_ffi.from_dlpack(np.from_dlpack(y)[1:])

    second = interop.adopt(tvm_ffi.convert(rest), "n, x, y", writes=())
    t = torch.from_numpy(X)
    assert type(second(y=X, x=t, n=1)) is torch.Tensor
    assert type(second(1, y=t, x=X)) is np.ndarray
