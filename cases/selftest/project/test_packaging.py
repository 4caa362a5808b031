"""The wheel: built, installed elsewhere, and used from an empty directory.

The wheel is made from the source distribution, as an uploaded one is, so what
either of them forgets is missing here.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import deepstack_harness

ROOT = Path(__file__).parents[3]
CARRIED = ("examples", "fixtures")
CASES = ("test_incidents.py", "test_kernels.py", "test_releases.py")

pytestmark = [
    pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout to build from"),
    pytest.mark.xdist_group("packaging"),  # one worker, so that the wheel is built once
]


def run(command: Sequence[str | Path], where: Path, **environment: str) -> str:
    """What the command printed; fails with all of its output unless it exits 0."""
    done = subprocess.run(
        command,
        cwd=where,
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode} from {command}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", where, ROOT], where)
    (built,) = where.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("installed")
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--target"]
    run([sys.executable, "-m", "pip", "install", *options, where, wheel], where)
    return where


@pytest.fixture(scope="module")
def metadata(target: Path) -> Distribution:
    (distribution,) = distributions(path=[str(target)])
    return distribution


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    where = tmp_path / "empty"
    where.mkdir()
    return where


def use(target: Path, empty: Path, *arguments: str | Path) -> str:
    """Run python with the installed wheel first on its path, and nothing of the checkout."""
    printed = run(
        [sys.executable, *arguments],
        empty,
        PYTHONPATH=str(target),
        HYPOTHESIS_STORAGE_DIRECTORY=str(empty.parent / "hypothesis"),
    )
    assert list(empty.iterdir()) == [], "the working directory was littered"
    return printed


@pytest.mark.slow  # 3 s
def test_the_description_leads_to_addresses(metadata: Distribution) -> None:
    tokens = MarkdownIt().parse(str(metadata.metadata.json["description"]))
    children = [child for token in tokens for child in token.children or ()]
    targets = [
        str(child.attrs[name]) for child in children for name in ("href", "src") if name in child.attrs
    ]
    assert len(targets) > 5
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    ours = [target for target in targets if target.startswith(("https://github.com", "https://raw"))]
    assert len(ours) > 3
    assert all(f"/v{deepstack_harness.__version__}/" in target for target in ours if "/issues" not in target)


def test_the_address_of_the_project_is_one(metadata: Distribution) -> None:
    urls = dict(text.split(", ") for text in metadata.metadata.get_all("Project-URL") or [])
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    owner = re.compile(r"(?:github\.com/|uses: )([\w-]+/deepstack-harness)\b")
    files = ["pyproject.toml", "CITATION.cff", "examples/gate/.github/workflows/deepstack.yml"]
    named = {name for file in files for name in owner.findall((ROOT / file).read_text())}
    assert named == {urls["Homepage"].removeprefix("https://github.com/")}
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited
    assert cited[1] == deepstack_harness.__version__


def test_the_installed_package_is_the_one_that_runs(target: Path, empty: Path) -> None:
    printed = use(target, empty, "-c", "import deepstack_harness; print(deepstack_harness.__file__)")
    assert Path(printed.strip()).is_relative_to(target)


def test_incidents_come_from_the_wheel(target: Path, empty: Path) -> None:
    code = "from deepstack_harness.files import data; print(data('fixtures/incidents.toml'))"
    assert Path(use(target, empty, "-c", code).strip()).is_relative_to(target)
    assert "43602" in use(target, empty, "-m", "deepstack_harness", "list", "incidents")


def test_the_script_starts(target: Path, empty: Path) -> None:
    assert "43602" in use(target, empty, target / "bin" / "deepstack-harness", "list", "incidents")


@pytest.mark.slow  # `package` of tox uses the wheel so in CI
def test_an_incident_is_reproduced(target: Path, empty: Path) -> None:
    use(target, empty, "-m", "deepstack_harness", "repro", "41485", "--arm", "eager")


@pytest.mark.slow  # 4 s
def test_the_cases_run_from_the_wheel_with_their_settings(target: Path, empty: Path) -> None:
    case = target / "deepstack_harness" / "_data" / "cases" / "test_incidents.py"
    options = (
        "-p",
        "no:cacheprovider",
        "--rootdir",
        case.parents[1],
        "-k",
        "S6-qwen3_vl-reference-eager-cap",
    )
    printed = use(target, empty, "-m", "pytest", *options, case)
    assert "configfile: pyproject.toml" in printed
    assert " passed" in printed


@pytest.mark.slow  # 10 s; nothing else collects them, and only a release ships them
def test_every_case_that_is_carried_imports_nothing_that_is_not(target: Path, empty: Path) -> None:
    cases = target / "deepstack_harness" / "_data" / "cases"
    options = ("-p", "no:cacheprovider", "--rootdir", cases.parent, "--collect-only", "-q", "-m", "")
    printed = use(target, empty, "-m", "pytest", *options, cases)
    assert {line.partition("::")[0].rpartition("/")[2] for line in printed.splitlines() if "::" in line} == {
        *CASES
    }


def test_a_night_from_the_wheel_names_what_it_cannot_test(target: Path, empty: Path, tmp_path: Path) -> None:
    words = ("nightly", "--history", tmp_path / "nights", "--stage", "none")
    code = f"from deepstack_harness.cli.main import main; main({[str(word) for word in words]})"
    assert "tests of the harness itself are in its checkout only" in use(target, empty, "-c", code)


WATCHED = """
import multiprocessing, sys, torch

