"""The buffer of Qwen3-Omni's thinker in vllm-omni, which has a copy of vLLM's own with other semantics.

Read in `vllm_omni/model_executor/models/qwen3_omni/qwen3_omni_moe_thinker.py` of 0.30.0 (lines 1142 to
1226); 0.22.0 is the first release whose get has this form.
"""

from torch import Tensor
from typing_extensions import override

from deepstack_harness.revisions.qwen import OriginalBuffer, Pr43617Buffer


class OmniBuffer(Pr43617Buffer):
    """vllm-omni 0.22.0 .. 0.30.0: get zeroes the rows behind the count before it answers.

    No row of an earlier payload is read that way.  A graph that was captured with a count of 0 has the
    zeroing of all rows in it, and erases what set wrote at each replay.
    """

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Zero rows [N, tokens), and return (tokens, hidden) per level; growth loses the payload."""
        if tokens > self.capacity:
            self.resize(tokens)
        if tokens > self._tokens_set:
            for level in self._levels:
                level[self._tokens_set : tokens].zero_()
        return OriginalBuffer.get(self, tokens)
