"""Buffers as specimens: each under `check`, and under `audit` over a copy of its source.

The copy is one file of an engine: the text of the buffer's modules, and below it a model class that has the
buffer in an attribute and passes its calls on.
"""

import ast
import gc
import importlib
import inspect
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
from deepstack_harness.contract.protocols import generation_of
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.models.adapted import check_interface
from deepstack_harness.sources.source import buffer_of

LIVE: tuple[str, ...] = ("eager",)
CAPTURED: tuple[str, ...] = ("eager", "eager/full")

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
    """Yield "check" and "audit", each with "found", "right", "unseen: .." or what it got wrong."""
    if not specimen.breaks:
        make = check_interface(specimen.program, specimen.name)
        broken = [broken_in(make, regime, DAILY) for regime in regimes_of(specimen)]
        yield "check", f"false alarm: {broken}" if any(broken) else "right"
        yield "audit", _audit_of_right(specimen)
        return
    shows = trace_that_shows(specimen)
    yield "check", "missed" if shows is None else "found"
    yield "audit", _audit_of_wrong(specimen, shows)


def regimes_of(specimen: Specimen) -> tuple[Regime, ...]:
    """Return the regimes that a buffer is right or wrong in."""
    return tuple(Regime.CAPTURED if "full" in arm else Regime.LIVE for arm in specimen.arms)


def trace_that_shows(specimen: Specimen) -> str | None:
    """Return the first trace of `check` that finds a wrong buffer, the one that did so before put first."""
    found_before = {"mutants": "mutant", "wrong_buffers": "written"}.get(specimen.source, specimen.source)
    sample = sample_for(f"{found_before} {specimen.name}")
    (regime,), rule = regimes_of(specimen), Rule(specimen.breaks)
    traces = dict.fromkeys((sample[0], *DAILY, *sample))
    make = check_interface(specimen.program, specimen.name)
    for trace in traces:
        if rule in broken_in(make, regime, [trace]):
            return trace
        if hasattr(specimen.program, "__del__"):
            gc.collect()  # what it does when it is collected is its fault, and a cycle may hold it until then
    return None


_OURS = ("cases.", "deepstack_harness.")
Broken = frozenset[tuple[Regime, Rule, str]]
"""Rules that traces break."""


def _audit_of_right(specimen: Specimen) -> str:
    if specimen.source == "right_shapes":
        return f"unseen: {ADAPTED}"
    with audited_copy(specimen.program) as audited:
        broken = {place for place in audited.broken if place[0] in regimes_of(specimen)}
    made = specimen.program(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
    if any(regime is Regime.LIVE for regime, *_ in broken) or (broken and generation_of(made) is None):
        return f"false alarm: {sorted(broken)}"
    return f"unseen: {ANNOUNCED}" if broken else "right"


def _audit_of_wrong(specimen: Specimen, shows: str | None) -> str:
    """Compare what an audit finds, or why not, with `UNSEEN_BY_AUDIT`; `shows` is a trace of `check`."""
    if specimen.source == "wrong_shapes":
        return f"unseen: {ADAPTED}"
    (regime,), rule = regimes_of(specimen), Rule(specimen.breaks)
    with audited_copy(specimen.program) as audited:
        found = {place for place in audited.broken if place[:2] == (regime, rule)} - _broken_by_growth()
        why = "" if found else NOT_PLAYED if audited.breaks(rule, shows) else REPACKED
    if why is NOT_PLAYED:
        with audited_copy(buffer_named("reference")) as grows:
            why = ANNOUNCED if grows.breaks(rule, shows) else why
    if why != (stated := UNSEEN_BY_AUDIT.get(specimen.name, "")):
        return f"{why or 'found'}, not {stated or 'found'}: {sorted(audited.broken)}"
    return f"unseen: {why}" if why else "found"


@dataclass(frozen=True)
class AuditedCopy:
    """A copy of a buffer as a source, and what its audit finds broken."""

    worker: InProcessWorker
    broken: Broken

    def breaks(self, rule: Rule, trace: str | None) -> bool:
        """Return whether the methods of the class break a rule in one more trace."""
        (found,) = self.worker.classes()
        buffer = buffer_of(self.worker.source, found.model_class)
        plan = plan_audit(WHERE, buffer, [Trace.parse(trace)] if trace else [])
        return any(rule in judged.broken for judged in self.worker.judge(plan, found.model_class, "methods"))


@contextmanager
def audited_copy(make: Any) -> Iterator[AuditedCopy]:  # noqa: ANN401  # a class or function
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
        broken = frozenset((row.regime, row.rule, row.trace) for row in verdicts.broken_traces)
        yield AuditedCopy(worker, broken)


def _text_of(module: str, written: set[str]) -> str:
    """Return the text of a module, below the texts of those of ours that it imports."""
    written.add(module)
    lines = inspect.getsource(importlib.import_module(module)).splitlines()
    above = []
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OURS):
            for number in range(node.lineno - 1, node.end_lineno or 0):
                lines[number] = ""
            above += [_text_of(node.module, written)] if node.module not in written else []
    return "\n".join([*above, *lines])


@cache
def _broken_by_growth() -> Broken:
    with audited_copy(buffer_named("reference")) as audited:
        return audited.broken
