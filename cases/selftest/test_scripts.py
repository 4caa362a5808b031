"""What `render_script` and `render_pytest` write: red on its own, green with its marked line changed."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.incidents import Incident, Run, find
from harness.registry import REVISIONS
from harness.rules import Rule
from harness.scripts.standalone import SHOWN, render_pytest, render_script

INCIDENTS = sorted(SHOWN)
FAMILY = "qwen3_vl"
MARK = re.compile(r"^( +)\S.*  # THE FAULT; the fix: (.+)$", re.MULTILINE)
# In the child, importing the harness is an error even where it is installed.
ALONE = "import sys, runpy; sys.modules['harness'] = None; del sys.argv[0]; "
SCRIPT = ALONE + "runpy.run_path(sys.argv[0], run_name='__main__')"
PYTEST = ALONE + "import pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', '-rA', '--tb=line', '.']))"
OF_THE_FIX = {
    "original": "OriginalBuffer"
}


def fixed(text: str) -> str:
    """`text` with the statement that its mark gives in place of the marked line."""
    changed, marks = MARK.subn(r"\1\2", text)
    assert marks == 1
    return changed


def run_alone(code: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
