"""Audit one source: judge its classes and the systems beside them, and account for what was not judged.

A finding has a place, the file inside the package and the lines of the method that the rule is
about.  A gate says which findings turn the exit code of `audit` to 1.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from deepstack_harness.audit.account import Account, UnjudgedCarrier, account_of
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class, known_rules_of
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker, unjudged
from deepstack_harness.audit.systems import SourceSystems, judge_systems
from deepstack_harness.catalogue.orders import DEFAULT, FLAG, UNKNOWN
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, UNEXPECTED, Row, Verdict
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.syntax import parse
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.sources.folder import revision_of
from deepstack_harness.sources.request import names_source
from deepstack_harness.sources.source import Source, inside_package
from deepstack_harness.text import plural

_VERBS = {Rule.R3: "set", Rule.R4: "set", Rule.R5: "clear"}
"""Calls that break a rule, by the method that does them; all other rules are about the answers of get."""
_Statement = ast.ClassDef | ast.FunctionDef
"""A class, or a function that splits a payload over ranks."""
_FORWARD_FIRST = ("forward", "embed_input_ids")
_EMBED_FIRST = ("embed_input_ids", "forward")
"""Methods of a class that the engine calls: one sets a payload, the other one gets and clears it."""


def located(verdicts: ClassVerdicts, source: Source, audited: AuditedClass) -> ClassVerdicts:
    """Return the verdicts with `MEMBER:FIRST-LAST` in the rows of broken rules.

    The lines are those of the class's own method that the rule is about, or of its `forward` where its
    methods keep the rule; where it inherits that method they are those of the class.
    """
    statement = _statement(source, audited)

    def placed(row: Row) -> Row:
        in_forward = (row.regime, row.rule) in verdicts.in_forward
        return _with_place(row, audited, statement, in_forward=in_forward)

    rows = (placed(row) if row.verdict in BROKEN else row for row in verdicts.rows)
    return replace(verdicts, rows=tuple(rows))


def _with_place(row: Row, audited: AuditedClass, statement: _Statement | None, *, in_forward: bool) -> Row:
    if row.regime is Regime.CAPTURED and audited.replayed_at:
        return replace(row, where=audited.replayed_at)
    if row.rule is Rule.R9 and audited.patched_at:
        return replace(row, where=audited.patched_at)
    return _with_method_lines(row, audited.cut.member, statement, in_forward=in_forward)


def class_at(source: Source, audited: AuditedClass) -> str:
    """Return `MEMBER:LINE` of a class."""
    statement = _statement(source, audited)
    return f"{audited.cut.member}:{statement.lineno}" if statement else audited.cut.member


def _statement(source: Source, audited: AuditedClass) -> _Statement | None:
    statements = parse(source.read(audited.cut.member)).body
    classes = (node for node in statements if isinstance(node, _Statement))
    return next((node for node in classes if node.name == audited.cut.class_name), None)


def _with_method_lines(row: Row, member: str, statement: _Statement | None, *, in_forward: bool) -> Row:
    if statement is None:
        return replace(row, where=member)
    verb = _VERBS.get(row.rule, "get")
    methods = [node for node in statement.body if isinstance(node, ast.FunctionDef)]
    own = (node for node in methods if "deepstack" in node.name and verb in node.name.split("_"))
    named = {node.name: node for node in methods}
    whole = (named[name] for name in (_EMBED_FIRST if verb == "set" else _FORWARD_FIRST) if name in named)
    lines = (None if in_forward else next(own, None)) or next(whole, None) or statement
    return replace(row, where=f"{member}:{lines.lineno}-{lines.end_lineno}")


GRAPHS = "graphs"
"""The name under which the graphs of an engine's own runner are reported."""


