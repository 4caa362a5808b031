"""`repro INCIDENT --package P --bisect`: the release with which an incident came in, or went.

With P torch it is the release with which the incident's own cases are played otherwise (`bisect_torches`).

A binary search over the releases of a range, which asks of each what `repro --source P==V --bisect` asks of
one.  It follows one class, that of the incident's families: another class may have the same fault at other
times (vLLM's Qwen3-VL has 43602 until 0.22.1, and MossAudioModel from 0.24.0 on), so that of all classes
together no release is the first.  A release that cannot be judged is named with the reason, and its
neighbours are asked in its place.
"""

from __future__ import annotations

import glob
import tempfile
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from packaging.version import Version

from deepstack_harness.cli.repro_releases import SourceVerdict, choose_releases, listed_releases
from deepstack_harness.contract.rules import names_of
from deepstack_harness.contract.verdicts import BROKEN, SCHEMA_VERSION, Verdict
from deepstack_harness.engines.known import named_package
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.text import cell, plural

if TYPE_CHECKING:
    from deepstack_harness.catalogue.incidents import Incident
    from deepstack_harness.cli.output import Output

WIDTH = 80


@dataclass(frozen=True)
class VerdictChange:
    """Two numbers with different verdicts, and nothing between them that can be judged.

    `has` is the verdict on `after`, and the other one is that on `before`.
    """

    before: int
    after: int
    has: bool
    unjudged_between: tuple[int, ...]


def search_change(count: int, ask: Callable[[int], bool | None]) -> VerdictChange | None:
    """Return where the answers of 0..count-1 change; None where both ends answer alike, or nothing answers.

    `ask` is called at most once for a number, and returns None for one that cannot be judged.
    """
    answers: dict[int, bool | None] = {}

    def asked(number: int) -> bool | None:
        answers[number] = ask(number)
        return answers[number]

    first = next((number for number in range(count) if asked(number) is not None), count)
    ends = (number for number in range(count - 1, first, -1) if asked(number) is not None)
    last = next(ends, None)
    if last is None or answers[first] == answers[last]:
        return None
    while between := [number for number in range(first + 1, last) if number not in answers]:
        doubled = first + last
        middle = min(between, key=lambda number: abs(2 * number - doubled))
        if asked(middle) is None:
            continue
        if answers[middle] == answers[first]:
            first = middle
        else:
            last = middle
    return VerdictChange(first, last, bool(answers[last]), tuple(range(first + 1, last)))


def most_steps(count: int) -> int:
    """Return how many of `count` releases a search asks, where all of them can be judged."""
    return count if count < 2 else 2 + (count - 2).bit_length()


@dataclass
class _Steps:
    """The steps of a search so far: verdicts and refusals by version, and the seconds that they took."""

    most: int
    refused: dict[Version, str] = field(default_factory=dict)
    verdicts: dict[Version, SourceVerdict] = field(default_factory=dict)
    seconds: float = 0.0

    def told(self, label: str, version: Version, begun: float) -> str:
        """Note the time of the step that ended, and return its line."""
        self.seconds += time.perf_counter() - begun
        done = len(self.refused) + len(self.verdicts)
        left = self.most - done
        ending = f"; about {left * self.seconds / done:.0f} s left" if left > 0 else ""
        verdict = self.verdicts.get(version)
        step = f"step {done} of about {max(done, self.most)}: {label}"
        if verdict is None:
            # A refusal is one step more than a search over releases that can all be judged takes.
            self.most += 1
            return f"{step}: not judged: {self.refused[version]}"
        has = f"has it: {verdict.arm} broke {names_of(verdict.broken)}" if verdict.broken else "is free of it"
        return f"{step} {has}{ending}"


def bisect_releases(
    incident: Incident, args: Namespace, output: Output, judge: Callable[[str], SourceVerdict]
) -> ExitCode:
    """Search the releases of `args.package` for the one with which an incident came in, or went.

    `judge` gets `PACKAGE==VERSION`, and raises a `UsageError` or `MachineError` for a release that it cannot
    judge.  Exit 1 where some release that was judged has the incident.  Raises `UsageError` for what is no
    package or no range, `MachineError` where releases cannot be listed, or none of them can be judged.
    """
    package = named_package(args.package)
    if package is None:
        raise UsageError(f"--package '{args.package}' is no engine whose releases can be read: try vllm")
    listed, yanked = listed_releases(package)
    versions = choose_releases(listed, args.since, args.until)
    if not versions:
        raise UsageError(f"{package.name} has no release from {args.since} to {args.until}")
    steps = _Steps(most_steps(len(versions)))
    amount = f"{plural(len(versions), 'release')} of {package.title}, about {plural(steps.most, 'step')}"
    output.line(f"incident {incident.id} ({incident.name}): {amount}", "bold")
    for sentence in _not_listed(args, versions, listed):
        _print(output, sentence)

    def ask(number: int) -> bool | None:
        version, begun = versions[number], time.perf_counter()
        label = f"{package.name} {version}"
        if version in yanked:
            steps.refused[version] = "yanked"
        else:
            with output.progress(f"{label}, step {len(steps.verdicts) + 1}"), output.rows_alone():
                try:
                    verdict = judge(f"{package.name}=={version}")
                except (UsageError, MachineError) as error:
                    verdict = SourceVerdict(label, unjudged=cell(str(error)))
            if verdict.unjudged:
                steps.refused[version] = verdict.unjudged
            else:
                steps.verdicts[version] = verdict
        for line in _wrapped(steps.told(label, version, begun)):
            output.step(line)
        verdict_of = steps.verdicts.get(version)
        return None if verdict_of is None else bool(verdict_of.broken)

    change = search_change(len(versions), ask)
    if not steps.verdicts:
        raise MachineError(f"nothing was judged in {', '.join(map(str, versions))}")
    output.record(_row(incident, package.name, versions, change, steps))
    has = any(verdict.broken for verdict in steps.verdicts.values())
    output.verdict(
        "\n".join(_wrapped(_answer(incident, package.name, versions, change, steps))), good=not has
    )
    return ExitCode.BROKEN if has else ExitCode.HOLDS


