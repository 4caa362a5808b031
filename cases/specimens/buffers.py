"""Buffers as specimens: each under `check`, and under `audit` over a copy of its source.

The copy is one file of an engine: the text of the buffer's modules, and below it a model class that has the
buffer in an attribute and passes its calls on.
"""

import ast
import importlib
import inspect
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.synthetic_vllm import HOLDS_A_BUFFER, QWEN, write
from cases.selftest.models import right_buffers, right_shapes, wrong_buffers, wrong_shapes
from cases.selftest.models.checking import broken_in, sample_for
from cases.specimens.kit import Specimen
from deepstack_harness.audit.classes import WHERE, judge_class
from deepstack_harness.catalogue.buffers import ALL_MUTANTS, CORRECT, buffer_named
from deepstack_harness.catalogue.plans import (
    AUDIT_TRACES,
    CAPTURE_TRACES,
    CONTRACT_TRACES,
    plan_audit,
)
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.protocols import BufferFactory, generation_of
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.sources.source import buffer_of

LIVE, CAPTURED = ("eager",), ("eager", "eager/full")

DAILY = (*AUDIT_TRACES, *CONTRACT_TRACES, *CAPTURE_TRACES)

ADAPTED = "an adapter class is no class of an engine: its payload has no levels, or its methods other names"
ANNOUNCED = "no class of an engine announces a move: any buffer that grows breaks the rule there"
NOT_PLAYED = "no trace of an audit has the input or the history that shows it"
REPACKED = "the model class puts the levels into a container of its own"
_REASONS = {"announced": ANNOUNCED, "not_played": NOT_PLAYED, "repacked": REPACKED}
UNSEEN_BY_AUDIT: dict[str, str] = {
    name: _REASONS[reason]
    for reason, names in tomllib.loads(Path(__file__).with_name("unseen_by_audit.toml").read_text()).items()
    for name in names
}
"""Wrong buffers that an audit of a copy does not find; one that it does find after all is an error."""


def buffers() -> Iterator[Specimen]:
    """Yield every buffer of ours; `breaks` is its rule, and the arms are those of the regimes it is about."""
    for name, mutant in ALL_MUTANTS.items():
        arms = (mutant.arm,) if "full" in mutant.arm else LIVE
        yield Specimen(name, buffer_named(name), mutant.rule, arms=arms, source="mutants")
    for name, rule in wrong_buffers.BREAKS.items():
        yield Specimen(name, getattr(wrong_buffers, name), rule, arms=LIVE, source="wrong_buffers")
    for name, wrong in wrong_shapes.WRONG.items():
        arms = CAPTURED[1:] if wrong.regime == Regime.CAPTURED else LIVE
        yield Specimen(name, wrong.adapter, wrong.rule, arms=arms, source="wrong_shapes")
    for name in right_buffers.RIGHT:
        yield Specimen(name, getattr(right_buffers, name), arms=LIVE, source="right_buffers")
    for name, adapter in right_shapes.RIGHT.items():
        arms = LIVE if name in right_shapes.LIVE_ALONE else CAPTURED
        yield Specimen(name, adapter, arms=arms, source="right_shapes")
    for name, right in CORRECT.items():
        arms = CAPTURED if right.regimes == "both" else LIVE
        yield Specimen(name, buffer_named(name), arms=arms, source="correct")


def findings(specimen: Specimen) -> Iterator[tuple[str, str]]:
    """Yield "check" and "audit", each with "found", "kept", "unseen: .." or what it got wrong."""
    regimes = {Regime.CAPTURED if "full" in arm else Regime.LIVE for arm in specimen.arms}
    if not specimen.breaks:
        broken = [broken_in(specimen.program, regime, DAILY) for regime in regimes]
        yield "check", f"false alarm: {broken}" if any(broken) else "kept"
        yield "audit", _audit_of_right(specimen, regimes)
        return
    (regime,), rule = regimes, Rule(specimen.breaks)
    shows = trace_that_shows(specimen, regime, rule)
    yield "check", f"missed: {rule}" if shows is None else "found"
    yield "audit", _audit_of_wrong(specimen, regime, rule, shows)


