"""One command for those of CONTRIBUTING.md: `nox -l` lists them, `nox -s tests-3.12 -- -k matmul` runs one.

A session makes an environment, installs the package as it is now, and runs a command. What follows `--` goes to that
command. CUDAARCHS, CMAKE_ARGS and the like reach the build: `CMAKE_ARGS=-DINTEROP_CUDA=OFF nox -s docs` needs no nvcc.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import nox

BUILD_TOOLS = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["build-system"]["requires"]

nox.options.sessions = ["lint", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Run the linters; `-- --fix` formats, and mends what can be mended."""
    session.install(".[lint]")
    session.run("python", "tests/lint.py", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """Run what this machine can run of the tests; for pytest: `-- --require=torch,jax`."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Make the pages in docs/_build; any warning fails."""
    session.install(".[docs,jax]")
    session.run("sphinx-build", "-n", "-W", "docs", "docs/_build", *session.posargs)


@nox.session
def asan(session: nox.Session) -> None:
    """Run the tests of the host code under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer."""
    install_beside_own_build(session)
    session.run("python", "tests/sanitize_host.py", *session.posargs)


@nox.session
def tsan(session: nox.Session) -> None:
    """Run the tests of threads under ThreadSanitizer."""
    install_beside_own_build(session)
    session.run("python", "tests/sanitize_host.py", "--threads", *session.posargs)


@nox.session
def mutations(session: nox.Session) -> None:
    """Take out each rule, and require its test to fail; `-- --host` needs no GPU and no nvcc."""
    install_beside_own_build(session)
    session.run("python", "tests/mutations/run.py", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Make a million calls with the arrays of each library; or `-- threads`, `-- streams`."""
    session.install(".[test]")
    session.run("python", "tests/soak.py", *(session.posargs or ["calls"]))


@nox.session
def exits(session: nox.Session) -> None:
    """End a thousand processes with threads inside calls."""
    session.install(".[test]")
    session.run("python", "tests/exits.py", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Measure the time of a call, on a GPU of CUDA 13; or `-- matmul`, `-- elementwise`, `-- examples`."""
    session.install(".[bench,cu13]")
    session.run("interop", "bench", *(session.posargs or ["overhead"]))


def install_beside_own_build(session: nox.Session) -> None:
    """Install what a command needs that builds the package itself: here it stands for its dependencies alone."""
    session.install(".[test]", *BUILD_TOOLS, "cmake", "ninja", env={"CMAKE_ARGS": "-DINTEROP_CUDA=OFF"})
