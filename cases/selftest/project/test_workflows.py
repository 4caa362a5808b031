"""The workflow of the night: the GPU comes first, and every job stores what it wrote and reports it."""

import os
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepstack_harness.cli.main import build_parser
from deepstack_harness.runs.night_stages import NightTier

ROOT = Path(__file__).parents[3]
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"

pytestmark = pytest.mark.skipif(not NIGHTLY.exists(), reason="needs a checkout")


def job(name: str) -> dict[str, Any]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(NIGHTLY.read_text())["jobs"]
    return jobs[name]


def script(name: str, step: str) -> str:
    (text,) = (found["run"] for found in job(name)["steps"] if found.get("name") == step)
    return str(text)


def words_of_tox(environment: str) -> list[str]:
    """Return the words of the command of an environment, without `python -m deepstack_harness`."""
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    return tox[f"testenv:{environment}"]["commands"].removesuffix(" {posargs}").split()[3:]


@pytest.mark.parametrize(
    ("name", "step", "tier"),
    [("gpu", "What only a GPU can tell", NightTier.GPU), ("nightly", "Night", NightTier.FULL)],
)
def test_a_job_of_the_night_runs_its_tier(name: str, step: str, tier: NightTier) -> None:
    *_, call = script(name, step).replace("\\\n", " ").strip().splitlines()
    program, _, more = call.partition(" -- ")
    assert program == f"python3 -m tox -e {name}"
    words = [*words_of_tox(name), *(word.strip('"') for word in more.replace("$MINUTES", "60").split())]
    args = build_parser(words).parse_args(words)
    assert (args.tier, args.history, args.out) == (tier, "$HISTORY", "$FOLDER")
    assert "cuda" in args.devices


def test_the_gpu_job_comes_first_and_the_night_runs_even_if_it_failed() -> None:
    gpu, night = job("gpu"), job("nightly")
    assert gpu["runs-on"] == night["runs-on"]
    assert night["needs"] == "gpu"
    assert night["if"] == "${{ !cancelled() }}"
    assert "needs" not in gpu


def run(text: str, folder: Path, **variables: str) -> None:
    """Run a step as GitHub does, with its files under a folder."""
    github = {"GITHUB_ENV": str(folder / "env"), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    subprocess.run(words, env=os.environ | github | variables, cwd=folder, check=True, timeout=60)


@pytest.mark.parametrize("name", ["gpu", "nightly"])
def test_a_job_names_its_folder_and_shows_its_summary(name: str, tmp_path: Path) -> None:
    run(script(name, "Where the nights lie"), tmp_path, HISTORY=str(tmp_path / "nights"), NIGHT="7-1")
    lines = (tmp_path / "env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    night = Path(variables["FOLDER"])
    assert night.parent == Path(variables["HISTORY"])
    assert night.name.endswith("Z-7-1")
    night.mkdir(parents=True)
    (night / "nightly.md").write_text("| stage |\n")
    run(script(name, "Summary"), tmp_path, **variables)
    assert (tmp_path / "summary.md").read_text() == "| stage |\n"
    uploads = [step["with"] for step in job(name)["steps"] if "upload-artifact" in step.get("uses", "")]
    assert [step["path"] for step in uploads] == ["${{ env.FOLDER }}"]


def test_the_nights_of_both_jobs_lie_apart(tmp_path: Path) -> None:
    folders = []
    for name in ("gpu", "nightly"):
        (tmp_path / name).mkdir()
        run(
            script(name, "Where the nights lie"),
            tmp_path / name,
            HISTORY=str(tmp_path / "nights"),
            NIGHT="7-1",
        )
        text = (tmp_path / name / "env").read_text()
        folders.append(text.partition("\n")[0].removeprefix("HISTORY="))
    assert folders == [str(tmp_path / "nights-gpu"), str(tmp_path / "nights")]
