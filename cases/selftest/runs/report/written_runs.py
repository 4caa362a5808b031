"""Folders of runs written by hand: every verdict, an attack in every text, and a history of five."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from deepstack_harness.catalogue.orders import DEFAULT
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered, source_buffer
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Row, Verdict, row_of_case
from deepstack_harness.runs.machine import Environment
from deepstack_harness.runs.records import About, CaseEnding, CaseRecord, Planning, StepRecord

ATTACK = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)> | `x` & $y$ @me :x: \x1b[31m\x00"
)
"""Put wherever a run carries text from outside: markup, Markdown, mathtext, a terminal escape, a null."""

TRACE = Trace.parse("cap 16: profile 16; set 9; forward 16; set 5; forward 8")
FAMILIES = ("qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision")
ARMS = ("eager", "aot_eager/drop_all", "inductor/drop_all", "inductor/stock", "inductor/drop_all/full")
RULES = (Rule.OUTPUT, Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.ADDRESS, Rule.WORK, Rule.GRAPHS)
UNEXPECTED = 5
"""Judgements of `write_run` that somebody has to look at."""

Found = Mapping[Rule, Judgement]
SCRIPT = (
    "import torch\n\nprint('</script><script>stolen()</script>')  # <!-- a & b -->\nraise SystemExit(1)\n"
)


def said(
    rule: Rule, verdict: Verdict, value: float | None = None, unit: str = "", detail: str = ""
) -> Judgement:
    return Judgement(rule, verdict, value, None if value is None else 0.0, unit, detail)


FAULTY: Found = {
    Rule.OUTPUT: said(Rule.OUTPUT, Verdict.XFAIL, 0.71, "absolute", "step 3 'forward 16' is off by 0.71"),
    Rule.STRUCTURE: said(
        Rule.STRUCTURE, Verdict.XFAIL, 1, "structures", "step 1 answered None, step 3 tensors"
    ),
}
BROKEN: Found = {
    Rule.OUTPUT: said(Rule.OUTPUT, Verdict.FAIL, 1.32, "absolute", f"off by 1.32: {ATTACK}"),
    Rule.WORK: said(Rule.WORK, Verdict.FAIL, 4096, "rows", "4096 rows were processed for 16"),
}
CRASHED: Found = {Rule.OUTPUT: said(Rule.OUTPUT, Verdict.ERROR, detail="its process crashed: signal 11")}
BETTER: Found = {Rule.FRESHNESS: said(Rule.FRESHNESS, Verdict.IMPROVED, detail="was expected to break")}
SLOW: Found = {
    Rule.GRAPHS: said(Rule.GRAPHS, Verdict.FAIL, 4, "graphs", "torch compiled 4 graphs, and not 1")
}


def rows_of(case: Case, found: Found, torch: str = "2.13.0") -> list[Row]:
    """One row for each rule; rules that `found` leaves out pass, and R6 does not apply."""
    rows = []
    for rule in RULES:
        usual = (
            said(rule, Verdict.SKIP, detail="no graph") if rule is Rule.ADDRESS else said(rule, Verdict.PASS)
        )
        row = row_of_case(case, found.get(rule, usual), torch)
        expected = {Verdict.XFAIL: True, Verdict.IMPROVED: True, Verdict.FAIL: False}.get(row.verdict)
        rows.append(replace(row, expected=expected))
    return rows


def case_of(case: Case, found: Found) -> CaseRecord:
    """The line of a case: figures follow from what was found."""
    played, known = found is not CRASHED, found is FAULTY
    compiled, off = played and case.arm.name != "eager", played and Rule.OUTPUT in found
    graphs = [1, 1, 2, 3, 4] if found is SLOW else [1] * 5
    why = f"step 3 'forward 16': argument 'payload' was None when it was traced {ATTACK}"
    return CaseRecord(
        case=case.id, group=case.group, incident="43602" if known else None,
        ending=CaseEnding.PLAYED if played else CaseEnding.CRASHED, seconds=1.25, family=case.family,
        subject=case.subject, buffer=case.buffer, trace=str(case.trace), arm=case.arm.name,
        device=case.device, dtype=case.dtype, expected=(Rule.OUTPUT, Rule.STRUCTURE) if known else (),
        distances=Distances(1.1 if off else 3e-7, 0.8, 0.7, 0.71, 6e-7) if compiled else None,
        graphs=graphs[-1] if compiled else None, recompiles=graphs[-1] - 1 if compiled else None,
        graph_budget=1, steps=steps_of(found, graphs, compiled=compiled) if played else (),
        diagnosis=why if off else None, script=SCRIPT if found and played else None, note="",
        output="" if played else f"Segmentation fault {ATTACK}\n", rows=len(RULES),
    )  # fmt: skip


def steps_of(found: Found, graphs: Sequence[int], *, compiled: bool) -> tuple[StepRecord, ...]:
    wasted = 4096 if Rule.WORK in found else None
    return tuple(
        StepRecord(str(step), asked, asked and (wasted or asked), built * compiled, None)
        for step, asked, built in zip(TRACE, (16, None, 16, None, 8), graphs, strict=True)
    )


def planned(*, improved: bool = True, slow: bool = True) -> list[tuple[Case, Found]]:
    """Reference and two faulty revisions everywhere, and what is unexpected at four places."""
    cases: list[tuple[Case, Found]] = []
    for family in FAMILIES:
        for arm in ARMS:
            case = Case(family, registered("reference"), TRACE, ArmSpec.parse(arm))
            cases.append((case, {}))
            cases.append((replace(case, buffer=registered("original")), FAULTY if "drop_all" in arm else {}))
    compiled = Case(
        "granite4_vision", registered("granite_full"), TRACE, ArmSpec.parse("inductor/drop_all"), "bfloat16"
    )
    cases.append((compiled, BROKEN))
    cases.append((replace(compiled, family="qwen3_vl", arm=ArmSpec.parse("inductor/drop_all/full")), CRASHED))
    if improved:
        cases.append((replace(compiled, buffer=registered("pr40932"), arm=ArmSpec.parse("eager")), BETTER))
    if slow:
        cases.append((replace(compiled, family="qwen3_vl", arm=ArmSpec.parse("inductor/stock")), SLOW))
    return cases


def about(day: int, cases: int, *, finished: bool) -> About:
    return About(
        harness="0.1.0", started=f"2026-11-{day:02d}T02:00:00+00:00",
        finished=f"2026-11-{day:02d}T02:10:00+00:00" if finished else None,
        command=("run", "--device", "cpu"), selection=None, tier="ci", shard=None,
        environment=Environment(
            python="3.11.9", torch="2.13.0", triton=None, platform="Linux", cpu=f"one {ATTACK}",
            device=("cpu",), driver=None, commit="0123456789abcdef", settings={"OMP_NUM_THREADS": "1"},
        ),
        planned=Planning(groups=15, cases=cases), plan="0123",
    )  # fmt: skip


def write_run(
    folder: Path, day: int = 20, *, finished: bool = True, found: Sequence[tuple[Case, Found]] = ()
) -> Path:
    """A whole run; with `finished` false one that was killed: its last case has rows and no line."""
    folder.mkdir(parents=True)
    cases = found or planned()
    (folder / "run.json").write_bytes(msgspec.json.encode(about(day, len(cases), finished=finished)))
    write_lines(folder / "rows.jsonl", (row for case, what in cases for row in rows_of(case, what)))
    played = cases if finished else cases[:-1]
    write_lines(folder / "cases.jsonl", (case_of(case, what) for case, what in played))
    return folder


def write_beside(folder: Path) -> None:
    """What a nightly run leaves next to it: kernels, an audit, and findings of the fuzzer."""
    write_lines(folder / "kernels.jsonl", kernel_rows())
    write_lines(folder / "audit.jsonl", audit_rows())
    (folder / "fuzz").mkdir()
    (folder / "fuzz" / "R3-finding.py").write_text(SCRIPT)


def write_history(folder: Path) -> Path:
    """Five earlier runs: what is unexpected came in the middle of them."""
    for day in range(15, 20):
        cases = planned(improved=False, slow=day >= 17)
        write_run(folder / f"night-{day}", day, found=cases)
    return folder


def kernel_rows() -> Iterable[dict[str, Any]]:
    for family, revision, rows in (
        ("qwen3_vl", "pr43617", 77),
        ("granite4_vision", "granite_full", 8192),
        ("granite4_vision", ATTACK, 77),
    ):
        common = {
            "system": "deepstack",
            "family": family,
            "revision": revision,
            "target": "h200",
            "dtype": "bfloat16",
        }
        sizes = {
            "tokens": 77,
            "capacity": 8192,
            "graph": 0,
            "rows": rows,
            "bytes": rows * 4096,
            "ideal_bytes": 77 * 4096,
        }
        yield {
            **common,
            **sizes,
            "kind": "generated",
            "kernel": "triton_poi_fused_add_0",
            "kernels": None,
            "largest": None,
        }
        yield {**common, **sizes, "kind": "graph", "kernel": None, "kernels": 5, "largest": rows * 128}


def audit_rows() -> Iterable[Row]:
    for release, broken in (
        ("0.20.0", {Rule.OUTPUT, Rule.STRUCTURE}),
        ("0.22.1", {Rule.BOUNDARY, Rule.FRESHNESS}),
        ("0.33.0", {Rule.FRESHNESS}),
    ):
        for model_class in ("Qwen3VLForConditionalGeneration", "Granite4VisionForConditionalGeneration"):
            for rule in (Rule.OUTPUT, Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY):
                verdict = Verdict.FAIL if rule in broken else Verdict.PASS
                case = Case(
                    "",
                    source_buffer("vllm", release, f"vllm {release}", model_class),
                    TRACE,
                    ArmSpec.parse("eager"),
                )
                value = 2 if rule in broken else None
                row = row_of_case(case, said(rule, verdict, value, "rows", f"rows 5, 6 {ATTACK}"), "2.13.0")
                yield replace(row, reach=DEFAULT if rule in broken else None)


def write_lines(path: Path, rows: Iterable[object]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
