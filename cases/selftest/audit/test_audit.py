"""`audit` and `check`: every class of a source is found, judged or refused with a sentence."""

import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cases.by_day import by_day
from cases.selftest.engines.synthetic_vllm import HANDS_ON, INNER_MODEL, OTHER, SUBCLASSES, ModelFile, Vllm
from cases.selftest.engines.synthetic_vllm import write as write_files
from cases.selftest.row_columns import filled_columns, stated_columns
from deepstack_harness.audit.account import SYSTEM
from deepstack_harness.audit.class_verdicts import against_known
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import find_classes, open_source
from deepstack_harness.errors import ExitCode
from deepstack_harness.sources.source import Source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path, version: str = "0.10.0") -> Path:  # of 0.10.0 no failures are known
    qwen = str(ModelFile(more=HANDS_ON)) + INNER_MODEL
    return write_files(folder, {**Vllm(version, qwen).files, OTHER: SUBCLASSES})


class Audited(NamedTuple):
    """The exit code of one audit of `write`, its text, and its rows as they are in the file."""

    code: int
    text: str
    rows: list[bytes]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    folder = tmp_path_factory.mktemp("audited")
    path, text = folder / "rows.jsonl", io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main(["audit", "--vllm", str(write(folder)), "--json", str(path)])
    return Audited(code, text.getvalue(), path.read_bytes().splitlines())


def found(source: Source) -> dict[str, tuple[bool, str]]:
    return {
        item.found.model_class: (item.methods is not None, " | ".join(map(str, item.refusals)))
        for item in classes_of(source)
    }


def test_classes_are_found_by_what_they_do(source: Path) -> None:
    assert {name for name, (driven, _) in found(open_source(str(source))).items() if driven} == {
        "Qwen3VLForConditionalGeneration",
        "Renamed",
        "Roomier",
        "Calling",
    }


def test_nobody_is_left_out_without_a_sentence(source: Path) -> None:
    refused = {name: words for name, (driven, words) in found(open_source(str(source))).items() if not driven}
    assert refused.keys() == {"Bare", "Methodless"}
    assert "'Bare' object has no attribute 'deepstack_input_embeds'" in refused["Bare"]
    assert "has no _clear_deepstack_input_embeds" in refused["Methodless"]


def test_what_is_inherited_whole_is_cut_once(source: Path) -> None:
    cuts = {cut.model_class: cut for cut in find_classes(open_source(str(source)))}
    renamed, base = cuts["Renamed"], cuts["Qwen3VLForConditionalGeneration"]
    assert renamed.member != base.member
    assert (renamed.methods, renamed.forward) == (base.methods, base.forward)


def test_a_subclass_allocates_by_its_own_init(source: Path) -> None:
    import torch

    roomier = {item.found.model_class: item for item in classes_of(open_source(str(source)))}[
        "Roomier"
    ].methods
    assert roomier is not None
    assert roomier(16, 8, 3, dtype=torch.float32, device=torch.device("cpu")).capacity == 32


def test_a_wheel_has_the_same_classes(tmp_path: Path) -> None:
    import zipfile

    root = write(tmp_path / "tree")
    wheel = tmp_path / "vllm-0.22.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in root.rglob("*.py"):
            archive.write(path, path.relative_to(root))
        archive.writestr(
            "vllm-0.22.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.1\n"
        )
    assert found(open_source(str(wheel))).keys() == found(open_source(str(root))).keys()


def test_audit_prints_rules_classes_and_differences(audited: Audited) -> None:
    assert audited.code == ExitCode.BROKEN
    out = audited.text
    assert re.search(r"group +broken live +broken captured +kept", out)
    assert re.search(r"^A +R1 R3 R4 R5 R8 +R1 R4 +R2 R6 R7", out, re.MULTILINE)
    assert "captured: graphs replay what get and clear recorded" in out
    assert "Renamed, Calling, Qwen3VLForConditionalGeneration" in out
    assert "sources whose classes differ from each other" in out
    assert re.search(r"'cap 16: get 4' under eager: step 1 'get 4' \S+.* None", out)
    assert re.search(r"^  Methodless, vllm/model_executor/models/\S+\.py:\d+ \(vllm at ", out, re.MULTILINE)
    first, second, *_ = out.splitlines()
    assert first.startswith("vllm at ")
    assert ": 4 classes are wrong with default settings (Renamed; " in first
    assert first.endswith("; 3 not judged")
    assert re.match(r"exit code 1: \d+ findings? with default settings or a flag", second)
    assert second.endswith("; 3 classes not judged")
    assert out.splitlines()[-1].startswith("reached by default: R1, unknown for 3 classes. ")
    # The class returns None live, and so do its graphs.
    assert re.search(r"^ +also R1 structure captured: ", out, re.MULTILINE)


