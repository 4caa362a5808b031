"""Fuzz campaigns: a request for a hunt, the folder of its state, and the files of what it found.

`findings.jsonl` has each finding before it is reported; `run.json` has the request and the progress. A run
that was killed goes on when the same command is given again with the same folder. Once a hunt is over,
`with_reach` adds how an engine comes to each finding, and `write_findings` writes lines, a pytest file and a
program for each.

`search_boundary` is a hunt of its own about counts (R2, R4, R8). For a capacity, N tokens set and a get of P
rows: get and clear of 0 <= P <= capacity succeed, and rows are the payload and then zeros; above it the
buffer grows with its payload unchanged, or raises and changes nothing; below 0 it refuses. Whatever was
refused, all rows are read afterwards. Small sizes are played all, larger ones are drawn, padded for the ranks
that share a step.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
from hypothesis import strategies as st
from typing_extensions import override

from deepstack_harness.audit.classes import play_orders, reach_in
from deepstack_harness.audit.source_worker import SourceWorker, control_fault
from deepstack_harness.catalogue.buffers import BUFFERS
from deepstack_harness.catalogue.orders import UNKNOWN
from deepstack_harness.catalogue.scripts import ProgramBuffer, render_finding
from deepstack_harness.catalogue.workload import pad_to_multiple
from deepstack_harness.compile.torch_compat.targets import check_support, environment_in
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.oracles.judge import judge_cases
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.engines.known import engine_of, family_class, open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.files import read_regular, write_atomically
from deepstack_harness.fuzz.faults import Finding, FuzzRequest, Progress, Target, Watch
from deepstack_harness.fuzz.hunt import MOST_DEATHS, Hunt
from deepstack_harness.fuzz.player import MEMORY_BYTES, FindingKind, InProcessPlayer, Player, WorkerPlayer
from deepstack_harness.fuzz.strategies import lifecycles, pairs
from deepstack_harness.fuzz.writer import growing_counts
from deepstack_harness.play.written_programs import why_not_shown
from deepstack_harness.sources.request import every_python_file
from deepstack_harness.text import plural
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, OWN_CLASS, SandboxProfile

SMALL = range(1, 5)
"""Capacities of which every N and P is played."""
LARGE = (16, 80, 320, 336, 480)
"""Capacities of the reported crashes."""
RANKS = (1, 2, 4, 8, 16)
"""Ranks that share a step in deployments of one node, and of two."""
DRAWN = 60
"""Larger counts that are drawn after all small ones."""


def search_boundary(hunt: Hunt, drawn: int = DRAWN) -> None:
    """Play every small trace that was not played yet, and `drawn` larger ones."""
    small = list(small_traces())
    for trace in small[hunt.progress.examples :]:
        if not hunt.is_over:
            for fault in hunt.new_faults(hunt.play_example(trace)):
                hunt.report(fault, hunt.progress.examples)
    hunt.search(larger_traces(), len(small) + drawn)


def boundary_examples(drawn: int = DRAWN) -> int:
    """Return the number of traces that `search_boundary` plays."""
    return len(list(small_traces())) + drawn


def small_traces() -> Iterator[Trace]:
    """Iterate over small capacities, N up to one above (and nothing set), P from -1 to two above."""
    for capacity in SMALL:
        for tokens in (None, *range(capacity + 2)):
            held = () if tokens is None else (Step(Op.SET, tokens),)
            padded = {pad_to_multiple(tokens or 0, ranks) for ranks in RANKS[:3]}
            for wanted in sorted({*range(-1, capacity + 3), *padded}):
                yield _read_after_each(capacity, *held, Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
                yield _read_after_each(capacity, *held, Step(Op.RESIZE, wanted))


@st.composite
def larger_traces(draw: st.DrawFn) -> Trace:
    """Draw a capacity of a reported crash, ranks, and (N, P) as an engine makes them, or P above it."""
    capacity, ranks = draw(st.sampled_from(LARGE)), draw(st.sampled_from(RANKS))
    tokens, wanted = draw(pairs(capacity, ranks))
    if draw(st.sampled_from(range(4))) == 3:
        wanted = draw(st.sampled_from(growing_counts(capacity, max(2, ranks))))
    asks = (Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
    return _read_after_each(
        capacity, Step(Op.SET, tokens), *(asks if draw(st.booleans()) else reversed(asks))
    )


def _read_after_each(capacity: int, *steps: Step) -> Trace:
    """Return a trace with a read of all rows before the first step and after each."""
    rows, done = capacity, [Step(Op.GET, capacity)]
    held = steps[0].tokens if steps[0].op is Op.SET else 0
    for step in steps:
        if step.op is Op.RESIZE and step.tokens >= max(1, held):
            rows = step.tokens
        rows = max(rows, step.tokens if step.op is not Op.CLEAR else 0)
        done += [step, Step(Op.GET, rows)]
    return Trace(capacity, tuple(done))


def target_of(request: FuzzRequest, player: Player) -> Target:
    """Find the buffer; `UsageError` for what does not exist, `MachineError` for what cannot be fetched."""
    target = request.target()
    named = None if request.source else target.buffer
    buffer = player.bind(named, request.source, request.family)
    return request.target(buffer) if request.source or request.buffer else target


def broken_rules(
    trace: str,
    *,
    source: str | None = None,
    buffer: str | None = None,
    revision: str | None = None,
    arm: str = "eager",
    family: str = "qwen3_vl",
) -> frozenset[Rule]:
    """Return the rules that one trace breaks first, on a session of its own.

    The buffer is the class of a `source` (`vllm==0.33.0`, a path), MODULE:CLASS (`buffer`), or a revision or
    mutant of ours; its code runs in this process. Raises `UsageError` for what does not exist, and
    `MachineError` for what cannot be fetched.

    >>> trace = "cap 16: profile 16; set 16; forward 16"
    >>> sorted(broken_rules(trace, revision="pr40145"))
    [<Rule.STRUCTURE: 'R1'>]
    """
    request, player = FuzzRequest(source, buffer, revision, family, arm), InProcessPlayer()
    faults, _ = Hunt(target_of(request, player), player).replay(Trace.parse(trace), new_session=True)
    return frozenset(fault.rule for fault in faults if fault.rule)


RUN = "run.json"
JOURNAL = "findings.jsonl"
_VERSION = 3
"""The version of `run.json` and of findings: those of version 1 have a sentence as their shape, those of
version 2 not the fields of a row."""
_SHOW_S = 0.1
"""Seconds between two lines of progress on a terminal."""
_SAVE_S = 1.0
"""Seconds between two times that progress is saved: so much is lost where the process is killed."""

OnProgress = Callable[[Progress, list[Finding]], None]
"""Called now and then with the progress of a campaign and its findings so far."""


@dataclass(frozen=True)
class HuntLimits:
    """Seconds for one step, bytes of memory, and seconds for the whole hunt."""

    step_s: float = 20.0
    memory_bytes: int = MEMORY_BYTES
    seconds: float | None = None


@dataclass(frozen=True)
class Campaign:
    """A hunt of `examples` traces with a seed, whose state is in `folder`."""

    request: FuzzRequest
    folder: Path
    examples: int
    seed: int = 0
    boundary: bool = False
    limits: HuntLimits = field(default_factory=HuntLimits)

    def describe(self) -> dict[str, object]:
        """Return the request; a run goes on only if this is the same."""
        return {"schema_version": _VERSION, "request": asdict(self.request), "examples": self.examples,
                "seed": self.seed, "boundary": self.boundary}  # fmt: skip


@dataclass
class Hunted:
    """Result of a campaign so far: findings, counts, and whether all was played."""

    findings: list[Finding] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    complete: bool = False
    resumed: int = 0
    """Findings of an earlier run that this one goes on with."""
    control: str = ""
    """The reason, found after the hunt, why its worker measures wrongly; empty for none."""

    @property
    def distrust(self) -> str:
        """Why the findings, and their absence, prove nothing; "" where they do."""
        progress = self.progress
        if progress.unmeasured:
            counts = f"{progress.unmeasured} of {plural(progress.examples, 'example')}"
            return f"{counts} could not be measured: {progress.why_unmeasured}"
        return self.control


def open_campaign(campaign: Campaign) -> Hunted:
    """Make the folder, or read the files that an unfinished run of the same campaign left in it.

    Raises `UsageError` for a folder that has something else in it.
    """
    try:
        campaign.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep findings in '{campaign.folder}': {error.strerror}") from None
    earlier = _read_run(campaign.folder)
    if earlier is None or earlier.get("finished"):
        for name in (RUN, JOURNAL):
            (campaign.folder / name).unlink(missing_ok=True)
        return Hunted()
    if earlier["campaign"] != campaign.describe():
        before = earlier["campaign"]
        version = before.get("schema_version") if isinstance(before, dict) else None
        if version not in (None, _VERSION):
            raise UsageError(
                f"'{campaign.folder}' has an unfinished run of another version of the harness, "
                "which cannot be continued: choose another --out"
            )
        raise UsageError(
            f"'{campaign.folder}' has an unfinished run with other options: "
            "repeat those options, or choose another --out"
        )
    findings = read_journal(campaign.folder)
    progress = msgspec.convert(earlier["progress"], Progress)
    return Hunted(findings, progress, resumed=len(findings))


def read_journal(folder: Path) -> list[Finding]:
    """Return the findings in the order in which they came."""
    path, findings = folder / JOURNAL, []
    for line in read_regular(path).splitlines() if path.exists() else ():
        with suppress(msgspec.DecodeError):  # the last line of a machine that lost power
            findings.append(msgspec.json.decode(line, type=Finding))
    return findings


def _read_run(folder: Path) -> dict[str, object] | None:
    path = folder / RUN
    try:
        state: dict[str, object] = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except ValueError:
        raise UsageError(
            f"'{path}' was not written by a fuzz run: remove it, or choose another --out"
        ) from None
    return state


def run_campaign(campaign: Campaign, hunted: Hunted, on_progress: OnProgress) -> Hunted:
    """Play what is left of the examples, and return `hunted`; raises as `request.target_of` does."""
    limits = campaign.limits
    with ExitStack() as stack:
        player = WorkerPlayer(
            step_s=limits.step_s, memory_bytes=limits.memory_bytes, sandbox=_sandbox(campaign.request),
            environment=_environment(campaign.request, stack),
        )  # fmt: skip
        stack.callback(player.close)
        target = target_of(campaign.request, player)
        hunt = Hunt(
            target, player, seed=campaign.seed, known=hunted.findings, progress=hunted.progress,
            watch=_CampaignWatch(campaign, hunted, on_progress),
        )  # fmt: skip
        if campaign.boundary:
            search_boundary(hunt)
        else:
            hunt.search(lifecycles(target.arm, alone=target.alone), campaign.examples)
        hunted.control = control_fault(lambda plan: list(judge_cases(plan, player.check))) or ""
    hunted.complete = hunted.progress.examples >= campaign.examples
    save_progress(campaign, hunted, finished=hunted.complete or hunted.progress.deaths >= MOST_DEATHS)
    return hunted


def _environment(request: FuzzRequest, stack: ExitStack) -> dict[str, str] | None:
    """Return the environment of a worker that interprets; its caches are removed when `stack` closes."""
    if not ArmSpec.parse(request.arm).interpreted:
        return None
    check_support()
    folder = tempfile.TemporaryDirectory(prefix="deepstack-h200-", ignore_cleanup_errors=True)
    return environment_in(stack.enter_context(folder))


def _sandbox(request: FuzzRequest) -> SandboxProfile | None:
    """Return the sandbox of a source or of a user's class; None for a buffer of ours."""
    if request.source:
        compiles = ArmSpec.parse(request.arm).compiled
        source = open_source(request.source)
        family_class(source, request.family)
        every_python_file(source)  # the worker has no network
        return COMPILE if compiles else CONTRACT
    return OWN_CLASS if request.buffer else None


