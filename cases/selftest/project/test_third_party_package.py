"""`examples/third_party_buffers`, installed next to the harness: its names work like built-in ones."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from cases.selftest.catalogue.declared_packages import declare
from deepstack_harness.files import data

HARNESS = str(Path(deepstack_harness.__file__).parents[1])
OF_EXAMPLE = "of block-buffers 1.1"
QWEN = "Qwen3VLForConditionalGeneration"
LISTED = """
import sys
from deepstack_harness.cli.main import main
assert main(["list", "--json", "-"]) == 0
assert not {"block_buffers", "torch"} & set(sys.modules)
"""

pytestmark = pytest.mark.xdist_group("third_party_package")  # one worker, so that it is installed once


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example is installed."""
    folder = tmp_path_factory.mktemp("example")
    copied = shutil.copytree(data("examples/third_party_buffers"), folder / "sources")
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(folder / "installed"),
        str(copied),
    ]
    subprocess.run(command, check=True)
    return folder / "installed"


def ran(folder: Path, *words: str, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, with the packages in `packages`."""
    path = os.pathsep.join(map(str, filter(None, [packages, HARNESS])))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={**variables, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def harness(folder: Path, *words: str, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    return ran(folder, "-m", "deepstack_harness", *words, packages=packages)


def test_every_name_is_listed_without_an_import_of_the_package(target: Path, tmp_path: Path) -> None:
    done = ran(tmp_path, "-c", LISTED, packages=target)
    assert done.returncode == 0, done.stderr
    items = [json.loads(line) for line in done.stdout.splitlines()]
    names = {(item["kind"], item["name"]) for item in items if OF_EXAMPLE in item["summary"]}
    assert {
        ("revisions", "blocks"), ("revisions", "blocks_1_0"), ("families", "two_layers"),
        ("callers", "scaled_inputs"), ("extensions", "oracles R4.whole_blocks"),
        ("extensions", "figures block_growth"), ("extensions", "incidents blocks"),
    } <= names  # fmt: skip
    assert ("incidents", "blocks-1 part-of-a-block-kept") in {(item["kind"], item["name"]) for item in items}
    assert not any(item["refused"] for item in items if item["kind"] == "extensions")


@pytest.mark.slow  # 4 s
def test_an_incident_of_its_own_is_reproduced_by_its_short_name(target: Path, tmp_path: Path) -> None:
    done = harness(tmp_path, "repro", "part-of-a-block-kept", "--full", packages=target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shown: rule R5 broken by blocks_1_0, blocks_1_0@scaled_inputs, kept by blocks," in done.stdout


@pytest.mark.slow  # by day declared packages in catalogue/test_registry.py
def test_its_oracle_judges_and_its_figure_is_in_the_report(target: Path, tmp_path: Path) -> None:
    played = harness(tmp_path, "run", "incident=blocks-2", "--out", "out", "--quiet", packages=target)
    assert played.returncode == 0, played.stdout + played.stderr
    shown = harness(tmp_path, "report", "out", "--html", "page.html", packages=target)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "page.html").read_text()
    assert f"R4.whole_blocks {OF_EXAMPLE}: step 2 &#39;get 20&#39; grew to 20 rows" in page
    assert "Verdicts of R4 on buffers that grow in blocks." in page
    assert "no block buffer was played" not in page


@pytest.mark.slow  # 5 and 8 s; the second engine calls its buffer by other names than vLLM
@pytest.mark.parametrize(
    ("name", "model_class", "passes"),
    [("acme_serve", QWEN, "R1 R2 R3 R4 R8"), ("acme_flow", "FlowDecoder", "R2 R3 R7")],
)
def test_a_tree_of_its_engine_is_audited(
    target: Path, tmp_path: Path, name: str, model_class: str, passes: str
) -> None:
    tree = data(f"examples/third_party_buffers/{name}")
    audited = harness(tmp_path, "audit", "--source", str(tree), "--json", "-", packages=target)
    assert audited.returncode == 1, audited.stderr
    rows = [json.loads(line) for line in audited.stdout.splitlines()]
    judged = {row["rule"]: row["verdict"] for row in rows if row.get("regime") == "live"}
    assert {rule for rule, verdict in judged.items() if verdict == "FAIL"} == {"R5"}
    assert {rule for rule, verdict in judged.items() if verdict == "PASS"} >= set(passes.split())
    assert {row["model_class"] for row in rows if row.get("rule") == "R5"} == {model_class}


def test_without_it_the_tree_is_of_no_engine(tmp_path: Path) -> None:
    tree = data("examples/third_party_buffers/acme_serve")
    audited = harness(tmp_path, "audit", "--source", str(tree))
    assert (audited.returncode, audited.stdout) == (2, "")
    assert "acme_serve" in audited.stderr


@pytest.mark.slow  # 20 s on a busy machine
def test_a_fault_outside_its_incidents_is_found_and_written_out(target: Path, tmp_path: Path) -> None:
    words = ["fuzz", "--revision", "blocks_1_0", "--examples", "12", "--out", "found"]
    done = harness(tmp_path, *words, packages=target)
    assert done.returncode == 1, done.stdout + done.stderr
    program = tmp_path / "found" / "R5-1.py"
    assert "from block_buffers.buffers import BlockBuffer10 as Buffer" in program.read_text()
    assert ran(tmp_path, str(program), packages=target).returncode == 1


def test_without_it_the_same_incident_is_unknown(tmp_path: Path) -> None:
    done = harness(tmp_path, "repro", "blocks-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown incident 'blocks-1'; nearest are " in done.stderr


@pytest.mark.slow  # 5 s
def test_a_broken_package_is_listed_and_refused_where_it_is_used(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    revisions = {"acme_ring": "acme:Ring", "copies_on_get": "acme:Ring"}
    engines = {
        "acme-serve": "acme:SERVE",
        "vllm": "acme:SERVE",
        "called-otherwise": "deepstack_harness.files:data",
    }
    declare(
        packages, "acme-one",
        {"revisions": revisions, "engines": engines, "incidents": {"acme": "acme:i.toml"}},
    )  # fmt: skip
    listed = harness(tmp_path, "list", "extensions", packages=packages)
    sentence = "revision 'acme_ring' of acme-one 1.0 cannot be loaded: module 'acme' is not installed"
    assert listed.returncode == 0
    assert f"broken: {sentence}" in listed.stdout
    assert "broken: revision 'copies_on_get' is declared by deepstack-harness and by acme" in listed.stdout
    assert "broken: incidents 'acme' of acme-one 1.0 cannot be read: module 'acme' is not" in listed.stdout
    assert "broken: engine 'vllm' is declared by deepstack-harness and by acme-one 1.0" in listed.stdout
    for name, why in [
        ("acme-serve", "cannot be loaded: module 'acme' is not installed"),
        ("called-otherwise", "is not a deepstack_harness.engines.engine.KnownEngine"),
    ]:
        audited = harness(tmp_path, "audit", "--source", f"{name}==1.0", packages=packages)
        assert (audited.returncode, audited.stdout) == (2, "")
        assert f"engine '{name}' of acme-one 1.0 {why}" in " ".join(audited.stderr.split())
    fuzzed = harness(tmp_path, "fuzz", "--revision", "acme_ring", packages=packages)
    assert fuzzed.returncode == 2
    assert sentence in fuzzed.stderr
    assert len(fuzzed.stderr.strip().splitlines()) == 1
