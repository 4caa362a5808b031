"""The account of a source: what carries a payload is judged or listed, under any name and in any folder."""

import json
import textwrap
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.audit.written_verdicts import audited_class
from cases.selftest.engines.synthetic_carriers import BASE as DECODER_BASE
from cases.selftest.engines.synthetic_carriers import NONE_UNTIL_THE_FIRST, build
from cases.selftest.engines.synthetic_vllm import GRANITE, QWEN, write_driven
from deepstack_harness.audit.account import Account, account_of
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.catalogue.known import KnownCarrier
from deepstack_harness.cli.main import main
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.known import RELEASED, newest_source, open_source
from deepstack_harness.errors import ExitCode, MachineError, Reason
from deepstack_harness.play.case_worker import ClassWays

NEW = "vllm/models/brand_new/dual/side_rows.py"
OLD = "vllm/model_executor/models/qwen3_vl.py"
KNOWN = """
class Qwen3VLForConditionalGeneration(Base):
    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        self._set_deepstack_input_embeds(multimodal_embeddings)
        return self.language_model.embed_input_ids(input_ids)

    def _set_deepstack_input_embeds(self, rows):
        for ours, theirs in zip(self.deepstack_input_embeds, rows):
            ours[: len(theirs)].copy_(theirs)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.language_model.model(positions, deepstack_input_embeds=self.deepstack_input_embeds)
"""
PLANTED = """
from somewhere_else import SpecialConfig, Recorder, decorated


@decorated(dims=["extra"])
class Twofold(Recorder["T"]):
    kind: "SpecialConfig" = SpecialConfig()

    def embed_input_ids(self, input_ids: SpecialConfig, multimodal_embeddings: "Recorder" = None):
        text = self.words(input_ids)
        {store}
        return text

    def forward(self, input_ids, positions, inputs_embeds: SpecialConfig = None) -> SpecialConfig:
        {hand}
{more}
"""


def tree(tmp_path: Path, files: dict[str, str]) -> str:
    for member, text in {"vllm/model_executor/models/utils.py": "", **files}.items():
        path = tmp_path / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def account(tmp_path: Path, files: dict[str, str], *driven: tuple[str, str]) -> Account:
    classes = [audited_class(name, member, ClassWays(methods=True)) for member, name in driven]
    return account_of(open_source(tree(tmp_path, files)), classes, ())


def planted(store: str, hand: str, more: str = "") -> str:
    return PLANTED.format(
        store=textwrap.indent(textwrap.dedent(store), " " * 8).strip(),
        hand=textwrap.indent(textwrap.dedent(hand), " " * 8).strip(),
        more=textwrap.indent(textwrap.dedent(more), " " * 4),
    )


PLAIN = planted("self._rows = text", "return self.decoder(inputs_embeds, extra=self._rows)")


def names(found: Account) -> list[str]:
    return [carrier.name for carrier in found.unjudged]


def test_a_new_folder_class_and_attribute_are_reported_with_a_known_carrier(tmp_path: Path) -> None:
    found = account(tmp_path, {OLD: KNOWN, NEW: PLAIN}, (OLD, "Qwen3VLForConditionalGeneration"))
    (one,) = found.unjudged
    assert (one.name, one.where) == ("Twofold", f"{NEW}:6")
    assert "embed_input_ids stores self._rows" in one.why
    assert (found.judged, found.without, found.failing) == ((OLD,), (), (one,))


def test_a_known_carrier_that_was_not_driven_is_reported_too(tmp_path: Path) -> None:
    assert names(account(tmp_path, {OLD: KNOWN, NEW: PLAIN})) == [
        "Qwen3VLForConditionalGeneration",
        "Twofold",
    ]


