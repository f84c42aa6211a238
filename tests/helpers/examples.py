"""The operators of docs/operator-examples.md, and what each computes, in NumPy and float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

_DOCS = Path(__file__).parents[2] / "docs"


def of_page() -> SimpleNamespace:
    """Return the names that the page's blocks for every machine define, with operators in a package of the tests."""
    spec = importlib.util.spec_from_file_location("runner_of_examples", _DOCS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    page = _DOCS / "operator-examples.md"
    text = page.read_text(encoding="utf-8").replace("examples", "tests_examples")
    names: dict[str, Any] = {"__name__": __name__}
    for fence in runner.FENCE.finditer(text):
        if fence["info"] == "python" and not fence["words"].split():
            lines = "\n" * text.count("\n", 0, fence.start("code"))
            exec(compile(lines + fence["code"], page, "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


class Example(NamedTuple):
    """`shapes` of the arguments; `leading` is how many of their axes are, in each that has them."""

    shapes: tuple[tuple[int, ...], ...]
    value: Callable[..., np.ndarray]
    #: (that by the result, *arguments) -> the gradient by each argument.
    gradient: Callable[..., tuple[np.ndarray, ...]]

    def arguments(self, seed: int = 0) -> list[np.ndarray]:
        return _draw(self.shapes, seed)

    def cotangent(self) -> np.ndarray:
        (g,) = _draw([self.value(*self.arguments()).shape], 1)
        return g

    def second(self, g: np.ndarray, args: Sequence[np.ndarray], by: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the gradient of the sum of the gradients, each times one of `by`: by `g`, and by each argument."""

        def total(g: np.ndarray, *args: np.ndarray) -> float:
            return float(sum((a * b).sum() for a, b in zip(self.gradient(g, *args), by, strict=True)))

        return slopes(total, [g, *args])


def _draw(shapes: Sequence[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    """Return float32 arrays of tenths and quarters, which keep relu's sums away from zero."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-15, 16, shape) / 10 + 0.025, "float32") for shape in shapes]


def slopes(function: Callable[..., float], args: Sequence[np.ndarray], step: float = 1e-5) -> list[np.ndarray]:
    """Return the derivative of a number by each element of each argument, as a quotient of differences."""
    wide = [x.astype("float64") for x in args]
    made = []
    for x in wide:
        slope = np.empty_like(x)
        for place in np.ndindex(x.shape):
            at = x[place]
            x[place] = at + step
            above = function(*wide)
            x[place] = at - step
            slope[place] = (above - function(*wide)) / (2 * step)
            x[place] = at
        made.append(slope)
    return made


def _softmax(x: np.ndarray) -> np.ndarray:
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def _softmax_back(g: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y * (g - (g * y).sum(-1, keepdims=True))


def _scaled(x: np.ndarray, s: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(x * s + b, 0)


def _scaled_gradient(g: np.ndarray, x: np.ndarray, s: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    passed, leading = g * (_scaled(x, s, b) > 0), tuple(range(x.ndim - 1))
    return passed * s, (passed * x).sum(leading), passed.sum(leading)


def _softmax_back_gradient(h: np.ndarray, g: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    gy, hy = ((other * y).sum(-1, keepdims=True) for other in (g, h))
    return _softmax_back(h, y), h * (g - gy) - g * hy


EXAMPLES = {
    "row_sum": Example(
        ((2, 3, 5),), lambda x: x.sum(-1), lambda g, x: (np.broadcast_to(g[..., None], x.shape).copy(),)
    ),
    "spread": Example(
        ((2, 3), (2, 3, 5)),
        lambda g, x: np.broadcast_to(g[..., None], x.shape).copy(),
        lambda h, g, x: (h.sum(-1), np.zeros_like(x)),
    ),
    "scale_bias_relu": Example(((2, 3, 5), (5,), (5,)), _scaled, _scaled_gradient),
    "softmax": Example(((2, 3, 5),), _softmax, lambda g, x: (_softmax_back(g, _softmax(x)),)),
    "softmax_back": Example(((2, 3, 5), (2, 3, 5)), _softmax_back, _softmax_back_gradient),
}