def test_audit_rows(audited: Audited) -> None:
    every = [json.loads(line) for line in audited.rows]
    rows = [row for row in every if row["rule"] is not None]
    carriers = [row for row in every if row["rule"] is None]
    assert {row["model_class"] for row in carriers} == {
        "Bare", "Methodless", "Qwen3OmniMoeThinkerForConditionalGeneration",
    }  # fmt: skip
    assert {(row["system"], row["verdict"], row["reach"]) for row in carriers} == {
        ("account", "ERROR", "unknown")
    }
    assert carriers[0].keys() == rows[0].keys()
    assert {row["model_class"] for row in rows} == {
        "Qwen3VLForConditionalGeneration",
        "Renamed",
        "Roomier",
        "Calling",
    }
    rules = {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"}
    for regime, more in (("live", {"R0"}), ("captured", set[str]())):
        assert {row["rule"] for row in rows if row["regime"] == regime} == rules | more
    whole = [row for row in rows if row["rule"] == "R0"]  # of the classes whose forward runs
    assert {(row["verdict"], row["detail"]) for row in whole} == {
        ("SKIP", "it calls no compiled text model that was found")
    }
    assert len(rows) == 4 * 2 * len(rules) + len(whole)


def test_a_source_without_deepstack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Vllm(qwen="class Other:\n    pass\n").tree(tmp_path)
    (root / "vllm/model_executor/models/qwen3_omni_moe_thinker.py").unlink()
    assert main(["audit", "--vllm", str(root)]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer" in capsys.readouterr().err


REFUSED = """\
class First:
    def forward(self, ids):
        return self.language_model(ids, deepstack_input_embeds=self.rows)


class Second(First):
    def __init__(self):
        self.rows = None
"""


@pytest.mark.slow  # 14 s
def test_where_every_class_is_refused_all_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [Vllm(qwen=REFUSED, omni="").tree(tmp_path / name) for name in ("one", "other")]
    words = [word for source in sources for word in ("--source", str(source))]
    assert main(["audit", *words]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    for source in sources:
        for line, name in ((1, "First"), (6, "Second")):
            member = "vllm/model_executor/models/qwen3_vl.py"
            assert f"  {name}, {member}:{line} (vllm at {source} (0.22.1)): " in said
    assert said.rstrip().endswith("reached by default: unknown for 4 classes. New: none. Effect: none.")
    assert main(["audit", *words, "--bisect"]) == ExitCode.BROKEN


WIPED_ON_REPLAY = """\
def _get_deepstack_input_embeds(self, num_tokens):
    for rows in self.deepstack_input_embeds:
        rows[self.filled : num_tokens].zero_()
    return IntermediateTensors(
        {f"deepstack_input_embeds_{i}": x[:num_tokens] for i, x in enumerate(self.deepstack_input_embeds)}
    )
"""


@pytest.mark.slow  # 3 s
def test_a_fault_that_only_a_replay_shows_is_found_on_the_methods(tmp_path: Path) -> None:
    """As in vllm-omni 0.22 to 0.30: captured with nothing set, get's zero_() covers all rows."""
    file = ModelFile(get=WIPED_ON_REPLAY, more=HANDS_ON.replace("self.language_model", "self.nothing"))
    with SourceWorker(str(Vllm("0.10.0", str(file)).tree(tmp_path))) as worker:
        (found,) = worker.classes()
        judged = judge_class(found, worker).rows
    rows = {row.rule: row for row in judged if row.regime is Regime.CAPTURED}
    assert {row.rule: row.verdict for row in judged if row.regime is Regime.LIVE}[Rule.BOUNDARY] == "PASS"
    assert (found.ways.methods, found.ways.forward) == (True, False)
    assert (rows[Rule.BOUNDARY].verdict, rows[Rule.BOUNDARY].reach) == (
        "FAIL",
        "flag: --compilation-config.cudagraph_mode=FULL",
    )
    assert rows[Rule.BOUNDARY].trace == "cap 16: capture 16; set 16; replay 16; replay 16"
    assert "holds zeros" in rows[Rule.BOUNDARY].detail
    assert rows[Rule.FRESHNESS].verdict == "PASS"


@pytest.mark.slow  # 2 s
def test_the_reach_of_a_class_whose_forward_cannot_be_driven_is_never_latent(source: Path) -> None:
    with SourceWorker(str(source)) as worker:
        (calling,) = [audited for audited in worker.classes() if audited.model_class == "Calling"]
        rows = judge_class(calling, worker).rows
    reach = {(row.rule, row.regime): row.reach for row in rows if row.reach}
    assert not calling.ways.forward
    assert reach[Rule.STRUCTURE, Regime.LIVE] == "default"
    assert reach[Rule.STRUCTURE, Regime.CAPTURED] == "flag: --compilation-config.cudagraph_mode=FULL"
    assert reach[Rule.REJECTION, Regime.LIVE] == "unknown"
    assert "latent" not in reach.values()


@pytest.mark.parametrize(
    ("version", "known"),
    # A version without known failures by day: the one of `write`.
    by_day([("0.22.1+cpu", True), ("0.22.1", True), ("0.22.2.dev5+g1a2b3c4", True), ("99.1.dev5", False)]),
)
def test_what_is_known_of_a_release_is_known_of_its_tree(tmp_path: Path, version: str, known: bool) -> None:
    with SourceWorker(str(write(tmp_path, version))) as worker:
        found = {audited.model_class: audited for audited in worker.classes()}
        verdicts = judge_class(found["Qwen3VLForConditionalGeneration"], worker)
    assert (Rule.STRUCTURE in verdicts.rules({Verdict.FAIL})) != known
    assert Rule.STRUCTURE in verdicts.broken


@pytest.mark.slow  # 8 s
def test_a_file_that_does_not_parse_is_quoted(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "vllm/model_executor/models/broken.py").write_text("deepstack = (\n")
    assert main(["audit", "--vllm", str(source)]) == ExitCode.BROKEN
    assert "broken.py:1: not valid in Python" in capsys.readouterr().out


def test_the_page_states_the_columns_of_a_row(audited: Audited) -> None:
    rows = [json.loads(line) for line in audited.rows]
    carriers = [row for row in rows if row["system"] == SYSTEM]
    assert filled_columns(carriers) == stated_columns("carrier")
    classes = filled_columns(row for row in rows if row["system"] != SYSTEM)
    assert classes <= stated_columns("class")
    assert {"reach", "where", "effect", "shape", "steps"} <= classes


def test_expected_improved_and_new(audited: Audited) -> None:
    judged_rows = [line for line in audited.rows if json.loads(line)["rule"]]
    rows = [msgspec.json.decode(line, type=Row[Rule]) for line in judged_rows]
    rows = [row for row in rows if row.model_class == "Renamed" and row.regime is Regime.LIVE]
    known = {Rule.STRUCTURE: "vllm 43602", Rule.PLACEMENT: "unreported", Rule.SHARDING: "unreported"}
    skipped = replace(rows[0], rule=Rule.SHARDING, verdict=Verdict.SKIP)
    judged = {row.rule: row for row in against_known([*rows, skipped], known)}
    assert {rule: judged[rule].verdict for rule in (*known, Rule.FRESHNESS)} == {
        Rule.STRUCTURE: Verdict.XFAIL,
        Rule.PLACEMENT: Verdict.IMPROVED,
        Rule.SHARDING: Verdict.MISSING,
        Rule.FRESHNESS: Verdict.FAIL,
    }
    assert [judged[rule].expected for rule in (Rule.STRUCTURE, Rule.FRESHNESS)] == [True, False]
    assert judged[Rule.STRUCTURE].detail.endswith("[known: vllm 43602]")
    assert against_known(rows, None) == rows


@pytest.mark.slow  # 6 s; one with an adapter by day
def test_check_a_buffer_that_fulfils_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "deepstack_harness.models.reference:ReferenceBuffer"]) == ExitCode.HOLDS
    assert "keeps R1 R2 R3 R4 R5 R6 R7 R8 R11" in capsys.readouterr().out


@pytest.mark.slow  # by day in cli/test_check.py
def test_check_names_the_rule_that_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "deepstack_harness.models.mutants.r5:ClearsOneRowTooFew"]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "live use breaks R5" in out
    assert "R5 clear: after clear(n) no earlier row is ever read" in out
    assert "'cap 16: set 9; clear 5; get 9'" in out
    # One fault, stated once: under graphs it is the same.
    assert out.count("  live: 3 rows") == 1
    assert "also R5 clear captured: " in out


