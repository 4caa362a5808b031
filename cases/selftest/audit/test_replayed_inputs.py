"""Arguments of what graph runners replay: models of two engines, written before the analysis."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deepstack_harness.audit.inputs import (
    AuditedInputs,
    InputChange,
    InputKind,
    InputStanding,
    Standing,
    audit_inputs,
)
from deepstack_harness.sources.source import Source

ROOT = Path(__file__).parent / "replayed"


def source_of(files: Mapping[str, bytes]) -> Source:
    return cast(Source, SimpleNamespace(python_files=lambda: files))


def files_of(engine: str) -> dict[str, bytes]:
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / engine).rglob("*.py"))}


@pytest.fixture(scope="module")
def audited() -> dict[str, AuditedInputs]:
    return {engine: audit_inputs(source_of(files_of(engine))) for engine in ("served", "hosted")}


def at_risk(audited: AuditedInputs, module: str) -> dict[str, set[str]]:
    """The inputs at risk of each class of a file."""
    rows: dict[str, set[str]] = {}
    for row in audited.standings:
        if row.standing is Standing.AT_RISK and row.member.endswith(f"/{module}.py"):
            rows.setdefault(row.model_class, set()).add(row.input)
    return rows


WRONG = {
    "served": {
        "KeywordOfTheRunner": {"extra"}, "Stack": {"deep"}, "InnerStack": {"weights"},
        "MaskedStack": {"mask"}, "FactoredStack": {"factors", "patches"},
        "FactorsThatNoGateRefuses": {"factors"},
        "RowsOfTwoKindsOfSteps": {"rows"}, "PartsStack": {"parts"},
        "PartsUnderAnotherPlan": {"parts"}, "TintedStack": {"tint"},
    },
    "hosted": {"StagedInSteps": {"staged"}, "Body": {"picture"}, "TextBody": {"picture"}},
}  # fmt: skip


@pytest.mark.parametrize("engine", WRONG)
def test_each_wrong_input_is_at_risk_and_no_other(audited: dict[str, AuditedInputs], engine: str) -> None:
    assert at_risk(audited[engine], "wrong_models") == WRONG[engine]


@pytest.mark.parametrize("engine", WRONG)
def test_no_input_of_a_right_model_is_at_risk(audited: dict[str, AuditedInputs], engine: str) -> None:
    rows = [row for row in audited[engine].standings if row.member.endswith("/right_models.py")]
    assert [row for row in rows if row.standing is Standing.AT_RISK] == []
    assert len({row.model_class for row in rows}) >= 2


def test_every_entry_and_every_captured_body_is_a_region(audited: dict[str, AuditedInputs]) -> None:
    counts = {engine: len(found.regions) for engine, found in audited.items()}
    assert counts == {"served": 21 + 7 + 23 + 5, "hosted": 6 + 3 + 9 + 2}


@pytest.mark.parametrize(
    ("engine", "model_class", "name", "writer"),
    [
        ("served", "KeywordOfTheRunner", "extra", "forward_decode"),
        ("served", "InnerStack", "weights", "forward"),
        ("served", "TintedStack", "tint", "forward"),
        ("hosted", "StagedInSteps", "staged", "_stage_arguments"),
        ("hosted", "Body", "picture", "forward"),
    ],
)
def test_a_row_names_who_gives_an_argument(
    audited: dict[str, AuditedInputs], engine: str, model_class: str, name: str, writer: str
) -> None:
    rows = [row for row in audited[engine].standings if row.standing is Standing.AT_RISK]
    (row,) = [row for row in rows if (row.model_class, row.input) == (model_class, name)]
    assert (row.kind, row.change, row.writers[0].function) == (
        InputKind.ARGUMENT,
        InputChange.PRESENCE,
        writer,
    )
    member, _, line = row.where.rpartition(":")
    assert re.search(f"{name}|staged|late", (ROOT / member).read_text().splitlines()[int(line) - 1])


@pytest.mark.parametrize(
    ("engine", "model_class", "name", "words"),
    [
        ("served", "StageTensors", "staged", "captures it, and fills it in a replay"),
        ("served", "EmbedsInPrefill", "input_embeds", "no call in such a step gives it"),
        ("hosted", "OfAPrompt", "picture", "no call in such a step gives it"),
        ("hosted", "Marked", "staged", "forward does not read it"),
    ],
)
def test_what_makes_an_argument_the_same_is_named(
    audited: dict[str, AuditedInputs], engine: str, model_class: str, name: str, words: str
) -> None:
    row = row_of(audited[engine], model_class, name)
    assert (row.standing, words in row.why) == (Standing.SAME, True), row


@pytest.mark.parametrize(
    ("engine", "model_class", "name", "words", "line"),
    [
        ("served", "PatchedStack", "patches", "refuses such a step", "if patches is not None or rows"),
        ("served", "ShardsStack", "shards", "refuses such a step", "plan_of_shards() is None"),
        ("served", "InnerTower", "mask", "captures another object", "self.stack = language_model.model"),
        ("served", "DirectStack", "mask", "captures another object", "self.stack = language_model.model"),
        ("hosted", "PictureBody", "picture", "has no `body`", 'if not hasattr(self.model, "body")'),
    ],
)
def test_what_no_graph_runs_is_guarded_with_the_line_that_shows_it(
    audited: dict[str, AuditedInputs], engine: str, model_class: str, name: str, words: str, line: str
) -> None:
    row = row_of(audited[engine], model_class, name)
    assert (row.standing, words in row.why) == (Standing.GUARDED, True), row
    member, _, number = row.where.rpartition(":")
    assert line in (ROOT / member).read_text().splitlines()[int(number) - 1]


def test_a_function_that_another_chooses_is_followed(audited: dict[str, AuditedInputs]) -> None:
    rows = [row for row in audited["served"].standings if row.standing is Standing.NOT_FOLLOWED]
    assert rows == []


def row_of(audited: AuditedInputs, model_class: str, name: str) -> InputStanding:
    (row,) = [row for row in audited.standings if (row.model_class, row.input) == (model_class, name)]
    return row


def test_an_attribute_of_unknown_class_that_takes_the_step_is_not_followed() -> None:
    files = files_of("served")
    member = "served/models/right_models.py"
    files[member] += (
        b"\n\nclass Unknown(nn.Module):\n    def __init__(self, kind):\n        self.part = kind()\n\n"
    )
    files[member] += (
        b"    def forward(self, tokens, batch: StepBatch):\n        return self.part(tokens, batch)\n\n\n"
    )
    files[member] += b"EntryClass += [Unknown]\n"
    row = row_of(audit_inputs(source_of(files)), "Unknown", "part")
    assert (row.standing, "its class was not found" in row.why) == (Standing.NOT_FOLLOWED, True)


def test_what_is_compiled_with_its_guards_is_no_capture() -> None:
    files = files_of("served")
    runners = [name for name in files if name.endswith("graph_runner.py")]
    for name in runners:
        files[name] = files[name].replace(b"CUDAGraph", b"Compiled").replace(b"cuda.graph", b"compiler.trace")
    audited = audit_inputs(source_of(files))
    assert (len(runners), audited.regions, audited.standings) == (2, (), ())
