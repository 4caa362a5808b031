"""Causes of the changes between two runs: which changes are one fault, and which follow from it.

A fault is what a row has observed: the rule, the call, the shape, the type of an exception. Rows with one
fault are one finding, in however many cases, revisions and arms: what changed between two runs is as a rule
one thing below them (torch, a decoder, a class), and the finding names the revisions. Two faults are two
findings, unless the second was never seen without the first and can follow from it (`explains`). For
everything else (a rule that is no longer put to the test, a distance, a number of graphs) it counts whether a
rule broke in the same case: then it is a consequence, else a finding of its own. Rules that are no longer put
to the test in the very same cases are one finding. Other guards and kernels follow from a fault or another
number of graphs in the case; where there is neither, the same difference is one finding.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple

from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, UNEXPECTED, FaultKind, Row, Verdict
from deepstack_harness.runs.compare import GUARDS, KERNELS, Change, ChangeKind, RuleState
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.store import StoredRun
from deepstack_harness.text import one_line, shortened

_OF_DECODERS = frozenset({Rule.OUTPUT, Rule.SHARDING, Rule.WORK, Rule.GRAPHS, Rule.MEMORY})
"""Rules of what runs after the buffer: a fault of the buffer shows there too, never the other way round."""
_FORMS = frozenset({FaultKind.NONE, FaultKind.LEVELS, FaultKind.ONE_TENSOR})
_CALLS = frozenset({FaultKind.RAISED, FaultKind.ACCEPTED, FaultKind.CAPACITY})
_STORAGE = frozenset(
    {FaultKind.MOVED, FaultKind.GENERATION, FaultKind.ALLOCATED, FaultKind.DETACHED, FaultKind.FREED}
)
_LAYOUT = frozenset({
    FaultKind.DTYPE, FaultKind.DEVICE, FaultKind.CONTAINER, FaultKind.TENSOR_TYPE, FaultKind.STRIDES,
    FaultKind.GRADIENT,
})  # fmt: skip
_ROWS = frozenset({
    FaultKind.ZEROS, FaultKind.NEVER_SET, FaultKind.LIVE, FaultKind.REPLACED, FaultKind.CLEARED,
    FaultKind.REJECTED,
    FaultKind.OTHER_BUFFER, FaultKind.CALLER, FaultKind.MISSING, FaultKind.SURPLUS, FaultKind.WIDTH,
})  # fmt: skip
_FOLLOW: tuple[tuple[frozenset[FaultKind], frozenset[FaultKind]], ...] = (
    (_FORMS, _ROWS | _CALLS | _STORAGE),  # where get returned None no row is examined
    (_CALLS, _FORMS | _ROWS | _CALLS | _STORAGE),  # a call that raised has not done its work
    (_STORAGE, _ROWS),  # a graph reads the storage that it was captured on
    (_LAYOUT | {FaultKind.WIDTH}, frozenset({FaultKind.ALLOCATED})),  # such tensors are made anew
    (frozenset({FaultKind.CALLER}), _STORAGE),  # the tensor of a caller is another storage
)
"""Shapes that may follow from others; of all that are not here nothing follows in the buffer."""
_LAST_STEP = 2**31
"""Sorts after the number of every step: a trace has 100,000 at most."""


class ObservedFault(NamedTuple):
    """What was observed where a rule broke; `call` is empty for rules of the decoder and in old rows.

    The part of a row by which rows of many cases are one fault: a key, never shown as a row.
    """

    rule: Rule
    call: str
    shape: str
    exception: str

    @property
    def words(self) -> str:
        """Rule, observation and call: `R1 structure: none in get`."""
        what = " ".join(filter(None, [self.shape or "broken", self.exception]))
        return f"{self.rule} {self.rule.word}: {what}" + (f" in {self.call}" if self.call else "")

    @property
    def is_of_decoder(self) -> bool:
        """Return whether it was seen after the buffer; R11 judges the layout of what get returns too."""
        return self.rule in _OF_DECODERS and self.shape not in _LAYOUT

    def explains(self, other: "ObservedFault") -> bool:
        """Return whether the other fault can follow from this one."""
        if other.is_of_decoder:
            return not self.is_of_decoder or (self.rule is Rule.OUTPUT and self.shape == FaultKind.RAISED)
        if self.is_of_decoder:
            return False
        return any(self.shape in causes and other.shape in effects for causes, effects in _FOLLOW)


@dataclass(frozen=True)
class ChangeCause:
    """Changes with one cause, and the changes that follow from them.

    `title` names the cause. `shortest` is the case with the shortest trace, `detail` what was seen there;
    None and empty where the changes are of cases that only one of the runs has.
    """

    kind: ChangeKind
    title: str
    changes: tuple[Change, ...]
    consequences: tuple[Change, ...]
    cases: tuple[CaseRecord, ...]
    shortest: CaseRecord | None
    detail: str

    @property
    def subjects(self) -> Mapping[str, int]:
        """Revisions and classes, each with its number of cases."""
        return Counter(case.subject for case in self.cases)

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms in which it was seen, in order."""
        return tuple(dict.fromkeys(sorted(case.arm for case in self.cases)))

    @property
    def marked(self) -> Iterator[Change]:
        """The changes, then the consequences, each with the cause."""
        for change in self.changes:
            yield replace(change, cause=self.title)
        for change in self.consequences:
            yield replace(change, cause=self.title, consequence=True)

    def counted(self) -> Mapping[ChangeKind, Mapping[str, int]]:
        """Count the consequences by kind, and by what changed."""
        counts: dict[ChangeKind, Counter[str]] = defaultdict(Counter)
        for change in self.consequences:
            counts[change.kind][change.metric.removeprefix("verdict ")] += 1
        return {kind: counts[kind] for kind in ChangeKind if kind in counts}


