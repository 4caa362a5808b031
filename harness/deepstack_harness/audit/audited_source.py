"""Audit one source: judge its classes and the systems next to them, and account for what was not judged.

A finding has a place, the file inside the package and the lines of the method that the rule is
about.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from deepstack_harness.audit.account import Account, account_of
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class, known_rules_of
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker, failed_control, unjudged
from deepstack_harness.audit.systems import JudgedSubject, judge_systems
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, FaultKind, Row, Verdict
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.syntax import parse
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.sources.source import Source
from deepstack_harness.text import plural


@dataclass(frozen=True)
class AuditScope:
    """The part of a source that is judged: the `wanted` classes, by name and file.

    `unchanged` are classes by file and name that another version of the source has like this, so that they
    are not judged here.  `systems` are those that play no trace, and `account` is a look through the files
    `among` which other carriers may be, by default all.
    """

    wanted: Callable[[str, str], bool] = lambda *_: True
    unchanged: Collection[tuple[str, str]] = ()
    systems: bool = True
    account: bool = True
    among: Collection[str] | None = None


WHOLE = AuditScope()

_VERBS = {Rule.FRESHNESS: "set", Rule.CAPACITY: "set", Rule.CLEAR: "clear"}
"""The verb of the method that a rule is about; all other rules are about what get returns."""
_Statement = ast.ClassDef | ast.FunctionDef
"""A class, or a function that splits a payload over ranks."""
_FORWARD_FIRST = ("forward", "embed_input_ids")
_EMBED_FIRST = ("embed_input_ids", "forward")
"""Methods of a class that the engine calls: one sets a payload, the other one gets and clears it."""


def located(verdicts: ClassVerdicts, source: Source, audited: AuditedClass) -> ClassVerdicts:
    """Return the verdicts with `MEMBER:FIRST-LAST` in the rows of broken rules.

    The lines are those of the method that the rule is about, be it the class's own or inherited, or of its
    `forward` where its methods keep the rule; without such a method they are those of the class.
    """
    member, statement = audited.found.member, _statement(source, audited)
    own_methods = statement.body if isinstance(statement, ast.ClassDef) else ()
    methods = audited.ways.places or {
        node.name: f"{member}:{node.lineno}-{node.end_lineno}"
        for node in reversed(own_methods)  # of several with one name the first one counts
        if isinstance(node, ast.FunctionDef)
    }

    def placed(row: Row) -> Row:
        in_forward = (row.regime, row.rule) in verdicts.in_forward
        if row.regime is Regime.CAPTURED and audited.replayed_at:
            return replace(row, where=audited.replayed_at)
        if row.rule is Rule.SHARDING and audited.patched_at:
            return replace(row, where=audited.patched_at)
        if row.shape == FaultKind.NO_EFFECT:  # of the text model: MEMBER:LINE NAME
            return replace(row, where=audited.ways.compiled.partition(" ")[0])
        verb = _VERBS.get(row.rule, "get")
        own = [name for name in methods if "deepstack" in name and verb in name.split("_")]
        whole = _EMBED_FIRST if verb == "set" else _FORWARD_FIRST
        names = (*(() if in_forward else own), *whole)
        place = next((methods[name] for name in names if name in methods), "")
        lines = f":{statement.lineno}-{statement.end_lineno}" if statement else ""
        return replace(row, where=place or f"{member}{lines}")

    rows = (placed(row) if row.verdict in BROKEN else row for row in verdicts.rows)
    return replace(verdicts, rows=tuple(rows))


def _statement(source: Source, audited: AuditedClass) -> _Statement | None:
    statements = parse(source.read(audited.found.member)).body
    classes = (node for node in statements if isinstance(node, _Statement))
    return next((node for node in classes if node.name == audited.found.class_name), None)


GRAPHS = "graphs"
"""The name under which the graphs of an engine's own runner are reported."""


@dataclass(frozen=True)
class AuditedSource:
    """The judged classes and systems of one source, and the account of what carries a payload in it.

    `no_systems` has a sentence for each system next to the classes that is not in the source.
    `references` are the issues that known failures wait for, by class or subject and rule. `no_graphs` has
    the reasons why graphs of an engine could not be replayed, and `loaded` what the package did not have
    that was imported to make a class, by the class. `places` has `MEMBER:LINE` of everything that could be
    called: classes, subjects of the systems next to them, and `GRAPHS` of the engine's runner.
    `members` has the file of every class that carries a payload, and `derived_from` the classes that it is
    derived from, the nearest first, judged or not.
    """

    label: str
    package: str
    classes: tuple[ClassVerdicts, ...]
    systems: tuple[JudgedSubject, ...] = ()
    no_systems: tuple[str, ...] = ()
    account: Account = field(default_factory=Account)
    references: Mapping[tuple[str, Rule], str] = field(default_factory=dict)
    no_graphs: tuple[Reason, ...] = ()
    loaded: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    derived_from: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def subjects(self) -> tuple[ClassVerdicts, ...]:
        """The classes, then the subjects of the systems next to them."""
        return (*self.classes, *self.systems)


