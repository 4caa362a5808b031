"""Carriers of a payload, under any name and in any container, and the text model that they call."""

import ast
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.selftest.engines.synthetic_carriers import NONE_UNTIL_THE_FIRST, RIGHT, write_carrier
from deepstack_harness.audit.classes import COMPILED_TRACE
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.bind import DefinedClass
from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.carriers import Carrier, find_carrier
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.stand_ins import UNBOUNDED, ForwardBuffer
from deepstack_harness.engines.syntax import Function
from deepstack_harness.engines.text_decoder import TextFamily
from deepstack_harness.play.model import Model, NumericsProbe
from deepstack_harness.play.observe import play

EMBED = """
def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
    text = self.decoder.embed_input_ids(input_ids)
    {store}
    return text
"""
FORWARD = """
def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
    {hand}
"""
STORED, PASSED = 4, 8
"""The lines of the two statements in the templates."""


def carrier(text: str) -> Carrier | None:
    """Return what the methods of `text` carry; `others` are further methods of the class."""
    methods = {node.name: node for node in ast.parse(text).body if isinstance(node, Function)}
    return find_carrier(methods.get)


def carrier_of(store: str, hand: str, others: str = "") -> Carrier | None:
    """Put statements into both methods."""
    embed = EMBED.format(store=textwrap.indent(textwrap.dedent(store), " " * 4).strip())
    forward = FORWARD.format(hand=textwrap.indent(textwrap.dedent(hand), " " * 4).strip())
    return carrier(f"{embed}{forward}{others}")


LEVELS, HIDDEN = 3, 8


def class_in(root: Path, choices: Mapping[str, str]) -> DefinedClass:
    """Return the only class of a tree."""
    (only,) = classes_of(open_source(str(write_carrier(root, choices))))
    return only


def made(root: Path, choices: Mapping[str, str]) -> ForwardBuffer:
    """Return a buffer of the only class of a tree."""
    only = class_in(root, choices)
    assert isinstance(only.forward, ForwardClass), only.refusals
    return only.forward(16, HIDDEN, LEVELS, dtype=torch.float32, device=torch.device("cpu"))


def payload(tokens: int) -> Tensor:
    return 1.0 + torch.arange(LEVELS * tokens * HIDDEN, dtype=torch.float32).view(LEVELS, tokens, HIDDEN)


def read(buffer: ForwardBuffer, tokens: int) -> Tensor:
    answer = buffer.get(tokens)
    assert answer is not None
    return torch.stack(answer)


@pytest.mark.parametrize(
    ("store", "hand", "attribute", "arguments"),
    [
        ("self.kept = text", "return self.decoder(inputs_embeds, extra=self.kept)", "kept", ("extra",)),
        ("self.rows[:9].copy_(text)", "return self.decoder.model(self.rows[:9])", "rows", ()),
        ("self.by_name['a'] = text", "x = {**self.by_name}\nreturn self.net(side=x)", "by_name", ("side",)),
        ("self.queue.append(text)", "x = self.queue.pop()\nreturn self.net(side=x)", "queue", ("side",)),
        ("setattr(self, 'late', text)", "return self.net(side=getattr(self, 'late'))", "late", ("side",)),
        ("self.kept = text", "more = {}\nmore.update(side=self.kept)\nreturn self.net(**more)", "kept", ()),
        ("self.kept = text", "net = self.net.model\nreturn net(side=self.kept)", "kept", ("side",)),
        (
            "self.kept = text",
            "net = self.get_language_model()\nreturn net(side=self.kept)", "kept", ("side",),
        ),
    ],
)  # fmt: skip
def test_a_payload_is_found_in_any_container(
    store: str, hand: str, attribute: str, arguments: tuple[str, ...]
) -> None:
    found = carrier_of(store, hand)
    assert found is not None
    assert (found.attributes, found.arguments) == ((attribute,), arguments)


def test_lines_are_those_of_the_store_and_of_the_call() -> None:
    found = carrier_of("self.kept = text", "return self.net(side=self.kept)")
    assert found is not None
    assert (found.stored, found.passed) == (STORED, PASSED)


def test_methods_that_are_called_count_as_well() -> None:
    others = """
def keep(self, rows):
    self.slot = {"a": rows}

def kept(self, count):
    return {name: rows[:count] for name, rows in self.slot.items()}
"""
    found = carrier_of("self.keep(text)", "rows = self.kept(9)\nreturn self.net(side=rows)", others)
    assert found is not None
    assert (found.attributes, found.arguments) == (("slot",), ("side",))


@pytest.mark.parametrize(
    ("store", "hand"),
    [
        ("pass", "return self.net(side=self.kept)"),  # nothing is stored
        ("kept = text", "return self.net(inputs_embeds)"),  # only in a variable
        ("self.kept = text", "return self.net(inputs_embeds)"),  # nobody reads it
        ("self.kept = text", "if self.kept is None:\n    return None\nreturn self.net(inputs_embeds)"),
        ("self.kept = text", "x = self.scaled(self.kept)\nreturn inputs_embeds"),  # not to a model
    ],
)
def test_what_is_not_passed_on_is_no_payload(store: str, hand: str) -> None:
    assert carrier_of(store, hand, "\ndef scaled(self, rows):\n    return rows\n") is None


def test_methods_that_call_each_other_come_to_an_end() -> None:
    found = carrier_of(
        "self.keep(text)", "return self.net(self.kept)", "\ndef keep(self, x):\n    self.keep(x)\n"
    )
    assert found is None


