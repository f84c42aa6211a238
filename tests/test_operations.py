"""The table of operations: what it says is true of NumPy, torch, JAX, the kernels' sources and the pages."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import elements, machine

import interop
from interop._expressions.parser import FUNCTIONS as WRITTEN
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
ALL = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
FUNCTORS = "".join(file.read_text() for file in sorted((ROOT / "src/cuda/elementwise").glob("*functors.cuh")))


def text_of(operation, *operands):
    """The operation as an expression."""
    if operation.name == "copy":
        return operands[0]
    if not operation.symbol:
        return f"{operation.name}({', '.join(operands)})"
    return operation.symbol + operands[0] if operation.arity == 1 else operation.symbol.join(f" {x} " for x in operands)


def test_the_functions_of_the_package_are_those_of_the_table():
    assert set(elements.OPERATIONS) == set(FUNCTIONS)
    assert set(elements.COMPARISONS) == set(COMPARISONS)
    for name in FUNCTIONS:
        signature = inspect.signature(getattr(interop, name))
        positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
        assert tuple(positional) == OPERATIONS[name].parameters
        assert name in interop.__all__


@ALL
def test_each_has_a_functor(operation):
    assert re.search(rf"^(struct |INTEROP_\w+\(){operation.functor}\b", FUNCTORS, re.MULTILINE)


@ALL
def test_each_is_numpys(operation):
    assert callable(getattr(np, operation.numpy))


@ALL
def test_each_is_torchs(operation):
    torch = machine.need("torch")
    if operation.torch is None:
        assert not hasattr(torch, operation.name)
        return
    assert callable(getattr(torch, operation.torch, None) or getattr(torch.Tensor, operation.torch))


@ALL
def test_each_is_jaxs(operation):
    assert callable(getattr(machine.need("jax").numpy, operation.name))


@ALL
def test_symbols_and_functions_of_expressions(operation):
    assert (operation.name in WRITTEN) == (operation.symbol is None and operation.name != "copy")
    x = np.ones(3, "int32" if "i" in operation.accepts or operation.in_float else "complex64")
    with np.errstate(all="ignore"):  # an infinity
        result = interop.elementwise(text_of(operation, *"xyz"[: operation.arity]))(*[x] * operation.arity)
    assert result.shape == (3,)


def result_dtype(name, dtype):
    return interop._core.abstract_elementwise(name, dtype, [])[1]


@ALL
def test_dtypes(operation):
    """By NumPy's letters, and what is given: of expressions, whose steps ask the table."""
    for dtype in elements.DTYPES:
        if elements.kind_of(dtype) not in operation.accepts:
            with pytest.raises(TypeError, match=rf"the operands.* are {dtype}; accepted: "):
                result_dtype(operation.name, dtype)
            continue
        result = result_dtype(operation.name, dtype)
        part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
        assert result == {"same": dtype, "bool": "bool", "part": part}[operation.gives]


def test_the_abstract_question():
    ask = interop._core.abstract_elementwise
    assert ask("less", "float64", [((2, 1), "float64"), ((3,), "int8")]) == ((2, 3), "bool")
    assert ask("abs", "complex64", [((4,), "complex64")]) == ((4,), "float32")
    with pytest.raises(TypeError, match=r"interop.add: b is float8_e5m2; accepted: bool"):
        ask("add", "float32", [((2,), "float32"), ((2,), "float8_e5m2")])
    with pytest.raises(TypeError, match=r"interop.subtract: the operands are bool"):
        ask("subtract", "bool", [((2,), "bool"), ((2,), "bool")])
    with pytest.raises(ValueError, match=r"interop.add: a has shape \(2,\) and b has shape \(3,\)"):
        ask("add", "float32", [((2,), "float32"), ((3,), "float32")])


def test_the_question_of_an_expression():
    """Operands of the names that it gives them; the dtypes of some are known to be served."""
    ask = interop._core.abstract_operands
    assert ask("f", [("x", (2, 1), "float16"), ("y", (3,), None), ("z", (), "int8")]) == (2, 3)
    assert ask("f", []) == ()
    with pytest.raises(TypeError, match=r"^f: y is float8_e5m2; accepted: bool"):
        ask("f", [("x", (2,), "float32"), ("y", (3,), "float8_e5m2")])
    with pytest.raises(ValueError, match=r"^f: x has shape \(2,\) and y has shape \(3,\)"):
        ask("f", [("x", (2,), "float32"), ("y", (3,), "float32")])


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="no operation is called adds"):
        result_dtype("adds", "float32")
    with pytest.raises(ValueError, match="no elementwise function is called sqrt"):
        interop._core.elementwise("sqrt", np.ones(2), None, {})
    with pytest.raises(ValueError, match="no elementwise function is called 0"):
        interop._core.elementwise(0, np.ones(2), np.ones(2), {})


