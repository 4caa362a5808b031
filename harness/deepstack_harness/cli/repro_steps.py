"""`repro` of an incident of steps: wrong and right programs, compiled and not, judged by promises."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from deepstack_harness.catalogue.incidents import Incident, RegionRun
from deepstack_harness.cli.arguments import options_in_use
from deepstack_harness.cli.repro_engine import write_files
from deepstack_harness.cli.repro_table import show_incident
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.blocks import (
    BLANK,
    Column,
    Document,
    Heading,
    Line,
    TextTable,
    outcome,
    table_line,
)
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import number, plural

_NOT_FOR_STEPS = MappingProxyType(
    {
        "full": False, "bisect": False, "dtype": "float32", "device": "cpu",
        **dict.fromkeys(("source", "package", "trace", "workload", "family", "upstream_test")),
    }
)  # fmt: skip
"""Options about a decoder, a source or its releases, and what they are where nobody gave them."""


@dataclass(frozen=True)
class JudgedProgram:
    """A program under one arm, and the promises that it must break there."""

    name: str
    arm: str
    judged: JudgedSteps
    run: RegionRun

    @property
    def rows(self) -> list[Row[Promise]]:
        """All rows under the arm, and those of the uncompiled code where that was chosen."""
        return [row for row in self.judged.rows if row.arm in (self.arm, ArmSpec().name)]

    @property
    def broken(self) -> list[Row[Promise]]:
        """The broken ones, those of the arm itself first."""
        broken = [row for row in self.rows if row.verdict is Verdict.FAIL]
        return sorted(broken, key=lambda row: row.arm != self.arm)

    @property
    def promises(self) -> frozenset[Promise]:
        """The promises that are broken."""
        return frozenset(row.rule for row in self.broken)

    @property
    def must_break(self) -> frozenset[Promise]:
        """The promises that the catalogue has as broken."""
        return frozenset(self.run.broken.get(self.name, ()))

    @property
    def as_expected(self) -> bool:
        """Return whether just these are broken, the input is named, and a right program was tested."""
        if self.judged.unjudged or self.promises != self.must_break:
            return False
        if not self.must_break:
            return any(row.verdict is Verdict.PASS for row in self.rows)
        return any(self.run.input in row.detail for row in self.broken)

    @property
    def distance(self) -> str:
        """How far the outputs, or what is left in memory, are from the uncompiled code."""
        values = [row.value for row in self.broken if row.value is not None]
        if not values:
            return "other" if self.broken else "0"
        return number(max(values), 2)


def judge_programs(incident: Incident, wanted_arm: str | None = None) -> Iterator[JudgedProgram]:
    """Run each program of an incident under its arms, or only under one.

    Raises `UsageError` for an arm that the incident does not have.
    """
    from deepstack_harness.play.steps_work import measure_incident

    arms = list(dict.fromkeys(arm for run in incident.region for arm in run.arms))
    if wanted_arm is not None and ArmSpec.parse(wanted_arm).name not in arms:
        raise UsageError(f"incident {incident.id} has no arm '{wanted_arm}'; it has {', '.join(arms)}")
    for run in incident.region:
        for arm in run.arms:
            if wanted_arm is None or arm == ArmSpec.parse(wanted_arm).name:
                for name in run.programs or incident.revisions:
                    yield JudgedProgram(name, arm, judge_steps(measure_incident(name, [arm])), run)


def reproduce_steps(incident: Incident, args: Namespace) -> Document[ExitCode]:
    """Exit 0: every wrong program breaks its promises and no right one does; 1: not so."""
    if options := options_in_use(args, _NOT_FOR_STEPS):
        raise UsageError(
            f"incident {incident.id} is shown by small programs, which play no trace and are in no source: "
            f"leave {options} out"
        )
    if args.script or args.pytest:
        return (yield from write_files(incident, "", args))
    import torch

    torch.set_num_threads(1)
    yield from show_incident(incident)
    arms = [arm for run in incident.region for arm in run.arms]
    columns = [
        Column("program", max(map(len, (*incident.revisions, "program")))),
        Column("arm", max(map(len, arms))), Column("to uncompiled", 13, right=True),
        Column("promises broken"),
    ]  # fmt: skip
    programs: list[JudgedProgram] = []
    for program in judge_programs(incident, args.arm):
        if not programs or program.run is not programs[-1].run:
            yield BLANK
            if program.run.note:
                yield Line(program.run.note)
            yield TextTable(columns)
        diagnosed = {earlier.name for earlier in programs if earlier.broken}
        yield from _show_program(program, columns, incident, why=program.name not in diagnosed)
        programs.append(program)
    return (yield from _sum_up(incident, programs))


def _show_program(
    program: JudgedProgram, columns: Sequence[Column], incident: Incident, *, why: bool
) -> Document:
    """Print a row, and below it, with `why`, why the promise is broken."""
    style = Verdict.FAIL.style if program.broken else ""
    words = " ".join(sorted(program.promises)) or "none"
    words += ", not judged" if program.judged.unjudged else ""
    yield table_line(columns, [program.name, program.arm, program.distance, words], style)
    for row in program.rows:
        yield replace(row, incident=incident.id, trace="its steps")
    if program.broken and why:
        first = program.broken[0]
        yield Heading(f"  {first.rule} {first.rule.word}:")
        for sentence in program.judged.sentences(first):
            yield Line(sentence, lead="    ")


def _sum_up(incident: Incident, programs: Sequence[JudgedProgram]) -> Document[ExitCode]:
    """Print whether all is as the catalogue has it, and what is not."""
    wrong = [program for program in programs if not program.as_expected]
    yield BLANK
    for program in wrong:
        why = "; ".join([*program.judged.unjudged, *(row.detail for row in program.broken)])
        wanted = " ".join(sorted(program.must_break)) or "nothing"
        yield Line(
            f"not as expected: {program.name} under {program.arm} was to break {wanted}"
            + (f" and to name {program.run.input}" if program.must_break and program.run.input else "")
            + f": {why or 'nothing is broken'}"
        )
    if wrong:
        yield outcome(f"not as the catalogue expects: {plural(len(wrong), 'case')}", good=False)
        return ExitCode.BROKEN
    yield outcome(f"shown: {_in_words(incident, programs)}", good=True)
    return ExitCode.HOLDS


def _in_words(incident: Incident, programs: Sequence[JudgedProgram]) -> str:
    promises = sorted({promise for program in programs for promise in program.promises})
    faulty = [
        name
        for name in incident.faulty
        if any(program.name == name and program.broken for program in programs)
    ]
    kept = [name for name in incident.fixed if any(program.name == name for program in programs)]
    if not faulty:
        return f"no promise is broken by {', '.join(dict.fromkeys(program.name for program in programs))}"
    noun = "promise" if len(promises) == 1 else "promises"
    words = f"{noun} {' and '.join(promises)} broken by {', '.join(faulty)}"
    return f"{words}, kept by {', '.join(kept)}" if kept else words
