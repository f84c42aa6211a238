"""CMakePresets.json: CMake takes it, and what it sets is there to be set."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())
CMAKE = (ROOT / "CMakeLists.txt").read_text()


def test_options_are_those_of_the_build():
    """CMake says nothing against one that it does not know."""
    known = set(re.findall(r"^(?:option|set)\((INTEROP_\w+) ", CMAKE, re.MULTILINE))
    given = {name for preset in PRESETS["configurePresets"] for name in preset.get("cacheVariables", {})}
    assert {name for name in given if not name.startswith("CMAKE_")} <= known


def test_presets_need_no_newer_cmake_than_the_build():
    least = PRESETS["cmakeMinimumRequired"]
    assert f"cmake_minimum_required(VERSION {least['major']}.{least['minor']}..." in CMAKE
    assert PRESETS["version"] <= 5  # what CMake 3.24 reads


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_cmake_takes_them():
    listed = subprocess.run(["cmake", "--list-presets=all"], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    for preset in ("dev", "host", "asan", "tsan"):
        assert listed.stdout.count(f'"{preset}"') == 3, listed.stdout  # to configure, to build, to test