def test_a_class_without_either_method_carries_nothing() -> None:
    assert carrier("def forward(self):\n    return self.net(self.kept)") is None
    assert carrier("def embed_input_ids(self, ids):\n    self.kept = ids") is None


@pytest.mark.parametrize("container", by_day(NONE_UNTIL_THE_FIRST, count=3))
def test_none_until_the_first_sound(container: str, tmp_path: Path) -> None:
    buffer = made(tmp_path, NONE_UNTIL_THE_FIRST[container])
    assert buffer.get(16) is None
    buffer.set(payload(9))
    assert torch.equal(read(buffer, 9), payload(9))
    buffer.clear(9)
    buffer.begin_step(4, profile=False)
    assert buffer.get(4) is None


@pytest.mark.parametrize("container", RIGHT)
def test_zeros_until_the_first_sound(container: str, tmp_path: Path) -> None:
    buffer = made(tmp_path, RIGHT[container])
    assert torch.equal(read(buffer, 16), torch.zeros(LEVELS, 16, HIDDEN))
    buffer.set(payload(9))
    padded = torch.cat([payload(9), torch.zeros(LEVELS, 7, HIDDEN)], dim=1)
    assert torch.equal(read(buffer, 16), padded)


def test_a_class_without_storage_of_its_own_has_no_capacity(tmp_path: Path) -> None:
    assert made(tmp_path, NONE_UNTIL_THE_FIRST["dict"]).capacity == UNBOUNDED


def test_the_class_is_found_and_named(tmp_path: Path) -> None:
    only = class_in(tmp_path, NONE_UNTIL_THE_FIRST["list"])
    assert (only.found.model_class, only.found.member) == (
        "SoundModel",
        "vllm/model_executor/models/sound.py",
    )
    assert only.methods is None


CPU = torch.device("cpu")


def found(root: Path, choices: Mapping[str, str], **replaced: str) -> DefinedClass:
    (only,) = classes_of(open_source(str(write_carrier(root, choices, **replaced))))
    return only


def judged(only: DefinedClass, guards: str = "drop_all") -> tuple[Judgement, Distances]:
    """Play the profile run, a step with a payload and a decode; return R0 and the distances of that step."""
    family, forward = only.text, only.forward
    assert isinstance(family, TextFamily), family
    assert isinstance(forward, ForwardClass)
    decoder = family.build(dtype=torch.float32, device=CPU, seed=0)
    probe = NumericsProbe(decoder, family.levels, family.hidden, each_level=True)
    case = Case("qwen3_vl", only.buffer, COMPILED_TRACE, ArmSpec.parse(f"eager/{guards}"))
    seen = play(case, Model(family, decoder, probe, torch.float32, CPU), forward)
    judgements = judge_all(ObservedCase(case, seen))
    (said,) = [judgement for judgement in judgements if judgement.rule is Rule.OUTPUT]
    apart = seen.steps[2].distances
    assert apart is not None
    return said, apart


@pytest.mark.parametrize("container", by_day(NONE_UNTIL_THE_FIRST))
def test_a_text_model_compiled_without_a_payload_goes_on_without(container: str, tmp_path: Path) -> None:
    judgement, apart = judged(found(tmp_path, NONE_UNTIL_THE_FIRST[container]))
    assert judgement.verdict is Verdict.FAIL
    assert apart.effect > 1.0
    assert apart.eager == pytest.approx(apart.effect)
    assert apart.no_deepstack == 0.0


@pytest.mark.parametrize("container", by_day(RIGHT))
def test_zeros_in_the_profile_run_keep_the_payload(container: str, tmp_path: Path) -> None:
    judgement, apart = judged(found(tmp_path, RIGHT[container]))
    assert judgement.verdict is Verdict.PASS
    assert apart.eager == 0.0
    assert apart.effect > 1.0


@pytest.mark.parametrize(
    ("old", "new", "dropped"),
    by_day(
        [
            ("ROWS_OF(side_rows, number)", "side_rows[number] * (number != 1)", "1 level (1) of 3"),
            ("LEVELS_IN(side_rows)", "len(side_rows) - 1", "1 level (2) of 3"),
            ("ROWS_OF(side_rows, number)", "side_rows[0]", "2 levels (1, 2) of 3"),
        ]
    ),
)
def test_a_text_model_that_drops_a_level_is_wrong(old: str, new: str, dropped: str, tmp_path: Path) -> None:
    judgement, apart = judged(found(tmp_path, {**RIGHT["list"], old: new}))
    assert (judgement.verdict, apart.eager) == (Verdict.FAIL, 0.0)
    assert f"{dropped} have no influence on the output" in judgement.detail


def test_guards_that_are_not_dropped_see_the_payload(tmp_path: Path) -> None:
    judgement, apart = judged(found(tmp_path, NONE_UNTIL_THE_FIRST["dict"]), "stock")
    assert (judgement.verdict, apart.eager) == (Verdict.PASS, 0.0)


def test_the_place_of_the_text_model_is_reported(tmp_path: Path) -> None:
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
        ("self.model = SoundDecoder(", "self.model = hidden_away(", "no compiled text model that was found"),
        (
            "hidden, residual = x, None",
            "hidden, residual = nw.put(x), None",
            r"sound\.py:\d+: .*\.nw is not there and is read",
        ),
    ],
)
def test_why_there_is_none(old: str, new: str, why: str, tmp_path: Path) -> None:
    text = found(tmp_path, RIGHT["list"], **{old: new}).text
    assert isinstance(text, str)
    assert re.search(why, text), text
