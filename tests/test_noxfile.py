"""The sessions of noxfile.py, without nox: they run commands that CONTRIBUTING.md names, of what there is."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
import types
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


class Session:
    """Keeps what a session installs and runs."""

    def __init__(self):
        self.posargs, self.installed, self.commands = [], [], []

    def install(self, *requirements, env=None):
        self.installed += requirements

    def run(self, *command):
        self.commands.append(command)


def load_noxfile():
    """The module's options, and its sessions by name."""
    sessions = {}

    def session(function=None, **_):
        if function is None:
            return session
        sessions[function.__name__] = function
        return function

    nox = types.ModuleType("nox")
    nox.session, nox.Session, nox.options = session, Session, types.SimpleNamespace()
    spec = importlib.util.spec_from_file_location("noxfile_of_tests", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, nox=nox):
        spec.loader.exec_module(module)
    return nox.options, sessions


OPTIONS, SESSIONS = load_noxfile()


def test_sessions_by_default_are_there():
    assert set(OPTIONS.sessions) <= set(SESSIONS)


@pytest.mark.parametrize("name", SESSIONS)
def test_session_runs_what_there_is(name):
    session = Session()
    SESSIONS[name](session)
    package = next(requirement for requirement in session.installed if requirement.startswith("."))
    assert set(re.fullmatch(r"\.\[(.+)\]", package)[1].split(",")) <= set(EXTRAS)
    (command,) = session.commands
    assert re.search(rf"(^|`|&& ){re.escape(' '.join(command))}( |`|$)", PAGE, re.MULTILINE), command
    for argument in command:
        if argument.endswith(".py"):
            assert (ROOT / argument).is_file(), argument
