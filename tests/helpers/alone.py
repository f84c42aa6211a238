"""Code in a process of its own: what it changes for good, or breaks, is gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run(code: str, folder: Path, **environment: str) -> str:
    """Run this code in `folder`, as a script, with this environment besides; return what it printed.

    It must end well, and within two minutes. `interop` and `np` are imported already.
    """
    script = folder / "alone.py"
    script.write_text("import interop\nimport numpy as np\n" + textwrap.dedent(code))
    command = [sys.executable, "-P", "-X", "faulthandler", script]
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=env, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
    return done.stdout
