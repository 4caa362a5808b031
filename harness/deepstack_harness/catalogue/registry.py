"""Names of families, revisions, arms and oracles -> `module:attr`, resolved when used.

Adding a thing is one file and one line here.  Nothing is imported until it is
asked for, so that listing costs no torch.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """Where a named thing lives (`module:attr`), and one line that describes it."""

    target: str
    summary: str
    variants: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Of a family: name of a variant (`FAMILY:VARIANT`) -> one line that describes it."""


_ATTENTION = {
    "written_out": "attention operation by operation, so that sizes may be unbacked",
    "opaque": "attention in an opaque op, as in engines, which counts the rows it is given",
}
FAMILIES: Mapping[str, Entry] = {
    "qwen3_vl": Entry(
        "deepstack_harness.families.qwen3_vl:FAMILY",
        "Qwen3-VL text decoder, payload added after its first layers",
        variants={
            **_ATTENTION,
            "payload_into_mlp": "payload added to the feed-forward's answer first, as vLLM and sglang do",
            "payload_into_residual": "payload added before the feed-forward's answer",
            "2b": "the sizes of Qwen3-VL-2B, 4 layers of 28",
        },
    ),
    "qwen3_omni_moe_thinker": Entry(
        "deepstack_harness.families.qwen3_omni_moe_thinker:FAMILY",
        "Qwen3-Omni thinker: Qwen3-VL's decoder with a mixture of experts",
        variants={
            **_ATTENTION,
            "30b_a3b": "the sizes of Qwen3-Omni-30B-A3B, 3 layers of 48, 1.9 billion weights",
        },
    ),
    "granite4_vision": Entry(
        "deepstack_harness.families.granite4_vision:FAMILY",
        "Granite 4 Vision text decoder, payload added before its target layers, cut or padded to fit",
        variants={
            **_ATTENTION,
            "hidden_first": "reads the size of the hidden states first, as vLLM does (the default)",
            "payload_first": "reads the size of the payload first",
        },
    ),
}

REVISIONS: Mapping[str, Entry] = {
    "original": Entry(
        "deepstack_harness.revisions.original:OriginalBuffer",
        "vLLM 0.11 .. 0.19.1: no counter, get always slices",
    ),
    "pr40145": Entry(
        "deepstack_harness.revisions.pr40145:Pr40145Buffer",
        "vLLM 0.20.0, 0.20.1: counter, None when empty, ValueError above it",
    ),
    "pr40932": Entry(
        "deepstack_harness.revisions.pr40932:Pr40932Buffer",
        "vLLM 0.20.2 .. 0.22.1: counter, None when empty, no check",
    ),
    "pr43617": Entry(
        "deepstack_harness.revisions.pr43617:Pr43617Buffer", "vLLM 0.23.0 .. 0.27: never None, get resizes"
    ),
    "pr49397": Entry(
        "deepstack_harness.revisions.pr49397:Pr49397Buffer",
        "vLLM 0.28.0 .. 0.33.0: no buffers without a vision tower",
    ),
    "pr44384": Entry(
        "deepstack_harness.revisions.pr44384:Pr44384Buffer",
        "not merged: levels made anew beside the hidden states",
    ),
    "granite_full": Entry(
        "deepstack_harness.revisions.granite_full:GraniteFullBuffer",
        "Granite of vLLM 0.20.0 .. 0.20.2: whole buffers reach the compiled model",
    ),
    "granite_rows": Entry(
        "deepstack_harness.revisions.granite_rows:GraniteRowsBuffer",
        "granite_full, and the graph writes back all rows of them",
    ),
    "granite_sliced": Entry(
        "deepstack_harness.revisions.granite_sliced:GraniteSlicedBuffer",
        "Granite of vLLM 0.21.0 .. 0.33.0: sliced",
    ),
    "reference": Entry("deepstack_harness.revisions.reference:ReferenceBuffer", "keeps every rule"),
}

