"""Incidents of generated code: each variant compiled for a decode step, its kernels judged by R10."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.auditing.systems import JudgedSubject, must_break
from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.kernels.in_worker import measure
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.oracles import kernels
from deepstack_harness.oracles.base import error
from deepstack_harness.oracles.effect import effect_of

_SLICED = Subject("granite4_vision", "granite_sliced", tokens=77, capacity=8192, profile_tokens=8192)
VARIANTS: Mapping[str, Subject] = {
    # Traced with as many rows as the buffer has, both sizes would be one symbol; so the code alone tells.
    "granite_rows": replace(_SLICED, revision="granite_rows", profile_tokens=512),
    "granite_full": replace(_SLICED, revision="granite_full"),
    "granite_full_cut_in_graph": replace(_SLICED, revision="granite_full", profile_tokens=512),
    "granite_sliced": _SLICED,
}
"""Revisions in the run that shows them; traced below the capacity, `granite_full` is cut in the graph."""


class Kernels:
    """R10, of code generated for the CPU; nothing of it is run."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant; one child measures all."""
        subjects = [_variant(name) for name in incident.revisions]
        for name, subject, (said, seen) in zip(incident.revisions, subjects, _judged(subjects), strict=True):
            row = _row(incident, name, subject, said, seen)
            yield JudgedSubject(name, must_break(incident, name), (row,), _figures(seen) if seen else "")

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Raise `UsageError`: no class of a source is compiled here."""
        raise UsageError(
            f"incident {incident.id} is about code generated for decoders of ours, "
            f"and no class of {worker.source.label} is compiled for it: leave --source out"
        )


def _variant(name: str) -> Subject:
    if name not in VARIANTS:
        raise UsageError(f"unknown variant '{name}' of system kernels; known are {', '.join(VARIANTS)}")
    return VARIANTS[name]


def _judged(subjects: Sequence[Subject]) -> list[tuple[Judgement, Measurement | None]]:
    try:
        found = measure(subjects)
    except NotMeasured as why:
        return [(error(Rule.R10, str(why)), None) for _ in subjects]
    pairs = zip(subjects, found, strict=True)
    return [(kernels.judge(seen.calls, subject.tokens), seen) for subject, seen in pairs]


def _figures(seen: Measurement) -> str:
    call = seen.calls[-1]
    size = (
        f"{call.largest.points:,} points ({call.largest.symbolic_points}, n = {call.symbols.get('n', '-')})"
    )
    return f"{len(call.generated)} generated kernels, the largest has {size}"


def _row(incident: Incident, name: str, subject: Subject, said: Judgement, seen: Measurement | None) -> Row:
    arm = ArmSpec.parse(subject.arm)
    return Row(
        incident=incident.id, system=incident.system, family=seen.family if seen else subject.family,
        revision=name, arm=arm.name, guard_policy=arm.guards, shape_policy=arm.shapes, backend=arm.backend,
        capture=arm.capture, dtype=subject.dtype, rule=said.rule, verdict=said.verdict, value=said.value,
        limit=said.limit, unit=said.unit, effect=effect_of(said), detail=said.detail,
        torch=seen.torch if seen else "",
    )  # fmt: skip