@pytest.mark.parametrize(
    ("store", "hand", "more"),
    [
        ("self.hold(text)", "return self.net(self._rows)", "def hold(self, x):\n    self._rows = x"),
        ("self.a.b = text\nself._rows = (text, text)", "x, _ = self._rows\nreturn self.net.a(x)", ""),
        ("self._rows[:] = text", "return self.net(side=self._rows[: len(positions)])", ""),
        ("self._rows.append(text)", "return self.net(side=[*self._rows])", ""),
        ("self._rows[0].copy_(text)", "return self.net(**{'side': self._rows})", ""),
        ("for ours in self._rows:\n    ours.copy_(text)", "return self.net(self._rows)", ""),
        ("slot = self._rows\nslot[:9].copy_(text)", "return self.net(self._rows)", ""),
        ("torch.add(text, 1, out=self._rows)", "return self.net(self._rows)", ""),
        ("fill(self._rows, text)", "return self.net(self._rows)", ""),
        ("self.slot.rows = text", "return self.net(side=self.slot.rows)", ""),
        ("self.net.side = text", "return self.net(positions)", ""),
        ("self._rows = text", "args = [positions, self._rows]\nreturn self.net(*args)", ""),
        ("setattr(self, '_rows', text)", "return self.net(side=getattr(self, '_rows'))", ""),
        ("self._rows, self.n = text, 1", "return self.net(side=self._rows)", ""),
        (
            "self._rows = text", "return self.net(side=self.rows)",
            "@property\ndef rows(self):\n    return self._rows[:9]",
        ),
        (
            "self._rows = text", "return self.run(side=self._rows)",
            "def run(self, side):\n    return self.net(side)",
        ),
        ("self._rows = text", "return super().forward(side=self._rows)", ""),
        ("self._rows = text", "return run_compiled(self.net, side=self._rows)", ""),
        ("self.rows = text", "return self.net(side=self.rows) if positions else self.net(positions)", ""),
    ],
)  # fmt: skip
def test_every_shape_of_a_carrier_is_reported(tmp_path: Path, store: str, hand: str, more: str) -> None:
    assert names(account(tmp_path, {NEW: planted(store, hand, more)})) == ["Twofold"]


BASE = """
class Keeps:
    def embed_input_ids(self, input_ids):
        self.keep(input_ids)

    def keep(self, x):
        self._rows = x
"""
READS = """
from vllm.other.base import Keeps

class Reads(Keeps):
    def forward(self, positions):
        return self.net(positions, side=self._rows)
"""
MIXIN = """
class Holds:
    def hold(self, x):
        self._rows = x
"""
MIXED = """
from vllm.other import base

class Reads(base.Holds):
    def embed_input_ids(self, input_ids):
        self.hold(input_ids)

    def forward(self, positions):
        return self.net(positions, side=self._rows)
"""
GUARDED = """
try:
    import fast
except ImportError:
    fast = None
if fast:
    class Guarded:
        def embed_input_ids(self, ids):
            self._rows = ids

        def forward(self, positions):
            return self.net(self._rows)
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"vllm/other/base.py": BASE, NEW: READS}, ["Reads"]),
        ({"vllm/other/base.py": MIXIN, NEW: MIXED}, ["Reads"]),
        ({NEW: GUARDED}, ["Guarded"]),
        ({"vllm/a/model.py": PLAIN, "vllm/b/model.py": PLAIN}, ["Twofold", "Twofold"]),
    ],
)
def test_a_carrier_is_reported_wherever_its_parts_lie(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    assert names(account(tmp_path, files)) == expected


def test_a_file_that_cannot_be_parsed_and_has_the_word_is_reported(tmp_path: Path) -> None:
    (one,) = account(tmp_path, {NEW: "deepstack = = 1"}).unjudged
    assert (one.where, "not valid in Python" in one.why) == (NEW, True)


WORD = "deepstack_rows"


@pytest.mark.parametrize(
    "text",
    [
        f"# {WORD} are handed on\n",
        f'def forward(x):\n    """Hand {WORD} on."""\n    return x\n',
        f'MAPPING = {{"visual.{WORD}.": "model.visual.{WORD}."}}\n',
        f"class Config:\n    def __init__(self, {WORD}=None):\n        self.{WORD} = {WORD} or [8, 16]\n",
        f"def build(config):\n    return len(config.vision_config.{WORD})\n",
        f"class Model:\n    def __init__(self, given):\n        given.{WORD} = []\n        self.{WORD} = 3\n",
        f"def forward(x, use_{WORD}: bool = True):\n    return run(x) if use_{WORD} else x\n",
        f"def load(weights):\n    return [each for each in weights if '{WORD}' not in each]\n",
        f"class Model:\n    def adapt(self, config):\n        config.{WORD} = ()\n",
        f"from somewhere import {WORD}\n",
    ],
)
def test_what_has_the_word_and_carries_nothing_is_reported_as_that(tmp_path: Path, text: str) -> None:
    found = account(tmp_path, {NEW: text})
    assert (found.unjudged, found.without) == ((), (NEW,))


@pytest.mark.parametrize(
    "text",
    [
        f"class Model:\n    def forward(self, x, {WORD}=None):\n        return x\n",
        f"def step(model, rows):\n    return model(extra_{WORD}=rows)\n",
        f"def step(more, rows):\n    more['{WORD}'] = rows\n",
        f"def step(model, rows):\n    model.{WORD} = rows\n",
        f"def step(model, rows):\n    model.{WORD}[:9], model.n = rows, 9\n",
    ],
)
def test_what_passes_a_payload_on_under_the_word_is_reported(tmp_path: Path, text: str) -> None:
    assert len(account(tmp_path, {NEW: text}).unjudged) == 1


@pytest.mark.parametrize(
    ("store", "hand"),
    [
        ("self.count = None", "return self.net(positions, side=self.count)"),
        ("kept = text", "return self.net(positions)"),
        ("self._rows = text", "return positions if self._rows is None else None"),
    ],
)
def test_a_class_that_passes_no_payload_on_is_no_carrier(tmp_path: Path, store: str, hand: str) -> None:
    assert account(tmp_path, {NEW: planted(store, hand)}) == Account()


INHERITS = """
class More(Twofold):
    def __init__(self, config):
        super().__init__(config)
        self.head = config.head

    def load_weights(self, weights):
        self._rows = None
