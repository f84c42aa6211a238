"""Operators by name: defined again, compared, copied, and pickled into this process and into another one."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import interop
from interop._operators import registry
from interop._operators.content import content_of, key_of, portable

X = np.arange(6, dtype="float32").reshape(2, 3)


def double(x):
    return x * 2


def triple(x):
    return x * 3


def define(call=double, name="tests::again", **options):
    return interop.operator(name, call, "x[...] -> [...]", **options)


# ---- defined twice ----


def test_the_same_again_is_the_same():
    first, second = define(), define()
    assert first == second
    assert hash(first) == hash(second)
    assert first._description is second._description


def test_a_cell_that_is_run_again_is_the_same():
    cell = "def f(x):\n  return x * by\n"
    made = []
    for _ in range(2):
        names = {"by": 2, "__name__": "notebook"}
        exec(cell, names)
        made.append(define(names["f"], "tests::cell"))
    assert made[0] == made[1]
    exec(cell.replace("by", "(by + 1)"), names)
    changed = define(names["f"], "tests::cell")
    assert changed != made[0]
    assert (changed(X) == 3 * X).all()


def test_other_content_takes_its_place():
    old, new = define(double), define(triple)
    assert old != new
    assert registry.find("tests::again") is new._description
    assert (old(X) == 2 * X).all()  # where it runs call at once, it is what it was
    assert (new(X) == 3 * X).all()
    registry.check_newest(new._description)
    with pytest.raises(ValueError, match="^tests::again: it has been defined again, of other content; acc"):
        registry.check_newest(old._description)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient": double},
        {"tangent": double},
        {"dtype": "x"},
        {"batching": "loop"},
    ],
)
def test_each_option_is_content(options):
    assert define() != define(**options)
    assert define(**options) == define(**options)


def test_what_functions_are_made_of():
    def closing(n, default=1):
        def inner(x, y=default):
            return x + n

        return inner

    assert key_of(closing(1)) == key_of(closing(1))
    assert key_of(closing(1)) != key_of(closing(2))
    assert key_of(closing(1)) != key_of(closing(1, 2))
    assert key_of(lambda x: x + 1) != key_of(lambda x: x + 2)
    assert key_of(lambda x: [y for y in x]) != key_of(lambda x: [-y for y in x])  # noqa: C416
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of(1) != key_of(1.0)
    assert key_of("ab", "c") != key_of("a", "bc")
    loop = [1]
    loop.append(loop)
    assert "itself" in content_of(loop)
    assert key_of(closing(np.ones(2))) != key_of(closing(np.ones(2)))  # not known to be the same
    assert portable(key_of(closing(1)))
    assert not portable(key_of(closing(object())))


def test_what_kernels_and_c_functions_are_made_of(lib):
    def kernel(by, **options):
        return interop.kernel(f"__global__ void f(const float* x, float* y) {{ *y = {by} * *x; }}", "f", **options)

    for made in (lambda: kernel(2), lambda: kernel(2, grid=1), lambda: kernel(2, grid=lambda *args: 1)):
        assert key_of(made()) == key_of(made())
        assert portable(key_of(made()))
    assert key_of(kernel(2)) != key_of(kernel(3))
    assert key_of(kernel(2)) != key_of(kernel(2, grid=2))
    assert key_of(kernel(2)) != key_of(kernel(2).returning(y="x"))
    assert key_of(lib.row_sum) == key_of(lib.row_sum)
    assert key_of(lib.row_sum) != key_of(lib.scale)
    assert key_of(interop.elementwise("x + 1")) == key_of(interop.elementwise("x + 1"))
    assert key_of(interop.elementwise("x + 1")) != key_of(interop.elementwise("x + 2"))
    assert portable(key_of(lib.row_sum, interop.elementwise("x + 1")))


def test_an_operator_within_another(tmp_path):
    inner = define(double, "tests::inner")
    outer = define(inner, "tests::outer")
    assert (outer(X) == 2 * X).all()
    assert outer == define(inner, "tests::outer")
    assert portable(outer._description.key)
    assert pickle.loads(pickle.dumps(outer)) == outer
    newer = define(triple, "tests::inner")
    assert define(newer, "tests::outer") != outer
    assert define(inner, "tests::outer") == outer  # which has been replaced, and is what it was


# ---- pickled ----


def test_a_pickle_is_the_operator_of_its_name(lib):
    for op in (
        define(),
        interop.operator("tests::pickled", lib.row_sum, "x[rows, n] -> [rows]"),
        interop.operator("tests::expression", interop.elementwise("x + y"), "x[n], y[n] -> [n]"),
    ):
        for same in (pickle.loads(pickle.dumps(op)), copy.copy(op), copy.deepcopy(op)):
            assert same == op
            assert same._description is op._description


def test_a_pickle_of_what_has_been_replaced_is_an_error():
    old = define(double, "tests::replaced")
    pickled = pickle.dumps(old)
    define(triple, "tests::replaced")
    with pytest.raises(ValueError, match="^tests::replaced: it has been defined again, of other content"):
        pickle.dumps(old)
    match = r"^interop.operator\('tests::replaced'\): the pickled operator is made of other content than the one that"
    with pytest.raises(ValueError, match=match):
        pickle.loads(pickled)


def in_another_process(code, tmp_path):
    (tmp_path / "package.py").write_text(
        "import interop\n"
        "def call(x, by): return interop.multiply(x, by)\n"
        "def gradient(g, x, by, y): return interop.multiply(g, by), None\n"
        "def define(signature): return interop.operator('package::scale', call, signature, gradient=gradient)\n"
    )
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pickle_goes_to_another_process(tmp_path):
    in_another_process(
        """
        import pickle, package
        pickle.dump(package.define("x[...], by -> [...]"), open("op.pickle", "wb"))
        """,
        tmp_path,
    )
    used = """
        import pickle, numpy, package
        {before}
        try:
            op = pickle.load(open("op.pickle", "rb"))
        except ValueError as error:
            print(error)
        else:
            print(op, op(numpy.ones(2), 3), op == package.define("x[...], by -> [...]"))
        """
    made = "<operator package::scale: x[...], by -> [...]> [3. 3.] True\n"
    assert in_another_process(used.format(before=""), tmp_path) == made
    assert in_another_process(used.format(before='package.define("x[...], by->[...]")'), tmp_path) == made
    other = in_another_process(used.format(before='package.define("x[..., n], by -> [..., n]")'), tmp_path)
    assert other.startswith("interop.operator('package::scale'): the pickled operator is made of other content")