@dataclass(frozen=True)
class AuditedSource:
    """The judged classes and systems of one source, and the account of what carries a payload in it.

    `references` are the issues that known failures wait for, by class or subject and rule.  `live_alone`
    has the reasons why graphs of an engine could not be driven.  `places` has `MEMBER:LINE` of everything
    that could be driven: classes, subjects of the systems beside them, and `GRAPHS` of the engine's runner.
    """

    label: str
    package: str
    classes: tuple[ClassVerdicts, ...]
    systems: SourceSystems
    account: Account = field(default_factory=Account)
    references: Mapping[tuple[str, Rule], str] = field(default_factory=dict)
    live_alone: tuple[Reason, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def subjects(self) -> tuple[ClassVerdicts, ...]:
        """The classes, then the subjects of the systems beside them."""
        return (*self.classes, *self.systems.subjects)


def audit_source(
    text: str, say: Callable[[str], None], *, may_lack_classes: bool = False, known_as: str = ""
) -> AuditedSource:
    """Judge everything in the source that `text` names; `say` is called with each step of the work.

    Steps call the source `known_as`, or else by its label: the files of a commit lie in a temporary folder.

    Raises `UsageError` for what is no source or has nothing that carries a payload, unless it may lack that,
    and `MachineError` where a file cannot be fetched.
    """
    with SourceWorker(text) as worker:
        source, label = worker.source, worker.source.label
        name = known_as or label
        say(f"looking for classes in {name}")
        classes = worker.classes()
        say(f"looking through all files of {name}")
        account = account_of(source, classes)
        # The files of a plugin alone are no reason to judge it over a base that has none of its classes.
        carries = bool(classes) or (bool(account.unjudged) and engine_of(source).overlay is None)
        if not (carries or may_lack_classes):
            raise _without_classes(source)
        drivable = [audited for audited in classes if audited.can_be_judged]
        verdicts = []
        for number, audited in enumerate(drivable, 1):
            say(f"judging {audited.model_class} of {name} ({number} of {plural(len(drivable), 'class')})")
            verdicts.append(located(judge_class(audited, worker), source, audited))
        say(f"judging placeholder ranges and dual streams of {name}")
        systems = _with_system_places(judge_systems(worker), engine_of(source).package.module)
        why = worker.failed_control()
    if why is not None:
        verdicts = [unjudged(of_class, why) for of_class in verdicts]
        systems = systems.unjudged(why)
    reasons = (audited.ways.not_driven for audited in drivable)
    references = dict(_references(source, (*verdicts, *systems.subjects)))
    return AuditedSource(
        label,
        source.package,
        tuple(verdicts),
        systems,
        account,
        references,
        tuple(dict.fromkeys(reason for reason in reasons if reason is not None)),
        _places(source, drivable, systems),
    )


def _references(source: Source, subjects: Iterable[ClassVerdicts]) -> Iterator[tuple[tuple[str, Rule], str]]:
    """Yield (subject, rule) and the issue of its known failure; without a version, of those seen alone."""
    for subject in subjects:
        known = known_rules_of(source, subject.model_class)
        rows = (row for row in subject.rows if row.verdict is Verdict.XFAIL)
        own = ((row.rule, known.reference_of(row.rule, row.regime, row.shape, row.trace)) for row in rows)
        for rule, reference in own if known.of_any_release else known.items():
            if reference is not None:
                yield (subject.model_class, rule), reference


def _without_classes(source: Source) -> UsageError:
    engine = engine_of(source)
    title, since = engine.package.title, engine.since
    return UsageError(
        f"{source.label} has no class with a deepstack buffer; {title} has had one since {since}"
    )


def _places(source: Source, classes: Sequence[AuditedClass], systems: SourceSystems) -> dict[str, str]:
    places = {audited.model_class: class_at(source, audited) for audited in classes if audited.ended is None}
    for audited in classes:
        if audited.replayed_at:
            places[f"{GRAPHS} of {audited.model_class}"] = audited.replayed_at
    return places | {subject.subject: subject.where or source.label for subject in systems.judged}


@contextmanager
def base_of(text: str, sources: list[str]) -> Iterator[str]:
    """Yield the source that `--base` names: a source, or the files of a commit of the only source.

    Raises `UsageError` for a commit of what is no git repository.
    """
    if names_source(text):
        yield text
        return
    if len(sources) != 1:
        raise UsageError(f"'{text}' would be a commit of one --source, and there are {len(sources)}")
    root = Path(sources[0]).expanduser()
    if not root.is_dir():
        raise UsageError(f"'{text}' is no source, and '{sources[0]}' is no repository that could have it")
    with revision_of(root, text) as folder:
        yield str(folder)


def _with_system_places(systems: SourceSystems, module: str) -> SourceSystems:
    """Return the systems with the place of each subject in its rows."""
    subjects = []
    for subject in systems.judged:
        where = inside_package(subject.where, module) or None
        subjects.append(replace(subject, rows=tuple(replace(row, where=where) for row in subject.rows)))
    return replace(systems, judged=tuple(subjects))


FindingKey = tuple[str, str, str, str]
"""Class, rule, regime and unit of the figure: what makes two findings of two versions the same fault."""


class Gate(StrEnum):
    """Findings that fail an audit.

    ANY: all.  NEW: those that no catalogue knows.  FLAG: those that default settings or a flag lead to.
    DEFAULT: those that default settings lead to.  A fault of unknown reach counts in both, since nobody has
    read the orders of that engine.  Known failures that are mended, or were not put to the test, count in
    ANY and FLAG.
    """

    ANY = "any"
    NEW = "new"
    FLAG = "flag"
    DEFAULT = "default"


@dataclass(frozen=True)
class GateResult:
    """Findings that fail an audit.

    Rules and carriers that were not judged, and entries of known carriers that are outdated, fail every
    audit.
    """

    gate: Gate
    failing: tuple[Row, ...]
    unjudged: tuple[Row, ...]
    carriers: tuple[UnjudgedCarrier, ...] = ()
    outdated: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if nothing fails."""
        return not (self.failing or self.unjudged or self.carriers or self.outdated)


def judge_gate(
    classes: Iterable[ClassVerdicts],
    gate: Gate,
    base: Collection[FindingKey] | None = None,
    accounts: Sequence[Account] = (),
) -> GateResult:
    """Return what fails: the findings that `gate` lets count, of those that `base` does not have."""
    rows = [row for verdicts in classes for row in verdicts.rows]
    failing = [row for row in rows if _counts(row, gate, compared=base is not None)]
    if base is not None:
        failing = [row for row in failing if key_of(row) not in base]
    return GateResult(
        gate,
        tuple(failing),
        tuple(row for row in rows if row.verdict is Verdict.ERROR),
        tuple(carrier for account in accounts for carrier in account.failing),
        tuple(name for account in accounts for name in account.outdated),
    )


def keys_of(classes: Sequence[ClassVerdicts]) -> frozenset[FindingKey]:
    """Return the findings of a base, known ones included."""
    return frozenset(key_of(row) for verdicts in classes for row in verdicts.rows if row.verdict in BROKEN)


def key_of(row: Row) -> FindingKey:
    """Return what stays the same of a finding from version to version."""
    return row.model_class or row.revision, row.rule, row.regime, row.shape or ""


def _counts(row: Row, gate: Gate, *, compared: bool) -> bool:
    if row.verdict is Verdict.ERROR:
        return False
    if row.verdict not in BROKEN:
        # A mended fault is no fault that a change adds.
        return gate in (Gate.ANY, Gate.FLAG) and row.verdict in UNEXPECTED and not compared
    reach = row.reach or UNKNOWN
    match gate:
        case Gate.ANY:
            return True
        case Gate.NEW:
            return row.verdict is Verdict.FAIL
        case Gate.FLAG:
            return reach in (DEFAULT, UNKNOWN) or reach.startswith(FLAG)
    return reach in (DEFAULT, UNKNOWN)
