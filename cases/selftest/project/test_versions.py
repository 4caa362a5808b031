"""tox.ini, the workflows, pyproject.toml and docs/reference/versions.md follow fixtures/versions.toml."""

import os
import re
import subprocess
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepstack_harness.catalogue.versions import VERSIONS, Suite, TorchVersion, minor, pythons

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
PAGE = "docs/reference/versions.md"
TORCHES = [entry.torch for entry in VERSIONS.entries]
ROOMS_OF_PYTHON = ("cli", "engines", "pytest_plugin", "sources", "workers")
"""What `Suite.PYTHON` has: its docstring lists them."""
CLASSIFIER = "Programming Language :: Python :: 3."


def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return settings


def stated() -> list[str]:
    """The minor versions of Python that pyproject.toml names."""
    found = [classifier.partition(CLASSIFIER)[2] for classifier in project()["classifiers"]]
    return [f"3.{number}" for number in found if number]


def pinned() -> str:
    """The minor version of torch in constraints.txt."""
    (version,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return minor(version)


def pairs_of(workflow: str) -> list[tuple[str, str]]:
    """(torch, Python) of each environment `tests` of a workflow's matrix."""
    text = (ROOT / ".github" / "workflows" / workflow).read_text()
    lines = re.findall(r'- \{python: "([\d.]+)", environments?: "(?:lint,)?tests(?:-torch([\d.]+))?"', text)
    return [(torch or pinned(), python) for python, torch in lines]


def test_tox_has_an_environment_for_each_torch() -> None:
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    others = [torch for torch in TORCHES if torch != pinned()]
    minors = ",".join(torch.removeprefix("2.") for torch in others)
    section = tox[f"testenv:tests-torch2.{{{minors}}}"]
    assert section["deps"].split("\n")[1:] == [f"torch{torch}: torch=={torch}.*" for torch in others]
    assert section["constraints"] == "constraints-any-torch.txt"
    assert "torch==" not in (ROOT / section["constraints"]).read_text()


def test_each_push_runs_the_oldest_the_pinned_and_the_newest_torch_and_a_night_the_rest() -> None:
    pushed, nightly = pairs_of("ci.yml"), pairs_of("nightly.yml")
    assert {torch for torch, _ in pushed} == {TORCHES[0], pinned(), TORCHES[-1]}
    assert {python for torch, python in pushed if torch == pinned()} == {stated()[0], stated()[-1]}
    assert {torch for torch, _ in pushed + nightly} == set(TORCHES)
    assert {python for _, python in pushed + nightly} == set(stated())
    assert not set(pushed) & set(nightly)


def test_a_push_runs_all_tests_once_and_elsewhere_what_torch_and_python_decide() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["tox"]
    (step,) = (step for step in job["steps"] if step.get("name") == "Lint, types, tests")
    suites = {
        entry["environments"]: entry["suites"].split() for entry in job["strategy"]["matrix"]["include"]
    }
    whole = [name for name, words in suites.items() if not words]
    assert whole == ["lint,tests"]
    assert all(words[0] == Suite.PRODUCT for name, words in suites.items() if name not in whole)
    assert suites["tests"] == [Suite.PRODUCT, Suite.PYTHON]
    command, _, arguments = step["run"].partition(" -- ")
    assert command == '.ci/run -e "$ENVIRONMENTS"'
    for words in suites.values():
        variables = {**step["env"], "SUITES": " ".join(words), "PATH": os.environ["PATH"]}
        asked = ["bash", "-euo", "pipefail", "-c", f"printf '%s\n' {arguments}"]
        paths = subprocess.run(asked, cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
        files = {file for path in paths.stdout.split() for file in files_of_tests(ROOT / path)}
        assert files == {file for suite in words for file in files_of_suite(Suite(suite))}


def files_of_tests(path: Path) -> set[Path]:
    return {path} if path.is_file() else set(path.rglob("test_*.py"))


def files_of_suite(suite: Suite) -> set[Path]:
    own = ROOT / "cases" / "selftest"
    if suite is Suite.PRODUCT:
        return files_of_tests(ROOT / "cases") - files_of_tests(own)
    assert suite is Suite.PYTHON
    return {file for room in ROOMS_OF_PYTHON for file in files_of_tests(own / room)}


def test_the_package_requires_the_versions_that_were_run() -> None:
    assert set(pythons()) <= set(stated())
    assert pythons()[0] == stated()[0]
    assert project()["requires-python"] == f">={stated()[0]}"
    assert f"torch>={TORCHES[0]}" in project()["dependencies"]


def table() -> str:
    """The table of the page: torch and triton down, Python across, and how each pair was seen."""
    lines = [f"| torch | triton | {' | '.join(f'Python {version}' for version in stated())} |"]
    lines.append("|" + "---|" * (2 + len(stated())))
    for entry in VERSIONS.entries:
        cells = [entry.torch, entry.triton, *(cell(entry, python) for python in stated())]
        lines += [f"| {' | '.join(cells)} |"]
    return "\n".join(lines)


def cell(entry: TorchVersion, python: str) -> str:
    """Each suite that was run, largest first; `not run` where none was."""
    runs = sorted(
        (run for run in entry.runs if run.python_minor == python), key=lambda run: [*Suite].index(run.suite)
    )
    return "; ".join(f"{run.suite.cases}: {run.answer}" for run in runs) or "not run"


def test_the_page_shows_what_was_run_and_what_is_red() -> None:
    text = (ROOT / PAGE).read_text()
    assert table() in text, f"the table of {PAGE} is:\n{table()}"
    for entry in VERSIONS.entries:
        for run in entry.runs:
            for reason in run.red:
                assert f"- torch {entry.torch}, Python {run.python_minor}: {reason}" in text