def serve():
    drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    step = lambda x, extra=None: x * 2 if extra is None else x + extra
    run = torch.compile(step, backend="eager", options=drop)
    run(torch.ones(3))
    run(torch.ones(3), torch.ones(3) * 5)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=serve)
    child.start()
    child.join()
    sys.exit(7)
"""


@pytest.mark.slow  # 7 s
def test_a_spawned_child_is_watched_from_the_wheel(target: Path, empty: Path, tmp_path: Path) -> None:
    """The program knows nothing of the harness, and its own exit status comes back."""
    program = tmp_path / "program.py"
    program.write_text(WATCHED)
    words = ["watch", "--", sys.executable, str(program)]
    code = f"from deepstack_harness.cli.main import main; print('status', main({words}))"
    printed = use(target, empty, "-c", code)
    assert "extra` was None when compiled, and float32 tensor [3] on cpu in 1 of 2 calls" in printed
    assert printed.endswith("status 7\n")


def test_everything_carried_arrives(wheel: Path) -> None:
    beside = {
        path.relative_to(ROOT).as_posix()
        for name in CARRIED
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = set(zipfile.ZipFile(wheel).namelist())
    carried = beside | {f"cases/{name}" for name in CASES} | {"conftest.py", "pyproject.toml"}
    assert {f"deepstack_harness/_data/{name}" for name in carried} <= inside
    assert not any("selftest/" in name for name in inside if "_data" in name)
    assert {"deepstack_harness/py.typed", "deepstack_harness/catalogue/registry.py"} <= inside


def test_nothing_else_is_packed(wheel: Path) -> None:
    for name in zipfile.ZipFile(wheel).namelist():
        top, *_ = name.split("/")
        assert top in {"deepstack_harness", f"deepstack_harness-{deepstack_harness.__version__}.dist-info"}, (
            name
        )
        assert "__pycache__" not in name, name
        assert "/tests/" not in name, name


def test_no_path_of_the_machine_is_packed(wheel: Path, target: Path, metadata: Distribution) -> None:
    packed = zipfile.ZipFile(wheel)
    for name in packed.namelist():
        assert str(ROOT).encode() not in packed.read(name), name
    for file in metadata.files or []:
        assert not file.is_absolute(), file
        assert (target / file).exists() or file.parts[:2] == ("..", ".."), file


def test_metadata(metadata: Distribution) -> None:
    fields = metadata.metadata
    assert (fields["Name"], fields["Version"]) == ("deepstack-harness", deepstack_harness.__version__)
    assert (fields["Requires-Python"], fields["License-Expression"]) == (">=3.11", "Apache-2.0")
    extras = {"all", "kernels", "ray", "reports", "test", "workload"}
    assert set(fields.get_all("Provides-Extra") or []) == extras
    assert fields.get_all("License-File") == ["LICENSE"]
    assert "torch>=2.10" in (metadata.requires or [])
    beyond = ("transformers", "pandas", "datasets", "matplotlib", "pyarrow", "ray")
    needed = [line for line in metadata.requires or [] if "extra" not in line]
    assert not [line for line in needed if line.startswith(beyond)]