class _Node(NamedTuple):
    """A fault that came (a regression) or went (an improvement), of one subject."""

    kind: ChangeKind
    fault: ObservedFault
    subject: str


def findings(changes: Iterable[Change], old: StoredRun, new: StoredRun) -> list[ChangeCause]:
    """Return the causes of the changes from `old` to `new`: regressions first, then the most cases first."""
    sorter = _Sorter(list(changes), old, new)
    by_title: dict[tuple[ChangeKind, str], tuple[list[Change], list[Change]]] = {}
    for change, (kind, title, consequence) in sorter.sorted():
        by_title.setdefault((kind, title), ([], []))[consequence].append(change)
    causes = [sorter.finding(*key, *changes) for key, changes in by_title.items()]
    kinds = list(ChangeKind)
    return sorted(causes, key=lambda cause: (kinds.index(cause.kind), -len(cause.changes), cause.title))


class _Sorter:
    """Both runs by case and rule, and the faults that differ."""

    def __init__(self, changes: Sequence[Change], old: StoredRun, new: StoredRun) -> None:
        self._records = {case.case: case for run in (old, new) for case in run.cases}
        self._old = {(row.case, row.rule): row for row in old.rows}
        self._new = {(row.case, row.rule): row for row in new.rows}
        self._by_case: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            self._by_case[change.case].append(change)
        self._nodes: dict[_Node, dict[str, int]] = defaultdict(dict)
        self._node_of: dict[Change, _Node] = {}
        for change in changes:
            row = self._row(change, change.kind)
            came_or_went = change.kind in (ChangeKind.REGRESSION, ChangeKind.IMPROVEMENT)
            if came_or_went and row is not None and row.verdict in BROKEN:
                node = _Node(change.kind, fault_of(row), self._records[change.case].subject)
                self._nodes[node][change.case] = row.step or _LAST_STEP
                self._node_of[change] = node
        self._heads = self._heads_of_nodes()

    def sorted(self) -> Iterator[tuple[Change, tuple[ChangeKind, str, bool]]]:
        """Iterate over the changes with the kind and title of the finding, and whether it follows from it."""
        unexplained: dict[str, list[Change]] = defaultdict(list)
        for case, group in self._by_case.items():
            worse = self._first(case, group, ChangeKind.REGRESSION)
            better = self._first(case, group, ChangeKind.IMPROVEMENT)
            lost = self._lost(case, group)
            graphs = next((change for change in group if change.metric == "graphs"), None)
            behind = None
            if fault := worse or better:
                behind = fault.kind, _title(fault)
            elif graphs is not None:
                behind = self._place(graphs, worse, better, lost)[:2]
            guards = _title_of_guards(group)
            for change in group:
                if change.kind is ChangeKind.BEHAVIOUR:
                    title = guards if change.metric.startswith(f"{GUARDS} ") else _title_of_kernels(change)
                    yield change, (*behind, True) if behind else (change.kind, title, False)
                    continue
                kind, title, consequence = self._place(change, worse, better, lost)
                if not consequence and change.kind is ChangeKind.MISSING and change.metric != "case":
                    unexplained[change.metric].append(change)
                else:
                    yield change, (kind, title, consequence)
        same_cases: dict[frozenset[str], list[Change]] = defaultdict(list)
        for lost_changes in unexplained.values():
            same_cases[frozenset(change.case for change in lost_changes)] += lost_changes
        for together in same_cases.values():
            rules = sorted({_rule_of(change) for change in together}, key=list(Rule).index)
            for change in together:
                title = f"{names_of(rules)}: no longer put to the test"
                yield change, (ChangeKind.MISSING, title, _rule_of(change) is not rules[0])

    def finding(
        self, kind: ChangeKind, title: str, own: Sequence[Change], consequences: Sequence[Change]
    ) -> ChangeCause:
        """Return a finding with its shortest case."""
        shown = own or consequences
        records = {
            change.case: self._records[change.case] for change in shown if change.case in self._records
        }
        shortest = min(records.values(), key=lambda case: (len(case.trace), case.case), default=None)
        change = next((item for item in shown if shortest and item.case == shortest.case), None)
        row = self._row(change, kind) if change else None
        return ChangeCause(
            kind, title, tuple(own), tuple(consequences), tuple(records.values()), shortest,
            row.detail if row else "",
        )  # fmt: skip

    def _place(
        self, change: Change, worse: _Node | None, better: _Node | None, lost: str
    ) -> tuple[ChangeKind, str, bool]:
        node = self._node_of.get(change)
        if node is not None:
            head = self._heads[node]
            return head.kind, _title(head), head != node
        if worse is not None:
            return worse.kind, _title(worse), True
        if lost:
            return ChangeKind.REGRESSION, lost, change.after != RuleState.UNJUDGED
        if better is not None and change.kind in (ChangeKind.IMPROVEMENT, ChangeKind.NEW):
            return better.kind, _title(better), True
        return change.kind, _title_of_measure(change), False

    def _row(self, change: Change, kind: ChangeKind) -> Row | None:
        """Return the row that shows a change: of what became better the row of before."""
        if not change.metric.startswith("verdict "):
            return None
        rows = self._old if kind is ChangeKind.IMPROVEMENT else self._new
        return rows.get((change.case, _rule_of(change)))

    def _first(self, case: str, group: Iterable[Change], kind: ChangeKind) -> _Node | None:
        """Return the cause of the first fault of a kind in a case."""
        nodes = [node for change in group if (node := self._node_of.get(change)) and node.kind is kind]
        nodes.sort(key=lambda node: (node.fault.is_of_decoder, self._nodes[node][case], _order(node)))
        return self._heads[nodes[0]] if nodes else None

    def _lost(self, case: str, group: Iterable[Change]) -> str:
        """Return how a case ended that could be judged before and cannot be now; empty for any other."""
        unjudged = [change for change in group if change.after == RuleState.UNJUDGED]
        if not unjudged:
            return ""
        row = self._row(unjudged[0], ChangeKind.REGRESSION)
        return why_not_judged(row, self._records[case])

    def _heads_of_nodes(self) -> dict[_Node, _Node]:
        """Return the cause of each fault: itself, or a fault that it was never seen without."""
        # A fault that shows in more cases explains one that shows in fewer, never the other way round.
        ranked = sorted(self._nodes, key=lambda node: (-len(self._nodes[node]), _order(node)))
        heads: dict[_Node, _Node] = {}
        for number, effect in enumerate(ranked):
            causes = (node for node in ranked[:number] if heads[node] == node)
            heads[effect] = next((node for node in causes if self._follows(effect, node)), effect)
        # What became better where a rule broke is not seen any more; that is no improvement.
        for effect in ranked:
            if effect.kind is ChangeKind.IMPROVEMENT and heads[effect] == effect:
                heads[effect] = next(
                    (
                        heads[node]
                        for node in ranked
                        if node.kind is ChangeKind.REGRESSION
                        and node.subject == effect.subject
                        and self._nodes[effect].keys() <= self._nodes[node].keys()
                    ),
                    effect,
                )
        return heads

    def _follows(self, effect: _Node, cause: _Node) -> bool:
        """Return whether `effect` was never seen without `cause`, and can follow from it."""
        if (effect.kind, effect.subject) != (cause.kind, cause.subject):
            return False
        # The same observation, of whatever rule: that depends on P.
        if cause.fault[1:] == effect.fault[1:]:
            rows = self._new if effect.kind is ChangeKind.REGRESSION else self._old
            rows_of_cause = (rows.get((case, cause.fault.rule)) for case in self._nodes[effect])
            return not any(row and row.verdict in KEPT for row in rows_of_cause)
        steps = self._nodes[cause]
        return cause.fault.explains(effect.fault) and all(
            case in steps and (steps[case] <= step or _LAST_STEP in (steps[case], step))
            for case, step in self._nodes[effect].items()
        )


