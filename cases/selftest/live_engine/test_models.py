"""Tiny models: their files fit to each other, and weights are written as released checkpoints have them."""

import json
import re
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from deepstack_harness.live_engine.facts import prompts_of
from deepstack_harness.live_engine.models.known import MODELS, model_of
from deepstack_harness.live_engine.models.tiny import BYTES, VOCABULARY, ExpertLayout, TinyModel, token_ids
from deepstack_harness.live_engine.schedules import EngineRequest
from deepstack_harness.live_engine.session import CHILD

EVERY = pytest.mark.parametrize("model", MODELS.values(), ids=str)
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


def test_a_family_is_known_by_its_name() -> None:
    assert [model.family for model in MODELS.values()] == list(MODELS) == [
        "qwen3_vl", "granite4_vision", "qwen3_vl_moe", "qwen3_omni_moe_thinker"
    ]  # fmt: skip
    assert len({model.model_class for model in MODELS.values()}) == len(MODELS)


@EVERY
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


@EVERY
def test_a_video_is_allowed_where_there_is_a_placeholder(model: TinyModel) -> None:
    assert model.limits["image"] >= 4
    assert bool(model.limits.get("video")) == (model.video is not None)
    assert (model.video is None) or model.special[ids_of_video(model)] in model.video


def ids_of_video(model: TinyModel) -> int:
    config = config_of(model)
    number = config["video_token_id"]
    assert isinstance(number, int)
    return number - BYTES


@EVERY
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
    assert all(torch.equal(one, state()[name]) for name, one in child()._as_released(state(), None).items())


@EVERY
def test_the_child_is_told_all_that_it_reads(model: TinyModel) -> None:
    text = (CHILD / "model_folder.py").read_text()
    told = json.loads(json.dumps(model.job()))
    assert set(re.findall(r'job\["(\w+)"\]', text)) == told.keys()
    assert told["files"] == json.loads(json.dumps(dict(model.files)))
    assert told["special"] == list(model.special)
    (prompt,) = prompts_of([EngineRequest("a", images=(3,)).job(model)])
    assert set(re.findall(r'prompt\["(\w+)"\]', text)) == prompt.keys()
    assert model.image in prompt["text"]
    assert len(prompt["images"]) == 1
