"""One source, audited: its classes, those that cannot be driven, and the systems beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from deepstack_harness.auditing.classes import judge_class
from deepstack_harness.auditing.controls import unjudged
from deepstack_harness.auditing.known_in_source import known_in
from deepstack_harness.auditing.places import class_at, inside_package, located
from deepstack_harness.auditing.source_systems import SourceSystems, judge_systems
from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
from deepstack_harness.auditing.standing import Standing
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.git_revision import revision_of
from deepstack_harness.sources.requirement import names_source
from deepstack_harness.sources.source import Source

GRAPHS = "graphs"
"""The name under which the graphs of an engine's own runner are told."""


@dataclass(frozen=True)
class AuditedSource:
    """The judged classes and systems of one source.

    `references` are the issues that known failures wait for, by class or subject and rule.  `live_alone`
    has the reasons why graphs of an engine could not be driven.  `places` has `MEMBER:LINE` of everything
    that could be driven: classes, subjects of the systems beside them, and `GRAPHS` of the engine's runner.
    """

    label: str
    package: str
    classes: tuple[Standing, ...]
    refused: tuple[AuditedClass, ...]
    beside: SourceSystems
    references: Mapping[tuple[str, Rule], str] = field(default_factory=dict)
    live_alone: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """The classes, then the subjects of the systems beside them."""
        return (*self.classes, *self.beside.standings)


def audit_source(text: str, say: Callable[[str], None], *, may_lack_classes: bool = False) -> AuditedSource:
    """Judge everything in the source that `text` names; `say` is told how far it is.

    Raises `UsageError` for what is no source or has no deepstack class, unless it may lack them, and
    `MachineError` where a file cannot be fetched.
    """
    with SourceWorker(text) as worker:
        source, label = worker.source, worker.source.label
        say(f"looking for classes in {label}")
        found = worker.classes()
        if not found and not may_lack_classes:
            raise _without_classes(source)
        judged = [one for one in found if one.can_be_judged]
        standings = []
        for number, one in enumerate(judged, 1):
            say(f"judging {one.model_class} of {label} ({number} of {plural(len(judged), 'class')})")
            standings.append(located(judge_class(one, worker), source, one))
        say(f"judging placeholder ranges and dual streams of {label}")
        beside = _placed(judge_systems(worker), engine_of(source).package.module)
        why = worker.failed_control()
    if why is not None:
        standings = [unjudged(one, why) for one in standings]
        beside = beside.unjudged(why)
    refused = tuple(one for one in found if not one.can_be_judged)
    alone = [one.lost for one in judged if one.argument and one.ended is None and not one.replayed_at]
    live_alone = tuple(dict.fromkeys(alone))
    return AuditedSource(
        label,
        source.package,
        tuple(standings),
        refused,
        beside,
        _known_references(source, [one.model_class for one in (*standings, *beside.standings)]),
        live_alone,
        _places(source, judged, beside),
    )


def _without_classes(source: Source) -> UsageError:
    engine = engine_of(source)
    title, since = engine.package.title, engine.since
    return UsageError(
        f"{source.label} has no class with a deepstack buffer; {title} has had one since {since}"
    )


def _known_references(source: Source, names: Sequence[str]) -> dict[tuple[str, Rule], str]:
    """Return the report of each known failure of these classes, by class and rule."""
    return {(name, rule): reference for name in names for rule, reference in known_in(source, name).items()}


def _places(source: Source, judged: Sequence[AuditedClass], beside: SourceSystems) -> dict[str, str]:
    places = {one.model_class: class_at(source, one) for one in judged if one.ended is None}
    graphs = {f"{GRAPHS} of {one.model_class}": one.replayed_at for one in judged if one.replayed_at}
    systems = {one.subject: one.where or source.label for one in beside.judged}
    return places | graphs | systems


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


def _placed(beside: SourceSystems, module: str) -> SourceSystems:
    """Return the systems with the place of each subject in its rows."""
    judged = []
    for one in beside.judged:
        where = inside_package(one.where, module) or None
        judged.append(replace(one, rows=tuple(replace(row, where=where) for row in one.rows)))
    return replace(beside, judged=tuple(judged))
