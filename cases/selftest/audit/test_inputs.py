"""Optional inputs of compiled classes: written from what may decide their presence, with names of nobody."""

from collections.abc import Mapping
from textwrap import dedent
from types import SimpleNamespace
from typing import cast

import pytest

from deepstack_harness.audit.inputs import InputStanding, Standing, audit_inputs, count
from deepstack_harness.sources.source import Source

REGION = """
@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "extra": 0})
class Region(nn.Module):
    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, extra=None):
        if extra is not None:
            inputs_embeds = inputs_embeds + extra
        return inputs_embeds
"""


def standings(outer: str, **files: str) -> list[InputStanding]:
    texts = {"pkg/models/a.py": REGION + dedent(outer)} | {
        name.replace("__", "/") + ".py": dedent(text) for name, text in files.items()
    }
    source = SimpleNamespace(
        python_files=lambda: cast(Mapping[str, bytes], {k: v.encode() for k, v in texts.items()})
    )
    return list(audit_inputs(cast(Source, source)).standings)


def standing_of(outer: str, model_class: str = "Region", **files: str) -> InputStanding:
    (extra,) = [
        each for each in standings(outer, **files) if (each.model_class, each.input) == (model_class, "extra")
    ]
    return extra


OUTER = """
class Outer(nn.Module):
    def __init__(self, config):
        self.region = Region(config)
        self.held = {init}

    def embed_input_ids(self, input_ids, images=None):
        {embed}
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        {before}
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra={value})
"""


def outer(init: str = "None", embed: str = "pass", before: str = "pass", value: str = "self.held") -> str:
    return OUTER.format(init=init, embed=embed, before=before, value=value)


@pytest.mark.parametrize(
    ("source", "standing", "words"),
    [
        (outer(embed="self.held = images"), Standing.AT_RISK, "is None until embed_input_ids stores it"),
        (
            outer(init="torch.zeros(4)", embed="self.held.copy_(images)"),
            Standing.SAME, "always given",
        ),
        (outer(init="torch.zeros(4)", embed="self.held = None"), Standing.AT_RISK, "is given until"),
        (outer(value="None"), Standing.SAME, "never given"),
        (
            outer(init="0", embed="self.held = len(images)", value="inputs_embeds if self.held else None"),
            Standing.AT_RISK, "`self.held` changes in embed_input_ids",
        ),
        (
            outer(init="config.wide", value="inputs_embeds if self.held else None"),
            Standing.SAME, "decided by the configuration",
        ),
        (
            outer(before="x = kwargs.get('rows')", value="x"),
            Standing.NOT_FOLLOWED, "it comes from the runner as 'rows'",
        ),
        (
            outer(before="rows = inputs_embeds if get_pp_group().is_first_rank else None", value="rows"),
            Standing.SAME, "",
        ),
        ("", Standing.NOT_FOLLOWED, "no call of the class was found"),
    ],
)  # fmt: skip
def test_what_decides_is_followed(source: str, standing: Standing, words: str) -> None:
    found = standing_of(source)
    assert (found.standing, words in found.why) == (standing, True), found


def test_a_method_and_a_middle_class_are_followed() -> None:
    found = standing_of("""
        class Middle(nn.Module):
            def __init__(self):
                self.model = Region()
            def forward(self, input_ids, positions, inputs_embeds=None, extra=None):
                return self.model(input_ids, positions, inputs_embeds=inputs_embeds, extra=extra)

        class Outer(nn.Module):
            def __init__(self):
                self.rows, self.language_model = [1], Middle()
                self.filled = 0
            def set_rows(self, rows):
                self.filled = len(rows)
            def get_rows(self):
                if self.filled == 0:
                    return None
                return self.rows
            def forward(self, input_ids, positions, inputs_embeds=None):
                return self.language_model(input_ids, positions, inputs_embeds, self.get_rows())
    """)
    assert found.standing is Standing.AT_RISK
    assert "`self.filled` changes in set_rows" in found.why
    assert found.where.startswith("pkg/models/a.py:")


LATER = """
@support_torch_compile
class Staged(nn.Module):
    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, extra=None):
        if get_pp_group().is_first_rank:
            hidden = inputs_embeds
        else:
            hidden = intermediate_tensors["hidden"]
            {received}
        return hidden

class Holder(nn.Module):
    def __init__(self):
        self.staged = Staged()
        self.rows = torch.zeros(4)
    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        if intermediate_tensors is not None:
            inputs_embeds = None
        extra = self.rows if inputs_embeds is not None else None
        return self.staged(input_ids, positions, intermediate_tensors, inputs_embeds, extra)
"""


def test_a_later_stage_that_waits_for_its_caller_is_at_risk() -> None:
    under = "if extra is not None:\n                extra = intermediate_tensors['extra']"
    assert standing_of(LATER.format(received=under), "Staged").standing is Standing.AT_RISK
    always = "extra = intermediate_tensors['extra']"
    assert standing_of(LATER.format(received=always), "Staged").standing is Standing.SAME


def test_an_input_of_the_runner_under_a_condition_is_at_risk() -> None:
    runner = """
        class Runner:
            def model_kwargs(self):
                kwargs = {}
                if self.types:
                    kwargs["extra"] = self.types
                return kwargs
    """
    found = standing_of("", pkg__worker__runner=runner)
    assert (found.standing, found.where) == (Standing.AT_RISK, "pkg/worker/runner.py:6")


def test_the_inputs_of_every_runner_are_the_same() -> None:
    found = standings(outer())
    assert {each.input for each in found if each.standing is Standing.SAME} >= {
        "inputs_embeds",
        "intermediate_tensors",
    }
    assert sum(count(found).values()) == len(found) == 3
