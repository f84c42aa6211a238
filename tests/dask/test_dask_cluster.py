"""Calls of Dask arrays on a cluster of two processes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import c_functions

import interop

SOURCE = """
void row_sum(const double* x, double* y, int rows, int n) {
  for (int r = 0; r < rows; ++r) {
    y[r] = 0;
    for (int c = 0; c < n; ++c) y[r] += x[r * n + c];
  }
}
"""
X = np.arange(60, dtype="float64").reshape(10, 6)


@pytest.fixture(scope="module")
def client(da):
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_c_functions_are_loaded_by_the_workers(client, da, tmp_path):
    library = c_functions.build(SOURCE, tmp_path / "librows.so")
    row_sum = interop.load(library, "void row_sum(host const double* x, host double* y, int rows, int n);").row_sum
    sizes = {"rows": lambda leading: leading}
    operator = interop.operator("tests_dask::row_sum", row_sum, "x[..., n] -> [...]", sizes=sizes)
    lazy = operator(da.from_array(X, chunks=(1, 6)))
    assert np.array_equal(client.compute(lazy).result(timeout=60), X.sum(-1))


# Lambdas are sent as they are; a function of this module would be imported by the workers.
expression = interop.elementwise("where(x > 30, x * s, -x)")
sums = interop.operator("tests_dask::row_sums", lambda x, s: interop.multiply(x.sum(-1), s), "x[..., n], s -> [...]")
squares = interop.operator("tests_dask::squares", lambda x: interop.multiply(x, x), "x[m, n] -> [m, n]", cut="m, n")
scaled = interop.operator("tests_dask::scaled", interop.elementwise("x * s"), "x[..., n], s[n] -> [..., n]")

CALLS = {
    "add": lambda x: interop.add(x, 1),
    "expression": lambda x: expression(x, s=2),
    "matmul": lambda x: interop.matmul(x, x.T, bias=np.ones(10), epilogue="relu"),
    "operator of a closure": lambda x: sums(x, 2.0),
    "operator of a function": squares,
    "operator of an expression": lambda x: scaled(x, np.arange(6.0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_numpys_arrays_and_lie_on_both_workers(name, client, da):
    x = da.from_array(X, chunks=(1, 6))
    if name in ("add", "expression"):
        x = x.rechunk((1, 3))
    elif name == "matmul":
        x = x.rechunk((2, 3))
    lazy = CALLS[name](x)
    held = client.persist(lazy)
    assert np.array_equal(client.compute(held).result(timeout=60), CALLS[name](X))
    workers = {worker for where in client.who_has(held).values() for worker in where}
    assert len(workers) == 2
