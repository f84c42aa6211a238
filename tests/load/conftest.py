"""What the tests of `interop.load` need: a library of C functions, and a way to build another."""

from __future__ import annotations

import itertools

import pytest
from helpers import c_functions
from helpers.c_functions import DECLARATIONS
from helpers.cxx_declarations import PREAMBLE

import interop


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.example(tmp_path_factory.mktemp("load"))


@pytest.fixture
def lib(path):
    return interop.load(path, DECLARATIONS)


@pytest.fixture
def build(tmp_path):
    def build(text, name="libown.so", *options):
        return c_functions.build(text, tmp_path / name, *options)

    return build


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile all these functions, each of which returns its number, to one library."""
    folder, count = tmp_path_factory.mktemp("names"), itertools.count()

    def compiled(functions, preamble=PREAMBLE):
        source = preamble + "\n" + "\n".join(function.definition(i) for i, function in enumerate(functions))
        return c_functions.build(source, folder / f"lib{next(count)}.so", "-O0", language="c++")

    return compiled


@pytest.fixture
def load(tmp_path):
    """Load functions of C++ with the header in `text`, beside which are the files in `others`."""

    def load(source, text, others=None, **options):
        for name, content in {**(others or {}), "own.h": text}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        path = c_functions.build(source, tmp_path / "libown.so", language="c++")
        return interop.load(path, header=tmp_path / "own.h", **options)

    return load
