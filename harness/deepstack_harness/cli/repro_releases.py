"""`repro INCIDENT --source S`: look at every class of a source, and `--package P`: at every release.

The classes are found by their shape, so that nobody has to name one. Each that passes a payload to a
compiled text model is judged over that model's own `forward`, in the order of the engine: a profile run,
which calls no `embed_input_ids`, a prefill with a payload, and a decode.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from deepstack_harness.cli.arguments import options_in_use
from deepstack_harness.cli.output import progress
from deepstack_harness.cli.versions import VersionLoop, engine_releases
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.blocks import BLANK, Document, Heading, Line, outcome
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.options import whole
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.catalogue.incidents import Incident


def add_release_arguments(parser: ArgumentParser) -> None:
    """Add the options that look through the releases of a package."""
    parser.add_argument(
        "--package",
        metavar="P",
        help="look for the fault in every release of a package, such as vllm: since when, until when, and in "
        "which class; with --bisect only the incident's class, in the releases that a binary search asks. "
        "--package torch --bisect looks for the torch with which the incident's cases change",
    )
    parser.add_argument("--since", metavar="V", help="with --package, the first release, such as 0.20")
    parser.add_argument("--until", metavar="V", help="with --package, the last release, such as 0.33")
    parser.add_argument(
        "--keep", type=whole, metavar="N",
        help="with --package torch --bisect, keep the N environments that were used last (default: "
        "all), up to 6 GB each",
    )  # fmt: skip


def refuse_release_mixtures(args: Namespace) -> None:
    """Raise `UsageError` for options that exclude `--package`, or that are only for it."""
    if args.keep is not None and (args.package != "torch" or args.keep < 0):
        raise UsageError("--keep N is for --package torch --bisect, and takes 0 or more environments")
    if args.package == "torch" and not args.bisect:
        raise UsageError("--package torch is searched for the release that changes a case: add --bisect")
    if args.package is None:
        if args.since is not None or args.until is not None:
            raise UsageError("--since and --until choose releases of a package: give --package, such as vllm")
        return
    others = ["source", "workload", "script", "pytest", "upstream_test"]
    others += [] if args.bisect else ["trace", "arm", "family"]
    if options := options_in_use(args, dict.fromkeys(others)):
        what = "judges the releases of a package" if args.bisect else "looks at every class of its releases"
        raise UsageError(f"--package {what}: leave {options} out")


def is_compiled_fault(incident: Incident) -> bool:
    """Return whether an incident shows in a text model that was compiled without its payload."""
    from deepstack_harness.audit.classes import COMPILED_TRACE

    traces = (str(run.trace) for run in incident.run)
    order = str(COMPILED_TRACE)
    return {Rule.OUTPUT, Rule.STRUCTURE} <= set(incident.rules) and any(
        order.startswith(trace) for trace in traces
    )


@dataclass(frozen=True)
class SourceVerdict:
    """Verdict of one incident on a source, or on one class of it.

    `classes` are those that have the incident, or the one class that was judged.  `broken` are the rules of
    the incident that are broken, and `arm` is the first one that showed it. `unjudged` is why there is no
    verdict, where nothing that was judged is broken.
    """

    name: str
    broken: frozenset[Rule] = frozenset()
    arm: str = ""
    unjudged: str = ""
    classes: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """True where everything was judged, and nothing is broken."""
        return not self.broken and not self.unjudged


def one_verdict(verdicts: Sequence[SourceVerdict]) -> SourceVerdict:
    """Return the verdict on all of them: the first that has the fault, else one without a verdict."""
    broken = (verdict for verdict in verdicts if verdict.broken)
    unjudged = (verdict for verdict in verdicts if verdict.unjudged)
    return next(broken, None) or next(unjudged, None) or verdicts[0]


def show_verdict(incident: Incident, label: str, verdicts: Sequence[SourceVerdict]) -> Document:
    """Print the last line, the verdict on everything that was judged of a source."""
    verdict = one_verdict(verdicts)
    broken = [name for source in verdicts if source.broken for name in source.classes]
    if verdict.broken:
        yield outcome(
            f"{label}: HAS incident {incident.id} in {', '.join(dict.fromkeys(broken))}", good=False
        )
    elif verdict.unjudged:
        yield outcome(f"{label}: incident {incident.id} could not be judged: {verdict.unjudged}", good=False)
    else:
        yield outcome(f"{label}: free of incident {incident.id}", good=True)


def why_unjudged(rows: Iterable[Row]) -> str:
    """Return the first rule that could not be judged, with the reason; empty where there is none."""
    return next((f"{row.rule}: {row.detail}" for row in rows if row.verdict is Verdict.ERROR), "")


@dataclass(frozen=True)
class SourceFaults:
    """The classes of one source: those that were judged, each with its row of R0, and those that were not."""

    label: str
    judged: tuple[Row, ...]
    unjudged: tuple[tuple[str, str], ...]

    @property
    def faulty(self) -> tuple[Row, ...]:
        """The rows of classes that have the fault."""
        return tuple(row for row in self.judged if row.verdict is Verdict.FAIL)


def find_faults(text: str, say: Callable[[str], None]) -> SourceFaults:
    """Judge every class of a source that passes a payload to a compiled text model.

    Raises what `audit_source` raises.
    """
    from deepstack_harness.audit.classes import judge_compiled
    from deepstack_harness.audit.source_worker import SourceWorker
    from deepstack_harness.sources.source import inside_package

    rows, unjudged = [], []
    with SourceWorker(text) as worker:
        label, module = worker.source.label, engine_of(worker.source).package.module
        say(f"looking for classes in {label}")
        for audited in worker.classes():
            if not audited.can_be_judged or audited.ended is not None:
                refusals = audited.ways.refusals
                placed = [replace(refusal, file=inside_package(refusal.file, module)) for refusal in refusals]
                reasons = "; ".join(dict.fromkeys(map(str, placed)))
                unjudged.append((audited.model_class, audited.ended or reasons))
                continue
            say(f"{audited.model_class} of {label}")
            for row in judge_compiled(audited, worker, {}):
                if row.verdict in (Verdict.PASS, Verdict.FAIL):
                    rows.append(row)
                else:
                    unjudged.append((audited.model_class, row.detail))
    return SourceFaults(label, tuple(rows), tuple(unjudged))


def judge_classes(text: str) -> Document[SourceVerdict]:
    """Print and record all classes of a source that may have an incident; return the verdict on them."""
    with progress("looking for classes") as say:
        faults = find_faults(text, say)
    if faults.judged or faults.unjudged:
        yield BLANK
        yield Heading(f"every class of {faults.label} that passes a payload to a compiled text model:")
    for row in faults.judged:
        yield row
        mark = "HAS it " if row in faults.faulty else "free of it"
        place = f", {row.where}" if row.where else ""
        yield Line(f"  {mark:10}  {row.model_class}: {row.detail}{place}")
    for name, why in faults.unjudged:
        yield Line(f"  not judged  {name}: {why}")
    names = tuple(str(row.model_class) for row in faults.faulty)
    if names:
        broken = frozenset(row.rule for row in faults.faulty)
        name = f"{faults.label}, {', '.join(names)}"
        return SourceVerdict(name, broken, faults.faulty[0].arm, classes=names)
    return SourceVerdict(faults.label)


def search_releases(incident: Incident, args: Namespace) -> Document[ExitCode]:
    """Look for an incident in every release of a range; exit 1 where one has it.

    Raises `UsageError` for what is no package, no version, or a range without a release, and `MachineError`
    where releases cannot be listed.
    """
    if not is_compiled_fault(incident):
        raise UsageError(
            f"incident {incident.id} is not looked for in all classes of a release: leave --package out; "
            "'audit --source SOURCE' judges them by every rule"
        )
    package, chosen, _, _ = engine_releases(args.package, args.since, args.until)
    yield Heading(f"{plural(len(chosen), 'release')} of {package.title}, by incident {incident.id}")

    def faults_of(version: Version) -> Document[SourceFaults]:
        with progress(f"{package.name} {version}") as say:
            faults = find_faults(f"{package.name}=={version}", say)
        yield from faults.judged
        return faults

    loop = VersionLoop[Version, SourceFaults](chosen)
    begun = time.perf_counter()
    for version in chosen:
        yield from loop.judge(version, faults_of(version))
        took, begun = time.perf_counter() - begun, time.perf_counter()
        if version in loop.refused:
            yield Line(f"  {version!s:10} not looked at: {loop.refused[version]}", "yellow")
            continue
        faults = loop.verdicts[version]
        nothing = "none" if faults.judged else "unknown: no class could be judged"
        names = ", ".join(str(row.model_class) for row in faults.faulty) or nothing
        counts = f"{len(faults.judged)} judged, {len(faults.unjudged)} not, {took:.0f} s"
        yield Line(f"  {version!s:10} {names}  ({counts})")
    seen = [(version, loop.verdicts.get(version)) for version in chosen]
    for name, ranges in ranges_of_classes(seen).items():
        yield Line(f"{name}: {', '.join(ranges)}")
    faulty = any(faults is not None and faults.faulty for _, faults in seen)
    missing = [str(version) for version, faults in seen if faults is None or not faults.judged]
    what = f"incident {incident.id} in {package.title} {chosen[0]} to {chosen[-1]}"
    answer = "found" if faulty else "not found"
    yield outcome(f"{what}: {answer}", good=not faulty)
    if missing and not faulty:
        raise MachineError(f"nothing was judged in {', '.join(missing)}")
    return ExitCode.BROKEN if faulty else ExitCode.HOLDS


def ranges_of_classes(seen: Sequence[tuple[Version, SourceFaults | None]]) -> dict[str, list[str]]:
    """Return the ranges of releases in which each class has a fault, by its name."""
    faulty = [row for _, faults in seen if faults is not None for row in faults.faulty]
    having: dict[str, list[str]] = {str(row.model_class): [] for row in faulty}
    for name, ranges in having.items():
        run: list[Version] = []
        for version, faults in (*seen, (Version("0"), None)):
            if faults is not None and any(row.model_class == name for row in faults.faulty):
                run.append(version)
            elif run:
                ranges.append(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}")
                run = []
    return having
