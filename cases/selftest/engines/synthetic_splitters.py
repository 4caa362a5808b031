"""Small sources in the shape of ms-swift and Megatron-Bridge: their names, and nothing of their code."""

from collections.abc import Mapping

PATCH = "swift/model/models/qwen.py"
PARALLEL = "swift/sequence_parallel/sequence_parallel.py"
BRIDGE = "megatron/bridge/models/qwen_vl/modelling_qwen3_vl/utils.py"
MBRIDGE = "mbridge/models/qwen3_vl/utils.py"

PATCH_FILE = '''\
"""Model loaders."""
from types import MethodType

from swift.utils import get_logger


def _patch_deepstack_process(model):
    def _deepstack_process(self, hidden_states, visual_pos_masks, visual_embeds):
        from swift.sequence_parallel import sequence_parallel as ranks

        if visual_pos_masks is None:
            return hidden_states
        if ranks.world_size > 1:
            visual_pos_masks, visual_embeds = ranks.pad_and_split_mm_tokens(visual_pos_masks, visual_embeds)
        out = hidden_states.clone()
        out[visual_pos_masks] += visual_embeds
        return out

    model._deepstack_process = MethodType(_deepstack_process, model)
'''
PARALLEL_FILE = '''\
"""Ranks that share a sequence."""
import torch
import torch.distributed as dist


class SequenceParallel:
    def __init__(self):
        self.device_mesh = None

    @property
    def sp_rank(self):
        return dist.get_rank(self.device_mesh["sequence"].get_group())

    def _padded(self, rows):
        missing = -rows.shape[1] % self.world_size
        return torch.cat([rows, rows.new_zeros(1, missing, *rows.shape[2:])], dim=1)

    def _mine(self, rows):
        return self._padded(rows).chunk(self.sp_world_size, dim=1)[self.sp_rank]

    def pad_and_split_mm_tokens(self, visual_mask, mm_embeds):
        dense = mm_embeds.new_zeros(*self.extra_kwargs["input_ids"].shape, mm_embeds.shape[-1])
        dense[visual_mask] = mm_embeds
        mask = self._mine(visual_mask)
        return mask, self._mine(dense)[mask]


sequence_parallel = SequenceParallel()
'''
SPLIT_FILE = '''\
"""Utilities."""
import torch
from megatron.core.packed_seq_params import PackedSeqParams


def _first_rows(mask, parts):
    counts = [0] + [int(part.sum()) for part in mask.chunk(parts, dim=-1)]
    return torch.tensor(counts).cumsum(0).tolist()


def split_deepstack_embs(
    visual_pos_masks, deepstack_visual_embeds, tp_size=1, tp_rank=0, cp_size=1, cp_rank=0,
    sequence_parallel=False,
):
    if not sequence_parallel or visual_pos_masks is None:
        return visual_pos_masks, deepstack_visual_embeds
    first = _first_rows(visual_pos_masks, tp_size)
    mine = slice(first[tp_rank], first[tp_rank + 1])
    return visual_pos_masks.chunk(tp_size, dim=-1)[tp_rank], [rows[mine] for rows in deepstack_visual_embeds]
'''


def swift_files(*, patch: str = PATCH_FILE, parallel: str = PARALLEL_FILE) -> Mapping[str, str]:
    """Return the files of a source of ms-swift."""
    return {
        "swift/__init__.py": "",
        "swift/trainers/__init__.py": "",
        "swift/version.py": "__version__ = '4.6.0'\n",
        PATCH: patch,
        "swift/sequence_parallel/__init__.py": "from .sequence_parallel import sequence_parallel\n",
        PARALLEL: parallel,
    }


def megatron_files(text: str = SPLIT_FILE, member: str = BRIDGE) -> Mapping[str, str]:
    """Return the files of a source of Megatron-Bridge, or of mbridge."""
    return {member: text, "mbridge/models/ext/__init__.py": ""} if member == MBRIDGE else {member: text}
