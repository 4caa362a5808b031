"""TensorRT-LLM: one buffer for all levels, which the writer of each step zeroes, fills and returns views of.

The views go to the decoder as an argument; a step without visual tokens passes no level at all. The wheel
on the package index is older than this class, and the sdist is a stub, so that a source is a tree of the
user's.  How these parts are called is in `tensorrt_model`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.discover import ArgumentFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.model_class import CalledMethods
from deepstack_harness.sources.source import KnownPackage

_FOLDER = "tensorrt_llm/_torch/models"
_CLASS = "Qwen3VLModelBase"
_REPLAY = "they begin behind the writer of the payload, in the compiled decoder"
INAPPLICABLE: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.ADDRESS: f"its graphs are not driven: {_REPLAY}",
        Rule.REJECTION: (
            "levels are cut out of the encoder's rows, so that the engine makes no call with wrong ones"
        ),
    }
)

TENSORRT_LLM = KnownEngine(
    package=KnownPackage(
        "tensorrt-llm", "TensorRT-LLM", mark="tensorrt_llm/_torch", version_file="tensorrt_llm/version.py"
    ),
    folder=_FOLDER,
    word="extra_embeds",
    since="commit 002f3cc3 at the latest",
    how="one buffer, in a tree of yours: the writer of a step fills it and returns a view of each level",
    payload=ArgumentFiles(
        argument="extra_embeds",
        folder=_FOLDER,
        text=CalledMethods(
            verbs=MappingProxyType(
                {"get": "_fuse_multimodal_embeddings", "set": "after_active_multimodal_embeddings"}
            ),
        ),
        replay=_REPLAY,
        adds="_fuse_multimodal_embeddings",
        reads="deepstack_input_embeds",
        by_family={"qwen3_vl": _CLASS},
    ),
    calls="deepstack_harness.engines.kinds.tensorrt_model:CALLS",
    inapplicable=INAPPLICABLE,
    by_path="its wheel on the index is older, and its sdist a stub",
)