def why_not_judged(row: Row | None, case: CaseRecord) -> str:
    """Return `not judged:` and how the case ended; of one that was played, why it was not measured.

    The reason is cut before its figures, which differ from case to case.
    """
    named = f" ({row.exception})" if row and row.exception else ""
    if case.ending.is_whole and row and row.detail:
        reason = _STEP.sub("", row.detail)
        return f"not judged: {shortened(one_line(reason).partition(': ')[0], 200)}{named}"
    return f"not judged: {case.ending}{named}"


_STEP = re.compile(r"step \d+ '[^']*': ")


def unexpected_causes(rows: Iterable[Row], cases: Iterable[CaseRecord]) -> Counter[str]:
    """Count the unexpected rows of a run by what was observed, in the words of a comparison."""
    records = {case.case: case for case in cases}
    return Counter(
        why_not_judged(row, records[row.case])
        if row.verdict is Verdict.ERROR
        else fault_of(row).words
        if row.verdict is Verdict.FAIL
        else f"{row.rule} {row.rule.word}: {row.verdict}"
        for row in rows
        if row.verdict in UNEXPECTED
    )


def fault_of(row: Row) -> ObservedFault:
    """Return the fault that a row of a broken rule has observed."""
    call = "" if row.rule in _OF_DECODERS else row.call or ""
    return ObservedFault(row.rule, call, row.shape or "", row.exception or "")


