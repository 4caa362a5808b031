"""Run folders written by hand, for tests that play nothing."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deepstack_harness.contract.case import Distances
from deepstack_harness.machine.environment import environment
from deepstack_harness.results.files import Files, Shard
from deepstack_harness.results.records import About, CaseRecord, Planning, RunRow
from deepstack_harness.results.write import RunWriter, now

WHERE = "qwen3_vl eager/drop_all cpu"


def row(case: str, rule: str, verdict: str) -> RunRow:
    return RunRow(
        incident=None, system="deepstack", family="qwen3_vl", model_class=None, revision="reference",
        source=None, trace="cap 4: get 4", arm="eager/drop_all", guard_policy="drop_all",
        shape_policy="mark_dynamic", backend="eager", capture="none", device="cpu", dtype="float32",
        rule=rule, verdict=verdict, value=None, limit=None, unit="", reach=None, detail="", torch="2.13.0",
        case=case, expected=verdict in {"XFAIL", "IMPROVED"},
    )  # fmt: skip


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
        case=name, group=WHERE, incident=None, ending="played", seconds=seconds, family="qwen3_vl",
        subject="reference", trace=f"cap 4: get {len(name)}", arm="eager/drop_all", device="cpu",
        dtype="float32", expected=(), distances=Distances(distance, 4.0, 4.0, 4.0, 1e-6), graphs=graphs,
        recompiles=recompiles, graph_budget=1, steps=(), diagnosis=None, script=None, note="", output="",
        rows=rows,
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
        environment(),
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
    said = about(len(verdicts), shard)
    writer = RunWriter(Files(folder, shard), replace(said, started=started or said.started), resume=False)
    for name, (first, second) in verdicts.items():
        rows = (row(name, "R0", first), row(name, "R2", second))
        writer.append(rows, (cases or {}).get(name) or case(name))
    writer.finish()
    writer.close()
    return folder