def audit_source(
    text: str,
    say: Callable[[str], None],
    scope: AuditScope = WHOLE,
    *,
    may_be_empty: bool = False,
    known_as: str = "",
    stated: Version | None = None,
    source: Source | None = None,
) -> AuditedSource:
    """Judge what `scope` has of the source that `text` names; `say` is called with each step of the work.

    Steps call the source `known_as`, or else by its label: the files of a commit lie in a temporary folder.
    `stated` is the release of a tree, as the user states it; `source` is what `text` names, where it was
    opened before.

    Raises `UsageError` for what is no source, or has nothing that carries a payload and must not be empty,
    and `MachineError` where a file cannot be fetched.
    """
    with SourceWorker(text, stated=stated, source=source) as worker:
        source, label = worker.source, worker.source.label
        name = known_as or label
        say(f"looking for classes in {name}")
        classes = worker.classes(scope.wanted)
        if scope.account:
            say(f"looking through all files of {name}")
        account, among = Account(), scope.among if scope.account else ()
        if scope.account or not all(audited.can_be_judged for audited in classes):
            # Classes that cannot be called are in the account whichever files are looked through.
            account = account_of(source, classes, unchanged=scope.unchanged, among=among)
        # A plugin is not judged over a base that has none of its classes, whatever its own files carry.
        carries = bool(classes) or (bool(account.unjudged) and engine_of(source).overlay is None)
        if not (carries or may_be_empty or scope.unchanged):
            package, since = engine_of(source).package, engine_of(source).since
            raise UsageError(
                f"{label} has no class with a deepstack buffer; {package.title} has had one since {since}"
            )
        drivable = [audited for audited in classes if audited.can_be_judged]
        verdicts = []
        for number, audited in enumerate(drivable, 1):
            say(f"judging {audited.model_class} of {name} ({number} of {plural(len(drivable), 'class')})")
            judged = located(judge_class(audited, worker), source, audited)
            refused = worker.stubs_met(audited)
            if refused is None:
                verdicts.append(judged)
            else:
                classes = [refused if other is audited else other for other in classes]
        if len(verdicts) < len(drivable):
            account = account_of(source, classes, unchanged=scope.unchanged, among=among)
            drivable = [audited for audited in classes if audited.can_be_judged]
        systems, no_systems = list[JudgedSubject](), list[str]()
        if scope.systems:
            say(f"judging placeholder ranges and dual streams of {name}")
            systems, no_systems = judge_systems(worker)
        why = failed_control(worker) if verdicts or systems else None
    if why is not None:
        verdicts = [unjudged(of_class, why) for of_class in verdicts]
        systems = [unjudged(subject, why) for subject in systems]
    reasons = (audited.ways.no_graphs for audited in drivable)
    references = dict(_references(source, (*verdicts, *systems)))
    return AuditedSource(
        label,
        source.package,
        tuple(verdicts),
        tuple(systems),
        tuple(no_systems),
        account,
        references,
        tuple(dict.fromkeys(reason for reason in reasons if reason is not None)),
        {audited.model_class: audited.ways.loaded for audited in drivable if audited.ways.loaded},
        _places(source, drivable, systems),
        {audited.model_class: audited.found.member for audited in classes},
    )


def _references(source: Source, subjects: Iterable[ClassVerdicts]) -> Iterator[tuple[tuple[str, Rule], str]]:
    """Yield (subject, rule) and the issue of its known failure; without a version, only of those seen."""
    for subject in subjects:
        known = known_rules_of(source, subject.model_class)
        rows = (row for row in subject.rows if row.verdict is Verdict.XFAIL)
        own = ((row.rule, known.reference_of(row.rule, row.regime, row.shape, row.trace)) for row in rows)
        for rule, reference in own if known.of_any_release else known.items():
            if reference is not None:
                yield (subject.model_class, rule), reference


def _places(
    source: Source, classes: Sequence[AuditedClass], systems: Sequence[JudgedSubject]
) -> dict[str, str]:
    places = {}
    for audited in classes:
        if audited.ended is None:
            statement, member = _statement(source, audited), audited.found.member
            places[audited.model_class] = f"{member}:{statement.lineno}" if statement else member
        if audited.replayed_at:
            places[f"{GRAPHS} of {audited.model_class}"] = audited.replayed_at
    return places | {subject.model_class: subject.where or source.label for subject in systems}
