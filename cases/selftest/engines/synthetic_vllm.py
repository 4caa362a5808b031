"""Small sources in the shape of vLLM: the same files, class and method names, and nothing of its code.

The buffer counts its rows and answers None when it is empty, so that a get has
two returns; the rest of the model needs things that do not exist, so that
cutting out too much shows.
"""

import io
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

QWEN = "vllm/model_executor/models/qwen3_vl.py"
OMNI = "vllm/model_executor/models/qwen3_omni_moe_thinker.py"

HEADER = '''\
"""A model file."""
import itertools

import torch
from torch import nn

from vllm.distributed import rank_of_everything
from vllm.sequence import IntermediateTensors

FIRST_LEVEL = 0


def empty_levels(levels, rows, width):
    return [torch.zeros(rows, width) for _ in range(levels)]
'''
INIT = """\
def __init__(self, *, vllm_config: NoSuchType, prefix: str = "model"):
    super().__init__()
    config: AnotherType = vllm_config.model_config.hf_config{nested}
    self.config = config
    self.rank = rank_of_everything(vllm_config.parallel_config)
    if self.rank:
        raise RuntimeError("the rest of the model was built")
    self.levels = len(config.vision_config.deepstack_visual_indexes)
    with self._mark_tower_model(vllm_config, {{"image"}}):
        self.visual = NoSuchTower(config.vision_config)
        if self.levels:
            rows = vllm_config.scheduler_config.max_num_batched_tokens
            self.deepstack_input_embeds = empty_levels(self.levels, rows, config.text_config.hidden_size)
            self.filled = 0
    self.language_model = NoSuchModel(vllm_config, self.visual)
"""
GET = """\
def _get_deepstack_input_embeds(self, num_tokens: int) -> NoSuchType:
    if self.filled == 0:
        return None
    return IntermediateTensors(
        {
            f"deepstack_input_embeds_{level}": self._rows(level, num_tokens)
            for level in itertools.islice(itertools.count(FIRST_LEVEL), self.levels)
        }
    )

def _rows(self, level, count):
    return self.deepstack_input_embeds[level][:count]
"""
SET = """\
def _set_deepstack_input_embeds(self, deepstack_input_embeds):
    self.filled = deepstack_input_embeds.size(1)
    if self.filled > self.deepstack_input_embeds[0].size(0):
        raise ValueError("that is too much")
    for ours, theirs in zip(self.deepstack_input_embeds, deepstack_input_embeds):
        ours[: self.filled].copy_(theirs)
"""
CLEAR = """\
def _clear_deepstack_input_embeds(self, num_tokens):
    for rows in self.deepstack_input_embeds:
        rows[:num_tokens].zero_()
    self.filled = 0
"""
FORWARD = """\
def forward(self, x):
    return self.language_model(x, rank_of_everything(x))
"""
HANDS_ON = """\
def forward(self, ids, positions, inputs_embeds=None):
    payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
    out = self.language_model.model(ids, positions, deepstack_input_embeds=payload)
    self._clear_deepstack_input_embeds(inputs_embeds.size(0))
    return out
"""


@dataclass(frozen=True)
class ModelFile:
    """The text of a model file, made of parts that a test replaces.

    `class_name` may carry bases; `nested` is where the configuration lies in the Hugging Face one.
    """

    header: str = HEADER
    class_name: str = "Qwen3VLForConditionalGeneration(NoSuchBase)"
    init: str = INIT
    get: str = GET
    set: str = SET
    clear: str = CLEAR
    more: str = FORWARD
    nested: str = ""

    def __str__(self) -> str:
        """The file's text."""
        init = self.init.replace("{nested}", self.nested).replace("{{", "{").replace("}}", "}")
        methods = f"{init}\n{self.get}\n{self.set}\n{self.clear}\n{self.more}"
        return f"{self.header}\n\nclass {self.class_name}:\n{textwrap.indent(methods, '    ')}"


OMNI_FILE = ModelFile(
    class_name="Qwen3OmniMoeThinkerForConditionalGeneration(NoSuchBase)", nested=".thinker_config"
)


@dataclass(frozen=True)
class Vllm:
    """A whole source: its version, and its files by member name.

    No engine drives the class of `omni`, so that an audit fails for it.
    """

    version: str = "0.22.1"
    qwen: str = field(default_factory=lambda: str(ModelFile()))
    omni: str = field(default_factory=lambda: str(OMNI_FILE))
    name: str = "vllm"

    @property
    def files(self) -> Mapping[str, str]:
        """All Python files."""
        return {
            "vllm/__init__.py": 'raise RuntimeError("vLLM was imported")\n',
            "vllm/_version.py": f"__version__ = version = '{self.version}'\n",
            QWEN: self.qwen,
            OMNI: self.omni,
        }

    def tree(self, root: Path) -> Path:
        """Write a repository; answers its root."""
        for member, text in self.files.items():
            path = root / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return root

    def site_packages(self, root: Path) -> Path:
        """Write what an installation leaves; answers the folder for `sys.path`."""
        self.tree(root)
        info = root / f"{self.name}-{self.version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(self.metadata, "utf-8")
        return root

    def wheel(self, folder: Path, ballast: bytes = b"") -> Path:
        """Write a wheel; `ballast` stands for compiled libraries in front of the sources."""
        info = f"{self.name}-{self.version}.dist-info/METADATA"
        path = folder / f"{self.name}-{self.version}-cp38-abi3-manylinux1_x86_64.whl"
        return _zip(path, {"vllm/big.so": ballast, **_encoded(self.files), info: self.metadata.encode()})

    def sdist(self, folder: Path, suffix: str = ".tar.gz") -> Path:
        """Write an sdist."""
        top = f"{self.name}-{self.version}"
        files = {f"{top}/{member}": data for member, data in _encoded(self.files).items()}
        path = folder / f"{top}{suffix}"
        return (_tar if suffix == ".tar.gz" else _zip)(
            path, {f"{top}/PKG-INFO": self.metadata.encode(), **files}
        )

    @property
    def metadata(self) -> str:
        """The head of METADATA or PKG-INFO."""
        return f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"


def line_of(text: str, fragment: str) -> int:
    """The first line of `text` that has `fragment`, counted from 1."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if fragment in line)


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {member: text.encode() for member, text in files.items()}


def _zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


def _tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, data in files.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
