"""Scripts and pytest files of incidents, with their fault or without, written into a folder and run there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident, catalogue

FAMILY = "qwen3_vl"
WRITTEN = tuple(incident for incident in catalogue() if incident.script)
MARK = re.compile(r"^( *)\S.*  # THE FAULT; the fix: (.+)$", re.MULTILINE)
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (\w+)\.py::", re.MULTILINE)

# Importing the harness is an error in the child, also where it is installed.  What a
# script raises beyond its exit ends the child: a crash is no fault that was shown.
_SCRIPTS = """
import contextlib, io, json, runpy, sys, torch
sys.modules["deepstack_harness"] = None
ended = {}
for name in sys.argv[1:]:
    torch.compiler.reset()
    code, printed = 0, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(name + ".py", run_name="__main__")
        except SystemExit as end:
            code = end.code
    said = printed.getvalue() + (code if isinstance(code, str) else "")
    ended[name] = [1 if isinstance(code, str) else int(code or 0), said]
print(json.dumps(ended))
"""
_PYTEST = "import pytest, sys; sys.modules['deepstack_harness'] = None; sys.exit(pytest.main(sys.argv[1:]))"
# Without the settings of a project that the temporary folder may lie in.
# Without its conftest, too: these files need only torch and pytest.
_ALONE = ("--rootdir", ".", "--confcutdir", ".", "-p", "no:cacheprovider")
OPTIONS = ("-c", os.devnull, *_ALONE, "-rA", "--tb=line")

Ran = subprocess.CompletedProcess[str]


def family_of(incident: Incident) -> str:
    """The family that a script is written for: that of the run it shows; empty where nothing is played."""
    shown = incident.script
    if incident.system != DEEPSTACK or shown is None:
        return ""
    families = [run.families for run in incident.run if shown.arm in run.arms and shown.subject in run.broken]
    return (families[0] or incident.families)[0]


def with_trace(incident: Incident, trace: str) -> Incident:
    """The incident, played by another trace."""
    return replace(incident, run=tuple(replace(run, trace=trace) for run in incident.run))


def fixed(text: str) -> str:
    """`text` with the statement that its mark gives in place of the marked one."""
    changed, marks = MARK.subn(r"\1\2", text)
    assert marks == 1
    return changed


def run_python(folder: Path, *arguments: str, **variables: str) -> Ran:
    """A child process in `folder`."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_scripts(folder: Path, texts: dict[str, str]) -> dict[str, tuple[int, str]]:
    """Exit code and output of each, all in one child process, as none knows of another."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    ran = run_python(folder, "-I", "-c", _SCRIPTS, *texts)
    assert ran.returncode == 0, ran.stderr
    ended: dict[str, list[object]] = json.loads(ran.stdout.splitlines()[-1])
    return {name: (int(str(code)), str(output)) for name, (code, output) in ended.items()}


def run_pytest(folder: Path, texts: dict[str, str]) -> Ran:
    """All files in one run of pytest."""
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    return run_python(folder, "-I", "-c", _PYTEST, *OPTIONS)


def outcomes(ran: Ran) -> dict[str, set[str]]:
    """What became of the tests of each file."""
    found: dict[str, set[str]] = {}
    for outcome, name in _OUTCOME.findall(ran.stdout):
        found.setdefault(name.removeprefix("test_"), set()).add(outcome)
    return found