def _answer(
    incident: Incident, name: str, versions: Sequence[Version], change: VerdictChange | None, steps: _Steps
) -> str:
    if change is None:
        judged = " and ".join(f"{name} {version}" for version in sorted(steps.verdicts))
        has = any(verdict.broken for verdict in steps.verdicts.values())
        each = "each " if len(steps.verdicts) > 1 else ""
        text = f"{judged}: {each}{'has' if has else 'is free of'} incident {incident.id}"
        if len(versions) > len(steps.verdicts) + len(steps.refused):
            text += "; the releases between them were not looked at: leave --bisect out to judge each"
        return text
    before, after = versions[change.before], versions[change.after]
    words = ("has", "is free of it") if change.has else ("is free of", "has it")
    text = (
        f"{name} {after} is the first release that {words[0]} incident {incident.id}, {before} the last one "
    )
    text += f"that {words[1]}"
    if change.unjudged_between:
        reasons = (f"{versions[at]} ({steps.refused[versions[at]]})" for at in change.unjudged_between)
        text += f"; between them not judged: {', '.join(reasons)}"
    return text


def _row(
    incident: Incident, name: str, versions: Sequence[Version], change: VerdictChange | None, steps: _Steps
) -> dict[str, object]:
    """Return the answer for programs; `before`, `after` and `has` are None where no change was seen."""
    before, after, has = (
        (str(versions[change.before]), str(versions[change.after]), change.has)
        if change
        else (None, None, None)
    )
    return {
        "schema_version": SCHEMA_VERSION, "system": "bisect", "incident": incident.id, "engine": name,
        "before": before, "after": after, "has": has,
        "judged": {str(version): bool(verdict.broken) for version, verdict in steps.verdicts.items()},
        "not_judged": {str(version): why for version, why in steps.refused.items()},
    }  # fmt: skip


def _not_listed(args: Namespace, versions: Sequence[Version], listed: Sequence[Version]) -> list[str]:
    """Return a sentence for each end of the range that names a release which is not on the index."""
    ends = ((args.since, "beginning with", versions[0]), (args.until, "ending with", versions[-1]))
    # `0.33` names a range of releases, `0.33.0` one.
    return [
        f"{text} is not on the index: {words} {end}"
        for text, words, end in ends
        if text is not None and len(Version(text).release) > 2 and Version(text) not in listed
    ]


def _print(output: Output, text: str) -> None:
    for line in _wrapped(text):
        output.line(line)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


_CHEAP = (
    (("backend=eager", "backend=aot_eager"), "without Inductor"),
    (("backend=inductor",), "with Inductor"),
)
"""The compiled cases, those that take seconds first; in eager mode there is nothing that torch compiles."""
Outcome = dict[str, tuple[str, ...]]
"""Of each case what is looked for: the broken rules, the graphs, the recompiles and the graph breaks."""


def bisect_torches(incident: Incident, args: Namespace, output: Output) -> ExitCode:
    """Search the releases of torch for the first that plays an incident otherwise than the first of them.

    Each that is asked gets an environment, which plays the incident's compiled cases, those with Inductor
    only where the others are alike.  Exit 1 where some case changed.  Raises `UsageError` for no range and no
    case, `MachineError` where releases cannot be listed or none can be judged.
    """
    from deepstack_harness.runs.environments import TORCH, oldest_supported

    listed, yanked = listed_releases(TORCH)
    since = args.since or oldest_supported()
    versions = [each for each in choose_releases(listed, since, args.until) if each not in yanked]
    if len(versions) < 2:
        raise UsageError(f"torch has fewer than two releases from {since} to {args.until or 'the newest'}")
    phases = [
        (words, name)
        for backends, name in _CHEAP
        if _has_cases(words := _selection(incident, args, backends))
    ]
    if not phases:
        raise UsageError(
            f"incident {incident.id} has no compiled case of this choice: 'list arms' has the arms"
        )
    amount = f"{plural(len(versions), 'release')} of torch, about {plural(most_steps(len(versions)), 'step')}"
    output.line(f"incident {incident.id} ({incident.name}): {amount}", "bold")
    for words, name in phases:
        search = _TorchSearch(versions, partial(_outcome_of, words, args, output))
        change = search_change(len(versions), partial(search.ask, output))
        if not search.outcomes:
            raise MachineError(f"nothing was judged: {'; '.join(search.refused.values())}")
        output.record(search.row(incident, change))
        if change is not None:
            search.tell(output, name, change)
            output.verdict(f"torch {versions[change.after]} changes incident {incident.id}", good=False)
            return ExitCode.BROKEN
        judged = " and ".join(map(str, sorted(search.outcomes)))
        _print(output, f"{name}: verdicts, graphs, recompiles and graph breaks are alike in torch {judged}")
    output.verdict(f"no torch that was asked changes incident {incident.id}", good=True)
    return ExitCode.HOLDS


