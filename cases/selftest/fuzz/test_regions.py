"""Small regions: how `selftest` proves them, and a harness that was made blind does not pass it.

Each is a specimen: `cases/test_specimens.py` plays it under every detector.
"""

import json
from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import cast

import pytest

from cases.by_day import by_day
from deepstack_harness.catalogue.regions import REGIONS
from deepstack_harness.cli.main import main
from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.errors import ExitCode
from deepstack_harness.fuzz import regions
from deepstack_harness.fuzz.regions import RegionProof, proof_of
from deepstack_harness.models.regions.program import RegionProgram
from deepstack_harness.play.loading import load_named
from deepstack_harness.play.steps_work import measure_program

WRONG = {name: region for name, region in REGIONS.items() if region.promise}
RIGHT = [name for name, region in REGIONS.items() if not region.promise]
KINDS = ("attention", "cross_attention", "experts", "per_layer", "recurrent")


def played(name: str, arms: tuple[str, ...]) -> RegionProof:
    proof = proof_of(
        name,
        judge_steps(measure_program(cast("type[RegionProgram]", load_named(REGIONS[name].target)), arms)),
        0.0,
    )
    return replace(proof, region=replace(proof.region, arms=arms))


def test_every_promise_has_three_mutants_in_every_kind_of_module() -> None:
    counts = Counter((region.kind, region.promise) for region in WRONG.values() if region.kind != "axes")
    assert set(counts) == {(kind, promise) for kind in KINDS for promise in Promise}
    assert min(counts.values()) >= 3
    assert len(RIGHT) >= 20


def test_the_index_has_every_class_and_entry_of_the_modules() -> None:
    made = {}
    for kind in {region.kind for region in REGIONS.values()}:
        module = import_module(f"deepstack_harness.models.regions.{kind}")
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", "") == module.__name__ and isinstance(thing, type):
                promise = getattr(thing, "promise", "")
                if promise or "right" in vars(thing):
                    assert thing.__name__ == name
                    summary = (thing.__doc__ or "").partition("\n")[0]
                    made[f"{module.__name__}:{name}"] = (promise, getattr(thing, "arms", ""), summary)
    assert made == {
        region.target: (region.promise or "", " ".join(region.arms), region.summary)
        for region in REGIONS.values()
    }


def test_every_region_is_made_with_state_of_its_own() -> None:
    program = cast("type[RegionProgram]", load_named(REGIONS["history_of_replays"].target))
    region, (call, *_) = program.make()
    region(**call)
    assert getattr(region, "lengths") == [4]  # noqa: B009  # the entry states it, not the class
    assert getattr(program.make()[0], "lengths") == []  # noqa: B009


@pytest.mark.parametrize("name", by_day(["packed_ids", "late_bias", "load_of_profiling"]))
def test_with_the_guards_of_torch_a_wrong_region_is_right(name: str) -> None:
    proof = played(name, ("eager/stock",))
    assert (proof.broken, proof.unjudged) == ({}, ())


AXES = [name for name, region in REGIONS.items() if region.kind == "axes" and region.promise]
"""Regions that are wrong under one axis of engines."""


@pytest.mark.parametrize("name", by_day(AXES, count=2))
def test_a_region_that_is_wrong_on_one_axis_is_caught_there_and_nowhere_else(name: str) -> None:
    """Under all of its arms: 0.3 s of the processor each, 3 s in all."""
    proof = played(name, REGIONS[name].arms)
    assert proof.holds, proof.wrong
    elsewhere = tuple(load_named(REGIONS[name].target).elsewhere.split())  # type: ignore[attr-defined]
    assert elsewhere
    proof = played(name, elsewhere)
    assert (proof.broken, proof.unjudged) == ({}, ())


@pytest.mark.parametrize(
    ("name", "broken", "why"),
    [
        ("late_bias", {}, "NOT CAUGHT as stated: nothing broken"),
        ("late_bias", {"eager/drop_all": ("I1",)}, "NOT CAUGHT as stated: I1 under eager/drop_all broken"),
        ("counts_tokens", {"eager/drop_all": ("I4",), "eager/full": ("I1", "I4")}, "I1 I4 under eager/full"),
        ("attends_to_all", {"eager/drop_all": ("I3",)}, "NOT CAUGHT as stated: I3 under eager/drop_all"),
        ("ring_of_rows", {"eager/full": ("I4",)}, "FALSE ALARM: I4 under eager/full broken"),
    ],
)
def test_only_the_stated_promise_under_each_stated_arm_will_do(
    name: str, broken: dict[str, tuple[str, ...]], why: str
) -> None:
    proof = RegionProof(name, REGIONS[name], broken, chances=3)
    assert not proof.holds
    assert why in proof.wrong
    stated = REGIONS[name].promise
    arms = [*REGIONS[name].arms, *(["eager"] if stated in {Promise.NEUTRAL_ROWS, Promise.OWNERSHIP} else [])]
    right = {arm: (str(stated),) for arm in arms} if stated else {}
    assert replace(proof, broken=right).holds
    assert replace(proof, broken=right, chances=0).wrong == "NOT PUT TO THE TEST"


@pytest.mark.slow  # 9 s; the command by day is that of a blind judge
def test_the_command_prints_regions_in_tables_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "late_bias", "ring_of_rows"]) == ExitCode.HOLDS
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["I1", "specialisation", "1", "of", "1", *["-"] * 6] in [line.split() for line in lines]
    assert "0 false alarms on 1 right region" in lines
    assert "mutants caught" not in said
    assert lines[-1].startswith("1 of 1 regions caught only by their promise; ")


def test_a_blind_judge_misses_a_region_and_it_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blind(region: object) -> object:
        judged = judge_steps(region)  # type: ignore[arg-type]
        return replace(judged, rows=tuple(row for row in judged.rows if row.promise != "I2"))

    monkeypatch.setattr(regions, "judge_steps", blind)
    monkeypatch.setattr(
        regions, "REGIONS", {**REGIONS, "late_bias": replace(REGIONS["late_bias"], target="nowhere:Nothing")}
    )
    assert main(["selftest", "packed_ids", "late_bias", "--json", "-"]) == ExitCode.BROKEN
    rows = {row["region"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["packed_ids"]["detail"].startswith("NOT CAUGHT as stated: nothing broken")
    assert rows["late_bias"]["detail"].startswith("NOT JUDGED: module 'nowhere'")
    assert not rows["packed_ids"]["holds"]
