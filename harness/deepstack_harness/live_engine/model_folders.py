"""Model folders on the disk, made under the interpreter of the engine that loads them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepstack_harness.atomic import write_atomically
from deepstack_harness.catalogue import data_files
from deepstack_harness.errors import MachineError
from deepstack_harness.live_engine.environment import EngineHome
from deepstack_harness.live_engine.facts import checked, prompts_of
from deepstack_harness.live_engine.models.tiny import TinyModel
from deepstack_harness.live_engine.schedules import EngineRequest
from deepstack_harness.live_engine.session import CHILD, answer_of, child_worker

PROBES = tuple(EngineRequest(f"probe{seed}", images=(seed,), answers=3) for seed in (0, 1))
"""The requests whose first token is compared with transformers."""


@dataclass(frozen=True)
class FirstToken:
    """Log-probabilities of transformers for the first answered token, with and without the payload."""

    with_payload: tuple[float, ...]
    without: tuple[float, ...]


@dataclass(frozen=True)
class ModelFolder:
    """A folder that an engine loads; `reference` has one entry for each of `PROBES`."""

    path: Path
    reference: tuple[FirstToken, ...]


@contextmanager
def model_folder(home: EngineHome, model: TinyModel) -> Iterator[ModelFolder]:
    """Give the folder of a tiny model: from the cache where we made the environment, else made for now."""
    if home.version is None:  # packages of an environment that is not ours may change
        with TemporaryDirectory(prefix="deepstack-model-") as own:
            yield _make(home, model, Path(own))
        return
    yield _make(home, model, data_files.cache() / "engines" / "models")


def _make(home: EngineHome, model: TinyModel, where: Path) -> ModelFolder:
    """Make the folder and its reference, as far as they are not there."""
    prompts = prompts_of([probe.job(model) for probe in PROBES])
    folder = where / f"{model.family}-{_digest([model.job(), prompts, home.label])}"
    stored = folder / "reference.json"
    try:
        if not stored.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(stored, json.dumps(_run_transformers(home, model, folder, prompts)).encode())
        found = json.loads(stored.read_bytes())
    except OSError as error:
        raise MachineError(f"cannot make the model folder '{folder}': {error.strerror}") from None
    return ModelFolder(folder, tuple(checked(each, FirstToken) for each in found))


def _run_transformers(
    home: EngineHome, model: TinyModel, folder: Path, prompts: Sequence[Mapping[str, Any]]
) -> Any:  # noqa: ANN401  # JSON
    """Make the folder where it is not there, and run transformers on the prompts."""
    child = CHILD / "model_folder.py"
    told: dict[str, Any] = {"folder": str(folder), "job": model.job()}
    with child_worker(home) as worker:
        if not folder.exists():
            answer_of(worker.call(f"{child}:make", told), f"making a tiny {model.model_class}")
        result = worker.call(f"{child}:reference", {**told, "prompts": prompts})
        return answer_of(result, f"running {model.model_class} of transformers")


def _digest(told: object) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
