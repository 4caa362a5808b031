"""Names of families, revisions and callers, and where each is defined (`MODULE:ATTRIBUTE`).

A name is added with one line here.  Nothing is imported before a name is loaded, so that listing
names costs no torch.  Each kind has one typed function that loads its names:

| kind | function |
|---|---|
| revisions and mutants | `deepstack_harness.mutants.by_name.buffer_named` |
| families | `deepstack_harness.families.by_name.family_named` |
| callers | `deepstack_harness.callers.by_name.caller_of` |
| placeholder ranges | `deepstack_harness.ranges.by_name.range_named` |
| dual-stream projections | `deepstack_harness.streams.by_name.dual_stream_named` |
| systems | `deepstack_harness.auditing.systems.system_of` |
| oracles of other packages | `deepstack_harness.oracles.extensions.extra_oracles` |
| figures of other packages | `deepstack_harness.reporting.figures.figures_of` |
"""

from collections.abc import Mapping

from deepstack_harness.catalogue.names import Entry, Names

_FAMILIES = "deepstack_harness.families"
_REVISIONS = "deepstack_harness.revisions"
_CALLERS = "deepstack_harness.callers"
_AUDITING = "deepstack_harness.auditing"
_ORACLES = "deepstack_harness.oracles"

FAMILIES = Names(
    "family",
    {
        "qwen3_vl": Entry(
            f"{_FAMILIES}.qwen3_vl:FAMILY", "Qwen3-VL text decoder, payload added after its first layers"
        ),
        "qwen3_omni_moe_thinker": Entry(
            f"{_FAMILIES}.qwen3_omni_moe_thinker:FAMILY",
            "Qwen3-Omni thinker: Qwen3-VL's decoder with a mixture of experts",
        ),
        "granite4_vision": Entry(
            f"{_FAMILIES}.granite4_vision:FAMILY",
            "Granite 4 Vision text decoder, payload added before its target layers, cut or padded to fit",
        ),
    },
    "families",
)
"""Decoders; their variants are in `deepstack_harness.families.variants`."""

REVISIONS = Names(
    "revision",
    {
        "original": Entry(
            f"{_REVISIONS}.qwen:OriginalBuffer", "vLLM 0.11 .. 0.19.1: no counter, get always slices"
        ),
        "pr40145": Entry(
            f"{_REVISIONS}.qwen:Pr40145Buffer",
            "vLLM 0.20.0, 0.20.1: counter, None when empty, ValueError above it",
        ),
        "pr40932": Entry(
            f"{_REVISIONS}.qwen:Pr40932Buffer", "vLLM 0.20.2 .. 0.22.1: counter, None when empty, no check"
        ),
        "pr43617": Entry(f"{_REVISIONS}.qwen:Pr43617Buffer", "vLLM 0.23.0 .. 0.27: never None, get resizes"),
        "pr49397": Entry(
            f"{_REVISIONS}.qwen:Pr49397Buffer", "vLLM 0.28.0 .. 0.33.0: no buffers without a vision tower"
        ),
        "pr44384": Entry(
            f"{_REVISIONS}.qwen:Pr44384Buffer", "not merged: levels made anew beside the hidden states"
        ),
        "omni_0_22": Entry(
            f"{_REVISIONS}.omni:OmniBuffer",
            "vllm-omni 0.22.0 .. 0.30.0: get zeroes the rows behind the count",
        ),
        "granite_full": Entry(
            f"{_REVISIONS}.granite:GraniteFullBuffer",
            "Granite of vLLM 0.20.0 .. 0.20.2: whole buffers reach the compiled model",
        ),
        "granite_rows": Entry(
            f"{_REVISIONS}.granite:GraniteRowsBuffer",
            "granite_full, and the graph writes back all rows of them",
        ),
        "granite_sliced": Entry(
            f"{_REVISIONS}.granite:GraniteSlicedBuffer", "Granite of vLLM 0.21.0 .. 0.33.0: sliced"
        ),
        "reference": Entry(f"{_REVISIONS}.reference:ReferenceBuffer", "keeps every rule"),
    },
    "revisions",
)
"""Buffers; `deepstack_harness.catalogue.mutants` has the faulty variants of `reference`."""

CALLERS = Names(
    "caller",
    {
        "engine": Entry(f"{_CALLERS}.engine:Engine", "one get, one decode, one clear for each step"),
        "micro_batches": Entry(
            f"{_CALLERS}.micro_batches:MicroBatches", "fault: both halves of a step read from row 0 on"
        ),
        "micro_batches_sliced": Entry(
            f"{_CALLERS}.micro_batches:MicroBatchesSliced", "the payload is read once and cut for each half"
        ),
        "skips_set": Entry(f"{_CALLERS}.payload_faults:SkipsSet", "fault: the payload is never set"),
        "overwrites_payload": Entry(
            f"{_CALLERS}.payload_faults:OverwritesPayload", "fault: the decoder is given None instead"
        ),
        "asks_by_batch_size": Entry(
            f"{_CALLERS}.payload_faults:AsksByBatchSize", "fault: one row is asked for, whatever the tokens"
        ),
        "takes_one_span": Entry(
            f"{_CALLERS}.payload_faults:TakesOneSpan",
            "fault: visual tokens with gaps between get wrong rows",
        ),
        "never_clears": Entry(f"{_CALLERS}.payload_faults:NeverClears", "fault: no step ends a payload"),
        "fixed_level_range": Entry(
            f"{_CALLERS}.payload_faults:FixedLevelRange", "fault: three levels are added, whatever there are"
        ),
        "packs_levels": Entry(
            f"{_CALLERS}.other_layouts:PacksLevels", "the levels are packed behind the embeddings, if any"
        ),
        "splits_levels": Entry(
            f"{_CALLERS}.other_layouts:SplitsLevels", "the decoder cuts every level for ranks, and joins them"
        ),
        "masked_scatter": Entry(
            f"{_CALLERS}.other_layouts:MaskedScatter", "a mask and features, scattered by the decoder"
        ),
        "boolean_index": Entry(
            f"{_CALLERS}.other_layouts:BooleanIndex",
            "fault: a mask and features, which the decoder adds by a boolean index",
        ),
        "ids_while_profiling": Entry(
            f"{_CALLERS}.ids_while_profiling:IdsWhileProfiling",
            "fault: token ids in the profile run, embeddings afterwards",
        ),
        "embeddings_always": Entry(
            f"{_CALLERS}.ids_while_profiling:EmbeddingsAlways", "embeddings in the profile run too"
        ),
        "static_inputs": Entry(
            f"{_CALLERS}.static_inputs:StaticInputs",
            "inputs are slices of storage with as many rows as the buffer",
        ),
        "made_in_float32_on_cpu": Entry(
            f"{_CALLERS}.wrong_placement:MadeInFloat32OnCpu",
            "fault: the buffer is made before the model's dtype and device are in force",
        ),
        "made_in_bfloat16": Entry(
            f"{_CALLERS}.wrong_placement:MadeInBfloat16", "fault: the buffer is made in bfloat16"
        ),
        "made_in_float64": Entry(
            f"{_CALLERS}.wrong_placement:MadeInFloat64", "fault: the buffer is made in float64"
        ),
        "made_on_meta": Entry(
            f"{_CALLERS}.wrong_placement:MadeOnMeta", "fault: the buffer is made on the meta device"
        ),
        "without_vision_tower": Entry(
            f"{_CALLERS}.wrong_placement:WithoutVisionTower",
            "the tower is skipped: the buffer is on meta, or not made where its factory knows that",
        ),
        "payload_not_sharded": Entry(
            f"{_CALLERS}.sharding_faults:PayloadNotSharded",
            "fault: ranks share hidden states, and each adds the whole payload",
        ),
        "payload_sharded_unpadded": Entry(
            f"{_CALLERS}.sharding_faults:PayloadShardedUnpadded",
            "fault: the payload is split by its own size, hidden states by the padded one",
        ),
        "payload_chunked_unpadded": Entry(
            f"{_CALLERS}.sharding_faults:PayloadChunkedUnpadded",
            "fault: the payload is cut by torch.chunk, whose last part is short or missing",
        ),
        "wrong_ranks_rows": Entry(
            f"{_CALLERS}.sharding_faults:WrongRanksRows", "fault: each rank adds its neighbour's payload"
        ),
        "pipeline_stages": Entry(
            f"{_CALLERS}.pipeline:PipelineStages", "two stages, levels sent to the one that has their layers"
        ),
        "pipeline_loses_levels": Entry(
            f"{_CALLERS}.pipeline:PipelineLosesLevels",
            "fault: two stages, levels of the second one's layers are lost",
        ),
        "pipeline_refused": Entry(
            f"{_CALLERS}.pipeline:PipelineRefused", "two stages, refused where levels would be lost"
        ),
        "order_of_additions": Entry(
            f"{_CALLERS}.order_of_additions:OrderOfAdditions",
            "fault: the payload is added in another order than in the reference",
        ),
        "state_in_trace": Entry(
            f"{_CALLERS}.state_in_trace:StateInTrace",
            "fault: the compiled decoder reads the count of tokens from an attribute",
        ),
        "payload_on_model": Entry(
            f"{_CALLERS}.payload_on_model:PayloadOnModel",
            "fault: the compiled decoder reads the payload from an attribute",
        ),
    },
    "callers",
)
"""Code that drives a buffer and a decoder; `REVISION@CALLER` names one that is not the correct engine."""

SYSTEMS = Names(
    "system",
    {
        "placeholder_ranges": Entry(
            f"{_AUDITING}.ranges_and_streams:PlaceholderRanges",
            "which tokens of a placeholder receive embeddings",
        ),
        "dual_stream": Entry(
            f"{_AUDITING}.ranges_and_streams:DualStreams", "two projections of one input on two streams"
        ),
        "kernels": Entry(
            f"{_AUDITING}.kernel_incidents:Kernels", "code generated for a decoder with its buffer"
        ),
    },
)
"""Systems beside the buffer, whose incidents play no trace; each is an `auditing.systems.System`."""

SYSTEMS_OF_SOURCES = ("placeholder_ranges", "dual_stream")
"""Systems that a vLLM source has code of, which `audit` judges too."""

ORACLES_BESIDE: Mapping[str, Entry] = {
    "R10": Entry(f"{_ORACLES}.kernels:judge", "rows, sizes and bytes of generated kernels"),
    "R12": Entry(f"{_ORACLES}.ranges:judge", "wrong answers of a placeholder range"),
    "R13": Entry(f"{_ORACLES}.ordering:judge", "pairs that nothing orders, other results, surplus subgraphs"),
    "R14": Entry(f"{_ORACLES}.memory:judge", "bytes outside of tensors, rows of memory never written"),
}
"""Oracles of the systems beside the buffer, whose own oracles are in `oracles.all_rules`."""

EXTRA_ORACLES = Names("oracle", {}, "oracles")
"""Oracles of other packages; `deepstack_harness.oracles.extensions` says what they may do."""

EXTRA_FIGURES = Names("figure", {}, "figures")
"""Figures of the report that other packages declare: functions from RunData to Figure."""