def _selection(incident: Incident, args: Namespace, backends: Sequence[str]) -> list[str]:
    """Return the words for `run` that choose the incident's cases of some backends."""
    chosen = {"incident": incident.id, "family": args.family, "arm": args.arm, "trace": args.trace}
    return [*(f"{key}={glob.escape(value)}" for key, value in chosen.items() if value), *backends]


def _has_cases(selection: Sequence[str]) -> bool:
    from deepstack_harness.runs.execution import Tier, matrix, select

    try:
        return bool(select(matrix(Tier.CI, ["cpu"]), selection))
    except UsageError:  # it matches no case
        return False


def _outcome_of(selection: Sequence[str], args: Namespace, output: Output, version: Version) -> Outcome:
    """Play the cases under a release of torch; raises `MachineError` where that cannot be done."""
    from deepstack_harness.cli.torches import run_under
    from deepstack_harness.runs.environments import keep_newest, make_home
    from deepstack_harness.runs.store import read_stored

    home = make_home(version, output.step)
    with tempfile.TemporaryDirectory(prefix="deepstack-bisect-") as folder:
        if why := run_under(home, ["run", *selection, "--cheapest-first", "--out", folder]):
            raise MachineError(cell(why))
        run = read_stored(folder)
    if args.keep is not None:
        keep_newest(args.keep)
    broken: dict[str, list[str]] = {case.case: [] for case in run.cases}
    for row in run.rows:
        output.record(row)
        if row.verdict in BROKEN or row.verdict is Verdict.ERROR:
            broken[row.case].append(f"{row.rule} {'broken' if row.verdict in BROKEN else 'not judged'}")
    return {
        f"case {case.case}, {case.family} {case.subject} {case.arm} '{case.trace}'": (
            *sorted(broken[case.case]), f"graphs {case.graphs}", f"recompiles {case.recompiles}",
            f"graph breaks {case.breaks}",
        )
        for case in run.cases
    }  # fmt: skip


@dataclass
class _TorchSearch:
    """A search over releases of torch: what the cases came to in each, and why others were not judged."""

    versions: Sequence[Version]
    play: Callable[[Version], Outcome]
    outcomes: dict[Version, Outcome] = field(default_factory=dict)
    refused: dict[Version, str] = field(default_factory=dict)

    def ask(self, output: Output, number: int) -> bool | None:
        """Say whether a release plays the cases otherwise than the first that was judged."""
        version = self.versions[number]
        try:
            with output.progress(f"torch {version}"):
                self.outcomes[version] = self.play(version)
        except MachineError as error:
            self.refused[version] = str(error)
            _print(output, f"torch {version}: not judged: {error}")
            return None
        first = next(iter(self.outcomes))
        cases = plural(len(self.outcomes[version]), "case")
        other = self.outcomes[version] != self.outcomes[first]
        word = "played" if version == first else f"otherwise than in {first}" if other else f"as in {first}"
        output.step(f"torch {version}: {cases}, {word}")
        return other

    def tell(self, output: Output, name: str, change: VerdictChange) -> None:
        """Print the two releases between which something changed, and each case that did."""
        before, after = self.versions[change.before], self.versions[change.after]
        _print(output, f"{name}: torch {after} is the first that plays it otherwise than {before}:")
        for line in self.differences(before, after):
            _print(output, f"  {line}")
        for at in change.unjudged_between:
            _print(output, f"between them not judged: {self.versions[at]}: {self.refused[self.versions[at]]}")

    def differences(self, before: Version, after: Version) -> list[str]:
        """Return a line for each case that changed between two releases: what is no more, and what came."""
        was, now = self.outcomes[before], self.outcomes[after]
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

    def row(self, incident: Incident, change: VerdictChange | None) -> dict[str, object]:
        """Return the answer for programs; `before` and `after` are None where nothing changed."""
        ends = (self.versions[change.before], self.versions[change.after]) if change else None
        return {
            "schema_version": SCHEMA_VERSION, "system": "bisect", "incident": incident.id, "engine": "torch",
            "before": str(ends[0]) if ends else None, "after": str(ends[1]) if ends else None,
            "changed": self.differences(*ends) if ends else [],
            "judged": list(map(str, sorted(self.outcomes))),
            "not_judged": {str(version): why for version, why in self.refused.items()},
        }  # fmt: skip
