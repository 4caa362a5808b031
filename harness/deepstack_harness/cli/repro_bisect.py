"""`repro INCIDENT --package P --bisect`: the release with which an incident came in, or went.

With P torch it is the release with which the incident's own cases are played otherwise (`bisect_torches`).

A binary search over the releases of a range, which judges each as `repro --source P==V --bisect` judges
one.  It follows one class, that of the incident's families: another class may have the same fault at other
times (vLLM's Qwen3-VL has 43602 until 0.22.1, and MossAudioModel from 0.24.0 on), so that of all classes
together no release is the first.  A release that cannot be judged is named with the reason, and its
neighbours are judged in its place.
"""

from __future__ import annotations

import glob
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.version import Version

from deepstack_harness.cli.output import progress
from deepstack_harness.cli.repro_releases import SourceVerdict
from deepstack_harness.cli.versions import (
    VersionLoop,
    choose_releases,
    engine_releases,
    listed_releases,
    most_steps,
)
from deepstack_harness.contract.rules import names_of
from deepstack_harness.contract.verdicts import BROKEN, Verdict
from deepstack_harness.document.blocks import Document, Heading, Line, outcome, rows_of
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.text import cell, plural

if TYPE_CHECKING:
    from deepstack_harness.catalogue.incidents import Incident


