import ctypes
import importlib.util

import numpy as np
import pytest
from row_sum import _core, row_sum

X = np.arange(12, dtype="float32").reshape(3, 4)


def has_gpu():
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def test_numpy():
    result = row_sum(X)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, [6, 22, 38])


def test_views_are_read_where_they_are():
    np.testing.assert_array_equal(row_sum(X.T), X.T.sum(1))
    np.testing.assert_array_equal(row_sum(X[::-1, ::2]), X[::-1, ::2].sum(1))
    np.testing.assert_array_equal(row_sum(X[:0]), np.empty(0))


def test_torch_gives_torch():
    torch = pytest.importorskip("torch")
    result = row_sum(torch.from_numpy(X))
    assert type(result) is torch.Tensor
    assert result.tolist() == [6, 22, 38]


def test_torch_differentiates_it_again():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).clone().requires_grad_()
    (by_x,) = torch.autograd.grad((row_sum(x) ** 3).sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(by_x.sum(), x)
    sums = X.sum(1, keepdims=True) * np.ones(4)
    np.testing.assert_allclose(by_x.detach(), 3 * sums**2)
    np.testing.assert_allclose(again, 4 * 6 * sums)


def test_jax_compiles_and_differentiates_it():
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        value, by_x = jax.jit(jax.value_and_grad(lambda x: (row_sum(x) ** 2).sum()))(jax.numpy.asarray(X))
    assert value == (X.sum(1) ** 2).sum()
    np.testing.assert_allclose(by_x, 2 * X.sum(1, keepdims=True) * np.ones(4))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X.astype("float64"), TypeError, "row_sum::row_sum: x is float64; accepted: float32"),
        (X[0], ValueError, r"row_sum::row_sum: x has 1 dimensions, shape \(4,\); accepted: 2"),
        ([1.0], TypeError, "row_sum::row_sum: x is list"),
    ],
)
def test_what_does_not_fit_is_named(x, error, message):
    with pytest.raises(error, match=message):
        row_sum(x)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_gpu(library):
    if not has_gpu():
        pytest.skip("no GPU")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"no {library}")
    assert _core.has_cuda, "the module was built without nvcc, on a machine with a GPU"
    if library == "cupy":
        import cupy

        result = row_sum(cupy.asarray(X).T)
        assert type(result) is cupy.ndarray
        values = result.get()
    else:
        import torch

        result = row_sum(torch.from_numpy(X).cuda().T)
        assert result.is_cuda
        values = result.cpu().numpy()
    np.testing.assert_array_equal(values, X.sum(0))
