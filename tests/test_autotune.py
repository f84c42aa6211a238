"""interop.autotune where nothing can be tuned: its file, and what it refuses. On a GPU: tests/gpu/test_autotune.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

import interop

X = np.ones((3, 3), "float32")


def entry(**changes):
    return {
        "card": "A card that nobody has",
        "cublas": "13.1.0",
        "product": "float32 3x3 @ 3x3",
        "backend": "cublas",
        "microseconds": 1.0,
        "untuned_microseconds": 2.0,
        "key": "0" * 18 * 16,
        "algorithm": "0" * 8 * 16,
        **changes,
    }


def write(path, *entries):
    path.write_text(json.dumps({"interop autotune": 1, "choices": list(entries)}))
    return path


def test_host_arrays_have_nothing_to_tune(tmp_path):
    path = tmp_path / "choices.json"
    with interop.autotune(path):
        np.testing.assert_array_equal(interop.matmul(X, X, autotune=True), X @ X)
        np.testing.assert_array_equal(interop.matmul(X, X, autotune=False), X @ X)
    assert json.loads(path.read_text()) == {"interop autotune": 1, "choices": []}


def test_choices_of_other_cards_stay_in_the_file(tmp_path):
    path = write(tmp_path / "choices.json", entry(), entry(key="1" * 18 * 16))
    with interop.autotune(path):
        pass
    assert json.loads(path.read_text())["choices"] == [entry(), entry(key="1" * 18 * 16)]
    assert interop.autotune.load(path) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"interop autotune": 2, "choices": []}', '{"interop autotune": 1, "choices": [{}]}', "\x00\xff"],
)
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "choices.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"interop.autotune: .*choices.json is not a file of choices"):
        interop.autotune.load(path)
    with pytest.raises(ValueError, match="is not a file of choices"), interop.autotune(path):
        pass
    assert path.read_bytes() == text.encode("latin-1")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        interop.autotune.load(tmp_path / "choices.json")
    with interop.autotune(tmp_path / "choices.json"):
        pass
    assert (tmp_path / "choices.json").exists()


@pytest.mark.parametrize("change", [{"key": "0"}, {"key": "g" * 18 * 16}, {"algorithm": "00"}, {"microseconds": "x"}])
def test_a_malformed_choice_is_refused(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        interop._core.keep_matmul_choice(0, entry(**change))
    assert interop._core.matmul_choices(0) == []


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="interop.matmul: autotune is 1; accepted: None, True, False"):
        interop.matmul(X, X, autotune=1)


def test_jax_arrays_are_refused(jax):
    x = jax.numpy.ones((3, 3))
    with pytest.raises(ValueError, match="autotune is given, and the arrays are JAX's.*accepted: None"):
        interop.matmul(x, x, autotune=True)


def test_blocks_nest():
    tunes = []
    with interop.autotune():
        with interop.autotune():
            tunes.append(interop.autotune._open)
        tunes.append(interop.autotune._open)
    assert [*tunes, interop.autotune._open] == [2, 1, 0]
