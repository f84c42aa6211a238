"""A pytest plugin for a run of array-api-tests: it selects the tests of interop's functions, and proves they call it.

The operators of arrays are the library's own; here `x + y` stands for `interop.add(x, y)`, and `x += y` for
`interop.add(x, y, out=x)`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import hypothesis
import namespaces
import numpy as np
import pytest

_OPERATOR_OF = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "pow": "pow",
    "negative": "neg",
    "abs": "abs",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}
#: Of operators, and of those in place, the function.
_FUNCTION_OF = {f"__{word}__": name for name, word in _OPERATOR_OF.items()}
_IN_PLACE = {f"__i{word}__": name for name, word in _OPERATOR_OF.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--interop-library", choices=namespaces.LIBRARIES, required=True)


# Not shrink and explain, which take minutes where a failure is expected.
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)


# ---- which tests ----


def _subject(item: pytest.Function) -> str | None:
    """Return the name of the function of interop that a test is about, if any."""
    module, test = item.module.__name__.rpartition(".")[2], item.originalname.removeprefix("test_")
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    name = None
    if module == "test_operators_and_elementwise_functions":
        name = parameters["func_data"][0] if "func_data" in parameters else test
    elif module == "test_special_cases":
        name = parameters.get("func_name") or parameters.get("iop_name") or ""
        name = _FUNCTION_OF.get(name) or _IN_PLACE.get(name) or name
    elif module == "test_linalg" and test in ("matmul", "linalg_matmul"):
        name = "matmul"
    elif module == "test_signatures" and test == "func_signature":
        name = parameters["stub"].__name__
    return name if name in namespaces.FUNCTIONS else None


@pytest.hookimpl(trylast=True)  # after the suite has marked what it skips, and cut the examples of slow tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    library = config.getoption("--interop-library")
    subjects = {item: name for item in items if isinstance(item, pytest.Function) and (name := _subject(item))}
    config.hook.pytest_deselected(items=[item for item in items if item not in subjects])
    items[:] = subjects
    for module in {item.module for item in subjects}:
        if module.__name__.endswith("test_operators_and_elementwise_functions"):
            _read_at_once(module)
    for item, name in subjects.items():
        if item.originalname == "test_remainder":
            _run_of_integers(item)
        _give_all_examples(item, config.getoption("--max-examples"))
        _put_interop_behind_operators(item, name, library)
        _judge_only_within_the_condition(item)


# ---- what is asked of them ----


_WIDE_UNSIGNED = {"uint16", "uint32", "uint64"}


def pytest_collection(session: pytest.Session) -> None:
    """Take the mixes that torch itself refuses, of wide unsigned integers, out of the dtypes that the suite draws."""
    if session.config.getoption("--interop-library") != "torch":
        return
    import torch
    from array_api_tests import dtype_helpers, hypothesis_helpers

    kept = []
    for pair in hypothesis_helpers.promotable_dtypes:
        names = {dtype_helpers.dtype_to_name[dtype] for dtype in pair}
        try:
            torch.promote_types(*pair)
            kept.append(pair)
        except RuntimeError as error:
            if not names & _WIDE_UNSIGNED:
                raise pytest.UsageError(f"torch has no common dtype of {' and '.join(names)}") from error
    hypothesis_helpers.promotable_dtypes[:] = kept


def _run_of_integers(item: pytest.Function) -> None:
    """Run test_remainder, which the suite skips as flaky: of floats it compares remainders in two precisions."""
    from array_api_tests import dtype_helpers

    item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
    parameters = item.module.make_binary_params("remainder", dtype_helpers.all_int_dtypes)
    (item.callspec.params["ctx"],) = (x.values[0] for x in parameters if x.id == item.callspec.id)


def _give_all_examples(item: pytest.Function, count: int) -> None:
    """Undo that the suite runs a tenth of the examples that were asked for, and of a special case one alone."""
    settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
    if settings is None:
        return
    if item.module.__name__.endswith("test_special_cases"):
        count = max(1, count // 10)  # of these one has been drawn for each of 250 cases
    item.obj._hypothesis_internal_use_settings = hypothesis.settings(
        settings, max_examples=count, database=None, phases=_PHASES
    )


def _judge_only_within_the_condition(item: pytest.Function) -> None:
    """Pass over examples of a special case that are none: for `abs(x1_i) < 1` the suite draws -3.0, too."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    case = parameters.get("case")
    if hasattr(case, "x2_cond_from_dtype"):
        parameters["case"] = dataclasses.replace(
            case, check_result=lambda x, y, result: not case.cond(x, y) or case.check_result(x, y, result)
        )