def bisect_releases(
    incident: Incident, args: Namespace, judge: Callable[[str], Document[SourceVerdict]]
) -> Document[ExitCode]:
    """Search the releases of `args.package` for the one with which an incident came in, or went.

    `judge` gets `PACKAGE==VERSION`, and raises a `UsageError` or `MachineError` for a release that it cannot
    judge.  Exit 1 where some release that was judged has the incident.  Raises `UsageError` for what is no
    package or no range, `MachineError` where releases cannot be listed, or none of them can be judged.
    """
    package, versions, listed, yanked = engine_releases(args.package, args.since, args.until)
    name, most, begun = package.name, most_steps(len(versions)), time.perf_counter()
    amount = f"{plural(len(versions), 'release')} of {package.title}, about {plural(most, 'step')}"
    yield Heading(f"incident {incident.id} ({incident.name}): {amount}")
    ends = ((args.since, "beginning with", versions[0]), (args.until, "ending with", versions[-1]))
    for text, words, end in ends:
        # `0.33` names a range of releases, `0.33.0` one.
        if text is not None and len(Version(text).release) > 2 and Version(text) not in listed:
            yield Line(f"{text} is not on the index: {words} {end}")

    def verdict_on(version: Version) -> Document[SourceVerdict]:
        if version in yanked:
            raise UsageError("yanked")
        say(f"{name} {version}, step {len(loop.verdicts) + 1}")
        verdict = yield from rows_of(judge(f"{name}=={version}"))
        if verdict.unjudged:
            raise MachineError(verdict.unjudged)
        return verdict

    loop = VersionLoop[Version, SourceVerdict](versions)
    with progress(f"{name} {versions[0]}") as say:
        for version in loop.bisected(lambda verdict: bool(verdict.broken)):
            yield from loop.judge(version, verdict_on(version))
            # A refusal is one step more than a search over releases that can all be judged takes.
            done, expected = len(loop.verdicts) + len(loop.refused), most + len(loop.refused)
            if version in loop.refused:
                expected -= 1
                what = f": not judged: {loop.refused[version]}"
            else:
                verdict = loop.verdicts[version]
                broke = f" has it: {verdict.arm} broke {names_of(verdict.broken)}"
                what = broke if verdict.broken else " is free of it"
                left = (expected - done) * (time.perf_counter() - begun) / done
                what += f"; about {left:.0f} s left" if left > 0 else ""
            sentence = f"step {done} of about {max(done, expected)}: {name} {version}{what}"
            say(sentence)
            yield Line(sentence)
    if not loop.verdicts:
        raise MachineError(f"nothing was judged in {', '.join(map(str, versions))}")
    judged = {str(version): bool(verdict.broken) for version, verdict in loop.verdicts.items()}
    has = judged[str(loop.change[-1])] if loop.change else None
    yield {**loop.row(incident.id, name), "has": has, "judged": judged}
    good = not any(judged.values())
    yield outcome(_result(incident, name, loop), good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _result(incident: Incident, name: str, loop: VersionLoop[Version, SourceVerdict]) -> str:
    has = any(verdict.broken for verdict in loop.verdicts.values())
    if not loop.change:
        judged = " and ".join(f"{name} {version}" for version in sorted(loop.verdicts))
        each = "each " if len(loop.verdicts) > 1 else ""
        text = f"{judged}: {each}{'has' if has else 'is free of'} incident {incident.id}"
        if len(loop.versions) > len(loop.verdicts) + len(loop.refused):
            text += "; the releases between them were not looked at: leave --bisect out to judge each"
        return text
    before, *between, after = loop.change
    words = ("has", "is free of it") if loop.verdicts[after].broken else ("is free of", "has it")
    text = f"{name} {after} is the first release that {words[0]} incident {incident.id}, "
    text += f"{before} the last one that {words[1]}"
    reasons = ", ".join(f"{version} ({loop.refused[version]})" for version in between)
    return f"{text}; between them not judged: {reasons}" if reasons else text


_CHEAP = (
    (("backend=eager", "backend=aot_eager"), "without Inductor"),
    (("backend=inductor",), "with Inductor"),
)
"""The compiled cases, those that take seconds first; in eager mode there is nothing that torch compiles."""
Outcome = dict[str, tuple[str, ...]]
"""Of each case what is looked for: the broken rules, the graphs, the recompiles and the graph breaks."""


def bisect_torches(incident: Incident, args: Namespace) -> Document[ExitCode]:
    """Search the releases of torch for the first that plays an incident otherwise than the first of them.

    Each that is judged gets an environment, which plays the incident's compiled cases, those with Inductor
    only where the others are alike.  Exit 1 where some case changed.  Raises `UsageError` for no range and no
    case, `MachineError` where releases cannot be listed or none can be judged.
    """
    from deepstack_harness.runs.environments import TORCH, oldest_supported

    listed, yanked = listed_releases(TORCH)
    since = args.since or oldest_supported()
    versions = [version for version in choose_releases(listed, since, args.until) if version not in yanked]
    if len(versions) < 2:
        raise UsageError(f"torch has fewer than two releases from {since} to {args.until or 'the newest'}")
    phases = _selections(incident, args)
    amount = f"{plural(len(versions), 'release')} of torch, about {plural(most_steps(len(versions)), 'step')}"
    yield Heading(f"incident {incident.id} ({incident.name}): {amount}")
    for words, name in phases:
        loop = VersionLoop[Version, Outcome](versions)
        with progress(f"torch {versions[0]}") as say:
            for version in loop.bisected(lambda outcome: outcome):
                yield from loop.judge(version, _outcome_of(words, args, version, say))
                if version in loop.refused:
                    yield Line(f"torch {version}: not judged: {loop.refused[version]}")
                    continue
                seen, (first, earlier) = loop.verdicts[version], next(iter(loop.verdicts.items()))
                word = f"as in {first}" if seen == earlier else f"otherwise than in {first}"
                word = "played" if version == first else word
                yield Line(f"torch {version}: {plural(len(seen), 'case')}, {word}")
        if not loop.verdicts:
            raise MachineError(f"nothing was judged: {'; '.join(loop.refused.values())}")
        change = loop.change
        changed = _differences(loop.verdicts[change[0]], loop.verdicts[change[-1]]) if change else []
        judged = list(map(str, sorted(loop.verdicts)))
        yield {**loop.row(incident.id, TORCH.name), "changed": changed, "judged": judged}
        if not change:
            alike = f"verdicts, graphs, recompiles and graph breaks are alike in torch {' and '.join(judged)}"
            yield Line(f"{name}: {alike}")
            continue
        before, *between, after = change
        yield Line(f"{name}: torch {after} is the first that plays it otherwise than {before}:")
        for line in changed:
            yield Line(f"  {line}")
        for version in between:
            yield Line(f"between them not judged: {version}: {loop.refused[version]}")
        yield outcome(f"torch {after} changes incident {incident.id}", good=False)
        return ExitCode.BROKEN
    yield outcome(f"no torch that was tried changes incident {incident.id}", good=True)
    return ExitCode.HOLDS


def _selections(incident: Incident, args: Namespace) -> list[tuple[list[str], str]]:
    """Return the words for `run` that choose the incident's cases of some backends, with a name for each.

    Raises `UsageError` where no case is chosen.
    """
    from deepstack_harness.runs.execution import Tier, matrix, select

    chosen = {"incident": incident.id, "family": args.family, "arm": args.arm, "trace": args.trace}
    phases = []
    for backends, name in _CHEAP:
        words = [*(f"{key}={glob.escape(value)}" for key, value in chosen.items() if value), *backends]
        with suppress(UsageError):  # it matches no case
            select(matrix(Tier.CI, ["cpu"]), words)
            phases.append((words, name))
    if not phases:
        raise UsageError(
            f"incident {incident.id} has no compiled case of this choice: 'list arms' has the arms"
        )
    return phases


def _differences(was: Outcome, now: Outcome) -> list[str]:
    """Return a line for each case that changed between two releases: what is no more, and what came."""
    lines = []
    for case in dict.fromkeys([*was, *now]):
        old, new = was.get(case, ("not there",)), now.get(case, ("not there",))
        if old != new:
            gone, came = (
                ", ".join(fact for fact in facts if fact not in others) or "none of it"
                for facts, others in ((old, new), (new, old))
            )
            lines.append(f"{case}: {gone} -> {came}")
    return lines


def _outcome_of(
    selection: Sequence[str], args: Namespace, version: Version, say: Callable[[str], None]
) -> Document[Outcome]:
    """Play the cases under a release of torch; raises `MachineError` where that cannot be done."""
    from deepstack_harness.cli.torches import run_under
    from deepstack_harness.runs.environments import keep_newest, make_home
    from deepstack_harness.runs.store import read_stored

    prefix = "deepstack-bisect-"
    say(f"torch {version}")
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        home = make_home(version, say)
        if why := run_under(home, ["run", *selection, "--cheapest-first", "--out", folder]):
            raise MachineError(cell(why))
        run = read_stored(folder)
    if args.keep is not None:
        keep_newest(args.keep)
    broken: dict[str, list[str]] = {case.case: [] for case in run.cases}
    yield from run.rows
    for row in run.rows:
        if row.verdict in BROKEN or row.verdict is Verdict.ERROR:
            broken[row.case].append(f"{row.rule} {'broken' if row.verdict in BROKEN else 'not judged'}")
    return {
        f"case {case.case}, {case.family} {case.subject} {case.arm} '{case.trace}'": (
            *sorted(broken[case.case]), f"graphs {case.graphs}", f"recompiles {case.recompiles}",
            f"graph breaks {case.breaks}",
        )
        for case in run.cases
    }  # fmt: skip
