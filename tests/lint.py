"""Run every linter over the repository: `python tests/lint.py`, or with --fix to format and mend what can be.

Needs `pip install '.[lint]'`: the tools in their exact versions, and the built package for its stub, which mypy reads.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CXX_FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("src", "tests", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".h", ".cpp", ".cu", ".cuh")
)
FORMS_CONFIG = ROOT / ".github/ISSUE_TEMPLATE/config.yml"
YAML_FILES = {  # by the schema that check-jsonschema has for them
    "vendor.github-workflows": [*ROOT.glob(".github/workflows/*.yml")],
    "vendor.github-issue-config": [FORMS_CONFIG],
    "vendor.github-issue-forms": [file for file in FORMS_CONFIG.parent.glob("*.yml") if file != FORMS_CONFIG],
}


def run(tool: str, *arguments: str, cwd: Path = ROOT) -> bool:
    print("lint:", tool, *arguments[:2], flush=True)
    return subprocess.run([Path(sys.executable).parent / tool, *arguments], cwd=cwd).returncode == 0


def check_types() -> bool:
    """Mypy over the sources beside the installed stub: _core.pyi is generated, and is not in the repository."""
    installed = importlib.util.find_spec("interop")
    folders = installed.submodule_search_locations if installed else None
    stubs = [stub for folder in folders or [] for stub in Path(folder).glob("*.pyi")]
    if not stubs:
        print("lint: mypy needs the built package: pip install .")
        return False
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "interop")
        shutil.copytree(ROOT / "interop", package, ignore=shutil.ignore_patterns("__pycache__", "include"))
        for stub in stubs:
            shutil.copy(stub, package)
        return run("mypy", "-p", "interop", "--config-file", str(ROOT / "pyproject.toml"), cwd=Path(folder))


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    results = [
        run("ruff", "check", *(["--fix"] if fix else [])),
        run("ruff", "format", *([] if fix else ["--check"])),
        run("clang-format", *(["-i"] if fix else ["--dry-run", "-Werror", "--ferror-limit=5"]), *CXX_FILES),
        run("codespell", *(["-w"] if fix else [])),
        *(run("check-jsonschema", "--builtin-schema", name, *map(str, YAML_FILES[name])) for name in YAML_FILES),
        check_types(),
    ]
    print("lint:", "passed" if all(results) else "FAILED")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
