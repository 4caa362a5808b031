"""The work of the process that loads artifacts and calls them; it compiles no graph itself."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.arms.tensor_json import from_json, to_json
from deepstack_harness.torch_compat import artifact, dynamo
from deepstack_harness.torch_compat.modules import Part, put_together

_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class ArtifactError:
    """Exception of an artifact: its class name, its text, and its `file:line` outside torch, or ""."""

    name: str
    message: str
    where: str


@dataclass(frozen=True)
class ReloadResult:
    """Result of a load or of a call.

    `out` (n, h) is the result of a call; `compiled` is the number of graphs that the process compiled itself
    since the last load; `raised` is what the artifact raised instead.
    """

    out: Tensor | None = None
    compiled: int = 0
    raised: ArtifactError | None = None


@dataclass(frozen=True)
class ArtifactCall:
    """Arguments of a call; see `deepstack_harness.contract.protocols.Inputs` for their shapes."""

    hidden: Tensor | None
    positions: Tensor
    payload: tuple[Tensor, ...] | None
    grad: bool


class LoadedArtifacts:
    """The artifacts of a process, by their keys."""

    def __init__(self) -> None:
        """Begin with none."""
        self.calls: dict[int, Callable[..., Any]] = {}

    def load(self, key: int, path: Path, parts: list[Part], threads: int) -> ReloadResult:
        """Load the artifact in file `path` for a decoder of these parts; call it with so many threads."""
        torch.set_num_threads(threads)
        dynamo.start_counting()
        # First, as it imports the decoder's own operators, which the artifact may use.
        decoder = put_together(parts)
        try:
            function = artifact.load(path)
        except Exception as error:  # noqa: BLE001  # an artifact that torch refuses to load is a fact
            return _raised(error)
        self.calls[key] = lambda *inputs: function(decoder, *inputs)
        return ReloadResult()

    def call(self, key: int, asked: ArtifactCall) -> ReloadResult:
        """Call an artifact; only what the artifact itself raises becomes a result."""
        function = self.calls[key]
        try:
            with torch.set_grad_enabled(asked.grad):
                out = function(asked.hidden, asked.positions, asked.payload)
        except Exception as error:  # noqa: BLE001  # an exception of a compiled call is a fact
            return _raised(error)
        return ReloadResult(out, dynamo.graphs_built())


def _raised(error: Exception) -> ReloadResult:
    # Compiled code keeps the file and line of what was compiled.
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_TORCH) and frame.filename != __file__
    ]
    return ReloadResult(raised=ArtifactError(type(error).__name__, str(error), places[-1] if places else ""))


_ARTIFACTS = LoadedArtifacts()


def load(key: int, path: str, parts: object, threads: int) -> object:
    """Load an artifact and call it `key`; `parts` and the result as JSON."""
    return to_json(_ARTIFACTS.load(key, Path(path), from_json(parts, list[Part]), threads))


def call(key: int, asked: object) -> object:
    """Call artifact `key`; `asked` (an `ArtifactCall`) and the result as JSON."""
    return to_json(_ARTIFACTS.call(key, from_json(asked, ArtifactCall)))


def drop(key: int) -> object:
    """Forget artifact `key`."""
    del _ARTIFACTS.calls[key]
    return to_json(ReloadResult())