@pytest.mark.parametrize(
    ("target", "quoted"),
    [
        ("reference", "'reference' is not MODULE:CLASS"),
        ("no.such.module:Buffer", "module 'no.such.module' cannot be imported"),
        ("deepstack_harness.contract.trace:Nothing", "has no 'Nothing'"),
        (
            "deepstack_harness.contract.trace:RUNS_DECODER",
            "no class or function, but another object, 'RUNS_DECODER'",
        ),
        (
            "deepstack_harness.contract.trace:Trace",
            "cannot be made with (capacity, hidden, levels, *, dtype, device)",
        ),
        (
            "cases.selftest.workers.misbehaving:Halfway",
            "lacks clear(tokens), the attribute capacity",
        ),
    ],
)
def test_check_names_what_is_missing(capsys: pytest.CaptureFixture[str], target: str, quoted: str) -> None:
    assert main(["check", target]) == ExitCode.USAGE
    seen = capsys.readouterr()
    assert quoted in seen.err
    # One line names what is missing; the adapter class that would fit follows it.
    first, *rest = seen.err.splitlines()
    assert quoted in first
    assert ("class Adapter:" in rest) is bool(rest) is ("An adapter class makes it fit" in first)


@pytest.mark.slow  # 6 s; test_extras.py checks such a class every day
def test_check_finds_a_module_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from deepstack_harness.models.revisions import Pr43617Buffer\nclass Mine(Pr43617Buffer):\n    pass\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "deepstack_harness", "check", "mine:Mine"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == ExitCode.BROKEN
    assert "mine:Mine: live use breaks R3 R4 R5 R8; captured use breaks R3 R5 R6" in ran.stdout


