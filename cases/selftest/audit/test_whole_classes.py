"""Classes are judged whole: what their own `embed_input_ids` and `forward` break is broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.engines import synthetic_by_token as by_token
from cases.selftest.engines.in_process_worker import InProcessWorker, WithoutInputs
from cases.selftest.engines.synthetic_vllm import line_of
from cases.selftest.engines.synthetic_whole import FORWARD, QWEN, RIGHT, WRONG, WholeClass
from deepstack_harness.audit.account import account_of
from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.catalogue.orders import DEFAULT, FLAG
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Row


def judged(
    root: Path, written: WholeClass, new_worker: type[InProcessWorker] = WithoutInputs
) -> ClassVerdicts:
    """The verdicts of a class, which is called in both ways."""
    with new_worker(str(written.write(root))) as worker:
        (audited,) = worker.classes()
        assert (audited.ways.methods, audited.ways.forward) == (True, True), audited.ways.refusals
        return located(judge_class(audited, worker), worker.source, audited)


def broken_rows(verdicts: ClassVerdicts) -> list[Row]:
    return [row for row in verdicts.rows if row.verdict in BROKEN]


@pytest.mark.parametrize("name", by_day(RIGHT, count=2))
def test_a_right_class_passes_however_it_is_written(tmp_path: Path, name: str) -> None:
    verdicts = judged(tmp_path, RIGHT[name], InProcessWorker if name == "plain" else WithoutInputs)
    assert not [(row.rule, row.regime, row.detail) for row in broken_rows(verdicts)]
    assert not verdicts.unjudged
    assert verdicts.kept >= {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"}


@pytest.mark.parametrize("name", by_day(WRONG, lambda name: (WRONG[name].breaks, WRONG[name].regime)))
def test_what_the_whole_class_breaks_is_broken_though_its_methods_keep_it(tmp_path: Path, name: str) -> None:
    written = WRONG[name]
    verdicts = judged(tmp_path, written)
    (row,) = (row for row in verdicts.rows if (row.rule, row.regime) == (written.breaks, written.regime))
    assert row.verdict in BROKEN  # a tree without a version: the fault of a release may be known by its trace
    assert row.reach is not None
    assert row.reach == DEFAULT if written.regime is Regime.LIVE else row.reach.startswith(FLAG)
    assert row.detail.endswith("; its methods keep it when they are called alone")


def test_a_fault_of_the_forward_has_its_lines(tmp_path: Path) -> None:
    written = WRONG["clears before it asks"]
    first = line_of(str(written), "def forward")
    rows = {row.rule: row for row in broken_rows(judged(tmp_path, written))}
    assert rows.keys() == {Rule.BOUNDARY}
    assert (rows[Rule.BOUNDARY].where or "").startswith(f"{QWEN}:{first}-")


def test_a_class_whose_forward_cannot_be_driven_is_not_judged_whole(tmp_path: Path) -> None:
    written = replace(RIGHT["plain"], forward=FORWARD.replace("return hidden", "return self.no_such(hidden)"))
    root = str(written.write(tmp_path))
    with InProcessWorker(root) as worker:
        (audited,) = worker.classes()
        (carrier,) = account_of(worker.source, [audited]).failing
    assert (audited.ways.methods, audited.ways.forward) == (True, False)
    assert carrier.name == audited.model_class
    assert carrier.why.startswith("only its methods were called, not its embed_input_ids and forward: ")
    assert "no_such" in carrier.why


def judged_by_token(root: Path, text: str) -> ClassVerdicts:
    with InProcessWorker(str(by_token.write_by_token(root, text))) as worker:
        (audited,) = worker.classes()
        assert audited.ways.every_token, audited.ways.refusals
        return judge_class(audited, worker)


@pytest.mark.parametrize("name", by_day(by_token.RIGHT))
def test_rows_that_are_looked_up_by_token_pass(tmp_path: Path, name: str) -> None:
    verdicts = judged_by_token(tmp_path, by_token.RIGHT[name])
    assert not [(row.rule, row.regime, row.detail) for row in broken_rows(verdicts)]
    assert verdicts.kept >= {"R1", "R2", "R4", "R7"}
    assert {row.family for row in verdicts.rows if row.rule is Rule.BOUNDARY} == {"gemma4"}


@pytest.mark.parametrize("name", by_day(by_token.WRONG))
def test_rows_that_are_looked_up_by_token_and_lost_are_reported(tmp_path: Path, name: str) -> None:
    text, rule = by_token.WRONG[name]
    rows = broken_rows(judged_by_token(tmp_path, text))
    assert {row.rule: row.reach for row in rows if row.regime is Regime.LIVE}[rule] == DEFAULT


MIXIN = "vllm/model_executor/models/deepstack_mixin.py"
BELOW = "vllm/model_executor/models/below.py"
IMPORTS = """\
import torch
from vllm.sequence import IntermediateTensors
"""


def with_mixin(root: Path, bases: str = "DeepstackMixin, NoSuchBase") -> Path:
    """Write a right class whose get, set and clear are in a mixin of another module, and one below it."""
    head, _, rest = str(WholeClass()).partition("    def _get_deepstack_input_embeds")
    methods, _, tail = rest.partition("    def embed_input_ids")
    init = head.partition("    def __init__")[2]
    imported = "from .deepstack_mixin import DeepstackMixin\n\n\nclass Qwen3VL"
    text = f"{head}    def embed_input_ids{tail}".replace("\n\nclass Qwen3VL", imported)
    files = {
        QWEN: text.replace("(NoSuchBase)", f"({bases})"),
        MIXIN: f"{IMPORTS}\n\nclass DeepstackMixin:\n    def _get_deepstack_input_embeds{methods}",
        BELOW: (
            "import torch\nfrom .qwen3_vl import Qwen3VLForConditionalGeneration\n\n\n"
            "class BelowForConditionalGeneration(Qwen3VLForConditionalGeneration):\n    def __init__"
            + init.replace("super()", "super(Qwen3VLForConditionalGeneration, self)")
        ),
    }
    for member, content in files.items():
        (root / member).parent.mkdir(parents=True, exist_ok=True)
        (root / member).write_text(content, "utf-8")
    return root


@pytest.mark.slow  # 2 s
def test_a_mixin_in_another_module_is_no_fault(tmp_path: Path) -> None:
    with InProcessWorker(str(with_mixin(tmp_path))) as worker:
        classes = worker.classes()
        for audited in classes:
            assert (audited.ways.methods, audited.ways.forward) == (True, True), audited.ways.refusals
            assert broken_rows(judge_class(audited, worker)) == []
        assert account_of(worker.source, classes).unjudged == ()
    assert [audited.model_class for audited in classes] == [
        "BelowForConditionalGeneration", "Qwen3VLForConditionalGeneration",
    ]  # fmt: skip


def test_a_class_that_lost_its_mixin_is_not_judged(tmp_path: Path) -> None:
    with InProcessWorker(str(with_mixin(tmp_path, "NoSuchBase"))) as worker:
        classes = worker.classes()
        assert not any(audited.can_be_judged for audited in classes)
        names = {carrier.name for carrier in account_of(worker.source, classes).unjudged}
    assert "Qwen3VLForConditionalGeneration" in names
