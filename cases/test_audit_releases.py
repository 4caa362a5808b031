"""What released vLLM classes keep and break, measured: the table of releases, and nothing new since."""

from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

import pytest
from packaging.version import Version

from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker
from deepstack_harness.catalogue.affected import broken_classes
from deepstack_harness.catalogue.known import KNOWN_FAILURES
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict

pytestmark = pytest.mark.network

R = Rule
LATER = {R.FRESHNESS, R.CAPACITY, R.CLEAR, R.ADDRESS, R.REJECTION}
BROKEN = {
    "0.19.1": LATER,
    "0.20.1": {R.OUTPUT, R.STRUCTURE, R.BOUNDARY, R.CLEAR, R.ADDRESS, R.REJECTION},
    "0.22.1": {R.OUTPUT, R.STRUCTURE, *LATER},
    "0.23.0": LATER,
    "0.33.0": LATER,
}
KEPT = {
    "0.19.1": {R.OUTPUT, R.STRUCTURE, R.BOUNDARY},
    "0.20.1": {R.CAPACITY},
    "0.22.1": {R.BOUNDARY},
    "0.23.0": {R.OUTPUT, R.STRUCTURE, R.BOUNDARY},
    "0.33.0": {R.OUTPUT, R.STRUCTURE, R.BOUNDARY},
}
TABLE = frozenset({"Qwen3VLForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"})


UNCHANGED = ("0.11.2", "0.19.1", "0.20.0", "0.20.2", "0.22.1", "0.27.1", "0.33.0")


def together(release: str) -> pytest.MarkDecorator:
    """Send the cases of a release to one worker of pytest-xdist, which audits it once."""
    return pytest.mark.xdist_group(f"vllm {release}")


DAILY = {"0.22.1"}
"""The release with R1 in addition to the others: a day audits its two classes of `TABLE`, a night all."""


def each(releases: Iterable[str], daily: Collection[str] = DAILY) -> list[object]:
    return [pytest.param(release, marks=marks(release, daily)) for release in releases]


def marks(release: str, daily: Collection[str] = DAILY) -> list[pytest.MarkDecorator]:
    return [together(release), *([] if release in daily else [pytest.mark.slow])]


class Audit(NamedTuple):
    classes: dict[str, AuditedClass]
    verdicts: dict[str, ClassVerdicts]


@cache
def audit(release: str, names: frozenset[str] | None = None) -> Audit:
    """Judge all classes of a release, or those of a name."""
    with SourceWorker(f"vllm=={release}") as worker:
        classes = {model_class.model_class: model_class for model_class in worker.classes()}
        judged = {
            name: judge_class(model_class, worker)
            for name, model_class in classes.items()
            if model_class.can_be_judged and (names is None or name in names)
        }
    return Audit(classes, judged)


def daily_audit(release: str) -> Audit:
    return audit(release, TABLE if release in DAILY else None)


def verdicts_of(release: str) -> list[ClassVerdicts]:
    found = audit(release)
    return [verdicts for name, verdicts in found.verdicts.items() if found.classes[name].ways.methods]


@pytest.mark.parametrize("release", each(BROKEN))
def test_rules_broken_per_release(release: str) -> None:
    judged = daily_audit(release).verdicts
    assert judged.keys() >= TABLE
    for name in TABLE:
        assert judged[name].unexpected == frozenset()
        assert judged[name].broken == BROKEN[release]
        assert judged[name].kept - {R.PLACEMENT} == KEPT[release]


@pytest.mark.parametrize("release", each(UNCHANGED, daily=()))
def test_nothing_is_broken_that_was_not_known_and_nothing_known_is_mended(release: str) -> None:
    for verdicts in verdicts_of(release):
        assert verdicts.unexpected == frozenset(), verdicts.model_class


