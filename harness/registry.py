"""Names of families, revisions, arms and oracles -> `module:attr`, resolved when used.

Adding a thing is one file and one line here.  Nothing is imported until it is
asked for, so that listing costs no torch.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """Where a named thing lives (`module:attr`), and one line that describes it."""

    target: str
    summary: str


FAMILIES: Mapping[str, Entry] = {
    "qwen3_vl": Entry(
        "harness.families.qwen3_vl:FAMILY", "Qwen3-VL text decoder, payload added after its first layers"
    ),
}

REVISIONS: Mapping[str, Entry] = {
    "original": Entry(
        "harness.revisions.original:OriginalBuffer", "vLLM 0.11 .. 0.19.1: no counter, get always slices"
    ),
    "pr40145": Entry(
        "harness.revisions.pr40145:Pr40145Buffer",
        "vLLM 0.20.0, 0.20.1: counter, None when empty, ValueError above it",
    ),
    "pr40932": Entry(
        "harness.revisions.pr40932:Pr40932Buffer", "vLLM 0.20.2 .. 0.22.1: counter, None when empty, no check"
    ),
    "pr43617": Entry(
        "harness.revisions.pr43617:Pr43617Buffer", "vLLM 0.23.0 .. 0.27: never None, get resizes"
    ),
    "pr49397": Entry(
        "harness.revisions.pr49397:Pr49397Buffer", "vLLM 0.28.0 .. 0.33.0: no buffers without a vision tower"
    ),
    "reference": Entry("harness.revisions.reference:ReferenceBuffer", "keeps every rule"),
}

MUTANTS: Mapping[str, Entry] = {
    "none_when_empty": Entry("harness.mutants.none_when_empty:NoneWhenEmpty", "R1"),
    "levels_swapped": Entry("harness.mutants.levels_swapped:LevelsSwapped", "R2"),
    "stale_after_shorter_set": Entry("harness.mutants.stale_after_shorter_set:StaleAfterShorterSet", "R3"),
    "keeps_callers_tensor": Entry("harness.mutants.keeps_callers_tensor:KeepsCallersTensor", "R3"),
    "growth_loses_payload": Entry("harness.mutants.growth_loses_payload:GrowthLosesPayload", "R4"),
    "clears_one_row_too_few": Entry("harness.mutants.clears_one_row_too_few:ClearsOneRowTooFew", "R5"),
    "moves_unannounced": Entry("harness.mutants.moves_unannounced:MovesUnannounced", "R6"),
    "copies_on_get": Entry("harness.mutants.copies_on_get:CopiesOnGet", "R6"),
    "dtype_lost_on_resize": Entry("harness.mutants.dtype_lost_on_resize:DtypeLostOnResize", "R7"),
    "broadcasts_hidden": Entry("harness.mutants.broadcasts_hidden:BroadcastsHidden", "R8"),
    "rejects_after_clearing": Entry("harness.mutants.rejects_after_clearing:RejectsAfterClearing", "R8"),
}
"""Faulty variants of `reference`; the summary is the rule each one breaks."""

SESSIONS: Mapping[str, Entry] = {
    "eager": Entry("harness.arms.eager:open_session", "not compiled; the controls too"),
    "compiled": Entry("harness.arms.compile:open_session", "torch.compile with a guard and a shape policy"),
}

ORACLES: Mapping[str, Entry] = {
    "R0": Entry("harness.oracles.output:judge", "distance of compiled to eager"),
    "R1": Entry("harness.oracles.structure:judge", "answers that are None or lack a level"),
    "R2": Entry("harness.oracles.contract:boundary", "wrong rows, counts and exceptions within the capacity"),
    "R3": Entry("harness.oracles.contract:freshness", "rows of a replaced payload"),
    "R4": Entry("harness.oracles.contract:capacity", "rows lost or short above the capacity"),
    "R5": Entry("harness.oracles.contract:clear", "rows of a cleared payload"),
    "R6": Entry("harness.oracles.address:judge", "storage that moved unannounced"),
    "R7": Entry("harness.oracles.placement:judge", "levels in another dtype or on another device"),
    "R8": Entry(
        "harness.oracles.contract:rejection", "bad calls accepted, or rejected with the state changed"
    ),
    "R11": Entry("harness.oracles.graphs:judge", "graphs built against the budget, breaks, fall-back"),
}


def resolve(kind: str, names: Mapping[str, Entry], name: str) -> object:
    """Import what `name` stands for; `kind` is used in the error only.

    Raises `UsageError` that quotes an unknown name and lists the known ones.
    """
    if name not in names:
        raise UsageError(f"unknown {kind} '{name}'; known are {', '.join(names)}")
    module, attribute = names[name].target.split(":")
    found: object = getattr(importlib.import_module(module), attribute)
    return found
