"""transformers and LMDeploy: a mask and a list of levels, read by what the text model adds."""

from pathlib import Path

import pytest

from cases.selftest.engines.audited import audited
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import FaultKind, Verdict
from deepstack_harness.errors import ExitCode

R = Rule
ASKED = {R.BOUNDARY, R.FRESHNESS, R.CLEAR, R.PLACEMENT}
TRANSFORMERS = "transformers/models/qwen3_vl/modeling_qwen3_vl.py"
LMDEPLOY = "lmdeploy/pytorch/models/qwen3_vl.py"

TRANSFORMERS_FILE = '''\
"""A model file."""
from ...masking_utils import create_causal_mask
from ...modeling_outputs import BaseModelOutputWithPast
from ...modeling_utils import PreTrainedModel
from ...utils import auto_docstring
from ...utils.output_capturing import capture_outputs


class Qwen3VLTextModel(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.layers = NoSuchLayers(config)

    @capture_outputs
    @auto_docstring(checkpoint="none")
    def forward(
        self, input_ids=None, position_ids=None, inputs_embeds=None, visual_pos_masks=None,
        deepstack_visual_embeds=None,
    ):
        mask = create_causal_mask(config=self.config, inputs_embeds=inputs_embeds)
        places = self.rotary_emb(inputs_embeds, position_ids)
        states = inputs_embeds
        for index, layer in enumerate(self.layers):
            states = layer(states, attention_mask=mask, position_embeddings=places)
            if deepstack_visual_embeds is not None and index < len(deepstack_visual_embeds):
                states = self._put(states, visual_pos_masks, deepstack_visual_embeds[index])
        return BaseModelOutputWithPast(last_hidden_state=self.norm(states))

    def _put(self, states, marks, rows):
        states = states.clone()
        states[marks] += rows.to(states.dtype)
        return states
'''
LMDEPLOY_FILE = '''\
"""A model file."""
import torch

from .qwen3 import Qwen3model


class Qwen3VLTextModel(Qwen3model):
    def __init__(self, config):
        super().__init__(config=config)
        self.rotary_emb = no_such_embedding(config)

    def forward(
        self, input_ids=None, position_ids=None, past_key_values=None, inputs_embeds=None,
        visual_pos_masks=None, deepstack_visual_embeds=None,
    ):
        states, residual = inputs_embeds, None
        angles = self.rotary_emb(states, position_ids)
        for index, layer in enumerate(self.layers):
            cache = past_key_values[index]
            states, residual = layer(states, rotary_pos_emb=angles, past_key_value=cache, residual=residual)
            if deepstack_visual_embeds is not None and index < len(deepstack_visual_embeds):
                states, residual = states + residual, None
                added = torch.zeros_like(states)
                added.masked_scatter_(visual_pos_masks, deepstack_visual_embeds[index])
                states = states + added
        states, _ = self.norm(states, residual)
        return states
'''
FILES = {TRANSFORMERS: TRANSFORMERS_FILE, LMDEPLOY: LMDEPLOY_FILE}


def source(root: Path, member: str, text: str) -> str:
    """Write a source with one model file; return its path."""
    package = member.partition("/")[0]
    return str(
        write(root, {f"{package}/__init__.py": "", f"{package}/pytorch/__init__.py": "", member: text})
    )


def judged(text: str) -> ClassVerdicts:
    """Return the verdicts of the only class of a source."""
    return audited(text)[1]


@pytest.mark.parametrize("member", [TRANSFORMERS, pytest.param(LMDEPLOY, marks=pytest.mark.slow)])
def test_a_right_text_model_passes_every_rule(tmp_path: Path, member: str) -> None:
    verdicts = judged(source(tmp_path, member, FILES[member]))
    assert not verdicts.broken
    assert verdicts.kept == ASKED
    skipped = {row.rule: row.detail for row in verdicts.rows if row.verdict is Verdict.SKIP}
    assert all(skipped[rule] for rule in (R.STRUCTURE, R.CAPACITY, R.ADDRESS, R.REJECTION))
    # R8 does not apply; what the model accepts is measured all the same.
    accepted = [row.trace for row in verdicts.rows if row.shape is FaultKind.ACCEPTED]
    assert accepted == ["cap 16: set 4 levels=4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "before", "after"),
    [
        (TRANSFORMERS, "deepstack_visual_embeds[index])", "deepstack_visual_embeds[-1 - index])"),
        (TRANSFORMERS, "states[marks] += rows.to(states.dtype)", "states[marks] += rows[:1]"),
        (TRANSFORMERS, "index < len(deepstack_visual_embeds)", "index < 2"),
        (LMDEPLOY, "index < len(deepstack_visual_embeds)", "index > 0"),
        (LMDEPLOY, "            states = states + added\n", "            states = states + added.abs()\n"),
    ],
)
def test_a_wrong_row_is_reported(tmp_path: Path, member: str, before: str, after: str) -> None:
    assert FILES[member].count(before) >= 1
    verdicts = judged(source(tmp_path, member, FILES[member].replace(before, after)))
    assert verdicts.broken_in(Regime.LIVE) == {R.BOUNDARY}


def test_a_text_model_that_needs_more_is_not_driven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TRANSFORMERS_FILE.replace("config=self.config,", "config=self.config.no_such_part,")
    assert main(["audit", "--source", source(tmp_path, TRANSFORMERS, text)]) == ExitCode.BROKEN
    output = capsys.readouterr().out
    line = text[: text.index("no_such_part")].count("\n") + 1
    assert "Qwen3VLTextModel cannot be run" in output
    assert "the harness has no config.no_such_part" in output
    assert f"({TRANSFORMERS}:{line})" in output


def test_a_text_step_that_fails_is_no_fault_of_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TRANSFORMERS_FILE.replace("position_ids)", "position_ids)[5]")
    assert main(["audit", "--source", source(tmp_path, TRANSFORMERS, text)]) == ExitCode.BROKEN
    assert "Qwen3VLTextModel cannot be run" in capsys.readouterr().out


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("release", ["transformers==5.23.0", "lmdeploy==0.18.0"])
def test_released_text_models(release: str) -> None:
    with SourceWorker(release) as worker:
        classes = [judge_class(audited, worker) for audited in worker.classes() if audited.ways.methods]
    assert {verdicts.model_class for verdicts in classes} >= {"Qwen3VLTextModel", "Qwen3VLMoeTextModel"}
    assert all(not verdicts.broken and verdicts.kept == ASKED for verdicts in classes)
