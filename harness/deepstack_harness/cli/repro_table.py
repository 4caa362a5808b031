"""The tables of `repro`, row by row as cases finish, and the sentences under them.

`ReproTable` has the revisions and arms of an incident, `show_evaluation` the figures that an evaluation of a
workload would report.  `CaseClock` estimates the time that is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.arm import Backend
from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.facts import rows_in_words
from deepstack_harness.contract.observation import GraphFacts
from deepstack_harness.contract.oracles.outputs import Evaluation, case_distances, diagnose
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import Effect, Verdict
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
from deepstack_harness.text import number, plural

if TYPE_CHECKING:
    from deepstack_harness.contract.oracles.judge import JudgedCase


def access_lines(result: JudgedCase) -> Iterator[str]:
    """Yield a line for each step of an interpreted case whose output a payload moves."""
    for facts in result.observation.steps:
        if facts.accesses is not None and facts.distances is not None and facts.distances.effect > 0:
            touched, apart = facts.accesses, facts.distances
            levels = [access for access in touched.accesses if access.of_payload]
            spans = [span for access in levels for span in (*access.read, *access.written, *access.wild)]
            rows = f"payload {rows_in_words(spans)}" if spans else "no row of a payload"
            wild = sum(access.outside > 0 for access in touched.accesses)
            outside = f", {wild} accesses outside of their tensors" if wild else ""
            yield (
                f"{result.case.subject}, '{facts.step}': {touched.launches} launches touched {rows}{outside} "
                f"({touched.share:.0%} of the bytes measured); {apart.eager:.1e} from eager, which is "
                f"{apart.rounding:.1e} from fp64; effect {apart.effect:.1e}"
            )


_CASE_HEADINGS = (
    "revision",
    "arm",
    "to eager",
    "effect",
    "graphs",
    "recompiles",
    "broken",
)
_BACKENDS = {
    Backend.NONE: "not compiled",
    Backend.EAGER: "torch.compile, backend eager",
    Backend.AOT_EAGER: "torch.compile, backend aot_eager",
    Backend.INDUCTOR: "torch.compile, backend inductor",
    Backend.H200: "Triton source for an H200, interpreted: no races, PTX, layouts or graphs, torch's matrix "
    "products and attention",
}


def show_incident(incident: Incident) -> Document:
    """Print what is about to be shown, and where it was reported."""
    yield Heading(f"incident {incident.id} ({incident.name}): {incident.title}")
    references = ", ".join(incident.references)
    yield Line(f"references: {references}" if incident.reported else f"not reported; shown by {references}")
    yield Line(f"symptom: {incident.symptom}")


def show_titles(incident: Incident, families: Iterable[str]) -> Iterator[Document]:
    """Iterate over what is above the table of each family; the incident itself is above the first one."""
    for place, family in enumerate(families):
        yield _show_title(incident, family, first=place == 0)


def _show_title(incident: Incident, family: str, *, first: bool) -> Document:
    if first:
        yield from show_incident(incident)
    if len(incident.families) > 1:
        yield BLANK
        yield Heading(f"family {family}")


class ReproTable:
    """A table that grows with every judged case; `output` decides what is seen."""

    def __init__(self, incident: Incident, plan: Sequence[PlannedCase]) -> None:
        """Show nothing yet; `plan` is what the columns have to hold."""
        self._incident = incident
        self._block: tuple[Backend, str] | None = None
        self._undiagnosed: list[JudgedCase] = []
        self._diagnosed = False
        cases = [planned.case for planned in plan]
        names = [[case.buffer.name for case in cases], [case.arm.name for case in cases]]
        self._columns = [
            *(
                Column(head, max(map(len, (head, *shown))))
                for head, shown in zip(_CASE_HEADINGS, names, strict=False)
            ),
            *(Column(head, len(head), right=True) for head in _CASE_HEADINGS[2:-1]),
            Column(_CASE_HEADINGS[-1]),  # takes what is left
        ]

    @staticmethod
    def block_of(planned: PlannedCase) -> tuple[Backend, str]:
        """Return the text of a heading: cases of one backend and one trace are under one."""
        return planned.case.arm.backend, str(planned.case.trace)

    def add(self, result: JudgedCase) -> Document:
        """Print one row, with a heading where backend or trace change."""
        case, seen = result.case, result.observation
        if self.block_of(result.planned) != self._block:
            self._block = self.block_of(result.planned)
            yield BLANK
            yield Heading(f"{_BACKENDS[case.arm.backend]}, trace '{case.trace}'")
            if result.planned.note:
                yield Line(result.planned.note)
            yield TextTable(self._columns)
        distances = case_distances(case, seen)
        graphs = seen.graphs
        cells = [
            case.buffer.name,
            case.arm.name,
            number(distances.eager if distances else None, 2) or "-",
            number(distances.no_deepstack if distances else None, 2) or "-",
            "-" if graphs is None else str(graphs.graphs),
            "-" if graphs is None else str(graphs.recompiles),
            _rules(result),
        ]
        yield table_line(self._columns, cells, _style(result))
        self._undiagnosed.append(result)
        yield from result.rows()

    def cheapest(self, every: int, shown: Mapping[str, frozenset[Rule]]) -> Document:
        """Print which arms represent all `every` cases: `shown` has the rules that each showed before."""
        arms = "; ".join(f"{arm} shows {names_of(rules)}" for arm, rules in shown.items() if rules)
        if not arms:
            return
        text = f"the cheapest arms that show it by the catalogue, of {plural(every, 'case')}: {arms}"
        yield Line(f"{text}; the first that breaks a rule ends the step")

    def end_block(self) -> Document:
        """Print the cause of the first fault, once, under the rows that it explains."""
        causes: dict[str, set[str]] = {}
        for result in self._undiagnosed:
            if result.broken & set(self._incident.rules) and (
                sentence := diagnose(result.case, result.observation)
            ):
                causes.setdefault(sentence, set()).add(result.case.buffer.name)
        for result in self._undiagnosed:
            for line in access_lines(result):
                yield Line(line)
        self._undiagnosed.clear()
        for sentence, revisions in list(causes.items())[: 0 if self._diagnosed else 1]:
            self._diagnosed = True
            yield Heading(f"diagnosis ({', '.join(sorted(revisions))}): {sentence}.")

    def so_far(self, cases: Sequence[JudgedCase], seconds: float, source: str = "") -> Document:
        """Print what is known before Inductor starts, which takes longer than all before it.

        `source` is the label and class of one that is judged, empty where our revisions are played.
        """
        rules = _broken_by(cases) & set(self._incident.rules)
        if source:
            has = f"HAS incident {self._incident.id}, breaks {names_of(rules)}" if rules else "no fault seen"
            verdict = f"{source}: {has}"
        else:
            faulty = dict.fromkeys(result.case.subject for result in cases if result.broken & rules)
            verdict = f"{', '.join(faulty)} broke {names_of(rules)}"
        if rules or source:
            yield BLANK
            yield Heading(f"without Inductor: {verdict}; Inductor follows, about {seconds:.0f} s")

    def shown(self, cases: Sequence[JudgedCase]) -> Document:
        """Print the closing line when everything is as in the catalogue."""
        # A decoder that raised breaks R0 too.
        arms = dict.fromkeys(
            result.case.arm.name
            for result in cases
            for judgement in result.judgements
            if judgement.rule is Rule.OUTPUT and judgement.effect is Effect.OUTPUT
        )
        yield BLANK
        if arms:
            yield Line(f"wrong without an error under: {', '.join(arms)}")
        own = [result for result in cases if not result.planned.is_control]
        wanted, breakers = set(self._incident.rules), dict[frozenset[Rule], list[str]]()
        for revision in self._incident.faulty:
            if of_revision := [result for result in own if result.case.subject == revision]:
                breakers.setdefault(_broken_by(of_revision) & wanted, []).append(revision)
        parts = [
            f"{'rule' if len(rules) == 1 else 'rules'} {_and(rules)} broken by {', '.join(revisions)}"
            for rules, revisions in breakers.items()
            if rules
        ]
        silent = [revision for rules, revisions in breakers.items() if not rules for revision in revisions]
        played = {result.case.subject for result in own}
        fixed = ", ".join(revision for revision in self._incident.fixed if revision in played)
        parts += [f"kept by {fixed}"] if fixed else []
        words = ", ".join(parts)
        if silent:
            words += f"; no rule broken by {', '.join(silent)} here, as the catalogue has it"
        elif breakers and (rest := wanted - frozenset[Rule]().union(*breakers)):
            words += f"; {_and(rest)} not broken in these cases, as the catalogue has it"
        yield outcome(f"shown: {words.removeprefix('; ')}", good=True)

    def unexpected(self, cases: Sequence[JudgedCase]) -> Document:
        """Print the closing lines when a case is not as expected: what was expected, and what was seen."""
        yield BLANK
        for result in cases:
            case, unjudged = result.case, result.unjudged
            seen = names_of(result.broken) + (f", unjudged {names_of(unjudged)}" if unjudged else "")
            where = f"{case.buffer.name} under {case.arm.name} on '{case.trace}'"
            wanted = names_of(result.planned.must_break or ())
            yield Line(f"not as expected: {where} broke {seen}, expected {wanted}")
            for judgement in result.judgements:
                if judgement.rule in result.broken | unjudged:
                    yield Line(f"  {judgement.rule} {judgement.verdict}: {judgement.detail}")
        yield outcome(f"not as the catalogue expects: {plural(len(cases), 'case')}", good=False)

    def source_verdict(
        self, name: str, where: str, faulty: Sequence[JudgedCase], unjudged: Sequence[JudgedCase]
    ) -> Document:
        """Print whether a source (`name`: label and class) has the fault, and where (file:line)."""
        if unjudged:
            yield from self.unexpected(unjudged)
        elif not faulty:
            yield outcome(f"{name}: free of incident {self._incident.id}", good=True)
        else:
            rules = _broken_by(faulty) & set(self._incident.rules)
            yield BLANK
            yield Line(f"where: {where}")
            yield outcome(f"{name}: HAS incident {self._incident.id}, breaks {names_of(rules)}", good=False)


def _and(rules: Iterable[Rule]) -> str:
    return " and ".join(rule for rule in Rule if rule in set(rules))


def _broken_by(cases: Iterable[JudgedCase]) -> frozenset[Rule]:
    return frozenset[Rule]().union(*(result.broken for result in cases))


def _rules(result: JudgedCase) -> str:
    unjudged = f", not judged: {names_of(result.unjudged)}" if result.unjudged else ""
    raised = next((facts.raised for facts in result.observation.steps if facts.raised), None)
    why = f" ({raised.call} raised {raised.type})" if raised else ""
    return names_of(result.broken) + why + unjudged


def _style(result: JudgedCase) -> str:
    if result.unjudged:
        return Verdict.ERROR.style
    return Verdict.FAIL.style if result.broken else ""


_FIRST_S = {
    Backend.NONE: 0.5,
    Backend.EAGER: 1.5,
    Backend.AOT_EAGER: 3.0,
    Backend.INDUCTOR: 12.0,
    Backend.H200: 40.0,
}
"""Seconds of the first case of a backend in a process, imports included, on two idle cores."""
_NEXT_S = {
    Backend.NONE: 0.05,
    Backend.EAGER: 0.3,
    Backend.AOT_EAGER: 1.0,
    Backend.INDUCTOR: 4.0,
    Backend.H200: 20.0,
}
_RANKS_S = 6.0
"""Added for an arm with ranks: processes start and meet."""
_TRUSTED_S = 3.0
"""Weight of the estimate against what was measured: the first cases take less than their spread."""


class CaseClock:
    """Clock of cases that are played one after the other; reported, never a limit."""

    def __init__(self, cases: Sequence[Case]) -> None:
        """Estimate every case; nothing runs yet."""
        backends = [case.arm.backend for case in cases]
        self._expected = [
            (_FIRST_S if backend not in backends[:number] else _NEXT_S)[backend]
            + (_RANKS_S if cases[number].arm.ranks > 1 else 0)
            for number, backend in enumerate(backends)
        ]
        self._done = 0
        self._measured = 0.0
        self._began = 0.0

    def begin(self) -> str:
        """Start the next case; return its number, and the time that this and the following will take."""
        self._began = time.monotonic()
        return f"{self._done + 1} of {len(self._expected)}, about {self.seconds_left():.0f} s left"

    def end(self) -> None:
        """End the case that was begun last."""
        self._measured += time.monotonic() - self._began
        self._done += 1

    def seconds_left(self) -> float:
        """Return the estimate for what is not done, scaled by how this machine did so far."""
        done, left = sum(self._expected[: self._done]), sum(self._expected[self._done :])
        return left * (self._measured + _TRUSTED_S) / (done + _TRUSTED_S)


_EVALUATION_HEADINGS = (
    "revision",
    "arm",
    "greedy as eager",
    "runs",
    "token counts",
    "graphs",
    "died",
    "leaked rows",
)


def evaluation_columns(names: Sequence[tuple[str, str]]) -> list[Column]:
    """Return the columns for the revisions and arms that will come: these set the widths."""
    first, second, *figures = _EVALUATION_HEADINGS
    revisions, arms = zip(*names, strict=True)
    return [
        Column(first, max(map(len, (first, *revisions)))), Column(second, max(map(len, (second, *arms)))),
        *(Column(head, len(head), right=True) for head in figures),
    ]  # fmt: skip


def show_evaluation(
    columns: Sequence[Column], case: Case, graphs: GraphFacts | None, evaluation: Evaluation
) -> Document:
    """Print and record one row."""
    cells = [
        case.buffer.name,
        case.arm.name,
        "-" if evaluation.agreement is None else f"{evaluation.agreement:.4f}",
        str(evaluation.runs),
        str(evaluation.counts),
        "-" if graphs is None else str(graphs.graphs),
        str(evaluation.died),
        str(evaluation.leaked),
    ]
    bad = evaluation.agreement != 1 or evaluation.died or evaluation.leaked
    yield table_line(columns, cells, "red" if bad else "")
    yield {"revision": case.buffer.name, "arm": case.arm.name, "evaluation": evaluation}
