"""Optional inputs of compiled classes: written from what may decide their presence, with names of nobody."""

from hashlib import sha256
from textwrap import dedent

import pytest

from cases.selftest.audit.written_sources import source_of
from deepstack_harness.audit import inputs
from deepstack_harness.audit.inputs import InputStanding, Standing, arguments, audit_inputs, count
from deepstack_harness.engines.engine import RunnerInputs
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.engines.known import open_source

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
    return list(audit_inputs(source_of({name: text.encode() for name, text in texts.items()})).standings)


def standing_of(outer: str, model_class: str = "Region", **files: str) -> InputStanding:
    (extra,) = [
        found
        for found in standings(outer, **files)
        if (found.model_class, found.input) == (model_class, "extra")
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
    assert {row.input for row in found if row.standing is Standing.SAME} >= {
        "inputs_embeds",
        "intermediate_tensors",
    }
    assert sum(count(found).values()) == len(found) == 3


STEP = """
    def model_kwargs(self):
        return {"inputs_embeds": self.rows}
"""
BY_REQUESTS = """
    def add_request(self, request):
        self.rows = request.rows

    def model_kwargs(self):
        kwargs = {}
        if self.rows is not None:
            kwargs["inputs_embeds"] = self.rows
        return kwargs
"""


@pytest.mark.parametrize(
    ("methods", "known", "standing", "words"),
    [
        (STEP, STEP, Standing.SAME, "its functions are those of the engine 1.0"),
        (STEP, "", Standing.SAME, "not read here: the text of pkg.worker.runner.Runner.model_kwargs"),
        ("", STEP, Standing.SAME, "not read here: the text of pkg.worker.runner.Runner.model_kwargs"),
        (BY_REQUESTS, STEP, Standing.AT_RISK, "`self.rows` changes in add_request"),
    ],
    ids=["the text that was read", "another text", "no such function", "another text, which was followed"],
)
def test_what_the_runner_gives_to_every_class_holds_for_the_functions_that_were_read(
    monkeypatch: pytest.MonkeyPatch, methods: str, known: str, standing: Standing, words: str
) -> None:
    texts = frozenset({sha256(known[1:].encode()).hexdigest()[:16]})
    read = RunnerInputs(
        RUNNER_INPUTS.names, "the engine 1.0", {"pkg.worker.runner.Runner.model_kwargs": texts}
    )
    monkeypatch.setattr(inputs, "RUNNER_INPUTS", read)
    monkeypatch.setattr(arguments, "RUNNER_INPUTS", read)
    files = {
        "pkg/models/a.py": REGION + outer(),
        "pkg/worker/runner.py": f"class Runner:\n    rows = None\n{methods}",
    }
    audited = audit_inputs(source_of({name: text.encode() for name, text in files.items()}))
    (row,) = [row for row in audited.standings if row.input == "inputs_embeds"]
    assert (row.standing, words in row.why) == (standing, True), row
    assert audited.unread == (() if methods == known else ("pkg.worker.runner.Runner.model_kwargs",))


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.22.1", "0.33.0"])
def test_the_functions_of_these_releases_were_read(release: str) -> None:
    assert RUNNER_INPUTS.not_read_in(open_source(f"vllm=={release}")) == []


INHERITED = """
class Base(nn.Module):
    def forward(self, input_ids, positions, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra={value})

    def rows(self):
        return len(self.held) or None

class Outer(Base):
{made}
"""
MADE = {
    "the method is inherited": """
    def __init__(self, config):
        self.held, self.region = config.rows, Region()
""",
    "the class is a member of the class": """
    region_class = Region

    def __init__(self, config):
        self.held, self.region = config.rows, self.region_class()
""",
    "a method makes it": """
    def __init__(self, config):
        self.held, self.region = config.rows, self.make()

    def make(self):
        return Region()
""",
    "it is appended": """
    def __init__(self, config):
        self.held, self.region = config.rows, nn.ModuleList()
        self.region.append(Region())
""",
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("late", [True, False], ids=["written by a step", "as configured"])
def test_a_call_is_found_wherever_the_object_is_made(made: str, late: bool) -> None:
    source = INHERITED.format(value="self.held", made=made)
    if late:
        source += """
    def embed_input_ids(self, input_ids, images=None):
        self.held = images
"""
        source = source.replace("config.rows", "None")
    found = standing_of(source)
    assert found.standing is (Standing.AT_RISK if late else Standing.SAME), found
    assert [place.function for place in found.writers] == ["forward"]


@pytest.mark.parametrize("held", ["None", "torch.zeros(4)"])
def test_a_member_of_a_member_is_called(held: str) -> None:
    found = standing_of(f"""
        class Outer(nn.Module):
            def __init__(self):
                self.held = {held}
                self.tower = nn.Module()
                self.tower.blocks = nn.ModuleList([Region() for _ in range(4)])

            def set_rows(self, rows):
                self.held = rows

            def embed_input_ids(self, input_ids):
                self.set_rows(input_ids)

            def forward(self, input_ids, positions):
                for block in self.tower.blocks:
                    input_ids = block(input_ids, positions, extra=self.held)
                return input_ids
    """)
    assert found.standing is (Standing.AT_RISK if held == "None" else Standing.SAME), found


@pytest.mark.parametrize(
    ("stored", "standing"),
    [("self.held", Standing.AT_RISK), ("torch.zeros(4)", Standing.SAME), ("None", Standing.SAME)],
)
def test_a_dictionary_of_the_object_is_followed(stored: str, standing: Standing) -> None:
    source = outer(embed="self.held = images", before="found = self.prepare().get('rows')", value="found")
    found = standing_of(
        f"""{source}
    def prepare(self):
        prepared = {{}}
        prepared["rows"] = {stored}
        return prepared
"""
    )
    assert found.standing is standing, found


PART = """
class Part(nn.Module):
    def forward(self, rows):
        return {value}

class Outer(nn.Module):
    def __init__(self):
        self.region, self.part, self.rows = Region(), Part(), None

    def embed_input_ids(self, input_ids, rows=None):
        self.rows = rows

    def forward(self, input_ids, positions, extra=None):
        input_ids, extra = self.region(input_ids, positions, extra={given})
        return input_ids
"""


def test_the_forward_of_a_part_is_followed() -> None:
    assert standing_of(PART.format(value="rows * 2", given="self.part(input_ids)")).why == "always given"
    assert standing_of(PART.format(value="None", given="self.part(input_ids)")).why == "never given"
    assert standing_of(PART.format(value="rows", given="self.other(input_ids)")).why.endswith("not followed")


def test_what_the_call_itself_assigns_is_not_what_it_is_given() -> None:
    found = standing_of(PART.format(value="rows", given="extra"))
    assert (found.standing, "`extra` is an argument of forward" in found.why) == (Standing.NOT_FOLLOWED, True)


REGISTRY = "MODELS = {'Outer': ('a', \"Outer\")}"


@pytest.mark.parametrize(
    ("runner", "standing"),
    [("kwargs = {}", Standing.SAME), ('names = ["extra"]', Standing.NOT_FOLLOWED)],
)
def test_a_model_that_a_registry_names_gets_what_the_runner_can_name(runner: str, standing: Standing) -> None:
    source = PART.format(value="rows", given="extra")
    found = standing_of(source, pkg__registry=REGISTRY, pkg__worker__runner=runner)
    assert found.standing is standing, found


@pytest.mark.parametrize(
    ("inner", "why"), [("make_model(config)", "another call leaves it out"), ("Other()", "no call gives it")]
)
def test_an_object_of_a_class_that_only_the_configuration_knows(inner: str, why: str) -> None:
    found = standing_of(f"""
        class Plain(nn.Module):
            def __init__(self):
                self.region = Region()

            def forward(self, input_ids, positions):
                return self.region(input_ids, positions)

        class Other(nn.Module):
            pass

        class Outer(nn.Module):
            def __init__(self, config):
                self.inner = {inner}

            def forward(self, input_ids, positions):
                return self.inner.region(input_ids, positions, extra=input_ids * 2)
    """)
    assert (found.standing, found.why) == (Standing.SAME, why), found


LATER_ATTRIBUTE = """
@support_torch_compile
class Reader(nn.Module):
    def __init__(self):
        self.rows = torch.zeros(4)

    def forward(self, input_ids):
        return input_ids + self.rows
"""


@pytest.mark.parametrize("caller", ["__init__", "other"])
def test_a_function_of_a_file_that_is_not_read_runs_when_its_caller_does(caller: str) -> None:
    rows = standings(
        LATER_ATTRIBUTE,
        pkg__models__pack="""
            from pkg.models.a import Reader

            def pack(layer: Reader):
                layer.rows = layer.rows.t()

            def forward(): ...
        """,
        pkg__layers__method=f"class Method:\n    def {caller}(self, layer):\n        pack(layer)\n",
    )
    (row,) = [row for row in rows if (row.model_class, row.input) == ("Reader", "rows")]
    assert row.standing is (Standing.SAME if caller == "__init__" else Standing.NOT_FOLLOWED), row


@pytest.mark.parametrize("bases", ["Mixin, Base", "Base"])
def test_a_mixin_is_called_where_a_class_has_it_and_the_caller_as_bases(bases: str) -> None:
    rows = standings(f"""{LATER_ATTRIBUTE}
class Base(nn.Module):
    def __init__(self):
        self.reader = Reader()
        self.replace()

class Mixin:
    def replace(self):
        for reader in self.modules():
            if isinstance(reader, Reader):
                reader.rows = torch.ones(4)

class Model({bases}):
    pass
""")
    (row,) = [row for row in rows if (row.model_class, row.input) == ("Reader", "rows")]
    assert row.standing is (Standing.SAME if bases == "Mixin, Base" else Standing.NOT_FOLLOWED), row
