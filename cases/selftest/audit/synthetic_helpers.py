"""Small sources in the shape of vLLM's two neighbours: the same names and signatures, none of its code."""

import textwrap
import zipfile
from pathlib import Path

RANGES = "vllm/multimodal/inputs.py"
HELPERS = "vllm/utils/multi_stream_utils.py"

RANGE_FILE = '''\
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
'''

HELPER_FILE = '''\
"""A file of helpers."""
import torch

from vllm.streams import unneeded


def maybe_execute_in_parallel(fn0, fn1, event0, event1, aux_stream=None):
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture

    if aux_stream is None or BreakableCUDAGraphCapture.is_active():
        return fn0(), fn1()
    event0.record()
    with torch.cuda.stream(aux_stream):
        event0.wait()
        second = fn1()
        event1.record()
    first = fn0()
    event1.wait()
    return first, second
'''


def source(folder: Path, **files: str) -> Path:
    """A tree with `ranges` and `helpers` as the texts of the two files, where they are given."""
    (folder / "vllm/model_executor").mkdir(parents=True)
    members = {"ranges": RANGES, "helpers": HELPERS}
    for name, text in files.items():
        path = folder / members[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def zipped(tree: Path, archive: Path) -> Path:
    """A tree as one file."""
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(tree.rglob("*")):
            file.write(path, path.relative_to(tree))
    return archive