def _rule_of(change: Change) -> Rule:
    return Rule(change.metric.removeprefix("verdict "))


def _order(node: _Node) -> tuple[int, str]:
    # Rows that a graph reads wrongly follow from storage that moved.
    order = [Rule.ADDRESS, *Rule]
    return order.index(node.fault.rule), node.fault.words


def _title(node: _Node) -> str:
    if node.kind is ChangeKind.IMPROVEMENT:
        return f"kept now, {node.fault.words} before"
    return node.fault.words


_ALIKE = 0.6
"""Share of two kernels' names from which on one is the other in another shape (`difflib`).

It groups changes for reading; each of them is shown, in one group or another."""


def _title_of_guards(group: Iterable[Change]) -> str:
    """Return of which types a case has more and fewer dropped guards; all of them are one difference."""
    more: list[str] = []
    fewer: list[str] = []
    for change in group:
        name, _, kind = change.metric.partition(" ")
        if name == GUARDS:
            (more if int(change.after) > int(change.before) else fewer).append(kind)
    parts = [f"{word} {', '.join(kinds)}" for word, kinds in (("more", more), ("fewer", fewer)) if kinds]
    return f"dropped guards: {'; '.join(parts)}"


def _title_of_kernels(change: Change) -> str:
    """Return which kernels went and came; of one that has another name, what its name gained and lost.

    A generated kernel is named for the operations in it. How often each runs is left out, so that the same
    difference in a graph with twice the layers is the same finding.
    """
    went, came = (
        [name.partition(" x")[0] for name in text.split(", ")] for text in (change.before, change.after)
    )
    parts = []
    for name in went:
        others = get_close_matches(name, came, n=1, cutoff=_ALIKE)
        parts.append(_renamed(name, others[0]) if others else f"{name} gone")
        came = [other for other in came if other not in others]
    parts += [f"{name} new" for name in came]
    parts = [part for part in dict.fromkeys(parts) if not part.startswith("none ")]
    return f"{KERNELS}: {'; '.join(parts)}"


def _renamed(before: str, after: str) -> str:
    """Return `cpp .. with view without reciprocal` of two names of a kernel."""
    was, now = before.split("_"), after.split("_")
    words = [
        f"{word} {' '.join(dict.fromkeys(name for name in names if name not in others))}"
        for word, names, others in (("with", now, was), ("without", was, now))
        if any(name not in others for name in names)
    ]
    return f"{before.partition('_')[0]} .. {' '.join(words)}" if words else f"{before} in another order"


def _title_of_measure(change: Change) -> str:
    """Return the title of changes that no broken rule explains."""
    if change.metric == "case":
        return "cases that are gone" if change.kind is ChangeKind.MISSING else "cases that are new"
    name, _, rule = change.metric.partition(" ")
    if rule:
        word = f"{rule} {Rule(rule).word}"
        return f"{word}: put to the test now" if change.kind is ChangeKind.NEW else f"{word}: {change.after}"
    more = "grew" if change.kind is ChangeKind.REGRESSION else "shrank"
    return f"{name} {more}"
