"""Write a tiny model folder, and run transformers on it.

This file runs under the interpreter of an engine, which brings torch, transformers, tokenizers and
safetensors; it imports nothing of the harness.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


def make(folder: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Write configuration, tokenizer and weights; return versions and the number of parameters.

    The folder gets its name when it is whole, so that an interrupted call leaves none of that name, and two
    processes that make it at once do not write into each other's files.
    """
    transformers = import_module("transformers")
    there = Path(folder)
    partial = Path(tempfile.mkdtemp(prefix=f"{there.name}.", dir=there.parent))
    for name, content in job["files"].items():
        (partial / name).write_text(json.dumps(content, indent=1), "utf-8")
    _write_tokenizer(partial, job["special"])
    if job["weights"] is None:
        weights = _as_released(_random_model(transformers, partial, job).state_dict(), job["experts"])
    else:
        weights = _random_weights(job)
    # Contiguous copies: safetensors refuses views and shared storage.
    state = {_renamed(name, job["renamed"]): value.clone().contiguous() for name, value in weights.items()}
    save = import_module("safetensors.torch").save_file
    save(state, str(partial / "model.safetensors"), metadata={"format": "pt"})
    _move(partial, there)
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "parameters": sum(value.numel() for value in state.values()),
    }


def reference(folder: str, job: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return for each prompt the log-probabilities of the first generated token, with and without payload."""
    transformers = import_module("transformers")
    # Not read from the folder: its names are those of released checkpoints.
    model = _random_model(transformers, Path(folder), job)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = [
        processor(
            text=[prompt["text"]], images=[picture(image) for image in prompt["images"]], return_tensors="pt"
        )
        for prompt in prompts
    ]
    with_payload = [_first_token(model, prompt) for prompt in inputs]
    parameters = [parameter for name, parameter in model.named_parameters() if job["payload"] in name]
    if not parameters:
        raise LookupError(f"no parameter of {type(model).__name__} has '{job['payload']}' in its name")
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
    return [
        {"with_payload": figures, "without": _first_token(model, prompt)}
        for figures, prompt in zip(with_payload, inputs, strict=True)
    ]


def picture(data: Mapping[str, Any]) -> Any:  # noqa: ANN401  # a PIL image
    """Return an image of `width` times `height` pixels from its bytes."""
    image = import_module("PIL.Image")
    return image.frombytes("RGB", (data["width"], data["height"]), base64.b64decode(data["rgb"]))


def wave(data: Mapping[str, Any]) -> Any:  # noqa: ANN401  # a numpy array, and its sampling rate
    """Return a waveform, float32 of (samples,), and its samples a second."""
    torch.manual_seed(data["seed"])
    time = torch.arange(data["samples"])
    tone = 0.3 * torch.sin(time * (0.05 + 0.02 * data["seed"]))
    return (0.1 * torch.randn(data["samples"]) + tone).numpy(), data["rate"]


def _move(made: Path, there: Path) -> None:
    """Give a folder its name; where another process was faster, its folder stays and this one goes."""
    try:
        made.rename(there)
    except OSError:
        if not there.is_dir():
            raise
        shutil.rmtree(made)


def _write_tokenizer(folder: Path, special: Iterable[str]) -> None:
    tokenizers = import_module("tokenizers")
    level = tokenizers.pre_tokenizers.ByteLevel
    vocabulary = {byte: number for number, byte in enumerate(sorted(level.alphabet()))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = level(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in special])
    made.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")


def _random_model(transformers: Any, folder: Path, job: Mapping[str, Any]) -> Any:  # noqa: ANN401
    config = transformers.AutoConfig.from_pretrained(str(folder))
    if job["nested"]:
        config = getattr(config, job["nested"])
    config._attn_implementation = "eager"  # noqa: SLF001  # the documented way to choose it is an argument of from_pretrained
    torch.manual_seed(0)
    model = getattr(transformers, job["model_class"])(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, job)
    return model


def _random_weights(job: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return parameters of the names and shapes of a job, for a class that transformers does not have."""
    torch.manual_seed(0)
    weights = {name: torch.empty(shape) for name, shape in job["weights"].items()}
    for name, weight in weights.items():
        _fill(name, weight, job)
    return weights


def _fill(name: str, parameter: torch.Tensor, job: Mapping[str, Any]) -> None:
    """Give one parameter, of any shape, its values; random numbers come from torch's generator."""
    if parameter.dim() > 1:
        # Of unit gain for a matrix; patches and tables have many more columns.
        parameter.normal_(0, 0.5 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.05)
        for part, factor in job["scales"].items():
            if part in name:
                parameter.mul_(factor)
    else:
        parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    for part, spread in job["spreads"].items():
        if part in name:
            parameter.normal_(0, spread)


def _as_released(state: Mapping[str, torch.Tensor], experts: str | None) -> dict[str, torch.Tensor]:
    """Return weights with the experts of a mixture as checkpoints have them.

    transformers holds all experts in two tensors: `gate_up_proj` of (experts, 2 * inner, hidden), and
    `down_proj` of (experts, hidden, inner).
    """
    released: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        base, _, last = name.rpartition(".")
        if experts is None or not base.endswith(".experts"):
            released[name] = value
        elif experts == "transposed":
            released[name] = value.transpose(1, 2)
        else:
            gate_up = last == "gate_up_proj"
            parts = (
                zip(("gate_proj", "up_proj"), value.chunk(2, 1), strict=True) if gate_up else [(last, value)]
            )
            released |= {
                f"{base}.{number}.{part}.weight": weight
                for part, weights in parts
                for number, weight in enumerate(weights)
            }
    return released


def _renamed(name: str, renamed: Sequence[str] | None) -> str:
    if renamed is None or renamed[1] in name:
        return name
    return name.replace(renamed[0], renamed[1])


def _first_token(model: Any, inputs: Any) -> list[float]:  # noqa: ANN401
    with torch.no_grad():
        figures: list[float] = model(**inputs).logits[0, -1].log_softmax(-1).tolist()
    return figures