def trace_that_shows(specimen: Specimen, regime: Regime, rule: Rule) -> str | None:
    """Return the first trace of `check` that finds a wrong buffer, the one that did so before put first."""
    found_before = {"mutants": "mutant", "wrong_buffers": "written"}.get(specimen.source, specimen.source)
    sample = sample_for(f"{found_before} {specimen.name}")
    traces = dict.fromkeys((sample[0], *DAILY, *sample))
    return next((each for each in traces if rule in broken_in(specimen.program, regime, [each])), None)


Broken = frozenset[tuple[Regime, Rule, str]]
"""Rules that traces break."""


def _audit_of_right(specimen: Specimen, regimes: Collection[Regime]) -> str:
    if specimen.source == "right_shapes":
        return f"unseen: {ADAPTED}"
    with audited_copy(specimen.program) as audited:
        broken = {each for each in audited.broken if each[0] in regimes}
    made = specimen.program(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
    if any(regime is Regime.LIVE for regime, *_ in broken) or (broken and generation_of(made) is None):
        return f"false alarm: {sorted(broken)}"
    return f"unseen: {ANNOUNCED}" if broken else "kept"


def _audit_of_wrong(specimen: Specimen, regime: Regime, rule: Rule, shows: str | None) -> str:
    """Return what an audit finds that it does not find in a right buffer which grows.

    Where no trace of its own shows the fault, that of `check` has to.
    """
    if specimen.source == "wrong_shapes":
        return f"unseen: {ADAPTED}"
    with audited_copy(specimen.program) as audited:
        found = {each for each in audited.broken if each[:2] == (regime, rule)} - _broken_by_growth()
        shown = bool(found) or (shows is not None and rule in audited.judge(shows).broken)
    why = UNSEEN_BY_AUDIT.get(specimen.name)
    if why is None:
        return (
            "found" if found else f"missed{' by its own traces' if shown else ''}: {sorted(audited.broken)}"
        )
    if found or shown is (why is REPACKED):
        return f"not `{why}`: {sorted(audited.broken)}"
    return f"unseen: {why}"


@dataclass(frozen=True)
class AuditedCopy:
    """A copy of a buffer as a source, and what its audit finds broken."""

    worker: InProcessWorker
    broken: Broken

    def judge(self, trace: str) -> JudgedCase:
        """Play one more trace on the methods of the class."""
        (model_class,) = (each.model_class for each in self.worker.classes())
        buffer = buffer_of(self.worker.source, model_class)
        (judged,) = self.worker.judge(plan_audit(WHERE, buffer, [Trace.parse(trace)]), model_class, "methods")
        return judged


@contextmanager
def audited_copy(make: BufferFactory) -> Iterator[AuditedCopy]:
    """Write a buffer as a source, and audit it."""
    with tempfile.TemporaryDirectory() as folder:
        text = HOLDS_A_BUFFER if hasattr(make, "resize") else HOLDS_A_BUFFER.partition("    def _resize_")[0]
        copied = f"{_text_of(make.__module__, set())}\n\n{text.replace('Buffer(', f'{make.__name__}(')}"
        worker = InProcessWorker(str(write(Path(folder), {QWEN: copied})))
        (audited,) = worker.classes()
        assert audited.ways.methods, audited.ways.refusals
        assert audited.ways.forward, audited.ways.refusals
        verdicts = judge_class(audited, worker)
        assert not verdicts.rules({Verdict.ERROR}), verdicts.rows
        broken = frozenset((each.regime, each.rule, each.trace) for each in verdicts.broken_traces)
        yield AuditedCopy(worker, broken)


def _text_of(module: str, written: set[str]) -> str:
    """Return the text of a module, below the texts of those of ours that it imports."""
    written.add(module)
    lines = inspect.getsource(importlib.import_module(module)).splitlines()
    above = []
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("cases.", "deepstack_harness.")
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * len(lines[node.lineno - 1 : node.end_lineno])
            above += [_text_of(node.module, written)] if node.module not in written else []
    return "\n".join([*above, *lines])


@cache
def _broken_by_growth() -> Broken:
    with audited_copy(buffer_named("reference")) as audited:
        return audited.broken