STRICT = """\
from deepstack_harness.models.reference import ReferenceBuffer

class Strict(ReferenceBuffer):
    def get(self, tokens):
        if type(tokens) is not int:
            raise TypeError(f"a count is an int, not {type(tokens).__name__}")
        return super().get(tokens)

class Chunked(ReferenceBuffer):
    def set(self, payload):
        super().set(payload)
        if payload.size(1) > 6000:
            for level in self._levels:
                level[6000 : payload.size(1)].zero_()
"""


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(STRICT)
    command = [sys.executable, "-m", "deepstack_harness", "check", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow  # 12 s
def test_counts_that_are_no_python_int_are_advisory(tmp_path: Path) -> None:
    ran = check(tmp_path, "mine:Strict", "--json", str(tmp_path / "rows.jsonl"))
    assert ran.returncode == ExitCode.HOLDS
    assert "advisory: counts that are no Python int" in ran.stdout
    for count, given in (("numpy", "int64"), ("torch", "Tensor"), ("bool", "bool")):
        said = f"'get 1 count={count}': get raised TypeError: a count is an int, not {given}"
        assert said in ran.stdout
    assert "count=" not in (tmp_path / "rows.jsonl").read_text()


@pytest.mark.slow  # 20 s
def test_thorough_plays_real_sizes(tmp_path: Path) -> None:
    assert check(tmp_path, "mine:Chunked").returncode == ExitCode.HOLDS
    ran = check(tmp_path, "mine:Chunked", "--thorough", "--regime", "both")
    assert ran.returncode == ExitCode.BROKEN
    assert "live use breaks R2 R4; captured use breaks R2" in ran.stdout


@pytest.mark.slow
def test_git_bisect_finds_the_commit_and_skips_what_does_not_parse(tmp_path: Path) -> None:
    """8 commits; number 6 makes get return None; number 3, which git checks out first, does not parse."""
    healthy = ModelFile(get=ModelFile().get.replace("    if self.filled == 0:\n        return None\n", ""))
    commits = [_commit(tmp_path, number, str(healthy if number < 6 else ModelFile())) for number in range(8)]
    _git(tmp_path, "bisect", "start", commits[-1], commits[0])
    command = (
        f"{sys.executable} -m deepstack_harness repro 43602 --vllm . --bisect --quiet --arm eager".split()
    )
    output = _git(tmp_path, "bisect", "run", *command)
    assert f"{commits[6]} is the first bad commit" in output
    assert f"skip {commits[3]}" in _git(tmp_path, "bisect", "log")


def _commit(root: Path, number: int, qwen: str) -> str:
    if number == 0:
        _git(root, "init", "--quiet")
    broken = number == 3
    Vllm(qwen=qwen + (f"\n# change {number}\n" if not broken else "\nclass (\n")).tree(root)
    _git(root, "add", "--all")
    _git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", f"change {number}")
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout
