"""ms-swift, mbridge and Megatron-Bridge: they train, and split mask and levels of a step over ranks.

Nothing is stored between steps, and no graph is captured. Only R9 applies: whether the parts of all ranks
are the whole payload.  How the functions are called is in `splitter_model`.
"""

from types import MappingProxyType

from deepstack_harness.engines.discover import SplitFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.model_class import CalledMethods
from deepstack_harness.sources.source import KnownPackage

_MEGATRON = "split_deepstack_embs"
_HOW = "mask and levels of a training step, split over tensor-parallel ranks (R9 alone)"
_MEGATRON_CALLS = "deepstack_harness.engines.kinds.splitter_model:MEGATRON_CALLS"
_BRIDGE = "megatron/bridge/models/qwen_vl/modelling_qwen3_vl"

MS_SWIFT = KnownEngine(
    package=KnownPackage(
        "ms-swift", "ms-swift", mark="swift/trainers", version_file="swift/version.py"
    ),
    folder="swift/model/models",
    word="deepstack",
    since="3.10",
    how="mask and levels of a training step, split over sequence-parallel ranks (R9 alone)",
    payload=SplitFiles(
        folders=("swift/model/models", "swift/llm/model/model"),  # the second up to 3.12
        function="_patch_deepstack_process",
        class_folders=("swift/sequence_parallel", "swift/trainers/sequence_parallel"),
        class_name="SequenceParallel",
        called=CalledMethods(
            verbs=MappingProxyType({"get": "pad_and_split_mm_tokens"}),
            provided=frozenset(
                {
                    "causal_mask_func", "extra_kwargs", "model_dtype", "rp_rank", "rp_world_size",
                    "sp_rank", "sp_world_size", "tokenizer", "world_size",
                }
            ),
            init=False,
        ),
    ),
    calls="deepstack_harness.engines.kinds.splitter_model:SWIFT_CALLS",
)  # fmt: skip
MBRIDGE = KnownEngine(
    package=KnownPackage("mbridge", "mbridge", mark="mbridge/models/ext", version_file="mbridge/__init__.py"),
    folder="mbridge/models/qwen3_vl",
    word=_MEGATRON,
    since="commit 3b7e9cb1 at the latest, and in no release up to 0.15.1",
    how=_HOW,
    payload=SplitFiles(("mbridge/models/qwen3_vl",), _MEGATRON),
    calls=_MEGATRON_CALLS,
)
MEGATRON_BRIDGE = KnownEngine(
    package=KnownPackage(
        "megatron-bridge", "Megatron-Bridge", mark="megatron/bridge",
        version_file="megatron/bridge/package_info.py",
    ),
    folder=_BRIDGE,
    word=_MEGATRON,
    since="0.3",
    how=_HOW,
    payload=SplitFiles((_BRIDGE,), _MEGATRON),
    calls=_MEGATRON_CALLS,
)  # fmt: skip
SPLITTING = (MS_SWIFT, MBRIDGE, MEGATRON_BRIDGE)