class _CampaignWatch(Watch):
    """Watch that writes findings to the journal, saves the progress, and ends the hunt when time is over."""

    def __init__(self, campaign: Campaign, hunted: Hunted, on_progress: OnProgress) -> None:
        self._campaign, self._hunted, self._on_progress = campaign, hunted, on_progress
        seconds = campaign.limits.seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._shown_at = self._saved_at = 0.0

    @override
    def on_example(self, progress: Progress, trace: Trace) -> None:
        now = time.monotonic()
        if now > self._shown_at + _SHOW_S:
            self._shown_at = now
            self._on_progress(progress, self._hunted.findings)
        if now > self._saved_at + _SAVE_S:
            self._saved_at = now
            save_progress(self._campaign, self._hunted)

    @override
    def on_finding(self, finding: Finding) -> None:
        # On the disk before anybody hears of it: a finding that was shown survives whatever follows.
        with (self._campaign.folder / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(msgspec.json.encode(finding).decode() + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self._hunted.findings.append(finding)
        self._on_progress(self._hunted.progress, self._hunted.findings)

    @override
    def is_done(self) -> bool:
        return self._until is not None and time.monotonic() > self._until


def save_progress(campaign: Campaign, hunted: Hunted, *, finished: bool = False) -> None:
    """Write how far the campaign is; one that is finished is begun anew the next time."""
    state = {
        "campaign": campaign.describe(), "progress": asdict(hunted.progress), "finished": finished,
    }  # fmt: skip
    write_atomically(campaign.folder / RUN, json.dumps(state).encode())


_CASES = '''"""Found by fuzzing {name}: red while the faults are there.

It needs pytest and deepstack-harness, and runs wherever the buffer can be found.
"""

import pytest

from deepstack_harness import broken_rules

BUFFER = {buffer}
FOUND = [
{found}
]


@pytest.mark.parametrize(("rule", "trace"), FOUND)
def test_the_rule_is_kept(rule: str, trace: str) -> None:
    assert rule not in broken_rules(trace, **BUFFER)
'''


def with_reach(findings: Iterable[Finding], request: FuzzRequest) -> list[Finding]:
    """Return findings on a class of a source with how the engine comes to them; others as they are."""
    findings = list(findings)
    classes = {finding.model_class for finding in findings if finding.rule and finding.model_class}
    if not request.source or not classes:
        return findings
    with SourceWorker(request.source) as worker:
        found = {entry.model_class: entry for entry in worker.classes() if entry.model_class in classes}
        played = {name: play_orders(audited, worker) for name, audited in found.items()}

        def reach(finding: Finding) -> str | None:
            name = finding.model_class or ""
            if finding.rule is None:
                return None
            return reach_in(finding.rule, found[name], worker, played[name])[0] if name in found else UNKNOWN

        return [replace(finding, reach=reach(finding)) for finding in findings]


def write_findings(folder: Path, findings: Sequence[Finding], request: FuzzRequest) -> list[Path]:
    """Write the lines, the pytest file, and a program for each finding that one can be written for.

    Return the files, in the order of the findings.
    """
    lines = folder / "findings.txt"
    lines.write_text("".join(f"{finding.line}\n" for finding in findings), encoding="utf-8")
    written = [lines]
    rules = [finding for finding in findings if finding.kind is FindingKind.RULE]
    if rules:
        written.append(folder / "test_found.py")
        cases = "\n".join(f'    ("{finding.name}", "{finding.trace}"),' for finding in rules)
        usual = FuzzRequest()
        buffer = {name: value for name, value in vars(request).items() if value != getattr(usual, name)}
        text = _CASES.format(name=request.name, buffer=buffer, found=cases)
        written[-1].write_text(text, encoding="utf-8")
    counts: dict[str, int] = {}
    for finding in rules:
        name = finding.name
        counts[name] = counts.get(name, 0) + 1
        program = program_of(finding, request)
        is_own = request.source is None and request.name not in BUFFERS
        if program is not None and is_own and (why := why_not_shown(program)):
            with lines.open("a", encoding="utf-8") as file:
                file.write(f"{name}: no program that needs only torch shows it: {why}\n")
        elif program is not None:
            written.append(folder / f"{name}-{counts[name]}.py")
            written[-1].write_text(program, encoding="utf-8")
    return written


def program_of(finding: Finding, request: FuzzRequest) -> str | None:
    """Return a program that shows it with only torch; None where a decoder takes part."""
    if finding.rule is None or request.arm != "eager" or "@" in request.name:
        return None
    try:
        return render_finding(
            Trace.parse(finding.trace), finding.rule, finding.detail, _program_buffer(finding, request)
        )
    except UsageError:
        return None


def _program_buffer(finding: Finding, request: FuzzRequest) -> ProgramBuffer:
    if finding.model_class is None or request.source is None:
        return ProgramBuffer(request.name)
    models = engine_of(open_source(request.source)).by_methods
    return ProgramBuffer(finding.model_class, models[request.family.partition(":")[0]].member)
