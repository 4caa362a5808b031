"""Tiny models: their files fit to each other, and weights are written as released checkpoints have them."""

import ast
import json
import re
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from deepstack_harness.engines.live.models import (
    BYTES,
    MODELS,
    VOCABULARY,
    ExpertLayout,
    TinyModel,
    model_of,
    token_ids,
)
from deepstack_harness.engines.live.schedules import EngineRequest
from deepstack_harness.engines.live.session import CHILD, prompts_of

EVERY = pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.family)
VISUAL = pytest.mark.parametrize(
    "model", [model for model in MODELS.values() if model.medium == "image"], ids=lambda model: model.family
)
INNER, HIDDEN, COUNT = 3, 5, 2


def child() -> ModuleType:
    spec = util.spec_from_file_location("model_folder_of_the_child", CHILD / "model_folder.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_of(model: TinyModel) -> dict[str, object]:
    found = model.files["config.json"]
    config = found[model.nested] if model.nested else found
    assert isinstance(config, dict)
    return config


FILES = sorted(CHILD.glob("*.py"))
# By name, through `import_module`: whatever an engine's environment has.
OF_THE_ENGINE = {"vllm", "transformers", "tokenizers", "safetensors", "PIL", "numpy"}


def test_a_family_is_known_by_its_name() -> None:
    assert [model.family for model in MODELS.values()] == list(MODELS) == [
        "qwen3_vl", "granite4_vision", "qwen3_vl_moe", "qwen3_omni_moe_thinker", "moss_audio",
    ]  # fmt: skip
    assert len({model.model_class for model in MODELS.values()}) == len(MODELS)


@VISUAL
def test_ids_in_the_configuration_are_those_of_the_special_tokens(model: TinyModel) -> None:
    ids = token_ids(model.special)
    assert len(set(ids)) == len(model.special)
    config = config_of(model)
    placeholder = "<image>" if "<image>" in ids else "<|image_pad|>"
    assert config["image_token_id"] == ids[placeholder]
    assert placeholder in model.image
    numbers = [value for name, value in config.items() if name.endswith("_token_id")]
    assert numbers
    assert all(BYTES <= value < BYTES + len(model.special) for value in numbers if isinstance(value, int))
    assert BYTES + len(model.special) <= VOCABULARY


@VISUAL
def test_a_video_is_allowed_where_there_is_a_placeholder(model: TinyModel) -> None:
    assert model.limits["image"] >= 4
    assert bool(model.limits.get("video")) == (model.video is not None)
    number = config_of(model).get("video_token_id")
    assert model.video is None or (isinstance(number, int) and model.special[number - BYTES] in model.video)


@VISUAL
def test_three_payload_levels_or_more(model: TinyModel) -> None:
    config = config_of(model)
    vision = config["vision_config"]
    assert isinstance(vision, dict)
    levels = vision.get("deepstack_visual_indexes") or config["deepstack_layer_map"]
    assert isinstance(levels, list)
    assert len(levels) == 3


def test_experts_are_named_where_there_is_a_mixture() -> None:
    mixtures = {model.family for model in MODELS.values() if model.experts}
    having = {name for name, model in MODELS.items() if "num_experts" in str(config_of(model))}
    assert mixtures == having == {"qwen3_vl_moe", "qwen3_omni_moe_thinker"}
    assert model_of("qwen3_vl_moe").experts is ExpertLayout.TRANSPOSED
    assert model_of("qwen3_omni_moe_thinker").experts is ExpertLayout.APART


def test_the_folder_of_a_faster_process_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        made = tmp_path / f"made{number}"
        made.mkdir()
        (made / "config.json").write_text(str(number))
        child()._move(made, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "config.json").read_text() == "1"
    with pytest.raises(FileNotFoundError):
        child()._move(tmp_path / "made1", tmp_path / "another")


def state() -> dict[str, torch.Tensor]:
    gate_up = torch.randn(COUNT, 2 * INNER, HIDDEN, generator=torch.Generator().manual_seed(0))
    down = torch.randn(COUNT, HIDDEN, INNER, generator=torch.Generator().manual_seed(1))
    other = torch.ones(3)
    return {"a.experts.gate_up_proj": gate_up, "a.experts.down_proj": down, "a.gate.weight": other}


def test_transposed_experts() -> None:
    before, found = state(), child()._as_released(state(), "transposed")
    assert found.keys() == before.keys()
    assert found["a.experts.gate_up_proj"].shape == (COUNT, HIDDEN, 2 * INNER)
    assert torch.equal(found["a.experts.down_proj"][1].T, before["a.experts.down_proj"][1])
    assert torch.equal(found["a.gate.weight"], before["a.gate.weight"])


def test_experts_that_are_apart() -> None:
    before, found = state(), child()._as_released(state(), "apart")
    assert len(found) == 1 + 3 * COUNT
    for number in range(COUNT):
        gate, up = (found[f"a.experts.{number}.{part}_proj.weight"] for part in ("gate", "up"))
        assert torch.equal(torch.cat([gate, up]), before["a.experts.gate_up_proj"][number])
        down = found[f"a.experts.{number}.down_proj.weight"]
        assert torch.equal(down, before["a.experts.down_proj"][number])


def test_a_family_without_a_mixture_is_written_as_it_is() -> None:
    assert all(
        torch.equal(found, state()[name]) for name, found in child()._as_released(state(), None).items()
    )


@EVERY
def test_the_child_is_given_all_that_it_reads(model: TinyModel) -> None:
    text = (CHILD / "model_folder.py").read_text()
    job = json.loads(json.dumps(model.job()))
    assert set(re.findall(r'job\["(\w+)"\]', text)) == job.keys()
    assert job["files"] == json.loads(json.dumps(dict(model.files)))
    assert job["special"] == list(model.special)
    request = EngineRequest("a", images=(3,)).job(model)
    (prompt,) = prompts_of([request])
    assert set(re.findall(r'prompt\["(\w+)"\]', text)) == prompt.keys()
    assert model.image in prompt["text"]
    assert (len(request["images"]), len(request["waves"])) == ((1, 0) if model.medium == "image" else (0, 1))


def test_weights_of_a_class_that_transformers_does_not_have() -> None:
    model = model_of("moss_audio")
    weights = child()._random_weights(model.job())
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == model.weights
    payload = [weight for name, weight in weights.items() if model.payload in name]
    assert len(payload) == 3 * 3  # three mergers, each of gate, up and down
    assert all(float(weight.abs().max()) > 0 for weight in payload)
    config = model.files["config.json"]
    assert len(config["audio_config"]["deepstack_encoder_layer_indexes"]) == 3
    assert config["audio_config"]["n_window"] * 2 % 8 == 0
    ids = token_ids(model.special)
    assert model.files["processor_config.json"]["audio_token_id"] == ids["<|AUDIO|>"]
    assert "<|AUDIO|>" in model.image


def test_a_waveform_follows_from_its_seed() -> None:
    request = EngineRequest("a", images=(3,), pixels=96).job(model_of("moss_audio"))
    (wave,) = request["waves"]
    samples, rate = child().wave(wave)
    assert rate == 16000
    assert len(samples) / rate == pytest.approx(9 / 12.5)  # nine rows, as an image of 96 times 96 pixels has
    assert (samples == child().wave(wave)[0]).all()
    assert (samples != child().wave({**wave, "seed": 4})[0]).any()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_torch_and_the_standard_library_are_imported_and_by_name_what_an_engine_has(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"torch"}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name))]):
                assert name.partition(".")[0] in OF_THE_ENGINE | {"torch"}


def test_there_are_files() -> None:
    assert {"engine.py", "ledger.py", "model_folder.py"} <= {path.name for path in FILES}
