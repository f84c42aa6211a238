"""Code in a process of its own: what it changes for good, or breaks, is gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parents[1])  # where it finds `helpers`


def run(code: str, folder: Path, *, silent: bool = False, **environment: str) -> str:
    """Run this code as a script in `folder`, with this environment besides; return what it printed.

    It must end well, and within two minutes; `silent`: with nothing on stderr. `interop` and `np` are imported already.
    """
    script = folder / "alone.py"
    script.write_text("import interop\nimport numpy as np\n" + textwrap.dedent(code))
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _TESTS]))
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, "-P", "-X", "faulthandler", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=env, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
    assert not silent or not done.stderr, done.stderr[-3000:]
    return done.stdout
