"""A source's own compiled text model: found behind a class, run over stand-ins, and judged by R0."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from cases.selftest.engines.synthetic_carriers import NONE_UNTIL_THE_FIRST, RIGHT, write_carrier
from deepstack_harness.audit.classes import COMPILED_TRACE
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.bind import DrivenClass
from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.text_decoder import TextFamily
from deepstack_harness.play.model import Model, NumericsProbe
from deepstack_harness.play.observe import play

CPU = torch.device("cpu")


def found(root: Path, choices: Mapping[str, str], **replaced: str) -> DrivenClass:
    (only,) = classes_of(open_source(str(write_carrier(root, choices, **replaced))))
    return only


def judged(only: DrivenClass, guards: str = "drop_all") -> tuple[Judgement, Distances]:
    """Play the profile run, a step with a payload and a decode; return R0 and the distances of that step."""
    family, forward = only.text, only.forward
    assert isinstance(family, TextFamily), family
    assert isinstance(forward, ForwardClass)
    decoder = family.build(dtype=torch.float32, device=CPU, seed=0)
    probe = NumericsProbe(decoder, family.levels, family.hidden)
    case = Case("qwen3_vl", only.buffer, COMPILED_TRACE, ArmSpec.parse(f"eager/{guards}"))
    seen = play(case, Model(family, decoder, probe, torch.float32, CPU), forward)
    (said,) = [each for each in judge_all(ObservedCase(case, seen)) if each.rule is Rule.R0]
    apart = seen.steps[2].distances
    assert apart is not None
    return said, apart


@pytest.mark.parametrize("container", NONE_UNTIL_THE_FIRST)
def test_a_text_model_compiled_without_a_payload_goes_on_without(container: str, tmp_path: Path) -> None:
    said, apart = judged(found(tmp_path, NONE_UNTIL_THE_FIRST[container]))
    assert said.verdict is Verdict.FAIL
    assert apart.effect > 1.0
    assert apart.eager == pytest.approx(apart.effect)
    assert apart.no_deepstack == 0.0


@pytest.mark.parametrize("container", RIGHT)
def test_zeros_in_the_profile_run_keep_the_payload(container: str, tmp_path: Path) -> None:
    said, apart = judged(found(tmp_path, RIGHT[container]))
    assert said.verdict is Verdict.PASS
    assert apart.eager == 0.0
    assert apart.effect > 1.0


def test_kept_guards_see_the_payload(tmp_path: Path) -> None:
    said, apart = judged(found(tmp_path, NONE_UNTIL_THE_FIRST["dict"]), "stock")
    assert (said.verdict, apart.eager) == (Verdict.PASS, 0.0)


def test_the_place_of_the_text_model_is_told(tmp_path: Path) -> None:
    text = found(tmp_path, RIGHT["list"]).text
    assert isinstance(text, TextFamily)
    assert text.name == "SoundDecoder"
    assert text.text.at.startswith("vllm/model_executor/models/sound.py:")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "@support_torch_compile(",
            "@supports_nothing(",
            r"SoundDecoder \(.*sound\.py:\d+\) is not compiled",
        ),
        ("self.model = SoundDecoder(", "self.model = hidden_away(", "no compiled text model was found"),
        (
            "hidden, residual = x, None",
            "hidden, residual = nw.put(x), None",
            "'nw', which comes from nowhere",
        ),
    ],
)
def test_why_there_is_none(old: str, new: str, why: str, tmp_path: Path) -> None:
    text = found(tmp_path, RIGHT["list"], **{old: new}).text
    assert isinstance(text, str)
    assert re.search(why, text), text
