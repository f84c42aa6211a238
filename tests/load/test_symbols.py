"""The symbols that `interop.load` reads in a library's file, and files that are broken or are none."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from helpers import c_functions
from hypothesis import given
from hypothesis import strategies as st

import interop
from interop._functions.symbols import symbols_of

_SOURCE = """
#include <math.h>
int exported(int x) { return x; }
__attribute__((weak)) int weak(int x) { return x; }
__attribute__((visibility("protected"))) int protected(int x) { return x; }
__attribute__((visibility("hidden"))) int hidden(int x) { return x; }
static int of_file(int x) { return x; }
int (*keeps[])(int) = {hidden, of_file};
double imports(double x) { return cosh(x); }
int number = 3;
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build(_SOURCE, tmp_path_factory.mktemp("symbols") / "libsymbols.so", "-O0", "-lm")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write these bytes to a file."""
    path = tmp_path_factory.mktemp("written") / "libbroken.so"

    def written(data):
        path.write_bytes(data)
        return path

    return written


def test_what_keeps_the_loader_from_a_symbol(path):
    found = {symbol.name: symbol.obstacle for symbol in symbols_of(path)}
    for name in ("exported", "weak", "protected", "imports", "number"):
        assert found[name] == ""
    assert found["cosh"] == "imported"
    assert not found.keys() & {"hidden", "of_file"}
    others = {symbol.name: symbol.obstacle for symbol in symbols_of(path, of_loader=False)}
    assert others["of_file"] == "local"
    assert others["hidden"] in ("local", "hidden")  # as the linker has it


def test_the_same_as_nm(path):
    if not (nm := shutil.which("nm")):
        pytest.skip("no nm")
    for options, of_loader in (["-D"], True), ([], False):
        done = subprocess.run([nm, *options, path], capture_output=True, text=True, check=True)
        expected = {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
        found = {symbol.name.partition("@")[0] for symbol in symbols_of(path, of_loader)}
        assert expected <= found
        assert all(name.endswith(".c") for name in found - expected)  # of files, which nm leaves out


def test_names_that_are_hidden_by_the_compiler(tmp_path):
    unlinked = c_functions.build(_SOURCE, tmp_path / "unlinked.so", "-c")
    found = {symbol.name: symbol.obstacle for symbol in symbols_of(unlinked, of_loader=False)}
    assert (found["hidden"], found["of_file"], found["exported"]) == ("hidden", "local", "")


def test_a_table_that_says_it_is_larger_than_the_file(path, written):
    data = bytearray(path.read_bytes())
    start, count = int.from_bytes(data[40:48], "little"), int.from_bytes(data[60:62], "little")
    for i in range(count):
        data[start + 64 * i + 32 : start + 64 * i + 40] = (2**62).to_bytes(8, "little")  # sh_size
    assert symbols_of(written(data)) == []


def test_files_that_are_cut_off(path, written):
    whole = path.read_bytes()
    for size in [*range(130), *range(130, len(whole), 97), len(whole) - 1]:
        assert symbols_of(written(whole[:size])) == []  # the table of sections is at the end


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8), st.booleans())
def test_files_with_wrong_bytes(path, written, changes, in_headers):
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[40:48], "little")  # e_shoff
    for place, value in changes:
        data[start + place % (len(data) - start) if in_headers else place % len(data)] = value
    for of_loader in (True, False):
        assert all(symbol.name is not None for symbol in symbols_of(written(data), of_loader))


@given(st.binary(max_size=200))
def test_files_that_are_no_libraries(written, data):
    assert symbols_of(written(data)) == []
    assert symbols_of(written(b"\x7fELF\x02\x01" + data)) == []


def test_files_that_are_none(tmp_path):
    for path in (tmp_path / "libnone.so", tmp_path):
        assert symbols_of(path) == []


def test_a_library_without_section_headers(path, tmp_path):
    """The loader needs none; functions of C are found as ever."""
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    bare = tmp_path / "libbare.so"
    bare.write_bytes(data)
    assert interop.load(bare, "int exported(int);").exported(3) == 3
    with pytest.raises(
        AttributeError, match=r"'n::f\(int\)': its file shows no symbols: .*; accepted: .* extern \"C\""
    ):
        interop.load(bare, "int n::f(int);")
