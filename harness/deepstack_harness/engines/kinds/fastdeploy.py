"""FastDeploy: vLLM's buffer of 0.11 under vLLM's names, made of Paddle tensors.

Its GPU wheels are not on the package index, where the name belongs to another project, so that a source is a
tree of the user's. Methods are called as vLLM's are; `fastdeploy_model` has torch in place of Paddle.
"""

from deepstack_harness.engines.engine import KnownEngine, StoredPayload
from deepstack_harness.engines.model_class import ModelClass
from deepstack_harness.sources.source import KnownPackage

_SINCE = "commit 0003e60b at the latest"
_FOLDER = "fastdeploy/model_executor/models/qwen3_vl"

FASTDEPLOY = KnownEngine(
    package=KnownPackage(
        "fastdeploy",
        "FastDeploy",
        # vLLM's package folder has model_executor/ too.
        mark="fastdeploy/inter_communicator",
        version_file="fastdeploy/version.txt",
    ),
    folder=_FOLDER,
    word="deepstack",
    since=_SINCE,
    how="a buffer of Paddle tensors, in a tree of yours: forward sets, gets and clears it",
    payload=StoredPayload(
        {"qwen3_vl": ModelClass(f"{_FOLDER}/qwen3_vl.py", "Qwen3VLForConditionalGeneration", since=_SINCE)},
        payload_argument="deepstack_inputs",
        forward=None,  # it makes the payload with operators that only Paddle has
    ),
    calls="deepstack_harness.engines.kinds.fastdeploy_model:CALLS",
    by_path="the index has another project of this name",
)
