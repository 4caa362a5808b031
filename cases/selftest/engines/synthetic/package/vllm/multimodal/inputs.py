"""A file of inputs."""

from dataclasses import dataclass
from functools import cached_property

from vllm.utils.loading import Lazily

torch = Lazily("torch")
NOTHING = 0


class Other:
    nothing = Lazily


@dataclass(frozen=True)
class PlaceholderRange:
    offset: int
    length: int
    is_embed: "torch.Tensor | None" = None

    @cached_property
    def embeds_cumsum(self) -> "list[int] | None":
        return None if self.is_embed is None else torch.cumsum(self.is_embed, 0).tolist()

    def get_num_embeds(self) -> int:
        return self._before(self.length)

    def get_embeds_indices_in_range(self, start_idx, end_idx):
        return self._before(start_idx), self._before(end_idx)

    def _before(self, index):
        if self.embeds_cumsum is None:
            return index
        return self.embeds_cumsum[index - 1] if index else NOTHING