@pytest.mark.parametrize("release", each(UNCHANGED, daily=()))
def test_a_known_failure_has_the_effects_that_are_measured(release: str) -> None:
    version, package = Version(release), "vllm"
    broken = [
        row for verdicts in verdicts_of(release) for row in verdicts.rows if row.verdict is Verdict.XFAIL
    ]
    rows = [row for row in broken if row.effect is not None]
    assert rows
    for row in rows:
        entries = [
            entry
            for entry in KNOWN_FAILURES.entries
            if entry.is_about(package, version, str(row.model_class))
        ]
        known = {
            effect
            for entry in entries
            if row.regime in (entry.regimes or (row.regime,)) and row.shape in (entry.shapes or (row.shape,))
            for effect in entry.effects.get(row.rule, ())
        }
        assert row.effect in known, (row.model_class, row.rule, row.regime, row.shape)


@pytest.mark.parametrize("release", each(BROKEN))
def test_a_release_has_the_classes_that_it_is_known_to_break(release: str) -> None:
    known = broken_classes("vllm", Version(release)).keys() - {"PlaceholderRange"}
    assert known <= daily_audit(release).classes.keys()


@pytest.mark.slow  # 19 s
def test_no_class_of_the_newest_release_is_skipped_without_a_sentence() -> None:
    with SourceWorker("vllm==0.33.0") as worker:
        classes = {model_class.model_class: model_class for model_class in worker.classes()}
    judged = {name for name, model_class in classes.items() if model_class.can_be_judged}
    assert judged >= {
        "CohereCompassForConditionalGeneration",
        "Cosmos3ForConditionalGeneration",
        "InternS1ProForConditionalGeneration",
        "MossAudioModel",
        *TABLE,
    }
    assert all(
        model_class.ways.refusals or model_class.ended
        for name, model_class in classes.items()
        if name not in judged
    )


LIVE, CAPTURED = Regime.LIVE, Regime.CAPTURED
DBO, FULL = "--enable-dbo (V1 runner)", "--compilation-config.cudagraph_mode=FULL"
ONE_TOKEN = "--max-num-batched-tokens of running decodes + 1"
GRAPHS = f"{FULL} or VLLM_USE_BREAKABLE_CUDAGRAPH=1 or VLLM_BATCH_INVARIANT=1"
REPLAYS = f"flag: {ONE_TOKEN} or {GRAPHS}"
REACH = [
    ("0.22.1", "Qwen3VLForConditionalGeneration", R.STRUCTURE, LIVE, "default"),
    ("0.20.1", "Qwen3OmniMoeThinkerForConditionalGeneration", R.BOUNDARY, LIVE, "default"),
    ("0.19.1", "Qwen3VLForConditionalGeneration", R.CLEAR, LIVE, f"flag: {DBO}"),
    ("0.33.0", "Qwen3VLForConditionalGeneration", R.CLEAR, LIVE, f"flag: {DBO}"),
    ("0.33.0", "Qwen3VLForConditionalGeneration", R.CLEAR, CAPTURED, REPLAYS),
    ("0.33.0", "Qwen3VLForConditionalGeneration", R.CAPACITY, LIVE, "latent"),
    ("0.33.0", "Granite4VisionForConditionalGeneration", R.FRESHNESS, LIVE, "latent"),
    ("0.33.0", "Granite4VisionForConditionalGeneration", R.CLEAR, CAPTURED, REPLAYS),
    ("0.20.1", "Granite4VisionForConditionalGeneration", R.BOUNDARY, LIVE, "default"),
]


@pytest.mark.parametrize(
    ("release", "name", "rule", "regime", "reach"),
    [pytest.param(*expected, marks=marks(expected[0])) for expected in REACH],
)
def test_how_the_engine_comes_to_it(release: str, name: str, rule: Rule, regime: Regime, reach: str) -> None:
    judged = daily_audit(release).verdicts[name]
    assert {(row.rule, row.regime): row.reach for row in judged.rows}[rule, regime] == reach


@together("0.33.0")
@pytest.mark.slow  # 8 s
def test_the_text_only_step_of_granite() -> None:
    judged = audit("0.33.0").verdicts["Granite4VisionForConditionalGeneration"]
    assert judged.broken == {R.FRESHNESS, R.CAPACITY, R.CLEAR}
    assert judged.unexpected == frozenset()
    row = next(row for row in judged.rows if (row.rule, row.regime) == (R.FRESHNESS, LIVE))
    assert (row.trace, row.value) == ("cap 16: profile 16; set 9; set 0; forward 16", 27)