# A mutant `some_fault` is the class SomeFault in `harness/deepstack_harness/mutants/some_fault.py`.
_BREAKS = {
    "R1": (
        "none_when_empty", "none_for_no_tokens", "none_once_after_clear", "no_levels_when_empty",
        "level_missing_for_one_token", "none_on_third_get",
    ),
    "R2": (
        "levels_swapped", "levels_aliased", "forgets_a_level", "loses_last_token", "rows_shifted",
        "one_row_short_at_capacity", "one_row_too_many", "padding_not_zeroed", "loses_single_token",
        "loses_token_at_multiples_of_16", "levels_swapped_after_eight_sets", "rounds_payload",
        "refuses_padding", "refuses_full_capacity", "clear_checks_padded_count", "appends_after_clear",
    ),
    "R3": (
        "stale_after_shorter_set", "stale_row_after_shorter_set", "stale_level_after_shorter_set",
        "empty_set_ignored", "keeps_callers_tensor", "defers_copy",
    ),
    "R4": (
        "growth_loses_payload", "growth_loses_last_token", "growth_forgets_a_level",
        "growth_padding_not_zeroed", "growth_one_row_short", "answers_up_to_capacity",
        "set_cut_to_capacity", "resize_cuts_payload", "shrinking_loses_payload",
        "refuses_growth_after_clearing",
    ),
    "R5": (
        "clears_one_row_too_few", "counter_reset_too_early", "clear_forgets_a_level",
        "clear_of_nothing_ignored", "third_clear_ignored", "resize_revives_cleared",
        "clears_by_counter", "clears_through_numpy", "recorded_clear_one_row_short",
    ),
    "R6": (
        "moves_unannounced", "announces_late", "copies_on_get", "rebinds_on_set", "moves_one_level",
        "alternates_storage", "moves_on_clear", "frees_on_resize", "frees_older_generations",
        "allocates_on_clear", "allocates_on_get",
    ),
    "R7": (
        "dtype_lost_on_resize", "dtype_lost_on_set", "one_level_in_float64", "device_lost_on_resize",
    ),
    "R8": (
        "broadcasts_hidden", "rejects_after_clearing", "rejects_after_copying",
        "rejects_get_after_clearing", "accepts_negative_get", "accepts_negative_clear",
        "accepts_negative_resize", "accepts_extra_levels", "accepts_missing_levels",
    ),
    "R11": ("lists_and_tuples", "stride_follows_capacity", "gradients_when_set"),
}  # fmt: skip
MUTANTS: Mapping[str, Entry] = {
    name: Entry(f"deepstack_harness.mutants.{name}:{''.join(map(str.title, name.split('_')))}", rule)
    for rule, names in _BREAKS.items()
    for name in names
}
"""Faulty variants of `reference`; the summary is the rule each one breaks."""

MUTANT_ARMS: Mapping[str, str] = {
    "clears_by_counter": "eager/full",
    "clears_through_numpy": "eager/full",
    "recorded_clear_one_row_short": "eager/full",
    "frees_on_resize": "eager/full",
    "frees_older_generations": "eager/full",
    "allocates_on_clear": "eager/full",
    "allocates_on_get": "eager/full",
    "lists_and_tuples": "eager/stock",
    "stride_follows_capacity": "eager/stock",
    "gradients_when_set": "eager/stock",
}
"""Mutants whose fault an uncompiled run does not show -> the name of an arm that does."""

CALLERS: Mapping[str, Entry] = {
    "engine": Entry(
        "deepstack_harness.callers.engine:Engine", "one get, one decode, one clear for each step"
    ),
    "micro_batches": Entry(
        "deepstack_harness.callers.micro_batches:MicroBatches",
        "fault: both halves of a step read from row 0 on",
    ),
    "micro_batches_sliced": Entry(
        "deepstack_harness.callers.micro_batches:MicroBatchesSliced",
        "the payload is read once and cut for each half",
    ),
    "skips_set": Entry("deepstack_harness.callers.lost_payload:SkipsSet", "fault: the payload is never set"),
    "overwrites_payload": Entry(
        "deepstack_harness.callers.lost_payload:OverwritesPayload", "fault: the decoder is given None instead"
    ),
    "asks_by_batch_size": Entry(
        "deepstack_harness.callers.lost_payload:AsksByBatchSize",
        "fault: one row is asked for, whatever the tokens",
    ),
    "takes_one_span": Entry(
        "deepstack_harness.callers.one_span:TakesOneSpan",
        "fault: visual tokens with gaps between get wrong rows",
    ),
    "ids_while_profiling": Entry(
        "deepstack_harness.callers.ids_while_profiling:IdsWhileProfiling",
        "fault: token ids in the profile run, embeddings afterwards",
    ),
    "embeddings_always": Entry(
        "deepstack_harness.callers.ids_while_profiling:EmbeddingsAlways", "embeddings in the profile run too"
    ),
    "static_inputs": Entry(
        "deepstack_harness.callers.static_inputs:StaticInputs",
        "inputs are slices of storage with as many rows as the buffer",
    ),
    "made_in_float32_on_cpu": Entry(
        "deepstack_harness.callers.wrong_placement:MadeInFloat32OnCpu",
        "fault: the buffer is made before the model's dtype and device are in force",
    ),
    "made_in_bfloat16": Entry(
        "deepstack_harness.callers.wrong_placement:MadeInBfloat16", "fault: the buffer is made in bfloat16"
    ),
    "made_in_float64": Entry(
        "deepstack_harness.callers.wrong_placement:MadeInFloat64", "fault: the buffer is made in float64"
    ),
    "made_on_meta": Entry(
        "deepstack_harness.callers.wrong_placement:MadeOnMeta", "fault: the buffer is made on the meta device"
    ),
    "without_vision_tower": Entry(
        "deepstack_harness.callers.wrong_placement:WithoutVisionTower",
        "the tower is skipped: the buffer is on meta, or not made where its factory knows that",
    ),
    "payload_not_sharded": Entry(
        "deepstack_harness.callers.sharding_faults:PayloadNotSharded",
        "fault: ranks share hidden states, and each adds the whole payload",
    ),
    "payload_sharded_unpadded": Entry(
        "deepstack_harness.callers.sharding_faults:PayloadShardedUnpadded",
        "fault: the payload is split by its own size, hidden states by the padded one",
    ),
    "wrong_ranks_rows": Entry(
        "deepstack_harness.callers.sharding_faults:WrongRanksRows",
        "fault: each rank adds its neighbour's payload",
    ),
    "pipeline_stages": Entry(
        "deepstack_harness.callers.pipeline:PipelineStages",
        "two stages, levels sent to the one that has their layers",
    ),
    "pipeline_loses_levels": Entry(
        "deepstack_harness.callers.pipeline:PipelineLosesLevels",
        "fault: two stages, levels of the second one's layers are lost",
    ),
    "pipeline_refused": Entry(
        "deepstack_harness.callers.pipeline:PipelineRefused", "two stages, refused where levels would be lost"
    ),
    "order_of_additions": Entry(
        "deepstack_harness.callers.order_of_additions:OrderOfAdditions",
        "fault: the payload is added in another order than in the reference",
    ),
    "state_in_trace": Entry(
        "deepstack_harness.callers.state_in_trace:StateInTrace",
        "fault: the compiled decoder reads the count of tokens from an attribute",
    ),
}
"""How a buffer and a decoder are driven; `REVISION@CALLER` where it is not a correct engine."""

