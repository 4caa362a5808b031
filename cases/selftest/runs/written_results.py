"""Run folders written by hand, for tests that play nothing."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Row, Verdict, row_of_case
from deepstack_harness.runs.machine import environment
from deepstack_harness.runs.records import About, CaseEnding, CaseRecord, Files, Planning, Shard
from deepstack_harness.runs.store import RunWriter, now

CASE = Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4"), ArmSpec.parse("eager/drop_all"))


here = cache(environment)
"""This environment, found out once: that starts three programs."""


def row(case: str, rule: str, verdict: str) -> Row:
    made = row_of_case(CASE, Judgement(Rule(rule), Verdict(verdict)), "2.13.0")
    return replace(made, case=case, expected=verdict in {"XFAIL", "IMPROVED"})


def case(
    name: str,
    *,
    distance: float = 0.0,
    graphs: int = 1,
    recompiles: int = 0,
    seconds: float = 1.0,
    rows: int = 2,
) -> CaseRecord:
    return CaseRecord(
        case=name, group=CASE.group, incident=None, ending=CaseEnding.PLAYED, seconds=seconds,
        family="qwen3_vl", subject="reference", buffer=CASE.buffer, trace=f"cap 4: get {len(name)}",
        arm="eager/drop_all", device="cpu", dtype="float32", expected=(),
        distances=Distances(distance, 4.0, 4.0, 4.0, 1e-6), graphs=graphs, recompiles=recompiles,
        graph_budget=1, steps=(), diagnosis=None, script=None, note="", output="", rows=rows,
    )  # fmt: skip


def about(cases: int, shard: Shard | None = None, plan: str = "plan") -> About:
    return About(
        "0",
        now(),
        None,
        (),
        None,
        "ci",
        str(shard) if shard else None,
        here(),
        Planning(1, cases),
        plan,
    )


def write(
    folder: Path,
    verdicts: Mapping[str, tuple[str, str]],
    cases: Mapping[str, CaseRecord] | None = None,
    *,
    started: str = "",
    shard: Shard | None = None,
) -> Path:
    """A finished run: case -> the verdicts of R0 and R2."""
    about_run = about(len(verdicts), shard)
    writer = RunWriter(
        Files(folder, shard), replace(about_run, started=started or about_run.started), resume=False
    )
    for name, (first, second) in verdicts.items():
        rows = (row(name, "R0", first), row(name, "R2", second))
        writer.append(rows, (cases or {}).get(name) or case(name))
    writer.finish()
    writer.close()
    return folder
