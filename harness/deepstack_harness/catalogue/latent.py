"""Arguments for `latent`: why no order of an engine leads to a fault, with file and line.

Without one a fault that no order shows has reach `unknown`.  Lines are those of vLLM 0.32.0 where
no release is named.
"""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule

_WITHIN_BUDGET = (
    "buffers have max_num_batched_tokens rows (models/qwen3_vl.py:2032, granite4_vision.py:568), and no step "
    "has more tokens (v1/core/sched/scheduler.py:611) or is padded above them"
)
_ARGUMENTS: Mapping[str, Mapping[Rule, str]] = MappingProxyType(
    {
        "vllm": {
            Rule.R3: (
                "set takes all rows of a step, zeros of text included (models/qwen3_vl.py:3161), and each "
                "embed is followed by the forward of its step (v1/worker/gpu_model_runner.py:3342, :4207)"
            ),
            Rule.R4: _WITHIN_BUDGET,
            Rule.R6: f"storage moves where a call is above the capacity only; {_WITHIN_BUDGET}",
            Rule.R8: (
                "get and clear are given the rows of a tensor (models/qwen3_vl.py:3202, :3217), and set a "
                "payload of the class's own (:3161)"
            ),
        },
        "vllm-ascend": {
            Rule.R9: (
                "the runner pads a step to a multiple of the ranks where they share it "
                "(vllm_ascend/worker/model_runner_v1.py:2876 and :2949 in 0.23.0.post1)"
            ),
        },
    }
)


def latent_argument(package: str, rule: Rule) -> str | None:
    """Return why no order of an engine breaks a rule; None where nobody has argued that."""
    return _ARGUMENTS.get(package, {}).get(rule)
