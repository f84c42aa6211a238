"""What `interop.load` opens: declarations, the functions of the library itself, and the file that it is in."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers.c_functions import DECLARATIONS

import interop

# ---- declarations and options ----


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("", "declarations has none"),
        ("void sum(int n)", "'void sum(int n)' has no ';' behind it; accepted: C declarations, each with one"),
        ("#include <x.h>\nvoid sum(int n);", "'#include <x.h>' is for the preprocessor"),
        ("void sum(float* a);", "the pointer 'a' says not once 'device' or 'host'"),
        ("void sum(device host float* a);", "the pointer 'a' says not once"),
        ("void sum(host float** a);", "the parameter 'host float** a' is not understood"),
        ("void sum(host float a[]);", "the parameter 'host float a[]' is not understood"),
        ("void sum(pair);", "the type of 'arg0' is 'pair'"),
        ("void sum(int n, const);", "the type of 'arg1' is 'const'"),
        ("void sum(int n,);", "the parameter '' is not understood"),
        ("void sum(int arg1, int);", "the parameter 'arg1' has the name of another"),
        ("static int sum(int n);", "a static function has no symbol outside its file; accepted: one that is not"),
        ('extern "C" int n::sum(int n);', "'n::sum' is extern \"C\": its symbol has no namespace"),
        ("int n::(int n);", "a declaration is not understood"),
        ("int operator+(int n);", "a declaration is not understood"),
        ("void sum(device int n);", "the type of 'n' is 'device int'"),
        ("void sum(struct pair p);", "the type of 'p' is 'struct pair'"),
        ("void sum(host wchar_t* p);", "the elements of 'p' are 'host wchar_t'"),
        ("float* sum(int n);", "the result is float*, of which nothing says how long it is, and whose; accepted: void"),
        ("struct pair sum(int n);", "the result is struct pair; accepted: void"),
        ("void sum(int n, int n);", "the parameter 'n' has the name of another"),
        ("void sum(int stream);", "the parameter 'stream' has the name of another, or of a keyword"),
        ("void sum(host float* a, cudaStream_t s);", "there is a stream, and no device pointer"),
        ("int x;", "a declaration is not understood"),
        ("void sum(" + ", ".join(f"long x{i}" for i in range(40)) + ");", "has 40 parameters; accepted: up to"),
    ],
)
def test_declarations_that_are_not_understood(path, declaration, message):
    with pytest.raises(ValueError, match="interop.load: |libsum.sum") as caught:
        interop.load(path, declaration)
    assert message in str(caught.value)


def test_a_missing_library_is_named(tmp_path):
    with pytest.raises(OSError, match=re.escape(f"interop.load: '{tmp_path / 'libnone.so'}' cannot be loaded")):
        interop.load(tmp_path / "libnone.so", "void f(int n);")


def test_a_missing_function_is_named(path, lib):
    with pytest.raises(
        AttributeError, match=r"has no function 'product\(int\)': nothing in it has this name: .* inline"
    ):
        interop.load(path, "void product(int n);")
    with pytest.raises(AttributeError, match="has no declared function 'product'; declared: sum, split"):
        _ = lib.product


def test_memory_is_one_of_two(path):
    with pytest.raises(ValueError, match="interop.load: memory is 'gpu'; accepted: None, 'device', 'host'"):
        interop.load(path, DECLARATIONS, memory="gpu")
    with pytest.raises(TypeError, match="interop.load: memory is int; accepted: None, 'device', 'host'"):
        interop.load(path, DECLARATIONS, memory=10**5000)


def test_streams_are_one_of_two(path):
    with pytest.raises(ValueError, match="interop.load: streams is 'mine'; accepted: 'default', 'own'"):
        interop.load(path, DECLARATIONS, streams="mine")
    own = interop.load(path, DECLARATIONS, streams="own")
    again = pickle.loads(pickle.dumps(own))
    assert again.__reduce__() == own.__reduce__()
    assert "own" in own.__reduce__()[1]
    assert again.half_of(3) == 1.5  # no device pointer: no stream


# ---- the library's own functions ----


def test_a_function_of_another_library_is_none_of_this_one(build):
    mine = build("int f(void) { return 1; }", "libown.so", "-Wl,--no-as-needed", "-lc")
    for name in ("div", "malloc"):
        message = rf"{re.escape(repr(str(mine)))} has no function '{name}' of its own, but finds one in '.*libc.*'"
        with pytest.raises(AttributeError, match=message):
            interop.load(mine, f"int f(void); void {name}(int a, int b);")
    with pytest.raises(AttributeError, match="'libm.so.6' has no function 'puts' of its own, but finds one in '.*libc"):
        interop.load("libm.so.6", "int puts(int x);")


def test_an_own_function_goes_before_that_of_another_library(build):
    mine = build("int abs(int x) { return 7; }")
    assert interop.load(mine, "int abs(int x);").abs(-3) == 7
    assert interop.load("libc.so.6", "int abs(int x);").abs(-3) == 3


def test_functions_that_the_loader_chooses_are_the_librarys_own():
    lib = interop.load("libm.so.6", "double sin(double x); double floor(double x); double exp(double x);")  # IFUNC
    assert lib.floor(1.5) == 1
    assert lib.exp(0) == 1
    strings = interop.load("libc.so.6", "size_t strlen(host const char* s);")
    assert strings.strlen(np.frombuffer(b"four\0", "int8")) == 4


def test_data_is_no_function(build):
    mine = build("int number = 3; __thread int own = 4; int f(void) { return number + own; }")
    for name in ("number", "own"):
        with pytest.raises(AttributeError, match=rf"has no function '{name}': what has this name is data"):
            interop.load(mine, f"int {name}(void);")
    assert interop.load(mine, "int f(void);").f() == 7


# ---- the library's file ----


def test_a_path_object_is_a_file(build, tmp_path, monkeypatch):
    build("double cos(double x) { return 99; }", "libm.so.6")
    monkeypatch.chdir(tmp_path)
    declaration = "double cos(double x);"
    for path in ("./libm.so.6", Path("libm.so.6"), Path("./libm.so.6"), tmp_path / "libm.so.6"):
        lib = interop.load(path, declaration)
        assert lib.cos(0) == 99
        assert repr(lib) == f"interop.load({str(tmp_path / 'libm.so.6')!r})"
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(lib.cos))(0) == 99  # of that folder still
    assert interop.load("libm.so.6", declaration).cos(0) == 1  # the system's


def test_a_library_that_was_built_anew_has_its_new_code(build, tmp_path):
    libraries = []
    for version in range(1, 5):
        path = build(f"int v(void) {{ return {version}; }}")
        libraries.append(interop.load(path, "int v(void);"))
        assert [lib.v() for lib in libraries] == [*range(1, version + 1)]
        assert interop.load(str(path), "int v(void);").v() == version
    first = build("int v(void) { return 1; }", "libother.so")
    ctypes.CDLL(str(first))  # the loader knows this name by somebody else
    assert interop.load(build("int v(void) { return 2; }", "libother.so"), "int v(void);").v() == 2


def test_a_moved_link_is_followed(build, tmp_path):
    link = tmp_path / "liblink.so"
    for version in (1, 2, 1):
        target = tmp_path / f"lib{version}.so"
        if not target.exists():
            build(f"int v(void) {{ return {version}; }}", target.name)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert interop.load(link, "int v(void);").v() == version


def test_a_name_that_the_loader_looks_for_has_its_new_code(build, tmp_path):
    code = textwrap.dedent("""
        import os, interop
        load = lambda: interop.load("libnamed.so", "int v(void);")
        first = load()
        os.replace("new.so", "libnamed.so")
        assert (first.v(), load().v(), first.v()) == (1, 2, 1)
    """)
    build("int v(void) { return 1; }", "libnamed.so")
    build("int v(void) { return 2; }", "new.so")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_library_that_was_changed_in_place_is_refused(build):
    path = build("int v(void) { return 1; }")
    lib = interop.load(path, "int v(void);")
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(OSError, match=rf"^interop.load: {re.escape(repr(str(path)))} has been changed in place since"):
        interop.load(path, "int v(void);")
    assert lib.v() == 1
    build("int v(void) { return 2; }")  # a new file
    assert interop.load(path, "int v(void);").v() == 2


def test_a_file_that_did_not_load_may_be_written_again(build, tmp_path):
    path = tmp_path / "libown.so"
    path.write_bytes(b"half a library")
    with pytest.raises(OSError, match="cannot be loaded: .*"):
        interop.load(path, "int v(void);")
    path.write_bytes(build("int v(void) { return 1; }", "whole.so").read_bytes())
    assert interop.load(path, "int v(void);").v() == 1


def test_what_is_no_path(tmp_path, monkeypatch):
    for path, error, message in (
        ("", ValueError, "path is ''; accepted: a file, or a name"),
        (None, TypeError, "path is NoneType; accepted: a string, or a path"),
        (10**5000, TypeError, "path is int; accepted"),
        ("lib\0.so", ValueError, r"path is 'lib\\x00.so'; accepted: a string without null characters"),
        (tmp_path / "a\0b", ValueError, "accepted: a string without null characters"),
        (Path(), OSError, r"'\.' cannot be loaded"),
        (tmp_path, OSError, "cannot be loaded"),
    ):
        with pytest.raises(error, match=f"^interop.load: .*{message}"):
            interop.load(path, "int abs(int x);")
    (tmp_path / "libhere.so").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="system's loader: the file here is './libhere.so'"):
        interop.load("libhere.so", "int abs(int x);")