def _put_interop_behind_operators(item: pytest.Function, name: str, library: str) -> None:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    context = parameters.get("ctx")
    if context is not None:
        parameters["ctx"] = context._replace(func=_behind(context.func, context.func_name, name, library))
    elif "iop" in parameters:
        parameters["iop"] = _behind(parameters["iop"], parameters["iop_name"], name, library)
    elif "func" in parameters:
        parameters["func"] = _behind(parameters["func"], parameters["func_name"], name, library)


def _behind(function: Any, called: str, name: str, library: str) -> Any:
    """Return what is called for `called`: a function's name, or an operator's."""
    from array_api_tests import xp

    replacement = getattr(xp, name)
    if called in _FUNCTION_OF:
        return replacement
    if called in _IN_PLACE:
        if library == "jax":  # whose arrays are immutable: `x += y` makes a new one
            return replacement
        return lambda x, y: _in_place(xp, replacement, x, y)
    return function


def _in_place(xp: Any, function: Any, x: Any, y: Any) -> Any:
    x = xp.asarray(x, copy=True)
    assert function(x, y, out=x) is x
    return x


# ---- how results are read ----


class _OnHost:
    """An array as the suite's comparisons read it, element by element, copied to the host at once."""

    def __init__(self, x: Any) -> None:
        self.dtype, self.shape = x.dtype, tuple(x.shape)
        self.values = x.get() if hasattr(x, "get") else np.asarray(x.cpu() if hasattr(x, "cpu") else x)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


def _read_at_once(module: ModuleType) -> None:
    """Make the comparisons read arrays so: element by element, a JAX array or one on a GPU takes long."""
    for kind in ("unary", "binary", "right_scalar"):
        name = f"{kind}_assert_against_refimpl"
        setattr(module, name, _reading_at_once(getattr(module, name)))


def _reading_at_once(compare: Any) -> Any:
    def reading(*arguments: Any, **options: Any) -> None:
        compare(*map(_on_host, arguments), **{key: _on_host(x) for key, x in options.items()})

    return reading


def _on_host(x: Any) -> Any:
    return _OnHost(x) if hasattr(x, "shape") else x


# ---- that interop is called ----


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    name = _subject(item)
    before = namespaces.calls[name]
    result = yield
    if item.originalname != "test_func_signature" and namespaces.calls[name] == before:
        pytest.fail(f"this test has not called interop.{name}")
    return result


_CALLS = pytest.StashKey[Counter[str]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):  # a process of pytest-xdist, whose counts go to the one that reports
        config.workeroutput["interop_calls"] = dict(namespaces.calls)
        return
    calls = config.stash.setdefault(_CALLS, Counter())
    calls.update(namespaces.calls)
    is_whole = not config.getoption("keyword")
    if is_whole and session.exitstatus == pytest.ExitCode.OK and any(not calls[name] for name in namespaces.FUNCTIONS):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(_CALLS, Counter()).update(node.workeroutput.get("interop_calls", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(_CALLS, Counter())
    terminalreporter.section("calls; a function without one fails the run")
    terminalreporter.line(" ".join(f"{name} {counts[name]}" for name in namespaces.FUNCTIONS))
