"""The site: it builds without a warning, has a page for each thing it is made from, and loads nothing."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import deepstack_harness
from deepstack_harness.catalogue.incidents import readable_incidents
from deepstack_harness.cli.main import COMMANDS
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.known import all_engines

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"

pytest.importorskip("sphinx", reason="the group `docs` is not installed")
pytestmark = [
    pytest.mark.skipif(not DOCS.exists(), reason="needs a checkout"),
    pytest.mark.xdist_group("site"),  # one worker, so that the site is built once
]


BUILT = pytest.mark.slow
"""Of a test on the built site: the job `docs` of CI builds it every day, and fails on a warning."""


def build(source: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build as `tox -e docs` does."""
    words = ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-E", "-b", "html", "-c", str(DOCS), *options]
    return subprocess.run(
        [sys.executable, *words, source, target],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: 28 s of processor time, most of them pages of the catalogue and of public names."""
    target = tmp_path_factory.mktemp("site")
    ended = build(DOCS, target)
    assert (ended.returncode, ended.stdout.strip()) == (0, "")
    return target


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


@BUILT
def test_each_incident_and_each_engine_has_a_page(site: Path) -> None:
    for incident in readable_incidents():
        page = site / "gallery" / f"{incident.id}.html"
        assert "What users see" in text_of(page), incident.id
        assert ("exits with 1" in text_of(page)) == (incident.script is not None), incident.id
    for engine in all_engines():
        assert "Release by release" in text_of(site / "engines" / f"{engine.package.name}.html")
        assert engine.package.name == canonicalize_name(engine.package.name)
    qwen = text_of(site / "gallery" / "43602.html")
    for words in ("Answers ignore the image", "0.20.0 .. before 0.23.0", "R1 structure", "MOSS-Audio"):
        assert words in qwen


def cells_of(page: Path, *words: str) -> list[str]:
    """Return the cells of the one row of a table that has all of these words."""
    rows = [row.split("</td>")[:-1] for row in re.findall(r"<tr.*?>(.*?)</tr>", page.read_text(), re.DOTALL)]
    texts = [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in rows]
    (row,) = [cells for cells in texts if all(word in "|".join(cells) for word in words)]
    return row


@BUILT
def test_the_page_of_an_engine_has_reach_evidence_and_effect(site: Path) -> None:
    vllm = site / "engines" / "vllm.html"
    *_, reach, evidence, effect = cells_of(vllm, "None in the profile run, and the compiled text model")
    assert (reach, evidence, effect) == ("default", "run", "output")
    *_, reach, evidence, effect = cells_of(vllm, "a padded token count is checked")
    assert (reach, evidence, effect) == ("default", "run", "crash")
    # A fault that no program shows, and a rule whose effect no fact shows.
    assert cells_of(vllm, "answer garbage or NaN under torch.compile")[-1] == "not measured"
    assert cells_of(vllm, "storage moved")[-1] == "R6: not measured"
    assert cells_of(vllm, "PlaceholderRange")[-1] == "R12: not measured"
    of_classes = cells_of(vllm, ">=0.20.2, <=0.33.0", "replaced payload")[-1]
    assert of_classes == "R3: paddingR4 R5: output, padding"
    assert cells_of(vllm, "6: padding, crash")[0] == "0.20.0"


@BUILT
def test_the_page_of_an_incident_has_its_effect(site: Path) -> None:
    gallery = site / "gallery"
    assert cells_of(gallery / "40917.html", "Granite 4 Vision")[-1] == "padding, cost"
    assert "where its program shows it: output." in text_of(gallery / "43602.html")
    assert "where its program shows it: not measured." in text_of(gallery / "37639.html")


@pytest.mark.parametrize("words", [["deepstack_input_emb"], ["imag", "ignor"], ["accuraci", "drop"]])
@BUILT
def test_the_search_finds_an_incident_by_what_users_see(site: Path, words: list[str]) -> None:
    """The words are stems, as the index of the site has them."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    incident = index["docnames"].index("gallery/43602")
    for word in words:
        pages = index["terms"][word]
        assert incident in (pages if isinstance(pages, list) else [pages])


@BUILT
def test_a_page_defines_a_name_once_and_shows_only_commands_that_run(site: Path) -> None:
    index, plugin = site / "gallery" / "index.html", site / "engines" / "tpu-inference.html"
    assert cells_of(index, "A request without images gets values")[-1] == "TensorRT-LLM"
    assert "audit --source tpu-inference==0.32.0 --base vllm==0.32.0" in text_of(plugin).replace("$ ", "")
    assert re.search(r"audit --source tpu-inference==\S+\n", text_of(plugin)) is None


@pytest.mark.parametrize("command", COMMANDS)
@BUILT
def test_each_command_has_a_page_with_its_options(site: Path, command: str) -> None:
    text = text_of(site / "reference" / "commands" / f"{command}.html")
    assert f"deepstack-harness {command} [-h]" in text
    assert "--json" in text


@pytest.mark.parametrize("rule", Rule)
@BUILT
def test_each_rule_has_a_wrong_and_a_right_example(site: Path, rule: Rule) -> None:
    text = text_of(site / "reference" / "rules" / f"{rule}.html")
    assert "Wrong" in text
    assert "Right" in text
    assert rule.word in text


@BUILT
def test_the_glossary_is_short_sorted_and_found_by_the_search(site: Path) -> None:
    page = (site / "glossary.html").read_text()
    assert 30 <= len(re.findall(r'<dt id="term-', page)) <= 75
    first = re.findall(r'(?:</dd>|<dl[^>]*>)\s*<dt id="term-([^"]+)"', page)
    assert len(first) > 30
    assert first == sorted(first, key=str.lower)
    assert "term-guard" in (site / "searchindex.js").read_text()
    assert 'href="../glossary.html#term-guard"' in (site / "explanation" / "side-inputs.html").read_text()


@BUILT
def test_no_page_loads_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 100
    asking = re.compile(r"""(?:src=|<link[^>]*href=|@import |url\()\s*["']?(?:https?:)?//[^"')\s]+""")
    assert [(page.name, found[0]) for page in pages if (found := asking.search(page.read_text()))] == []


@pytest.mark.slow  # the job `docs` of CI
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text("# Page\n\n[there](missing.md) and [here](#no-heading)\n")
    ended = build(source, tmp_path / "site", "-D", "extensions=myst_parser", "-D", "html_static_path=")
    assert ended.returncode != 0
    assert "missing.md" in ended.stdout
    assert "no-heading" in ended.stdout


def test_every_public_name_is_on_the_page_of_public_names() -> None:
    named = re.findall(
        r"auto(?:class|function):: deepstack_harness\.(\w+)", (REFERENCE / "public-api.md").read_text()
    )
    assert sorted(named) == sorted(deepstack_harness.__all__)


def test_every_environment_variable_of_ours_is_on_its_page() -> None:
    sources = (ROOT / "harness").rglob("*.py")
    read = {
        name for path in sources for name in re.findall(r"DEEPSTACK_HARNESS_[A-Z_]*[A-Z]", path.read_text())
    }
    told = set(re.findall(r"DEEPSTACK_HARNESS_[A-Z_]*[A-Z]", (REFERENCE / "environment.md").read_text()))
    assert len(read) > 15
    assert told == read
