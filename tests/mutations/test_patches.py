"""The patches still fit the sources, and name tests that exist. (That those tests notice them: run.py.)"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATCHES = sorted(HERE.glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_patch_fits_and_names_tests(patch, tmp_path):
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git, which applies the patches")
    text = patch.read_text()
    files = re.findall(r"^--- a/(.+)$", text, re.MULTILINE)
    assert files
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, tmp_path / file)
    done = subprocess.run(
        [git, "apply", "--unidiff-zero", "--recount", patch], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, f"write it anew: {done.stderr}"

    # With no context a patch survives edits around it, so what it takes out must be there once.
    for hunk in re.split(r"^@@.*\n", text, flags=re.MULTILINE)[1:]:
        taken = "".join(line[1:] + "\n" for line in hunk.splitlines() if line.startswith("-"))
        assert taken
        assert (ROOT / files[0]).read_text().count(taken) == 1

    named = re.findall(r"^Then fails: (\S+)::(\w+)$", text, re.MULTILINE)
    assert named
    for file, function in named:
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), f"no {function} in {file}"
    assert re.search(r"^Takes out: \S.*\.$", text, re.MULTILINE)
    assert re.search(r"^Needs: (nothing|a GPU|two GPUs)$", text, re.MULTILINE)