SYSTEMS: Mapping[str, Entry] = {
    "placeholder_ranges": Entry(
        "deepstack_harness.auditing.ranges_and_streams:PlaceholderRanges",
        "which tokens of a placeholder receive embeddings",
    ),
    "dual_stream": Entry(
        "deepstack_harness.auditing.ranges_and_streams:DualStreams",
        "two projections of one input on two streams",
    ),
    "kernels": Entry(
        "deepstack_harness.auditing.kernel_incidents:Kernels", "code generated for a decoder with its buffer"
    ),
}
"""Systems beside the buffer whose incidents play no trace: `auditing.systems.System` each."""

SYSTEMS_OF_SOURCES = ("placeholder_ranges", "dual_stream")
"""Those that a vLLM source has something of, which `audit` judges too."""

ORACLES: Mapping[str, Entry] = {
    "R0": Entry("deepstack_harness.oracles.output:judge", "distance of compiled to eager"),
    "R1": Entry("deepstack_harness.oracles.structure:judge", "answers that are None or lack a level"),
    "R2": Entry(
        "deepstack_harness.oracles.contract:boundary", "wrong rows, counts and exceptions within the capacity"
    ),
    "R3": Entry("deepstack_harness.oracles.contract:freshness", "rows of a replaced payload"),
    "R4": Entry("deepstack_harness.oracles.contract:capacity", "rows lost or short above the capacity"),
    "R5": Entry("deepstack_harness.oracles.contract:clear", "rows of a cleared payload"),
    "R6": Entry("deepstack_harness.oracles.address:judge", "storage that moved unannounced"),
    "R7": Entry("deepstack_harness.oracles.placement:judge", "levels in another dtype or on another device"),
    "R8": Entry(
        "deepstack_harness.oracles.contract:rejection",
        "bad calls accepted, or rejected with the state changed",
    ),
    "R9": Entry(
        "deepstack_harness.oracles.sharding:judge", "rows of another rank, outputs off the unsharded run"
    ),
    "R10": Entry(
        "deepstack_harness.oracles.work:judge",
        "rows that opaque attention processed, against those asked for",
    ),
    "R11": Entry(
        "deepstack_harness.oracles.graphs:judge", "graphs built against the budget, breaks, fall-back"
    ),
}
"""Oracles of the buffer: of a case and its observation."""

ORACLES_BESIDE: Mapping[str, Entry] = {
    "R10": Entry("deepstack_harness.oracles.kernels:judge", "rows, sizes and bytes of generated kernels"),
    "R12": Entry("deepstack_harness.oracles.ranges:judge", "wrong answers of a placeholder range"),
    "R13": Entry(
        "deepstack_harness.oracles.ordering:judge",
        "pairs that nothing orders, other results, surplus subgraphs",
    ),
}
"""Oracles of the systems beside it, each of an observation of its own kind."""


def resolve(kind: str, names: Mapping[str, Entry], name: str) -> object:
    """Import what `name` stands for; `kind` is used in the error only.

    Raises `UsageError` that quotes an unknown name and lists the known ones.
    """
    if name not in names:
        raise UsageError(f"unknown {kind} '{name}'; known are {', '.join(names)}")
    module, attribute = names[name].target.split(":")
    found: object = getattr(importlib.import_module(module), attribute)
    return found