# ---- derivatives and identities ----

#: Where all operations that have a derivative are smooth; of each operand.
POINTS = {"acosh": [(1.3,), (2.5,)], "where": [(1.0, 0.3, 0.7), (0.0, 0.3, 0.7)]}
ORDINARY = {1: [(0.3,), (0.7,), (-0.4,)], 2: [(0.3, 0.7), (1.9, 0.6), (1.7, -0.6)]}
OF_POSITIVE = ("sqrt", "log", "log2", "log10", "pow")


@pytest.mark.parametrize("operation", [x for x in OPERATIONS.values() if any(x.derivatives)], ids=lambda x: x.name)
def test_derivatives_are_those_of_the_operation(operation):
    """Beside the quotient of differences, in float64."""
    names = operation.parameters
    function = interop.elementwise(text_of(operation, *names))
    points = POINTS.get(operation.name, ORDINARY.get(operation.arity, []))
    for point in points:
        if operation.name in OF_POSITIVE and point[0] < 0:
            continue
        for k, derivative in enumerate(operation.derivatives):
            if derivative is None:
                continue
            step = 1e-6
            low, high = ([np.array([x + sign * step * (i == k)]) for i, x in enumerate(point)] for sign in (-1, 1))
            quotient = (function(*high) - function(*low)) / (2 * step)
            expression = interop.elementwise(f"({derivative}) + 0 * ({' + '.join(names)})")
            given = dict(zip(names, (np.array([x]) for x in point), strict=True))
            assert np.allclose(expression(**given), quotient, rtol=1e-8, atol=1e-8), (point, derivative)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name, operation in OPERATIONS.items()
        for dtype in elements.DTYPES
        if operation.identity and elements.kind_of(dtype) in operation.accepts
    ],
)
def test_identities_change_no_other_operand(name, dtype):
    operation, kind = OPERATIONS[name], elements.kind_of(dtype)
    x = np.array([0, 1, 3, 100]).astype(elements.dtype_of(dtype))
    largest = True if kind == "b" else np.inf if kind == "f" else np.iinfo(dtype).max if kind in "iu" else None
    least = False if kind == "b" else -np.inf if kind == "f" else np.iinfo(dtype).min if kind in "iu" else None
    identity = {"0": 0, "1": 1, "largest": largest, "least": least}[operation.identity]
    other = np.full(4, identity).astype(elements.dtype_of(dtype))
    assert np.array_equal(getattr(interop, name)(x, other), x)
    assert np.array_equal(getattr(interop, name)(other, x), x)


def test_what_has_no_derivative_says_so():
    assert OPERATIONS["less"].derivatives == (None, None)
    assert OPERATIONS["where"].derivatives[0] is None


# ---- the page ----


def test_the_page_lists_the_functions_and_what_expressions_have():
    page = (ROOT / "docs/elementwise.md").read_text()
    arithmetic = re.search(r"\| arithmetic \| (.*) \|", page)[1].replace("`", "").split()
    comparisons = re.search(r"\| comparisons, which give bool \| (.*) \|", page)[1].replace("`", "").split()
    assert set(arithmetic) == set(FUNCTIONS) - set(COMPARISONS)
    assert set(comparisons) == set(COMPARISONS)
    for operation in OPERATIONS.values():
        if operation.name != "copy":
            assert f"{operation.symbol or operation.name}" in page, operation.name


def test_an_operation_stands_in_few_files():
    """The table, the function that users call, and where NumPy's, JAX's and torch's answers are not the package's."""
    files = [*(ROOT / "src").rglob("*.*"), *(ROOT / "interop").rglob("*.py")]
    found = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if file.suffix in (".h", ".cpp", ".cu", ".cuh", ".py") and re.search(r"\bfloor_divide\b", file.read_text())
    }
    assert found == {
        "src/base/interop/operations.h",
        "interop/__init__.py",
        "interop/_elementwise.py",
        "interop/_host/elementwise.py",
        "interop/jax/_formulas.py",
        "interop/torch/_elementwise.py",
    }
