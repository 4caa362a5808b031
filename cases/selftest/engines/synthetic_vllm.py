"""One small engine in the shape of vLLM, in four depths: its names of files and methods, none of its code.

The texts are real files in `synthetic/`:

- `alone/`: one class. Its buffer counts its rows, and its get returns None when it is empty, so that a get
  has two returns; the rest of the model needs things that do not exist, so that cutting out too much shows.
  `ModelFile` puts the file together from its methods, and a test replaces one of them.  The class of
  `HOLDS_A_BUFFER` has its rows in an object of another class, whose text is put above it.
- `package/`: files that a source has. `COUNTED` has get, set and clear for its rows and takes the features of
  a token followed by its levels; `SCATTERED` has all of its logic inside embed_input_ids and forward, and
  takes only the levels. Both can be called, and name helpers that are in other files.
- `running/`: a package `vllm` that is imported: an engine with a scheduler and a runner, and the decorator
  that compiles a model.
- `compiling/`: a package `vllm` that is imported: what compiles, captures and caches, and finds plugins.
"""

import ast
import io
import shutil
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).parent / "synthetic"
RUNNING = _FOLDER / "running"
COMPILING = _FOLDER / "compiling"
"""The folders of the packages that are imported, for `sys.path`."""

MODELS = "vllm/model_executor/models"
QWEN = f"{MODELS}/qwen3_vl.py"
OMNI = f"{MODELS}/qwen3_omni_moe_thinker.py"
GRANITE = f"{MODELS}/granite4_vision.py"
OTHER = f"{MODELS}/other.py"
UTILS = f"{MODELS}/utils.py"
RANGES = "vllm/multimodal/inputs.py"
STREAMS = "vllm/utils/multi_stream_utils.py"


def text_of(member: str) -> str:
    """Return the text of a file of `package/`."""
    return (_FOLDER / "package" / member).read_text("utf-8")


COUNTED = text_of(QWEN)
SCATTERED = text_of(GRANITE)
HELPERS = text_of(UTILS)
RANGE_FILE = text_of(RANGES)
STREAM_FILE = text_of(STREAMS)
SUBCLASSES = text_of(OTHER)
"""Classes that live from the one of `qwen3_vl.py`, and one that has no methods."""

HOLDS_A_BUFFER = (_FOLDER / "alone/holds_a_buffer.py").read_text("utf-8")
_ALONE = (_FOLDER / "alone/qwen3_vl.py").read_text("utf-8")


def _methods(class_name: str, *names: str) -> str:
    """Return methods of a class of the file of one class, without their indentation."""
    (owner,) = (
        node for node in ast.parse(_ALONE).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    lines = _ALONE.splitlines(keepends=True)
    found = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    texts = ("".join(lines[found[name].lineno - 1 : found[name].end_lineno]) for name in names)
    return "\n".join(map(textwrap.dedent, texts))


_NAME = "Qwen3VLForConditionalGeneration"
HEADER = _ALONE.partition("\n\nclass ")[0]
INIT = _methods(_NAME, "__init__")
GET = _methods(_NAME, "_get_deepstack_input_embeds", "_rows")
SET = _methods(_NAME, "_set_deepstack_input_embeds")
CLEAR = _methods(_NAME, "_clear_deepstack_input_embeds")
FORWARD = _methods(_NAME, "forward")
HANDS_ON = _methods("HandsOn", "forward")
"""A forward that gets the payload, passes it to the language model, and clears it."""
INNER_MODEL = f"\n{_ALONE[_ALONE.index('class InnerModel') :]}"
"""The language model that takes the payload as an argument."""


@dataclass(frozen=True)
class ModelFile:
    """The text of a model file, made of parts that a test replaces.

    `class_name` may carry bases; `nested` is where the configuration lies in the Hugging Face one.
    """

    header: str = HEADER
    class_name: str = f"{_NAME}(NoSuchBase)"
    init: str = INIT
    get: str = GET
    set: str = SET
    clear: str = CLEAR
    more: str = FORWARD
    nested: str = ""

    def __str__(self) -> str:
        """The file's text."""
        init = self.init.replace(".hf_config\n", f".hf_config{self.nested}\n")
        methods = f"{init}\n{self.get}\n{self.set}\n{self.clear}\n{self.more}"
        return f"{self.header}\n\nclass {self.class_name}:\n{textwrap.indent(methods, '    ')}"


OMNI_FILE = ModelFile(
    class_name="Qwen3OmniMoeThinkerForConditionalGeneration(NoSuchBase)", nested=".thinker_config"
)


@dataclass(frozen=True)
class Vllm:
    """A whole source: its version, and its files by member name.

    No engine calls the class of `omni`, so that an audit fails for it.
    """

    version: str = "0.22.1"
    qwen: str = field(default_factory=lambda: str(ModelFile()))
    omni: str = field(default_factory=lambda: str(OMNI_FILE))
    name: str = "vllm"

    @property
    def files(self) -> Mapping[str, str]:
        """All Python files."""
        return {
            "vllm/__init__.py": text_of("vllm/__init__.py"),
            "vllm/_version.py": f"__version__ = version = '{self.version}'\n",
            QWEN: self.qwen,
            OMNI: self.omni,
        }

    def tree(self, root: Path) -> Path:
        """Write a repository; return its root."""
        return write(root, self.files)

    def site_packages(self, root: Path) -> Path:
        """Write what an installation leaves; return the folder for `sys.path`."""
        self.tree(root)
        info = root / f"{self.name}-{self.version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(self.metadata, "utf-8")
        return root

    def wheel(self, folder: Path, ballast: bytes = b"") -> Path:
        """Write a wheel; `ballast` is in place of compiled libraries, before the sources."""
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


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write the files of any source, by member name; return its root."""
    for member, text in files.items():
        path = root / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def write_driven(root: Path, files: Mapping[str, str] | None = None) -> Path:
    """Write both models and their helpers, `files` replaced; return the root."""
    return write(root, {UTILS: HELPERS, QWEN: COUNTED, GRANITE: SCATTERED, **(files or {})})


def write_systems(root: Path, **files: str) -> Path:
    """Write a tree with `ranges` and `streams` as the texts of the two files, where they are given."""
    (root / "vllm/model_executor").mkdir(parents=True)
    members = {"ranges": RANGES, "streams": STREAMS}
    return write(root, {members[name]: textwrap.dedent(text) for name, text in files.items()})


def write_compiling(folder: Path, text: str) -> Path:
    """Write what a test of vLLM's own suite imports, around the class that `text`, a source's file, defines.

    The class is cut out of the file: get, set, clear, resize and forward, unchanged.
    """
    package = folder / "vllm"
    shutil.copytree(
        RUNNING / "vllm", package, ignore=shutil.ignore_patterns("__pycache__", "v1", "moss_audio.py")
    )
    (package / "__init__.py").write_text("", "utf-8")
    (owner,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == _NAME)
    assert isinstance(owner, ast.ClassDef)
    prefixes = ("_get_deepstack", "_set_deepstack", "_clear_deepstack", "_resize_deepstack", "forward")
    methods = (node for node in owner.body if getattr(node, "name", "").startswith(prefixes))
    head = (
        "from __future__ import annotations\n\nimport torch\nfrom torch import nn\n\n"
        "from vllm.sequence import IntermediateTensors\n\n\ndef get_pp_group():\n    raise RuntimeError\n"
    )
    body = textwrap.indent("\n\n".join(map(ast.unparse, methods)), "    ")
    write(folder, {QWEN: f"{head}\n\nclass {_NAME}(nn.Module):\n{body}\n"})
    return folder


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