"""


def test_a_class_that_only_inherits_is_listed_with_its_base(tmp_path: Path) -> None:
    derived = INHERITS
    found = account(tmp_path, {NEW: f"{PLAIN}\n\n{derived}"}, (NEW, "Twofold"))
    assert (found.unjudged, found.judged) == ((), (NEW,))


def test_a_base_is_judged_with_the_class_that_has_its_methods(tmp_path: Path) -> None:
    derived = "class More(Twofold):\n    def __init__(self):\n        self._rows = None\n"
    found = account(tmp_path, {NEW: f"{PLAIN}\n\n{derived}"}, (NEW, "More"))
    assert (found.unjudged, found.judged) == ((), (NEW,))


def test_a_class_that_was_refused_is_reported_with_its_place_and_reason(tmp_path: Path) -> None:
    source = open_source(tree(tmp_path, {NEW: PLAIN}))
    why = Reason("Twofold needs 'SpecialConfig', which is not there", f"{tmp_path}/{NEW}", 2)
    refused = audited_class("Twofold", NEW, ClassWays(refusals=(Reason("no methods"), why)))
    (one,) = account_of(source, [refused], ()).unjudged
    assert (one.where, one.why) == (
        f"{NEW}:6",
        f"Twofold needs 'SpecialConfig', which is not there ({NEW}:2)",
    )


def entry(carrier: str = "Twofold", releases: str = ">=0.30") -> KnownCarrier:
    return KnownCarrier("vllm", releases, ("vllm/models/*",), (carrier,), "nobody has a way to drive it")


def versioned(tmp_path: Path) -> str:
    return tree(tmp_path, {NEW: PLAIN, "vllm/_version.py": '__version__ = version = "0.33.0"\n'})


def test_a_known_carrier_passes_with_its_reason(tmp_path: Path) -> None:
    found = account_of(open_source(versioned(tmp_path)), [], [entry()])
    assert ([carrier.reason for carrier in found.unjudged], found.failing) == (
        ["nobody has a way to drive it"],
        (),
    )


@pytest.mark.parametrize("other", [entry("Other"), entry(releases="<0.30")])
def test_an_entry_about_something_else_changes_nothing(tmp_path: Path, other: KnownCarrier) -> None:
    assert len(account_of(open_source(versioned(tmp_path)), [], [other]).failing) == 1


def test_an_entry_whose_class_can_be_driven_is_outdated(tmp_path: Path) -> None:
    driven = [audited_class("Twofold", NEW, ClassWays(forward=True))]
    assert account_of(open_source(versioned(tmp_path)), driven, [entry()]).outdated == ("Twofold",)


def test_an_entry_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="Twofold: a known carrier needs a reason"):
        KnownCarrier("vllm", ">=0.30", ("*",), ("Twofold",), " ")
    with pytest.raises(ValueError, match="Invalid specifier"):
        entry(releases="0.30")


Capture = pytest.CaptureFixture[str]
FOLDER = NEW.rpartition("/")[0]
KNOWN_CLASS = "Qwen3VLForConditionalGeneration"


def planted_source(root: Path, text: str) -> Path:
    """A tree with a known carrier, and one in a new folder under new names with foreign annotations."""
    return write_driven(root, {GRANITE: "", NEW: text, f"{FOLDER}/base.py": DECODER_BASE})


def audit(root: Path, tmp_path: Path, *words: str) -> tuple[ExitCode, list[dict[str, object]]]:
    path = tmp_path / "rows.jsonl"
    code = main(["audit", "--source", str(root), "--json", str(path), *words])
    return ExitCode(code), [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow  # by day one that cannot, and test_audited_releases.py
def test_a_new_carrier_that_can_be_driven_is_judged(tmp_path: Path, capsys: Capture) -> None:
    root = planted_source(tmp_path / "tree", build(NONE_UNTIL_THE_FIRST["dict"]))
    code, rows = audit(root, tmp_path)
    broken = {(row["model_class"], row["rule"]) for row in rows if row["verdict"] in BROKEN}
    assert code is ExitCode.BROKEN
    assert ("SoundModel", "R1") in broken
    assert KNOWN_CLASS in {row["model_class"] for row in rows}
    last = capsys.readouterr().out.splitlines()[-1]
    assert "R1" in last.partition(". ")[0]


@pytest.mark.parametrize("words", by_day([[], ["--fail-on", "new"], ["--fail-on", "default"], ["--bisect"]]))
def test_a_new_carrier_that_cannot_be_driven_is_red(
    tmp_path: Path, capsys: Capture, words: list[str]
) -> None:
    root = planted_source(tmp_path / "tree", PLAIN)
    code, rows = audit(root, tmp_path, *words)
    assert code is ExitCode.BROKEN
    (row,) = (row for row in rows if row["rule"] is None)
    assert (row["model_class"], row["where"], row["verdict"]) == ("Twofold", f"{NEW}:6", "ERROR")
    assert KNOWN_CLASS in {row["model_class"] for row in rows if row["rule"]}
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("; 1 not judged")
    assert second.endswith("; 1 class not judged")
    assert "unknown for 1 class. " in last
    assert "reached by default: none" not in last


def test_a_new_carrier_that_is_the_only_one_is_red(tmp_path: Path, capsys: Capture) -> None:
    root = write_driven(tmp_path / "tree", {GRANITE: "", QWEN: PLAIN})
    assert main(["audit", "--source", str(root)]) == ExitCode.BROKEN
    assert main(["audit", "--source", str(root), "--bisect"]) == ExitCode.BROKEN
    (root / QWEN).write_text("# deepstack\n")
    capsys.readouterr()
    assert main(["audit", "--source", str(root)]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer" in capsys.readouterr().err


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("engine", RELEASED, ids=lambda engine: engine.package.name)
def test_no_known_carrier_of_a_newest_release_can_be_driven(engine: KnownEngine) -> None:
    try:
        text = newest_source(engine.package)
    except MachineError as error:
        pytest.skip(str(error))
    with SourceWorker(text) as worker:
        found = account_of(open_source(text), worker.classes())
    assert found.outdated == ()
